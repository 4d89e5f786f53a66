//! The output of a shim's compilation, in one file that is mapped when it is loaded.
//!
//! ```text
//! offset  0  magic "SWARTEF\0", then the prefix of a work order
//!     16384  payload: the shim's bytes; a page is as large on some phones
//!            head: the shim's own, at most 64 KiB
//!            JSON: who made it, for what, with which interface; its length stands in the prefix
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shardwright_files::{Section, hex};
use shardwright_shim_abi::raw::SW_HEAD_LIMIT;
use shardwright_vocabulary::{FlagOutcome, NodePlacement, ShardOrigin, ShimIdentity};

use crate::chip::Chip;
use crate::container::{Container, ContainerError, Format, HeadAt, SHOWN_ALIGNMENT, Writer};
use crate::interface::EntryInterface;

const MAGIC: [u8; 8] = *b"SWARTEF\0";

/// JSON that is parsed at most: interfaces, flags and placements, far less than the graph itself.
const JSON_LIMIT: u64 = 32 << 20;

/// Offset of the payload. A driver that maps the file itself can do so at multiples of a page,
/// which has 16 KiB on newer phones.
const PAGE: u64 = 16 << 10;

const FORMAT: Format =
    Format { magic: MAGIC, what: "an artefact", page: PAGE, head_limit: JSON_LIMIT, head_at: HeadAt::Back };

/// File name ending of artefacts.
pub const ARTEFACT_SUFFIX: &str = ".swa";

/// An artefact that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArtefactError {
    /// The file as such.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// The heads that are stored apart from an artefact are invalid.
    #[error("`{}`: heads of an artefact: {reason}", path.display())]
    Heads {
        /// The file with the heads.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl ArtefactError {
    /// What would help.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            ArtefactError::Container(error) => error.help().or(Some("compile the shard again")),
            ArtefactError::Heads { .. } => Some("compile the bundle again"),
        }
    }
}

/// The head of an artefact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArtefactHead {
    /// Name of the shim that made it.
    pub shim: String,
    /// Version of that shim.
    pub shim_version: String,
    /// Device it was made for.
    pub device: String,
    /// Name of the work order.
    pub work_order: String,
    /// Bytes of the payload.
    pub payload_length: u64,
    /// Bytes of the shim's head.
    pub head_length: u64,
    /// Interfaces of its entry points.
    pub entries: Vec<EntryInterface>,
    /// Every flag of the work order, in its order.
    pub flags: Vec<FlagOutcome>,
    /// Nodes that run elsewhere than on the device.
    pub placements: Vec<NodePlacement>,
    /// The chip with the facts that the shim read; `None` if it reads none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chip: Option<Chip>,
    /// Facts of the chip as the shim read them back from the compiler's output.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub made_for: BTreeMap<String, String>,
}

impl ArtefactHead {
    /// Facts for which the compiler's output differs from the profile, or which the profile does
    /// not state: the fact, the value requested, the value found.
    pub fn made_otherwise(&self) -> impl Iterator<Item = (&str, Option<&str>, &str)> {
        let asked = |fact: &String| self.chip.as_ref()?.facts.get(fact).map(String::as_str);
        let reported =
            self.made_for.iter().map(move |(fact, made)| (fact.as_str(), asked(fact), made.as_str()));
        reported.filter(|(_, asked, made)| *asked != Some(made))
    }

    /// The compiler, the flags and the placements of nodes.
    pub fn origin(&self) -> ShardOrigin {
        let compiled_by = ShimIdentity {
            shim: self.shim.clone(),
            version: self.shim_version.clone(),
            device: self.device.clone(),
            // Not recorded in an artefact; its compiler or the bundle that contains it knows.
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

/// A checked, mapped artefact; cloning shares it.
#[derive(Clone, Debug)]
pub struct Artefact(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    container: Container,
    head: ArtefactHead,
}

/// Where a compiled artefact goes.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// Into a directory, as `<hash>.swa`.
    Directory(&'a Path),
    /// Into a file without a name, gone when the artefact is dropped.
    Temporary,
}

impl Artefact {
    /// Maps a file and checks its hash and its head. The file must not be changed while it is open.
    pub fn open(path: &Path) -> Result<Artefact, ArtefactError> {
        Artefact::from_container(Container::open(path, &FORMAT)?)
    }

    /// Maps a section of a file and checks its head. Its hash is not computed: the caller has
    /// checked every byte against one that stands elsewhere, or displays it and loads nothing. If
    /// the section begins where no page of 4 KiB does, it is [copied](Artefact::copied_bytes).
    pub fn of_section(section: Section) -> Result<Artefact, ArtefactError> {
        Artefact::from_container(Container::unchecked(section, &FORMAT)?)
    }

    /// Maps `length` bytes at `offset` of a file that another process has opened and checked.
    pub fn received(file: std::fs::File, offset: u64, length: u64) -> Result<Artefact, ArtefactError> {
        let path = Path::new("<received>");
        let io = |source| ContainerError::Io { path: path.to_owned(), source };
        let whole = Section::whole(path, file).map_err(io)?;
        let found = whole.length();
        let section = whole.part(path, offset, length).ok_or(ContainerError::Length {
            path: path.to_owned(),
            expected: offset.saturating_add(length),
            found,
        })?;
        Artefact::of_section(section)
    }

    fn from_container(container: Container) -> Result<Artefact, ArtefactError> {
        let head: ArtefactHead = serde_json::from_slice(container.head())
            .map_err(|error| container.head_error(error.to_string()))?;
        let canonical = serde_json::to_vec(&head).map_err(|error| container.head_error(error.to_string()))?;
        if canonical != container.head() {
            return Err(container.head_error("not in canonical spelling").into());
        }
        if head.head_length > u64::from(SW_HEAD_LIMIT) {
            return Err(container
                .head_error(format!("the shim's head has {} bytes", head.head_length))
                .into());
        }
        let length = container.length();
        let expected = container
            .content()
            .checked_add(head.payload_length)
            .and_then(|end| end.checked_add(head.head_length))
            .and_then(|end| end.checked_add(container.head().len() as u64));
        if expected != Some(length) {
            return Err(container
                .head_error(format!(
                    "a payload of {} and a head of {} do not make a file of {length} bytes",
                    head.payload_length, head.head_length
                ))
                .into());
        }
        Ok(Artefact(Arc::new(Inner { container, head })))
    }

    /// Its head.
    pub fn head(&self) -> &ArtefactHead {
        &self.0.head
    }

    /// SHA-256 of the content in hex.
    pub fn name(&self) -> String {
        hex::encode(&self.0.container.hash)
    }

    /// Path of the file; for an unnamed one, the path at which it was made.
    pub fn path(&self) -> &Path {
        self.0.container.path()
    }

    /// The head that the shim wrote.
    pub fn shim_head(&self) -> &[u8] {
        let head = &self.0.head;
        let offset = self.0.container.content() + head.payload_length;
        self.0.container.range(offset, head.head_length).unwrap_or_default()
    }

    /// The payload that the shim wrote, at a multiple of 4 KiB in memory.
    pub fn payload(&self) -> &[u8] {
        let (offset, length) = (self.0.container.content(), self.0.head.payload_length);
        self.0.container.range(offset, length).unwrap_or_default()
    }

    /// Where it lies.
    pub fn section(&self) -> &Section {
        &self.0.container.section
    }

    /// Where the payload lies.
    pub fn payload_section(&self) -> Option<Section> {
        let section = self.section();
        section.part(section.path(), self.0.container.content(), self.0.head.payload_length)
    }

    /// The file with the payload, and its offset, if the payload in memory is that file mapped.
    pub(crate) fn payload_in_file(&self) -> Option<(&std::fs::File, u64)> {
        let section = self.section();
        (self.copied_bytes() == 0).then(|| (section.file(), section.offset() + self.0.container.content()))
    }

    /// Returns whether an artefact at this offset of a file is copied into memory, because no page
    /// begins there.
    pub fn is_copied_from(offset: u64) -> bool {
        !offset.is_multiple_of(SHOWN_ALIGNMENT)
    }

    /// Bytes that were copied into memory, because the artefact begins where no page does.
    pub fn copied_bytes(&self) -> u64 {
        self.0.container.copied()
    }
}

/// An artefact that is being written.
pub(crate) struct ArtefactWriter {
    writer: Writer,
    head: Option<Vec<u8>>,
}

impl ArtefactWriter {
    pub(crate) fn new(place: Place<'_>) -> Result<ArtefactWriter, ArtefactError> {
        let writer = match place {
            Place::Directory(directory) => Writer::start(directory, &FORMAT, None)?,
            Place::Temporary => Writer::start_unnamed(&FORMAT, None)?,
        };
        Ok(ArtefactWriter { writer, head: None })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), ArtefactError> {
        self.writer.write(bytes).map_err(|error| self.writer.error(error).into())
    }

    /// Stores the shim's head; false when it is too long or not the first.
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

    /// Closes the file with `head`, whose lengths are filled in here.
    pub(crate) fn finish(mut self, mut head: ArtefactHead) -> Result<Artefact, ArtefactError> {
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
