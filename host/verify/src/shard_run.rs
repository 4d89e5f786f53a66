//! Runs one shard alone: binds the reference's values to its ports and reads its results.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use shardwright_build::CompiledGraphs;
use shardwright_graph::{
    Asset, ComponentKind, EntryGraph, EntryPoint, Graph, Role, Segments, StateId, TensorId, unrounded,
};
use shardwright_reference::step::Step;
use shardwright_reference::{Array, Bindings, Evaluator, States, Weights};
use shardwright_shims::{Bound, Buffer, Direction, LoadedEntry, LoadedShard, Port, RunOptions, ShimError};

use crate::progress::reference_fault;
use crate::trace::{Chunk, Trace};
use crate::values::{Input, decode, encode, encode_floats, encoding_of};
use shardwright_vocabulary::{Error, ErrorKind, Result};

/// Fill byte of outputs before a run, so that unwritten rows are not mistaken for the previous
/// run's. As floats these are NaN.
const UNWRITTEN: u8 = 0xff;

/// The buffers of one shard, for all its entry points.
pub(crate) struct ShardMemory {
    /// The entry points of the shard.
    pub(crate) entries: Vec<LoadedEntry>,
    /// Buffers by entry and binding. `None` for states.
    buffers: Vec<Vec<Option<Buffer>>>,
    states: BTreeMap<StateId, StateMemory>,
}

struct StateMemory {
    buffer: Buffer,
    /// Number of slots that may contain non-zero values.
    used: usize,
}

/// One result of a run, with the reference's result.
pub(crate) struct Observed {
    /// Name of the result: `hidden`, `layer.3`, `per-layer`, `logits`,
    /// `logits before their soft-cap`, `embedding`, `state layer.3.k`.
    pub(crate) what: String,
    /// The layer of the result, if it comes from one layer.
    pub(crate) layer: Option<u32>,
    /// The cut of the residual stream, if the result is one.
    pub(crate) cut: Option<usize>,
    /// Number of values per row.
    pub(crate) width: usize,
    /// The shard's values: `rows` rows (or `rows` for each layer).
    pub(crate) got: Vec<f32>,
    /// The reference's values on the checkpoint's graph.
    pub(crate) wanted: Vec<f32>,
    /// The reference's values on the graph the shard was compiled from, bound to the same inputs.
    pub(crate) compiled: Option<Vec<f32>>,
}

/// A value that left a device, with the reference's result for the inputs that the device read.
pub(crate) struct Own {
    /// Role of the output.
    pub(crate) role: Role,
    /// Number of values per row.
    pub(crate) width: usize,
    /// The device's values, valid rows only.
    pub(crate) got: Vec<f32>,
    /// The reference's values of the same rows.
    pub(crate) computed: Vec<f32>,
}

/// Reference evaluators for the graphs of a shard, by the names of its entry points.
pub(crate) struct Twin {
    evaluators: BTreeMap<String, Evaluator>,
    /// Evaluators of the same graphs without rounding, for graphs that round.
    unrounded: BTreeMap<String, Evaluator>,
}

impl Twin {
    /// Creates evaluators for the graphs that the shard was compiled from.
    pub(crate) fn new(compiled: &CompiledGraphs) -> Result<Twin> {
        let weights = Weights::new(&compiled.weights);
        let name = |graph: &EntryGraph| graph.point.name().to_string();
        let evaluator = |graph: EntryGraph| Ok((name(&graph), Evaluator::new(graph, weights)?));
        let rounding = compiled.graphs.iter().map(|graph| (graph, unrounded(graph)));
        let rounding = rounding.filter(|(graph, unrounded)| *graph != unrounded);
        Ok(Twin {
            evaluators: compiled.graphs.iter().cloned().map(evaluator).collect::<Result<_>>()?,
            unrounded: rounding.map(|(_, graph)| evaluator(graph)).collect::<Result<_>>()?,
        })
    }
}

/// The inputs of one shard's runs.
pub(crate) struct Feed<'a> {
    pub(crate) graph: &'a Graph,
    /// The tables from which the chain gathers.
    pub(crate) assets: &'a [Asset],
    pub(crate) trace: &'a Trace<'a, 'a>,
    pub(crate) chunk: &'a Chunk,
    pub(crate) twin: Option<&'a Twin>,
    /// Whether the head returns logits that the runtime still has to cap. The graph then has no
    /// soft-cap.
    pub(crate) uncapped: bool,
}

/// The rows of a run.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    /// First row, counted from the start of the chunk.
    pub(crate) offset: usize,
    /// Number of rows, at most the rows of the entry point.
    pub(crate) rows: usize,
}

impl ShardMemory {
    /// Allocates the buffers of the shard's entry points.
    pub(crate) fn new(executor: &LoadedShard) -> Result<Self> {
        let entries = executor.entries().to_vec();
        let allocate = |bytes: u64, alignment: u64| -> Result<Buffer> {
            let buffer = executor.allocate(bytes, alignment)?;
            if buffer.length() < bytes || !buffer.is_mapped() {
                let what = format!("the host cannot access {bytes} bytes on {}", executor.place());
                return Err(Error::new(ErrorKind::Shim, what)
                    .with_help("verify on the CPU, or with a shim whose memory can be mapped"));
            }
            Ok(buffer)
        };
        let mut needs: BTreeMap<StateId, (u64, u64)> = BTreeMap::new();
        let bindings = entries.iter().flat_map(|entry| &entry.bindings);
        for (binding, state) in bindings.filter_map(|binding| Some((binding, state_of(&binding.port)?))) {
            let need = needs.entry(state).or_insert((0, 1));
            *need = (need.0.max(binding.bytes), need.1.max(binding.alignment));
        }
        let mut states = BTreeMap::new();
        for (state, (bytes, alignment)) in needs {
            let buffer = allocate(bytes, alignment)?;
            buffer.write()?.fill(0);
            states.insert(state, StateMemory { buffer, used: 0 });
        }
        let mut buffers = Vec::new();
        for entry in &entries {
            let of = |port: &Port, bytes, alignment| match state_of(port) {
                Some(_) => Ok(None),
                None => allocate(bytes, alignment).map(Some),
            };
            let of_entry = entry.bindings.iter();
            let of_entry = of_entry.map(|binding| of(&binding.port, binding.bytes, binding.alignment));
            buffers.push(of_entry.collect::<Result<Vec<_>>>()?);
        }
        Ok(ShardMemory { entries, buffers, states })
    }

    /// Runs an entry point on the reference's values. Returns its results with the reference's, and
    /// the duration of the run.
    pub(crate) fn run(
        &mut self,
        executor: &mut LoadedShard,
        entry: usize,
        feed: &Feed<'_>,
        rows: Rows,
    ) -> Result<(Vec<Observed>, Duration)> {
        let took = self.execute(executor, entry, feed, rows)?;
        let loaded = &self.entries[entry];
        let at = RunScope::of(feed, rows, loaded);
        let mut observed = Vec::new();
        for (binding, buffer) in loaded.bindings.iter().zip(&self.buffers[entry]) {
            let port = &binding.port;
            match (buffer, port.direction) {
                (Some(buffer), Direction::Output) => {
                    observed.extend(at.output(&port.role, &port.shape, &values_of(port, buffer)?));
                }
                (None, Direction::State) => {
                    if let Some(memory) = state_of(port).and_then(|state| self.states.get(&state)) {
                        let bytes = memory.buffer.read()?;
                        observed.extend(
                            state_of(port).map(|state| at.written_state(state, port, &bytes)).transpose()?,
                        );
                    }
                }
                _ => {}
            }
        }
        if let Some(evaluator) = feed.twin.and_then(|twin| twin.evaluators.get(&loaded.interface.name)) {
            for (what, values) in at.computed(evaluator, loaded)? {
                if let Some(shown) = observed.iter_mut().find(|shown| shown.what == what) {
                    shown.compiled = Some(values);
                }
            }
        }
        Ok((observed, took))
    }

    /// Returns the results of the reference on the graph that the shard was compiled from, without
    /// rounding to steps, by their names. Empty if the graph does not round.
    pub(crate) fn unrounded(
        &self,
        entry: usize,
        feed: &Feed<'_>,
        rows: Rows,
    ) -> Result<BTreeMap<String, Vec<f32>>> {
        let loaded = &self.entries[entry];
        match feed.twin.and_then(|twin| twin.unrounded.get(&loaded.interface.name)) {
            Some(evaluator) => RunScope::of(feed, rows, loaded).computed(evaluator, loaded),
            None => Ok(BTreeMap::new()),
        }
    }

    /// Binds the reference's values and runs. Returns the duration of the run.
    fn execute(
        &mut self,
        executor: &mut LoadedShard,
        entry: usize,
        feed: &Feed<'_>,
        rows: Rows,
    ) -> Result<Duration> {
        let loaded = &self.entries[entry];
        let at = RunScope::of(feed, rows, loaded);
        let position = at.position;
        for (binding, buffer) in loaded.bindings.iter().zip(&self.buffers[entry]) {
            let port = &binding.port;
            match (buffer, port.direction) {
                (Some(buffer), Direction::Input) => {
                    let input = at.input(&port.role)?;
                    let bytes = encode(port, &input).ok_or_else(|| unusable(port))?;
                    put(buffer, &bytes)?;
                }
                (Some(buffer), _) => buffer.write()?.fill(UNWRITTEN),
                (None, _) => {
                    if let Some(state) = state_of(port)
                        && let Some(memory) = self.states.get_mut(&state)
                    {
                        at.fill_state(memory, state, port, at.known_rows(loaded, state))?;
                        if port.direction == Direction::State {
                            memory.used = memory.used.max(position + rows.rows);
                        }
                    }
                }
            }
        }
        let mut bound = Vec::with_capacity(loaded.bindings.len());
        for (binding, buffer) in loaded.bindings.iter().zip(&self.buffers[entry]) {
            let state = state_of(&binding.port).and_then(|state| self.states.get(&state));
            let buffer = buffer.as_ref().or(state.map(|state| &state.buffer));
            bound.push(Bound::Buffer(buffer.ok_or_else(|| unusable(&binding.port))?));
        }
        let began = Instant::now();
        executor.run(entry, rows.rows as u64, &mut bound, RunOptions::default()).map_err(|error| {
            let place = executor.place();
            failed(error, format!("{place}: {} at position {position}", loaded.interface.name))
        })?;
        Ok(began.elapsed())
    }

    /// Runs an entry point on the reference's values. Returns every value that leaves it, with the
    /// reference's result for the inputs that the device read, in the order in which the values are
    /// computed.
    pub(crate) fn run_own(
        &mut self,
        executor: &mut LoadedShard,
        entry: usize,
        feed: &Feed<'_>,
        rows: Rows,
    ) -> Result<Vec<Own>> {
        self.execute(executor, entry, feed, rows)?;
        let loaded = &self.entries[entry];
        let at = RunScope::of(feed, rows, loaded);
        let Some(evaluator) = feed.twin.and_then(|twin| twin.evaluators.get(&loaded.interface.name)) else {
            return Ok(Vec::new());
        };
        let mut left: Vec<(&Role, Vec<f32>)> = Vec::new();
        for (binding, buffer) in loaded.bindings.iter().zip(&self.buffers[entry]) {
            let port = &binding.port;
            match (buffer, port.direction) {
                (Some(buffer), Direction::Output) => left.push((&port.role, values_of(port, buffer)?)),
                (None, Direction::State) => {
                    if let Some(memory) = state_of(port).and_then(|state| self.states.get(&state)) {
                        left.push((&port.role, values_of(port, &memory.buffer)?));
                    }
                }
                _ => {}
            }
        }
        at.own(evaluator, loaded, &left)
    }
}

/// Decodes the values of a buffer, in the shape of its port.
fn values_of(port: &Port, buffer: &Buffer) -> Result<Vec<f32>> {
    let encoding = encoding_of(port).ok_or_else(|| unusable(port))?;
    let dense = (port.shape.iter().product::<u64>() * encoding.element.bytes()) as usize;
    let bytes = buffer.read()?;
    decode(encoding, bytes.get(..dense).unwrap_or_default()).ok_or_else(|| unusable(port))
}

/// Returns the state, if the port is a whole state.
fn state_of(port: &Port) -> Option<StateId> {
    match port.role {
        Role::State { state } => Some(state),
        _ => None,
    }
}

fn unusable(port: &Port) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "port `{}` ({}) has type {}, which verification does not support",
            port.name,
            port.role.name(),
            port.dtype
        ),
    )
    .with_help("report this as a bug: verification should support every port of a graph")
}

fn failed(error: ShimError, place: String) -> Error {
    Error::from(error).at(place)
}

/// Writes bytes to the beginning of a buffer and zeros after them.
fn put(buffer: &Buffer, bytes: &[u8]) -> Result<()> {
    let mut target = buffer.write()?;
    let fits = bytes.len().min(target.len());
    let (head, tail) = target.split_at_mut(fits);
    head.copy_from_slice(&bytes[..fits]);
    tail.fill(0);
    Ok(())
}

/// Position and scope of a run.
struct RunScope<'a> {
    feed: &'a Feed<'a>,
    rows: Rows,
    position: usize,
    point: EntryPoint,
    segments: &'a Segments,
}

impl<'a> RunScope<'a> {
    fn of(feed: &'a Feed<'a>, rows: Rows, loaded: &'a LoadedEntry) -> Self {
        RunScope {
            feed,
            rows,
            position: feed.chunk.first + rows.offset,
            point: loaded.interface.point,
            segments: &loaded.interface.segments,
        }
    }

    /// Returns the reference's tensor for a role, with all rows of the entry point. Rows after the
    /// valid ones are zero.
    fn input(&self, role: &Role) -> Result<Input> {
        let step = Step { first: self.position as u64, rows: self.rows.rows as u64, of: self.point.rows };
        if let Some(array) =
            self.feed.trace.step_input(role, step, self.feed.assets).map_err(reference_fault)?
        {
            return Ok(match array.dtype().is_float() {
                true => Input::Floats(array.into_floats()),
                false => Input::Indices(array.integers().to_vec()),
            });
        }
        let all = self.point.rows as usize;
        let values = match role {
            Role::Hidden => {
                let cut = self.segments.stream_enters(self.feed.graph.layers()).unwrap_or(0);
                padded(self.hidden(cut as usize), self.rows.rows, all)
            }
            Role::PerLayer { first, layers } => {
                let layers = *first as usize..(*first + *layers) as usize;
                layers.flat_map(|layer| padded(self.per_layer(layer), self.rows.rows, all)).collect()
            }
            _ => Vec::new(),
        };
        Ok(Input::Floats(values))
    }

    fn hidden(&self, cut: usize) -> &[f32] {
        self.feed.chunk.hidden_rows(cut, self.rows.offset, self.rows.rows)
    }

    fn per_layer(&self, layer: usize) -> &[f32] {
        let layers = self.feed.graph.layers() as usize;
        self.feed.chunk.per_layer_rows(layer, layers, self.rows.offset, self.rows.rows)
    }

    /// Writes the rows of all positions before `end` to their slots, and zeros elsewhere.
    fn fill_state(&self, memory: &mut StateMemory, state: StateId, port: &Port, end: usize) -> Result<()> {
        let encoding = encoding_of(port).ok_or_else(|| unusable(port))?;
        let (capacity, row) = row_of(port, encoding.element.bytes())?;
        let mut target = memory.buffer.write()?;
        let used = memory.used.min(capacity) * row;
        target[..used].fill(0);
        let start = end.saturating_sub(capacity);
        let rows = encode_floats(encoding, self.feed.trace.state_rows(state, start, end))
            .ok_or_else(|| unusable(port))?;
        for (position, bytes) in (start..end).zip(rows.chunks_exact(row)) {
            let slot = position % capacity;
            target[slot * row..(slot + 1) * row].copy_from_slice(bytes);
        }
        memory.used = memory.used.max(end);
        Ok(())
    }

    /// Returns the position before which rows of a state exist when the run starts. They include
    /// the run's own rows if an earlier shard writes the state.
    fn known_rows(&self, entry: &LoadedEntry, state: StateId) -> usize {
        let writes = |role: &Role, direction: Direction| match role {
            Role::State { state: existing } => *existing == state && direction == Direction::State,
            Role::StateRows { state: existing } => *existing == state,
            _ => false,
        };
        let ports = &entry.interface.ports;
        match ports.iter().any(|port| writes(&port.role, port.direction)) {
            true => self.position,
            false => self.position + self.rows.rows,
        }
    }

    fn written_state(&self, state: StateId, port: &Port, bytes: &[u8]) -> Result<Observed> {
        let encoding = encoding_of(port).ok_or_else(|| unusable(port))?;
        let (capacity, row) = row_of(port, encoding.element.bytes())?;
        let rows = self.slots(capacity).flat_map(|slot| bytes[slot * row..(slot + 1) * row].iter().copied());
        let rows = decode(encoding, &rows.collect::<Vec<u8>>()).ok_or_else(|| unusable(port))?;
        Ok(self.state(state, rows))
    }

    /// Returns the slots of a state for the rows of the run.
    fn slots(&self, capacity: usize) -> impl Iterator<Item = usize> + use<> {
        (self.position..self.position + self.rows.rows).map(move |position| position % capacity)
    }

    fn state(&self, state: StateId, got: Vec<f32>) -> Observed {
        let declared = self.feed.graph.states.get(state.0 as usize);
        let end = self.position + self.rows.rows;
        Observed {
            what: format!("state {}", declared.map_or("?", |state| state.name.as_str())),
            layer: declared.map(|state| state.layer),
            cut: None,
            width: declared.map_or(1, |state| state.width as usize),
            got,
            wanted: self.feed.trace.state_rows(state, self.position, end).to_vec(),
            compiled: None,
        }
    }

    /// Returns a result with the reference's, or `None` for taps that do not belong to a layer.
    /// `actual` are all values, in the shape of the port.
    fn output(&self, role: &Role, shape: &[u64], actual: &[f32]) -> Option<Observed> {
        let elements = shape.iter().product::<u64>() as usize;
        let all = self.point.rows as usize;
        let valid = self.rows.rows;
        // The valid rows of each block.
        let got = |blocks: usize| -> Vec<f32> {
            let width = elements / (blocks * all).max(1);
            let blocks = actual.chunks_exact((all * width).max(1));
            blocks.flat_map(|block| block[..valid * width].iter().copied()).collect()
        };
        let graph = self.feed.graph;
        let stream = |cut: usize, layer: Option<u32>, what: String| Observed {
            what,
            layer,
            cut: Some(cut),
            width: graph.hidden as usize,
            got: got(1),
            wanted: self.hidden(cut).to_vec(),
            compiled: None,
        };
        let plain = |what: &str, width: usize, got: Vec<f32>, wanted: Vec<f32>| Observed {
            what: what.to_owned(),
            layer: None,
            cut: None,
            width,
            got,
            wanted,
            compiled: None,
        };
        Some(match role {
            Role::Hidden => {
                let end = self.segments.stream_leaves().unwrap_or(0);
                stream(end as usize, end.checked_sub(1), "hidden".to_owned())
            }
            Role::Tap { name } if name == ComponentKind::Embed.name() => stream(0, None, name.clone()),
            Role::Tap { name } => {
                let layer = name.strip_prefix("layer.")?.parse::<u32>().ok()?;
                stream(layer as usize + 1, Some(layer), name.clone())
            }
            Role::PerLayer { first, layers } => {
                let wanted = *first as usize..(*first + *layers) as usize;
                let wanted = wanted.flat_map(|layer| self.per_layer(layer).iter().copied()).collect();
                plain("per-layer", graph.per_layer_width as usize, got(*layers as usize), wanted)
            }
            Role::Logits => {
                let wanted = self.feed.chunk.logits_rows(self.rows.offset, valid).to_vec();
                let what = if self.feed.uncapped { "logits before their soft-cap" } else { "logits" };
                plain(what, graph.vocabulary as usize, got(1), wanted)
            }
            Role::Embedding => {
                plain("embedding", elements, actual.to_vec(), self.feed.chunk.embedding.clone())
            }
            Role::StateRows { state } => self.state(*state, got(1)),
            Role::SoftRows => {
                let width = shape.last().map_or(1, |width| *width as usize);
                let wanted = self.feed.chunk.soft_rows.clone();
                // A tower may pool several rows into one, so the result is cut to the length of the
                // reference's.
                let got = actual.get(..wanted.len()).unwrap_or(actual).to_vec();
                plain("soft rows", width, got, wanted)
            }
            _ => return None,
        })
    }

    /// Runs a graph on the values that the shard got, and returns its results by their names.
    fn computed(&self, evaluator: &Evaluator, loaded: &LoadedEntry) -> Result<BTreeMap<String, Vec<f32>>> {
        let entry = evaluator.entry();
        let (bindings, mut states) = self.bound(entry, loaded)?;
        let outputs =
            evaluator.run(&bindings, &mut states, self.rows.rows as u64).map_err(reference_fault)?;
        let mut twins: Vec<Observed> = Vec::new();
        for (role, array) in outputs.iter() {
            let shape: Vec<u64> = array.shape().iter().map(|&extent| extent as u64).collect();
            twins.extend(self.output(role, &shape, &array.floats()));
        }
        for (_, role) in &entry.outputs {
            if let Role::State { state } = role
                && let Some(existing) = states.get(*state)
            {
                let (capacity, width) = (existing.shape()[0], existing.shape()[1]);
                let values = existing.floats();
                let rows = self.slots(capacity).flat_map(|slot| &values[slot * width..(slot + 1) * width]);
                twins.push(self.state(*state, rows.copied().collect()));
            }
        }
        Ok(twins.into_iter().map(|twin| (twin.what, twin.got)).collect())
    }

    /// Returns the reference's values for every input of a graph.
    fn bound(&self, entry: &EntryGraph, loaded: &LoadedEntry) -> Result<(Bindings, States)> {
        let mut bindings = Bindings::new();
        let mut states = States::none();
        for (tensor, role) in &entry.inputs {
            let tensor = entry.tensor(*tensor);
            let floats = |values: Vec<f32>| -> Result<Array> {
                let array = Array::floats_of(&tensor.shape, values)?;
                Ok(match tensor.encoding() {
                    Some(encoding) => array.encoded(encoding),
                    None => array,
                })
            };
            if let Role::State { state } = role {
                let values = self.state_values(*state, &tensor.shape, self.known_rows(loaded, *state));
                states.set(*state, floats(values).map_err(reference_fault)?);
                continue;
            }
            let array = match self.input(role)? {
                Input::Floats(values) => floats(values),
                Input::Indices(values) => Array::integers_of(&tensor.shape, values),
            };
            bindings.bind(role.clone(), array.map_err(reference_fault)?);
        }
        Ok((bindings, states))
    }

    /// Runs the graph that the shard was compiled from on the same values. Computed values that
    /// left the device are replaced by the device's values.
    fn own(
        &self,
        evaluator: &Evaluator,
        loaded: &LoadedEntry,
        left: &[(&Role, Vec<f32>)],
    ) -> Result<Vec<Own>> {
        let entry = evaluator.entry();
        let (bindings, mut states) = self.bound(entry, loaded)?;
        let mut found = Vec::new();
        let mut correct = |tensor: TensorId, computed: &Array| {
            let (_, role) = entry.outputs.iter().find(|(output, _)| *output == tensor)?;
            let (_, got) = left.iter().find(|(left, _)| *left == role)?;
            let width = computed.shape().last().copied().unwrap_or(1).max(1);
            let all = got.len() / width;
            let rows: Vec<usize> = match role {
                Role::State { .. } => self.slots(all).collect(),
                // A tower's values may have several rows per row of the entry point, or one row for
                // several.
                _ => (0..(self.rows.rows * all).div_ceil(self.point.rows as usize)).collect(),
            };
            let mut values = computed.floats().into_owned();
            if values.len() != got.len() {
                return None;
            }
            let mut own = Own { role: role.clone(), width, got: Vec::new(), computed: Vec::new() };
            for row in rows {
                let range = row * width..(row + 1) * width;
                own.got.extend_from_slice(got.get(range.clone())?);
                own.computed.extend_from_slice(values.get(range.clone())?);
                values[range.clone()].copy_from_slice(&got[range]);
            }
            found.push(own);
            let shape: Vec<u64> = computed.shape().iter().map(|&extent| extent as u64).collect();
            Array::floats_of(&shape, values).ok()
        };
        evaluator
            .run_corrected(&bindings, &mut states, self.rows.rows as u64, &mut correct)
            .map_err(reference_fault)?;
        Ok(found)
    }

    /// Returns a whole state with the rows of all positions before `end` in their slots.
    fn state_values(&self, state: StateId, shape: &[u64], end: usize) -> Vec<f32> {
        let [capacity, width] = shape[..] else { return Vec::new() };
        let (capacity, width) = (capacity as usize, width as usize);
        let mut values = vec![0.0; capacity * width];
        let start = end.saturating_sub(capacity);
        let rows = self.feed.trace.state_rows(state, start, end);
        for (position, row) in (start..end).zip(rows.chunks_exact(width.max(1))) {
            let slot = position % capacity;
            values[slot * width..(slot + 1) * width].copy_from_slice(row);
        }
        values
    }
}

/// Returns the number of rows of a state, and the bytes of a row.
fn row_of(port: &Port, size: u64) -> Result<(usize, usize)> {
    match port.shape[..] {
        [capacity, width] if capacity > 0 && width > 0 => Ok((capacity as usize, (width * size) as usize)),
        _ => Err(unusable(port)),
    }
}

/// Appends rows of zeros to `valid` rows, up to `all` rows.
fn padded(rows: &[f32], valid: usize, all: usize) -> Vec<f32> {
    let width = rows.len() / valid.max(1);
    let mut padded = rows.to_vec();
    padded.resize(all * width, 0.0);
    padded
}
