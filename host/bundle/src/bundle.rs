//! Reading a bundle.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use shardwright_files::{Mapping, Section};
use shardwright_graph::{Asset, GraphError, WeightData};
use shardwright_trust::{Statement, Trust};

use crate::digest::Stop;
use crate::file::MappedFile;
use crate::hashed::{Forgotten, Hashed};
use crate::manifest::{AssetEntry, FileReference, Manifest, TextFile, Variant};
use crate::proofs::Proof;
use crate::signer::Signer;
use crate::store::{Checked, Store};
use crate::{BundleError, Digest, Proofs, file, packed};

/// Files up to this length are hashed when the bundle is opened, so that the small files a start
/// depends on besides the manifest (the heads of artefacts, plans, settings) are known to be
/// intact.
pub const TINY_FILE_BYTES: u64 = 64 << 10;

/// Most bytes that [`Bundle::begin_of`] returns: the longest magic number of a file type.
pub const BEGIN_BYTES: usize = 8;

/// Where a file of a bundle is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file itself, or the file or package that contains it.
    pub path: PathBuf,
    /// Its offset in that file.
    pub offset: u64,
}

/// Most bytes that [`Bundle::read`] reads into memory.
const READ_BYTES: u64 = 256 << 20;

/// A complete bundle whose manifest was fully checked, and whose files all exist with the right
/// length.
///
/// Longer files are verified when they are used: every byte is hashed, unless [`Proofs`] record
/// that it was and that no program can have changed the file since.
///
/// Cloning shares it.
#[derive(Clone, Debug)]
pub struct Bundle {
    opened: Arc<Opened>,
    /// Position of the variant that is meant.
    variant: usize,
    proofs: Option<Proofs>,
    /// Signs its shares.
    signer: Option<Arc<Signer>>,
}

#[derive(Debug)]
struct Opened {
    store: Store,
    /// With one variant at least.
    manifest: Manifest,
    sha256: Digest,
    signature: Option<Vec<u8>>,
    signed: Option<Statement>,
    /// Every file, with the fields that name it.
    uses: BTreeMap<FileReference, Vec<String>>,
    /// Current mappings: users of the same file share the mapping and its verification.
    mapped: Mutex<HashMap<Digest, Weak<Mapping>>>,
    hashed: Mutex<Hashed>,
}

/// Called with the bytes of a file that were hashed so far; it stops the hashing.
pub type Blocks<'b> = &'b mut dyn FnMut(u64) -> ControlFlow<()>;

impl Bundle {
    /// Opens the bundle in a directory, a packed one, one whose volumes lie in a folder under their
    /// [names](crate::volume_name), or one that is packed within a larger archive, uncompressed:
    /// `app.apk!/assets/gemma.bundle`.
    ///
    /// Reads the manifest and the files of at most [`TINY_FILE_BYTES`], and the metadata of each
    /// other file, no matter how long. Any content gives a bundle or an error, within a small
    /// multiple of 16 MiB of memory.
    pub fn open(path: impl AsRef<Path>) -> Result<Bundle, BundleError> {
        Bundle::open_trusting(path, &Trust::off())
    }

    /// The same of a bundle that is signed as the rules ask. Where they require it, nothing is
    /// parsed before its signature was found good: its manifest has the hash of every file.
    pub fn open_trusting(path: impl AsRef<Path>, trust: &Trust) -> Result<Bundle, BundleError> {
        Bundle::of_store(Store::open(path.as_ref(), trust)?, trust)
    }

    /// Opens a packed bundle within an open file, such as an asset of an app that the system gives
    /// as a descriptor with an offset and a length.
    pub fn open_section(section: Section) -> Result<Bundle, BundleError> {
        Bundle::open_sections_trusting(vec![section], &Trust::off())
    }

    /// Opens a packed bundle that lies in several [volumes](crate::Share::volumes), wherever each
    /// is and in whatever order they are named: files, or entries `archive!/entry`, as
    /// [`open`](Self::open) takes one. It needs all of them.
    pub fn open_volumes(paths: &[impl AsRef<Path>]) -> Result<Bundle, BundleError> {
        Bundle::open_volumes_trusting(paths, &Trust::off())
    }

    /// The same of a bundle that is signed as the rules ask.
    pub fn open_volumes_trusting(paths: &[impl AsRef<Path>], trust: &Trust) -> Result<Bundle, BundleError> {
        let sections = paths.iter().map(|path| packed::section(path.as_ref()));
        Bundle::open_sections_trusting(sections.collect::<Result<_, _>>()?, trust)
    }

    /// Opens volumes within open files, as [`open_section`](Self::open_section) takes one, of a
    /// bundle that is signed as the rules ask.
    pub fn open_sections_trusting(sections: Vec<Section>, trust: &Trust) -> Result<Bundle, BundleError> {
        Bundle::of_store(Store::packed(sections, trust)?, trust)
    }

    fn of_store(store: Store, trust: &Trust) -> Result<Bundle, BundleError> {
        let Checked { manifest, sha256, signature, signed } = store.read_manifest(trust)?;
        let uses = uses_of(&manifest);
        for (reference, used_as) in &uses {
            store.file(*reference, used_as, reference.bytes <= TINY_FILE_BYTES)?;
        }
        // In a directory an interrupted writer may have left some.
        if matches!(store, Store::Packed(_))
            && let Some(stray) = store.unreferenced(&manifest)?.first()
        {
            let reason = format!("its manifest does not name `{}`", stray.name);
            return Err(BundleError::Packed { path: store.path().to_owned(), offset: 0, reason });
        }
        let (mapped, hashed) = Default::default();
        let opened = Opened { store, manifest, sha256, signature, signed, uses, mapped, hashed };
        Ok(Bundle { opened: Arc::new(opened), variant: 0, proofs: None, signer: None })
    }

    /// Records which files were verified, so that a later start need not hash them again. Without
    /// this, every start hashes every file it uses.
    #[must_use]
    pub fn remembering(mut self, proofs: Option<Proofs>) -> Bundle {
        self.proofs = proofs;
        self
    }

    /// The record of verified files, if there is one.
    pub fn proofs(&self) -> Option<&Proofs> {
        self.proofs.as_ref()
    }

    /// Its directory or file, or the archive with the entry that it is.
    pub fn path(&self) -> &Path {
        self.opened.store.path()
    }

    /// Whether it is one file, or part of one.
    pub fn is_packed(&self) -> bool {
        matches!(self.opened.store, Store::Packed(_))
    }

    /// Its manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.opened.manifest
    }

    /// The same bundle, of which the variant for a chip is meant, by any of that chip's names.
    /// Without a name there must be but one.
    pub fn choosing(mut self, soc: Option<&str>) -> Result<Bundle, BundleError> {
        let variants = &self.opened.manifest.variants;
        let found = match soc {
            Some(soc) => variants.iter().position(|variant| variant.is_for(soc)),
            None => (variants.len() == 1).then_some(0),
        };
        self.variant = found.ok_or_else(|| BundleError::Variant {
            path: self.path().to_owned(),
            asked: soc.map(str::to_owned),
            there: variants.iter().map(|variant| variant.soc.clone()).collect(),
        })?;
        Ok(self)
    }

    /// The same bundle, of which the variant at a position in the manifest is meant, or the last.
    #[must_use]
    pub fn of_variant(&self, index: usize) -> Bundle {
        Bundle { variant: index.min(self.manifest().variants.len() - 1), ..self.clone() }
    }

    /// The variant that is meant: the [chosen](Self::choosing) one, else the first.
    pub fn variant(&self) -> &Variant {
        &self.opened.manifest.variants[self.variant]
    }

    /// The hash in the manifest, which covers the hash of every file: the identity of the bundle.
    pub fn sha256(&self) -> Digest {
        self.opened.sha256
    }

    /// What a trusted key signed it as; `None` where the rules it was opened by look at no
    /// signature, or there is no good one.
    pub fn signed(&self) -> Option<&Statement> {
        self.opened.signed.as_ref()
    }

    /// The same bundle, of which everything that is packed is signed. Default: what is packed whole
    /// keeps the signature that it has, and shares have none.
    #[must_use]
    pub fn signing(self, signer: Signer) -> Bundle {
        Bundle { signer: Some(Arc::new(signer)), ..self }
    }

    pub(crate) fn signer(&self) -> Option<&Signer> {
        self.signer.as_deref()
    }

    /// Its signature, of which nothing is believed.
    pub(crate) fn signature(&self) -> Option<&[u8]> {
        self.opened.signature.as_deref()
    }

    /// Its files, each content once, in the order of their hashes.
    pub fn files(&self) -> Vec<FileReference> {
        self.opened.uses.keys().copied().collect()
    }

    /// Returns where a file of this bundle is, after comparing its kind and length.
    pub fn place(&self, reference: &FileReference) -> Result<Place, BundleError> {
        let section = self.section(reference)?;
        Ok(Place { path: section.path().to_owned(), offset: section.offset() })
    }

    /// Returns the first bytes of a file, at most [`BEGIN_BYTES`], to recognise its type. They are
    /// not verified: do not parse them.
    pub fn begin_of(&self, reference: &FileReference) -> Result<Vec<u8>, BundleError> {
        let section = self.section(reference)?;
        let mut begin = vec![0; BEGIN_BYTES.min(usize::try_from(reference.bytes).unwrap_or(BEGIN_BYTES))];
        section.read_exact_at(&mut begin, 0).map_err(BundleError::io(section.path()))?;
        Ok(begin)
    }

    /// Returns the unverified bytes of a file. Only code that hashes them itself may read them, so
    /// other crates get them from [`proved`](Self::proved) and [`read`](Self::read).
    pub(crate) fn section(&self, reference: &FileReference) -> Result<Section, BundleError> {
        self.check(reference, false)
    }

    /// The bytes of a file of at most 256 MiB. They are always verified.
    pub fn read(&self, reference: &FileReference) -> Result<Vec<u8>, BundleError> {
        let section = self.check(reference, false)?;
        let path = section.path();
        if reference.bytes > READ_BYTES {
            let (field, value) = ("bytes to read at once".to_owned(), reference.bytes);
            return Err(BundleError::Limit { path: path.to_owned(), field, value, limit: READ_BYTES });
        }
        let bytes = file::read_capped(path, section.reader(), READ_BYTES)?;
        file::expect_hash(path, reference.sha256, Digest::of(&bytes))?;
        Ok(bytes)
    }

    /// What was hashed since it was opened, or counted anew, here and in clones.
    pub fn hashed(&self) -> Hashed {
        self.opened.hashed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The same; from now on it is counted anew.
    pub fn take_hashed(&self) -> Hashed {
        std::mem::take(&mut *self.opened.hashed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn count(&self, bytes: u64, time: Duration, forgotten: Option<Forgotten>) {
        let mut hashed = self.opened.hashed.lock().unwrap_or_else(PoisonError::into_inner);
        hashed.add(bytes, time, forgotten);
    }

    /// A file for another crate that reads or maps it itself. Every byte was verified against the
    /// manifest, prefix and all: an attacker can adapt a hash that a file carries of itself, but
    /// not the one in the manifest. Reading through it gives the verified bytes, even if the path
    /// now names another file.
    pub fn proved(&self, reference: &FileReference) -> Result<Section, BundleError> {
        self.proved_watched(reference, &mut |_| ControlFlow::Continue(()))
    }

    /// The same with progress. A file that was verified before is not hashed, and `blocks` is not
    /// called.
    ///
    /// # Errors
    ///
    /// Also [`BundleError::Cancelled`] after `blocks` stopped it: nothing of this file is
    /// remembered then.
    pub fn proved_watched(
        &self,
        reference: &FileReference,
        blocks: Blocks<'_>,
    ) -> Result<Section, BundleError> {
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

    /// Maps a file that was [verified](Self::proved). While a mapping of it is alive it is shared,
    /// and not verified twice.
    pub fn map(&self, reference: &FileReference) -> Result<MappedFile, BundleError> {
        self.map_watched(reference, &mut |_| ControlFlow::Continue(()))
    }

    /// The same with progress, as [`proved_watched`](Self::proved_watched) has it.
    ///
    /// # Errors
    ///
    /// Also [`BundleError::Cancelled`] after `blocks` stopped it.
    pub fn map_watched(
        &self,
        reference: &FileReference,
        blocks: Blocks<'_>,
    ) -> Result<MappedFile, BundleError> {
        let alive = self.mapped().get(&reference.sha256).and_then(Weak::upgrade);
        if let Some(map) = alive.map(MappedFile).filter(|map| map.len() as u64 == reference.bytes) {
            return Ok(map);
        }
        let section = self.proved_watched(reference, blocks)?;
        let map = section.map().map_err(BundleError::io(section.path()))?;
        let map = MappedFile(Arc::new(map));
        self.mapped().insert(reference.sha256, Arc::downgrade(&map.0));
        Ok(map)
    }

    fn mapped(&self) -> MutexGuard<'_, HashMap<Digest, Weak<Mapping>>> {
        // No operation under the lock can leave the map inconsistent.
        self.opened.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file of the text side, verified; `None` if the checkpoint had none.
    pub fn text(&self, text: TextFile) -> Result<Option<Vec<u8>>, BundleError> {
        self.opened.manifest.texts.get(&text).map(|reference| self.read(reference)).transpose()
    }

    /// The index of the tokenizer, verified and mapped, if the bundle has one.
    pub fn tokenizer_index(&self) -> Result<Option<MappedFile>, BundleError> {
        self.opened.manifest.tokenizer_index.as_ref().map(|reference| self.map(reference)).transpose()
    }

    /// The gathered tables of the text or of a tower, verified and mapped, in the order of their
    /// ids.
    pub fn assets_of(&self, entries: &[AssetEntry]) -> Result<Vec<Asset>, BundleError> {
        entries.iter().map(|entry| self.asset(entry)).collect()
    }

    fn asset(&self, entry: &AssetEntry) -> Result<Asset, BundleError> {
        let table = entry.try_map(|reference| {
            let map = self.map(reference)?;
            let length = map.len();
            WeightData::new(Arc::new(map), 0, length).map_err(|error| self.impossible(entry, &error))
        })?;
        Ok(table.into())
    }

    fn impossible(&self, entry: &AssetEntry, error: &GraphError) -> BundleError {
        let field = format!("table `{}`", entry.name);
        BundleError::Invalid { path: self.opened.store.manifest_path(), field, reason: error.to_string() }
    }

    /// Hashes every file; the first mismatch is the error. `progress` is called before each file is
    /// read.
    pub fn verify_all(&self, mut progress: impl FnMut(Progress)) -> Result<(), BundleError> {
        let mut file = None;
        self.verify_all_watched(|now| {
            if file.replace(now.file) != Some(now.file) {
                progress(now);
            }
            ControlFlow::Continue(())
        })
    }

    /// The same; `progress` is called before each block is read, and stops it.
    ///
    /// # Errors
    ///
    /// Also [`BundleError::Cancelled`] after `progress` stopped it.
    pub fn verify_all_watched(
        &self,
        mut progress: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<(), BundleError> {
        let total = self.total_bytes();
        let mut done = 0;
        for (&file, used_as) in &self.opened.uses {
            let started = Instant::now();
            let section = self.opened.store.file(file, used_as, false)?;
            let blocks = &mut |bytes| progress(Progress { file, done: done + bytes, total });
            let sum = Digest::of_blocks(section.reader(), blocks);
            let (sum, _) = sum.map_err(|stop| stopped(section.path(), stop))?;
            self.count(file.bytes, started.elapsed(), None);
            file::expect_hash(section.path(), file.sha256, sum)?;
            done += file.bytes;
        }
        self.opened.store.check_rest()
    }

    /// Bytes of all files, each content counted once; the manifest is not counted.
    pub fn total_bytes(&self) -> u64 {
        self.opened.uses.keys().map(|reference| reference.bytes).fold(0, u64::saturating_add)
    }

    /// Files in the directory that are not part of the bundle. They are never read, and only cost
    /// their size.
    pub fn unreferenced(&self) -> Result<Vec<Stray>, BundleError> {
        self.opened.store.unreferenced(&self.opened.manifest)
    }

    fn check(&self, reference: &FileReference, content: bool) -> Result<Section, BundleError> {
        let Some(used_as) = self.opened.uses.get(reference) else {
            let FileReference { sha256, bytes } = *reference;
            let (directory, used_as) = (self.path().to_owned(), "asked for".to_owned());
            return Err(BundleError::Reference { directory, used_as, sha256, bytes });
        };
        self.opened.store.file(*reference, used_as, content)
    }
}

fn stopped(path: &Path, stop: Stop) -> BundleError {
    match stop {
        Stop::Cancelled => BundleError::Cancelled,
        Stop::Io(error) => BundleError::io(path)(error),
    }
}

/// Progress of [`Bundle::verify_all`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The file read next.
    pub file: FileReference,
    /// Bytes read before it.
    pub done: u64,
    /// Bytes in total.
    pub total: u64,
}

/// Something in a bundle's directory that is no part of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Stray {
    /// Path within the directory, with `/`; unprintable parts replaced.
    pub name: String,
    /// Its length; 0 for anything but a regular file.
    pub bytes: u64,
    /// Whether it is a regular file.
    pub is_file: bool,
}

/// Every file with the fields that name it.
pub(crate) fn uses_of(manifest: &Manifest) -> BTreeMap<FileReference, Vec<String>> {
    let mut uses: BTreeMap<FileReference, Vec<String>> = BTreeMap::new();
    for (used_as, reference) in manifest.references() {
        uses.entry(reference).or_default().push(used_as);
    }
    uses
}
