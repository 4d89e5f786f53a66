//! The cache shared by programs that use models of a hub: `models--OWNER--NAME` with `blobs` (files
//! by their hashes), `snapshots/COMMIT` (links to them by their names) and `refs` (commits by the
//! names of branches and tags).

use std::path::{Path, PathBuf};
use std::{fs, io};

use shardwright_vocabulary::{Error, ErrorKind, Result};

use crate::HubId;
use crate::choice::{Listed, named};
use crate::id::is_commit;

/// Maximum size in bytes of a file with a commit.
const REF_BYTES: u64 = 256;

/// Maximum number of files to list in a snapshot.
const FILES: usize = 100_000;

/// A cache in a folder, which may not exist yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    folder: PathBuf,
}

/// A model in a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cached {
    /// The folder with its files, or the GGUF file if the id names one.
    pub path: PathBuf,
    pub commit: String,
}

impl Cache {
    /// Creates a cache in this folder.
    pub fn new(folder: impl Into<PathBuf>) -> Cache {
        Cache { folder: folder.into() }
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Finds a model. Returns `None` if the revision, or the file that the id names, was not
    /// fetched. Does not contact a server.
    ///
    /// # Errors
    /// If the id names several GGUF models of the snapshot, or if the cache cannot be read.
    pub fn find(&self, id: &HubId) -> Result<Option<Cached>> {
        let repository = self.folder.join(id.folder());
        let Some(commit) = commit(&repository, id.revision())? else { return Ok(None) };
        let folder = repository.join("snapshots").join(&commit);
        if !folder.is_dir() {
            return Ok(None);
        }
        let Some(wanted) = id.file.as_deref() else { return Ok(Some(Cached { path: folder, commit })) };
        let names = named(id, &files(&folder)?, wanted)?;
        Ok(names.map(|names| Cached { path: path_of(&folder, &names), commit }))
    }
}

const UNREADABLE: &str = "check the permissions of the cache";

/// Returns a function that makes the error for a file of the cache.
pub(crate) fn failed_at(path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |error| {
        let is_full = error.kind() == io::ErrorKind::StorageFull;
        let error = Error::from(error).at(path.display());
        match is_full {
            true => error.with_help(
                "free space, or name another folder with `--cache` or HF_HUB_CACHE; then pull again, which \
                 resumes",
            ),
            false => error.or_help(UNREADABLE),
        }
    }
}

/// Returns the path for opening a model: a GGUF file if the files are its parts, otherwise the
/// folder.
pub(crate) fn path_of(snapshot: &Path, names: &[String]) -> PathBuf {
    match names.first() {
        Some(first) if names.iter().all(|name| name.ends_with(".gguf")) => snapshot.join(first),
        _ => snapshot.to_owned(),
    }
}

/// Returns the commit of a revision, if the cache has it.
fn commit(repository: &Path, revision: &str) -> Result<Option<String>> {
    if is_commit(revision) {
        return Ok(Some(revision.to_owned()));
    }
    let path = repository.join("refs").join(revision);
    match shardwright_files::read(&path, REF_BYTES) {
        Ok(bytes) => {
            let commit = String::from_utf8_lossy(&bytes).trim().to_owned();
            // The commit becomes part of a path.
            Ok(is_commit(&commit).then_some(commit))
        }
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => {
            let error = Error::caused_by(ErrorKind::Missing, error, Some(UNREADABLE.to_owned()));
            Err(error.at(path.display()))
        }
    }
}

/// Lists the files below a snapshot, whose links are followed.
fn files(snapshot: &Path) -> Result<Vec<Listed>> {
    let mut found = Vec::new();
    let mut folders = vec![(snapshot.to_owned(), String::new())];
    while let Some((folder, prefix)) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(failed_at(&folder))? {
            let entry = entry.map_err(failed_at(&folder))?;
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            // Do not follow links to folders, which could form a cycle.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push((entry.path(), format!("{name}/")));
            } else if let Ok(metadata) = fs::metadata(entry.path()) {
                found.push(Listed { name, bytes: Some(metadata.len()) });
            }
            if found.len() + folders.len() > FILES {
                return Err(failed_at(snapshot)(io::Error::other(format!("more than {FILES} files"))));
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn cached(files: &[&str]) -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().expect("a folder");
        let repository = folder.path().join("models--a--b");
        for (name, text) in
            [("refs/main", COMMIT), ("refs/refs/pr/1", COMMIT), ("refs/bad", "../../models--a--b")]
        {
            write(&repository.join(name), text);
        }
        for name in files {
            write(&repository.join("snapshots").join(COMMIT).join(name), "GGUF");
        }
        let cache = Cache::new(folder.path());
        (folder, cache)
    }

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    }

    #[test]
    fn a_model_is_found_by_branch_commit_and_file() {
        let (folder, cache) = cached(&["m-Q4_0.gguf", "m-Q8_0.gguf", "sub/n-F16.gguf"]);
        let snapshot = folder.path().join("models--a--b/snapshots").join(COMMIT);
        let find = |id: &str| cache.find(&id.parse().expect("an id"));
        let path = |id: &str| find(id).expect(id).map(|found| found.path);
        let by_commit = format!("a/b@{COMMIT}");
        for id in ["a/b", "a/b@main", "a/b@refs/pr/1", &by_commit] {
            assert_eq!(path(id), Some(snapshot.clone()), "{id}");
        }
        assert_eq!(path("a/b:q4_0"), Some(snapshot.join("m-Q4_0.gguf")));
        assert_eq!(path("a/b:sub/n-F16.gguf"), Some(snapshot.join("sub/n-F16.gguf")));
        for absent in
            ["a/c", "a/b@other", "a/b@bad", "a/b:Q5_0", "a/b@0000000000000000000000000000000000000000"]
        {
            assert_eq!(path(absent), None, "{absent}");
        }
        let error = find("a/b:m").expect_err("several");
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert!(error.message().contains("several GGUF models"), "{error}");
        // A folder instead of a reference.
        let error = find("a/b@refs/pr").expect_err("a folder");
        let place = folder.path().join("models--a--b/refs/refs/pr");
        assert_eq!((error.kind(), error.place()), (ErrorKind::Missing, place.to_str()), "{error}");
    }
}
