//! The models that a repair proves: a bundle's text, and each of its towers.

use std::path::Path;
use std::sync::Arc;

use shardwright::Model;
use shardwright::tools::ModelTools;
use shardwright_build::{Candidate, CompiledGraphs, PlanOptions};
use shardwright_bundle::{Bundle, Digest};
use shardwright_graph::Graph;
use shardwright_models::Checkpoint;
use shardwright_runtime::Chain;
use shardwright_vocabulary::{Pass, Result, Watch};

use crate::boundaries::Prompt;
use crate::goldens::Goldens;
use crate::options::VerifyOptions;
use crate::report::{BoundaryVerification, TowerVerification, VerifyReport};
use crate::tower::TowerProof;
use crate::verification::{Verification, measured_of};

/// A model whose plans are proved.
pub(super) trait Subject {
    /// The report of a verification.
    type Report: Proved;

    /// Returns the pass of the model.
    fn pass(&self) -> Pass;

    /// Returns the model in the checkpoint.
    fn graph(&self) -> &Graph;

    /// Returns the prompts that the model is run over.
    fn prompts(&self) -> Vec<Prompt<'_>>;

    /// Verifies a candidate, whose shards are joined in `chain`. The chain is dropped afterwards.
    fn run(
        &self,
        candidate: &Candidate<'_>,
        chain: Chain,
        compiled: &[CompiledGraphs],
        watch: &mut dyn Watch,
    ) -> Result<Self::Report>;

    /// Returns the help for a model of which no shard alone is out of bounds.
    fn help(&self) -> &'static str;
}

/// The outcome of a verification.
pub(super) trait Proved {
    fn passed(&self) -> bool;
    fn exact(&self) -> bool;
    fn boundaries(&self) -> &[BoundaryVerification];
    fn summary(&self) -> String;
}

macro_rules! proved {
    ($($report:ident),*) => {
        $(impl Proved for $report {
            fn passed(&self) -> bool {
                self.passed
            }

            fn exact(&self) -> bool {
                self.exact
            }

            fn boundaries(&self) -> &[BoundaryVerification] {
                &self.boundaries
            }

            fn summary(&self) -> String {
                $report::summary(self)
            }
        })*
    };
}
proved!(VerifyReport, TowerVerification);

/// The text of a bundle.
pub(super) struct Text<'b> {
    /// The bundle to repair, which provides the text files.
    bundle: &'b Arc<Bundle>,
    intact: &'b Checkpoint,
    goldens: Goldens,
    plan: &'b PlanOptions,
    options: &'b VerifyOptions,
}

impl<'b> Text<'b> {
    /// Creates the subject with the recorded outputs in `goldens`, or without recorded outputs.
    pub(super) fn new(
        bundle: &'b Arc<Bundle>,
        intact: &'b Checkpoint,
        goldens: Option<&Path>,
        (plan, options): (&'b PlanOptions, &'b VerifyOptions),
    ) -> Result<Self> {
        Ok(Text { bundle, intact, goldens: Goldens::of(goldens, intact)?, plan, options })
    }
}

impl Subject for Text<'_> {
    type Report = VerifyReport;

    fn pass(&self) -> Pass {
        Pass::Step
    }

    fn graph(&self) -> &Graph {
        self.intact.graph()
    }

    fn prompts(&self) -> Vec<Prompt<'_>> {
        let usable = self.goldens.usable();
        usable.map(|(name, golden)| Prompt { name, given: golden.given() }).collect()
    }

    fn run(
        &self,
        candidate: &Candidate<'_>,
        chain: Chain,
        compiled: &[CompiledGraphs],
        watch: &mut dyn Watch,
    ) -> Result<VerifyReport> {
        let id = Digest::of(&candidate.plan().plan().canonical_bytes()).to_string();
        let model = Model::of_chain(chain, self.bundle, candidate.report().clone(), id)?;
        let &Text { intact, plan, options, .. } = self;
        let measured = measured_of(&model);
        let verification = Verification { model: &model, compiled, intact, plan, measured, options };
        let report = verification.run(&self.goldens, watch)?;
        let chain = self.bundle.variant().chains.first().map(|chain| chain.name.clone());
        let variant = Some(self.bundle.variant().soc.to_string());
        Ok(VerifyReport { bundle_chain: chain, bundle_variant: variant, ..report })
    }

    fn help(&self) -> &'static str {
        "use `--threshold nll=SHARE` and `kl=NATS` to accept a larger loss, or `--quality good` to plan for less loss"
    }
}

/// A tower for pictures or sounds.
impl Subject for TowerProof<'_> {
    type Report = TowerVerification;

    fn pass(&self) -> Pass {
        TowerProof::pass(self)
    }

    fn graph(&self) -> &Graph {
        self.graph
    }

    fn prompts(&self) -> Vec<Prompt<'_>> {
        TowerProof::prompts(self, usize::MAX)
    }

    fn run(
        &self,
        candidate: &Candidate<'_>,
        chain: Chain,
        compiled: &[CompiledGraphs],
        watch: &mut dyn Watch,
    ) -> Result<TowerVerification> {
        let formats = candidate.report().shards.iter().map(|shard| shard.formats.clone()).collect();
        TowerProof::run(self, &chain, compiled, formats, watch)
    }

    fn help(&self) -> &'static str {
        "use `--threshold` to accept a larger difference, or wider formats in `--tower-formats` for a smaller one"
    }
}
