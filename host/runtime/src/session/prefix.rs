//! Use of a prefix cache: a session copies the states of a known beginning instead of running it,
//! and stores its own states before they are overwritten or dropped.

use super::Session;
use crate::engine::state_rows::pieces;
use crate::error::SessionError;
use crate::prefix_cache::{Found, Mark, PrefixCache};
use crate::soft_rows::SoftParts;

/// The cache of a session.
#[derive(Clone, Default)]
pub(super) struct Prefixes {
    cache: Option<PrefixCache>,
    /// Number of positions that were stored already, or could not be.
    pub(super) stored: usize,
}

impl Session {
    /// Sets the cache of states that prompts begin with and are stored in, `None` (the default) for
    /// none. [`Session::prompt`] counts copied positions as reused.
    ///
    /// States are stored after each prompt and when the session continues elsewhere, is released or
    /// is dropped. Their memory counts against the chain's budget, which drops them when a session
    /// needs the memory.
    pub fn set_prefix_cache(&mut self, cache: Option<PrefixCache>) {
        if let (Some(cache), Some(budget)) = (&cache, self.engine.chain.budget()) {
            cache.count_against(budget);
        }
        self.prefixes = Prefixes { cache, stored: 0 };
    }

    /// Returns the prefix cache of the session.
    pub fn prefix_cache(&self) -> Option<&PrefixCache> {
        self.prefixes.cache.as_ref()
    }

    /// Uses the cache of another session.
    pub(super) fn share_prefix_cache(&mut self, other: &Session) {
        self.set_prefix_cache(other.prefixes.cache.clone());
    }

    /// Stores the states before a step of `rows` rows, if it would overwrite some that were not
    /// stored yet.
    pub(super) fn keep_prefix_before(&mut self, rows: usize) {
        if self.prefixes.cache.is_none() {
            return;
        }
        let capacities = self.engine.chain.layout().states.iter().map(|plan| plan.extents().0);
        let after = (self.filled + rows).saturating_sub(self.prefixes.stored);
        if capacities.min().is_some_and(|capacity| after > capacity) {
            self.keep_prefix();
        }
    }

    /// Stores the states of the history, as far as they are complete and were not stored yet.
    pub(super) fn keep_prefix(&mut self) {
        let Some(cache) = self.prefixes.cache.clone() else { return };
        let end = self.soft.whole(self.filled.min(self.tokens.len()));
        if end <= self.prefixes.stored {
            return;
        }
        self.prefixes.stored = end;
        let marks = Mark::all(&self.tokens[..end], &self.soft);
        let engine = &self.engine;
        let states = &engine.chain.layout().states;
        let first = states.iter().map(|plan| plan.first_kept(self.high_water)).max().unwrap_or(0);
        cache.store(&engine.chain, &marks, first..end, &mut |state, positions, rows| {
            let Some(bytes) = engine.read_state(state)? else { return Ok(()) };
            let (capacity, row_bytes) = states[state].extents();
            pieces(positions, capacity, row_bytes).for_each(|piece| rows.extend_from_slice(&bytes[piece]));
            Ok(())
        });
    }

    /// Makes the history equal to the first `most` tokens of a prompt as far as the cache has their
    /// states, if that is more than the session has. The soft rows of the prompt are already
    /// stored.
    pub(super) fn restore_prefix(&mut self, ids: &[u32], soft: &SoftParts, most: usize) {
        let Some(cache) = self.prefixes.cache.clone() else { return };
        if most <= self.filled || self.engine.chain.layout().states.is_empty() {
            return;
        }
        let marks = Mark::all(&ids[..most], soft);
        let chain = self.engine.chain.clone();
        let Some(found) = cache.find(&chain, &marks, self.filled, &|length| soft.boundary(length)) else {
            return;
        };
        // If memory is missing, the run of the prompt reports it.
        if self.engine.acquire().is_err() {
            return;
        }
        match self.copy_found(&found) {
            Ok(()) => {
                self.logits.clear();
                let known = self.tokens.len();
                self.tokens.extend_from_slice(ids.get(known..found.length).unwrap_or_default());
                (self.filled, self.high_water) = (found.length, found.length);
                self.prefixes.stored = found.length;
            }
            Err(error) => {
                tracing::info!(%error, "stored states cannot be copied: the prompt is run instead");
                self.lose_states();
            }
        }
    }

    /// Copies stored rows into the memory of the states.
    fn copy_found(&self, found: &Found) -> Result<(), SessionError> {
        for (state, plan) in self.engine.chain.layout().states.iter().enumerate() {
            let Some(mut target) = self.engine.write_state(state)? else { continue };
            let (capacity, row_bytes) = plan.extents();
            let first = found.length.saturating_sub(capacity);
            // Rows that the state already has stay, unless it wrapped around.
            let first = if self.high_water <= capacity { first.max(self.filled) } else { first };
            for (positions, mut rows) in found.rows(state, first..found.length) {
                for piece in pieces(positions, capacity, row_bytes) {
                    let (now, rest) = rows.split_at(piece.len());
                    target[piece].copy_from_slice(now);
                    rows = rest;
                }
            }
        }
        Ok(())
    }
}
