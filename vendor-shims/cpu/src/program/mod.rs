//! The program of an artefact: entries of steps over planned memory.
//!
//! A program from a file is untrusted. [`Program::check`] proves every step in bounds once, so that
//! running it needs no further checks than the kernels' own assertions.

mod check;
mod codec;
mod step;

pub use codec::{decode, encode};
pub use step::{
    AttentionKeys, DynamicMap, Extent, MAX_MAPS, Operand, PackedScales, PackedSplit, PackedTiles,
    PackedWeights, Place, Step,
};

use serde::{Deserialize, Serialize};

use crate::kernels::encoding::Encoding;

/// Entries that share one weight section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Threads to load with if no option sets them; 0 for one per core.
    pub threads: u32,
    /// The entry points.
    pub entries: Vec<Entry>,
}

/// One entry point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// As in the work order.
    pub name: String,
    /// Static row count.
    pub rows: u64,
    /// Positions of linear states.
    pub context: u64,
    /// The bindings of a run.
    pub ports: Vec<Port>,
    /// Values of the arena.
    pub arena: u64,
    /// Steps in order.
    pub steps: Vec<Step>,
}

/// One bound tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Port {
    /// Of the port in the work order.
    pub name: String,
    /// How it is used.
    pub direction: PortDirection,
    /// `SW_ROLE_…`
    pub role: u32,
    /// Encoding of its elements.
    pub encoding: Encoding,
    /// Extents.
    pub shape: Vec<u64>,
}

/// How a bound tensor is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PortDirection {
    /// Read.
    Input,
    /// Written.
    Output,
    /// Read and written in place.
    State,
    /// A state that is only read.
    StateRead,
}

impl PortDirection {
    /// Whether a step may write it.
    pub fn is_writable(self) -> bool {
        matches!(self, PortDirection::Output | PortDirection::State)
    }
}

impl Port {
    /// Elements; `None` on overflow.
    pub fn elements(&self) -> Option<u64> {
        self.shape.iter().try_fold(1u64, |product, extent| product.checked_mul(*extent))
    }
}

/// Bytes of an unencoded value: f32 or i32.
pub const VALUE_BYTES: u64 = 4;
/// Most entries of an artefact: a plan has a handful.
pub const MAX_ENTRIES: u64 = 256;
/// Most steps of an entry: a decomposed model of a hundred layers has about 20 000.
pub const MAX_STEPS: u64 = 1 << 20;
/// Most bindings of an entry: four states per layer and a few more.
pub const MAX_PORTS: u64 = 1 << 14;
/// Most values of one tensor or of the arena: 64 GiB.
pub const MAX_VALUES: u64 = 1 << 34;
/// Highest rank; the contract's.
pub const MAX_RANK: usize = 8;
/// Longest name; the contract's.
pub const MAX_NAME: u64 = 1 << 16;
