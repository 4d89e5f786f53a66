use rayon::prelude::*;
use sha2::{Digest, Sha256};
use shardwright_graph::Weight;
use shardwright_vocabulary::{Error, Result};

/// Bytes that one thread hashes before it releases their pages.
const HASHED_BYTES: usize = 1 << 22;

/// Bytes before a range whose pages are released with it. Reading one page of a mapped file also
/// maps its neighbours, so the range's first page brings back pages before it.
pub(crate) const READ_AROUND: usize = 1 << 16;

/// A weight that can be read row by row, in any order, by several threads at once.
pub trait RowSource: Sync {
    /// Returns the name in the checkpoint.
    fn name(&self) -> &str;

    /// Returns the weight's part in the network, see [`Weight::part`].
    fn part(&self) -> &'static str;

    /// Returns the shape. The layout is dense and row-major, with rank ≥ 1.
    fn shape(&self) -> &[u64];

    /// Reads the values of whole rows (lines of the last axis), starting at row `first`, until
    /// `out` is full.
    fn rows(&self, first: usize, out: &mut [f32]) -> Result<()>;

    /// Releases `rows` rows starting at `first`, which were read and are not needed soon.
    fn release(&self, _first: usize, _rows: usize) {}

    /// Returns a hash that changes with any value, the type or the shape.
    fn identity(&self) -> Result<[u8; 32]>;
}

/// A weight of a checkpoint, memory-mapped and decoded row by row. Its identity is a hash of all
/// its bytes, computed on all threads. Pages are released after reading.
impl RowSource for Weight {
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
        let width = self.row_width().max(1);
        for (index, row) in out.chunks_mut(width).enumerate() {
            if !self.decode_row(first + index, row) {
                let what = format!("the weight has only {} bytes", self.data.bytes().len());
                return Err(Error::invalid(what)
                    .at(format!("weight `{}`: row {}", self.name, first + index))
                    .with_help("quantise the checkpoint's graph, not a planned one"));
            }
        }
        Ok(())
    }

    fn release(&self, first: usize, rows: usize) {
        let row = self.row_bytes();
        let start = first.saturating_mul(row).saturating_sub(READ_AROUND);
        self.data.release(start..(first + rows).saturating_mul(row));
    }

    fn identity(&self) -> Result<[u8; 32]> {
        let mut digest = Sha256::new();
        digest.update([self.dtype.number() as u8]);
        digest.update((self.shape.len() as u64).to_le_bytes());
        self.shape.iter().for_each(|extent| digest.update(extent.to_le_bytes()));
        let bytes = self.data.bytes();
        let parts: Vec<[u8; 32]> = bytes
            .par_chunks(HASHED_BYTES)
            .enumerate()
            .map(|(index, part)| {
                let hash = Sha256::digest(part).into();
                let start = index * HASHED_BYTES;
                self.data.release(start.saturating_sub(READ_AROUND)..start + part.len());
                hash
            })
            .collect();
        parts.iter().for_each(|part| digest.update(part));
        if let Some(existing) = &self.quantisation {
            digest.update(format!(
                "{:?} {} {}",
                existing.granularity, existing.scale_dtype, existing.zero_point
            ));
            digest.update(existing.scales.bytes());
        }
        Ok(digest.finalize().into())
    }
}

/// Access to the stored size of one row in bytes.
trait RowBytes {
    fn row_bytes(&self) -> usize;
}

impl RowBytes for Weight {
    fn row_bytes(&self) -> usize {
        (self.row_width() as u64 * self.dtype.bits()).div_ceil(8) as usize
    }
}
