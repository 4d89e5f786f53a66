//! The times of a plan: one sum for its check, for reports and for repairs, so that none of them
//! counts other parts than the others.
//!
//! A step of an entry point runs every shard that has it. Its time consists of the computation and
//! the call of each shard, soft-caps that the runtime computes, and the hand-off between shards.

use std::collections::BTreeSet;

use shardwright_vocabulary::{EntryKind, EntryName, Provenance, SoftcapPlace, TimeCost};

use crate::checked_plan::{CheckedPlan, CheckedShard};
use crate::cost::{EntryCost, prompt_runs};
use crate::request::Request;

/// Predicted times of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanTimes {
    /// Time of a generated token: a step of one row. For a model without states, a run of its
    /// largest entry point.
    pub token: TimeCost,
    /// Time from a prompt of the goals' length to the first token of its answer. `None` for a model
    /// without states.
    pub first_token: Option<TimeCost>,
}

/// Returns the times that goals refer to.
pub fn plan_times(request: &Request, plan: &CheckedPlan) -> PlanTimes {
    let encode = || of_kind(plan, EntryKind::Encode).max_by_key(|entry| entry.rows);
    let token = single_decode(plan).or_else(encode);
    PlanTimes {
        token: token.map_or(TimeCost::ZERO, |token| entry_time(request, plan, token)),
        first_token: first_token(request, plan, request.goals.prompt_tokens),
    }
}

/// Returns the time of one run of all shards that have an entry point.
pub fn entry_time(request: &Request, plan: &CheckedPlan, entry: EntryName) -> TimeCost {
    Step::of(request, plan, entry).time()
}

/// Returns the time from a prompt of `tokens` tokens to the first token of its answer. Prefill
/// reads all tokens but the last, and decode reads the last. Without prefill entry points, decode
/// reads all tokens. Returns `None` for a model without states.
pub fn first_token(request: &Request, plan: &CheckedPlan, tokens: u32) -> Option<TimeCost> {
    let mut readers: Vec<EntryName> = of_kind(plan, EntryKind::Prefill).collect();
    if readers.is_empty() {
        readers = of_kind(plan, EntryKind::Decode).collect();
    }
    let last = Step::of(request, plan, single_decode(plan)?);
    let runs = prompt_runs(&readers, tokens).into_iter();
    let all = runs.map(|(entry, runs)| Step::of(request, plan, entry).times(runs));
    Some(all.fold(last, Step::and).time())
}

/// Returns the time of the runtime for the soft-cap of a shard in a step. `None` if the shard has
/// none that the runtime computes. A prefill returns no values to cap.
pub fn softcap_time(request: &Request, shard: &CheckedShard, entry: EntryName) -> Option<TimeCost> {
    if shard.planned.softcap != Some(SoftcapPlace::Runtime) || entry.kind == EntryKind::Prefill {
        return None;
    }
    let mut components =
        shard.planned.segments.iter().filter_map(|own| request.model.components.get(own.component as usize));
    let softcap = components.find_map(|component| component.softcap.as_ref())?;
    Some(softcap.runtime.times(entry.rows.into()))
}

/// Returns the nanoseconds of the runtime for handing values over between shards in a step: for
/// every shard that runs, and for the rows of every shard that follows one on another device.
pub fn hand_off_nanoseconds(request: &Request, plan: &CheckedPlan, entry: EntryName) -> u64 {
    let shards: Vec<&CheckedShard> = parts(plan, entry).map(|(shard, _)| shard).collect();
    let is_move = |pair: &&[&CheckedShard]| {
        let (from, to) = (&pair[0].target, &pair[1].target);
        (&from.shim, &from.device) != (&to.shim, &to.device)
    };
    let moves = shards.windows(2).filter(is_move).count();
    let boundaries = request.boundary_nanoseconds.saturating_mul(shards.len() as u64);
    let moved = request.transfer_nanoseconds.saturating_mul(entry.rows.into());
    boundaries.saturating_add(moved.saturating_mul(moves as u64))
}

/// Iterates over the shards that run in a step, with their costs.
fn parts(plan: &CheckedPlan, entry: EntryName) -> impl Iterator<Item = (&CheckedShard, &EntryCost)> {
    plan.shards().iter().filter_map(move |shard| {
        let part = shard.cost.entries.iter().find(|part| part.entry == entry)?;
        Some((shard, part))
    })
}

/// Iterates over the entry points of a kind, without duplicates.
fn of_kind(plan: &CheckedPlan, kind: EntryKind) -> impl Iterator<Item = EntryName> {
    let all = plan.shards().iter().flat_map(|shard| &shard.cost.entries).map(|part| part.entry);
    all.filter(|entry| entry.kind == kind).collect::<BTreeSet<_>>().into_iter()
}

/// Returns the entry point that runs the fewest tokens through the whole model: one in any plan for
/// a model with states.
fn single_decode(plan: &CheckedPlan) -> Option<EntryName> {
    of_kind(plan, EntryKind::Decode).min_by_key(|entry| entry.rows)
}

/// Time of steps. The hand-off is added up in nanoseconds, because one is shorter than a
/// microsecond.
#[derive(Clone, Copy)]
struct Step {
    time: TimeCost,
    hand_off_nanoseconds: u64,
}

impl Step {
    fn of(request: &Request, plan: &CheckedPlan, entry: EntryName) -> Step {
        let own = |(shard, part): (&CheckedShard, &EntryCost)| {
            let softcap = softcap_time(request, shard, entry).unwrap_or_default();
            part.time.saturating_add(shard.cost.call).saturating_add(softcap)
        };
        let time = parts(plan, entry).map(own).fold(TimeCost::ZERO, TimeCost::saturating_add);
        Step { time, hand_off_nanoseconds: hand_off_nanoseconds(request, plan, entry) }
    }

    fn times(self, runs: u64) -> Step {
        let hand_off_nanoseconds = self.hand_off_nanoseconds.saturating_mul(runs);
        Step { time: self.time.times(runs), hand_off_nanoseconds }
    }

    fn and(self, other: Step) -> Step {
        Step {
            time: self.time.saturating_add(other.time),
            hand_off_nanoseconds: self.hand_off_nanoseconds.saturating_add(other.hand_off_nanoseconds),
        }
    }

    /// Returns the sum. A hand-off does not weaken its provenance, because it is a small part.
    fn time(self) -> TimeCost {
        let up = self.hand_off_nanoseconds.div_ceil(1000);
        let hand_off = TimeCost::within(self.hand_off_nanoseconds / 1000, up, up, Provenance::Measured);
        self.time.saturating_add(hand_off)
    }
}
