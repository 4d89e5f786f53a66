//! A folder that appears complete or not at all.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use shardwright_files::output::expect_folder;
use shardwright_vocabulary::{Error, PlainName, Result};
use tempfile::TempDir;

/// Prefix of the name of a folder that is being filled.
const WRITING: &str = ".writing-";

/// A file in it that is locked while its writer is alive. It also distinguishes the folder from
/// other folders with such a name.
const LOCK: &str = ".shardwright-lock";

/// A part of a path in a folder. No other text of a bundle becomes part of a path.
#[derive(Clone, Copy)]
pub(crate) enum Part<'n> {
    /// A constant of this crate, which may have several parts.
    Ours(&'static str),
    /// A checked name.
    Name(&'n PlainName),
}

impl Part<'_> {
    fn as_str(&self) -> &str {
        match self {
            Part::Ours(parts) => parts,
            Part::Name(name) => name.as_str(),
        }
    }
}

/// A folder that is being filled, next to its final place.
pub(crate) struct Folder {
    to: PathBuf,
    building: TempDir,
    lock: fs::File,
}

impl Folder {
    /// Begins a folder. The target must be missing or an empty folder.
    pub(crate) fn create(to: &Path) -> Result<Folder> {
        if expect_folder(to)? && fs::read_dir(to).map_err(failed_at(to))?.next().is_some() {
            let help = "name a folder that is empty or does not exist yet";
            return Err(Error::argument("the folder is not empty").at(to.display()).with_help(help));
        }
        let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        sweep(parent);
        let create = || -> std::io::Result<_> {
            let building = tempfile::Builder::new().prefix(WRITING).tempdir_in(parent)?;
            let lock = fs::File::create_new(building.path().join(LOCK))?;
            // A file system without locks also disables the sweep.
            let _ = lock.try_lock();
            Ok((building, lock))
        };
        let (building, lock) = create().map_err(failed_at(parent))?;
        Ok(Folder { to: to.to_owned(), building, lock })
    }

    /// Returns the path at which to write a file of the folder, and creates its parent folders.
    pub(crate) fn path(&self, parts: &[Part<'_>]) -> Result<PathBuf> {
        let mut path = self.building.path().to_owned();
        path.extend(parts.iter().map(Part::as_str));
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed_at(parent))?;
        }
        Ok(path)
    }

    /// Writes a text file.
    pub(crate) fn write(&self, parts: &[Part<'_>], text: &str) -> Result<()> {
        let path = self.path(parts)?;
        let write = || {
            let mut file = fs::File::create(&path)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()
        };
        write().map_err(failed_at(&path))
    }

    /// Moves the folder to its final place.
    pub(crate) fn keep(self) -> Result<()> {
        let io = || failed_at(&self.to);
        fs::remove_file(self.building.path().join(LOCK)).map_err(io())?;
        drop(self.lock);
        // Temporary folders are private. A delivered folder gets the usual permissions of new
        // folders.
        #[cfg(unix)]
        {
            let usual = self.building.path().join(".mode");
            fs::create_dir(&usual).map_err(io())?;
            let permissions = fs::metadata(&usual).map_err(io())?.permissions();
            fs::remove_dir(&usual).map_err(io())?;
            fs::set_permissions(self.building.path(), permissions).map_err(io())?;
        }
        if self.to.is_dir() {
            fs::remove_dir(&self.to).map_err(io())?;
        }
        fs::rename(self.building.path(), &self.to).map_err(io())?;
        // The folder was renamed, so there is no temporary folder to remove.
        let _ = self.building.keep();
        Ok(())
    }
}

/// Returns a function that makes the error for a file or folder that cannot be written.
fn failed_at(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    move |error| {
        Error::from(error).at(path.display()).or_help("check the path, the permissions and the free space")
    }
}

/// Removes folders left by killed processes: ours, whose lock is free. Failures are not reported,
/// because the folders only cost space.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten().take(ENTRIES_LOOKED_AT) {
        let is_ours = entry.file_name().as_encoded_bytes().starts_with(WRITING.as_bytes());
        if !is_ours || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        // A link in place of the lock is not followed.
        let lock = entry.path().join(LOCK);
        let is_file = fs::symlink_metadata(&lock).is_ok_and(|metadata| metadata.is_file());
        if is_file && fs::File::open(&lock).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Largest number of entries to check for leftovers.
const ENTRIES_LOOKED_AT: usize = 10_000;

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    /// Checks the kind and the text of an error, and that it has help.
    fn is(error: &Error, kind: ErrorKind, words: &str) {
        assert!(error.kind() == kind && error.to_string().contains(words), "{words}: {error:?}");
        assert!(error.help().is_some(), "{error:?}");
    }

    #[test]
    fn what_a_killed_process_left_is_removed_and_nothing_else() {
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| parent.path().join(name);
        fs::create_dir(at(".writing-left")).unwrap();
        fs::write(at(".writing-left").join(LOCK), "").unwrap();
        fs::write(at(".writing-left").join("model.swb"), [0; 100]).unwrap();
        fs::create_dir(at(".writing-of-somebody")).unwrap();
        fs::write(at(".writing-file"), "").unwrap();
        let living = Folder::create(&at("living")).unwrap();
        living.write(&[Part::Ours("a")], "text").unwrap();
        drop(Folder::create(&at("next")).unwrap());
        assert!(!at(".writing-left").exists());
        assert!(at(".writing-of-somebody").exists() && at(".writing-file").exists());
        living.keep().unwrap();
        let names = fs::read_dir(at("living")).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn it_is_there_whole_or_not_at_all() {
        let parent = tempfile::tempdir().unwrap();
        let to = parent.path().join("out");
        let folder = Folder::create(&to).unwrap();
        let name = PlainName::new("b").unwrap();
        folder.write(&[Part::Ours("a"), Part::Name(&name)], "text").unwrap();
        assert!(!to.exists());
        folder.keep().unwrap();
        assert_eq!(fs::read(to.join("a/b")).unwrap(), b"text");
        let error = Folder::create(&to).err().expect("there are files");
        is(&error, ErrorKind::Argument, "out: the folder is not empty");

        drop(Folder::create(&parent.path().join("dropped")).unwrap());
        let names: Vec<_> =
            fs::read_dir(parent.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["out"]);

        let empty = parent.path().join("empty");
        fs::create_dir(&empty).unwrap();
        Folder::create(&empty).unwrap().keep().unwrap();
        let error = Folder::create(&parent.path().join("no/such")).err().expect("no folder");
        is(&error, ErrorKind::Missing, &parent.path().join("no").display().to_string());
        let file = parent.path().join("file");
        fs::write(&file, "mine").unwrap();
        let error = Folder::create(&file).err().expect("a file is no folder");
        is(&error, ErrorKind::Argument, "expected a folder or no file, got a regular file");
        assert_eq!(fs::read(&file).unwrap(), b"mine");
    }
}
