//! Attention masks of prefill.
//!
//! Source: LiteRT Torch issue 1184 with pull request 1226, and LiteRT-LM issue 3508. On SM8850 and
//! SM8750, a mask of 16-bit values that is concatenated from one copy per head gives wrong rows if
//! it has more than 1,048,576 bytes. It has heads × rows × (context + rows) values. The shim
//! broadcasts larger masks, which is correct and needs between 7 % less and 10 % more time in one
//! attention. So the size is only a preference.

use shardwright_planner::{Cause, Entry, EntryKind, Goals, Plan, Reason, Refusal, Request, Shard, names};

/// Fact: the most bytes of a mask with a copy per head.
const FACT: &str = "repeated-mask-bytes";

/// Bytes of a value of a mask.
const VALUE_BYTES: u64 = 2;

/// Prefers a prefill with few enough rows for its mask. If the plan with it takes as long within
/// the error of the times, returns that plan, and limits the rows of the request.
pub(crate) fn smaller(
    request: &mut Request,
    mut plan: Plan,
    solve: impl Fn(&Request) -> Result<Plan, Refusal>,
) -> Plan {
    let states = |shard: &Shard| request.targets[shard.target as usize].fact(FACT).is_some();
    if request.model.heads == 0 && request.has_states() && plan.shards.iter().any(states) {
        let choice = "masks of prefill are not checked".to_owned();
        let because = "the number of query heads is unknown".to_owned();
        plan.reasons.push(Reason { shard: None, choice, because, cause: Cause::Preference(FACT.to_owned()) });
        return plan;
    }
    let Some((large, most)) = too_large(request, &plan) else { return plan };
    let [size, added] = names::apart("bytes", [mask_bytes(request, large), most]);
    let mut because = format!(
        "the mask of {} has {size} with a copy per head, more than the {added} that were added correctly; \
         the shim broadcasts it",
        names::entry(large)
    );
    let fits = |entry: &Entry| {
        entry.kind == EntryKind::Prefill
            && entry.context == large.context
            && entry.rows < large.rows
            && mask_bytes(request, *entry) <= most
    };
    let fitting = request.entries.iter().copied().filter(fits).max_by_key(|entry| entry.rows);
    let mut choice = names::entry(large);
    match fitting {
        None => because.push_str(", and no smaller prefill is offered whose mask fits"),
        Some(fitting) => {
            let bound = Cause::Goal("max-prefill-rows".to_owned());
            let goals = Goals { max_prefill_rows: fitting.rows, ..request.goals.clone() };
            let limited = Request { goals, ..request.clone() };
            let objection = match solve(&limited) {
                Ok(found) => match super::objection(request, &plan, &found) {
                    None => {
                        plan = found;
                        None
                    }
                    objection => objection,
                },
                Err(refusal) => Some(refusal.message),
            };
            let name = names::entry(fitting);
            match objection {
                Some(why) => because.push_str(&format!(", and with {name} {why}")),
                None => {
                    // The request did not set this bound.
                    plan.reasons.retain(|reason| reason.cause != bound);
                    let own = names::bytes(mask_bytes(request, fitting));
                    because = format!(
                        "its mask has {own}; {because}, and both take as long within the error of the times"
                    );
                    choice = name;
                    *request = limited;
                }
            }
        }
    }
    plan.reasons.push(Reason { shard: None, choice, because, cause: Cause::Preference(FACT.to_owned()) });
    plan
}

/// Returns the prefill of a plan with the most rows if its mask exceeds the bytes that a target
/// states, with these bytes.
fn too_large(request: &Request, plan: &Plan) -> Option<(Entry, u64)> {
    let of_shard = |shard: &Shard| {
        let target = request.targets.get(shard.target as usize).filter(|target| super::is_own(target))?;
        let most = target.number(FACT)?;
        let prefills = shard.entries.iter().copied().filter(|entry| entry.kind == EntryKind::Prefill);
        let largest = prefills.max_by_key(|entry| entry.rows)?;
        (mask_bytes(request, largest) > most).then_some((largest, most))
    };
    plan.shards.iter().find_map(of_shard)
}

/// Returns the bytes of the mask of a prefill with a copy for each head.
fn mask_bytes(request: &Request, entry: Entry) -> u64 {
    let slots = u64::from(entry.context) + u64::from(entry.rows);
    let values = u64::from(request.model.heads).saturating_mul(entry.rows.into()).saturating_mul(slots);
    values.saturating_mul(VALUE_BYTES)
}

#[cfg(test)]
mod tests {
    use shardwright_planner::testing::set_time;
    use shardwright_planner::{Cost, Planner};

    use super::*;
    use crate::Qualcomm;
    use crate::tests::chip;

    /// Returns a request with prefills of 128 and 64 rows, whose masks have 1,310,720 and 589,824
    /// bytes. A run needs `time` microseconds per layer.
    fn request(time: impl Fn(u32) -> u64, sizes: &[u32]) -> Request {
        chip(2)
            .fact("npu", FACT, "1048576")
            .change(|request| {
                request.model.heads = 8;
                let prefill = |rows| Entry { kind: EntryKind::Prefill, rows, context: 512 };
                let rows: Vec<Cost> =
                    request.costs.iter().filter(|cost| cost.entry == prefill(128)).cloned().collect();
                for &size in sizes.iter().filter(|size| **size != 128) {
                    request.entries.push(prefill(size));
                    request.costs.extend(rows.iter().map(|row| Cost { entry: prefill(size), ..row.clone() }));
                }
                for cost in &mut request.costs {
                    set_time(cost, time(cost.entry.rows));
                }
            })
            .build()
    }

    fn prefill(plan: &Plan) -> Vec<u32> {
        let entries = plan.shards.iter().flat_map(|shard| &shard.entries);
        entries.filter(|entry| entry.kind == EntryKind::Prefill).map(|entry| entry.rows).collect()
    }

    /// Returns the reasons of this rule.
    fn said(plan: &Plan) -> Vec<&str> {
        let own = plan.reasons.iter().filter(|own| own.cause == Cause::Preference(FACT.to_owned()));
        own.map(|own| own.because.as_str()).collect()
    }

    #[test]
    fn a_mask_that_fits_is_preferred_if_it_costs_no_time() {
        let plan = |request: &Request| Qualcomm::make_plan(request).unwrap();
        let even = request(|rows| 10 * u64::from(rows), &[128, 64]);
        let slower = request(|rows| 2000 + 10 * u64::from(rows), &[128, 64]);
        let alone = request(u64::from, &[128]);
        for (request, rows, why) in [
            (&even, 64, "its mask has 576.0 KiB"),
            (&slower, 128, "with prefill_64@512 the first token would take"),
            (&alone, 128, "no smaller prefill is offered"),
        ] {
            let plan = plan(request);
            assert_eq!(prefill(&plan), [rows]);
            let because = &said(&plan)[..];
            assert!(matches!(because, [own] if own.contains("1.2 MiB") && own.contains(why)), "{because:?}");
            let is_goal = |reason: &Reason| reason.cause == Cause::Goal("max-prefill-rows".to_owned());
            assert_eq!(plan.reasons.iter().any(is_goal), rows == 128, "the request sets no bound of 64 rows");
        }
    }

    #[test]
    fn masks_that_fit_or_are_unknown_change_no_plan() {
        const UNCHECKED: &str = "the number of query heads is unknown";
        let mut small = request(u64::from, &[128, 64]);
        small.model.heads = 6;
        let mut unknown = request(u64::from, &[128, 64]);
        unknown.model.heads = 0;
        let mut unstated = request(u64::from, &[128, 64]);
        unstated.targets[0].facts.retain(|fact| fact.name != FACT);
        for (request, why) in [(small, None), (unknown, Some(UNCHECKED)), (unstated, None)] {
            let plan = Qualcomm::make_plan(&request).unwrap();
            assert_eq!(prefill(&plan), [128]);
            assert_eq!(said(&plan), why.into_iter().collect::<Vec<_>>());
        }
    }
}
