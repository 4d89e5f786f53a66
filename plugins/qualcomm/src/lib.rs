//! Planner for Qualcomm's Hexagon processors: rules from field reports about context binaries.
//!
//! **Job.** Applies a rule from each file of this crate to the request, the solver's settings or
//! its plan, and adds a reason wherever the rule matters:
//!
//! * `parts.rs`: context binaries that are cut have parts of similar size.
//! * `accumulation.rs`: chains that hear avoid products that a chip adds up in 16-bit floats.
//! * `masks.rs`: prefill has few enough rows for the attention mask, if that costs no time.
//! * `calls.rs`: calls are shorter than callers poll for, if that costs no time.
//!
//! Times that differ by less than their error count as equal. The SDK's solver does the rest, with
//! the options of the built-in planner.
//!
//! **Not its job.** It knows no chip: limits, facts and flags are in the profiles of the chips.

use shardwright_planner::learn::{self, goals_last};
use shardwright_planner::solver::{Budget, Settings, loss_of};
use shardwright_planner::table::{CostTable, cost_of};
use shardwright_planner::{
    Attempt, Description, Plan, Planner, Refusal, Request, Shard, Target, names, options,
};

mod accumulation;
mod calls;
mod masks;
mod parts;

/// The planner for Qualcomm's Hexagon processors.
#[derive(Debug)]
pub struct Qualcomm;

shardwright_planner::export_planner!(Qualcomm);

impl Planner for Qualcomm {
    fn describe() -> Description {
        Description {
            name: "qualcomm".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            summary: "fastest plan for Hexagon processors, in balanced parts and short calls".to_owned(),
            options: options::descriptions(),
        }
    }

    fn make_plan(request: &Request) -> Result<Plan, Refusal> {
        plan(request, &[])
    }

    fn revise(request: &Request, _previous: &Plan, history: &[Attempt]) -> Result<Plan, Refusal> {
        plan(request, history)
    }
}

/// Plans by the rules, after the attempts of a history.
fn plan(request: &Request, history: &[Attempt]) -> Result<Plan, Refusal> {
    let mut request = request.clone();
    let reasons = accumulation::refuse(&mut request);
    let mut plan = goals_last(&request, history, balanced)?;
    plan.reasons.extend(reasons);
    Ok(plan)
}

/// Plans by the rules for settings and plans, with a request that the other rules have changed.
fn balanced(request: &Request, history: &[Attempt], budget: Budget) -> Result<Plan, Refusal> {
    let mut settings = Settings { budget, ..options::settings(request, &[])? };
    parts::balance(request, &mut settings);
    let mut request = request.clone();
    let solve = |request: &Request| {
        // Later searches need comparisons too.
        let part = settings.budget.part(2);
        let own = Settings { budget: part.clone(), ..settings.clone() };
        let found =
            options::usually(request, own, |request, settings| learn::plan(request, history, settings));
        settings.budget.take_back(&part);
        found
    };
    let plan = solve(&request)?;
    let plan = masks::smaller(&mut request, plan, solve);
    Ok(calls::shortened(&request, plan, solve))
}

/// Returns whether a target is a Hexagon processor.
fn is_own(target: &Target) -> bool {
    target.fact("hexagon-arch").is_some()
}

/// The error, in percent, of the times and losses of two plans that run the same layers on the same
/// targets. The solver ranks two targets as equally certain within this margin too.
const ERROR_PERCENT: u64 = 5;

/// Returns whether an amount is at most the other one within the error.
fn is_within_error(after: u64, before: u64) -> bool {
    u128::from(after) * 100 <= u128::from(before) * u128::from(100 + ERROR_PERCENT)
}

/// Returns why the plan `other` may not replace `plan`, or `None` if both run every layer on the
/// same target, and the loss and the likely times of `other` are no larger within their error.
fn objection(request: &Request, plan: &Plan, other: &Plan) -> Option<String> {
    let targets = |plan: &Plan| {
        let shards = plan.shards.iter();
        shards.flat_map(|shard| shard.formats().map(move |_| shard.target)).collect::<Vec<u32>>()
    };
    if targets(plan) != targets(other) {
        return Some("other targets would be needed".to_owned());
    }
    let formats = |plan: &Plan| plan.shards.iter().flat_map(Shard::formats).collect::<Vec<u32>>();
    let losses = [plan, other].map(|plan| loss_of(request, plan));
    let loses_alike = matches!(losses, [Some(before), Some(after)] if is_within_error(after, before));
    if !loses_alike && (formats(plan) != formats(other) || plan.tables != other.tables) {
        return Some("other formats would be needed, which may lose more".to_owned());
    }
    let goals = &request.goals;
    let bounds = [goals.token_microseconds(), goals.first_token_microseconds()];
    let [before, after] = [plan, other].map(|plan| times(request, plan));
    let mut each = ["a token", "the first token"].into_iter().zip(bounds).zip(before.into_iter().zip(after));
    each.find_map(|((what, bound), (before, after))| {
        let misses = bound.is_some_and(|bound| before <= bound && bound < after);
        let is_slower = misses || !is_within_error(after, before);
        let [before, after] = names::apart("microseconds", [before, after]);
        is_slower.then(|| format!("{what} would take {after} instead of {before}"))
    })
}

/// Returns the likely microseconds of a token, and from a prompt to its first token.
fn times(request: &Request, plan: &Plan) -> [u64; 2] {
    let table = CostTable::new(request);
    plan.shards.iter().fold([0, 0], |[token, first_token], shard| {
        let cost = cost_of(request, &table, shard);
        let own = cost.time.likely;
        let first = own.saturating_add(cost.prefill.likely);
        [token.saturating_add(own), first_token.saturating_add(first)]
    })
}

#[cfg(test)]
mod tests {
    use shardwright_planner::solver::solve;
    use shardwright_planner::testing::RequestBuilder;
    use shardwright_planner::{ErrorClass, Feedback, RefusalKind};

    use super::*;

    /// Returns a request for a Hexagon processor with `layers` layers.
    pub(crate) fn chip(layers: u32) -> RequestBuilder {
        RequestBuilder::decoder(layers).fact("npu", "hexagon-arch", "v81")
    }

    pub(crate) fn because(plan: &Plan, choice: &str) -> String {
        let said = plan.reasons.iter().find(|reason| reason.choice.contains(choice));
        said.unwrap_or_else(|| panic!("{choice}: {:?}", plan.reasons)).because.clone()
    }

    #[test]
    fn options_of_the_built_in_planner_apply() {
        let cut = chip(4).option("join", "off").option("most-shards.decoder", "1").build();
        assert_eq!(Qualcomm::make_plan(&cut).unwrap().shards.len(), 3);
        let refusal = Qualcomm::make_plan(&chip(4).option("balance", "luck").build()).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::InvalidRequest);
    }

    #[test]
    fn other_chips_have_the_plan_of_the_solver() {
        let request = RequestBuilder::decoder(8).target("cpu", "cpu").limit("npu", "ops", 400).times(0, 9);
        let request = request.fact("npu", "polling-microseconds", "5").build();
        let plan = Qualcomm::make_plan(&request).unwrap();
        assert_eq!(plan, solve(&request, &Settings::default()).unwrap().into_plan(&request));
    }

    /// Rules change plans, so a revision must not return to a plan that was refused.
    #[test]
    fn a_revision_repeats_no_plan() {
        let request = chip(8).fact("npu", "polling-microseconds", "10000").times(0, 2000).build();
        let mut plan = Qualcomm::make_plan(&request).unwrap();
        let mut history: Vec<Attempt> = vec![];
        for _ in 0..3 {
            let feedback = Feedback {
                shard: Some(0),
                class: Some(ErrorClass::ResourceLimit),
                message: "refused".to_owned(),
                details: vec![("limit".to_owned(), "ops".to_owned())],
                times: vec![],
                drift_per_mille: None,
                extensions: vec![],
            };
            history.push(Attempt { plan: plan.clone(), feedback: vec![feedback] });
            let Ok(next) = Qualcomm::revise(&request, &plan, &history) else { break };
            assert!(!history.iter().any(|attempt| attempt.plan.builds_same(&next)), "{next:?}");
            plan = next;
        }
        assert!(history.len() > 1, "{history:?}");
    }
}
