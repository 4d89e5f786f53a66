//! The format of compiled artefacts that all shims share: a header, a hashed descriptor, and the
//! payload from the vendor's library.
//!
//! ```text
//! 0   magic        8 bytes, the shim's own
//! 8   format       u32, then a u32 of zero
//! 16  descriptor   u64, bytes from 4096 on
//! 24  payload at   u64, a multiple of 4096
//! 32  payload      u64, bytes, to the end of the artefact
//! 40  sha256       32 bytes, of the descriptor
//! 72  zeros, descriptor, zeros, payload
//! ```
//!
//! All numbers are little-endian. The descriptor is JSON defined by the shim. It contains hashes of
//! the payload, because vendors' libraries accept damaged bytes. An artefact's head is one line
//! defined by the shim, followed by JSON.

use std::fmt::Display;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use shardwright_shim_abi::{
    Compatibility, Error, ErrorClass, Limit, LoadedEntry, MemoryKinds, Provenance, WorkOrderView,
};

use crate::port::{Port, bindings, check_ports};

/// Alignment of the start of a payload, in bytes.
pub const PAGE: u64 = 4096;
/// Length of the header in bytes.
const HEADER: usize = 72;
/// Maximum length of a descriptor in bytes. 64 entries of 300 ports need less than a tenth of it.
pub const MAX_DESCRIPTOR: u64 = 64 << 20;
/// Maximum number of entry points of an artefact. Real artefacts have two to five.
pub const MAX_ENTRIES: usize = 64;
/// Maximum number of ports of an entry: 64 layers with four states or rows each, and the inputs of
/// the step.
pub const MAX_PORTS: usize = 4096;
/// Maximum length of the name of an entry, graph, tensor or port, in bytes.
const MAX_NAME: usize = 4096;

/// Distinguishes the artefacts of one shim from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// First bytes of an artefact.
    pub magic: &'static [u8; 8],
    /// First line of a head. The rest is JSON.
    pub head: &'static str,
    /// Version of the layout, the descriptor and the head.
    pub number: u32,
    /// Name of the shim.
    pub shim: &'static str,
    /// Name of the payload, for example `a binary`.
    pub payload: &'static str,
    /// Advice for a user who passes some other file.
    pub foreign_help: &'static str,
}

/// Result of reading a head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadHead<H> {
    /// The head does not start with the shim's first line.
    Foreign,
    /// The head has another format number, so its members may have another meaning.
    OtherFormat(u32),
    /// The head has the format of this shim.
    Known(Box<H>),
}

impl<H> ReadHead<H> {
    /// Returns the head if this shim can read it.
    ///
    /// # Errors
    ///
    /// The compatibility answer for a head that this shim cannot read.
    pub fn known(&self, format: &Format) -> Result<&H, Compatibility> {
        match self {
            ReadHead::Known(head) => Ok(head),
            ReadHead::Foreign => {
                Err(Compatibility::NotMine(format!("the head was not written by the {} shim", format.shim)))
            }
            ReadHead::OtherFormat(other) => {
                Err(Compatibility::Unsupported(format!("format {other}, expected {}", format.number)))
            }
        }
    }
}

/// Checks that an artefact can be loaded, based on the compatibility answer for its head.
///
/// # Errors
///
/// `ErrorClass::IncompatibleArtefact` with advice if it cannot be loaded.
pub fn loads(answer: Compatibility, help: impl FnOnce() -> String) -> Result<(), Error> {
    match answer {
        Compatibility::Optimal | Compatibility::Recompile(_) => Ok(()),
        Compatibility::NotMine(reason) | Compatibility::Unsupported(reason) => {
            Err(incompatible(reason, help()))
        }
    }
}

/// Everything in an artefact except the payload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Descriptor<H, E> {
    /// Equal to the head that is stored next to the artefact.
    pub head: H,
    /// Entry points in the order of the work order.
    pub entries: Vec<E>,
}

/// The information about an artefact that is needed before it is loaded.
pub trait Head: Serialize + DeserializeOwned {
    /// Returns the number of entry points.
    fn entries(&self) -> u32;
}

/// An entry point of a descriptor.
pub trait Entry: Serialize + DeserializeOwned {
    /// Identifies a port in the compiled graph.
    type Place;

    /// Returns the members common to every shim's entry points.
    fn outline(&self) -> Outline<'_, Self::Place>;
}

/// The members common to every shim's entry points.
#[derive(Debug)]
pub struct Outline<'d, P> {
    /// Name in the work order.
    pub name: &'d str,
    /// Static row count.
    pub rows: u64,
    /// Context in the work order.
    pub context: u64,
    pub ports: &'d [Port<P>],
}

impl<P> Outline<'_, P> {
    /// Returns the entry with the bindings of a run. `alignment` returns the alignment of each
    /// port.
    pub fn loaded(&self, kinds: MemoryKinds, alignment: impl Fn(&Port<P>) -> u64) -> LoadedEntry {
        LoadedEntry {
            name: self.name.to_owned(),
            rows: self.rows,
            context: self.context,
            bindings: bindings(self.ports, kinds, alignment),
        }
    }
}

/// An opened artefact. Its descriptor has been verified and checked. Its payload has not been read.
#[derive(Clone, Debug)]
pub struct Opened<'m, H, E> {
    pub descriptor: Descriptor<H, E>,
    /// Offset of the payload in the artefact.
    pub payload_at: u64,
    /// The payload, up to the end of the artefact.
    pub payload: &'m [u8],
}

impl Format {
    /// Writes the head, from which `compatibility` answers.
    ///
    /// # Errors
    ///
    /// `ErrorClass::InvalidArgument` for a head that does not serialise to JSON. A plain struct
    /// always does.
    pub fn head_bytes<H: Serialize>(&self, head: &H) -> Result<Vec<u8>, Error> {
        let mut bytes = self.head.as_bytes().to_vec();
        bytes.extend(json(head)?);
        Ok(bytes)
    }

    /// Reads a head.
    ///
    /// # Errors
    ///
    /// `ErrorClass::CorruptArtefact` if the first line matches but the rest cannot be parsed.
    pub fn read_head<H: DeserializeOwned>(&self, bytes: &[u8]) -> Result<ReadHead<H>, Error> {
        let Some(text) = bytes.strip_prefix(self.head.as_bytes()) else { return Ok(ReadHead::Foreign) };
        #[derive(Deserialize)]
        struct OnlyFormat {
            format: u32,
        }
        let damaged = |error: serde_json::Error| {
            corrupt(self.head.len() as u64, format!("the head is damaged: {error}"))
        };
        let format = serde_json::from_slice::<OnlyFormat>(text).map_err(damaged)?.format;
        if format != self.number {
            return Ok(ReadHead::OtherFormat(format));
        }
        serde_json::from_slice(text).map(|head| ReadHead::Known(Box::new(head))).map_err(damaged)
    }

    /// Returns whether bytes start with the magic of the shim's artefacts, in any format version.
    pub fn is_ours(&self, bytes: &[u8]) -> bool {
        bytes.starts_with(self.magic)
    }

    /// Writes the header, descriptor and padding that precede a payload of `payload` bytes.
    ///
    /// # Errors
    ///
    /// `ErrorClass::ResourceLimit` for more entries or ports than the format allows, and for a
    /// descriptor longer than [`MAX_DESCRIPTOR`].
    pub fn prefix<H: Head, E: Entry>(
        &self,
        descriptor: &Descriptor<H, E>,
        payload: u64,
    ) -> Result<Vec<u8>, Error> {
        check_limits(descriptor.entries.iter().map(|entry| entry.outline().ports.len()))?;
        let descriptor = json(descriptor)?;
        limit("descriptor-bytes", descriptor.len() as u64, MAX_DESCRIPTOR)?;
        let payload_at = payload_at(descriptor.len());
        let mut bytes = Vec::with_capacity(payload_at as usize);
        bytes.extend(self.magic);
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(0u32.to_le_bytes());
        bytes.extend((descriptor.len() as u64).to_le_bytes());
        bytes.extend(payload_at.to_le_bytes());
        bytes.extend(payload.to_le_bytes());
        bytes.extend(Sha256::digest(&descriptor));
        bytes.resize(PAGE as usize, 0);
        bytes.extend(descriptor);
        bytes.resize(payload_at as usize, 0);
        Ok(bytes)
    }

    /// Reads the header and the descriptor, and checks the entries and ports.
    ///
    /// # Errors
    ///
    /// `ErrorClass::IncompatibleArtefact` for another file or another format version,
    /// `ErrorClass::CorruptArtefact` for damage.
    pub fn open<'m, H: Head, E: Entry>(&self, bytes: &'m [u8]) -> Result<Opened<'m, H, E>, Error> {
        if !self.is_ours(bytes) {
            let reason = format!("the bytes are not an artefact of the {} shim", self.shim);
            return Err(incompatible(reason, self.foreign_help));
        }
        let header = bytes.first_chunk::<HEADER>().ok_or_else(|| corrupt(bytes.len() as u64, "cut short"))?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&header[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let format = word(8);
        if format != u64::from(self.number) {
            let reason = format!("the artefact is of format {format}, this shim reads {}", self.number);
            return Err(incompatible(reason, "compile the work order again with this shim"));
        }
        let (length, payload_at, payload) = (word(16), word(24), word(32));
        if length > MAX_DESCRIPTOR {
            let reason = format!("the descriptor has {length} bytes, expected at most {MAX_DESCRIPTOR}");
            return Err(corrupt(16, reason));
        }
        let end = PAGE + length;
        if payload_at != end.next_multiple_of(PAGE) {
            return Err(corrupt(
                24,
                format!("{} at {payload_at} does not follow its descriptor", self.payload),
            ));
        }
        if payload_at.checked_add(payload) != Some(bytes.len() as u64) {
            let (existing, what) = (bytes.len(), self.payload);
            let reason = format!("{existing} bytes, expected {what} of {payload} from {payload_at} on");
            return Err(corrupt(32, reason));
        }
        // The comparison above ensures that the range is within the artefact.
        let text = &bytes[PAGE as usize..end as usize];
        if Sha256::digest(text)[..] != header[40..HEADER] {
            return Err(corrupt(PAGE, "the descriptor does not match its hash"));
        }
        zeros(bytes, HEADER as u64..PAGE)?;
        zeros(bytes, end..payload_at)?;
        let descriptor = serde_json::from_slice(text)
            .map_err(|error| corrupt(PAGE, format!("the descriptor cannot be read: {error}")))?;
        check(&descriptor).map_err(|reason| corrupt(PAGE, reason))?;
        Ok(Opened { descriptor, payload_at, payload: &bytes[payload_at as usize..] })
    }
}

/// Computes the offset of the payload after a descriptor of `descriptor` bytes.
pub fn payload_at(descriptor: usize) -> u64 {
    (PAGE + descriptor as u64).next_multiple_of(PAGE)
}

/// Checks that a range within an artefact contains only zeros.
///
/// # Errors
///
/// `ErrorClass::CorruptArtefact` if a byte is not zero.
pub fn zeros(bytes: &[u8], range: std::ops::Range<u64>) -> Result<(), Error> {
    match bytes[range.start as usize..range.end as usize].iter().any(|byte| *byte != 0) {
        true => Err(corrupt(range.start, "padding is not zero")),
        false => Ok(()),
    }
}

/// Computes the SHA-256 of bytes as lower-case hex.
pub fn hash(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Checks the hash of compiled bytes. `what` names the bytes and `offset` is their position in the
/// artefact.
///
/// # Errors
///
/// `ErrorClass::CorruptArtefact` if the hash differs from `written`.
pub fn check_hash(bytes: &[u8], written: &str, what: &str, offset: u64) -> Result<(), Error> {
    let found = hash(bytes);
    match found == written {
        true => Ok(()),
        false => Err(corrupt(offset, format!("{what} has the hash {found}, expected {written}"))),
    }
}

/// Serialises a head or descriptor to JSON.
///
/// # Errors
///
/// `ErrorClass::InvalidArgument` if the value cannot be serialised, which does not happen for plain
/// structs of numbers and text.
pub fn json<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(value).map_err(|error| Error::invalid_graph("all", error))
}

/// Creates the error for an intact artefact that cannot be used here.
pub fn incompatible(reason: impl Into<String>, help: impl Into<String>) -> Error {
    Error::new(ErrorClass::IncompatibleArtefact, reason).help(help)
}

/// Creates the error for an artefact that is damaged at this offset.
pub fn corrupt(offset: u64, reason: impl Display) -> Error {
    Error::corrupt_at(offset, reason)
}

fn limit(limit: &'static str, value: u64, max: u64) -> Result<(), Error> {
    if value <= max {
        return Ok(());
    }
    let help = "cut the model into smaller shards or use fewer entry points";
    Err(Error::resource_limit(limit, value, max).help(help))
}

/// Returns the limits of the format, as a device reports them.
pub fn limits() -> Vec<Limit> {
    let limit = |name: &str, value: usize, note: &str| {
        Limit::new(name, value as u64, Provenance::Declared).with_note(note)
    };
    vec![
        limit("entries", MAX_ENTRIES, "entry points of one artefact"),
        limit("ports", MAX_PORTS, "inputs and outputs of one entry point"),
    ]
}

/// Checks the number of entry points and the number of ports of each.
fn check_limits(mut ports: impl ExactSizeIterator<Item = usize>) -> Result<(), Error> {
    limit("entries", ports.len() as u64, MAX_ENTRIES as u64)?;
    ports.try_for_each(|ports| limit("ports", ports as u64, MAX_PORTS as u64))
}

/// Checks a descriptor from an untrusted source: the number of entry points stated in its head,
/// unique names, and valid ports.
fn check<H: Head, E: Entry>(descriptor: &Descriptor<H, E>) -> Result<(), String> {
    let (count, reported) = (descriptor.entries.len(), descriptor.head.entries());
    if count == 0 || count > MAX_ENTRIES || count != reported as usize {
        return Err(format!("{count} entries, expected {reported} as in the head"));
    }
    let mut names = std::collections::HashSet::new();
    for entry in &descriptor.entries {
        let Outline { name, rows, ports, .. } = entry.outline();
        check_name("an entry", name)?;
        if !names.insert(name) {
            return Err(format!("two entries are named `{name}`"));
        }
        if rows == 0 {
            return Err(format!("entry `{name}` has no rows"));
        }
        if ports.len() > MAX_PORTS {
            return Err(format!("entry `{name}` has {} ports", ports.len()));
        }
        check_ports(name, ports)?;
    }
    Ok(())
}

/// Checks the length of a name and that it contains no NUL.
///
/// # Errors
///
/// A message with the length and `what`, the thing that is named.
pub fn check_name(what: &str, name: &str) -> Result<(), String> {
    match name.len() {
        1..=MAX_NAME if !name.contains('\0') => Ok(()),
        length => Err(format!("a name of {length} bytes for {what}")),
    }
}

/// Returns the number of entry points of a work order, which the artefact format limits.
///
/// # Errors
///
/// `ErrorClass::InvalidArgument` for zero, `ErrorClass::ResourceLimit` for too many.
pub fn entry_count(order: WorkOrderView<'_>) -> Result<usize, Error> {
    let count = order.entries().len();
    if count == 0 {
        return Err(Error::invalid_graph(order.name(), "the order has no entry points"));
    }
    limit("entries", count as u64, MAX_ENTRIES as u64)?;
    Ok(count)
}
