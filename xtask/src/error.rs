//! Errors and suggestions. Written by hand instead of derived: the macro and its parser would be
//! compiled a second time for this program, which is built before everything else.

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
        /// The program's name.
        program: String,
        /// What to install, where known.
        help: Option<&'static str>,
        /// Why.
        source: io::Error,
    },
    /// A program ran and failed; its own messages came before this one.
    Failed {
        /// The command line as it was printed.
        command: String,
        /// Its exit code, 1 where a signal ended it.
        code: u8,
        /// The exit status in words.
        status: String,
    },
    /// A file could not be read or written.
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of the workspace has unexpected content.
    Unexpected {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// `cargo metadata` or `rustup` answered with something unreadable.
    Answer {
        /// The command line.
        command: String,
        /// What is wrong with it.
        problem: String,
    },
    /// An environment variable has an invalid value.
    Variable {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// The valid values.
        expected: &'static str,
    },
    /// Tests failed.
    TestsFailed {
        /// How many.
        failed: u64,
        /// Of how many that ran.
        all: u64,
    },
    /// A fetched program does not run on this machine.
    NotForThisMachine {
        /// The requested item.
        what: &'static str,
        /// Why not.
        problem: String,
    },
    /// A program that fetches something failed; its own messages came before this one.
    NotFetched {
        /// The requested item.
        what: String,
        /// The program.
        with: &'static str,
        /// Its exit status in words.
        status: String,
    },
    /// There is too little memory.
    Memory {
        /// Purpose of the memory.
        what: String,
        /// The allocator's message.
        problem: String,
    },
    /// There is no folder for fetched files.
    NoCacheFolder,
    /// Checks were skipped although none may be.
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
    /// A suggestion, for a `help:` line.
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
            | Self::TestsFailed { .. } => None,
        }
    }

    /// The exit code: that of the program that failed, 1 otherwise.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Failed { code, .. } => *code,
            Self::Usage(_) => 2,
            _ => 1,
        }
    }
}
