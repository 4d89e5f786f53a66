//! Matrices in the weight section.

use serde::{Deserialize, Serialize};

use crate::kernels::integer::split::{panel_bytes, row_bytes};
use crate::kernels::integer::{Geometry, IntegerType};
use crate::kernels::linear::PanelType;
use crate::simd::LANES;

/// Panels in the weight section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedWeights {
    /// First byte in the section.
    pub offset: u64,
    pub kind: PanelType,
    /// Scales of integers, [`PackedScales::None`] for floats.
    pub scales: PackedScales,
    /// Stored integer that represents zero. Other than 0 only with [`PackedScales::Blocks`].
    pub zero: i32,
    pub inputs: u64,
    pub outputs: u64,
}

/// Scales of packed weights, in the weight section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PackedScales {
    None,
    /// A binary32 per output.
    PerOutput {
        /// First byte in the section.
        offset: u64,
    },
    /// Sixteen scales per panel and block, followed by sixteen minimums if `minimum` is true.
    Blocks {
        /// First byte in the section.
        offset: u64,
        /// Steps of k that share a scale, at most the number of inputs.
        size: u64,
        /// Whether there are minimums.
        minimum: bool,
        form: NumberForm,
    },
}

/// Stored form of scales and minimums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NumberForm {
    /// binary16
    F16,
    /// binary32
    F32,
    /// A binary16 for `group` blocks times a signed byte for each block (see
    /// [`Numbers::Small`](crate::kernels::linear::Numbers::Small)). Only for tiles.
    Small { group: u64 },
}

impl NumberForm {
    /// Returns the bytes of the scales of an output's blocks, or of their minimums. Returns `None`
    /// on overflow and for groups of no blocks.
    fn bytes(self, blocks: u64) -> Option<u64> {
        match self {
            NumberForm::F16 => blocks.checked_mul(2),
            NumberForm::F32 => blocks.checked_mul(4),
            NumberForm::Small { group: 0 } => None,
            NumberForm::Small { group } => blocks.div_ceil(group).checked_mul(2)?.checked_add(blocks),
        }
    }

    /// Returns the lower-case name that reports use.
    pub const fn name(self) -> &'static str {
        match self {
            NumberForm::F16 => "f16",
            NumberForm::F32 => "f32",
            NumberForm::Small { .. } => "small",
        }
    }
}

impl PackedScales {
    /// Returns the inputs of a block, or `None` without blocks.
    fn block(self) -> Option<u64> {
        match self {
            PackedScales::Blocks { size, .. } => Some(size),
            PackedScales::None | PackedScales::PerOutput { .. } => None,
        }
    }

    /// Returns the bytes of scales and minimums for panels of `inputs` inputs. Returns `None` on
    /// overflow, for blocks of no inputs, and for groups of no blocks.
    pub fn bytes(self, inputs: u64, outputs: u64) -> Option<u64> {
        match self {
            PackedScales::None => Some(0),
            PackedScales::PerOutput { .. } => outputs.checked_mul(4),
            PackedScales::Blocks { size: 0, .. } => None,
            PackedScales::Blocks { size, minimum, form, .. } => {
                let of_output = form.bytes(inputs.div_ceil(size))?;
                let lanes = outputs.div_ceil(LANES as u64).checked_mul(LANES as u64)?;
                lanes.checked_mul(of_output)?.checked_mul(if minimum { 2 } else { 1 })
            }
        }
    }
}

impl PackedWeights {
    /// Returns the bytes of the panels and of the scales, or `None` on overflow.
    pub fn bytes(&self) -> Option<[u64; 2]> {
        let steps = self.outputs.div_ceil(LANES as u64).checked_mul(self.inputs)?;
        let scales = self.scales.bytes(self.inputs, self.outputs)?;
        Some([steps.checked_mul(self.kind.step_bytes() as u64)?, scales])
    }
}

/// Tiles of integers in the weight section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedTiles {
    /// First byte in the section.
    pub offset: u64,
    pub kind: IntegerType,
    /// Integer weight that a stored zero means.
    pub base: i32,
    pub scales: PackedScales,
    pub inputs: u64,
    pub outputs: u64,
}

impl PackedTiles {
    /// Returns how rows are divided, with a scale for every `block` inputs or one scale for a row.
    /// Returns `None` if the blocks of the weights do not fit.
    pub fn rows(&self, block: Option<u32>) -> Option<Geometry> {
        let size = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
        let block = block.map(|block| size(block.into()));
        Geometry::of(usize::try_from(self.inputs).ok()?, block, self.scales.block().map(size))
    }

    /// Returns the bytes of the tiles and of the scales, or `None` on overflow and if blocks have
    /// no layout.
    pub fn bytes(&self) -> Option<[u64; 2]> {
        let panel = self.rows(None)?.panel_bytes(self.kind) as u64;
        let tiles = self.outputs.div_ceil(LANES as u64).checked_mul(panel)?;
        Some([tiles, self.scales.bytes(self.inputs, self.outputs)?])
    }
}

/// Split signed bytes in the weight section (see [`split`](crate::kernels::integer::split)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedSplit {
    /// First byte of the first parts in the section.
    pub high: u64,
    /// First byte of the second parts.
    pub low: u64,
    /// First byte of the spreads.
    pub spread: u64,
    /// First byte of the scales, a binary32 per output.
    pub scales: u64,
    pub inputs: u64,
    pub outputs: u64,
}

impl PackedSplit {
    /// Returns offset and length in bytes of each of the four parts. Only valid for checked
    /// dimensions.
    pub fn parts(&self) -> [(u64, u64); 4] {
        let panel = panel_bytes(self.inputs as usize) as u64;
        [
            (self.high, self.outputs.div_ceil(LANES as u64) * panel),
            (self.low, self.outputs * row_bytes(self.inputs as usize) as u64),
            (self.spread, self.outputs),
            (self.scales, self.outputs * 4),
        ]
    }
}
