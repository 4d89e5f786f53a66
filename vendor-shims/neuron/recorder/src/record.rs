//! The file to which lines are written.

use std::fs::OpenOptions;
use std::io::Write;

/// Variable that names the file.
const VARIABLE: &str = "SHARDWRIGHT_NEURON_RECORDER";

/// Appends a line immediately and in one write, so that it persists if the process ends in the next
/// call. Reads the variable each time, so that a test can switch to another file.
pub(crate) fn line(text: &str) {
    let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) else { return };
    let written = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&path)
        .and_then(|mut file| file.write_all(format!("{text}\n").as_bytes()));
    if let Err(error) = written {
        // A record with gaps is not evidence.
        eprintln!("neuron recorder: {}: {error}", path.display());
        std::process::abort();
    }
}
