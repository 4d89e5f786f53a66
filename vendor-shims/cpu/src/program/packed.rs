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
    /// Sixteen binary16 per panel and block.
    PerBlock {
        /// First byte in the section.
        offset: u64,
        /// Steps of k that share a scale, at most the number of inputs.
        size: u64,
    },
    /// Sixteen scales per panel and block, followed by sixteen minimums if `minimum` is true.
    Affine {
        /// First byte in the section.
        offset: u64,
        /// Steps of k that share a map, at most the number of inputs.
        size: u64,
        /// Stored value that represents zero.
        zero: i32,
        /// Whether there are minimums.
        minimum: bool,
        /// Whether scales and minimums are binary16 rather than binary32.
        half: bool,
    },
}

impl PackedScales {
    /// Returns the inputs of a block, or `None` without blocks.
    fn block(self) -> Option<u64> {
        match self {
            PackedScales::PerBlock { size, .. } | PackedScales::Affine { size, .. } => Some(size),
            PackedScales::None | PackedScales::PerOutput { .. } => None,
        }
    }

    /// Returns the bytes of scales and minimums for panels of `inputs` inputs. Returns `None` on
    /// overflow and for blocks of no inputs.
    fn bytes(self, inputs: u64, outputs: u64) -> Option<u64> {
        let of_output = match self {
            PackedScales::None => return Some(0),
            PackedScales::PerOutput { .. } => return outputs.checked_mul(4),
            PackedScales::PerBlock { .. } => 2,
            PackedScales::Affine { minimum, half, .. } => {
                let bytes = if half { 2 } else { 4 };
                bytes * if minimum { 2 } else { 1 }
            }
        };
        let blocks = match self.block() {
            None | Some(0) => return None,
            Some(size) => inputs.div_ceil(size),
        };
        let panels = outputs.div_ceil(LANES as u64);
        panels.checked_mul(blocks)?.checked_mul(of_output * LANES as u64)
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
    pub scales: PackedScales,
    pub inputs: u64,
    pub outputs: u64,
}

impl PackedTiles {
    /// Returns how the inputs are divided into blocks. Only valid for tiles whose dimensions were
    /// checked.
    pub fn geometry(&self) -> Geometry {
        Geometry::new(self.inputs as usize, self.scales.block().map(|size| size as usize))
    }

    /// Returns how rows are divided into blocks, with a scale for every `block` inputs or one scale
    /// for a row. Returns `None` if the blocks of the weights do not fit. Only valid for tiles
    /// whose dimensions were checked.
    pub fn rows(&self, block: Option<u32>) -> Option<Geometry> {
        let size = self.scales.block().map(|size| size as usize);
        match block {
            Some(0) => None,
            Some(block) => Geometry::scaled(self.inputs as usize, block as usize, size),
            None => Some(self.geometry()),
        }
    }

    /// Returns the bytes of the tiles and of the scales. Only valid for tiles whose dimensions were
    /// checked.
    pub fn bytes(&self) -> [u64; 2] {
        let panels = self.outputs.div_ceil(LANES as u64);
        let scales = self.scales.bytes(self.inputs, self.outputs).unwrap_or_default();
        [panels * self.geometry().panel_bytes(self.kind) as u64, scales]
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
