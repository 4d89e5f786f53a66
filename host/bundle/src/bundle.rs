//! Reading a bundle.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use memmap2::Mmap;
use serde::{Deserialize, Serialize};
use shardwright_graph::{Asset, GraphError, WeightData};

use crate::error::printable;
use crate::file::MappedFile;
use crate::layout::Layout;
use crate::manifest::{self, AssetEntry, FileReference, MANIFEST_BYTES, Manifest, TextFile};
use crate::{BundleError, Digest, Proofs, file};

/// Files up to this length are hashed already when the bundle is opened, so that what little a
/// start depends on besides the manifest (the heads of artefacts, plans, settings) is known to be
/// as written.
pub const TINY_FILE_BYTES: u64 = 64 << 10;

/// Most bytes that [`Bundle::read`] brings into memory.
const READ_BYTES: u64 = 256 << 20;

/// A file of a bundle whose bytes are those the manifest names by their hash, still open: what is
/// read through it is what was proved, whatever its path names by then.
#[derive(Debug)]
pub struct ProvedFile {
    /// Where it lies, for messages.
    pub path: PathBuf,
    /// The file, at its first byte, to be read or mapped.
    pub file: fs::File,
}

/// A complete bundle whose manifest was checked in full, and whose files are all there in their
/// length.
///
/// Longer files are proved when they are used: every byte is hashed, unless [`Proofs`] remember
/// that it was and nobody can have changed the file since.
#[derive(Debug)]
pub struct Bundle {
    layout: Layout,
    manifest: Manifest,
    sha256: Digest,
    /// Every file, with the fields that name it.
    uses: BTreeMap<FileReference, Vec<String>>,
    /// What is mapped at present: two users of a file share the mapping and the work.
    mapped: Mutex<HashMap<Digest, Weak<Mmap>>>,
    proofs: Option<Proofs>,
}

impl Bundle {
    /// Opens the bundle in `directory`.
    ///
    /// Costs the manifest, the files of at most [`TINY_FILE_BYTES`], and one look at each other
    /// file, no matter how long. Whatever lies there, it ends in a bundle or an error, within a
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

    /// Remembers which files were proved, so that a later start need not hash them again. Without,
    /// every start hashes whatever it uses.
    #[must_use]
    pub fn remembering(mut self, proofs: Option<Proofs>) -> Bundle {
        self.proofs = proofs;
        self
    }

    /// What remembers proofs, if anything does.
    pub fn proofs(&self) -> Option<&Proofs> {
        self.proofs.as_ref()
    }

    /// Where it lies.
    pub fn directory(&self) -> &Path {
        &self.layout.directory
    }

    /// What it says of itself.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The hash in the manifest, which covers the hash of every file: the identity of the bundle.
    pub fn sha256(&self) -> Digest {
        self.sha256
    }

    /// Where a file of this bundle lies, to be shown. Its kind and length were compared just now,
    /// its bytes were not: whoever uses them takes [`proved`](Self::proved).
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

    /// A file for another crate that reads or maps it itself. Every byte was proved, prefix and
    /// all: a hash that a file carries of itself is mended by whoever changes it, the one in the
    /// manifest is not.
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

    /// Maps a file that was [proved](Self::proved). While a mapping of it is alive it is shared,
    /// and not proved twice.
    pub fn map(&self, reference: &FileReference) -> Result<MappedFile, BundleError> {
        let alive = self.mapped().get(&reference.sha256).and_then(Weak::upgrade);
        if let Some(map) = alive.filter(|map| map.len() as u64 == reference.bytes) {
            return Ok(MappedFile(map));
        }
        let ProvedFile { path, file } = self.proved(reference)?;
        let map = MappedFile::new(&path, &file, reference.bytes)?;
        self.mapped().insert(reference.sha256, Arc::downgrade(&map.0));
        Ok(map)
    }

    fn mapped(&self) -> MutexGuard<'_, HashMap<Digest, Weak<Mmap>>> {
        // Nothing done under the lock can leave the map half-changed.
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file of the text side, verified; `None` if the checkpoint had none.
    pub fn text(&self, text: TextFile) -> Result<Option<Vec<u8>>, BundleError> {
        self.manifest.texts.get(&text).map(|reference| self.read(reference)).transpose()
    }

    /// The gathered tables, proved and mapped, in the order of their ids.
    pub fn assets(&self) -> Result<Vec<Asset>, BundleError> {
        self.manifest.assets.iter().map(|entry| self.asset(entry)).collect()
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

    /// Hashes every file; the first that differs is the error. `progress` hears of every file
    /// before it is read.
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

    /// What lies in the directory and is no part of the bundle. It is never read, and does no harm
    /// beyond its size.
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

/// How far [`Bundle::verify_all`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The file read next.
    pub file: FileReference,
    /// Bytes read before it.
    pub done: u64,
    /// Bytes there are.
    pub total: u64,
}

/// Something in a bundle's directory that is no part of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Stray {
    /// Path within the directory, with `/`; unprintable parts replaced.
    pub name: String,
    /// Its length; 0 for what is no regular file.
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
    let (held, _) = match file::open(&path) {
        Err(BundleError::Io { source, .. }) if not_found(&source) => {
            let directory = layout.directory.clone();
            // A directory that is not there is another mistake than one without a bundle.
            fs::metadata(&directory).map_err(BundleError::io(&directory))?;
            let unfinished = fs::symlink_metadata(layout.journal()).is_ok();
            return Err(BundleError::NoManifest { directory, unfinished });
        }
        opened => opened?,
    };
    let bytes = file::read_capped(&path, held, MANIFEST_BYTES)?;
    manifest::parse(&path, &bytes)
}

/// Looks at a file of the manifest.
pub(crate) fn check_file(
    layout: &Layout,
    reference: FileReference,
    used_as: &[String],
    content: bool,
) -> Result<fs::File, BundleError> {
    let path = layout.file(reference.sha256);
    // Were the folder a link, its files would be somebody else's.
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

/// What lies in the folder of files without being one of `kept`; sorted by name.
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
