//! Cache folders of single tests.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use shardwright::user_cache_directory;
use shardwright_files::private_files;
use tempfile::TempDir;

use crate::program::{Run, shardwright};

/// Folders of a cache whose files follow from a checkpoint, a text or a planner alone, and cost
/// most of a test's time.
const SHARED: [&str; 3] = ["calibrations", "moments", "planners"];

/// A temporary cache folder, deleted on drop.
#[derive(Debug)]
pub struct Cache {
    home: TempDir,
    path: PathBuf,
}

impl Cache {
    /// Creates an empty cache folder.
    ///
    /// # Panics
    /// If it cannot be created.
    pub fn empty() -> Self {
        let home = tempfile::tempdir().expect("a temporary folder");
        Cache { path: home.path().join("shardwright"), home }
    }

    /// Creates a cache folder for one test. Calibrations, moments and the machine code of planners
    /// are those in the cache of the tests. Artefacts, learned limits and measured times are its
    /// own.
    ///
    /// # Panics
    /// If it cannot be created.
    pub fn for_test() -> Self {
        let cache = Cache::empty();
        private_files::create_folder(&cache.path).expect("a folder");
        if let Some(shared) = user_cache_directory() {
            for name in SHARED {
                let folder = shared.join(name);
                private_files::create_folder(&folder).expect("a folder of the cache");
                symlink(folder, cache.path.join(name)).expect("a link");
            }
        }
        cache
    }

    /// Returns the folder, for tests that use the library.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the value of `XDG_CACHE_HOME` with which the program uses this cache.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// Prepares a run of the program with this cache.
    pub fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Run {
        shardwright(arguments).environment("XDG_CACHE_HOME", self.home())
    }

    /// Returns the files with an extension below a folder of the cache, sorted. The program may add
    /// and remove files meanwhile.
    pub fn files(&self, folder: &str, extension: &str) -> Vec<PathBuf> {
        let (mut found, mut folders) = (Vec::new(), vec![self.path.join(folder)]);
        while let Some(next) = folders.pop() {
            for entry in fs::read_dir(next).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|own| own == extension) {
                    found.push(path);
                }
            }
        }
        found.sort_unstable();
        found
    }
}
