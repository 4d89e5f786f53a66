//! The state of a run that steps use.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use super::memory::Memory;
use crate::kernels::attention::{Block, Visible};
use crate::kernels::integer::Streams;
use crate::kernels::integer::split::Head;
use crate::pool::Pool;
use crate::program::Entry;
use crate::simd::Level;
use crate::simd::dot::DotLevel;
use crate::tuning::{HeadTuning, Tuning};

/// Selects how byte products are computed. No selection changes a bit of a result.
pub struct Ways {
    /// Measurements that find the fastest way.
    pub tuning: Arc<Tuning>,
    /// Streams for one row, if a flag sets them.
    pub streams: Option<Streams>,
    /// Instructions for many rows, if a flag sets them.
    pub products: Option<DotLevel>,
    /// Measurements of how the largest logits are found fastest with the loaded weights.
    pub heads: HeadTuning,
    /// How the largest logits are found, if a flag sets it.
    pub head: Option<Head>,
}

/// One run in progress.
pub struct Stage<'r, 'e> {
    pub entry: &'e Entry,
    pub memory: Memory<'r>,
    pub weights: &'r [u8],
    /// As much as [`scratch`](crate::ops::scratch) returns for any step of the program.
    pub scratch: &'r mut [f32],
    pub pool: &'e Pool,
    pub level: Level,
    pub dot: DotLevel,
    pub streams: Streams,
    pub ways: &'e Ways,
    /// Bytes of weights read by products of one row, and the time of these products.
    pub streamed: (u64, Duration),
    /// Buffers reused by all runs.
    pub visible: &'e mut Vec<Visible>,
    pub blocks: &'e mut Vec<Block>,
    /// Valid rows.
    pub rows: usize,
    /// How many of the largest logits of each row must be exact, `None` for all.
    pub largest: Option<NonZeroUsize>,
}
