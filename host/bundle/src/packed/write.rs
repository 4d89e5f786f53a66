//! Packs a bundle.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde::Serialize;
use shardwright_files::Section;
use shardwright_files::output::OutputKind;
use shardwright_trust::Envelope;
use shardwright_vocabulary::{Error, Result};

use super::container::{Fields, LOCAL, LOCAL_BYTES};
use super::layout::{self, PART, Part};
use crate::digest::{CHUNK, Hasher};
use crate::error::{beyond, busy, io_at, wrong_length};
use crate::layout::{FILES, Layout, MANIFEST, SIGNATURE};
use crate::{Bundle, Digest, FileProgress, FileReference, envelope, file};

/// The result of packing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PackReport {
    pub path: PathBuf,
    /// Identity of the bundle: the hash of its manifest.
    pub bundle: Digest,
    /// Number of parts, including the manifest.
    pub parts: usize,
    /// Total size of the parts in bytes.
    pub part_bytes: u64,
    /// Size of the file in bytes: parts, headers and padding.
    pub bytes: u64,
}

/// Computes the length of a packed file with parts of these names and lengths. Returns `None` on
/// overflow.
pub(crate) fn packed_bytes(parts: impl Iterator<Item = (String, u64)>) -> Option<u64> {
    let parts: Vec<Part> = parts.map(|(name, length)| Part { name, length, crc: 0 }).collect();
    let (places, directory) = layout::places(&parts)?;
    directory.checked_add(layout::directory(&parts, &places, directory).len() as u64)
}

/// A packed bundle, of which an earlier one may be replaced.
const PACKED: OutputKind = OutputKind { name: "a packed bundle", is_earlier: is_packed };

/// A packed bundle whose writer was interrupted. Headers are written after their parts, so that
/// the beginning may be empty.
const UNFINISHED: OutputKind = OutputKind {
    name: "an unfinished packed bundle",
    is_earlier: |begin| begin.starts_with(&[0; 4]) || is_packed(begin),
};

/// Returns whether this is the beginning of a packed bundle: a header with one of our names, and
/// the part itself.
fn is_packed(begin: &[u8]) -> bool {
    let name = || {
        let length = Fields::new(begin.get(LOCAL_BYTES as usize - 4..)?).u16()?;
        begin.get(LOCAL_BYTES as usize..)?.get(..usize::from(length))
    };
    let Some(name) = name().filter(|_| begin.starts_with(&LOCAL.to_le_bytes())) else { return false };
    let part = begin.get(PART as usize..).unwrap_or_default();
    if name == MANIFEST.as_bytes() {
        part.starts_with(envelope::MAGIC)
    } else if name == SIGNATURE.as_bytes() {
        Envelope::begins(part)
    } else {
        // A further volume begins with a file.
        let digits = name.strip_prefix(FILES.as_bytes()).and_then(|name| name.strip_prefix(b"/"));
        digits
            .and_then(|name| std::str::from_utf8(name).ok())
            .is_some_and(|name| name.parse::<Digest>().is_ok())
    }
}

/// The source of a part's bytes.
enum Source<'s> {
    Signature(&'s [u8]),
    Manifest(&'s [u8]),
    File(Section),
}

impl Source<'_> {
    fn reader(&self) -> Box<dyn Read + '_> {
        match self {
            Source::Signature(bytes) | Source::Manifest(bytes) => Box::new(*bytes),
            Source::File(section) => Box::new(section.reader()),
        }
    }
}

/// The content of a packed file: files of a bundle, and in the first volume the bytes of a
/// manifest.
#[derive(Clone, Copy)]
pub(crate) struct Content<'c> {
    pub(crate) bundle: &'c Bundle,
    /// Signature of the manifest.
    pub(crate) signature: Option<&'c [u8]>,
    pub(crate) manifest: Option<&'c [u8]>,
    /// Files in the order of their hashes.
    pub(crate) files: &'c [FileReference],
    /// Identity of the bundle, or of the bundle that the volume belongs to.
    pub(crate) identity: Digest,
}

pub(crate) fn pack_content(
    content: Content<'_>,
    to: &Path,
    mut progress: impl FnMut(FileProgress) -> ControlFlow<()>,
) -> Result<PackReport> {
    PACKED.expect_at(to)?;
    let of = |bytes: &[u8]| FileReference { sha256: Digest::of(bytes), bytes: bytes.len() as u64 };
    let signature = content.signature.map(|bytes| Ok((of(bytes), Source::Signature(bytes))));
    let manifest = content.manifest.map(|bytes| Ok((of(bytes), Source::Manifest(bytes))));
    let file = |file: &FileReference| Ok((*file, Source::File(content.bundle.section(file)?)));
    let files = content.files.iter().map(file);
    let sources: Vec<(FileReference, Source<'_>)> =
        signature.into_iter().chain(manifest).chain(files).collect::<Result<_>>()?;
    let name = |(reference, source): &(FileReference, Source<'_>)| match source {
        Source::Signature(_) => SIGNATURE.to_owned(),
        Source::Manifest(_) => MANIFEST.to_owned(),
        Source::File(_) => Layout::name_of(reference.sha256),
    };
    let mut parts: Vec<Part> =
        sources.iter().map(|each| Part { name: name(each), length: each.0.bytes, crc: 0 }).collect();
    let total = parts.iter().map(|part| part.length).fold(0, u64::saturating_add);
    let (places, directory) =
        layout::places(&parts).ok_or_else(|| beyond(to, "bytes of a packed bundle", total, u64::MAX))?;

    let partial = Partial::create(to)?;
    let io = io_at(&partial.path);
    let mut writer = BufWriter::with_capacity(CHUNK, &partial.file);
    let mut done = 0;
    for ((part, place), (reference, source)) in parts.iter_mut().zip(&places).zip(&sources) {
        writer.seek(SeekFrom::Start(place.data)).map_err(io)?;
        let mut copied = |bytes| progress(FileProgress { file: *reference, done: done + bytes, total });
        let from = match source {
            Source::Signature(_) | Source::Manifest(_) => content.bundle.path(),
            Source::File(section) => section.path(),
        };
        part.crc = copy(source.reader(), from, *reference, &mut writer, io, &mut copied)?;
        writer.seek(SeekFrom::Start(place.header)).map_err(io)?;
        writer.write_all(&layout::local(part, *place)).map_err(io)?;
        done += part.length;
    }
    let last = layout::directory(&parts, &places, directory);
    writer.seek(SeekFrom::Start(directory)).map_err(io)?;
    writer.write_all(&last).and_then(|()| writer.flush()).map_err(io)?;
    drop(writer);
    partial.keep(to)?;
    Ok(PackReport {
        path: to.to_owned(),
        bundle: content.identity,
        parts: parts.len(),
        part_bytes: total,
        bytes: directory + last.len() as u64,
    })
}

/// Copies a part, checks its hash, and returns its CRC.
fn copy(
    mut reader: impl Read,
    path: &Path,
    reference: FileReference,
    to: &mut impl Write,
    io: impl Fn(io::Error) -> Error,
    copied: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<u32> {
    let (mut hasher, mut crc) = (Hasher::default(), crc32fast::Hasher::new());
    let mut chunk = vec![0; CHUNK];
    loop {
        if copied(hasher.bytes()).is_break() {
            return Err(Error::cancelled());
        }
        let count = match reader.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(io_at(path)(error)),
        };
        hasher.update(&chunk[..count]);
        crc.update(&chunk[..count]);
        to.write_all(&chunk[..count]).map_err(&io)?;
    }
    let (found, bytes) = hasher.finish();
    if bytes != reference.bytes {
        return Err(wrong_length(path, reference.bytes, bytes));
    }
    file::expect_hash(path, reference.sha256, found)?;
    Ok(crc.finalize())
}

/// The file being written, locked for this process. It is removed unless it is kept, since it may
/// have filled the disk.
struct Partial {
    path: PathBuf,
    file: File,
    kept: bool,
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.kept {
            // The next writer replaces it in any case.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Partial {
    fn create(to: &Path) -> Result<Partial> {
        let mut path = to.as_os_str().to_owned();
        path.push(".partial");
        let path = PathBuf::from(path);
        UNFINISHED.expect_at(&path)?;
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).open(&path).map_err(io_at(&path))?;
        Partial::locked(path, file)
    }

    /// Locks the file, checks that `path` still names it, and empties it.
    fn locked(path: PathBuf, file: File) -> Result<Partial> {
        let io = io_at(&path);
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(busy(&path)),
            // On file systems without locks, two concurrent writers may leave the file of one of
            // them, or a damaged one. Opening it verifies the bytes.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(io(error)),
        }
        // The previous owner of the lock may have finished and renamed the file. Then it is
        // complete and possibly mapped.
        if !shardwright_files::is_at(&file, &path) {
            return Err(busy(&path));
        }
        file.set_len(0).map_err(io)?;
        Ok(Partial { path, file, kept: false })
    }

    fn keep(mut self, to: &Path) -> Result<()> {
        self.file.sync_all().map_err(io_at(&self.path))?;
        fs::rename(&self.path, to).map_err(io_at(to))?;
        self.kept = true;
        // If its folder is writable but not readable, the name may be lost in a power failure.
        if let Some(parent) = to.parent() {
            let _ = File::open(parent).and_then(|parent| parent.sync_all());
        }
        Ok(())
    }
}

#[cfg(all(test, unix))]
mod tests {
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    /// Returns the error of a refusal to write.
    fn refused(result: Result<Partial>) -> String {
        let Err(error) = result else { panic!("not refused") };
        assert_eq!(error.kind(), ErrorKind::Argument);
        error.to_string()
    }

    #[test]
    fn an_unfinished_file_is_replaced_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let (to, partial) = (folder.path().join("out.swb"), folder.path().join("out.swb.partial"));
        // The header is missing while its part is written.
        fs::write(&partial, [0; 4096]).unwrap();
        drop(Partial::create(&to).unwrap());
        fs::write(&partial, "a download of another program").unwrap();
        let said = refused(Partial::create(&to));
        assert!(said.contains("an unfinished packed bundle"), "{said}");
        assert_eq!(fs::read(&partial).unwrap(), b"a download of another program");
    }

    /// With two writers, the second opens the file before the first renames it, and locks it
    /// afterwards.
    #[test]
    fn a_file_that_another_writer_finished_is_not_emptied() {
        let folder = tempfile::tempdir().unwrap();
        let (to, partial) = (folder.path().join("out.swb"), folder.path().join("out.swb.partial"));
        let mut first = Partial::create(&to).unwrap();
        let opened = OpenOptions::new().write(true).open(&partial).unwrap();
        assert!(refused(Partial::create(&to)).contains("being written"));
        first.file.write_all(b"whole").unwrap();
        first.keep(&to).unwrap();
        assert!(refused(Partial::locked(partial.clone(), opened)).contains("being written"));
        assert_eq!(fs::read(&to).unwrap(), b"whole");
        Partial::create(&to).unwrap().keep(&to).unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"");
    }
}
