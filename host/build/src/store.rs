//! Stores artefacts and finds those that need not be compiled again.

use std::cell::Cell;
use std::collections::BTreeMap;

use shardwright_shims::{Artefact, Place, WorkOrder};

use crate::{BuildError, TargetExecutor, artefact_key};

/// Stores artefacts and finds those that need not be compiled again.
pub trait ArtefactStore {
    /// Where `compile` writes; asked for once before each compilation.
    fn place(&self) -> Result<Place<'_>, BuildError>;

    /// The artefact compiled earlier from this work order by that shim on that device.
    fn recall(
        &mut self,
        order: &WorkOrder,
        executor: &TargetExecutor,
    ) -> Result<Option<Artefact>, BuildError>;

    /// Stores an artefact; returns the one to use from now on.
    fn keep(
        &mut self,
        order: &WorkOrder,
        executor: &TargetExecutor,
        made: Artefact,
    ) -> Result<Artefact, BuildError>;

    /// What [`recall`](Self::recall) did not find was not made either. Default: nothing.
    fn not_made(&mut self) {}
}

/// Stores nothing: artefacts are unnamed files, dropped with the chain that loads them.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoArtefactStore;

impl ArtefactStore for NoArtefactStore {
    fn place(&self) -> Result<Place<'_>, BuildError> {
        Ok(Place::Temporary)
    }

    fn recall(
        &mut self,
        _order: &WorkOrder,
        _executor: &TargetExecutor,
    ) -> Result<Option<Artefact>, BuildError> {
        Ok(None)
    }

    fn keep(
        &mut self,
        _order: &WorkOrder,
        _executor: &TargetExecutor,
        made: Artefact,
    ) -> Result<Artefact, BuildError> {
        Ok(made)
    }
}

/// Compilations so far, of every model of a bundle, and how many there may be.
#[derive(Debug)]
pub struct Compilations {
    made: Cell<usize>,
    limit: usize,
}

impl Compilations {
    /// None so far, and at most `limit`.
    pub fn at_most(limit: usize) -> Self {
        Compilations { made: Cell::new(0), limit }
    }

    /// How many there were.
    pub fn made(&self) -> usize {
        self.made.get()
    }
}

/// Wraps another store and remembers artefacts of refused plans: a shard that the next plan keeps
/// is not compiled again. Counts what is compiled, and ends it at a limit.
pub(crate) struct RevisedStore<'s> {
    behind: &'s mut dyn ArtefactStore,
    /// By the key of the artefact.
    made: BTreeMap<String, Artefact>,
    compilations: &'s Compilations,
}

impl<'s> RevisedStore<'s> {
    pub(crate) fn new(behind: &'s mut dyn ArtefactStore, compilations: &'s Compilations) -> Self {
        RevisedStore { behind, made: BTreeMap::new(), compilations }
    }
}

impl ArtefactStore for RevisedStore<'_> {
    fn place(&self) -> Result<Place<'_>, BuildError> {
        let &Compilations { ref made, limit } = self.compilations;
        if made.get() >= limit {
            return Err(BuildError::Compilations { limit });
        }
        made.set(made.get() + 1);
        self.behind.place()
    }

    fn recall(
        &mut self,
        order: &WorkOrder,
        executor: &TargetExecutor,
    ) -> Result<Option<Artefact>, BuildError> {
        match self.made.get(&artefact_key(order, executor)?) {
            Some(made) => Ok(Some(made.clone())),
            None => self.behind.recall(order, executor),
        }
    }

    fn keep(
        &mut self,
        order: &WorkOrder,
        executor: &TargetExecutor,
        made: Artefact,
    ) -> Result<Artefact, BuildError> {
        let kept = self.behind.keep(order, executor, made)?;
        self.made.insert(artefact_key(order, executor)?, kept.clone());
        Ok(kept)
    }

    fn not_made(&mut self) {
        self.behind.not_made();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compilations_are_counted_and_end_at_their_limit() {
        let mut behind = NoArtefactStore;
        let compilations = Compilations::at_most(2);
        let store = RevisedStore::new(&mut behind, &compilations);
        assert!(store.place().is_ok() && store.place().is_ok());
        let error = store.place().unwrap_err();
        assert!(matches!(error, BuildError::Compilations { limit: 2 }), "{error}");
        assert!(error.help().is_some_and(|help| help.contains("--compilations")));
        assert_eq!(compilations.made(), 2);
    }
}
