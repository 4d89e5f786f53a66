//! Judges compiled plans before they are accepted.

use shardwright_graph::{Graph, Segments};
use shardwright_planning::check::CheckedPlan;
use shardwright_planning::feedback::Feedback;
use shardwright_planning::request::Request;
use shardwright_shims::ShimError;
use shardwright_vocabulary::{ShardOrigin, Watch};

use crate::compile::{Extent, compile_shard};
use crate::placement::{LoadedPart, thread_options};
use crate::store::Compilations;
use crate::{ArtefactStore, BuildError, BuildSite, BuiltShard, PlanReport, Result, TargetExecutor};

/// Judges plans after they were compiled.
pub trait Prover {
    /// Returns the reasons against the plan, as feedback for the planner. An empty list accepts the
    /// plan.
    ///
    /// # Errors
    ///
    /// Fails if no other plan would avoid the problem.
    fn prove(&mut self, candidate: &mut Candidate<'_>, watch: &mut dyn Watch) -> Result<Vec<Feedback>>;
}

/// How plans are judged.
pub struct Proving<'p> {
    pub prover: &'p mut dyn Prover,
    /// Number of compilations of shards of plans and of parts of shards, and its maximum.
    pub compilations: &'p Compilations,
}

/// A compiled plan that was not accepted yet.
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
    pub fn plan(&self) -> &'c CheckedPlan {
        self.plan
    }

    /// Returns the report: the plan with the tables it was made from.
    pub fn report(&self) -> &PlanReport {
        &self.report
    }

    /// Returns the request that the plan answers.
    pub fn request(&self) -> &'c Request {
        self.site.request
    }

    /// Returns the compiled shards, in order of execution.
    pub fn shards(&self) -> &'c [BuiltShard] {
        self.shards
    }

    /// Returns the model, with its tables in the formats of the plan.
    pub fn graph(&self) -> &'c Graph {
        self.graph
    }

    /// Returns the number of compilations so far, of all plans and of parts of them.
    pub fn compilations(&self) -> usize {
        self.compilations.made()
    }

    /// Returns the executor that compiles and runs a shard.
    pub fn executor(&self, shard: &BuiltShard) -> &'c TargetExecutor {
        &self.site.executors[shard.target]
    }

    /// Loads a shard, or part of one, where it was compiled.
    ///
    /// # Errors
    ///
    /// Fails with the error of the shim. [`feedback_of`](crate::feedback_of) determines whether a
    /// planner can act on it.
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

    /// Compiles a shard again, with the inputs and outputs of every linear operation as further
    /// outputs.
    ///
    /// # Errors
    ///
    /// Fails like [`compile_plan`](crate::compile_plan), and with [`BuildError::Refused`] if the
    /// shim does not support further outputs.
    pub fn tapped(
        &mut self,
        shard: usize,
        watch: &mut dyn Watch,
    ) -> std::result::Result<BuiltShard, BuildError> {
        compile_shard(&self.site, self.plan, shard, Extent::Tapped, self.store, watch)
    }

    /// Compiles adjacent segments of a shard alone, in the formats that they have in it.
    ///
    /// # Errors
    ///
    /// Fails like [`compile_plan`](crate::compile_plan).
    pub fn part(
        &mut self,
        shard: usize,
        segments: &Segments,
        watch: &mut dyn Watch,
    ) -> std::result::Result<BuiltShard, BuildError> {
        compile_shard(&self.site, self.plan, shard, Extent::Some(segments), self.store, watch)
    }
}
