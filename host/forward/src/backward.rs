//! Runs a model backwards from its output to its embedding, over all sequences.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use shardwright_graph::{
    ComponentKind, EntryGraph, EntryOptions, EntryPoint, Graph, Role, Segment, StateId, TensorId, Weight,
    WeightData, given_gradient_key, gradient_key,
};
use shardwright_vocabulary::{DType, Error, ErrorKind, Part, Result, Watch};

use crate::engine::Look;
use crate::part::Given;
use crate::pass::Pass;

/// Rows of a head to run at a time, because its logits are the widest tensors of a model.
const HEAD_ROWS: u64 = 64;

/// A backward pass, which computes the derivatives of a loss.
///
/// Each part recomputes its values from its inputs in a recorded [`Pass`], so that only one part's
/// values are in memory.
pub struct Backward<'p> {
    pass: Pass<'p>,
    read: Vec<Vec<Arc<Vec<f32>>>>,
    /// By sequence, the derivative by the output stream of the next part, `[T, H]`.
    streams: Vec<Vec<f32>>,
    /// By sequence, the derivative by the per-layer inputs, `[layers, T, P]`.
    per_layer: Vec<Vec<f32>>,
    /// By sequence, the derivatives by states that the next part or an earlier one writes.
    states: Vec<BTreeMap<StateId, Vec<f32>>>,
}

/// Rows of logits of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct LogitRows<'l> {
    /// Index of the sequence.
    pub sequence: usize,
    /// Index of the first row.
    pub first: usize,
    /// Logits, `[rows, V]`.
    pub values: &'l [f32],
    /// Size V of the vocabulary.
    pub width: usize,
}

/// Selects the tensors to show in a backward pass, and gives the loss.
pub struct BackwardLook<'l> {
    /// Selects tensors whose values are shown, by name.
    pub values: &'l dyn Fn(&EntryGraph, TensorId) -> bool,
    /// Selects tensors whose derivatives are shown, by [`gradient_key`] of the name.
    pub gradients: &'l dyn Fn(&EntryGraph, TensorId) -> bool,
    /// Returns the derivative of the loss by each of these logits.
    pub loss: &'l dyn Fn(LogitRows<'_>) -> Vec<f32>,
}

/// The selected tensors of some rows of a sequence, by name, dense.
pub type Shown = BTreeMap<String, Vec<f32>>;

impl<'p> Backward<'p> {
    /// Begins a backward pass through a model that a recorded pass has completed.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`] for a pass that was not recorded or is not complete.
    pub fn of(mut pass: Pass<'p>) -> Result<Self> {
        let ended = |read: &Vec<_>| read.len() == pass.parts.len();
        let Some(read) = pass.read.take().filter(ended) else {
            return Err(Error::argument("the forward pass was not recorded to its end")
                .with_help("begin with `Pass::recorded` and run every part"));
        };
        let count = pass.sequences.len();
        let per_layer = pass.per_layer.iter().map(|values| vec![0.0; values.len()]).collect();
        let (streams, states) = (vec![Vec::new(); count], vec![BTreeMap::new(); count]);
        Ok(Backward { pass, read, streams, per_layer, states })
    }

    /// Returns the parts of the model in the order of the backward pass.
    pub fn parts(&self) -> Vec<Segment> {
        self.pass.parts.iter().rev().copied().collect()
    }

    /// Runs all sequences back through the next part. `show` gets the sequence and its selected
    /// tensors, for a head in several calls with some rows each.
    ///
    /// # Errors
    /// If the shim refuses or fails. [`ErrorKind::Cancelled`] if the watch cancels it, and
    /// [`ErrorKind::Unsupported`] for a part without derivatives.
    pub fn run(
        &mut self,
        part: &Segment,
        graph: &Graph,
        look: &BackwardLook<'_>,
        show: &mut dyn FnMut(usize, &Shown),
        watch: &mut dyn Watch,
    ) -> Result<()> {
        let read = self.read.pop().unwrap_or_default();
        // A part that contributes nothing to this kind of entry point was not run forwards either.
        if read.is_empty() {
            return Ok(());
        }
        let is_head = part.component == ComponentKind::Head;
        let longest = self.pass.point.rows;
        let rows = if is_head { longest.min(HEAD_ROWS) } else { longest };
        let point = EntryPoint { rows, ..self.pass.point };
        let entry_of = |graph: &Graph| {
            let layers = part.layers.0..part.layers.1;
            graph.entry(part.component, layers, point, EntryOptions::default())
        };
        let Some(entry) = entry_of(graph)? else { return Ok(()) };
        // The inputs, by the name of their derivative.
        let written = |state: &StateId| entry.states.iter().any(|port| port.id == *state && port.written);
        let inputs: BTreeMap<String, (TensorId, Role)> = entry
            .inputs
            .iter()
            .filter(|(_, role)| match role {
                Role::Hidden | Role::PerLayer { .. } => true,
                Role::State { state } => !written(state),
                _ => false,
            })
            .map(|(tensor, role)| (gradient_key(&entry.tensor(*tensor).name), (*tensor, role.clone())))
            .collect();
        let outputs: Vec<(String, Role)> = entry
            .outputs
            .iter()
            .map(|(tensor, role)| (given_gradient_key(&entry.tensor(*tensor).name), role.clone()))
            .collect();
        // The caller already has the input stream.
        let entering = entry.inputs.iter().find(|(_, role)| *role == Role::Hidden);
        let entering = entering.filter(|(tensor, _)| (look.values)(&entry, *tensor));
        let entering = entering.map(|(tensor, _)| entry.tensor(*tensor).name.clone());
        let wanted = |entry: &EntryGraph, tensor: TensorId| {
            (look.gradients)(entry, tensor) || inputs.values().any(|(input, _)| *input == tensor)
        };
        let mut watch = Part::new(watch, 0..1000);
        let logits = outputs.iter().find(|(_, role)| *role == Role::Logits);
        let mut head = match logits {
            Some(_) => {
                let engine = &self.pass.engine;
                Some(engine.load(entry.clone(), graph, None, &|_, _| false, &mut watch.then(100))?)
            }
            None => None,
        };
        let looks: (&Look<'_>, &Look<'_>) = (look.values, &wanted);
        let decoded = decoded(graph, &entry);
        let entry = entry_of(&decoded)?.unwrap_or(entry);
        let mut loaded = self.pass.engine.load_gradients(entry, &decoded, looks, &mut watch.then(200))?;
        drop(decoded);
        for (index, ids) in self.pass.sequences.iter().enumerate() {
            if watch.cancelled() {
                return Err(Error::new(ErrorKind::Cancelled, "the backward pass was cancelled"));
            }
            let done = 200 + index * 800 / self.pass.sequences.len().max(1);
            watch.progress(done as u32, &format!("going back through {part}"));
            let mut back: BTreeMap<String, Vec<f32>> = BTreeMap::new();
            let width = read[index].len() / ids.len().max(1);
            for (chunk, ids) in ids.chunks(rows as usize).enumerate() {
                let first = chunk * rows as usize;
                let mut given = Given {
                    ids,
                    assets: &graph.assets,
                    stream: &read[index][first * width..(first + ids.len()) * width],
                    per_layer: &self.pass.per_layer[index],
                    states: &self.pass.states[index],
                    gradients: &BTreeMap::new(),
                };
                let mut known = BTreeMap::new();
                if let (Some(head), Some((name, _))) = (&mut head, logits) {
                    head.run(&given, &mut |role, values, rows| {
                        if *role == Role::Logits {
                            let width = values.len() / rows.max(1);
                            let given = LogitRows { sequence: index, first, values, width };
                            known.insert(name.clone(), (look.loss)(given));
                        }
                    })?;
                }
                for (name, role) in &outputs {
                    let gradient = match role {
                        Role::Hidden => Some(std::mem::take(&mut self.streams[index])),
                        Role::PerLayer { .. } => Some(self.per_layer[index].clone()),
                        Role::State { state } => self.states[index].remove(state),
                        _ => None,
                    };
                    known.extend(gradient.map(|gradient| (name.clone(), gradient)));
                }
                given.gradients = &known;
                let mut shown: Shown =
                    entering.iter().map(|name| (name.clone(), given.stream.to_vec())).collect();
                loaded.run(&given, &mut |role, values, _| {
                    if let Role::Tap { name } = role {
                        match inputs.contains_key(name) {
                            true => back.entry(name.clone()).or_default().extend_from_slice(values),
                            false => _ = shown.insert(name.clone(), values.to_vec()),
                        }
                    }
                })?;
                show(index, &shown);
            }
            for (name, gradient) in back {
                match inputs.get(&name) {
                    // A part that does not change the stream adds to its derivative.
                    Some((_, Role::Hidden)) => add(&mut self.streams[index], &gradient),
                    Some((_, Role::PerLayer { first, .. })) => {
                        let before =
                            *first as usize * self.per_layer[index].len() / (graph.layers() as usize).max(1);
                        let sums = self.per_layer[index].get_mut(before..).unwrap_or_default();
                        sums.iter_mut().zip(&gradient).for_each(|(sum, value)| *sum += value);
                    }
                    Some((_, Role::State { state })) => {
                        add(self.states[index].entry(*state).or_default(), &gradient);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// Returns the model with the integer weights of a part decoded to floats. The backward product
/// reads a matrix by its columns, while scales apply to rows or to blocks of a row.
fn decoded<'g>(graph: &'g Graph, entry: &EntryGraph) -> Cow<'g, Graph> {
    let mut decoded = Cow::Borrowed(graph);
    for (_, id) in entry.constants() {
        let weight = graph.weight(id);
        if weight.quantisation.is_none() {
            continue;
        }
        let width = weight.row_width().max(1);
        let mut values = vec![0.0_f32; weight.rows() * width];
        let mut rows = values.chunks_mut(width).enumerate();
        // The shim refuses weights that cannot be decoded.
        if rows.all(|(row, values)| weight.decode_row(row, values)) {
            let data = WeightData::from_vec(bytemuck::cast_slice(&values).to_vec());
            decoded.to_mut().weights[id.0 as usize] =
                Weight { dtype: DType::F32, data, quantisation: None, ..weight.clone() };
        }
    }
    decoded
}

fn add(sums: &mut Vec<f32>, values: &[f32]) {
    sums.resize(values.len(), 0.0);
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}
