//! Memory of a model.

use serde::Serialize;
use shardwright::Model;
use shardwright::tools::ModelTools;
use shardwright_runtime::Session;

/// Bytes of memory, if they are known.
#[derive(Debug, Serialize)]
pub struct Memory {
    /// Weights of the shards as planned. Unknown for a bundle without the report of its plan.
    pub weight_bytes: Option<u64>,
    /// Artefacts of the shards, which contain the weights as the shims store them.
    pub artefact_bytes: u64,
    /// Resident part of the artefacts after the measurements. Unknown if a worker process uses one
    /// of them.
    pub artefact_resident_bytes: Option<u64>,
    /// Part of these resident bytes that is in huge pages.
    pub huge_bytes: Option<u64>,
    /// Resident bytes of the artefacts on each memory node. Unknown on machines with one node.
    pub node_bytes: Option<Vec<u64>>,
    /// Gathered tables, of which a step reads only a few rows.
    pub table_bytes: u64,
    /// Keys and values of one session.
    pub state_bytes: u64,
    /// Resident memory of this process after a round of everything, mapped files included. Other
    /// processes, such as a shim's own, are not included.
    pub resident_bytes: Option<u64>,
    /// Peak resident memory, including planning and compiling if a checkpoint was opened.
    pub peak_resident_bytes: Option<u64>,
}

/// Returns the current memory.
pub fn memory(model: &Model, session: &Session) -> Memory {
    let resident = shardwright_measure::resident_memory();
    let tables = model.chain().assets().iter().map(|asset| asset.table.bytes());
    Memory {
        weight_bytes: model.plan().map(|plan| plan.shards.iter().map(|shard| shard.weight_bytes).sum()),
        artefact_bytes: model.chain().weight_bytes(),
        artefact_resident_bytes: None,
        huge_bytes: None,
        node_bytes: None,
        table_bytes: tables.sum(),
        state_bytes: session.placement().states.iter().map(|state| state.bytes).sum(),
        resident_bytes: resident.map(|(now, _)| now),
        peak_resident_bytes: resident.map(|(_, most)| most),
    }
}

impl Memory {
    /// Adds the current pages of the artefacts. They may be moved while the model runs.
    pub fn with_pages(self, model: &Model) -> Memory {
        let pages = model.chain().artefact_pages();
        Memory {
            artefact_resident_bytes: pages.map(|pages| pages.resident),
            huge_bytes: pages.map(|pages| pages.huge),
            node_bytes: model.chain().artefact_node_bytes(),
            ..self
        }
    }
}
