//! What chains and sessions take of memory, and a bound on it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

/// What a session takes beside the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SessionMemory {
    /// Bytes of states (KV cache).
    pub states: u64,
    /// Bytes of step inputs and of what shards hand over.
    pub buffers: u64,
    /// Bytes of the copy of the logits that a token is chosen from.
    pub logits: u64,
}

impl SessionMemory {
    /// All of it.
    pub fn bytes(&self) -> u64 {
        self.states.saturating_add(self.buffers).saturating_add(self.logits)
    }
}

/// A bound on what chains and their sessions take together. Clones share it.
///
/// It counts what is known to this program: artefacts, states, buffers. What drivers take for
/// themselves is not known, and pages of gathered tables are in memory as far as the system keeps
/// them.
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

/// Memory that does not fit into a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{asked} bytes of memory are needed, and {used} of the budget of {limit} bytes are in use")]
pub struct BudgetError {
    /// Bytes asked for.
    pub asked: u64,
    /// Bytes in use.
    pub used: u64,
    /// The bound.
    pub limit: u64,
}

impl BudgetError {
    /// What would help.
    pub fn help(&self) -> Option<&'static str> {
        Some("drop or release sessions that are idle, or open the model with a larger budget")
    }
}

/// A part of a budget, given back when it is dropped.
#[derive(Debug)]
pub struct MemoryShare {
    budget: MemoryBudget,
    bytes: u64,
}

impl MemoryShare {
    /// Its size.
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
    /// A budget of so many bytes; `None` bounds nothing, and counts.
    pub fn new(limit: Option<u64>) -> Self {
        MemoryBudget(Arc::new(Counted { limit, used: Mutex::new(0) }))
    }

    /// The bound.
    pub fn limit(&self) -> Option<u64> {
        self.0.limit
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        *self.0.used()
    }

    /// Whether so many bytes more would fit.
    pub fn expect(&self, bytes: u64) -> Result<(), BudgetError> {
        self.fits(*self.0.used(), bytes)
    }

    /// Takes a part of it.
    pub fn take(&self, bytes: u64) -> Result<MemoryShare, BudgetError> {
        let mut used = self.0.used();
        self.fits(*used, bytes)?;
        *used = used.saturating_add(bytes);
        Ok(MemoryShare { budget: self.clone(), bytes })
    }

    fn fits(&self, used: u64, asked: u64) -> Result<(), BudgetError> {
        match self.0.limit {
            Some(limit) if used.saturating_add(asked) > limit => Err(BudgetError { asked, used, limit }),
            _ => Ok(()),
        }
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
        let error: BudgetError = other.take(4).unwrap_err();
        assert_eq!(error, BudgetError { asked: 4, used: 7, limit: 10 });
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
