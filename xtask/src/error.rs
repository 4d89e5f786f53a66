//! What can go wrong, and what would help.

use std::io;
use std::path::PathBuf;

/// A failed command of `cargo xtask`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program could not be started at all.
    #[error("cannot start `{program}`: {source}")]
    NotStarted {
        /// The program's name.
        program: String,
        /// What to install, where known.
        help: Option<&'static str>,
        /// Why.
        source: io::Error,
    },
    /// A program ran and failed; its own messages came before this one.
    #[error("`{command}` failed: {status}")]
    Failed {
        /// The command line as it was printed.
        command: String,
        /// Its exit code, 1 where a signal ended it.
        code: u8,
        /// The exit status in words.
        status: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of the workspace does not say what is expected of it.
    #[error("{path}: {problem}")]
    Unexpected {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// `cargo metadata` or `rustup` answered with something unreadable.
    #[error("`{command}` answered with something unreadable: {problem}")]
    Answer {
        /// The command line.
        command: String,
        /// What is wrong with it.
        problem: String,
    },
    /// An environment variable says something that cannot be followed.
    #[error("{name} is {value:?}, and {expected} is expected")]
    Variable {
        /// The variable.
        name: &'static str,
        /// What it says.
        value: String,
        /// What it may say.
        expected: &'static str,
    },
    /// Tests failed.
    #[error("{failed} of {all} tests failed")]
    TestsFailed {
        /// How many.
        failed: u64,
        /// Of how many that ran.
        all: u64,
    },
    /// Something that is fetched does not run on this machine.
    #[error("{what} does not run here: {problem}")]
    NotForThisMachine {
        /// What was asked for.
        what: &'static str,
        /// Why not.
        problem: String,
    },
    /// A program that fetches something failed; its own messages came before this one.
    #[error("{what} could not be fetched: {with} ended with {status}")]
    NotFetched {
        /// What was asked for.
        what: String,
        /// The program.
        with: &'static str,
        /// Its exit status in words.
        status: String,
    },
    /// There is no place for what is fetched.
    #[error("there is no cache folder: neither XDG_CACHE_HOME nor HOME is an absolute path")]
    NoCacheFolder,
    /// Something was skipped where nothing may be.
    #[error("{0} checks were skipped, and with --ci none may be")]
    Skipped(usize),
}

impl Error {
    /// What would help, for a `help:` line.
    pub fn help(&self) -> Option<&str> {
        match self {
            Self::NotStarted { help, .. } => *help,
            Self::Skipped(_) => Some("each `SKIPPED:` line above names what to install"),
            Self::NotForThisMachine { .. } => Some(
                "work on it under x86-64 Linux with glibc, or set SHARDWRIGHT_QNN_LIB to a library for this machine",
            ),
            Self::NotFetched { .. } => Some("a Python 3 with pip and a way to a package index are needed"),
            Self::NoCacheFolder => Some("set HOME"),
            Self::Variable { .. } => Some("correct it, or unset it for what is usual"),
            Self::File { .. }
            | Self::Failed { .. }
            | Self::Unexpected { .. }
            | Self::Answer { .. }
            | Self::TestsFailed { .. } => None,
        }
    }

    /// The code to exit with: that of the program that failed, 1 otherwise.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Failed { code, .. } => *code,
            _ => 1,
        }
    }
}
