//! The vendor's library, if it is available.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io::Write;
use std::path::PathBuf;

use shardwright_shim_qnn::library::LibraryChoice;

/// Reports on a conspicuous line that the running test is skipped. The line bypasses the harness's
/// capture, which would hide it if the test passes.
pub fn skipped(why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or_default();
    let _ = writeln!(std::io::stdout().lock(), "SKIPPED: {test}: {why}");
}

/// Returns the file selected by the variable, or unpacked by `cargo xtask vendor qnn`. Reports a
/// missing library and returns `None`.
pub fn library_file() -> Option<PathBuf> {
    let vendored = || LibraryChoice::vendored().filter(|path| path.is_file());
    let found = LibraryChoice::new(None).variable.or_else(vendored);
    let found = found.map(|path| if path.is_dir() { path.join("libQnnHtp.so") } else { path });
    if found.is_none() {
        skipped("no libQnnHtp.so; run `cargo xtask vendor qnn` or set SHARDWRIGHT_QNN_LIB");
    }
    found
}
