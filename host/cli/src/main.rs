//! The `shardwright` program: the public crate on a command line.
//!
//! **Job.** Arguments, tables, JSON, streaming to a terminal, exit codes. Data goes to standard
//! output. Progress, statistics and diagnostics go to standard error.
//!
//! **Not its job.** It does not compute, plan or load itself, and has no information that the
//! public crate does not report.

mod arguments;
mod commands;
mod interrupt;
mod limits;
mod log;
mod outcome;
mod streams;
mod views;

use std::process::ExitCode;
use std::time::Instant;

use crate::arguments::Arguments;
use crate::limits::Work;

/// Stack of the working thread. The system chooses the stack of the main thread, and a user may
/// have limited it to less than this program needs.
const STACK_BYTES: usize = 8 << 20;

fn main() -> ExitCode {
    let started = Instant::now();
    limits::ignore_file_size_signal();
    let ready = limits::expect_address_space(Work::Start).and_then(|()| streams::expect_output());
    if let Err(failure) = ready {
        let arguments: Vec<_> = std::env::args_os().collect();
        return outcome::exit(Err(failure), outcome::format_of(&arguments));
    }
    // The setting is for threads without a heap. An argument of this name that is no command costs
    // only some speed.
    if std::env::args_os().any(|argument| argument == "serve") {
        shardwright_files::allocator::use_one_heap();
    }
    let work = std::thread::Builder::new().name("work".to_owned()).stack_size(STACK_BYTES);
    match work.spawn(move || work_from(started)) {
        // A panic was reported already, and ends the program like one of the main thread.
        Ok(thread) => thread.join().unwrap_or(ExitCode::from(PANICKED)),
        Err(_) => work_from(started),
    }
}

/// The exit code of a program that panicked.
const PANICKED: u8 = 101;

fn work_from(started: Instant) -> ExitCode {
    let mut arguments = match Arguments::read(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(error) => return outcome::usage(&error, std::env::args_os()),
    };
    if let Err(failure) = log::begin(arguments.verbose) {
        return outcome::exit(Err(failure), arguments.format);
    }
    let found = limits::expect_address_space(Work::of(&arguments.command));
    let found = found.and_then(|()| commands::find(&mut arguments.command, arguments.format));
    outcome::exit(found.and_then(|()| commands::run(&arguments, started)), arguments.format)
}
