//! The bytes of a weight with an adapter's changes, computed as PEFT's `merge_and_unload` does.
//!
//! PEFT multiplies the two matrices of a change and their factor in 32-bit floats, since it loads
//! adapters in that type. It adds the product to the weight and rounds the sum to the weight's
//! type, for one adapter after the other. The change of a table is rounded to that type before it
//! is added, too.
//!
//! Source: `src/peft/tuners/lora/layer.py` of PEFT, `Linear.merge` and `Embedding.merge`.

use std::ops::Range;
use std::sync::OnceLock;

use rayon::prelude::*;
use shardwright_graph::{WeightBytes, WeightData};
use shardwright_vocabulary::DType;

use super::tensors::Pair;
use super::values::{Values, decode, encode, rounded};

/// Values that one thread merges at a time, at least.
const MERGED_AT_ONCE: usize = 1 << 16;

/// A change of low rank: a factor times the product of two matrices.
pub(super) struct Delta {
    pair: Pair,
    scale: f32,
    /// `[rows, rank]` and `[rank, width]`, in order of rows.
    factors: OnceLock<[Vec<f32>; 2]>,
}

impl Delta {
    /// Returns the change of a pair, multiplied by a further factor.
    pub fn new(pair: Pair, factor: f64) -> Self {
        let scale = (factor * pair.scaling) as f32;
        Delta { pair, scale, factors: OnceLock::new() }
    }

    /// Returns the shape of the changed weight.
    pub fn shape(&self) -> [u64; 2] {
        let (inputs, outputs) = (self.pair.a.shape[1], self.pair.b.shape[0]);
        if self.pair.is_table { [inputs, outputs] } else { [outputs, inputs] }
    }

    fn factors(&self) -> &[Vec<f32>; 2] {
        self.factors.get_or_init(|| {
            let Pair { a, b, is_table, rank, .. } = &self.pair;
            match is_table {
                false => [b.all(), a.all()],
                true => {
                    let rank = *rank as usize;
                    [transposed(&a.all(), rank), transposed(&b.all(), b.shape[0] as usize)]
                }
            }
        })
    }

    /// Adds some columns of a row of the change to `values`, and rounds the sums to `dtype`.
    fn add(&self, dtype: DType, row: usize, columns: &Range<usize>, product: &mut [f32], values: &mut [f32]) {
        let [left, right] = self.factors();
        let (rank, width) = (self.pair.rank as usize, self.shape()[1] as usize);
        product.fill(0.0);
        for (index, left) in left[row * rank..][..rank].iter().enumerate() {
            let right = &right[index * width..][columns.clone()];
            product.iter_mut().zip(right).for_each(|(sum, right)| *sum += left * right);
        }
        for (value, sum) in values.iter_mut().zip(product) {
            let change = *sum * self.scale;
            let change = if self.pair.is_table { rounded(dtype, change) } else { change };
            *value = rounded(dtype, *value + change);
        }
    }
}

/// Returns the transposed matrix of `rows` rows.
fn transposed(values: &[f32], rows: usize) -> Vec<f32> {
    let columns = values.len() / rows.max(1);
    (0..columns).flat_map(|column| (0..rows).map(move |row| values[row * columns + column])).collect()
}

/// A weight with changes. Its bytes are computed when they are first read as a whole, and then stay
/// in memory. [`WeightBytes::copy`] computes the requested ones before that.
pub(super) struct Merged {
    pub dtype: DType,
    pub rows: usize,
    pub width: usize,
    /// The weight as stored.
    pub base: WeightData,
    /// Values that replace it.
    pub whole: Option<Values>,
    pub deltas: Vec<Delta>,
    pub bytes: OnceLock<Vec<u64>>,
}

impl Merged {
    fn size(&self) -> usize {
        self.dtype.bytes() as usize
    }

    /// Computes some columns of a row.
    fn compute(&self, row: usize, columns: Range<usize>, buffers: &mut Buffers, into: &mut [u8]) {
        let count = columns.len();
        let (first, size) = (row * self.width + columns.start, self.size());
        let [values, product] = buffers.of(count);
        match &self.whole {
            Some(whole) => {
                whole.decode_from(first, values);
                values.iter_mut().for_each(|value| *value = rounded(self.dtype, *value));
            }
            None => {
                let stored = self.base.bytes().get(first * size..(first + count) * size);
                decode(self.dtype, stored.unwrap_or_default(), values);
            }
        }
        for delta in &self.deltas {
            delta.add(self.dtype, row, &columns, product, values);
        }
        encode(self.dtype, values, into);
    }
}

/// Memory for the values of a row.
#[derive(Default)]
struct Buffers([Vec<f32>; 2]);

impl Buffers {
    fn of(&mut self, count: usize) -> [&mut [f32]; 2] {
        self.0.each_mut().map(|buffer| {
            buffer.resize(count, 0.0);
            &mut buffer[..]
        })
    }
}

impl WeightBytes for Merged {
    fn bytes(&self) -> &[u8] {
        let length = self.length();
        if self.bytes.get().is_none() {
            let mut words = vec![0_u64; length.div_ceil(8)];
            let row_bytes = (self.width * self.size()).max(1);
            let rows = MERGED_AT_ONCE.div_ceil(self.width.max(1));
            let all = &mut bytemuck::cast_slice_mut(&mut words)[..length];
            all.par_chunks_mut(rows * row_bytes).enumerate().for_each(|(chunk, bytes)| {
                let mut buffers = Buffers::default();
                for (index, bytes) in bytes.chunks_exact_mut(row_bytes).enumerate() {
                    self.compute(chunk * rows + index, 0..self.width, &mut buffers, bytes);
                }
            });
            // Computed before the cell is set: a thread that waits for these chunks may run tasks
            // that read the same weight. If another thread was faster, its bytes are equal.
            let _ = self.bytes.set(words);
        }
        self.bytes.get().map_or(&[], |words| &bytemuck::cast_slice(words)[..length])
    }

    fn length(&self) -> usize {
        self.rows * self.width * self.size()
    }

    fn copy(&self, offset: usize, into: &mut [u8]) -> bool {
        let Some(end) = offset.checked_add(into.len()).filter(|end| *end <= self.length()) else {
            return false;
        };
        if let Some(words) = self.bytes.get() {
            into.copy_from_slice(&bytemuck::cast_slice(words)[offset..end]);
            return true;
        }
        let (size, mut buffers, mut values) = (self.size(), Buffers::default(), Vec::new());
        let mut at = offset;
        while at < end {
            let (row, first) = (at / size / self.width, at / size % self.width);
            let row_end = (row + 1) * self.width * size;
            let last = end.min(row_end).div_ceil(size) - row * self.width;
            values.resize((last - first) * size, 0);
            self.compute(row, first..last, &mut buffers, &mut values);
            let within = at % size;
            let count = (end.min(row_end)) - at;
            into[at - offset..][..count].copy_from_slice(&values[within..within + count]);
            at += count;
        }
        true
    }
}
