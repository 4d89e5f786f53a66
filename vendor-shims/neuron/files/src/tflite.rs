//! Reads the parts of a `.tflite` that concern an accelerator: `DISPATCH_OP` operations, the
//! container appended to the model, and the stamp.
//!
//! Field numbers are from TFLite's schema. LiteRT replaces each offloaded partition by a custom
//! operation `DISPATCH_OP`. Its options are a FlexBuffer map of `bytecode_offset`, `bytecode_size`
//! and `name`. The container follows the FlatBuffer, and its offset counts from the first byte of
//! the model. The metadata `LiteRtStamp` contains two texts of 125 bytes: the vendor and the chip.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::blob::Compilation;
use crate::budget::Budget;
use crate::bytes::Bytes;
use crate::flatbuffer::{Table, Vector};
use crate::flexbuffer::{self, Value};
use crate::neuron_schema::{self, NeuronSchema};
use crate::{ContainerError, Result, operators};

/// The bytes at offset 4 of every model.
pub const IDENTIFIER: &[u8; 4] = b"TFL3";
/// Name of the custom operation that represents compiled code.
pub const DISPATCH: &str = "DISPATCH_OP";
/// Name of the metadata with vendor and chip.
const STAMP: &str = "LiteRtStamp";
/// Bytes of each text of the stamp.
const STAMP_TEXT: usize = 125;
/// Name of the metadata of a layout from 2024, which is reported but not read.
const OLD_STAMP: &str = "NPU_BYTE_CODE";
/// Vendor whose containers are read.
const MAKER: &str = "mediatek";

/// Maximum number of functions of a model.
const MAX_SUBGRAPHS: usize = 1024;
/// Maximum number of kinds of operations.
const MAX_KINDS: usize = 4096;
/// Maximum number of buffers, one per constant tensor.
const MAX_BUFFERS: usize = 1 << 20;
/// Maximum number of metadata entries and of signatures.
const MAX_METADATA: usize = 1024;
/// Maximum number of dispatch operations.
const MAX_DISPATCHES: usize = 1024;
/// Maximum number of containers of bytecode. The plugin writes one.
const MAX_CONTAINERS: usize = 16;
/// Maximum length of a reported name or text, in characters.
const MAX_SHOWN: usize = 256;

/// A parsed model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tflite {
    /// Version of the schema, 3 in every known file.
    pub version: u32,
    /// The model's own description.
    pub description: Option<String>,
    /// Vendor and chip.
    pub stamp: Option<Stamp>,
    /// Names of the metadata.
    pub metadata: Vec<String>,
    /// Names of the signatures.
    pub signatures: Vec<String>,
    pub subgraphs: Vec<Subgraph>,
    /// Number of operations that do not run on an accelerator, by kind.
    pub outside: BTreeMap<String, u64>,
    /// Operations that represent compiled code.
    pub dispatches: Vec<Dispatch>,
    /// The containers that the operations name, each once.
    pub containers: Vec<Container>,
}

/// Target of a compiled model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stamp {
    /// Name of the vendor, for example `MediaTek`.
    pub manufacturer: Option<String>,
    /// Name of the chip, for example `mt6989`.
    pub soc: Option<String>,
}

/// A function of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Subgraph {
    pub name: String,
    /// Number of operations.
    pub operations: u64,
    /// Number of operations that represent compiled code.
    pub dispatched: u64,
}

/// An operation that represents compiled code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Dispatch {
    /// Index of the function.
    pub subgraph: usize,
    /// Name of the partition, for example `Partition_0`.
    pub name: Option<String>,
    /// Offset of the container from the model's first byte.
    pub bytecode_offset: u64,
    /// Length of the container in bytes.
    pub bytecode_size: u64,
}

/// A container of bytecode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Offset from the model's first byte.
    pub offset: u64,
    /// Length in bytes.
    pub size: u64,
    /// The content, or `None` if it belongs to another vendor.
    pub held: Option<NeuronSchema>,
}

/// Returns whether the bytes are a model.
pub fn is(bytes: &[u8]) -> bool {
    bytes.get(4..8) == Some(IDENTIFIER)
}

/// Prepares a text for a report: truncated, without terminal control characters.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(MAX_SHOWN).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Reads a model at the start of `bytes`.
///
/// # Errors
///
/// For a damaged model, for a dispatch operation without its numbers, and for a damaged or missing
/// container.
pub fn read(bytes: Bytes<'_>, budget: &mut Budget) -> Result<Tflite> {
    let root = Table::root(bytes)?;
    let buffers = root.tables(4)?;
    if let Some(buffers) = buffers.filter(|buffers| buffers.len > MAX_BUFFERS) {
        return Err(too_many("buffers", &buffers, MAX_BUFFERS));
    }
    let (metadata, stamp) = metadata_of(bytes, &root, buffers, budget)?;
    let kinds = kinds(&root, budget)?;
    let mut model = Tflite {
        version: root.u32(0)?.unwrap_or(0),
        description: root.text(3)?.map(shown),
        stamp,
        metadata,
        signatures: signatures(&root, budget)?,
        subgraphs: Vec::new(),
        outside: BTreeMap::new(),
        dispatches: Vec::new(),
        containers: Vec::new(),
    };
    let mut outside = vec![0u64; kinds.len()];
    if let Some(subgraphs) = root.tables(2)? {
        for (position, subgraph) in subgraphs.all("functions", MAX_SUBGRAPHS)?.enumerate() {
            let subgraph = subgraph?;
            budget.entries(1, subgraph.offset())?;
            let mut reported = Subgraph {
                name: subgraph.text(4)?.map(shown).unwrap_or_default(),
                operations: 0,
                dispatched: 0,
            };
            if let Some(operations) = subgraph.tables(3)? {
                budget.operations(operations.len as u64, operations.offset())?;
                for operation in operations.all("operations", usize::MAX)? {
                    let operation = operation?;
                    let kind = operation.u32(0)?.unwrap_or(0) as usize;
                    reported.operations += 1;
                    match kinds.get(kind) {
                        Some(name) if name == DISPATCH => {
                            reported.dispatched += 1;
                            model.dispatches.push(dispatch(bytes, &operation, position)?);
                            if model.dispatches.len() > MAX_DISPATCHES {
                                return Err(too_many("dispatch operations", &operations, MAX_DISPATCHES));
                            }
                        }
                        Some(_) => outside[kind] += 1,
                        None => {
                            return Err(ContainerError::Malformed {
                                what: "operation",
                                offset: operation.offset(),
                                reason: format!("it has kind {kind}, but there are only {}", kinds.len()),
                            });
                        }
                    }
                }
            }
            model.subgraphs.push(reported);
        }
    }
    for (name, count) in kinds.into_iter().zip(outside).filter(|(_, count)| *count > 0) {
        *model.outside.entry(name).or_default() += count;
    }
    containers(bytes, &mut model, budget)?;
    Ok(model)
}

fn too_many(what: &'static str, found: &Vector<'_>, most: usize) -> ContainerError {
    ContainerError::TooMany { what, offset: found.offset(), count: found.len as u64, most: most as u64 }
}

/// Returns the names of the kinds of operations, by position.
fn kinds(root: &Table<'_>, budget: &mut Budget) -> Result<Vec<String>> {
    let Some(codes) = root.tables(1)? else { return Ok(Vec::new()) };
    let mut kinds = Vec::new();
    for code in codes.all("kinds of operations", MAX_KINDS)? {
        let code = code?;
        budget.entries(1, code.offset())?;
        // Numbers above 126 are in the newer field. Older writers know only the older field.
        let number = i32::from(code.i8(0)?.unwrap_or(0)).max(code.i32(3)?.unwrap_or(0));
        kinds.push(match code.text(1)? {
            Some(name) if number == operators::CUSTOM => shown(name),
            _ => operators::name(number),
        });
    }
    Ok(kinds)
}

fn signatures(root: &Table<'_>, budget: &mut Budget) -> Result<Vec<String>> {
    let Some(signatures) = root.tables(7)? else { return Ok(Vec::new()) };
    let mut names = Vec::new();
    for signature in signatures.all("signatures", MAX_METADATA)? {
        let signature = signature?;
        budget.entries(1, signature.offset())?;
        names.push(signature.text(2)?.map(shown).unwrap_or_default());
    }
    Ok(names)
}

/// Returns the names of the metadata, and the stamp if it is one of them.
fn metadata_of(
    bytes: Bytes<'_>,
    root: &Table<'_>,
    buffers: Option<Vector<'_>>,
    budget: &mut Budget,
) -> Result<(Vec<String>, Option<Stamp>)> {
    let Some(entries) = root.tables(6)? else { return Ok((Vec::new(), None)) };
    let (mut names, mut stamp) = (Vec::new(), None);
    for entry in entries.all("metadata", MAX_METADATA)? {
        let entry = entry?;
        budget.entries(1, entry.offset())?;
        let name = entry.text(0)?.unwrap_or_default();
        if name == STAMP {
            let index = entry.u32(1)?.unwrap_or(0) as usize;
            let buffer = match buffers.filter(|buffers| index < buffers.len) {
                Some(buffers) => buffers.table(index)?,
                None => {
                    return Err(ContainerError::Malformed {
                        what: "stamp",
                        offset: entry.offset(),
                        reason: format!("its buffer {index} is missing"),
                    });
                }
            };
            // Large models store buffers after the FlatBuffer.
            let data = match (buffer.bytes(0)?, buffer.u64(1)?, buffer.u64(2)?) {
                (Some(data), ..) => Some(data),
                (None, Some(offset), Some(size)) => Some(bytes.slice_u64(offset, size, "stamp")?),
                _ => None,
            };
            stamp = data.map(read_stamp).transpose()?;
        }
        names.push(shown(name));
    }
    Ok((names, stamp))
}

fn read_stamp(data: Bytes<'_>) -> Result<Stamp> {
    let text = |at: usize| {
        let text = data.slice(at, STAMP_TEXT, "stamp")?.get();
        let text = &text[..text.iter().position(|byte| *byte == 0).unwrap_or(text.len())];
        let text = shown(&String::from_utf8_lossy(text));
        Ok::<_, ContainerError>((!text.is_empty()).then_some(text))
    };
    Ok(Stamp { manufacturer: text(0)?, soc: text(STAMP_TEXT)? })
}

fn dispatch(bytes: Bytes<'_>, operation: &Table<'_>, subgraph: usize) -> Result<Dispatch> {
    let options = match (operation.bytes(5)?, operation.u64(9)?, operation.u64(10)?) {
        (Some(options), ..) if !options.is_empty() => Some(options),
        (_, Some(offset), Some(size)) if size > 0 => Some(bytes.slice_u64(offset, size, "options")?),
        _ => None,
    };
    let refused = |reason: &str| ContainerError::Malformed {
        what: "dispatch operation",
        offset: operation.offset(),
        reason: reason.to_owned(),
    };
    let options = options.ok_or_else(|| refused("it has no options, so its code cannot be found"))?;
    let options = flexbuffer::map(options)?;
    let number = |name: &str| {
        let found = options.iter().find(|(key, _)| key == name).map(|(_, value)| value);
        match found {
            Some(Value::Number(number)) => u64::try_from(*number).ok(),
            _ => None,
        }
        .ok_or_else(|| refused(&format!("its options have no number `{name}`")))
    };
    let name = options.iter().find_map(|(key, value)| match value {
        Value::Text(text) if key == "name" => Some(shown(text)),
        _ => None,
    });
    Ok(Dispatch {
        subgraph,
        name,
        bytecode_offset: number("bytecode_offset")?,
        bytecode_size: number("bytecode_size")?,
    })
}

fn containers(bytes: Bytes<'_>, model: &mut Tflite, budget: &mut Budget) -> Result<()> {
    // Without a stamp, the file may come from any vendor. Its container is tried, and a container
    // that is not MediaTek's is reported.
    let stamped = model.stamp.as_ref().and_then(|stamp| stamp.manufacturer.as_deref());
    let is_mediatek = stamped.map(|maker| maker.eq_ignore_ascii_case(MAKER));
    for dispatch in &model.dispatches {
        let place = (dispatch.bytecode_offset, dispatch.bytecode_size);
        if model.containers.iter().any(|container| (container.offset, container.size) == place) {
            continue;
        }
        if model.containers.len() == MAX_CONTAINERS {
            return Err(ContainerError::TooMany {
                what: "containers of bytecode",
                offset: bytes.offset(0),
                count: MAX_CONTAINERS as u64 + 1,
                most: MAX_CONTAINERS as u64,
            });
        }
        let part = bytes.slice_u64(place.0, place.1, "container of bytecode")?;
        if part.is_empty() {
            return Err(ContainerError::Empty { what: "container of bytecode", offset: part.offset(0) });
        }
        let held = match is_mediatek {
            Some(true) => Some(neuron_schema::read(part, budget)?),
            Some(false) => None,
            None => neuron_schema::read(part, budget).ok(),
        };
        model.containers.push(Container { offset: place.0, size: place.1, held });
    }
    Ok(())
}

/// Report on a model.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    schema: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    stamp: Option<Stamp>,
    /// Number of all operations that represent compiled code.
    dispatched: u64,
    /// Number of all operations that stayed outside.
    outside: u64,
    outside_by_kind: BTreeMap<String, u64>,
    functions: Vec<Subgraph>,
    signatures: Vec<String>,
    metadata: Vec<String>,
    dispatches: Vec<Dispatch>,
    containers: Vec<ContainerDocument>,
}

#[derive(Clone, Debug, Serialize)]
struct ContainerDocument {
    offset: u64,
    size: u64,
    #[serde(flatten)]
    held: Option<neuron_schema::Document>,
}

impl Tflite {
    /// Creates the report on the model.
    pub fn document(&self) -> Document {
        Document {
            schema: self.version,
            description: self.description.clone(),
            stamp: self.stamp.clone(),
            dispatched: self.dispatches.len() as u64,
            outside: self.outside.values().sum(),
            outside_by_kind: self.outside.clone(),
            functions: self.subgraphs.clone(),
            signatures: self.signatures.clone(),
            metadata: self.metadata.clone(),
            dispatches: self.dispatches.clone(),
            containers: self
                .containers
                .iter()
                .map(|container| ContainerDocument {
                    offset: container.offset,
                    size: container.size,
                    held: container.held.as_ref().map(NeuronSchema::document),
                })
                .collect(),
        }
    }

    /// Lists the compiler, chip and options of each partition.
    pub fn compilations(&self) -> Vec<Compilation> {
        let soc = self.stamp.as_ref().and_then(|stamp| stamp.soc.as_deref());
        let schemas = self.containers.iter().filter_map(|container| container.held.as_ref());
        schemas.flat_map(|schema| schema.compilations(soc)).collect()
    }

    /// Lists anomalies, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.dispatches.is_empty() {
            found.push(match &self.stamp {
                Some(_) => "it is stamped as compiled, but no part of it runs on an accelerator".to_owned(),
                None => "no part of it was compiled for an accelerator".to_owned(),
            });
        }
        match &self.stamp {
            Some(Stamp { manufacturer: None, soc: None }) => {
                found.push("its stamp names neither vendor nor chip".to_owned());
            }
            None if !self.dispatches.is_empty() => {
                found.push("it has no stamp, so vendor and chip are unknown".to_owned())
            }
            _ => {}
        }
        if self.metadata.iter().any(|name| name == OLD_STAMP) {
            found.push(format!("its layout of 2024 (`{OLD_STAMP}`) is not supported"));
        }
        for container in &self.containers {
            let at = container.offset;
            match &container.held {
                None => found.push(format!("the container at {at} is not MediaTek's and was not read")),
                Some(schema) => found.extend(schema.warnings()),
            }
            let partitions = container.held.iter().flat_map(|held| &held.subgraphs);
            let names: Vec<&str> = partitions.map(|partition| partition.entry_point.as_str()).collect();
            for dispatch in self.dispatches.iter().filter(|dispatch| dispatch.bytecode_offset == at) {
                match &dispatch.name {
                    None => found.push("a dispatch operation names no partition".to_owned()),
                    Some(name) if container.held.is_some() && !names.contains(&name.as_str()) => {
                        found.push(format!(
                            "a dispatch operation needs `{name}`, which the container does not have"
                        ));
                    }
                    Some(_) => {}
                }
            }
        }
        found
    }
}
