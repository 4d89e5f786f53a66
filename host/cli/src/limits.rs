//! Limits that a user sets for processes (`ulimit`), reported as errors instead of signals.

use shardwright::ErrorKind;

use crate::outcome::Failure;

/// Minimum address space in bytes. The program and its libraries use nearly as much before they
/// open a model. With less, the first allocation fails and ends the process without an error of its
/// own. Above it, parts that need much memory, such as the planner, end in an error or a fallback.
#[cfg(unix)]
const ADDRESS_SPACE_MIN: u64 = 128 << 20;

/// Refuses to start in an address space that is too small (`ulimit -v`).
#[cfg(unix)]
pub fn expect_address_space() -> Result<(), Failure> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current;
    match limit.filter(|limit| *limit < ADDRESS_SPACE_MIN) {
        None => Ok(()),
        Some(limit) => Err(Failure::Refused {
            kind: ErrorKind::Memory,
            message: format!(
                "the address space is limited to {} MiB, and the program needs at least {}",
                limit >> 20,
                ADDRESS_SPACE_MIN >> 20
            ),
            help: "raise the limit: `ulimit -v unlimited`".to_owned(),
        }),
    }
}

/// Always succeeds, because other systems have no such limit.
#[cfg(not(unix))]
pub fn expect_address_space() -> Result<(), Failure> {
    Ok(())
}

/// Turns writing beyond the file size limit into an error. By default a signal ends the program.
#[cfg(unix)]
pub fn ignore_file_size_signal() {
    let noted = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    // If this fails, the signal ends the program as usual.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, noted);
}

/// Has no effect, because other systems have no such limit.
#[cfg(not(unix))]
pub fn ignore_file_size_signal() {}
