//! Fallbacks of a plan, and the part of a size goal that is reserved for them.
//!
//! A device stores the fallback chains of a plan next to its first chain, so a size goal covers
//! them all. For each fallback chain its minimum size is reserved, with weights of more than two
//! bits. If that moves layers away from the first target, or loses more than [`MOST_LOST`] where
//! losses count, only the last target, which every machine has, keeps its reserve. If that does not
//! help either, nothing is reserved.

use super::{
    Losses, Placement, Problem, Relaxed, Settings, Solution, Stage, entry_sets, has_two_bits, search,
};
use crate::table::{CostTable, Prefix, unit_kinds};
use crate::{
    Cause, Component, Entry, Fallback, Format, GatheredTable, Goal, Plan, Reason, Refusal, Request, Shard,
    names,
};

/// Maximum loss of the first chain, in millionths of a nat per token, to leave room for others.
/// Equals the loss goal named `small`.
pub const MOST_LOST: u64 = 300_000;

/// Minimum size of the whole model on a target in one format tuple.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Least {
    target: u32,
    formats: u32,
    bytes: u64,
}

impl Least {
    /// Explains the reserved part of the size goal.
    fn because(&self, request: &Request) -> String {
        let (bytes, formats) = (names::bytes(self.bytes), request.formats_name(self.formats));
        format!("{bytes} of the size goal are reserved, its minimum in {formats}")
    }
}

/// The part of a size goal that is reserved.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Reserve {
    kept: Vec<Least>,
    /// Chains for which there is no room.
    left_out: Vec<Least>,
    /// Whether the search for more room was cut short.
    is_cut: bool,
}

impl Reserve {
    /// Returns the reserved bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.kept.iter().map(|chain| chain.bytes).fold(0, u64::saturating_add)
    }

    /// Returns whether this reserve covers all chains that another one covers.
    pub(super) fn is_as_wide(&self, other: &Reserve) -> bool {
        let has = |chain: &Least| self.kept.iter().any(|own| own.target == chain.target);
        other.kept.iter().all(has)
    }
}

/// Returns the reserve of all fallbacks of a plan with a size goal.
pub(super) fn reserve(request: &Request, settings: &Settings) -> Reserve {
    let mut kept = if settings.falls_back { least_of_each(request, settings) } else { Vec::new() };
    kept.retain(|chain| chain.target != FIRST);
    Reserve { kept, ..Reserve::default() }
}

/// Returns a plan that was made without a size goal with fallbacks for which `left` bytes have
/// room, or `None` if there is no room for all of them. Hedges are kept. `entries` are the entry
/// points of the plan.
pub(super) fn with_room(request: &Request, plan: Plan, entries: &[Entry], left: u64) -> Option<Plan> {
    let all = least_of_each(request, &Settings::default());
    let table = CostTable::new(request);
    let used = distinct(plan.shards.iter().flat_map(Shard::formats));
    let (mut held, mut reasons, mut fallback) = (0_u64, plan.reasons, Vec::new());
    for chain in plan.fallback {
        if !chain.limits.is_empty() {
            fallback.push(chain);
            continue;
        }
        let least = all.iter().find(|least| least.target == chain.target)?;
        held = held.saturating_add(least.bytes);
        let own = |formats: &u32| takes_whole(request, &table, (chain.target, *formats), entries);
        let formats = distinct(used.iter().copied().filter(own).chain([least.formats]));
        fallback.push(Fallback { formats, ..chain });
        let name = &request.targets.get(least.target as usize)?.name;
        let choice = format!("room for the fallback to `{name}`");
        let cause = Cause::Goal("size".to_owned());
        reasons.push(Reason { shard: None, choice, because: least.because(request), cause });
    }
    (held <= left).then_some(Plan { reasons, fallback, ..plan })
}

/// Returns the items in their order, each once.
fn distinct(items: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut found = Vec::new();
    for item in items {
        if !found.contains(&item) {
            found.push(item);
        }
    }
    found
}

/// Returns whether a target supports all layers in a format tuple.
fn takes_whole(
    request: &Request,
    table: &CostTable<'_>,
    (target, formats): (u32, u32),
    entries: &[Entry],
) -> bool {
    let mut kinds = request.model.components.iter().flat_map(unit_kinds);
    kinds.all(|kind| table.illegal(request, kind, target, formats, entries).is_none())
}

/// Finds the optimum of a stage that leaves room for its fallbacks, as far as possible.
pub(super) fn solve(
    request: &Request,
    settings: &Settings,
    stage: Stage,
) -> Result<Option<Solution>, Refusal> {
    let Some(size) = request.goals.size_bytes().filter(|_| settings.falls_back) else {
        return super::solve_whole(request, settings, stage);
    };
    let mut all = least_of_each(request, settings);
    all.retain(|chain| chain.target != FIRST);
    let mut without: Vec<usize> = all.len().checked_sub(1).map_or(Vec::new(), |last| vec![0, last]);
    without.dedup();
    // A size goal below the minimum of tables and first chain is not searched, to save fuel.
    let smallest = |table: &GatheredTable| table.formats.iter().map(|format| format.bytes).min().unwrap_or(0);
    let tables = request.tables.iter().map(smallest).fold(0, u64::saturating_add);
    let least = least_units(request, FIRST..FIRST + 1).saturating_add(tables);
    let (mut other, mut is_cut) = (None, false);
    for begin in without {
        if settings.budget.is_spent() {
            is_cut = true;
            break;
        }
        let (left_out, kept) = all.split_at(begin);
        let held = kept.iter().map(|chain| chain.bytes).fold(0, u64::saturating_add);
        let Some(left) = size.checked_sub(held).filter(|left| *left >= least) else { continue };
        let goals = request.goals.with(Goal::SizeBytes(left));
        let found = super::solve_whole(&Request { goals, ..request.clone() }, settings, stage)?;
        let Some(found) = found.filter(|found| lost(request, found) <= MOST_LOST) else { continue };
        let reserve = Reserve { kept: kept.to_vec(), left_out: left_out.to_vec(), is_cut };
        let found = Solution { reserve, ..found };
        if found.shards.iter().all(|shard| shard.target == FIRST) {
            return Ok(Some(found));
        }
        other.get_or_insert(found);
    }
    let Some(whole) = super::solve_whole(request, settings, stage)? else { return Ok(other) };
    let other = other.filter(|other| other.units_on(FIRST) >= whole.units_on(FIRST).max(1));
    let reserve = Reserve { kept: Vec::new(), left_out: all, is_cut };
    Ok(Some(other.unwrap_or(Solution { reserve, ..whole })))
}

/// The target that the request lists first.
const FIRST: u32 = 0;

/// Returns the loss of a solution, or 0 if losses do not count.
pub(super) fn lost(request: &Request, solution: &Solution) -> u64 {
    if !request.weighs_losses() {
        return 0;
    }
    let losses = Losses::new(request);
    let tables = request.tables.iter().zip(&solution.tables);
    let tables = tables.filter_map(|(table, format)| table.formats.get(*format as usize)?.micronats);
    let shards = solution.shards.iter().map(|shard| losses.of_shard(shard));
    shards.chain(tables.map(u64::from)).fold(0, u64::saturating_add)
}

/// Returns the minimum of each target that supports the whole model, in order, with losses within
/// the goal if there is one.
fn least_of_each(request: &Request, settings: &Settings) -> Vec<Least> {
    let table = CostTable::new(request);
    let losses = Losses::new(request);
    let Some(entries) = entry_sets(request).ok().and_then(|sets| sets.into_iter().next()) else {
        return Vec::new();
    };
    let least = |target: u32| {
        let mut least: Option<Least> = None;
        for formats in indices(request.formats.len()) {
            let (mut bytes, mut lost, mut is_known) = (Some(0_u64), 0_u64, true);
            for (index, component) in (0_u32..).zip(&request.model.components) {
                let units = unit_kinds(component).len();
                let prefix = Prefix::new(request, &table, component, target, formats, &entries);
                let own = prefix.range(0, units).map(|cost| cost.artefact_bytes);
                bytes = bytes.zip(own).map(|(bytes, own)| bytes.saturating_add(own));
                let (loss, unmeasured) = losses.cumulative(index, &vec![formats; units]);
                lost = lost.saturating_add(loss.last().copied().unwrap_or(0));
                is_known &= unmeasured.last() == Some(&0);
            }
            let Some(bytes) = bytes else { continue };
            let holds = is_known && request.goals.quality_micronats().is_none_or(|goal| lost <= goal);
            if holds && !has_two_bits(request, formats) && least.is_none_or(|least| bytes < least.bytes) {
                least = Some(Least { target, formats, bytes });
            }
        }
        least
    };
    let whole = indices(request.targets.len()).filter(|target| takes_all(request, *target, settings));
    whole.filter_map(least).collect()
}

/// Returns the minimum bytes of all layers that one of these targets supports, each on any of them
/// and in any formats.
pub(super) fn least_units(request: &Request, targets: std::ops::Range<u32>) -> u64 {
    let table = CostTable::new(request);
    let sets = entry_sets(request).ok();
    let Some(entries) = sets.and_then(|sets| sets.into_iter().next()) else { return 0 };
    let component = |component: &Component| {
        let prefix = |target: u32| {
            let own = indices(request.formats.len());
            own.map(|formats| Prefix::new(request, &table, component, target, formats, &entries)).collect()
        };
        let each: Vec<Prefix> =
            targets.clone().flat_map(|target| -> Vec<Prefix> { prefix(target) }).collect();
        let unit = |unit: usize| {
            let bytes = each.iter().filter_map(|prefix| prefix.range(unit, unit + 1));
            bytes.map(|cost| cost.artefact_bytes).min().unwrap_or(0)
        };
        (0..unit_kinds(component).len()).map(unit).fold(0, u64::saturating_add)
    };
    request.model.components.iter().map(component).fold(0, u64::saturating_add)
}

impl Solution {
    /// Returns the number of layers and components without layers on a target.
    pub(super) fn units_on(&self, target: u32) -> u64 {
        self.shards.iter().filter(|shard| shard.target == target).map(Placement::units).sum()
    }

    /// Returns whether more layers are on targets of the first ranks than in another solution. If
    /// the settings put another goal before the targets, no solution is placed better.
    pub(super) fn is_better_placed(&self, other: &Solution) -> bool {
        let ranks = super::ranks(&self.intervals);
        let sum = |solution: &Solution| {
            let of = |shard: &Placement| ranks[shard.target as usize].saturating_mul(shard.units());
            solution.shards.iter().map(of).fold(0, u64::saturating_add)
        };
        let is_first = other.settings.order.first().is_none_or(|first| *first == super::Goal::Targets);
        is_first && sum(self) < sum(other)
    }

    /// Returns the target with most of them, the first one if there are several.
    fn main(&self, request: &Request) -> Option<u32> {
        let targets = indices(request.targets.len());
        targets.max_by_key(|&target| (self.units_on(target), std::cmp::Reverse(target)))
    }

    /// Returns targets, other than the one with most layers, that support the whole model, in order
    /// of preference.
    ///
    /// For text with rounded weights, a CPU uses its own formats, unless losses or bytes count. In
    /// all other cases, a target gets the formats of the plan in which it supports the model, and
    /// the smallest ones if bytes count. A target that is not a CPU and supports none of these gets
    /// all formats in which it supports the model.
    pub(super) fn fallback(&self, request: &Request) -> Vec<Fallback> {
        let main = self.main(request);
        let used = distinct(self.shards.iter().flat_map(Placement::formats));
        let table = CostTable::new(request);
        let whole =
            |target: u32, formats: u32| takes_whole(request, &table, (target, formats), &self.entries);
        let counts = (request.weighs_losses() && !self.settings.loss_is_usual)
            || request.goals.size_bytes().is_some()
            || self.settings.formats.is_some()
            || !request.has_states()
            || used.iter().all(|formats| request.weight_formats_of(*formats).all(Format::is_float));
        let others = indices(request.targets.len()).filter(|&target| Some(target) != main);
        if !self.settings.falls_back {
            return Vec::new();
        }
        let has_room = |target: &u32| {
            request.goals.size_bytes().is_none()
                || self.reserve.kept.iter().any(|chain| chain.target == *target)
        };
        others
            .filter(has_room)
            .filter(|&target| takes_all(request, target, &self.settings))
            .map(|target| {
                let is_cpu = request.targets[target as usize].kind == "cpu";
                if is_cpu && !counts {
                    return Fallback { target, formats: Vec::new(), limits: Vec::new() };
                }
                let own = used.iter().copied().filter(|&formats| whole(target, formats));
                let least = self.reserve.kept.iter().find(|chain| chain.target == target);
                let mut formats = distinct(own.chain(least.map(|least| least.formats)));
                if formats.is_empty() && !is_cpu {
                    let all = indices(request.formats.len());
                    formats.extend(all.filter(|&formats| whole(target, formats)));
                }
                Fallback { target, formats, limits: Vec::new() }
            })
            .collect()
    }

    /// Explains the reserved part of the size goal, and the chains for which there is no room.
    pub(super) fn explain_reserve(&self, request: &Request, reasons: &mut Vec<Reason>) {
        let mut push = |choice: String, because: String| {
            reasons.push(Reason { shard: None, choice, because, cause: Cause::Goal("size".to_owned()) });
        };
        let name = |chain: &Least| request.targets[chain.target as usize].name.clone();
        for chain in &self.reserve.kept {
            push(format!("room for the fallback to `{}`", name(chain)), chain.because(request));
        }
        for chain in &self.reserve.left_out {
            push(
                format!("no fallback to `{}`", name(chain)),
                format!(
                    "no plan within the goal {} the {} that it needs without moving layers or, if losses \
                     count, losing more than {}",
                    if self.reserve.is_cut { "was found that leaves" } else { "leaves" },
                    names::bytes(chain.bytes),
                    names::micronats(MOST_LOST)
                ),
            );
        }
    }
}

pub(super) fn indices(count: usize) -> std::ops::Range<u32> {
    0..u32::try_from(count).unwrap_or(u32::MAX)
}

/// Returns whether a target alone supports the whole model within its limits and goals. Goals for
/// times are for the first chain only.
fn takes_all(request: &Request, target: u32, settings: &Settings) -> bool {
    let place = indices(request.model.components.len()).map(|index| (index, target)).collect();
    let (effort, budget) = (settings.effort, settings.budget.clone());
    let settings = Settings { place, effort, budget, ..Settings::default() };
    let Ok(sets) = entry_sets(request) else { return false };
    sets.into_iter().any(|entries| {
        let relaxed = Relaxed { times: true, ..Relaxed::default() };
        let problem = Problem::new(request, &settings, entries, relaxed);
        problem.is_ok_and(|problem| search::exists(&problem))
    })
}
