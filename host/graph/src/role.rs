use serde::{Deserialize, Serialize};

use crate::{AssetId, AxialRope, Rope, StateId};

/// Mask value of an invisible key. It is finite, so that a completely invisible row results in
/// numbers rather than NaN. It is far below any score, so that `exp` of the difference is exactly 0
/// in f32.
pub const INVISIBLE: f32 = -1.0e30;

/// The rotary table in a `rotary-cos` or `rotary-sin` step input: `f32 [R, head_dim/2]`.
pub type Rotary = Rope;

/// Meaning of the columns of a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "keys")]
pub enum Keys {
    /// Slots of a state that already contains the new rows. The width is `capacity`.
    State {
        /// Number of rows of the state.
        capacity: u64,
    },
    /// Slots of a state *before* this run, followed by the new rows. The width is `capacity + R`.
    /// Always causal.
    StateAndRows {
        /// Number of rows of the state.
        capacity: u64,
    },
    /// The entry's own rows. The width is `R`.
    Rows,
}

/// The additive mask in a `mask` step input: `f32 [R, keys]`, 0 for visible keys and [`INVISIBLE`]
/// for others.
///
/// For a query at position p and a state of capacity C, slot s contains position
/// `p' = p − ((p − s) mod C)` after the row at p was written. It is visible if and only if `p' ≥ 0`
/// and (no window or `p' > p − window`). In a state before the run, whose first row is at position
/// p₀, slot s contains `p' = (p₀ − 1) − ((p₀ − 1 − s) mod C)` for every row of the run, with the
/// same condition. Row j of the entry's own rows is visible to row i if and only if it is valid,
/// not later than i (if causal), and `|i − j| < window` (if there is a window).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mask {
    /// Meaning of the columns.
    #[serde(flatten)]
    pub keys: Keys,
    /// Visible distance, including the query itself. 0 for no limit.
    pub window: u32,
    /// Whether later keys are invisible.
    pub causal: bool,
}

/// A coordinate of a patch in its picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GridAxis {
    /// From left to right.
    Column,
    /// From top to bottom.
    Row,
}

impl GridAxis {
    /// Returns the name, as used in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            GridAxis::Column => "column",
            GridAxis::Row => "row",
        }
    }
}

/// Meaning of an entry point's input or output. This list is closed: `legalise` may turn a
/// sub-expression into a listed role but never invents a role.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "role")]
pub enum Role {
    /// Step input `i32 [R]`: position of each row. Rows beyond the valid ones continue the count.
    Positions,
    /// Step input `i32 [R]`: the state row for each new row (`position mod capacity`), −1 beyond
    /// the valid rows.
    Slots {
        /// Number of rows of the states with this numbering.
        capacity: u64,
    },
    /// Step input `f32 [R, head_dim/2]`: cosines of rotary embedding.
    RotaryCos(Rotary),
    /// Step input `f32 [R, head_dim/2]`: sines of rotary embedding.
    RotarySin(Rotary),
    /// Step input `f32 [R, keys]`: additive attention mask.
    Mask(Mask),
    /// Step input `f32 [1, R]`: 1/rows for valid rows, 0 beyond.
    Pooling,
    /// Step input `f32 [R, width]`: rows that the runtime gathered from an asset by token id.
    Gathered { asset: AssetId },
    /// Step input `f32 [_, width]`: patches of a picture or frames of a sound, from a front end.
    /// Zeros beyond the valid ones. The component specifies the number per row.
    Features,
    /// Step input `i32 [R]`: position of each row's patch in its picture. −1 beyond the valid rows.
    Grid { axis: GridAxis },
    /// Step input `f32 [rate·R, 1]`: 1 for valid rows, 0 beyond. There are `rate` rows per row of
    /// the entry. For F valid features, with `most` features per row of the entry,
    /// `⌈F · rate / most⌉` rows are valid.
    Valid {
        /// Rows per row of the entry.
        rate: u32,
    },
    /// Step input `f32 [2·R, head_dim/4]`: cosines by the column coordinates of all rows, then by
    /// their row coordinates.
    AxialCos(AxialRope),
    /// Step input `f32 [2·R, head_dim/4]`: sines in the same order.
    AxialSin(AxialRope),
    /// Step input `f32 [R, width]`: rows that the runtime gathered from an asset by a coordinate.
    /// Zeros beyond the valid rows.
    GatheredByGrid { asset: AssetId, axis: GridAxis },
    /// Boundary `f32 [R, H]`: the residual stream.
    Hidden,
    /// Boundary `f32 [layers, R, P]`: per-layer inputs of the shard's layers, a contiguous slice of
    /// the whole.
    PerLayer {
        /// First layer of the slice.
        first: u32,
        /// Number of layers in the slice.
        layers: u32,
    },
    /// Output `f32 [R, V]`: logits.
    Logits,
    /// Output `f32 [D]`: a sentence vector.
    Embedding,
    /// Output `f32 [_, H]`: rows that replace embedding rows in a prompt. They are scaled like
    /// embedding rows.
    SoftRows,
    /// Extra output for verification. Never shipped.
    Tap {
        /// Name, such as `layer.3`, `final-norm` or `pooled`.
        name: String,
    },
    /// A whole state, input before and output after the run: `[capacity, width]`.
    State { state: StateId },
    /// Output `[R, width]`: the new rows of a state that the runtime copies to their slots
    /// (`update: by-runtime`).
    StateRows { state: StateId },
}

impl Role {
    /// Returns the frozen number used in the shim contract.
    pub const fn number(&self) -> u32 {
        match self {
            Role::Positions => 1,
            Role::Slots { .. } => 2,
            Role::RotaryCos(_) => 3,
            Role::RotarySin(_) => 4,
            Role::Mask(_) => 5,
            Role::Pooling => 6,
            Role::Gathered { .. } => 7,
            Role::Features => 8,
            Role::Grid { .. } => 9,
            Role::Valid { .. } => 10,
            Role::AxialCos(_) => 11,
            Role::AxialSin(_) => 12,
            Role::GatheredByGrid { .. } => 13,
            Role::Hidden => 16,
            Role::PerLayer { .. } => 17,
            Role::Logits => 18,
            Role::Embedding => 19,
            Role::Tap { .. } => 20,
            Role::SoftRows => 21,
            Role::State { .. } => 32,
            Role::StateRows { .. } => 33,
        }
    }

    /// Returns the kebab-case name, as used in JSON and reports.
    pub const fn name(&self) -> &'static str {
        match self {
            Role::Positions => "positions",
            Role::Slots { .. } => "slots",
            Role::RotaryCos(_) => "rotary-cos",
            Role::RotarySin(_) => "rotary-sin",
            Role::Mask(_) => "mask",
            Role::Pooling => "pooling",
            Role::Gathered { .. } => "gathered",
            Role::Features => "features",
            Role::Grid { .. } => "grid",
            Role::Valid { .. } => "valid",
            Role::AxialCos(_) => "axial-cos",
            Role::AxialSin(_) => "axial-sin",
            Role::GatheredByGrid { .. } => "gathered-by-grid",
            Role::Hidden => "hidden",
            Role::PerLayer { .. } => "per-layer",
            Role::Logits => "logits",
            Role::Embedding => "embedding",
            Role::Tap { .. } => "tap",
            Role::SoftRows => "soft-rows",
            Role::State { .. } => "state",
            Role::StateRows { .. } => "state-rows",
        }
    }

    /// Returns whether the runtime has it before a pass begins. It comes from positions and token
    /// ids, or from a front end's output for a picture or a clip.
    pub const fn is_step_input(&self) -> bool {
        self.number() < 16
    }
}
