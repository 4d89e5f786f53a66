//! The layout of a compiled artefact.
//!
//! ```text
//! 0   magic        8 bytes `SWQNNART`
//! 8   format       u32, then a u32 of zero
//! 16  descriptor   u64, bytes from 4096 on
//! 24  binary at    u64, a multiple of 4096
//! 32  binary       u64, bytes, to the end of the artefact
//! 40  sha256       32 bytes, of the descriptor
//! 72  zeros, descriptor, zeros, binary
//! ```
//!
//! Little-endian. The descriptor is JSON: the [`Head`], and per entry its ports with the tensor numbers of the binary, since the library knows no ports
//! and gives numbers anew in every process that compiles. The binary is the vendor's context binary as it came. Its library loads binaries of other
//! chips and binaries with flipped bits without complaint, so the descriptor holds the binary's hash and is itself hashed.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::ShimError;
use crate::lower::Variants;
use crate::session::{GraphDescription, TensorDescription};
use crate::soc::SocId;

const MAGIC: &[u8; 8] = b"SWQNNART";
/// Version of the layout and of the descriptor.
pub const FORMAT: u32 = 1;
const PAGE: u64 = 4096;
/// First line of a head; the rest is JSON.
const HEAD: &str = "shardwright-qnn-artefact\n";
/// Longest descriptor: 64 entries of 300 ports take less than a tenth of it.
const MAX_DESCRIPTOR: u64 = 64 << 20;
/// Most entry points of one artefact; real ones have two to five.
pub const MAX_ENTRIES: usize = 64;
/// Most ports of one entry: 64 layers with four states or rows each, and what belongs to the step.
pub const MAX_PORTS: usize = 4096;
/// Longest name of an entry, graph, tensor or port.
const MAX_NAME: usize = 4096;
const MAX_RANK: usize = 8;

/// What has to be known of an artefact before it is loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// [`FORMAT`] of the writer.
    pub format: u32,
    /// The chip it was compiled for.
    pub soc: SocId,
    /// Its name.
    pub soc_name: String,
    /// Its architecture.
    pub arch: u32,
    /// Fast memory its graphs use, megabytes.
    pub vtcm_megabytes: u32,
    /// Number of entry points.
    pub entries: u32,
    /// Whether they share their weights.
    pub is_shared: bool,
    /// What compiled it.
    pub made_by: Versions,
    /// Bytes of the context binary.
    pub binary_bytes: u64,
    /// Hash of the context binary, lower-case hex.
    pub binary_sha256: String,
}

/// Versions of a vendor library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Versions {
    /// `v2.51.0.260929181845`
    pub build: String,
    /// Of the interface all backends share.
    pub core: [u32; 3],
    /// Of the tensor processor's backend.
    pub backend: [u32; 3],
}

/// Everything but the binary.
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
    /// How it was lowered.
    pub variants: Variants,
    /// Its graph in the binary, with the tensor numbers a run needs.
    pub graph: GraphDescription,
    /// Inputs, then outputs; each is one tensor of the graph, and each of those one port.
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
    /// Extents.
    pub shape: Vec<u64>,
    /// Bits of the scale, an f64: text would not give every number back.
    pub scale_bits: u64,
    /// 0 for floats.
    pub zero_point: i64,
    /// Number of its tensor in the binary.
    pub tensor: u32,
}

impl Port {
    /// `value = (stored − zero point) · scale`; 1 for floats.
    pub fn scale(&self) -> f64 {
        f64::from_bits(self.scale_bits)
    }

    /// Bytes; none for an element type that no port has, or more than can be addressed.
    pub fn bytes(&self) -> Option<u64> {
        let element = element_bytes(self.dtype)?;
        let bytes = self.shape.iter().try_fold(element, |bytes, extent| bytes.checked_mul(*extent))?;
        (bytes <= isize::MAX as u64).then_some(bytes)
    }
}

impl Entry {
    /// The ports bound to tensors of the graph's inputs or outputs, in the graph's order; none where they are not one and the same.
    pub fn bound(&self, is_output: bool) -> Option<Vec<usize>> {
        let tensors = if is_output { &self.graph.outputs } else { &self.graph.inputs };
        let ports = self.ports.iter().filter(|port| (port.kind == PortKind::Output) == is_output).count();
        if ports != tensors.len() {
            return None;
        }
        let place = |tensor: &TensorDescription| {
            self.ports.iter().position(|port| {
                port.tensor == tensor.id
                    && (port.kind == PortKind::Output) == is_output
                    && port.bytes() == tensor.bytes()
            })
        };
        tensors.iter().map(place).collect()
    }
}

/// Bytes of an element of a port.
pub fn element_bytes(dtype: u32) -> Option<u64> {
    use shardwright_shim_abi::raw::*;
    Some(match dtype {
        SW_DTYPE_I8 | SW_DTYPE_U8 => 1,
        SW_DTYPE_F16 | SW_DTYPE_I16 | SW_DTYPE_U16 => 2,
        SW_DTYPE_F32 | SW_DTYPE_I32 => 4,
        _ => return None,
    })
}

/// What `compatibility` answers from.
///
/// # Errors
///
/// [`ShimError::Limit`] never with the fields this shim writes.
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

/// Everything before the binary.
///
/// # Errors
///
/// [`ShimError::Limit`] when there are more entries or ports than the format takes.
pub fn prefix(descriptor: &Descriptor) -> Result<Vec<u8>, ShimError> {
    let limit = |limit, value: usize, max: usize| match value > max {
        true => Err(ShimError::Limit { limit, value: value as u64, max: max as u64 }),
        false => Ok(()),
    };
    limit("entries", descriptor.entries.len(), MAX_ENTRIES)?;
    for entry in &descriptor.entries {
        limit("ports", entry.ports.len(), MAX_PORTS)?;
    }
    let text = json(descriptor)?;
    limit("descriptor-bytes", text.len(), MAX_DESCRIPTOR as usize)?;
    let binary_at = (PAGE + text.len() as u64).next_multiple_of(PAGE);
    let mut bytes = Vec::with_capacity(binary_at as usize);
    bytes.extend(MAGIC);
    bytes.extend(FORMAT.to_le_bytes());
    bytes.extend(0u32.to_le_bytes());
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(binary_at.to_le_bytes());
    bytes.extend(descriptor.head.binary_bytes.to_le_bytes());
    bytes.extend(Sha256::digest(&text));
    bytes.resize(PAGE as usize, 0);
    bytes.extend(text);
    bytes.resize(binary_at as usize, 0);
    Ok(bytes)
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
    binary: &'m [u8],
    binary_at: u64,
}

impl<'m> Artefact<'m> {
    /// Whether bytes begin as artefacts of this shim do, of any format.
    pub fn is_ours(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    /// Reads the descriptor and finds the binary; the binary's bytes are not looked at yet.
    ///
    /// # Errors
    ///
    /// [`ShimError::IncompatibleArtefact`] for something else or another layout, [`ShimError::CorruptArtefact`] for damage.
    pub fn read(bytes: &'m [u8]) -> Result<Artefact<'m>, ShimError> {
        if !Artefact::is_ours(bytes) {
            return Err(ShimError::IncompatibleArtefact {
                reason: "the bytes are no artefact of the qnn shim".to_owned(),
                help: "`inspect` says what a foreign context binary holds; only artefacts compiled by this shim name its ports".to_owned(),
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
        let (length, binary_at, binary_length) = (word(16), word(24), word(32));
        if length > MAX_DESCRIPTOR {
            return Err(corrupt(16, format!("a descriptor of {length} bytes, at most {MAX_DESCRIPTOR}")));
        }
        let end = PAGE + length;
        if binary_at != end.next_multiple_of(PAGE) {
            return Err(corrupt(24, format!("the binary at {binary_at} does not follow its descriptor")));
        }
        if binary_at.checked_add(binary_length) != Some(bytes.len() as u64) {
            return Err(corrupt(
                32,
                format!("{} bytes where a binary of {binary_length} starts at {binary_at}", bytes.len()),
            ));
        }
        // Within the artefact by the comparison above.
        let text = &bytes[PAGE as usize..end as usize];
        if Sha256::digest(text)[..] != header[40..72] {
            return Err(corrupt(PAGE, "the descriptor is not the one that was written"));
        }
        let gap = [(72, PAGE), (end, binary_at)]
            .into_iter()
            .find(|(from, to)| bytes[*from as usize..*to as usize].iter().any(|byte| *byte != 0));
        if let Some((from, _)) = gap {
            return Err(corrupt(from, "padding is not zero"));
        }
        let descriptor: Descriptor = serde_json::from_slice(text)
            .map_err(|error| corrupt(PAGE, format!("the descriptor cannot be read: {error}")))?;
        check(&descriptor).map_err(|reason| corrupt(PAGE, reason))?;
        if descriptor.head.binary_bytes != binary_length {
            return Err(corrupt(
                32,
                format!("{binary_length} bytes, {} described", descriptor.head.binary_bytes),
            ));
        }
        Ok(Artefact { descriptor, binary: &bytes[binary_at as usize..], binary_at })
    }

    /// The vendor's bytes, compared with their hash: the library would load damaged weights without complaint.
    ///
    /// # Errors
    ///
    /// [`ShimError::CorruptArtefact`] when they are not those that were written.
    pub fn binary(&self) -> Result<&'m [u8], ShimError> {
        let found = hash(self.binary);
        let told = &self.descriptor.head.binary_sha256;
        if found != *told {
            return Err(corrupt(
                self.binary_at,
                format!("the context binary's hash is {found}, {told} was written"),
            ));
        }
        Ok(self.binary)
    }
}

/// Everything the rest of the shim relies on, of a descriptor that anyone may have written.
fn check(descriptor: &Descriptor) -> Result<(), String> {
    let name = |what: &str, name: &str| match name.len() {
        1..=MAX_NAME if !name.contains('\0') => Ok(()),
        length => Err(format!("a name of {length} bytes for {what}")),
    };
    let entries = &descriptor.entries;
    if entries.is_empty() || entries.len() > MAX_ENTRIES || entries.len() != descriptor.head.entries as usize
    {
        return Err(format!("{} entries, {} in the head", entries.len(), descriptor.head.entries));
    }
    for (index, entry) in entries.iter().enumerate() {
        name("an entry", &entry.name)?;
        name("a graph", &entry.graph.name)?;
        let is_known = |other: &Entry| other.name == entry.name || other.graph.name == entry.graph.name;
        if entries[..index].iter().any(is_known) {
            return Err(format!("two entries or graphs `{}`", entry.name));
        }
        if entry.rows == 0 {
            return Err(format!("entry `{}` has no rows", entry.name));
        }
        if entry.ports.len() > MAX_PORTS {
            return Err(format!("entry `{}` has {} ports", entry.name, entry.ports.len()));
        }
        let mut names = std::collections::HashSet::new();
        let mut tensors = std::collections::HashSet::new();
        for port in &entry.ports {
            name("a port", &port.name)?;
            if !names.insert(port.name.as_str()) || !tensors.insert(port.tensor) {
                return Err(format!("port `{}` of `{}` is there twice", port.name, entry.name));
            }
            if port.shape.len() > MAX_RANK || port.bytes().is_none_or(|bytes| bytes == 0) {
                return Err(format!(
                    "port `{}` of {:?} of element type {}",
                    port.name, port.shape, port.dtype
                ));
            }
            if !(port.scale().is_finite() && port.scale() > 0.0) {
                return Err(format!("port `{}` has the scale {}", port.name, port.scale()));
            }
        }
        for tensor in entry.graph.inputs.iter().chain(&entry.graph.outputs) {
            name("a tensor", &tensor.name)?;
            if tensor.dims.len() > MAX_RANK {
                return Err(format!("tensor `{}` of rank {}", tensor.name, tensor.dims.len()));
            }
        }
        if entry.bound(false).is_none() || entry.bound(true).is_none() {
            return Err(format!("entry `{}`: ports and tensors are not the same", entry.name));
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use shardwright_shim_abi::raw::*;

    use super::*;
    use crate::graph::DataType;
    use crate::session::EncodingDescription;

    pub(crate) fn sample(binary: &[u8]) -> Descriptor {
        let port = |name: &str, kind, role, dtype, id| Port {
            name: name.to_owned(),
            kind,
            role,
            index: 0,
            dtype,
            shape: vec![4, 16],
            scale_bits: (0.1f32 as f64).to_bits(),
            zero_point: 32_768,
            tensor: id,
        };
        let tensor = |id, dtype: DataType| TensorDescription {
            id,
            name: format!("tensor {id}"),
            data_type: dtype as u32,
            type_name: Some(dtype.name().to_owned()),
            dims: vec![1, 4, 16],
            encoding: EncodingDescription::PerTensor { scale: 0.1, offset: -32_768 },
        };
        Descriptor {
            head: Head {
                format: FORMAT,
                soc: SocId(87),
                soc_name: "sm8850".to_owned(),
                arch: 81,
                vtcm_megabytes: 8,
                entries: 1,
                is_shared: false,
                made_by: Versions {
                    build: "v2.51.0.260929181845".to_owned(),
                    core: [2, 40, 0],
                    backend: [5, 51, 0],
                },
                binary_bytes: binary.len() as u64,
                binary_sha256: hash(binary),
            },
            entries: vec![Entry {
                name: "decode_4@8".to_owned(),
                rows: 4,
                context: 8,
                variants: Variants::default(),
                graph: GraphDescription {
                    name: "g0".to_owned(),
                    inputs: vec![tensor(2, DataType::Ufixed8), tensor(1, DataType::Ufixed16)],
                    outputs: vec![tensor(3, DataType::Ufixed16)],
                    sizes: None,
                },
                ports: vec![
                    port("hidden", PortKind::Input, SW_ROLE_HIDDEN, SW_DTYPE_U16, 1),
                    port("layer.0.k", PortKind::State, SW_ROLE_STATE, SW_DTYPE_U8, 2),
                    port("tap", PortKind::Output, SW_ROLE_TAP, SW_DTYPE_U16, 3),
                ],
            }],
        }
    }

    pub(crate) fn written(descriptor: &Descriptor, binary: &[u8]) -> Vec<u8> {
        let mut bytes = prefix(descriptor).expect("within limits");
        bytes.extend(binary);
        bytes
    }

    #[test]
    fn what_is_written_is_read_back() {
        let binary = [7u8; 5000];
        let descriptor = sample(&binary);
        let bytes = written(&descriptor, &binary);
        assert!((bytes.len() - binary.len()).is_multiple_of(PAGE as usize));
        let read = Artefact::read(&bytes).expect("undamaged");
        assert_eq!(read.descriptor, descriptor);
        let entry = &read.descriptor.entries[0];
        assert_eq!((entry.bound(false), entry.bound(true)), (Some(vec![1, 0]), Some(vec![2])));
        assert_eq!(read.binary().expect("undamaged"), binary);
        let head = head_bytes(&descriptor.head).expect("small");
        assert!(head.len() <= SW_HEAD_LIMIT as usize);
        assert_eq!(read_head(&head).expect("undamaged"), ReadHead::Known(Box::new(descriptor.head)));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let binary: Vec<u8> = (0..3000u32).map(|index| index as u8).collect();
        let bytes = written(&sample(&binary), &binary);
        let is_sound =
            |bytes: &[u8]| Artefact::read(bytes).and_then(|read| read.binary().map(|_| ())).is_ok();
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
        let bytes = written(&sample(&[1]), &[1]);
        let incompatible =
            |bytes: &[u8]| matches!(Artefact::read(bytes), Err(ShimError::IncompatibleArtefact { .. }));
        assert!(incompatible(b"\x02\0\0\0 a context binary of somebody else"));
        assert!(incompatible(b""));
        let mut newer = bytes.clone();
        newer[8] = 2;
        assert!(incompatible(&newer));
        assert!(matches!(Artefact::read(&bytes[..40]), Err(ShimError::CorruptArtefact { offset: 40, .. })));
        assert_eq!(read_head(b"shardwright-cpu-artefact").expect("told"), ReadHead::Foreign);
        let head = String::from_utf8(head_bytes(&sample(&[1]).head).expect("small")).expect("text");
        let newer = head.replace("\"format\":1", "\"format\":9");
        assert_eq!(read_head(newer.as_bytes()).expect("told"), ReadHead::OtherFormat(9));
        assert!(read_head(&head.as_bytes()[..head.len() - 1]).is_err());
    }

    #[test]
    fn impossible_descriptors_are_damage() {
        type Change = fn(&mut Descriptor);
        let cases: &[(&str, Change)] = &[
            ("entries", |d| d.entries.clear()),
            ("entries", |d| d.head.entries = 2),
            ("two entries", |d| {
                d.entries.push(d.entries[0].clone());
                d.head.entries = 2;
            }),
            ("no rows", |d| d.entries[0].rows = 0),
            ("twice", |d| d.entries[0].ports[1].name = "hidden".to_owned()),
            ("twice", |d| d.entries[0].ports[1].tensor = 1),
            ("a name of 0 bytes", |d| d.entries[0].graph.inputs[0].name.clear()),
            ("a name of 3 bytes", |d| d.entries[0].graph.name = "a\0b".to_owned()),
            ("of rank 9", |d| d.entries[0].graph.inputs[0].dims = vec![1; 9]),
            ("not the same", |d| d.entries[0].graph.inputs[0].id = 9),
            ("not the same", |d| d.entries[0].graph.inputs[0].dims[1] = 5),
            ("not the same", |d| d.entries[0].graph.inputs[0].data_type = 77),
            ("not the same", |d| d.entries[0].graph.outputs.clear()),
            ("not the same", |d| d.entries[0].ports[2].kind = PortKind::Input),
            ("not the same", |d| drop(d.entries[0].ports.pop())),
            ("element type 99", |d| d.entries[0].ports[0].dtype = 99),
            ("of element type", |d| d.entries[0].ports[0].shape = vec![1 << 40, 1 << 40]),
            ("of element type", |d| d.entries[0].ports[0].shape = vec![0]),
            ("of element type", |d| d.entries[0].ports[0].shape = vec![1; 9]),
            ("scale NaN", |d| d.entries[0].ports[0].scale_bits = f64::NAN.to_bits()),
            ("scale 0", |d| d.entries[0].ports[0].scale_bits = 0),
            ("described", |d| d.head.binary_bytes = 2),
        ];
        for (part, change) in cases {
            let mut descriptor = sample(&[1]);
            change(&mut descriptor);
            let mut bytes = prefix(&descriptor).expect("within limits");
            // The length in the header is the true one, so that only the descriptor is at fault.
            bytes[32..40].copy_from_slice(&1u64.to_le_bytes());
            bytes.push(1);
            let refused = Artefact::read(&bytes).expect_err("refused");
            assert!(matches!(refused, ShimError::CorruptArtefact { .. }), "{part}: {refused}");
            assert!(refused.to_string().contains(part), "`{part}` not in `{refused}`");
        }
        let mut descriptor = sample(&[1]);
        descriptor.entries = vec![descriptor.entries[0].clone(); MAX_ENTRIES + 1];
        assert!(matches!(prefix(&descriptor), Err(ShimError::Limit { limit: "entries", .. })));
        descriptor.entries.truncate(1);
        descriptor.entries[0].ports = vec![descriptor.entries[0].ports[0].clone(); MAX_PORTS + 1];
        assert!(matches!(prefix(&descriptor), Err(ShimError::Limit { limit: "ports", .. })));
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
