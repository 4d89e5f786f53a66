//! Plans and builds the chains of one model of a checkpoint: its text, or one of its towers.

use std::time::{Duration, Instant};

use shardwright_build::{
    ArtefactCache, ArtefactStore, LoadedPart, LoopStart, ModelSource, PRIMARY_CHAIN, PlanOptions, Planned,
    Purpose, Settled, plan, settle_from,
};
use shardwright_models::Checkpoint;
use shardwright_vocabulary::{Part, Result, Watch};

use crate::{CheckpointSource, TowerScope, TowerSource};

/// A model of a checkpoint to plan and build.
#[derive(Clone, Copy)]
pub struct Builder<'b> {
    checkpoint: &'b Checkpoint,
    tower: Option<&'b TowerScope>,
}

/// A chain that was planned, compiled and loaded here.
pub struct LoadedChain {
    pub settled: Settled,
    /// The cache that its artefacts came from.
    pub keeping: ArtefactCache,
    /// The loaded shards, in order of execution.
    pub parts: Vec<LoadedPart>,
    /// Duration of loading them.
    pub loading: Duration,
}

impl<'b> Builder<'b> {
    /// Creates the builder of a tower, or of the text without one. The checkpoint must have been
    /// opened for the pass of the tower.
    pub fn new(checkpoint: &'b Checkpoint, tower: Option<&'b TowerScope>) -> Self {
        Builder { checkpoint, tower }
    }

    pub(crate) fn source<'s>(&self, options: &'s PlanOptions) -> Result<Box<dyn ModelSource + 's>>
    where
        'b: 's,
    {
        let source: Box<dyn ModelSource + 's> = match self.tower {
            None => Box::new(CheckpointSource::new(self.checkpoint, options)),
            Some(scope) => Box::new(TowerSource::new(self.checkpoint, scope, options)?),
        };
        Ok(source)
    }

    /// Plans without compiling.
    pub fn plan(&self, options: &PlanOptions, watch: &mut dyn Watch) -> Result<Planned> {
        plan(&mut *self.source(options)?, options, watch)
    }

    /// Plans and compiles a chain with the artefacts of a store.
    pub fn chain(
        &self,
        options: &PlanOptions,
        purpose: Purpose,
        store: &mut dyn ArtefactStore,
        trying: LoopStart<'_>,
        watch: &mut dyn Watch,
    ) -> Result<Settled> {
        settle_from(&mut *self.source(options)?, options, purpose, store, trying, watch)
    }

    /// Plans and compiles a chain to run here, with the artefacts of earlier starts.
    pub fn kept_chain(
        &self,
        options: &PlanOptions,
        trying: LoopStart<'_>,
        watch: &mut dyn Watch,
    ) -> Result<(Settled, ArtefactCache)> {
        let mut source = self.source(options)?;
        let mut keeping = ArtefactCache::of(options, source.graph());
        let settled = settle_from(&mut *source, options, Purpose::Run, keeping.store(), trying, watch)?;
        Ok((settled, keeping))
    }

    /// Plans, compiles and loads a chain to run here, with the artefacts of earlier starts. A shard
    /// that fails to load causes a revision of the plan, like one that fails to compile.
    pub fn loaded_chain(&self, options: &PlanOptions, watch: &mut dyn Watch) -> Result<LoadedChain> {
        let mut source = self.source(options)?;
        let mut keeping = ArtefactCache::of(options, source.graph());
        let mut all = Part::new(watch, 0..1000);
        let mut trying = LoopStart::default();
        loop {
            let store = keeping.store();
            let watch = &mut all.most_of_the_rest();
            let settled = settle_from(&mut *source, options, Purpose::Run, store, trying, watch)?;
            all.progress(1000, "loading");
            let begun = Instant::now();
            match settled.load_or_history()? {
                Ok(parts) => return Ok(LoadedChain { settled, keeping, parts, loading: begun.elapsed() }),
                Err(before) => trying = LoopStart { before, ..LoopStart::default() },
            }
        }
    }

    /// Returns the name of the first chain in a bundle.
    pub(crate) fn first_name(&self) -> &'static str {
        self.tower.map_or(PRIMARY_CHAIN, |scope| scope.pass.name())
    }
}
