//! The artefact of this shim, and its execution with the plain evaluator that the tests of all
//! shims share.
//!
//! ```text
//! "PICKY\0\0\x01", length of the JSON (u64), the JSON of a `Text`, zeros to the next 64 bytes, then constants and scales, each
//! starting on 64 bytes
//! ```
//!
//! Artefacts are sealed by the host and come only from tests, so only their outline is checked.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use shardwright_shim_abi::raw::*;
use shardwright_shim_abi::{
    Binding, CompileOutput, Direction, EntryView, Error, LoadedEntry, MemoryKinds, QuantisationView, Result,
    Run, WorkOrderView, typed,
};
use shardwright_shim_testing::tables::{Builder, Node as Planned, Port as Bound, integers};
use shardwright_shim_testing::{Bound as Values, TableEncoding, evaluate};

use crate::step::{attributes, numbers};

const MAGIC: &[u8; 8] = b"PICKY\0\0\x01";

/// Sections start on a multiple of this, which suits every element type.
const ALIGNMENT: usize = 64;

#[derive(Serialize, Deserialize)]
struct Text {
    entries: Vec<EntryText>,
}

#[derive(Serialize, Deserialize)]
struct EntryText {
    name: String,
    kind: u32,
    rows: u64,
    context: u64,
    tensors: Vec<Tensor>,
    nodes: Vec<Node>,
    ports: Vec<Port>,
}

#[derive(Serialize, Deserialize)]
struct Tensor {
    shape: Vec<u64>,
    /// Scale, as bits, and zero point. `None` for a matrix.
    affine: Option<(u32, i32)>,
    /// Offsets of the bytes and scales of a constant, from the first section.
    places: Option<[usize; 2]>,
}

#[derive(Serialize, Deserialize)]
struct Node {
    op: u32,
    numbers: Vec<Vec<i64>>,
    inputs: Vec<u32>,
    output: u32,
}

#[derive(Serialize, Deserialize)]
struct Port {
    name: String,
    role: u32,
    /// Index of the state, for the roles of states.
    index: u64,
    tensor: u32,
    written: bool,
}

/// Returns the scale and zero point of a tensor that was checked to have one of each.
fn affine(quantisation: QuantisationView<'_>) -> Result<(u32, i32)> {
    let wrong = || Error::invalid_argument("a scale or zero point is not one of 16-bit integers");
    let scale = quantisation
        .scales()?
        .first_chunk::<4>()
        .map(|scale| f32::from_le_bytes(*scale))
        .ok_or_else(wrong)?;
    let zero_point = quantisation.zero_points()?.first().copied().unwrap_or(0);
    let possible = scale.is_finite() && scale > 0.0 && (0..=i32::from(u16::MAX)).contains(&zero_point);
    possible.then_some((scale.to_bits(), zero_point)).ok_or_else(wrong)
}

/// Computes the offsets of the bytes and scales of each weight, by the weight's identity.
fn places(order: WorkOrderView<'_>) -> Result<HashMap<usize, [usize; 2]>> {
    let mut places = HashMap::new();
    let mut end = 0_usize;
    for weight in order.weights() {
        let scales = weight.quantisation().map_or(Ok(&[][..]), |quantisation| quantisation.scales())?;
        let mut place = |length: usize| {
            let start = end;
            end += length.next_multiple_of(ALIGNMENT);
            start
        };
        places.insert(weight.identity(), [place(weight.bytes()?.len()), place(scales.len())]);
    }
    Ok(places)
}

/// Streams the artefact. Every node and port of the order was checked before.
pub(crate) fn write(order: WorkOrderView<'_>, output: &mut CompileOutput<'_>) -> Result<()> {
    let places = places(order)?;
    let entries = order.entries().map(|entry| entry_text(entry, &places)).collect::<Result<Vec<_>>>()?;
    let text = serde_json::to_vec(&Text { entries })
        .map_err(|error| Error::internal(format!("the program cannot be written: {error}")))?;
    output.write(MAGIC)?;
    output.write(&(text.len() as u64).to_le_bytes())?;
    padded(output, &text, MAGIC.len() + 8)?;
    let count = order.weights().len().max(1);
    for (index, weight) in order.weights().enumerate() {
        output.progress((1000 * index / count) as u32, "writing constants")?;
        padded(output, weight.bytes()?, 0)?;
        if let Some(quantisation) = weight.quantisation() {
            padded(output, quantisation.scales()?, 0)?;
        }
    }
    Ok(())
}

/// Writes bytes after `before` other bytes, and zeros to the next section.
fn padded(output: &mut CompileOutput<'_>, bytes: &[u8], before: usize) -> Result<()> {
    output.write(bytes)?;
    let end = before + bytes.len();
    output.write(&[0; ALIGNMENT][..end.next_multiple_of(ALIGNMENT) - end])
}

fn entry_text(entry: EntryView<'_>, places: &HashMap<usize, [usize; 2]>) -> Result<EntryText> {
    let mut weights = vec![None; entry.tensors().len()];
    for (tensor, weight) in entry.constants() {
        weights[tensor as usize] = Some(weight);
    }
    let tensors = entry.tensors().zip(&weights).map(|(tensor, weight)| {
        let encoded = match weight {
            None => tensor.quantisation(),
            Some(weight) => weight.quantisation().filter(|_| weight.dtype() != SW_DTYPE_I8),
        };
        let places = weight.map(|weight| places[&weight.identity()]);
        Ok(Tensor { shape: tensor.shape().to_vec(), affine: encoded.map(affine).transpose()?, places })
    });
    let nodes = entry.nodes().map(|node| {
        Ok(Node {
            op: node.op(),
            numbers: numbers(node)?,
            inputs: node.inputs().flatten().collect(),
            output: node.output()?,
        })
    });
    let ports = entry.inputs().map(|port| (port, false)).chain(entry.outputs().map(|port| (port, true)));
    let ports = ports.map(|(port, written)| Port {
        name: port.name().to_owned(),
        role: port.role(),
        index: port.index(),
        tensor: port.tensor(),
        written,
    });
    Ok(EntryText {
        name: entry.name().to_owned(),
        kind: entry.kind(),
        rows: entry.rows(),
        context: entry.context(),
        tensors: tensors.collect::<Result<_>>()?,
        nodes: nodes.collect::<Result<_>>()?,
        ports: ports.collect(),
    })
}

/// A loaded artefact: its entries in the form of a test's tables.
pub(crate) struct Program {
    entries: Vec<(EntryText, Builder)>,
}

fn damaged(what: impl std::fmt::Display) -> Error {
    Error::corrupt_artefact(format!("the program is damaged: {what}"))
}

impl Program {
    /// Reads an artefact.
    pub(crate) fn read(bytes: &[u8]) -> Result<Program> {
        let start = MAGIC.len() + 8;
        let header = bytes.first_chunk::<16>().ok_or_else(|| damaged("it is truncated"))?;
        let (magic, length) = header.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(damaged("its first bytes are wrong"));
        }
        let length = length.first_chunk::<8>().map_or(u64::MAX, |length| u64::from_le_bytes(*length));
        let end = usize::try_from(length).ok().and_then(|length| start.checked_add(length));
        let end = end.ok_or_else(|| damaged("its text is too long"))?;
        let text = bytes.get(start..end).ok_or_else(|| damaged("it is truncated"))?;
        let text: Text = serde_json::from_slice(text).map_err(damaged)?;
        let sections = bytes.get(end.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        let entries = text.entries.into_iter().map(|text| {
            let builder = builder(&text, sections).ok_or_else(|| damaged("a constant"))?;
            Ok((text, builder))
        });
        Ok(Program { entries: entries.collect::<Result<_>>()? })
    }

    /// Describes the entry points.
    pub(crate) fn entries(&self) -> Result<Vec<LoadedEntry>> {
        Ok(self.entries.iter().map(|(text, builder)| described(text, builder)).collect())
    }

    /// Runs one entry over all its rows. Invalid rows cost time but do no harm: no valid row sees
    /// them through its mask, and the host does not copy them into a state.
    pub(crate) fn run(&mut self, run: Run<'_>) -> Result<()> {
        let Run { entry, rows, mut bound, control, .. } = run;
        let (text, builder) =
            self.entries.get(entry).ok_or_else(|| Error::invalid_argument("no such entry"))?;
        control.proceed()?;
        let mut inputs = HashMap::new();
        for (port, bound) in text.ports.iter().zip(&bound).filter(|(port, _)| !port.written) {
            inputs.insert(port.name.clone(), Values::U16(bound.values::<u16>()?.to_vec()));
        }
        let results = evaluate(builder, rows, &inputs);
        control.proceed()?;
        for (port, bound) in text.ports.iter().zip(&mut bound).filter(|(port, _)| port.written) {
            let stored = builder.encoding_of(port.tensor).encode(&results[&port.name].data);
            bound.bytes_mut()?.copy_from_slice(&stored);
        }
        Ok(())
    }
}

fn builder(text: &EntryText, sections: &[u8]) -> Option<Builder> {
    let section = |place: usize, length: usize| sections.get(place..place.checked_add(length)?);
    let mut builder = Builder::new(&text.name, text.kind, text.rows, text.context);
    for tensor in &text.tensors {
        let affine = tensor.affine.map(|(scale, zero_point)| (f32::from_bits(scale), zero_point));
        let Some([place, scales]) = tensor.places else {
            builder.tensor("", TableEncoding { dtype: SW_DTYPE_U16, affine }, &tensor.shape);
            continue;
        };
        let count = usize::try_from(tensor.shape.iter().product::<u64>()).ok()?;
        let weight = match affine {
            Some((scale, zero_point)) => {
                let stored = typed::<u16>(section(place, count.checked_mul(2)?)?).ok()?;
                let stored: Vec<i32> = stored.iter().map(|stored| i32::from(*stored)).collect();
                let kind = (SW_QUANTISATION_PER_TENSOR, 0);
                integers("", &tensor.shape, &stored, SW_DTYPE_U16, kind, &[scale], zero_point)
            }
            None => {
                let rows = usize::try_from(*tensor.shape.first()?).ok()?;
                let scales = typed::<f32>(section(scales, rows.checked_mul(4)?)?).ok()?;
                let stored = typed::<i8>(section(place, count)?).ok()?;
                let stored: Vec<i32> = stored.iter().map(|stored| i32::from(*stored)).collect();
                let kind = (SW_QUANTISATION_PER_CHANNEL, 0);
                integers("", &tensor.shape, &stored, SW_DTYPE_I8, kind, scales, 0)
            }
        };
        builder.constant(&weight);
    }
    for node in &text.nodes {
        builder.nodes.push(Planned {
            name: None,
            op: node.op,
            version: 1,
            layer: 0,
            inputs: node.inputs.clone(),
            outputs: vec![node.output],
            attributes: attributes(node.op, &node.numbers),
        });
    }
    for port in &text.ports {
        let ports = if port.written { &mut builder.outputs } else { &mut builder.inputs };
        let (name, index) = (port.name.clone(), port.index);
        ports.push(Bound { name, role: port.role, tensor: port.tensor, index, dtype: None });
    }
    Some(builder)
}

fn described(text: &EntryText, builder: &Builder) -> LoadedEntry {
    let is_given =
        |state: u64| text.ports.iter().any(|port| port.role == SW_ROLE_STATE_ROWS && port.index == state);
    let binding = |port: &Port| {
        let shape = builder.shape(port.tensor);
        let (scale, zero_point) = builder.encoding_of(port.tensor).affine.unwrap_or((1.0, 0));
        let is_state = port.role == SW_ROLE_STATE;
        Binding {
            name: port.name.clone(),
            direction: match (port.written, is_state) {
                (true, _) => Direction::Output,
                (false, true) => Direction::StateRead,
                (false, false) => Direction::Input,
            },
            role: port.role,
            dtype: SW_DTYPE_U16,
            update: if is_state && is_given(port.index) { SW_UPDATE_BY_RUNTIME } else { SW_UPDATE_NONE },
            strides: None,
            bytes: 2 * shape.iter().product::<u64>(),
            shape,
            alignment: 2,
            memory_kinds: MemoryKinds::HOST.and(MemoryKinds::SHIM),
            scale: f64::from(scale),
            zero_point: i64::from(zero_point),
        }
    };
    LoadedEntry {
        name: text.name.clone(),
        rows: text.rows,
        context: text.context,
        bindings: text.ports.iter().map(binding).collect(),
    }
}
