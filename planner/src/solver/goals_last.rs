//! Plans without goals for bytes and times, which are kept if they meet these goals.
//!
//! A goal may change the request: the host offers formats that lose more than the usual ones, for
//! goals that need them. So a search with the goals, or one with other settings, may find another
//! plan even if the goals bind nothing. Therefore each planner first plans as if the request had no
//! such goal, with all its rules, and with the formats and the budget that it would have then.

use super::explain::keeps;
use super::goals::{Stage, Times};
use super::{Budget, Problem, Settings, entry_sets, fallback, freer, speculation, tables};
use crate::table::{CostTable, RangeCost, cost_of};
use crate::{Attempt, Cause, Entry, EntryKind, Plan, Reason, Refusal, Request};

/// Extension of a request with the formats that it would offer without goals, in order of
/// preference: indices of its tuples, separated by commas. Without it these are all tuples.
const USUAL_FORMATS: &str = "usual-formats";

/// Plans as if the request had no goals for bytes and times, and returns this plan if it meets
/// them. Otherwise plans without goals for bytes, if there are goals for times too, and then with
/// all goals. So a goal that binds nothing changes no plan.
///
/// `learned` adds what a history shows to a request, such as measured times, and `plan` makes a
/// plan. See [`learn::goals_last`](crate::learn::goals_last).
pub(crate) fn goals_last(
    request: &Request,
    history: &[Attempt],
    learned: impl Fn(&Request, &[Attempt]) -> Request,
    plan: impl Fn(&Request, &[Attempt], Budget) -> Result<Plan, Refusal>,
) -> Result<Plan, Refusal> {
    for dropped in [Dropped::BytesAndTimes, Dropped::Bytes] {
        let Some(mut free) = Free::of(request, history, dropped) else { continue };
        free.bounded = learned(&free.bounded, &free.history);
        if !free.may_meet_goals() {
            continue;
        }
        let found = plan(&free.request, &free.history, Budget::default());
        if let Some(kept) = found.ok().and_then(|found| free.meeting_goals(found)) {
            return Ok(kept);
        }
    }
    plan(request, history, Budget::default())
}

/// Goals to leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dropped {
    BytesAndTimes,
    Bytes,
}

/// A request without goals for bytes and times.
struct Free {
    request: Request,
    /// The request with these goals, and with everything learned from the history.
    bounded: Request,
    history: Vec<Attempt>,
    /// For each format tuple, its index in the original request.
    formats: Vec<u32>,
}

impl Free {
    /// Returns the request without some goals. Returns `None` if it has none of them, or no others
    /// to distinguish it from an earlier search, if the least loss is the objective, or if an
    /// attempt has formats that are not offered without goals.
    fn of(request: &Request, history: &[Attempt], dropped: Dropped) -> Option<Self> {
        let goals = &request.goals;
        let bytes = goals.bounds.iter().any(freer::is_of_bytes);
        let times = goals.bounds.iter().any(freer::is_of_times);
        let is_tried = match dropped {
            Dropped::BytesAndTimes => bytes || times,
            Dropped::Bytes => bytes && times && !request.weighs_losses(),
        };
        // The host sets the other objective only if there are goals.
        if goals.least_loss || !is_tried {
            return None;
        }
        let is_free = dropped == Dropped::BytesAndTimes;
        let is_left_out =
            |bound: &crate::Goal| freer::is_of_bytes(bound) || (is_free && freer::is_of_times(bound));
        let all = || fallback::indices(request.formats.len()).collect();
        // With other goals, the host offers all formats.
        let is_usual = is_free && !request.weighs_losses();
        let formats = usual_formats(request).filter(|_| is_usual).unwrap_or_else(all);
        let place = |own: u32| fallback::indices(formats.len()).zip(&formats).find(|(_, of)| **of == own);
        let place = |own: u32| place(own).map(|(place, _)| place);
        let history = history.iter().map(|attempt| {
            let plan = renumbered(attempt.plan.clone(), place)?;
            Some(Attempt { plan, ..attempt.clone() })
        });
        let history = history.collect::<Option<Vec<Attempt>>>()?;
        let mut bounded = request.clone();
        bounded.extensions.retain(|extension| extension.name != USUAL_FORMATS);
        bounded.formats =
            formats.iter().filter_map(|own| request.formats.get(*own as usize).cloned()).collect();
        bounded.costs.retain_mut(|cost| place(cost.formats).map(|own| cost.formats = own).is_some());
        let mut free = bounded.clone();
        free.goals.bounds.retain(|bound| !is_left_out(bound));
        Some(Self { request: free, bounded, history, formats })
    }

    /// Returns false if a bound on all plans without goals exceeds a goal. This needs no search.
    fn may_meet_goals(&self) -> bool {
        let settings = Settings::default();
        let may_meet = || -> Result<bool, Refusal> {
            for tables in tables::sets(&self.request)? {
                let Some(rest) = tables.rest_of(&self.bounded) else { continue };
                for entries in entry_sets(&rest)? {
                    let stage = tables::unmixed(Stage::default());
                    if !Problem::new(&rest, &settings, entries, stage)?.is_out_of_reach() {
                        return Ok(true);
                    }
                }
            }
            Ok(false)
        };
        // The planner reports what is wrong with the request.
        may_meet().unwrap_or(true)
    }

    /// Returns a plan without goals, with the formats of the original request, if it meets the
    /// goals. Its fallbacks count too.
    fn meeting_goals(&self, found: Plan) -> Option<Plan> {
        let verifies = |plan: &Plan| plan.speculation.as_ref().map(|own| (own.draft.clone(), own.rows));
        let is_same = |plan: &Plan| plan.shards == found.shards && plan.tables == found.tables;
        // A size goal may have changed the fallbacks of a plan that was tried.
        let is_tried = |plan: &Plan| is_same(plan) && verifies(plan) == verifies(&found);
        if self.history.iter().any(|attempt| is_tried(&attempt.plan)) {
            return None;
        }
        let (request, goals) = (&self.bounded, &self.bounded.goals);
        let table = CostTable::new(request);
        let costs: Vec<RangeCost> =
            found.shards.iter().map(|shard| cost_of(request, &table, shard)).collect();
        let sum = |of: fn(&RangeCost) -> u64| costs.iter().map(of).fold(0, u64::saturating_add);
        let held = speculation::bytes(request, found.speculation.as_ref());
        let memory = sum(RangeCost::context_bytes).saturating_add(held);
        if goals.memory_bytes().is_some_and(|most| memory > most) {
            return None;
        }
        let entries = entries(&found);
        let times = self.times(&found, &costs, entries.clone())?;
        let mut kept = match goals.size_bytes() {
            None => found,
            Some(most) => {
                // A hedge stores all artefacts once more.
                let hedges = found.fallback.iter().filter(|chain| !chain.limits.is_empty()).count() as u64;
                let artefacts = sum(|cost| cost.artefact_bytes).saturating_mul(hedges.saturating_add(1));
                let left =
                    most.checked_sub(artefacts.saturating_add(tables::bytes(request, &found.tables)))?;
                fallback::with_room(request, found, &entries, left)?
            }
        };
        kept.reasons.push(self.because(&times));
        renumbered(kept, |own| self.formats.get(own as usize).copied())
    }

    /// Returns the times of a plan, or `None` if a likely time exceeds a goal.
    fn times(&self, plan: &Plan, costs: &[RangeCost], entries: Vec<Entry>) -> Option<Times> {
        let (settings, stage) = (Settings::default(), Stage::default());
        let problem = Problem::new(&self.bounded, &settings, entries, tables::unmixed(stage)).ok()?;
        let times = problem.times(plan.shards.iter().map(|shard| shard.target).zip(costs));
        times.keep(&problem.goals, stage).then_some(times)
    }

    fn because(&self, times: &Times) -> Reason {
        let goals = &self.bounded.goals;
        let mut because = "it meets them".to_owned();
        let both = [
            ("a token", "token-microseconds", goals.token_microseconds(), times.token),
            (
                "the first token",
                "first-token-microseconds",
                goals.first_token_microseconds(),
                times.first_token,
            ),
        ];
        for (what, name, goal, time) in both {
            let Some(goal) = goal else { continue };
            let time = time.microseconds();
            because.push_str(&format!("; {what} takes {time}{}", keeps(time, name, goal)));
        }
        let names = [
            ("size", goals.size_bytes()),
            ("memory-bytes", goals.memory_bytes()),
            ("token-microseconds", goals.token_microseconds()),
        ];
        let first = names.into_iter().find(|(_, goal)| goal.is_some());
        let name = first.map_or("first-token-microseconds", |(name, _)| name);
        let choice = "the plan without goals for bytes and times".to_owned();
        Reason { shard: None, choice, because, cause: Cause::Goal(name.to_owned()) }
    }
}

/// Returns the formats that a request would offer without goals, or `None` if it does not list
/// them, or lists none.
fn usual_formats(request: &Request) -> Option<Vec<u32>> {
    let own = request.extensions.iter().find(|extension| extension.name == USUAL_FORMATS)?;
    let index = |word: &str| word.parse().ok().filter(|index| (*index as usize) < request.formats.len());
    own.value.split(',').map(index).collect()
}

/// Returns the entry points of a plan, except the one that verifies proposed tokens.
fn entries(plan: &Plan) -> Vec<Entry> {
    let mut found = Vec::new();
    for entry in plan.shards.iter().flat_map(|shard| &shard.entries) {
        let verifies = entry.kind == EntryKind::Decode && entry.rows > 1;
        if !verifies && !found.contains(entry) {
            found.push(*entry);
        }
    }
    found
}

/// Returns a plan with other numbers of its formats, or `None` if one has no number.
fn renumbered(mut plan: Plan, place: impl Fn(u32) -> Option<u32>) -> Option<Plan> {
    let segments = plan.shards.iter_mut().flat_map(|shard| &mut shard.segments);
    let chains = plan.fallback.iter_mut().map(|chain| &mut chain.formats);
    for formats in segments.map(|segment| &mut segment.formats).chain(chains).flatten() {
        *formats = place(*formats)?;
    }
    Some(plan)
}
