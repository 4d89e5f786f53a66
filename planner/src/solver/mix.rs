//! Choice of the format tuple of each layer of a shard.
//!
//! Layers of a shard may differ in the formats of their weights. For each target and each pair of
//! activations and states, the search over cuts therefore gets a number of *assignments* of tuples
//! to the layers of a component. For a few layers it gets all assignments.
//!
//! With a goal for losses it gets points on the convex hull of the limited quantity against the
//! minimised one (the Lagrangian relaxation of the knapsack). With a quality goal, layers give up
//! quality in the order of time saved per millionth. For the least loss, they give up bytes in the
//! order of loss saved per byte.
//!
//! The choice of the search is then improved over all shards at once by [`polish`], a knapsack
//! without cuts.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use super::goals::{GoalBounds, Stage};
use super::preferences::Demands;
use super::search::Sums;
use super::search::cost_of;
use super::{Barred, Goal, Losses, Placement, Problem, Solution, WantedFormat, preferences};
use crate::table::{CostTable, Interval, RangeCost, takes_part, unit_kinds_at};
use crate::{Entry, Request, SoftcapPlace};

/// Maximum number of assignments from the hull that are offered for one target and one pair of
/// activations and states.
const OFFERED: usize = 10;

/// Maximum number of assignments of a few layers for which all are offered.
const ALL: usize = 64;

/// Labels that the knapsack keeps after each layer. If there are more, its result is an
/// approximation.
const LABELS: usize = 512;

/// Labels of the knapsack that cost as much as one comparison of the search.
const LABELS_PER_COMPARISON: u64 = 16;

/// The units of a component on one target.
pub(super) struct Units<'a> {
    pub(super) request: &'a Request,
    pub(super) table: &'a CostTable<'a>,
    pub(super) component: u32,
    pub(super) kinds: &'a [u32],
    pub(super) layered: bool,
    pub(super) target: u32,
    pub(super) goals: GoalBounds,
    pub(super) stage: Stage,
    /// See [`Settings::gain_within_goal`](super::Settings::gain_within_goal).
    pub(super) gain: u32,
    pub(super) entries: &'a [Entry],
    pub(super) wanted: &'a [WantedFormat],
    pub(super) barred: &'a [Barred],
    pub(super) losses: &'a Losses<'a>,
    /// Costs by layer kind and format tuple, computed on first use.
    pub(super) costs: OnceCell<BTreeMap<(u32, u32), UnitCost>>,
}

/// Cost of a unit of some kind in a format tuple.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct UnitCost {
    is_legal: bool,
    /// Time of the first entry point.
    time: Interval,
    /// Bytes in an artefact: its weights, and the additions of each entry point.
    bytes: u64,
}

/// A format tuple that a unit may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) formats: u32,
    /// Amount of the limited quantity: millionths of loss, bytes or nanoseconds.
    pub(super) spent: u64,
    /// Amount of the minimised quantity: nanoseconds, or millionths of loss.
    pub(super) value: u64,
}

/// The minimised and the limited quantity of a mixture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trade {
    /// The least time within a limit on the loss.
    LossForTime,
    /// The least loss within a limit on bytes.
    BytesForLoss,
    /// The least loss within a limit on the time.
    TimeForLoss,
}

impl Trade {
    /// Returns the trade that the goals of a request define, or `None` without a goal for losses.
    pub(super) fn of(request: &Request) -> Option<Self> {
        let goals = &request.goals;
        match goals.least_loss {
            false => goals.quality_micronats().map(|_| Trade::LossForTime),
            true if goals.size_bytes().or(goals.memory_bytes()).is_some() => Some(Trade::BytesForLoss),
            true => Some(Trade::TimeForLoss),
        }
    }

    /// Returns the maximum amount of the limited quantity for all shards together.
    pub(super) fn bound(self, goals: &GoalBounds) -> u64 {
        let bound = match self {
            Trade::LossForTime => goals.quality,
            Trade::BytesForLoss => goals.size.into_iter().chain(goals.memory).min(),
            Trade::TimeForLoss => goals.token,
        };
        bound.unwrap_or(u64::MAX)
    }

    /// Returns the part of the objective that is minimised.
    pub(super) fn goal(self) -> Goal {
        match self {
            Trade::LossForTime => Goal::Time,
            Trade::BytesForLoss | Trade::TimeForLoss => Goal::Loss,
        }
    }
}

impl Units<'_> {
    /// Returns assignments of the tuples in `usable` to the units, in the order in which equals are
    /// preferred: mixtures of a class if `mixed`, otherwise each tuple for all units.
    ///
    /// If layers must have other weights than a tuple, they get the first tuple with the required
    /// weights and the same activations and states.
    pub(super) fn assignments(&self, usable: &[u32], mixed: bool) -> Vec<Vec<u32>> {
        let mut found: Vec<Vec<u32>> = Vec::new();
        let mut alone = usable.to_vec();
        if mixed && self.layered && self.request.weighs_losses() {
            for class in self.classes(usable) {
                let mixtures = self.mixtures(&class);
                // For many layers, one tuple for all is rarely the best, and the knapsack can find
                // it.
                if !mixtures.is_empty() {
                    alone.retain(|formats| !class.contains(formats));
                }
                found.extend(mixtures);
            }
        }
        found.extend(alone.iter().map(|&formats| self.uniform(formats, usable)));
        let mut seen = BTreeSet::new();
        found.retain(|assignment| seen.insert(assignment.clone()));
        found
    }

    /// Assigns one tuple to all units that may have it.
    fn uniform(&self, formats: u32, usable: &[u32]) -> Vec<u32> {
        let demands = self.demands();
        let meets = |unit: usize, formats: u32| demands.allow((self.component, unit, self.layered), formats);
        let in_class = |other: &u32| is_same_class(self.request, formats, *other);
        (0..self.kinds.len())
            .map(|unit| match meets(unit, formats) {
                true => formats,
                false => {
                    let others = usable.iter().copied().filter(in_class);
                    let mut others = others.filter(|&other| meets(unit, other));
                    let first = others.clone().next().unwrap_or(formats);
                    let kind = self.kinds[unit];
                    others.find(|&other| self.cost(kind, other).is_legal).unwrap_or(first)
                }
            })
            .collect()
    }

    pub(super) fn demands(&self) -> Demands<'_> {
        Demands { request: self.request, wanted: self.wanted, barred: self.barred, target: self.target }
    }

    /// Returns the tuples of each pair of activations and states, for pairs with several tuples.
    fn classes(&self, usable: &[u32]) -> Vec<Vec<u32>> {
        let mut classes: BTreeMap<(u32, u32), Vec<u32>> = BTreeMap::new();
        for &formats in usable {
            let Some(tuple) = self.request.formats.get(formats as usize) else { continue };
            classes.entry((tuple.activations, tuple.states)).or_default().push(formats);
        }
        classes.into_values().filter(|class| class.len() > 1).collect()
    }

    /// Returns the tuples of a class that a unit may have.
    fn candidates(&self, unit: usize, class: &[u32], trade: Trade) -> Vec<Candidate> {
        let at = u32::try_from(unit).unwrap_or(u32::MAX);
        let of = |&formats: &u32| {
            let place = (self.component, unit, self.layered);
            if !self.demands().allow(place, formats) {
                return None;
            }
            let cost = self.cost(self.kinds[unit], formats);
            if !cost.is_legal {
                return None;
            }
            let nanoseconds = cost.time.likely.saturating_mul(1000);
            let gain = if formats == 0 { 0 } else { super::with_gain(nanoseconds, self.gain) };
            let loss = self.losses.of(self.component, at, formats)?;
            let (spent, value) = match trade {
                Trade::LossForTime => (loss, nanoseconds.saturating_add(gain)),
                Trade::BytesForLoss => (cost.bytes, loss),
                Trade::TimeForLoss => (self.stage.of(cost.time).saturating_mul(1000), loss),
            };
            Some(Candidate { formats, spent, value })
        };
        class.iter().filter_map(of).collect()
    }

    /// Returns the cost of a unit of a kind in a format tuple.
    pub(super) fn cost(&self, kind: u32, formats: u32) -> UnitCost {
        let costs = self.costs.get_or_init(|| {
            let kinds: BTreeSet<u32> = self.kinds.iter().copied().collect();
            let tuples = 0..u32::try_from(self.request.formats.len()).unwrap_or(u32::MAX);
            let all = kinds.into_iter().flat_map(|kind| tuples.clone().map(move |formats| (kind, formats)));
            all.map(|(kind, formats)| ((kind, formats), self.looked_up(kind, formats))).collect()
        });
        costs.get(&(kind, formats)).copied().unwrap_or_default()
    }

    fn looked_up(&self, kind: u32, formats: u32) -> UnitCost {
        let row = |entry: Entry| self.table.row(kind, self.target, formats, entry);
        let mut cost = UnitCost { is_legal: true, ..UnitCost::default() };
        let (mut weights, mut more) = (0, 0_u64);
        for &entry in self.entries.iter().filter(|&&entry| takes_part(self.request, kind, entry)) {
            let row = row(entry);
            cost.is_legal &= row.is_some_and(|row| row.illegal().is_none());
            if let Some(row) = row {
                weights = row.weight_bytes.max(weights);
                more = more.saturating_add(row.artefact_bytes);
            }
        }
        cost.bytes = more.saturating_add(weights);
        let first = self.entries.first().and_then(|&entry| row(entry)?.time());
        cost.time = first.map(Interval::from).unwrap_or_default();
        cost
    }

    /// Returns the likely time of a unit of this kind in a format tuple.
    pub(super) fn nanoseconds(&self, kind: u32, formats: u32) -> u64 {
        self.cost(kind, formats).time.likely.saturating_mul(1000)
    }

    /// Returns all assignments if there are few, otherwise points on the hull.
    fn mixtures(&self, class: &[u32]) -> Vec<Vec<u32>> {
        let Some(trade) = Trade::of(self.request) else { return Vec::new() };
        let units = |own: &Units<'_>| -> Vec<Vec<Candidate>> {
            (0..self.kinds.len()).map(|unit| own.candidates(unit, class, trade)).collect()
        };
        let priced = units(self);
        if priced.iter().any(Vec::is_empty) {
            return Vec::new();
        }
        let count = priced.iter().try_fold(1_usize, |count, unit| count.checked_mul(unit.len()));
        if count.is_some_and(|count| count <= ALL) {
            return products(&priced);
        }
        let bound = trade.bound(&self.goals);
        let mut found = self.hull_points(&priced, bound);
        // A bound on times may need formats that save less than the gain.
        if trade == Trade::LossForTime && self.gain > 0 && self.goals.bounds_times() {
            let plain = Units { gain: 0, costs: self.costs.clone(), ..*self };
            found.extend(self.hull_points(&units(&plain), bound));
        }
        found
    }

    /// Returns assignments along the hull that stay within the goal, the one that uses most of it
    /// first.
    fn hull_points(&self, units: &[Vec<Candidate>], bound: u64) -> Vec<Vec<u32>> {
        let hulls: Vec<Vec<Candidate>> = units.iter().map(|unit| hull(unit)).collect();
        let mut assignment: Vec<u32> = hulls.iter().map(|hull| hull[0].formats).collect();
        let mut spent = hulls.iter().fold(0_u64, |sum, hull| sum.saturating_add(hull[0].spent));
        let mut points = vec![assignment.clone()];
        for (unit, from, to) in steps(&hulls) {
            spent = spent.saturating_add(to.spent - from.spent);
            if spent > bound {
                break;
            }
            assignment[unit] = to.formats;
            points.push(assignment.clone());
        }
        // Dense near the end where the component uses most of the goal, plus the other end.
        let last = points.len() - 1;
        let back = std::iter::once(0).chain((0..OFFERED - 2).map(|place| 1 << place)).chain([last]);
        let mut places: Vec<usize> = back.map(|back| last.saturating_sub(back)).collect();
        places.dedup();
        places.into_iter().map(|place| points[place].clone()).collect()
    }
}

/// Returns whether two tuples have the same activations and states, so that layers of one shard may
/// have either.
pub(super) fn is_same_class(request: &Request, left: u32, right: u32) -> bool {
    let of =
        |formats: u32| request.formats.get(formats as usize).map(|tuple| (tuple.activations, tuple.states));
    of(left) == of(right)
}

/// Returns every combination of one candidate for each unit.
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

/// Returns the candidates on the lower convex hull of value against spending, by increasing
/// spending. Never empty for a unit with candidates. Of equal candidates the first one is kept.
fn hull(unit: &[Candidate]) -> Vec<Candidate> {
    let mut sorted = unit.to_vec();
    sorted.sort_by_key(|candidate| (candidate.spent, candidate.value));
    let mut hull: Vec<Candidate> = Vec::new();
    for candidate in sorted {
        if hull.last().is_some_and(|last| candidate.value >= last.value) {
            continue;
        }
        while let [.., before, last] = hull[..] {
            // `last` is above the line from `before` to the new candidate.
            let saved = u128::from(before.value - last.value) * u128::from(candidate.spent - before.spent);
            let whole = u128::from(before.value - candidate.value) * u128::from(last.spent - before.spent);
            if saved > whole {
                break;
            }
            hull.pop();
        }
        hull.push(candidate);
    }
    hull
}

/// Returns the steps along the hulls of all units, ordered by value saved per spending, highest
/// first.
fn steps(hulls: &[Vec<Candidate>]) -> Vec<(usize, Candidate, Candidate)> {
    let mut steps: Vec<(usize, Candidate, Candidate)> = Vec::new();
    for (unit, hull) in hulls.iter().enumerate() {
        steps.extend(hull.windows(2).map(|pair| (unit, pair[0], pair[1])));
    }
    // The sort is stable: the steps of one hull are already in decreasing order, and ties keep the
    // order of units.
    steps.sort_by(|left, right| {
        let saved = |step: &(usize, Candidate, Candidate)| u128::from(step.1.value - step.2.value);
        let lost = |step: &(usize, Candidate, Candidate)| u128::from(step.2.spent - step.1.spent);
        (saved(right) * lost(left)).cmp(&(saved(left) * lost(right)))
    });
    steps
}

/// Number of bisection steps to find the spending with which a shard fits its limits.
const FITTING_STEPS: u32 = 10;

/// Returns a lower bound on the minimised quantity of any plan, in nanoseconds or millionths of
/// loss, for any cuts. Every unit may be in any formats on any target that supports them, and
/// partly in several. Returns `None` if a unit has no candidates, or the goal cannot be met.
pub(super) fn least(problem: &Problem<'_>, trade: Trade) -> Option<u64> {
    let mut units: Vec<Vec<Candidate>> = vec![Vec::new(); problem.units()];
    at_every_place(problem, |first, unit, own| {
        units[first + unit].extend(own.candidates(unit, &problem.usable, trade));
    });
    least_within(&units, trade.bound(&problem.goals))
}

/// Returns amounts of each unit on all targets on which it may be, in all formats that it may have
/// there: bytes, the nanoseconds that a goal for the time of a token bounds, and loss.
pub(super) fn amounts(problem: &Problem<'_>) -> Vec<Vec<[u64; 3]>> {
    let mut units: Vec<Vec<[u64; 3]>> = vec![Vec::new(); problem.units()];
    at_every_place(problem, |first, unit, own| {
        let of = |candidate: Candidate| {
            let time = own.cost(own.kinds[unit], candidate.formats).time;
            [candidate.spent, own.stage.of(time).saturating_mul(1000), candidate.value]
        };
        let candidates = own.candidates(unit, &problem.usable, Trade::BytesForLoss);
        units[first + unit].extend(candidates.into_iter().map(of));
    });
    units
}

/// Returns a lower bound on the minimised quantity of units with these candidates within a budget.
/// Returns `None` if a unit has no candidates, or the least spending exceeds the budget.
pub(super) fn least_within(units: &[Vec<Candidate>], budget: u64) -> Option<u64> {
    if units.iter().any(Vec::is_empty) {
        return None;
    }
    let price = Price::of(units.iter().map(Vec::as_slice), budget)?;
    let together = units.iter().fold(0_u128, |sum, unit| sum.saturating_add(price.least(unit)));
    Some(price.bound(together, budget))
}

/// Returns lower bounds on ranks of targets, for any plan and any cuts, in the order of the
/// objective. The other parts are zero.
pub(super) fn least_before_costs(problem: &Problem<'_>, trade: Trade) -> Sums {
    let mut units: Vec<Option<Sums>> = vec![None; problem.units()];
    at_every_place(problem, |first, unit, own| {
        let mut sums = Sums::default();
        sums[Goal::Targets as usize] = problem.ranks[own.target as usize];
        let sums = preferences::in_order(sums, &problem.settings.order);
        if !own.candidates(unit, &problem.usable, trade).is_empty() {
            let least = &mut units[first + unit];
            *least = Some(least.map_or(sums, |least| least.min(sums)));
        }
    });
    let mut together = Sums::default();
    for unit in units.into_iter().flatten() {
        together.iter_mut().zip(unit).for_each(|(sum, own)| *sum = sum.saturating_add(own));
    }
    together
}

/// Calls `visit` with each unit of each part, on every target on which it may be and every soft-cap
/// place: with the number of units before the part, the index of the unit, and the units of the
/// part.
fn at_every_place(problem: &Problem<'_>, mut visit: impl FnMut(usize, usize, &Units<'_>)) {
    let mut first = 0;
    for part in &problem.parts {
        let component = &problem.request.model.components[part.component as usize];
        let mut places: Vec<(u32, Option<SoftcapPlace>)> = Vec::new();
        for choice in &part.choices {
            let place = (choice.target, choice.softcap);
            if places.contains(&place) {
                continue;
            }
            places.push(place);
            let kinds = unit_kinds_at(component, choice.softcap);
            let units = problem.units_of(part, &kinds, choice.target);
            let rank = problem.ranks[choice.target as usize];
            let own = (0..part.units).filter(|unit| part.may_be_on(rank, *unit));
            own.for_each(|unit| visit(first, unit, &units));
        }
        first += part.units;
    }
}

/// Upper bound on the distance of a mixture from the best one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MixBound {
    /// The minimised and the limited quantity.
    pub trade: Trade,
    /// Microseconds, or millionths of loss, of the mixture.
    pub value: u64,
    /// Lower bound for all mixtures of these shards within the goal.
    pub least: u64,
}

impl MixBound {
    /// Creates a bound from nanoseconds, or from millionths of loss.
    fn new(trade: Trade, value: u64, least: u64) -> Self {
        let unit = if trade == Trade::LossForTime { 1000 } else { 1 };
        Self { trade, value: value / unit, least: least / unit }
    }
}

/// One unit of a solution that the knapsack may change.
struct Item {
    shard: usize,
    segment: usize,
    unit: usize,
    candidates: Vec<Candidate>,
}

/// Improves the mixture of a solution. Cuts, targets, activations and states stay, and the layers
/// share the amount that the goal allows.
///
/// Returns `None` without a goal for losses, if there is no choice, or if a shard would exceed a
/// limit.
pub(super) fn polish(problem: &Problem<'_>, solution: &mut Solution) -> Option<MixBound> {
    improve(problem, solution, knapsack)
}

/// Improves the mixture of a solution like [`polish`], but quickly and only approximately.
pub(super) fn sketch(problem: &Problem<'_>, solution: &mut Solution) -> Option<MixBound> {
    improve(problem, solution, by_steps)
}

fn improve(problem: &Problem<'_>, solution: &mut Solution, mixture: Mixing) -> Option<MixBound> {
    let trade = Trade::of(problem.request)?;
    let bound = improve_formats(problem, solution, (mixture, trade));
    if trade != Trade::LossForTime {
        let shards = merged(problem, &problem.table, &solution.shards);
        set(problem, solution, shards);
    }
    bound
}

fn improve_formats(
    problem: &Problem<'_>,
    solution: &mut Solution,
    (mixture, trade): (Mixing, Trade),
) -> Option<MixBound> {
    let request = problem.request;
    let mut left = trade.bound(&problem.goals);
    let losses = &problem.losses;
    let mut items = Vec::new();
    let (mut before, mut own_spent) = (0_u64, 0_u64);
    for (index, shard) in solution.shards.iter().enumerate() {
        for (place, segment) in shard.segments.iter().enumerate() {
            let part = problem.parts.iter().find(|part| part.component == segment.component)?;
            let component = &request.model.components[segment.component as usize];
            let kinds = unit_kinds_at(component, shard.softcap);
            let units = problem.units_of(part, &kinds, shard.target);
            for (offset, &formats) in segment.formats.iter().enumerate() {
                let at = segment.first as usize + offset;
                let usable = problem.usable.iter().copied();
                let class: Vec<u32> =
                    usable.filter(|other| is_same_class(request, formats, *other)).collect();
                let candidates = units.candidates(at, &class, trade);
                match candidates.iter().find(|candidate| candidate.formats == formats) {
                    Some(own) => {
                        before = before.saturating_add(own.value);
                        own_spent = own_spent.saturating_add(own.spent);
                        items.push(Item { shard: index, segment: place, unit: offset, candidates });
                    }
                    // Units that cannot be changed keep their loss.
                    None if trade == Trade::LossForTime => {
                        let unit = u32::try_from(at).unwrap_or(u32::MAX);
                        left = left.checked_sub(losses.of(segment.component, unit, formats)?)?;
                    }
                    None => {}
                }
            }
        }
    }
    if items.iter().all(|item| item.candidates.len() < 2) {
        return None;
    }
    if trade != Trade::LossForTime {
        left = spendable(problem, solution, trade).saturating_add(own_spent);
    }
    let open: Vec<&Item> = items.iter().collect();
    let (value, chosen, exact) = mixture(problem, &open, left)?;
    let least = if exact { value.min(before) } else { relaxed(&open, left)? };
    if value >= before {
        return Some(MixBound::new(trade, before, least));
    }
    let first = by_shard(&open, chosen)?;
    let (shards, value) = within_limits(problem, &solution.shards, &items, first, (mixture, left))?;
    if value >= before {
        return Some(MixBound::new(trade, before, least));
    }
    if !holds(problem, &shards) || over_target_totals(problem, &shards) {
        return Some(MixBound::new(trade, before, least));
    }
    set(problem, solution, shards);
    solution.gap = solution.gap.and_then(|gap| match gap.goal == trade.goal() {
        true => gap.less(before - value),
        false => Some(gap),
    });
    Some(MixBound::new(trade, value, least))
}

/// Replaces the shards of a solution.
fn set(problem: &Problem<'_>, solution: &mut Solution, shards: Vec<Placement>) {
    let times = problem.times(shards.iter().map(|shard| (shard.target, &shard.cost)));
    solution.time = times.token.microseconds();
    solution.first_token = times.first_token.microseconds();
    solution.shards = shards;
}

/// Applies the best mixture `mixed` to the shards, and returns its value. If a shard would exceed a
/// limit, it gets the best mixture within the limit, and the others share the remaining budget.
fn within_limits(
    problem: &Problem<'_>,
    shards: &[Placement],
    items: &[Item],
    mixed: BTreeMap<usize, Vec<Candidate>>,
    (mixture, budget): (Mixing, u64),
) -> Option<(Vec<Placement>, u64)> {
    let table = &problem.table;
    let mut first = Some(mixed);
    let mut fitted: BTreeMap<usize, Vec<Candidate>> = BTreeMap::new();
    loop {
        let spent = fitted.values().flatten().fold(0_u64, |sum, own| sum.saturating_add(own.spent));
        let left = budget.checked_sub(spent)?;
        let open: Vec<&Item> = items.iter().filter(|item| !fitted.contains_key(&item.shard)).collect();
        let mut mixed = match first.take() {
            Some(mixed) => mixed,
            None => by_shard(&open, mixture(problem, &open, left)?.1)?,
        };
        let exceeds = |shard: &usize| fitting(problem, table, shards, items, &mixed[shard], *shard).is_none();
        let Some(shard) = mixed.keys().copied().find(exceeds) else {
            mixed.append(&mut fitted);
            let value = mixed.values().flatten().fold(0_u64, |sum, own| sum.saturating_add(own.value));
            let mut found = shards.to_vec();
            for (shard, chosen) in mixed {
                found[shard] = fitting(problem, table, shards, items, &chosen, shard)?;
            }
            return Some((found, value));
        };
        // Reserve the minimum spending of the others.
        let others = open.iter().filter(|item| item.shard != shard);
        let needed = others.filter_map(|item| item.candidates.iter().map(|own| own.spent).min());
        let left = left.saturating_sub(needed.fold(0, u64::saturating_add));
        let own: Vec<&Item> = open.iter().copied().filter(|item| item.shard == shard).collect();
        let with = |budget: u64| {
            let chosen = by_shard(&own, mixture(problem, &own, budget)?.1)?.remove(&shard)?;
            fitting(problem, table, shards, items, &chosen, shard).map(|_| chosen)
        };
        let now = mixed[&shard].iter().fold(0_u64, |sum, own| sum.saturating_add(own.spent));
        let ends = |of: fn(u64, u64) -> u64| {
            let each = own.iter().filter_map(|item| item.candidates.iter().map(|own| own.spent).reduce(of));
            each.fold(0, u64::saturating_add)
        };
        // More loss needs less room. Fewer bytes and less time also do.
        let (mut fits, mut exceeds) = match problem.request.goals.least_loss {
            true => (ends(u64::min), now),
            false => (ends(u64::max).min(left), now),
        };
        let mut best = with(fits)?;
        for _ in 0..FITTING_STEPS {
            let middle = u64::midpoint(fits, exceeds);
            match with(middle) {
                Some(chosen) => (fits, best) = (middle, chosen),
                None => exceeds = middle,
            }
        }
        fitted.insert(shard, best);
    }
}

/// Returns the candidates of the chosen formats, by shard and in the order of the items.
fn by_shard(items: &[&Item], chosen: Vec<u32>) -> Option<BTreeMap<usize, Vec<Candidate>>> {
    let mut found: BTreeMap<usize, Vec<Candidate>> = BTreeMap::new();
    for (item, formats) in items.iter().zip(chosen) {
        let candidate = item.candidates.iter().find(|candidate| candidate.formats == formats)?;
        found.entry(item.shard).or_default().push(*candidate);
    }
    Some(found)
}

/// Returns a shard with the chosen formats of its items, or `None` if it is not allowed.
fn fitting(
    problem: &Problem<'_>,
    table: &CostTable<'_>,
    shards: &[Placement],
    items: &[Item],
    chosen: &[Candidate],
    shard: usize,
) -> Option<Placement> {
    let mut own = shards[shard].clone();
    for (item, candidate) in items.iter().filter(|item| item.shard == shard).zip(chosen) {
        own.segments[item.segment].formats[item.unit] = candidate.formats;
    }
    recounted(problem, table, &own)
}

/// Joins adjacent shards if that does not change a format. The search cuts where two of its offered
/// assignments meet, because losses count more than cuts.
fn merged(problem: &Problem<'_>, table: &CostTable<'_>, shards: &[Placement]) -> Vec<Placement> {
    let mut found: Vec<Placement> = Vec::with_capacity(shards.len());
    for shard in shards {
        let both = found.last().and_then(|last| both(problem, last, shard));
        match both.and_then(|both| recounted(problem, table, &both)) {
            Some(both) => {
                found.pop();
                found.push(both);
            }
            _ => found.push(shard.clone()),
        }
    }
    if holds(problem, &found) && !over_target_totals(problem, &found) { found } else { shards.to_vec() }
}

/// Joins two adjacent shards, if they may be joined. The cost is still that of the first one.
fn both(problem: &Problem<'_>, last: &Placement, next: &Placement) -> Option<Placement> {
    let class = |shard: &Placement| shard.formats().next();
    let alike = last.target == next.target && is_same_class(problem.request, class(last)?, class(next)?);
    let (end, begin) = (last.segments.last()?, next.segments.first()?);
    let continues = end.component == begin.component && end.end == begin.first && end.end > 0;
    if !alike || !(continues || problem.settings.join && end.component < begin.component) {
        return None;
    }
    let mut segments = last.segments.clone();
    let mut more = next.segments.clone();
    if continues {
        let rest = more.remove(0);
        let own = segments.last_mut()?;
        own.end = rest.end;
        own.formats.extend(rest.formats);
    }
    segments.extend(more);
    Some(Placement { segments, softcap: last.softcap.or(next.softcap), ..last.clone() })
}

/// Returns the amount that goals for bytes, or for the time of a token, leave in addition to the
/// current shards.
fn spendable(problem: &Problem<'_>, solution: &Solution, trade: Trade) -> u64 {
    let goals = &problem.goals;
    let left = |goal: Option<u64>, used: u64| goal.map_or(u64::MAX, |goal| goal.saturating_sub(used));
    let bytes = |goal: Option<u64>, of: fn(&RangeCost) -> u64| {
        left(goal, solution.shards.iter().fold(0_u64, |sum, shard| sum.saturating_add(of(&shard.cost))))
    };
    match trade {
        Trade::TimeForLoss => {
            let times = problem.times(solution.shards.iter().map(|shard| (shard.target, &shard.cost)));
            left(goals.token, times.token.bounded(problem.relaxed.stage))
        }
        _ => bytes(goals.size, |cost| cost.artefact_bytes).min(bytes(goals.memory, RangeCost::context_bytes)),
    }
}

/// Returns whether shards meet the goals for bytes and times.
fn holds(problem: &Problem<'_>, shards: &[Placement]) -> bool {
    let goals = &problem.goals;
    let within = |goal: Option<u64>, of: fn(&RangeCost) -> u64| {
        let used = shards.iter().fold(0_u64, |sum, shard| sum.saturating_add(of(&shard.cost)));
        goal.is_none_or(|goal| used <= goal)
    };
    let times = || problem.times(shards.iter().map(|shard| (shard.target, &shard.cost)));
    within(goals.memory, RangeCost::context_bytes)
        && within(goals.size, |cost| cost.artefact_bytes)
        && (!goals.bounds_times() || times().keep(goals, problem.relaxed.stage))
}

/// Returns a shard with its cost computed again, or `None` if it is illegal, forbidden, or exceeds
/// a limit.
fn recounted(problem: &Problem<'_>, table: &CostTable<'_>, shard: &Placement) -> Option<Placement> {
    let cost = cost_of(problem, table, shard)?;
    let bounds = &problem.limits[shard.target as usize];
    let shard = Placement { cost, ..shard.clone() };
    let fits =
        bounds.exceeded(&shard.cost).is_none() && !problem.settings.forbidden.contains(&shard.forbidden());
    fits.then_some(shard)
}

/// Returns whether the shards of a target together exceed its memory limit.
fn over_target_totals(problem: &Problem<'_>, shards: &[Placement]) -> bool {
    problem.limits.iter().zip(0_u32..).any(|(bounds, target)| {
        let own = shards.iter().filter(|shard| shard.target == target);
        let bytes = own.fold(0_u64, |sum, shard| sum.saturating_add(shard.cost.context_bytes()));
        bounds.memory_bytes.is_some_and(|limit| bytes > limit.value)
    })
}

/// Returns the least value of the relaxed problem, in which a layer may be partly in one format and
/// partly in another. This is a lower bound for every mixture. Returns `None` if even the least
/// spending exceeds the budget.
fn relaxed(items: &[&Item], budget: u64) -> Option<u64> {
    let hulls: Vec<Vec<Candidate>> = items.iter().map(|item| hull(&item.candidates)).collect();
    let (spent, value, next) = along(&hulls, budget)?;
    Some(next.map_or(value, |(from, to)| {
        let (more, saved) = (to.spent - from.spent, from.value - to.value);
        let part = u128::from(saved) * u128::from(budget - spent) / u128::from(more.max(1));
        // Rounded so that the bound does not exceed the optimum.
        value.saturating_sub(u64::try_from(part).unwrap_or(u64::MAX).saturating_add(1))
    }))
}

/// Marginal value of spending at a fully used budget in the relaxed problem, 0 if all units fit. At
/// this price, the cheapest candidates of all units are a lower bound for every mixture.
#[derive(Debug, Clone, Copy)]
pub(super) struct Price(u128);

impl Price {
    /// Number of binary fraction digits.
    const POINT: u32 = 32;

    /// Computes the price for a budget. Returns `None` if even the least spending exceeds it.
    pub(super) fn of<'a>(units: impl Iterator<Item = &'a [Candidate]>, budget: u64) -> Option<Self> {
        let hulls: Vec<Vec<Candidate>> = units.map(hull).collect();
        along(&hulls, budget).map(|(_, _, next)| Self::of_step(next))
    }

    fn of_step(step: Option<Exchange>) -> Self {
        let (saved, more) = step.map_or((0, 1), |(from, to)| (from.value - to.value, to.spent - from.spent));
        Self(Self::exactly(saved) / u128::from(more.max(1)))
    }

    /// Converts a value to the fixed-point representation of prices.
    pub(super) fn exactly(value: u64) -> u128 {
        u128::from(value) << Self::POINT
    }

    fn of_spending(self, spent: u64) -> u128 {
        self.0.saturating_mul(u128::from(spent))
    }

    /// Returns the least sum of value and priced spending of a unit.
    pub(super) fn least(self, unit: &[Candidate]) -> u128 {
        let sum = |of: &Candidate| Self::exactly(of.value).saturating_add(self.of_spending(of.spent));
        unit.iter().map(sum).min().unwrap_or(0)
    }

    /// Returns a lower bound on the value of units with `left` to spend. `together` is the sum of
    /// their [least](Price::least).
    pub(super) fn bound(self, together: u128, left: u64) -> u64 {
        let value = together.saturating_sub(self.of_spending(left)) >> Self::POINT;
        u64::try_from(value).unwrap_or(u64::MAX)
    }
}

/// A step along a hull: the candidate before and after.
type Exchange = (Candidate, Candidate);

/// Makes the steps along all hulls within a budget. Returns the spending, the value, and the first
/// step that exceeds the budget.
fn along(hulls: &[Vec<Candidate>], budget: u64) -> Option<(u64, u64, Option<Exchange>)> {
    let mut spent = hulls.iter().fold(0_u64, |sum, hull| sum.saturating_add(hull[0].spent));
    let mut value = hulls.iter().fold(0_u64, |sum, hull| sum.saturating_add(hull[0].value));
    if spent > budget {
        return None;
    }
    for (_, from, to) in steps(hulls) {
        let more = to.spent - from.spent;
        if spent.saturating_add(more) > budget {
            return Some((spent, value, Some((from, to))));
        }
        spent += more;
        value = value.saturating_sub(from.value - to.value);
    }
    Some((spent, value, None))
}

/// Returns the mixture after every step along the hulls that still fits.
fn filled(hulls: &[Vec<Candidate>], budget: u64) -> Vec<Candidate> {
    let mut taken: Vec<Candidate> = hulls.iter().map(|hull| hull[0]).collect();
    let mut spent = taken.iter().fold(0_u64, |sum, candidate| sum.saturating_add(candidate.spent));
    for (unit, from, to) in steps(hulls) {
        let more = to.spent - from.spent;
        if taken[unit] == from && spent.saturating_add(more) <= budget {
            spent += more;
            taken[unit] = to;
        }
    }
    taken
}

/// A partial mixture: its spending and value, the index of the label before it, and the last
/// candidate.
#[derive(Debug, Clone, Copy)]
struct Label {
    spent: u64,
    value: u64,
    /// Excess over the relaxed optimum, at its price.
    excess: u64,
    before: u32,
    formats: u32,
}

/// Merges two Pareto fronts, both by increasing spending and decreasing value. Of equal labels the
/// first one is kept.
fn front(own: Vec<Label>, more: impl Iterator<Item = Label>) -> Vec<Label> {
    let mut front: Vec<Label> = Vec::with_capacity(2 * own.len());
    let mut keep = |label: Label| {
        if front.last().is_none_or(|last| label.value < last.value) {
            front.push(label);
        }
    };
    let mut own = own.into_iter().peekable();
    for label in more {
        while let Some(before) = own.next_if(|own| (own.spent, own.value) <= (label.spent, label.value)) {
            keep(before);
        }
        keep(label);
    }
    own.for_each(keep);
    front
}

/// Returns the mixture after every step along the hulls that fits.
fn by_steps(_: &Problem<'_>, items: &[&Item], budget: u64) -> Option<Mixture> {
    let hulls: Vec<Vec<Candidate>> = items.iter().map(|item| hull(&item.candidates)).collect();
    along(&hulls, budget)?;
    let taken = filled(&hulls, budget);
    let value = taken.iter().fold(0_u64, |sum, candidate| sum.saturating_add(candidate.value));
    Some((value, taken.iter().map(|candidate| candidate.formats).collect(), false))
}

/// A function that finds the least value of items within a budget.
type Mixing = fn(&Problem<'_>, &[&Item], u64) -> Option<Mixture>;

/// Value, the tuple of each item, and whether this is proven to be the least value.
type Mixture = (u64, Vec<u32>, bool);

/// Finds the least value within the budget, the tuple of each item, and whether that is exact.
/// Builds the Pareto front of spending and value, item by item, without labels whose excess over
/// the relaxed optimum is larger than that of a known mixture. Keeps at most [`LABELS`] labels.
fn knapsack(problem: &Problem<'_>, items: &[&Item], budget: u64) -> Option<Mixture> {
    let hulls: Vec<Vec<Candidate>> = items.iter().map(|item| hull(&item.candidates)).collect();
    let (_, _, next) = along(&hulls, budget)?;
    let known = filled(&hulls, budget);
    let known_value = known.iter().fold(0_u64, |sum, candidate| sum.saturating_add(candidate.value));
    let price = Price::of_step(next);
    let least: Vec<u128> = items.iter().map(|item| price.least(&item.candidates)).collect();
    let optimum = least.iter().fold(0_u128, |sum, least| sum.saturating_add(*least));
    let most = Price::exactly(known_value).saturating_add(price.of_spending(budget)).saturating_sub(optimum);
    // An excess beyond 64 bits saturates, so no label is dropped by mistake.
    let narrow = |excess: u128| u64::try_from(excess).unwrap_or(u64::MAX);
    let most = narrow(most);

    // Minimum spending of the following items. A label that leaves less than that is useless.
    let frugal: Vec<u64> = items
        .iter()
        .map(|item| item.candidates.iter().map(|candidate| candidate.spent).min().unwrap_or(0))
        .collect();
    let mut rest = frugal.iter().fold(0_u64, |sum, spent| sum.saturating_add(*spent));
    let mut layers = vec![vec![Label { spent: 0, value: 0, excess: 0, before: 0, formats: 0 }]];
    let mut exact = true;
    for ((item, frugal), least) in items.iter().zip(&frugal).zip(&least) {
        rest = rest.saturating_sub(*frugal);
        let within = item.candidates.iter().filter_map(|candidate| {
            let excess = narrow(price.least(&[*candidate]).saturating_sub(*least));
            (excess <= most).then_some((*candidate, excess))
        });
        let labels = layers.last()?;
        problem.settings.budget.spend((labels.len() * item.candidates.len()) as u64 / LABELS_PER_COMPARISON);
        let mut next: Vec<Label> = Vec::new();
        for (candidate, excess) in within {
            let extended = labels.iter().zip(0_u32..).map(|(label, before)| Label {
                spent: label.spent.saturating_add(candidate.spent),
                value: label.value.saturating_add(candidate.value),
                excess: label.excess.saturating_add(excess),
                before,
                formats: candidate.formats,
            });
            let fits = |label: &Label| label.excess <= most && label.spent.saturating_add(rest) <= budget;
            next = front(next, extended.filter(fits));
        }
        if next.len() > LABELS {
            exact = false;
            let last = next.len() - 1;
            next = (0..LABELS).map(|place| next[place * last / (LABELS - 1)]).collect();
        }
        layers.push(next);
    }
    let better = layers.last()?.iter().enumerate().filter(|(_, label)| label.value <= known_value);
    let Some((mut at, best)) = better.min_by_key(|(_, label)| label.value) else {
        // Limiting the labels may have lost the known mixture.
        return Some((known_value, known.iter().map(|candidate| candidate.formats).collect(), false));
    };
    let value = best.value;
    let mut chosen = Vec::with_capacity(items.len());
    for labels in layers[1..].iter().rev() {
        chosen.push(labels[at].formats);
        at = labels[at].before as usize;
    }
    chosen.reverse();
    Some((value, chosen, exact))
}
