//! Plans that move few layers to other targets to keep goals for losses and bytes.
//!
//! A search in which every layer may move needs many comparisons to find out which of them must. So
//! the fewest layers at the beginning or at the end of the model are determined first by a
//! relaxation, and only these move.

use super::goals::Stage;
use super::reach::Reach;
use super::tables;
use super::{Goal, Settings, Solution, decided, fallback};
use crate::{Body, Refusal, Request};

/// Parts of the goal for losses, in percent, that the relaxation must keep in the ranges that are
/// searched. It knows no cuts, so that plans lose more.
const KEPT: [u64; 3] = [95, 85, 70];

/// Finds a plan of a stage, without room for fallbacks, in which only a few layers at the beginning
/// or at the end move. `weighed` is the request with the least loss instead of a goal for it.
/// Returns `None` if there is none, or if the budget is spent.
pub(super) fn solve(
    (request, weighed): (&Request, &Request),
    settings: &Settings,
    stage: Stage,
) -> Result<Option<Solution>, Refusal> {
    let most = request.goals.quality_micronats().unwrap_or(u64::MAX);
    let by_loss = Settings { order: [&[Goal::Loss][..], &settings.order].concat(), ..settings.clone() };
    for range in ranges(request, settings, stage)? {
        if settings.budget.is_spent() {
            break;
        }
        let few = Stage { stays: true, moved: Some(range), ..stage };
        let part = settings.budget.part(2);
        let own = Settings { budget: part.clone(), ..by_loss.clone() };
        let least = fallback::solve(weighed, &own, few);
        settings.budget.take_back(&part);
        let least = least?;
        let Some(least) = least.filter(|least| fallback::lost(weighed, least) <= most) else { continue };
        let faster = fallback::solve(request, settings, few)?;
        let found = match faster {
            Some(faster) if !tables::is_better(request, settings, (&least, &faster))? => faster,
            _ => least,
        };
        let found = Solution { stage, ..found };
        let decided = decided::compare(request, settings, &found)?;
        return Ok(Some(Solution { decided, ..found }));
    }
    Ok(None)
}

/// Returns ranges of units at the beginning and at the end, the shortest that have to move for each
/// part of the goal for losses, in the order of their lengths.
fn ranges(request: &Request, settings: &Settings, stage: Stage) -> Result<Vec<(usize, usize)>, Refusal> {
    let sets = tables::sets(request)?;
    let most = request.goals.quality_micronats().unwrap_or(u64::MAX);
    let stays = Stage { stays: true, ..stage };
    let moves = Reach::new(request, settings, Stage { moved: Some((0, usize::MAX)), ..stays })?;
    let stays = Reach::new(request, settings, stays)?;
    let donors = donors(request);
    let mut found: Vec<(usize, usize)> = Vec::new();
    for kept in KEPT {
        let bound = crate::Goal::QualityMicronats(most.saturating_mul(kept) / 100);
        let bounded = Request { goals: request.goals.with(bound), ..request.clone() };
        let range = |count: usize, at_end: bool| {
            if at_end { (donors.len() - count, donors.len()) } else { (0, count) }
        };
        let is_enough = |count: usize, at_end: bool| {
            let (first, end) = range(count, at_end);
            let own = closed(&donors, first..end);
            let reach = stays.iter().zip(&moves).map(|(stays, moves)| stays.moving(moves, &own));
            reach.into_iter().any(|reach| sets.iter().any(|set| reach.allows(&bounded, set)))
        };
        let both = [false, true].into_iter().filter_map(|at_end| {
            let count = least(donors.len(), |count| is_enough(count, at_end))?;
            Some(range(count, at_end))
        });
        found.extend(both);
    }
    found.sort_by_key(|(first, end)| end - first);
    found.dedup();
    Ok(found)
}

/// Returns the donor of each unit of all components, both counted together.
fn donors(request: &Request) -> Vec<Option<usize>> {
    let mut found = Vec::new();
    for component in &request.model.components {
        let before = found.len();
        match &component.body {
            Body::Layers(layers) => {
                found.extend(layers.iter().map(|layer| Some(before + layer.donor? as usize)));
            }
            Body::Whole(_) => found.push(None),
        }
    }
    found
}

/// Returns for each unit whether it is in a range, together with its donor and all readers of its
/// states, which must be on one device.
pub(super) fn closed(donors: &[Option<usize>], range: std::ops::Range<usize>) -> Vec<bool> {
    let mut inside: Vec<bool> = (0..donors.len()).map(|unit| range.contains(&unit)).collect();
    // Two rounds are enough, because a donor has no donor.
    for _ in 0..2 {
        for (reader, donor) in donors.iter().enumerate() {
            let Some(donor) = donor.filter(|donor| *donor < reader) else { continue };
            let both = inside[reader] && inside[donor];
            (inside[reader], inside[donor]) = (both, both);
        }
    }
    inside
}

/// Returns the least number up to `most` that is enough, if all larger numbers are.
fn least(most: usize, is_enough: impl Fn(usize) -> bool) -> Option<usize> {
    if !is_enough(most) {
        return None;
    }
    let (mut few, mut enough) = (0, most);
    while enough - few > 1 {
        let middle = usize::midpoint(few, enough);
        if is_enough(middle) { enough = middle } else { few = middle }
    }
    Some(enough)
}
