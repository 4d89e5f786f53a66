//! The values of quantised blocks.
//!
//! All types share one form with different attributes: a value is `scale · level − minimum`. A
//! level is an integer of at most 8 bits. Its stored bits are an offset integer or an index into a
//! table. A scale, and a minimum if there is one, belong to a *group* of 16 or 32 values. In types
//! with a superblock, they are small integers times a binary16 that 256 values share. Such products
//! are exact in `f32`.

use half::{bf16, f16};

use crate::TensorType;

/// Levels of IQ4_NL and IQ4_XS, by index.
const IQ4_LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Levels of MXFP4, by index: twice the values of a 4-bit float with a mantissa of one bit.
const MXFP4_LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The unpacked values of a tensor's blocks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Levels {
    /// One level for each value, in order.
    pub levels: Vec<i8>,
    /// One scale for each group of [`Grouping::group`] values.
    pub scales: Vec<f32>,
    /// One minimum for each group. Empty for types without minimum.
    pub minimums: Vec<f32>,
}

/// Attributes of a type of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grouping {
    /// Bits of a stored value.
    pub bits: u32,
    /// Values that share a scale.
    pub group: usize,
    /// Whether groups have a minimum.
    pub minimum: bool,
    /// Number of values whose scales share a binary16, or 0 if each group has its own.
    pub superblock: usize,
    /// Lowest and highest level.
    pub range: (i8, i8),
}

const fn grouping(
    bits: u32,
    group: usize,
    minimum: bool,
    superblock: usize,
    range: (i8, i8),
) -> Option<Grouping> {
    Some(Grouping { bits, group, minimum, superblock, range })
}

impl TensorType {
    /// Returns the attributes of a type of blocks. Returns `None` for floats and for types whose
    /// values this crate does not compute.
    pub const fn grouping(self) -> Option<Grouping> {
        match self {
            TensorType::Q4_0 => grouping(4, 32, false, 0, (-8, 7)),
            TensorType::Q4_1 => grouping(4, 32, true, 0, (0, 15)),
            TensorType::Q5_0 => grouping(5, 32, false, 0, (-16, 15)),
            TensorType::Q5_1 => grouping(5, 32, true, 0, (0, 31)),
            TensorType::Q8_0 => grouping(8, 32, false, 0, (-128, 127)),
            TensorType::Q2_K => grouping(2, 16, true, 256, (0, 3)),
            TensorType::Q3_K => grouping(3, 16, false, 256, (-4, 3)),
            TensorType::Q4_K => grouping(4, 32, true, 256, (0, 15)),
            TensorType::Q5_K => grouping(5, 32, true, 256, (0, 31)),
            TensorType::Q6_K => grouping(6, 16, false, 256, (-32, 31)),
            TensorType::IQ4_NL => grouping(4, 32, false, 0, (-127, 113)),
            TensorType::IQ4_XS => grouping(4, 32, false, 256, (-127, 113)),
            TensorType::MXFP4 => grouping(4, 32, false, 0, (-12, 12)),
            _ => None,
        }
    }

    /// Checks whether each scale and minimum is stored as its own binary16. In other types they are
    /// small integers times a shared binary16, or powers of two.
    pub const fn has_half_scales(self) -> bool {
        matches!(self.grouping(), Some(Grouping { superblock: 0, .. })) && !matches!(self, TensorType::MXFP4)
    }

    /// Checks whether this crate computes values of this type.
    pub const fn is_read(self) -> bool {
        matches!(self, TensorType::F32 | TensorType::F16 | TensorType::BF16) || self.grouping().is_some()
    }

    /// Returns the byte offsets of the binary16 numbers in a block.
    const fn floats(self) -> &'static [usize] {
        match self {
            TensorType::Q4_0 | TensorType::Q5_0 | TensorType::Q8_0 => &[0],
            TensorType::IQ4_NL | TensorType::IQ4_XS => &[0],
            TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4_K | TensorType::Q5_K => &[0, 2],
            TensorType::Q2_K => &[80, 82],
            TensorType::Q3_K => &[108],
            TensorType::Q6_K => &[208],
            _ => &[],
        }
    }

    /// Returns the first scale or minimum of whole blocks that is infinite or not a number, and the
    /// offset of its first byte.
    pub fn wrong_scale(self, stored: &[u8]) -> Option<(usize, f16)> {
        let (_, bytes) = self.block();
        let blocks = stored.chunks_exact(bytes as usize).enumerate();
        let mut floats = blocks.flat_map(|(index, block)| {
            let float = move |&at: &usize| {
                (index * bytes as usize + at, f16::from_le_bytes([block[at], block[at + 1]]))
            };
            self.floats().iter().map(float)
        });
        floats.find(|(_, float)| !float.is_finite())
    }

    /// Unpacks whole blocks and ignores an incomplete last block. Returns `None` for floats and for
    /// types whose values this crate does not compute.
    pub fn levels(self, stored: &[u8]) -> Option<Levels> {
        let Grouping { group, .. } = self.grouping()?;
        let (values, bytes) = self.block();
        let blocks = stored.chunks_exact(bytes as usize);
        let count = blocks.len() * values as usize;
        let mut into = Levels {
            levels: Vec::with_capacity(count),
            scales: Vec::with_capacity(count / group),
            minimums: Vec::new(),
        };
        blocks.for_each(|block| self.unpack(block, &mut into));
        Some(into)
    }

    /// Returns the values of whole blocks, as the reference implementation computes them in `f32`.
    /// An incomplete last block is ignored. Returns `None` for types whose values this crate does
    /// not compute.
    ///
    /// ```
    /// use shardwright_gguf::TensorType;
    ///
    /// // A scale of 2, and the levels −8, −8, … with 7 in the last place.
    /// let mut block = vec![0x00, 0x40];
    /// block.extend([0; 15]);
    /// block.push(0xf0);
    /// let values = TensorType::Q4_0.values(&block).unwrap();
    /// assert_eq!((values[0], values[31], values.len()), (-16.0, 14.0, 32));
    /// assert_eq!(TensorType::IQ1_S.values(&block), None);
    /// ```
    pub fn values(self, stored: &[u8]) -> Option<Vec<f32>> {
        let pairs = || stored.as_chunks::<2>().0.iter();
        match self {
            TensorType::F32 => {
                return Some(
                    stored.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
                );
            }
            TensorType::F16 => {
                return Some(pairs().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect());
            }
            TensorType::BF16 => {
                return Some(pairs().map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).collect());
            }
            _ => {}
        }
        let Levels { levels, scales, minimums } = self.levels(stored)?;
        let group = self.grouping()?.group;
        let of = |index: usize, level: i8| {
            let product = scales[index / group] * f32::from(level);
            minimums.get(index / group).map_or(product, |minimum| product - minimum)
        };
        Some(levels.into_iter().enumerate().map(|(index, level)| of(index, level)).collect())
    }

    /// Appends the levels, scales and minimums of one block. Source of the layouts: the structures
    /// `block_*` of ggml.
    fn unpack(self, block: &[u8], into: &mut Levels) {
        let float = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
        match self {
            TensorType::Q4_0 => {
                into.scales.push(float(0));
                into.levels.extend(halves(&block[2..]).map(|stored| stored as i8 - 8));
            }
            TensorType::Q4_1 => {
                into.scales.push(float(0));
                into.minimums.push(-float(2));
                into.levels.extend(halves(&block[4..]).map(|stored| stored as i8));
            }
            TensorType::Q5_0 => {
                into.scales.push(float(0));
                let fifth = fifth_bits(&block[2..6]);
                into.levels.extend(halves(&block[6..]).zip(fifth).map(|(low, high)| (low | high) as i8 - 16));
            }
            TensorType::Q5_1 => {
                into.scales.push(float(0));
                into.minimums.push(-float(2));
                let fifth = fifth_bits(&block[4..8]);
                into.levels.extend(halves(&block[8..]).zip(fifth).map(|(low, high)| (low | high) as i8));
            }
            TensorType::Q8_0 => {
                into.scales.push(float(0));
                into.levels.extend(block[2..].iter().map(|stored| *stored as i8));
            }
            TensorType::IQ4_NL => {
                into.scales.push(float(0));
                into.levels.extend(halves(&block[2..]).map(|stored| IQ4_LEVELS[usize::from(stored)]));
            }
            TensorType::MXFP4 => {
                into.scales.push(half_power_of_two(block[0]));
                into.levels.extend(halves(&block[1..]).map(|stored| MXFP4_LEVELS[usize::from(stored)]));
            }
            TensorType::Q2_K => {
                let (scale, minimum) = (float(80), float(82));
                into.scales.extend(block[..16].iter().map(|both| scale * f32::from(both & 0x0f)));
                into.minimums.extend(block[..16].iter().map(|both| minimum * f32::from(both >> 4)));
                into.levels.extend(pieces::<32, 2>(&block[16..80]).map(|stored| stored as i8));
            }
            TensorType::Q3_K => {
                let (scale, small) = (float(108), &block[96..108]);
                into.scales.extend((0..16).map(|group| {
                    let low = (small[group % 8] >> (4 * (group / 8))) & 0x0f;
                    let high = (small[8 + group % 4] >> (2 * (group / 4))) & 0x03;
                    scale * f32::from((low | (high << 4)) as i8 - 32)
                }));
                // A third bit that is not set subtracts four.
                let third = pieces::<32, 1>(&block[..32]).map(|bit| (bit as i8 - 1) * 4);
                let low = pieces::<32, 2>(&block[32..96]);
                into.levels.extend(low.zip(third).map(|(low, third)| low as i8 + third));
            }
            TensorType::Q4_K | TensorType::Q5_K => {
                let (scale, minimum) = (float(0), float(2));
                for (small, small_minimum) in small_pairs(&block[4..16]) {
                    into.scales.push(scale * f32::from(small));
                    into.minimums.push(minimum * f32::from(small_minimum));
                }
                match self {
                    TensorType::Q4_K => {
                        into.levels.extend(pieces::<32, 4>(&block[16..]).map(|stored| stored as i8));
                    }
                    _ => {
                        let fifth = pieces::<32, 1>(&block[16..48]);
                        let low = pieces::<32, 4>(&block[48..]);
                        into.levels.extend(low.zip(fifth).map(|(low, fifth)| (low | (fifth << 4)) as i8));
                    }
                }
            }
            TensorType::Q6_K => {
                let scale = float(208);
                into.scales.extend(block[192..208].iter().map(|small| scale * f32::from(*small as i8)));
                let low = pieces::<64, 4>(&block[..128]);
                let high = pieces::<32, 2>(&block[128..192]);
                into.levels.extend(low.zip(high).map(|(low, high)| (low | (high << 4)) as i8 - 32));
            }
            TensorType::IQ4_XS => {
                let (scale, high) = (float(0), u16::from_le_bytes([block[2], block[3]]));
                into.scales.extend((0..8).map(|group| {
                    let low = (block[4 + group / 2] >> (4 * (group % 2))) & 0x0f;
                    let high = ((high >> (2 * group)) & 0x03) as u8;
                    scale * f32::from((low | (high << 4)) as i8 - 32)
                }));
                let stored = block[8..].chunks_exact(16).flat_map(halves);
                into.levels.extend(stored.map(|stored| IQ4_LEVELS[usize::from(stored)]));
            }
            _ => {}
        }
    }
}

/// Iterates over the lower halves of all bytes, then over their upper halves.
fn halves(bytes: &[u8]) -> impl Iterator<Item = u8> + '_ {
    pieces_of(bytes, 4)
}

/// Iterates over the lowest `BITS` bits of each of `BYTES` bytes, then over the next `BITS` bits of
/// each, and so on. Then continues with the next `BYTES` bytes.
fn pieces<const BYTES: usize, const BITS: u32>(bytes: &[u8]) -> impl Iterator<Item = u8> + '_ {
    bytes.chunks_exact(BYTES).flat_map(|bytes| pieces_of(bytes, BITS))
}

fn pieces_of(bytes: &[u8], bits: u32) -> impl Iterator<Item = u8> + '_ {
    let mask = (1_u8 << bits) - 1;
    (0..8 / bits).flat_map(move |piece| bytes.iter().map(move |byte| (byte >> (bits * piece)) & mask))
}

/// Iterates over the fifth bits of 32 values, each shifted to its place as bit 4.
fn fifth_bits(bytes: &[u8]) -> impl Iterator<Item = u8> + '_ {
    (0..32).map(|value| ((bytes[value / 8] >> (value % 8)) & 1) << 4)
}

/// Unpacks the eight scales and minimums of 6 bits from the 12 bytes of Q4_K and Q5_K.
fn small_pairs(bytes: &[u8]) -> impl Iterator<Item = (u8, u8)> + '_ {
    (0..8).map(|group| match group {
        0..4 => (bytes[group] & 0x3f, bytes[group + 4] & 0x3f),
        _ => {
            let (first, second, both) = (bytes[group - 4], bytes[group], bytes[group + 4]);
            ((both & 0x0f) | ((first >> 2) & 0x30), (both >> 4) | ((second >> 2) & 0x30))
        }
    })
}

/// Returns half of 2 to the power of `exponent` − 127, even if the result is subnormal.
fn half_power_of_two(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        0 | 1 => 0x0020_0000 << exponent,
        _ => u32::from(exponent - 1) << 23,
    })
}
