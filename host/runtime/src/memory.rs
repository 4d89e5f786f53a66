//! Memory use of chains and sessions, and its limit.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use serde::Serialize;
use shardwright_vocabulary::{Error, ErrorKind, Result};

/// Memory that a session needs in addition to the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SessionMemory {
    /// Bytes of states (KV cache).
    pub states: u64,
    /// Bytes of step inputs and of tensors passed between shards.
    pub buffers: u64,
    /// Bytes of the copy of the logits that the next token is chosen from.
    pub logits: u64,
}

impl SessionMemory {
    /// Returns the total number of bytes.
    pub fn bytes(&self) -> u64 {
        self.states.saturating_add(self.buffers).saturating_add(self.logits)
    }
}

/// A limit on the total memory of chains and their sessions. Clones share it.
///
/// It counts the memory that this program knows: artefacts, states, buffers. It does not include
/// memory that drivers allocate for themselves. Pages of gathered tables stay resident only as
/// memory allows.
#[derive(Clone, Debug, Default)]
pub struct MemoryBudget(Arc<Counted>);

/// A cache whose memory a budget may claim back.
pub(crate) trait Reclaim: Send + Sync {
    /// Drops the least recently used entries that count against `budget`, until `bytes` bytes are
    /// free or no entry is left. Returns false if there was none.
    fn reclaim(&self, budget: &MemoryBudget, bytes: u64) -> bool;
}

#[derive(Default)]
struct Counted {
    limit: Option<u64>,
    used: Mutex<u64>,
    caches: Mutex<Vec<Weak<dyn Reclaim>>>,
}

impl std::fmt::Debug for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counted")
            .field("limit", &self.limit)
            .field("used", &*self.used())
            .finish_non_exhaustive()
    }
}

impl Counted {
    fn used(&self) -> MutexGuard<'_, u64> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn caches(&self) -> MutexGuard<'_, Vec<Weak<dyn Reclaim>>> {
        self.caches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Most attempts to claim memory back from caches for one share.
const RECLAIMS_MAX: usize = 16;

/// A reserved part of a budget, which is returned when it is dropped.
#[derive(Debug)]
pub struct MemoryShare {
    budget: MemoryBudget,
    bytes: u64,
}

impl MemoryShare {
    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Checks whether it is a share of this budget.
    pub(crate) fn is_of(&self, budget: &MemoryBudget) -> bool {
        self.budget.is(budget)
    }

    /// Divides it into a share of `first` bytes and the rest.
    pub(crate) fn divided(mut self, first: u64) -> (MemoryShare, MemoryShare) {
        let first = first.min(self.bytes);
        self.bytes -= first;
        (MemoryShare { budget: self.budget.clone(), bytes: first }, self)
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        let mut used = self.budget.0.used();
        *used = used.saturating_sub(self.bytes);
    }
}

impl MemoryBudget {
    /// Creates a budget of `limit` bytes. With `None` it only counts, without a limit.
    pub fn new(limit: Option<u64>) -> Self {
        MemoryBudget(Arc::new(Counted { limit, ..Counted::default() }))
    }

    /// Returns the limit in bytes.
    pub fn limit(&self) -> Option<u64> {
        self.0.limit
    }

    /// Returns the bytes in use.
    pub fn used(&self) -> u64 {
        *self.0.used()
    }

    /// Checks whether `bytes` more bytes fit. Caches give their memory back for them.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Memory`] if they do not.
    pub fn expect(&self, bytes: u64) -> Result<()> {
        self.take(bytes).map(drop)
    }

    /// Reserves a part of the budget. Caches give their memory back for it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Memory`] if it does not fit.
    pub fn take(&self, bytes: u64) -> Result<MemoryShare> {
        // Bounded, because other threads may fill the caches again meanwhile.
        for _ in 0..RECLAIMS_MAX {
            if let Ok(share) = self.take_unclaimed(bytes) {
                return Ok(share);
            }
            let missing = self.used().saturating_add(bytes).saturating_sub(self.0.limit.unwrap_or(u64::MAX));
            // No lock is held meanwhile, because dropped entries return their shares.
            let caches: Vec<_> = self.0.caches().iter().filter_map(Weak::upgrade).collect();
            if !caches.iter().any(|cache| cache.reclaim(self, missing)) {
                break;
            }
        }
        self.take_unclaimed(bytes)
    }

    /// Registers a cache that gives memory back when [`MemoryBudget::take`] finds too little.
    pub(crate) fn reclaim_from(&self, cache: Weak<dyn Reclaim>) {
        let mut caches = self.0.caches();
        caches.retain(|known| known.strong_count() > 0);
        if !caches.iter().any(|known| known.ptr_eq(&cache)) {
            caches.push(cache);
        }
    }

    /// Checks whether two handles are the same budget.
    pub(crate) fn is(&self, other: &MemoryBudget) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Reserves a part of the budget like [`MemoryBudget::take`], but does not claim memory back.
    pub(crate) fn take_unclaimed(&self, bytes: u64) -> Result<MemoryShare> {
        let mut used = self.0.used();
        self.fits(*used, bytes)?;
        *used = used.saturating_add(bytes);
        Ok(MemoryShare { budget: self.clone(), bytes })
    }

    fn fits(&self, used: u64, needed: u64) -> Result<()> {
        let Some(limit) = self.0.limit.filter(|limit| used.saturating_add(needed) > *limit) else {
            return Ok(());
        };
        let message = format!(
            "{needed} bytes of memory are needed, but {used} of the budget of {limit} bytes are in use"
        );
        Err(Error::new(ErrorKind::Memory, message)
            .with_help("drop or release idle sessions, or open the model with a larger budget"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_shared_and_given_back() {
        let budget = MemoryBudget::new(Some(10));
        let other = budget.clone();
        let first = budget.take(7).unwrap();
        assert_eq!((first.bytes(), other.used(), other.limit()), (7, 7, Some(10)));
        let error = other.take(4).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Memory);
        let expected = "4 bytes of memory are needed, but 7 of the budget of 10 bytes are in use";
        assert_eq!(error.to_string(), expected);
        assert!(error.help().is_some() && other.expect(u64::MAX).is_err() && other.expect(3).is_ok());
        let second = other.take(3).unwrap();
        drop(first);
        assert_eq!(budget.used(), 3);
        drop(second);
        assert_eq!(budget.used(), 0);
        let unbounded = MemoryBudget::new(None);
        assert_eq!(unbounded.take(u64::MAX).unwrap().bytes(), u64::MAX);
        assert_eq!(unbounded.used(), 0);
    }
}
