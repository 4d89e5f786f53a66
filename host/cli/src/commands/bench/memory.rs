//! What a model takes of memory.

use serde::Serialize;
use shardwright::Model;
use shardwright_runtime::Session;

/// Bytes, where they are known.
#[derive(Debug, Serialize)]
pub struct Memory {
    /// Weights of the shards as planned; unknown for a bundle without the report of its plan.
    pub weight_bytes: Option<u64>,
    /// Gathered tables; of these a step reads a few rows.
    pub table_bytes: u64,
    /// Keys and values of one session.
    pub state_bytes: u64,
    /// What this process has resident after a round of everything, mapped files included; processes
    /// beside it, such as a shim's own, are not.
    pub resident_bytes: Option<u64>,
    /// The most it ever had: planning and compiling included where a checkpoint was opened.
    pub peak_resident_bytes: Option<u64>,
}

/// As it is now.
pub fn memory(model: &Model, session: &Session) -> Memory {
    let resident = shardwright_measure::resident_memory();
    let tables = model.chain().assets().iter().map(|asset| asset.table.bytes());
    Memory {
        weight_bytes: model.plan().map(|plan| plan.shards.iter().map(|shard| shard.weight_bytes).sum()),
        table_bytes: tables.sum(),
        state_bytes: session.placement().states.iter().map(|state| state.bytes).sum(),
        resident_bytes: resident.map(|(now, _)| now),
        peak_resident_bytes: resident.map(|(_, most)| most),
    }
}
