//! One function per command: ask the public crate, print the answer.

mod bench;
mod bundle;
mod doctor;
mod embed;
mod run;
mod verify;

use std::io::{BufRead, Read, Write};
use std::path::Path;
use std::time::Instant;

use clap::CommandFactory;
use serde::Serialize;
use shardwright::runtime::bundle::BundleNoticeKind;
use shardwright::{
    BundleOptions, Executor, Isolation, Model, NoticeKind, OpenOptions, PlannerReport, SearchPath,
    TableFormats,
};

use crate::arguments::{
    Arguments, Command, ExecutionArguments, Executor as ExecutorArgument, Format,
    Isolation as IsolationArgument, PlaceArguments, PlanArguments, PlannerCommand, ShimCommand, Table,
    TargetArguments,
};
use crate::outcome::{Failure, Outcome, io};
use crate::views;

pub use bench::{BenchReport, Logits, Pairs, Share};

/// Carries out the command of a program that was started at that time.
pub fn run(arguments: &Arguments, started: Instant) -> Result<Outcome, Failure> {
    let format = arguments.format;
    match &arguments.command {
        Command::Run(arguments) => run::run(arguments, format),
        Command::Bench(arguments) => bench::bench(arguments, format, started),
        Command::Compile(arguments) => bundle::compile(arguments, format),
        Command::Inspect { path, verify, soc, places } => {
            bundle::inspect(path, *verify, soc.as_deref(), places, format)
        }
        Command::Plan(arguments) => plan(arguments, format),
        Command::Show(arguments) => print(format, &shardwright::show(&arguments.checkpoint)?, views::show),
        Command::Embed(arguments) => embed::embed(arguments, format),
        Command::Verify(arguments) => verify::verify(arguments, format),
        Command::Doctor(arguments) => doctor::doctor(arguments, format),
        Command::Shim(ShimCommand::List(places)) => {
            print(format, &shardwright::list_shims(&search_path(places))?, views::shims)
        }
        Command::Planner(PlannerCommand::Check { planner, request, places }) => {
            let search = search_path(places);
            let report =
                shardwright::check_planner(planner, request.as_deref(), &search, &places.trusted_keys)?;
            print(format, &report, planner_view)
        }
        Command::Planner(PlannerCommand::Pack { planner, key, output }) => {
            let report = shardwright::pack_planner(planner, key, output)?;
            print(format, &report, planner_view)
        }
        Command::Completions { shell } => {
            let mut command = Arguments::command();
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut command, "shardwright", &mut script);
            write(&script)
        }
    }
}

fn plan(arguments: &PlanArguments, format: Format) -> Result<Outcome, Failure> {
    let options = open_options(&arguments.target, &arguments.execution);
    let mut watch = views::Progress::new();
    let planned = options.plan_watched(&arguments.checkpoint, &mut watch)?;
    drop(watch);
    if let Some(path) = &arguments.write_request {
        std::fs::write(path, &planned.request).map_err(io(path.display().to_string()))?;
    }
    print(format, &planned.report, views::plan)
}

fn planner_view(report: &PlannerReport) -> String {
    use std::fmt::Write;
    let mut text = format!("{} {}: {}\n", report.name, report.version, report.summary);
    for option in &report.options {
        let _ = writeln!(text, "  --planner-option {}={}  {}", option.name, option.values, option.summary);
    }
    for notice in &report.notices {
        let _ = writeln!(text, "note: {notice}");
    }
    for line in &report.log {
        let _ = writeln!(text, "log: {line}");
    }
    if let Some(outcome) = &report.outcome {
        let _ = writeln!(text, "{outcome}");
    }
    text
}

/// Options for opening or planning, from the command line.
fn open_options(target: &TargetArguments, execution: &ExecutionArguments) -> OpenOptions {
    let mut options = OpenOptions::new().search_path(search_path(&target.places)).strict(target.strict);
    if let Some(soc) = &target.soc {
        options = options.soc(soc);
    }
    for (name, value) in &target.limits {
        options = options.limit(name, *value);
    }
    for (name, value) in &target.flags {
        options = options.flag(name, value);
    }
    for name in &target.flags_left_out {
        options = options.without_flag(name);
    }
    for formats in &target.formats {
        options = options.formats(formats.clone());
    }
    let table = |wanted: Table| {
        target.tables.iter().rev().find(|(table, _)| *table == wanted).map(|(_, format)| *format)
    };
    options = options
        .tables(TableFormats { embedding: table(Table::Embedding), per_layer: table(Table::PerLayer) });
    if let Some(text) = &target.calibration_text {
        options = options.calibration_text(text);
    }
    if let Some(per_mille) = target.quality {
        options = options.quality(per_mille);
    }
    if let Some(planner) = &target.planner {
        options = options.planner(planner);
    }
    for key in &target.places.trusted_keys {
        options = options.trust_key(key);
    }
    for (name, value) in &target.planner_options {
        options = options.planner_option(name, value);
    }
    if let Some(context) = target.context {
        options = options.context(context);
    }
    if let Some(executor) = execution.on {
        options = options.on(match executor {
            ExecutorArgument::Device => Executor::Device,
            ExecutorArgument::Simulator => Executor::Simulator,
            ExecutorArgument::Cpu => Executor::Cpu,
        });
    }
    if let Some(threads) = execution.threads {
        options = options.threads(threads);
    }
    options.isolation(isolation(execution))
}

/// Directories named on the command line, then those of the environment, then those beside the program.
fn search_path(places: &PlaceArguments) -> SearchPath {
    let mut path = SearchPath::standard();
    path.shims.splice(0..0, places.shims.iter().cloned());
    path.planners.splice(0..0, places.planners.iter().cloned());
    path.profiles.splice(0..0, places.profiles.iter().cloned());
    path
}

/// Prints a report for people or as one JSON document.
fn print<R: Serialize>(
    format: Format,
    report: &R,
    view: impl FnOnce(&R) -> String,
) -> Result<Outcome, Failure> {
    let text = match format {
        Format::Text => view(report),
        Format::Json => json(report)?,
    };
    write(text.as_bytes())
}

/// One line of JSON.
fn json(report: &impl Serialize) -> Result<String, Failure> {
    let mut text =
        serde_json::to_string(report).map_err(std::io::Error::other).map_err(io("report as JSON"))?;
    text.push('\n');
    Ok(text)
}

/// Writes to standard output; a reader that went away is no error.
fn write(bytes: &[u8]) -> Result<Outcome, Failure> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(io("standard output"))?;
    Ok(Outcome::Done)
}

/// Most bytes of a prompt or a turn that are read: the tokenizer takes no more.
const PROMPT_BYTES_MAX: u64 = 16 << 20;

/// Most bytes of texts to embed that are read.
const TEXTS_BYTES_MAX: u64 = 256 << 20;

/// Reads standard input to its end as UTF-8; an error where that is beyond `limit` bytes.
fn standard_input(limit: u64) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    std::io::stdin().lock().take(limit + 1).read_to_end(&mut bytes).map_err(io("standard input"))?;
    if bytes.len() as u64 > limit {
        return Err(too_long("standard input", limit));
    }
    let no_text = |error| std::io::Error::new(std::io::ErrorKind::InvalidData, error);
    String::from_utf8(bytes).map_err(no_text).map_err(io("standard input"))
}

/// Reads the next line of standard input; `false` at its end.
fn standard_input_line(line: &mut String) -> Result<bool, Failure> {
    line.clear();
    let mut stdin = std::io::stdin().lock().take(PROMPT_BYTES_MAX + 1);
    let read = stdin.read_line(line);
    // What is cut may be cut within a character.
    let read = match read {
        Err(_) if stdin.limit() == 0 => PROMPT_BYTES_MAX + 1,
        read => read.map_err(io("standard input"))? as u64,
    };
    match read > PROMPT_BYTES_MAX {
        true => Err(too_long("a line of standard input", PROMPT_BYTES_MAX)),
        false => Ok(read > 0),
    }
}

fn too_long(what: &str, limit: u64) -> Failure {
    Failure::Refused {
        kind: shardwright::ErrorKind::Argument,
        message: format!("{what} has more than {limit} bytes"),
        help: "give less of it at once".to_owned(),
    }
}

/// Plans, compiles and loads.
fn open(
    target: &TargetArguments,
    execution: &ExecutionArguments,
    checkpoint: &Path,
    compiled_from: Option<&Path>,
) -> Result<Model, Failure> {
    open_for(target, execution, checkpoint, compiled_from, Input::Text)
}

/// What a model is opened for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Input {
    Text,
    /// No tokenizer unless it is asked for.
    Ids,
}

/// The same for that.
fn open_for(
    target: &TargetArguments,
    execution: &ExecutionArguments,
    checkpoint: &Path,
    compiled_from: Option<&Path>,
    input: Input,
) -> Result<Model, Failure> {
    if !shardwright::is_bundle(checkpoint) {
        if compiled_from.is_some() {
            let what = format!("--checkpoint is for bundles, and {} is none", checkpoint.display());
            return Err(Failure::Arguments(what));
        }
        let mut watch = views::Progress::new();
        let options = open_options(target, execution).tokenizer_when_asked(input == Input::Ids);
        return Ok(options.open_watched(checkpoint, &mut watch)?);
    }
    if let Some(what) = decided_before(target, execution) {
        let what = format!("{what} was decided when {} was compiled", checkpoint.display());
        return Err(Failure::Arguments(what));
    }
    let _busy = views::Busy::new("loading");
    let mut options = BundleOptions::new()
        .search_path(search_path(&target.places))
        .strict(target.strict)
        .isolation(isolation(execution))
        .tokenizer_when_asked(input == Input::Ids);
    if let Some(threads) = execution.threads {
        options = options.threads(threads);
    }
    if let Some(cache) = shardwright::user_cache_directory() {
        options = options.remember_proofs(cache.join("proofs"));
    }
    if let Some(compiled_from) = compiled_from {
        options = options.checkpoint(compiled_from);
    }
    Ok(options.open(checkpoint)?)
}

/// What was asked that a bundle leaves no choice in.
fn decided_before(target: &TargetArguments, execution: &ExecutionArguments) -> Option<&'static str> {
    let decided = [
        ("--soc", target.soc.is_some()),
        ("--limit", !target.limits.is_empty()),
        ("--formats", !target.formats.is_empty()),
        ("--table", !target.tables.is_empty()),
        ("--quality", target.quality.is_some()),
        ("--calibration-text", target.calibration_text.is_some()),
        ("--planner", target.planner.is_some()),
        ("--planner-option", !target.planner_options.is_empty()),
        ("--context", target.context.is_some()),
        ("--on", execution.on.is_some()),
    ];
    decided.into_iter().find(|(_, asked)| *asked).map(|(name, _)| name)
}

fn isolation(execution: &ExecutionArguments) -> Isolation {
    match execution.isolation {
        IsolationArgument::Automatic => Isolation::Automatic,
        IsolationArgument::Off => Isolation::Off,
        IsolationArgument::Compile => Isolation::Compile,
        IsolationArgument::Process => Isolation::Process,
    }
}

/// `fallback` or `note`.
fn loudness(kind: NoticeKind) -> &'static str {
    if kind == NoticeKind::Fallback { "fallback" } else { "note" }
}

/// Says on standard error what must not be kept silent before a model's output.
fn say_notices(model: &Model, quiet: bool) {
    if let Some(executor) = &model.chain().description().emulated_on {
        eprintln!("*emulated on {executor}*");
    }
    let planned =
        model.plan().filter(|_| model.bundle().is_none()).into_iter().flat_map(|plan| &plan.notices);
    let planned = planned.map(|notice| (notice.kind, &notice.text));
    let bundled = model.bundle_notices().iter().map(|notice| match notice.kind {
        BundleNoticeKind::Fallback => (NoticeKind::Fallback, &notice.text),
        BundleNoticeKind::Note => (NoticeKind::Note, &notice.text),
    });
    for (kind, text) in planned.chain(bundled).filter(|(kind, _)| !quiet || *kind == NoticeKind::Fallback) {
        eprintln!("{}: {text}", loudness(kind));
    }
}
