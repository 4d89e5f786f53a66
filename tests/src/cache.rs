//! Cache folders of single tests.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use shardwright::user_cache_directory;
use shardwright_files::own;
use tempfile::TempDir;

/// Folders of a cache whose files follow from a checkpoint, a text or a planner alone, and cost
/// most of a test's time.
const SHARED: [&str; 3] = ["calibrations", "moments", "planners"];

/// A temporary cache folder, deleted on drop. Calibrations, moments and the machine code of
/// planners are those in the cache of the tests. Artefacts, learned limits and measured times are
/// its own.
#[derive(Debug)]
pub struct Cache {
    home: TempDir,
    path: PathBuf,
}

impl Cache {
    /// Creates a cache folder for one test.
    ///
    /// # Panics
    /// If it cannot be created.
    pub fn for_test() -> Self {
        let home = tempfile::tempdir().expect("a temporary folder");
        let cache = Cache { path: home.path().join("shardwright"), home };
        own::create_folder(&cache.path).expect("a folder");
        if let Some(shared) = user_cache_directory() {
            for name in SHARED {
                let folder = shared.join(name);
                own::create_folder(&folder).expect("a folder of the cache");
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
}
