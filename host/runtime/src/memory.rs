//! Memory use of chains and sessions, and its limit.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

#[derive(Debug, Default)]
struct Counted {
    limit: Option<u64>,
    used: Mutex<u64>,
}

impl Counted {
    fn used(&self) -> MutexGuard<'_, u64> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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
        MemoryBudget(Arc::new(Counted { limit, used: Mutex::new(0) }))
    }

    /// Returns the limit in bytes.
    pub fn limit(&self) -> Option<u64> {
        self.0.limit
    }

    /// Returns the bytes in use.
    pub fn used(&self) -> u64 {
        *self.0.used()
    }

    /// Checks whether `bytes` more bytes fit.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Memory`] if they do not.
    pub fn expect(&self, bytes: u64) -> Result<()> {
        self.fits(*self.0.used(), bytes)
    }

    /// Reserves a part of the budget.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Memory`] if it does not fit.
    pub fn take(&self, bytes: u64) -> Result<MemoryShare> {
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
