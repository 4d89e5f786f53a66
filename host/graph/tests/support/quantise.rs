//! Plain min-max quantisation, so that tests of any crate have quantised graphs. Real models are
//! quantised differently.

use half::{bf16, f16};
use shardwright_graph::{ConstantFormat, Graph, Weight, WeightData, WeightQuantisation};
use shardwright_vocabulary::{DType, Encoding, FormatTuple, Granularity, WeightFormat, scale_count};

/// Quantises the model's constants to `formats`. Tables of integer formats have the matrices'
/// format.
pub fn quantised(graph: &Graph, formats: &FormatTuple) -> Graph {
    let mut made = graph.clone();
    for (weight, format) in made.weights.iter_mut().zip(graph.constant_formats(formats)) {
        *weight = match format {
            ConstantFormat::Stored => continue,
            ConstantFormat::Matrix(format) => stored_as(weight, format),
            ConstantFormat::Activation => like_an_activation(weight),
        };
    }
    for asset in &mut made.assets {
        asset.table = stored_as(&asset.table, formats.weights);
    }
    made
}

/// Decodes all values of a weight.
pub fn decoded(weight: &Weight) -> Vec<f32> {
    let mut values = vec![f32::NAN; weight.rows() * weight.row_width()];
    for (row, values) in values.chunks_exact_mut(weight.row_width()).enumerate() {
        assert!(weight.decode_row(row, values));
    }
    values
}

/// Converts the weight to a format.
pub fn stored_as(weight: &Weight, format: WeightFormat) -> Weight {
    let values = decoded(weight);
    let (dtype, layout) = format.layout().expect("a format that is made");
    let bytes = |values: &[f32]| match dtype {
        DType::F16 => values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect(),
        DType::Bf16 => values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|&value| value.to_le_bytes()).collect::<Vec<u8>>(),
    };
    let Some((granularity, scale_dtype)) = layout else {
        return Weight {
            dtype,
            data: WeightData::from_vec(bytes(&values)),
            quantisation: None,
            ..weight.clone()
        };
    };
    let width = weight.row_width();
    let count = scale_count(granularity, &weight.shape).unwrap() as usize;
    let at = |index: usize| match granularity {
        Granularity::PerTensor => 0,
        Granularity::PerChannel => index / (values.len() / count),
        Granularity::PerBlock { size, .. } => {
            let size = size as usize;
            index / width * width.div_ceil(size) + index % width / size
        }
    };
    let limit = (1 << (dtype.bits() - 1)) - 1;
    let mut scales = vec![0.0_f32; count];
    for (index, value) in values.iter().enumerate() {
        scales[at(index)] = scales[at(index)].max(value.abs() / limit as f32);
    }
    let mut scale_bytes = Vec::new();
    for scale in &mut scales {
        *scale = scale.max(1e-6);
        match scale_dtype {
            DType::F16 => {
                *scale = f16::from_f32(*scale).to_f32();
                scale_bytes.extend(f16::from_f32(*scale).to_le_bytes());
            }
            _ => scale_bytes.extend(scale.to_le_bytes()),
        }
    }
    let steps: Vec<i32> = values
        .iter()
        .enumerate()
        .map(|(index, value)| ((value / scales[at(index)]).round() as i32).clamp(-limit, limit))
        .collect();
    Weight {
        dtype,
        data: WeightData::from_vec(packed(dtype, &steps, width)),
        quantisation: Some(WeightQuantisation {
            granularity,
            scale_dtype,
            scales: WeightData::from_vec(scale_bytes),
            zero_point: 0,
        }),
        ..weight.clone()
    }
}

/// Converts the weight to `U16` per tensor, with a zero point.
pub fn like_an_activation(weight: &Weight) -> Weight {
    let values = decoded(weight);
    let (low, high) = values.iter().fold((0.0_f32, 0.0_f32), |(low, high), &v| (low.min(v), high.max(v)));
    let encoding = Encoding::affine_over(low, high, 16);
    let stored = values.iter().flat_map(|&value| (encoding.raw(value) as u16).to_le_bytes());
    Weight {
        dtype: DType::U16,
        data: WeightData::from_vec(stored.collect()),
        quantisation: Some(WeightQuantisation {
            granularity: Granularity::PerTensor,
            scale_dtype: DType::F32,
            scales: WeightData::from_vec(encoding.scale.get().to_le_bytes().to_vec()),
            zero_point: encoding.zero_point,
        }),
        ..weight.clone()
    }
}

/// Packs integers as in a file: low bits first, rows padded to a whole byte.
pub fn packed(dtype: DType, values: &[i32], width: usize) -> Vec<u8> {
    let bits = dtype.bits() as usize;
    let mut bytes = Vec::new();
    for row in values.chunks_exact(width) {
        if bits >= 8 {
            row.iter().for_each(|value| bytes.extend(&value.to_le_bytes()[..bits / 8]));
            continue;
        }
        for group in row.chunks(8 / bits) {
            let mask = (1 << bits) - 1;
            bytes.push(
                group.iter().enumerate().fold(0, |byte, (at, value)| byte | (value & mask) << (at * bits))
                    as u8,
            );
        }
    }
    bytes
}
