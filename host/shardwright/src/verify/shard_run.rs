//! One shard alone: the reference's values into its ports, its results out of them.

use std::collections::BTreeMap;

use shardwright_build::graph::{ComponentKind, EntryPoint, Graph, Role, StateId};
use shardwright_build::reference::step::{Step, step_input};
use shardwright_build::shims::{Bound, Buffer, Direction, LoadedEntry, Port, ShimError};
use shardwright_runtime::ShardExecutor;

use super::reference_fault;
use super::trace::{Chunk, Trace};
use super::values::{Input, decode, encode, encode_floats, encoding_of};
use crate::{Error, ErrorKind, Result};

/// Bytes of outputs before a run. Rows that a run does not write must not pass for the last run's: in float these are NaN.
const UNWRITTEN: u8 = 0xff;

/// The memories of one shard, for all its entry points.
pub(crate) struct ShardMemory {
    /// What can be run.
    pub(crate) entries: Vec<LoadedEntry>,
    /// Per entry and binding; none for states.
    buffers: Vec<Vec<Option<Buffer>>>,
    states: BTreeMap<StateId, StateMemory>,
}

struct StateMemory {
    buffer: Buffer,
    /// Slots that hold anything but zeros.
    used: usize,
}

/// One result of a run beside what the reference has for it.
pub(crate) struct Observed {
    /// `hidden`, `layer.3`, `per-layer`, `logits`, `embedding`, `state layer.3.k`
    pub(crate) what: String,
    /// The layer it comes from, if from one.
    pub(crate) layer: Option<u32>,
    /// Which cut of the residual stream it is, if it is one.
    pub(crate) cut: Option<usize>,
    /// Values per row.
    pub(crate) width: usize,
    /// What the shard gave, `rows` rows (or `rows` for each layer).
    pub(crate) got: Vec<f32>,
    /// What the reference gave.
    pub(crate) wanted: Vec<f32>,
}

/// Which rows a run takes.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    /// From the beginning of the chunk.
    pub(crate) offset: usize,
    /// How many, at most the rows of the entry point.
    pub(crate) rows: usize,
}

impl ShardMemory {
    /// Allocates what the entry points of a shard bind.
    pub(crate) fn new(executor: &dyn ShardExecutor) -> Result<Self> {
        let entries = executor.entries().to_vec();
        let allocate = |bytes: u64, alignment: u64| -> Result<Buffer> {
            let buffer = executor.allocate(bytes, alignment)?;
            if buffer.length() < bytes || !buffer.is_mapped() {
                let what = format!("{bytes} bytes on {} cannot be seen by the host", executor.place());
                return Err(Error::new(ErrorKind::Shim, what)
                    .with_help("verify where memory can be mapped: on the CPU, or with another shim"));
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

    /// Runs an entry point on the reference's values and gives its results beside the reference's.
    pub(crate) fn run(
        &mut self,
        executor: &mut dyn ShardExecutor,
        entry: usize,
        graph: &Graph,
        trace: &Trace<'_, '_>,
        chunk: &Chunk,
        rows: Rows,
    ) -> Result<Vec<Observed>> {
        let position = chunk.first + rows.offset;
        let told = &self.entries[entry];
        let at = Place { graph, trace, chunk, rows, position, point: told.interface.point };
        let (component, layers) = (told.interface.component, told.interface.layers);
        for (binding, buffer) in told.bindings.iter().zip(&self.buffers[entry]) {
            let port = &binding.port;
            match (buffer, port.direction) {
                (Some(buffer), Direction::Input) => {
                    let input = at.input(&port.role, component, layers)?;
                    let bytes = encode(port, &input).ok_or_else(|| unusable(port))?;
                    put(buffer, &bytes)?;
                }
                (Some(buffer), _) => buffer.write()?.fill(UNWRITTEN),
                (None, _) => {
                    if let Some(state) = state_of(port)
                        && let Some(memory) = self.states.get_mut(&state)
                    {
                        at.fill_state(memory, state, port)?;
                    }
                }
            }
        }
        let mut bound = Vec::with_capacity(told.bindings.len());
        for (binding, buffer) in told.bindings.iter().zip(&self.buffers[entry]) {
            let state = state_of(&binding.port).and_then(|state| self.states.get(&state));
            let buffer = buffer.as_ref().or(state.map(|state| &state.buffer));
            bound.push(Bound::Buffer(buffer.ok_or_else(|| unusable(&binding.port))?));
        }
        executor.run(entry, rows.rows as u64, &mut bound, None).map_err(|error| {
            let place = executor.place();
            failed(error, format!("{place}: {} at position {position}", told.interface.name))
        })?;

        let mut observed = Vec::new();
        for (binding, buffer) in told.bindings.iter().zip(&self.buffers[entry]) {
            let port = &binding.port;
            match (buffer, port.direction) {
                (Some(buffer), Direction::Output) => {
                    let bytes = buffer.read()?;
                    observed.extend(at.output(port, &bytes, component, layers)?);
                }
                (None, Direction::State) => {
                    if let Some(state) = state_of(port)
                        && let Some(memory) = self.states.get_mut(&state)
                    {
                        memory.used = memory.used.max(position + rows.rows);
                        let bytes = memory.buffer.read()?;
                        observed.push(at.written_state(state, port, &bytes)?);
                    }
                }
                _ => {}
            }
        }
        Ok(observed)
    }
}

/// The state a port is as a whole.
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
            "port `{}` ({}) holds {}, which verification cannot bind",
            port.name,
            port.role.name(),
            port.dtype
        ),
    )
    .with_help("report this: verification is to know every port a graph can have")
}

fn failed(error: ShimError, place: String) -> Error {
    let error = Error::from(error);
    let help = error.help().map(str::to_owned);
    let kind = error.kind();
    let told = Error::new(kind, format!("{place}: {error}"));
    match help {
        Some(help) => told.with_help(help),
        None => told,
    }
}

/// Puts bytes to the beginning of a buffer and zeros behind them.
fn put(buffer: &Buffer, bytes: &[u8]) -> Result<()> {
    let mut target = buffer.write()?;
    let fits = bytes.len().min(target.len());
    let (head, tail) = target.split_at_mut(fits);
    head.copy_from_slice(&bytes[..fits]);
    tail.fill(0);
    Ok(())
}

/// Where a run stands.
struct Place<'a> {
    graph: &'a Graph,
    trace: &'a Trace<'a, 'a>,
    chunk: &'a Chunk,
    rows: Rows,
    position: usize,
    point: EntryPoint,
}

impl Place<'_> {
    /// What the reference binds to a role, with all rows of the entry point; those beyond the valid ones are zero.
    fn input(&self, role: &Role, component: ComponentKind, layers: (u32, u32)) -> Result<Input> {
        let step = Step { first: self.position as u64, rows: self.rows.rows as u64, of: self.point.rows };
        let tokens = &self.trace.ids()[self.position..self.position + self.rows.rows];
        if let Some(array) = step_input(role, step, tokens, &self.graph.assets).map_err(reference_fault)? {
            return Ok(match array.dtype().is_float() {
                true => Input::Floats(array.into_floats()),
                false => Input::Indices(array.integers().to_vec()),
            });
        }
        let all = self.point.rows as usize;
        let values = match role {
            Role::Hidden => {
                let cut = match component {
                    ComponentKind::Decoder => layers.0 as usize,
                    ComponentKind::Head | ComponentKind::Pooling => self.graph.layers() as usize,
                    ComponentKind::Embed | ComponentKind::PerLayerInput => 0,
                };
                padded(self.chunk.hidden_rows(cut, self.rows.offset, self.rows.rows), self.rows.rows, all)
            }
            Role::PerLayer { first, layers } => {
                let layers = *first as usize..(*first + *layers) as usize;
                layers.flat_map(|layer| padded(self.per_layer(layer), self.rows.rows, all)).collect()
            }
            _ => Vec::new(),
        };
        Ok(Input::Floats(values))
    }

    fn per_layer(&self, layer: usize) -> &[f32] {
        let layers = self.graph.layers() as usize;
        self.chunk.per_layer_rows(layer, layers, self.rows.offset, self.rows.rows)
    }

    /// Puts the rows of all earlier positions to their slots, and zeros elsewhere.
    fn fill_state(&self, memory: &mut StateMemory, state: StateId, port: &Port) -> Result<()> {
        let encoding = encoding_of(port).ok_or_else(|| unusable(port))?;
        let (capacity, row) = row_of(port, encoding.dtype().bytes())?;
        let mut target = memory.buffer.write()?;
        let used = memory.used.min(capacity) * row;
        target[..used].fill(0);
        let start = self.position.saturating_sub(capacity);
        let rows = encode_floats(encoding, self.trace.state_rows(state, start, self.position));
        for (position, bytes) in (start..self.position).zip(rows.chunks_exact(row)) {
            let slot = position % capacity;
            target[slot * row..(slot + 1) * row].copy_from_slice(bytes);
        }
        memory.used = memory.used.max(self.position);
        Ok(())
    }

    fn written_state(&self, state: StateId, port: &Port, bytes: &[u8]) -> Result<Observed> {
        let encoding = encoding_of(port).ok_or_else(|| unusable(port))?;
        let (capacity, row) = row_of(port, encoding.dtype().bytes())?;
        let end = self.position + self.rows.rows;
        let slots = (self.position..end).map(|position| position % capacity);
        let rows = slots.flat_map(|slot| bytes[slot * row..(slot + 1) * row].iter().copied());
        Ok(self.state(state, decode(encoding, &rows.collect::<Vec<u8>>())))
    }

    fn state(&self, state: StateId, got: Vec<f32>) -> Observed {
        let declared = self.graph.states.get(state.0 as usize);
        let end = self.position + self.rows.rows;
        Observed {
            what: format!("state {}", declared.map_or("?", |state| state.name.as_str())),
            layer: declared.map(|state| state.layer),
            cut: None,
            width: declared.map_or(1, |state| state.width as usize),
            got,
            wanted: self.trace.state_rows(state, self.position, end).to_vec(),
        }
    }

    /// A result beside the reference's; nothing for taps that no layer gives.
    fn output(
        &self,
        port: &Port,
        bytes: &[u8],
        component: ComponentKind,
        layers: (u32, u32),
    ) -> Result<Option<Observed>> {
        let encoding = encoding_of(port).ok_or_else(|| unusable(port))?;
        let elements = port.shape.iter().product::<u64>() as usize;
        let size = encoding.dtype().bytes() as usize;
        let all = self.point.rows as usize;
        let valid = self.rows.rows;
        let given = decode(encoding, bytes.get(..elements * size).unwrap_or_default());
        // Of each block of all rows the valid ones.
        let got = |blocks: usize| -> Vec<f32> {
            let width = elements / (blocks * all).max(1);
            let blocks = given.chunks_exact((all * width).max(1));
            blocks.flat_map(|block| block[..valid * width].iter().copied()).collect()
        };
        let stream = |cut: usize, layer: Option<u32>, what: String| Observed {
            what,
            layer,
            cut: Some(cut),
            width: self.graph.hidden as usize,
            got: got(1),
            wanted: self.chunk.hidden_rows(cut, self.rows.offset, valid).to_vec(),
        };
        let plain = |what: &str, width: usize, got: Vec<f32>, wanted: Vec<f32>| Observed {
            what: what.to_owned(),
            layer: None,
            cut: None,
            width,
            got,
            wanted,
        };
        Ok(Some(match &port.role {
            Role::Hidden => match component {
                ComponentKind::Decoder => {
                    stream(layers.1 as usize, layers.1.checked_sub(1), "hidden".to_owned())
                }
                _ => stream(0, None, "hidden".to_owned()),
            },
            Role::Tap { name } => {
                let layer = name.strip_prefix("layer.").and_then(|layer| layer.parse::<u32>().ok());
                let Some(layer) = layer else { return Ok(None) };
                stream(layer as usize + 1, Some(layer), name.clone())
            }
            Role::PerLayer { first, layers } => {
                let wanted = *first as usize..(*first + *layers) as usize;
                let wanted = wanted.flat_map(|layer| self.per_layer(layer).iter().copied()).collect();
                plain("per-layer", self.graph.per_layer_width as usize, got(*layers as usize), wanted)
            }
            Role::Logits => {
                let wanted = self.chunk.logits_rows(self.rows.offset, valid).to_vec();
                plain("logits", self.graph.vocabulary as usize, got(1), wanted)
            }
            Role::Embedding => plain("embedding", elements, given, self.chunk.embedding.clone()),
            Role::StateRows { state } => self.state(*state, got(1)),
            _ => return Ok(None),
        }))
    }
}

/// Rows of a state and bytes of one.
fn row_of(port: &Port, size: u64) -> Result<(usize, usize)> {
    match port.shape[..] {
        [capacity, width] if capacity > 0 && width > 0 => Ok((capacity as usize, (width * size) as usize)),
        _ => Err(unusable(port)),
    }
}

/// `valid` rows followed by rows of zeros, `all` together.
fn padded(rows: &[f32], valid: usize, all: usize) -> Vec<f32> {
    let width = rows.len() / valid.max(1);
    let mut padded = rows.to_vec();
    padded.resize(all * width, 0.0);
    padded
}
