//! Runs a model from its embedding to its output, over all sequences.

use std::collections::BTreeMap;
use std::sync::Arc;

use shardwright_graph::{
    Asset, ComponentKind, Encodings, EntryGraph, EntryOptions, EntryPoint, Graph, Role, Segment, StateId,
    TensorId,
};
use shardwright_vocabulary::{EntryKind, Error, ErrorKind, Part, Result, Watch};

use crate::engine::Engine;
use crate::part::{Given, LoadedPart};

/// A forward pass of sequences. A clone continues from the same place, and shares unchanged data.
#[derive(Clone)]
pub struct Pass<'p> {
    pub(crate) engine: Engine,
    pub(crate) sequences: &'p [Vec<u32>],
    pub(crate) point: EntryPoint,
    /// By sequence, the residual stream, `[T, H]`.
    streams: Vec<Arc<Vec<f32>>>,
    /// By sequence, the per-layer inputs, `[layers, T, P]`.
    pub(crate) per_layer: Vec<Arc<Vec<f32>>>,
    /// By sequence, the rows of states that a later layer reads.
    pub(crate) states: Vec<BTreeMap<StateId, Arc<Vec<f32>>>>,
    pub(crate) parts: Vec<Segment>,
    /// The residual stream that each part read, by part and sequence. `None` if it is not recorded.
    pub(crate) read: Option<Vec<Vec<Arc<Vec<f32>>>>>,
    /// The last layer that reads each state.
    last_readers: BTreeMap<StateId, u32>,
}

/// A part of a model, compiled and loaded. Its weights are in memory until it is dropped.
pub struct Loaded {
    segment: Segment,
    part: LoadedPart,
}

/// A value that is shown.
#[derive(Clone, Copy, Debug)]
pub struct Looked<'l> {
    /// Index of the sequence.
    pub sequence: usize,
    /// Role of the value: a tap named by its [`range_key`](shardwright_graph::range_key), or an
    /// output.
    pub role: &'l Role,
    /// Values of all its rows, dense.
    pub values: &'l [f32],
    rows: usize,
}

impl<'l> Looked<'l> {
    /// Checks whether the value is the logits.
    pub fn is_logits(&self) -> bool {
        *self.role == Role::Logits
    }

    /// Returns the key of a tap.
    pub fn key(&self) -> Option<&'l str> {
        match self.role {
            Role::Tap { name } => Some(name),
            _ => None,
        }
    }

    /// Returns the rows: one for each token, or a single one for all.
    pub fn rows(&self) -> std::slice::ChunksExact<'l, f32> {
        self.values.chunks_exact((self.values.len() / self.rows.max(1)).max(1))
    }
}

impl<'p> Pass<'p> {
    /// Begins a pass. Each sequence runs at once from its first token on. This needs memory for the
    /// longest sequence's tensors in one layer, and for all sequences' streams and per-layer
    /// inputs.
    ///
    /// # Errors
    /// [`ErrorKind::Argument`] without sequences, or if one is empty or longer than the context.
    pub fn new(graph: &Graph, engine: &Engine, sequences: &'p [Vec<u32>]) -> Result<Self> {
        let longest = sequences.iter().map(Vec::len).max().unwrap_or(0) as u64;
        let shortest = sequences.iter().map(Vec::len).min().unwrap_or(0);
        if shortest == 0 || longest > graph.context {
            let message = format!(
                "{} sequences of {shortest} to {longest} tokens do not fit a model with context {}",
                sequences.len(),
                graph.context
            );
            return Err(Error::argument(message)
                .with_help("pass at least one sequence, none of them empty or longer than the context"));
        }
        let kind = if graph.is_generative() { EntryKind::Decode } else { EntryKind::Encode };
        let point = EntryPoint { kind, rows: longest, context: longest, largest_rows: longest };
        let mut parts = Vec::new();
        for component in &graph.components {
            match component.layers {
                0 => parts.push(Segment { component: component.kind, layers: (0, 0) }),
                layers => parts.extend(
                    (0..layers)
                        .map(|layer| Segment { component: component.kind, layers: (layer, layer + 1) }),
                ),
            }
        }
        let mut last_readers = BTreeMap::new();
        for layer in 0..graph.layers() {
            let donor = graph.donor_of(layer).unwrap_or(layer);
            for (index, _) in graph.states.iter().enumerate().filter(|(_, state)| state.layer == donor) {
                last_readers.insert(StateId(index as u32), layer);
            }
        }
        Ok(Pass {
            engine: engine.clone(),
            sequences,
            point,
            streams: vec![Arc::default(); sequences.len()],
            per_layer: vec![Arc::default(); sequences.len()],
            states: vec![BTreeMap::new(); sequences.len()],
            parts,
            read: None,
            last_readers,
        })
    }

    /// Begins a pass that can be run backwards, see [`Backward`](crate::Backward). This also needs
    /// memory for the streams between all parts and the states of all layers.
    ///
    /// # Errors
    /// As [`Pass::new`].
    pub fn recorded(graph: &Graph, engine: &Engine, sequences: &'p [Vec<u32>]) -> Result<Self> {
        Ok(Pass { read: Some(Vec::new()), ..Pass::new(graph, engine, sequences)? })
    }

    /// Returns the parts of the model in the order in which they run.
    pub fn parts(&self) -> Vec<Segment> {
        self.parts.clone()
    }

    /// Runs all sequences through the next part. `graph` is the model, or differs from it only in
    /// the formats of weights. `look` selects the part's tensors to show. Outputs of the model are
    /// always shown.
    ///
    /// # Errors
    /// If the shim refuses or fails. [`ErrorKind::Cancelled`] if the watch cancels it.
    pub fn run(
        &mut self,
        part: &Segment,
        graph: &Graph,
        look: &dyn Fn(&EntryGraph, TensorId) -> bool,
        show: &mut dyn FnMut(Looked<'_>),
        watch: &mut dyn Watch,
    ) -> Result<()> {
        let mut watch = Part::new(watch, 0..1000);
        match self.load(part, graph, None, look, &mut watch.then(LOADED))? {
            Some(mut loaded) => {
                self.run_loaded(&mut loaded, &graph.assets, show, &mut watch.most_of_the_rest())
            }
            None => {
                self.read.iter_mut().for_each(|all| all.push(Vec::new()));
                Ok(())
            }
        }
    }

    /// Compiles and loads a part with the weights of `graph`, to be run once or many times. Returns
    /// `None` if it has no work in this kind of entry point. With `encodings`, the values it
    /// computes and the states it writes are encoded. Values exchanged with other parts stay f32.
    ///
    /// # Errors
    /// As [`Pass::run`]. Also if values cannot be encoded.
    pub fn load(
        &self,
        part: &Segment,
        graph: &Graph,
        encodings: Option<&Encodings<'_>>,
        look: &dyn Fn(&EntryGraph, TensorId) -> bool,
        watch: &mut dyn Watch,
    ) -> Result<Option<Loaded>> {
        let entry =
            graph.entry(part.component, part.layers.0..part.layers.1, self.point, EntryOptions::default())?;
        let Some(entry) = entry else { return Ok(None) };
        let loaded = self.engine.load(entry, graph, encodings, look, watch)?;
        Ok(Some(Loaded { segment: *part, part: loaded }))
    }

    /// Runs all sequences through a loaded part, which must be the next one. `assets` are the
    /// gathered tables of the model, in any formats.
    ///
    /// # Errors
    /// As [`Pass::run`].
    pub fn run_loaded(
        &mut self,
        loaded: &mut Loaded,
        assets: &[Asset],
        show: &mut dyn FnMut(Looked<'_>),
        watch: &mut dyn Watch,
    ) -> Result<()> {
        let Loaded { segment, part } = loaded;
        let read = self.read.is_some().then(|| self.streams.clone());
        for (index, ids) in self.sequences.iter().enumerate() {
            if watch.cancelled() {
                return Err(Error::new(ErrorKind::Cancelled, "the forward pass was cancelled"));
            }
            let done = index * 1000 / self.sequences.len().max(1);
            watch.progress(done as u32, &format!("running {segment}"));
            let given = Given {
                ids,
                assets,
                stream: &self.streams[index],
                per_layer: &self.per_layer[index],
                states: &self.states[index],
                gradients: &BTreeMap::new(),
            };
            let (mut stream, mut per_layer, mut states) = (None, None, Vec::new());
            part.run(&given, &mut |role, values, rows| match role {
                Role::Hidden => stream = Some(values.to_vec()),
                Role::PerLayer { .. } => per_layer = Some(values.to_vec()),
                Role::State { state } | Role::StateRows { state } => {
                    states.push((*state, Arc::new(values.to_vec())));
                }
                role => show(Looked { sequence: index, role, values, rows }),
            })?;
            let mut show_stream = |key: &Option<String>, values: &[f32]| {
                let role = key.as_ref().map(|name| Role::Tap { name: name.clone() });
                if let Some(role) = &role {
                    show(Looked { sequence: index, role, values, rows: ids.len() });
                }
            };
            show_stream(&part.entering, &self.streams[index]);
            if let Some(stream) = stream {
                show_stream(&part.leaving, &stream);
                self.streams[index] = Arc::new(stream);
            }
            if let Some(per_layer) = per_layer {
                self.per_layer[index] = Arc::new(per_layer);
            }
            // States that no later layer reads are dropped.
            let layer = segment.layers.1;
            let kept = &mut self.states[index];
            kept.extend(states);
            let is_read = |state: &StateId| self.last_readers.get(state).is_some_and(|last| *last >= layer);
            match segment.component {
                _ if read.is_some() => {}
                ComponentKind::Decoder => kept.retain(|state, _| is_read(state)),
                _ => kept.clear(),
            }
        }
        if let (Some(all), Some(read)) = (&mut self.read, read) {
            all.push(read);
        }
        Ok(())
    }
}

/// Progress when a part is loaded, in thousandths.
const LOADED: u32 = 100;
