//! Finds the worker program, and defines a worker's limits.

use std::path::PathBuf;
use std::time::Duration;

use shardwright_shims::ShimError;
use shardwright_vocabulary::{Error, ErrorClass};

use crate::os;

/// File name of the worker program.
const WORKER: &str = "shardwright-worker";

/// Environment variable with the path of the worker program.
const WORKER_VARIABLE: &str = "SHARDWRIGHT_WORKER";

/// Environment variable with the memory limit of a worker.
const MEMORY_VARIABLE: &str = "SHARDWRIGHT_WORKER_MEMORY";

/// Environment variable with the time limit of one run in a worker, in seconds.
const RUN_VARIABLE: &str = "SHARDWRIGHT_WORKER_RUN_SECONDS";

/// Minimum memory with which the worker program starts.
const LEAST_MEMORY: u64 = 64 << 20;

/// The assumed size if the machine's memory is unknown.
const UNKNOWN_MEMORY: u64 = 16 << 30;

/// A launcher that opens shims in workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// Path of the program `shardwright-worker` of this release.
    pub worker: PathBuf,
    /// Limits of a worker.
    pub caps: Caps,
}

impl Launcher {
    /// Returns a launcher with the worker of [`find_worker`] and the default limits, unless
    /// `SHARDWRIGHT_WORKER_MEMORY` or `SHARDWRIGHT_WORKER_RUN_SECONDS` overrides them.
    pub fn found() -> Result<Launcher, ShimError> {
        let named = |variable| std::env::var_os(variable).filter(|named| !named.is_empty());
        let mut caps = Caps::default();
        if let Some(named) = named(MEMORY_VARIABLE) {
            caps = caps.with_memory(&named.to_string_lossy())?;
        }
        if let Some(named) = named(RUN_VARIABLE) {
            caps = caps.with_run_seconds(&named.to_string_lossy())?;
        }
        Ok(Launcher { worker: find_worker()?, caps })
    }
}

/// Limits of a worker. A worker that exceeds them is killed, and the call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Time limit for starting, and for each call except estimating, compiling, loading and
    /// running.
    pub probe_time: Duration,
    /// Time limit for one compilation or estimate.
    pub compile_time: Duration,
    /// Time limit for loading a shard, and for one run, independent of the run's own deadline.
    pub run_time: Duration,
    /// Time limit for stopping: after a cancelled call, after a run's deadline, on closing.
    pub grace: Duration,
    /// Private memory in bytes. Mapped files and shared memory do not count.
    pub memory_bytes: u64,
}

impl Caps {
    /// Sets the memory limit from `text`: bytes, or a number of `MiB` or `GiB`.
    fn with_memory(self, text: &str) -> Result<Caps, ShimError> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit: Option<u64> = match &text[digits.len()..] {
            "" => Some(1),
            "MiB" => Some(1 << 20),
            "GiB" => Some(1 << 30),
            _ => None,
        };
        let bytes =
            digits.trim().parse::<u64>().ok().zip(unit).and_then(|(count, unit)| count.checked_mul(unit));
        match bytes.filter(|bytes| *bytes >= LEAST_MEMORY) {
            Some(memory_bytes) => Ok(Caps { memory_bytes, ..self }),
            None => Err(ShimError::Argument(format!(
                "{MEMORY_VARIABLE}: expected bytes, MiB or GiB, such as `20GiB`, from {} MiB, got `{text}`",
                LEAST_MEMORY >> 20
            ))),
        }
    }

    /// Sets the time limits of loading and of one run from `text`, in seconds.
    fn with_run_seconds(self, text: &str) -> Result<Caps, ShimError> {
        const MOST: u64 = 7 * 24 * 3600;
        match text.parse::<u64>().ok().filter(|seconds| (1..=MOST).contains(seconds)) {
            Some(seconds) => Ok(Caps { run_time: Duration::from_secs(seconds), ..self }),
            None => Err(ShimError::Argument(format!(
                "{RUN_VARIABLE}: expected whole seconds from 1 to {MOST}, got `{text}`"
            ))),
        }
    }

    /// Returns seven eighths of a machine's memory. Beyond that the system would start killing
    /// processes, possibly others than the worker.
    fn memory_of(machine: u64) -> u64 {
        match machine {
            0 => UNKNOWN_MEMORY,
            bytes => (bytes / 8 * 7).max(LEAST_MEMORY),
        }
    }
}

impl Default for Caps {
    /// Returns half a minute to answer, an hour to compile, two minutes to load or run, a second to
    /// stop, and seven eighths of the machine's memory. A simulator may need longer for a run of a
    /// large shard, and a compiler was observed to use four times the bytes of its output.
    /// [`Launcher::found`] reads both limits from the environment.
    fn default() -> Self {
        Caps {
            probe_time: Duration::from_secs(30),
            compile_time: Duration::from_secs(3600),
            run_time: Duration::from_secs(120),
            grace: Duration::from_secs(1),
            memory_bytes: Caps::memory_of(os::memory_bytes()),
        }
    }
}

/// Returns the path of the worker program: the value of `SHARDWRIGHT_WORKER`, or else the file next
/// to this program.
pub fn find_worker() -> Result<PathBuf, ShimError> {
    let beside = || Some(std::env::current_exe().ok()?.with_file_name(WORKER));
    let named = std::env::var_os(WORKER_VARIABLE).filter(|named| !named.is_empty());
    match named.map(PathBuf::from).or_else(beside) {
        Some(path) if path.is_file() => Ok(path),
        Some(path) => Err(no_worker(format!("`{}`", path.display()))),
        None => Err(no_worker(WORKER_VARIABLE.to_owned())),
    }
}

/// Creates the error for requested isolation without a worker program.
pub(crate) fn no_worker(looked: String) -> ShimError {
    let error = Error::missing(format!("program `{WORKER}` not found; looked for {looked}")).with_help(
        "put it next to this program, or set SHARDWRIGHT_WORKER to its path; without isolation, shims run in \
         this process",
    );
    ShimError::Other(ErrorClass::InvalidArgument, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_workers_is_a_number_with_a_unit() {
        let memory = |text: &str| Caps::default().with_memory(text).map(|caps| caps.memory_bytes);
        for (text, bytes) in [("20GiB", 20 << 30), ("512MiB", 512 << 20), ("100000000", 100_000_000)] {
            assert_eq!(memory(text).unwrap(), bytes, "{text}");
        }
        for text in ["", "GiB", "20 GB", "-1", "1.5GiB", "1MiB", "99999999999GiB", "20Gi\u{e4}"] {
            let error = memory(text).unwrap_err();
            assert!(
                matches!(&error, ShimError::Argument(why) if why.contains("SHARDWRIGHT_WORKER_MEMORY")),
                "{text}"
            );
        }
    }

    #[test]
    fn the_memory_limit_of_a_worker_never_exceeds_the_memory_of_the_machine() {
        for (machine, cap) in
            [(8 << 30, 7 << 30), (16 << 30, 14 << 30), (64 << 30, 56 << 30), (1 << 20, LEAST_MEMORY)]
        {
            assert_eq!(Caps::memory_of(machine), cap);
        }
        assert_eq!(Caps::memory_of(0), UNKNOWN_MEMORY);
        assert!(Caps::default().memory_bytes < os::memory_bytes());
    }

    #[test]
    fn the_time_of_runs_is_a_number_of_seconds() {
        let caps = Caps::default().with_memory("512MiB").unwrap().with_run_seconds("3600").unwrap();
        assert_eq!((caps.run_time, caps.memory_bytes), (Duration::from_secs(3600), 512 << 20));
        for text in ["", "0", "-1", "1.5", "10m", "99999999999"] {
            let error = Caps::default().with_run_seconds(text).unwrap_err();
            assert!(
                matches!(&error, ShimError::Argument(why) if why.contains("SHARDWRIGHT_WORKER_RUN_SECONDS")),
                "{text}"
            );
        }
    }
}
