//! Where a model comes from, and how it is opened.

use std::fs::File;
use std::path::{Path, PathBuf};

use shardwright::{BundleOptions, FallbackPolicy, Model, Policy, SearchPath, Section, Watch};

use crate::{Error, ErrorKind, Result};

/// Place of a model.
#[derive(Clone, Debug)]
pub enum Source {
    /// Path of a bundle, in a directory, packed or an entry `archive!/entry`, or of a checkpoint.
    Path {
        /// The path.
        path: PathBuf,
    },
    /// All volumes of a packed bundle, in any order. Each is a file or an entry `archive!/entry`.
    Volumes {
        /// The paths.
        paths: Vec<PathBuf>,
    },
    /// A packed bundle within an open file, or all its volumes, in any order.
    Sections {
        /// The parts of the files.
        sections: Vec<FileSection>,
    },
}

impl Source {
    /// Returns the source of a path.
    pub fn path(path: impl Into<PathBuf>) -> Source {
        Source::Path { path: path.into() }
    }
}

/// A part of an open file, such as an asset of an app.
#[derive(Clone, Debug)]
pub struct FileSection {
    section: Section,
}

impl FileSection {
    /// Returns `length` bytes of `file` from `offset` on, or all bytes from `offset` on without a
    /// length. `name` is for messages.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Missing`] if the size of the file cannot be read, [`ErrorKind::Argument`] if
    /// the file ends before.
    pub fn new(name: impl Into<PathBuf>, file: File, offset: u64, length: Option<u64>) -> Result<Self> {
        let name = name.into();
        let whole = Section::whole(&name, file).map_err(|error| {
            let what = format!("{}: {error}", name.display());
            Error::new(
                ErrorKind::Missing,
                what,
                "pass a descriptor of a regular file that is open for reading",
            )
        })?;
        let bytes = whole.length();
        let length = length.unwrap_or(bytes.saturating_sub(offset));
        let section = whole.part(&name, offset, length).ok_or_else(|| {
            let what =
                format!("{length} bytes at offset {offset} are not within the {bytes} bytes of the file");
            Error::argument(what, "pass the offset and the length of the asset in bytes")
        })?;
        Ok(FileSection { section })
    }
}

/// A name with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedValue {
    /// The name.
    pub name: String,
    /// The value.
    pub value: String,
}

/// Handling of files without a signature of a trusted key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Signatures {
    /// The file is used, and signatures are not checked.
    #[default]
    Off,
    /// The file is used, with a notice.
    Warn,
    /// The file is refused before parsing.
    Require,
}

/// Which chains of a bundle may run if the first one cannot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// Any later chain, when the bundle is opened and when a device is lost during a session.
    #[default]
    Any,
    /// Any later chain when the bundle is opened. In a session, the loss of a device is an error.
    AtOpening,
    /// Only chains with these names, at both times.
    Only {
        /// Names of chains, including the chains of towers.
        names: Vec<String>,
    },
    /// None. Every fallback is an error, as under `strict`.
    Refuse,
}

/// Which work of shims runs in a separate process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Queries and compiling, if the worker program is found.
    #[default]
    Automatic,
    /// None.
    Off,
    /// Queries and compiling. A missing worker program is an error.
    Compile,
    /// All work. A missing worker program is an error.
    Process,
}

/// Place for proofs that files of a bundle were verified, so that a later start does not hash them
/// again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Proofs {
    /// `proofs` in the cache directory of the user. An app on Android does not have one.
    #[default]
    Cache,
    /// No proofs.
    Nowhere,
    /// A directory that only this user can write.
    Directory {
        /// The directory.
        path: PathBuf,
    },
}

/// A chip that overrides the one that shims find, as in its profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chip {
    /// Name of the profile.
    pub name: String,
    /// Name of the shim that supports the chip, if it is known.
    pub shim: Option<String>,
    /// Facts of the chip that its shim reads.
    pub facts: Vec<NamedValue>,
}

/// A shim that is not in a directory of shims, such as a library of an Android package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShimLibrary {
    /// Path of the library.
    pub library: PathBuf,
    /// Text of its manifest.
    pub manifest: String,
}

/// Options to open a model. The default opens a bundle without a limit of memory, checks no
/// signatures and allows fallbacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Most bytes of the model and its sessions together, without mapped tables. Default: no limit.
    /// For a checkpoint, it limits the artefacts and the KV cache of the plan.
    pub memory_budget: Option<u64>,
    /// Number of threads of the CPU engine. Default: the number of cores.
    pub threads: Option<u32>,
    /// Whether every fallback, and every part of the model without effect, is an error.
    pub strict: bool,
    /// Which work of shims runs in a separate process.
    pub isolation: Isolation,
    /// Public keys that are trusted, in hexadecimal.
    pub trust_keys: Vec<String>,
    /// Handling of files without a signature of a trusted key.
    pub signatures: Signatures,
    /// Paths of lists of revoked keys and releases.
    pub revocations: Vec<PathBuf>,
    /// Name that a trusted key must have signed the bundle under.
    pub expected_name: Option<String>,
    /// Chip to use instead of the one that shims find. For a checkpoint, the name of the chip to
    /// plan for.
    pub chip: Option<Chip>,
    /// Flags of shims, such as `power`.
    pub flags: Vec<NamedValue>,
    /// Chains that may run in place of the first. Bundles only.
    pub fallback: Fallback,
    /// Whether every byte of a bundle is verified before any of it is used. Bundles only.
    pub verify_all: bool,
    /// Place for proofs of verification. Bundles only.
    pub proofs: Proofs,
    /// Directories of shims, searched before the standard ones.
    pub shim_directories: Vec<PathBuf>,
    /// Single shims, used before the ones of directories.
    pub shim_libraries: Vec<ShimLibrary>,
    /// Directories of planners, searched before the standard ones.
    pub planner_directories: Vec<PathBuf>,
    /// Directories of profiles, searched before the standard ones.
    pub profile_directories: Vec<PathBuf>,
    /// Context capacity in tokens. Checkpoints only: the context of a bundle is fixed.
    pub context: Option<u32>,
}

impl OpenOptions {
    /// Opens `source`: a bundle, or with the feature `build` a checkpoint.
    pub(crate) fn open(&self, source: &Source, watch: &mut dyn Watch) -> Result<Model> {
        let source = match source {
            Source::Path { path } if !shardwright::is_bundle(path) => return self.open_other(path, watch),
            Source::Path { path } => shardwright::Source::Path(path.clone()),
            Source::Volumes { paths } => shardwright::Source::Volumes(paths.clone()),
            Source::Sections { sections } => {
                let sections = sections.iter().map(|part| part.section.clone());
                shardwright::Source::Sections(sections.collect())
            }
        };
        if self.context.is_some() {
            return Err(Error::argument(
                "the context of a bundle cannot be changed",
                "leave `context` out, or compile the bundle with another context",
            ));
        }
        Ok(self.bundle_options().open_watched(source, watch)?)
    }

    /// Opens a path that is not a bundle.
    #[cfg(feature = "build")]
    fn open_other(&self, path: &Path, watch: &mut dyn Watch) -> Result<Model> {
        let usual = OpenOptions::default();
        let unused = [
            ("fallback", self.fallback != usual.fallback),
            ("verify_all", self.verify_all),
            ("proofs", self.proofs != usual.proofs),
            ("chip.facts", self.chip.as_ref().is_some_and(|chip| !chip.facts.is_empty())),
        ];
        if let Some((name, _)) = unused.iter().find(|(_, is_set)| *is_set) {
            let what = format!("`{name}` has no effect on a checkpoint");
            return Err(Error::argument(what, "leave it out, or compile a bundle and open that"));
        }
        let mut options = shardwright::OpenOptions::new()
            .search_path(self.search_path())
            .isolation(self.host_isolation())
            .strict(self.strict)
            .signatures(self.policy());
        if let Some(threads) = self.threads {
            options = options.threads(threads);
        }
        if let Some(bytes) = self.memory_budget {
            options = options.memory(bytes);
        }
        if let Some(tokens) = self.context {
            options = options.context(tokens);
        }
        if let Some(chip) = &self.chip {
            options = options.soc(&chip.name);
        }
        if let Some(name) = &self.expected_name {
            options = options.expect(name);
        }
        options = self.flags.iter().fold(options, |options, flag| options.flag(&flag.name, &flag.value));
        options = self.trust_keys.iter().fold(options, shardwright::OpenOptions::trust_key);
        options = self.revocations.iter().fold(options, shardwright::OpenOptions::revocations);
        Ok(options.open_watched(path, watch)?)
    }

    /// Reports why a path is not a bundle.
    #[cfg(not(feature = "build"))]
    fn open_other(&self, path: &Path, watch: &mut dyn Watch) -> Result<Model> {
        let error = match self.bundle_options().open_watched(path, watch) {
            Ok(model) => return Ok(model),
            Err(error) => Error::from(error),
        };
        if !path.join("config.json").is_file() && path.extension().is_none_or(|kind| kind != "gguf") {
            return Err(error);
        }
        let what = format!("{}: this library opens bundles, not checkpoints", path.display());
        Err(Error::new(ErrorKind::Unsupported, what, "compile a bundle with `shardwright compile`"))
    }

    fn bundle_options(&self) -> BundleOptions {
        let mut options = BundleOptions::new()
            .search_path(self.search_path())
            .isolation(self.host_isolation())
            .signatures(self.policy())
            .fallback(match &self.fallback {
                Fallback::Any => FallbackPolicy::Allow,
                Fallback::AtOpening => FallbackPolicy::AtOpening,
                Fallback::Only { names } => FallbackPolicy::Only(names.clone()),
                Fallback::Refuse => FallbackPolicy::Refuse,
            })
            .strict(self.strict || self.fallback == Fallback::Refuse)
            .verify_all(self.verify_all);
        options = match &self.proofs {
            Proofs::Cache => options,
            Proofs::Nowhere => options.remember_no_proofs(),
            Proofs::Directory { path } => options.remember_proofs(path),
        };
        if let Some(threads) = self.threads {
            options = options.threads(threads);
        }
        if let Some(bytes) = self.memory_budget {
            options = options.memory_budget(bytes);
        }
        if let Some(name) = &self.expected_name {
            options = options.expect(name);
        }
        if let Some(Chip { name, shim, facts }) = &self.chip {
            let facts = facts.iter().map(|fact| (fact.name.clone(), fact.value.clone())).collect();
            let (name, shim) = (name.clone(), shim.clone());
            options = options.chip(shardwright::Chip { name, aliases: Vec::new(), facts, shim });
        }
        options = self.flags.iter().fold(options, |options, flag| options.flag(&flag.name, &flag.value));
        options = self.trust_keys.iter().fold(options, BundleOptions::trust_key);
        self.revocations.iter().fold(options, BundleOptions::revocations)
    }

    fn search_path(&self) -> SearchPath {
        let usual = SearchPath::standard();
        let libraries = self.shim_libraries.iter().map(|shim| (shim.library.clone(), shim.manifest.clone()));
        SearchPath {
            shims: [&self.shim_directories[..], &usual.shims].concat(),
            libraries: libraries.chain(usual.libraries).collect(),
            planners: [&self.planner_directories[..], &usual.planners].concat(),
            profiles: [&self.profile_directories[..], &usual.profiles].concat(),
        }
    }

    fn policy(&self) -> Policy {
        match self.signatures {
            Signatures::Off => Policy::Off,
            Signatures::Warn => Policy::Warn,
            Signatures::Require => Policy::Require,
        }
    }

    fn host_isolation(&self) -> shardwright::Isolation {
        match self.isolation {
            Isolation::Automatic => shardwright::Isolation::Automatic,
            Isolation::Off => shardwright::Isolation::Off,
            Isolation::Compile => shardwright::Isolation::Compile,
            Isolation::Process => shardwright::Isolation::Process,
        }
    }
}
