use serde::{Deserialize, Serialize};

/// Index of a state within its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StateId(pub u32);

/// How rows of a state are addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum StateKind {
    /// One row per position; capacity is the context.
    Linear,
    /// The last rows only: `slot = position mod capacity`, capacity = window + the largest row
    /// count of the plan's entries (a query inside a chunk still needs the keys before the chunk),
    /// at most the context.
    Ring {
        /// Visible distance, the query itself included.
        window: u32,
    },
}

/// A key or value state, written by one layer and read by it and by the layers that share it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// `layer.13.k`
    pub name: String,
    /// The layer that writes it.
    pub layer: u32,
    /// Values per row: `kv_heads · head_dim`.
    pub width: u64,
    /// Addressing.
    pub kind: StateKind,
}

impl State {
    /// Rows of the state for a context capacity and the largest row count among the entries that
    /// share it.
    pub fn capacity(&self, context: u64, largest_rows: u64) -> u64 {
        match self.kind {
            StateKind::Linear => context,
            StateKind::Ring { window } => context.min(u64::from(window).saturating_add(largest_rows)),
        }
    }
}
