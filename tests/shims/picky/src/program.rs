//! The artefact of this shim, and how it runs.
//!
//! ```text
//! "PICKY\0\0\x01", length of the JSON (u64), the JSON of a `Text`, zeros to the next 64 bytes, then constants and scales, each
//! starting on 64 bytes
//! ```

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use shardwright_shim_abi::raw::*;
use shardwright_shim_abi::{
    Binding, CompileOutput, Direction, EntryView, Error, LoadedEntry, MemoryKinds, Result, Run,
    WorkOrderView, typed,
};

use crate::affine::Affine;
use crate::arithmetic::{Operand, Stored, compute};
use crate::step::Step;

const MAGIC: &[u8; 8] = b"PICKY\0\0\x01";

/// Sections start on a multiple of this, which suits every element type.
const ALIGNMENT: usize = 64;

/// JSON that is parsed at most: a decoder of 35 layers in primitives needs about 2 MiB an entry.
const TEXT_LIMIT: usize = 64 << 20;

/// Most axes of a tensor.
const RANK_LIMIT: usize = 6;

/// Most elements of all tensors of an entry: 512 MiB of them, beyond what tests run.
const ELEMENT_LIMIT: usize = 1 << 28;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    entries: Vec<EntryText>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryText {
    name: String,
    rows: u64,
    context: u64,
    tensors: Vec<Tensor>,
    nodes: Vec<Node>,
    ports: Vec<Port>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tensor {
    shape: Vec<usize>,
    content: Content,
}

/// Where the values of a tensor come from; places count from the first section.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Content {
    Activation { affine: Affine },
    Constant { affine: Affine, place: usize },
    Matrix { place: usize, scales: usize },
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Node {
    name: String,
    step: Step,
    inputs: Vec<usize>,
    output: usize,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Port {
    name: String,
    role: u32,
    /// Which state, for the roles of states.
    index: u64,
    tensor: usize,
    written: bool,
}

/// Where the bytes and scales of each weight go, by the weight's identity.
fn places(order: WorkOrderView<'_>) -> Result<HashMap<usize, [usize; 2]>> {
    let mut places = HashMap::new();
    let mut end = 0_usize;
    for weight in order.weights() {
        let scales = weight.quantisation().map_or(Ok(&[][..]), |held| held.scales())?;
        let mut place = |length: usize| {
            let start = end;
            end += length.next_multiple_of(ALIGNMENT);
            start
        };
        places.insert(weight.identity(), [place(weight.bytes()?.len()), place(scales.len())]);
    }
    Ok(places)
}

/// Streams the artefact. Every node and port of the order was judged before.
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
        if let Some(held) = weight.quantisation() {
            padded(output, held.scales()?, 0)?;
        }
    }
    Ok(())
}

/// Bytes after `before` others, and zeros to the next section.
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
    let not_judged = |what: &str| Error::internal(format!("`{what}` was not judged"));
    let tensor = |(index, tensor): (usize, shardwright_shim_abi::TensorView<'_>)| {
        let shape = tensor
            .shape()
            .iter()
            .map(|&extent| usize::try_from(extent))
            .collect::<std::result::Result<Vec<_>, _>>()
            .map_err(|_| not_judged(tensor.name()))?;
        let content = match weights[index] {
            None => {
                let held = tensor.quantisation().ok_or_else(|| not_judged(tensor.name()))?;
                Content::Activation { affine: Affine::of(held)? }
            }
            Some(weight) => {
                let [place, scales] = places[&weight.identity()];
                match weight.dtype() {
                    SW_DTYPE_I8 => Content::Matrix { place, scales },
                    _ => {
                        let held = weight.quantisation().ok_or_else(|| not_judged(weight.name()))?;
                        Content::Constant { affine: Affine::of(held)?, place }
                    }
                }
            }
        };
        Ok(Tensor { shape, content })
    };
    let node = |node: shardwright_shim_abi::NodeView<'_>| {
        Ok(Node {
            name: node.name().to_owned(),
            step: Step::of(node)?,
            inputs: node.inputs().flatten().map(|input| input as usize).collect(),
            output: node.output()? as usize,
        })
    };
    let ports = entry.inputs().map(|port| (port, false)).chain(entry.outputs().map(|port| (port, true)));
    Ok(EntryText {
        name: entry.name().to_owned(),
        rows: entry.rows(),
        context: entry.context(),
        tensors: entry.tensors().enumerate().map(tensor).collect::<Result<_>>()?,
        nodes: entry.nodes().map(node).collect::<Result<_>>()?,
        ports: ports
            .map(|(port, written)| Port {
                name: port.name().to_owned(),
                role: port.role(),
                index: port.index(),
                tensor: port.tensor() as usize,
                written,
            })
            .collect(),
    })
}

/// A tensor that is ready.
enum Held<'m> {
    Activation(Affine),
    Constant(Affine, &'m [u16]),
    Matrix(&'m [i8], &'m [f32]),
}

struct Entry<'m> {
    text: EntryText,
    held: Vec<Held<'m>>,
    /// Stored values of activations, kept between runs.
    values: Vec<Vec<u16>>,
}

/// A loaded artefact.
pub(crate) struct Program<'m> {
    entries: Vec<Entry<'m>>,
}

fn damaged(what: impl std::fmt::Display) -> Error {
    Error::corrupt_artefact(format!("the program is damaged: {what}"))
}

impl<'m> Program<'m> {
    /// Reads an artefact back; a damaged one is an error.
    pub(crate) fn read(bytes: &'m [u8]) -> Result<Program<'m>> {
        let start = MAGIC.len() + 8;
        let header = bytes.first_chunk::<16>().ok_or_else(|| damaged("it is cut short"))?;
        let (magic, length) = header.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(damaged("it begins otherwise"));
        }
        let length = length.first_chunk::<8>().map_or(u64::MAX, |length| u64::from_le_bytes(*length));
        let length = usize::try_from(length).ok().filter(|&length| length <= TEXT_LIMIT);
        let end = start + length.ok_or_else(|| damaged("its text is too long"))?;
        let text = bytes.get(start..end).ok_or_else(|| damaged("it is cut short"))?;
        let text: Text = serde_json::from_slice(text).map_err(damaged)?;
        let sections = bytes.get(end.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        let entries = text.entries.into_iter().map(|entry| Entry::new(entry, sections));
        Ok(Program { entries: entries.collect::<Result<_>>()? })
    }

    /// What can be run.
    pub(crate) fn entries(&self) -> Result<Vec<LoadedEntry>> {
        self.entries.iter().map(Entry::described).collect()
    }

    /// Runs one entry over all its rows. Those that are not valid cost time and harm nobody: no
    /// valid row sees them through its mask, and the host puts none of them into a state.
    pub(crate) fn run(&mut self, run: Run<'_>) -> Result<()> {
        let Run { entry, mut bound, control, .. } = run;
        let entry = self.entries.get_mut(entry).ok_or_else(|| Error::invalid_argument("no such entry"))?;
        for (port, bound) in entry.text.ports.iter().zip(&bound).filter(|(port, _)| !port.written) {
            let (from, to) = (bound.values::<u16>()?, &mut entry.values[port.tensor]);
            let from = from.get(..to.len()).ok_or_else(|| too_short(&port.name))?;
            to.copy_from_slice(from);
        }
        for index in 0..entry.text.nodes.len() {
            control.proceed()?;
            entry.step(index);
        }
        for (port, bound) in entry.text.ports.iter().zip(&mut bound).filter(|(port, _)| port.written) {
            let (from, to) = (&entry.values[port.tensor], bound.values_mut::<u16>()?);
            to.get_mut(..from.len()).ok_or_else(|| too_short(&port.name))?.copy_from_slice(from);
        }
        Ok(())
    }
}

fn too_short(port: &str) -> Error {
    Error::invalid_argument(format!("what is bound to `{port}` is too short")).detail("port", port)
}

fn elements(shape: &[usize]) -> Option<usize> {
    let fits = !shape.is_empty() && shape.len() <= RANK_LIMIT && !shape.contains(&0);
    fits.then_some(())?;
    let product = shape.iter().try_fold(1_usize, |product, &extent| product.checked_mul(extent))?;
    (product <= ELEMENT_LIMIT).then_some(product)
}

fn section(sections: &[u8], place: usize, length: usize) -> Option<&[u8]> {
    sections.get(place..place.checked_add(length)?)
}

impl<'m> Entry<'m> {
    /// Checks everything that running relies on, and finds the constants.
    fn new(text: EntryText, sections: &'m [u8]) -> Result<Entry<'m>> {
        let here = |what: &str| damaged(format!("entry `{}`: {what}", text.name));
        let mut held = Vec::new();
        let mut sizes = Vec::new();
        let mut total = 0_usize;
        for tensor in &text.tensors {
            let count = elements(&tensor.shape).ok_or_else(|| here("a tensor is too large"))?;
            total = total.saturating_add(count);
            let (content, size) = Self::hold(tensor, count, sections).ok_or_else(|| here("a constant"))?;
            held.push(content);
            sizes.push(size);
        }
        if total > ELEMENT_LIMIT {
            return Err(here("its tensors are too large"));
        }
        let entry = Entry { text, held, values: Vec::new() };
        entry.check().map_err(|what| damaged(format!("entry `{}`: {what}", entry.text.name)))?;
        Ok(Entry { values: sizes.into_iter().map(|size| vec![0; size]).collect(), ..entry })
    }

    /// A tensor, and how many values it keeps.
    fn hold(tensor: &Tensor, count: usize, sections: &'m [u8]) -> Option<(Held<'m>, usize)> {
        let possible = |affine: Affine| affine.is_possible().then_some(affine);
        Some(match tensor.content {
            Content::Activation { affine } => (Held::Activation(possible(affine)?), count),
            Content::Constant { affine, place } => {
                let stored = typed::<u16>(section(sections, place, count.checked_mul(2)?)?).ok()?;
                (Held::Constant(possible(affine)?, stored), 0)
            }
            Content::Matrix { place, scales } => {
                let [channels, _] = tensor.shape[..] else { return None };
                let scales = typed::<f32>(section(sections, scales, channels.checked_mul(4)?)?).ok()?;
                let stored = typed::<i8>(section(sections, place, count)?).ok()?;
                scales.iter().all(|scale| scale.is_finite()).then_some((Held::Matrix(stored, scales), 0))?
            }
        })
    }

    /// Whether steps can index freely.
    fn check(&self) -> std::result::Result<(), String> {
        let text = &self.text;
        let known = |tensor: usize| match tensor < text.tensors.len() {
            true => Ok(tensor),
            false => Err(format!("there is no tensor {tensor}")),
        };
        let mut ready: Vec<bool> =
            self.held.iter().map(|held| !matches!(held, Held::Activation(_))).collect();
        for port in &text.ports {
            let tensor = known(port.tensor)?;
            if !matches!(self.held[tensor], Held::Activation(_)) {
                return Err(format!("port `{}` is a constant", port.name));
            }
            ready[tensor] |= !port.written;
        }
        for node in &text.nodes {
            let fault = |what: &str| Err(format!("node `{}` {what}", node.name));
            for (place, &input) in node.inputs.iter().enumerate() {
                if !ready[known(input)?] {
                    return fault("reads what is not there yet");
                }
                let is_factor = node.step == (Step::MatMul { transpose_b: true }) && place == 1;
                if matches!(self.held[input], Held::Matrix(..)) && !is_factor {
                    return fault("reads a matrix");
                }
            }
            let Held::Activation(result) = self.held[known(node.output)?] else {
                return fault("writes a constant");
            };
            if std::mem::replace(&mut ready[node.output], true) {
                return fault("writes what is there already");
            }
            let alike = node
                .inputs
                .iter()
                .all(|&input| matches!(self.held[input], Held::Activation(affine) if affine == result));
            if node.step.moves() && !alike {
                return fault("moves between encodings");
            }
            let shapes: Vec<&[usize]> =
                node.inputs.iter().map(|&input| text.tensors[input].shape.as_slice()).collect();
            if !node.step.fits(&shapes, &text.tensors[node.output].shape) {
                return fault("has shapes that do not fit");
            }
        }
        match text.ports.iter().find(|port| !ready[port.tensor]) {
            Some(port) => Err(format!("port `{}` is never computed", port.name)),
            None => Ok(()),
        }
    }

    fn described(&self) -> Result<LoadedEntry> {
        let is_given = |state: u64| {
            self.text.ports.iter().any(|port| port.role == SW_ROLE_STATE_ROWS && port.index == state)
        };
        let binding = |port: &Port| {
            let tensor = &self.text.tensors[port.tensor];
            let Held::Activation(affine) = self.held[port.tensor] else {
                return Err(damaged(format!("port `{}` is a constant", port.name)));
            };
            let is_state = port.role == SW_ROLE_STATE;
            Ok(Binding {
                name: port.name.clone(),
                direction: match (port.written, is_state) {
                    (true, _) => Direction::Output,
                    (false, true) => Direction::StateRead,
                    (false, false) => Direction::Input,
                },
                role: port.role,
                dtype: SW_DTYPE_U16,
                update: if is_state && is_given(port.index) { SW_UPDATE_BY_RUNTIME } else { SW_UPDATE_NONE },
                shape: tensor.shape.iter().map(|&extent| extent as u64).collect(),
                strides: None,
                bytes: 2 * self.values[port.tensor].len() as u64,
                alignment: 2,
                memory_kinds: MemoryKinds::HOST.and(MemoryKinds::SHIM),
                scale: f64::from(affine.scale()),
                zero_point: i64::from(affine.zero_point),
            })
        };
        Ok(LoadedEntry {
            name: self.text.name.clone(),
            rows: self.text.rows,
            context: self.text.context,
            bindings: self.text.ports.iter().map(binding).collect::<Result<_>>()?,
        })
    }

    fn step(&mut self, index: usize) {
        let node = &self.text.nodes[index];
        let Held::Activation(affine) = self.held[node.output] else { return };
        let mut result = std::mem::take(&mut self.values[node.output]);
        let operands: Vec<Operand<'_>> = node
            .inputs
            .iter()
            .map(|&input| Operand {
                shape: &self.text.tensors[input].shape,
                stored: match &self.held[input] {
                    Held::Activation(affine) => Stored::Affine(&self.values[input], *affine),
                    Held::Constant(affine, stored) => Stored::Affine(stored, *affine),
                    Held::Matrix(stored, scales) => Stored::Matrix(stored, scales),
                },
            })
            .collect();
        compute(&node.step, &operands, &self.text.tensors[node.output].shape, affine, &mut result);
        drop(operands);
        self.values[node.output] = result;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `y = x · wᵀ`, transposed.
    fn text() -> Text {
        let affine = Affine::new(0.5, 2).unwrap();
        let tensor = |shape: &[usize], content| Tensor { shape: shape.to_vec(), content };
        let activation = Content::Activation { affine };
        let node = |step, inputs: &[usize], output| Node {
            name: format!("n{output}"),
            step,
            inputs: inputs.to_vec(),
            output,
        };
        let port = |tensor, written| Port { name: format!("p{tensor}"), role: 16, index: 0, tensor, written };
        Text {
            entries: vec![EntryText {
                name: "encode_2".to_owned(),
                rows: 2,
                context: 2,
                tensors: vec![
                    tensor(&[2, 3], activation),
                    tensor(&[4, 3], Content::Matrix { place: 0, scales: 64 }),
                    tensor(&[2, 4], activation),
                    tensor(&[4, 2], activation),
                    tensor(&[4], Content::Constant { affine, place: 128 }),
                ],
                nodes: vec![
                    node(Step::MatMul { transpose_b: true }, &[0, 1], 2),
                    node(Step::Transpose { perm: vec![1, 0] }, &[2], 3),
                ],
                ports: vec![port(0, false), port(3, true)],
            }],
        }
    }

    /// Aligned like a mapping.
    #[repr(align(64))]
    struct Page([u8; 4096]);

    fn artefact(text: &Text) -> (Box<Page>, usize) {
        let text = serde_json::to_vec(text).unwrap();
        let mut page = Box::new(Page([0; 4096]));
        let bytes = [MAGIC.as_slice(), &(text.len() as u64).to_le_bytes(), &text].concat();
        page.0[..bytes.len()].copy_from_slice(&bytes);
        let sections = bytes.len().next_multiple_of(ALIGNMENT);
        for (place, scale) in [1.0_f32, 0.5, 2.0, 1.0].into_iter().enumerate() {
            page.0[sections + 64 + 4 * place..][..4].copy_from_slice(&scale.to_le_bytes());
        }
        (page, sections + 136)
    }

    fn read(text: &Text) -> Result<()> {
        let (page, length) = artefact(text);
        Program::read(&page.0[..length]).map(|_| ())
    }

    #[test]
    fn a_program_is_read_back() {
        assert_eq!(read(&text()), Ok(()));
        let (page, length) = artefact(&text());
        let program = Program::read(&page.0[..length]).unwrap();
        let entries = program.entries().unwrap();
        let names: Vec<_> = entries[0].bindings.iter().map(|binding| binding.name.as_str()).collect();
        assert_eq!(names, ["p0", "p3"]);
        assert_eq!((entries[0].bindings[0].scale, entries[0].bindings[0].zero_point), (0.5, 2));
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_read_or_refused() {
        let (page, length) = artefact(&text());
        for end in 0..length {
            let cut = Program::read(&page.0[..end]).map(|_| ()).expect_err("a cut artefact");
            assert_eq!(cut.class, shardwright_shim_abi::ErrorClass::CorruptArtefact, "{cut}");
        }
        let mut changed = Box::new(Page(page.0));
        for place in 0..length {
            for bit in 0..8 {
                changed.0[place] ^= 1 << bit;
                // Neither outcome may be a panic.
                let _ = Program::read(&changed.0[..length]);
                changed.0[place] ^= 1 << bit;
            }
        }
    }

    #[test]
    fn damage_is_named() {
        type Damage = fn(&mut EntryText);
        let table: [(Damage, &str); 12] = [
            (|entry| entry.tensors[0].shape = vec![2, usize::MAX], "too large"),
            (|entry| entry.tensors[0].shape = vec![2, 0], "too large"),
            (|entry| entry.tensors[4].content = entry.tensors[1].content, "a constant"),
            (|entry| entry.tensors[4].shape = vec![5, 1], "a constant"),
            (|entry| entry.nodes[0].inputs[0] = 9, "no tensor 9"),
            (|entry| entry.nodes[0].inputs[0] = 3, "not there yet"),
            (|entry| entry.nodes[1].inputs[0] = 1, "reads a matrix"),
            (|entry| entry.nodes[1].output = 4, "writes a constant"),
            (|entry| entry.nodes[1].output = 2, "there already"),
            (
                |entry| {
                    entry.tensors[3].content = Content::Activation { affine: Affine::new(0.25, 2).unwrap() }
                },
                "between encodings",
            ),
            (|entry| entry.tensors[3].shape = vec![2, 4], "do not fit"),
            (|entry| drop(entry.nodes.pop()), "`p3` is never computed"),
        ];
        for (damage, words) in table {
            let mut text = text();
            damage(&mut text.entries[0]);
            let error = read(&text).expect_err(words);
            assert!(error.message.contains(words), "{error}");
        }
        let mut text = text();
        text.entries[0].ports[1].tensor = 4;
        assert!(read(&text).expect_err("a bound constant").message.contains("is a constant"));
    }
}
