//! The goals of a plan, and its predictions for them.

use serde::{Deserialize, Serialize};
use shardwright_planning::check::CheckedPlan;
use shardwright_planning::cost::{prompt_runs, weakest};
use shardwright_planning::request::Request;
use shardwright_vocabulary::{EntryKind, EntryName, Provenance, TimeCost};

use super::{LossReport, PlanTotals};

/// The quantity of a goal, and its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// Maximum quality loss in millionths of a nat per token.
    Quality,
    /// Maximum bytes of artefacts and states of all shards.
    Memory,
    /// Minimum context in tokens.
    Context,
    /// Maximum rows of a prefill or encode entry point.
    PrefillRows,
    /// Maximum bytes of artefacts of all shards and of gathered tables.
    Size,
    /// Maximum microseconds per generated token.
    Token,
    /// Maximum microseconds from a prompt to the first token of its answer.
    FirstToken,
}

impl Goal {
    /// Returns the stable kebab-case name.
    pub const fn name(self) -> &'static str {
        match self {
            Goal::Quality => "quality",
            Goal::Memory => "memory",
            Goal::Context => "context",
            Goal::PrefillRows => "prefill-rows",
            Goal::Size => "size",
            Goal::Token => "token",
            Goal::FirstToken => "first-token",
        }
    }

    /// Returns whether the goal is a lower bound. Other goals are upper bounds.
    pub const fn is_least(self) -> bool {
        matches!(self, Goal::Context)
    }
}

/// A goal and the plan's prediction for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoalReport {
    /// The quantity that is bounded.
    pub goal: Goal,
    /// The requested bound.
    pub asked: u64,
    /// The prediction of the plan, or `None` if it is unknown.
    pub predicted: Option<u64>,
    /// Where the prediction comes from, or `None` if the plan itself decides the number.
    pub provenance: Option<Provenance>,
    /// Whether the prediction meets the goal, or `None` without a prediction.
    pub met: Option<bool>,
}

/// Returns the goals that were set.
pub(super) fn goals(request: &Request, plan: &CheckedPlan, totals: &PlanTotals) -> Vec<GoalReport> {
    let asked = &request.goals;
    let mut found = Vec::new();
    let mut add = |goal: Goal, asked: u64, predicted: Option<u64>, provenance| {
        let meets = |predicted| if goal.is_least() { predicted >= asked } else { predicted <= asked };
        found.push(GoalReport { goal, asked, predicted, provenance, met: predicted.map(meets) });
    };
    if let Some(micronats) = asked.quality_micronats {
        let (predicted, provenance) = match totals.loss {
            LossReport::None => (Some(0), None),
            LossReport::Measured { micronats } => (Some(micronats), Some(Provenance::Measured)),
            LossReport::Expected { micronats, .. } => (Some(micronats), Some(Provenance::Modelled)),
            LossReport::NotMeasured { .. } => (None, None),
        };
        add(Goal::Quality, micronats, predicted, provenance);
    }
    if let Some(bytes) = asked.memory_bytes {
        let held = totals.artefacts.bytes.saturating_add(totals.state_bytes);
        add(Goal::Memory, bytes, Some(held), Some(totals.artefacts.provenance));
    }
    if asked.context > 0 {
        let context = plan.shards().iter().map(|shard| shard.planned.context).min();
        add(Goal::Context, asked.context.into(), context.map(u64::from), None);
    }
    let rows = plan.shards().iter().flat_map(|shard| &shard.planned.entries);
    let rows = rows.filter(|entry| entry.kind != EntryKind::Decode).map(|entry| entry.rows).max();
    add(Goal::PrefillRows, asked.max_prefill_rows.into(), rows.map(u64::from), None);
    if let Some(bytes) = asked.size_bytes {
        let size = totals.artefacts.bytes.saturating_add(totals.table_bytes);
        add(Goal::Size, bytes, Some(size), Some(totals.artefacts.provenance));
    }
    // Goals on times do not include the time for passing values between shards.
    let of_kind = |kind: EntryKind| totals.times.iter().filter(move |time| time.entry.kind == kind);
    let single = of_kind(EntryKind::Decode).min_by_key(|time| time.entry.rows);
    let token = single.or_else(|| of_kind(EntryKind::Encode).max_by_key(|time| time.entry.rows));
    let token = token.and_then(|token| token.time);
    if let Some(microseconds) = asked.token_microseconds {
        let provenance = token.map(|token| token.provenance);
        add(Goal::Token, microseconds, token.map(|token| token.microseconds), provenance);
    }
    if let Some(microseconds) = asked.first_token_microseconds {
        let prefills: Vec<EntryName> = of_kind(EntryKind::Prefill).map(|time| time.entry).collect();
        let once = |entry: EntryName| of_kind(EntryKind::Prefill).find(|time| time.entry == entry)?.time;
        let runs = prompt_runs(&prefills, asked.prompt_tokens);
        let first = runs.into_iter().try_fold(token, |sum, (entry, runs)| {
            let (sum, once) = (sum?, once(entry)?);
            let microseconds = sum.microseconds.saturating_add(once.microseconds.saturating_mul(runs));
            Some(Some(TimeCost { microseconds, provenance: weakest(sum.provenance, once.provenance) }))
        });
        let first = first.flatten().filter(|_| !prefills.is_empty());
        add(
            Goal::FirstToken,
            microseconds,
            first.map(|first| first.microseconds),
            first.map(|first| first.provenance),
        );
    }
    found
}
