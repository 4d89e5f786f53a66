//! States of recent prompts, shared by sessions, so that an equal beginning of a later prompt is
//! copied instead of run.

mod rows;
mod tree;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use shardwright_bundle::Digest;

use crate::chain::Chain;
use crate::memory::{MemoryBudget, Reclaim};
use crate::soft_rows::SoftParts;
pub(crate) use tree::Found;
use tree::{Read, Tree};

/// Identity of the token or soft row at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark(u128);

/// Set in marks of soft rows, and never in marks of tokens.
const SOFT: u128 = 1 << 127;

impl Mark {
    /// Returns the marks of a sequence.
    pub(crate) fn all(ids: &[u32], soft: &SoftParts) -> Vec<Mark> {
        let mark = |(position, &id): (usize, &u32)| match soft.identity(position) {
            None => Mark(u128::from(id)),
            Some((origin, row)) => {
                let text = [&origin[..], &(row as u64).to_le_bytes(), &id.to_le_bytes()].concat();
                let half = Digest::of(&text).bytes().first_chunk().copied().unwrap_or_default();
                Mark(u128::from_le_bytes(half) | SOFT)
            }
        };
        ids.iter().enumerate().map(mark).collect()
    }
}

/// Contents and use of a [`PrefixCache`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PrefixCacheStatistics {
    /// Limit in bytes.
    pub limit: u64,
    /// Bytes in use.
    pub bytes: u64,
    /// Number of positions whose states are stored.
    pub positions: u64,
    /// Number of prompts that found a longer beginning here than in their session.
    pub hits: u64,
    /// Number of prompts that did not.
    pub misses: u64,
    /// Number of positions that were copied instead of run.
    pub reused_positions: u64,
    /// Number of positions that were dropped for newer ones or for sessions.
    pub dropped_positions: u64,
    /// Number of positions that were not stored, because they did not fit or a shim did not give
    /// access to its states.
    pub skipped_positions: u64,
}

/// A cache of the states of recent prompts and replies, for all sessions of a model. Clones share
/// it.
///
/// A prompt reuses its longest beginning of equal tokens and equal pictures and sounds, up to the
/// last token, which always runs. Only states of the same loaded chain are reused. The least
/// recently used positions are dropped first, from the end of their text. The states of
/// sliding-window layers are stored for every position, so a beginning of any length is reusable.
///
/// All sessions with the cache can find out, by the time that a prompt needs, whether another
/// session had an equal beginning. Use one cache for each user who must not learn that.
#[derive(Clone, Debug)]
pub struct PrefixCache(Arc<Shared>);

#[derive(Debug)]
struct Shared(Mutex<Tree>);

impl Shared {
    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reclaim for Shared {
    fn reclaim(&self, budget: &MemoryBudget, bytes: u64) -> bool {
        self.tree().reclaim(budget, bytes)
    }
}

impl PrefixCache {
    /// Creates an empty cache of at most `bytes` bytes. They also count against the memory budget
    /// of a model, if there is one.
    pub fn new(bytes: u64) -> PrefixCache {
        PrefixCache(Arc::new(Shared(Mutex::new(Tree::new(bytes)))))
    }

    /// Returns the contents and the use of the cache so far.
    pub fn statistics(&self) -> PrefixCacheStatistics {
        self.0.tree().statistics()
    }

    /// Drops all states.
    pub fn clear(&self) {
        self.0.tree().clear();
    }

    /// Lets a budget claim the cache's memory back.
    pub(crate) fn count_against(&self, budget: &MemoryBudget) {
        let cache: Arc<dyn Reclaim> = self.0.clone();
        budget.reclaim_from(Arc::downgrade(&cache));
    }

    /// Returns the stored states of the longest beginning of `marks`, shortened by `whole` so that
    /// no part is cut, if it is longer than `known`.
    pub(crate) fn find(
        &self,
        chain: &Chain,
        marks: &[Mark],
        known: usize,
        whole: &dyn Fn(usize) -> usize,
    ) -> Option<Found> {
        self.0.tree().find(chain, marks, known, whole)
    }

    /// Stores the states of `marks`. `read` appends the rows of a state at these positions, which
    /// are within `readable`.
    pub(crate) fn store(&self, chain: &Chain, marks: &[Mark], readable: Range<usize>, read: Read<'_>) {
        self.0.tree().store(chain, marks, readable, read);
    }
}
