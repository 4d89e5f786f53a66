//! The logits of a step, where the shard wrote them if they can be read there: a vocabulary of a
//! quarter of a million makes a copy of them worth sparing, at every token.

use std::ops::Range;

use shardwright_shims::{BufferRead, ShimError};

use super::softcap;
use crate::chain::layout::Located;
use crate::engine::Engine;
use crate::storage::{Storage, widen};

/// Values of all rows or of one; none at first.
#[derive(Default)]
pub(super) struct Logits {
    /// Memory of a shard, which no run can write as long as this is held, and what of it is meant,
    /// in values.
    lent: Option<(BufferRead, Range<usize>)>,
    /// In its place, where values have to be converted or capped. Its memory is used again.
    copied: Vec<f32>,
}

impl Logits {
    /// Holds nothing any more, and leaves the shard's memory to the next run.
    pub(super) fn clear(&mut self) {
        self.lent = None;
        self.copied.clear();
    }

    /// Takes the first so many values of a result, capped if there is a cap.
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

    /// Forgets all but the last so many values.
    pub(super) fn keep_last(&mut self, width: usize) {
        if let Some((_, range)) = &mut self.lent {
            range.start = range.end.saturating_sub(width).max(range.start);
        }
        let first = self.copied.len().saturating_sub(width);
        self.copied.copy_within(first.., 0);
        self.copied.truncate(width);
    }

    /// The values.
    pub(super) fn values(&self) -> &[f32] {
        match &self.lent {
            Some((bytes, range)) => plain(bytes).and_then(|all| all.get(range.clone())).unwrap_or(&[]),
            None => &self.copied,
        }
    }
}

/// Bytes as the values they are; `None` where they are not aligned.
fn plain(bytes: &[u8]) -> Option<&[f32]> {
    bytemuck::try_cast_slice(&bytes[..bytes.len() / 4 * 4]).ok()
}
