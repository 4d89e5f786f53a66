//! Planners in directories: every `.wasm` and `.pack` file is a planner, named after the file.
//! Results are not cached between calls.

#[cfg(feature = "compiler")]
use shardwright_trust::Kind;
use shardwright_trust::Trust;
use shardwright_vocabulary::ErrorKind;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::{PlannerError, PlannerErrorKind};
use crate::pack;
use crate::sandbox::Planner;
#[cfg(feature = "compiler")]
use crate::sandbox::{CompiledCache, Sandbox};

/// Maximum files of a directory. A directory with more is not a planner directory.
const FILES: usize = 4096;

/// Form of a planner file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlannerFile {
    /// A WebAssembly component, which this host compiles.
    Wasm,
    /// A signed pack.
    Pack,
}

/// A planner file that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannerEntry {
    /// Name: the file name without its extension.
    pub name: String,
    pub path: PathBuf,
    pub file: PlannerFile,
}

/// Why a directory could not be read, or a planner was not found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// A directory could not be read.
    #[error("cannot read the planner directory {}: {source}", path.display())]
    Directory { path: PathBuf, source: std::io::Error },
    /// A directory has too many files.
    #[error("{} has more than {FILES} files", path.display())]
    TooManyFiles { path: PathBuf },
    /// Two files have the same name.
    #[error("planner `{name}` is there twice: {} and {}", first.display(), second.display())]
    Duplicate { name: String, first: PathBuf, second: PathBuf },
    /// No planner has the name.
    #[error("no planner `{name}`")]
    Unknown {
        /// The requested name.
        name: String,
        /// All known names.
        known: Vec<String>,
    },
}

impl RegistryError {
    /// Returns advice for a `help:` line.
    pub fn help(&self) -> Option<String> {
        match self {
            RegistryError::Unknown { known, .. } if known.is_empty() => Some(
                "the planner directories are empty; a path to a `.wasm` or `.pack` is taken too".to_owned(),
            ),
            RegistryError::Unknown { known, .. } => Some(format!("there are: {}", known.join(", "))),
            RegistryError::Duplicate { .. } => Some("remove or rename one of them".to_owned()),
            _ => None,
        }
    }
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
    pub fn list(&self) -> Result<Vec<PlannerEntry>, RegistryError> {
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
                    return Err(RegistryError::Duplicate { name, first: first.path.clone(), second: path });
                }
                found.insert(name.clone(), PlannerEntry { name, path, file });
            }
        }
        Ok(found.into_values().collect())
    }

    /// Finds the planner with this name.
    pub fn find(&self, name: &str) -> Result<PlannerEntry, RegistryError> {
        let mut entries = self.list()?;
        match entries.iter().position(|entry| entry.name == name) {
            Some(position) => Ok(entries.swap_remove(position)),
            None => Err(RegistryError::Unknown {
                name: name.to_owned(),
                known: entries.into_iter().map(|entry| entry.name).collect(),
            }),
        }
    }
}

/// Returns the regular files of a directory, sorted by name. Empty if the directory does not exist.
pub(crate) fn files(directory: &Path) -> Result<Vec<PathBuf>, RegistryError> {
    let failed = |source| RegistryError::Directory { path: directory.to_owned(), source };
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        Err(error) => return Err(failed(error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        if paths.len() >= FILES {
            return Err(RegistryError::TooManyFiles { path: directory.to_owned() });
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
        Self { name, path, file: if pack { PlannerFile::Pack } else { PlannerFile::Wasm } }
    }

    /// Loads the planner. A `.wasm` file must be signed as the policy requires and is compiled in
    /// `sandbox`. A pack must be signed by a trusted key and is run by Pulley.
    #[cfg(feature = "compiler")]
    pub fn load(
        &self,
        sandbox: &Sandbox,
        cache: Option<&CompiledCache>,
        trust: &Trust,
    ) -> Result<Planner, PlannerError> {
        if self.file == PlannerFile::Pack {
            return self.open_pack(trust);
        }
        let wasm =
            crate::read_capped(&self.path, sandbox.bounds().wasm_bytes).map_err(|kind| self.error(kind))?;
        let signed = trust.expect_beside(&self.path, Kind::Planner, &wasm);
        let named = signed.and_then(|signed| match signed {
            Some(signed) => trust.expect_name(&self.path, &signed, &self.name),
            None => Ok(()),
        });
        named.map_err(|error| self.error(error.into()))?;
        sandbox.load(&crate::file_name(&self.path), &wasm, cache)
    }

    /// Opens the planner without compiling, as a host without a compiler must. Supports only packs.
    pub fn open(&self, trust: &Trust) -> Result<Planner, PlannerError> {
        match self.file {
            PlannerFile::Wasm => Err(self.error(PlannerErrorKind::NoCompiler)),
            PlannerFile::Pack => self.open_pack(trust),
        }
    }

    fn open_pack(&self, trust: &Trust) -> Result<Planner, PlannerError> {
        let bytes = crate::read_capped(&self.path, pack::PACK_BYTES).map_err(|kind| self.error(kind))?;
        if let Ok(manifest) = pack::inspect(&bytes) {
            let revoked = trust.expect_not_revoked(&self.path, manifest.key);
            revoked.map_err(|error| self.error(error.into()))?;
        }
        pack::open(&crate::file_name(&self.path), &bytes, trust.keys())
    }

    fn error(&self, kind: PlannerErrorKind) -> PlannerError {
        PlannerError { planner: crate::file_name(&self.path), version: None, kind }
    }
}

/// Converts to an error for applications, with a kind that they can act on.
impl From<RegistryError> for shardwright_vocabulary::Error {
    fn from(error: RegistryError) -> Self {
        let help = error.help();
        let kind = match &error {
            RegistryError::Unknown { .. } => ErrorKind::Argument,
            _ => ErrorKind::Missing,
        };
        shardwright_vocabulary::Error::caused_by(kind, error, help)
    }
}
