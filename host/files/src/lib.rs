//! Safe access to untrusted files, and to folders that must belong to the user.
//!
//! **Job.** Opens a file named by someone else without blocking ([`open`]). Reads it without
//! trusting its length ([`read`], [`read_from`]). Reads and maps a part of a larger file like a
//! file ([`Section`]). Checks that only this user can have written a folder and its files, and
//! writes such files whole or not at all ([`own`]). Writes a file at a path that a user names,
//! unless another file would be lost ([`output`]). Also converts hashes to hexadecimal digits
//! ([`hex`]), quotes paths for a shell ([`shell_quoted`]) and reads the memory that the kernel
//! reports ([`Memory`]).
//!
//! **Not its job.** It knows no format and no path. The caller decides how to react to a refused
//! file.
//!
//! ```
//! let error = shardwright_files::read_named("/dev/zero".as_ref(), 1 << 20).unwrap_err();
//! assert!(error.to_string().contains("not a regular file"), "{error}");
//! ```

pub mod hex;
mod memory;
pub mod output;
pub mod own;
mod quote;
pub mod room;
mod section;

use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use shardwright_vocabulary::{Error, ErrorKind, Shortage};

pub use memory::Memory;
pub use quote::shell_quoted;
pub use section::{Mapping, Section, SectionReader};

/// The reason why a file was not opened or not read. Messages omit the path, which the caller
/// knows.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The operating system reported an error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A pipe, a device or a directory, not a regular file.
    #[error("{found}, not a regular file")]
    Kind {
        /// The kind of file, in words.
        found: &'static str,
    },
    /// The file is longer than the cap.
    #[error("more than {limit} bytes, the most that are read")]
    TooLong { limit: u64 },
    /// Another user may have written it.
    #[error("{} {reason}", path.display())]
    NotOwn {
        /// The folder or the file.
        path: PathBuf,
        /// The other user, or the file mode.
        reason: String,
    },
    /// Another user may read a secret file.
    #[error("others may read it (mode {mode:03o})")]
    NotSecret {
        /// The permission bits of the file.
        mode: u32,
    },
}

impl FileError {
    /// Returns the kind of error, for applications.
    pub fn kind(&self) -> ErrorKind {
        match self {
            FileError::Io(error) => ErrorKind::of_io(error),
            FileError::NotSecret { .. }
            | FileError::NotOwn { .. }
            | FileError::Kind { .. }
            | FileError::TooLong { .. } => ErrorKind::Invalid,
        }
    }

    /// Converts the error into an [`Error`] whose message begins with the path of the file.
    pub fn about(&self, path: &Path) -> Error {
        let said = Error::new(self.kind(), format!("{}: {self}", path.display()));
        match self.help() {
            Some(help) => said.with_help(help),
            None => said,
        }
    }

    /// Returns advice for a `help:` line, if there is any.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            FileError::Io(error) => Shortage::of(error).map(Shortage::help),
            FileError::Kind { .. } => Some("name a file, or a link to one"),
            FileError::TooLong { .. } => Some("check which file this is"),
            FileError::NotOwn { .. } => {
                Some("`chmod go-w` it if it is yours, or name a folder that nobody else may write")
            }
            FileError::NotSecret { .. } => Some("`chmod 600` it, or make a new key if others saw it"),
        }
    }

    /// Checks whether the file does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, FileError::Io(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

/// For readers whose errors contain an I/O error.
impl From<FileError> for io::Error {
    fn from(error: FileError) -> io::Error {
        match error {
            FileError::Io(error) => error,
            FileError::NotOwn { .. } | FileError::NotSecret { .. } => {
                io::Error::new(io::ErrorKind::PermissionDenied, error.to_string())
            }
            error => io::Error::new(io::ErrorKind::InvalidInput, error.to_string()),
        }
    }
}

/// Whether a symbolic link is allowed in place of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Links are followed, as download caches need: they consist of links.
    Followed,
    /// Links are refused: only the file itself, in the named folder, is opened.
    Refused,
}

/// Opens a regular file for reading and returns its length. Never waits for the other end of a
/// pipe.
pub fn open(path: &Path, links: Links) -> Result<(File, u64), FileError> {
    // The kind is checked before opening, since merely opening some devices has effects, and again
    // afterwards, since the path may have changed.
    expect_file(&match links {
        Links::Followed => fs::metadata(path)?,
        Links::Refused => fs::symlink_metadata(path)?,
    })?;
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;

        use rustix::fs::OFlags;
        let links = if links == Links::Refused { OFlags::NOFOLLOW } else { OFlags::empty() };
        options.custom_flags((OFlags::NONBLOCK | links).bits().cast_signed());
    }
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    expect_file(&metadata)?;
    Ok((file, metadata.len()))
}

/// Reads a named file of at most `limit` bytes.
///
/// # Errors
///
/// The error of [`read`], converted by [`FileError::about`].
pub fn read_named(path: &Path, limit: u64) -> shardwright_vocabulary::Result<Vec<u8>> {
    read(path, limit).map_err(|error| error.about(path))
}

/// Reads a regular file of at most `limit` bytes, without trusting the length it reports. Links are
/// followed.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, FileError> {
    read_from(open(path, Links::Followed)?.0, limit)
}

/// Reads all bytes of a reader, which may have at most `limit`.
pub fn read_from(reader: impl Read, limit: u64) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    // One byte more detects a longer input.
    reader.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(FileError::TooLong { limit });
    }
    Ok(bytes)
}

fn expect_file(metadata: &Metadata) -> Result<(), FileError> {
    let kind = metadata.file_type();
    if kind.is_file() { Ok(()) } else { Err(FileError::Kind { found: kind_name(kind) }) }
}

/// Returns the name of a kind of file for messages.
pub fn kind_name(kind: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return "a pipe";
        }
        if kind.is_socket() {
            return "a socket";
        }
        if kind.is_block_device() || kind.is_char_device() {
            return "a device";
        }
    }
    if kind.is_symlink() {
        "a symbolic link"
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_file() {
        "a regular file"
    } else {
        "something else"
    }
}

#[cfg(unix)]
/// Returns whether `path` still names the open file: another process may have renamed or replaced
/// it since. Call this after locking a file that other processes rename when they finish it.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("a.partial");
/// let file = std::fs::File::create(&path)?;
/// assert!(shardwright_files::is_at(&file, &path));
/// std::fs::rename(&path, folder.path().join("a"))?;
/// assert!(!shardwright_files::is_at(&file, &path));
/// # Ok(())
/// # }
/// ```
#[cfg(unix)]
pub fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let named = |metadata: &std::fs::Metadata| (metadata.dev(), metadata.ino());
    matches!((file.metadata(), std::fs::metadata(path)), (Ok(a), Ok(b)) if named(&a) == named(&b))
}

/// Returns whether `path` still exists. On this system, an open file cannot be renamed.
#[cfg(not(unix))]
pub fn is_at(_file: &File, path: &Path) -> bool {
    path.exists()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_nothing_hangs() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, link, file) =
            (folder.path().join("pipe"), folder.path().join("link"), folder.path().join("file"));
        mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        fs::write(&file, b"abc").unwrap();
        symlink(&file, &link).unwrap();
        for (path, found) in
            [(&pipe, "a pipe"), (&folder.path().to_owned(), "a directory"), (&"/dev/null".into(), "a device")]
        {
            for links in [Links::Followed, Links::Refused] {
                let error = open(path, links).unwrap_err();
                assert!(matches!(error, FileError::Kind { found: it } if it == found), "{error}");
                assert!(error.help().is_some());
                assert_eq!(io::Error::from(error).kind(), io::ErrorKind::InvalidInput);
            }
        }
        assert_eq!(open(&link, Links::Followed).unwrap().1, 3);
        assert!(matches!(open(&link, Links::Refused), Err(FileError::Kind { found: "a symbolic link" })));
        let missing = open(&folder.path().join("absent"), Links::Followed).unwrap_err();
        assert!(missing.is_missing() && matches!(missing, FileError::Io(_)), "{missing}");
        assert!(missing.kind() == ErrorKind::Missing && missing.help().is_none());
    }

    #[test]
    fn a_limit_of_open_files_is_named() {
        // The code of EMFILE.
        let error = FileError::Io(io::Error::from_raw_os_error(24)).about(Path::new("model"));
        assert_eq!(error.kind(), ErrorKind::Resource);
        assert!(error.help().is_some_and(|help| help.contains("ulimit -n")), "{error:?}");
    }

    #[test]
    fn no_more_is_read_than_the_limit_whatever_is_claimed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, b"abc").unwrap();
        assert_eq!(read(&file, 3).unwrap(), b"abc");
        assert!(matches!(read(&file, 2), Err(FileError::TooLong { limit: 2 })));
        assert!(matches!(read_from(io::repeat(0), 1 << 10), Err(FileError::TooLong { limit: 1024 })));
        assert_eq!(read_from(&b"ab"[..], u64::MAX).unwrap(), b"ab");
    }
}
