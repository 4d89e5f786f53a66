use std::error::Error;
use std::io;

use crate::ErrorKind;

/// A resource of the operating system that a call needed more of than it could have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shortage {
    /// Space on a disk, or the user's quota of it.
    Disk,
    /// The size of a file, limited by the file system or `ulimit -f`.
    FileSize,
    /// Open files, limited for a process (`ulimit -n`) and for the machine.
    OpenFiles,
    /// Processes and threads, limited for a user (`ulimit -u`) and for a control group.
    Processes,
    /// Memory or address space, limited by the machine, for a process (`ulimit -v`) and for a
    /// control group.
    Memory,
}

impl Shortage {
    /// Returns the resource that a failed call lacked, or `None` if it failed for another reason.
    pub fn of(error: &io::Error) -> Option<Shortage> {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Some(Shortage::Disk),
            io::ErrorKind::FileTooLarge => Some(Shortage::FileSize),
            io::ErrorKind::OutOfMemory => Some(Shortage::Memory),
            _ => error.raw_os_error().filter(|code| is_open_files(*code)).map(|_| Shortage::OpenFiles),
        }
    }

    /// Like [`Shortage::of`], for the start of a thread or a process. There, "try again" means that
    /// a limit of processes and threads is reached.
    pub fn of_start(error: &io::Error) -> Option<Shortage> {
        match error.kind() {
            io::ErrorKind::WouldBlock => Some(Shortage::Processes),
            _ => Shortage::of(error),
        }
    }

    /// Returns the shortage behind an error, found in the error itself or in its sources.
    pub(crate) fn behind(error: &(dyn Error + 'static)) -> Option<Shortage> {
        crate::error::io_error(error).and_then(Shortage::of)
    }

    /// Returns the kind of an error with this cause.
    pub const fn kind(self) -> ErrorKind {
        match self {
            Shortage::Memory => ErrorKind::Memory,
            Shortage::Disk | Shortage::FileSize | Shortage::OpenFiles | Shortage::Processes => {
                ErrorKind::Resource
            }
        }
    }

    /// Returns advice for a `help:` line, which names the limit.
    pub const fn help(self) -> &'static str {
        match self {
            Shortage::Disk => "free space on the disk, or name a path on another one",
            Shortage::FileSize => {
                "raise the limit of the size of files: `ulimit -f unlimited`, or name a path on another file system"
            }
            Shortage::OpenFiles => "raise the limit of open files: `ulimit -n 1024`",
            Shortage::Processes => {
                "raise the limit of processes and threads: `ulimit -u 4096`, or `pids.max` of the control group"
            }
            Shortage::Memory => {
                "close other programs, or raise the limit of memory: `ulimit -v unlimited`, or `memory.max` of the control group"
            }
        }
    }
}

/// Checks for the codes of ENFILE and EMFILE, which are equal on all Unix systems. The standard
/// library has no kind for them.
#[cfg(unix)]
fn is_open_files(code: i32) -> bool {
    matches!(code, 23 | 24)
}

/// Always `false`, because other systems report the limit in another way.
#[cfg(not(unix))]
fn is_open_files(_: i32) -> bool {
    false
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_the_system_is_named() {
        for (code, shortage, names, kind) in [
            (28, Shortage::Disk, "free space", ErrorKind::Resource),
            (122, Shortage::Disk, "free space", ErrorKind::Resource),
            (27, Shortage::FileSize, "ulimit -f", ErrorKind::Resource),
            (23, Shortage::OpenFiles, "ulimit -n", ErrorKind::Resource),
            (24, Shortage::OpenFiles, "ulimit -n", ErrorKind::Resource),
            (12, Shortage::Memory, "ulimit -v", ErrorKind::Memory),
        ] {
            let error = io::Error::from_raw_os_error(code);
            assert_eq!((Shortage::of(&error), Shortage::of_start(&error)), (Some(shortage), Some(shortage)));
            assert!(shortage.help().contains(names), "{error}");
            assert_eq!((shortage.kind(), ErrorKind::of_io(&error)), (kind, kind), "{error}");
            let caused =
                crate::Error::caused_by(ErrorKind::Missing, error, Some("check the path".to_owned()));
            assert_eq!((caused.kind(), caused.help()), (kind, Some(shortage.help())));
        }
        // Only the start of a thread or process means a limit by this code.
        let again = io::Error::from_raw_os_error(11);
        assert_eq!((Shortage::of(&again), Shortage::of_start(&again)), (None, Some(Shortage::Processes)));
        assert!(Shortage::Processes.help().contains("ulimit -u"));
        assert_eq!(Shortage::Processes.kind(), ErrorKind::Resource);
        for code in [1, 2, 13, 20, 22] {
            assert_eq!(Shortage::of_start(&io::Error::from_raw_os_error(code)), None, "{code}");
        }
    }
}
