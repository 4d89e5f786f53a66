//! The `shardwright` program: the public crate on a command line.
//!
//! **Job.** Arguments, tables, JSON, streaming to a terminal, exit codes. Data goes to standard output; progress, statistics and
//! diagnostics to standard error.
//!
//! **Not its job.** It computes, plans and loads nothing itself, and knows nothing the public crate does not tell.

mod arguments;
mod commands;
mod interrupt;
mod outcome;
mod views;

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;

use crate::arguments::Arguments;

fn main() -> ExitCode {
    let started = Instant::now();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return outcome::usage(&error),
    };
    // Vendors' libraries warn of their own affairs by the hundred; what matters of it comes with an error.
    let level = match arguments.verbose {
        0 => "warn,shim=error",
        1 => "info,shim=warn",
        2 => "debug",
        _ => "trace",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("SHARDWRIGHT_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time().init();
    outcome::exit(commands::run(&arguments, started), arguments.format)
}
