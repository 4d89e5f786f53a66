//! Converts constants: which ones the compiler supports, and how they are passed to it. Large ones
//! are borrowed, never copied.

use std::borrow::Cow;
use std::ops::Range;

use shardwright_shim_abi::{WeightView, raw};
use shardwright_shim_npu::Encoding as _;
use shardwright_shim_npu::constant::{
    halves, plus, rows_of_bits, scales, small_affine, small_values, symmetric,
};
use shardwright_shim_npu::encoding::dtype_name;

use super::draft::{Constant, Content};
use super::encoding::TensorEncoding;
use crate::graph::{DataType, QnnEncoding, ScaleOffset, StaticData};

/// Block length of the only block format that is computed correctly.
const BLOCK: u64 = 32;
/// Largest multiple of a channel's scale that a block may have.
const LARGEST_MULTIPLE: f32 = 16.0;
/// Tolerance between a block's scale and a multiple of its channel's. Block scales are stored in
/// f16, whose steps are that coarse.
const MULTIPLE_TOLERANCE: f32 = 1.0 / 1024.0;

/// A format of matrices that the compiler computes correctly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MatrixForm {
    /// Integers with a scale per output.
    PerChannel {
        /// 8, 4 or 2 bits.
        bits: u32,
    },
    /// Integers with one scale.
    PerTensor {
        bits: u32,
    },
    /// 4 bits, with a scale per output times a small multiple per 32 inputs.
    Blocks,
    Half,
}

/// Layout of a matrix `[N, K]` for the compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum MatrixLayout {
    /// `[N, K]` as stored, for FullyConnected.
    Stored,
    /// `[K, N]`, for MatMul.
    Columns,
    /// `[1, 1, K, N]`, for a convolution of one pixel.
    Pixel,
}

/// Returns the form of a matrix that is multiplied with activations encoded as `x`, or the reason
/// for refusing such a product. Scales are checked if they are available.
pub(super) fn matrix_form(weight: &WeightView<'_>, x: TensorEncoding) -> Result<MatrixForm, String> {
    let name = weight.name();
    let kind = dtype_name(weight.dtype());
    if weight.shape().len() != 2 {
        return Err(format!("weight `{name}` {:?} is not a matrix", weight.shape()));
    }
    if weight.dtype() == raw::SW_DTYPE_F16 {
        return match x {
            TensorEncoding::Half => Ok(MatrixForm::Half),
            _ => Err(format!(
                "weight `{name}` is f16, which the compiler does not validate with {}",
                x.describe()
            )),
        };
    }
    let bits = match weight.dtype() {
        raw::SW_DTYPE_I8 => 8,
        raw::SW_DTYPE_I4 => 4,
        raw::SW_DTYPE_I2 => 2,
        _ => return Err(format!("weight `{name}` is {kind}; matrices must be i8, i4, i2, or f16 with f16")),
    };
    let quantisation = symmetric(weight)?;
    let form = match (quantisation.kind(), bits) {
        (raw::SW_QUANTISATION_PER_CHANNEL, _) => MatrixForm::PerChannel { bits },
        (raw::SW_QUANTISATION_PER_TENSOR, 8 | 4) if x.is_fixed() => MatrixForm::PerTensor { bits },
        (raw::SW_QUANTISATION_PER_TENSOR, _) => {
            return Err(format!(
                "weight `{name}` is {kind} with one scale, which the compiler does not validate with {}",
                x.describe()
            ));
        }
        (_, 8) => {
            return Err(format!(
                "weight `{name}` is i8 in blocks, which the compiler accepts but computes wrongly"
            ));
        }
        (_, 4) if x.is_fixed() => {
            let inputs = weight.shape()[1];
            if quantisation.axis() != 1 || quantisation.block() != BLOCK || !inputs.is_multiple_of(BLOCK) {
                return Err(format!(
                    "weight `{name}` {:?} has blocks of {} along axis {}; blocks must have {BLOCK} inputs",
                    weight.shape(),
                    quantisation.block(),
                    quantisation.axis()
                ));
            }
            MatrixForm::Blocks
        }
        (_, 4) => {
            return Err(format!(
                "weight `{name}` is i4 in blocks with f16, which the compiler cannot compile"
            ));
        }
        _ => return Err(format!("weight `{name}` is {kind} in blocks, which was not tested")),
    };
    if let Some(scales) = scales(&quantisation).map_err(|reason| format!("weight `{name}`: {reason}"))?
        && form == MatrixForm::Blocks
    {
        block_multiples(weight, &scales, 0..weight.shape()[0])?;
    }
    Ok(form)
}

/// Returns the scale of every channel and the multiple of every block, if each block's scale is
/// such a multiple.
fn block_multiples(
    weight: &WeightView<'_>,
    scales: &[f32],
    rows: Range<u64>,
) -> Result<(Vec<f32>, Vec<u8>), String> {
    let blocks = (weight.shape()[1] / BLOCK) as usize;
    let wanted = scales.get(rows.start as usize * blocks..rows.end as usize * blocks);
    let Some(scales) = wanted.filter(|_| blocks > 0) else {
        return Err(format!("weight `{}` has {} scales", weight.name(), scales.len()));
    };
    let mut channels = Vec::with_capacity(scales.len() / blocks);
    let mut multiples = Vec::with_capacity(scales.len());
    for (row, scales) in scales.chunks_exact(blocks).enumerate() {
        let Some((channel, found)) = multiples_of(scales) else {
            return Err(format!(
                "weight `{}`: the scales of the blocks of output {} are not multiples 1 to {LARGEST_MULTIPLE} of one scale, \
                 as the processor's blocks are",
                weight.name(),
                rows.start + row as u64
            ));
        };
        channels.push(channel);
        multiples.extend(found);
    }
    Ok((channels, multiples))
}

/// Returns the scale of which all `scales` are multiples from 1 to 16, and the multiples.
fn multiples_of(scales: &[f32]) -> Option<(f32, Vec<u8>)> {
    let least = scales.iter().copied().fold(f32::INFINITY, f32::min);
    (1..=LARGEST_MULTIPLE as u32).find_map(|divisor| {
        let guess = least / divisor as f32;
        let near = |scale: &f32| (scale / guess).round().clamp(1.0, LARGEST_MULTIPLE);
        // The least-squares scale for these multiples is used, so that no single block's rounding
        // determines the scale.
        let (product, square) = scales.iter().fold((0.0f64, 0.0f64), |(product, square), scale| {
            let multiple = f64::from(near(scale));
            (product + f64::from(*scale) * multiple, square + multiple * multiple)
        });
        let fitted = (product / square) as f32;
        let fits = |scale: &f32| (scale / (near(scale) * fitted) - 1.0).abs() <= MULTIPLE_TOLERANCE;
        (fitted.is_normal() && scales.iter().all(fits))
            .then(|| (fitted, scales.iter().map(|scale| near(scale) as u8).collect()))
    })
}

/// Hashes a name with FNV-1a.
fn seed(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Converts some rows (outputs) of a matrix to a constant of the compiler's graph.
pub(super) fn matrix<'w>(
    weight: WeightView<'w>,
    form: MatrixForm,
    layout: MatrixLayout,
    rows: Range<u64>,
) -> Result<Constant<'w>, String> {
    let bits = match form {
        MatrixForm::PerChannel { bits } | MatrixForm::PerTensor { bits } => bits,
        MatrixForm::Blocks => 4,
        MatrixForm::Half => 16,
    };
    let (outputs, inputs, stride) = rows_of_bits(&weight, bits)?;
    let count = rows.end - rows.start;
    let mut name = weight.name().to_owned();
    if count != outputs {
        name.push_str(&format!(".{}-{}", rows.start, rows.end));
    }
    name.push_str(match layout {
        MatrixLayout::Stored => "",
        MatrixLayout::Columns => ".columns",
        MatrixLayout::Pixel => ".pixel",
    });
    let transposed = layout != MatrixLayout::Stored;
    let data = match weight.bytes() {
        Err(_) => StaticData::Stand { seed: seed(&name) },
        Ok(bytes) => {
            let bytes = &bytes[(stride * rows.start) as usize..(stride * rows.end) as usize];
            match (bits, transposed) {
                (4 | 2, transposed) => StaticData::Packed { bytes, bits, transposed },
                (8, true) => StaticData::Transposed(bytes),
                (_, true) => return Err("f16 matrices cannot be transposed".to_owned()),
                (_, false) => StaticData::Bytes(Cow::Borrowed(bytes)),
            }
        }
    };
    let (dims, axis) = match layout {
        MatrixLayout::Stored => (vec![count, inputs], 0),
        MatrixLayout::Columns => (vec![inputs, count], 1),
        MatrixLayout::Pixel => (vec![1, 1, inputs, count], 3),
    };
    if form == MatrixForm::Half {
        return Ok(constant(name, dims, DataType::Float16, QnnEncoding::None, data));
    }
    let quantisation = weight.quantisation().ok_or("it has no scales")?;
    let known = scales(&quantisation)?;
    // Scaled for that many inputs of random values, so that products with made-up weights stay near
    // 1.
    let guess = 1.0 / ((1u64 << (bits - 1)) as f32 * (inputs as f32).sqrt());
    let channel_scales = || match &known {
        Some(scales) => scales
            .get(rows.start as usize..rows.end as usize)
            .map(<[f32]>::to_vec)
            .ok_or_else(|| format!("{} scales for {outputs} outputs", scales.len())),
        None => Ok(vec![guess; count as usize]),
    };
    let encoding = match form {
        MatrixForm::PerChannel { bits: 8 } => QnnEncoding::PerAxis { axis, scales: channel_scales()? },
        MatrixForm::PerChannel { bits } => {
            QnnEncoding::BitWidthPerAxis { bits, axis, scales: channel_scales()? }
        }
        MatrixForm::PerTensor { bits } => {
            let scale = known.as_ref().and_then(|scales| scales.first().copied()).unwrap_or(guess);
            let scale_offset = ScaleOffset { scale, offset: 0 };
            match bits {
                8 => QnnEncoding::PerTensor(scale_offset),
                bits => QnnEncoding::BitWidth { bits, scale_offset },
            }
        }
        MatrixForm::Blocks => {
            let blocks = inputs / BLOCK;
            let (scales, multiples) = match &known {
                Some(scales) => block_multiples(&weight, scales, rows.clone())?,
                None => {
                    let multiples = (0..count * blocks).map(|block| 8 + (block % 8) as u8).collect();
                    (vec![guess / 8.0; count as usize], multiples)
                }
            };
            QnnEncoding::BlockExpansion { axis, scales, blocks_per_channel: blocks as u32, multiples }
        }
        MatrixForm::Half => QnnEncoding::None,
    };
    Ok(constant(name, dims, DataType::Sfixed8, encoding, data))
}

/// Converts kernels `[O, C · kernel²]` of i8 or f16 to `[kernel, kernel, C, O]`.
pub(super) fn kernels<'w>(
    weight: WeightView<'w>,
    form: MatrixForm,
    kernel: u64,
) -> Result<Constant<'w>, String> {
    let (bits, dtype) = match form {
        MatrixForm::Half => (16, DataType::Float16),
        MatrixForm::PerChannel { bits: 8 } | MatrixForm::PerTensor { bits: 8 } => (8, DataType::Sfixed8),
        _ => return Err("kernels must be i8 or f16".to_owned()),
    };
    let (outputs, columns, _) = rows_of_bits(&weight, bits)?;
    let channels = columns / kernel.saturating_mul(kernel).max(1);
    let name = format!("{}.kernels", weight.name());
    let data = match weight.bytes() {
        Err(_) => StaticData::Stand { seed: seed(&name) },
        Ok(bytes) => {
            let width = bits as usize / 8;
            let mut turned = Vec::with_capacity(bytes.len());
            for place in 0..kernel * kernel {
                for channel in 0..channels {
                    for output in 0..outputs {
                        let at = (output * columns + channel * kernel * kernel + place) as usize * width;
                        turned.extend(&bytes[at..at + width]);
                    }
                }
            }
            StaticData::Bytes(Cow::Owned(turned))
        }
    };
    let known = match weight.quantisation() {
        Some(quantisation) => scales(&quantisation)?,
        None => None,
    };
    let guess = 1.0 / (128.0 * (columns as f32).sqrt());
    let encoding = match form {
        MatrixForm::Half => QnnEncoding::None,
        MatrixForm::PerTensor { .. } => {
            let scale = known.as_ref().and_then(|scales| scales.first().copied()).unwrap_or(guess);
            QnnEncoding::PerTensor(ScaleOffset { scale, offset: 0 })
        }
        _ => QnnEncoding::PerAxis { axis: 3, scales: known.unwrap_or_else(|| vec![guess; outputs as usize]) },
    };
    Ok(constant(name, vec![kernel, kernel, channels, outputs], dtype, encoding, data))
}

fn constant<'w>(
    name: String,
    dims: Vec<u64>,
    dtype: DataType,
    encoding: QnnEncoding,
    data: StaticData<'w>,
) -> Constant<'w> {
    Constant { name, dims, content: Content { dtype, encoding, data } }
}

/// Converts a constant that is not a matrix and adds `offset`. The result is encoded to match
/// activations of `family`: u16 or f16.
pub(super) fn small<'w>(
    weight: WeightView<'w>,
    family: TensorEncoding,
    offset: f32,
) -> Result<Constant<'w>, String> {
    let values = small_values(&weight)?;
    let dims = weight.shape().to_vec();
    let mut name = weight.name().to_owned();
    let is_half = family == TensorEncoding::Half;
    let as_stored =
        offset == 0.0 && weight.dtype() == if is_half { raw::SW_DTYPE_F16 } else { raw::SW_DTYPE_U16 };
    if !as_stored {
        name.push_str(if is_half { ".f16" } else { ".u16" });
        if offset != 0.0 {
            name.push_str(&format!(".plus-{offset}"));
        }
    }
    let Some(values) = values else {
        let data = StaticData::Stand { seed: seed(&name) };
        let encoding = if is_half { TensorEncoding::Half } else { TensorEncoding::covering(0.0, 2.0) };
        return Ok(constant(name, dims, encoding.dtype(), encoding.qnn(), data));
    };
    if as_stored {
        let data = StaticData::Bytes(Cow::Borrowed(weight.bytes().map_err(|error| error.message)?));
        let encoding = match small_affine(&weight) {
            Some((scale, zero)) if !is_half => QnnEncoding::PerTensor(ScaleOffset { scale, offset: -zero }),
            _ => QnnEncoding::None,
        };
        let dtype = if is_half { DataType::Float16 } else { DataType::Ufixed16 };
        return Ok(constant(name, dims, dtype, encoding, data));
    }
    let values = plus(&weight, values, offset)?;
    Ok(encoded(name, dims, &values, family))
}

/// Encodes values as a constant that matches activations of `family`: u16 over their range, or f16.
pub(super) fn encoded<'w>(
    name: String,
    dims: Vec<u64>,
    values: &[f32],
    family: TensorEncoding,
) -> Constant<'w> {
    if family == TensorEncoding::Half {
        let data = StaticData::Bytes(Cow::Owned(halves(values)));
        return constant(name, dims, DataType::Float16, QnnEncoding::None, data);
    }
    let ends = values.iter().fold((0.0f32, 0.0f32), |(low, high), value| (low.min(*value), high.max(*value)));
    let encoding = TensorEncoding::covering(ends.0, ends.1);
    let stored: Vec<u8> = match encoding {
        TensorEncoding::Fixed16(affine) => values
            .iter()
            .map(|value| (value / affine.scale).round_ties_even() + affine.zero as f32)
            .flat_map(|stored| (stored.clamp(0.0, f32::from(u16::MAX)) as u16).to_le_bytes())
            .collect(),
        _ => Vec::new(),
    };
    let data = StaticData::Bytes(Cow::Owned(stored));
    constant(name, dims, DataType::Ufixed16, encoding.qnn(), data)
}

/// Creates a constant with the same number for every value. It is exact in u16, where it is stored
/// as a power of two times the scale. In f16 it is rounded.
pub(super) fn scalar<'w>(value: f32, extent: u64, family: TensorEncoding) -> Constant<'w> {
    let dims = vec![extent];
    let count = extent as usize;
    if family == TensorEncoding::Half {
        let name = format!("constant.f16.{extent}.{value}");
        return encoded(name, dims, &vec![value; count], family);
    }
    let name = format!("constant.u16.{extent}.{value}");
    let (stored, scale, offset) = match value {
        value if value > 0.0 => (32_768u16, value / 32_768.0, 0),
        value if value < 0.0 => (0, -value / 32_768.0, -32_768),
        _ => (0, 1.0, 0),
    };
    let scale = scale.max(f32::MIN_POSITIVE);
    let data = StaticData::Bytes(Cow::Owned(stored.to_le_bytes().repeat(count)));
    let encoding = QnnEncoding::PerTensor(ScaleOffset { scale, offset });
    constant(name, dims, DataType::Ufixed16, encoding, data)
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn block_scales_are_multiples_of_one_scale_or_refused() {
        let halves =
            |scales: &[f32]| -> Vec<f32> { scales.iter().map(|s| f16::from_f32(*s).to_f32()).collect() };
        let scale = 0.001_234;
        for multiples in [&[1u8, 2, 3, 16][..], &[5, 7, 16], &[9], &[15, 16, 14], &[2, 4, 8]] {
            let scales = halves(&multiples.iter().map(|m| f32::from(*m) * scale).collect::<Vec<_>>());
            let (channel, found) = multiples_of(&scales).expect("multiples");
            for (stored, found) in scales.iter().zip(found) {
                assert!((f32::from(found) * channel / stored - 1.0).abs() < 0.002, "{multiples:?}");
            }
        }
        assert_eq!(multiples_of(&[1.0, 17.5]), None);
        assert_eq!(multiples_of(&[1.0, 1.03]), None);
        assert_eq!(multiples_of(&[0.9, 1.0, 1.234]), None);
    }

    #[test]
    fn numbers_are_exact_in_sixteen_bits() {
        for value in [1.0f32, 0.1, 30.0, -2.5, 1e-6, 0.0] {
            let constant = scalar(value, 2, TensorEncoding::FRACTION);
            let (QnnEncoding::PerTensor(encoding), StaticData::Bytes(bytes)) =
                (constant.content.encoding, constant.content.data)
            else {
                panic!("one scale")
            };
            let stored = i32::from(u16::from_le_bytes([bytes[0], bytes[1]]));
            assert_eq!((stored + encoding.offset) as f32 * encoding.scale, value);
            assert_eq!(bytes.len(), 4);
        }
    }
}
