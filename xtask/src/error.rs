//! Errors and suggestions. They are written by hand instead of derived, because the macro and its
//! parser would be compiled a second time for this program, which is built before everything else.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// A failed command of `cargo xtask`.
#[derive(Debug)]
pub enum Error {
    /// The command line is invalid.
    Usage(String),
    /// A program could not be started at all.
    NotStarted {
        /// Name of the program.
        program: String,
        /// A hint on what to install, if known.
        help: Option<&'static str>,
        source: io::Error,
    },
    /// A program ran and failed. Its own messages came before this one.
    Failed {
        /// The command line as it was printed.
        command: String,
        /// Its exit code, or 1 if a signal ended it.
        code: u8,
        /// The exit status in words.
        status: String,
    },
    /// A file could not be read or written.
    File { path: PathBuf, source: io::Error },
    /// A file of the workspace has unexpected content.
    Unexpected {
        path: PathBuf,
        /// The fault in the file.
        problem: String,
    },
    /// `cargo metadata` or `rustup` gave unreadable output.
    Answer {
        /// The command line as it was printed.
        command: String,
        /// The fault in the output.
        problem: String,
    },
    /// An environment variable has an invalid value.
    Variable {
        /// Name of the variable.
        name: &'static str,
        value: String,
        /// The valid values.
        expected: &'static str,
    },
    /// Some tests failed.
    TestsFailed {
        /// Number of failed tests.
        failed: u64,
        /// Number of tests that ran.
        all: u64,
    },
    /// A fetched program does not run on this machine.
    NotForThisMachine {
        /// The requested item.
        what: &'static str,
        /// The reason.
        problem: String,
    },
    /// A program that fetches files failed. Its own messages came before this one.
    NotFetched {
        /// The requested item.
        what: String,
        /// The program that fetched it.
        with: &'static str,
        /// Its exit status in words.
        status: String,
    },
    /// A measured program gave a wrong result, or exceeded a bound that does not depend on time.
    Wrong {
        /// The measurement.
        what: &'static str,
        /// The results, and the expected ones.
        problem: String,
    },
    /// There is too little memory.
    Memory {
        /// The use of the memory.
        what: String,
        /// The allocator's message.
        problem: String,
    },
    /// There is no folder for fetched files.
    NoCacheFolder,
    /// Checks were skipped in a run that allows no skipped checks.
    Skipped(usize),
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(problem) => write!(formatter, "{problem}"),
            Self::NotStarted { program, source, .. } => {
                write!(formatter, "cannot start `{program}`: {source}")
            }
            Self::Failed { command, status, .. } => write!(formatter, "`{command}` failed: {status}"),
            Self::File { path, source } => write!(formatter, "{}: {source}", path.display()),
            Self::Unexpected { path, problem } => write!(formatter, "{}: {problem}", path.display()),
            Self::Answer { command, problem } => {
                write!(formatter, "`{command}` answered with something unreadable: {problem}")
            }
            Self::Variable { name, value, expected } => {
                write!(formatter, "{name} is {value:?}, and {expected} is expected")
            }
            Self::TestsFailed { failed, all } => write!(formatter, "{failed} of {all} tests failed"),
            Self::NotForThisMachine { what, problem } => {
                write!(formatter, "{what} does not run here: {problem}")
            }
            Self::NotFetched { what, with, status } => {
                write!(formatter, "{what} could not be fetched: {with} ended with {status}")
            }
            Self::Wrong { what, problem } => write!(formatter, "{what}: {problem}"),
            Self::Memory { what, problem } => write!(formatter, "no {what}: {problem}"),
            Self::NoCacheFolder => {
                write!(
                    formatter,
                    "there is no cache folder: neither XDG_CACHE_HOME nor HOME is an absolute path"
                )
            }
            Self::Skipped(checks) => {
                write!(formatter, "{checks} checks were skipped, and with --ci none may be")
            }
        }
    }
}

impl std::error::Error for Error {}

impl Error {
    /// Returns a suggestion for a `help:` line.
    pub fn help(&self) -> Option<&str> {
        match self {
            Self::Usage(_) => Some("`cargo xtask --help` lists the commands"),
            Self::NotStarted { help, .. } => *help,
            Self::Skipped(_) => Some("each `SKIPPED:` line above names what to install"),
            Self::NotForThisMachine { .. } => Some(
                "work on it under x86-64 Linux with glibc, or set SHARDWRIGHT_QNN_LIB to a library for this machine",
            ),
            Self::NotFetched { .. } => Some("a Python 3 with pip and a way to a package index are needed"),
            Self::NoCacheFolder => Some("set HOME"),
            Self::Variable { .. } => Some("correct it, or unset it for what is usual"),
            Self::Memory { .. } => Some("end other programs, or measure on a larger machine"),
            Self::File { .. }
            | Self::Failed { .. }
            | Self::Unexpected { .. }
            | Self::Answer { .. }
            | Self::Wrong { .. }
            | Self::TestsFailed { .. } => None,
        }
    }

    /// Returns the exit code: the failed program's, otherwise 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Failed { code, .. } => *code,
            Self::Usage(_) => 2,
            _ => 1,
        }
    }
}
