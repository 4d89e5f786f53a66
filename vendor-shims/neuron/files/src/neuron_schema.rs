//! The container that LiteRT's MediaTek plugin appends to a `.tflite`, with the code of every
//! partition. It has no file identifier. Its tables, with field numbers:
//!
//! * `Graphs` (the root): 0 version (i16, 1), 1 subgraphs, 2 data, 3 external, 4 version of the
//!   Neuron SDK (three u32 in place, missing in files of 2025)
//! * `Subgraph`: 0 entry point, 1 type (i8), 2 kind of index (u8), 3 index
//! * `Buffer`: 0 identifier, 1 data

use serde::Serialize;

use crate::blob::{self, Blob};
use crate::budget::Budget;
use crate::bytes::Bytes;
use crate::flatbuffer::Table;
use crate::{ContainerError, Result};

/// Maximum number of partitions of a container. Published files have a few.
const MAX_SUBGRAPHS: usize = 1024;
/// The only version of the container.
const VERSION: i16 = 1;
/// Kind of index that refers to code by position.
const INDEX: u8 = 1;
/// Kind of index that refers to code by name.
const IDENTIFIER: u8 = 2;

/// A parsed container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeuronSchema {
    /// Version of the SDK that wrote the container. LiteRT compares its major version with the
    /// device's.
    pub sdk: Option<[u32; 3]>,
    pub subgraphs: Vec<Subgraph>,
}

/// A partition of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subgraph {
    /// Name of the partition, for example `Partition_0`.
    pub entry_point: String,
    /// Kind of code according to the container.
    pub kind: CodeKind,
    pub blob: Blob,
}

/// Kind of code according to the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CodeKind {
    /// Number 0.
    Dla,
    /// Number 1.
    Dlb,
    /// Number 2.
    AdapterCache,
    /// Any other number.
    Other(i8),
}

/// Reads a container at the start of `bytes`.
///
/// # Errors
///
/// For bytes that are not a container of version 1, and for a container that names missing code.
pub fn read(bytes: Bytes<'_>, budget: &mut Budget) -> Result<NeuronSchema> {
    let root = Table::root(bytes)?;
    let version = root.i16(0)?.unwrap_or(VERSION);
    if version != VERSION {
        return Err(ContainerError::UnknownVersion {
            what: "container of bytecode",
            offset: root.offset(),
            version: version.to_string(),
            supported: "1",
        });
    }
    let missing =
        |what: &'static str| bytes.malformed(0, what, "it is missing: this is not a container of bytecode");
    let subgraphs = root.tables(1)?.ok_or_else(|| missing("list of subgraphs"))?;
    let buffers = root.tables(2)?.ok_or_else(|| missing("list of buffers"))?;
    if subgraphs.len == 0 {
        return Err(missing("subgraph"));
    }
    if buffers.len > MAX_SUBGRAPHS {
        return Err(ContainerError::TooMany {
            what: "buffers",
            offset: buffers.offset(),
            count: buffers.len as u64,
            most: MAX_SUBGRAPHS as u64,
        });
    }
    let sdk = root.inline(4, 12)?.map(|sdk| {
        let part = |at| sdk.u32(at, "version of the SDK");
        Ok::<_, ContainerError>([part(0)?, part(4)?, part(8)?])
    });
    let mut found = Vec::new();
    for subgraph in subgraphs.all("subgraphs", MAX_SUBGRAPHS)? {
        let subgraph = subgraph?;
        budget.entries(1, subgraph.offset())?;
        let refused = |reason: String| ContainerError::Malformed {
            what: "subgraph",
            offset: subgraph.offset(),
            reason,
        };
        let reference = subgraph.table(3)?.ok_or_else(|| refused("it does not name its code".to_owned()))?;
        let data = match subgraph.u8(2)?.unwrap_or(0) {
            INDEX => {
                let index = reference.i32(0)?.unwrap_or(-1);
                let existing = usize::try_from(index).ok().filter(|index| *index < buffers.len);
                let index = existing.ok_or_else(|| {
                    refused(format!("its code is number {index} of {} buffers", buffers.len))
                })?;
                buffers.table(index)?.bytes(1)?
            }
            IDENTIFIER => {
                let name = reference.text(0)?.unwrap_or_default();
                let mut existing = None;
                for index in 0..buffers.len {
                    let buffer = buffers.table(index)?;
                    budget.entries(1, buffer.offset())?;
                    if buffer.text(0)? == Some(name) {
                        existing = Some(buffer);
                        break;
                    }
                }
                existing.ok_or_else(|| refused("no buffer has the name of its code".to_owned()))?.bytes(1)?
            }
            other => {
                return Err(refused(format!("its code has a reference of kind {other}, expected 1 or 2")));
            }
        };
        let data = data.ok_or(ContainerError::Empty { what: "compiled code", offset: subgraph.offset() })?;
        found.push(Subgraph {
            entry_point: subgraph.text(0)?.unwrap_or_default().to_owned(),
            kind: match subgraph.i8(1)?.unwrap_or(0) {
                0 => CodeKind::Dla,
                1 => CodeKind::Dlb,
                2 => CodeKind::AdapterCache,
                other => CodeKind::Other(other),
            },
            blob: blob::read(data, budget)?,
        });
    }
    Ok(NeuronSchema { sdk: sdk.transpose()?, subgraphs: found })
}

/// Report on a container.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    sdk_version: Option<String>,
    partitions: Vec<PartitionDocument>,
}

#[derive(Clone, Debug, Serialize)]
struct PartitionDocument {
    name: String,
    declared: CodeKind,
    #[serde(flatten)]
    blob: blob::BlobDocument,
}

impl NeuronSchema {
    /// Creates the report on the container.
    pub fn document(&self) -> Document {
        let partition = |subgraph: &Subgraph| PartitionDocument {
            name: subgraph.entry_point.clone(),
            declared: subgraph.kind,
            blob: subgraph.blob.document(),
        };
        Document {
            sdk_version: self.sdk.map(|[major, minor, patch]| format!("{major}.{minor}.{patch}")),
            partitions: self.subgraphs.iter().map(partition).collect(),
        }
    }

    /// Lists the compiler, chip and options of each partition.
    pub fn compilations(&self, soc: Option<&str>) -> Vec<blob::Compilation> {
        self.subgraphs.iter().map(|subgraph| subgraph.blob.compilation(&subgraph.entry_point, soc)).collect()
    }

    /// Lists anomalies, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.sdk.is_none() {
            found.push(
                "the container names no version of the SDK, so a device cannot tell whether it can run it"
                    .to_owned(),
            );
        }
        for subgraph in &self.subgraphs {
            let name = &subgraph.entry_point;
            found.extend(subgraph.blob.warnings(name));
            if let (Some([major, ..]), Some(version)) = (self.sdk, subgraph.blob.version)
                && major != u32::from(version.major)
            {
                found.push(format!("{name}: compiled by {version}, but the container names SDK {major}"));
            }
            let agree = match (subgraph.kind, subgraph.blob.kind) {
                (CodeKind::Dla, blob::Kind::Dla) | (CodeKind::AdapterCache, blob::Kind::AdapterCache) => true,
                // The simulator emulates any kind, and unrecognised code has its own warning.
                (_, blob::Kind::Simulator | blob::Kind::Unrecognised) => true,
                _ => false,
            };
            if !agree {
                found.push(format!("{name}: the code is not of the kind that the container names"));
            }
        }
        found
    }
}
