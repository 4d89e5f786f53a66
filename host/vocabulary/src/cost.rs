use serde::{Deserialize, Serialize};

use crate::{EntryName, Provenance};

/// Whether a target takes a layer kind in a format.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Legality {
    /// It does.
    Legal,
    /// It does not, for this reason.
    Illegal(String),
}

/// What running something costs in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeCost {
    /// Microseconds for one run of the entry point.
    pub microseconds: u64,
    /// Where the number comes from.
    pub provenance: Provenance,
}

/// The default provenance of a number of bytes.
const fn modelled() -> Provenance {
    Provenance::Modelled
}

/// One row of the cost table: one layer kind on one target in one format tuple at one entry point.
/// Costs of a shard are the sums over its layers, so a planner adds up any cut exactly.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostRow {
    /// Layer kind: layers of equal structure share one.
    pub kind: u32,
    /// Index of the target in the request.
    pub target: u32,
    /// Index of the format tuple in the request.
    pub formats: u32,
    /// Entry point.
    pub entry: EntryName,
    /// Operations after legalisation; zero where this kind takes no part in the entry point.
    pub ops: u64,
    /// Weight bytes. Entry points share one set, so a shard holds the largest of its entry points.
    pub weight_bytes: u64,
    /// Bytes this entry point adds to the compiled artefact beside one set of weights: its
    /// instructions, and weights again where the artefact holds them once for every entry point.
    pub artefact_bytes: u64,
    /// Where that number comes from.
    #[serde(default = "modelled")]
    pub artefact_provenance: Provenance,
    /// State bytes at the entry point's context capacity; a shard holds the largest of its entry
    /// points.
    pub state_bytes: u64,
    /// Whether the target takes it.
    pub legality: Legality,
    /// Time of one run; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<TimeCost>,
    /// Operations the time does not cover.
    #[serde(default)]
    pub uncosted_ops: u64,
}
