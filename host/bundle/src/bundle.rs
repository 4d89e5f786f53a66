//! Reading a bundle.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use serde::{Deserialize, Serialize};
use shardwright_graph::{Asset, GraphError, WeightData};

use crate::error::printable;
use crate::file::{MappedFile, Mapping};
use crate::layout::Layout;
use crate::manifest::{self, AssetEntry, FileReference, MANIFEST_BYTES, Manifest, TextFile};
use crate::{BundleError, Digest, Proofs, file};

/// Files up to this length are hashed when the bundle is opened, so that the small files a start
/// depends on besides the manifest (the heads of artefacts, plans, settings) are known to be
/// intact.
pub const TINY_FILE_BYTES: u64 = 64 << 10;

/// Most bytes that [`Bundle::read`] reads into memory.
const READ_BYTES: u64 = 256 << 20;

/// An open file of a bundle whose bytes match the hash in the manifest: reads through it return the
/// verified bytes, even if its path now names another file.
#[derive(Debug)]
pub struct ProvedFile {
    /// Its path, for messages.
    pub path: PathBuf,
    /// The file, at its first byte, to be read or mapped.
    pub file: fs::File,
}

/// A complete bundle whose manifest was fully checked, and whose files all exist with the right
/// length.
///
/// Longer files are verified when they are used: every byte is hashed, unless [`Proofs`] record
/// that it was and that no program can have changed the file since.
#[derive(Debug)]
pub struct Bundle {
    layout: Layout,
    manifest: Manifest,
    sha256: Digest,
    /// Every file, with the fields that name it.
    uses: BTreeMap<FileReference, Vec<String>>,
    /// Current mappings: users of the same file share the mapping and its verification.
    mapped: Mutex<HashMap<Digest, Weak<Mapping>>>,
    proofs: Option<Proofs>,
}

impl Bundle {
    /// Opens the bundle in `directory`.
    ///
    /// Reads the manifest and the files of at most [`TINY_FILE_BYTES`], and the metadata of each
    /// other file, no matter how long. Any directory content gives a bundle or an error, within a
    /// small multiple of 16 MiB of memory.
    pub fn open(directory: impl AsRef<Path>) -> Result<Bundle, BundleError> {
        let layout = Layout::of(directory.as_ref());
        let (manifest, sha256) = read_manifest(&layout)?;
        let uses = uses_of(&manifest);
        for (reference, used_as) in &uses {
            check_file(&layout, *reference, used_as, reference.bytes <= TINY_FILE_BYTES)?;
        }
        Ok(Bundle { layout, manifest, sha256, uses, mapped: Mutex::default(), proofs: None })
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

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.layout.directory
    }

    /// Its manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The hash in the manifest, which covers the hash of every file: the identity of the bundle.
    pub fn sha256(&self) -> Digest {
        self.sha256
    }

    /// Path of a file of this bundle, for display. Its kind and length were just compared, its
    /// bytes were not: use [`proved`](Self::proved) to read it.
    pub fn path(&self, reference: &FileReference) -> Result<PathBuf, BundleError> {
        self.check(reference, false)?;
        Ok(self.layout.file(reference.sha256))
    }

    /// The bytes of a file of at most 256 MiB. They are always verified.
    pub fn read(&self, reference: &FileReference) -> Result<Vec<u8>, BundleError> {
        let opened = self.check(reference, false)?;
        let path = self.layout.file(reference.sha256);
        if reference.bytes > READ_BYTES {
            let (field, value) = ("bytes to read at once".to_owned(), reference.bytes);
            return Err(BundleError::Limit { path, field, value, limit: READ_BYTES });
        }
        let bytes = file::read_capped(&path, opened, READ_BYTES)?;
        file::expect_hash(&path, reference.sha256, Digest::of(&bytes))?;
        Ok(bytes)
    }

    /// Opens a file for another crate that reads or maps it itself. Every byte was verified against
    /// the manifest, prefix and all: an attacker can adapt a hash that a file carries of itself,
    /// but not the one in the manifest.
    pub fn proved(&self, reference: &FileReference) -> Result<ProvedFile, BundleError> {
        let file = self.check(reference, false)?;
        let path = self.layout.file(reference.sha256);
        let sum = match &self.proofs {
            Some(proofs) => proofs.digest(&file, reference.sha256),
            None => Digest::of_reader(&file).map(|(sum, _)| sum),
        };
        file::expect_hash(&path, reference.sha256, sum.map_err(BundleError::io(&path))?)?;
        io::Seek::rewind(&mut &file).map_err(BundleError::io(&path))?;
        Ok(ProvedFile { path, file })
    }

    /// Maps a file that was [verified](Self::proved). While a mapping of it is alive it is shared,
    /// and not verified twice.
    pub fn map(&self, reference: &FileReference) -> Result<MappedFile, BundleError> {
        let alive = self.mapped().get(&reference.sha256).and_then(Weak::upgrade);
        if let Some(map) = alive.map(MappedFile).filter(|map| map.len() as u64 == reference.bytes) {
            return Ok(map);
        }
        let ProvedFile { path, file } = self.proved(reference)?;
        let map = MappedFile::new(&path, &file, reference.bytes)?;
        self.mapped().insert(reference.sha256, Arc::downgrade(&map.0));
        Ok(map)
    }

    fn mapped(&self) -> MutexGuard<'_, HashMap<Digest, Weak<Mapping>>> {
        // No operation under the lock can leave the map inconsistent.
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file of the text side, verified; `None` if the checkpoint had none.
    pub fn text(&self, text: TextFile) -> Result<Option<Vec<u8>>, BundleError> {
        self.manifest.texts.get(&text).map(|reference| self.read(reference)).transpose()
    }

    /// The index of the tokenizer, verified and mapped, if the bundle has one.
    pub fn tokenizer_index(&self) -> Result<Option<MappedFile>, BundleError> {
        self.manifest.tokenizer_index.as_ref().map(|reference| self.map(reference)).transpose()
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
        BundleError::Invalid { path: self.layout.manifest(), field, reason: error.to_string() }
    }

    /// Hashes every file; the first mismatch is the error. `progress` is called before each file is
    /// read.
    pub fn verify_all(&self, mut progress: impl FnMut(Progress)) -> Result<(), BundleError> {
        let total = self.total_bytes();
        let mut done = 0;
        for (reference, used_as) in &self.uses {
            progress(Progress { file: *reference, done, total });
            check_file(&self.layout, *reference, used_as, true)?;
            done += reference.bytes;
        }
        Ok(())
    }

    /// Bytes of all files, each content counted once; the manifest is not counted.
    pub fn total_bytes(&self) -> u64 {
        self.uses.keys().map(|reference| reference.bytes).fold(0, u64::saturating_add)
    }

    /// Files in the directory that are not part of the bundle. They are never read, and only cost
    /// their size.
    pub fn unreferenced(&self) -> Result<Vec<Stray>, BundleError> {
        unreferenced(&self.layout, &self.manifest)
    }

    fn check(&self, reference: &FileReference, content: bool) -> Result<fs::File, BundleError> {
        let Some(used_as) = self.uses.get(reference) else {
            let FileReference { sha256, bytes } = *reference;
            let (directory, used_as) = (self.layout.directory.clone(), "asked for".to_owned());
            return Err(BundleError::Reference { directory, used_as, sha256, bytes });
        };
        check_file(&self.layout, *reference, used_as, content)
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

/// Reads and checks the manifest.
pub(crate) fn read_manifest(layout: &Layout) -> Result<(Manifest, Digest), BundleError> {
    let path = layout.manifest();
    let not_found = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let (opened, _) = match file::open(&path) {
        Err(BundleError::Io { source, .. }) if not_found(&source) => {
            let directory = layout.directory.clone();
            // A missing directory is a different error from a directory without a bundle.
            fs::metadata(&directory).map_err(BundleError::io(&directory))?;
            let unfinished = fs::symlink_metadata(layout.journal()).is_ok();
            return Err(BundleError::NoManifest { directory, unfinished });
        }
        opened => opened?,
    };
    let bytes = file::read_capped(&path, opened, MANIFEST_BYTES)?;
    manifest::parse(&path, &bytes)
}

/// Checks a file of the manifest.
pub(crate) fn check_file(
    layout: &Layout,
    reference: FileReference,
    used_as: &[String],
    content: bool,
) -> Result<fs::File, BundleError> {
    let path = layout.file(reference.sha256);
    // If the folder were a link, its files could be changed by others.
    let checked = match file::expect_directory(&layout.files()) {
        Ok(()) => file::check(&path, (reference.sha256, reference.bytes), content),
        Err(error) => Err(error),
    };
    checked.map_err(|error| match error {
        BundleError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            BundleError::Missing { path, used_as: used_as.first().cloned().unwrap_or_default() }
        }
        error => error,
    })
}

/// Entries of the folder of files that are not in `kept`; sorted by name.
pub(crate) fn strays(layout: &Layout, kept: &HashSet<Digest>) -> Result<Vec<Stray>, BundleError> {
    list(&layout.files(), |name| name.parse().is_ok_and(|sha256| kept.contains(&sha256)))
}

/// The same for the whole directory.
pub(crate) fn unreferenced(layout: &Layout, manifest: &Manifest) -> Result<Vec<Stray>, BundleError> {
    let kept = manifest.references().into_iter().map(|(_, reference)| reference.sha256).collect();
    let mut found = list(&layout.directory, Layout::is_part)?;
    let inside = strays(layout, &kept)?;
    found.extend(inside.into_iter().map(|stray| Stray { name: Layout::within_files(&stray.name), ..stray }));
    found.sort();
    Ok(found)
}

fn list(directory: &Path, is_kept: impl Fn(&str) -> bool) -> Result<Vec<Stray>, BundleError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).map_err(BundleError::io(directory))? {
        let entry = entry.map_err(BundleError::io(directory))?;
        let name = entry.file_name();
        if name.to_str().is_some_and(&is_kept) {
            continue;
        }
        let metadata = match entry.metadata() {
            Ok(metadata) => metadata,
            // Removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(BundleError::io(&entry.path())(error)),
        };
        let is_file = metadata.is_file();
        let name = printable(&name.to_string_lossy());
        found.push(Stray { name, bytes: if is_file { metadata.len() } else { 0 }, is_file });
    }
    found.sort();
    Ok(found)
}
