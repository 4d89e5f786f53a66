//! The layout of a compiled artefact.
//!
//! ```text
//! 0   magic        8 bytes `SWNEUART`
//! 8   format       u32, then a u32 of zero
//! 16  descriptor   u64, bytes from 4096 on
//! 24  blobs at     u64, a multiple of 4096
//! 32  blobs        u64, bytes, to the end of the artefact
//! 40  sha256       32 bytes, of the descriptor
//! 72  zeros, descriptor, zeros, blobs each on a page of its own with zeros between them
//! ```
//!
//! Little-endian. The descriptor is JSON: the [`Head`], and per entry its ports in the order of the compiled network's inputs and outputs, and where its blob is. A
//! blob is what the adapter stored, one for each entry point: the interface has no way to store weights once for several, so entry points hold them once each.
//!
//! A restore that fails says one code for a damaged blob, another version's and another chip's. So blobs are hashed here, and the head names chip, version and
//! whether a simulator made it.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use shardwright_neuron_adapter::RuntimeVersion;

use crate::error::ShimError;

const MAGIC: &[u8; 8] = b"SWNEUART";
/// Version of the layout and of the descriptor.
pub const FORMAT: u32 = 1;
const PAGE: u64 = 4096;
/// First line of a head; the rest is JSON.
const HEAD: &str = "shardwright-neuron-artefact\n";
/// Longest descriptor: 64 entries of 300 ports take less than a tenth of it.
const MAX_DESCRIPTOR: u64 = 64 << 20;
/// Most entry points of one artefact; real ones have two to five.
pub const MAX_ENTRIES: usize = 64;
/// Most ports of one entry: 64 layers with four states or rows each, and what belongs to the step.
pub const MAX_PORTS: usize = 4096;
/// Longest name of an entry or port.
const MAX_NAME: usize = 4096;
const MAX_RANK: usize = 8;

/// What has to be known of an artefact before it is loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// [`FORMAT`] of the writer.
    pub format: u32,
    /// The chip it was compiled for, `mt6989`.
    pub soc: String,
    /// What compiled it.
    pub made_by: Maker,
    /// The option string the compiler was given.
    pub options: String,
    /// How entries were written, `lean` or `plain`.
    pub lowering: String,
    /// Number of entry points.
    pub entries: u32,
    /// Bytes of all blobs.
    pub blob_bytes: u64,
}

/// A vendor library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Maker {
    /// Of the adapter: major, minor, patch.
    pub version: [u8; 3],
    /// The firmware's magic number, where it was told.
    pub magic: Option<i32>,
    /// The simulator's name: then this is no code for a chip.
    pub simulator: Option<String>,
}

impl Maker {
    /// As the library says it.
    pub fn version(&self) -> RuntimeVersion {
        let [major, minor, patch] = self.version;
        RuntimeVersion::new(major, minor, patch)
    }
}

/// Everything but the blobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Descriptor {
    /// As in the head beside the artefact.
    pub head: Head,
    /// In the order of the work order.
    pub entries: Vec<Entry>,
}

/// An entry point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// As in the work order.
    pub name: String,
    /// Static rows.
    pub rows: u64,
    /// As in the work order.
    pub context: u64,
    /// Operations the compiler was handed.
    pub operations: u64,
    /// Bytes of constants it was handed.
    pub constant_bytes: u64,
    /// Where its blob begins, from the start of the artefact.
    pub blob_at: u64,
    /// Bytes of the blob.
    pub blob_bytes: u64,
    /// Hash of the blob, lower-case hex.
    pub blob_sha256: String,
    /// Inputs in the network's order, then outputs in the network's order.
    pub ports: Vec<Port>,
}

/// What a port is to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortKind {
    /// Read.
    Input,
    /// A state that is read; whose rows are outputs, if the entry makes any.
    State,
    /// Written as a whole.
    Output,
}

/// An input or output of an entry, dense row-major.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// As in the work order.
    pub name: String,
    /// Its part in a run.
    pub kind: PortKind,
    /// `SW_ROLE_…`
    pub role: u32,
    /// Detail of the role.
    pub index: u64,
    /// `SW_DTYPE_…`
    pub dtype: u32,
    /// Extents in the work order.
    pub shape: Vec<u64>,
    /// Extents in the network: the same values in the same order.
    pub held: Vec<u64>,
    /// Bits of the scale, an f64: text would not give every number back. The zero point is 0.
    pub scale_bits: u64,
}

impl Port {
    /// `value = stored · scale`; 1 for floats.
    pub fn scale(&self) -> f64 {
        f64::from_bits(self.scale_bits)
    }

    /// Bytes; none for an element type that no port has, or more than can be addressed.
    pub fn bytes(&self) -> Option<u64> {
        let element = element_bytes(self.dtype)?;
        let of = |shape: &[u64]| shape.iter().try_fold(element, |bytes, extent| bytes.checked_mul(*extent));
        let bytes = of(&self.shape)?;
        (bytes <= isize::MAX as u64 && of(&self.held) == Some(bytes)).then_some(bytes)
    }
}

/// Bytes of an element of a port.
pub fn element_bytes(dtype: u32) -> Option<u64> {
    use shardwright_shim_abi::raw::*;
    Some(match dtype {
        SW_DTYPE_F16 | SW_DTYPE_I16 => 2,
        SW_DTYPE_F32 => 4,
        _ => return None,
    })
}

/// What `compatibility` answers from.
///
/// # Errors
///
/// [`ShimError::InvalidGraph`] never with the fields this shim writes.
pub fn head_bytes(head: &Head) -> Result<Vec<u8>, ShimError> {
    let mut bytes = HEAD.as_bytes().to_vec();
    bytes.extend(json(head)?);
    Ok(bytes)
}

/// A head, read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadHead {
    /// It begins otherwise.
    Foreign,
    /// Of another layout, which may mean anything else by its members.
    OtherFormat(u32),
    /// Of this layout.
    Known(Box<Head>),
}

/// Reads a head.
///
/// # Errors
///
/// [`ShimError::CorruptArtefact`] when it begins like one and goes on like none.
pub fn read_head(bytes: &[u8]) -> Result<ReadHead, ShimError> {
    let Some(text) = bytes.strip_prefix(HEAD.as_bytes()) else { return Ok(ReadHead::Foreign) };
    #[derive(Deserialize)]
    struct OnlyFormat {
        format: u32,
    }
    let damaged =
        |error: serde_json::Error| corrupt(HEAD.len() as u64, format!("the head is damaged: {error}"));
    let format = serde_json::from_slice::<OnlyFormat>(text).map_err(damaged)?.format;
    if format != FORMAT {
        return Ok(ReadHead::OtherFormat(format));
    }
    serde_json::from_slice(text).map(|head| ReadHead::Known(Box::new(head))).map_err(damaged)
}

/// Lower-case hex of a SHA-256.
pub fn hash(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An artefact's bytes. Places, lengths and hashes of blobs in the descriptor are filled in.
///
/// # Errors
///
/// [`ShimError::Limit`] when there are more entries or ports than the format takes.
pub fn write(mut descriptor: Descriptor, blobs: &[Vec<u8>]) -> Result<Written, ShimError> {
    let limit = |limit, value: usize, max: usize| match value > max {
        true => Err(ShimError::Limit { limit, value: value as u64, max: max as u64 }),
        false => Ok(()),
    };
    limit("entries", descriptor.entries.len(), MAX_ENTRIES)?;
    for entry in &descriptor.entries {
        limit("ports", entry.ports.len(), MAX_PORTS)?;
    }
    for (entry, blob) in descriptor.entries.iter_mut().zip(blobs) {
        entry.blob_bytes = blob.len() as u64;
        entry.blob_sha256 = hash(blob);
    }
    descriptor.head.blob_bytes = blobs.iter().map(|blob| blob.len() as u64).sum();
    // The places of blobs stand in the descriptor, whose length decides them: digits settle after a few rounds.
    let mut text = json(&descriptor)?;
    loop {
        let mut at = (PAGE + text.len() as u64).next_multiple_of(PAGE);
        for entry in &mut descriptor.entries {
            entry.blob_at = at;
            at = (at + entry.blob_bytes).next_multiple_of(PAGE);
        }
        let again = json(&descriptor)?;
        let is_settled = again.len() == text.len();
        text = again;
        if is_settled {
            break;
        }
    }
    limit("descriptor-bytes", text.len(), MAX_DESCRIPTOR as usize)?;
    let first = (PAGE + text.len() as u64).next_multiple_of(PAGE);
    let end = descriptor.entries.last().map_or(first, |entry| entry.blob_at + entry.blob_bytes);
    let mut prefix = Vec::with_capacity(first as usize);
    prefix.extend(MAGIC);
    prefix.extend(FORMAT.to_le_bytes());
    prefix.extend(0u32.to_le_bytes());
    prefix.extend((text.len() as u64).to_le_bytes());
    prefix.extend(first.to_le_bytes());
    prefix.extend((end - first).to_le_bytes());
    prefix.extend(Sha256::digest(&text));
    prefix.resize(PAGE as usize, 0);
    prefix.extend(text);
    prefix.resize(first as usize, 0);
    Ok(Written { descriptor, prefix })
}

/// What comes before the blobs, and where those go.
#[derive(Clone, Debug)]
pub struct Written {
    /// Complete.
    pub descriptor: Descriptor,
    /// Everything before the first blob. Each later blob follows zeros up to its place.
    pub prefix: Vec<u8>,
}

fn json<T: Serialize>(value: &T) -> Result<Vec<u8>, ShimError> {
    // Plain structs of numbers and text always become JSON.
    serde_json::to_vec(value)
        .map_err(|error| ShimError::InvalidGraph { entry: "all".to_owned(), reason: error.to_string() })
}

fn corrupt(offset: u64, reason: impl Into<String>) -> ShimError {
    ShimError::CorruptArtefact { offset, reason: reason.into() }
}

/// An artefact as it is mapped.
#[derive(Clone, Debug)]
pub struct Artefact<'m> {
    /// Undamaged and within its limits.
    pub descriptor: Descriptor,
    bytes: &'m [u8],
}

impl<'m> Artefact<'m> {
    /// Whether bytes begin as artefacts of this shim do, of any format.
    pub fn is_ours(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    /// Reads the descriptor and finds the blobs; their bytes are not looked at yet.
    ///
    /// # Errors
    ///
    /// [`ShimError::IncompatibleArtefact`] for something else or another layout, [`ShimError::CorruptArtefact`] for damage.
    pub fn read(bytes: &'m [u8]) -> Result<Artefact<'m>, ShimError> {
        if !Artefact::is_ours(bytes) {
            return Err(ShimError::IncompatibleArtefact {
                reason: "the bytes are no artefact of the neuron shim".to_owned(),
                help: "`inspect` says what a foreign container holds; only artefacts compiled by this shim name its ports".to_owned(),
            });
        }
        let header = bytes.first_chunk::<72>().ok_or_else(|| corrupt(bytes.len() as u64, "cut short"))?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&header[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let format = word(8);
        if format != u64::from(FORMAT) {
            return Err(ShimError::IncompatibleArtefact {
                reason: format!("the artefact is of format {format}, this shim reads {FORMAT}"),
                help: "compile the work order again with this shim".to_owned(),
            });
        }
        let (length, blobs_at, blobs) = (word(16), word(24), word(32));
        if length > MAX_DESCRIPTOR {
            return Err(corrupt(16, format!("a descriptor of {length} bytes, at most {MAX_DESCRIPTOR}")));
        }
        let end = PAGE + length;
        if blobs_at != end.next_multiple_of(PAGE) {
            return Err(corrupt(24, format!("the blobs at {blobs_at} do not follow their descriptor")));
        }
        if blobs_at.checked_add(blobs) != Some(bytes.len() as u64) {
            return Err(corrupt(
                32,
                format!("{} bytes where {blobs} bytes of blobs start at {blobs_at}", bytes.len()),
            ));
        }
        // Within the artefact by the comparison above.
        let text = &bytes[PAGE as usize..end as usize];
        if Sha256::digest(text)[..] != header[40..72] {
            return Err(corrupt(PAGE, "the descriptor is not the one that was written"));
        }
        let descriptor: Descriptor = serde_json::from_slice(text)
            .map_err(|error| corrupt(PAGE, format!("the descriptor cannot be read: {error}")))?;
        check(&descriptor, blobs_at, bytes.len() as u64).map_err(|reason| corrupt(PAGE, reason))?;
        let mut gaps = vec![(72, PAGE), (end, blobs_at)];
        for pair in descriptor.entries.windows(2) {
            gaps.push((pair[0].blob_at + pair[0].blob_bytes, pair[1].blob_at));
        }
        let is_dirty =
            |(from, to): &&(u64, u64)| bytes[*from as usize..*to as usize].iter().any(|byte| *byte != 0);
        if let Some((from, _)) = gaps.iter().find(is_dirty) {
            return Err(corrupt(*from, "padding is not zero"));
        }
        Ok(Artefact { descriptor, bytes })
    }

    /// The adapter's bytes of an entry, compared with their hash.
    ///
    /// # Errors
    ///
    /// [`ShimError::CorruptArtefact`] when they are not those that were written.
    pub fn blob(&self, entry: &Entry) -> Result<&'m [u8], ShimError> {
        let bytes = &self.bytes[entry.blob_at as usize..(entry.blob_at + entry.blob_bytes) as usize];
        let found = hash(bytes);
        if found != entry.blob_sha256 {
            return Err(corrupt(
                entry.blob_at,
                format!(
                    "the compiled network of `{}` has the hash {found}, {} was written",
                    entry.name, entry.blob_sha256
                ),
            ));
        }
        Ok(bytes)
    }
}

/// Everything the rest of the shim relies on, of a descriptor that anyone may have written.
fn check(descriptor: &Descriptor, blobs_at: u64, end: u64) -> Result<(), String> {
    let name = |what: &str, name: &str| match name.len() {
        1..=MAX_NAME if !name.contains('\0') => Ok(()),
        length => Err(format!("a name of {length} bytes for {what}")),
    };
    let entries = &descriptor.entries;
    if entries.is_empty() || entries.len() > MAX_ENTRIES || entries.len() != descriptor.head.entries as usize
    {
        return Err(format!("{} entries, {} in the head", entries.len(), descriptor.head.entries));
    }
    let mut at = blobs_at;
    for (index, entry) in entries.iter().enumerate() {
        name("an entry", &entry.name)?;
        if entries[..index].iter().any(|other| other.name == entry.name) {
            return Err(format!("two entries `{}`", entry.name));
        }
        if entry.rows == 0 {
            return Err(format!("entry `{}` has no rows", entry.name));
        }
        if entry.blob_at != at || entry.blob_bytes == 0 {
            return Err(format!("entry `{}` has its blob at {}, not at {at}", entry.name, entry.blob_at));
        }
        let after = entry.blob_at.checked_add(entry.blob_bytes).filter(|after| *after <= end);
        let Some(after) = after else {
            return Err(format!("the blob of entry `{}` ends behind the artefact", entry.name));
        };
        at = match index + 1 == entries.len() {
            true if after != end => return Err(format!("{} bytes behind the last blob", end - after)),
            true => after,
            false => after.next_multiple_of(PAGE),
        };
        if entry.ports.len() > MAX_PORTS {
            return Err(format!("entry `{}` has {} ports", entry.name, entry.ports.len()));
        }
        let mut names = std::collections::HashSet::new();
        for port in &entry.ports {
            name("a port", &port.name)?;
            if !names.insert(port.name.as_str()) {
                return Err(format!("port `{}` of `{}` is there twice", port.name, entry.name));
            }
            let ranks = port.shape.len().max(port.held.len());
            if ranks > MAX_RANK || port.bytes().is_none_or(|bytes| bytes == 0) {
                return Err(format!(
                    "port `{}` of {:?}, held as {:?}, of element type {}",
                    port.name, port.shape, port.held, port.dtype
                ));
            }
            if !(port.scale().is_finite() && port.scale() > 0.0) {
                return Err(format!("port `{}` has the scale {}", port.name, port.scale()));
            }
        }
        let first_output = entry.ports.iter().position(|port| port.kind == PortKind::Output);
        let behind = &entry.ports[first_output.unwrap_or(entry.ports.len())..];
        if behind.iter().any(|port| port.kind != PortKind::Output) {
            return Err(format!("entry `{}` has inputs behind its outputs", entry.name));
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use shardwright_shim_abi::raw::*;

    use super::*;

    pub(crate) fn sample(count: usize) -> Descriptor {
        let port = |name: &str, kind, role, dtype| Port {
            name: name.to_owned(),
            kind,
            role,
            index: 0,
            dtype,
            shape: vec![4, 16],
            held: vec![1, 4, 1, 16],
            scale_bits: f64::from(0.1f32).to_bits(),
        };
        let entry = |index: usize| Entry {
            name: format!("decode_{index}@8"),
            rows: 4,
            context: 8,
            operations: 3,
            constant_bytes: 100,
            blob_at: 0,
            blob_bytes: 0,
            blob_sha256: String::new(),
            ports: vec![
                port("hidden", PortKind::Input, SW_ROLE_HIDDEN, SW_DTYPE_I16),
                port("layer.0.k", PortKind::State, SW_ROLE_STATE, SW_DTYPE_I16),
                port("tap", PortKind::Output, SW_ROLE_TAP, SW_DTYPE_F32),
            ],
        };
        Descriptor {
            head: Head {
                format: FORMAT,
                soc: "mt6989".to_owned(),
                made_by: Maker { version: [8, 2, 28], magic: None, simulator: Some("simulator".to_owned()) },
                options: "--relax-fp32".to_owned(),
                lowering: "lean".to_owned(),
                entries: count as u32,
                blob_bytes: 0,
            },
            entries: (0..count).map(entry).collect(),
        }
    }

    pub(crate) fn whole(descriptor: Descriptor, blobs: &[Vec<u8>]) -> Vec<u8> {
        let written = write(descriptor, blobs).expect("within limits");
        let mut bytes = written.prefix;
        for (entry, blob) in written.descriptor.entries.iter().zip(blobs) {
            bytes.resize(entry.blob_at as usize, 0);
            bytes.extend(blob);
        }
        bytes
    }

    #[test]
    fn what_is_written_is_read_back() {
        let blobs = [vec![7u8; 5000], vec![9; 10]];
        let bytes = whole(sample(2), &blobs);
        let read = Artefact::read(&bytes).expect("undamaged");
        for (entry, blob) in read.descriptor.entries.iter().zip(&blobs) {
            assert_eq!(read.blob(entry).expect("undamaged"), blob);
            assert!(entry.blob_at.is_multiple_of(PAGE));
        }
        assert_eq!(read.descriptor.head.blob_bytes, 5010);
        let head = head_bytes(&read.descriptor.head).expect("small");
        assert!(head.len() <= SW_HEAD_LIMIT as usize);
        assert_eq!(read_head(&head).expect("undamaged"), ReadHead::Known(Box::new(read.descriptor.head)));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let blobs = [(0..3000u32).map(|index| index as u8).collect(), vec![1; 100]];
        let bytes = whole(sample(2), &blobs);
        let is_sound = |bytes: &[u8]| {
            Artefact::read(bytes)
                .is_ok_and(|read| read.descriptor.entries.iter().all(|entry| read.blob(entry).is_ok()))
        };
        assert!(is_sound(&bytes));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            assert!(!is_sound(&damaged), "a bit at {at}");
        }
        for length in (0..bytes.len()).step_by(97).chain([0, 1, 8, 71, 72, bytes.len() - 1]) {
            assert!(!is_sound(&bytes[..length]), "cut to {length}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(!is_sound(&longer));
    }

    #[test]
    fn another_kind_and_another_format_are_told_from_damage() {
        let bytes = whole(sample(1), &[vec![1]]);
        let incompatible =
            |bytes: &[u8]| matches!(Artefact::read(bytes), Err(ShimError::IncompatibleArtefact { .. }));
        assert!(incompatible(b"a compiled network of somebody else") && incompatible(b""));
        let mut newer = bytes.clone();
        newer[8] = 2;
        assert!(incompatible(&newer));
        assert!(matches!(Artefact::read(&bytes[..40]), Err(ShimError::CorruptArtefact { offset: 40, .. })));
        assert_eq!(read_head(b"shardwright-cpu-artefact").expect("told"), ReadHead::Foreign);
        let head = String::from_utf8(head_bytes(&sample(1).head).expect("small")).expect("text");
        let newer = head.replace("\"format\":1", "\"format\":9");
        assert_eq!(read_head(newer.as_bytes()).expect("told"), ReadHead::OtherFormat(9));
        assert!(read_head(&head.as_bytes()[..head.len() - 1]).is_err());
    }

    #[test]
    fn impossible_descriptors_are_damage() {
        type Change = fn(&mut Descriptor);
        let cases: &[(&str, Change)] = &[
            ("entries", |d| d.head.entries = 2),
            ("no rows", |d| d.entries[0].rows = 0),
            ("twice", |d| d.entries[0].ports[1].name = "hidden".to_owned()),
            ("a name of 0 bytes", |d| d.entries[0].ports[0].name.clear()),
            ("element type 99", |d| d.entries[0].ports[0].dtype = 99),
            ("of element type", |d| d.entries[0].ports[0].shape = vec![1 << 40, 1 << 40]),
            ("of element type", |d| d.entries[0].ports[0].held = vec![3, 5]),
            ("of element type", |d| d.entries[0].ports[0].shape = vec![1; 9]),
            ("scale NaN", |d| d.entries[0].ports[0].scale_bits = f64::NAN.to_bits()),
            ("behind its outputs", |d| d.entries[0].ports[0].kind = PortKind::Output),
        ];
        for (part, change) in cases {
            let mut descriptor = sample(1);
            change(&mut descriptor);
            let refused = Artefact::read(&whole(descriptor, &[vec![1]])).expect_err("refused");
            assert!(matches!(refused, ShimError::CorruptArtefact { .. }), "{part}: {refused}");
            assert!(refused.to_string().contains(part), "`{part}` not in `{refused}`");
        }
        let many = sample(MAX_ENTRIES + 1);
        assert!(matches!(write(many, &[]), Err(ShimError::Limit { limit: "entries", .. })));
        let mut many = sample(1);
        many.entries[0].ports = vec![many.entries[0].ports[0].clone(); MAX_PORTS + 1];
        assert!(matches!(write(many, &[]), Err(ShimError::Limit { limit: "ports", .. })));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused_without_a_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..9000), is_ours: bool) {
            if is_ours && bytes.len() >= 16 {
                bytes[..8].copy_from_slice(MAGIC);
                bytes[8..16].copy_from_slice(&u64::from(FORMAT).to_le_bytes());
            }
            prop_assert!(Artefact::read(&bytes).is_err());
            let mut head = HEAD.as_bytes().to_vec();
            head.extend(&bytes);
            prop_assert!(!matches!(read_head(&head), Ok(ReadHead::Known(_))));
        }
    }
}
