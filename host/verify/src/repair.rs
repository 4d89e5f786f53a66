//! Repairing a bundle that drifts: the fault is found, a planner raises a format there, and the new
//! plan is compiled and verified, until one holds.

use std::path::Path;

use serde::Serialize;
use shardwright::OpenOptions;
use shardwright_build::{
    BundleTrying, Compilations, CompileReport, PlanOptions, Proving, RecordedPlan, TowerScope, Trying,
    compile_trying, towers_of,
};
use shardwright_bundle::Bundle;
use shardwright_models::Checkpoint;
use shardwright_shims::Watch;
use shardwright_vocabulary::{Error, ErrorKind, Pass, Result};

use crate::bundled::bundle_of;
use crate::options::VerifyOptions;
use crate::report::VerifyReport;
use crate::thresholds::Thresholds;
use crate::tower::{TowerProof, recorded};

mod place;
mod prover;
mod search;
mod subject;

use prover::ModelProver;
use subject::Text;

/// Most compilations of a repair, unless another number is asked for: two faults of 35 layers
/// without taps, and as many again.
pub const COMPILATIONS: usize = 32;

/// The outcome of a repair.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RepairReport {
    /// The plans that did not hold, oldest first, those of the text before those of towers; empty
    /// if there was nothing to repair.
    pub attempts: Vec<RepairAttempt>,
    /// Compilations in all: of shards of new plans, and of what was compiled to find the faults.
    pub compilations: usize,
    /// The verification of the plans that hold.
    pub verification: VerifyReport,
    /// The bundle of it.
    pub compiled: RepairedBundle,
}

/// A plan that did not hold.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RepairAttempt {
    /// Of what it is: `step` of the text, `picture` and `clip` of towers.
    pub pass: Pass,
    /// Its shards.
    pub shards: usize,
    /// Where it is wrong; empty if it failed otherwise.
    pub faults: Vec<FaultyPlace>,
    /// The same, and other failures, in words.
    pub reasons: Vec<String>,
    /// Compilations until its faults were known, counted from the beginning.
    pub compilations: usize,
}

/// A place at which a shard computes something else than the reference.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FaultyPlace {
    /// Name of the shard.
    pub shard: String,
    /// Component; none if the shard as a whole is all that is known.
    pub component: Option<String>,
    /// Layer, of a component that has layers.
    pub layer: Option<u32>,
    /// Role of the weights that are multiplied there.
    pub role: Option<String>,
    /// `activations` or `states`; none where that is not known.
    pub values: Option<String>,
    /// The value of the graph that is off.
    pub value: Option<String>,
    /// Relative error of the worst row; null in JSON where it has no bound.
    pub relative_error: f64,
    /// How it is known.
    pub evidence: Evidence,
}

/// How a faulty place is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// The value is off although the device read what the reference computes it from.
    OwnError,
    /// The layers before it are right when compiled alone, and with it they are not.
    Range,
    /// The shard is off as a whole, and no part of it alone.
    Shard,
}

impl Evidence {
    /// The name, as in JSON.
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
    /// Identity: the hash of its manifest.
    pub bundle: String,
    /// Path.
    pub directory: String,
    /// Bytes of its files.
    pub bytes: u64,
    /// Shards of its first chain.
    pub shards: usize,
    /// Artefacts that were taken from the bundle that was repaired, or from a run that was
    /// interrupted.
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

/// Verifies `bundle` and, where it drifts, repairs it: writes to `into` a bundle that verifies, its
/// text and its towers.
///
/// `open` has the options it was compiled with, to which formats may be added, unless
/// [`VerifyOptions::as_recorded`] takes them from the bundle. Its plan and its artefacts are tried
/// first. Each shard that is out of bounds is compiled once more
/// with what its linear operations read and give as further outputs: the first value that is off
/// although what it is computed from is right is the fault. Where the fault vanishes with those
/// outputs, or the shim takes none, ranges of layers are compiled instead, each half of the last.
/// The planner is told the place and makes another plan; shards that stay are not compiled again.
///
/// At most `compilations` shards and parts of shards are compiled. `into` gets a whole bundle or
/// none; what an interrupted run compiled is there for the next.
///
/// # Errors
///
/// Those of [`verify_bundle`](crate::verify_bundle) and of compiling; [`ErrorKind::Planning`] if no
/// plan verifies, with the last reason.
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
        let what = format!("{} is the bundle to be repaired", into.display());
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
    let trying = BundleTrying {
        text: Trying {
            proving: Some(Proving { prover: &mut text, compilations: &compilations }),
            first,
            ..Trying::default()
        },
        towers: proofs
            .iter_mut()
            .zip(&towers)
            .map(|((first, prover), tower)| {
                let proving = Some(Proving { prover, compilations: &compilations });
                (tower.scope.pass, Trying { proving, first: first.take(), ..Trying::default() })
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

/// The towers of a bundle, and the options with which those alone are compiled again.
fn towers_in(bundle: &Bundle, checkpoint: &Path, plan: &PlanOptions) -> Result<(PlanOptions, Vec<Tower>)> {
    let (mut scopes, _) = towers_of(checkpoint, plan)?;
    let every = scopes.len();
    scopes.retain(|scope| bundle.variant().model_of(scope.pass).is_some());
    let mut own = plan.clone();
    if scopes.len() < every {
        own.towers.passes = Some(scopes.iter().map(|scope| scope.pass).collect());
    }
    let opened = scopes.into_iter().map(|scope| {
        let intact = Checkpoint::open_for(checkpoint, &[Pass::Step, scope.pass])?;
        let plan = scope.options(&own);
        Ok(Tower { intact, scope, plan })
    });
    let opened = opened.collect::<Result<Vec<_>>>()?;
    Ok((own, opened))
}

/// Whether both paths are one directory.
fn is_same(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}
