//! Safe access to untrusted files, and to folders that must belong to the user.
//!
//! **Job.** Opens a file named by someone else without blocking ([`open`]). Reads it without
//! trusting its length ([`read`], [`read_from`]). Reads and maps a part of a larger file like a
//! file ([`Section`]). Checks that only this user can have written a folder and its files, and
//! writes such files whole or not at all ([`private_files`]). Writes a file at a path that a user
//! names, unless another file would be lost ([`output`]). Also converts hashes to hexadecimal
//! digits ([`hex`]), quotes paths for a shell ([`shell_quoted`]) and reads the memory and the pages
//! that the kernel reports ([`Memory`], [`Pages`]), and gives freed memory back to it
//! ([`allocator`]).
//!
//! **Not its job.** It knows no format. Errors omit the path that the caller passed, and the caller
//! adds it as their place. The kind is `Invalid` if the file was refused, another one if the
//! operating system failed.
//!
//! ```
//! let error = shardwright_files::read_named("/dev/zero".as_ref(), 1 << 20).unwrap_err();
//! assert!(error.to_string().contains("not a regular file"), "{error}");
//! ```

pub mod allocator;
pub mod eviction;
pub mod hex;
mod memory;
mod nodes;
pub mod output;
mod pages;
pub mod private_files;
mod quote;
mod section;

use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::Read;
use std::path::Path;

use shardwright_vocabulary::{At, Error, Result};

pub use memory::Memory;
pub use pages::Pages;
pub use quote::shell_quoted;
pub use section::{Mapping, Section, SectionReader};

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
pub fn open(path: &Path, links: Links) -> Result<(File, u64)> {
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
/// The error of [`read`], with the path as its place.
pub fn read_named(path: &Path, limit: u64) -> Result<Vec<u8>> {
    read(path, limit).at(path.display())
}

/// Reads a regular file of at most `limit` bytes, without trusting the length it reports. Links are
/// followed.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>> {
    read_from(open(path, Links::Followed)?.0, limit)
}

/// Reads all bytes of a reader, which may have at most `limit`.
pub fn read_from(reader: impl Read, limit: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte more detects a longer input.
    reader.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let message = format!("more than {limit} bytes, which is the limit");
        return Err(Error::invalid(message).with_help("check which file this is"));
    }
    Ok(bytes)
}

fn expect_file(metadata: &Metadata) -> Result<()> {
    let kind = metadata.file_type();
    if kind.is_file() {
        return Ok(());
    }
    let message = format!("{}, not a regular file", kind_name(kind));
    Err(Error::invalid(message).with_help("name a file, or a link to one"))
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
    use std::io;
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use shardwright_vocabulary::ErrorKind;

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
                assert_eq!(error.to_string(), format!("{found}, not a regular file"));
                assert!(error.kind() == ErrorKind::Invalid && error.help().is_some(), "{error:?}");
            }
        }
        assert_eq!(open(&link, Links::Followed).unwrap().1, 3);
        let refused = open(&link, Links::Refused).unwrap_err();
        assert_eq!(refused.to_string(), "a symbolic link, not a regular file");
        let absent = folder.path().join("absent");
        let missing = open(&absent, Links::Followed).unwrap_err();
        assert!(missing.is_not_found() && missing.kind() == ErrorKind::Missing, "{missing:?}");
        assert_eq!((missing.help(), missing.place()), (None, None));
        let named = read_named(&absent, 3).unwrap_err();
        assert!(named.is_not_found() && named.place() == absent.to_str(), "{named:?}");
    }

    #[test]
    fn a_limit_of_open_files_is_named() {
        struct Limited;
        impl Read for Limited {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                // The code of EMFILE.
                Err(io::Error::from_raw_os_error(24))
            }
        }
        let error = read_from(Limited, 3).at("model").unwrap_err();
        assert_eq!((error.kind(), error.place()), (ErrorKind::Resource, Some("model")));
        assert!(error.help().is_some_and(|help| help.contains("ulimit -n")), "{error:?}");
    }

    #[test]
    fn no_more_is_read_than_the_limit_whatever_is_claimed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, b"abc").unwrap();
        assert_eq!(read(&file, 3).unwrap(), b"abc");
        for (error, limit) in
            [(read(&file, 2).unwrap_err(), 2), (read_from(io::repeat(0), 1 << 10).unwrap_err(), 1024)]
        {
            assert_eq!(error.to_string(), format!("more than {limit} bytes, which is the limit"));
            assert!(error.kind() == ErrorKind::Invalid && error.help().is_some(), "{error:?}");
        }
        assert_eq!(read_from(&b"ab"[..], u64::MAX).unwrap(), b"ab");
    }
}
