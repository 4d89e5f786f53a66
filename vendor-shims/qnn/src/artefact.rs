//! Contents of a compiled artefact.
//!
//! The descriptor is the [`Head`], and per entry its ports with the tensor numbers of the binary,
//! since the library does not know ports and numbers tensors differently in every compiling
//! process. The vendor's unchanged context binary follows. The vendor's library loads binaries for
//! other chips and binaries with flipped bits without an error, so the descriptor contains the
//! binary's hash.

use serde::{Deserialize, Serialize};
use shardwright_shim_abi::Error;
use shardwright_shim_npu::artefact::{self, Format, Outline, PAGE, check_hash, check_name, corrupt};
use shardwright_shim_npu::port::{self, MAX_RANK, PortKind};

use crate::lower::Variants;
use crate::session::{GraphDescription, TensorDescription};
use crate::soc::SocId;

/// Format of this shim's artefacts.
pub const FORMAT: Format = Format {
    magic: b"SWQNNART",
    head: "shardwright-qnn-artefact\n",
    number: 3,
    shim: "qnn",
    payload: "a binary",
    foreign_help: "`inspect` shows the content of a foreign context binary; only artefacts compiled by this shim name their ports",
};

/// Metadata that is needed before an artefact is loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// The writer's [`FORMAT`] number.
    pub format: u32,
    /// The chip that the binary reports.
    pub soc: SocId,
    /// The profile's number, if it has one. It differs from `soc` if the library did not know the
    /// number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<SocId>,
    /// Name of the profile it was compiled for.
    pub soc_name: String,
    /// The architecture that the binary reports.
    pub arch: u32,
    /// Fast memory used by its graphs, in megabytes.
    pub vtcm_megabytes: u32,
    pub entries: u32,
    /// Whether the entry points share their weights.
    pub is_shared: bool,
    /// The library that compiled it.
    pub made_by: Versions,
    /// Size of the context binary, bytes.
    pub binary_bytes: u64,
    /// SHA-256 of the context binary, lower-case hex.
    pub binary_sha256: String,
}

/// Versions of a vendor library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Versions {
    /// For example `v2.51.0.260929181845`.
    pub build: String,
    /// Version of the interface that all backends share.
    pub core: [u32; 3],
    /// Version of the tensor processor's backend.
    pub backend: [u32; 3],
}

/// Everything in the artefact except the binary.
pub type Descriptor = artefact::Descriptor<Head, Entry>;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Name in the work order.
    pub name: String,
    /// Static rows per run.
    pub rows: u64,
    /// Context size in the work order.
    pub context: u64,
    /// How it was lowered.
    pub variants: Variants,
    /// Its graph in the binary, with the tensor numbers that a run needs.
    pub graph: GraphDescription,
    /// Inputs, then outputs. Each port is exactly one tensor of the graph.
    pub ports: Vec<Port>,
}

/// A port with the number of its tensor in the binary.
pub type Port = port::Port<u32>;

impl Entry {
    /// Returns the indices of the ports bound to the graph's inputs or outputs, in the graph's
    /// order. Returns `None` unless ports and tensors correspond one to one.
    pub fn bound(&self, is_output: bool) -> Option<Vec<usize>> {
        let tensors = if is_output { &self.graph.outputs } else { &self.graph.inputs };
        let ports = self.ports.iter().filter(|port| (port.kind == PortKind::Output) == is_output).count();
        if ports != tensors.len() {
            return None;
        }
        let place = |tensor: &TensorDescription| {
            self.ports.iter().position(|port| {
                port.place == tensor.id
                    && (port.kind == PortKind::Output) == is_output
                    && port.bytes() == tensor.bytes()
            })
        };
        tensors.iter().map(place).collect()
    }
}

impl artefact::Head for Head {
    fn entries(&self) -> u32 {
        self.entries
    }
}

impl artefact::Entry for Entry {
    type Place = u32;

    fn outline(&self) -> Outline<'_, u32> {
        Outline { name: &self.name, rows: self.rows, context: self.context, ports: &self.ports }
    }
}

#[derive(Clone, Debug)]
pub struct Artefact<'m> {
    /// Checked: undamaged and within its limits.
    pub descriptor: Descriptor,
    binary: &'m [u8],
    binary_at: u64,
}

impl<'m> Artefact<'m> {
    /// Reads the descriptor and locates the binary. Does not read the binary's bytes yet.
    ///
    /// # Errors
    ///
    /// `ErrorClass::IncompatibleArtefact` if the bytes are not an artefact or have another layout,
    /// `ErrorClass::CorruptArtefact` if they are damaged.
    pub fn read(bytes: &'m [u8]) -> Result<Artefact<'m>, Error> {
        let opened = FORMAT.open::<Head, Entry>(bytes)?;
        check(&opened.descriptor).map_err(|reason| corrupt(PAGE, reason))?;
        let (reported, found) = (opened.descriptor.head.binary_bytes, opened.payload.len());
        if reported != found as u64 {
            return Err(corrupt(32, format!("{found} bytes, expected {reported} as described")));
        }
        Ok(Artefact { descriptor: opened.descriptor, binary: opened.payload, binary_at: opened.payload_at })
    }

    /// Returns the vendor's bytes after verifying their hash. The library would load damaged
    /// weights without an error.
    ///
    /// # Errors
    ///
    /// `ErrorClass::CorruptArtefact` if the bytes differ from the written ones.
    pub fn binary(&self) -> Result<&'m [u8], Error> {
        let written = &self.descriptor.head.binary_sha256;
        check_hash(self.binary, written, "the context binary", self.binary_at)?;
        Ok(self.binary)
    }
}

/// Checks every property that the rest of the shim relies on. The descriptor is untrusted.
fn check(descriptor: &Descriptor) -> Result<(), String> {
    let mut graphs = std::collections::HashSet::new();
    for entry in &descriptor.entries {
        check_name("a graph", &entry.graph.name)?;
        if !graphs.insert(entry.graph.name.as_str()) {
            return Err(format!("two graphs `{}`", entry.graph.name));
        }
        let mut tensors = std::collections::HashSet::new();
        if let Some(port) = entry.ports.iter().find(|port| !tensors.insert(port.place)) {
            return Err(format!("the tensor of port `{}` of `{}` appears twice", port.name, entry.name));
        }
        for tensor in entry.graph.inputs.iter().chain(&entry.graph.outputs) {
            check_name("a tensor", &tensor.name)?;
            if tensor.dims.len() > MAX_RANK {
                return Err(format!("tensor `{}` has unsupported rank {}", tensor.name, tensor.dims.len()));
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
    use shardwright_shim_abi::ErrorClass;
    use shardwright_shim_abi::raw::*;
    use shardwright_shim_npu::artefact::{ReadHead, hash};
    use shardwright_shim_testing::assert_damage_is_found;

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
            place: id,
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
                format: FORMAT.number,
                soc: SocId(87),
                asked: Some(SocId(87)),
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
        let mut bytes = FORMAT.prefix(descriptor, descriptor.head.binary_bytes).expect("within limits");
        bytes.extend(binary);
        bytes
    }

    #[test]
    fn written_artefacts_are_read_back() {
        let binary = [7u8; 5000];
        let descriptor = sample(&binary);
        let bytes = written(&descriptor, &binary);
        assert!((bytes.len() - binary.len()).is_multiple_of(PAGE as usize));
        let read = Artefact::read(&bytes).expect("undamaged");
        assert_eq!(read.descriptor, descriptor);
        let entry = &read.descriptor.entries[0];
        assert_eq!((entry.bound(false), entry.bound(true)), (Some(vec![1, 0]), Some(vec![2])));
        assert_eq!(read.binary().expect("undamaged"), binary);
        let head = FORMAT.head_bytes(&descriptor.head).expect("small");
        assert!(head.len() <= SW_HEAD_LIMIT as usize);
        assert_eq!(
            FORMAT.read_head::<Head>(&head).expect("undamaged"),
            ReadHead::Known(Box::new(descriptor.head))
        );
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let binary: Vec<u8> = (0..3000u32).map(|index| index as u8).collect();
        let bytes = written(&sample(&binary), &binary);
        assert_damage_is_found(&bytes, |bytes| {
            Artefact::read(bytes).and_then(|read| read.binary().map(|_| ())).is_ok()
        });
    }

    /// The properties that all shims' descriptors share are tested with the shared format.
    #[test]
    fn impossible_descriptors_are_damage() {
        type Change = fn(&mut Descriptor);
        let cases: &[(&str, Change)] = &[
            ("twice", |d| d.entries[0].ports[1].place = 1),
            ("a name of 0 bytes", |d| d.entries[0].graph.inputs[0].name.clear()),
            ("a name of 3 bytes", |d| d.entries[0].graph.name = "a\0b".to_owned()),
            ("unsupported rank 9", |d| d.entries[0].graph.inputs[0].dims = vec![1; 9]),
            ("not the same", |d| d.entries[0].graph.inputs[0].id = 9),
            ("not the same", |d| d.entries[0].graph.inputs[0].dims[1] = 5),
            ("not the same", |d| d.entries[0].graph.inputs[0].data_type = 77),
            ("not the same", |d| d.entries[0].graph.outputs.clear()),
            ("not the same", |d| d.entries[0].ports[2].kind = PortKind::Input),
            ("not the same", |d| drop(d.entries[0].ports.pop())),
            ("described", |d| d.head.binary_bytes = 2),
        ];
        for (part, change) in cases {
            let mut descriptor = sample(&[1]);
            change(&mut descriptor);
            let mut bytes = FORMAT.prefix(&descriptor, descriptor.head.binary_bytes).expect("within limits");
            // The length in the header is correct, so that only the descriptor is at fault.
            bytes[32..40].copy_from_slice(&1u64.to_le_bytes());
            bytes.push(1);
            let refused = Artefact::read(&bytes).expect_err("refused");
            assert_eq!(refused.class, ErrorClass::CorruptArtefact, "{part}: {refused}");
            assert!(refused.to_string().contains(part), "`{part}` not in `{refused}`");
        }
    }
}
