//! The program of an artefact: entries with steps over planned memory.
//!
//! A program from a file is untrusted. [`Program::check`] proves once that every step is in bounds,
//! so that a run needs no checks beyond the kernels' own assertions.

mod bounds;
mod check;
mod codec;
mod operand;
mod packed;
pub mod step;

pub use codec::{decode, encode};
pub use operand::{Extent, Operand, OperandPlace};
pub use packed::{NumberForm, PackedScales, PackedSplit, PackedTiles, PackedWeights};
pub use step::{AttentionKeys, DynamicMap, MAX_MAPS, Step};

pub(crate) use bounds::{Bounds, Checked, axes, ensure, product};

use serde::{Deserialize, Serialize};

use crate::kernels::encoding::ElementEncoding;

/// Entries that share one weight section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Threads to load with if no option sets them, 0 for one per core.
    pub threads: u32,
    pub entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Name in the work order.
    pub name: String,
    pub rows: u64,
    /// Number of positions of linear states.
    pub context: u64,
    /// Bindings of a run.
    pub ports: Vec<Port>,
    /// Size of the arena in values.
    pub arena: u64,
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Port {
    /// Name of the port in the work order.
    pub name: String,
    pub direction: PortDirection,
    /// `SW_ROLE_…`
    pub role: u32,
    pub encoding: ElementEncoding,
    pub shape: Vec<u64>,
}

/// Access to a bound tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PortDirection {
    /// Only read.
    Input,
    /// Only written.
    Output,
    /// Read and written in place.
    State,
    /// A state that is only read.
    StateRead,
}

impl PortDirection {
    /// Checks whether a step may write the port.
    pub fn is_writable(self) -> bool {
        matches!(self, PortDirection::Output | PortDirection::State)
    }
}

impl Port {
    /// Returns the number of elements, or `None` on overflow.
    pub fn elements(&self) -> Option<u64> {
        self.shape.iter().try_fold(1u64, |product, extent| product.checked_mul(*extent))
    }
}

/// Bytes of an unencoded value: f32 or i32.
pub const VALUE_BYTES: u64 = 4;
/// Most entries of an artefact. A plan has only a few.
pub const MAX_ENTRIES: u64 = 256;
/// Most steps of an entry. A decomposed model of a hundred layers has about 20 000.
pub const MAX_STEPS: u64 = 1 << 20;
/// Most bindings of an entry. A typical entry has four states per layer and a few more.
pub const MAX_PORTS: u64 = 1 << 14;
/// Most values of one tensor or of the arena, 64 GiB.
pub const MAX_VALUES: u64 = 1 << 34;
/// Highest rank, as in the contract.
pub const MAX_RANK: usize = 8;
/// Longest name in bytes, as in the contract.
pub const MAX_NAME: u64 = 1 << 16;
