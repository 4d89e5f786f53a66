//! Finds shims, and reports a reason for every shim that is not used.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use shardwright_shim_abi::raw::SwEntryFunction;
use shardwright_trust::Trust;
use shardwright_vocabulary::{Error, ErrorClass};

use crate::error::{LoadError, ShimError};
use crate::functions::Opener;
use crate::instance::ShimInstance;
use crate::manifest::{MANIFEST_SUFFIX, Manifest, Search};
use crate::measured_flags::MeasuredFlags;
use crate::shim::Shim;

/// Maximum number of files examined in one directory. A directory with more files is not a
/// directory of shims.
const DIRECTORY_LIMIT: usize = 4096;

/// A shim that is not used.
#[derive(Debug)]
pub struct SkippedShim {
    /// Path of the library, manifest or directory.
    pub path: PathBuf,
    pub error: LoadError,
}

/// The shims of this process.
///
/// ```no_run
/// use shardwright_shims::ShimRegistry;
/// let registry = ShimRegistry::builder().directory("/usr/lib/shardwright").build();
/// for skipped in registry.skipped() {
///     eprintln!("{}", skipped.error);
/// }
/// let decoder = registry.open("cpu", "decoder", &[("threads".into(), "4".into())])?;
/// # Ok::<(), shardwright_shims::ShimError>(())
/// ```
#[derive(Debug, Default)]
pub struct ShimRegistry {
    shims: Vec<Shim>,
    skipped: Vec<SkippedShim>,
    measured: Option<MeasuredFlags>,
}

/// Settings for opening files.
#[derive(Clone, Copy)]
struct Opening<'o> {
    opener: Option<&'o dyn Opener>,
    trust: &'o Trust,
}

#[derive(Clone, Debug)]
enum Source {
    Directory(PathBuf),
    File(PathBuf),
    Described(PathBuf, String),
    Linked(&'static str, SwEntryFunction),
}

/// Collects the places to search. Nothing is opened before [`RegistryBuilder::build`].
#[derive(Clone, Debug, Default)]
pub struct RegistryBuilder {
    sources: Vec<Source>,
    opener: Option<Arc<dyn Opener>>,
    measured: Option<MeasuredFlags>,
    trust: Trust,
}

impl RegistryBuilder {
    /// Adds every manifest and every library in a directory, but not in its subdirectories. A
    /// missing directory is reported.
    pub fn directory(mut self, path: impl Into<PathBuf>) -> Self {
        self.sources.push(Source::Directory(path.into()));
        self
    }

    /// Adds one library, with its manifest next to it, or one manifest.
    pub fn library(mut self, path: impl Into<PathBuf>) -> Self {
        self.sources.push(Source::File(path.into()));
        self
    }

    /// Adds one library with the text of its manifest, for places that can contain only libraries.
    /// The path is used, and the manifest's `library` and `search` are ignored.
    pub fn described(mut self, library: impl Into<PathBuf>, manifest: impl Into<String>) -> Self {
        self.sources.push(Source::Described(library.into(), manifest.into()));
        self
    }

    /// Adds a shim that is linked into the program. `entry` is the result of its crate's
    /// `shim_entry()`, `name` is for messages.
    pub fn linked(mut self, name: &'static str, entry: SwEntryFunction) -> Self {
        self.sources.push(Source::Linked(name, entry));
        self
    }

    /// Makes `opener` open every library just long enough to read its description, instead of
    /// opening it in this process. A library is opened here only by [`ShimRegistry::open`], with an
    /// instance.
    pub fn isolated(mut self, opener: impl Opener + 'static) -> Self {
        self.opener = Some(Arc::new(opener));
        self
    }

    /// Uses a shim of a directory or file only if its manifest is signed as the rules require.
    /// Shims that are linked in, or [described](Self::described) by the program, are part of the
    /// program.
    pub fn trusting(mut self, trust: Trust) -> Self {
        self.trust = trust;
        self
    }

    /// Keeps values of load-time flags that shims find by measuring in the private `folder`, and
    /// passes them to later loads. By default each process measures again.
    pub fn measured_kept_in(mut self, folder: impl Into<PathBuf>) -> Self {
        self.measured = Some(MeasuredFlags::kept_in(folder));
        self
    }

    /// Opens the shims found, in the order in which places were added. Of two shims with the same
    /// name the first is used.
    pub fn build(self) -> ShimRegistry {
        let mut registry = ShimRegistry { measured: self.measured, ..ShimRegistry::default() };
        let mut seen = HashSet::new();
        let opening = Opening { opener: self.opener.as_deref(), trust: &self.trust };
        for source in self.sources {
            match source {
                Source::Directory(path) => registry.search(&path, &mut seen, opening),
                Source::File(path) => {
                    registry.add_file(&path, &mut seen, opening);
                }
                Source::Described(path, manifest) => {
                    let found = match path.exists() {
                        true => Manifest::parse(&path, manifest.as_bytes()),
                        false => Err(LoadError::not_found(&path)),
                    };
                    let found = found.and_then(|manifest| opened(path.clone(), manifest, opening.opener));
                    seen.insert(canonical(&path));
                    registry.add(path, found);
                }
                Source::Linked(name, entry) => {
                    let path = PathBuf::from(format!("<linked {name}>"));
                    let found = Shim::linked(name, entry);
                    registry.add(path, found);
                }
            }
        }
        registry
    }
}

/// Lists the manifests in a directory that are signed as the rules require, by name of their files.
/// Does not open libraries. A missing directory has no manifests.
pub fn manifests_in(directory: &Path, trust: &Trust) -> Vec<Result<Manifest, LoadError>> {
    let mut files = match list(directory) {
        Ok(files) => files,
        Err(error) if error.reason() == "not-found" => return Vec::new(),
        Err(error) => return vec![Err(error)],
    };
    files.sort();
    let is_manifest = |path: &&PathBuf| path.to_string_lossy().ends_with(MANIFEST_SUFFIX);
    files.iter().filter(is_manifest).map(|path| Manifest::read_trusting(path, trust)).collect()
}

impl ShimRegistry {
    /// Returns a builder without places to search.
    pub fn builder() -> RegistryBuilder {
        RegistryBuilder::default()
    }

    /// Returns every usable shim, in the order found.
    pub fn shims(&self) -> &[Shim] {
        &self.shims
    }

    /// Returns every shim that is not used, with its reason.
    pub fn skipped(&self) -> &[SkippedShim] {
        &self.skipped
    }

    /// Removes and returns the list of skipped shims, for a report that owns it.
    pub fn take_skipped(&mut self) -> Vec<SkippedShim> {
        std::mem::take(&mut self.skipped)
    }

    /// Returns the shim with that name.
    pub fn get(&self, name: &str) -> Option<&Shim> {
        self.shims.iter().find(|shim| shim.name() == name)
    }

    /// Opens an instance of the shim `name` under the name `instance`. One shim may be open under
    /// many names.
    pub fn open(
        &self,
        name: &str,
        instance: &str,
        options: &[(String, String)],
    ) -> Result<ShimInstance, ShimError> {
        Ok(self.known(name)?.open(instance, options)?.measuring(self.measured.clone()))
    }

    /// Like [`ShimRegistry::open`], but opens the instance elsewhere, for example in a worker
    /// process. A crash of the shim then ends that process instead of this one.
    pub fn open_isolated(
        &self,
        name: &str,
        instance: &str,
        options: &[(String, String)],
        opener: &dyn Opener,
    ) -> Result<ShimInstance, ShimError> {
        let opened = self.known(name)?.open_isolated(instance, options, opener)?;
        Ok(opened.measuring(self.measured.clone()))
    }

    fn known(&self, name: &str) -> Result<&Shim, ShimError> {
        self.get(name).ok_or_else(|| self.missing(name))
    }

    /// Creates the error for a missing name. It lists the shims found and the skipped ones, which
    /// may include the requested one. If a shim was skipped because the system had too little of a
    /// resource, the error is about that.
    pub fn missing(&self, name: &str) -> ShimError {
        if let Some(skipped) = self.skipped.iter().find(|skipped| skipped.error.is_of_shortage()) {
            let error = skipped.error.error.clone();
            let error = error.at(format_args!("shim `{name}` could not be opened"));
            return ShimError::Other(ErrorClass::Internal, error);
        }
        let known: Vec<&str> = self.shims.iter().map(Shim::name).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let skipped = self.skipped.iter().map(|skipped| format!("; skipped: {}", skipped.error));
        let skipped: String = skipped.collect();
        let error = Error::missing(format!("no shim is named `{name}`; found: {known}{skipped}")).with_help(
            "set its directory with `--shims DIR` or SHARDWRIGHT_SHIM_PATH, or put it in `shims/` next to \
             the program; `shardwright shim list` lists the shims found",
        );
        ShimError::Other(ErrorClass::InvalidArgument, error)
    }

    fn add(&mut self, path: PathBuf, found: Result<Shim, LoadError>) {
        let found = found.and_then(|shim| match self.get(shim.name()) {
            None => Ok(shim),
            Some(_) => Err(LoadError::duplicate(&path, shim.name())),
        });
        match found {
            Ok(shim) => {
                tracing::debug!(shim = shim.name(), path = %path.display(), "shim loaded");
                self.shims.push(shim);
            }
            Err(error) => {
                // The code that lists or opens shims reports it.
                tracing::info!(path = %path.display(), reason = error.reason(), "shim skipped: {error}");
                self.skipped.push(SkippedShim { path, error });
            }
        }
    }

    fn search(&mut self, directory: &Path, seen: &mut HashSet<PathBuf>, opening: Opening<'_>) {
        let mut files = match list(directory) {
            Ok(files) => files,
            Err(error) => return self.add(directory.to_owned(), Err(error)),
        };
        files.sort();
        let is_manifest = |path: &PathBuf| path.to_string_lossy().ends_with(MANIFEST_SUFFIX);
        let manifests: Vec<&PathBuf> = files.iter().filter(|path| is_manifest(path)).collect();
        let mut unread: Vec<OsString> = Vec::new();
        for path in &manifests {
            if !self.add_file(path, seen, opening) {
                unread.extend(path.file_name().map(ToOwned::to_owned));
            }
        }
        // A manifest that cannot be read was already reported. It may name the library with this
        // system's prefix.
        let of_unread = |manifest: &Path| {
            let name = manifest.file_name().unwrap_or_default().to_string_lossy();
            let plain = name.strip_prefix(std::env::consts::DLL_PREFIX).unwrap_or(&name);
            unread.iter().any(|unread| *unread == plain)
        };
        let is_library = |path: &&PathBuf| path.to_string_lossy().ends_with(std::env::consts::DLL_SUFFIX);
        for library in files.iter().filter(is_library) {
            // A library named by a manifest is in `seen`. A library whose own manifest failed was
            // reported with it.
            let manifest = Manifest::path_for(library);
            let reported = manifests.contains(&&manifest) || of_unread(&manifest);
            if !reported && !seen.contains(&canonical(library)) {
                self.add(library.clone(), Err(no_manifest(library, &manifest)));
            }
        }
    }

    /// Adds a library or manifest. Returns whether the manifest could be read, so that its library
    /// is known.
    fn add_file(&mut self, path: &Path, seen: &mut HashSet<PathBuf>, opening: Opening<'_>) -> bool {
        let manifest = match path.to_string_lossy().ends_with(MANIFEST_SUFFIX) {
            true => path.to_owned(),
            false => Manifest::path_for(path),
        };
        if !seen.insert(canonical(&manifest)) {
            return true;
        }
        let read = read(path, &manifest, opening.trust);
        let is_read = read.is_ok();
        let found = read.and_then(|(read, library)| {
            seen.insert(canonical(&library));
            opened(library, read, opening.opener)
        });
        self.add(path.to_owned(), found);
        is_read
    }
}

/// Opens the shim of a library, described by `opener` or in this process.
fn opened(library: PathBuf, manifest: Manifest, opener: Option<&dyn Opener>) -> Result<Shim, LoadError> {
    match opener {
        Some(opener) => {
            let facts = opener.facts(&library, manifest.sha256.as_deref())?;
            Shim::described(library, Some(manifest), facts, None)
        }
        None => Shim::of_manifest(library, manifest),
    }
}

fn canonical(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

fn list(directory: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => LoadError::not_found(directory),
        _ => LoadError::unreadable(directory, error),
    };
    std::fs::read_dir(directory)
        .map_err(failed)?
        .take(DIRECTORY_LIMIT)
        .map(|entry| entry.map(|entry| entry.path()).map_err(failed))
        .collect()
}

fn no_manifest(library: &Path, manifest: &Path) -> LoadError {
    LoadError::new("no-manifest", library, format!("the library has no manifest (`{}`)", manifest.display()))
}

/// Reads the manifest and finds its library, without hashing or opening it.
fn read(asked: &Path, manifest_path: &Path, trust: &Trust) -> Result<(Manifest, PathBuf), LoadError> {
    if !asked.exists() {
        return Err(LoadError::not_found(asked));
    }
    if !manifest_path.exists() {
        return Err(no_manifest(asked, manifest_path));
    }
    let manifest = Manifest::read_trusting(manifest_path, trust)?;
    let library = match manifest.search {
        Search::System => return Ok((manifest.clone(), PathBuf::from(manifest.library_name()))),
        Search::Beside => manifest_path.with_file_name(manifest.library_name()),
    };
    if !library.exists() {
        return Err(LoadError::not_found(&library));
    }
    Ok((manifest, library))
}
