//! The wrapper around every exported function. It reads the configuration, injects failures, writes
//! the trace, stores the message of a refusal, and stops panics at the boundary.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CString, c_int};
use std::fmt::{Display, Write as _};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use shardwright_neuron_adapter::result;

use crate::configuration::{self, Configuration, How};

/// Why a call is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Result code.
    pub code: i32,
    /// Explanation for people.
    pub message: String,
}

/// Returns a refusal with a code.
pub fn refuse<T>(code: i32, message: impl Into<String>) -> Result<T, Refused> {
    Err(Refused { code, message: message.into() })
}

/// The trace line of the current call.
pub struct Line {
    text: Option<String>,
    how: Option<How>,
}

impl Line {
    /// Adds an argument or a result.
    pub fn say(&mut self, name: &str, value: impl Display) {
        if let Some(text) = &mut self.text {
            // Writing into a string cannot fail.
            let _ = write!(text, " {name}={value}");
        }
    }

    /// Returns the failure that the function itself has to simulate.
    pub fn how(&self) -> Option<How> {
        self.how
    }
}

thread_local! {
    static LAST_MESSAGE: RefCell<CString> = RefCell::default();
}

/// Returns the message of the last refused call on this thread, which is empty before the first
/// refusal.
pub fn last_message() -> *const std::ffi::c_char {
    LAST_MESSAGE.with_borrow(|message| message.as_ptr())
}

static COUNTS: Mutex<Option<HashMap<&'static str, u64>>> = Mutex::new(None);
static TRACE: Mutex<Option<(PathBuf, File)>> = Mutex::new(None);

/// Runs the work of `function`, or the failure that the configuration injects instead.
pub fn call(
    function: &'static str,
    work: impl FnOnce(&Configuration, &mut Line) -> Result<(), Refused>,
) -> c_int {
    let configuration = match configuration::current() {
        Ok(configuration) => configuration,
        Err(problem) => {
            // Always printed, because a simulator with a broken configuration must not go
            // unnoticed.
            eprintln!("shardwright neuron simulator: {problem}");
            note(&problem);
            return result::BAD_STATE;
        }
    };
    let how = failure(function, &configuration);
    let mut line = Line { text: configuration.trace.is_some().then(|| function.to_owned()), how };
    let outcome = match how {
        Some(How::Result(code)) => refuse(code, "injected"),
        Some(How::Hang) => {
            finish_line(&configuration, line, "hangs");
            loop {
                std::thread::park();
            }
        }
        Some(How::Signal(signal)) => {
            finish_line(&configuration, line, &format!("signal {signal}"));
            // A handler may return because a real fault would recur, as the standard library's
            // does for SIGSEGV. The second signal therefore finds no handler.
            // SAFETY: raising a signal in this process and resetting its handler have no
            // preconditions.
            unsafe {
                libc::raise(signal);
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
            return result::OP_FAILED;
        }
        Some(How::Exit(status)) => {
            finish_line(&configuration, line, &format!("exit {status}"));
            // SAFETY: the process ends here, without running registered exit handlers.
            unsafe { libc::_exit(status) };
        }
        Some(How::Abort) => {
            finish_line(&configuration, line, "abort");
            std::process::abort();
        }
        Some(How::Empty | How::AllTrue | How::AllFalse) | None => {
            catch_unwind(AssertUnwindSafe(|| work(&configuration, &mut line)))
                .unwrap_or_else(|_| refuse(result::OP_FAILED, "the simulator panicked"))
        }
    };
    match outcome {
        Ok(()) => {
            finish_line(&configuration, line, "0");
            result::NO_ERROR
        }
        Err(refused) => {
            let message = format!("{function}: {}", refused.message);
            if configuration.messages {
                eprintln!("shardwright neuron simulator: {message}");
            }
            note(&message);
            finish_line(&configuration, line, &format!("{} {}", refused.code, refused.message));
            refused.code
        }
    }
}

/// Runs a function without a result like [`call`]. A refusal is printed to stderr even if the
/// configuration does not enable messages.
pub fn call_void(function: &'static str, work: impl FnOnce() -> Result<(), Refused>) {
    call(function, |configuration, _| {
        work().inspect_err(|refused| {
            if !configuration.messages {
                eprintln!("shardwright neuron simulator: {function}: {}", refused.message);
            }
        })
    });
}

fn note(message: &str) {
    let message: Vec<u8> = message.bytes().filter(|byte| *byte != 0).collect();
    LAST_MESSAGE.with_borrow_mut(|last| *last = CString::new(message).unwrap_or_default());
}

fn failure(function: &'static str, configuration: &Configuration) -> Option<How> {
    if configuration.failures.is_empty() {
        return None;
    }
    let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let count = counts.get_or_insert_default().entry(function).or_default();
    let before = *count;
    *count += 1;
    configuration
        .failures
        .iter()
        .find(|failure| failure.function == function && failure.skip <= before)
        .map(|failure| failure.how)
}

fn finish_line(configuration: &Configuration, line: Line, outcome: &str) {
    let (Some(path), Some(text)) = (&configuration.trace, line.text) else { return };
    if let Err(error) = append(path, &format!("{text} -> {outcome}\n")) {
        eprintln!("shardwright neuron simulator: trace {}: {error}", path.display());
    }
}

fn append(path: &Path, line: &str) -> std::io::Result<()> {
    let mut trace = TRACE.lock().unwrap_or_else(PoisonError::into_inner);
    if trace.as_ref().is_none_or(|(open, _)| open != path) {
        *trace = Some((path.to_owned(), OpenOptions::new().create(true).append(true).open(path)?));
    }
    match trace.as_mut() {
        Some((_, file)) => file.write_all(line.as_bytes()),
        None => Ok(()),
    }
}
