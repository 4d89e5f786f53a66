//! Format of a compiled artefact.
//!
//! The descriptor contains the [`Head`]. For each entry it contains the location of its blob, and
//! its ports in the order of the compiled network's inputs and outputs. A blob is the network that
//! the adapter stored. Each entry point has its own blob with its own copy of the weights, because
//! the interface cannot share weights between stored networks. Blobs are page-aligned with zeros
//! between them.
//!
//! A failed restore returns the same code for a damaged blob, for another version and for another
//! chip. So this shim hashes blobs, and the head names the chip, the version and whether a
//! simulator made the artefact.

use serde::{Deserialize, Serialize};
use shardwright_neuron_adapter::RuntimeVersion;
use shardwright_shim_abi::Error;
use shardwright_shim_abi::raw::{SW_DTYPE_F16, SW_DTYPE_F32, SW_DTYPE_I16};
use shardwright_shim_npu::artefact::{
    self, Format, Outline, PAGE, check_hash, corrupt, hash, json, payload_at, zeros,
};
use shardwright_shim_npu::port::{self, MAX_RANK, PortKind, element_bytes};

/// Format of this shim's artefacts.
pub const FORMAT: Format = Format {
    magic: b"SWNEUART",
    head: "shardwright-neuron-artefact\n",
    number: 2,
    shim: "neuron",
    payload: "a run of blobs",
    foreign_help: "`inspect` shows the content of a foreign container; only artefacts compiled by this shim name their ports",
};

/// The information about an artefact that is needed before it is loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// Number of the [`FORMAT`] that the writer used.
    pub format: u32,
    /// The chip for which it was compiled, for example `mt6989`.
    pub soc: String,
    /// The library that compiled it.
    pub made_by: Maker,
    /// The option string passed to the compiler.
    pub options: String,
    /// Name of the lowering, `lean` or `plain`.
    pub lowering: String,
    /// Number of entry points.
    pub entries: u32,
    /// Total bytes of all blobs.
    pub blob_bytes: u64,
}

/// The vendor library that compiled an artefact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Maker {
    /// Version of the adapter: major, minor, patch.
    pub version: [u8; 3],
    /// The firmware's magic number, if reported.
    pub magic: Option<i32>,
    /// Name of the simulator, if one made the artefact. Its code does not run on a chip.
    pub simulator: Option<String>,
}

impl Maker {
    /// Returns the version in the form in which the library reports it.
    pub fn version(&self) -> RuntimeVersion {
        let [major, minor, patch] = self.version;
        RuntimeVersion::new(major, minor, patch)
    }
}

/// Everything in an artefact except the blobs.
pub type Descriptor = artefact::Descriptor<Head, Entry>;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Name in the work order.
    pub name: String,
    /// Static row count.
    pub rows: u64,
    /// Context in the work order.
    pub context: u64,
    /// Number of operations passed to the compiler.
    pub operations: u64,
    /// Bytes of constants passed to the compiler.
    pub constant_bytes: u64,
    /// Offset of the blob in the artefact.
    pub blob_at: u64,
    /// Length of the blob in bytes.
    pub blob_bytes: u64,
    /// SHA-256 of the blob in lower-case hex.
    pub blob_sha256: String,
    /// Inputs in the network's order, then outputs in the network's order.
    pub ports: Vec<Port>,
}

/// A port with its extents in the network. The values and their order are the same as in the entry.
pub type Port = port::Port<Vec<u64>>;

impl artefact::Head for Head {
    fn entries(&self) -> u32 {
        self.entries
    }
}

impl artefact::Entry for Entry {
    type Place = Vec<u64>;

    fn outline(&self) -> Outline<'_, Vec<u64>> {
        Outline { name: &self.name, rows: self.rows, context: self.context, ports: &self.ports }
    }
}

/// Writes the prefix of an artefact. Fills in the places, lengths and hashes of blobs in the
/// descriptor.
///
/// # Errors
///
/// `ErrorClass::ResourceLimit` if there are more entries or ports than the format allows.
pub fn write(mut descriptor: Descriptor, blobs: &[Vec<u8>]) -> Result<Written, Error> {
    for (entry, blob) in descriptor.entries.iter_mut().zip(blobs) {
        entry.blob_bytes = blob.len() as u64;
        entry.blob_sha256 = hash(blob);
    }
    descriptor.head.blob_bytes = blobs.iter().map(|blob| blob.len() as u64).sum();
    // The descriptor contains the offsets of the blobs, which depend on its own length. The number
    // of digits settles after a few rounds.
    let mut text = json(&descriptor)?;
    loop {
        let mut at = payload_at(text.len());
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
    let first = payload_at(text.len());
    let end = descriptor.entries.last().map_or(first, |entry| entry.blob_at + entry.blob_bytes);
    let prefix = FORMAT.prefix(&descriptor, end - first)?;
    Ok(Written { descriptor, prefix })
}

/// The bytes before the blobs, and the offsets of the blobs.
#[derive(Clone, Debug)]
pub struct Written {
    /// The descriptor with the places, lengths and hashes of the blobs.
    pub descriptor: Descriptor,
    /// Everything before the first blob. Each later blob follows zeros up to its place.
    pub prefix: Vec<u8>,
}

/// A mapped artefact.
#[derive(Clone, Debug)]
pub struct Artefact<'m> {
    /// The descriptor, which is undamaged and within the format's limits.
    pub descriptor: Descriptor,
    bytes: &'m [u8],
}

impl<'m> Artefact<'m> {
    /// Reads the descriptor and locates the blobs, without reading their bytes.
    ///
    /// # Errors
    ///
    /// `ErrorClass::IncompatibleArtefact` for another file or another format version,
    /// `ErrorClass::CorruptArtefact` for damage.
    pub fn read(bytes: &'m [u8]) -> Result<Artefact<'m>, Error> {
        let opened = FORMAT.open::<Head, Entry>(bytes)?;
        let descriptor = opened.descriptor;
        check(&descriptor, opened.payload_at, bytes.len() as u64).map_err(|reason| corrupt(PAGE, reason))?;
        for pair in descriptor.entries.windows(2) {
            zeros(bytes, pair[0].blob_at + pair[0].blob_bytes..pair[1].blob_at)?;
        }
        Ok(Artefact { descriptor, bytes })
    }

    /// Returns the blob of an entry after checking its hash.
    ///
    /// # Errors
    ///
    /// `ErrorClass::CorruptArtefact` if the hash differs.
    pub fn blob(&self, entry: &Entry) -> Result<&'m [u8], Error> {
        let bytes = &self.bytes[entry.blob_at as usize..(entry.blob_at + entry.blob_bytes) as usize];
        let what = format!("the compiled network of `{}`", entry.name);
        check_hash(bytes, &entry.blob_sha256, &what, entry.blob_at)?;
        Ok(bytes)
    }
}

/// Checks everything that the rest of the shim relies on. The descriptor is untrusted.
fn check(descriptor: &Descriptor, blobs_at: u64, end: u64) -> Result<(), String> {
    let entries = &descriptor.entries;
    let mut at = blobs_at;
    for (index, entry) in entries.iter().enumerate() {
        if entry.blob_at != at || entry.blob_bytes == 0 {
            return Err(format!("the blob of entry `{}` is at {}, not at {at}", entry.name, entry.blob_at));
        }
        let after = entry.blob_at.checked_add(entry.blob_bytes).filter(|after| *after <= end);
        let Some(after) = after else {
            return Err(format!("the blob of entry `{}` exceeds the artefact", entry.name));
        };
        at = match index + 1 == entries.len() {
            true if after != end => return Err(format!("{} bytes after the last blob", end - after)),
            true => after,
            false => after.next_multiple_of(PAGE),
        };
        if let Some(port) = entry.ports.iter().find(|port| !fits_network(port)) {
            return Err(format!(
                "unsupported port `{}`: {:?}, stored as {:?}, of element type {}",
                port.name, port.shape, port.place, port.dtype
            ));
        }
        if let Some(port) = entry.ports.iter().find(|port| port.zero_point != 0) {
            return Err(format!("port `{}` has the zero point {}", port.name, port.zero_point));
        }
        let first_output = entry.ports.iter().position(|port| port.kind == PortKind::Output);
        let behind = &entry.ports[first_output.unwrap_or(entry.ports.len())..];
        if behind.iter().any(|port| port.kind != PortKind::Output) {
            return Err(format!("entry `{}` has inputs after its outputs", entry.name));
        }
    }
    Ok(())
}

/// Returns whether a port has an element type that networks use, and whether its extents in the
/// network have as many values.
fn fits_network(port: &Port) -> bool {
    let bytes = |element, shape: &[u64]| {
        shape.iter().try_fold(element, |bytes: u64, extent| bytes.checked_mul(*extent))
    };
    let existing = element_bytes(port.dtype).and_then(|element| bytes(element, &port.place));
    matches!(port.dtype, SW_DTYPE_F16 | SW_DTYPE_I16 | SW_DTYPE_F32)
        && port.place.len() <= MAX_RANK
        && existing == port.bytes()
}

#[cfg(test)]
pub(crate) mod tests {
    use shardwright_shim_abi::ErrorClass;
    use shardwright_shim_abi::raw::*;
    use shardwright_shim_npu::artefact::ReadHead;
    use shardwright_shim_testing::assert_damage_is_found;

    use super::*;

    pub(crate) fn sample(count: usize) -> Descriptor {
        let port = |name: &str, kind, role, dtype| Port {
            name: name.to_owned(),
            kind,
            role,
            index: 0,
            dtype,
            shape: vec![4, 16],
            scale_bits: f64::from(0.1f32).to_bits(),
            zero_point: 0,
            place: vec![1, 4, 1, 16],
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
                format: FORMAT.number,
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
        let head = FORMAT.head_bytes(&read.descriptor.head).expect("small");
        assert!(head.len() <= SW_HEAD_LIMIT as usize);
        assert_eq!(
            FORMAT.read_head::<Head>(&head).expect("undamaged"),
            ReadHead::Known(Box::new(read.descriptor.head))
        );
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let blobs = [(0..3000u32).map(|index| index as u8).collect(), vec![1; 100]];
        let bytes = whole(sample(2), &blobs);
        assert_damage_is_found(&bytes, |bytes| {
            Artefact::read(bytes)
                .is_ok_and(|read| read.descriptor.entries.iter().all(|entry| read.blob(entry).is_ok()))
        });
    }

    /// The properties that all shims' descriptors share are tested with the shared format.
    #[test]
    fn impossible_descriptors_are_damage() {
        type Change = fn(&mut Descriptor);
        let cases: &[(&str, Change)] = &[
            ("of element type", |d| d.entries[0].ports[0].place = vec![3, 5]),
            ("the zero point 1", |d| d.entries[0].ports[0].zero_point = 1),
            ("after its outputs", |d| d.entries[0].ports[0].kind = PortKind::Output),
        ];
        for (part, change) in cases {
            let mut descriptor = sample(1);
            change(&mut descriptor);
            let refused = Artefact::read(&whole(descriptor, &[vec![1]])).expect_err("refused");
            assert_eq!(refused.class, ErrorClass::CorruptArtefact, "{part}: {refused}");
            assert!(refused.to_string().contains(part), "`{part}` not in `{refused}`");
        }
    }
}
