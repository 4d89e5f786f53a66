//! Calls that last longer than callers poll for their results.
//!
//! Source: ExecuTorch pull request 7466. A caller polls for 10 ms. In longer calls the processor's
//! clock may drop, by an amount that depends on the device, and for one model four shards with
//! shorter calls were measured to be best. No estimate contains the drop. So a plan is cut into
//! shorter calls if the calls that this adds are within the error of the times.

use shardwright_planner::table::{CostTable, Interval, Prefix, RangeCost, units_of};
use shardwright_planner::{Cause, Limit, Plan, Provenance, Reason, Refusal, Request, Shard, names};

/// Fact: microseconds for which a caller polls.
const FACT: &str = "polling-microseconds";

/// Limit on the slowest entry point of a shard.
const LIMIT: &str = "call-microseconds";

/// A call for a token that is too long.
struct Long {
    target: u32,
    /// Microseconds for which a caller polls.
    polled: u64,
    /// Time of the call.
    call: Interval,
    /// Microseconds of the slowest entry point of its shard.
    slowest: u64,
}

/// Returns the plan with shorter calls if there is one that takes as long within the error of the
/// times.
pub(crate) fn shortened(
    request: &Request,
    plan: Plan,
    solve: impl Fn(&Request) -> Result<Plan, Refusal>,
) -> Plan {
    let Some(long) = longest(request, &plan) else { return plan };
    let name = &request.targets[long.target as usize].name;
    let polled = names::microseconds(long.polled);
    let found = match solve(&limited(request, &long)) {
        Ok(found) => match super::objection(request, &plan, &found) {
            None if longest(request, &found).is_some() => Err("calls would still be longer".to_owned()),
            None => Ok(found),
            Some(objection) => Err(objection),
        },
        Err(refusal) => Err(refusal.message),
    };
    let why = format!(
        "callers poll for {polled}, the processor's clock may drop in longer calls, and one of {} would be \
         needed without more shards",
        long.call
    );
    let (mut plan, choice, because) = match found {
        Ok(found) => {
            let shards = found.shards.len();
            let calls = names::count(shards.saturating_sub(plan.shards.len()) as u64, "more call");
            let choice = format!("{shards} shards with calls of at most {polled} on `{name}`");
            (found, choice, format!("{why}; the time of {calls} per token is within the error"))
        }
        Err(objection) => {
            let choice = format!("calls longer than {polled} on `{name}`");
            (plan, choice, format!("a call takes {}, and with shorter calls: {objection}", long.call))
        }
    };
    plan.reasons.push(Reason { shard: None, choice, because, cause: Cause::Preference(FACT.to_owned()) });
    plan
}

/// Returns the longest call of a plan for a token that is longer than its caller polls for. A limit
/// of the user on calls replaces the fact.
fn longest(request: &Request, plan: &Plan) -> Option<Long> {
    if !request.has_states() {
        return None;
    }
    let table = CostTable::new(request);
    let long = plan.shards.iter().filter_map(|shard| {
        let target = request.targets.get(shard.target as usize).filter(|target| super::is_own(target))?;
        let polled = target.number(FACT)?;
        let is_decided = target.limits.iter().any(is_of_the_user);
        let cost = runs(request, &table, shard);
        let call = cost.time;
        let long = Long { target: shard.target, polled, call, slowest: cost.longest_run };
        (!is_decided && call.likely > polled).then_some(long)
    });
    long.max_by_key(|long| long.call.likely)
}

fn is_of_the_user(limit: &Limit) -> bool {
    limit.name == LIMIT && limit.provenance == Provenance::User
}

/// Returns the cost of the computation of a shard. Its time is that of a token.
fn runs(request: &Request, table: &CostTable<'_>, shard: &Shard) -> RangeCost {
    let units = units_of(request, &shard.segments, shard.softcap);
    Prefix::of_units(request, table, &units, shard.target, &shard.entries).sum(0, units.len())
}

/// Returns the request with a limit that keeps calls for a token as short as callers poll for. The
/// limit is for the slowest entry point, so it is larger if prefill is slower than decode.
fn limited(request: &Request, long: &Long) -> Request {
    let call = long.call.likely;
    let [polled, slowest, call] = [long.polled, long.slowest.max(call), call.max(1)].map(u128::from);
    let value = u64::try_from(polled * slowest / call).unwrap_or(u64::MAX);
    let mut request = request.clone();
    request.targets[long.target as usize].limits.push(Limit {
        name: LIMIT.to_owned(),
        value,
        provenance: Provenance::Reported,
        note: "callers poll this long for the result of a token".to_owned(),
        relief: vec![],
    });
    request
}

#[cfg(test)]
mod tests {
    use shardwright_planner::testing::{RequestBuilder, call, set_time};
    use shardwright_planner::{Goal, Planner};

    use super::*;
    use crate::Qualcomm;
    use crate::tests::{because, chip};

    /// Returns a request whose token takes 20 ms in ten parts, with calls of `overhead`
    /// microseconds.
    fn slow(overhead: u64) -> RequestBuilder {
        let chip = chip(8).times(0, 2000).fact("npu", FACT, "10000");
        chip.change(|request| request.targets[0].overheads.push(call(overhead)))
    }

    fn plan(builder: RequestBuilder) -> Plan {
        Qualcomm::make_plan(&builder.build()).unwrap()
    }

    #[test]
    fn calls_are_shorter_than_callers_poll_for_if_that_costs_no_time() {
        let cut = plan(slow(300));
        assert_eq!(cut.shards.len(), 2);
        let said = because(&cut, "2 shards with calls of at most 10 ms on `npu`");
        assert!(said.contains("one of 20 ms") && said.contains("1 more call per token"), "{said}");
        // A second call of 3 ms is more than the error of 23 ms.
        let whole = plan(slow(3000));
        assert_eq!(whole.shards.len(), 1);
        let said = because(&whole, "calls longer than 10 ms");
        assert!(said.contains("a token would take 26 ms instead of 23 ms"), "{said}");
    }

    #[test]
    fn slow_prefill_does_not_cut_more() {
        let slow_prefill = slow(300).change(|request| {
            request.targets[0].facts[1].value = "12000".to_owned();
            let rows = request.costs.iter_mut().filter(|cost| cost.entry.rows > 1);
            rows.for_each(|cost| set_time(cost, 20_000));
        });
        assert_eq!(plan(slow_prefill).shards.len(), 2);
    }

    #[test]
    fn short_calls_limits_of_the_user_and_goals_decide_first() {
        assert_eq!(plan(slow(300).times(0, 900)).shards.len(), 1);
        let limited = slow(300).limit("npu", LIMIT, 50_000).change(|request| {
            request.targets[0].limits[0].provenance = Provenance::User;
        });
        assert_eq!(plan(limited).shards.len(), 1);
        let goal = |request: &mut Request| request.goals.set(Goal::TokenMicroseconds(20_400));
        let kept = plan(slow(300).change(goal));
        assert_eq!(kept.shards.len(), 1);
    }
}
