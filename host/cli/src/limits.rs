//! Limits that a user sets for processes (`ulimit`), met with an error in the place of a signal.

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
