//! Which format tuple each layer of a shard has.
//!
//! Layers of a shard may differ in the formats of their weights, so the search over cuts is
//! offered, for each target and each pair of activations and states, a number of *assignments* of
//! tuples to the layers of a component. Under a quality goal those are points on the convex hull of
//! loss against cost: the layers give up quality in the order of what a millionth of loss saves
//! there (the Lagrangian relaxation of the knapsack). Of a few layers all assignments are offered.
//! What the search chose is then improved over all shards at once by [`polish`], a knapsack without
//! cuts.

use std::collections::BTreeMap;

use super::search::cost_of;
use super::{Losses, Placement, Problem, Solution, WantedFormat, preferences};
use crate::table::{CostTable, unit_kinds_at};
use crate::{Entry, Request};

/// Assignments from the hull that are offered for one target and one pair of activations and
/// states.
const OFFERED: usize = 10;

/// Assignments of a few layers that are offered whole, at most.
const ALL: usize = 64;

/// Labels that the knapsack keeps after each layer: beyond it, its result is an approximation.
const LABELS: usize = 512;

/// The units of a component on one target.
pub(super) struct Units<'a> {
    pub(super) request: &'a Request,
    pub(super) table: &'a CostTable<'a>,
    pub(super) component: u32,
    pub(super) kinds: &'a [u32],
    pub(super) layered: bool,
    pub(super) target: u32,
    pub(super) entries: &'a [Entry],
    pub(super) wanted: &'a [WantedFormat],
    pub(super) losses: &'a Losses<'a>,
}

/// A format tuple that a unit may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Candidate {
    formats: u32,
    /// Microseconds.
    time: u64,
    /// Millionths.
    loss: u64,
}

impl Units<'_> {
    /// Assignments of the tuples in `usable` to the units, in the order in which equals are
    /// preferred: mixtures of a class if `mixed`, else each tuple for all units.
    ///
    /// Where layers must have other weights than a tuple, they have those of the first tuple with
    /// the same activations and states that has them.
    pub(super) fn assignments(&self, usable: &[u32], mixed: bool) -> Vec<Vec<u32>> {
        let mut found: Vec<Vec<u32>> = Vec::new();
        let mut alone = usable.to_vec();
        if mixed && self.layered && self.request.goals.quality_micronats.is_some() {
            for class in self.classes(usable) {
                let mixtures = self.mixtures(&class);
                // Of many layers one tuple for all is rarely the best, and the knapsack finds it.
                if !mixtures.is_empty() {
                    alone.retain(|formats| !class.contains(formats));
                }
                found.extend(mixtures);
            }
        }
        found.extend(alone.iter().map(|&formats| self.uniform(formats, usable)));
        let mut seen = std::collections::BTreeSet::new();
        found.retain(|assignment| seen.insert(assignment.clone()));
        found
    }

    /// One tuple for all units that may have it.
    fn uniform(&self, formats: u32, usable: &[u32]) -> Vec<u32> {
        let meets = |unit: usize, formats: u32| {
            preferences::meets(self.request, self.wanted, (self.component, unit, self.layered), formats)
        };
        let in_class = |other: &u32| is_same_class(self.request, formats, *other);
        (0..self.kinds.len())
            .map(|unit| match meets(unit, formats) {
                true => formats,
                false => {
                    let mut others = usable.iter().copied().filter(in_class);
                    others.find(|&other| meets(unit, other)).unwrap_or(formats)
                }
            })
            .collect()
    }

    /// The tuples of each pair of activations and states that has several.
    fn classes(&self, usable: &[u32]) -> Vec<Vec<u32>> {
        let mut classes: BTreeMap<(u32, u32), Vec<u32>> = BTreeMap::new();
        for &formats in usable {
            let Some(tuple) = self.request.formats.get(formats as usize) else { continue };
            classes.entry((tuple.activations, tuple.states)).or_default().push(formats);
        }
        classes.into_values().filter(|class| class.len() > 1).collect()
    }

    /// What a unit may have of a class; nothing is known of the time of some, so those cost 0.
    fn candidates(&self, unit: usize, class: &[u32]) -> Vec<Candidate> {
        let at = u32::try_from(unit).unwrap_or(u32::MAX);
        let of = |&formats: &u32| {
            let place = (self.component, unit, self.layered);
            if !preferences::meets(self.request, self.wanted, place, formats) {
                return None;
            }
            let kind = self.kinds[unit];
            if self.table.illegal(self.request, kind, self.target, formats, self.entries).is_some() {
                return None;
            }
            let row = self.table.row(kind, self.target, formats, *self.entries.first()?);
            let time = row.and_then(|row| row.time).map_or(0, |time| time.microseconds);
            Some(Candidate { formats, time, loss: self.losses.of(self.component, at, formats)? })
        };
        class.iter().filter_map(of).collect()
    }

    /// All assignments of a few units, points on the hull of more.
    fn mixtures(&self, class: &[u32]) -> Vec<Vec<u32>> {
        let units: Vec<Vec<Candidate>> =
            (0..self.kinds.len()).map(|unit| self.candidates(unit, class)).collect();
        if units.iter().any(Vec::is_empty) {
            return Vec::new();
        }
        let count = units.iter().try_fold(1_usize, |count, unit| count.checked_mul(unit.len()));
        match count {
            Some(count) if count <= ALL => products(&units),
            _ => self.hull_points(&units),
        }
    }

    /// Assignments along the hull whose loss is within the goal, the largest loss first.
    fn hull_points(&self, units: &[Vec<Candidate>]) -> Vec<Vec<u32>> {
        let goal = self.request.goals.quality_micronats.unwrap_or(u64::MAX);
        let hulls: Vec<Vec<Candidate>> = units.iter().map(|unit| hull(unit)).collect();
        let mut assignment: Vec<u32> = hulls.iter().map(|hull| hull[0].formats).collect();
        let mut loss = hulls.iter().fold(0_u64, |sum, hull| sum.saturating_add(hull[0].loss));
        let mut points = vec![assignment.clone()];
        for (unit, from, to) in steps(&hulls) {
            loss = loss.saturating_add(to.loss - from.loss);
            if loss > goal {
                break;
            }
            assignment[unit] = to.formats;
            points.push(assignment.clone());
        }
        // Dense where the component takes most of what the goal allows, and the other end.
        let last = points.len() - 1;
        let back = std::iter::once(0).chain((0..OFFERED - 2).map(|place| 1 << place)).chain([last]);
        let mut places: Vec<usize> = back.map(|back| last.saturating_sub(back)).collect();
        places.dedup();
        places.into_iter().map(|place| points[place].clone()).collect()
    }
}

/// Whether two tuples have the same activations and states, so that layers of one shard may have
/// either.
fn is_same_class(request: &Request, left: u32, right: u32) -> bool {
    let of =
        |formats: u32| request.formats.get(formats as usize).map(|tuple| (tuple.activations, tuple.states));
    of(left) == of(right)
}

/// Every choice of one candidate for each unit.
fn products(units: &[Vec<Candidate>]) -> Vec<Vec<u32>> {
    let mut found = vec![Vec::new()];
    for unit in units {
        let extended = found.iter().flat_map(|before: &Vec<u32>| {
            unit.iter().map(|candidate| {
                let mut next = before.clone();
                next.push(candidate.formats);
                next
            })
        });
        found = extended.collect();
    }
    found
}

/// The candidates on the lower convex hull of time against loss, by rising loss. Never empty for a
/// unit with candidates; the earliest of equals stays.
fn hull(unit: &[Candidate]) -> Vec<Candidate> {
    let mut sorted = unit.to_vec();
    sorted.sort_by_key(|candidate| (candidate.loss, candidate.time));
    let mut hull: Vec<Candidate> = Vec::new();
    for candidate in sorted {
        if hull.last().is_some_and(|last| candidate.time >= last.time) {
            continue;
        }
        while let [.., before, last] = hull[..] {
            // `last` lies above the line from `before` to the new candidate.
            let saved = u128::from(before.time - last.time) * u128::from(candidate.loss - before.loss);
            let whole = u128::from(before.time - candidate.time) * u128::from(last.loss - before.loss);
            if saved > whole {
                break;
            }
            hull.pop();
        }
        hull.push(candidate);
    }
    hull
}

/// Steps along the hulls of all units, those first that save most time for their loss.
fn steps(hulls: &[Vec<Candidate>]) -> Vec<(usize, Candidate, Candidate)> {
    let mut steps: Vec<(usize, Candidate, Candidate)> = Vec::new();
    for (unit, hull) in hulls.iter().enumerate() {
        steps.extend(hull.windows(2).map(|pair| (unit, pair[0], pair[1])));
    }
    // A stable sort: a hull's own steps are in falling order already, and ties stay by unit.
    steps.sort_by(|left, right| {
        let saved = |step: &(usize, Candidate, Candidate)| u128::from(step.1.time - step.2.time);
        let lost = |step: &(usize, Candidate, Candidate)| u128::from(step.2.loss - step.1.loss);
        (saved(right) * lost(left)).cmp(&(saved(left) * lost(right)))
    });
    steps
}

/// How far a mixture may be from the best one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MixBound {
    /// Microseconds of what was mixed.
    pub time: u64,
    /// No mixture of these shards within the quality goal takes less.
    pub least: u64,
}

/// One unit of a solution that the knapsack may change.
struct Item {
    shard: usize,
    segment: usize,
    unit: usize,
    candidates: Vec<Candidate>,
}

/// Improves the mixture of a solution: cuts, targets, activations and states stay, and the layers
/// of all timed shards share what the quality goal leaves.
///
/// `None` where there is no quality goal, nothing to choose, or a shard would exceed a limit.
pub(super) fn polish(problem: &Problem<'_>, solution: &mut Solution) -> Option<MixBound> {
    let request = problem.request;
    let mut left = request.goals.quality_micronats?;
    let (table, losses) = (CostTable::new(request), Losses::new(request));
    let mut items = Vec::new();
    let mut before = 0_u64;
    for (index, shard) in solution.shards.iter().enumerate() {
        let is_timed = problem.timed.get(shard.target as usize) == Some(&true);
        for (place, segment) in shard.segments.iter().enumerate() {
            let part = problem.parts.iter().find(|part| part.component == segment.component)?;
            let component = &request.model.components[segment.component as usize];
            let kinds = unit_kinds_at(component, shard.softcap);
            let units = Units {
                request,
                table: &table,
                component: segment.component,
                kinds: &kinds,
                layered: part.layered,
                target: shard.target,
                entries: &problem.entries,
                wanted: &problem.settings.wanted,
                losses: &losses,
            };
            for (offset, &formats) in segment.formats.iter().enumerate() {
                let at = segment.first as usize + offset;
                let usable = problem.usable.iter().copied();
                let class: Vec<u32> =
                    usable.filter(|other| is_same_class(request, formats, *other)).collect();
                let candidates = if is_timed { units.candidates(at, &class) } else { Vec::new() };
                match candidates.iter().find(|candidate| candidate.formats == formats) {
                    Some(own) => {
                        before = before.saturating_add(own.time);
                        items.push(Item { shard: index, segment: place, unit: offset, candidates });
                    }
                    // What cannot be changed keeps its loss.
                    None => {
                        let unit = u32::try_from(at).unwrap_or(u32::MAX);
                        left = left.checked_sub(losses.of(segment.component, unit, formats)?)?;
                    }
                }
            }
        }
    }
    if items.iter().all(|item| item.candidates.len() < 2) {
        return None;
    }
    let (time, chosen, exact) = knapsack(&items, left)?;
    let least = if exact { time.min(before) } else { relaxed(&items, left)? };
    if time >= before {
        return Some(MixBound { time: before, least });
    }
    let mut shards = solution.shards.clone();
    for (item, formats) in items.iter().zip(chosen) {
        shards[item.shard].segments[item.segment].formats[item.unit] = formats;
    }
    for shard in &mut shards {
        *shard = recounted(problem, &table, shard)?;
    }
    let total = shards.iter().fold(0_u64, |sum, shard| sum.saturating_add(shard.cost.context_bytes()));
    if request.goals.memory_bytes.is_some_and(|max| total > max) || over_target_totals(problem, &shards) {
        return Some(MixBound { time: before, least });
    }
    solution.time = shards.iter().try_fold(0_u64, |sum, shard| Some(sum.saturating_add(shard.cost.time?)));
    solution.shards = shards;
    Some(MixBound { time, least })
}

/// A shard in its formats with its cost; `None` if it is illegal, was forbidden, or exceeds a
/// limit.
fn recounted(problem: &Problem<'_>, table: &CostTable<'_>, shard: &Placement) -> Option<Placement> {
    let cost = cost_of(problem, table, shard)?;
    let bounds = &problem.limits[shard.target as usize];
    let shard = Placement { cost, ..shard.clone() };
    let fits =
        bounds.exceeded(&shard.cost).is_none() && !problem.settings.forbidden.contains(&shard.forbidden());
    fits.then_some(shard)
}

/// Whether the shards of a target together exceed what it holds.
fn over_target_totals(problem: &Problem<'_>, shards: &[Placement]) -> bool {
    problem.limits.iter().zip(0_u32..).any(|(bounds, target)| {
        let own = shards.iter().filter(|shard| shard.target == target);
        let bytes = own.fold(0_u64, |sum, shard| sum.saturating_add(shard.cost.context_bytes()));
        bounds.memory_bytes.is_some_and(|limit| bytes > limit.value)
    })
}

/// The least time of the relaxed problem, in which a layer may be partly in one format and partly
/// in another: a bound on every mixture. `None` if even the least loss is too much.
fn relaxed(items: &[Item], budget: u64) -> Option<u64> {
    let hulls: Vec<Vec<Candidate>> = items.iter().map(|item| hull(&item.candidates)).collect();
    let mut loss = hulls.iter().fold(0_u64, |sum, hull| sum.saturating_add(hull[0].loss));
    let mut time = hulls.iter().fold(0_u64, |sum, hull| sum.saturating_add(hull[0].time));
    if loss > budget {
        return None;
    }
    for (_, from, to) in steps(&hulls) {
        let (lost, saved) = (to.loss - from.loss, from.time - to.time);
        if loss.saturating_add(lost) > budget {
            let part = u128::from(saved) * u128::from(budget - loss) / u128::from(lost.max(1));
            // Rounded up: the bound must not exceed the optimum.
            return Some(time.saturating_sub(u64::try_from(part).unwrap_or(u64::MAX).saturating_add(1)));
        }
        loss += lost;
        time = time.saturating_sub(saved);
    }
    Some(time)
}

/// A partial choice: loss, time, and the label before with the candidate taken.
#[derive(Debug, Clone, Copy)]
struct Label {
    loss: u64,
    time: u64,
    before: u32,
    formats: u32,
}

/// The least time within the budget, the tuple of each item, and whether that is exact: the Pareto
/// front of loss and time, item after item, of which at most [`LABELS`] are kept.
fn knapsack(items: &[Item], budget: u64) -> Option<(u64, Vec<u32>, bool)> {
    let start = Label { loss: 0, time: 0, before: 0, formats: 0 };
    // What the items that follow lose at least: nothing beyond it is worth a label.
    let least: Vec<u64> = items
        .iter()
        .map(|item| item.candidates.iter().map(|candidate| candidate.loss).min().unwrap_or(0))
        .collect();
    let mut rest = least.iter().fold(0_u64, |sum, loss| sum.saturating_add(*loss));
    let mut layers: Vec<Vec<Label>> = vec![vec![start]];
    let mut exact = true;
    for (item, least) in items.iter().zip(&least) {
        rest = rest.saturating_sub(*least);
        let labels = layers.last()?;
        let mut next: Vec<Label> = Vec::with_capacity(labels.len() * item.candidates.len());
        for (label, before) in labels.iter().zip(0_u32..) {
            for candidate in &item.candidates {
                let loss = label.loss.saturating_add(candidate.loss);
                if loss.saturating_add(rest) <= budget {
                    let time = label.time.saturating_add(candidate.time);
                    next.push(Label { loss, time, before, formats: candidate.formats });
                }
            }
        }
        next.sort_by_key(|label| (label.loss, label.time, label.before, label.formats));
        let mut best = u64::MAX;
        next.retain(|label| {
            label.time < best && {
                best = label.time;
                true
            }
        });
        if next.len() > LABELS {
            exact = false;
            let last = next.len() - 1;
            next = (0..LABELS).map(|place| next[place * last / (LABELS - 1)]).collect();
        }
        layers.push(next);
    }
    let end = layers.last()?;
    let (mut at, best) = end.iter().enumerate().min_by_key(|(_, label)| label.time)?;
    let time = best.time;
    let mut chosen = Vec::with_capacity(items.len());
    for labels in layers[1..].iter().rev() {
        chosen.push(labels[at].formats);
        at = labels[at].before as usize;
    }
    chosen.reverse();
    Some((time, chosen, exact))
}
