//! Proving a bundle: its own artefacts, against the checkpoint it was compiled from.

use std::path::Path;

use shardwright_build::bundle::{Bundle, BundleWriter, Digest, Verification as Proof};
use shardwright_build::models::Checkpoint;
use shardwright_build::shims::{Artefact, Place, Watch, WorkOrder};
use shardwright_build::{BuildError, CompiledGraphs, Executor, Shelf};

use super::report::VerifyReport;
use super::{Verification, VerifyOptions};
use crate::opening::{on_the_cpu, settle};
use crate::{BundleOptions, Error, ErrorKind, OpenOptions, Result};

/// Proves the chain of `bundle` that runs here, as [`verify`](super::verify) does: the artefacts of the bundle themselves are run.
///
/// `open` are the options it was compiled with. By them the graphs of its shards are made again, and each must give the very work order that
/// the bundle names; nothing is compiled. Artefacts of a bundle show no layers, so where a shard is out of bounds the checkpoint is compiled once
/// more with its layers shown, to name the first that differs.
pub fn verify_bundle(
    checkpoint: &Path,
    goldens: &Path,
    bundle: &Path,
    open: &OpenOptions,
    options: &VerifyOptions,
    watch: &mut dyn Watch,
) -> Result<VerifyReport> {
    options.thresholds(super::Thresholds::SAME_FLOATS)?;
    let mut load = BundleOptions::new()
        .search_path(open.search())
        .isolation(open.isolation)
        .strict(open.strict)
        .verify_all(true);
    if let Some(threads) = open.threads {
        load = load.threads(threads);
    }
    let model = load.open(bundle)?;
    let held = model.bundle().ok_or_else(|| Error::new(ErrorKind::Internal, "a bundle that is none"))?;
    let intact = Checkpoint::open(checkpoint)?;
    let (own, other) = (Digest::from(intact.content_hash()), held.manifest().model.checkpoint);
    if own != other {
        let (bundle, checkpoint) = (bundle.display(), checkpoint.display());
        let what = format!("{bundle} was compiled from checkpoint {other}, and {checkpoint} is {own}");
        return Err(Error::new(ErrorKind::Incompatible, what)
            .with_help("name the checkpoint the bundle was compiled from"));
    }
    let chain = model.bundle_chain().unwrap_or_default().to_owned();
    let compiled = compiled_graphs(&intact, held, &chain, open, watch)?;
    let verification = Verification { model: &model, compiled: &compiled, intact: &intact, options };
    let mut report = verification.run(goldens, watch)?;
    let failed = report.boundaries.iter().any(|boundaries| boundaries.judged && !boundaries.passed);
    if failed {
        let tapped = open.clone().taps(true).open_watched(checkpoint, watch)?;
        let again = Verification { model: &tapped, compiled: tapped.compiled(), intact: &intact, options };
        let layers = again.run(goldens, watch)?.boundaries;
        let named = layers.iter().find(|boundaries| boundaries.judged);
        let named = named.and_then(|boundaries| boundaries.first_divergent_layer);
        report.notices.push(match named {
            Some(layer) => format!("compiled once more with its layers shown, layer {layer} is the first that differs"),
            None => "compiled once more with its layers shown, no layer differs: the artefacts of the bundle are not what is compiled today".to_owned(),
        });
    }
    report.bundle_chain = Some(chain);
    Ok(report)
}

/// Writes a report of [`verify_bundle`] into the bundle, in place of an earlier one of the same chain. Gives the bundle's identity from now on.
pub fn store_verification(bundle: &Path, report: &VerifyReport) -> Result<String> {
    let chain = report.bundle_chain.clone().ok_or_else(|| {
        Error::new(ErrorKind::Argument, "only what was proved of a bundle is stored in it")
            .with_help("verify the bundle itself")
    })?;
    let mut writer = BundleWriter::create(bundle)?;
    let mut manifest = writer.previous().cloned().ok_or_else(|| {
        Error::new(ErrorKind::Missing, format!("{}: no bundle that is whole", bundle.display()))
            .with_help("compile the checkpoint again")
    })?;
    let text = serde_json::to_vec(report)
        .map_err(|error| Error::new(ErrorKind::Internal, format!("the report as JSON: {error}")))?;
    let name = format!("verify.{chain}");
    let proof = Proof {
        name: name.clone(),
        chain,
        passed: report.passed,
        summary: report.summary(),
        report: writer.add_bytes(&text)?,
    };
    manifest.verifications.retain(|held| held.name != name);
    manifest.verifications.push(proof);
    Ok(writer.finish(&manifest)?.sha256().to_string())
}

/// What the shards of a chain were compiled from, made again.
fn compiled_graphs(
    checkpoint: &Checkpoint,
    bundle: &Bundle,
    chain: &str,
    open: &OpenOptions,
    watch: &mut dyn Watch,
) -> Result<Vec<CompiledGraphs>> {
    let mut shelf = Recorded { bundle };
    let primary = settle(checkpoint, open, &mut shelf, watch)?;
    let shards = match bundle.manifest().chains.first() {
        Some(first) if first.name == chain => primary.shards,
        _ => {
            let missing = || Error::new(ErrorKind::Invalid, format!("the options give no chain `{chain}`"));
            let cpu = on_the_cpu(open, &primary).ok_or_else(missing)?;
            settle(checkpoint, &cpu, &mut shelf, watch)?.shards
        }
    };
    Ok(shards.into_iter().map(|shard| shard.compiled).collect())
}

/// Takes every artefact from the bundle, by the name of its work order, and makes none.
struct Recorded<'b> {
    bundle: &'b Bundle,
}

impl Shelf for Recorded<'_> {
    fn place(&self) -> std::result::Result<Place<'_>, BuildError> {
        Ok(Place::Temporary)
    }

    fn recall(
        &mut self,
        order: &WorkOrder,
        executor: &Executor,
    ) -> std::result::Result<Option<Artefact>, BuildError> {
        let name = order.name();
        let mut shards = self.bundle.manifest().chains.iter().flat_map(|chain| &chain.shards);
        let made = shards.find(|shard| shard.work_order.to_string() == name);
        let shard = made.ok_or_else(|| BuildError::Shelf {
            shard: format!("for {}", executor.device),
            reason: format!(
                "the bundle holds nothing made of work order {name}: it was compiled with other options, or by another version"
            ),
        })?;
        Ok(Some(Artefact::open(&self.bundle.path(&shard.artefact)?)?))
    }

    fn keep(
        &mut self,
        _order: &WorkOrder,
        _executor: &Executor,
        made: Artefact,
    ) -> std::result::Result<Artefact, BuildError> {
        Ok(made)
    }
}
