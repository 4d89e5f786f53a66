//! Searches without some goals, tried first: they are easier, and their plan often meets these
//! goals anyway. A goal that such a plan meets does not change it.

use super::goals::{GoalBounds, Stage, stages};
use super::{Effort, Settings, Solution, bounded, decided, fallback, speculation, tables};
use crate::table::{Interval, RangeCost};
use crate::{Goal, Goals, Refusal, Request};

/// Goals to leave out.
#[derive(Debug, Clone, Copy)]
struct Dropped {
    bytes: bool,
    times: bool,
}

/// Returns whether a goal bounds bytes.
pub(super) fn bounds_bytes(request: &Request) -> bool {
    request.goals.bounds.iter().any(is_of_bytes)
}

pub(super) fn is_of_bytes(bound: &Goal) -> bool {
    matches!(bound, Goal::SizeBytes(_) | Goal::MemoryBytes(_))
}

pub(super) fn is_of_times(bound: &Goal) -> bool {
    matches!(bound, Goal::TokenMicroseconds(_) | Goal::FirstTokenMicroseconds(_))
}

/// Finds the optimum without some goals. Returns `None` if no plan without them meets all, or if
/// the budget is spent.
pub(super) fn solve(request: &Request, settings: &Settings) -> Result<Option<Solution>, Refusal> {
    let bounds = &request.goals.bounds;
    let (bytes, times) = (bounds_bytes(request), bounds.iter().any(is_of_times));
    let has_others = bytes || bounds.iter().any(|bound| !is_of_times(bound));
    let all = [
        (bytes, Dropped { bytes: true, times: true }),
        (times && has_others, Dropped { bytes: false, times: true }),
        (bytes && times, Dropped { bytes: true, times: false }),
    ];
    for (_, dropped) in all.into_iter().filter(|(is_tried, _)| *is_tried) {
        if settings.effort == Effort::Simple || settings.budget.is_spent() {
            return Ok(None);
        }
        // A plan that keeps the goals for bytes often keeps those for times.
        let part = settings.budget.part(if dropped.bytes { 3 } else { 2 });
        let found = without(request, &Settings { budget: part.clone(), ..settings.clone() }, dropped);
        settings.budget.take_back(&part);
        if let Some(found) = found? {
            let decided = decided::compare(request, settings, &found)?;
            return Ok(Some(Solution { decided, settings: settings.clone(), ..found }));
        }
    }
    Ok(None)
}

/// Finds the optimum without some goals, if it meets them.
fn without(request: &Request, settings: &Settings, dropped: Dropped) -> Result<Option<Solution>, Refusal> {
    let is_dropped =
        |bound: &Goal| (dropped.bytes && is_of_bytes(bound)) || (dropped.times && is_of_times(bound));
    let goals = &request.goals;
    let mut kept = goals.clone();
    kept.bounds.retain(|bound| !is_dropped(bound));
    let freer = Request { goals: kept, ..request.clone() };
    if dropped.bytes && goals.size_bytes().is_some_and(|most| tables::least_bytes(&freer) > most) {
        return Ok(None);
    }
    // Without a plan in a stage, there is none with more goals either.
    let mut stages = stages(request, settings)?;
    stages.retain(|stage| !(dropped.times && stage.by_low));
    let Ok(found) = bounded::solve(&freer, settings, &stages)? else { return Ok(None) };
    if dropped.times && !is_in_time(goals, &found) {
        return Ok(None);
    }
    match dropped.bytes {
        true => Ok(within_bytes(request, settings, found)),
        false => Ok(Some(found)),
    }
}

/// Returns whether the likely times of a plan keep the goals.
fn is_in_time(goals: &Goals, found: &Solution) -> bool {
    let bounds = GoalBounds::new(goals, Stage::default());
    let within = |bound: Option<u64>, time: Interval| {
        bound.is_none_or(|most| time.likely.saturating_mul(1000) <= most)
    };
    within(bounds.token, found.time) && within(bounds.first_token, found.first_token)
}

/// Returns a solution with room for all its fallbacks, or `None` if it exceeds a goal for bytes.
fn within_bytes(request: &Request, settings: &Settings, found: Solution) -> Option<Solution> {
    let sum = |of: fn(&RangeCost) -> u64| {
        found.shards.iter().map(|shard| of(&shard.cost)).fold(0, u64::saturating_add)
    };
    let held = speculation::bytes(request, found.speculation.as_ref());
    let memory = sum(RangeCost::context_bytes).saturating_add(held);
    if request.goals.memory_bytes().is_some_and(|most| memory > most) {
        return None;
    }
    let Some(most) = request.goals.size_bytes() else { return Some(found) };
    let size = sum(|cost| cost.artefact_bytes).saturating_add(tables::bytes(request, &found.tables));
    let reserve = fallback::reserve(request, settings);
    (size.saturating_add(reserve.bytes()) <= most).then_some(Solution { reserve, ..found })
}
