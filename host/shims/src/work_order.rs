//! The work order: everything about one shard that a compiler needs, in one file named by its
//! content.
//!
//! ```text
//! offset  0  magic "SWORDER\0"          8
//!         8  format version             4   1
//!        12  page                       4   4096
//!        16  length of the JSON head    8
//!        24  length of the file         8
//!        32  SHA-256 of all that follows 32   its hex is the name
//!        64  JSON head, then zeros to the next page
//!            each weight in the head's order, then its scales, each starting on a page, zeros between
//! ```
//!
//! The bytes are canonical: each head has only one valid encoding, and a reader refuses any other.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use shardwright_files::hex;
use shardwright_graph::{EntryGraph, Op, Weight, WeightId, infer_shape};
use shardwright_vocabulary::{At, DType, Error, ErrorKind, Flag, Granularity, Quantisation, Result};

use crate::container::{Container, Format, HeadAt, SHOWN_ALIGNMENT, Writer};
use crate::interface::EntryInterface;

const MAGIC: [u8; 8] = *b"SWORDER\0";

/// Maximum size of the JSON that is parsed. The largest known decoder (35 layers, three entry
/// points, in primitives) needs about 8 MiB.
const HEAD_LIMIT: u64 = 64 << 20;

const FORMAT: Format = Format {
    magic: MAGIC,
    what: "a work order",
    page: SHOWN_ALIGNMENT,
    head_limit: HEAD_LIMIT,
    head_at: HeadAt::Front,
};

/// Maximum number of entry points of a shard. Plans have only a few.
const ENTRY_LIMIT: usize = 64;

/// Maximum number of weights of a shard. A decoder has about 15 per layer.
const WEIGHT_LIMIT: usize = 1 << 17;

/// Maximum number of tensors, and of nodes, of an entry.
const NODE_LIMIT: usize = 1 << 20;

/// Maximum number of flags, and of options.
const PAIR_LIMIT: usize = 1 << 12;

/// Maximum length of a name, bytes.
const NAME_LIMIT: usize = 1 << 10;

/// Bytes of a weight that are checked and written at a time, a multiple of the size of every float.
const CHUNK: usize = 1 << 20;

/// Maximum size of one weight or tensor, bytes. Far more than any device has, and far below
/// overflow.
const BYTES_LIMIT: u64 = 1 << 42;

/// File name suffix of work orders.
pub const WORK_ORDER_SUFFIX: &str = ".swo";

/// Returns the error of an inconsistent entry graph.
pub(crate) fn invalid_entry(entry: &EntryGraph, reason: String) -> Error {
    inconsistent(reason).at(format_args!("entry `{}`", entry.point.name()))
}

/// Returns the error of an order that is inconsistent as a whole.
fn invalid_order(reason: String) -> Error {
    inconsistent(reason).at("work order")
}

fn inconsistent(reason: String) -> Error {
    Error::invalid(reason).with_help("build the work order again from its checkpoint and plan")
}

/// A weight as listed in the head. Its bytes follow the previous weight's, on the next page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderWeight {
    /// Name in the checkpoint.
    pub name: String,
    /// Its role in the network.
    pub part: String,
    pub dtype: DType,
    pub shape: Vec<u64>,
    /// Size of the stored bytes, without scales.
    pub length: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantisation: Option<OrderQuantisation>,
}

/// Quantisation of a listed weight, as stored in the head. Its scales follow its bytes, on the next
/// page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderQuantisation {
    /// Granularity of the scales: which values share one.
    pub scales: Granularity,
    /// Type of the scales.
    pub scale_dtype: DType,
    /// Stored value that represents zero.
    pub zero_point: i32,
}

impl OrderWeight {
    /// Creates it from a weight with or without bytes.
    pub(crate) fn of(weight: &Weight) -> Self {
        OrderWeight {
            name: weight.name.clone(),
            part: weight.part.to_owned(),
            dtype: weight.dtype,
            shape: weight.shape.clone(),
            length: weight.data.length() as u64,
            quantisation: weight.quantisation.as_ref().map(|existing| OrderQuantisation {
                scales: existing.granularity,
                scale_dtype: existing.scale_dtype,
                zero_point: existing.zero_point,
            }),
        }
    }

    pub(crate) fn quantisation(&self) -> Option<Quantisation<()>> {
        let OrderQuantisation { scales: granularity, scale_dtype, zero_point } = self.quantisation?;
        Some(Quantisation { granularity, scale_dtype, scales: (), zero_point })
    }

    /// Returns the size of its scales in bytes, or `None` if the shape does not allow that
    /// granularity.
    pub(crate) fn scale_bytes(&self) -> Option<u64> {
        self.quantisation().map_or(Some(0), |existing| existing.scale_bytes(&self.shape))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkOrderHead {
    /// Entry points. Each [`WeightId`] in them indexes `weights`.
    pub entries: Vec<EntryGraph>,
    /// Weights that the entries use, in order of first use.
    pub weights: Vec<OrderWeight>,
    /// Flags for the vendor's compiler.
    pub flags: Vec<Flag>,
    /// Options for the shim.
    pub options: BTreeMap<String, String>,
}

/// A checked, mapped work order.
#[derive(Debug)]
pub struct WorkOrder {
    container: Container,
    head: WorkOrderHead,
    /// Position of each weight in the file, and of its scales.
    places: Vec<[Section; 2]>,
}

impl WorkOrder {
    /// Maps a file, and checks its hash and its whole head. Memory is bounded by a small multiple
    /// of the head.
    ///
    /// The file must not be changed while it is open.
    pub fn open(path: &Path) -> Result<WorkOrder> {
        WorkOrder::from_container(Container::open(path, &FORMAT)?)
    }

    /// Maps a file that another process has opened and checked.
    pub fn received(file: std::fs::File) -> Result<WorkOrder> {
        WorkOrder::from_container(Container::written(("<received>".into(), file), &FORMAT)?)
    }

    /// Returns the open file behind the mapping.
    pub fn file(&self) -> &std::fs::File {
        self.container.section.file()
    }

    fn from_container(container: Container) -> Result<WorkOrder> {
        let head: WorkOrderHead = serde_json::from_slice(container.head())
            .map_err(|error| container.head_error(error.to_string()))?;
        let canonical = serde_json::to_vec(&head).map_err(|error| container.head_error(error.to_string()))?;
        if canonical != container.head() {
            return Err(container.head_error("not in canonical spelling"));
        }
        head.check().at(container.path().display())?;
        let (places, end) = layout(container.content(), &head.weights)
            .ok_or_else(|| container.head_error("the weights are too large for a file"))?;
        let end = if head.weights.is_empty() { container.content() } else { end };
        if end != container.length() {
            let length = container.length();
            return Err(container.head_error(format!("the weights end at {end}, the file ends at {length}")));
        }
        let order = WorkOrder { container, head, places };
        order.check_padding()?;
        Ok(order)
    }

    fn check_padding(&self) -> Result<()> {
        let head_end = crate::container::PREFIX + self.container.head().len() as u64;
        let ends = self.places.iter().flatten().map(|section| section.offset + section.length);
        let starts = self.places.iter().flatten().map(|section| section.offset);
        let starts = starts.chain([self.container.length()]);
        for (from, to) in std::iter::once(head_end).chain(ends).zip(starts) {
            let clean = self
                .container
                .range(from, to.saturating_sub(from))
                .is_some_and(|padding| padding.iter().all(|&byte| byte == 0));
            if !clean {
                return Err(self.container.head_error(format!("padding at offset {from} is not zero")));
            }
        }
        Ok(())
    }

    pub fn head(&self) -> &WorkOrderHead {
        &self.head
    }

    /// Returns the SHA-256 of the content in hex.
    pub fn name(&self) -> String {
        hex::encode(&self.container.hash)
    }

    /// Returns the path of the file. For an unnamed file it is the path at which it was created.
    pub fn path(&self) -> &Path {
        self.container.path()
    }

    /// Returns the bytes of a weight, page-aligned. Empty for an index out of range.
    pub fn weight_bytes(&self, index: usize) -> &[u8] {
        self.section(index, 0)
    }

    /// Returns the scales of a weight, page-aligned. Empty for floats and for an index out of
    /// range.
    pub fn scale_bytes(&self, index: usize) -> &[u8] {
        self.section(index, 1)
    }

    fn section(&self, index: usize, which: usize) -> &[u8] {
        let section = self.places.get(index).map(|sections| sections[which]);
        section.and_then(|section| self.container.range(section.offset, section.length)).unwrap_or_default()
    }

    /// Returns the interfaces of its entries, as an artefact records them.
    pub fn interfaces(&self) -> Result<Vec<EntryInterface>> {
        self.head.interfaces()
    }
}

/// A range of the file.
#[derive(Clone, Copy, Debug)]
struct Section {
    offset: u64,
    length: u64,
}

/// Returns the sections of weights that start at `content`, and the end of the last. An empty
/// section is placed at the end of the previous one.
fn layout(content: u64, weights: &[OrderWeight]) -> Option<(Vec<[Section; 2]>, u64)> {
    let mut end = content;
    let mut places = Vec::with_capacity(weights.len());
    for weight in weights {
        let mut place = |length: u64| {
            let offset = if length == 0 { end } else { end.checked_next_multiple_of(SHOWN_ALIGNMENT)? };
            end = offset.checked_add(length)?;
            Some(Section { offset, length })
        };
        places.push([place(weight.length)?, place(weight.scale_bytes()?)?]);
    }
    Some((places, end))
}

fn bytes_of(shape: &[u64], dtype: DType) -> Option<u64> {
    dtype.packed_bytes(shape).filter(|&bytes| bytes <= BYTES_LIMIT)
}

fn check_name(what: &str, name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > NAME_LIMIT || name.contains('\0') {
        let shown: String = name.chars().take(64).collect();
        return Err(format!("{what} `{shown}` is empty, contains NUL or is longer than {NAME_LIMIT} bytes"));
    }
    Ok(())
}

fn cap(what: &str, count: usize, limit: usize) -> Result<(), String> {
    if count > limit { Err(format!("{count} {what}, expected at most {limit}")) } else { Ok(()) }
}

impl WorkOrderHead {
    fn interfaces(&self) -> Result<Vec<EntryInterface>> {
        self.entries
            .iter()
            .map(|entry| EntryInterface::of(entry).map_err(|reason| invalid_entry(entry, reason)))
            .collect()
    }

    fn check(&self) -> Result<()> {
        self.check_lists().map_err(invalid_order)?;
        let mut names = HashSet::new();
        for entry in &self.entries {
            let name = entry.point.name().to_string();
            check_entry(entry, &self.weights).map_err(|reason| invalid_entry(entry, reason))?;
            if !names.insert(name.clone()) {
                return Err(invalid_order(format!("two entries are named `{name}`")));
            }
        }
        self.interfaces()?;
        let mut used = vec![false; self.weights.len()];
        for (_, weight) in self.entries.iter().flat_map(EntryGraph::constants) {
            used[weight.0 as usize] = true;
        }
        if let Some(unused) = used.iter().position(|used| !used) {
            return Err(invalid_order(format!("weight `{}` is not used", self.weights[unused].name)));
        }
        Ok(())
    }

    fn check_lists(&self) -> Result<(), String> {
        if self.entries.is_empty() {
            return Err("no entries".to_owned());
        }
        cap("entries", self.entries.len(), ENTRY_LIMIT)?;
        cap("weights", self.weights.len(), WEIGHT_LIMIT)?;
        cap("flags", self.flags.len(), PAIR_LIMIT)?;
        cap("options", self.options.len(), PAIR_LIMIT)?;
        for weight in &self.weights {
            check_name("weight name", &weight.name)?;
            check_name("weight part", &weight.part)?;
            cap("axes of a weight", weight.shape.len(), shardwright_graph::RANK_LIMIT)?;
            check_quantisation(weight)?;
            if bytes_of(&weight.shape, weight.dtype) != Some(weight.length) {
                return Err(format!(
                    "weight `{}` of shape {:?} and type {} cannot have {} bytes",
                    weight.name, weight.shape, weight.dtype, weight.length
                ));
            }
        }
        let pairs = self.flags.iter().map(|flag| (&flag.name, &flag.value)).chain(&self.options);
        for (key, value) in pairs {
            check_name("flag or option", key)?;
            if value.len() > NAME_LIMIT || value.contains('\0') {
                return Err(format!(
                    "the value of `{key}` contains NUL or is longer than {NAME_LIMIT} bytes"
                ));
            }
        }
        Ok(())
    }
}

/// Checks that integers have scales, floats have none, and type and number of the scales are valid.
fn check_quantisation(weight: &OrderWeight) -> Result<(), String> {
    let possible = match weight.quantisation() {
        None => weight.dtype.is_float(),
        Some(existing) => {
            existing.fits(weight.dtype) && weight.scale_bytes().is_some_and(|bytes| bytes <= BYTES_LIMIT)
        }
    };
    let reported = || {
        let (name, dtype, found) = (&weight.name, weight.dtype, &weight.quantisation);
        format!("weight `{name}` of type {dtype} has the invalid quantisation {found:?}")
    };
    if possible { Ok(()) } else { Err(reported()) }
}

/// Checks everything on which the tables and a compiler rely: indices, order of nodes, sizes, and
/// that operands and result of every operation have valid shapes.
fn check_entry(entry: &EntryGraph, weights: &[OrderWeight]) -> Result<(), String> {
    cap("tensors", entry.tensors.len(), NODE_LIMIT)?;
    cap("nodes", entry.nodes.len(), NODE_LIMIT)?;
    cap("inputs", entry.inputs.len(), NODE_LIMIT)?;
    cap("outputs", entry.outputs.len(), NODE_LIMIT)?;
    cap("states", entry.states.len(), NODE_LIMIT)?;
    let point = entry.point;
    if point.rows == 0 || point.rows > point.context || point.largest_rows < point.rows {
        return Err(format!("{} rows do not fit a context of {}", point.rows, point.context));
    }
    let mut names = HashSet::new();
    for tensor in &entry.tensors {
        check_name("tensor", &tensor.name)?;
        cap("axes of a tensor", tensor.shape.len(), shardwright_graph::RANK_LIMIT)?;
        if bytes_of(&tensor.shape, tensor.dtype).is_none() {
            return Err(format!("tensor `{}` {:?} is too large", tensor.name, tensor.shape));
        }
        if tensor.weight.is_none() && tensor.encoding().is_none() && !tensor.is_index() {
            return Err(format!("tensor `{}` of {} contradicts its quantisation", tensor.name, tensor.dtype));
        }
        if !names.insert(tensor.name.as_str()) {
            return Err(format!("two tensors are named `{}`", tensor.name));
        }
        if let Some(WeightId(id)) = tensor.weight {
            let weight = weights.get(id as usize).ok_or_else(|| {
                format!("tensor `{}` refers to weight {id} of {}", tensor.name, weights.len())
            })?;
            if (weight.dtype, &weight.shape) != (tensor.dtype, &tensor.shape) {
                return Err(format!("tensor `{}` does not match weight `{}`", tensor.name, weight.name));
            }
        }
    }
    // Each tensor is written once, and before it is read.
    let mut ready: Vec<bool> = entry.tensors.iter().map(|tensor| tensor.weight.is_some()).collect();
    let known = |id: u32, what: &str| match (id as usize) < entry.tensors.len() {
        true => Ok(id as usize),
        false => Err(format!("{what} refers to tensor {id} of {}", entry.tensors.len())),
    };
    for (tensor, role) in &entry.inputs {
        let index = known(tensor.0, "an input")?;
        if std::mem::replace(&mut ready[index], true) {
            return Err(format!(
                "input `{}` ({}) has more than one value",
                entry.tensors[index].name,
                role.name()
            ));
        }
    }
    let mut node_names = HashSet::new();
    for node in &entry.nodes {
        check_name("node", &node.name)?;
        if !node_names.insert(node.name.as_str()) {
            return Err(format!("two nodes are named `{}`", node.name));
        }
        cap("operands", node.inputs.len(), shardwright_graph::OPERAND_LIMIT)?;
        check_attributes(&node.op).map_err(|reason| format!("node `{}`: {reason}", node.name))?;
        for input in &node.inputs {
            let index = known(input.0, "an operand")?;
            if !ready[index] {
                return Err(format!(
                    "node `{}` reads `{}` before it is computed",
                    node.name, entry.tensors[index].name
                ));
            }
        }
        let shapes: Vec<&[u64]> =
            node.inputs.iter().map(|input| entry.tensors[input.0 as usize].shape.as_slice()).collect();
        let index = known(node.output.0, "a result")?;
        let shape =
            infer_shape(&node.op, &shapes).map_err(|reason| format!("node `{}`: {reason}", node.name))?;
        if shape != entry.tensors[index].shape {
            return Err(format!(
                "node `{}` produces {shape:?}, expected {:?}",
                node.name, entry.tensors[index].shape
            ));
        }
        if std::mem::replace(&mut ready[index], true) {
            return Err(format!("node `{}` writes `{}` a second time", node.name, entry.tensors[index].name));
        }
    }
    for (tensor, role) in &entry.outputs {
        let index = known(tensor.0, "an output")?;
        if !ready[index] {
            return Err(format!(
                "output `{}` ({}) is never computed",
                entry.tensors[index].name,
                role.name()
            ));
        }
    }
    let mut states = HashSet::new();
    for port in &entry.states {
        check_name("state", &port.state.name)?;
        if !states.insert(port.id) {
            return Err(format!("state {} is listed twice", port.id.0));
        }
    }
    Ok(())
}

/// Checks the bounds of lists and numbers within an operation. Floats must be finite.
fn check_attributes(op: &Op) -> Result<(), String> {
    use shardwright_graph::AttributeValue;
    for attribute in op.attributes() {
        match attribute.value {
            AttributeValue::Float(value) if !value.is_finite() => {
                return Err(format!("attribute `{}` has the invalid value {value}", attribute.name));
            }
            AttributeValue::Integers(values) => {
                cap("values of an attribute", values.len(), shardwright_graph::RANK_LIMIT)?;
                if values.iter().any(|&value| value < 0) {
                    return Err(format!("attribute `{}` is negative", attribute.name));
                }
            }
            AttributeValue::Integer(value) if value < 0 => {
                return Err(format!("attribute `{}` has the invalid value {value}", attribute.name));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Collects a work order and writes it. Weights are streamed from their storage, without a copy in
/// memory.
pub struct WorkOrderBuilder<'w> {
    weights: &'w [Weight],
    used: Vec<WeightId>,
    renumbered: HashMap<WeightId, WeightId>,
    head: WorkOrderHead,
}

impl<'w> WorkOrderBuilder<'w> {
    /// Creates a builder for entries whose constants index `weights`.
    pub fn new(weights: &'w [Weight]) -> Self {
        WorkOrderBuilder {
            weights,
            used: Vec::new(),
            renumbered: HashMap::new(),
            head: WorkOrderHead {
                entries: Vec::new(),
                weights: Vec::new(),
                flags: Vec::new(),
                options: BTreeMap::new(),
            },
        }
    }

    /// Adds an entry point.
    pub fn entry(mut self, entry: &EntryGraph) -> Result<Self> {
        let mut entry = entry.clone();
        for tensor in &mut entry.tensors {
            let Some(id) = tensor.weight else { continue };
            let Some(weight) = self.weights.get(id.0 as usize) else {
                let (name, count) = (&tensor.name, self.weights.len());
                let reason = format!("tensor `{name}` refers to weight {} of {count}", id.0);
                return Err(invalid_entry(&entry, reason));
            };
            let next = WeightId(self.used.len() as u32);
            let renumbered = *self.renumbered.entry(id).or_insert(next);
            if renumbered == next {
                self.used.push(id);
                self.head.weights.push(OrderWeight::of(weight));
            }
            tensor.weight = Some(renumbered);
        }
        self.head.entries.push(entry);
        Ok(self)
    }

    /// Adds a flag for the vendor's compiler.
    pub fn flag(mut self, flag: Flag) -> Self {
        self.head.flags.push(flag);
        self
    }

    /// Adds an option for the shim.
    pub fn option(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.head.options.insert(key.into(), value.into());
        self
    }

    /// Writes `<hash>.swo` into a directory atomically and opens it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if a value of a weight is infinite or not a number. The place names
    /// the weight, the row and the column. [`ErrorKind::Internal`] if the order is inconsistent.
    pub fn write(self, directory: &Path) -> Result<WorkOrder> {
        self.stream(|head| Writer::start(directory, &FORMAT, Some(head)))
    }

    /// Writes a file without a name in the system's directory for temporary files, and opens it.
    /// The file is removed when the work order is dropped.
    ///
    /// # Errors
    /// The errors of [`WorkOrderBuilder::write`].
    pub fn temporary(self) -> Result<WorkOrder> {
        self.stream(|head| Writer::start_unnamed(&FORMAT, Some(head)))
    }

    fn stream(self, start: impl FnOnce(&[u8]) -> Result<Writer>) -> Result<WorkOrder> {
        // Only the values of weights make an order invalid. Anything else is a bug of the caller,
        // or a file that cannot be written.
        let bug = |error: Error| unless_invalid(error, ErrorKind::Internal);
        let unwritten = |error: Error| unless_invalid(error, ErrorKind::Missing);
        self.head.check().map_err(bug)?;
        let head = serde_json::to_vec(&self.head)
            .map_err(|error| bug(invalid_order(format!("the head cannot be written: {error}"))))?;
        if head.len() as u64 > HEAD_LIMIT {
            let length = head.len();
            let reason = format!("the head has {length} bytes, expected at most {HEAD_LIMIT}");
            return Err(bug(invalid_order(reason)));
        }
        let mut writer = start(&head).map_err(unwritten)?;
        writer.align().map_err(|error| unwritten(writer.error(error)))?;
        for id in &self.used {
            let weight = &self.weights[id.0 as usize];
            let scales = weight.quantisation.as_ref().map(|made| (made.scale_dtype, &made.scales));
            let parts = std::iter::once((weight.dtype, &weight.data)).chain(scales);
            for (dtype, data) in parts.filter(|(_, data)| data.length() > 0) {
                if !data.is_present() {
                    let name = &weight.name;
                    let planned = invalid_order(format!("weight `{name}` was planned, but not computed"));
                    return Err(bug(planned));
                }
                writer.align().map_err(|error| unwritten(writer.error(error)))?;
                for (index, chunk) in data.bytes().chunks(CHUNK).enumerate() {
                    weight.expect_finite_at(dtype, index * CHUNK, chunk)?;
                    writer.write(chunk).map_err(|error| unwritten(writer.error(error)))?;
                }
            }
        }
        let written = writer.finish(WORK_ORDER_SUFFIX).map_err(unwritten)?;
        Container::written(written, &FORMAT).and_then(WorkOrder::from_container).map_err(bug)
    }
}

/// Replaces the kind of an error that is [`ErrorKind::Invalid`].
fn unless_invalid(error: Error, kind: ErrorKind) -> Error {
    if error.kind() == ErrorKind::Invalid { error.with_kind(kind) } else { error }
}
