//! The `shardwright` program: the public crate on a command line.
//!
//! **Job.** Arguments, tables, JSON, streaming to a terminal, exit codes. Data goes to standard
//! output; progress, statistics and diagnostics to standard error.
//!
//! **Not its job.** It computes, plans and loads nothing itself, and has no information beyond what
//! the public crate reports.

mod arguments;
mod commands;
mod interrupt;
mod limits;
mod outcome;
mod views;

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use shardwright::ErrorKind;
use tracing_subscriber::EnvFilter;

use crate::arguments::Arguments;
use crate::outcome::Failure;

/// Stack of the thread that does the work. That of the main thread is the system's choice, which a
/// user may have limited to less than this program needs.
const STACK_BYTES: usize = 8 << 20;

fn main() -> ExitCode {
    let started = Instant::now();
    limits::ignore_file_size_signal();
    let work = std::thread::Builder::new().name("work".to_owned()).stack_size(STACK_BYTES);
    match work.spawn(move || work_from(started)) {
        // A panic has been reported by then, and ends the program as one of the main thread does.
        Ok(thread) => thread.join().unwrap_or(ExitCode::from(PANICKED)),
        Err(_) => work_from(started),
    }
}

/// The exit code of a program that panicked.
const PANICKED: u8 = 101;

fn work_from(started: Instant) -> ExitCode {
    let mut arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return outcome::usage(&error, std::env::args_os()),
    };
    match log_filter(arguments.verbose) {
        Ok(filter) => {
            let log = tracing_subscriber::fmt().with_env_filter(filter);
            log.with_writer(|| Log).with_ansi(false).without_time().init();
        }
        Err(failure) => return outcome::exit(Err(failure), arguments.format),
    }
    let found = limits::expect_address_space();
    let found = found.and_then(|()| commands::find(&mut arguments.command, arguments.format));
    outcome::exit(found.and_then(|()| commands::run(&arguments, started)), arguments.format)
}

/// Standard error for the log, which includes names of files and messages of shims.
struct Log;

impl Write for Log {
    /// A whole event.
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let shown = views::printable_lines(text.trim_end_matches('\n'));
        writeln!(std::io::stderr().lock(), "{shown}").map(|()| bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

/// The variable that sets the log filter unless the command line does.
const LOG_VARIABLE: &str = "SHARDWRIGHT_LOG";

/// The log filter: from `-v`, else from the variable.
fn log_filter(verbose: u8) -> Result<EnvFilter, Failure> {
    // Vendors' libraries log hundreds of warnings about themselves; what matters is in an error.
    let level = match verbose {
        0 => "warn,shim=error",
        1 => "info,shim=warn",
        2 => "debug",
        _ => "trace",
    };
    let asked = std::env::var(LOG_VARIABLE).ok().filter(|asked| verbose == 0 && !asked.is_empty());
    let Some(asked) = asked else { return Ok(EnvFilter::new(level)) };
    EnvFilter::builder().parse(&asked).map_err(|error| Failure::Refused {
        kind: ErrorKind::Argument,
        message: format!("{LOG_VARIABLE} is `{asked}`: {error}"),
        help: "set it to levels such as `info` or `warn,shim=info`, or leave it out".to_owned(),
    })
}
