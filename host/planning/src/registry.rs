//! Planners in directories: every `.wasm` and `.pack` file is a planner, named after the file.
//! Results are not cached between calls.

#[cfg(feature = "compiler")]
use shardwright_trust::Kind;
use shardwright_trust::Trust;
use shardwright_vocabulary::{At, Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::{PlannerError, PlannerErrorKind};
use crate::pack;
use crate::sandbox::Planner;
#[cfg(feature = "compiler")]
use crate::sandbox::{CompiledCache, Sandbox};
use crate::shipped;

/// Maximum files of a directory. A directory with more is not a planner directory.
const FILES: usize = 4096;

/// Form of a planner file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlannerFile {
    /// A WebAssembly component, which this host compiles.
    Wasm,
    Pack,
}

/// A planner file that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannerEntry {
    /// Name: the file name without its extension.
    pub name: String,
    pub path: PathBuf,
    pub file: PlannerFile,
    /// Whether the file was found by its name. The planner must then have that name too.
    pub by_name: bool,
}

/// Directories with planners.
#[derive(Debug, Clone, Default)]
pub struct PlannerRegistry {
    directories: Vec<PathBuf>,
}

impl PlannerRegistry {
    /// Creates a registry without directories.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a directory. A directory that does not exist counts as empty.
    #[must_use]
    pub fn with_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directories.push(directory.into());
        self
    }

    /// Lists the current planners, by name.
    ///
    /// # Errors
    ///
    /// Fails if a directory cannot be read, or if two files have the same name.
    pub fn list(&self) -> Result<Vec<PlannerEntry>> {
        let mut found: BTreeMap<String, PlannerEntry> = BTreeMap::new();
        for directory in &self.directories {
            for path in files(directory)? {
                let file = match path.extension().and_then(|extension| extension.to_str()) {
                    Some("wasm") => PlannerFile::Wasm,
                    Some("pack") => PlannerFile::Pack,
                    _ => continue,
                };
                let Some(name) = path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned) else {
                    continue;
                };
                if let Some(first) = found.get(&name) {
                    let (first, second) = (first.path.display(), path.display());
                    return Err(Error::missing(format!("two planners `{name}`: {first} and {second}"))
                        .with_help("remove or rename one of them"));
                }
                found.insert(name.clone(), PlannerEntry { name, path, file, by_name: true });
            }
        }
        Ok(found.into_values().collect())
    }

    /// Finds the planner with this name.
    ///
    /// # Errors
    ///
    /// Fails if no file has this name, or if the planners cannot be listed. The error does not
    /// name the planner.
    pub fn find(&self, name: &str) -> Result<PlannerEntry> {
        let mut entries = self.list()?;
        if let Some(position) = entries.iter().position(|entry| entry.name == name) {
            return Ok(entries.swap_remove(position));
        }
        let known: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
        let help = match known.as_slice() {
            [] => "the planner directories are empty: give the path of a `.wasm` or `.pack` file".to_owned(),
            known => format!("available planners: {}", known.join(", ")),
        };
        Err(Error::missing("not found in the planner directories").with_help(help))
    }
}

/// Returns the regular files of a directory, sorted by name. Empty if the directory does not exist.
pub(crate) fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        entries => entries.at(directory.display())?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.at(directory.display())?.path();
        if paths.len() >= FILES {
            let message = format!("expected at most {FILES} files, got more");
            return Err(Error::missing(message).at(directory.display()));
        }
        if path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

impl PlannerEntry {
    /// Creates the entry of a planner that is specified by its path.
    pub fn from_path(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let name = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let pack = path.extension().is_some_and(|extension| extension == "pack");
        let file = if pack { PlannerFile::Pack } else { PlannerFile::Wasm };
        Self { name, path, file, by_name: false }
    }

    /// Loads the planner. A `.wasm` file must be signed as the policy requires and is compiled in
    /// `sandbox`, like a pack that ships with this host. Another pack must be signed by a trusted
    /// key and is run by Pulley.
    #[cfg(feature = "compiler")]
    pub fn load(
        &self,
        sandbox: &Sandbox,
        cache: Option<&CompiledCache>,
        trust: &Trust,
    ) -> Result<Planner, PlannerError> {
        self.load_until(sandbox, cache, trust, &|| false)
    }

    /// Like [`load`](Self::load), but stops compiling once `cancelled` returns true.
    #[cfg(feature = "compiler")]
    pub fn load_until(
        &self,
        sandbox: &Sandbox,
        cache: Option<&CompiledCache>,
        trust: &Trust,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Planner, PlannerError> {
        if self.file == PlannerFile::Pack {
            let bytes = self.read_pack()?;
            let planner = match shipped::is_shipped(&bytes) {
                true => shipped::load(&self.name, &bytes, sandbox, cache, cancelled),
                false => self.open_pack(&bytes, trust),
            };
            return self.named(planner?);
        }
        let wasm =
            crate::read_capped(&self.path, sandbox.bounds().wasm_bytes).map_err(|kind| self.error(kind))?;
        let signed = trust.expect_beside(&self.path, Kind::Planner, &wasm);
        let named = signed.and_then(|signed| match signed {
            Some(signed) => trust.expect_name(&self.path, &signed, &self.name),
            None => Ok(()),
        });
        named.map_err(|error| self.error(PlannerErrorKind::Trust(error)))?;
        self.named(sandbox.load_until(&crate::file_name(&self.path), &wasm, cache, cancelled)?)
    }

    /// Opens the planner without compiling, as a host without a compiler must. Supports only packs.
    pub fn open(&self, trust: &Trust) -> Result<Planner, PlannerError> {
        match self.file {
            PlannerFile::Wasm => Err(self.error(PlannerErrorKind::NoCompiler)),
            PlannerFile::Pack => {
                let bytes = self.read_pack()?;
                self.named(match shipped::is_shipped(&bytes) {
                    true => shipped::open(&self.name, &bytes)?,
                    false => self.open_pack(&bytes, trust)?,
                })
            }
        }
    }

    /// Checks that the file of a pack is a pack and is named after its planner, without loading it.
    /// The name in a component is unknown until it is loaded, so components are not checked.
    ///
    /// # Errors
    ///
    /// Fails if the pack cannot be read, is damaged, or contains a planner of another name.
    pub fn expect_pack(&self) -> Result<()> {
        match self.file {
            PlannerFile::Wasm => Ok(()),
            PlannerFile::Pack => {
                let manifest = pack::inspect(&self.read_pack()?).at(self.path.display())?;
                self.expect_name(&manifest.planner)
            }
        }
    }

    /// Refuses a planner that was found by a name other than its own, such as a renamed file.
    fn expect_name(&self, own: &str) -> Result<()> {
        if !self.by_name || own == self.name {
            return Ok(());
        }
        let message = format!("{} contains planner `{own}`, not `{}`", self.path.display(), self.name);
        let help = format!("name the file after its planner `{own}`, or give the path of the file");
        Err(Error::incompatible(message).with_help(help))
    }

    /// Returns the planner unless [`expect_name`](Self::expect_name) refuses it.
    fn named(&self, planner: Planner) -> Result<Planner, PlannerError> {
        self.expect_name(&planner.description().name).map_err(|error| self.error(error.into()))?;
        Ok(planner)
    }

    fn read_pack(&self) -> Result<Vec<u8>, PlannerError> {
        crate::read_capped(&self.path, pack::PACK_BYTES).map_err(|kind| self.error(kind))
    }

    fn open_pack(&self, bytes: &[u8], trust: &Trust) -> Result<Planner, PlannerError> {
        if let Ok(manifest) = pack::inspect(bytes) {
            let revoked = trust.expect_not_revoked(&self.path, manifest.key);
            revoked.map_err(|error| self.error(PlannerErrorKind::Trust(error)))?;
        }
        pack::open(&crate::file_name(&self.path), bytes, trust.keys()).map_err(|error| match error.kind {
            PlannerErrorKind::Other(damaged) if damaged.kind() == ErrorKind::Invalid => {
                let help = format!("get {} again from its source", self.path.display());
                self.error(damaged.with_help(help).into())
            }
            kind => PlannerError { kind, ..error },
        })
    }

    fn error(&self, kind: PlannerErrorKind) -> PlannerError {
        PlannerError { planner: crate::file_name(&self.path), version: None, kind }
    }
}
