//! The names of a commit's files, and the commits of branches and tags.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use shardwright_vocabulary::Result;

use crate::cache::failed_at;
use crate::id::is_commit;

/// Links a blob under its name in a snapshot.
///
/// # Errors
/// If the link cannot be created.
pub(super) fn link(snapshot: &Path, name: &str, blob: &str) -> Result<()> {
    let place = snapshot.join(name);
    let folder = place.parent().unwrap_or(snapshot);
    fs::create_dir_all(folder).map_err(failed_at(folder))?;
    // Use a relative path, since caches are moved: first out of the folders of the name, then out
    // of the snapshot.
    let up = "../".repeat(name.split('/').count() + 1);
    let target = PathBuf::from(format!("{up}blobs/{blob}"));
    if fs::read_link(&place).is_ok_and(|found| found == target) {
        return Ok(());
    }
    // Rename it into its place, so that another program never finds an incomplete one.
    let beside =
        tempfile::Builder::new().prefix(".link").make_in(folder, |path| point(path, folder, &target));
    let beside = beside.map_err(failed_at(&place))?;
    beside.persist(&place).map(drop).map_err(|error| failed_at(&place)(error.error))
}

#[cfg(unix)]
fn point(path: &Path, _: &Path, target: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, path)
}

/// Creates a hard link, as symbolic links need a privilege on this system.
#[cfg(not(unix))]
fn point(path: &Path, folder: &Path, target: &Path) -> std::io::Result<()> {
    fs::hard_link(folder.join(target), path)
}

/// Records the commit of a branch or a tag.
///
/// # Errors
/// If the file cannot be written.
pub(super) fn refer(repository: &Path, revision: &str, commit: &str) -> Result<()> {
    if is_commit(revision) {
        return Ok(());
    }
    let place = repository.join("refs").join(revision);
    let folder = place.parent().unwrap_or(repository);
    let written = fs::create_dir_all(folder).and_then(|()| {
        // Use the permissions of any new file, since users may share a cache.
        let create = |path: &Path| fs::File::create_new(path);
        let mut file = tempfile::Builder::new().prefix(".ref").make_in(folder, create)?;
        file.write_all(commit.as_bytes())?;
        file.persist(&place).map_err(|error| error.error)
    });
    written.map(drop).map_err(failed_at(&place))
}
