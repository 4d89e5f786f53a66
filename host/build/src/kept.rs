//! What was compiled for a checkpoint that is run, kept in the user's cache: the next start loads
//! it instead of compiling again.
//!
//! A file is found by everything it follows from: the work order, the bytes of the shim's library,
//! what the shim says of its vendor's and of the device. It is believed only where nobody but this
//! user can have written it, and its own hash is right.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use shardwright_bundle::Digest;
use shardwright_files::{own, read_from};
use shardwright_graph::{Graph, Weight};
use shardwright_shims::{Artefact, Place, WorkOrder};
use shardwright_vocabulary::Notice;

use crate::{ArtefactStore, BuildError, PlanOptions, TargetExecutor, artefact_key};

/// Models whose weights have more are kept for the CPU too, on which a smaller one is prepared in a
/// moment.
const LARGE_BYTES: u64 = 256 << 20;

/// Most bytes kept: of those that were used longest ago, files go until no more are there. A model
/// of billions of weights fits some times.
const KEPT_BYTES_MAX: u64 = 24 << 30;

/// Most bytes of a library that is hashed.
const LIBRARY_BYTES_MAX: u64 = 1 << 30;

/// Bytes of a reference: the hash of an artefact.
const REFERENCE_BYTES: u64 = 64;

/// The artefacts kept in one folder.
pub struct KeptArtefacts {
    folder: PathBuf,
    /// Hashes of the libraries of shims, by path; none of those that are no file.
    libraries: BTreeMap<PathBuf, Option<String>>,
    /// Names of files of this run, which are not evicted by it.
    used: BTreeSet<PathBuf>,
    made: usize,
    made_bytes: u64,
}

impl KeptArtefacts {
    /// For a model that is worth it: one that is compiled for a chip, or a large one. Where the
    /// folder is not the user's own, why nothing is kept.
    pub fn of(options: &PlanOptions, graph: &Graph) -> Option<Result<Self, Notice>> {
        let stored: u64 = graph.weights.iter().map(Weight::bytes).sum();
        let worth = options.soc.is_some() || stored > LARGE_BYTES;
        // Entry points that show their layers are for one verification.
        if !worth || options.taps || options.alter.is_some() {
            return None;
        }
        let folder = options.cache.as_ref()?.join("artefacts");
        let own = own::create_folder(&folder).map_err(Into::into).and_then(|()| own::expect_folder(&folder));
        if let Err(error) = own {
            let what =
                format!("what is compiled is not kept for the next start in {}: {error}", folder.display());
            return Some(Err(Notice::note(what)));
        }
        Some(Ok(KeptArtefacts {
            folder,
            libraries: BTreeMap::new(),
            used: BTreeSet::new(),
            made: 0,
            made_bytes: 0,
        }))
    }

    /// What is to be said after a run in which something was made, and which took that long before
    /// anything was loaded.
    pub fn told(&self, took: Duration) -> Option<Notice> {
        (self.made > 0).then(|| {
            Notice::note(format!(
                "prepared in {:.1} s; {} compiled shards, {:.1} MiB, are kept in {}: the next start takes them from there",
                took.as_secs_f64(),
                self.made,
                self.made_bytes as f64 / f64::from(1 << 20),
                self.folder.display()
            ))
        })
    }

    /// The file that says which artefact was made of this; none where the shim's library cannot be
    /// told from another.
    fn reference(
        &mut self,
        order: &WorkOrder,
        executor: &TargetExecutor,
    ) -> Result<Option<PathBuf>, BuildError> {
        let library = executor.instance.shim().path().to_owned();
        let hash = self.libraries.entry(library).or_insert_with_key(|path| {
            let read =
                File::open(path).map_err(Into::into).and_then(|file| read_from(file, LIBRARY_BYTES_MAX));
            read.ok().map(|bytes| Digest::of(&bytes).to_string())
        });
        let Some(hash) = hash else { return Ok(None) };
        let name = Digest::of(format!("{} in {hash}", artefact_key(order, executor)?).as_bytes());
        Ok(Some(self.folder.join(format!("{name}.ref"))))
    }

    /// The artefact that a reference names, if all of it is this user's and whole.
    fn held(&self, reference: &Path) -> Option<Artefact> {
        let (file, _) = own::open_file(reference).ok()?;
        let name = String::from_utf8(read_from(file, REFERENCE_BYTES).ok()?).ok()?;
        let name: Digest = name.parse().ok()?;
        let path = self.folder.join(format!("{name}.swa"));
        let (file, _) = own::open_file(&path).ok()?;
        let artefact = Artefact::open(&path).ok()?;
        // The order of eviction; a file system that keeps no times evicts in another.
        let _ = file.set_modified(SystemTime::now());
        Some(artefact)
    }

    /// Removes what was used longest ago until no more than the cap is left.
    fn evict(&self) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            match entry.metadata() {
                Ok(metadata) => files.push((metadata.modified()?, metadata.len(), entry.path())),
                // Another program evicts too.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        files.sort();
        let mut total: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, bytes, path) in files.into_iter().filter(|(.., path)| !self.used.contains(path)) {
            if total <= KEPT_BYTES_MAX {
                break;
            }
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            total = total.saturating_sub(bytes);
        }
        Ok(())
    }
}

impl ArtefactStore for KeptArtefacts {
    fn place(&self) -> Result<Place<'_>, BuildError> {
        Ok(Place::Directory(&self.folder))
    }

    fn recall(
        &mut self,
        order: &WorkOrder,
        executor: &TargetExecutor,
    ) -> Result<Option<Artefact>, BuildError> {
        let Some(reference) = self.reference(order, executor)? else { return Ok(None) };
        let held = self.held(&reference);
        if let Some(artefact) = &held {
            self.used.extend([reference, artefact.path().to_owned()]);
        }
        Ok(held)
    }

    fn keep(
        &mut self,
        order: &WorkOrder,
        executor: &TargetExecutor,
        made: Artefact,
    ) -> Result<Artefact, BuildError> {
        let failed = |source: io::Error| BuildError::Store {
            shard: made.path().display().to_string(),
            reason: format!("it cannot be kept: {source}"),
        };
        let Some(reference) = self.reference(order, executor)? else {
            // It is mapped, and gone with the chain that loads it.
            fs::remove_file(made.path()).map_err(failed)?;
            return Ok(made);
        };
        let begun = reference.with_extension(format!("{}.begun", std::process::id()));
        let write = || -> io::Result<()> {
            let mut file = File::create(&begun)?;
            let name = made.path().file_stem().unwrap_or_default();
            file.write_all(name.as_encoded_bytes())?;
            fs::rename(&begun, &reference)
        };
        write().map_err(failed)?;
        self.made += 1;
        self.made_bytes = self.made_bytes.saturating_add(made.payload().len() as u64);
        self.used.extend([reference, made.path().to_owned()]);
        self.evict().map_err(failed)?;
        Ok(made)
    }
}
