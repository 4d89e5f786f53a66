//! What a plan was asked to achieve, and what it is predicted to.

use serde::{Deserialize, Serialize};
use shardwright_planning::check::CheckedPlan;
use shardwright_planning::cost::weakest;
use shardwright_planning::request::Request;
use shardwright_vocabulary::{EntryKind, Provenance};

use super::{LossReport, PlanTotals};

/// What a goal is about, and its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// Loss of quality in millionths of a nat per token, at most.
    Quality,
    /// Bytes of artefacts and states of all shards, at most.
    Memory,
    /// Context in tokens, at least.
    Context,
    /// Rows of a prefill or encode entry point, at most.
    PrefillRows,
    /// Microseconds per generated token, at most. A wish: times are estimates.
    Latency,
}

impl Goal {
    /// The stable kebab-case name.
    pub const fn name(self) -> &'static str {
        match self {
            Goal::Quality => "quality",
            Goal::Memory => "memory",
            Goal::Context => "context",
            Goal::PrefillRows => "prefill-rows",
            Goal::Latency => "latency",
        }
    }

    /// Whether the goal is a lower bound; else it is an upper one.
    pub const fn is_least(self) -> bool {
        matches!(self, Goal::Context)
    }
}

/// A goal and what the plan makes of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoalReport {
    /// What it is about.
    pub goal: Goal,
    /// What was asked for.
    pub asked: u64,
    /// What the plan comes to; `None` if that is not known.
    pub predicted: Option<u64>,
    /// Where the prediction comes from; `None` if the plan itself decides the number.
    pub provenance: Option<Provenance>,
    /// Whether the prediction meets it; `None` if there is none.
    pub met: Option<bool>,
}

/// The goals that were set.
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
            LossReport::NotMeasured { .. } => (None, None),
        };
        add(Goal::Quality, micronats, predicted, provenance);
    }
    if let Some(bytes) = asked.memory_bytes {
        add(Goal::Memory, bytes, Some(totals.peak.bytes), Some(totals.peak.provenance));
    }
    if asked.context > 0 {
        let context = plan.shards().iter().map(|shard| shard.planned.context).min();
        add(Goal::Context, asked.context.into(), context.map(u64::from), None);
    }
    let rows = plan.shards().iter().flat_map(|shard| &shard.planned.entries);
    let rows = rows.filter(|entry| entry.kind != EntryKind::Decode).map(|entry| entry.rows).max();
    add(Goal::PrefillRows, asked.max_prefill_rows.into(), rows.map(u64::from), None);
    if let Some(microseconds) = asked.latency_microseconds {
        let token =
            totals.times.iter().find(|time| time.entry.kind == EntryKind::Decode && time.entry.rows == 1);
        let token = token.and_then(|token| token.time);
        let boundaries = totals.boundary_nanoseconds.div_ceil(1000);
        add(
            Goal::Latency,
            microseconds,
            token.map(|token| token.microseconds.saturating_add(boundaries)),
            token.map(|token| weakest(token.provenance, Provenance::Modelled)),
        );
    }
    found
}
