use serde::{Deserialize, Serialize};

use crate::{EntryName, Provenance};

/// Whether a target supports a layer kind in a format tuple.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Legality {
    /// The target supports it.
    Legal,
    /// The target does not support it, for this reason.
    Illegal(String),
}

/// Execution time of one run, with the source of the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeCost {
    /// Microseconds for one run of the entry point.
    pub microseconds: u64,
    /// Source of the number.
    pub provenance: Provenance,
}

/// Returns the default provenance of a number of bytes.
const fn modelled() -> Provenance {
    Provenance::Modelled
}

/// One row of the cost table: one layer kind on one target in one format tuple at one entry point.
/// The costs of a shard are the sums over its layers, so a planner can compute the cost of any cut
/// exactly.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostRow {
    /// Layer kind. Layers of equal structure share one.
    pub kind: u32,
    /// Index of the target in the request.
    pub target: u32,
    /// Index of the format tuple in the request.
    pub formats: u32,
    /// Entry point that the row is for.
    pub entry: EntryName,
    /// Operations after legalisation. Zero if this kind is not part of the entry point.
    pub ops: u64,
    /// Weight bytes. Entry points share one set, so a shard counts the maximum over its entry
    /// points.
    pub weight_bytes: u64,
    /// Bytes that this entry point adds to the compiled artefact, on top of one set of weights: its
    /// instructions, and another set of weights if the artefact stores weights per entry point.
    pub artefact_bytes: u64,
    /// Source of `artefact_bytes`.
    #[serde(default = "modelled")]
    pub artefact_provenance: Provenance,
    /// State bytes at the entry point's context capacity. A shard counts the maximum over its entry
    /// points.
    pub state_bytes: u64,
    /// Whether the target supports this layer kind in these formats.
    pub legality: Legality,
    /// Time of one run. `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<TimeCost>,
    /// Number of operations that `time` does not cover.
    #[serde(default)]
    pub uncosted_ops: u64,
}
