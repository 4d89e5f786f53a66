//! Weights for tests: given values in any stored type, and synthetic values generated row by row.

#![allow(dead_code, reason = "each user takes a part")]

use half::{bf16, f16};
use shardwright_graph::{Weight, WeightData};
use shardwright_quantisation::RowSource;
use shardwright_vocabulary::{DType, Result};

/// Creates a weight with these values, stored as a float type.
pub fn weight(shape: &[u64], dtype: DType, values: &[f32]) -> Weight {
    let bytes: Vec<u8> = match dtype {
        DType::F16 => values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect(),
        DType::Bf16 => values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    };
    assert_eq!(values.len() as u64, shape.iter().product::<u64>());
    let data = WeightData::from_vec(bytes);
    Weight { name: "w".to_owned(), part: "q", shape: shape.to_vec(), dtype, data, quantisation: None }
}

/// Decodes all values.
pub fn decoded(weight: &Weight) -> Vec<f32> {
    let width = weight.row_width();
    let mut values = vec![f32::NAN; weight.rows() * width];
    for (index, row) in values.chunks_mut(width.max(1)).enumerate() {
        assert!(weight.decode_row(index, row));
    }
    values
}

/// Returns values from a bell-like curve with a few outliers, determined by the seed.
pub fn values(count: usize, seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; count];
    fill(seed, &mut values);
    values
}

/// Fills with two values for each 64 random bits (splitmix64), each the sum of two uniform ones.
/// One in 4,096 is eight times as large.
pub fn fill(seed: u64, out: &mut [f32]) {
    let mut state = seed;
    for pair in out.chunks_mut(2) {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        let part = |at: u32| f32::from((z >> at) as i16);
        let sums = [part(0) + part(16), part(32) + part(48)];
        for (value, sum) in pair.iter_mut().zip(sums) {
            *value = sum * 6e-7;
        }
        if z & 0xFFF == 0 {
            pair[0] *= 8.0;
        }
    }
}

/// A weight whose values are generated when read and never exist as a whole.
pub struct Synthetic {
    pub name: String,
    pub part: &'static str,
    pub shape: Vec<u64>,
    pub seed: u64,
}

impl Synthetic {
    /// Creates a synthetic weight with the name, part and shape of a weight whose bytes may be
    /// missing.
    pub fn like(weight: &Weight, seed: u64) -> Self {
        // FNV-1a over the name, so that weights differ.
        let hash = weight.name.bytes().fold(seed ^ 0xCBF2_9CE4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
        });
        Synthetic { name: weight.name.clone(), part: weight.part, shape: weight.shape.clone(), seed: hash }
    }

    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

impl RowSource for Synthetic {
    fn name(&self) -> &str {
        &self.name
    }

    fn part(&self) -> &'static str {
        self.part
    }

    fn shape(&self) -> &[u64] {
        &self.shape
    }

    fn rows(&self, first: usize, out: &mut [f32]) -> Result<()> {
        let width = *self.shape.last().unwrap() as usize;
        for (index, row) in out.chunks_mut(width).enumerate() {
            fill(self.seed.wrapping_add(((first + index) as u64).wrapping_mul(0xD605_1341_D0B4_6A25)), row);
        }
        Ok(())
    }

    fn identity(&self) -> Result<[u8; 32]> {
        let mut identity = [0; 32];
        identity[..8].copy_from_slice(&self.seed.to_le_bytes());
        Ok(identity)
    }
}

/// Returns the planned weight, with its sizes, of a synthetic weight in a format.
pub fn planned(source: &Synthetic, format: shardwright_vocabulary::WeightFormat) -> Weight {
    let float = Weight {
        name: source.name.clone(),
        part: source.part,
        shape: source.shape.clone(),
        dtype: DType::F32,
        data: WeightData::planned(0),
        quantisation: None,
    };
    float.planned(format).unwrap()
}
