//! The output of a shim's compilation, in one file that is mapped when it is loaded.
//!
//! ```text
//! offset  0  magic "SWARTEF\0", then the prefix of a work order
//!     16384  payload: the shim's bytes; a page is as large on some phones
//!            head: the shim's own, at most 64 KiB
//!            JSON: compiler, device, interfaces; the prefix has its length
//! ```

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shardwright_files::{Pages, Section, hex};
use shardwright_shim_abi::raw::SW_HEAD_LIMIT;
use shardwright_vocabulary::{FlagRecord, NodePlacement, Result, ShardOrigin, ShimIdentity};

use crate::chip::Chip;
use crate::container::{Container, Format, HeadAt, SHOWN_ALIGNMENT, Writer, io_error, wrong_length};
use crate::interface::EntryInterface;

const MAGIC: [u8; 8] = *b"SWARTEF\0";

/// Maximum size of JSON that is parsed. It contains interfaces, flags and placements, which are
/// much smaller than the graph itself.
const JSON_LIMIT: u64 = 32 << 20;

/// Offset of the payload. A driver that maps the file itself needs a multiple of the page size,
/// which is 16 KiB on newer phones.
const PAGE: u64 = 16 << 10;

const FORMAT: Format =
    Format { magic: MAGIC, what: "an artefact", page: PAGE, head_limit: JSON_LIMIT, head_at: HeadAt::Back };

/// File name suffix of artefacts.
pub const ARTEFACT_SUFFIX: &str = ".swa";

/// The head of an artefact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArtefactHead {
    /// Name of the shim that compiled it.
    pub shim: String,
    /// Version of that shim.
    pub shim_version: String,
    /// Device for which it was compiled.
    pub device: String,
    /// Name of the work order.
    pub work_order: String,
    /// Size of the payload, bytes.
    pub payload_length: u64,
    /// Size of the shim's head, bytes.
    pub head_length: u64,
    /// Interfaces of its entry points.
    pub entries: Vec<EntryInterface>,
    /// Verdicts on all flags of the work order, in its order.
    pub flags: Vec<FlagRecord>,
    /// Nodes that do not run on the device.
    pub placements: Vec<NodePlacement>,
    /// The chip with the facts that the shim read. `None` if the shim reads no facts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chip: Option<Chip>,
    /// Facts of the chip as the shim read them back from the compiler's output.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub made_for: BTreeMap<String, String>,
}

impl ArtefactHead {
    /// Lists the facts for which the compiler's output differs from the profile, or which are
    /// missing in the profile: the fact, the requested value, the value found.
    pub fn made_otherwise(&self) -> impl Iterator<Item = (&str, Option<&str>, &str)> {
        let asked = |fact: &String| self.chip.as_ref()?.facts.get(fact).map(String::as_str);
        let reported =
            self.made_for.iter().map(move |(fact, made)| (fact.as_str(), asked(fact), made.as_str()));
        reported.filter(|(_, asked, made)| *asked != Some(made))
    }

    /// Returns the compiler, the flags and the placements of nodes.
    pub fn origin(&self) -> ShardOrigin {
        let compiled_by = ShimIdentity {
            shim: self.shim.clone(),
            version: self.shim_version.clone(),
            device: self.device.clone(),
            // Not recorded in an artefact. Its compiler or the bundle that contains it has this
            // information.
            simulated: false,
        };
        ShardOrigin {
            compiled_by: Some(compiled_by),
            flags: self.flags.clone(),
            placements: self.placements.clone(),
            ..ShardOrigin::default()
        }
    }
}

/// A checked, mapped artefact. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Artefact(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    container: Container,
    head: ArtefactHead,
}

/// Destination of a compiled artefact.
#[derive(Clone, Copy, Debug)]
pub enum ArtefactDestination<'a> {
    /// A file `<hash>.swa` in a directory.
    Directory(&'a Path),
    /// A file without a name, which is removed when the artefact is dropped.
    Temporary,
}

impl Artefact {
    /// Maps a file and checks its hash and its head. The file must not be changed while it is open.
    pub fn open(path: &Path) -> Result<Artefact> {
        Artefact::from_container(Container::open(path, &FORMAT)?)
    }

    /// Maps a section of a file and checks its head. Does not compute its hash: the caller has
    /// verified every byte against another hash, or only displays the artefact. If the section does
    /// not begin at a page of 4 KiB, it is [copied](Artefact::copied_bytes).
    pub fn of_section(section: Section) -> Result<Artefact> {
        Artefact::from_container(Container::unchecked(section, &FORMAT)?)
    }

    /// Maps `length` bytes at `offset` of a file that another process has opened and checked.
    pub fn received(file: std::fs::File, offset: u64, length: u64) -> Result<Artefact> {
        let path = Path::new("<received>");
        let whole = Section::whole(path, file).map_err(|error| io_error(path, error))?;
        let part = whole.part(path, offset, length);
        let cut = || wrong_length(path, offset.saturating_add(length), whole.length());
        Artefact::of_section(part.ok_or_else(cut)?)
    }

    fn from_container(container: Container) -> Result<Artefact> {
        let head: ArtefactHead = serde_json::from_slice(container.head())
            .map_err(|error| container.head_error(error.to_string()))?;
        let canonical = serde_json::to_vec(&head).map_err(|error| container.head_error(error.to_string()))?;
        if canonical != container.head() {
            return Err(container.head_error("not in canonical spelling"));
        }
        if head.head_length > u64::from(SW_HEAD_LIMIT) {
            return Err(container.head_error(format!("the shim's head has {} bytes", head.head_length)));
        }
        let length = container.length();
        let expected = container
            .content()
            .checked_add(head.payload_length)
            .and_then(|end| end.checked_add(head.head_length))
            .and_then(|end| end.checked_add(container.head().len() as u64));
        if expected != Some(length) {
            return Err(container.head_error(format!(
                "a payload of {} and a head of {} do not make a file of {length} bytes",
                head.payload_length, head.head_length
            )));
        }
        Ok(Artefact(Arc::new(Inner { container, head })))
    }

    pub fn head(&self) -> &ArtefactHead {
        &self.0.head
    }

    /// Returns the SHA-256 of the content in hex.
    pub fn name(&self) -> String {
        hex::encode(&self.0.container.hash)
    }

    /// Returns the path of the file. For an unnamed file it is the path at which it was created.
    pub fn path(&self) -> &Path {
        self.0.container.path()
    }

    /// Returns the head that the shim wrote.
    pub fn shim_head(&self) -> &[u8] {
        let head = &self.0.head;
        let offset = self.0.container.content() + head.payload_length;
        self.0.container.range(offset, head.head_length).unwrap_or_default()
    }

    /// Returns the payload that the shim wrote. Its address is a multiple of 4 KiB.
    pub fn payload(&self) -> &[u8] {
        let (offset, length) = (self.0.container.content(), self.0.head.payload_length);
        self.0.container.range(offset, length).unwrap_or_default()
    }

    /// Returns the section of the file that contains it.
    pub fn section(&self) -> &Section {
        &self.0.container.section
    }

    /// Returns the section of the file that contains the payload.
    pub fn payload_section(&self) -> Option<Section> {
        let section = self.section();
        section.part(section.path(), self.0.container.content(), self.0.head.payload_length)
    }

    /// Returns the file with the payload and its offset, if the payload in memory is a mapping of
    /// that file.
    pub(crate) fn payload_in_file(&self) -> Option<(&std::fs::File, u64)> {
        let section = self.section();
        (self.copied_bytes() == 0).then(|| (section.file(), section.offset() + self.0.container.content()))
    }

    /// Checks whether an artefact at this offset of a file is copied into memory, because no page
    /// begins there.
    pub fn is_copied_from(offset: u64) -> bool {
        !offset.is_multiple_of(SHOWN_ALIGNMENT)
    }

    /// Returns the number of bytes copied into memory, because the artefact does not begin at a
    /// page.
    pub fn copied_bytes(&self) -> u64 {
        self.0.container.copied()
    }

    /// Returns its pages in this process, or `None` where the system does not report them.
    pub fn pages(&self) -> Option<Pages> {
        self.0.container.pages()
    }

    /// Returns its bytes on each memory node, or `None` if there is only one node or the system
    /// does not report them.
    pub fn node_bytes(&self) -> Option<Vec<u64>> {
        self.0.container.node_bytes()
    }

    /// Moves it into huge pages in the background, for a shard that reads its weights for every
    /// token.
    pub(crate) fn improve_pages(&self) {
        self.0.container.improve_pages();
    }
}

/// An artefact that is being written.
pub(crate) struct ArtefactWriter {
    writer: Writer,
    head: Option<Vec<u8>>,
}

impl ArtefactWriter {
    pub(crate) fn new(place: ArtefactDestination<'_>) -> Result<ArtefactWriter> {
        let writer = match place {
            ArtefactDestination::Directory(directory) => Writer::start(directory, &FORMAT, None)?,
            ArtefactDestination::Temporary => Writer::start_unnamed(&FORMAT, None)?,
        };
        Ok(ArtefactWriter { writer, head: None })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.write(bytes).map_err(|error| self.writer.error(error))
    }

    /// Stores the shim's head. Returns false if it is too long or not the first one.
    pub(crate) fn set_head(&mut self, bytes: &[u8]) -> bool {
        if self.head.is_some() || bytes.len() > SW_HEAD_LIMIT as usize {
            return false;
        }
        self.head = Some(bytes.to_vec());
        true
    }

    pub(crate) fn has_head(&self) -> bool {
        self.head.is_some()
    }

    /// Closes the file with `head`, and sets the lengths in it.
    pub(crate) fn finish(mut self, mut head: ArtefactHead) -> Result<Artefact> {
        head.payload_length = self.writer.position() - PAGE;
        let own = self.head.unwrap_or_default();
        head.head_length = own.len() as u64;
        let json = serde_json::to_vec(&head).map_err(|error| {
            self.writer.error(std::io::Error::new(std::io::ErrorKind::InvalidData, error))
        })?;
        self.writer
            .write(&own)
            .and_then(|()| self.writer.head_at_back(&json))
            .map_err(|error| self.writer.error(error))?;
        Artefact::from_container(Container::written(self.writer.finish(ARTEFACT_SUFFIX)?, &FORMAT)?)
    }
}
