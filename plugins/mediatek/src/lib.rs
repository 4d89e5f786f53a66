//! Planner for MediaTek's chips: rules from field reports and public tools about their compiler.
//!
//! **Job.** Applies a rule from each file of this crate to the request or to the solver's plan, and
//! adds a reason wherever the rule matters:
//!
//! * `hedge.rs`: a reported limit on operations counts against this lowering and against the one
//!   that it was reported for. If the two disagree, the plan has a hedge.
//! * `flags.rs`: flags that did not help after a refusal are not set to raise a limit.
//! * `four_bits.rs`: 4-bit weights with a scale per channel are used only if the chip supports
//!   them.
//! * `weights.rs`: each entry point of a network has weights of its own.
//!
//! The SDK's solver does the rest, with the options of the built-in planner and `hedge`.
//!
//! **Not its job.** It knows no chip: limits, facts and flags are in the profiles of the chips.

use shardwright_planner::learn::{self, goals_last};
use shardwright_planner::solver::{Budget, Settings};
use shardwright_planner::{Attempt, Description, Plan, Planner, Refusal, Request, Target, options};

mod flags;
mod four_bits;
mod hedge;
mod weights;

/// The planner for MediaTek's chips.
#[derive(Debug)]
pub struct MediaTek;

shardwright_planner::export_planner!(MediaTek);

impl Planner for MediaTek {
    fn describe() -> Description {
        let mut described = options::descriptions();
        described.push(options::describe(hedge::DESCRIBED));
        Description {
            name: "mediatek".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            summary: "fastest plan for MediaTek's chips, with a hedge if a reported limit is doubtful"
                .to_owned(),
            options: described,
        }
    }

    fn make_plan(request: &Request) -> Result<Plan, Refusal> {
        plan(request, &[])
    }

    fn revise(request: &Request, _previous: &Plan, history: &[Attempt]) -> Result<Plan, Refusal> {
        // Hedges are added to the solver's plans, which must be compared without them.
        let history: Vec<Attempt> = history.iter().cloned().map(hedge::without).collect();
        plan(request, &history)
    }
}

/// Plans by the rules, after the attempts of a history.
fn plan(request: &Request, history: &[Attempt]) -> Result<Plan, Refusal> {
    let mut request = request.clone();
    flags::ignore_contradicted(&mut request);
    let mut reasons = four_bits::refuse(&mut request);
    reasons.extend(weights::count(&mut request));
    let mut plan = goals_last(&request, history, hedged)?;
    plan.reasons.extend(reasons);
    Ok(plan)
}

/// Plans by the rules for plans, with a request that the other rules have changed.
fn hedged(request: &Request, history: &[Attempt], budget: Budget) -> Result<Plan, Refusal> {
    let settings = Settings { budget, ..options::settings(request, &[hedge::OPTION])? };
    let is_hedged = hedge::is_on(request)? && settings.falls_back;
    let solve = |request: &Request| {
        // Later searches need comparisons too.
        let part = settings.budget.part(2);
        let own = Settings { budget: part.clone(), ..settings.clone() };
        let found =
            options::usually(request, own, |request, settings| learn::plan(request, history, settings));
        settings.budget.take_back(&part);
        found
    };
    let plan = solve(request)?;
    Ok(if is_hedged { hedge::hedged(request, plan, solve) } else { plan })
}

/// Returns whether a target is a chip of MediaTek.
fn is_own(target: &Target) -> bool {
    target.fact("platform").is_some_and(|platform| platform.starts_with("mt"))
}

#[cfg(test)]
mod tests {
    use shardwright_planner::RefusalKind;
    use shardwright_planner::solver::solve;
    use shardwright_planner::testing::RequestBuilder;

    use super::*;

    /// Returns a request for a chip of MediaTek with `layers` layers.
    pub(crate) fn chip(layers: u32) -> RequestBuilder {
        RequestBuilder::decoder(layers).fact("npu", "platform", "mt6989")
    }

    #[test]
    fn options_of_the_built_in_planner_apply() {
        let cut = chip(4).option("join", "off").option("most-shards.decoder", "1").build();
        assert_eq!(MediaTek::make_plan(&cut).unwrap().shards.len(), 3);
        for (name, value) in [("hedge", "perhaps"), ("balance", "luck")] {
            let refusal = MediaTek::make_plan(&chip(4).option(name, value).build()).unwrap_err();
            assert_eq!(refusal.kind, RefusalKind::InvalidRequest);
            assert!(refusal.message.contains(value), "{}", refusal.message);
        }
    }

    #[test]
    fn other_chips_have_the_plan_of_the_solver() {
        let request =
            RequestBuilder::decoder(8).target("cpu", "cpu").limit("npu", "ops", 1000).times(0, 9).build();
        let plan = MediaTek::make_plan(&request).unwrap();
        assert_eq!(plan, solve(&request, &Settings::default()).unwrap().into_plan(&request));
    }
}
