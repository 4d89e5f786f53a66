//! Lower bounds on the cost of the rest of a chain. A partial chain that cannot end better than a
//! known chain is not continued, which does not change the result.

use super::goals::GoalBounds;
use super::mix::{self, Candidate, Price, Trade};
use super::search::{Sums, Used};
use super::{Choice, Goal, Part, Problem};
use crate::table::RangeCost;

/// Lower bounds on the contribution of the units from each cut point to the end of the model.
pub(super) struct Remainder {
    /// Sums by part and unit, in the order of the objective.
    sums: Vec<Vec<Sums>>,
    traded: Option<Traded>,
}

/// Upper bound on the distance of a solution from the best one: every chain within the limits and
/// goals has at least `least` of the minimised quantity, and this one has `value`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The minimised quantity.
    pub goal: Goal,
    /// Amount of the solution, in nanoseconds, in millionths of loss, or as a number.
    pub value: u64,
    /// Lower bound on the amount of every solution. It may not be reachable.
    pub least: u64,
}

impl Gap {
    /// Reduces the gap after the solution was improved by `saved`. Returns `None` if it is now
    /// optimal.
    pub(super) fn less(self, saved: u64) -> Option<Self> {
        let value = self.value.saturating_sub(saved);
        (value > self.least).then_some(Self { value, ..self })
    }
}

/// A bound by Lagrangian relaxation on the trade of a goal: spending has a price, and every unit
/// has the cheapest formats at that price.
struct Traded {
    trade: Trade,
    goals: GoalBounds,
    price: Price,
    /// Position of the minimised quantity in the objective.
    place: usize,
    /// Sums of value and priced spending, by part and unit.
    values: Vec<Vec<u128>>,
    /// Least spending, by part and unit, independent of the goals before it.
    spending: Vec<Vec<u64>>,
}

impl Remainder {
    pub(super) fn new(problem: &Problem<'_>) -> Self {
        let one = problem.one_shard();
        let least = problem.parts.iter().map(|part| {
            let units = (0..part.units).map(|unit| least_sums(problem, part, unit, &one));
            units.collect::<Vec<Sums>>()
        });
        let least: Vec<Vec<Sums>> = least.collect();
        let sums = suffixes(problem, &least, problem.least_shard(), |sum, more| {
            for (sum, more) in sum.iter_mut().zip(more) {
                *sum = sum.saturating_add(*more);
            }
        });
        Self { sums, traded: Traded::new(problem) }
    }

    /// Returns how far a chain with these sums may be from the best one: the first part of the
    /// objective in which it is not proven least. Excludes the savings required of shards, and for
    /// times the part `beside` the computation.
    pub(super) fn gap(&self, problem: &Problem<'_>, objective: &Sums, beside: u64) -> Option<Gap> {
        let least = &self.sums[0][0];
        let place = (0..objective.len()).find(|place| objective[*place] > least[*place])?;
        let goal = Goal::ALL.into_iter().find(|goal| problem.place_of(*goal) == place)?;
        let (boundary, beside) = match goal {
            Goal::Time => (problem.boundary, beside),
            Goal::Loss => (problem.loss_of_a_shard(), 0),
            _ => (0, 0),
        };
        let shards = objective[problem.place_of(Goal::Shards)];
        let value = objective[place].saturating_sub(boundary.saturating_mul(shards)).saturating_sub(beside);
        // A mixture may have formats that no choice of the search has.
        let least = match Trade::of(problem.request) {
            Some(trade) if trade.goal() == goal => mix::least(problem, trade).unwrap_or(0),
            Some(_) => 0,
            None if matches!(goal, Goal::Time | Goal::Loss) => {
                least[place].saturating_sub(problem.least_shard()[place])
            }
            None => least[place],
        };
        (value > least).then_some(Gap { goal, value, least })
    }

    /// Returns a lower bound on the sums of a chain that has these sums before `unit` of a part.
    pub(super) fn least(&self, sums: &Sums, part: usize, unit: usize) -> Sums {
        let mut least = *sums;
        for (sum, rest) in least.iter_mut().zip(&self.sums[part][unit]) {
            *sum = sum.saturating_add(*rest);
        }
        least
    }

    /// Returns whether no continuation of a chain with the lower bound `least` is as good as
    /// `known` within the rest of the goal, or none meets the goal.
    pub(super) fn excludes(
        &self,
        known: &Sums,
        (sums, least): (&Sums, &Sums),
        used: &Used,
        part: usize,
        unit: usize,
    ) -> bool {
        let Some(traded) = &self.traded else { return false };
        let left = traded.trade.left(&traded.goals, used);
        if traded.spending[part][unit] > left {
            return true;
        }
        // Only applies if the parts before it are equal.
        if least[..traded.place] != known[..traded.place] {
            return false;
        }
        let value = traded.price.bound(traded.values[part][unit], left);
        sums[traded.place].saturating_add(value) > known[traded.place]
    }
}

impl Traded {
    fn new(problem: &Problem<'_>) -> Option<Self> {
        let (request, relaxed) = (problem.request, &problem.relaxed);
        let trade = Trade::of(request)?;
        let is_bounded = match trade {
            Trade::LossForTime => !relaxed.quality,
            Trade::BytesForLoss => !relaxed.size && !relaxed.memory,
            Trade::TimeForLoss => !relaxed.times && problem.goals.token.is_some(),
        };
        let place = problem.place_of(trade.goal());
        let units: Vec<(&Part, usize)> =
            problem.parts.iter().flat_map(|part| (0..part.units).map(move |unit| (part, unit))).collect();
        let all: Vec<Vec<(Sums, Candidate)>> =
            units.iter().map(|(part, unit)| candidates(problem, part, *unit, trade, place)).collect();
        if !is_bounded || all.iter().any(Vec::is_empty) {
            return None;
        }
        // Keep only candidates that are best in all parts before it.
        let best: Vec<Vec<Candidate>> = all
            .iter()
            .map(|unit| {
                let least = unit.iter().map(|(sums, _)| &sums[..place]).min();
                let best = unit.iter().filter(|(sums, _)| Some(&sums[..place]) == least);
                best.map(|(_, candidate)| *candidate).collect()
            })
            .collect();
        // If the goal cannot be met this way, there is no bound.
        let price = Price::of(best.iter().map(Vec::as_slice), trade.bound(&problem.goals))?;
        let least = best.iter().map(|unit| price.least(unit));
        let least = by_part(problem, least);
        let spending = all.iter().map(|unit| unit.iter().map(|(_, of)| of.spent).min().unwrap_or(0));
        let spending = by_part(problem, spending);
        let one = Price::exactly(problem.least_shard()[place]);
        let values = suffixes(problem, &least, one, |sum, more| *sum = sum.saturating_add(*more));
        let spending = suffixes(problem, &spending, 0, |sum, more| *sum = sum.saturating_add(*more));
        Some(Self { trade, goals: problem.goals, price, place, values, spending })
    }
}

/// Returns the least contribution of one unit to a shard with other units. The sum of the minima is
/// the minimum of the sums, because addition preserves the order of objectives.
fn least_sums(problem: &Problem<'_>, part: &Part, unit: usize, one: &Sums) -> Sums {
    let costs = part.choices.iter().filter_map(|choice| Some((choice, allowed_cost(problem, choice, unit)?)));
    let of_unit = |(choice, cost): (&Choice, RangeCost)| {
        let mut own = problem.objective(choice, &cost, (unit, unit + 1));
        own.iter_mut().zip(one).for_each(|(own, one)| *own = own.saturating_sub(*one));
        own
    };
    costs.map(of_unit).min().unwrap_or_default()
}

/// Returns the cost that a unit adds to a shard, or `None` if its target does not support it or its
/// loss is unknown.
fn allowed_cost(problem: &Problem<'_>, choice: &Choice, unit: usize) -> Option<RangeCost> {
    let is_known = problem.relaxed.quality || choice.unmeasured[unit + 1] == choice.unmeasured[unit];
    choice.cost_of_unit(unit).filter(|_| is_known)
}

/// Returns spending and value of a unit for each choice of its part, with its contribution to the
/// objective.
fn candidates(
    problem: &Problem<'_>,
    part: &Part,
    unit: usize,
    trade: Trade,
    place: usize,
) -> Vec<(Sums, Candidate)> {
    let one = problem.one_shard()[place];
    let of = |choice: &Choice| {
        let cost = allowed_cost(problem, choice, unit)?;
        let sums = problem.objective(choice, &cost, (unit, unit + 1));
        let spent = match trade {
            Trade::LossForTime => choice.loss[unit + 1].saturating_sub(choice.loss[unit]),
            Trade::BytesForLoss => cost.artefact_bytes,
            Trade::TimeForLoss => problem.relaxed.stage.of(cost.time).saturating_mul(1000),
        };
        let value = sums[place].saturating_sub(one);
        Some((sums, Candidate { formats: choice.formats[unit], spent, value }))
    };
    part.choices.iter().filter_map(of).collect()
}

/// Groups values of all units by part.
fn by_part<T>(problem: &Problem<'_>, units: impl Iterator<Item = T>) -> Vec<Vec<T>> {
    let mut units = units;
    problem.parts.iter().map(|part| units.by_ref().take(part.units).collect()).collect()
}

/// Returns sums of the minima of all units up to the end of the model. The rest of a part needs a
/// separate shard, which costs `one` more. A later part may join the one before.
fn suffixes<T: Clone + Default>(
    problem: &Problem<'_>,
    least: &[Vec<T>],
    one: T,
    add: impl Fn(&mut T, &T),
) -> Vec<Vec<T>> {
    let mut later = T::default();
    let mut suffixes = Vec::with_capacity(least.len());
    for part in least.iter().rev() {
        let mut own = vec![later.clone()];
        for unit in part.iter().rev() {
            add(&mut later, unit);
            let mut with_shard = later.clone();
            add(&mut with_shard, &one);
            own.push(with_shard);
        }
        if !problem.settings.join {
            add(&mut later, &one);
        }
        own.reverse();
        suffixes.push(own);
    }
    suffixes.reverse();
    suffixes
}
