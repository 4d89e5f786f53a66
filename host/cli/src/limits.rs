//! Limits that a user sets for processes (`ulimit`), reported as errors instead of signals.

use shardwright::ErrorKind;

use crate::arguments::Command;
use crate::outcome::Failure;

/// A part of the program's work, with the address space that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Parsing arguments and reporting an error.
    Start,
    /// A command that does not run a model.
    Read,
    /// A command that plans or runs a model.
    Run,
}

impl Work {
    /// Returns the work of a command.
    pub fn of(command: &Command) -> Work {
        match command {
            Command::Run(_)
            | Command::Chat(_)
            | Command::Serve(_)
            | Command::Bench(_)
            | Command::Compile(_)
            | Command::CalibrationText(_)
            | Command::Plan(_)
            | Command::Sensitivity(_)
            | Command::Perplexity(_)
            | Command::Tune(_)
            | Command::Embed(_)
            | Command::Verify(_) => Work::Run,
            Command::Pull(_)
            | Command::Pack(_)
            | Command::Needs(_)
            | Command::Explain(_)
            | Command::Inspect { .. }
            | Command::Show(_)
            | Command::Doctor(_)
            | Command::Shim(_)
            | Command::Planner(_)
            | Command::Trust(_)
            | Command::Completions { .. } => Work::Read,
        }
    }

    /// Returns the bytes that the work needs in addition to the mapped ones, and the least bytes of
    /// the whole process. With these, parts that need much memory, such as the planner, end in an
    /// error or a fallback.
    #[cfg(unix)]
    const fn address_space(self) -> (u64, u64) {
        match self {
            Work::Start => (32 << 20, 0),
            Work::Read => (64 << 20, 128 << 20),
            Work::Run => (128 << 20, 300 << 20),
        }
    }
}

/// Refuses to continue in an address space that is too small for the work (`ulimit -v`). There, a
/// failed allocation would end the process by a signal and without an error.
#[cfg(unix)]
pub fn expect_address_space(work: Work) -> Result<(), Failure> {
    let Some(limit) = rustix::process::getrlimit(rustix::process::Resource::As).current else {
        return Ok(());
    };
    let (room, least) = work.address_space();
    let least = mapped().saturating_add(room).max(least);
    if limit >= least {
        return Ok(());
    }
    Err(Failure::Refused {
        kind: ErrorKind::Memory,
        message: format!(
            "the address space is limited to {} MiB, and the program needs at least {}",
            limit >> 20,
            least.div_ceil(1 << 20)
        ),
        help: "raise the limit: `ulimit -v unlimited`".to_owned(),
    })
}

/// Returns the bytes that are mapped now, or 0 where the system does not report them.
#[cfg(unix)]
fn mapped() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")?.trim().strip_suffix(" kB"));
    size.and_then(|kibibytes| kibibytes.trim().parse::<u64>().ok()).map_or(0, |kibibytes| kibibytes << 10)
}

/// Always succeeds, because other systems have no such limit.
#[cfg(not(unix))]
pub fn expect_address_space(_: Work) -> Result<(), Failure> {
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
