//! What judges a plan that was compiled, before it is accepted.

use shardwright_graph::{Graph, Segments};
use shardwright_planning::check::CheckedPlan;
use shardwright_planning::feedback::Feedback;
use shardwright_planning::request::Request;
use shardwright_shims::{ShimError, Watch};
use shardwright_vocabulary::ShardOrigin;

use crate::compile::{Extent, compile_shard};
use crate::places::{LoadedPart, thread_options};
use crate::store::Compilations;
use crate::{ArtefactStore, BuildError, BuildSite, BuiltShard, PlanReport, Result, TargetExecutor};

/// Judges plans that were compiled.
pub trait Prover {
    /// Why the plan is not accepted, as a planner is told; empty if it is.
    ///
    /// # Errors
    ///
    /// What no other plan would avoid.
    fn prove(&mut self, candidate: &mut Candidate<'_>, watch: &mut dyn Watch) -> Result<Vec<Feedback>>;
}

/// How plans are judged.
pub struct Proving<'p> {
    /// What judges them.
    pub prover: &'p mut dyn Prover,
    /// Compilations of shards of plans and of parts of them, and how many there may be.
    pub compilations: &'p Compilations,
}

/// A plan that was compiled and not yet accepted.
pub struct Candidate<'c> {
    pub(crate) site: BuildSite<'c>,
    pub(crate) plan: &'c CheckedPlan,
    pub(crate) shards: &'c [BuiltShard],
    pub(crate) graph: &'c Graph,
    pub(crate) report: PlanReport,
    pub(crate) threads: Option<u32>,
    pub(crate) store: &'c mut dyn ArtefactStore,
    pub(crate) compilations: &'c Compilations,
}

impl<'c> Candidate<'c> {
    /// The plan.
    pub fn plan(&self) -> &'c CheckedPlan {
        self.plan
    }

    /// The plan with the tables it was made from.
    pub fn report(&self) -> &PlanReport {
        &self.report
    }

    /// The request that it answers.
    pub fn request(&self) -> &'c Request {
        self.site.request
    }

    /// The compiled shards, in order of execution.
    pub fn shards(&self) -> &'c [BuiltShard] {
        self.shards
    }

    /// The model, its tables in the formats of the plan.
    pub fn graph(&self) -> &'c Graph {
        self.graph
    }

    /// Compilations so far, of all plans and of parts of them.
    pub fn compilations(&self) -> usize {
        self.compilations.made()
    }

    /// What compiles and runs a shard.
    pub fn executor(&self, shard: &BuiltShard) -> &'c TargetExecutor {
        &self.site.executors[shard.target]
    }

    /// Loads a shard, or part of one, where it was compiled.
    ///
    /// # Errors
    ///
    /// Those of the shim; [`feedback_of`](crate::feedback_of) says which a planner can act on.
    pub fn load(&self, shard: &BuiltShard) -> std::result::Result<LoadedPart, ShimError> {
        let executor = self.executor(shard);
        let options = thread_options(executor.instance.shim().name(), self.threads);
        let instance = &executor.instance;
        let loaded = instance.load_with(&executor.device, &shard.artefact, &options, &shard.load_flags)?;
        Ok(LoadedPart {
            name: shard.name.clone(),
            origin: ShardOrigin { loaded_with: loaded.flags().to_vec(), ..shard.origin(self.request()) },
            shard: loaded,
            logits_softcap: shard.logits_softcap,
        })
    }

    /// Compiles a shard once more, with what every linear operation reads and gives as further
    /// outputs.
    ///
    /// # Errors
    ///
    /// Those of [`compile_plan`](crate::compile_plan); [`BuildError::Refused`] if the shim takes no
    /// further outputs.
    pub fn tapped(
        &mut self,
        shard: usize,
        watch: &mut dyn Watch,
    ) -> std::result::Result<BuiltShard, BuildError> {
        compile_shard(&self.site, self.plan, shard, Extent::Tapped, self.store, watch)
    }

    /// Compiles adjacent segments of a shard alone, in the formats they have in it.
    ///
    /// # Errors
    ///
    /// Those of [`compile_plan`](crate::compile_plan).
    pub fn part(
        &mut self,
        shard: usize,
        segments: &Segments,
        watch: &mut dyn Watch,
    ) -> std::result::Result<BuiltShard, BuildError> {
        compile_shard(&self.site, self.plan, shard, Extent::Some(segments), self.store, watch)
    }
}
