//! Where artefacts go, and from where one need not be made again.

use std::collections::BTreeMap;

use shardwright_shims::{Artefact, Place, WorkOrder};

use crate::{BuildError, TargetExecutor, artefact_key};

/// Where artefacts go, and whether one need not be made again.
pub trait ArtefactStore {
    /// Where `compile` writes.
    fn place(&self) -> Result<Place<'_>, BuildError>;

    /// What was made of this work order before by that shim on that device.
    fn recall(
        &mut self,
        order: &WorkOrder,
        executor: &TargetExecutor,
    ) -> Result<Option<Artefact>, BuildError>;

    /// Takes what was made; gives what to use of it from now on.
    fn keep(
        &mut self,
        order: &WorkOrder,
        executor: &TargetExecutor,
        made: Artefact,
    ) -> Result<Artefact, BuildError>;
}

/// Keeps nothing: artefacts are files without a name, gone with the chain that loads them.
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

/// Another store, and what was made for the plans that were refused: a shard that the next plan
/// keeps is not compiled again.
pub(crate) struct RevisedStore<'s> {
    behind: &'s mut dyn ArtefactStore,
    /// By what it was made of, for which device.
    made: BTreeMap<String, Artefact>,
}

impl<'s> RevisedStore<'s> {
    pub(crate) fn new(behind: &'s mut dyn ArtefactStore) -> Self {
        RevisedStore { behind, made: BTreeMap::new() }
    }
}

impl ArtefactStore for RevisedStore<'_> {
    fn place(&self) -> Result<Place<'_>, BuildError> {
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
}
