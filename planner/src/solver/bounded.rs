//! The search with all goals, in stages.
//!
//! With a stated goal for losses and a goal for bytes, half of the budget is for a first plan: the
//! one that loses least, or one that moves only a few layers. The rest is for the best plan.
//! Proving that no plan is within both goals needs many comparisons, so stages are left out if a
//! relaxation proves it.

use super::goals::Stage;
use super::reach::Reach;
use super::tables;
use super::{Effort, Goal, Settings, Solution, decided, fallback, freer, moved, speculation};
use crate::{Cause, Goals, Reason, Refusal, Request};

/// A solution, or the least known loss of a plan without a goal for it.
pub(super) type Solved = Result<Solution, Option<u64>>;

/// Finds the optimum of the first of these stages that has one, with all goals in one search.
pub(super) fn solve(request: &Request, settings: &Settings, stages: &[Stage]) -> Result<Solved, Refusal> {
    let goals = &request.goals;
    let is_stated = freer::bounds_bytes(request) && !goals.least_loss && !settings.loss_is_usual;
    if goals.quality_micronats().is_none() || !is_stated || settings.effort == Effort::Simple {
        return solve_once(request, settings, (stages, None));
    }
    let part = settings.budget.part(2);
    let first = first(request, &Settings { budget: part.clone(), ..settings.clone() }, stages);
    settings.budget.take_back(&part);
    let (first, choice, stages) = match first? {
        First::Found(first, choice, stages) => (*first, choice, stages),
        First::Unknown(stages, nearest) => return solve_once(request, settings, (&stages, nearest)),
    };
    let because = match solve_once(request, settings, (&stages, None))? {
        Ok(found) if !tables::is_better(request, settings, (&first, &found))? => return Ok(Ok(found)),
        _ if settings.falls_back && request.goals.size_bytes().is_some() => {
            "the search found no better plan within the goals that moves no more layers, and keeps no room \
             for fallbacks"
        }
        _ => "the search found no better plan within the goals that moves no more layers",
    };
    let cause = Cause::Goal("quality".to_owned());
    let note = Reason { shard: None, choice: choice.to_owned(), because: because.to_owned(), cause };
    Ok(Ok(Solution { note: Some(note), settings: settings.clone(), ..first }))
}

/// Finds the solution of the first of these stages that has one. `lost` is the least known loss of
/// a plan without a goal for it.
pub(super) fn solve_once(
    request: &Request,
    settings: &Settings,
    (stages, lost): (&[Stage], Option<u64>),
) -> Result<Solved, Refusal> {
    let Some(found) = speculation::solve(request, settings, stages)? else { return Ok(Err(lost)) };
    let decided = decided::compare(request, settings, &found)?;
    Ok(Ok(Solution { decided, ..found }))
}

/// A first plan within the goals.
enum First {
    /// The plan, what it is, and the stages up to its own.
    Found(Box<Solution>, &'static str, Vec<Stage>),
    /// The stages that may have a plan, and the least known loss of a plan.
    Unknown(Vec<Stage>, Option<u64>),
}

/// Finds a plan within the goals that need not be the best one.
fn first(request: &Request, settings: &Settings, stages: &[Stage]) -> Result<First, Refusal> {
    let most = request.goals.quality_micronats().unwrap_or(u64::MAX);
    let mut goals = Goals { least_loss: true, ..request.goals.clone() };
    goals.bounds.retain(|bound| !matches!(bound, crate::Goal::QualityMicronats(_)));
    let weighed = Request { goals, ..request.clone() };
    let here = Settings { falls_back: false, ..settings.clone() };
    let anywhere = Settings { order: [&[Goal::Loss][..], &settings.order].concat(), ..here.clone() };
    let sets = tables::sets(request)?;
    let has_others = stages.iter().any(|stage| stage.stays);
    let (mut open, mut nearest, mut fitting) = (Vec::new(), None, Vec::new());
    for stage in stages {
        let reach = Reach::new(request, settings, *stage)?;
        let has = |of: fn(&Reach, &Request, &tables::Tables) -> bool| {
            reach.iter().any(|reach| sets.iter().any(|set| of(reach, request, set)))
        };
        let is_last = open.is_empty() && Some(stage) == stages.last();
        let is_in_reach = has(Reach::allows);
        // Without a goal for losses, no layer moves if the other goals need no move.
        let is_known = !stage.stays && fitting.contains(&stage.by_low);
        if stage.stays && has(Reach::fits) {
            fitting.push(stage.by_low);
        }
        if !is_in_reach && !is_last {
            continue;
        }
        let mut is_open = false;
        for alone in [&here, &anywhere] {
            let is_anywhere = alone.order.first() == Some(&Goal::Loss);
            // Without other targets, the order makes no difference.
            if (is_anywhere && stage.stays) || (!is_anywhere && is_known) {
                continue;
            }
            if is_anywhere
                && is_in_reach
                && has_others
                && let Some(found) = moved::solve((request, &weighed), &here, *stage)?
            {
                open.push(*stage);
                return Ok(First::Found(Box::new(found), "few layers on other targets", open));
            }
            let Some(found) = fallback::solve(&weighed, alone, *stage)? else { continue };
            let lost = fallback::lost(&weighed, &found);
            nearest = Some(nearest.unwrap_or(lost).min(lost));
            if lost <= most {
                let decided = decided::compare(&weighed, alone, &found)?;
                // Plans of later stages are worse.
                open.push(*stage);
                return Ok(First::Found(Box::new(Solution { decided, ..found }), "the least loss", open));
            }
            let is_least = stage.stays || is_anywhere;
            is_open |= is_least && found.gap.is_some_and(|gap| gap.goal == Goal::Loss && gap.least <= most);
        }
        if is_in_reach && is_open {
            open.push(*stage);
        }
    }
    Ok(First::Unknown(open, nearest))
}
