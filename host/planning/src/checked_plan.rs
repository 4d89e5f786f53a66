//! A checked plan, with its indices resolved and the costs of its shards. Only
//! [`check`](crate::check::check) makes one.

use shardwright_vocabulary::{ChosenSpeculation, Lesson, Segments, ShardFormats, Target};

use crate::cost::ShardCost;
use crate::plan::{Plan, Shard};
use crate::request::TableFormat;

/// A plan that was checked against its request, with the costs of its shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedPlan {
    pub(crate) plan: Plan,
    pub(crate) shards: Vec<CheckedShard>,
    pub(crate) tables: Vec<CheckedTable>,
    pub(crate) speculation: Option<ChosenSpeculation>,
    pub(crate) loss: Loss,
}

/// A gathered table of a checked plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedTable {
    pub name: String,
    /// The format that the plan chose.
    pub chosen: TableFormat,
}

/// A shard of a checked plan, with its indices resolved, and its cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedShard {
    /// Name, such as `decoder.0-12` or `embed+decoder.0-35+head`.
    pub name: String,
    pub segments: Segments,
    pub target: Target,
    /// Formats of weights, activations, states and attention.
    pub formats: ShardFormats,
    /// The shard as written in the plan.
    pub planned: Shard,
    pub cost: ShardCost,
}

/// Quality loss of a plan because of the formats of its weights, activations, states and tables. A
/// quality goal limits only the known part, so plans with unknown losses of activations, states and
/// attention can pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Loss {
    /// Known part: KL divergence in millionths of a nat per token.
    pub micronats: u64,
    /// The measured part of `micronats`.
    pub measured: u64,
    /// Number of lossy units: layers, components without layers, and gathered tables whose formats
    /// lose quality.
    pub lossy: u64,
    /// Number of lossy units whose loss is unknown.
    pub unmeasured: u64,
    /// Number of lossy units whose loss was not measured but estimated from the errors of their
    /// weights.
    pub modelled: u64,
}

impl CheckedPlan {
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the shards in order of execution.
    pub fn shards(&self) -> &[CheckedShard] {
        &self.shards
    }

    /// Returns the gathered tables, in the order of the request.
    pub fn tables(&self) -> &[CheckedTable] {
        &self.tables
    }

    /// Returns how the plan verifies proposed tokens, if it does.
    pub fn speculation(&self) -> Option<&ChosenSpeculation> {
        self.speculation.as_ref()
    }

    /// Returns the rows of the largest entry point of all shards.
    pub fn largest_rows(&self) -> u32 {
        self.plan.shards.iter().flat_map(|shard| &shard.entries).map(|entry| entry.rows).max().unwrap_or(1)
    }

    /// Returns the predicted quality loss.
    pub fn loss(&self) -> Loss {
        self.loss
    }

    /// Replaces the lessons. The caller keeps them within the bounds of [`lessons`](crate::lessons).
    pub(crate) fn with_lessons(mut self, lessons: Vec<Lesson>) -> Self {
        self.plan.lessons = lessons;
        self
    }

    /// Returns the plan without the proof of its check.
    pub fn into_plan(self) -> Plan {
        self.plan
    }
}
