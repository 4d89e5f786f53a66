//! The dynamic programme.

use super::{Choice, LABELS_PER_CUT, Part, Placement, Problem, Solution};
use crate::table::RangeCost;

/// What a partial chain has used up. Only what the request bounds is counted; the rest stays zero, so that labels which
/// differ in nothing that matters stay comparable.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Used {
    memory: u64,
    loss: u64,
    /// (shards, bytes) per target.
    targets: Vec<(u64, u64)>,
}

impl Used {
    fn at_most(&self, other: &Used) -> bool {
        self.memory <= other.memory
            && self.loss <= other.loss
            && self
                .targets
                .iter()
                .zip(&other.targets)
                .all(|(left, right)| left.0 <= right.0 && left.1 <= right.1)
    }
}

/// A partial chain.
#[derive(Debug, Clone)]
struct Label {
    /// The additive part of the objective: time or rank of targets, shards, rank of formats.
    sums: [u64; 3],
    largest: u64,
    squares: u128,
    used: Used,
    /// Places of the donors whose readers are still to come: (layer, place), sorted.
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
        self.homes == other.homes
            && self.used.at_most(&other.used)
            && (self.sums < other.sums
                || self.sums == other.sums && self.largest <= other.largest && self.squares <= other.squares)
    }

    fn objective(&self) -> ([u64; 3], u64, u128) {
        (self.sums, self.largest, self.squares)
    }
}

/// The chain found.
pub(super) struct Found {
    steps: Vec<Step>,
    exact: bool,
}

pub(super) fn search(problem: &Problem<'_>) -> Option<Found> {
    let mut arena = vec![Label {
        sums: [0; 3],
        largest: 0,
        squares: 0,
        used: Used { targets: vec![(0, 0); problem.request.targets.len()], ..Used::default() },
        homes: Vec::new(),
        last: None,
    }];
    let mut exact = true;
    let mut frontier = vec![0_usize];
    for (index, part) in problem.parts.iter().enumerate() {
        let mut cuts: Vec<Vec<usize>> = vec![Vec::new(); part.units + 1];
        cuts[0] = frontier;
        for first in 0..part.units {
            exact &= prune(&arena, &mut cuts[first]);
            let labels = std::mem::take(&mut cuts[first]);
            if labels.is_empty() {
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
                    for &label in &labels {
                        if let Some(next) = extend(problem, &arena[label], label, part, choice, step, &cost) {
                            insert(&mut arena, &mut cuts[end], next);
                        }
                    }
                }
            }
        }
        frontier = cuts.pop().unwrap_or_default();
        exact &= prune(&arena, &mut frontier);
        for &label in &frontier {
            arena[label].homes.clear();
        }
    }
    let best = frontier.into_iter().min_by_key(|&label| (arena[label].objective(), label))?;
    let mut steps = Vec::new();
    let mut current = best;
    while let Some((before, step)) = arena[current].last {
        steps.push(step);
        current = before;
    }
    steps.reverse();
    Some(Found { steps, exact })
}

/// Cost of a range if the target takes it within its limits.
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
    step: Step,
    cost: &RangeCost,
) -> Option<Label> {
    let (first, end) = (step.first, step.end);
    let place = problem.places[choice.target as usize];
    if !problem.relaxed.donors {
        for donor in part.donors[first..end].iter().flatten() {
            let home = label.homes.iter().find(|(layer, _)| layer == donor).map_or(place, |(_, home)| *home);
            if (*donor as usize) < first && home != place {
                return None;
            }
        }
    }
    let mut homes = label.homes.clone();
    homes.retain(|(layer, _)| part.last_reader[*layer as usize] as usize > end);
    for unit in first..end {
        if part.last_reader[unit] as usize > end {
            homes.push((u32::try_from(unit).unwrap_or(u32::MAX), place));
        }
    }

    let goals = &problem.request.goals;
    let mut used = label.used.clone();
    if let (Some(max), false) = (goals.memory_bytes, problem.relaxed.memory) {
        used.memory = used.memory.saturating_add(cost.context_bytes());
        if used.memory > max {
            return None;
        }
    }
    if let (Some(max), false) = (goals.quality_per_mille, problem.relaxed.quality) {
        used.loss = used.loss.saturating_add(choice.loss[end].saturating_sub(choice.loss[first]));
        if used.loss > u64::from(max) {
            return None;
        }
    }
    if !problem.relaxed.target_totals {
        let limits = &problem.limits[choice.target as usize];
        let (shards, bytes) = &mut used.targets[choice.target as usize];
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

    let units = (end - first) as u64;
    let leading = match (problem.timed, cost.time) {
        (true, Some(time)) => time,
        _ => u64::from(choice.target).saturating_mul(units),
    };
    let weight = if part.layered { problem.weight(cost) } else { 0 };
    Some(Label {
        sums: [
            label.sums[0].saturating_add(leading),
            label.sums[1].saturating_add(1),
            label.sums[2].saturating_add(u64::from(choice.formats).saturating_mul(units)),
        ],
        largest: label.largest.max(weight),
        squares: label.squares.saturating_add(u128::from(weight) * u128::from(weight)),
        used,
        homes,
        last: Some((index, step)),
    })
}

/// Add a label unless one there is at least as good; drop those it beats. The earlier of two equals stays, which makes
/// ties go to the earliest choice.
fn insert(arena: &mut Vec<Label>, frontier: &mut Vec<usize>, label: Label) {
    if frontier.iter().any(|&other| arena[other].dominates(&label)) {
        return;
    }
    frontier.retain(|&other| !label.dominates(&arena[other]));
    frontier.push(arena.len());
    arena.push(label);
}

/// Keep the best labels of an overfull cut point; true if nothing was dropped.
fn prune(arena: &[Label], frontier: &mut Vec<usize>) -> bool {
    if frontier.len() <= LABELS_PER_CUT {
        return true;
    }
    frontier.sort_by_key(|&label| (arena[label].objective(), label));
    frontier.truncate(LABELS_PER_CUT);
    false
}

impl Found {
    pub(super) fn into_solution(self, problem: &Problem<'_>) -> Solution {
        let mut time = problem.timed.then_some(0_u64);
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
                    formats: choice.formats,
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
            settings: problem.settings.clone(),
        }
    }
}
