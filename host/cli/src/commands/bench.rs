//! Measures the speeds of a model in the rows and by the rules of llama.cpp's `llama-bench`, so
//! that both can be compared: random token ids, no tokenizer, no sampling, logits after the last
//! row, one unmeasured round first. Generation differs: it requests only the largest logit, as a
//! greedy choice does, unless all are requested.

mod drafts;
mod memory;
mod work;

use std::num::NonZeroUsize;
use std::time::Instant;

use serde::Serialize;
use shardwright::tools::ModelTools;
use shardwright::{Error, ErrorKind, MeasuredFlag, Model, Speculation};
use shardwright_measure::{Probe, Prober};
use shardwright_runtime::Session;

use super::draft::{Drafts, drafts};
use super::{Input, open_for, print, say_notices, say_notices_and_of_text, say_notices_of_unused_tokenizer};
use crate::arguments::{BenchArguments, ExecutionArguments, Format};
use crate::outcome::{Failure, Outcome};
use crate::{interrupt, views};

pub use drafts::DraftsReport;
pub use work::Logits;

use memory::{Memory, memory};
use work::{Measured, Tokens, Work, WorkReport};

/// All measurements.
#[derive(Debug, Serialize)]
pub struct BenchReport {
    pub model: String,
    /// Chip of the plan.
    pub soc: Option<String>,
    /// Hash of the plan.
    pub plan_id: String,
    /// Identity of the bundle, if it is one.
    pub bundle: Option<String>,
    /// The executor, if it is not the planned targets.
    pub emulated_on: Option<String>,
    /// Weight, activation and state formats of the shards, without duplicates.
    pub formats: Vec<String>,
    /// Threads of the CPU engine.
    pub threads: u32,
    /// Capacity of a session in positions.
    pub context: u64,
    pub opening: Opening,
    pub first_token: FirstToken,
    pub memory: Memory,
    /// Load-time flags whose values shims found by measuring.
    pub measured: Vec<MeasuredReport>,
    /// One result for each requested size.
    pub results: Vec<WorkReport>,
    /// A reply with drafts and without, if requested.
    pub drafts: Option<DraftsReport>,
    /// How fast memory was read before and after each measurement, if requested.
    pub probes: Vec<Probe>,
}

/// Flags that the shim of one place chose by measuring.
#[derive(Debug, Serialize)]
pub struct MeasuredReport {
    pub place: String,
    pub flags: Vec<MeasuredFlag>,
}

/// Seconds of the steps of opening. Work done in parallel is not counted.
#[derive(Debug, Serialize)]
pub struct Opening {
    pub reading_seconds: f64,
    pub planning_seconds: f64,
    pub quantising_seconds: f64,
    pub compiling_seconds: f64,
    pub loading_seconds: f64,
    /// Time from the call to the open model, including work that none of the other members counts.
    pub total_seconds: f64,
}

/// The first step of the process.
#[derive(Debug, Serialize)]
pub struct FirstToken {
    /// Number of prompt ids.
    pub tokens: u32,
    /// Time of allocating states.
    pub session_seconds: f64,
    /// Time from the ids to the logits: the largest one, or all with `--all-logits`.
    pub run_seconds: f64,
    /// Time from the start of this program to the logits.
    pub since_start_seconds: f64,
    /// Time from the start of this program to the loaded tokenizer, checked after the first step.
    /// `None` if it is not loaded.
    pub tokenizer_since_start_seconds: Option<f64>,
}

/// Measures the requested works and prints the report.
pub fn bench(arguments: &BenchArguments, format: Format, started: Instant) -> Result<Outcome, Failure> {
    let works = Work::asked(arguments)?;
    let threads = arguments.execution.threads.unwrap_or_else(cores);
    if arguments.probe_mebibytes == 0 {
        return Err(Failure::Arguments("--probe-mebibytes must be at least 1".to_owned()));
    }

    let mut execution = arguments.execution.clone();
    execution.threads = Some(threads);
    let opening = Instant::now();
    let prompt = arguments.draft_prompt.as_deref().map(super::text_of).transpose()?;
    if prompt.is_none() && !arguments.drafts.drafts.is_empty() {
        let what = "--draft needs a text to reply to: set --draft-prompt FILE";
        return Err(Failure::Arguments(what.to_owned()));
    }
    let with_text = arguments.text || prompt.is_some();
    let input = if with_text { Input::Text } else { Input::Ids };
    let opened_for = (&arguments.drafts.drafts[..], input);
    let model =
        open_for(&arguments.target, &execution, &arguments.checkpoint, &arguments.bundled, opened_for)?;
    let opened = opening.elapsed();
    check(&model, &works, arguments.first_tokens)?;
    let allocating = Instant::now();
    let mut session = model.chain().session().map_err(Error::from)?;
    let session_time = allocating.elapsed();
    let handle = session.cancel_handle();
    interrupt::call(move || handle.cancel());
    let mut tokens = Tokens::new(model.chain().description().structure.vocabulary);
    let first_ids = tokens.next(arguments.first_tokens);
    // As for a greedy choice of the first token.
    session.set_largest_logits(NonZeroUsize::new(1).filter(|_| !arguments.all_logits));
    let first = Instant::now();
    session.append(&first_ids).map_err(Error::from)?;
    let (first_time, since_start) = (first.elapsed(), started.elapsed());
    if arguments.text {
        model.tokenizer()?;
    }
    let tokenizer_ready = arguments.text.then(|| started.elapsed().as_secs_f64());
    match arguments.text {
        true => say_notices_and_of_text(&model, false)?,
        false => say_notices(&model, false),
    }

    let busy = views::Busy::new("measuring");
    let mut measured: Vec<Measured> = works.iter().map(|&work| Measured::new(work)).collect();
    for work in &works {
        work.warm_up(&mut session, &mut tokens)?;
    }
    // Measured before the buffer for probes is allocated.
    let memory = memory(&model, &session);
    let probes = measure(arguments, &mut measured, &mut session, &mut tokens)?;
    let memory = memory.with_pages(&model);
    let drafts = match &prompt {
        Some(prompt) => Some(with_drafts(arguments, &model, prompt, &execution)?),
        None => None,
    };
    drop(busy);
    if !arguments.text {
        // Loading the tokenizer earlier would change the measurements.
        say_notices_of_unused_tokenizer(&model)?;
    }

    let times = model.report().times;
    let found = model.chain().measured().into_iter();
    let found = found.map(|(place, flags)| MeasuredReport { place: place.to_string(), flags }).collect();
    let description = model.chain().description();
    let mut formats: Vec<String> = Vec::new();
    let shards = model.plan().into_iter().flat_map(|plan| &plan.shards);
    for shard in shards.filter(|shard| shard.weight_bytes > 0) {
        if !formats.contains(&shard.formats) {
            formats.push(shard.formats.clone());
        }
    }
    let report = BenchReport {
        model: description.model.clone(),
        soc: model.plan().map(|plan| plan.soc.clone()),
        plan_id: model.plan_id(),
        bundle: model.bundle().map(|bundle| bundle.sha256().to_string()),
        emulated_on: description.emulated_on.clone(),
        formats,
        threads,
        context: model.chain().context(),
        opening: Opening {
            reading_seconds: times.reading.as_secs_f64(),
            planning_seconds: times.planning.as_secs_f64(),
            quantising_seconds: times.quantising.as_secs_f64(),
            compiling_seconds: times.compiling.as_secs_f64(),
            loading_seconds: times.loading.as_secs_f64(),
            total_seconds: opened.as_secs_f64(),
        },
        first_token: FirstToken {
            tokens: arguments.first_tokens,
            session_seconds: session_time.as_secs_f64(),
            run_seconds: first_time.as_secs_f64(),
            since_start_seconds: since_start.as_secs_f64(),
            tokenizer_since_start_seconds: tokenizer_ready,
        },
        memory,
        measured: found,
        results: measured.into_iter().map(Measured::report).collect(),
        drafts,
        probes,
    };
    print(format, &report, views::bench)
}

/// Measures a reply with the requested drafts.
fn with_drafts(
    arguments: &BenchArguments,
    model: &Model,
    prompt: &str,
    execution: &ExecutionArguments,
) -> Result<DraftsReport, Failure> {
    let asked = &arguments.drafts.drafts;
    let speculation = match drafts(asked, model, &arguments.target, execution, false)? {
        Drafts::These(speculation) => *speculation,
        Drafts::Planned => Speculation::new().lookup(),
        Drafts::Off => {
            let what = "--draft off cannot be measured with --draft-prompt";
            return Err(Failure::Arguments(what.to_owned()));
        }
    };
    drafts::measure(arguments, model, prompt, speculation)
}

/// Repeats the measurements alternately, so that changing load on the machine affects all of them.
fn measure(
    arguments: &BenchArguments,
    measured: &mut [Measured],
    session: &mut Session,
    tokens: &mut Tokens,
) -> Result<Vec<Probe>, Failure> {
    let prober = arguments.probe.then(|| prober(arguments.probe_mebibytes)).transpose()?;
    let mut probes = Vec::from_iter(prober.as_ref().map(Prober::probe));
    for _ in 0..arguments.repetitions {
        for work in &mut *measured {
            work.sample(session, tokens)?;
            probes.extend(prober.as_ref().map(Prober::probe));
        }
    }
    Ok(probes)
}

fn prober(mebibytes: u32) -> Result<Prober, Failure> {
    Prober::new(mebibytes).map_err(|error| Failure::Refused {
        kind: ErrorKind::Argument,
        message: format!("cannot allocate {mebibytes} MiB for a probe: {error}"),
        help: "set --probe-mebibytes to a smaller size that still exceeds the caches".to_owned(),
    })
}

/// Checks whether the model supports this kind of work within its context.
fn check(model: &Model, works: &[Work], first_tokens: u32) -> Result<(), Failure> {
    if !model.chain().is_generative() {
        return Err(Failure::Refused {
            kind: ErrorKind::Unsupported,
            message: "this model computes embeddings and cannot generate text".to_owned(),
            help: "measure a model that generates text".to_owned(),
        });
    }
    let context = model.chain().context();
    let first = (format!("a first step of {first_tokens} tokens"), u64::from(first_tokens));
    let needs = works.iter().map(|work| (work.to_string(), work.positions()));
    let Some((what, positions)) = std::iter::once(first).chain(needs).find(|(_, needed)| *needed > context)
    else {
        return Ok(());
    };
    let help = match model.bundle() {
        Some(_) => "compile the bundle with a larger --context, or measure less",
        None => "raise --context, or measure less",
    };
    Err(Failure::Refused {
        kind: ErrorKind::Context,
        message: format!("{what} needs {positions} positions, and the context has {context}"),
        help: help.to_owned(),
    })
}

/// Fails if the user interrupted the measurement.
fn interrupted() -> Result<(), Failure> {
    super::interrupted("the measurement")
}

fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX))
}
