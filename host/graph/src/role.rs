use serde::{Deserialize, Serialize};

use crate::{AssetId, AxialRope, Rope, StateId};

/// Mask value of an invisible key. Finite, so that a wholly invisible row gives numbers rather than
/// NaN; far below any score, so that `exp` of the difference is exactly 0 in f32.
pub const INVISIBLE: f32 = -1.0e30;

/// The rotary table a `rotary-cos` or `rotary-sin` step input holds: `f32 [R, head_dim/2]`.
pub type Rotary = Rope;

/// What the columns of a mask stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "keys")]
pub enum Keys {
    /// Slots of a state that already holds the new rows; width `capacity`.
    State {
        /// Rows of the state.
        capacity: u64,
    },
    /// Slots of a state *before* this run, then the new rows; width `capacity + R`. Always causal.
    StateAndRows {
        /// Rows of the state.
        capacity: u64,
    },
    /// The entry's own rows; width `R`.
    Rows,
}

/// The additive mask a `mask` step input holds: `f32 [R, keys]`, 0 where visible and [`INVISIBLE`]
/// elsewhere.
///
/// For a query at position p and a state of capacity C, slot s holds position
/// `p' = p − ((p − s) mod C)` once the row at p was written; it is visible iff `p' ≥ 0` and (no
/// window or `p' > p − window`). In a state before the run, whose first row stands at p₀, slot s
/// holds `p' = (p₀ − 1) − ((p₀ − 1 − s) mod C)` for every row of the run, with the same condition.
/// Row j of the entry's own rows is visible to row i iff it is valid, not later than i (where
/// causal), and `|i − j| < window` (where there is one).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mask {
    /// What the columns are.
    #[serde(flatten)]
    pub keys: Keys,
    /// Visible distance, the query itself included; 0 for none.
    pub window: u32,
    /// Whether later keys are invisible.
    pub causal: bool,
}

/// A coordinate of a patch in its picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GridAxis {
    /// From the left.
    Column,
    /// From the top.
    Row,
}

impl GridAxis {
    /// The name, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            GridAxis::Column => "column",
            GridAxis::Row => "row",
        }
    }
}

/// What an input or output of an entry point means. A closed list: `legalise` may lift a
/// sub-expression into a listed role and never invents one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "role")]
pub enum Role {
    /// Step input `i32 [R]`: position of each row; rows beyond the valid ones continue the count.
    Positions,
    /// Step input `i32 [R]`: the state row each new row goes to (`position mod capacity`), −1
    /// beyond the valid rows.
    Slots {
        /// Rows of the states this numbering is for.
        capacity: u64,
    },
    /// Step input `f32 [R, head_dim/2]`.
    RotaryCos(Rotary),
    /// Step input `f32 [R, head_dim/2]`.
    RotarySin(Rotary),
    /// Step input `f32 [R, keys]`.
    Mask(Mask),
    /// Step input `f32 [1, R]`: 1/rows for valid rows, 0 beyond.
    Pooling,
    /// Step input `f32 [R, width]`: rows the runtime gathered from an asset by token id.
    Gathered {
        /// The table.
        asset: AssetId,
    },
    /// Step input `f32 [_, width]`: patches of a picture or frames of a sound, as a front end made
    /// them; zeros beyond the valid ones. As many to a row as the component says.
    Features,
    /// Step input `i32 [R]`: where in its picture each row's patch stands; −1 beyond the valid
    /// rows.
    Grid {
        /// Which coordinate.
        axis: GridAxis,
    },
    /// Step input `f32 [rate·R, 1]`: 1 where `rate` rows to a row of the entry are valid, 0 beyond.
    /// Of F valid features, where there are `most` to a row of the entry, `⌈F · rate / most⌉` are.
    Valid {
        /// Rows to a row of the entry.
        rate: u32,
    },
    /// Step input `f32 [2·R, head_dim/4]`: cosines by the columns of all rows, then by their rows.
    AxialCos(AxialRope),
    /// Step input `f32 [2·R, head_dim/4]`: sines in the same order.
    AxialSin(AxialRope),
    /// Step input `f32 [R, width]`: rows the runtime gathered from an asset by a coordinate; zeros
    /// beyond the valid rows.
    GatheredByGrid {
        /// The table.
        asset: AssetId,
        /// Which coordinate.
        axis: GridAxis,
    },
    /// Boundary `f32 [R, H]`: the residual stream.
    Hidden,
    /// Boundary `f32 [layers, R, P]`: per-layer inputs of the shard's layers, a contiguous slice of
    /// the whole.
    PerLayer {
        /// First layer of the slice.
        first: u32,
        /// Layers in the slice.
        layers: u32,
    },
    /// Output `f32 [R, V]`.
    Logits,
    /// Output `f32 [D]`: a sentence vector.
    Embedding,
    /// Output `f32 [_, H]`: rows that stand in a prompt where embedding rows stand, and are scaled
    /// as those are.
    SoftRows,
    /// Extra output for verification; never shipped.
    Tap {
        /// `layer.3`, `final-norm`, `pooled`, …
        name: String,
    },
    /// A state as a whole, input before and output after the run: `[capacity, width]`.
    State {
        /// Which state.
        state: StateId,
    },
    /// Output `[R, width]`: the new rows of a state that the runtime copies to their slots
    /// (`update: by-runtime`).
    StateRows {
        /// Which state.
        state: StateId,
    },
}

impl Role {
    /// The frozen number that crosses the shim contract.
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

    /// Kebab-case name, as in JSON and reports.
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

    /// Whether the runtime has it before a pass begins: from positions and token ids, or from what
    /// a front end made of a picture or a clip.
    pub const fn is_step_input(&self) -> bool {
        self.number() < 16
    }
}
