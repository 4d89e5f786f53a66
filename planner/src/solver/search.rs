//! The dynamic programme.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::mix::{self, Trade};
use super::remainder::{Gap, Remainder};
use super::{Choice, Effort, Goal, LABELS_PER_CUT, Part, Placement, Problem, Solution};
use crate::table::{CostTable, Prefix, RangeCost, call_of, runtime_of, units_of};
use crate::{Goals, Segment, SoftcapPlace};

/// Numbers of labels kept at one cut point, tried in turn: fewer if the search with more would take
/// too long.
const BEAMS: [usize; 3] = [LABELS_PER_CUT, 32, 4];

/// What extending a label by a shard takes, in comparisons.
const EXTENSION: u64 = 8;

/// Comparisons of labels in one search; the last and narrowest has no such bound. A sandbox allows
/// two billion units of fuel per call; a comparison takes up to six hundred with what goes on
/// around it, and a request is searched a few times.
const COMPARISONS: u64 = 500_000;

/// The least time from which a difference counts, as a share of the whole: estimates are no finer.
/// Every shard has to save as much.
pub(super) const NOISE: u64 = 100;

/// Resources used by a partial chain. Only those that the request bounds are counted; the rest stay
/// zero, so that labels which differ in nothing relevant stay comparable.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Used {
    memory: u64,
    size: u64,
    loss: u64,
    /// Known times of a token, and from a prompt to the first one.
    token: u64,
    first_token: u64,
    /// Shards of the component that is being cut, where they are bounded.
    shards: u32,
    /// (shards, bytes) per target; empty where no target bounds them.
    targets: Vec<(u64, u64)>,
}

impl Trade {
    /// What the goals leave of its bound after a partial chain.
    pub(super) fn left(self, goals: &Goals, used: &Used) -> u64 {
        let left = |goal: Option<u64>, used: u64| goal.map_or(u64::MAX, |goal| goal.saturating_sub(used));
        match self {
            Trade::LossForTime => left(goals.quality_micronats, used.loss),
            Trade::BytesForLoss => {
                left(goals.size_bytes, used.size).min(left(goals.memory_bytes, used.memory))
            }
            Trade::TimeForLoss => left(goals.token_microseconds, used.token),
        }
    }
}

impl Used {
    fn at_most(&self, other: &Used) -> bool {
        self.memory <= other.memory
            && self.size <= other.size
            && self.loss <= other.loss
            && self.token <= other.token
            && self.first_token <= other.first_token
            && self.shards <= other.shards
            && self
                .targets
                .iter()
                .zip(&other.targets)
                .all(|(left, right)| left.0 <= right.0 && left.1 <= right.1)
    }
}

/// The additive part of the objective: rank of targets, layers without a time, loss, rank of
/// formats whose times are modelled, nanoseconds, shards, rank of formats.
pub(super) type Sums = [u64; Goal::ALL.len()];

/// A partial chain.
#[derive(Debug, Clone)]
struct Label {
    sums: Sums,
    largest: u64,
    squares: u128,
    used: Used,
    /// Homes of the donors whose readers come later: (layer, home), sorted.
    homes: Vec<(u32, u32)>,
    /// The target of the last shard; `None` of an empty chain.
    target: Option<u32>,
    /// The last shard, where a component ends that is not the last.
    open: Option<Box<Open>>,
    /// The label before and the last shard.
    last: Option<(usize, Step)>,
}

/// A shard that the next component may join.
#[derive(Debug, Clone)]
struct Open {
    target: u32,
    /// Activations and states.
    values: (u32, u32),
    cost: RangeCost,
    /// What of it limits may bound.
    at_stake: [u64; 5],
    /// The refused shards, by index, that it would become with certain components.
    at_risk: Vec<usize>,
    /// Whether the shard as it is was forbidden, so that something has to join it.
    must_be_joined: bool,
}

#[derive(Debug, Clone, Copy)]
struct Step {
    part: usize,
    first: usize,
    end: usize,
    choice: usize,
    /// Whether it joins the shard before.
    joins: bool,
}

impl Label {
    /// Whether this label is at least as good in everything, now and after any common continuation.
    /// `joining` is the most that a component saves by joining the last shard, where whatever joins
    /// one shard may also be a shard of its own, and `moving` what it costs more to follow a shard
    /// on another target.
    fn dominates(&self, other: &Label, joining: Option<&Sums>, moving: &Sums) -> bool {
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
            // Better even after the other is joined and this one is not.
            let Some(joining) = joining else { return false };
            less(joining);
        }
        if self.target != other.target {
            less(moving);
        }
        let better = match self.sums.cmp(&theirs) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => self.largest <= other.largest && self.squares <= other.squares,
            std::cmp::Ordering::Greater => false,
        };
        better && self.used.at_most(&other.used) && self.homes == other.homes
    }

    /// Whether whatever can join the last shard of another label can join that of this one.
    fn is_as_open(&self, other: &Label) -> bool {
        match (&self.open, &other.open) {
            (_, None) => self.open.as_ref().is_none_or(|open| !open.must_be_joined),
            (None, Some(_)) => false,
            (Some(own), Some(theirs)) => {
                (own.target, own.values) == (theirs.target, theirs.values)
                    // What joins is called less by as much.
                    && own.cost.prefill_runs >= theirs.cost.prefill_runs
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

/// The chain found.
#[derive(Clone)]
pub(super) struct Found {
    steps: Vec<Step>,
    objective: Sums,
    exact: bool,
    gap: Option<Gap>,
}

/// The best chain; of the simple effort the first that will do.
pub(super) fn search(problem: &mut Problem<'_>) -> Option<Found> {
    if problem.settings.effort == Effort::Simple {
        return narrowing(problem, &[1], None);
    }
    let Some(mut known) = mixed(problem, None) else {
        let found = narrowing(problem, &BEAMS, None)?;
        let gap = Remainder::new(problem).gap(problem, &found.objective, found.beside(problem));
        return Some(Found { gap, ..found });
    };
    // Where targets are compared by time, one of them alone has more mixtures than several.
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
    // What keeps few labels may lose the chain that is known.
    let mut found = narrowing(problem, &BEAMS, Some(&bounds)).unwrap_or(Found { exact: false, ..known });
    found.gap = bounds.0.gap(problem, &found.objective, found.beside(problem));
    Some(found)
}

/// A chain of long shards, on one target if that is asked for; what a goal in losses makes of their
/// formats is offered from here on.
fn mixed(problem: &mut Problem<'_>, only: Option<u32>) -> Option<Found> {
    let found = longest(problem, BEAMS[1], only)?;
    let mut mixed = found.clone().into_solution(problem);
    if mix::sketch(problem, &mut mixed).is_none() {
        return Some(found);
    }
    problem.offer(&mixed.shards);
    let other = longest(problem, BEAMS[1], only).filter(|other| other.objective < found.objective);
    Some(other.unwrap_or(found))
}

/// Whether a chain exists; needs fewer labels than the optimum.
pub(super) fn exists(problem: &Problem<'_>) -> bool {
    // One label and those that used least nearly always lead to one.
    if longest(problem, 1, None).is_some() {
        return true;
    }
    let any = (Remainder::new(problem), Sums::from([u64::MAX; Goal::ALL.len()]));
    narrowing(problem, &[1], Some(&any)).is_some()
        || (problem.settings.effort == Effort::Thorough
            && narrowing(problem, &BEAMS[1..], Some(&any)).is_some())
}

/// The best chain of shards that are each as long as their formats may be, on one target if that is
/// asked for, if that is found in time.
fn longest(problem: &Problem<'_>, beam: usize, only: Option<u32>) -> Option<Found> {
    Search { longest: true, only, ..Search::new(problem, beam, None) }.run().ok().flatten()
}

/// The result with the first of these numbers of labels that ends in time.
fn narrowing(problem: &Problem<'_>, beams: &[usize], known: Option<&(Remainder, Sums)>) -> Option<Found> {
    for (position, &beam) in beams.iter().enumerate() {
        let mut search = Search::new(problem, beam, known);
        if position + 1 == beams.len() {
            search.left = u64::MAX;
        }
        if let Ok(found) = search.run() {
            return found;
        }
    }
    None
}

/// Reads one quantity of what a label used.
type Quantity = fn(&Used) -> u64;

/// The quantities that goals and preferences bound.
fn bounded(problem: &Problem<'_>) -> Vec<Quantity> {
    let goals = &problem.request.goals;
    let all: [(bool, Quantity); 6] = [
        (goals.quality_micronats.is_some(), |used| used.loss),
        (goals.memory_bytes.is_some(), |used| used.memory),
        (goals.size_bytes.is_some(), |used| used.size),
        (goals.token_microseconds.is_some(), |used| used.token),
        (goals.first_token_microseconds.is_some(), |used| used.first_token),
        (!problem.settings.most_shards.is_empty(), |used| used.shards.into()),
    ];
    all.into_iter().filter(|(is_bounded, _)| *is_bounded).map(|(_, used)| used).collect()
}

/// The search took too long.
struct Exceeded;

struct Search<'search, 'request> {
    problem: &'search Problem<'request>,
    beam: usize,
    /// Comparisons left.
    left: u64,
    /// The most that joining a shard saves of the objective.
    joining: Sums,
    /// What a shard costs more that follows one on another target.
    moving: Sums,
    /// Whether goals in time bound what is called.
    calls_are_bounded: bool,
    /// The quantities that the request bounds: of each the label that used least is kept.
    bounded: Vec<Quantity>,
    /// The objective of a chain that exists, and what is left of others at least.
    known: Option<&'search (Remainder, Sums)>,
    /// Whether only the longest shards of each choice are tried, which finds a chain quickly.
    longest: bool,
    /// The only target that is tried.
    only: Option<u32>,
    /// Labels that other labels extend.
    arena: Vec<Label>,
    /// What a shard adds to the objective beside its cost.
    one: Sums,
    exact: bool,
}

/// Whether two sums together are more than a third, what counts first compared first.
fn exceeds(own: &Sums, rest: &Sums, known: &Sums) -> bool {
    let places = own.iter().zip(rest).zip(known);
    let mut orders = places.map(|((own, rest), known)| own.saturating_add(*rest).cmp(known));
    orders.find(|order| order.is_ne()).is_some_and(std::cmp::Ordering::is_gt)
}

/// Whether goals in time bound what is called.
fn calls_are_bounded(problem: &Problem<'_>) -> bool {
    let goals = &problem.request.goals;
    let is_bounded = goals.token_microseconds.is_some() || goals.first_token_microseconds.is_some();
    is_bounded && problem.parts.iter().flat_map(|part| &part.choices).any(|choice| choice.call > 0)
}

/// Requirements and results of a range of units, independent of the units before it.
struct Range {
    step: Step,
    cost: RangeCost,
    /// What it adds to the objective as a shard of its own.
    sums: Sums,
}

impl<'search, 'request> Search<'search, 'request> {
    fn new(
        problem: &'search Problem<'request>,
        beam: usize,
        known: Option<&'search (Remainder, Sums)>,
    ) -> Self {
        Search {
            problem,
            beam,
            left: COMPARISONS,
            joining: problem.most_saved(),
            moving: problem.in_time(problem.request.transfer_nanoseconds),
            calls_are_bounded: calls_are_bounded(problem),
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
                        // Costs only grow with the range, so nothing longer can be legal either.
                        let Some(cost) = legal_cost(problem, choice, first, end) else { break };
                        let step = Step { part: index, first, end, choice: position, joins: false };
                        let range = Range::new(problem, part, step, cost);
                        let labels = (self.arena.len() - from) as u64;
                        self.left = self.left.checked_sub(EXTENSION * labels).ok_or(Exceeded)?;
                        // Only at its beginning a component may join what is before it.
                        let ways: &[bool] = if first == 0 && index > 0 { &[false, true] } else { &[false] };
                        // What follows a chain that ends here at least.
                        let rest = self
                            .known
                            .map(|(remainder, known)| (remainder.least(&range.sums, index, end), known));
                        for label in from..self.arena.len() {
                            let excluded = |(rest, known): &(Sums, &Sums)| {
                                ways.len() == 1 && exceeds(&self.arena[label].sums, rest, known)
                            };
                            // Most chains end here, before anything else of them is counted.
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
        // Of equals the first.
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

    /// Where a shard of a choice that begins at a unit may end.
    fn ends(&self, part: &Part, choice: &Choice, first: usize) -> std::ops::RangeInclusive<usize> {
        if !part.layered {
            return part.units..=part.units;
        }
        if !self.longest {
            return first + 1..=part.units;
        }
        // Costs only grow with the range.
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

    /// Add a label unless an existing one is at least as good; drop those it beats. The earlier of
    /// two equals stays, so ties resolve to the earliest choice.
    fn insert(&mut self, frontier: &mut Vec<Label>, label: Label) -> Result<(), Exceeded> {
        self.left = self.left.checked_sub(1 + frontier.len() as u64).ok_or(Exceeded)?;
        // Bounds on the number of shards and on calls, and shards that were refused, distinguish
        // what joins.
        let alike = !self.problem.forbids() && label.used.targets.is_empty() && !self.calls_are_bounded;
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

    /// Keep some labels of an overfull cut point: half of them the best, the others spread over the
    /// rest, and those that used least, which goals may depend on.
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

    /// Donors before the range.
    fn donors<'part>(&self, part: &'part Part) -> impl Iterator<Item = u32> + 'part {
        let Step { first, end, .. } = self.step;
        part.donors[first..end].iter().flatten().copied().filter(move |donor| (*donor as usize) < first)
    }

    /// Units that are read after the range.
    fn read_later<'part>(&self, part: &'part Part) -> impl Iterator<Item = u32> + 'part {
        let Step { first, end, .. } = self.step;
        let read_later = (first..end).filter(move |&unit| part.last_reader[unit] as usize > end);
        read_later.map(|unit| u32::try_from(unit).unwrap_or(u32::MAX))
    }
}

/// Cost of a range if the target supports it within its limits.
fn legal_cost(problem: &Problem<'_>, choice: &Choice, first: usize, end: usize) -> Option<RangeCost> {
    if !problem.relaxed.quality && choice.unmeasured[end] > choice.unmeasured[first] {
        return None;
    }
    let cost = choice.cost(first, end)?;
    problem.limits[choice.target as usize].exceeded(&cost).is_none().then_some(cost)
}

impl Search<'_, '_> {
    /// A label with one more shard, or with its last shard joined by a component; `None` where a
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
        // What it adds: a shard of its own, or a part of the one before.
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
        if let Some(before) = label.target.filter(|_| !joins) {
            let moved = problem.in_time(problem.transfer(before, choice.target));
            sums.iter_mut().zip(moved).for_each(|(sum, moved)| *sum = sum.saturating_add(moved));
        }
        let bound = self.known.map(|(remainder, known)| {
            let least = remainder.least(&sums, step.part, end);
            (remainder, known, least)
        });
        if bound.as_ref().is_some_and(|(_, known, least)| least > known) {
            return None;
        }
        let used = self.used(label, part, choice, (range, &added), joins)?;
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
        // A whole component may still be joined; anything else is as it will be.
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

    /// What a label with one more range that costs so much uses, if goals and limits of targets
    /// allow it.
    fn used(
        &self,
        label: &Label,
        part: &Part,
        choice: &Choice,
        (range, cost): (&Range, &RangeCost),
        joins: bool,
    ) -> Option<Used> {
        let problem = self.problem;
        let Step { first, end, .. } = range.step;
        let goals = &problem.request.goals;
        let mut used = label.used.clone();
        if let Some(most) = part.most_shards {
            used.shards += 1;
            if used.shards > most {
                return None;
            }
        }
        if let (Some(max), false) = (goals.memory_bytes, problem.relaxed.memory) {
            used.memory = used.memory.saturating_add(cost.context_bytes());
            if used.memory > max {
                return None;
            }
        }
        if let (Some(max), false) = (goals.size_bytes, problem.relaxed.size) {
            used.size = used.size.saturating_add(cost.artefact_bytes);
            if used.size > max {
                return None;
            }
        }
        if let (Some(max), false) = (goals.token_microseconds, problem.relaxed.times) {
            used.token = used.token.saturating_add(cost.known_time);
            if used.token > max {
                return None;
            }
        }
        if let (Some(max), false) = (goals.first_token_microseconds, problem.relaxed.times) {
            used.first_token = used.first_token.saturating_add(problem.first_token(cost));
            if used.first_token > max {
                return None;
            }
        }
        if let (Some(max), false) = (goals.quality_micronats, problem.relaxed.quality) {
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

    /// The shard that a step after a label ends: its segments, and the place of its soft-cap.
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

    /// The steps of the shard that a step after a label ends, from the last to the first: part,
    /// first unit and choice. All but the last end with their component.
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

/// The cost of an open shard with a component that joins it; `None` if they do not fit together.
fn joined_cost(problem: &Problem<'_>, open: &Open, choice: &Choice, cost: &RangeCost) -> Option<RangeCost> {
    let alike = (open.target, open.values) == (choice.target, choice.values);
    let joined = alike.then(|| open.cost.joined(cost))?;
    problem.limits[choice.target as usize].exceeded(&joined).is_none().then_some(joined)
}

impl Found {
    /// The time of the objective that is not computation: calls, and what follows a shard on
    /// another target.
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

    /// What the search found least of.
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
        let time = shards.iter().try_fold(0_u64, |sum, shard| Some(sum.saturating_add(shard.cost.time?)));
        Solution {
            shards,
            entries: problem.entries.clone(),
            context: problem.entries.first().map_or(0, |entry| entry.context),
            time,
            exact: self.exact,
            gap: self.gap,
            balanced_by: problem.balanced_by,
            tables: Vec::new(),
            speculation: None,
            about_speculation: None,
            relieving: Vec::new(),
            mixed: None,
            reserve: Default::default(),
            decided: Default::default(),
            timed: problem.timed.clone(),
            settings: problem.settings.clone(),
        }
    }
}

/// The cost of a shard, including the runtime's share; `None` if its target does not support it.
pub(super) fn cost_of(problem: &Problem<'_>, table: &CostTable<'_>, shard: &Placement) -> Option<RangeCost> {
    let units = units_of(problem.request, &shard.segments, shard.softcap);
    let prefix = Prefix::of_units(problem.request, table, &units, shard.target, &problem.entries);
    let runtime = runtime_of(problem.request, &shard.segments, shard.softcap);
    let cost = Choice::with_runtime(prefix.range(0, units.len())?, runtime);
    Some(cost.called(call_of(problem.request, shard.target)))
}
