//! Exit codes and how errors are printed.

use std::error::Error as _;
use std::ffi::OsString;
use std::io::Write;
use std::num::{IntErrorKind, ParseIntError};
use std::process::ExitCode;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind as ClapKind};
use shardwright::{Error, ErrorKind};
use shardwright_planning::{builtin, pack};

use crate::arguments::{Arguments, Format};
use crate::views::{printable_lines, say};

/// The outcome of a command.
pub enum Outcome {
    Done,
    /// A comparison failed.
    Different,
    /// It was interrupted, after printing partial results.
    Interrupted,
}

/// Why a command failed.
pub enum Failure {
    /// An error of the public crate.
    Library(Error),
    /// Arguments that are valid separately but not together.
    Arguments(String),
    /// A precondition in the environment is not met.
    Refused { kind: ErrorKind, message: String, help: String },
    /// Reading or writing failed.
    Io { what: String, source: std::io::Error },
    /// The reader of standard output closed it. There is no error to report.
    ReaderGone,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Library(error)
    }
}

/// Makes the failure of reading or writing `what`.
pub fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Failure {
    let what = what.into();
    move |source| match source.kind() {
        std::io::ErrorKind::BrokenPipe => Failure::ReaderGone,
        _ => Failure::Io { what, source },
    }
}

/// Returns the stable exit code: 0 success, 1 a comparison found a difference, 2 arguments, then
/// one per kind of error.
pub const fn code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Argument => 2,
        ErrorKind::Missing => 3,
        ErrorKind::Invalid => 4,
        ErrorKind::Unsupported => 5,
        ErrorKind::Incompatible => 6,
        ErrorKind::Planning => 7,
        ErrorKind::Shim => 8,
        ErrorKind::Strict => 9,
        ErrorKind::Context => 10,
        ErrorKind::Memory => 11,
        ErrorKind::Untrusted => 12,
        ErrorKind::Resource => 13,
        ErrorKind::Cancelled => 130,
        _ => 70,
    }
}

/// Returns the default help for errors without their own.
const fn general_help(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Argument => "run `shardwright help` to list commands and arguments",
        ErrorKind::Missing => "check the path and its permissions",
        ErrorKind::Invalid => "fetch the file again; it is damaged or its name does not match its content",
        ErrorKind::Unsupported => "see README.md for supported models and chips",
        ErrorKind::Incompatible => "build it again with this version",
        ErrorKind::Planning => {
            "run `shardwright plan` to see limits and reasons; override a limit with `--limit NAME=VALUE`"
        }
        ErrorKind::Shim => "run `shardwright shim list` to see which shims were found; add `-v` for details",
        ErrorKind::Strict => "leave `--strict` out to accept the fallback",
        ErrorKind::Untrusted => "get a signed file from its source, or trust the key of its maker",
        ErrorKind::Context => "shorten the prompt or raise `--context`",
        ErrorKind::Memory => "close other programs, or raise the budget",
        ErrorKind::Resource => "free disk space, or raise the limits that `ulimit -a` lists",
        ErrorKind::Cancelled => "run the command again",
        _ => "run it again with `-vv` and report the output",
    }
}

/// Returns the help of an error: its own, or the default of its kind.
pub fn help_of(kind: ErrorKind, own: Option<String>) -> String {
    own.unwrap_or_else(|| general_help(kind).to_owned())
}

impl Failure {
    /// Returns whether the session can continue, because the error is about one text and not about
    /// the program or the model.
    pub fn is_of_what_was_asked(&self) -> bool {
        let kinds = [ErrorKind::Argument, ErrorKind::Context, ErrorKind::Unsupported, ErrorKind::Cancelled];
        matches!(self, Failure::Library(error) if kinds.contains(&error.kind()))
    }
}

/// Prints the outcome and returns the exit code.
pub fn exit(result: Result<Outcome, Failure>, format: Format) -> ExitCode {
    match result {
        Ok(Outcome::Done) | Err(Failure::ReaderGone) => ExitCode::SUCCESS,
        Ok(Outcome::Different) => ExitCode::from(1),
        Ok(Outcome::Interrupted) => ExitCode::from(code(ErrorKind::Cancelled)),
        Err(failure) => ExitCode::from(code(report(failure, format))),
    }
}

/// Prints a failure and its help, and returns its kind.
pub fn report(failure: Failure, format: Format) -> ErrorKind {
    let (kind, message, help) = match failure {
        // The reader of standard output is gone, so the failure cannot be reported.
        Failure::ReaderGone => return ErrorKind::Missing,
        Failure::Library(error) => (error.kind(), error.to_string(), error.help().map(str::to_owned)),
        Failure::Arguments(message) => (ErrorKind::Argument, message, None),
        Failure::Refused { kind, message, help } => (kind, message, Some(help)),
        Failure::Io { what, source } => {
            let error = Error::from(source).at(what);
            (error.kind(), error.to_string(), error.help().map(str::to_owned))
        }
    };
    let help = help_of(kind, help);
    let mut stderr = std::io::stderr().lock();
    // An error on a closed standard error is ignored.
    let _ = match format {
        Format::Text => {
            writeln!(stderr, "error: {}\nhelp: {}", printable_lines(&message), printable_lines(&help))
        }
        Format::Json => {
            let report =
                serde_json::json!({ "error": { "kind": kind.name(), "message": message, "help": help } });
            writeln!(stderr, "{report}")
        }
    };
    kind
}

/// Names of commands in other programs, with the command of this one.
const OTHERWISE: [(&[&str], &str); 8] = [
    (&["generate", "ask"], "`run MODEL` holds a conversation"),
    (&["list", "ls", "devices", "profiles", "chips", "ps"], "`doctor` lists chips, shims and caches"),
    (&["models", "search"], "`pull OWNER/NAME` fetches a model, and `show MODEL` describes one"),
    (&["download", "get", "fetch"], "`pull OWNER/NAME` fetches a model"),
    (&["server"], "`serve MODEL` answers requests over HTTP"),
    (&["quantize", "quantise", "convert", "build"], "`compile MODEL -o BUNDLE` quantises and compiles"),
    (&["ppl", "eval", "evaluate"], "`perplexity MODEL --text FILE` measures the likelihood of a text"),
    (&["info"], "`show MODEL` describes a model"),
];

/// Returns the command that was probably meant by an unknown name: one from another program, or one
/// with at most two different or swapped letters.
fn meant(name: &str) -> Option<String> {
    if let Some((_, meant)) = OTHERWISE.iter().find(|(names, _)| names.contains(&name)) {
        return Some((*meant).to_owned());
    }
    let command = Arguments::command();
    let known = command.get_subcommands().map(clap::Command::get_name);
    let near = known.map(|known| (strsim::osa_distance(name, known), known)).min()?;
    (near.0 <= 2 && near.0 < name.len()).then(|| format!("did you mean `{}`?", near.1))
}

/// The hint at the end of the argument parser's errors.
const PARSER_HELP: &str = "For more information, try '--help'.";

/// The help that replaces it.
const OPTIONS_HELP: &str = "run `shardwright COMMAND --help` for its options";

/// Returns the parser's message. If a value is not a whole number, it states which values are.
fn parser_message(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let reason = error.source().and_then(|source| source.downcast_ref::<ParseIntError>());
    match reason {
        Some(reason) if *reason.kind() == IntErrorKind::PosOverflow => {
            text.replace(&reason.to_string(), "expected a smaller number")
        }
        Some(reason) => text.replace(&reason.to_string(), "expected a whole number from 0 up"),
        None => text,
    }
}

/// Returns the format that the arguments request, even if other arguments are wrong.
pub fn format_of(arguments: &[OsString]) -> Format {
    let is_json = arguments.iter().any(|argument| argument == "--format=json")
        || arguments.windows(2).any(|pair| pair[0] == "--format" && pair[1] == "json");
    if is_json { Format::Json } else { Format::Text }
}

/// Prints help and version on standard output with exit code 0, and wrong arguments on standard
/// error with 2. Errors are JSON if the arguments request it, even if other arguments are wrong.
pub fn usage(error: &clap::Error, arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.collect();
    if format_of(&arguments) == Format::Json && error.use_stderr() {
        let text = parser_message(error);
        let text = text.trim_end().trim_end_matches(PARSER_HELP);
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let message = lines.next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        let help = Some(lines.collect::<Vec<_>>().join("; ")).filter(|help| !help.is_empty());
        let help = help.unwrap_or_else(|| OPTIONS_HELP.to_owned());
        let failure = Failure::Refused { kind: ErrorKind::Argument, message, help };
        return exit(Err(failure), Format::Json);
    }
    if let (ClapKind::InvalidSubcommand, Some(ContextValue::String(name))) =
        (error.kind(), error.get(ContextKind::InvalidSubcommand))
    {
        say(&format!("error: unknown command `{name}`"));
        let meant = meant(name).map(|meant| format!("{meant}; ")).unwrap_or_default();
        say(&format!("help: {meant}run `shardwright --help` for the list of commands"));
        return ExitCode::from(code(ErrorKind::Argument));
    }
    if error.use_stderr() {
        // The parser's message, with the same ending as all errors of this program.
        let text = parser_message(error);
        if let Some(text) = text.trim_end().strip_suffix(PARSER_HELP) {
            text.trim_end().lines().for_each(say);
            say(&format!("help: {OPTIONS_HELP}"));
            return ExitCode::from(code(ErrorKind::Argument));
        }
    }
    let printed = match error.kind() {
        ClapKind::DisplayVersion => error.print().and_then(|()| print_planner()),
        _ => error.print(),
    };
    if error.use_stderr() {
        // An error on a closed standard error is ignored.
        return ExitCode::from(code(ErrorKind::Argument));
    }
    exit(printed.map(|()| Outcome::Done).map_err(io("standard output")), Format::Text)
}

/// Prints the planner that decides unless the user or a profile names another one.
fn print_planner() -> std::io::Result<()> {
    let pack = pack::inspect(builtin::PACK).map_err(std::io::Error::other)?;
    writeln!(std::io::stdout(), "planner {} {} (built-in)", pack.planner, pack.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_answered_with_the_intended_command() {
        for (name, command) in [
            ("rnu", "`run`"),
            ("plann", "`plan`"),
            ("generate", "`run MODEL`"),
            ("profiles", "`doctor`"),
            ("list", "`doctor`"),
            ("server", "`serve MODEL`"),
        ] {
            assert!(meant(name).is_some_and(|said| said.contains(command)), "{name}");
        }
        assert_eq!(meant("qqqq"), None);
    }
}
