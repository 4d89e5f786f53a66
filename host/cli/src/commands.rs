//! One function per command: calls the public crate and prints the result.

mod bench;
mod bundle;
mod calibration_text;
mod chat;
mod compare;
mod deliver;
mod doctor;
mod draft;
mod embed;
mod explain;
mod hub;
mod parts;
mod perplexity;
mod plan;
mod planner;
#[cfg(feature = "hub")]
mod pull;
#[cfg(not(feature = "hub"))]
#[path = "commands/pull_left_out.rs"]
mod pull;
mod run;
mod saved_session;
mod sensitivity;
#[cfg(feature = "serve")]
mod serve;
#[cfg(not(feature = "serve"))]
#[path = "commands/serve_left_out.rs"]
mod serve;
mod starter;
#[cfg(feature = "constraint")]
mod structure;
#[cfg(not(feature = "constraint"))]
#[path = "commands/structure_left_out.rs"]
mod structure;
mod trust;
mod tune;
mod verify;
use std::io::{BufRead, Read, Write};
use std::path::Path;
use std::time::Instant;

use shardwright::tools::{IgnoredFields, ModelTools, OpenTools};
use shardwright::{Notice, NoticeKind};

use clap::CommandFactory;
use serde::Serialize;
use shardwright::{BundleOptions, ErrorKind, Isolation, Model, OpenOptions, SearchPath, Verified};

use shardwright_trust::Trust;

use crate::arguments::{
    Arguments, BundledArguments, Command, DraftArgument, ExecutionArguments, ExpectedArgument, Format,
    IsolationArgument, PlannerCommand, PlannerPlaces, ProfilePlaces, ShimCommand, ShimPlaces,
    TargetArguments, decided_before,
};
use crate::outcome::{Failure, Outcome, io};
use crate::{interrupt, views};

pub use bench::{BenchReport, DraftsReport, Logits, MeasuredReport};
pub use bundle::{DryRunReport, DryRunVariant};
pub use compare::{ComparedChip, Comparison};
pub use hub::find;

/// Runs the command. `started` is when the program started.
pub fn run(arguments: &Arguments, started: Instant) -> Result<Outcome, Failure> {
    let (format, detail) = (arguments.format, views::Detail::of(arguments.verbose));
    match &arguments.command {
        Command::Run(arguments) | Command::Chat(arguments) => run::run(arguments, format),
        Command::Serve(arguments) => serve::serve(arguments, format),
        Command::Pull(arguments) => pull::pull(arguments, format),
        Command::Bench(arguments) => bench::bench(arguments, format, started),
        Command::Compile(arguments) => bundle::compile(arguments, format, detail),
        Command::Inspect { path, verify, strict, soc, shims, profiles, expected, trust } => {
            if !shardwright::is_bundle(path) {
                no_name_expected(path, expected)?;
            }
            let rules = trust::rules_for_bundle(trust, expected)?;
            let search = search_path(shims, &PlannerPlaces::default(), profiles);
            bundle::inspect(path, (*verify, strict.strict), soc.as_deref(), &search, &rules, format)
        }
        Command::Pack(arguments) => deliver::pack(arguments, format),
        Command::Needs(arguments) => deliver::needs(arguments, format),
        Command::Explain(arguments) => explain::explain(arguments, format),
        Command::CalibrationText(arguments) => calibration_text::calibration_text(arguments, format),
        Command::Plan(arguments) => plan::plan(arguments, format, detail),
        Command::Sensitivity(arguments) => sensitivity::sensitivity(arguments, format),
        Command::Perplexity(arguments) => perplexity::perplexity(arguments, format),
        Command::Tune(arguments) => tune::tune(arguments, format, detail),
        Command::Show(arguments) => {
            let report = shardwright_doctor::show(&arguments.checkpoint)?;
            let done = print(format, &report, views::show)?;
            report.verdict(arguments.strict.strict)?;
            Ok(done)
        }
        Command::Embed(arguments) => embed::embed(arguments, format),
        Command::Verify(arguments) => verify::verify(arguments, format),
        Command::Doctor(arguments) => doctor::doctor(arguments, format, detail),
        Command::Shim(ShimCommand::List(shims)) => {
            let search = search_path(shims, &PlannerPlaces::default(), &ProfilePlaces::default());
            print(format, &shardwright_doctor::list_shims(&search)?, |report| views::shims(report, detail))
        }
        Command::Shim(ShimCommand::Hash { manifest }) => {
            print(format, &shardwright_doctor::hash_shim(manifest)?, |hashed| {
                format!("{}: {} is {}\n", hashed.manifest, hashed.library, hashed.sha256)
            })
        }
        Command::Shim(ShimCommand::New { name, language, within }) => {
            starter::shim(name, *language, within, format)
        }
        Command::Planner(PlannerCommand::New { name, within }) => starter::planner(name, within, format),
        Command::Planner(PlannerCommand::Build { package, output, target_dir }) => {
            planner::build(package, output, target_dir.as_deref(), format)
        }
        Command::Planner(PlannerCommand::Compose { policy, solver, output }) => {
            planner::compose(policy, solver.as_deref(), output, format)
        }
        Command::Planner(PlannerCommand::Check { planner, planner_options, planners, trust }) => {
            let search = search_path(&ShimPlaces::default(), planners, &ProfilePlaces::default());
            planner::check(planner, planner_options, &search, &trust::options(trust), format)
        }
        Command::Planner(PlannerCommand::Replay { request, planner, planners, trust }) => {
            let search = search_path(&ShimPlaces::default(), planners, &ProfilePlaces::default());
            let (planner, trust) = (planner.as_deref(), trust::options(trust));
            let report = shardwright_doctor::replay_request(request, planner, &search, &trust)?;
            print(format, &report, views::replayed)
        }
        Command::Planner(PlannerCommand::Pack { planner, key, output }) => {
            let report = shardwright_doctor::pack_planner(planner, key, output)?;
            print(format, &report, views::planner)
        }
        Command::Trust(command) => trust::trust(command, format),
        Command::Completions { .. } if format == Format::Json => {
            Err(Failure::Arguments("a completion script cannot be written as JSON".to_owned()))
        }
        Command::Completions { shell } => {
            let mut command = Arguments::command();
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut command, "shardwright", &mut script);
            write(&script)
        }
    }
}

/// Returns options for opening or planning, from the command line.
fn open_options(target: &TargetArguments, execution: &ExecutionArguments) -> Result<OpenOptions, Failure> {
    target.expect_effects().map_err(Failure::Arguments)?;
    let mut options = OpenOptions::new()
        .with_plan_options(target.plan_options(execution))
        .search_path(target_path(target)?)
        .strict(target.strict)
        .signatures(trust::policy(&target.trust))
        .isolation(isolation(execution));
    for key in &target.trust.trusted_keys {
        options = options.trust_key(key);
    }
    for list in &target.trust.revocations {
        options = options.revocations(list);
    }
    if let Some(threads) = execution.threads {
        options = options.threads(threads);
    }
    Ok(options)
}

/// Returns the directories to search: first from the command line, then from the environment, then
/// next to the program.
fn search_path(shims: &ShimPlaces, planners: &PlannerPlaces, profiles: &ProfilePlaces) -> SearchPath {
    let mut path = SearchPath::standard();
    path.shims.splice(0..0, shims.shims.iter().cloned());
    path.planners.splice(0..0, planners.planners.iter().cloned());
    path.profiles.splice(0..0, profiles.profiles.iter().cloned());
    path
}

/// Returns the directories for a plan. A missing directory is an error if it is named on the
/// command line. Otherwise it would count as empty, and its contents as unknown.
fn target_path(target: &TargetArguments) -> Result<SearchPath, Failure> {
    let named = [
        ("--shims", &target.shims.shims),
        ("--planners", &target.planners.planners),
        ("--profiles", &target.profiles.profiles),
    ];
    for (name, directories) in named {
        if let Some(directory) = directories.iter().find(|directory| !directory.is_dir()) {
            return Err(Failure::Refused {
                kind: ErrorKind::Missing,
                message: format!("{name} {}: no such directory", directory.display()),
                help: "name a directory, not a file in it".to_owned(),
            });
        }
    }
    Ok(search_path(&target.shims, &target.planners, &target.profiles))
}

/// Prints a report as text for people or as one JSON document.
fn print<R: Serialize>(
    format: Format,
    report: &R,
    view: impl FnOnce(&R) -> String,
) -> Result<Outcome, Failure> {
    let text = match format {
        Format::Text => views::printable_view(&view(report)),
        Format::Json => json(report)?,
    };
    write(text.as_bytes())
}

/// A report with the warnings of the signature rules.
#[derive(Serialize)]
struct Warned<'r, R> {
    #[serde(flatten)]
    report: &'r R,
    signature_notices: Vec<String>,
}

/// Prints a report like [`print()`], with the warnings of the signature rules. The warnings are
/// also printed on standard error.
fn print_by<R: Serialize>(
    rules: &Trust,
    format: Format,
    report: &R,
    view: impl FnOnce(&R) -> String,
) -> Result<Outcome, Failure> {
    let signature_notices: Vec<String> = rules.take_notices().into_iter().map(|notice| notice.text).collect();
    signature_notices.iter().for_each(|notice| views::say(&format!("warning: {notice}")));
    if signature_notices.is_empty() || format == Format::Text {
        return print(format, report, view);
    }
    write(json(&Warned { report, signature_notices })?.as_bytes())
}

/// Serialises a report as one line of JSON.
fn json(report: &impl Serialize) -> Result<String, Failure> {
    let mut text =
        serde_json::to_string(report).map_err(std::io::Error::other).map_err(io("report as JSON"))?;
    text.push('\n');
    Ok(text)
}

/// Writes to standard output. A closed pipe is not an error.
fn write(bytes: &[u8]) -> Result<Outcome, Failure> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(io("standard output"))?;
    Ok(Outcome::Done)
}

/// Largest number of bytes of a prompt or a turn. The tokenizer accepts no more.
const PROMPT_BYTES_MAX: u64 = 16 << 20;

/// Largest number of bytes of texts to embed.
const TEXTS_BYTES_MAX: u64 = 256 << 20;

/// Reads standard input to its end as UTF-8. Fails if it is longer than `limit` bytes.
fn standard_input(limit: u64) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let read = interrupt::while_waiting(|| std::io::stdin().lock().take(limit + 1).read_to_end(&mut bytes));
    read.map_err(io("standard input"))?;
    if bytes.len() as u64 > limit {
        return Err(too_long("standard input", limit));
    }
    text("standard input", bytes, 0)
}

/// Reads a text file, which must be UTF-8 and not longer than a prompt.
fn text_of(path: &Path) -> Result<String, Failure> {
    let what = path.display().to_string();
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(io(what.clone()))?;
    file.take(PROMPT_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(io(what.clone()))?;
    if bytes.len() as u64 > PROMPT_BYTES_MAX {
        return Err(too_long(&what, PROMPT_BYTES_MAX));
    }
    text(&what, bytes, 0)
}

/// Converts bytes to text. `begin` is their offset in `what`, for the error about a byte that is
/// not UTF-8.
fn text(what: &str, bytes: Vec<u8>, begin: u64) -> Result<String, Failure> {
    String::from_utf8(bytes).map_err(|error| {
        let place = error.utf8_error().valid_up_to();
        let (byte, offset) = (error.as_bytes()[place], begin + place as u64);
        Failure::Refused {
            kind: ErrorKind::Invalid,
            message: format!("{what} is not UTF-8: byte {byte:#04x} at offset {offset}"),
            help: "convert it to UTF-8, with `iconv -t UTF-8` for example".to_owned(),
        }
    })
}

/// Lines of standard input.
#[derive(Default)]
struct InputLines {
    /// Bytes read so far.
    read: u64,
}

impl InputLines {
    /// Reads the next line, `None` at the end. A line that is not text is an inner error, and the
    /// next one can be read.
    fn next(&mut self) -> Result<Option<Result<String, Failure>>, Failure> {
        let mut line = Vec::new();
        let mut stdin = std::io::stdin().lock().take(PROMPT_BYTES_MAX + 1);
        let read = interrupt::while_waiting(|| stdin.read_until(b'\n', &mut line));
        let read = read.map_err(io("standard input"))? as u64;
        if read > PROMPT_BYTES_MAX {
            return Err(too_long("a line of standard input", PROMPT_BYTES_MAX));
        }
        let begin = self.read;
        self.read += read;
        Ok((read > 0).then(|| text("standard input", line, begin)))
    }
}

fn too_long(what: &str, limit: u64) -> Failure {
    Failure::Refused {
        kind: ErrorKind::Invalid,
        message: format!("{what} has more than {limit} bytes"),
        help: "pass less input at once".to_owned(),
    }
}

/// Fails if the user interrupted the program. Called where the program can stop safely.
fn interrupted(what: &str) -> Result<(), Failure> {
    if !interrupt::happened() {
        return Ok(());
    }
    Err(Failure::Refused {
        kind: ErrorKind::Cancelled,
        message: format!("{what} was interrupted"),
        help: "run the command again".to_owned(),
    })
}

/// Plans, compiles and loads.
fn open(
    target: &TargetArguments,
    execution: &ExecutionArguments,
    checkpoint: &Path,
    bundled: &BundledArguments,
    drafts: &[DraftArgument],
) -> Result<Model, Failure> {
    open_for(target, execution, checkpoint, bundled, (drafts, Input::Text))
}

/// The input that a model is opened for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Input {
    Text,
    /// Token ids. The tokenizer is loaded only on request.
    Ids,
}

/// Plans, compiles and loads for one kind of input.
fn open_for(
    target: &TargetArguments,
    execution: &ExecutionArguments,
    checkpoint: &Path,
    bundled: &BundledArguments,
    (drafts, input): (&[DraftArgument], Input),
) -> Result<Model, Failure> {
    if !expect_applicable(target, execution, checkpoint, bundled)? {
        let mut watch = views::ProgressLine::new("preparing", checkpoint);
        let options = open_options(target, execution)?.tokenizer_when_asked(input == Input::Ids);
        let options = draft::stating(drafts, options);
        let model = options.open_watched(checkpoint, &mut watch)?;
        interrupted("opening the model")?;
        return Ok(model);
    }
    let BundledArguments { compiled_from, memory_budget, expected } = bundled;
    let mut watch = views::ProgressLine::new("loading", checkpoint);
    let mut options = BundleOptions::new()
        .search_path(target_path(target)?)
        .strict(target.strict)
        .isolation(isolation(execution))
        .tokenizer_when_asked(input == Input::Ids);
    if let Some(threads) = execution.threads {
        options = options.threads(threads);
    }
    if let Some(soc) = &target.one_soc() {
        let rules = trust::rules(&target.trust)?;
        let search = target_path(target)?;
        options = options.chip(shardwright_doctor::chip_named(soc, &search, &rules)?);
        // Other profiles than the chip's matter only to a user who excludes every deviation.
        if target.strict {
            shardwright_build::skipped_profiles(&shardwright_doctor::profiles_in(&search, &rules), true)?;
        }
        say_each(&rules.take_notices(), false);
    }
    for (name, value) in &target.flags {
        options = options.flag(name, value);
    }
    if let Some(compiled_from) = compiled_from {
        options = options.checkpoint(compiled_from);
    }
    if let Some(bytes) = memory_budget {
        options = options.memory_budget(*bytes);
    }
    options = options.signatures(trust::policy(&target.trust));
    if let Some(name) = &expected.expect {
        options = options.expect(name);
    }
    for key in &target.trust.trusted_keys {
        options = options.trust_key(key);
    }
    for list in &target.trust.revocations {
        options = options.revocations(list);
    }
    let model = options.open_watched(checkpoint, &mut watch)?;
    interrupted("opening the model")?;
    Ok(model)
}

/// Checks whether a path is a bundle, and rejects options that do not apply to it. Reads no file
/// that is only needed later.
fn expect_applicable(
    target: &TargetArguments,
    execution: &ExecutionArguments,
    path: &Path,
    bundled: &BundledArguments,
) -> Result<bool, Failure> {
    if is_bundle(path, bundled.compiled_from.as_deref())? {
        nothing_decided_before(path, target, execution)?;
        return Ok(true);
    }
    no_name_expected(path, &bundled.expected)?;
    match bundled.memory_budget {
        None => Ok(false),
        Some(_) => Err(Failure::Refused {
            kind: ErrorKind::Argument,
            message: format!("--memory-budget needs a bundle, and {} is not one", path.display()),
            help: "bound the plan of a checkpoint with `--memory`, or compile it and run the bundle"
                .to_owned(),
        }),
    }
}

/// Adds the name that a bundle must be signed as.
fn expecting(open: OpenOptions, path: &Path, expected: &ExpectedArgument) -> Result<OpenOptions, Failure> {
    match &expected.expect {
        Some(name) if shardwright::is_bundle(path) => Ok(open.expect(name)),
        _ => no_name_expected(path, expected).map(|()| open),
    }
}

/// Rejects `--expect` for a path that is not a bundle.
fn no_name_expected(path: &Path, expected: &ExpectedArgument) -> Result<(), Failure> {
    match expected.expect {
        Some(_) => {
            Err(Failure::Arguments(format!("--expect needs a bundle, and {} is not one", path.display())))
        }
        None => Ok(()),
    }
}

/// Checks whether a path is a bundle. `--checkpoint` is an error for other paths.
fn is_bundle(path: &Path, compiled_from: Option<&Path>) -> Result<bool, Failure> {
    let is_bundle = shardwright::is_bundle(path);
    if !is_bundle && compiled_from.is_some() {
        let what = format!("--checkpoint needs a bundle, and {} is not one", path.display());
        return Err(Failure::Arguments(what));
    }
    Ok(is_bundle)
}

/// Rejects options that a bundle has already decided.
fn nothing_decided_before(
    bundle: &Path,
    target: &TargetArguments,
    execution: &ExecutionArguments,
) -> Result<(), Failure> {
    let Some(what) = decided_before(target, execution) else { return Ok(()) };
    Err(Failure::Refused {
        kind: ErrorKind::Argument,
        message: format!("{what} was decided when {} was compiled", bundle.display()),
        help: format!("leave it out, or compile the checkpoint again with {what}"),
    })
}

fn isolation(execution: &ExecutionArguments) -> Isolation {
    isolation_of(execution.isolation)
}

fn isolation_of(asked: IsolationArgument) -> Isolation {
    match asked {
        IsolationArgument::Automatic => Isolation::Automatic,
        IsolationArgument::Off => Isolation::Off,
        IsolationArgument::Compile => Isolation::Compile,
        IsolationArgument::Process => Isolation::Process,
    }
}

/// Returns the word before a notice.
fn loudness(kind: NoticeKind) -> &'static str {
    match kind {
        NoticeKind::Fallback => "fallback",
        NoticeKind::Warning => "warning",
        NoticeKind::Making | NoticeKind::Note => "note",
    }
}

/// Prints the required notices on standard error before a model's output. Notices about how a
/// bundle was made are left out, because `inspect` shows them.
fn say_notices(model: &Model, quiet: bool) {
    if let Some(executor) = &model.chain().description().emulated_on {
        views::say(&format!("*emulated on {executor}*"));
    }
    let planned =
        model.plan().filter(|_| model.bundle().is_none()).into_iter().flat_map(|plan| &plan.notices);
    let report = model.report();
    let made = report.notices_of_making.iter().filter(|notice| notice.kind != NoticeKind::Making);
    say_each(planned.chain(made).chain(report.notices_of_opening), quiet);
    if let Some(verified) = report.verified {
        say_verified("", verified, quiet);
    }
}

/// Like [`say_notices`], with the notices of the tokenizer, which it waits for.
fn say_notices_and_of_text(model: &Model, quiet: bool) -> Result<(), Failure> {
    say_notices(model, quiet);
    let fields = model.tokenizer()?.ignored().to_vec();
    say_each(&IgnoredFields { fields, unread: None }.into_notices()?, quiet);
    Ok(())
}

/// Prints the notices about text files that [`say_notices`] has not printed, for a command that did
/// not use the tokenizer. Fails if it cannot be read, like all other commands that run a model.
fn say_notices_of_unused_tokenizer(model: &Model) -> Result<(), Failure> {
    let planned = model.plan().into_iter().flat_map(|plan| &plan.notices);
    let said: Vec<&Notice> = planned.chain(model.report().bundle_notices()).collect();
    let notices = model.ignored_fields().into_notices()?;
    say_each(notices.iter().filter(|notice| !said.contains(notice)), false);
    Ok(())
}

/// Reports which bytes were hashed, if any were.
fn say_verified(what: &str, verified: &Verified, quiet: bool) {
    if !quiet && verified.hashed.bytes > 0 {
        views::say(&format!("note: {what}{verified}{}", where_to_keep_proofs(verified)));
    }
}

/// Returns how to avoid hashing at the next opening, if a way is known.
fn where_to_keep_proofs(verified: &Verified) -> &'static str {
    match (&verified.again, &verified.proofs) {
        (Some(_), None) => "; set `XDG_CACHE_HOME` to keep proofs in its folder `shardwright`",
        _ => "",
    }
}

/// Prints notices. Under `quiet`, notes are left out.
fn say_each<'n>(notices: impl IntoIterator<Item = &'n Notice>, quiet: bool) {
    for notice in notices.into_iter().filter(|notice| !quiet || !notice.kind.is_note()) {
        views::say(&format!("{}: {}", loudness(notice.kind), notice.text));
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// Options of a command that apply to a bundle.
    const OF_A_BUNDLE: [(&str, &str); 3] = [
        (
            "run",
            "prompt image audio soft-tokens chat raw control-tokens-in-text system thinking max-tokens \
             greedy temperature top-k top-p min-p repetition-penalty seed stop quiet draft \
             json-schema regex grammar tools tool-choice save restore",
        ),
        ("embed", "prompt-name dimensions"),
        (
            "bench",
            "prompt-tokens generated-tokens depth repetitions all-logits first-tokens text probe \
             probe-mebibytes draft draft-prompt",
        ),
    ];

    /// Options about the machine that runs the command, for every command.
    const OF_THIS_MACHINE: &str = "soc flag checkpoint memory-budget strict shims planners profiles trust \
                                   signatures revocations expect threads isolation";

    /// Values to try. Each option accepts one of them.
    const VALUES: [&str; 9] =
        ["ops=400", "embedding=w8-per-channel", "stored", "128", "cpu", "500ms", "speed", "nearest", "none"];

    #[test]
    fn every_option_of_a_command_applies_to_a_bundle_or_was_decided_before() {
        let root = Arguments::command();
        for (command, of_a_bundle) in OF_A_BUNDLE {
            let command_line = root.find_subcommand(command).expect("a command");
            let options: Vec<&str> = command_line.get_arguments().filter_map(clap::Arg::get_long).collect();
            let apply: Vec<&str> = of_a_bundle.split(' ').chain(OF_THIS_MACHINE.split(' ')).collect();
            assert!(apply.iter().all(|name| options.contains(name)), "{command}: {options:?}");
            for name in options.into_iter().filter(|name| !apply.contains(name)) {
                let option = format!("--{name}");
                let parsed = VALUES.iter().find_map(|value| {
                    Arguments::try_parse_from(["shardwright", command, "bundle", &option, value]).ok()
                });
                let decided = match parsed.unwrap_or_else(|| panic!("{option} of {command}")).command {
                    Command::Run(run) => decided_before(&run.target, &run.execution),
                    Command::Embed(embed) => decided_before(&embed.target, &embed.execution),
                    Command::Bench(bench) => decided_before(&bench.target, &bench.execution),
                    other => panic!("{other:?}"),
                };
                assert_eq!(decided, Some(&*option), "{command}");
            }
        }
    }

    #[test]
    fn an_option_without_effect_is_refused() {
        for (line, kind, words) in [
            ("--limit ops=400 --limit ops=500", ErrorKind::Argument, "--limit sets `ops` twice"),
            ("--flag opt=1 --flag opt=2", ErrorKind::Argument, "flag `opt` is set twice"),
            ("--flag opt=1 --without-flag opt", ErrorKind::Argument, "flag `opt` is set twice"),
            ("--table embedding=f16 --table embedding=f32", ErrorKind::Argument, "--table sets `embedding`"),
            ("--planner-option a=1 --planner-option a=1", ErrorKind::Argument, "--planner-option sets `a`"),
            ("--towers none --tower-formats stored", ErrorKind::Argument, "--tower-formats sets a tower"),
            ("--towers clip --picture-sizes 70", ErrorKind::Argument, "--picture-sizes sets a tower"),
            ("--towers picture --clip-lengths 5", ErrorKind::Argument, "--clip-lengths sets a tower"),
            ("--profiles no/such/folder", ErrorKind::Missing, "--profiles no/such/folder"),
            ("--planners Cargo.toml", ErrorKind::Missing, "--planners Cargo.toml"),
            ("--shims no/such/folder", ErrorKind::Missing, "--shims no/such/folder"),
        ] {
            let words_of_line = ["shardwright", "plan", "model"].into_iter().chain(line.split(' '));
            let parsed = Arguments::try_parse_from(words_of_line).unwrap_or_else(|error| panic!("{error}"));
            let Command::Plan(plan) = parsed.command else { panic!("{line}") };
            let (found, message) = match open_options(&plan.target, &plan.execution).err() {
                Some(Failure::Arguments(message)) => (ErrorKind::Argument, message),
                Some(Failure::Refused { kind, message, .. }) => (kind, message),
                _ => panic!("{line} is not refused"),
            };
            assert!(found == kind && message.contains(words), "{line}: {message}");
        }
    }
}
