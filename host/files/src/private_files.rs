//! Checks that only this user can have written a file: the condition for trusting a cache.
//!
//! A hash in a file proves that the file is complete, but not who wrote it. So a folder with
//! trusted content must belong to the effective user and must not be writable by other users. The
//! same is true of its files. Parent folders may be links or shared: another user who replaces the
//! folder can only put a folder there that does not belong to this user.
//!
//! On systems other than Unix, the system's cache location belongs to the user, so that these
//! checks always succeed.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use shardwright_vocabulary::{Error, ErrorKind, Result};

use crate::{Links, open, read_from};

/// Creates a folder, and missing parents, for this user only.
pub fn create_folder(path: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(path)
}

/// Checks that only this user can have put files into a folder.
pub fn expect_folder(path: &Path) -> Result<()> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_dir() {
        let found = crate::kind_name(metadata.file_type());
        return Err(not_own(path, format!("{found}, not a folder")));
    }
    expect(path, &metadata)
}

/// Checks that only this user can have written an open file. `path` is for messages.
pub fn expect_file(path: &Path, file: &File) -> Result<()> {
    expect(path, &file.metadata()?)
}

/// Returns the error of a file or folder that another user may have written.
/// Converts the error of a file that could not be kept in `folder`. The message names the folder or
/// the file. The kind is [`ErrorKind::Missing`], unless the system had too little of a resource.
#[must_use]
pub fn not_kept(error: Error, folder: &Path, help: &str) -> Error {
    let error = if error.place().is_some() { error } else { error.at(folder.display()) };
    match error.kind() {
        ErrorKind::Memory | ErrorKind::Resource => error,
        _ => error.with_kind(ErrorKind::Missing).with_help(help),
    }
}

fn not_own(path: &Path, reason: impl Into<String>) -> Error {
    let help = "`chmod go-w` it if it is yours, or name a folder that nobody else may write";
    Error::invalid(reason).at(path.display()).with_help(help)
}

/// Opens a file that only this user can have written, in such a folder, and returns its length.
/// Links are not followed.
pub fn open_file(path: &Path) -> Result<(File, u64)> {
    expect_folder(folder_of(path))?;
    let (file, length) = open(path, Links::Refused).map_err(|error| match error.kind() {
        ErrorKind::Invalid => not_own(path, error.message()),
        _ => error,
    })?;
    expect_file(path, &file)?;
    Ok((file, length))
}

/// Reads a file of at most `limit` bytes that only this user can have written. Returns `None` if
/// the file does not exist.
pub fn read(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    match open_file(path) {
        Ok((file, _)) => read_from(file, limit).map(Some),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the files of a folder whose names end in `.json`, sorted by name. Returns an empty list
/// if the folder does not exist.
///
/// # Errors
///
/// Fails if the folder cannot be read.
pub fn json_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    let is_json = |path: &PathBuf| path.extension().is_some_and(|end| end == "json");
    let mut paths: Vec<PathBuf> = paths.into_iter().filter(is_json).collect();
    paths.sort();
    Ok(paths)
}

/// Writes a file whole or not at all, in a folder that only this user can write. Creates the folder
/// if it is missing.
pub fn write(path: &Path, content: &[u8]) -> Result<()> {
    write_with(path, content, |_| Ok(()))
}

fn write_with(path: &Path, content: &[u8], then: impl FnOnce(&File) -> io::Result<()>) -> Result<()> {
    let folder = folder_of(path);
    create_folder(folder)?;
    expect_folder(folder)?;
    // The file gets a temporary name first, so that no reader sees half of it.
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(content)?;
    then(file.as_file())?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Like [`write`], but after it returns, the content survives a loss of power.
pub fn write_durably(path: &Path, content: &[u8]) -> Result<()> {
    write_with(path, content, |file| file.sync_all())?;
    // The name of the file is part of the folder, which must be synced too.
    #[cfg(unix)]
    File::open(folder_of(path))?.sync_all()?;
    Ok(())
}

/// Locks a file that only this user can have written, and waits while another process or thread has
/// it locked. Creates the file if it is missing. Where the file system has no locks, returns at
/// once.
pub fn lock(path: &Path) -> Result<Lock> {
    let file = file_to_lock(path)?;
    match file.lock() {
        Err(error) if error.kind() != io::ErrorKind::Unsupported => Err(error.into()),
        _ => Ok(Lock(file)),
    }
}

/// Interval for checking for a cancellation.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Like [`lock`], but returns `None` once `cancelled` returns true.
pub fn lock_until(path: &Path, cancelled: &dyn Fn() -> bool) -> Result<Option<Lock>> {
    let file = file_to_lock(path)?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(Lock(file))),
            Err(TryLockError::WouldBlock) if cancelled() => return Ok(None),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOOK_AGAIN),
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                return Ok(Some(Lock(file)));
            }
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
    }
}

/// Opens or creates a file that only this user can have written.
fn file_to_lock(path: &Path) -> Result<File> {
    let folder = folder_of(path);
    create_folder(folder)?;
    expect_folder(folder)?;
    match open_file(path) {
        Ok((file, _)) => Ok(file),
        Err(error) if error.is_not_found() => {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false);
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            Ok(options.open(path)?)
        }
        Err(error) => Err(error),
    }
}

/// A locked file. Dropping it unlocks the file.
#[derive(Debug)]
pub struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing alone is not enough: a process that another thread is starting right now has a
        // copy of the handle, and with it the lock. If unlocking fails, closing must suffice.
        let _ = self.0.unlock();
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| *folder != "").unwrap_or(Path::new("."))
}

/// Opens a secret file. Fails if another user may read it.
pub fn open_secret(path: &Path) -> Result<File> {
    let (file, _) = open(path, Links::Followed)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = file.metadata()?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            let message = format!("others may read it (mode {mode:03o})");
            let help = "`chmod 600` it, or make a new key if others saw it";
            return Err(Error::invalid(message).with_help(help));
        }
    }
    Ok(file)
}

#[cfg(unix)]
fn expect(path: &Path, metadata: &std::fs::Metadata) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let (user, owner, mode) = (rustix::process::geteuid().as_raw(), metadata.uid(), metadata.mode() & 0o7777);
    if owner != user {
        return Err(not_own(path, format!("belongs to user {owner}, and this is user {user}")));
    }
    if mode & 0o022 != 0 {
        return Err(not_own(path, format!("may be written by others (mode {mode:03o})")));
    }
    Ok(())
}

#[cfg(not(unix))]
fn expect(_: &Path, _: &std::fs::Metadata) -> Result<()> {
    Ok(())
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn refused<T: std::fmt::Debug>(result: Result<T>, words: &str) {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.help().is_some_and(|help| help.contains("chmod go-w")), "{error:?}");
        assert!(error.place().is_some() && error.message().contains(words), "no `{words}` in {error}");
    }

    #[test]
    fn what_others_may_write_is_not_believed() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("a/b");
        create_folder(&folder).unwrap();
        create_folder(&folder).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode_bits(), 0o700);
        let file = folder.join("file");
        fs::write(&file, b"abc").unwrap();
        mode(&file, 0o644);
        assert_eq!(open_file(&file).unwrap().1, 3);
        for loose in [0o664, 0o646] {
            mode(&file, loose);
            refused(open_file(&file), "may be written by others");
        }
        mode(&file, 0o600);
        for loose in [0o770, 0o707, 0o1777] {
            mode(&folder, loose);
            refused(open_file(&file), "may be written by others");
            refused(expect_folder(&folder), "may be written by others");
        }
        mode(&folder, 0o755);
        open_file(&file).unwrap();
        let link = folder.join("link");
        symlink(&file, &link).unwrap();
        refused(open_file(&link), "a symbolic link, not a regular file");
        refused(open_file(&folder), "a directory, not a regular file");
        refused(expect_folder(&file), "a regular file, not a folder");
        assert!(expect_folder(&parent.path().join("absent")).unwrap_err().is_not_found());
        // Only the superuser may change a file's owner.
        if chown(&file, Some(65534), None).is_ok() {
            refused(open_file(&file), "belongs to user 65534");
            chown(&folder, Some(65534), None).unwrap();
            refused(expect_folder(&folder), "belongs to user 65534");
        }
    }

    #[test]
    fn content_is_written_whole_and_read_up_to_a_limit() {
        let parent = tempfile::tempdir().unwrap();
        let file = parent.path().join("a/b/file");
        assert_eq!(read(&file, 3).unwrap(), None);
        write(&file, b"abcd").unwrap();
        write(&file, b"abc").unwrap();
        assert_eq!(read(&file, 3).unwrap().as_deref(), Some(&b"abc"[..]));
        let error = read(&file, 2).unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.message().contains("more than 2 bytes"));
        assert_eq!(fs::read_dir(parent.path().join("a/b")).unwrap().count(), 1);
        mode(file.parent().unwrap(), 0o777);
        refused(read(&file, 3), "may be written by others");
        refused(write(&file, b"abc"), "may be written by others");
        assert_eq!(fs::read(&file).unwrap(), b"abc");
    }

    #[test]
    fn a_lock_keeps_others_out_until_it_is_dropped() {
        let parent = tempfile::tempdir().unwrap();
        let place = parent.path().join("a/lock");
        let held = lock(&place).unwrap();
        let other = File::open(&place).unwrap();
        assert!(other.try_lock().is_err());
        assert!(lock_until(&place, &|| true).unwrap().is_none());
        drop(held);
        drop(lock_until(&place, &|| true).unwrap().unwrap());
        other.try_lock().unwrap();
        drop(other);
        write_durably(&place, b"abc").unwrap();
        drop(lock(&place).unwrap());
        assert_eq!(fs::read(&place).unwrap(), b"abc");
        mode(&place, 0o666);
        refused(lock(&place), "may be written by others");
    }

    #[test]
    fn a_secret_that_others_may_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        fs::write(&file, b"abc").unwrap();
        for loose in [0o640, 0o604, 0o620] {
            mode(&file, loose);
            let error = open_secret(&file).unwrap_err();
            assert_eq!(error.to_string(), format!("others may read it (mode {loose:03o})"));
            assert!(error.kind() == ErrorKind::Invalid && error.help().is_some(), "{error:?}");
        }
        mode(&file, 0o400);
        open_secret(&file).unwrap();
    }

    trait ModeBits {
        fn mode_bits(&self) -> u32;
    }

    impl ModeBits for fs::Metadata {
        fn mode_bits(&self) -> u32 {
            self.permissions().mode() & 0o777
        }
    }
}
