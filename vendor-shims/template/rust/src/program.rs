//! The artefact of this shim and its execution: text, one line per item, then the weights.
//!
//! ```text
//! entry ROWS CONTEXT NAME
//! tensor DTYPE PLACE EXTENT…          PLACE: offset of its weight, `-` for none
//! node OP OUTPUT NUMBER NUMBER NUMBER INPUT…
//! port in|out ROLE TENSOR NAME
//! ```

use shardwright_shim_abi::raw::*;
use shardwright_shim_abi::{CompileOutput, EntryView, Error, NodeView, Result, Run, WorkOrderView};

/// Weights start at multiples of this number of bytes.
const ALIGNMENT: usize = 64;

/// Largest number of elements in a tensor: more than fits into memory, and too few for an overflow.
const ELEMENT_LIMIT: usize = 1 << 38;

/// Largest number of lines in a program.
const LINE_LIMIT: usize = 1 << 20;

/// An operation with its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Step {
    Linear,
    RmsNorm { width: usize, eps: f32, weight_offset: f32 },
    Softcap { cap: f32 },
    MulScalar { value: f32 },
    Add,
    Gelu,
    Silu,
    Reshape,
}

impl Step {
    /// Returns the operation of a node.
    ///
    /// # Errors
    /// If this shim does not support the operation.
    pub(crate) fn of(node: NodeView<'_>) -> Result<Step> {
        if node.op_version() != 1 {
            return Err(Error::unsupported_op(format!(
                "version {} of the operation is newer than this shim",
                node.op_version()
            )));
        }
        Ok(match node.op() {
            SW_OP_LINEAR => Step::Linear,
            SW_OP_RMS_NORM => Step::RmsNorm {
                width: node.attribute_usize("width")?,
                eps: node.attribute_f32("eps")?,
                weight_offset: node.attribute_f32("weight_offset")?,
            },
            SW_OP_SOFTCAP => Step::Softcap { cap: node.attribute_f32("cap")? },
            SW_OP_MUL_SCALAR => Step::MulScalar { value: node.attribute_f32("value")? },
            SW_OP_ADD => Step::Add,
            SW_OP_GELU => Step::Gelu,
            SW_OP_SILU => Step::Silu,
            SW_OP_RESHAPE => Step::Reshape,
            other => {
                return Err(Error::unsupported_op(format!("this shim does not support operation {other}")));
            }
        })
    }

    /// Returns three numbers, which are enough to restore the step together with its `op`.
    fn numbers(self) -> [f64; 3] {
        match self {
            Step::RmsNorm { width, eps, weight_offset } => {
                [width as f64, f64::from(eps), f64::from(weight_offset)]
            }
            Step::Softcap { cap: value } | Step::MulScalar { value } => [f64::from(value), 0.0, 0.0],
            Step::Linear | Step::Add | Step::Gelu | Step::Silu | Step::Reshape => [0.0; 3],
        }
    }

    fn from_numbers(op: u32, [a, b, c]: [f64; 3]) -> Option<Step> {
        Some(match op {
            SW_OP_LINEAR => Step::Linear,
            SW_OP_RMS_NORM => Step::RmsNorm { width: a as usize, eps: b as f32, weight_offset: c as f32 },
            SW_OP_SOFTCAP => Step::Softcap { cap: a as f32 },
            SW_OP_MUL_SCALAR => Step::MulScalar { value: a as f32 },
            SW_OP_ADD => Step::Add,
            SW_OP_GELU => Step::Gelu,
            SW_OP_SILU => Step::Silu,
            SW_OP_RESHAPE => Step::Reshape,
            _ => return None,
        })
    }
}

/// Streams the artefact: the length of the text, the text, the weights.
pub(crate) fn write(order: WorkOrderView<'_>, output: &mut CompileOutput<'_>) -> Result<()> {
    let mut places = Vec::new();
    let mut end = 0_usize;
    for weight in order.weights() {
        places.push((weight.identity(), end));
        end += (weight.bytes()?.len()).next_multiple_of(ALIGNMENT);
    }
    let mut text = String::new();
    for entry in order.entries() {
        write_entry(entry, &places, &mut text)?;
    }
    let padding = (8 + text.len()).next_multiple_of(ALIGNMENT) - 8 - text.len();
    output.write(&(text.len() as u64).to_le_bytes())?;
    output.write(text.as_bytes())?;
    output.write(&[0; ALIGNMENT][..padding])?;
    let count = order.weights().len().max(1);
    for (index, weight) in order.weights().enumerate() {
        output.progress((1000 * index / count) as u32, "writing weights")?;
        let bytes = weight.bytes()?;
        output.write(bytes)?;
        output.write(&[0; ALIGNMENT][..bytes.len().next_multiple_of(ALIGNMENT) - bytes.len()])?;
    }
    Ok(())
}

fn write_entry(entry: EntryView<'_>, places: &[(usize, usize)], text: &mut String) -> Result<()> {
    use std::fmt::Write;
    let mut lines = format!("entry {} {} {}\n", entry.rows(), entry.context(), entry.name());
    for (index, tensor) in entry.tensors().enumerate() {
        let weight = entry.constants().find(|(constant, _)| *constant as usize == index);
        let place = weight.and_then(|(_, weight)| places.iter().find(|(id, _)| *id == weight.identity()));
        let place = place.map_or("-".to_owned(), |(_, place)| place.to_string());
        let _ = write!(lines, "tensor {} {place}", tensor.dtype());
        for extent in tensor.shape() {
            let _ = write!(lines, " {extent}");
        }
        lines.push('\n');
    }
    for node in entry.nodes() {
        let [a, b, c] = Step::of(node)?.numbers();
        // `{:?}` prints a float so that it is read back with the same bits.
        let _ = write!(lines, "node {} {} {a:?} {b:?} {c:?}", node.op(), node.output()?);
        for input in node.inputs().flatten() {
            let _ = write!(lines, " {input}");
        }
        lines.push('\n');
    }
    for (direction, port) in
        entry.inputs().map(|port| ("in", port)).chain(entry.outputs().map(|port| ("out", port)))
    {
        if port.name().contains('\n') {
            return Err(Error::invalid_argument(format!("port name `{}` has two lines", port.name())));
        }
        let _ = writeln!(lines, "port {direction} {} {} {}", port.role(), port.tensor(), port.name());
    }
    text.push_str(&lines);
    Ok(())
}

/// A tensor of an entry.
pub(crate) struct Tensor<'m> {
    pub(crate) dtype: u32,
    pub(crate) shape: Vec<usize>,
    pub(crate) elements: usize,
    weight: Option<&'m [u8]>,
}

/// A tensor that the host binds.
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) written: bool,
    pub(crate) role: u32,
    pub(crate) tensor: usize,
}

struct Node {
    step: Step,
    inputs: Vec<usize>,
    output: usize,
}

/// An entry point of the artefact.
pub(crate) struct Entry<'m> {
    pub(crate) name: String,
    pub(crate) rows: u64,
    pub(crate) context: u64,
    pub(crate) tensors: Vec<Tensor<'m>>,
    pub(crate) ports: Vec<Port>,
    nodes: Vec<Node>,
    /// Values of all tensors except weights. They are kept between runs, so that a run needs no
    /// allocation.
    values: Vec<Vec<f32>>,
}

/// A loaded artefact.
pub(crate) struct Program<'m> {
    pub(crate) entries: Vec<Entry<'m>>,
}

fn damaged(line: &str) -> Error {
    let shown: String = line.chars().take(80).collect();
    Error::corrupt_artefact(format!("the program is damaged at `{shown}`"))
}

impl<'m> Program<'m> {
    /// Reads an artefact.
    ///
    /// # Errors
    /// If it is damaged.
    pub(crate) fn read(bytes: &'m [u8]) -> Result<Program<'m>> {
        let header = bytes.first_chunk::<8>().ok_or_else(|| damaged("length"))?;
        let length = usize::try_from(u64::from_le_bytes(*header)).map_err(|_| damaged("length"))?;
        let end = length.checked_add(8).ok_or_else(|| damaged("length"))?;
        let text = bytes.get(8..end).ok_or_else(|| damaged("length"))?;
        let text = std::str::from_utf8(text).map_err(|_| damaged("text"))?;
        let weights = bytes.get(end.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        let mut entries: Vec<Entry<'m>> = Vec::new();
        for line in text.lines().take(LINE_LIMIT) {
            let (kind, rest) = line.split_once(' ').ok_or_else(|| damaged(line))?;
            if kind == "entry" {
                entries.push(read_entry(rest).ok_or_else(|| damaged(line))?);
                continue;
            }
            let entry = entries.last_mut().ok_or_else(|| damaged(line))?;
            let read = match kind {
                "tensor" => read_tensor(rest, weights).map(|tensor| entry.tensors.push(tensor)),
                "node" => read_node(rest).map(|node| entry.nodes.push(node)),
                "port" => read_port(rest).map(|port| entry.ports.push(port)),
                _ => None,
            };
            read.ok_or_else(|| damaged(line))?;
        }
        for entry in &mut entries {
            entry.check().ok_or_else(|| damaged(&entry.name))?;
            entry.values = entry
                .tensors
                .iter()
                .map(|tensor| if tensor.weight.is_some() { Vec::new() } else { vec![0.0; tensor.elements] })
                .collect();
        }
        Ok(Program { entries })
    }

    /// Runs one entry over all its rows. Invalid rows only cost time, because there are no states.
    pub(crate) fn run(&mut self, run: Run<'_>) -> Result<()> {
        let Run { entry, mut bound, control, .. } = run;
        let entry = self.entries.get_mut(entry).ok_or_else(|| Error::invalid_argument("no such entry"))?;
        for (port, bound) in entry.ports.iter().zip(&bound).filter(|(port, _)| !port.written) {
            // An unused i32 step input is ignored.
            if entry.tensors[port.tensor].dtype == SW_DTYPE_F32 {
                entry.values[port.tensor].copy_from_slice(bound.values::<f32>()?);
            }
        }
        for index in 0..entry.nodes.len() {
            control.proceed()?;
            entry.step(index)?;
        }
        for (port, bound) in entry.ports.iter().zip(&mut bound).filter(|(port, _)| port.written) {
            bound.values_mut::<f32>()?.copy_from_slice(&entry.values[port.tensor]);
        }
        Ok(())
    }
}

fn read_entry<'m>(rest: &str) -> Option<Entry<'m>> {
    let mut words = rest.splitn(3, ' ');
    Some(Entry {
        rows: words.next()?.parse().ok()?,
        context: words.next()?.parse().ok()?,
        name: words.next()?.to_owned(),
        tensors: Vec::new(),
        ports: Vec::new(),
        nodes: Vec::new(),
        values: Vec::new(),
    })
}

fn read_tensor<'m>(rest: &str, weights: &'m [u8]) -> Option<Tensor<'m>> {
    let mut words = rest.split(' ');
    let dtype: u32 = words.next()?.parse().ok()?;
    let place = words.next()?;
    let shape: Vec<usize> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
    let elements = shape.iter().try_fold(1_usize, |product, &extent| product.checked_mul(extent))?;
    let width = match dtype {
        SW_DTYPE_F32 | SW_DTYPE_I32 => 4,
        SW_DTYPE_BF16 => 2,
        _ => return None,
    };
    if elements > ELEMENT_LIMIT {
        return None;
    }
    let weight = match place {
        "-" => None,
        place => {
            let place: usize = place.parse().ok()?;
            Some(weights.get(place..place.checked_add(elements.checked_mul(width)?)?)?)
        }
    };
    Some(Tensor { dtype, shape, elements, weight })
}

fn read_node(rest: &str) -> Option<Node> {
    let mut words = rest.split(' ');
    let op: u32 = words.next()?.parse().ok()?;
    let output = words.next()?.parse().ok()?;
    let mut number = || words.next()?.parse().ok();
    let numbers = [number()?, number()?, number()?];
    let inputs = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
    Some(Node { step: Step::from_numbers(op, numbers)?, inputs, output })
}

fn read_port(rest: &str) -> Option<Port> {
    let mut words = rest.splitn(4, ' ');
    let written = match words.next()? {
        "in" => false,
        "out" => true,
        _ => return None,
    };
    Some(Port {
        written,
        role: words.next()?.parse().ok()?,
        tensor: words.next()?.parse().ok()?,
        name: words.next()?.to_owned(),
    })
}

/// Decodes the values of a weight's bytes, f32 or bf16.
fn stored(bytes: &[u8], dtype: u32) -> impl Iterator<Item = f32> {
    let width = if dtype == SW_DTYPE_BF16 { 2 } else { 4 };
    bytes.chunks_exact(width).map(move |bytes| match *bytes {
        [low, high] => f32::from_bits(u32::from(u16::from_le_bytes([low, high])) << 16),
        [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
        _ => f32::NAN,
    })
}

fn dot(values: &[f32], weight: &[u8], dtype: u32) -> f32 {
    values.iter().zip(stored(weight, dtype)).map(|(x, w)| x * w).sum()
}

/// Returns a weight or an earlier result as f32.
fn widened<'a>(tensor: &Tensor<'_>, values: &'a [f32]) -> std::borrow::Cow<'a, [f32]> {
    match tensor.weight {
        None => values.into(),
        Some(bytes) => stored(bytes, tensor.dtype).collect(),
    }
}

impl Entry<'_> {
    /// Checks the operands of all steps, so that a run can rely on them.
    fn check(&self) -> Option<()> {
        let mut ready: Vec<bool> = self.tensors.iter().map(|tensor| tensor.weight.is_some()).collect();
        for port in &self.ports {
            let tensor = self.tensors.get(port.tensor)?;
            if tensor.weight.is_some() || (port.written && tensor.dtype != SW_DTYPE_F32) {
                return None;
            }
            ready[port.tensor] |= !port.written;
        }
        for node in &self.nodes {
            let inputs: Vec<&Tensor<'_>> =
                node.inputs.iter().map(|&input| self.tensors.get(input)).collect::<Option<_>>()?;
            if !node.inputs.iter().all(|&input| ready[input]) || *ready.get(node.output)? {
                return None;
            }
            if inputs.iter().any(|tensor| tensor.dtype == SW_DTYPE_I32) {
                return None;
            }
            let output = &self.tensors[node.output];
            (output.dtype == SW_DTYPE_F32 && fits(node.step, &inputs, output)?).then_some(())?;
            ready[node.output] = true;
        }
        self.ports.iter().all(|port| ready[port.tensor]).then_some(())
    }

    fn step(&mut self, index: usize) -> Result<()> {
        let node = &self.nodes[index];
        let mut result = std::mem::take(&mut self.values[node.output]);
        let operand = |place: usize| {
            let tensor = &self.tensors[node.inputs[place]];
            (tensor, widened(tensor, &self.values[node.inputs[place]]))
        };
        let (_, x) = operand(0);
        match node.step {
            Step::Linear => {
                let weight = &self.tensors[node.inputs[1]];
                let (out, columns) = (weight.shape[0], weight.shape[1]);
                let bias = node.inputs.get(2).map(|_| operand(2).1);
                let bytes = weight.weight.unwrap_or_default();
                let stride = columns * if weight.dtype == SW_DTYPE_BF16 { 2 } else { 4 };
                for (values, results) in x.chunks_exact(columns).zip(result.chunks_exact_mut(out)) {
                    for (row, result) in results.iter_mut().enumerate() {
                        let sum = dot(values, &bytes[row * stride..][..stride], weight.dtype);
                        *result = sum + bias.as_ref().map_or(0.0, |bias| bias[row]);
                    }
                }
            }
            Step::RmsNorm { width, eps, weight_offset } => {
                let weight = node.inputs.get(1).map(|_| operand(1).1);
                for (values, results) in x.chunks_exact(width).zip(result.chunks_exact_mut(width)) {
                    let mean = values.iter().map(|x| x * x).sum::<f32>() / width as f32;
                    let inverse = 1.0 / (mean + eps).sqrt();
                    for (column, (x, result)) in values.iter().zip(results).enumerate() {
                        *result = x * inverse * weight.as_ref().map_or(1.0, |w| w[column] + weight_offset);
                    }
                }
            }
            Step::Add => {
                let (_, y) = operand(1);
                for ((x, y), result) in x.iter().zip(y.iter()).zip(&mut result) {
                    *result = x + y;
                }
            }
            Step::Softcap { cap } => each(&x, &mut result, |x| cap * (x / cap).tanh()),
            Step::MulScalar { value } => each(&x, &mut result, |x| x * value),
            Step::Gelu => each(&x, &mut result, |x| {
                0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044_715 * x * x * x)).tanh())
            }),
            Step::Silu => each(&x, &mut result, |x| x / (1.0 + (-x).exp())),
            Step::Reshape => result.copy_from_slice(&x),
        }
        drop(x);
        self.values[node.output] = result;
        Ok(())
    }
}

fn each(x: &[f32], result: &mut [f32], f: impl Fn(f32) -> f32) {
    for (x, result) in x.iter().zip(result) {
        *result = f(*x);
    }
}

fn fits(step: Step, inputs: &[&Tensor<'_>], output: &Tensor<'_>) -> Option<bool> {
    let x = inputs.first()?;
    Some(match step {
        Step::Linear => {
            let weight = inputs.get(1)?;
            let [out, columns] = *weight.shape.as_slice() else { return None };
            columns > 0
                && out > 0
                && weight.weight.is_some()
                && x.elements.is_multiple_of(columns)
                && output.elements == (x.elements / columns).checked_mul(out)?
                && inputs.get(2).is_none_or(|bias| bias.elements == out)
        }
        Step::RmsNorm { width, .. } => {
            width > 0
                && x.elements.is_multiple_of(width)
                && output.elements == x.elements
                && inputs.get(1).is_none_or(|weight| weight.elements == width)
        }
        // Broadcasting is left to the CPU shim.
        Step::Add => inputs.get(1)?.elements == x.elements && output.elements == x.elements,
        Step::Softcap { .. } | Step::MulScalar { .. } | Step::Gelu | Step::Silu | Step::Reshape => {
            output.elements == x.elements
        }
    })
}
