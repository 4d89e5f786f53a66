//! Recompiles a bundle's chain on the machine that runs it, if the plan allows it and the artefacts
//! compiled ahead of time cannot be used.

use std::path::Path;
use std::time::Instant;

use shardwright_build::{
    FormatChoice, LoopStart, PlanOptions, RecordedOptions, RecordedPlan, Settled, TableFormats,
};
use shardwright_bundle::{Bundle, ChainEntry, Digest};
use shardwright_models::Checkpoint;
use shardwright_planning::builtin;
use shardwright_planning::check::check;
use shardwright_planning::plan::BuildTime;
use shardwright_planning::request::Request;
use shardwright_vocabulary::{CompiledHere, Error, ErrorKind, Notice, Pass, Result};

use crate::{Builder, open_adapted};

/// A chain that was compiled on this machine.
pub struct CompiledAnew {
    pub settled: Settled,
    /// Why the chain was compiled here, and how long that lasted. It is shorter if an earlier start
    /// cached the artefacts.
    pub compiled_here: CompiledHere,
    /// A notice about the compilation here, followed by notices about deviations from the request.
    pub notices: Vec<Notice>,
}

/// Checks whether the plan of a bundle's chain allows compiling every shard on the machine that
/// runs it.
///
/// # Errors
///
/// Fails with [`ErrorKind::Invalid`] if the plan or its request is damaged.
pub fn may_compile_here(bundle: &Bundle, entry: &ChainEntry) -> Result<bool> {
    Ok(is_just_in_time(&RecordedPlan::of(bundle, entry)?))
}

fn is_just_in_time(recorded: &RecordedPlan) -> bool {
    recorded.plan().shards.iter().all(|shard| shard.build == BuildTime::JustInTime)
}

/// Plans and compiles the chain for this machine, because of `error`. It uses the options recorded
/// in the bundle, but the plan may differ if this machine's compiler does. `here` contains the
/// options of this opening: paths and session flags.
///
/// # Errors
///
/// Fails with `error` itself and the obstacle if the plan does not allow compiling here or the
/// checkpoint is not available. Also fails with errors of planning and compiling.
pub fn compile_recorded(
    bundle: &Bundle,
    entry: &ChainEntry,
    error: Error,
    checkpoint: Option<&Path>,
    here: &PlanOptions,
) -> Result<CompiledAnew> {
    let recorded = RecordedPlan::of(bundle, entry)?;
    if !is_just_in_time(&recorded) {
        return Err(error);
    }
    let Some(directory) = checkpoint else {
        let what = format!("{error}; its plan allows compiling it here, but that requires the checkpoint");
        return Err(Error::new(error.kind(), what).with_help("name the checkpoint with `--checkpoint DIR`"));
    };
    let started = Instant::now();
    let because = error.to_string();
    let compiled = || {
        let checkpoint = open_adapted(directory, &[Pass::Step], here)?;
        let options = options_of(bundle, entry, &checkpoint, here)?;
        // The request does not show changes to the plan such as a repair, so the recorded plan is
        // tried first.
        let trying = LoopStart { first: Some(recorded), ..LoopStart::default() };
        Builder::new(&checkpoint, None).kept_chain(&options, trying, &mut ())
    };
    let (settled, keeping) = compiled().map_err(|failure: Error| {
        let what = format!("{because}; compiling it here failed too: {failure}");
        let help = failure.help().map(str::to_owned);
        help.into_iter().fold(Error::new(failure.kind(), what), Error::with_help)
    })?;
    let nanoseconds = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let how = match keeping.made_nothing() {
        true => "was compiled on this machine earlier and was prepared again in",
        false => "was compiled on this machine in",
    };
    let compiled = Notice::note(format!(
        "chain `{}` {how} {:.3} s, as its plan allows: {because}",
        entry.name,
        nanoseconds as f64 / 1e9
    ));
    let known =
        |notice: &&Notice| bundle.variant().notices.iter().all(|existing| existing.text != notice.text);
    let report = settled.report_now();
    let kept = keeping.notice(started.elapsed());
    let notices = std::iter::once(compiled).chain(report.notices.iter().filter(known).cloned()).chain(kept);
    let notices = notices.collect();
    Ok(CompiledAnew { settled, compiled_here: CompiledHere { because, nanoseconds }, notices })
}

/// Returns the options that a bundle's chain was planned with, as far as the bundle records them.
/// The other options come from `here`: paths, threads and session flags.
///
/// # Errors
///
/// Fails with [`ErrorKind::Incompatible`] if the bundle was not made from this checkpoint, and with
/// [`ErrorKind::Invalid`] if the files of the bundle contain invalid values.
pub fn options_of(
    bundle: &Bundle,
    entry: &ChainEntry,
    checkpoint: &Checkpoint,
    here: &PlanOptions,
) -> Result<PlanOptions> {
    if Digest::from(checkpoint.content_hash()) != bundle.manifest().model.checkpoint {
        let what = format!("the bundle was not made from {}", checkpoint.directory().display());
        return Err(with_adapters(bundle, Error::new(ErrorKind::Incompatible, what)));
    }
    let recorded = RecordedPlan::of(bundle, entry)?;
    let mut options = recorded_options(bundle, entry, recorded.request(), here)?;
    if entry.is_hedge() {
        let own = options.hedged(&bundle.variant().soc);
        options = PlanOptions { unhedged: true, within: entry.within.clone(), ..own };
    }
    // The tables are in the bundle already.
    let checked = check(recorded.plan().clone(), recorded.request()).map_err(|fault| {
        let fault = fault.at("the recorded plan").at(bundle.path().display());
        fault.with_kind(ErrorKind::Invalid).with_help("compile the checkpoint again")
    })?;
    options.recorded.tables = TableFormats::planned(checkpoint.graph(), &checked);
    Ok(options)
}

/// Adds the adapters that a bundle was compiled with to the error that its checkpoint is another
/// one.
pub fn with_adapters(bundle: &Bundle, error: Error) -> Error {
    let recorded = bundle.variant().options.get("lora").and_then(serde_json::Value::as_array);
    let names = recorded.into_iter().flatten().filter_map(|adapter| adapter.get("name")?.as_str());
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    if names.is_empty() {
        return error;
    }
    let what = format!("it was compiled with the LoRA adapters {}", names.join(", "));
    error.with_more(what).with_help(
        "`verify` accepts the same adapters with `--lora`; for other commands, name the checkpoint with `--lora` in place of the bundle",
    )
}

/// Rejects a calibration text other than the text that the bundle was made with. A bundle records
/// only the hash of the text.
fn expect_calibration_text(bundle: &Bundle, expected: Digest, here: &PlanOptions) -> Result<()> {
    if here.calibration_digest()? == Some(expected) {
        return Ok(());
    }
    let what = format!("{} was calibrated on a text with SHA-256 {expected}", bundle.path().display());
    let help = "name that text with `--calibration-text`, and repeat the other options of compiling";
    Err(Error::new(ErrorKind::Argument, what).with_help(help))
}

/// Returns the options that the bundle was made with, as far as its manifest and request record
/// them.
fn recorded_options(
    bundle: &Bundle,
    entry: &ChainEntry,
    request: &Request,
    here: &PlanOptions,
) -> Result<PlanOptions> {
    let variant = bundle.variant();
    let by = entry.planner.as_ref().unwrap_or(&variant.planner);
    let recorded = serde_json::to_value(&variant.options).and_then(serde_json::from_value);
    let mut recorded: RecordedOptions = recorded.map_err(|error| {
        let what = format!("{}: invalid recorded options: {error}", bundle.path().display());
        Error::new(ErrorKind::Invalid, what).with_help("compile the checkpoint again")
    })?;
    if let Some(expected) = recorded.calibration_digest {
        expect_calibration_text(bundle, expected, here)?;
    }
    recorded.flags.extend(here.recorded.flags.iter().cloned());
    Ok(PlanOptions {
        soc: Some(variant.soc.to_string()),
        recorded,
        quality_micronats: request.goals.quality_micronats,
        memory_bytes: request.goals.memory_bytes,
        size_bytes: request.goals.size_bytes,
        token_microseconds: request.goals.token_microseconds,
        first_token_microseconds: request.goals.first_token_microseconds,
        prompts: PlanOptions::prompts_of(request),
        answer_tokens: Some(request.goals.answer_tokens),
        // If other draft models are requested now, their estimates are made again.
        drafts: here.draft_models.is_empty().then(|| request.drafts.clone()),
        formats: request.formats.iter().cloned().map(FormatChoice::Tuple).collect(),
        planner: Some(if by.built_in { builtin::NAME.to_owned() } else { by.name.clone() }),
        planner_by_name: true,
        ..here.clone()
    })
}
