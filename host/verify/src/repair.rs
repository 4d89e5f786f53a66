//! Repairs a bundle that drifts: finds the fault, has a planner raise a format there, and compiles
//! and verifies the new plan, until one passes.

use std::path::Path;

use serde::Serialize;
use shardwright::OpenOptions;
use shardwright::tools::OpenTools;
use shardwright_build::{BundleLoopStart, Compilations, LoopStart, PlanOptions, Proving, RecordedPlan};
use shardwright_bundle::Bundle;
use shardwright_checkpoints::{CompileReport, TowerScope, compile_trying, open_adapted, towers_of};
use shardwright_models::Checkpoint;
use shardwright_vocabulary::{Error, ErrorKind, Pass, Result, Watch};

use crate::bundled::bundle_of;
use crate::options::VerifyOptions;
use crate::report::VerifyReport;
use crate::thresholds::Thresholds;
use crate::tower::{TowerProof, recorded};

mod faulty_place;
mod prover;
mod search;
mod subject;

use prover::ModelProver;
use subject::Text;

/// Default maximum of compilations of a repair: two faults of 35 layers without taps, and as many
/// again.
pub const COMPILATIONS: usize = 32;

/// The outcome of a repair.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RepairReport {
    /// The plans that failed, oldest first, plans of the text before plans of towers. Empty if the
    /// bundle needed no repair.
    pub attempts: Vec<RepairAttempt>,
    /// Number of all compilations: of shards of new plans, and of parts that were compiled to find
    /// the faults.
    pub compilations: usize,
    /// The verification of the plans that passed.
    pub verification: VerifyReport,
    /// The repaired bundle.
    pub compiled: RepairedBundle,
}

/// A plan that failed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RepairAttempt {
    /// Pass of the model: `step` for the text, `picture` and `clip` for towers.
    pub pass: Pass,
    /// Number of shards.
    pub shards: usize,
    /// The faulty places. Empty if the plan failed for another reason.
    pub faults: Vec<FaultyPlace>,
    /// The faulty places and other failures, in words.
    pub reasons: Vec<String>,
    /// Number of compilations until the faults of this plan were known, counted from the start.
    pub compilations: usize,
}

/// A place at which a shard's result differs from the reference.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FaultyPlace {
    /// Name of the shard.
    pub shard: String,
    /// Component, or `None` if only the shard as a whole is known to be faulty.
    pub component: Option<String>,
    /// Layer, if the component has layers.
    pub layer: Option<u32>,
    /// Role of the weights of the matrix product there.
    pub role: Option<String>,
    /// `activations` or `states`, or `None` if that is not known.
    pub values: Option<String>,
    /// Name of the faulty value in the graph.
    pub value: Option<String>,
    /// Relative error of the worst row. Null in JSON if it is infinite.
    pub relative_error: f64,
    /// How the place was found.
    pub evidence: Evidence,
}

/// How a faulty place was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// The value is wrong, although the device read correct inputs for it.
    OwnError,
    /// The layers before it are correct when compiled alone, and with it they are not.
    Range,
    /// The shard as a whole is out of bounds, but no part of it alone.
    Shard,
}

impl Evidence {
    /// Returns the name, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Evidence::OwnError => "own-error",
            Evidence::Range => "range",
            Evidence::Shard => "shard",
        }
    }
}

/// The bundle that a repair wrote.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RepairedBundle {
    /// Identity of the bundle: the hash of its manifest.
    pub bundle: String,
    pub directory: String,
    /// Total bytes of its files.
    pub bytes: u64,
    /// Number of shards of its first chain.
    pub shards: usize,
    /// Number of artefacts that were reused from the original bundle, or from an interrupted run.
    pub artefacts_reused: usize,
}

impl From<CompileReport> for RepairedBundle {
    fn from(report: CompileReport) -> Self {
        RepairedBundle {
            shards: report.variants.first().map_or(0, |variant| variant.plan.shards.len()),
            bundle: report.bundle,
            directory: report.directory,
            bytes: report.bytes,
            artefacts_reused: report.artefacts_reused,
        }
    }
}

/// Verifies `bundle` and, if it drifts, repairs it: writes to `into` a bundle whose text and towers
/// pass.
///
/// `open` contains the options that the bundle was compiled with, possibly with more formats,
/// unless [`VerifyOptions::as_recorded`] reads them from the bundle. Its plan and its artefacts are
/// tried first.
///
/// Each shard that is out of bounds is compiled once more with the inputs and outputs of its linear
/// operations as further outputs. The fault is the first value that is wrong although its inputs
/// are correct. If the fault disappears with those outputs, or the shim does not support them,
/// ranges of layers are compiled instead, each half as long as the last. The planner gets the place
/// as feedback and makes another plan. Shards that stay the same are not compiled again.
///
/// At most `compilations` shards and parts of shards are compiled. `into` contains either a
/// complete bundle or none. Artefacts of an interrupted run are reused by the next.
///
/// # Errors
///
/// Fails with errors of [`verify_bundle`](crate::verify_bundle) and of compiling. Fails with
/// [`ErrorKind::Planning`] and the last reason if no plan passes.
#[expect(clippy::too_many_arguments, reason = "those of `verify_bundle`, and where to and how far")]
pub fn repair(
    checkpoint: &Path,
    goldens: Option<&Path>,
    bundle: &Path,
    into: &Path,
    open: &OpenOptions,
    options: &VerifyOptions,
    compilations: usize,
    watch: &mut dyn Watch,
) -> Result<RepairReport> {
    options.thresholds(Thresholds::SAME_FLOATS)?;
    watch.progress(0, "reading the bundle");
    let (existing, intact, unsigned) = bundle_of(checkpoint, bundle, &open.plan_options())?;
    if is_same(bundle, into) {
        let what = format!("{} is the bundle to repair", into.display());
        return Err(Error::new(ErrorKind::Argument, what)
            .with_help("name another directory with `--output`: the bundle stays as it is"));
    }
    let plan = options.as_compiled(&existing, &intact, open)?.plan_options();
    let (plan, towers) = towers_in(&existing, checkpoint, &plan)?;
    let mut proofs = Vec::new();
    for Tower { intact, scope, plan } in &towers {
        let proof = TowerProof::new(intact, scope, plan, options)?;
        let first = recorded(&existing, &proof)?;
        proofs.push((first, ModelProver::new(proof)));
    }
    let compilations = Compilations::at_most(compilations);
    let chain = existing.variant().chains.first();
    let first = chain.map(|chain| RecordedPlan::of(&existing, chain)).transpose()?;
    let mut text = ModelProver::new(Text::new(&existing, &intact, goldens, (&plan, options))?);
    let trying = BundleLoopStart {
        text: LoopStart {
            proving: Some(Proving { prover: &mut text, compilations: &compilations }),
            first,
            ..LoopStart::default()
        },
        towers: proofs
            .iter_mut()
            .zip(&towers)
            .map(|((first, prover), tower)| {
                let proving = Some(Proving { prover, compilations: &compilations });
                (tower.scope.pass, LoopStart { proving, first: first.take(), ..LoopStart::default() })
            })
            .collect(),
    };
    let compiled = compile_trying(checkpoint, into, &plan, Some(&existing), trying, watch)?;
    let (mut attempts, mut verification) = text.finish()?;
    verification.signature_notices = unsigned;
    for (_, prover) in proofs {
        let (of_tower, proved) = prover.finish()?;
        attempts.extend(of_tower);
        verification.passed &= proved.passed;
        verification.towers.push(proved);
    }
    let compilations = compilations.made();
    Ok(RepairReport { attempts, compilations, verification, compiled: compiled.into() })
}

/// A tower of the bundle, and the checkpoint opened for it.
struct Tower {
    intact: Checkpoint,
    scope: TowerScope,
    plan: PlanOptions,
}

/// Returns the towers of a bundle, and the options with which exactly these towers are compiled
/// again.
fn towers_in(bundle: &Bundle, checkpoint: &Path, plan: &PlanOptions) -> Result<(PlanOptions, Vec<Tower>)> {
    let (mut scopes, _) = towers_of(checkpoint, plan)?;
    let every = scopes.len();
    scopes.retain(|scope| bundle.variant().model_of(scope.pass).is_some());
    let mut own = plan.clone();
    if scopes.len() < every {
        own.recorded.towers.passes = Some(scopes.iter().map(|scope| scope.pass).collect());
    }
    let opened = scopes.into_iter().map(|scope| {
        let intact = open_adapted(checkpoint, &[Pass::Step, scope.pass], plan)?;
        let plan = scope.options(&own);
        Ok(Tower { intact, scope, plan })
    });
    let opened = opened.collect::<Result<Vec<_>>>()?;
    Ok((own, opened))
}

/// Checks whether both paths are the same directory.
fn is_same(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}
