//! The logits of a step, borrowed from the shard's memory if possible. A vocabulary may have a
//! quarter of a million entries, so this avoids a large copy per token.

use std::ops::Range;

use shardwright_shims::{BufferRead, ShimError};

use super::softcap;
use crate::chain::layout::Located;
use crate::engine::Engine;
use crate::storage::{Storage, widen};

/// Values of all rows or of one row, initially empty.
#[derive(Default)]
pub(super) struct Logits {
    /// Memory of a shard, which no run can write while it is borrowed, with the range in values.
    lent: Option<(BufferRead, Range<usize>)>,
    /// Used instead if values must be converted or capped. Its memory is reused.
    copied: Vec<f32>,
}

impl Logits {
    /// Drops the values and releases the shard's memory for the next run.
    pub(super) fn clear(&mut self) {
        self.lent = None;
        self.copied.clear();
    }

    /// Stores the first values of a result, capped if there is a cap.
    pub(super) fn take(
        &mut self,
        engine: &Engine,
        located: &Located,
        elements: usize,
        cap: Option<f32>,
    ) -> Result<(), ShimError> {
        self.clear();
        let bytes = engine.bytes(located)?;
        if cap.is_none() && located.storage == Storage::F32 && plain(&bytes).is_some() {
            self.lent = Some((bytes, 0..elements));
            return Ok(());
        }
        let size = located.storage.dtype.bytes() as usize;
        self.copied.resize(elements, 0.0);
        widen(located.storage, &bytes[..elements * size], &mut self.copied);
        if let Some(cap) = cap {
            softcap(cap, &mut self.copied);
        }
        Ok(())
    }

    /// Stores a copy of these values.
    pub(super) fn copy_from(&mut self, values: &[f32]) {
        self.clear();
        self.copied.extend_from_slice(values);
    }

    /// Keeps only the values of one row of `width`.
    pub(super) fn keep_row(&mut self, row: usize, width: usize) {
        let (first, end) = (row * width, (row + 1) * width);
        if let Some((_, range)) = &mut self.lent {
            *range = (range.start + first).min(range.end)..(range.start + end).min(range.end);
        }
        let values = self.copied.len();
        self.copied.copy_within(first.min(values)..end.min(values), 0);
        self.copied.truncate(width);
    }

    pub(super) fn values(&self) -> &[f32] {
        match &self.lent {
            Some((bytes, range)) => plain(bytes).and_then(|all| all.get(range.clone())).unwrap_or(&[]),
            None => &self.copied,
        }
    }
}

/// Views bytes as values, or returns `None` if they are misaligned.
fn plain(bytes: &[u8]) -> Option<&[f32]> {
    bytemuck::try_cast_slice(&bytes[..bytes.len() / 4 * 4]).ok()
}
