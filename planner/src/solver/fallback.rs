//! What a plan falls back to, and what a goal for the size leaves for it.
//!
//! A device holds the chains that a plan falls back to beside its first one, so that a goal for the
//! size is for all of them. Each keeps what it takes at least, in weights of more than two bits;
//! where that leaves too little or would move layers to another target, the last target alone keeps
//! it, which every machine has, and then none.

use super::{
    Effort, Losses, Placement, Problem, Relaxed, Settings, Solution, entry_sets, has_two_bits, search,
};
use crate::table::{CostTable, Prefix, unit_kinds};
use crate::{Cause, Fallback, Goals, Reason, Refusal, Request, names};

/// The least that the whole model takes on a target in one format tuple.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Least {
    target: u32,
    formats: u32,
    bytes: u64,
}

/// What was kept of a goal for the size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Reserve {
    kept: Vec<Least>,
    /// For what there is no room.
    left_out: Vec<Least>,
}

/// The optimum that leaves room for what it falls back to, as far as it can.
pub(super) fn solve(request: &Request, settings: &Settings) -> Result<Solution, Refusal> {
    let whole = super::solve_whole(request, settings)?;
    let Some(size) = request.goals.size_bytes else { return Ok(whole) };
    let main = whole.main(request);
    let chains = least_of_each(request, settings).into_iter();
    let chains = chains.filter(|chain| Some(chain.target) != main);
    // What is preferred to the main target and does not compute most has no room.
    let (all, preferred): (Vec<Least>, Vec<Least>) = chains.partition(|chain| Some(chain.target) > main);
    if all.is_empty() {
        return Ok(Solution { reserve: Reserve { kept: Vec::new(), left_out: preferred }, ..whole });
    }
    let mut without = vec![0, all.len() - 1];
    without.dedup();
    for first in without {
        let (left_out, kept) = all.split_at(first);
        let held = kept.iter().map(|chain| chain.bytes).fold(0, u64::saturating_add);
        let Some(left) = size.checked_sub(held) else { continue };
        let goals = Goals { size_bytes: Some(left), ..request.goals };
        let solution = super::solve_whole(&Request { goals, ..request.clone() }, settings);
        if let Ok(solution) = solution
            && main.is_none_or(|main| solution.units_on(main) >= whole.units_on(main))
        {
            let left_out = preferred.iter().chain(left_out).copied().collect();
            let reserve = Reserve { kept: kept.to_vec(), left_out };
            return Ok(Solution { reserve, ..solution });
        }
    }
    let left_out = preferred.into_iter().chain(all).collect();
    Ok(Solution { reserve: Reserve { kept: Vec::new(), left_out }, ..whole })
}

/// The least of each target that supports the whole model, in their order, with losses within the
/// goal if there is one.
fn least_of_each(request: &Request, settings: &Settings) -> Vec<Least> {
    let table = CostTable::new(request);
    let losses = Losses::new(request);
    let Some(entries) = entry_sets(request).ok().and_then(|sets| sets.into_iter().next()) else {
        return Vec::new();
    };
    let least = |target: u32| {
        let all = indices(request.formats.len()).filter(|formats| !has_two_bits(request, *formats));
        let found = all.filter_map(|formats| {
            let (mut bytes, mut lost) = (0_u64, 0_u64);
            for (index, component) in (0_u32..).zip(&request.model.components) {
                let units = unit_kinds(component).len();
                let prefix = Prefix::new(request, &table, component, target, formats, &entries);
                bytes = bytes.saturating_add(prefix.range(0, units)?.artefact_bytes);
                let (loss, unmeasured) = losses.cumulative(index, &vec![formats; units]);
                lost = lost.saturating_add(loss.last().copied()?);
                unmeasured.last().filter(|unmeasured| **unmeasured == 0)?;
            }
            let holds = request.goals.quality_micronats.is_none_or(|goal| lost <= goal);
            holds.then_some(Least { target, formats, bytes })
        });
        found.min_by_key(|least| (least.bytes, least.formats))
    };
    let whole = indices(request.targets.len()).filter(|target| takes_all(request, *target, settings.effort));
    whole.filter_map(least).collect()
}

impl Solution {
    /// Layers, and components without layers, on a target.
    fn units_on(&self, target: u32) -> u64 {
        self.shards.iter().filter(|shard| shard.target == target).map(Placement::units).sum()
    }

    /// The target with most of them; the first of several.
    fn main(&self, request: &Request) -> Option<u32> {
        let targets = indices(request.targets.len());
        targets.max_by_key(|&target| (self.units_on(target), std::cmp::Reverse(target)))
    }

    /// Targets, other than the one with most layers, that support the whole model, in order of
    /// preference. A CPU computes text in formats of its own unless losses or bytes count; all
    /// others, and it then, have those formats of the plan in which they support the model, and the
    /// smallest where bytes count. A target that is no CPU and supports none of them has all in
    /// which it does.
    pub(super) fn fallback(&self, request: &Request) -> Vec<Fallback> {
        let main = self.main(request);
        let mut used: Vec<u32> = Vec::new();
        for formats in self.shards.iter().flat_map(Placement::formats) {
            if !used.contains(&formats) {
                used.push(formats);
            }
        }
        let table = CostTable::new(request);
        let whole = |target: u32, formats: u32| {
            let mut kinds = request.model.components.iter().flat_map(unit_kinds);
            kinds.all(|kind| table.illegal(request, kind, target, formats, &self.entries).is_none())
        };
        let counts = (request.weighs_losses() && !self.settings.loss_is_usual)
            || request.goals.size_bytes.is_some()
            || self.settings.formats.is_some()
            || !request.has_states();
        let others = indices(request.targets.len()).filter(|&target| Some(target) != main);
        let has_room = |target: &u32| {
            request.goals.size_bytes.is_none()
                || self.reserve.kept.iter().any(|chain| chain.target == *target)
        };
        others
            .filter(has_room)
            .filter(|&target| takes_all(request, target, self.settings.effort))
            .map(|target| {
                let is_cpu = request.targets[target as usize].kind == "cpu";
                if is_cpu && !counts {
                    return Fallback { target, formats: Vec::new() };
                }
                let mut formats: Vec<u32> =
                    used.iter().copied().filter(|&formats| whole(target, formats)).collect();
                let least = self.reserve.kept.iter().find(|chain| chain.target == target);
                formats.extend(least.map(|least| least.formats).filter(|least| !used.contains(least)));
                if formats.is_empty() && !is_cpu {
                    let all = indices(request.formats.len());
                    formats.extend(all.filter(|&formats| whole(target, formats)));
                }
                Fallback { target, formats }
            })
            .collect()
    }

    /// What is kept of the goal for the size, and for what there was no room.
    pub(super) fn explain_reserve(&self, request: &Request, reasons: &mut Vec<Reason>) {
        let mut push = |choice: String, because: String| {
            reasons.push(Reason { shard: None, choice, because, cause: Cause::Goal("size".to_owned()) });
        };
        let name = |chain: &Least| request.targets[chain.target as usize].name.clone();
        for chain in &self.reserve.kept {
            push(
                format!("room for falling back to `{}`", name(chain)),
                format!(
                    "{} of the goal, the least that it takes, as {}",
                    names::bytes(chain.bytes),
                    request.formats_name(chain.formats)
                ),
            );
        }
        for chain in &self.reserve.left_out {
            push(
                format!("nothing falls back to `{}`", name(chain)),
                format!(
                    "no plan within the goal leaves the {} that it takes at least, and moves no layers for it",
                    names::bytes(chain.bytes)
                ),
            );
        }
    }
}

fn indices(count: usize) -> std::ops::Range<u32> {
    0..u32::try_from(count).unwrap_or(u32::MAX)
}

/// Whether a target alone supports the whole model within its limits.
fn takes_all(request: &Request, target: u32, effort: Effort) -> bool {
    let place = indices(request.model.components.len()).map(|index| (index, target)).collect();
    let settings = Settings { place, effort, ..Settings::default() };
    let Ok(sets) = entry_sets(request) else { return false };
    sets.into_iter().any(|entries| {
        let problem = Problem::new(request, &settings, entries, Relaxed::default());
        problem.is_ok_and(|problem| search::exists(&problem))
    })
}
