//! Searches without some goals, tried first: they are easier, and their plan often meets these
//! goals anyway. A goal that such a plan meets does not change it.

use super::goals::{GoalBounds, Stage, stages};
use super::{Effort, Settings, Solution, bounded, decided, fallback, speculation, tables};
use crate::table::{Interval, RangeCost};
use crate::{Goal, Goals, Refusal, RefusalKind, Request, names};

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

fn is_of_bytes(bound: &Goal) -> bool {
    matches!(bound, Goal::SizeBytes(_) | Goal::MemoryBytes(_))
}

fn is_of_times(bound: &Goal) -> bool {
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
        true => Ok(within_bytes(request, settings, found).ok()),
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

/// Finds the optimum without goals for bytes.
///
/// # Errors
///
/// The errors of [`solve`](super::solve) for the request without these goals, and `over-size` or
/// `over-memory` if its solution exceeds one of them.
pub(super) fn solve_then_check(request: &Request, settings: &Settings) -> Result<Solution, Refusal> {
    let mut free = request.clone();
    free.goals.bounds.retain(|bound| !is_of_bytes(bound));
    let least = tables::least_bytes(&free);
    if let Some(most) = request.goals.size_bytes().filter(|most| least > *most) {
        return Err(exceeds(RefusalKind::OverSize, ("size", "size", least), most));
    }
    let third = settings.budget.part(3);
    let own = Settings { checks_bytes_last: false, budget: third.clone(), ..settings.clone() };
    let found = super::solve(&free, &own);
    settings.budget.take_back(&third);
    let found = within_bytes(request, settings, found?)?;
    let decided = decided::compare(request, settings, &found)?;
    Ok(Solution { decided, settings: settings.clone(), ..found })
}

/// Returns a solution with room for all its fallbacks.
///
/// # Errors
///
/// `over-size` or `over-memory` if it exceeds a goal.
fn within_bytes(request: &Request, settings: &Settings, found: Solution) -> Result<Solution, Refusal> {
    let sum = |of: fn(&RangeCost) -> u64| {
        found.shards.iter().map(|shard| of(&shard.cost)).fold(0, u64::saturating_add)
    };
    let memory = sum(RangeCost::context_bytes).saturating_add(speculation::bytes(request, &found));
    if let Some(most) = request.goals.memory_bytes().filter(|most| memory > *most) {
        return Err(exceeds(RefusalKind::OverMemory, ("memory-bytes", "memory", memory), most));
    }
    let Some(most) = request.goals.size_bytes() else { return Ok(found) };
    let tables = request.tables.iter().zip(&found.tables);
    let tables = tables.filter_map(|(table, format)| table.formats.get(*format as usize));
    let tables = tables.map(|format| format.bytes).fold(0, u64::saturating_add);
    let size = sum(|cost| cost.artefact_bytes).saturating_add(tables);
    if size > most {
        return Err(exceeds(RefusalKind::OverSize, ("size", "size", size), most));
    }
    let reserve = fallback::reserve(request, settings);
    let needed = size.saturating_add(reserve.bytes());
    if needed > most {
        return Err(exceeds(RefusalKind::OverSize, ("size", "size with fallbacks", needed), most));
    }
    Ok(Solution { reserve, ..found })
}

/// Returns the refusal of a plan that exceeds a goal for bytes. `what` is the name of the goal, the
/// quantity, and its amount.
fn exceeds(kind: RefusalKind, what: (&str, &str, u64), most: u64) -> Refusal {
    let (name, what, value) = what;
    let [value, most_shown] = names::against_goal(name, value, most);
    let message = format!("plans without goals for bytes have a {what} of {value}, the goal is {most_shown}");
    Refusal::new(kind, message).with("goal", most)
}
