//! Limits that a user sets for processes (`ulimit`), met with an error in the place of a signal.

use shardwright::ErrorKind;

use crate::outcome::Failure;

/// Least address space, in bytes: the program and its libraries take nearly as much before anything
/// is opened. With less the first allocation fails, which ends a process without an error of its
/// own. Above it the parts that need much, such as the planner, end in an error or a fallback.
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

/// Other systems have no such limit.
#[cfg(not(unix))]
pub fn expect_address_space() -> Result<(), Failure> {
    Ok(())
}

/// Lets writing beyond the largest allowed file fail with an error. By default a signal ends the
/// program.
#[cfg(unix)]
pub fn ignore_file_size_signal() {
    let noted = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    // Without it the program ends as any other does.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, noted);
}

/// Other systems have no such limit.
#[cfg(not(unix))]
pub fn ignore_file_size_signal() {}
