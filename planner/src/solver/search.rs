//! The dynamic programme.

use super::{Choice, Effort, LABELS_PER_CUT, Part, Placement, Problem, Solution};
use crate::table::RangeCost;

/// Numbers of labels kept at one cut point, tried in turn: fewer if the search with more would take
/// too long.
const BEAMS: [usize; 3] = [LABELS_PER_CUT, 32, 4];

/// What extending a label by a shard takes, in comparisons.
const EXTENSION: u64 = 8;

/// Comparisons of labels in one search; the last and narrowest has no such bound. A sandbox allows
/// two billion units of fuel per call; a comparison takes two to three hundred with what goes on
/// around it, and a request is searched a few times.
const COMPARISONS: u64 = 1_200_000;

/// The least time from which a difference counts, as a share of the whole: estimates are no finer.
/// Every shard has to save as much.
pub(super) const NOISE: u64 = 100;

/// Resources used by a partial chain. Only those that the request bounds are counted; the rest stay
/// zero, so that labels which differ in nothing relevant stay comparable.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Used {
    memory: u64,
    loss: u64,
    /// Shards of the component that is being cut, where they are bounded.
    shards: u32,
    /// (shards, bytes) per target; empty where no target bounds them.
    targets: Vec<(u64, u64)>,
}

impl Used {
    fn at_most(&self, other: &Used) -> bool {
        self.memory <= other.memory
            && self.loss <= other.loss
            && self.shards <= other.shards
            && self
                .targets
                .iter()
                .zip(&other.targets)
                .all(|(left, right)| left.0 <= right.0 && left.1 <= right.1)
    }
}

/// The additive part of the objective: rank of targets, layers without a time, rank of formats
/// whose times are modelled, nanoseconds, shards, rank of formats.
pub(super) type Sums = [u64; 6];

/// A partial chain.
#[derive(Debug, Clone)]
struct Label {
    sums: Sums,
    largest: u64,
    squares: u128,
    used: Used,
    /// Locations of the donors whose readers come later: (layer, place), sorted.
    homes: Vec<(u32, u32)>,
    /// The label before and the last shard.
    last: Option<(usize, Step)>,
}

#[derive(Debug, Clone, Copy)]
struct Step {
    part: usize,
    first: usize,
    end: usize,
    choice: usize,
}

impl Label {
    /// Whether this label is at least as good in everything, now and after any common continuation.
    fn dominates(&self, other: &Label) -> bool {
        let better = match self.sums.cmp(&other.sums) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => self.largest <= other.largest && self.squares <= other.squares,
            std::cmp::Ordering::Greater => false,
        };
        better && self.used.at_most(&other.used) && self.homes == other.homes
    }

    fn objective(&self) -> (Sums, u64, u128) {
        (self.sums, self.largest, self.squares)
    }
}

/// The chain found.
pub(super) struct Found {
    steps: Vec<Step>,
    exact: bool,
}

/// The best chain; of the simple effort the first that will do.
pub(super) fn search(problem: &Problem<'_>) -> Option<Found> {
    match problem.settings.effort {
        Effort::Thorough => narrowing(problem, &BEAMS),
        Effort::Simple => narrowing(problem, &[1]),
    }
}

/// Whether a chain exists; needs fewer labels than the optimum.
pub(super) fn exists(problem: &Problem<'_>) -> bool {
    match problem.settings.effort {
        Effort::Thorough => narrowing(problem, &BEAMS[1..]).is_some(),
        Effort::Simple => narrowing(problem, &[1]).is_some(),
    }
}

/// The result with the first of these numbers of labels that ends in time.
fn narrowing(problem: &Problem<'_>, beams: &[usize]) -> Option<Found> {
    for (position, &beam) in beams.iter().enumerate() {
        let left = if position + 1 == beams.len() { u64::MAX } else { COMPARISONS };
        let mut search = Search { problem, beam, left, arena: Vec::new(), exact: true };
        if let Ok(found) = search.run() {
            return found;
        }
    }
    None
}

/// The search took too long.
struct Exceeded;

struct Search<'search, 'request> {
    problem: &'search Problem<'request>,
    beam: usize,
    /// Comparisons left.
    left: u64,
    /// Labels that other labels extend.
    arena: Vec<Label>,
    exact: bool,
}

/// Requirements and results of a range of units, independent of the units before it.
struct Range {
    step: Step,
    cost: RangeCost,
    /// Donors before the range.
    donors: Vec<u32>,
    /// Units that are read after the range.
    read_later: Vec<u32>,
}

impl Search<'_, '_> {
    fn run(&mut self) -> Result<Option<Found>, Exceeded> {
        let problem = self.problem;
        let bounded =
            problem.limits.iter().any(|limits| limits.shards.is_some() || limits.memory_bytes.is_some());
        let targets = if bounded { vec![(0, 0); problem.request.targets.len()] } else { Vec::new() };
        let start = Label {
            sums: [0; 6],
            largest: 0,
            squares: 0,
            used: Used { targets, ..Used::default() },
            homes: Vec::new(),
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
                    let ends = if part.layered { first + 1..=part.units } else { part.units..=part.units };
                    for end in ends {
                        // Costs only grow with the range, so nothing longer can be legal either.
                        let Some(cost) = legal_cost(problem, choice, first, end) else { break };
                        if problem.is_forbidden(part, first, end, choice) {
                            continue;
                        }
                        let step = Step { part: index, first, end, choice: position };
                        let range = Range::new(part, step, cost);
                        let labels = (self.arena.len() - from) as u64;
                        self.left = self.left.checked_sub(EXTENSION * labels).ok_or(Exceeded)?;
                        for label in from..self.arena.len() {
                            if let Some(next) =
                                extend(problem, &self.arena[label], label, part, choice, &range)
                            {
                                self.insert(&mut cuts[end], next)?;
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
        Ok(Some(Found { steps, exact: self.exact }))
    }

    /// Add a label unless an existing one is at least as good; drop those it beats. The earlier of
    /// two equals stays, so ties resolve to the earliest choice.
    fn insert(&mut self, frontier: &mut Vec<Label>, label: Label) -> Result<(), Exceeded> {
        self.left = self.left.checked_sub(1 + frontier.len() as u64).ok_or(Exceeded)?;
        if frontier.iter().any(|other| other.dominates(&label)) {
            return Ok(());
        }
        frontier.retain(|other| !label.dominates(other));
        frontier.push(label);
        if frontier.len() > 2 * self.beam + EXTREMES {
            self.prune(frontier);
        }
        Ok(())
    }

    /// Keep some labels of an overfull cut point: half of them the best, the others spread over the
    /// rest, and those that used least, which goals may depend on.
    fn prune(&mut self, frontier: &mut Vec<Label>) {
        if frontier.len() <= self.beam + EXTREMES {
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
        let least = |used: fn(&Used) -> u64| (0..count).min_by_key(|&index| used(&frontier[index].used));
        let extremes = [least(|used| used.loss), least(|used| used.memory), least(|used| used.shards.into())];
        for index in extremes.into_iter().flatten() {
            keep[index] = true;
        }
        let mut keep = keep.into_iter();
        frontier.retain(|_| keep.next().unwrap_or(false));
    }
}

/// Labels kept beside the beam: those with the least loss, the least memory and the fewest shards.
const EXTREMES: usize = 3;

impl Range {
    fn new(part: &Part, step: Step, cost: RangeCost) -> Self {
        let Step { first, end, .. } = step;
        let before = |donor: &u32| (*donor as usize) < first;
        let donors = part.donors[first..end].iter().flatten().copied().filter(before).collect();
        let read_later = (first..end).filter(|&unit| part.last_reader[unit] as usize > end);
        let read_later = read_later.map(|unit| u32::try_from(unit).unwrap_or(u32::MAX)).collect();
        Self { step, cost, donors, read_later }
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

fn extend(
    problem: &Problem<'_>,
    label: &Label,
    index: usize,
    part: &Part,
    choice: &Choice,
    range: &Range,
) -> Option<Label> {
    let (Step { first, end, .. }, cost) = (range.step, &range.cost);
    let place = problem.places[choice.target as usize];
    if !problem.relaxed.donors {
        for donor in &range.donors {
            let home = label.homes.iter().find(|(layer, _)| layer == donor).map_or(place, |(_, home)| *home);
            if home != place {
                return None;
            }
        }
    }

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
            *shards += 1;
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

    let mut homes = label.homes.clone();
    homes.retain(|(layer, _)| part.last_reader[*layer as usize] as usize > end);
    homes.extend(range.read_later.iter().map(|&unit| (unit, place)));

    let mut sums = label.sums;
    for (sum, own) in sums.iter_mut().zip(problem.objective(choice, cost, (first, end))) {
        *sum = sum.saturating_add(own);
    }
    let weight = if part.layered { problem.weight(cost) } else { 0 };
    Some(Label {
        sums,
        largest: label.largest.max(weight),
        squares: label.squares.saturating_add(u128::from(weight) * u128::from(weight)),
        used,
        homes,
        last: Some((index, range.step)),
    })
}

impl Found {
    pub(super) fn into_solution(self, problem: &Problem<'_>) -> Solution {
        let mut time = Some(0_u64);
        let shards = self
            .steps
            .iter()
            .map(|step| {
                let part = &problem.parts[step.part];
                let choice = &part.choices[step.choice];
                let cost = choice.cost(step.first, step.end).unwrap_or_default();
                time = time.zip(cost.time).map(|(sum, time)| sum.saturating_add(time));
                let (first, end) = part.layers(step.first, step.end);
                Placement {
                    component: part.component,
                    first,
                    end,
                    target: choice.target,
                    formats: choice.formats(step.first, step.end),
                    softcap: choice.softcap,
                    cost,
                }
            })
            .collect();
        Solution {
            shards,
            entries: problem.entries.clone(),
            context: problem.entries.first().map_or(0, |entry| entry.context),
            time,
            exact: self.exact,
            balanced_by: problem.balanced_by,
            relieving: Vec::new(),
            mixed: None,
            timed: problem.timed.clone(),
            settings: problem.settings.clone(),
        }
    }
}
