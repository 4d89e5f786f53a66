//! Rows of a matrix: a part of them, or all in a different order.

use std::ops::Range;

use shardwright_graph::{Weight, WeightData, WeightQuantisation};
use shardwright_vocabulary::{Error, Granularity, Result};

use crate::deferred_bytes::made;

/// Returns rows of a matrix as a weight with the given name and part. Bytes are shared.
///
/// # Errors
///
/// If the matrix does not have these rows.
pub(crate) fn part_of(whole: &Weight, name: String, part: &'static str, rows: Range<u64>) -> Result<Weight> {
    let count = whole.shape[0];
    let of = |data: &WeightData| {
        let row = data.length() as u64 / count.max(1);
        data.part((row * rows.start) as usize..(row * rows.end) as usize)
    };
    let quantisation = whole.quantisation.as_ref().map(|quantisation| {
        let scales = match quantisation.granularity {
            Granularity::PerTensor => quantisation.scales.clone(),
            _ => of(&quantisation.scales)?,
        };
        Ok::<_, Error>(WeightQuantisation { scales, ..quantisation.clone() })
    });
    let shape = [rows.end - rows.start].into_iter().chain(whole.shape[1..].iter().copied()).collect();
    let data = of(&whole.data)?;
    Ok(Weight { name, part, shape, dtype: whole.dtype, data, quantisation: quantisation.transpose()? })
}

/// Returns a matrix whose rows are reordered within blocks of `size` rows: row `r` of a block is
/// row `source(r)` of the same block in `weight`.
pub(crate) fn reordered(
    weight: Weight,
    size: usize,
    source: impl Fn(usize) -> usize + Copy + Send + Sync + 'static,
) -> Result<Weight> {
    let rows = weight.shape[0] as usize;
    let ordered = |data: WeightData| {
        if !data.is_present() {
            return Ok(data);
        }
        let length = data.length();
        let row_bytes = length / rows;
        made(length, move || {
            let stored = data.bytes();
            let row = |index: usize| &stored[index * row_bytes..][..row_bytes];
            (0..rows).flat_map(|index| row(index / size * size + source(index % size))).copied().collect()
        })
    };
    let quantisation = weight.quantisation.map(|quantisation| {
        let scales = match quantisation.granularity {
            Granularity::PerTensor => quantisation.scales,
            _ => ordered(quantisation.scales)?,
        };
        Ok::<_, Error>(WeightQuantisation { scales, ..quantisation })
    });
    Ok(Weight { data: ordered(weight.data)?, quantisation: quantisation.transpose()?, ..weight })
}
