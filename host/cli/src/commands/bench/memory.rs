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
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let tables = model.chain().assets().iter().map(|asset| asset.table.bytes());
    Memory {
        weight_bytes: model.plan().map(|plan| plan.shards.iter().map(|shard| shard.weight_bytes).sum()),
        table_bytes: tables.sum(),
        state_bytes: session.placement().states.iter().map(|state| state.bytes).sum(),
        resident_bytes: field(&status, "VmRSS:"),
        peak_resident_bytes: field(&status, "VmHWM:"),
    }
}

/// A size of Linux's own account of a process, in bytes; other systems give none.
fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_are_read_where_they_stand() {
        let status = "Name:\tshardwright\nVmHWM:\t    2048 kB\nVmRSS:\t 1024 kB\n";
        assert_eq!(super::field(status, "VmHWM:"), Some(2 << 20));
        assert_eq!(super::field(status, "VmRSS:"), Some(1 << 20));
        assert_eq!(super::field("", "VmRSS:"), None);
        assert_eq!(super::field("VmRSS: much kB", "VmRSS:"), None);
    }
}
