use crate::ffi::{self, number};
use crate::graph::QnnEncoding;
use std::ffi::CString;
use std::ptr::null;

/// A tensor in the library's C structs, with everything its pointers refer to.
///
/// The pointers refer to heap blocks that do not move with this value.
pub(crate) struct TensorParts {
    pub(crate) tensor: ffi::Tensor,
    _name: CString,
    _dims: Vec<u32>,
    _scale_offsets: Vec<ffi::ScaleOffset>,
    _float_scales: Vec<ffi::FloatScaleOffset>,
    _numbers: Vec<u32>,
    _scales: Vec<f32>,
    _multiples: Vec<u8>,
    _expansion: Option<Box<ffi::BlockwiseExpansion>>,
}

impl TensorParts {
    pub(crate) fn new(
        id: u32,
        name: CString,
        kind: u32,
        data_type: u32,
        dims: &[u32],
        encoding: &QnnEncoding,
    ) -> TensorParts {
        let mut dims = dims.to_vec();
        let (mut scale_offsets, mut float_scales) = (Vec::new(), Vec::new());
        let (mut numbers, mut own_scales, mut own_multiples) = (Vec::new(), Vec::new(), Vec::new());
        let mut expansion = None;
        let per_channel = |scales: &[f32]| -> Vec<ffi::ScaleOffset> {
            scales.iter().map(|scale| ffi::ScaleOffset { scale: *scale, offset: 0 }).collect()
        };
        let (kind_of_encoding, value) = match encoding {
            QnnEncoding::None => (number::UNDEFINED, empty()),
            QnnEncoding::PerTensor(one) => {
                let scale_offset = ffi::ScaleOffset { scale: one.scale, offset: one.offset };
                (number::ENCODING_SCALE_OFFSET, ffi::QuantiseUnion { scale_offset })
            }
            QnnEncoding::PerAxis { axis, scales } => {
                scale_offsets = per_channel(scales);
                let axis = ffi::AxisScaleOffset {
                    axis: *axis,
                    count: scales.len() as u32,
                    scale_offsets: scale_offsets.as_ptr(),
                };
                (number::ENCODING_AXIS, ffi::QuantiseUnion { axis })
            }
            QnnEncoding::BitWidth { bits, scale_offset } => {
                let bit_width = ffi::BitWidthScaleOffset {
                    bits: *bits,
                    scale: scale_offset.scale,
                    offset: scale_offset.offset,
                };
                (number::ENCODING_BIT_WIDTH, ffi::QuantiseUnion { bit_width })
            }
            QnnEncoding::BitWidthPerAxis { bits, axis, scales } => {
                own_scales.clone_from(scales);
                let bit_width_axis = ffi::BitWidthAxisScaleOffset {
                    bits: *bits,
                    axis: *axis,
                    count: scales.len() as u32,
                    scales: own_scales.as_ptr(),
                    offsets: null(),
                };
                (number::ENCODING_BIT_WIDTH_AXIS, ffi::QuantiseUnion { bit_width_axis })
            }
            QnnEncoding::BlockExpansion { axis, scales, blocks_per_channel, multiples } => {
                scale_offsets = per_channel(scales);
                own_multiples.clone_from(multiples);
                let parts = expansion.insert(Box::new(ffi::BlockwiseExpansion {
                    axis: *axis,
                    scale_offsets: scale_offsets.as_ptr(),
                    blocks_per_axis: *blocks_per_channel,
                    multiple_bits: 4,
                    multiple_storage: 0,
                    multiples: own_multiples.as_ptr(),
                }));
                (number::ENCODING_BLOCK_EXPANSION, ffi::QuantiseUnion { expansion: &raw const **parts })
            }
            QnnEncoding::Block { extents, scales } => {
                numbers.clone_from(extents);
                scale_offsets = scales
                    .iter()
                    .map(|one| ffi::ScaleOffset { scale: one.scale, offset: one.offset })
                    .collect();
                let block =
                    ffi::BlockEncoding { extents: numbers.as_ptr(), scale_offsets: scale_offsets.as_ptr() };
                (number::ENCODING_BLOCK, ffi::QuantiseUnion { block })
            }
            QnnEncoding::FloatBlock { extents, scales } => {
                numbers.clone_from(extents);
                float_scales =
                    scales.iter().map(|scale| ffi::FloatScaleOffset { scale: *scale, offset: 0.0 }).collect();
                let float_block =
                    ffi::FloatBlock { extents: numbers.as_ptr(), scale_offsets: float_scales.as_ptr() };
                (number::ENCODING_FLOAT_BLOCK, ffi::QuantiseUnion { float_block })
            }
            QnnEncoding::BitWidthFloatBlock { bits, extents, scales } => {
                numbers.clone_from(extents);
                float_scales =
                    scales.iter().map(|scale| ffi::FloatScaleOffset { scale: *scale, offset: 0.0 }).collect();
                let bit_width_float_block = ffi::BitWidthFloatBlock {
                    bits: *bits,
                    extents: numbers.as_ptr(),
                    scale_offsets: float_scales.as_ptr(),
                };
                (number::ENCODING_BIT_WIDTH_FLOAT_BLOCK, ffi::QuantiseUnion { bit_width_float_block })
            }
        };
        let definition =
            if kind_of_encoding == number::UNDEFINED { number::UNDEFINED } else { number::DEFINED };
        let tensor = ffi::Tensor {
            version: 1,
            v1: ffi::TensorV1 {
                id,
                name: name.as_ptr(),
                kind,
                data_format: 0,
                data_type,
                quantise: ffi::QuantiseParams { definition, encoding: kind_of_encoding, value },
                rank: dims.len() as u32,
                dims: dims.as_mut_ptr(),
                memory_kind: number::MEMORY_RAW,
                memory: ffi::MemoryHandleOrBuffer {
                    buffer: ffi::RawBuffer { data: std::ptr::null_mut(), size: 0 },
                },
            },
            second: [0; 3],
        };
        TensorParts {
            tensor,
            _name: name,
            _dims: dims,
            _scale_offsets: scale_offsets,
            _float_scales: float_scales,
            _numbers: numbers,
            _scales: own_scales,
            _multiples: own_multiples,
            _expansion: expansion,
        }
    }
}

fn empty() -> ffi::QuantiseUnion {
    // The widest member is set, so that every byte is defined.
    ffi::QuantiseUnion {
        bit_width_axis: ffi::BitWidthAxisScaleOffset {
            bits: 0,
            axis: 0,
            count: 0,
            scales: null(),
            offsets: null(),
        },
    }
}
