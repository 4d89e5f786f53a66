//! Writes a bundle piece by piece.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use shardwright_files::output::expect_folder;
use shardwright_graph::Asset;
use shardwright_trust::Trust;
use shardwright_vocabulary::{Error, Result};
use tempfile::{NamedTempFile, TempPath};

use crate::digest::{CHUNK, Hasher};
use crate::error::{beyond, busy, inconsistent, io_at, printable, unknown_file, wrong_length};
use crate::journal::Journal;
use crate::layout::{Layout, TEMPORARY};
use crate::manifest::{AssetEntry, FILE_BYTES, FileReference, Manifest, TEXT_FILE_BYTES, TextFile};
use crate::store::{self, Store};
use crate::{Bundle, Digest, envelope, file, manifest};

/// Number of directory entries to check for files of other programs. A bundle has at most four
/// entries and leftovers of interrupted writers.
const ENTRIES_LOOKED_AT: usize = 4096;

/// Writes a bundle into its own directory.
///
/// Files are added one by one. When `add_…` returns, the file is on disk under the name of its
/// content. [`finish`] writes the manifest last, atomically. Before that the directory contains no
/// bundle (or still the previous one), afterwards the complete new one.
///
/// If the writer is dropped or its process ends, the added files stay. The next writer on the same
/// directory finds them by content, and by key through [`recall`], which avoids producing them
/// again. Unreferenced files are removed at the end. A writer that is dropped before any file was
/// added removes its journal and its folders, and the directory if it created it.
///
/// Only one process can write at a time. A reader that has the bundle open meanwhile keeps its
/// mapped files, but other files may disappear.
///
/// [`finish`]: BundleWriter::finish
/// [`recall`]: BundleWriter::recall
pub struct BundleWriter {
    layout: Layout,
    journal: Journal,
    // Dropped before the lock, so that no other writer has begun by then.
    _leftovers: Leftovers,
    _lock: Lock,
    /// The previous manifest, if the bundle was complete.
    previous: Option<Manifest>,
    /// Files whose bytes this writer has seen.
    added: HashSet<FileReference>,
}

impl BundleWriter {
    /// Starts or resumes a bundle in `directory`. The directory is created if it does not exist,
    /// but its parent must exist.
    ///
    /// Rejects a directory with anything but a bundle, finished or not. An existing bundle stays
    /// valid until [`BundleWriter::finish`].
    pub fn create(directory: impl AsRef<Path>) -> Result<BundleWriter> {
        let directory = directory.as_ref();
        let made = match fs::create_dir(directory) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(io_at(directory)(error)),
        };
        // The user's link to a directory is followed, but not replaced.
        let directory = &match directory.canonicalize() {
            Ok(directory) => directory,
            Err(error) => {
                expect_folder(directory)?;
                return Err(io_at(directory)(error));
            }
        };
        expect_folder(directory)?;
        if let Some(parent) = directory.parent().filter(|_| made) {
            // If the parent is writable but not readable, the name may be lost in a power failure.
            let _ = sync_directory(parent);
        }
        let lock = Lock::take(directory)?;
        let layout = Layout::of(directory);
        claim(&layout)?;
        let leftovers = Leftovers { layout: layout.clone(), made };
        let journal = Journal::open(&layout.journal())?;
        sync_directory(directory)?;

        make_directory(&layout.files())?;
        remove_temporaries(directory)?;
        remove_temporaries(&layout.files())?;
        match file::expect_directory(&layout.staging()) {
            Ok(()) => remove_temporaries(&layout.staging())?,
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        let previous = Store::Directory(layout.clone()).read_manifest(&Trust::off());
        let previous = previous.ok().map(|checked| checked.manifest);
        let added = HashSet::new();
        Ok(BundleWriter { layout, journal, _leftovers: leftovers, _lock: lock, previous, added })
    }

    /// Returns the target directory.
    pub fn directory(&self) -> &Path {
        &self.layout.directory
    }

    /// Returns the path of a file that was added or recalled, for another crate that opens it while
    /// the bundle is being written.
    pub fn path(&self, reference: &FileReference) -> PathBuf {
        self.layout.file(reference.sha256)
    }

    /// Returns the manifest of the previous complete bundle, for adding to it (such as the result
    /// of a verification). Its files can be used without adding them again.
    pub fn previous(&self) -> Option<&Manifest> {
        self.previous.as_ref()
    }

    /// Adds bytes. An existing file with that content is hashed and kept.
    pub fn add_bytes(&mut self, bytes: &[u8]) -> Result<FileReference> {
        let reference = FileReference { sha256: Digest::of(bytes), bytes: bytes.len() as u64 };
        if self.holds(reference) {
            self.added.insert(reference);
            return Ok(reference);
        }
        self.expect_length(reference.bytes)?;
        let files = self.layout.files();
        let write = || -> io::Result<NamedTempFile> {
            let mut temporary = temporary(&files)?;
            temporary.write_all(bytes)?;
            temporary.as_file().sync_all()?;
            Ok(temporary)
        };
        let temporary = write().map_err(io_at(&files))?;
        self.keep(temporary.into_temp_path(), reference)
    }

    /// Adds all bytes of a reader. They are hashed while they are written, so memory use is one
    /// buffer.
    pub fn add_reader(&mut self, mut reader: impl Read) -> Result<FileReference> {
        let files = self.layout.files();
        let io = io_at(&files);
        let mut temporary = temporary(&files).map_err(io)?;
        let mut hasher = Hasher::default();
        let mut chunk = vec![0; CHUNK];
        loop {
            let count = match reader.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(io(error)),
            };
            hasher.update(&chunk[..count]);
            self.expect_length(hasher.bytes())?;
            temporary.write_all(&chunk[..count]).map_err(io)?;
        }
        let (sha256, bytes) = hasher.finish();
        temporary.as_file().sync_all().map_err(io)?;
        self.keep(temporary.into_temp_path(), FileReference { sha256, bytes })
    }

    fn expect_length(&self, value: u64) -> Result<()> {
        if value <= FILE_BYTES {
            return Ok(());
        }
        Err(beyond(&self.layout.files(), "bytes of a file", value, FILE_BYTES))
    }

    /// Adds a copy of a file, which stays unchanged.
    pub fn add_path(&mut self, path: impl AsRef<Path>) -> Result<FileReference> {
        let (file, _) = file::open_foreign(path.as_ref())?;
        self.add_reader(file)
    }

    /// Moves a file from [`BundleWriter::staging`] into the bundle, without copying it.
    pub fn adopt(&mut self, path: impl AsRef<Path>) -> Result<FileReference> {
        let path = path.as_ref();
        let staging = self.layout.staging();
        if path.parent() != Some(&staging) {
            return Err(inconsistent(&staging, path.display(), "not in the staging folder"));
        }
        let (file, length) = file::open(path)?;
        let (sha256, bytes) = Digest::of_reader(&file).map_err(io_at(path))?;
        if bytes != length {
            return Err(wrong_length(path, length, bytes));
        }
        // The file may have private permissions, like temporary files.
        let files = self.layout.files();
        let usual = temporary(&files).and_then(|file| file.as_file().metadata()).map_err(io_at(&files))?;
        file.set_permissions(usual.permissions()).and_then(|()| file.sync_all()).map_err(io_at(path))?;
        let temporary = TempPath::try_from_path(path).map_err(io_at(path))?;
        self.keep(temporary, FileReference { sha256, bytes })
    }

    /// Creates a folder on the same file system for files that will be added to the bundle, such as
    /// artefacts being compiled. It survives an interruption, except for files that begin with
    /// `.writing-`. [`BundleWriter::finish`] removes it.
    pub fn staging(&self) -> Result<PathBuf> {
        let staging = self.layout.staging();
        make_directory(&staging)?;
        Ok(staging)
    }

    /// Adds the bytes of a gathered table and of its scales.
    pub fn add_asset(&mut self, asset: &Asset) -> Result<AssetEntry> {
        let path = self.layout.manifest();
        let invalid = |reason| inconsistent(&path, format_args!("table `{}`", asset.name), reason);
        if asset.table.shape.len() != 2 {
            let shape = &asset.table.shape;
            return Err(invalid(format!("expected a table of two dimensions, got the shape {shape:?}")));
        }
        let mut table = asset.to_table();
        let scales = table.quantisation.as_ref().map(|existing| (&existing.scales, "scales"));
        for (data, what) in std::iter::once((&table.table, "values")).chain(scales) {
            if !data.is_present() {
                return Err(invalid(format!("the {what} were planned, but not computed")));
            }
        }
        // If a token has several redirects, the first one counts.
        table.redirect.sort_by_key(|(token, _)| *token);
        table.redirect.dedup_by_key(|(token, _)| *token);
        table.try_map(|data| self.add_bytes(data.bytes()))
    }

    /// Adds the files of a checkpoint that text processing needs, see [`TextFile`].
    pub fn add_texts(&mut self, checkpoint: impl AsRef<Path>) -> Result<BTreeMap<TextFile, FileReference>> {
        let mut texts = BTreeMap::new();
        for &text in TextFile::ALL {
            let path = checkpoint.as_ref().join(text.name());
            let file = match file::open_foreign(&path) {
                Ok((file, _)) => file,
                Err(error) if error.is_not_found() => continue,
                Err(error) => return Err(error),
            };
            let bytes = file::read_capped(&path, file, TEXT_FILE_BYTES)?;
            texts.insert(text, self.add_bytes(&bytes)?);
        }
        Ok(texts)
    }

    /// Returns the file that an earlier writer, interrupted or unfinished, recorded under `key`.
    /// The file is hashed first. Returns `None` if it is missing or incomplete.
    pub fn recall(&mut self, key: &str) -> Option<FileReference> {
        let reference = self.journal.get(key)?;
        self.holds(reference).then(|| {
            self.added.insert(reference);
            reference
        })
    }

    /// Records that `key` produced that file, for [`BundleWriter::recall`]. A key must name
    /// everything that the file depends on, such as a work order and a shim with its version. Keys
    /// with control characters and keys longer than [`NAME_BYTES_MAX`] are not recorded.
    ///
    /// [`NAME_BYTES_MAX`]: crate::NAME_BYTES_MAX
    pub fn remember(&mut self, key: &str, reference: FileReference) -> Result<()> {
        self.journal.put(key, reference)
    }

    /// Completes the bundle. Checks that the manifest is consistent and that all its files exist,
    /// and writes it atomically. Removes unreferenced files and the signature of another manifest.
    pub fn finish(self, manifest: &Manifest) -> Result<Bundle> {
        let path = self.layout.manifest();
        let (bytes, _) = manifest::canonical(&path, manifest)?;
        self.expect_files(manifest)?;
        sync_directory(&self.layout.files())?;

        let io = io_at(&path);
        let directory = &self.layout.directory;
        // Remove the signature of another manifest first: an unsigned bundle is valid, but a bundle
        // with a wrong signature is not.
        if fs::read(&path).ok().as_deref() != Some(&bytes) {
            remove_file(&self.layout.signature())?;
        }
        let mut temporary = temporary(directory).map_err(io)?;
        temporary.write_all(&bytes).map_err(io)?;
        temporary.as_file().sync_all().map_err(io)?;
        temporary.persist(&path).map_err(|error| io(error.error))?;
        sync_directory(directory)?;

        // From here on the bundle is complete and the rest is cleanup. The journal is removed last,
        // so that the next writer cleans up after an interruption.
        remove_tree(&self.layout.staging())?;
        let kept: HashSet<Digest> =
            manifest.references().into_iter().map(|(_, reference)| reference.sha256).collect();
        store::strays(&self.layout, &kept)?
            .into_iter()
            .filter(|stray| stray.is_file && stray.name.parse::<Digest>().is_ok())
            .try_for_each(|stray| {
                let path = self.layout.files().join(&stray.name);
                fs::remove_file(&path).map_err(io_at(&path))
            })?;
        let journal = self.layout.journal();
        fs::remove_file(&journal).map_err(io_at(&journal))?;
        sync_directory(directory)?;
        Bundle::open(directory)
    }

    /// Checks that every file of the manifest was added, was in the previous complete bundle, or
    /// exists with that content.
    fn expect_files(&self, manifest: &Manifest) -> Result<()> {
        let before: HashSet<FileReference> = match &self.previous {
            Some(previous) => previous.references().into_iter().map(|(_, reference)| reference).collect(),
            None => HashSet::new(),
        };
        let mut seen = HashSet::new();
        for (used_as, reference) in manifest.references() {
            if !seen.insert(reference) {
                continue;
            }
            let known = self.added.contains(&reference) || before.contains(&reference);
            let path = self.layout.file(reference.sha256);
            match file::check(&path, reference, !known) {
                Ok(()) => {}
                Err(error) if error.is_not_found() => {
                    let unknown = unknown_file(reference.sha256, reference.bytes);
                    return Err(unknown.at(used_as).at(self.layout.directory.display()));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns whether the file exists with that content.
    fn holds(&self, reference: FileReference) -> bool {
        let path = self.layout.file(reference.sha256);
        file::check(&path, reference, true).is_ok()
    }

    /// Gives a written file its final name. An existing file has the same content or is damaged,
    /// and is replaced in both cases.
    fn keep(&mut self, temporary: TempPath, reference: FileReference) -> Result<FileReference> {
        let path = self.layout.file(reference.sha256);
        temporary.persist(&path).map_err(|error| io_at(&path)(error.error))?;
        self.added.insert(reference);
        Ok(reference)
    }
}

impl std::fmt::Debug for BundleWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BundleWriter").field("directory", &self.layout.directory).finish_non_exhaustive()
    }
}

/// The lock of the directory for this writer. The system releases it when the process ends.
struct Lock(File);

impl Lock {
    fn take(directory: &Path) -> Result<Lock> {
        let handle = File::open(directory).map_err(io_at(directory))?;
        match handle.try_lock() {
            Ok(()) => Ok(Lock(handle)),
            Err(TryLockError::WouldBlock) => Err(busy(directory)),
            // On file systems without locks, two concurrent writers still leave a complete bundle
            // of one of them.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => Ok(Lock(handle)),
            Err(TryLockError::Error(error)) => Err(io_at(directory)(error)),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing is not enough: a process that another thread is starting at this moment has a
        // copy of the handle, and with it the lock. If unlocking fails, closing must suffice.
        let _ = self.0.unlock();
    }
}

/// Removes the traces of a writer that is dropped before any file was added, so that a directory
/// without a bundle is not mistaken for an unfinished one.
struct Leftovers {
    layout: Layout,
    /// Whether the writer created the directory.
    made: bool,
}

impl Leftovers {
    /// Removes empty folders and, if the directory then contains only the journal, the journal.
    fn remove(&self) -> Result<()> {
        let Leftovers { layout, made } = self;
        for folder in [layout.staging(), layout.files()] {
            match fs::remove_dir(folder) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
        }
        let journal = layout.journal();
        let is_journal = |entry: fs::DirEntry| {
            entry.path() == journal && entry.file_type().is_ok_and(|kind| kind.is_file())
        };
        if fs::read_dir(&layout.directory)?.all(|entry| entry.is_ok_and(is_journal)) {
            remove_file(&journal)?;
            if *made {
                fs::remove_dir(&layout.directory)?;
            }
        }
        Ok(())
    }
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        // The folder of files of a bundle, finished or not, is not empty and ends the removal.
        let _ = self.remove();
    }
}

/// Rejects a directory that is neither empty nor a bundle's.
fn claim(layout: &Layout) -> Result<()> {
    let directory = &layout.directory;
    let occupied = |found: &str| {
        Error::argument(format!("neither empty nor a bundle: it contains `{found}`"))
            .at(directory.display())
            .with_help("name a directory that is empty or does not exist yet")
    };
    let mut is_empty = true;
    for entry in fs::read_dir(directory).map_err(io_at(directory))?.take(ENTRIES_LOOKED_AT) {
        let name = entry.map_err(io_at(directory))?.file_name();
        is_empty = false;
        if !name.to_str().is_some_and(Layout::is_ours) {
            return Err(occupied(&printable(&name.to_string_lossy())));
        }
    }
    if is_empty {
        return Ok(());
    }
    let path = layout.manifest();
    // A manifest damaged after the magic may be replaced, but not a file of another program.
    match file::begin_of(&path, envelope::MAGIC.len() as u64) {
        Ok(begin) if begin == envelope::MAGIC => return Ok(()),
        Ok(_) => return Err(envelope::not_a_manifest(0).at(path.display())),
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error),
    }
    if fs::symlink_metadata(layout.journal()).is_err() {
        return Err(occupied("files"));
    }
    Ok(())
}

/// Creates a directory unless it exists.
fn make_directory(path: &Path) -> Result<()> {
    match fs::create_dir(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => file::expect_directory(path),
        Err(error) => Err(io_at(path)(error)),
    }
}

/// Creates a temporary file with the usual permissions for a final file.
pub(crate) fn temporary(directory: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(TEMPORARY);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The process's umask reduces these permissions.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(directory)
}

/// Removes the temporary files of interrupted writers.
fn remove_temporaries(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory).map_err(io_at(directory))? {
        let entry = entry.map_err(io_at(directory))?;
        let path = entry.path();
        let kind = entry.file_type().map_err(io_at(&path))?;
        if entry.file_name().as_encoded_bytes().starts_with(TEMPORARY.as_bytes()) && !kind.is_dir() {
            fs::remove_file(&path).map_err(io_at(&path))?;
        }
    }
    Ok(())
}

fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_at(path)(error)),
        _ => Ok(()),
    }
}

fn remove_tree(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_at(path)(error)),
        _ => Ok(()),
    }
}

/// Makes the names in a directory survive a power failure.
pub(crate) fn sync_directory(path: &Path) -> Result<()> {
    File::open(path).and_then(|directory| directory.sync_all()).map_err(io_at(path))
}
