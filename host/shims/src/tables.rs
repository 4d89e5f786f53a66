//! Converts a work order to the read-only C tables that are passed to a shim.

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_void};
use std::marker::PhantomData;
use std::ptr;

use shardwright_graph::{AttributeValue, EntryGraph, Role, TensorId};
use shardwright_shim_abi::raw::*;
use shardwright_vocabulary::{Affine, DType, Error, Granularity, Quantisation, Result, scale_count};

use crate::chip::Chip;
use crate::convert;
use crate::functions::ShownEntry;
use crate::interface::port_name;
use crate::work_order::{OrderWeight, WorkOrder, invalid_entry};

/// Owns the values to which the tables point. They are stored behind raw pointers, so moving the
/// arena does not move them.
#[derive(Default)]
struct Arena {
    kept: Vec<*mut dyn Any>,
}

impl Arena {
    fn keep<T: 'static>(&mut self, value: T) -> *const T {
        let pointer = Box::into_raw(Box::new(value));
        self.kept.push(pointer);
        pointer
    }

    fn array<T: 'static>(&mut self, values: Vec<T>) -> *const T {
        if values.is_empty() {
            return ptr::null();
        }
        let pointer = values.as_ptr();
        self.keep(values);
        pointer
    }

    fn text(&mut self, text: &str) -> Result<*const c_char> {
        let text = CString::new(text).map_err(|_| {
            let start: String = text.chars().take(64).collect();
            let error = Error::invalid(format!("`{start}` contains a NUL byte"));
            error.with_help("rename the tensor in the checkpoint")
        })?;
        let pointer = text.as_ptr();
        self.keep(text);
        Ok(pointer)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for pointer in self.kept.drain(..) {
            // SAFETY: created by `Box::into_raw` in `keep`, freed once.
            drop(unsafe { Box::from_raw(pointer) });
        }
    }
}

/// One entry graph as C tables, for `check` and `estimate`. Its weights have no bytes.
pub struct EntryTables {
    _arena: Arena,
    entry: *const SwEntry,
}

impl EntryTables {
    /// Creates the tables of an entry.
    pub fn new(ShownEntry(entry, weights): &ShownEntry) -> Result<EntryTables> {
        let mut arena = Arena::default();
        let mut shown = BTreeMap::new();
        for (tensor, id) in entry.constants() {
            let weight = weights.get(id.0 as usize).ok_or_else(|| {
                let reason = format!("tensor {} refers to weight {} of {}", tensor.0, id.0, weights.len());
                invalid_entry(entry, reason)
            })?;
            if let std::collections::btree_map::Entry::Vacant(place) = shown.entry(id.0) {
                place.insert(show_weight(&mut arena, weight, ptr::null(), ptr::null())?);
            }
        }
        let entry = show_entry(&mut arena, entry, &shown)?;
        Ok(EntryTables { _arena: arena, entry })
    }

    /// Returns the entry, valid as long as `self`.
    pub fn as_ptr(&self) -> *const SwEntry {
        self.entry
    }
}

/// A work order as C tables. Weights point into its mapping.
pub struct WorkOrderTables<'a> {
    _arena: Arena,
    order: *const SwWorkOrder,
    _order: PhantomData<&'a WorkOrder>,
}

impl<'a> WorkOrderTables<'a> {
    /// Creates the tables of `order`.
    pub fn new(order: &'a WorkOrder) -> Result<WorkOrderTables<'a>> {
        let mut arena = Arena::default();
        let head = order.head();
        let mut shown = BTreeMap::new();
        for (index, weight) in head.weights.iter().enumerate() {
            let bytes = order.weight_bytes(index);
            let bytes = if bytes.is_empty() { ptr::null() } else { bytes.as_ptr() };
            let pointer = show_weight(&mut arena, weight, bytes, order.scale_bytes(index).as_ptr())?;
            shown.insert(index as u32, pointer);
        }
        let entries = head
            .entries
            .iter()
            .map(|entry| show_entry(&mut arena, entry, &shown))
            .collect::<Result<Vec<_>, _>>()?;
        let flags = options(&mut arena, head.flags.iter().map(|flag| (&flag.name, &flag.value)))?;
        let options = options(&mut arena, head.options.iter())?;
        let table = SwWorkOrder {
            size: size_of::<SwWorkOrder>() as u64,
            name: arena.text(&order.name())?,
            entry_count: entries.len() as u64,
            entries: arena.array(entries),
            weight_count: shown.len() as u64,
            weights: arena.array(shown.into_values().collect()),
            flag_count: flags.len() as u64,
            flags: arena.array(flags),
            option_count: options.len() as u64,
            options: arena.array(options),
        };
        let order = arena.keep(table);
        Ok(WorkOrderTables { _arena: arena, order, _order: PhantomData })
    }

    /// Returns the work order, valid as long as `self`.
    pub fn as_ptr(&self) -> *const SwWorkOrder {
        self.order
    }
}

/// Key and value pairs as C tables.
pub(crate) struct OptionTables {
    _arena: Arena,
    pointers: Vec<*const SwOption>,
}

impl OptionTables {
    pub(crate) fn new(pairs: &[(String, String)]) -> Result<OptionTables> {
        let mut arena = Arena::default();
        let pointers = options(&mut arena, pairs.iter().map(|(key, value)| (key, value)))?;
        Ok(OptionTables { _arena: arena, pointers })
    }

    pub(crate) fn as_ptr(&self) -> *const *const SwOption {
        if self.pointers.is_empty() { ptr::null() } else { self.pointers.as_ptr() }
    }

    pub(crate) fn len(&self) -> u64 {
        self.pointers.len() as u64
    }
}

/// A chip as a C table.
pub(crate) struct ChipTable {
    _arena: Arena,
    chip: *const SwChip,
}

impl ChipTable {
    pub(crate) fn new(chip: &Chip) -> Result<ChipTable> {
        let mut arena = Arena::default();
        let aliases = chip.aliases.iter().map(|alias| arena.text(alias)).collect::<Result<Vec<_>, _>>()?;
        let facts = options(&mut arena, chip.facts.iter())?;
        let table = SwChip {
            size: size_of::<SwChip>() as u64,
            name: arena.text(&chip.name)?,
            alias_count: aliases.len() as u64,
            aliases: arena.array(aliases),
            fact_count: facts.len() as u64,
            facts: arena.array(facts),
        };
        let chip = arena.keep(table);
        Ok(ChipTable { _arena: arena, chip })
    }

    /// Returns the chip, valid as long as `self`.
    pub(crate) fn as_ptr(&self) -> *const SwChip {
        self.chip
    }
}

fn options<'a>(
    arena: &mut Arena,
    pairs: impl Iterator<Item = (&'a String, &'a String)>,
) -> Result<Vec<*const SwOption>> {
    pairs
        .map(|(key, value)| {
            let option = SwOption {
                size: size_of::<SwOption>() as u64,
                key: arena.text(key)?,
                value: arena.text(value)?,
            };
            Ok(arena.keep(option))
        })
        .collect()
}

fn show_weight(
    arena: &mut Arena,
    weight: &OrderWeight,
    data: *const u8,
    scales: *const u8,
) -> Result<*const SwWeight> {
    let table = SwWeight {
        size: size_of::<SwWeight>() as u64,
        name: arena.text(&weight.name)?,
        part: arena.text(&weight.part)?,
        data: data.cast::<c_void>(),
        length: weight.length,
        dtype: weight.dtype.number(),
        rank: weight.shape.len() as u32,
        shape: arena.array(weight.shape.clone()),
        quantisation: match weight.quantisation() {
            Some(existing) => show_quantisation(arena, weight, &existing.with(scales)),
            None => ptr::null(),
        },
    };
    Ok(arena.keep(table))
}

fn show_quantisation(
    arena: &mut Arena,
    weight: &OrderWeight,
    existing: &Quantisation<*const u8>,
) -> *const SwQuantisation {
    // Scales of blocks change along the last axis, scales of channels along the first.
    let (kind, axis, block) = match existing.granularity {
        Granularity::PerTensor => (SW_QUANTISATION_PER_TENSOR, 0, 0),
        Granularity::PerChannel => (SW_QUANTISATION_PER_CHANNEL, 0, 0),
        Granularity::PerBlock { size, minimum } => {
            let kind = match minimum {
                false => SW_QUANTISATION_PER_BLOCK,
                true => SW_QUANTISATION_PER_BLOCK_WITH_MINIMUM,
            };
            (kind, weight.shape.len().saturating_sub(1) as u32, u64::from(size))
        }
    };
    let zero_points = if existing.zero_point == 0 { Vec::new() } else { vec![existing.zero_point] };
    let table = SwQuantisation {
        size: size_of::<SwQuantisation>() as u64,
        kind,
        axis,
        block,
        scale_dtype: existing.scale_dtype.number(),
        bits: weight.dtype.bits() as u32,
        scales: existing.scales.cast::<c_void>(),
        scale_count: scale_count(existing.granularity, &weight.shape).unwrap_or(0),
        zero_point_count: zero_points.len() as u64,
        zero_points: arena.array(zero_points),
    };
    arena.keep(table)
}

fn show_affine(arena: &mut Arena, dtype: DType, affine: Affine) -> *const SwQuantisation {
    let table = SwQuantisation {
        size: size_of::<SwQuantisation>() as u64,
        kind: SW_QUANTISATION_PER_TENSOR,
        axis: 0,
        block: 0,
        scale_dtype: SW_DTYPE_F32,
        bits: dtype.bits() as u32,
        scales: arena.array(vec![affine.scale.get()]).cast::<c_void>(),
        scale_count: 1,
        zero_points: arena.array(vec![affine.zero_point]),
        zero_point_count: 1,
    };
    arena.keep(table)
}

fn show_entry(
    arena: &mut Arena,
    entry: &EntryGraph,
    weights: &BTreeMap<u32, *const SwWeight>,
) -> Result<*const SwEntry> {
    let mut tensors = Vec::with_capacity(entry.tensors.len());
    for tensor in &entry.tensors {
        let table = SwTensor {
            size: size_of::<SwTensor>() as u64,
            name: arena.text(&tensor.name)?,
            dtype: tensor.dtype.number(),
            rank: tensor.shape.len() as u32,
            shape: arena.array(tensor.shape.clone()),
            quantisation: tensor
                .affine
                .map_or(ptr::null(), |affine| show_affine(arena, tensor.dtype, affine)),
        };
        tensors.push(arena.keep(table));
    }
    let mut nodes = Vec::with_capacity(entry.nodes.len());
    for node in &entry.nodes {
        let mut attributes = Vec::new();
        for attribute in node.op.attributes() {
            let mut table = SwAttribute {
                size: size_of::<SwAttribute>() as u64,
                name: arena.text(attribute.name)?,
                kind: 0,
                reserved: 0,
                integer: 0,
                number: 0.0,
                integers: ptr::null(),
                integer_count: 0,
                text: ptr::null(),
            };
            match attribute.value {
                AttributeValue::Integer(value) => {
                    table.kind = SW_ATTRIBUTE_INTEGER;
                    table.integer = value;
                }
                AttributeValue::Float(value) => {
                    table.kind = SW_ATTRIBUTE_FLOAT;
                    table.number = value;
                }
                AttributeValue::Integers(values) => {
                    table.kind = SW_ATTRIBUTE_INTEGERS;
                    table.integer_count = values.len() as u64;
                    table.integers = arena.array(values);
                }
                AttributeValue::Text(text) => {
                    table.kind = SW_ATTRIBUTE_TEXT;
                    table.text = arena.text(text)?;
                }
            }
            attributes.push(arena.keep(table));
        }
        let inputs: Vec<u32> = node.inputs.iter().map(|input| input.0).collect();
        let table = SwNode {
            size: size_of::<SwNode>() as u64,
            op: node.op.number(),
            op_version: node.op.version(),
            name: arena.text(&node.name)?,
            layer: node.layer.map_or(-1, i64::from),
            input_count: inputs.len() as u64,
            inputs: arena.array(inputs),
            output_count: 1,
            outputs: arena.array(vec![node.output.0]),
            attribute_count: attributes.len() as u64,
            attributes: arena.array(attributes),
        };
        nodes.push(arena.keep(table));
    }
    let inputs = show_ports(arena, entry, &entry.inputs)?;
    let outputs = show_ports(arena, entry, &entry.outputs)?;
    let mut constants = Vec::new();
    for (tensor, weight) in entry.constants() {
        let weight = weights.get(&weight.0).copied().ok_or_else(|| {
            invalid_entry(entry, format!("tensor {} refers to the missing weight {}", tensor.0, weight.0))
        })?;
        let table =
            SwConstant { size: size_of::<SwConstant>() as u64, tensor: tensor.0, reserved: 0, weight };
        constants.push(arena.keep(table));
    }
    let table = SwEntry {
        size: size_of::<SwEntry>() as u64,
        name: arena.text(&entry.point.name().to_string())?,
        kind: convert::entry_kind_number(entry.point.kind),
        reserved: 0,
        rows: entry.point.rows,
        context: entry.point.context,
        tensor_count: tensors.len() as u64,
        tensors: arena.array(tensors),
        node_count: nodes.len() as u64,
        nodes: arena.array(nodes),
        input_count: inputs.len() as u64,
        inputs: arena.array(inputs),
        output_count: outputs.len() as u64,
        outputs: arena.array(outputs),
        constant_count: constants.len() as u64,
        constants: arena.array(constants),
    };
    Ok(arena.keep(table))
}

fn show_ports(
    arena: &mut Arena,
    entry: &EntryGraph,
    ports: &[(TensorId, Role)],
) -> Result<Vec<*const SwPort>> {
    let mut shown = Vec::with_capacity(ports.len());
    for (tensor, role) in ports {
        let name = port_name(entry, *tensor, role).ok_or_else(|| {
            invalid_entry(entry, format!("a port of role `{}` has no tensor or state", role.name()))
        })?;
        let (scale, zero_point) = match entry.tensor(*tensor).affine {
            Some(affine) => (f64::from(affine.scale.get()), i64::from(affine.zero_point)),
            None => (1.0, 0),
        };
        let table = SwPort {
            size: size_of::<SwPort>() as u64,
            tensor: tensor.0,
            role: role.number(),
            name: arena.text(&name)?,
            index: role_detail(role),
            dtype: entry.tensor(*tensor).dtype.number(),
            reserved: 0,
            scale,
            zero_point,
        };
        shown.push(arena.keep(table));
    }
    Ok(shown)
}

/// Returns the number that belongs to a role, as documented at `sw_port.index`.
fn role_detail(role: &Role) -> u64 {
    match role {
        Role::Slots { capacity } => *capacity,
        Role::Gathered { asset } | Role::GatheredByGrid { asset, .. } => u64::from(asset.0),
        Role::Grid { axis } => *axis as u64,
        Role::Valid { rate } => u64::from(*rate),
        Role::PerLayer { first, .. } => u64::from(*first),
        Role::State { state } | Role::StateRows { state } => u64::from(state.0),
        _ => 0,
    }
}
