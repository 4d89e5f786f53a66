//! The layout of a matrix's integers and scales in the graph, and the conversion to it.

use half::f16;
use shardwright_graph::{Weight, WeightData, WeightQuantisation, too_large};
use shardwright_vocabulary::{DType, Granularity, Result};

use super::Found;
use super::module::Stored;
use crate::deferred_bytes::made;

/// The inputs of an output that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// All inputs of all outputs.
    Tensor,
    /// All inputs of one output.
    Channel,
    /// This many consecutive inputs.
    Of(u32),
}

impl Group {
    /// Returns the number of inputs that share a scale, for outputs with `inputs` inputs.
    pub fn size(self, inputs: u64) -> u64 {
        match self {
            Group::Of(size) => u64::from(size).max(1),
            Group::Channel | Group::Tensor => inputs.max(1),
        }
    }
}

/// The stored type, and the values that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub dtype: DType,
    pub granularity: Granularity,
}

impl Layout {
    /// Returns the layout of integers of `bits` bits whose zero point is in the middle.
    pub fn of(bits: u32, group: Group, [_, inputs]: [u64; 2]) -> Self {
        let granularity = match group {
            Group::Tensor => Granularity::PerTensor,
            Group::Of(size) if u64::from(size) < inputs => Granularity::blocks(size),
            Group::Channel | Group::Of(_) => Granularity::PerChannel,
        };
        let dtype = match bits {
            2 => DType::I2,
            4 => DType::I4,
            _ => DType::I8,
        };
        Layout { dtype, granularity }
    }

    /// Returns the number of groups of an output.
    pub fn groups(self, [_, inputs]: [u64; 2]) -> u64 {
        match self.granularity {
            Granularity::PerBlock { size, .. } => inputs.div_ceil(u64::from(size.max(1))),
            _ => 1,
        }
    }

    /// Returns the type of the scales, which is that of the formats per channel and per block.
    pub fn scale_dtype(self) -> DType {
        match self.granularity {
            Granularity::PerBlock { .. } => DType::F16,
            _ => DType::F32,
        }
    }

    /// Returns the bytes of the integers and of the scales of a matrix.
    pub fn sizes(self, name: &str, shape: [u64; 2]) -> Result<(usize, usize)> {
        let scales = match self.granularity {
            Granularity::PerTensor => Some(1),
            _ => shape[0].checked_mul(self.groups(shape)),
        };
        let scales = scales.and_then(|count| count.checked_mul(self.scale_dtype().bytes()));
        let here = |bytes: Option<u64>| {
            bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(|| too_large(name, &shape))
        };
        Ok((here(self.dtype.packed_bytes(&shape))?, here(scales)?))
    }

    /// Combines integers and scales in this layout.
    pub fn with(self, data: WeightData, scales: WeightData) -> Whole {
        Whole { layout: self, data, scales }
    }

    /// Returns the integers that `value` reads from the bytes of `sources` by output and input.
    /// Each must be within the range of the type. The data have no bytes if a file has none.
    pub fn integers<const N: usize>(
        self,
        name: &str,
        shape: [u64; 2],
        sources: [Found<'_>; N],
        value: impl Fn([&[u8]; N], usize, usize) -> i8 + Send + Sync + 'static,
    ) -> Result<WeightData> {
        let (length, _) = self.sizes(name, shape)?;
        let sources = sources.map(|found| found.bytes());
        if sources.iter().any(Option::is_none) {
            return Ok(WeightData::planned(length));
        }
        let [outputs, inputs] = shape.map(|extent| extent as usize);
        let dtype = self.dtype;
        made(length, move || {
            let bytes = sources.each_ref().map(|stored| stored.as_ref().map_or(&[][..], Stored::bytes));
            packed(dtype, outputs, inputs, |output, input| value(bytes, output, input))
        })
    }
}

/// Number of outputs whose values are read together: in files, the outputs of an input are
/// adjacent.
const OUTPUTS: usize = 64;

/// Packs rows of integers, each padded to a whole byte.
fn packed(dtype: DType, outputs: usize, inputs: usize, value: impl Fn(usize, usize) -> i8) -> Vec<u8> {
    let row = if dtype == DType::I4 { inputs.div_ceil(2) } else { inputs };
    let mut bytes = vec![0; outputs * row];
    for first in (0..outputs).step_by(OUTPUTS) {
        for input in 0..inputs {
            for output in first..outputs.min(first + OUTPUTS) {
                let value = value(output, input) as u8;
                match dtype {
                    DType::I4 => bytes[output * row + input / 2] |= (value & 0x0f) << (4 * (input % 2)),
                    _ => bytes[output * row + input] = value,
                }
            }
        }
    }
    bytes
}

pub(crate) struct Whole {
    layout: Layout,
    data: WeightData,
    scales: WeightData,
}

impl Whole {
    /// Converts the matrix into a weight of a graph.
    pub fn weight(self, name: String, part: &'static str, shape: [u64; 2]) -> Weight {
        let Whole { layout, data, scales } = self;
        let (granularity, scale_dtype) = (layout.granularity, layout.scale_dtype());
        Weight {
            name,
            part,
            shape: shape.to_vec(),
            dtype: layout.dtype,
            data,
            quantisation: Some(WeightQuantisation { granularity, scale_dtype, scales, zero_point: 0 }),
        }
    }
}

/// Returns the scales of a matrix in the graph's order. `place` is the index of an output and group
/// in the tensor. The data have no bytes if the file has none.
///
/// # Errors
///
/// If a scale per group is not exactly a binary16.
pub(super) fn scales(
    layout: Layout,
    name: &str,
    shape: [u64; 2],
    found: &Found<'_>,
    place: impl Fn(usize, usize) -> usize,
) -> Result<WeightData> {
    let (_, length) = layout.sizes(name, shape)?;
    let Some(values) = found.floats() else { return Ok(WeightData::planned(length)) };
    let outputs = if layout.granularity == Granularity::PerTensor { 1 } else { shape[0] as usize };
    let groups = layout.groups(shape) as usize;
    let mut bytes = Vec::with_capacity(length);
    for output in 0..outputs {
        for group in 0..groups {
            let scale = values.get(place(output, group)).copied().unwrap_or(f32::NAN);
            if !scale.is_finite() {
                return Err(found.invalid(format!("has the scale {scale}")));
            }
            if layout.scale_dtype() == DType::F32 {
                bytes.extend(scale.to_le_bytes());
                continue;
            }
            let half = f16::from_f32(scale);
            if half.to_f32() != scale {
                let what = format!("has the scale {scale:e} of a group, which is no binary16");
                return Err(found.unheld(what, "scales per group as binary16, per channel as f32"));
            }
            bytes.extend(half.to_le_bytes());
        }
    }
    Ok(WeightData::from_vec(bytes))
}
