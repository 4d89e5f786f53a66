//! Models of which only `config.json` is present, to plan in this process without a vendor's
//! library.

use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::fs;
use std::path::{Path, PathBuf};

use shardwright::{OpenOptions, SearchPath};
use shardwright_test_checkpoints::Spec;
use tempfile::TempDir;

use crate::cache::Cache;
use crate::program;

/// The `config.json` of a model, a folder of shims and a cache, deleted on drop.
#[derive(Debug)]
pub struct Outline {
    folder: TempDir,
    cache: Cache,
}

impl Outline {
    /// Writes `config.json` and copies the CPU shim. Shims of vendors are left out, because their
    /// libraries would estimate a large model for minutes.
    ///
    /// # Panics
    /// If the CPU shim was not built.
    pub fn of(spec: &Spec) -> Outline {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let outline = Outline { folder, cache: Cache::for_test() };
        for folder in [outline.path(), outline.shims()] {
            fs::create_dir(folder).expect("created");
        }
        fs::write(outline.path().join("config.json"), spec.config().to_string()).expect("written");
        for suffix in [DLL_SUFFIX, ".shim.json"] {
            let name = format!("{DLL_PREFIX}shardwright_shim_cpu{suffix}");
            let (from, to) = (program::folder().join("shims").join(&name), outline.shims().join(&name));
            fs::copy(&from, to)
                .unwrap_or_else(|error| panic!("{}: {error}; `cargo xtask build` builds it", from.display()));
        }
        outline
    }

    /// Returns the folder with `config.json`.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("model")
    }

    /// Returns the cache folder.
    pub fn cache(&self) -> &Path {
        self.cache.path()
    }

    /// Returns the program's search path with the CPU shim alone.
    pub fn search_path(&self) -> SearchPath {
        SearchPath { shims: vec![self.shims()], ..program::search_path() }
    }

    /// Returns options to plan for a chip.
    pub fn options(&self, soc: &str) -> OpenOptions {
        OpenOptions::new().search_path(self.search_path()).cache_directory(self.cache()).soc(soc)
    }

    fn shims(&self) -> PathBuf {
        self.folder.path().join("shims")
    }
}
