use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use shardwright_graph::{
    ComponentKind, Encodings, EntryGraph, EntryOptions, EntryPoint, Graph, NodeVerdict, Op, Role,
    decompose_all, encode, hidden_key, legalise, prepared,
};
use shardwright_vocabulary::{At, Encoding, EntryKind, Error, ErrorKind, Result};

use crate::evaluator::place_of;
use crate::ops::layout;
use crate::states::state_encodings;
use crate::step::{Features, Step, feature_input, slots, step_input, unfit_rows, with_soft_rows};
use crate::{Array, Bindings, Evaluator, States, Weights};

/// The form in which the driver runs every entry graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Form {
    /// Semantic operations as the model was built.
    #[default]
    Semantic,
    /// Primitives and state updates only.
    Decomposed,
    /// Attention and rotation use tables, and the driver copies new state rows to their slots. The
    /// rest is semantic, including softmaxes and rotations. This is the form for an accelerator
    /// with fused operations.
    HalfWay,
    /// Primitives only. The driver copies new state rows to their slots.
    ByRuntime,
}

/// The driver's way of cutting a model and a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrangement {
    /// Capacity of linear states in tokens.
    pub context: u64,
    /// Rows of the prefill, encode and many-row decode entries. Longer inputs run in chunks, except
    /// in encoders.
    pub rows: u64,
    /// Layers before which the decoder is cut. Ascending, without 0 and the layer count.
    pub cuts: Vec<u32>,
    pub form: Form,
}

impl Arrangement {
    /// Returns an arrangement with one shard, semantic, that runs everything at once.
    pub fn whole(context: u64) -> Self {
        Arrangement { context, rows: context, cuts: Vec::new(), form: Form::Semantic }
    }
}

/// States and position of one sequence.
#[derive(Clone, Debug)]
pub struct Sequence {
    pub states: States,
    /// Position of the next row.
    pub position: u64,
    /// Rows that replace embedding rows, by position. Ids at those positions are placeholders.
    pub soft: BTreeMap<u64, Vec<f32>>,
}

impl Sequence {
    fn of(states: States) -> Self {
        Sequence { states, position: 0, soft: BTreeMap::new() }
    }
}

/// All results of a run over rows, valid rows only, in their encodings.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// `[T, H]` each: the first layer's input, then the output of every layer. Without taps, only
    /// the output of the last layer of every shard.
    pub hidden: Vec<Array>,
    /// `[layers, T, P]`: the per-layer inputs, if the model has them.
    pub per_layer: Option<Array>,
    /// `[T, V]`: the logits.
    pub logits: Option<Array>,
    /// `[D]`: the sentence vector.
    pub embedding: Option<Array>,
    /// `[_, H]`: the output of a tower for the features of one picture or clip.
    pub soft_rows: Option<Array>,
    /// Named taps. Taps with a row axis are cut to the valid rows.
    pub taps: BTreeMap<String, Array>,
}

/// A whole model on the plain evaluator, cut and chunked as arranged: the oracle for shims and
/// runtimes.
///
/// Entry points are built on first use and cached.
pub struct ReferenceModel<'g> {
    graph: &'g Graph,
    arrangement: Arrangement,
    shards: Vec<Range<u32>>,
    /// Encodings of activations and states. `None` leaves them in f32.
    encodings: Option<Encodings<'g>>,
    /// Encoding of each state, in the order of their ids.
    state_encodings: Vec<Encoding>,
    evaluators: Mutex<HashMap<Key, Option<Arc<Evaluator>>>>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    component: ComponentKind,
    layers: Range<u32>,
    point: EntryPoint,
    taps: bool,
}

impl<'g> ReferenceModel<'g> {
    /// Creates a model in an arrangement, with activations and states in f32. Its weights are the
    /// graph's, quantised or not.
    pub fn new(graph: &'g Graph, arrangement: Arrangement) -> Result<Self> {
        Self::arranged(graph, arrangement, None)
    }

    /// Like [`ReferenceModel::new`], but with encoded activations and states: the expected results
    /// of a quantised graph.
    ///
    /// `graph` contains the quantised weights. Every entry graph is converted to the arrangement's
    /// form and then encoded, so the steps of a decomposed operation have their own encodings.
    /// Between components and shards, a tensor is converted at the reader's port if the writer's
    /// encoding differs. Ports that `encodings` names have that encoding in every entry graph.
    pub fn new_encoded(graph: &'g Graph, arrangement: Arrangement, encodings: Encodings<'g>) -> Result<Self> {
        Self::arranged(graph, arrangement, Some(encodings))
    }

    fn arranged(
        graph: &'g Graph,
        arrangement: Arrangement,
        encodings: Option<Encodings<'g>>,
    ) -> Result<Self> {
        let layers = graph.layers();
        let mut shards = Vec::new();
        let mut start = 0;
        for cut in arrangement.cuts.iter().copied().chain([layers]) {
            if cut <= start || cut > layers {
                let cuts = &arrangement.cuts;
                let message = format!("cuts {cuts:?} do not ascend strictly between 0 and {layers} layers");
                return Err(Error::argument(message));
            }
            shards.push(start..cut);
            start = cut;
        }
        let state_encodings = match &encodings {
            Some(encodings) => state_encodings(graph, encodings)?,
            None => vec![Encoding::F32; graph.states.len()],
        };
        let evaluators = Mutex::default();
        Ok(ReferenceModel { graph, arrangement, shards, encodings, state_encodings, evaluators })
    }

    pub fn graph(&self) -> &'g Graph {
        self.graph
    }

    pub fn arrangement(&self) -> &Arrangement {
        &self.arrangement
    }

    /// Returns the entry point with `rows` rows in this arrangement.
    pub fn point(&self, kind: EntryKind, rows: u64) -> EntryPoint {
        let context = if kind == EntryKind::Encode { rows } else { self.arrangement.context };
        EntryPoint { kind, rows, context, largest_rows: self.arrangement.rows }
    }

    /// Starts an empty sequence.
    pub fn start(&self) -> Sequence {
        let point = self.point(EntryKind::Decode, self.arrangement.rows);
        Sequence::of(States::with_encodings(self.graph, &point, &self.state_encodings))
    }

    /// Fills the states with `ids`, the next tokens of the sequence.
    pub fn prefill(&self, sequence: &mut Sequence, ids: &[u32]) -> Result<()> {
        for chunk in ids.chunks(self.chunk_rows()) {
            self.run(EntryKind::Prefill, self.arrangement.rows, sequence, chunk, false, None)?;
        }
        Ok(())
    }

    /// Runs `ids`, the next tokens of the sequence, through every layer. With `taps`, the trace has
    /// all layers and named taps.
    pub fn decode(&self, sequence: &mut Sequence, ids: &[u32], taps: bool) -> Result<Trace> {
        if let [id] = ids {
            return self.run(EntryKind::Decode, 1, sequence, &[*id], taps, None);
        }
        let mut traces = Vec::new();
        for chunk in ids.chunks(self.chunk_rows()) {
            traces.push(self.run(EntryKind::Decode, self.arrangement.rows, sequence, chunk, taps, None)?);
        }
        Trace::joined(traces)
    }

    /// Runs an encoder over all of `ids` at once.
    pub fn encode(&self, ids: &[u32], taps: bool) -> Result<Trace> {
        if ids.is_empty() {
            return Err(no_tokens());
        }
        let mut sequence = Sequence::of(States::none());
        self.run(EntryKind::Encode, self.arrangement.rows, &mut sequence, ids, taps, None)
    }

    /// Runs a tower over the features of one picture or clip, in one entry point.
    pub fn soft_rows(&self, features: &Features<'_>, taps: bool) -> Result<Trace> {
        let (rows, limit) = (features.rows(self.graph), self.arrangement.rows);
        if rows == 0 || rows > limit {
            return Err(unfit_rows(rows, limit));
        }
        let mut run = Run { taps, ..self.over(features, limit, None) };
        run.tower()?;
        Ok(run.trace)
    }

    /// Returns every layer and tap of a new sequence or text.
    pub fn trace(&self, ids: &[u32]) -> Result<Trace> {
        if self.graph.is_generative() {
            self.decode(&mut self.start(), ids, true)
        } else {
            self.encode(ids, true)
        }
    }

    /// Returns the logits after each of `ids`, `[T, V]`.
    pub fn logits(&self, ids: &[u32]) -> Result<Array> {
        let trace = self.decode(&mut self.start(), ids, false)?;
        trace.logits.ok_or_else(|| no_component(ComponentKind::Head))
    }

    /// Returns the sentence vector of `ids`.
    pub fn embedding(&self, ids: &[u32]) -> Result<Vec<f32>> {
        let trace = self.encode(ids, false)?;
        trace.embedding.map(Array::into_floats).ok_or_else(|| no_component(ComponentKind::Pooling))
    }

    /// Returns the `count` most likely next tokens, chosen greedily: prefill over all ids except
    /// the last, then one row at a time. The lowest id wins among equal logits.
    pub fn greedy(&self, ids: &[u32], count: usize) -> Result<Vec<u32>> {
        self.greedy_in(&mut self.start(), ids, count)
    }

    /// Like [`ReferenceModel::greedy`], but continues a sequence, with its soft rows.
    pub fn greedy_in(&self, sequence: &mut Sequence, ids: &[u32], count: usize) -> Result<Vec<u32>> {
        let (&last, before) = ids.split_last().ok_or_else(no_tokens)?;
        self.prefill(sequence, before)?;
        let mut next = last;
        let mut chosen = Vec::with_capacity(count);
        for _ in 0..count {
            let trace = self.decode(sequence, &[next], false)?;
            let logits = trace.logits.ok_or_else(|| no_component(ComponentKind::Head))?;
            next = argmax(&logits.floats());
            chosen.push(next);
        }
        Ok(chosen)
    }

    /// Returns the negative log-likelihood, in nats, of each of `ids` except the first, given the
    /// preceding ids.
    pub fn negative_log_likelihoods(&self, ids: &[u32]) -> Result<Vec<f64>> {
        let Some((_, targets)) = ids.split_first() else { return Err(no_tokens()) };
        if targets.is_empty() {
            return Ok(Vec::new());
        }
        let logits = self.logits(&ids[..targets.len()])?;
        let vocabulary = logits.shape()[1];
        let logits = logits.floats();
        let of = |(row, &target): (&[f32], &u32)| {
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = row.iter().map(|&x| (f64::from(x) - f64::from(largest)).exp()).sum();
            let logit = row.get(target as usize).copied().unwrap_or(f32::NEG_INFINITY);
            f64::from(largest) + sum.ln() - f64::from(logit)
        };
        Ok(logits.chunks_exact(vocabulary).zip(targets).map(of).collect())
    }

    /// Passes the values of every tensor over `ids`, as one new sequence or text, for calibration.
    ///
    /// `observe` receives a key of [`Ranges`](shardwright_graph::Ranges) and values, once per
    /// tensor. The model runs whole and decomposed, regardless of the arrangement, so every tensor
    /// of every form has its key. The boundary before layer n has [`hidden_key`] as well as the
    /// tensor's name, with equal values. All rows are valid and every row of a state is written.
    /// Scores and tensors computed from them include masked values
    /// ([`Range::is_masked`](shardwright_graph::Range::is_masked)), which a collector must note but
    /// not count.
    pub fn observe(&self, ids: &[u32], observe: &mut dyn FnMut(&str, &[f32])) -> Result<()> {
        self.try_observe(ids, &mut |key, values| {
            observe(key, values);
            Ok(())
        })
    }

    /// Like [`ReferenceModel::observe`], but an error of `observe` ends the run.
    pub fn try_observe(
        &self,
        ids: &[u32],
        observe: &mut dyn FnMut(&str, &[f32]) -> Result<()>,
    ) -> Result<()> {
        let rows = ids.len() as u64;
        if ids.is_empty() {
            return Err(no_tokens());
        }
        let model = self.observed(rows)?;
        let mut named = self.naming_streams(observe);
        let kind = if self.graph.is_generative() { EntryKind::Decode } else { EntryKind::Encode };
        model.run(kind, rows, &mut model.start(), ids, false, Some(&mut named))?;
        Ok(())
    }

    /// Like [`ReferenceModel::try_observe`], but for a tower over the features of one picture or
    /// clip.
    pub fn try_observe_features(
        &self,
        features: &Features<'_>,
        observe: &mut dyn FnMut(&str, &[f32]) -> Result<()>,
    ) -> Result<()> {
        let rows = features.rows(self.graph);
        if rows == 0 {
            return Err(unfit_rows(rows, self.arrangement.rows));
        }
        let model = self.observed(rows)?;
        let mut named = self.naming_streams(observe);
        let mut run = model.over(features, rows, Some(&mut named));
        run.tower()
    }

    /// Returns this model whole and decomposed, with entry points of `rows` rows.
    fn observed(&self, rows: u64) -> Result<ReferenceModel<'g>> {
        let arrangement = Arrangement { form: Form::Decomposed, ..Arrangement::whole(rows) };
        Self::arranged(self.graph, arrangement, self.encodings.clone())
    }

    /// Wraps `observe` to also pass the residual stream before each layer under its [`hidden_key`].
    fn naming_streams<'o>(
        &self,
        observe: &'o mut dyn FnMut(&str, &[f32]) -> Result<()>,
    ) -> impl FnMut(&str, &[f32]) -> Result<()> + use<'o> {
        let layered = self.graph.components.iter().filter(|component| component.kind.is_layered());
        let cuts: HashMap<String, String> = layered
            .flat_map(|component| {
                component.cuts.iter().enumerate().map(|(layer, cut)| {
                    let name = &component.values[cut.0 as usize].name;
                    (format!("{}/{name}", component.kind), hidden_key(layer as u32))
                })
            })
            .collect();
        move |key, values| {
            observe(key, values)?;
            cuts.get(key).map_or(Ok(()), |key| observe(key, values))
        }
    }

    /// Prepares a run of a tower over features, in an entry point of `rows` rows.
    fn over<'a, 'o>(
        &'a self,
        features: &'a Features<'a>,
        of: u64,
        observe: Option<Observe<'o>>,
    ) -> Run<'a, 'g, 'o> {
        Run {
            model: self,
            point: self.point(EntryKind::Encode, of),
            step: Step { first: 0, rows: features.rows(self.graph), of },
            input: Input::Features(features),
            taps: false,
            observe,
            trace: Trace::default(),
        }
    }

    fn chunk_rows(&self) -> usize {
        self.arrangement.rows.max(1) as usize
    }

    /// Runs all components once, over at most `entry_rows` ids.
    fn run(
        &self,
        kind: EntryKind,
        entry_rows: u64,
        sequence: &mut Sequence,
        ids: &[u32],
        taps: bool,
        observe: Option<Observe<'_>>,
    ) -> Result<Trace> {
        let rows = ids.len() as u64;
        if rows > entry_rows {
            return Err(unfit_rows(rows, entry_rows));
        }
        let wanted = sequence.position + rows;
        if kind != EntryKind::Encode && wanted > self.arrangement.context {
            let context = self.arrangement.context;
            let message = format!("{wanted} positions do not fit a context of {context}");
            return Err(
                Error::new(ErrorKind::Context, message).with_help("use an arrangement with a larger context")
            );
        }
        let step = Step { first: sequence.position, rows, of: entry_rows };
        let mut run = Run {
            model: self,
            point: self.point(kind, entry_rows),
            step,
            input: Input::Tokens(ids, &sequence.soft),
            taps,
            observe,
            trace: Trace::default(),
        };
        run.step(&mut sequence.states)?;
        let trace = run.trace;
        sequence.position += rows;
        Ok(trace)
    }

    fn evaluator(&self, key: Key) -> Result<Option<Arc<Evaluator>>> {
        let mut evaluators = self.evaluators.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = evaluators.get(&key) {
            return Ok(known.clone());
        }
        let options = EntryOptions { taps: key.taps };
        let entry = self.graph.entry(key.component, key.layers.clone(), key.point, options)?;
        let evaluator = match entry {
            Some(entry) => {
                let entry = self.prepared(entry)?;
                Some(Arc::new(Evaluator::new(entry, Weights::new(&self.graph.weights))?))
            }
            None => None,
        };
        evaluators.insert(key, evaluator.clone());
        Ok(evaluator)
    }

    /// Returns the entry graph in the arrangement's form, encoded.
    fn prepared(&self, entry: EntryGraph) -> Result<EntryGraph> {
        let Some(encodings) = &self.encodings else { return in_form(entry, self.arrangement.form) };
        let entry = prepared(&entry, encodings);
        let entry = in_form(entry, self.arrangement.form)?;
        encode(&entry, encodings).at(place_of(&entry))
    }
}

/// Receives a key and values. An error ends the run.
type Observe<'o> = &'o mut (dyn FnMut(&str, &[f32]) -> Result<()> + 'o);

/// The content of a run's rows.
#[derive(Clone, Copy)]
enum Input<'a> {
    /// Tokens. Some of them may be placeholders of soft rows, by position.
    Tokens(&'a [u32], &'a BTreeMap<u64, Vec<f32>>),
    /// A front end's features of a picture or a clip.
    Features(&'a Features<'a>),
}

/// One run through the components of a pass.
struct Run<'a, 'g, 'o> {
    model: &'a ReferenceModel<'g>,
    point: EntryPoint,
    step: Step,
    input: Input<'a>,
    taps: bool,
    observe: Option<Observe<'o>>,
    trace: Trace,
}

impl Run<'_, '_, '_> {
    fn step(&mut self, states: &mut States) -> Result<()> {
        let graph = self.model.graph;
        let mut carried = Bindings::new();
        self.component(ComponentKind::Embed, 0..0, &mut carried, states)?;
        if graph.has(ComponentKind::PerLayerInput) {
            self.component(ComponentKind::PerLayerInput, 0..0, &mut carried, states)?;
        }
        self.show_hidden(&carried);
        for shard in &self.model.shards {
            let ran = self.component(ComponentKind::Decoder, shard.clone(), &mut carried, states)?;
            if !ran || carried.get(&Role::Hidden).is_none() {
                break;
            }
            self.show_hidden(&carried);
        }
        for kind in [ComponentKind::Head, ComponentKind::Pooling] {
            if graph.has(kind) && self.point.kind != EntryKind::Prefill {
                self.component(kind, 0..0, &mut carried, states)?;
            }
        }
        self.trace.logits = carried.take(&Role::Logits).map(|logits| self.valid(&logits));
        self.trace.embedding = carried.take(&Role::Embedding);
        let rows = self.rows();
        self.trace.per_layer = self.trace.per_layer.take().map(|whole| whole.first_rows(1, rows));
        Ok(())
    }

    fn tower(&mut self) -> Result<()> {
        let model = self.model;
        let mut carried = Bindings::new();
        let mut states = States::none();
        for component in &model.graph.components {
            let whole = std::slice::from_ref(&(0..0));
            let shards = if component.layers > 0 { &model.shards[..] } else { whole };
            for shard in shards {
                self.component(component.kind, shard.clone(), &mut carried, &mut states)?;
                if !component.kind.ends_stream() {
                    self.show_hidden(&carried);
                }
            }
        }
        self.trace.soft_rows = carried.take(&Role::SoftRows).map(|rows| self.valid(&rows));
        Ok(())
    }

    /// Returns the number of valid rows.
    fn rows(&self) -> usize {
        self.step.rows as usize
    }

    /// Returns the tensor of an input that exists before the run.
    fn given(&self, role: &Role) -> Result<Option<Array>> {
        let assets = &self.model.graph.assets;
        match self.input {
            Input::Features(features) => {
                let to_a_row = self.model.graph.features_to_a_row();
                feature_input(role, self.step, to_a_row, features, assets)
            }
            Input::Tokens(ids, soft) => {
                let array = step_input(role, self.step, ids, assets)?;
                array.map(|array| with_soft_rows(role, self.step, array, soft)).transpose()
            }
        }
    }

    /// Runs one entry graph, whose outputs replace the carried tensors. Returns whether there was
    /// anything to run.
    fn component(
        &mut self,
        component: ComponentKind,
        layers: Range<u32>,
        carried: &mut Bindings,
        states: &mut States,
    ) -> Result<bool> {
        let key = Key { component, layers: layers.clone(), point: self.point, taps: self.taps };
        let Some(evaluator) = self.model.evaluator(key)? else { return Ok(false) };
        let mut bindings = Bindings::new();
        for (_, role) in &evaluator.entry().inputs {
            let array = match role {
                Role::PerLayer { first, layers } => self.trace.per_layer_slice(*first, *layers),
                Role::State { .. } => continue,
                _ if role.is_step_input() => self.given(role)?,
                _ => carried.get(role).cloned(),
            };
            if let Some(array) = array {
                bindings.bind(role.clone(), array);
            }
        }
        let outputs = match &mut self.observe {
            Some(observe) => evaluator.run_observed(&bindings, states, &mut **observe)?,
            None => evaluator.run(&bindings, states, self.step.rows)?,
        };
        if component.is_layered() {
            // A prefill without a residual stream as output must not leave an older one behind.
            carried.take(&Role::Hidden);
        }
        for (role, array) in outputs.iter() {
            match role {
                Role::Tap { name } => self.show_tap(name, array),
                Role::StateRows { state } => {
                    let capacity = states.get(*state).map_or(1, |existing| existing.shape()[0] as u64);
                    states.place(*state, array, &slots(self.step, capacity))?;
                }
                Role::PerLayer { .. } => self.trace.per_layer = Some(array.clone()),
                _ => {
                    carried.bind(role.clone(), array.clone());
                }
            }
        }
        Ok(true)
    }

    fn show_hidden(&mut self, carried: &Bindings) {
        if let Some(hidden) = carried.get(&Role::Hidden) {
            self.trace.hidden.push(self.valid(hidden));
        }
    }

    /// Passes layer outputs in layer order: the taps of a shard's inner layers come before its last
    /// layer, whose output is the stream.
    fn show_tap(&mut self, name: &str, array: &Array) {
        let array = self.valid(array);
        if name.strip_prefix("layer.").is_some_and(|layer| layer.parse::<u32>().is_ok()) {
            self.trace.hidden.push(array);
        } else {
            self.trace.taps.insert(name.to_owned(), array);
        }
    }

    /// Returns the valid rows of a result that has one row for each input row, or for several.
    fn valid(&self, array: &Array) -> Array {
        let (all, rows) = (array.shape()[0], self.step.of as usize);
        let to_one = rows.checked_div(all).filter(|to_one| array.shape().len() > 1 && to_one * all == rows);
        array.first_rows(0, to_one.map_or(all, |to_one| self.rows().div_ceil(to_one)))
    }
}

impl Trace {
    /// Returns the whole per-layer inputs, or the slice of some layers.
    fn per_layer_slice(&self, first: u32, layers: u32) -> Option<Array> {
        let whole = self.per_layer.as_ref()?;
        Some(whole.slice(0, first as usize, layers as usize))
    }

    /// Joins the traces of consecutive chunks.
    fn joined(traces: Vec<Trace>) -> Result<Trace> {
        let Some(first) = traces.first() else { return Err(no_tokens()) };
        let join = |axis: usize, pick: &dyn Fn(&Trace) -> Option<&Array>| {
            let parts: Vec<&Array> = traces.iter().filter_map(pick).collect();
            (!parts.is_empty()).then(|| layout::concat(&parts, axis))
        };
        let hidden = (0..first.hidden.len()).filter_map(|index| join(0, &|trace| trace.hidden.get(index)));
        let taps = first
            .taps
            .keys()
            .filter_map(|name| Some((name.clone(), join(0, &|trace| trace.taps.get(name))?)));
        Ok(Trace {
            hidden: hidden.collect(),
            per_layer: join(1, &|trace| trace.per_layer.as_ref()),
            logits: join(0, &|trace| trace.logits.as_ref()),
            embedding: None,
            soft_rows: None,
            taps: taps.collect(),
        })
    }
}

fn no_tokens() -> Error {
    Error::argument("no tokens were given")
}

fn no_component(kind: ComponentKind) -> Error {
    Error::internal(format!("the graph has no component `{kind}`"))
}

fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (index, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = index;
        }
    }
    best as u32
}

fn in_form(entry: EntryGraph, form: Form) -> Result<EntryGraph> {
    let refused: fn(&Op) -> bool = match form {
        Form::Semantic => return Ok(entry),
        Form::Decomposed => return in_primitives(&entry),
        Form::HalfWay => |op| matches!(op, Op::Rope(_) | Op::Attention(_) | Op::StateUpdate),
        Form::ByRuntime => |op| op.is_semantic(),
    };
    let verdict = |op: &Op| {
        if refused(op) { NodeVerdict::refused("not in this form") } else { NodeVerdict::accepted() }
    };
    let check = |graph: &EntryGraph| {
        Ok::<_, std::convert::Infallible>(graph.nodes.iter().map(|node| verdict(&node.op)).collect())
    };
    let legal = legalise(&entry, check)
        .map_err(|error| Error::unsupported(error.to_string()).at(place_of(&entry)))?;
    Ok(legal.graph)
}

/// Decomposes an entry graph. Its primitives must compute the same values up to float rounding.
fn in_primitives(entry: &EntryGraph) -> Result<EntryGraph> {
    let mut whole = entry.nodes.iter().filter(|node| node.op.is_semantic() && !node.op.is_replaceable());
    match whole.next() {
        Some(node) => {
            let what = format!("the operands of `{}` are rounded, and it has no decomposition", node.name);
            let help = "run the model in its semantic form";
            Err(Error::unsupported(what).at(place_of(entry)).with_help(help))
        }
        None => Ok(decompose_all(entry)),
    }
}
