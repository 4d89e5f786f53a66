//! Flags that did not help after a refusal are never set to raise a limit.
//!
//! Source: Genio community 2379. A network of 35 layers was refused on Dimensity 9300, and remained
//! refused with six sets of flags, among them `--opt 3` and, added to it, `--mdla-mlo`, `--mem-opt
//! 3` and `--stable-linearize`, each alone and all together. A profile lists such a flag as a
//! relief without a value, and the solver sets only flags with one. This rule also ignores the
//! value of a flag that limits of the same name list without one.

use shardwright_planner::{Flag, Request};

/// Removes the values of flags that did not help.
pub(crate) fn ignore_contradicted(request: &mut Request) {
    for target in request.targets.iter_mut().filter(|target| super::is_own(target)) {
        let mut useless: Vec<(String, Flag)> = Vec::new();
        for limit in &target.limits {
            let flags = limit.relief.iter().filter(|relief| relief.value.is_none());
            useless.extend(flags.map(|relief| (limit.name.clone(), relief.flag.clone())));
        }
        for limit in &mut target.limits {
            let is_useless = |flag: &Flag| useless.iter().any(|(of, own)| *of == limit.name && own == flag);
            limit.relief.retain(|relief| relief.value.is_none() || !is_useless(&relief.flag));
        }
    }
}

#[cfg(test)]
mod tests {
    use shardwright_planner::testing::RequestBuilder;
    use shardwright_planner::{Plan, Planner};

    use crate::MediaTek;
    use crate::tests::chip;

    fn flags(plan: &Plan) -> Vec<&str> {
        plan.shards.iter().flat_map(|shard| &shard.flags).map(|flag| flag.name.as_str()).collect()
    }

    #[test]
    fn a_flag_that_did_not_help_is_not_tried_again() {
        let limited = || chip(8).limit("npu", "ops", 400);
        let helps =
            |builder: RequestBuilder| builder.relief("ops", ("mdla-mlo", "true"), Some(2000), "one report");
        let plan = MediaTek::make_plan(&helps(limited()).build()).unwrap();
        assert_eq!(flags(&plan), ["mdla-mlo"], "one shard instead of three");
        let refuted = helps(limited()).relief("ops", ("mdla-mlo", "true"), None, "another report").build();
        let plan = MediaTek::make_plan(&refuted).unwrap();
        assert_eq!((flags(&plan), plan.shards.len()), (vec![], 3));
        // Another value of the flag may help.
        let other = helps(limited()).relief("ops", ("mdla-mlo", "2"), None, "another report").build();
        assert_eq!(flags(&MediaTek::make_plan(&other).unwrap()), ["mdla-mlo"]);
    }
}
