use serde::{Deserialize, Serialize};

/// Index of a state within its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StateId(pub u32);

/// Addressing of a state's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum StateKind {
    /// One row per position. The capacity is the context.
    Linear,
    /// Only the last rows: `slot = position mod capacity`. The capacity is the window plus the
    /// largest row count of the plan's entries, and at most the context. A query inside a chunk
    /// still needs the keys before the chunk.
    Ring {
        /// Visible distance, including the query itself.
        window: u32,
    },
}

/// A key or value state. One layer writes it. This layer and the layers that share it read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Name, such as `layer.13.k`.
    pub name: String,
    /// The layer that writes it.
    pub layer: u32,
    /// Values per row: `kv_heads · head_dim`.
    pub width: u64,
    /// Addressing of the rows.
    pub kind: StateKind,
}

impl State {
    /// Returns the number of rows for a context capacity and the largest row count among the
    /// entries that share the state.
    pub fn capacity(&self, context: u64, largest_rows: u64) -> u64 {
        match self.kind {
            StateKind::Linear => context,
            StateKind::Ring { window } => context.min(u64::from(window).saturating_add(largest_rows)),
        }
    }
}
