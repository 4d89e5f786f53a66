//! Proves a bundle: its own artefacts, against the checkpoint it was compiled from.

use shardwright_vocabulary::{Beforehand, Device, DeviceKind, Error, ErrorKind, Part, Pass, Result, Watch};
use std::path::Path;
use std::sync::Arc;

use shardwright::tools::{IgnoredFields, ModelTools, OpenTools, expect_no_strays, load, stray_notices};
use shardwright::{Executor, Model, OpenOptions, PlanMeasuring};
use shardwright_build::{
    ArtefactStore, CompiledGraphs, LoopStart, MeasuredLoss, PlanOptions, Purpose, RecordedPlan,
    TargetExecutor,
};
use shardwright_bundle::{Bundle, BundleWriter, ChainEntry, Digest, TwinEntry, Verification as Proof};
use shardwright_checkpoints::{Builder, open_adapted, with_adapters};
use shardwright_models::Checkpoint;
use shardwright_selection::{devices_for, heads_of, know_chip, only_compiled_for};
use shardwright_shims::{Artefact, ArtefactDestination, WorkOrder};

use crate::goldens::Goldens;
use crate::options::VerifyOptions;
use crate::report::{TwinArtefact, TwinReport, VerifyReport};
use crate::thresholds::Thresholds;
use crate::tower::{Bundled, prove_towers};
use crate::verification::{OPENED, Verification, measured_of};

/// Progress after a bundle was proved, in thousandths. If it failed, it is compiled again.
const PROVED: u32 = 700;

/// Proves the chain of `bundle` that runs here, like [`verify`](crate::verify), but with the
/// artefacts of the bundle themselves.
///
/// If the bundle's chip can only be compiled for on this machine and its shim has a simulator, the
/// work orders of the bundle are compiled for the simulator. This twin runs instead, and the report
/// names it.
///
/// `open` contains the options that the bundle was compiled with, unless
/// [`VerifyOptions::as_recorded`] reads them from the bundle. They are used to make the graphs of
/// its shards again, and each must give exactly the work order in the bundle. Artefacts are not
/// compiled again. Artefacts of a bundle do not show layers, so if a shard is out of bounds, the
/// checkpoint is compiled once more with its layers shown, to name the first divergent layer.
pub fn verify_bundle(
    checkpoint: &Path,
    goldens: Option<&Path>,
    bundle: &Path,
    open: &OpenOptions,
    options: &VerifyOptions,
    watch: &mut dyn Watch,
) -> Result<VerifyReport> {
    options.thresholds(Thresholds::SAME_FLOATS)?;
    watch.progress(0, "reading the bundle");
    let mut all = Part::new(watch, 0..1000);
    let (existing, intact, unsigned) = bundle_of(checkpoint, bundle, &open.plan_options())?;
    let open = &options.as_compiled(&existing, &intact, open)?;
    let sibling = simulated_sibling(&existing, open)?;
    let open = open.clone().measuring(PlanMeasuring::Usual);
    let open = &match sibling {
        Some(_) => open.on(Executor::Simulator),
        None => open,
    };
    let (model, compiled, chain, measured, twin) = match sibling {
        Some(device) => {
            let (model, compiled, chain, twin) =
                twin_of(&existing, &intact, device, open, &mut all.then(OPENED))?;
            let measured = measured_of(&model).cloned();
            (model, compiled, chain, measured, twin)
        }
        None => {
            let model = open.bundle_options().open(bundle)?;
            let chain = model.report().bundle_chain.unwrap_or_default().to_owned();
            let (compiled, measured) =
                compiled_graphs(&intact, &existing, &chain, open, &mut all.then(OPENED))?;
            (model, compiled, chain, measured, None)
        }
    };
    let (plan, goldens) = (open.plan_options(), Goldens::of(goldens, &intact)?);
    let (compiled, intact, plan, measured) = (&compiled, &intact, &plan, measured.as_ref());
    let verification = Verification { model: &model, compiled, intact, plan, measured, options };
    let mut report = verification.run(&goldens, &mut all.then(PROVED))?;
    let failed = report.boundaries.iter().any(|boundaries| boundaries.judged && !boundaries.passed);
    if failed {
        report.notices.push(first_layer(checkpoint, &goldens, intact, open, options, &mut all)?);
    }
    report.bundle_chain = Some(chain);
    report.bundle_variant = Some(existing.variant().soc.to_string());
    report.twin = twin;
    report.signature_notices = unsigned;
    report.notices.extend(stray_notices(&existing).into_iter().map(|notice| notice.text));
    let mut store = Recorded { bundle: &existing, made_here: report.twin.is_none() };
    let bundled = Bundled { bundle: &existing, store: &mut store };
    let (plan, given) = (open.plan_options(), (options, &goldens));
    prove_towers(&mut report, checkpoint, &plan, given, Some(bundled), &mut all)?;
    Ok(report)
}

/// Compiles the checkpoint once more with its layers shown, and returns a notice about the first
/// divergent layer.
fn first_layer(
    checkpoint: &Path,
    goldens: &Goldens,
    intact: &Checkpoint,
    open: &OpenOptions,
    options: &VerifyOptions,
    watch: &mut Part<'_>,
) -> Result<String> {
    let tapped = open.clone().taps(true).open_watched(checkpoint, &mut watch.most_of_the_rest());
    let tapped = match tapped {
        Ok(tapped) => tapped,
        Err(error) if error.kind() == ErrorKind::Cancelled => return Err(error),
        Err(error) => {
            return Ok(no_layer(&error));
        }
    };
    let (compiled, plan) = (tapped.compiled(), open.plan_options());
    let again = Verification { model: &tapped, compiled, intact, plan: &plan, measured: None, options };
    let layers = again.run(goldens, watch)?.boundaries;
    let named = layers.iter().find(|boundaries| boundaries.judged);
    let named = named.and_then(|boundaries| boundaries.first_divergent_layer);
    Ok(named_layer(named))
}

/// Returns the notice for a model that cannot be compiled with its layers shown.
pub(crate) fn no_layer(error: &Error) -> String {
    format!("the first layer that differs is unknown, because the layers cannot be made visible: {error}")
}

/// Returns the notice about the first divergent layer of a model that was compiled with its layers
/// shown.
pub(crate) fn named_layer(layer: Option<u32>) -> String {
    match layer {
        Some(layer) => {
            format!("recompiled with visible layers, layer {layer} is the first that differs")
        }
        None => "recompiled with visible layers, no layer differs: compiling no longer produces the artefacts of the bundle".to_owned(),
    }
}

/// Opens a bundle whose signature fulfils the rules and whose files are all intact, and the
/// checkpoint it was compiled from. Also returns the warnings of the rules.
pub(crate) fn bundle_of(
    checkpoint: &Path,
    bundle: &Path,
    options: &PlanOptions,
) -> Result<(Arc<Bundle>, Checkpoint, Vec<String>)> {
    let rules = options.rules()?;
    let existing = Arc::new(Bundle::open_trusting(bundle, &rules)?.choosing(options.soc.as_deref())?);
    existing.verify_all(|_| ())?;
    if options.strict {
        IgnoredFields::of_bundle(&existing).expect_none()?;
        expect_no_strays(&existing)?;
    }
    let intact = open_adapted(checkpoint, &[Pass::Step], options)?;
    let (own, other) = (Digest::from(intact.content_hash()), existing.manifest().model.checkpoint);
    if own != other {
        let (bundle, checkpoint) = (bundle.display(), checkpoint.display());
        let what = format!("{bundle} was compiled from checkpoint {other}, but {checkpoint} is {own}");
        let error = Error::new(ErrorKind::Incompatible, what)
            .with_help("name the checkpoint the bundle was compiled from");
        return Err(with_adapters(&existing, error));
    }
    Ok((existing, intact, rules.take_notices().into_iter().map(|notice| notice.text).collect()))
}

/// Returns the simulator for proving the first chain of a bundle, if its own device can only be
/// compiled for on this machine.
fn simulated_sibling(bundle: &Bundle, open: &OpenOptions) -> Result<Option<Device>> {
    let variant = bundle.variant();
    let options = open.plan_options();
    let shims = options.shims_by(&options.rules()?)?;
    for shard in variant.chains.first().into_iter().flat_map(|chain| &chain.shards) {
        if shims.registry.get(&shard.compiled_by.shim).is_none() {
            continue;
        }
        let by = &shard.compiled_by;
        let instance = shims.open_to_compile(&by.shim, "twin", &[], by.simulated)?;
        know_chip(&instance, &heads_of(bundle, shard)?)?;
        if only_compiled_for(&instance, shard)?.is_some() {
            let devices = devices_for(&instance, shard)?;
            return Ok(devices.into_iter().find(|device| device.kind == DeviceKind::Simulated));
        }
    }
    Ok(None)
}

/// Compiles the work orders of a bundle's first chain for a simulator, and loads the result.
fn twin_of(
    bundle: &Arc<Bundle>,
    checkpoint: &Checkpoint,
    device: Device,
    open: &OpenOptions,
    watch: &mut dyn Watch,
) -> Result<(Model, Vec<CompiledGraphs>, String, Option<TwinReport>)> {
    let mut store = Recorded { bundle, made_here: false };
    let options = open.plan_options();
    let first = bundle.variant().chains.first();
    let first = first.map(|chain| RecordedPlan::of(bundle, chain)).transpose()?;
    let trying = LoopStart { first, ..LoopStart::default() };
    let builder = Builder::new(checkpoint, None);
    let settled = builder.chain(&options, Purpose::Run, &mut store, trying, watch)?;
    let chain = load(&settled, Beforehand::default())?;
    let artefacts = settled
        .shards
        .iter()
        .map(|shard| TwinArtefact { shard: shard.name.clone(), sha256: shard.artefact.name() })
        .collect();
    let (plan, plan_id) = (settled.report_now(), settled.plan_id());
    let compiled: Vec<CompiledGraphs> = settled.shards.into_iter().map(|shard| shard.compiled).collect();
    let differs = device.detail.unwrap_or_else(|| "the shim does not report the differences".to_owned());
    let twin = TwinReport { device: device.name, artefacts, differs };
    let model = Model::of_chain(chain, bundle, plan, plan_id)?;
    let name = bundle.variant().chains.first().map(|chain| chain.name.clone()).unwrap_or_default();
    Ok((model, compiled, name, Some(twin)))
}

/// Writes a report of [`verify_bundle`] into the bundle and replaces an earlier one of the same
/// chain. Returns the new identity of the bundle.
pub fn store_verification(bundle: &Path, report: &VerifyReport) -> Result<String> {
    let chain = report.bundle_chain.clone().ok_or_else(|| {
        Error::new(ErrorKind::Argument, "only the verification of a bundle can be stored in it")
            .with_help("verify the bundle itself")
    })?;
    let mut writer = BundleWriter::create(bundle)?;
    let mut manifest = writer.previous().cloned().ok_or_else(|| {
        Error::new(ErrorKind::Missing, format!("{}: not a complete bundle", bundle.display()))
            .with_help("compile the checkpoint again")
    })?;
    let stored = VerifyReport { signature_notices: Vec::new(), ..report.clone() };
    let text = serde_json::to_vec(&stored).map_err(|error| {
        Error::new(ErrorKind::Internal, format!("cannot write the report as JSON: {error}"))
    })?;
    let name = format!("verify.{chain}");
    let proof = Proof {
        name: name.clone(),
        chain,
        passed: report.passed,
        summary: report.summary(),
        report: writer.add_bytes(&text)?,
        twin: report.twin.as_ref().map(stored_twin).transpose()?,
    };
    let mut variants = manifest.variants.iter_mut();
    let proved = report.bundle_variant.as_deref();
    let variant = variants.find(|variant| proved.is_none_or(|soc| variant.soc == *soc)).ok_or_else(|| {
        Error::new(ErrorKind::Argument, format!("{}: the verified variant is missing", bundle.display()))
            .with_help("verify the bundle again")
    })?;
    variant.verifications.retain(|existing| existing.name != name);
    variant.verifications.push(proof);
    Ok(writer.finish(&manifest)?.sha256().to_string())
}

fn stored_twin(twin: &TwinReport) -> Result<TwinEntry> {
    let hash = |artefact: &TwinArtefact| {
        let what = || format!("`{}` is not the hash of an artefact", artefact.sha256);
        artefact.sha256.parse().map_err(|_| Error::new(ErrorKind::Internal, what()))
    };
    let artefacts = twin.artefacts.iter().map(hash).collect::<Result<_>>()?;
    Ok(TwinEntry { device: twin.device.clone(), artefacts, differs: twin.differs.clone() })
}

/// Makes the graphs again that the shards of a chain were compiled from. Also returns the measured
/// loss of the chain's formats.
fn compiled_graphs(
    checkpoint: &Checkpoint,
    bundle: &Bundle,
    chain: &str,
    open: &OpenOptions,
    watch: &mut dyn Watch,
) -> Result<(Vec<CompiledGraphs>, Option<MeasuredLoss>)> {
    let mut store = Recorded { bundle, made_here: true };
    let mut all = Part::new(watch, 0..1000);
    let options = open.plan_options();
    let chains = &bundle.variant().chains;
    let mut compiled = |options: &PlanOptions, chain: Option<&ChainEntry>, watch: &mut dyn Watch| {
        let first = chain.map(|chain| RecordedPlan::of(bundle, chain)).transpose()?;
        let trying = LoopStart { first, ..LoopStart::default() };
        Builder::new(checkpoint, None).chain(options, Purpose::Compile, &mut store, trying, watch)
    };
    let primary = compiled(&options, chains.first(), &mut all.most_of_the_rest())?;
    let settled = match chains.first() {
        Some(first) if first.name == chain => primary,
        _ => {
            let missing = || Error::invalid(format!("the options do not produce a chain `{chain}`"));
            let mut later = primary.fallbacks(&options).into_iter();
            let fallback = later.find(|later| later.name == chain).ok_or_else(missing)?;
            let own = chains.iter().find(|own| own.name == chain);
            compiled(&fallback.options, own, &mut all)?
        }
    };
    let measured = settled.report_now().measured;
    Ok((settled.shards.into_iter().map(|shard| shard.compiled).collect(), measured))
}

/// Store that reads every artefact from the bundle, by the name of its work order. A work order
/// that the bundle does not name is an error.
struct Recorded<'b> {
    bundle: &'b Bundle,
    /// Whether to use an artefact for any device. Otherwise artefacts for other devices than the
    /// bundle's are compiled.
    made_here: bool,
}

impl ArtefactStore for Recorded<'_> {
    fn place(&self) -> Result<ArtefactDestination<'_>> {
        Ok(ArtefactDestination::Temporary)
    }

    fn recall(&mut self, order: &WorkOrder, executor: &TargetExecutor) -> Result<Option<Artefact>> {
        let name = order.name();
        let mut shards = self.bundle.manifest().all_chains().flat_map(|chain| &chain.shards);
        let made = shards.find(|shard| shard.work_order.to_string() == name);
        let shard = made.ok_or_else(|| {
            let device = &executor.device;
            Error::incompatible(format!(
                "the bundle has no artefact for {device} of work order {name}: it was compiled with different options \
                 or by a different version"
            ))
            .with_help(
                "drop the compile options, which are recorded in the bundle, or repeat all that it was \
                 compiled with",
            )
        })?;
        if !self.made_here && shard.compiled_by.device != executor.device {
            return Ok(None);
        }
        let section = self.bundle.proved(&shard.artefact)?;
        Ok(Some(Artefact::of_section(section)?))
    }

    fn keep(&mut self, _order: &WorkOrder, _executor: &TargetExecutor, made: Artefact) -> Result<Artefact> {
        Ok(made)
    }
}
