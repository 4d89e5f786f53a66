//! The container format of work orders and artefacts: a 64-byte prefix with the SHA-256 of
//! everything after it, a JSON head, and page-aligned bytes. Files are written atomically.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use memmap2::{Mmap, MmapMut};
use sha2::{Digest, Sha256};
use shardwright_files::{Links, Mapping, Pages, Section, hex};
use shardwright_vocabulary::{Error, ErrorKind, Result, units};

use crate::huge_pages::HugePages;

/// Alignment in memory of everything passed to a shim, as the shim contract requires.
pub(crate) const SHOWN_ALIGNMENT: u64 = 4096;

/// Number of bytes before the JSON head.
pub(crate) const PREFIX: u64 = 64;

const VERSION: u32 = 3;

/// Returns the error of the system about a file or folder.
pub(crate) fn io_error(path: &Path, error: impl Into<Error>) -> Error {
    let error = error.into().at(path.display()).or_help("check the path and its permissions");
    if error.kind() == ErrorKind::Missing { error.with_kind(ErrorKind::Invalid) } else { error }
}

/// Returns the error of a folder for temporary files that is missing or not writable.
fn no_temporary(directory: &Path, error: io::Error) -> Error {
    let error = Error::from(error).at("no temporary file can be created").at(directory.display());
    error.or_help("set the variable `TMPDIR` to a writable folder on a disk with free space")
}

/// Returns the error of a file with another length than it should have.
pub(crate) fn wrong_length(path: &Path, expected: u64, found: u64) -> Error {
    cut_or_changed(path, format!("expected {expected} bytes, got {found}"))
}

fn cut_or_changed(path: &Path, message: String) -> Error {
    invalid(path, message, "the file was truncated or changed; write it again")
}

fn foreign(path: &Path, message: String) -> Error {
    invalid(path, message, "the file was not written by this program; write it again")
}

fn invalid(path: &Path, message: String, help: &str) -> Error {
    Error::invalid(message).at(path.display()).with_help(help)
}

/// A file format and its limits.
#[derive(Debug)]
pub(crate) struct Format {
    pub(crate) magic: [u8; 8],
    /// Name of the format for the error "is not a work order".
    pub(crate) what: &'static str,
    /// Alignment of the offsets of all data passed to a shim.
    pub(crate) page: u64,
    /// Maximum size of the JSON that is parsed.
    pub(crate) head_limit: u64,
    pub(crate) head_at: HeadAt,
}

/// Position of the JSON head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadAt {
    /// Directly after the prefix. The rest of the file starts at the next page.
    Front,
    /// At the end, for files whose content is only known after streaming it. The content starts at
    /// the first page.
    Back,
}

/// Whether to check the hash in the file's prefix.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verify {
    Always,
    /// For a file that was just verified or written, or is only displayed.
    Never,
}

/// The bytes of a container, at an address that may be passed to shims.
#[derive(Debug)]
enum Bytes {
    Mapped(Arc<Mapping>),
    /// Bytes of a section that does not begin at a page, for example an entry of an app's package.
    Copied(Mmap),
}

impl Bytes {
    fn of(section: &Section) -> io::Result<Bytes> {
        let map = section.map()?;
        if (map.as_ptr() as u64).is_multiple_of(SHOWN_ALIGNMENT) {
            // Weights are read from front to back for every token.
            map.prefer_huge_pages();
            return Ok(Bytes::Mapped(Arc::new(map)));
        }
        let mut copy = MmapMut::map_anon(map.len().max(1))?;
        #[cfg(target_os = "linux")]
        let _ = copy.advise(memmap2::Advice::HugePage);
        section.read_exact_at(&mut copy[..map.len()], 0)?;
        Ok(Bytes::Copied(copy.make_read_only()?))
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Copied(copy) => copy,
        }
    }
}

/// A mapped container whose hash was checked.
#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) section: Section,
    bytes: Bytes,
    huge_pages: OnceLock<Option<HugePages>>,
    page: u64,
    head_at: HeadAt,
    head_length: u64,
    pub(crate) hash: [u8; 32],
}

fn number<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut array = [0; N];
    if let Some(slice) = bytes.get(offset..offset + N) {
        array.copy_from_slice(slice);
    }
    array
}

impl Container {
    /// Maps and checks a file.
    pub(crate) fn open(path: &Path, format: &Format) -> Result<Container> {
        Container::map(Container::open_file(path)?, format, Verify::Always)
    }

    /// Maps a section without checking its hash: the caller has verified it completely, or only
    /// displays it. Weights may be gigabytes.
    pub(crate) fn unchecked(section: Section, format: &Format) -> Result<Container> {
        Container::map(section, format, Verify::Never)
    }

    fn open_file(path: &Path) -> Result<Section> {
        let opened = shardwright_files::open(path, Links::Followed);
        let (file, _) = opened.map_err(|error| io_error(path, error))?;
        Section::whole(path, file).map_err(|error| io_error(path, error))
    }

    /// Maps a file that [`Writer`] has just written. Its hash was computed while writing and is not
    /// computed again.
    pub(crate) fn written((path, file): (PathBuf, File), format: &Format) -> Result<Container> {
        let section = Section::whole(&path, file).map_err(|error| io_error(&path, error))?;
        Container::unchecked(section, format)
    }

    fn map(section: Section, format: &Format, verify: Verify) -> Result<Container> {
        let Format { magic, what, page: own_page, head_limit, head_at } = *format;
        let path = section.path();
        let io = |error: io::Error| io_error(path, error);
        let found = section.length();
        let mut prefix = [0_u8; PREFIX as usize];
        let read = prefix.len().min(usize::try_from(found).unwrap_or(usize::MAX));
        section.read_exact_at(&mut prefix[..read], 0).map_err(io)?;
        if read < 8 || prefix[..8] != magic {
            let message = format!("not {what}: wrong magic at offset 0");
            return Err(invalid(path, message, "check the path"));
        }
        if read < prefix.len() {
            return Err(wrong_length(path, PREFIX, found));
        }
        let version = u32::from_le_bytes(number(&prefix, 8));
        if version != VERSION {
            let message = format!("expected format version {VERSION} at offset 8, got {version}");
            return Err(invalid(path, message, "write it again with this release"));
        }
        let page = u64::from(u32::from_le_bytes(number(&prefix, 12)));
        if page != own_page {
            return Err(foreign(
                path,
                format!("expected a page size of {own_page} at offset 12, got {page}"),
            ));
        }
        let head_length = u64::from_le_bytes(number(&prefix, 16));
        if head_length > head_limit {
            let message =
                format!("expected a head of at most {head_limit} bytes at offset 16, got {head_length}");
            return Err(foreign(path, message));
        }
        let expected = u64::from_le_bytes(number(&prefix, 24));
        let least = head_length
            + match head_at {
                HeadAt::Front => PREFIX,
                HeadAt::Back => page,
            };
        if expected != found || least > found {
            let expected = if expected == found { least } else { expected };
            return Err(wrong_length(path, expected, found));
        }
        // Files of these formats are written once, under a temporary name, and never changed. The
        // README requires for the cache directory that no other program changes a mapped file.
        let bytes = Bytes::of(&section).map_err(|error| match ErrorKind::of_io(&error) {
            // The file is not at fault, and the path of a temporary one means nothing to a user.
            ErrorKind::Memory => Error::from(error)
                .at(format_args!("mapping {what} of {}, with the weights of a shard", units::bytes(found))),
            _ => io(error),
        })?;
        let hash: [u8; 32] = number(&prefix, 32);
        let sum = match verify {
            Verify::Never => hash,
            Verify::Always => Sha256::digest(&bytes[PREFIX as usize..found as usize]).into(),
        };
        if sum != hash {
            let (expected, found) = (hex::encode(&hash), hex::encode(&sum));
            return Err(cut_or_changed(path, format!("damaged: expected SHA-256 {expected}, got {found}")));
        }
        Ok(Container { bytes, huge_pages: OnceLock::new(), page, head_at, head_length, hash, section })
    }

    pub(crate) fn head(&self) -> &[u8] {
        let start = match self.head_at {
            HeadAt::Front => PREFIX,
            HeadAt::Back => self.length() - self.head_length,
        };
        &self.bytes[start as usize..(start + self.head_length) as usize]
    }

    /// Returns the offset of the content, which is everything except the prefix and the head.
    pub(crate) fn content(&self) -> u64 {
        match self.head_at {
            HeadAt::Front => (PREFIX + self.head_length).next_multiple_of(self.page),
            HeadAt::Back => self.page,
        }
    }

    /// Returns `offset..offset + length` of the file, or `None` beyond its end.
    pub(crate) fn range(&self, offset: u64, length: u64) -> Option<&[u8]> {
        let end = offset.checked_add(length)?;
        self.bytes.get(usize::try_from(offset).ok()?..usize::try_from(end).ok()?)
    }

    /// Returns its size in bytes.
    pub(crate) fn length(&self) -> u64 {
        self.section.length()
    }

    pub(crate) fn path(&self) -> &Path {
        self.section.path()
    }

    /// Returns the number of bytes copied into memory, because the section does not begin at a
    /// page.
    pub(crate) fn copied(&self) -> u64 {
        match self.bytes {
            Bytes::Mapped(_) => 0,
            Bytes::Copied(_) => self.length(),
        }
    }

    /// Moves a file that is read again and again into huge pages, in the background until the
    /// container is dropped.
    pub(crate) fn improve_pages(&self) {
        if let Bytes::Mapped(map) = &self.bytes {
            self.huge_pages.get_or_init(|| HugePages::of(map));
        }
    }

    /// Returns the pages of its bytes in this process, or `None` where the system does not report
    /// them.
    pub(crate) fn pages(&self) -> Option<Pages> {
        Pages::of(&self.bytes)
    }

    /// Returns its bytes on each memory node (see [`Pages::by_node`]).
    pub(crate) fn node_bytes(&self) -> Option<Vec<u64>> {
        Pages::by_node(&self.bytes)
    }

    pub(crate) fn head_error(&self, reason: impl Into<String>) -> Error {
        foreign(self.path(), format!("head at offset {PREFIX}: {}", reason.into()))
    }
}

/// A file that is being written.
enum Unfinished {
    /// A file that gets its final name at the end and has a temporary name until then.
    ToBeNamed(tempfile::NamedTempFile),
    /// A file that never has a name (if the system allows that), so it disappears if the process is
    /// killed.
    Unnamed(File),
}

impl Unfinished {
    fn file(&mut self) -> &mut File {
        match self {
            Unfinished::ToBeNamed(file) => file.as_file_mut(),
            Unfinished::Unnamed(file) => file,
        }
    }
}

impl Write for Unfinished {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file().flush()
    }
}

/// Writes a container as a stream. It is not visible under its name before [`Writer::finish`].
pub(crate) struct Writer {
    file: BufWriter<Unfinished>,
    directory: PathBuf,
    magic: [u8; 8],
    page: u64,
    head_length: u64,
    position: u64,
    sum: Sha256,
}

impl Writer {
    /// Starts a file in `directory` that will get a name. A head at the front is passed here, a
    /// head at the back is passed to [`Writer::head_at_back`].
    pub(crate) fn start(directory: &Path, format: &Format, head: Option<&[u8]>) -> Result<Writer> {
        let file = tempfile::Builder::new().prefix(".writing-").tempfile_in(directory);
        Writer::over(file.map(Unfinished::ToBeNamed), directory, format, head)
    }

    /// Starts a file without a name in the system's directory for temporary files.
    pub(crate) fn start_unnamed(format: &Format, head: Option<&[u8]>) -> Result<Writer> {
        let directory = std::env::temp_dir();
        let file = tempfile::tempfile_in(&directory).map_err(|error| no_temporary(&directory, error))?;
        Writer::over(Ok(Unfinished::Unnamed(file)), &directory, format, head)
    }

    fn over(
        file: io::Result<Unfinished>,
        directory: &Path,
        format: &Format,
        head: Option<&[u8]>,
    ) -> Result<Writer> {
        let io = |error: io::Error| io_error(directory, error);
        let file = file.map_err(io)?;
        let mut writer = Writer {
            // The buffer allows writes of several huge pages.
            file: BufWriter::with_capacity(4 << 20, file),
            directory: directory.to_owned(),
            magic: format.magic,
            page: format.page,
            head_length: head.map_or(0, |head| head.len() as u64),
            position: PREFIX,
            sum: Sha256::new(),
        };
        writer.file.write_all(&[0; PREFIX as usize]).map_err(io)?;
        match head {
            Some(head) => writer.write(head),
            None => writer.align(),
        }
        .map_err(io)?;
        Ok(writer)
    }

    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    pub(crate) fn head_at_back(&mut self, head: &[u8]) -> io::Result<()> {
        self.head_length = head.len() as u64;
        self.write(head)
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.position += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    /// Writes zeros up to a page boundary.
    pub(crate) fn align(&mut self) -> io::Result<()> {
        let missing = self.position.next_multiple_of(self.page) - self.position;
        self.write(&vec![0; missing as usize])
    }

    pub(crate) fn error(&self, error: io::Error) -> Error {
        io_error(&self.directory, error)
    }

    fn seal(mut self) -> io::Result<(Unfinished, [u8; 32])> {
        let hash: [u8; 32] = self.sum.finalize_reset().into();
        let mut prefix = Vec::with_capacity(PREFIX as usize);
        prefix.extend_from_slice(&self.magic);
        prefix.extend_from_slice(&VERSION.to_le_bytes());
        prefix.extend_from_slice(&(self.page as u32).to_le_bytes());
        prefix.extend_from_slice(&self.head_length.to_le_bytes());
        prefix.extend_from_slice(&self.position.to_le_bytes());
        prefix.extend_from_slice(&hash);
        self.file.flush()?;
        let mut file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.file().seek(SeekFrom::Start(0))?;
        file.write_all(&prefix)?;
        Ok((file, hash))
    }

    /// Renames the file to `<hash><suffix>` atomically. A file started without a name gets none and
    /// is removed with its last mapping. Its path only distinguishes it from others.
    pub(crate) fn finish(self, suffix: &str) -> Result<(PathBuf, File)> {
        let directory = self.directory.clone();
        let io = |error: io::Error| io_error(&directory, error);
        let (file, hash) = self.seal().map_err(io)?;
        let path = directory.join(format!("{}{suffix}", hex::encode(&hash)));
        let file = match file {
            Unfinished::Unnamed(file) => file,
            Unfinished::ToBeNamed(file) => {
                file.as_file().sync_all().map_err(io)?;
                file.persist(&path).map_err(|error| io_error(&path, error.error))?
            }
        };
        Ok((path, file))
    }
}
