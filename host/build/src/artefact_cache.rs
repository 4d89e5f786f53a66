//! Cache of artefacts compiled on the machine that runs them, for a checkpoint that is run directly
//! or for a bundle's chain. The next start loads them instead of compiling again.
//!
//! The key of an artefact contains everything it depends on: the work order, the bytes of the
//! shim's library, and the shim's description of its vendor's library and device. An artefact is
//! used only if no other user can have written it and its own hash is right.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use shardwright_bundle::Digest;
use shardwright_files::{eviction, private_files, read_from};
use shardwright_graph::{Graph, Weight};
use shardwright_shims::{Artefact, ArtefactDestination, WorkOrder};
use shardwright_vocabulary::{At, Error, Notice, units};

use crate::{ArtefactStore, NoArtefactStore, PlanOptions, Result, TargetExecutor, artefact_key};

/// Models with more bytes of weights than this are cached for the CPU too. Smaller models are
/// prepared quickly.
const LARGE_BYTES: u64 = 256 << 20;

/// Bytes of a reference, which is the hash of an artefact.
const REFERENCE_BYTES: u64 = 64;

/// The store of artefacts for a model: its cache, or a store that keeps none.
pub struct ArtefactCache {
    kept: Option<KeptArtefacts>,
    not_kept: Option<Notice>,
    without: NoArtefactStore,
}

impl ArtefactCache {
    /// Opens the cache for a model that is compiled for a chip or is large.
    pub fn of(options: &PlanOptions, graph: &Graph) -> Self {
        let (kept, not_kept) = match KeptArtefacts::of(options, graph) {
            Some(Ok(kept)) => (Some(kept), None),
            Some(Err(why)) => (None, Some(why)),
            None => (None, None),
        };
        ArtefactCache { kept, not_kept, without: NoArtefactStore }
    }

    /// Returns the store to compile with.
    pub fn store(&mut self) -> &mut dyn ArtefactStore {
        match &mut self.kept {
            Some(kept) => kept,
            None => &mut self.without,
        }
    }

    /// Checks whether every artefact came from the cache.
    pub fn made_nothing(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.made == 0 && !kept.used.is_empty())
    }

    /// Returns the notice after a run that compiled something, or the reason why artefacts are not
    /// cached. `took` is the time before loading.
    pub fn notice(&self, took: Duration) -> Option<Notice> {
        self.kept.as_ref().and_then(|kept| kept.notice(took)).or_else(|| self.not_kept.clone())
    }
}

/// The cached artefacts of one folder.
struct KeptArtefacts {
    /// The whole cache, whose size has one limit.
    cache: PathBuf,
    /// That limit, in bytes.
    limit: u64,
    folder: PathBuf,
    /// Hashes of the libraries of shims, by path. `None` for shims without a library file.
    libraries: BTreeMap<PathBuf, Option<String>>,
    /// Files used by this run, which does not evict them.
    used: BTreeSet<PathBuf>,
    made: usize,
    made_bytes: u64,
}

impl KeptArtefacts {
    /// Opens the cache for a model that is compiled for a chip or is large. Returns `None` for
    /// other models. Fails with a notice if the folder is not the user's own.
    fn of(options: &PlanOptions, graph: &Graph) -> Option<Result<Self, Notice>> {
        let stored: u64 = graph.weights.iter().map(Weight::bytes).sum();
        let worth = options.soc.is_some() || stored > LARGE_BYTES;
        // Entry points that expose their layer outputs are used for one verification only.
        if !worth || options.taps || options.alter.is_some() {
            return None;
        }
        let cache = options.cache.clone()?;
        let folder = cache.join("artefacts");
        let own = private_files::create_folder(&folder)
            .map_err(Error::from)
            .and_then(|()| private_files::expect_folder(&folder));
        if let Err(error) = own {
            let what = format!("artefacts cannot be cached in {}: {error}", folder.display());
            return Some(Err(Notice::note(what)));
        }
        Some(Ok(KeptArtefacts {
            cache,
            limit: options.cache_bytes_max(),
            folder,
            libraries: BTreeMap::new(),
            used: BTreeSet::new(),
            made: 0,
            made_bytes: 0,
        }))
    }

    /// Returns the notice after a run that compiled something. `took` is the time before loading.
    fn notice(&self, took: Duration) -> Option<Notice> {
        (self.made > 0).then(|| {
            Notice::note(format!(
                "prepared in {}; {} compiled ({}), cached for the next start in {}",
                units::seconds(took.as_secs_f64()),
                units::count(self.made as u64, "shard"),
                units::bytes(self.made_bytes),
                self.folder.display()
            ))
        })
    }

    /// Returns the file that names the artefact of this work order, or `None` if the shim's library
    /// cannot be identified.
    fn reference(&mut self, order: &WorkOrder, executor: &TargetExecutor) -> Result<Option<PathBuf>> {
        let library = executor.instance.shim().path().to_owned();
        let hash =
            self.libraries.entry(library).or_insert_with(|| executor.instance.shim().library_hash().ok());
        let Some(hash) = hash else { return Ok(None) };
        let name = Digest::of(format!("{} in {hash}", artefact_key(order, executor)?).as_bytes());
        Ok(Some(self.folder.join(format!("{name}.ref"))))
    }

    /// Returns the artefact that a reference names, if both files are this user's own and intact.
    fn find(&self, reference: &Path) -> Option<Artefact> {
        let (file, _) = private_files::open_file(reference).ok()?;
        let name = String::from_utf8(read_from(file, REFERENCE_BYTES).ok()?).ok()?;
        let name: Digest = name.parse().ok()?;
        let path = self.folder.join(format!("{name}.swa"));
        let (file, _) = private_files::open_file(&path).ok()?;
        let artefact = Artefact::open(&path).ok()?;
        // Sets the eviction order. Without modification times the order is arbitrary.
        let _ = file.set_modified(SystemTime::now());
        Some(artefact)
    }
}

impl ArtefactStore for KeptArtefacts {
    fn place(&self) -> Result<ArtefactDestination<'_>> {
        Ok(ArtefactDestination::Directory(&self.folder))
    }

    fn recall(&mut self, order: &WorkOrder, executor: &TargetExecutor) -> Result<Option<Artefact>> {
        let Some(reference) = self.reference(order, executor)? else { return Ok(None) };
        let found = self.find(&reference);
        if let Some(artefact) = &found {
            self.used.extend([reference, artefact.path().to_owned()]);
        }
        Ok(found)
    }

    fn keep(&mut self, order: &WorkOrder, executor: &TargetExecutor, made: Artefact) -> Result<Artefact> {
        let Some(reference) = self.reference(order, executor)? else {
            // The artefact is mapped. It is dropped with the chain that loads it.
            fs::remove_file(made.path()).at(made.path().display())?;
            return Ok(made);
        };
        let begun = reference.with_extension(format!("{}.begun", std::process::id()));
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&begun)?;
            let name = made.path().file_stem().unwrap_or_default();
            file.write_all(name.as_encoded_bytes())?;
            fs::rename(&begun, &reference)
        };
        write().at(reference.display())?;
        self.made += 1;
        self.made_bytes = self.made_bytes.saturating_add(made.payload().len() as u64);
        self.used.extend([reference, made.path().to_owned()]);
        eviction::trim(&self.cache, self.limit, |path| self.used.contains(path)).at(self.cache.display())?;
        Ok(made)
    }
}
