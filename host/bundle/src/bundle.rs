//! Reads a bundle.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use shardwright_files::{Mapping, Section};
use shardwright_graph::{Asset, WeightData};
use shardwright_trust::{Statement, Trust};
use shardwright_vocabulary::{Error, ErrorKind, Result};

use crate::digest::Stop;
use crate::error::{FOREIGN, beyond, io_at, no_variant, not_packed, unknown_file};
use crate::file::MappedFile;
use crate::hash_statistics::{Forgotten, Hashed};
use crate::manifest::{AssetEntry, FileReference, Manifest, TextFile, Variant};
use crate::proofs::Proof;
use crate::signer::Signer;
use crate::store::{Checked, Store};
use crate::{Digest, Proofs, file, packed};

/// Largest size in bytes of files that are hashed when the bundle is opened. This verifies the
/// small files that a start needs in addition to the manifest: heads of artefacts, plans, settings.
pub const TINY_FILE_BYTES: u64 = 64 << 10;

/// Largest number of bytes that [`Bundle::begin_of`] returns: the longest magic number of a file
/// type.
pub const BEGIN_BYTES: usize = 8;

/// Location of a bundle's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLocation {
    /// The file itself, or the file or package that contains it.
    pub path: PathBuf,
    /// Offset within that file.
    pub offset: u64,
}

/// Largest number of bytes that [`Bundle::read`] reads into memory.
const READ_BYTES: u64 = 256 << 20;

/// A complete bundle. Its manifest is fully checked, and its files all exist with the right length.
///
/// Longer files are verified when they are used. Every byte is hashed, unless [`Proofs`] record an
/// earlier verification and no program can have changed the file since.
///
/// Cloning is cheap, as clones share the opened bundle.
#[derive(Clone, Debug)]
pub struct Bundle {
    opened: Arc<Opened>,
    /// Position of the selected variant.
    variant: usize,
    proofs: Option<Proofs>,
    /// Signs shares of this bundle.
    signer: Option<Arc<Signer>>,
}

#[derive(Debug)]
struct Opened {
    store: Store,
    /// The manifest, which has at least one variant.
    manifest: Manifest,
    sha256: Digest,
    signature: Option<Vec<u8>>,
    signed: Option<Statement>,
    /// Every file, with the fields that name it.
    uses: BTreeMap<FileReference, Vec<String>>,
    /// Current mappings. Users of the same file share the mapping and its verification.
    mapped: Mutex<HashMap<Digest, Weak<Mapping>>>,
    hashed: Mutex<Hashed>,
}

/// Progress callback with the number of bytes of a file hashed so far. It may stop the hashing.
pub type Blocks<'b> = &'b mut dyn FnMut(u64) -> ControlFlow<()>;

impl Bundle {
    /// Opens a bundle: a directory, a packed bundle, a folder of volumes with their
    /// [names](crate::volume_name), or a packed bundle stored uncompressed in a larger archive:
    /// `app.apk!/assets/gemma.bundle`.
    ///
    /// Reads the manifest, the files of at most [`TINY_FILE_BYTES`], and the metadata of all other
    /// files, however long they are. Any content results in a bundle or an error, and memory stays
    /// within a small multiple of 16 MiB.
    pub fn open(path: impl AsRef<Path>) -> Result<Bundle> {
        Bundle::open_trusting(path, &Trust::off())
    }

    /// Opens a bundle like [`open`](Self::open) and checks its signature by the rules of `trust`.
    /// If they require a signature, it is checked before anything is parsed. It covers every file,
    /// as the signed manifest has their hashes.
    pub fn open_trusting(path: impl AsRef<Path>, trust: &Trust) -> Result<Bundle> {
        Bundle::of_store(Store::open(path.as_ref(), trust)?, trust)
    }

    /// Opens a packed bundle within an open file, such as an asset of an app that the system passes
    /// as a descriptor with an offset and a length.
    pub fn open_section(section: Section) -> Result<Bundle> {
        Bundle::open_sections_trusting(vec![section], &Trust::off())
    }

    /// Opens a packed bundle that is split into [volumes](crate::Share::volumes). All volumes are
    /// required, in any order and location. Each is a file or an entry `archive!/entry`, as in
    /// [`open`](Self::open).
    pub fn open_volumes(paths: &[impl AsRef<Path>]) -> Result<Bundle> {
        Bundle::open_volumes_trusting(paths, &Trust::off())
    }

    /// Like [`open_volumes`](Self::open_volumes), and checks the signature by the rules of `trust`.
    pub fn open_volumes_trusting(paths: &[impl AsRef<Path>], trust: &Trust) -> Result<Bundle> {
        let sections = paths.iter().map(|path| packed::section(path.as_ref()));
        Bundle::open_sections_trusting(sections.collect::<Result<_, _>>()?, trust)
    }

    /// Opens volumes within open files, each as in [`open_section`](Self::open_section), and checks
    /// the signature by the rules of `trust`.
    pub fn open_sections_trusting(sections: Vec<Section>, trust: &Trust) -> Result<Bundle> {
        Bundle::of_store(Store::packed(sections, trust)?, trust)
    }

    fn of_store(store: Store, trust: &Trust) -> Result<Bundle> {
        let Checked { manifest, sha256, signature, signed } = store.read_manifest(trust)?;
        let uses = uses_of(&manifest);
        for (reference, used_as) in &uses {
            store.file(*reference, used_as, reference.bytes <= TINY_FILE_BYTES)?;
        }
        // A directory is exempt, as an interrupted writer may have left unused files there.
        if matches!(store, Store::Packed(_))
            && let Some(stray) = store.unreferenced(&manifest)?.first()
        {
            let reason = format!("the manifest does not name `{}`", stray.name);
            return Err(not_packed(store.path(), 0, reason));
        }
        let (mapped, hashed) = Default::default();
        let opened = Opened { store, manifest, sha256, signature, signed, uses, mapped, hashed };
        Ok(Bundle { opened: Arc::new(opened), variant: 0, proofs: None, signer: None })
    }

    /// Records verified files, so that a later start need not hash them again. Without proofs,
    /// every start hashes every file it uses.
    #[must_use]
    pub fn remembering(mut self, proofs: Option<Proofs>) -> Bundle {
        self.proofs = proofs;
        self
    }

    /// Returns the record of verified files, if there is one.
    pub fn proofs(&self) -> Option<&Proofs> {
        self.proofs.as_ref()
    }

    /// Returns the path of the directory or file, or of the archive and its entry.
    pub fn path(&self) -> &Path {
        self.opened.store.path()
    }

    /// Returns whether the bundle is one file, or part of one.
    pub fn is_packed(&self) -> bool {
        matches!(self.opened.store, Store::Packed(_))
    }

    pub fn manifest(&self) -> &Manifest {
        &self.opened.manifest
    }

    /// Selects the variant for a chip, by any of that chip's names. `None` selects the only
    /// variant.
    ///
    /// # Errors
    ///
    /// If there is no such variant, or `soc` is `None` and there are several.
    pub fn choosing(mut self, soc: Option<&str>) -> Result<Bundle> {
        let variants = &self.opened.manifest.variants;
        let found = match soc {
            Some(soc) => variants.iter().position(|variant| variant.is_for(soc)),
            None => (variants.len() == 1).then_some(0),
        };
        self.variant = found.ok_or_else(|| no_variant(self.path(), soc, self.manifest()))?;
        Ok(self)
    }

    /// Selects the variant at a position in the manifest, or the last one if the position is too
    /// large.
    #[must_use]
    pub fn of_variant(&self, index: usize) -> Bundle {
        Bundle { variant: index.min(self.manifest().variants.len() - 1), ..self.clone() }
    }

    /// Returns the selected variant: the [chosen](Self::choosing) one, or else the first.
    pub fn variant(&self) -> &Variant {
        &self.opened.manifest.variants[self.variant]
    }

    /// Returns the identity of the bundle: the hash in the manifest, which covers the hash of every
    /// file.
    pub fn sha256(&self) -> Digest {
        self.opened.sha256
    }

    /// Returns the statement that a trusted key signed. `None` if the rules ignored signatures when
    /// the bundle was opened, or if there is no valid signature.
    pub fn signed(&self) -> Option<&Statement> {
        self.opened.signed.as_ref()
    }

    /// Sets a signer for everything that is packed from this bundle. By default, packing the whole
    /// bundle keeps its signature, and shares are unsigned.
    #[must_use]
    pub fn signing(self, signer: Signer) -> Bundle {
        Bundle { signer: Some(Arc::new(signer)), ..self }
    }

    pub(crate) fn signer(&self) -> Option<&Signer> {
        self.signer.as_deref()
    }

    /// Returns the unverified bytes of the signature.
    pub(crate) fn signature(&self) -> Option<&[u8]> {
        self.opened.signature.as_deref()
    }

    /// Returns all files, each content once, in the order of their hashes.
    pub fn files(&self) -> Vec<FileReference> {
        self.opened.uses.keys().copied().collect()
    }

    /// Returns the location of a file of this bundle, after comparing its kind and length.
    pub fn place(&self, reference: &FileReference) -> Result<FileLocation> {
        let section = self.section(reference)?;
        Ok(FileLocation { path: section.path().to_owned(), offset: section.offset() })
    }

    /// Returns the first bytes of a file, at most [`BEGIN_BYTES`], to recognise its type. They are
    /// not verified: do not parse them.
    pub fn begin_of(&self, reference: &FileReference) -> Result<Vec<u8>> {
        let section = self.section(reference)?;
        let mut begin = vec![0; BEGIN_BYTES.min(usize::try_from(reference.bytes).unwrap_or(BEGIN_BYTES))];
        section.read_exact_at(&mut begin, 0).map_err(io_at(section.path()))?;
        Ok(begin)
    }

    /// Returns the unverified bytes of a file. Only code that hashes them itself may read them, so
    /// other crates get them from [`proved`](Self::proved) and [`read`](Self::read).
    pub(crate) fn section(&self, reference: &FileReference) -> Result<Section> {
        self.check(reference, false)
    }

    /// Reads and verifies a file of at most 256 MiB.
    pub fn read(&self, reference: &FileReference) -> Result<Vec<u8>> {
        let section = self.check(reference, false)?;
        let path = section.path();
        if reference.bytes > READ_BYTES {
            return Err(beyond(path, "bytes to read at once", reference.bytes, READ_BYTES));
        }
        let bytes = file::read_capped(path, section.reader(), READ_BYTES)?;
        file::expect_hash(path, reference.sha256, Digest::of(&bytes))?;
        Ok(bytes)
    }

    /// Returns the hashing statistics of this bundle and its clones, since it was opened or last
    /// reset.
    pub fn hashed(&self) -> Hashed {
        self.opened.hashed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the hashing statistics and resets them.
    pub fn take_hashed(&self) -> Hashed {
        std::mem::take(&mut *self.opened.hashed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn count(&self, bytes: u64, time: Duration, forgotten: Option<Forgotten>) {
        let mut hashed = self.opened.hashed.lock().unwrap_or_else(PoisonError::into_inner);
        hashed.add(bytes, time, forgotten);
    }

    /// Returns a file for another crate that reads or maps it. Every byte was verified against the
    /// manifest, including any prefix. This is needed because an attacker can adapt a hash within a
    /// file, but not the one in the manifest. Reading through the section gives the verified bytes,
    /// even if the path now names another file.
    pub fn proved(&self, reference: &FileReference) -> Result<Section> {
        self.proved_watched(reference, &mut |_| ControlFlow::Continue(()))
    }

    /// Like [`proved`](Self::proved), with progress. A file that was verified before is not hashed,
    /// and `blocks` is not called.
    ///
    /// # Errors
    ///
    /// Also an error of the kind [`ErrorKind::Cancelled`] if `blocks` stopped it. Then the file is
    /// not recorded as verified.
    pub fn proved_watched(&self, reference: &FileReference, blocks: Blocks<'_>) -> Result<Section> {
        let section = self.check(reference, false)?;
        let started = Instant::now();
        let proof = match &self.proofs {
            Some(proofs) => proofs.digest(&section, reference.sha256, blocks),
            None => Digest::of_blocks(section.reader(), blocks)
                .map(|(sum, _)| Proof::Hashed(sum, Some(Forgotten::NoPlace))),
        };
        if let Proof::Hashed(sum, forgotten) = proof.map_err(|stop| stopped(section.path(), stop))? {
            self.count(reference.bytes, started.elapsed(), forgotten);
            file::expect_hash(section.path(), reference.sha256, sum)?;
        }
        Ok(section)
    }

    /// Maps a file after [verification](Self::proved). While a mapping of it exists, it is shared
    /// and not verified again.
    pub fn map(&self, reference: &FileReference) -> Result<MappedFile> {
        self.map_watched(reference, &mut |_| ControlFlow::Continue(()))
    }

    /// Like [`map`](Self::map), with progress as in [`proved_watched`](Self::proved_watched).
    ///
    /// # Errors
    ///
    /// Also an error of the kind [`ErrorKind::Cancelled`] if `blocks` stopped it.
    pub fn map_watched(&self, reference: &FileReference, blocks: Blocks<'_>) -> Result<MappedFile> {
        let alive = self.mapped().get(&reference.sha256).and_then(Weak::upgrade);
        if let Some(map) = alive.map(MappedFile).filter(|map| map.len() as u64 == reference.bytes) {
            return Ok(map);
        }
        let section = self.proved_watched(reference, blocks)?;
        let map = section.map().map_err(io_at(section.path()))?;
        let map = MappedFile(Arc::new(map));
        self.mapped().insert(reference.sha256, Arc::downgrade(&map.0));
        Ok(map)
    }

    fn mapped(&self) -> MutexGuard<'_, HashMap<Digest, Weak<Mapping>>> {
        // No operation under the lock can leave the map inconsistent.
        self.opened.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads and verifies a file for text processing, or returns `None` if the checkpoint had none.
    pub fn text(&self, text: TextFile) -> Result<Option<Vec<u8>>> {
        self.opened.manifest.texts.get(&text).map(|reference| self.read(reference)).transpose()
    }

    /// Verifies and maps the index of the tokenizer, if the bundle has one.
    pub fn tokenizer_index(&self) -> Result<Option<MappedFile>> {
        self.opened.manifest.tokenizer_index.as_ref().map(|reference| self.map(reference)).transpose()
    }

    /// Verifies and maps the gathered tables of the text model or of a tower, in the order of their
    /// ids.
    pub fn assets_of(&self, entries: &[AssetEntry]) -> Result<Vec<Asset>> {
        entries.iter().map(|entry| self.asset(entry)).collect()
    }

    fn asset(&self, entry: &AssetEntry) -> Result<Asset> {
        let table = entry.try_map(|reference| {
            let map = self.map(reference)?;
            let length = map.len();
            WeightData::new(Arc::new(map), 0, length).map_err(|error| self.impossible(entry, error))
        })?;
        Ok(table.into())
    }

    fn impossible(&self, entry: &AssetEntry, error: Error) -> Error {
        let error = error.with_kind(ErrorKind::Invalid).with_help(FOREIGN);
        error.at(format_args!("table `{}`", entry.name)).at(self.opened.store.manifest_path().display())
    }

    /// Hashes every file and returns the first mismatch as an error. `progress` is called before
    /// each file is read.
    pub fn verify_all(&self, mut progress: impl FnMut(FileProgress)) -> Result<()> {
        let mut file = None;
        self.verify_all_watched(|now| {
            if file.replace(now.file) != Some(now.file) {
                progress(now);
            }
            ControlFlow::Continue(())
        })
    }

    /// Like [`verify_all`](Self::verify_all), but `progress` is called before each block is read,
    /// and may stop it.
    ///
    /// # Errors
    ///
    /// Also an error of the kind [`ErrorKind::Cancelled`] if `progress` stopped it.
    pub fn verify_all_watched(
        &self,
        mut progress: impl FnMut(FileProgress) -> ControlFlow<()>,
    ) -> Result<()> {
        let total = self.total_bytes();
        let mut done = 0;
        for (&file, used_as) in &self.opened.uses {
            let started = Instant::now();
            let section = self.opened.store.file(file, used_as, false)?;
            let blocks = &mut |bytes| progress(FileProgress { file, done: done + bytes, total });
            let sum = Digest::of_blocks(section.reader(), blocks);
            let (sum, _) = sum.map_err(|stop| stopped(section.path(), stop))?;
            self.count(file.bytes, started.elapsed(), None);
            file::expect_hash(section.path(), file.sha256, sum)?;
            done += file.bytes;
        }
        self.opened.store.check_rest()
    }

    /// Returns the number of bytes of all files, each content counted once. The manifest is not
    /// included.
    pub fn total_bytes(&self) -> u64 {
        self.opened.uses.keys().map(|reference| reference.bytes).fold(0, u64::saturating_add)
    }

    /// Lists files in the directory that are not part of the bundle. They are never read and only
    /// use disk space.
    pub fn unreferenced(&self) -> Result<Vec<Stray>> {
        self.opened.store.unreferenced(&self.opened.manifest)
    }

    fn check(&self, reference: &FileReference, content: bool) -> Result<Section> {
        let Some(used_as) = self.opened.uses.get(reference) else {
            return Err(unknown_file(reference.sha256, reference.bytes).at(self.path().display()));
        };
        self.opened.store.file(*reference, used_as, content)
    }
}

fn stopped(path: &Path, stop: Stop) -> Error {
    match stop {
        Stop::Cancelled => Error::cancelled(),
        Stop::Io(error) => io_at(path)(error),
    }
}

/// Progress of [`Bundle::verify_all`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileProgress {
    /// The next file to read.
    pub file: FileReference,
    /// Bytes read so far, before this file.
    pub done: u64,
    pub total: u64,
}

/// An entry of a bundle's directory that is not part of the bundle.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Stray {
    /// Path within the directory, with `/` as separator. Unprintable characters are escaped.
    pub name: String,
    /// Length in bytes, or 0 for anything but a regular file.
    pub bytes: u64,
    /// Whether the entry is a regular file.
    pub is_file: bool,
}

/// Collects every file with the fields that name it.
pub(crate) fn uses_of(manifest: &Manifest) -> BTreeMap<FileReference, Vec<String>> {
    let mut uses: BTreeMap<FileReference, Vec<String>> = BTreeMap::new();
    for (used_as, reference) in manifest.references() {
        uses.entry(reference).or_default().push(used_as);
    }
    uses
}
