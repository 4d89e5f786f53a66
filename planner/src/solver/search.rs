//! Search by dynamic programming.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::goals::{GoalBounds, HandOff};
use super::mix::{self, Trade};
use super::remainder::{Gap, Remainder};
use super::{Choice, Effort, Goal, LABELS_PER_CUT, Part, Placement, Problem, Solution};
use crate::table::{CostTable, Interval, Prefix, RangeCost, call_of, runtime_of, units_of};
use crate::{Segment, SoftcapPlace};

/// Maximum numbers of labels per cut point, tried in this order. A smaller number is tried if the
/// search with more exceeds its share of the budget. The last and narrowest search may exceed it
/// if no chain is known.
const BEAMS: [usize; 3] = [LABELS_PER_CUT, 32, 4];

/// Cost of extending a label by a shard, in comparisons.
const EXTENSION: u64 = 8;

/// Smallest relevant difference of times, as one in `NOISE` of the whole, because estimates are not
/// more precise. Every shard must save as much.
pub(super) const NOISE: u64 = 100;

/// Nanoseconds that a shard may save only because its share of the first token and its gain are
/// rounded down.
pub(super) const ROUNDED: u64 = 2;

/// Resources used by a partial chain. Only resources that the request limits are counted. The
/// others stay zero, so that labels without a relevant difference stay comparable.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Used {
    memory: u64,
    size: u64,
    loss: u64,
    /// Nanoseconds of a token, and from a prompt to the first token, that must keep the goals.
    token: u64,
    first_token: u64,
    /// Shards of the component that is being cut, if they are limited.
    shards: u32,
    /// (shards, bytes) per target. Empty if no target limits them.
    targets: Vec<(u64, u64)>,
}

impl Trade {
    /// Returns the rest of the goal's bound after a partial chain.
    pub(super) fn left(self, goals: &GoalBounds, used: &Used) -> u64 {
        let left = |goal: Option<u64>, used: u64| goal.map_or(u64::MAX, |goal| goal.saturating_sub(used));
        match self {
            Trade::LossForTime => left(goals.quality, used.loss),
            Trade::BytesForLoss => left(goals.size, used.size).min(left(goals.memory, used.memory)),
            Trade::TimeForLoss => left(goals.token, used.token),
        }
    }
}

impl Used {
    /// Returns whether this is no more than another use, even with `moved` added.
    fn at_most(&self, other: &Used, moved: HandOff) -> bool {
        self.memory <= other.memory
            && self.size <= other.size
            && self.loss <= other.loss
            && self.token.saturating_add(moved.token) <= other.token
            && self.first_token.saturating_add(moved.first_token) <= other.first_token
            && self.shards <= other.shards
            && self
                .targets
                .iter()
                .zip(&other.targets)
                .all(|(left, right)| left.0 <= right.0 && left.1 <= right.1)
    }
}

/// The additive part of the objective: rank of targets, loss, nanoseconds, shards, rank of formats.
pub(super) type Sums = [u64; Goal::ALL.len()];

/// A partial chain.
#[derive(Debug, Clone)]
struct Label {
    sums: Sums,
    largest: u64,
    squares: u128,
    used: Used,
    /// Homes of donors with readers in later layers: (layer, home), sorted.
    homes: Vec<(u32, u32)>,
    /// Target of the last shard. `None` for an empty chain.
    target: Option<u32>,
    /// The last shard, if it ends with a component that is not the last one.
    open: Option<Box<Open>>,
    /// Index of the previous label, and the last shard.
    last: Option<(usize, Step)>,
}

/// Additional cost of a shard that follows one on another target.
struct Moving {
    sums: Sums,
    used: HandOff,
}

/// A shard that the next component may join.
#[derive(Debug, Clone)]
struct Open {
    target: u32,
    /// Formats of activations and states.
    values: (u32, u32),
    cost: RangeCost,
    /// Nanoseconds of the transfer of a row to it, if the first token is bounded.
    moved: u64,
    /// Amounts that limits may bound.
    at_stake: [u64; 5],
    /// Indices of the refused shards that it would become with certain components.
    at_risk: Vec<usize>,
    /// Whether the current shard is forbidden, so that a component must join it.
    must_be_joined: bool,
}

#[derive(Debug, Clone, Copy)]
struct Step {
    part: usize,
    first: usize,
    end: usize,
    choice: usize,
    /// Whether it joins the previous shard.
    joins: bool,
}

impl Label {
    /// Returns whether this label is at least as good in every respect, now and after any common
    /// continuation.
    ///
    /// `joining` is an upper bound on the saving of a component that joins the last shard. It is
    /// `None` if a component that can join a shard may not be able to form a separate one.
    fn dominates(&self, other: &Label, joining: Option<&Sums>, moving: &Moving) -> bool {
        if self.sums > other.sums {
            return false;
        }
        let mut theirs = other.sums;
        let mut less = |saved: &Sums| {
            for (sum, saved) in theirs.iter_mut().zip(saved) {
                *sum = sum.saturating_sub(*saved);
            }
        };
        if !self.is_as_open(other) {
            // Better even if a component joins the other one but not this one.
            let Some(joining) = joining else { return false };
            less(joining);
        }
        let mut moved = HandOff::default();
        if self.target != other.target {
            less(&moving.sums);
            moved = moving.used;
        }
        let better = match self.sums.cmp(&theirs) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => self.largest <= other.largest && self.squares <= other.squares,
            std::cmp::Ordering::Greater => false,
        };
        better && self.used.at_most(&other.used, moved) && self.homes == other.homes
    }

    /// Returns whether every component that can join the last shard of another label can also join
    /// this one's.
    fn is_as_open(&self, other: &Label) -> bool {
        match (&self.open, &other.open) {
            (_, None) => self.open.as_ref().is_none_or(|open| !open.must_be_joined),
            (None, Some(_)) => false,
            (Some(own), Some(theirs)) => {
                (own.target, own.values) == (theirs.target, theirs.values)
                    // A joining component then saves as many calls.
                    && own.cost.prefill_runs >= theirs.cost.prefill_runs
                    && own.moved <= theirs.moved
                    && own.at_risk.iter().all(|refused| theirs.at_risk.contains(refused))
                    && own.at_stake.iter().zip(&theirs.at_stake).all(|(own, theirs)| own <= theirs)
                    && own.must_be_joined <= theirs.must_be_joined
            }
        }
    }

    fn objective(&self) -> (Sums, u64, u128) {
        (self.sums, self.largest, self.squares)
    }
}

/// The chain that the search found.
#[derive(Clone)]
pub(super) struct Found {
    steps: Vec<Step>,
    objective: Sums,
    exact: bool,
    gap: Option<Gap>,
}

/// Finds the best chain. For the simple effort, finds the first legal one.
pub(super) fn search(problem: &mut Problem<'_>) -> Option<Found> {
    if problem.is_out_of_reach() {
        return None;
    }
    if problem.settings.effort == Effort::Simple {
        return narrowing(problem, &[1], None);
    }
    let known = mixed(problem, None);
    // If a range of units must move, other ranges are tried instead of more labels.
    let is_brief = problem.relaxed.stage.moved.is_some();
    if known.is_none() && is_brief {
        return None;
    }
    let Some(mut known) = known else {
        let found = narrowing(problem, &BEAMS, None)?;
        let gap = Remainder::new(problem).gap(problem, &found.objective, found.beside(problem));
        return Some(Found { gap, ..found });
    };
    // If targets are compared by time, a single target has more mixtures than several.
    let used: BTreeSet<u32> =
        known.steps.iter().map(|step| problem.parts[step.part].choices[step.choice].target).collect();
    if used.len() > 1 && Trade::of(problem.request).is_some() {
        for target in used {
            if let Some(other) =
                mixed(problem, Some(target)).filter(|other| other.objective < known.objective)
            {
                known = other;
            }
        }
    }
    let bounds = (Remainder::new(problem), known.objective);
    // A search with few labels may lose the known chain, or exceed its share.
    let beams = if is_brief || problem.settings.budget.is_spent() { &[][..] } else { &BEAMS };
    let mut found = narrowing(problem, beams, Some(&bounds)).unwrap_or(Found { exact: false, ..known });
    found.gap = bounds.0.gap(problem, &found.objective, found.beside(problem));
    Some(found)
}

/// Finds a chain of long shards, on one target if `only` is set. With a goal for losses, improves
/// its formats and offers them to later searches.
fn mixed(problem: &mut Problem<'_>, only: Option<u32>) -> Option<Found> {
    let mut beams = BEAMS[1..].iter();
    let (beam, found) = beams.find_map(|&beam| Some((beam, longest(problem, beam, only)?)))?;
    let mut mixed = found.clone().into_solution(problem);
    if mix::sketch(problem, &mut mixed).is_none() {
        return Some(found);
    }
    problem.offer(&mixed.shards);
    let other = longest(problem, beam, only).filter(|other| other.objective < found.objective);
    Some(other.unwrap_or(found))
}

/// Returns whether a chain exists. Needs fewer labels than finding the optimum.
pub(super) fn exists(problem: &Problem<'_>) -> bool {
    if problem.is_out_of_reach() {
        return false;
    }
    // One label, plus the labels with the least use, nearly always lead to a chain.
    if longest(problem, 1, None).is_some() {
        return true;
    }
    let any = (Remainder::new(problem), Sums::from([u64::MAX; Goal::ALL.len()]));
    narrowing(problem, &[1], Some(&any)).is_some()
        || (problem.settings.effort == Effort::Thorough
            && !problem.settings.budget.is_spent()
            && narrowing(problem, &BEAMS[1..], Some(&any)).is_some())
}

/// Finds the best chain of shards that are each as long as their formats allow, on one target if
/// `only` is set. Returns `None` if that exceeds its share of the budget. A narrow search, which
/// needs few comparisons, may exceed it.
fn longest(problem: &Problem<'_>, beam: usize, only: Option<u32>) -> Option<Found> {
    let mut search = Search { longest: true, only, ..Search::new(problem, beam, None) };
    if beam < BEAMS[1] {
        search.most = u64::MAX;
    }
    search.run().ok().flatten()
}

/// Returns the result of the first search within its share, with these numbers of labels.
fn narrowing(problem: &Problem<'_>, beams: &[usize], known: Option<&(Remainder, Sums)>) -> Option<Found> {
    for (position, &beam) in beams.iter().enumerate() {
        let mut search = Search::new(problem, beam, known);
        if known.is_none() && position + 1 == beams.len() {
            search.most = search.share.saturating_add(problem.settings.budget.extra());
        }
        if let Ok(found) = search.run() {
            return found;
        }
    }
    None
}

/// Reads one quantity of a label's use.
type Quantity = fn(&Used) -> u64;

/// Returns the quantities that goals and preferences limit.
fn bounded(problem: &Problem<'_>) -> Vec<Quantity> {
    let goals = &problem.goals;
    let all: [(bool, Quantity); 6] = [
        (goals.quality.is_some(), |used| used.loss),
        (goals.memory.is_some(), |used| used.memory),
        (goals.size.is_some(), |used| used.size),
        (goals.token.is_some(), |used| used.token),
        (goals.first_token.is_some(), |used| used.first_token),
        (!problem.settings.most_shards.is_empty(), |used| used.shards.into()),
    ];
    all.into_iter().filter(|(is_bounded, _)| *is_bounded).map(|(_, used)| used).collect()
}

/// The search exceeded its share of the budget.
struct Exceeded;

struct Search<'search, 'request> {
    problem: &'search Problem<'request>,
    beam: usize,
    /// Comparisons so far, their share of the budget, and their maximum.
    compared: u64,
    share: u64,
    most: u64,
    /// Upper bound on the saving by joining a shard.
    joining: Sums,
    moving: Moving,
    /// Whether goals for times limit the overhead of shards.
    shards_are_bounded: bool,
    /// The quantities that the request limits. For each, the label with the least use is kept.
    bounded: Vec<Quantity>,
    /// The objective of a known chain, and lower bounds for the rest of others.
    known: Option<&'search (Remainder, Sums)>,
    /// Whether only the longest shards of each choice are tried, which finds a chain quickly.
    longest: bool,
    /// The only target to try.
    only: Option<u32>,
    /// Labels that other labels extend.
    arena: Vec<Label>,
    /// Contribution of a separate shard to the objective in addition to its cost.
    one: Sums,
    exact: bool,
}

/// Returns whether the sum of two exceeds a third, compared by importance.
fn exceeds(own: &Sums, rest: &Sums, known: &Sums) -> bool {
    let places = own.iter().zip(rest).zip(known);
    let mut orders = places.map(|((own, rest), known)| own.saturating_add(*rest).cmp(known));
    orders.find(|order| order.is_ne()).is_some_and(std::cmp::Ordering::is_gt)
}

/// Returns whether goals for times limit the overhead of shards.
fn shards_are_bounded(problem: &Problem<'_>) -> bool {
    let has_call = |choice: &Choice| choice.call != Interval::default();
    problem.goals.bounds_times()
        && (problem.request.boundary_nanoseconds > 0
            || problem.parts.iter().flat_map(|part| &part.choices).any(has_call))
}

/// Returns the additional cost of a shard that follows one on another target.
fn moving(problem: &Problem<'_>) -> Moving {
    let transfer = problem.request.transfer_nanoseconds;
    let bounded = |goal: Option<u64>, moved: u64| goal.map_or(0, |_| moved);
    let rows = problem.prompt_rows.saturating_add(1);
    let used = HandOff {
        token: bounded(problem.goals.token, transfer),
        first_token: bounded(problem.goals.first_token, transfer.saturating_mul(rows)),
    };
    Moving { sums: problem.in_time(transfer), used }
}

/// Requirements and results of a range of units, independent of the units before it.
struct Range {
    step: Step,
    cost: RangeCost,
    /// Contribution to the objective as a separate shard.
    sums: Sums,
}

impl<'search, 'request> Search<'search, 'request> {
    fn new(
        problem: &'search Problem<'request>,
        beam: usize,
        known: Option<&'search (Remainder, Sums)>,
    ) -> Self {
        let budget = &problem.settings.budget;
        // A problem in which certain units move is searched by long shards alone.
        let share = if problem.relaxed.stage.moved.is_some() { budget.share_of(2) } else { budget.share() };
        Search {
            problem,
            beam,
            compared: 0,
            share,
            most: share,
            joining: problem.most_saved(),
            moving: moving(problem),
            shards_are_bounded: shards_are_bounded(problem),
            bounded: bounded(problem),
            known,
            longest: false,
            only: None,
            arena: Vec::new(),
            one: problem.one_shard(),
            exact: true,
        }
    }

    fn run(&mut self) -> Result<Option<Found>, Exceeded> {
        let found = self.chain();
        // A search beyond its share does not end the others.
        let budget = &self.problem.settings.budget;
        budget.spend(self.compared.min(self.share));
        budget.spend_extra(self.compared.saturating_sub(self.share));
        found
    }

    /// Counts comparisons.
    fn compare(&mut self, comparisons: u64) -> Result<(), Exceeded> {
        self.compared = self.compared.saturating_add(comparisons);
        if self.compared > self.most { Err(Exceeded) } else { Ok(()) }
    }

    fn chain(&mut self) -> Result<Option<Found>, Exceeded> {
        let problem = self.problem;
        let bounded =
            problem.limits.iter().any(|limits| limits.shards.is_some() || limits.memory_bytes.is_some());
        let targets = if bounded { vec![(0, 0); problem.request.targets.len()] } else { Vec::new() };
        let start = Label {
            sums: Sums::default(),
            largest: 0,
            squares: 0,
            used: Used { targets, ..Used::default() },
            homes: Vec::new(),
            target: None,
            open: None,
            last: None,
        };
        let mut frontier = vec![start];
        for (index, part) in problem.parts.iter().enumerate() {
            let mut cuts: Vec<Vec<Label>> = vec![Vec::new(); part.units + 1];
            cuts[0] = frontier;
            for first in 0..part.units {
                self.prune(&mut cuts[first]);
                let from = self.arena.len();
                self.arena.append(&mut cuts[first]);
                if from == self.arena.len() {
                    continue;
                }
                for (position, choice) in part.choices.iter().enumerate() {
                    if self.only.is_some_and(|only| only != choice.target) {
                        continue;
                    }
                    for end in self.ends(part, choice, first) {
                        // Costs grow with the range, so a longer range cannot be legal either.
                        let Some(cost) = legal_cost(problem, choice, first, end) else { break };
                        let step = Step { part: index, first, end, choice: position, joins: false };
                        let range = Range::new(problem, part, step, cost);
                        self.compare(EXTENSION * (self.arena.len() - from) as u64)?;
                        // A component may join the previous shard only with its first unit.
                        let ways: &[bool] = if first == 0 && index > 0 { &[false, true] } else { &[false] };
                        // Lower bound for the rest of a chain that ends here.
                        let rest = self
                            .known
                            .map(|(remainder, known)| (remainder.least(&range.sums, index, end), known));
                        for label in from..self.arena.len() {
                            let excluded = |(rest, known): &(Sums, &Sums)| {
                                ways.len() == 1 && exceeds(&self.arena[label].sums, rest, known)
                            };
                            // Most chains are excluded here, before other amounts are computed.
                            if rest.as_ref().is_some_and(excluded) {
                                continue;
                            }
                            for &joins in ways {
                                if let Some(next) = self.extend(label, part, choice, &range, joins) {
                                    self.insert(&mut cuts[end], next)?;
                                }
                            }
                        }
                    }
                }
            }
            frontier = cuts.pop().unwrap_or_default();
            self.prune(&mut frontier);
            for label in &mut frontier {
                label.homes.clear();
                label.used.shards = 0;
            }
        }
        // Of equals the first one.
        let Some(best) = frontier.into_iter().min_by_key(Label::objective) else { return Ok(None) };
        let mut steps = Vec::new();
        let mut current = best.last;
        while let Some((before, step)) = current {
            steps.push(step);
            current = self.arena[before].last;
        }
        steps.reverse();
        Ok(Some(Found { steps, objective: best.sums, exact: self.exact, gap: None }))
    }

    /// Returns the possible ends of a shard of a choice that begins at a unit.
    fn ends(&self, part: &Part, choice: &Choice, first: usize) -> std::ops::RangeInclusive<usize> {
        if !part.layered {
            return part.units..=part.units;
        }
        if !self.longest {
            return first + 1..=part.units;
        }
        // Costs grow with the range.
        let (mut legal, mut illegal) = (first, part.units + 1);
        while illegal - legal > 1 {
            let end = usize::midpoint(legal, illegal);
            match legal_cost(self.problem, choice, first, end) {
                Some(_) => legal = end,
                None => illegal = end,
            }
        }
        legal.max(first + 1)..=legal
    }

    /// Adds a label unless an existing one is at least as good, and drops labels that it dominates.
    /// Of two equals the earlier one stays, so ties resolve to the earliest choice.
    fn insert(&mut self, frontier: &mut Vec<Label>, label: Label) -> Result<(), Exceeded> {
        self.compare(1 + frontier.len() as u64)?;
        // With limits on the number of shards or on their overhead, or with refused shards, it
        // matters whether a component joins.
        let alike = !self.problem.forbids() && label.used.targets.is_empty() && !self.shards_are_bounded;
        let joining = alike.then_some(&self.joining);
        if frontier.iter().any(|other| other.dominates(&label, joining, &self.moving)) {
            return Ok(());
        }
        frontier.retain(|other| !label.dominates(other, joining, &self.moving));
        frontier.push(label);
        if frontier.len() > 2 * self.beam + self.bounded.len() {
            self.prune(frontier);
        }
        Ok(())
    }

    /// Keeps some labels of an overfull cut point: one half are the best, the other half are spread
    /// over the rest. Also keeps the labels with the least use, because goals may need them.
    fn prune(&mut self, frontier: &mut Vec<Label>) {
        if frontier.len() <= self.beam + self.bounded.len() {
            return;
        }
        self.exact = false;
        frontier.sort_by_key(Label::objective);
        let count = frontier.len();
        let best = self.beam.div_ceil(2);
        let mut keep = vec![false; count];
        keep[..best].fill(true);
        let spread = self.beam - best;
        for position in 1..=spread {
            keep[best - 1 + position * (count - best) / spread] = true;
        }
        for used in &self.bounded {
            if let Some(index) = (0..count).min_by_key(|&index| used(&frontier[index].used)) {
                keep[index] = true;
            }
        }
        let mut keep = keep.into_iter();
        frontier.retain(|_| keep.next().unwrap_or(false));
    }
}

impl Range {
    fn new(problem: &Problem<'_>, part: &Part, step: Step, cost: RangeCost) -> Self {
        let sums = problem.objective(&part.choices[step.choice], &cost, (step.first, step.end));
        Self { step, cost, sums }
    }

    /// Iterates over donors before the range.
    fn donors<'part>(&self, part: &'part Part) -> impl Iterator<Item = u32> + 'part {
        let Step { first, end, .. } = self.step;
        part.donors[first..end].iter().flatten().copied().filter(move |donor| (*donor as usize) < first)
    }

    /// Iterates over units that are read after the range.
    fn read_later<'part>(&self, part: &'part Part) -> impl Iterator<Item = u32> + 'part {
        let Step { first, end, .. } = self.step;
        let read_later = (first..end).filter(move |&unit| part.last_reader[unit] as usize > end);
        read_later.map(|unit| u32::try_from(unit).unwrap_or(u32::MAX))
    }
}

/// Returns the cost of a range if the target supports it within its limits.
fn legal_cost(problem: &Problem<'_>, choice: &Choice, first: usize, end: usize) -> Option<RangeCost> {
    if !problem.relaxed.quality && choice.unmeasured[end] > choice.unmeasured[first] {
        return None;
    }
    let cost = choice.cost(first, end)?;
    problem.limits[choice.target as usize].exceeded(&cost).is_none().then_some(cost)
}

impl Search<'_, '_> {
    /// Extends a label by a shard, or by a component that joins its last shard. Returns `None` if a
    /// goal, limit or refusal forbids it.
    fn extend(
        &self,
        index: usize,
        part: &Part,
        choice: &Choice,
        range: &Range,
        joins: bool,
    ) -> Option<Label> {
        let problem = self.problem;
        let label = &self.arena[index];
        let (step, cost) = (Step { joins, ..range.step }, &range.cost);
        let end = step.end;
        let open = label.open.as_deref();
        // Contribution of the range: a separate shard, or a part of the previous one.
        let (added, own) = match joins {
            false => (Cow::Borrowed(cost), range.sums),
            true => {
                let added = cost.joining(open?.cost.prefill_runs);
                let mut own = problem.objective(choice, &added, (step.first, end));
                own.iter_mut().zip(&self.one).for_each(|(sum, one)| *sum = sum.saturating_sub(*one));
                (Cow::Owned(added), own)
            }
        };
        let mut sums = label.sums;
        sums.iter_mut().zip(own).for_each(|(sum, own)| *sum = sum.saturating_add(own));
        let moved = match joins {
            false => label.target.map_or(0, |before| problem.transfer(before, choice.target)),
            true => open?.moved,
        };
        if moved > 0 && !joins {
            let moved = problem.in_time(moved);
            sums.iter_mut().zip(moved).for_each(|(sum, moved)| *sum = sum.saturating_add(moved));
        }
        let bound = self.known.map(|(remainder, known)| {
            let least = remainder.least(&sums, step.part, end);
            (remainder, known, least)
        });
        if bound.as_ref().is_some_and(|(_, known, least)| least > known) {
            return None;
        }
        let used = self.used(label, part, choice, (range, &added), (joins, moved))?;
        if let Some((remainder, known, least)) = &bound
            && remainder.excludes(known, (&sums, least), &used, step.part, end)
        {
            return None;
        }
        let joined = match joins {
            false if open.is_some_and(|open| open.must_be_joined) => return None,
            false => None,
            true => Some(joined_cost(problem, open?, choice, cost)?),
        };
        let own = problem.home(choice);
        if !problem.relaxed.donors {
            for donor in range.donors(part) {
                let home = label.homes.iter().find(|(layer, _)| *layer == donor);
                if home.map_or(own, |(_, home)| *home) != own {
                    return None;
                }
            }
        }
        // Another component may still join a whole component. Any other shard is final.
        let may_be_joined = end == part.units && step.part + 1 < problem.parts.len();
        let may_be_joined = may_be_joined && problem.settings.join;
        let (mut forbidden, mut at_risk) = (false, Vec::new());
        if problem.forbids() {
            let (segments, softcap) = self.shard(index, step);
            at_risk = problem.at_risk(&segments, choice.target);
            forbidden = problem.is_forbidden(segments, choice.target, softcap);
        }
        if forbidden && !may_be_joined {
            return None;
        }

        let mut homes = label.homes.clone();
        homes.retain(|(layer, _)| part.last_reader[*layer as usize] as usize > end);
        homes.extend(range.read_later(part).map(|unit| (unit, own)));

        let weight = if part.layered { problem.weight(&cost.computed()) } else { 0 };
        let open = may_be_joined.then(|| {
            let target = choice.target as usize;
            let cost = joined.unwrap_or_else(|| cost.clone());
            Box::new(Open {
                target: choice.target,
                values: choice.values,
                moved: problem.goals.first_token.map_or(0, |_| moved),
                at_stake: problem.limits[target].at_stake(&cost, &problem.most[target]),
                at_risk,
                cost,
                must_be_joined: forbidden,
            })
        });
        Some(Label {
            sums,
            largest: label.largest.max(weight),
            squares: label.squares.saturating_add(u128::from(weight) * u128::from(weight)),
            used,
            homes,
            target: Some(choice.target),
            open,
            last: Some((index, step)),
        })
    }

    /// Returns the use of a label with one more range of that cost, if goals and limits of targets
    /// allow it. `moved` is the time of the transfer of a row to the shard.
    fn used(
        &self,
        label: &Label,
        part: &Part,
        choice: &Choice,
        (range, cost): (&Range, &RangeCost),
        (joins, moved): (bool, u64),
    ) -> Option<Used> {
        let problem = self.problem;
        let Step { first, end, .. } = range.step;
        let (goals, stage) = (&problem.goals, problem.relaxed.stage);
        let mut used = label.used.clone();
        if let Some(most) = part.most_shards {
            used.shards += 1;
            if used.shards > most {
                return None;
            }
        }
        if let (Some(max), false) = (goals.memory, problem.relaxed.memory) {
            used.memory = used.memory.saturating_add(cost.context_bytes());
            if used.memory > max {
                return None;
            }
        }
        if let (Some(max), false) = (goals.size, problem.relaxed.size) {
            used.size = used.size.saturating_add(cost.artefact_bytes);
            if used.size > max {
                return None;
            }
        }
        if goals.bounds_times() && !problem.relaxed.times {
            let hand_off = problem.hand_off(moved, cost, joins);
            let add = |sum: u64, microseconds: u64, hand_off: u64| {
                sum.saturating_add(microseconds.saturating_mul(1000)).saturating_add(hand_off)
            };
            if let Some(max) = goals.token {
                used.token = add(used.token, stage.of(cost.time), hand_off.token);
                if used.token > max {
                    return None;
                }
            }
            if let Some(max) = goals.first_token {
                let first = stage.of(cost.time.and(cost.prefill));
                used.first_token = add(used.first_token, first, hand_off.first_token);
                if used.first_token > max {
                    return None;
                }
            }
        }
        if let (Some(max), false) = (goals.quality, problem.relaxed.quality) {
            used.loss = used.loss.saturating_add(choice.loss[end].saturating_sub(choice.loss[first]));
            if used.loss > max {
                return None;
            }
        }
        if let (Some((shards, bytes)), false) =
            (used.targets.get_mut(choice.target as usize), problem.relaxed.target_totals)
        {
            let limits = &problem.limits[choice.target as usize];
            if let Some(limit) = limits.shards {
                *shards += u64::from(!joins);
                if *shards > limit.value {
                    return None;
                }
            }
            if let Some(limit) = limits.memory_bytes {
                *bytes = bytes.saturating_add(cost.context_bytes());
                if *bytes > limit.value {
                    return None;
                }
            }
        }
        Some(used)
    }

    /// Returns the shard that a step after a label ends: its segments, and the place of its
    /// soft-cap.
    fn shard(&self, index: usize, step: Step) -> (Vec<Segment>, Option<SoftcapPlace>) {
        let (mut segments, mut softcap) = (Vec::new(), None);
        for (part, first, choice) in self.steps(index, step).into_iter().rev() {
            let part = &self.problem.parts[part];
            let end =
                if part.component == self.problem.parts[step.part].component { step.end } else { part.units };
            let choice = &part.choices[choice];
            segments.push(part.segment(first, end, choice));
            softcap = softcap.or(choice.softcap);
        }
        (segments, softcap)
    }

    /// Returns the steps of the shard that a step after a label ends, from the last to the first:
    /// part, first unit and choice. All but the last end with their component.
    fn steps(&self, mut index: usize, mut step: Step) -> Vec<(usize, usize, usize)> {
        let mut steps = Vec::new();
        loop {
            steps.push((step.part, step.first, step.choice));
            match self.arena[index].last {
                Some((before, last)) if step.joins => (index, step) = (before, last),
                _ => return steps,
            }
        }
    }
}

/// Returns the cost of an open shard with a component that joins it, or `None` if they do not fit
/// together.
fn joined_cost(problem: &Problem<'_>, open: &Open, choice: &Choice, cost: &RangeCost) -> Option<RangeCost> {
    let alike = (open.target, open.values) == (choice.target, choice.values);
    let joined = alike.then(|| open.cost.joined(cost))?;
    problem.limits[choice.target as usize].exceeded(&joined).is_none().then_some(joined)
}

impl Found {
    /// Returns the part of the objective's time that is not computation: overhead of calls, and
    /// transfers between targets.
    fn beside(&self, problem: &Problem<'_>) -> u64 {
        let place = problem.place_of(Goal::Time);
        let choice = |step: &Step| &problem.parts[step.part].choices[step.choice];
        let call = |step: &Step| {
            let (choice, range) = (choice(step), (step.first, step.end));
            let cost = choice.cost(step.first, step.end)?;
            let computed = cost.computed();
            let of = |cost: &RangeCost| problem.objective(choice, cost, range)[place];
            Some(of(&cost).saturating_sub(of(&computed)))
        };
        let calls = self.steps.iter().filter(|step| !step.joins).filter_map(call);
        let pairs = self.steps.windows(2);
        let moves = pairs.map(|pair| problem.transfer(choice(&pair[0]).target, choice(&pair[1]).target));
        calls.chain(moves).fold(0, u64::saturating_add)
    }

    /// Returns the minimised objective.
    pub(super) fn objective(&self) -> Sums {
        self.objective
    }

    pub(super) fn into_solution(self, problem: &Problem<'_>) -> Solution {
        let table = &problem.table;
        let mut shards: Vec<Placement> = Vec::new();
        for step in &self.steps {
            let part = &problem.parts[step.part];
            let choice = &part.choices[step.choice];
            let segment = part.segment(step.first, step.end, choice);
            match shards.last_mut().filter(|_| step.joins) {
                Some(shard) => {
                    shard.segments.push(segment);
                    shard.softcap = shard.softcap.or(choice.softcap);
                    shard.cost = cost_of(problem, table, shard).unwrap_or_default();
                }
                None => shards.push(Placement {
                    segments: vec![segment],
                    target: choice.target,
                    softcap: choice.softcap,
                    cost: choice.cost(step.first, step.end).unwrap_or_default(),
                }),
            }
        }
        let times = problem.times(shards.iter().map(|shard| (shard.target, &shard.cost)));
        Solution {
            shards,
            entries: problem.entries.clone(),
            context: problem.entries.first().map_or(0, |entry| entry.context),
            time: times.token.microseconds(),
            first_token: times.first_token.microseconds(),
            exact: self.exact,
            gap: self.gap,
            balanced_by: problem.balanced_by,
            tables: Vec::new(),
            speculation: None,
            note: None,
            relieving: Vec::new(),
            mixed: None,
            reserve: Default::default(),
            decided: Default::default(),
            intervals: problem.intervals.clone(),
            stage: problem.relaxed.stage,
            settings: problem.settings.clone(),
        }
    }
}

/// Returns the cost of a shard, including the runtime's share, or `None` if its target does not
/// support it.
pub(super) fn cost_of(problem: &Problem<'_>, table: &CostTable<'_>, shard: &Placement) -> Option<RangeCost> {
    let units = units_of(problem.request, &shard.segments, shard.softcap);
    let prefix = Prefix::of_units(problem.request, table, &units, shard.target, &problem.entries);
    let runtime = runtime_of(problem.request, &shard.segments, shard.softcap);
    let cost = Choice::with_runtime(prefix.range(0, units.len())?, runtime);
    Some(cost.called(call_of(problem.request, shard.target)))
}
