//! Blocks of 32 integers with their scale, taken apart: integers by rows, scales by rows.

use half::f16;
use shardwright_vocabulary::{DType, Granularity};

/// Values of a block.
const VALUES: usize = 32;
/// Bytes of its scale, a binary16 before the integers.
const SCALE: usize = 2;

/// A type of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocks {
    /// Integers of four bits less eight: of byte b, value b in the lower half and value b + 16 in
    /// the upper.
    Q4_0,
    /// Integers of eight bits in their order.
    Q8_0,
}

impl Blocks {
    /// Which values share a scale.
    pub const GRANULARITY: Granularity = Granularity::PerBlock { size: VALUES as u32 };

    /// Bytes of a scale.
    pub const SCALE: u64 = SCALE as u64;

    /// The type of the integers.
    pub fn dtype(self) -> DType {
        match self {
            Blocks::Q4_0 => DType::I4,
            Blocks::Q8_0 => DType::I8,
        }
    }

    fn integer_bytes(self) -> usize {
        match self {
            Blocks::Q4_0 => VALUES / 2,
            Blocks::Q8_0 => VALUES,
        }
    }

    /// The integers of whole blocks, in the graph's order.
    pub fn integers(self, stored: &[u8]) -> Vec<u8> {
        let bytes = self.integer_bytes();
        let mut integers = Vec::with_capacity(stored.len() / (SCALE + bytes) * bytes);
        for block in stored.chunks_exact(SCALE + bytes) {
            let block = &block[SCALE..];
            match self {
                Blocks::Q8_0 => integers.extend_from_slice(block),
                // Less eight is the highest bit turned over.
                Blocks::Q4_0 => {
                    let half = |byte: u8, shift: u32| (byte >> shift) & 0x0f;
                    for shift in [0, 4] {
                        let pairs = block.as_chunks::<2>().0.iter();
                        integers
                            .extend(pairs.map(|[a, b]| (half(*a, shift) | (half(*b, shift) << 4)) ^ 0x88));
                    }
                }
            }
        }
        integers
    }

    /// The first scale of whole blocks that is no number or no finite one, and at which byte it is.
    pub fn wrong_scale(self, stored: &[u8]) -> Option<(usize, f16)> {
        let bytes = SCALE + self.integer_bytes();
        let scales = stored.chunks_exact(bytes).map(|block| f16::from_le_bytes([block[0], block[1]]));
        scales.enumerate().find(|(_, scale)| !scale.is_finite()).map(|(block, scale)| (block * bytes, scale))
    }

    /// The scales of whole blocks, binary16.
    pub fn scales(self, stored: &[u8]) -> Vec<u8> {
        let bytes = SCALE + self.integer_bytes();
        let mut scales = Vec::with_capacity(stored.len() / bytes * SCALE);
        stored.chunks_exact(bytes).for_each(|block| scales.extend_from_slice(&block[..SCALE]));
        scales
    }
}
