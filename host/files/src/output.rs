//! Files and folders that a command writes at a path that a user names.
//!
//! The path may name another file of the user by mistake. So an existing file is replaced only if
//! it is empty or recognised as an earlier output of the same command. Devices, pipes, sockets and
//! links are never replaced. A file is written whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

use shardwright_vocabulary::{Error, Result};

use crate::{Links, kind_name, open};

/// Number of bytes by which an earlier output is recognised. It includes the first part of a packed
/// bundle, which begins at 64 KiB.
const BEGIN_BYTES: u64 = 68 << 10;

/// A kind of file that a command writes.
///
/// ```
/// use shardwright_files::output::OutputKind;
///
/// const PAGE: OutputKind =
///     OutputKind { name: "a page", is_earlier: |begin| begin.starts_with(b"<!doctype html>") };
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("page.html");
/// PAGE.write(&path, b"<!doctype html>first")?;
/// PAGE.write(&path, b"<!doctype html>second")?;
/// std::fs::write(&path, "my thesis")?;
/// assert!(PAGE.write(&path, b"<!doctype html>third").is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct OutputKind {
    /// The name in messages, such as `a planner pack`.
    pub name: &'static str,
    /// Recognises an earlier output by its beginning.
    pub is_earlier: fn(&[u8]) -> bool,
}

fn other_kind(path: &Path, found: fs::FileType, expected: &str) -> Error {
    Error::argument(format!("expected {expected} or no file, got {}", kind_name(found)))
        .at(path.display())
        .with_help("choose a path where there is no file yet")
}

/// Converts an error of the operating system.
fn failed(path: &Path, error: impl Into<Error>) -> Error {
    error.into().at(path.display()).or_help("name a file in a folder that exists and can be written to")
}

impl OutputKind {
    /// Checks that a file of this kind may be written at `path`. Call this before long work, so
    /// that its result is not lost.
    pub fn expect_at(&self, path: &Path) -> Result<()> {
        let Some(found) = kind_at(path)? else { return Ok(()) };
        if !found.is_file() {
            return Err(other_kind(path, found, self.name));
        }
        let (file, _) = open(path, Links::Refused).map_err(|error| failed(path, error))?;
        let mut begin = Vec::new();
        file.take(BEGIN_BYTES).read_to_end(&mut begin).map_err(|error| failed(path, error))?;
        if begin.is_empty() || (self.is_earlier)(&begin) {
            return Ok(());
        }
        let message = format!("the file exists and is not {}", self.name);
        let help = "choose another path, or delete the file";
        Err(Error::argument(message).at(path.display()).with_help(help))
    }

    /// Writes a file, or replaces an earlier one. Other users may read it, as the process's umask
    /// allows.
    pub fn write(&self, path: &Path, content: &[u8]) -> Result<()> {
        self.replace(path, &mut File::options(), &mut |file| Ok(file.write_all(content)?))
    }

    /// Writes a file that only this user can read, or replaces an earlier one. `fill` writes the
    /// content. If it fails, an earlier file stays.
    pub fn write_private(&self, path: &Path, fill: Fill<'_>) -> Result<()> {
        let mut options = File::options();
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        self.replace(path, &mut options, fill)
    }

    /// Writes a file under a temporary name, and gives it its name once it is complete.
    fn replace(&self, path: &Path, options: &mut OpenOptions, fill: Fill<'_>) -> Result<()> {
        self.expect_at(path)?;
        let folder = path.parent().filter(|folder| *folder != "").unwrap_or(Path::new("."));
        let mut write = || -> Result<()> {
            let mut builder = tempfile::Builder::new();
            builder.prefix(".writing-");
            let mut create = |path: &Path| options.write(true).create_new(true).open(path);
            let mut file = builder.make_in(folder, &mut create)?;
            fill(file.as_file_mut())?;
            file.as_file().sync_all()?;
            file.persist(path).map_err(|error| error.error)?;
            // If its folder is writable but not readable, the name may be lost in a power failure.
            let _ = File::open(folder).and_then(|folder| folder.sync_all());
            Ok(())
        };
        write().map_err(|error| failed(path, error))
    }
}

/// Writes the content of a file.
pub type Fill<'f> = &'f mut dyn FnMut(&mut File) -> Result<()>;

/// Checks that a folder may be written at `path`: it is missing, or a folder and not a link.
/// Returns whether it exists.
pub fn expect_folder(path: &Path) -> Result<bool> {
    match kind_at(path)? {
        None => Ok(false),
        Some(found) if found.is_dir() => Ok(true),
        Some(found) => Err(other_kind(path, found, "a folder")),
    }
}

/// Returns the kind of the file at `path` without following a link, or `None` if it is missing.
fn kind_at(path: &Path) -> Result<Option<fs::FileType>> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata.file_type())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(path, error)),
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use shardwright_vocabulary::{ErrorKind, Shortage};

    use super::*;

    const LIST: OutputKind = OutputKind { name: "a list", is_earlier: |begin| begin.starts_with(b"list") };

    #[test]
    fn only_an_earlier_output_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        LIST.write(&path, b"list 1").unwrap();
        LIST.write(&path, b"list 2").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"list 2");
        fs::write(&path, "").unwrap();
        LIST.write(&path, b"list 3").unwrap();
        fs::write(&path, "a thesis").unwrap();
        let error = LIST.write(&path, b"list 4").unwrap_err();
        assert!(error.to_string().ends_with("out: the file exists and is not a list"), "{error}");
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert_eq!(error.help(), Some("choose another path, or delete the file"));
        assert_eq!(fs::read(&path).unwrap(), b"a thesis");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
        // As any new file, within the umask.
        let other = folder.path().join("other");
        fs::write(&other, "").unwrap();
        LIST.write(&folder.path().join("new"), b"list").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&folder.path().join("new")), mode(&other));
    }

    #[test]
    fn a_private_file_is_complete_or_the_earlier_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        LIST.write_private(&path, &mut |file| Ok(file.write_all(b"list 1")?)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = LIST
            .write_private(&path, &mut |file| {
                file.write_all(b"list 2")?;
                Err(Error::argument("changed my mind"))
            })
            .unwrap_err();
        assert!(error.to_string().ends_with("out: changed my mind"), "{error}");
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert_eq!(fs::read(&path).unwrap(), b"list 1");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
        fs::write(&path, "a thesis").unwrap();
        assert!(LIST.write_private(&path, &mut |_| Ok(())).is_err());
    }

    #[test]
    fn what_is_not_a_regular_file_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        mknodat(CWD, at("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let _listener = UnixListener::bind(at("socket")).unwrap();
        fs::write(at("list"), "list").unwrap();
        symlink(at("list"), at("link")).unwrap();
        symlink(at("absent"), at("dangling")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        for (path, kind) in [
            (at("pipe"), "a pipe"),
            (at("socket"), "a socket"),
            (at("link"), "a symbolic link"),
            (at("dangling"), "a symbolic link"),
            (at("folder"), "a directory"),
            ("/dev/null".into(), "a device"),
            ("/dev/full".into(), "a device"),
        ] {
            for error in [LIST.expect_at(&path).unwrap_err(), LIST.write(&path, b"list").unwrap_err()] {
                let shown = path.display();
                assert_eq!(error.to_string(), format!("{shown}: expected a list or no file, got {kind}"));
                assert_eq!((error.kind(), error.help().is_some()), (ErrorKind::Argument, true));
            }
            let expected = kind == "a directory";
            assert_eq!(expect_folder(&path).is_ok_and(|exists| exists), expected, "{kind}");
        }
        assert!(!expect_folder(&at("absent")).unwrap() && expect_folder(&at("list")).is_err());
        assert_eq!(fs::read(at("list")).unwrap(), b"list");
    }

    #[test]
    fn a_missing_folder_and_a_full_disk_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let error = LIST.write(&folder.path().join("no/out"), b"list").unwrap_err();
        assert!(error.help().is_some_and(|help| help.contains("folder")), "{error:?}");
        assert!(!error.to_string().contains(".writing-"), "{error}");
        assert_eq!(error.kind(), ErrorKind::Missing);
        let error = failed(Path::new("out"), io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!((error.kind(), error.help()), (ErrorKind::Resource, Some(Shortage::Disk.help())));
    }
}
