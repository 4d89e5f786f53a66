//! Stores artefacts and finds artefacts that need not be compiled again.

use std::cell::Cell;
use std::collections::BTreeMap;

use shardwright_shims::{Artefact, ArtefactDestination, WorkOrder};
use shardwright_vocabulary::{Error, ErrorKind};

use crate::{Result, TargetExecutor, artefact_key};

/// Stores artefacts and finds artefacts that need not be compiled again.
pub trait ArtefactStore {
    /// Returns where `compile` writes. Called once before each compilation.
    fn place(&self) -> Result<ArtefactDestination<'_>>;

    /// Returns the artefact compiled earlier from this work order by that shim for that device.
    fn recall(&mut self, order: &WorkOrder, executor: &TargetExecutor) -> Result<Option<Artefact>>;

    /// Stores an artefact and returns the artefact to use from now on.
    fn keep(&mut self, order: &WorkOrder, executor: &TargetExecutor, made: Artefact) -> Result<Artefact>;

    /// Called if an artefact that [`recall`](Self::recall) did not find could not be compiled. Does
    /// nothing by default.
    fn not_made(&mut self) {}
}

/// A store that keeps no artefacts. They are unnamed files, dropped with the chain that loads them.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoArtefactStore;

impl ArtefactStore for NoArtefactStore {
    fn place(&self) -> Result<ArtefactDestination<'_>> {
        Ok(ArtefactDestination::Temporary)
    }

    fn recall(&mut self, _order: &WorkOrder, _executor: &TargetExecutor) -> Result<Option<Artefact>> {
        Ok(None)
    }

    fn keep(&mut self, _order: &WorkOrder, _executor: &TargetExecutor, made: Artefact) -> Result<Artefact> {
        Ok(made)
    }
}

/// Number of compilations so far, of every model of a bundle, and its maximum.
#[derive(Debug)]
pub struct Compilations {
    made: Cell<usize>,
    limit: usize,
}

impl Compilations {
    /// Starts counting at 0, with a maximum of `limit`.
    pub fn at_most(limit: usize) -> Self {
        Compilations { made: Cell::new(0), limit }
    }

    /// Returns the number of compilations so far.
    pub fn made(&self) -> usize {
        self.made.get()
    }
}

/// Wraps another store and remembers artefacts of refused plans: a shard that the next plan keeps
/// is not compiled again. Counts compilations and stops at the maximum.
pub(crate) struct RevisedStore<'s> {
    behind: &'s mut dyn ArtefactStore,
    /// Artefacts by their key.
    made: BTreeMap<String, Artefact>,
    compilations: &'s Compilations,
}

impl<'s> RevisedStore<'s> {
    pub(crate) fn new(behind: &'s mut dyn ArtefactStore, compilations: &'s Compilations) -> Self {
        RevisedStore { behind, made: BTreeMap::new(), compilations }
    }
}

impl ArtefactStore for RevisedStore<'_> {
    fn place(&self) -> Result<ArtefactDestination<'_>> {
        let &Compilations { ref made, limit } = self.compilations;
        if made.get() >= limit {
            let what = format!("no plan succeeded within {limit} compilations");
            return Err(Error::new(ErrorKind::Planning, what).with_help(
                "allow more with `--compilations`, or offer only wider formats with `--formats`",
            ));
        }
        made.set(made.get() + 1);
        self.behind.place()
    }

    fn recall(&mut self, order: &WorkOrder, executor: &TargetExecutor) -> Result<Option<Artefact>> {
        match self.made.get(&artefact_key(order, executor)?) {
            Some(made) => Ok(Some(made.clone())),
            None => self.behind.recall(order, executor),
        }
    }

    fn keep(&mut self, order: &WorkOrder, executor: &TargetExecutor, made: Artefact) -> Result<Artefact> {
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
        assert_eq!(error.kind(), ErrorKind::Planning);
        assert!(error.message().contains("2 compilations"), "{error}");
        assert!(error.help().is_some_and(|help| help.contains("--compilations")));
        assert_eq!(compilations.made(), 2);
    }
}
