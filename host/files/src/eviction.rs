//! The disk space of a cache: its least recently used files are removed first.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::private_files;

/// Most bytes of a cache. A model with billions of weights fits into this several times.
pub const CACHE_BYTES_MAX: u64 = 24 << 30;

/// Folders of a cache whose files can be made again. Small files stay: numbers of revocation lists,
/// measurements, and limits learned from compilers.
pub const EVICTED: [&str; 6] = ["artefacts", "weights", "moments", "tokenizers", "planners", "proofs"];

/// Depth of subfolders that are searched.
const DEPTH: usize = 3;

/// Removes files of [`EVICTED`] folders until they use at most `most` bytes, the least recently
/// used first, and never a file that is `spared`. Folders that other users may write are left
/// alone.
///
/// Errors: a folder cannot be read, or a file cannot be removed.
pub fn trim(cache: &Path, most: u64, spared: impl Fn(&Path) -> bool) -> io::Result<()> {
    let mut files = Vec::new();
    for folder in EVICTED.map(|name| cache.join(name)) {
        if private_files::expect_folder(&folder).is_ok() {
            list(&folder, DEPTH, &mut files)?;
        }
    }
    let mut total: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
    if total <= most {
        return Ok(());
    }
    files.sort();
    for (_, bytes, path) in files.into_iter().filter(|(.., path)| !spared(path)) {
        if total <= most {
            break;
        }
        // Another process may be trimming too.
        missing_is_fine(fs::remove_file(path))?;
        total = total.saturating_sub(bytes);
    }
    Ok(())
}

/// Collects regular files with the time of their last use and their size in bytes.
fn list(folder: &Path, depth: usize, files: &mut Vec<(SystemTime, u64, PathBuf)>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let Some(metadata) = missing_is_fine(entry.metadata())? else { continue };
        if metadata.is_dir() && depth > 0 {
            list(&entry.path(), depth - 1, files)?;
        } else if metadata.is_file() {
            // Many systems record the time of reading once a day only, and some never.
            let written = metadata.modified()?;
            let used = metadata.accessed().map_or(written, |read| read.max(written));
            files.push((used, metadata.len(), entry.path()));
        }
    }
    Ok(())
}

fn missing_is_fine<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, FileTimes};
    use std::time::Duration;

    use super::*;

    /// Writes a file of 100 bytes whose times of writing and reading are this many days ago.
    fn file(path: &Path, written: u64, read: u64) {
        private_files::create_folder(path.parent().unwrap()).unwrap();
        fs::write(path, [0; 100]).unwrap();
        let ago = |days: u64| SystemTime::now() - Duration::from_secs(days * 86_400);
        let times = FileTimes::new().set_modified(ago(written)).set_accessed(ago(read));
        File::options().write(true).open(path).unwrap().set_times(times).unwrap();
    }

    #[test]
    fn the_least_recently_used_files_go_first_in_all_folders() {
        let parent = tempfile::tempdir().unwrap();
        let cache = parent.path().join("cache");
        let at = |name: &str| cache.join(name);
        file(&at("weights/model/old"), 9, 9);
        file(&at("weights/model/read"), 8, 1);
        file(&at("moments/model/first"), 12, 10);
        file(&at("tokenizers/spared"), 9, 9);
        file(&at("planners/second"), 5, 5);
        file(&at("artefacts/new"), 2, 2);
        file(&at("trust/number"), 99, 99);
        file(&at("mine/file"), 99, 99);
        let left = |most| {
            trim(&cache, most, |path| path.ends_with("spared")).unwrap();
            let names = [
                "moments/model/first",
                "weights/model/old",
                "planners/second",
                "artefacts/new",
                "weights/model/read",
            ];
            names.map(|name| at(name).exists())
        };
        assert_eq!(left(600), [true; 5]);
        assert_eq!(left(599), [false, true, true, true, true]);
        assert_eq!(left(499), [false, false, true, true, true]);
        assert_eq!(left(250), [false, false, false, false, true]);
        assert_eq!(left(0), [false; 5]);
        assert!(["tokenizers/spared", "trust/number", "mine/file"].iter().all(|name| at(name).exists()));
        trim(&parent.path().join("absent"), 0, |_| false).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn neither_links_nor_folders_of_others_are_touched() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let parent = tempfile::tempdir().unwrap();
        let (cache, elsewhere) = (parent.path().join("cache"), parent.path().join("elsewhere/file"));
        file(&elsewhere, 9, 9);
        file(&cache.join("proofs/own"), 9, 9);
        symlink(elsewhere.parent().unwrap(), cache.join("proofs/link")).unwrap();
        file(&cache.join("weights/shared"), 9, 9);
        fs::set_permissions(cache.join("weights"), fs::Permissions::from_mode(0o777)).unwrap();
        trim(&cache, 0, |_| false).unwrap();
        assert!(elsewhere.exists() && cache.join("weights/shared").exists());
        assert!(!cache.join("proofs/own").exists());
    }
}
