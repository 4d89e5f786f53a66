//! The bounds of a request, and the stages in which bounds on times are kept.

use super::{Effort, Problem, Settings, entry_sets, intervals, ranks};
use crate::table::{Interval, RangeCost};
use crate::{Goal, Goals, Refusal, Request};

/// How a search keeps bounds on times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Stage {
    /// Whether every layer stays on the targets of the first rank that supports it.
    pub(super) stays: bool,
    /// First unit, and one past the last, that move to other targets while all others stay. The
    /// units of all components are counted together.
    pub(super) moved: Option<(usize, usize)>,
    /// Whether the lowest time keeps a bound, instead of the likely time.
    pub(super) by_low: bool,
}

impl Stage {
    /// Returns the time that must keep a bound.
    pub(super) fn of(self, time: Interval) -> u64 {
        if self.by_low { time.low } else { time.likely }
    }

    /// Returns the percentage that formats not listed first must save within a goal for losses.
    pub(super) fn gain(self, settings: &Settings) -> u32 {
        let gain = settings.gain_within_goal;
        if self.by_low { gain.min(settings.gain) } else { gain }
    }

    /// Returns the largest nanoseconds within a bound. A fraction of a microsecond does not count
    /// as part of the lowest time.
    fn most(self, microseconds: u64) -> u64 {
        let fraction = if self.by_low { 999 } else { 0 };
        microseconds.saturating_mul(1000).saturating_add(fraction)
    }
}

/// Returns the stages of a search, in order. The first one with a plan is used, so that work moves
/// to a target with wider intervals only if a bound cannot be kept otherwise. If a goal for losses
/// is only the default, it gives way before work moves.
///
/// Without bounds on times, a plan of the first stage is the best one anyway, unless another goal
/// comes before the targets. The search needs fewer comparisons there.
pub(super) fn stages(request: &Request, settings: &Settings) -> Result<Vec<Stage>, Refusal> {
    let goals = &request.goals;
    let is_timed = goals.token_microseconds().or(goals.first_token_microseconds()).is_some();
    let is_bounded = is_timed || goals.bounds.iter().any(|bound| !matches!(bound, Goal::QualityMicronats(_)));
    let stays_first = match settings.order.first() {
        _ if is_timed => true,
        None | Some(super::Goal::Targets) => is_bounded && settings.effort == Effort::Thorough,
        Some(_) => false,
    };
    let sets = entry_sets(request)?;
    let ranks = ranks(&intervals(request, sets.first().map_or(&[][..], Vec::as_slice)));
    let stays: &[bool] = match stays_first && ranks.iter().any(|rank| *rank > 0) {
        true if settings.loss_is_usual => &[true],
        true => &[true, false],
        false => &[false],
    };
    let by_low: &[bool] = if is_timed && !settings.only_likely { &[false, true] } else { &[false] };
    let of = |&stays: &bool| by_low.iter().map(move |&by_low| Stage { stays, by_low, moved: None });
    Ok(stays.iter().flat_map(of).collect())
}

/// The bounds of a request in one stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GoalBounds {
    /// Millionths of a nat.
    pub(super) quality: Option<u64>,
    /// Bytes of artefacts and states.
    pub(super) memory: Option<u64>,
    /// Bytes of artefacts and tables.
    pub(super) size: Option<u64>,
    /// Nanoseconds of a token.
    pub(super) token: Option<u64>,
    /// Nanoseconds from a prompt to the first token of its answer.
    pub(super) first_token: Option<u64>,
}

impl GoalBounds {
    pub(super) fn new(goals: &Goals, stage: Stage) -> Self {
        let most = |bound: Option<u64>| bound.map(|microseconds| stage.most(microseconds));
        Self {
            quality: goals.quality_micronats(),
            memory: goals.memory_bytes(),
            size: goals.size_bytes(),
            token: most(goals.token_microseconds()),
            first_token: most(goals.first_token_microseconds()),
        }
    }

    /// Returns whether a time is bounded.
    pub(super) fn bounds_times(&self) -> bool {
        self.token.or(self.first_token).is_some()
    }
}

/// Nanoseconds of the runtime between shards: in a step, and from a prompt to the first token.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HandOff {
    pub(super) token: u64,
    pub(super) first_token: u64,
}

/// A time with the nanoseconds of the runtime between shards.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sum {
    time: Interval,
    hand_off: u64,
}

impl Sum {
    fn add(&mut self, time: Interval, hand_off: u64) {
        self.time = self.time.and(time);
        self.hand_off = self.hand_off.saturating_add(hand_off);
    }

    /// Returns the nanoseconds that must keep a bound.
    pub(super) fn bounded(&self, stage: Stage) -> u64 {
        stage.of(self.time).saturating_mul(1000).saturating_add(self.hand_off)
    }

    /// Returns the microseconds, rounded like the host does.
    pub(super) fn microseconds(&self) -> Interval {
        let up = self.hand_off.div_ceil(1000);
        self.time.and(Interval { low: self.hand_off / 1000, likely: up, high: up })
    }
}

/// The times of a chain that goals bound, added up like the host does.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Times {
    /// A step of one row, or an encode run.
    pub(super) token: Sum,
    /// From a prompt to the first token of its answer.
    pub(super) first_token: Sum,
}

impl Times {
    /// Returns whether both times keep their bounds.
    pub(super) fn keep(&self, bounds: &GoalBounds, stage: Stage) -> bool {
        let within = |bound: Option<u64>, sum: &Sum| bound.is_none_or(|most| sum.bounded(stage) <= most);
        within(bounds.token, &self.token) && within(bounds.first_token, &self.first_token)
    }
}

impl Problem<'_> {
    /// Returns whether a goal is exceeded even if every unit has the least of its quantity on any
    /// target and in any formats. This needs no search.
    pub(super) fn is_out_of_reach(&self) -> bool {
        let (goals, relaxed) = (&self.goals, &self.relaxed);
        let bounds = [
            goals.size.filter(|_| !relaxed.size),
            // Bytes of artefacts only: a shard counts the states of its largest entry point, so
            // their sum is not a lower bound.
            goals.memory.filter(|_| !relaxed.memory),
            goals.quality.filter(|_| !relaxed.quality),
            goals.token.filter(|_| !relaxed.times),
            goals.first_token.filter(|_| !relaxed.times),
        ];
        if bounds.iter().all(Option::is_none) {
            return false;
        }
        let mut sums = [0_u64; 5];
        for part in &self.parts {
            for unit in 0..part.units {
                let mut least = [u64::MAX; 5];
                for choice in &part.choices {
                    let Some(cost) = choice.cost_of_unit(unit) else { continue };
                    let bytes = cost.artefact_bytes;
                    let loss = choice.loss[unit + 1].saturating_sub(choice.loss[unit]);
                    let stage = relaxed.stage;
                    let times = [cost.time, cost.time.and(cost.prefill)];
                    let [token, first] = times.map(|time| stage.of(time).saturating_mul(1000));
                    let own = [bytes, bytes, loss, token, first];
                    least.iter_mut().zip(own).for_each(|(least, own)| *least = own.min(*least));
                }
                sums.iter_mut().zip(least).for_each(|(sum, least)| *sum = sum.saturating_add(least));
            }
        }
        bounds.iter().zip(sums).any(|(bound, sum)| bound.is_some_and(|most| sum > most))
    }

    /// Returns the times of shards, given as targets and costs in the order of execution.
    pub(super) fn times<'c>(&self, shards: impl Iterator<Item = (u32, &'c RangeCost)>) -> Times {
        let mut times = Times::default();
        let mut before = None;
        for (target, cost) in shards {
            let moved = before.map_or(0, |before| self.transfer(before, target));
            let hand_off = self.hand_off(moved, cost, false);
            times.token.add(cost.time, hand_off.token);
            times.first_token.add(cost.time.and(cost.prefill), hand_off.first_token);
            before = Some(target);
        }
        times
    }

    /// Returns the time of the runtime that is added by a shard, or by a component with this cost
    /// that joins one. `moved` is the time of the transfer of a row to the shard.
    pub(super) fn hand_off(&self, moved: u64, cost: &RangeCost, joins: bool) -> HandOff {
        let boundary = self.request.boundary_nanoseconds;
        let token = if joins { 0 } else { boundary.saturating_add(moved) };
        let rows = if cost.prefill_runs > 0 { self.prompt_rows } else { 0 };
        let prefill = boundary.saturating_mul(cost.prefill_runs).saturating_add(moved.saturating_mul(rows));
        HandOff { token, first_token: token.saturating_add(prefill) }
    }
}
