//! Chains over the plain evaluator, with the cuts, places and faults that a test needs.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use shardwright_graph::{
    ComponentKind, EntryGraph, EntryOptions, EntryPoint, Graph, NodeVerdict, Op, Role, Weight, decompose_all,
    legalise, nearest_value,
};
use shardwright_models::Checkpoint;
use shardwright_reference::{Array, Bindings, Evaluator, States, Weights};
use shardwright_runtime::{Chain, ChainDescription, ShardDescription};
use shardwright_shims::{
    Binding, Bound, Buffer, Canceller, Direction, EntryInterface, LoadedEntry, LoadedShard, Port, RunOptions,
    Shard, ShimError, ShimFailure, Update,
};
use shardwright_test_checkpoints::Spec;
use shardwright_vocabulary::{DType, Encoding, EntryKind, Error, ErrorClass, MemoryKinds};
use shardwright_vocabulary::{Place, ShardOrigin};

/// Returns the graph of a generated checkpoint.
pub fn graph(spec: &Spec) -> Graph {
    let directory = tempfile::TempDir::new().unwrap();
    spec.write(directory.path()).unwrap();
    Checkpoint::open(directory.path()).unwrap().into_graph()
}

pub fn fixture(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

/// Returns token ids that differ and repeat. Their distribution does not matter.
pub fn ids(count: usize, vocabulary: u64) -> Vec<u32> {
    let mut state = 0x2545_f491_u64;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % vocabulary) as u32
        })
        .collect()
}

pub fn place(instance: &str) -> Place {
    Place { instance: instance.to_owned(), shim: "plain".to_owned(), device: "evaluator".to_owned() }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Semantic,
    Decomposed,
    ByRuntime,
}

/// Returns the storage that a test sets for a port, or `None` to keep the graph's.
pub type Storages = Arc<dyn Fn(&EntryInterface, &Port) -> Option<Encoding> + Send + Sync>;

/// Description of a test's chain.
#[derive(Clone)]
pub struct Plan {
    pub context: u64,
    pub largest: u64,
    pub prefill: Vec<u64>,
    pub decode: Vec<u64>,
    pub encode: Vec<u64>,
    pub cuts: Vec<u32>,
    /// Instance of the components without layers.
    pub around: &'static str,
    /// Instance of each decoder shard. The last one is used for further shards.
    pub decoders: Vec<&'static str>,
    pub form: Form,
    pub taps: bool,
    pub storages: Option<Storages>,
    /// Whether ports stay f32 and the executors round all values as the encodings would.
    pub rounded: bool,
    /// Alignment that every binding requires.
    pub alignment: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            context: 96,
            largest: 8,
            prefill: vec![8],
            decode: vec![1],
            encode: vec![48],
            cuts: Vec::new(),
            around: "a",
            decoders: vec!["a"],
            form: Form::Semantic,
            taps: false,
            storages: None,
            rounded: false,
            alignment: 64,
        }
    }
}

/// Faults that a test injects into the executors of a chain.
#[derive(Default)]
pub struct Trouble {
    /// Fail after this many more runs, with this class. `None` is a cancellation that was not
    /// requested.
    pub fail: Mutex<Option<(usize, Option<ErrorClass>)>>,
    /// Write garbage to every written binding before failing. If the class means that states are
    /// lost, also overwrite rows below the first position.
    pub spoil: AtomicBool,
    /// Block in the next run until interrupted.
    pub block: AtomicBool,
    pub blocked: AtomicBool,
    pub interrupted: AtomicBool,
    pub runs: AtomicUsize,
    /// Number of top logits that each run requested.
    pub largest_logits: Mutex<Vec<Option<usize>>>,
    /// Be permanently lost after this many further runs.
    pub dies_after: Mutex<Option<usize>>,
    /// Refuse to allocate, with this class.
    pub full: Mutex<Option<ErrorClass>>,
}

pub struct PlainShard {
    entries: Vec<LoadedEntry>,
    evaluators: Vec<Evaluator>,
    /// Encoding to which the values of each binding of each entry are rounded.
    rounding: Vec<Vec<Option<Encoding>>>,
    trouble: Arc<Trouble>,
}

fn failure(class: Option<ErrorClass>) -> ShimError {
    ShimError::Failed(Box::new(ShimFailure {
        shim: "plain".to_owned(),
        function: "run".into(),
        class,
        message: "as the test wished".to_owned(),
        details: Vec::new(),
        vendor_code: 0,
        log_tail: None,
    }))
}

fn argument(error: impl std::fmt::Display) -> ShimError {
    ShimError::Argument(error.to_string())
}

/// Returns the bytes that a binding may access.
fn part<'a>(bytes: &'a [u8], offset: u64, binding: &Binding) -> &'a [u8] {
    assert!(
        (bytes.as_ptr() as u64 + offset).is_multiple_of(binding.alignment),
        "misaligned {}",
        binding.port.name
    );
    &bytes[offset as usize..(offset + binding.bytes) as usize]
}

fn target(bound: &Bound<'_>) -> (Buffer, u64) {
    match bound {
        Bound::Buffer(buffer) => ((*buffer).clone(), 0),
        Bound::BufferAt(buffer, offset) => ((*buffer).clone(), *offset),
        _ => panic!("the chain binds buffers"),
    }
}

fn encoding_of(port: &Port) -> Encoding {
    Encoding::of(port.dtype, port.encoding.and_then(|encoding| encoding.affine())).unwrap()
}

/// Decodes stored values as the graph defines them.
fn to_floats(port: &Port, bytes: &[u8]) -> Vec<f32> {
    let encoding = encoding_of(port);
    let pair = |b: &[u8]| [b[0], b[1]];
    let value = |element: &[u8]| match port.dtype {
        DType::F32 => f32::from_le_bytes(element.try_into().unwrap()),
        DType::F16 => half::f16::from_le_bytes(pair(element)).to_f32(),
        DType::Bf16 => half::bf16::from_le_bytes(pair(element)).to_f32(),
        DType::I16 => encoding.value(i16::from_le_bytes(pair(element)).into()),
        DType::U16 => encoding.value(u16::from_le_bytes(pair(element)).into()),
        DType::I8 => encoding.value((element[0] as i8).into()),
        DType::U8 => encoding.value(element[0].into()),
        other => panic!("no test stores {other}"),
    };
    bytes.chunks_exact(port.dtype.bytes() as usize).map(value).collect()
}

fn to_bytes(port: &Port, values: &[f32]) -> Vec<u8> {
    let encoding = encoding_of(port);
    let size = port.dtype.bytes() as usize;
    let element = |value: f32| match port.dtype {
        DType::F32 => value.to_bits(),
        DType::F16 => half::f16::from_f32(nearest_value(&encoding, value)).to_bits().into(),
        DType::Bf16 => half::bf16::from_f32(value).to_bits().into(),
        _ => encoding.raw(value) as u32,
    };
    values.iter().flat_map(|value| element(*value).to_le_bytes().into_iter().take(size)).collect()
}

fn round(encoding: Option<Encoding>, values: &mut [f32]) {
    if let Some(encoding) = encoding {
        values.iter_mut().for_each(|value| *value = nearest_value(&encoding, *value));
    }
}

impl Shard for PlainShard {
    fn allocate(&self, bytes: u64, alignment: u64) -> Result<Buffer, ShimError> {
        if let Some(class) = *self.trouble.full.lock().unwrap() {
            return Err(failure(Some(class)));
        }
        Buffer::host(bytes, alignment)
    }

    fn run(
        &mut self,
        entry: usize,
        rows: u64,
        _bindings: &[Binding],
        bound: &mut [Bound<'_>],
        options: RunOptions,
    ) -> Result<(), ShimError> {
        let trouble = &self.trouble;
        trouble.runs.fetch_add(1, Ordering::SeqCst);
        trouble.largest_logits.lock().unwrap().push(options.largest_logits.map(NonZeroUsize::get));
        if trouble.block.swap(false, Ordering::SeqCst) {
            let start = Instant::now();
            trouble.blocked.store(true, Ordering::SeqCst);
            while !trouble.interrupted.swap(false, Ordering::SeqCst) {
                if options.deadline.is_some_and(|deadline| start.elapsed() >= deadline) {
                    return Err(failure(Some(ErrorClass::Deadline)));
                }
                assert!(start.elapsed() < Duration::from_secs(20), "the run was not interrupted");
                std::thread::yield_now();
            }
            return Err(failure(None));
        }
        if let Some(left) = &mut *trouble.dies_after.lock().unwrap() {
            match left.checked_sub(1) {
                Some(rest) => *left = rest,
                None => return Err(failure(Some(ErrorClass::DeviceLost))),
            }
        }
        let mut failing = None;
        if let Some((left, class)) = &mut *trouble.fail.lock().unwrap() {
            match left.checked_sub(1) {
                Some(rest) => *left = rest,
                None => failing = Some(*class),
            }
        }
        let (loaded, evaluator) = (&self.entries[entry], &self.evaluators[entry]);
        let rounding = &self.rounding[entry];
        let mut bindings = Bindings::new();
        let mut states = States::none();
        let mut outputs = Vec::new();
        for ((binding, bound), &rounded) in loaded.bindings.iter().zip(bound.iter()).zip(rounding) {
            let (buffer, offset) = target(bound);
            let port = &binding.port;
            if port.direction == Direction::Output {
                outputs.push((binding, rounded, buffer, offset));
                continue;
            }
            let array = {
                let bytes = buffer.read()?;
                let bytes = part(&bytes, offset, binding);
                match port.dtype {
                    DType::I32 => Array::integers_of(
                        &port.shape,
                        bytes.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect(),
                    ),
                    _ => {
                        let mut values = to_floats(port, bytes);
                        round(rounded, &mut values);
                        Array::floats_of(&port.shape, values)
                    }
                }
                .map_err(argument)?
            };
            match port.role {
                Role::State { state } => {
                    states.set(state, array);
                    if port.direction == Direction::State {
                        outputs.push((binding, rounded, buffer, offset));
                    }
                }
                _ => {
                    bindings.bind(port.role.clone(), array);
                }
            }
        }
        let results = evaluator.run(&bindings, &mut states, rows).map_err(argument)?;
        for (binding, rounded, buffer, offset) in outputs {
            let array = match binding.port.role {
                Role::State { state } => states.get(state),
                ref role => results.get(role),
            };
            let array = array.unwrap_or_else(|| panic!("no {}", binding.port.name));
            let mut values = array.floats().to_vec();
            round(rounded, &mut values);
            if let (Role::Logits, Some(count)) = (&binding.port.role, options.largest_logits) {
                values.chunks_mut(binding.port.shape[1] as usize).for_each(|row| keep_largest(row, count));
            }
            let mut bytes = to_bytes(&binding.port, &values);
            let mut existing = buffer.write()?;
            let existing = &mut existing[offset as usize..(offset + binding.bytes) as usize];
            // Rows beyond the valid ones must not matter. NaN would reveal it if they did.
            if binding.port.direction == Direction::Output
                && binding.port.shape[0] == loaded.interface.point.rows
            {
                let row = bytes.len() / loaded.interface.point.rows as usize;
                bytes[row * rows as usize..].fill(0xff);
            }
            if failing.is_some() && trouble.spoil.load(Ordering::SeqCst) {
                spoil(binding, existing, &bytes, failing.flatten());
            } else {
                existing.copy_from_slice(&bytes);
            }
        }
        match failing {
            Some(class) => {
                *trouble.fail.lock().unwrap() = None;
                Err(failure(class))
            }
            None => Ok(()),
        }
    }

    fn canceller(&self) -> Canceller {
        let trouble = self.trouble.clone();
        Canceller::new(move || {
            trouble.interrupted.store(true, Ordering::SeqCst);
            true
        })
    }
}

/// Sets all but the top `count` logits to the smallest value that the contract allows.
fn keep_largest(row: &mut [f32], count: NonZeroUsize) {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&one, &other| row[other].partial_cmp(&row[one]).unwrap().then(one.cmp(&other)));
    order.iter().skip(count.get()).for_each(|&id| row[id] = f32::MIN);
}

/// Simulates the state after a failed run: garbage where the run would have written, or everywhere
/// if states are lost.
fn spoil(binding: &Binding, existing: &mut [u8], bytes: &[u8], class: Option<ErrorClass>) {
    let lost = matches!(class, Some(ErrorClass::StateLost | ErrorClass::DeviceLost));
    for (existing, new) in existing.chunks_exact_mut(4).zip(bytes.chunks_exact(4)) {
        if lost || existing != new || binding.port.direction == Direction::Output {
            existing.copy_from_slice(&1e9_f32.to_le_bytes());
        }
    }
}

/// Returns storages that store the residual stream between decoder shards in this encoding.
pub fn hidden(encoding: Encoding) -> Option<Storages> {
    Some(Arc::new(move |entry, port| {
        (entry.segments.has(ComponentKind::Decoder) && port.role == Role::Hidden).then_some(encoding)
    }))
}

/// The shards of a graph under a plan, which a test may change before they become a chain.
pub struct Parts {
    pub description: ChainDescription,
    pub executors: Vec<LoadedShard>,
    pub assets: Vec<shardwright_graph::Asset>,
    pub troubles: Vec<Arc<Trouble>>,
}

impl Parts {
    pub fn chain(self) -> Result<Chain, Error> {
        Chain::new(self.description, self.executors, self.assets)
    }
}

fn in_form(entry: EntryGraph, form: Form) -> EntryGraph {
    match form {
        Form::Semantic => entry,
        Form::Decomposed => decompose_all(&entry),
        Form::ByRuntime => {
            let judge = |entry: &EntryGraph| {
                Ok::<_, String>(
                    entry
                        .nodes
                        .iter()
                        .map(|node| match node.op {
                            Op::StateUpdate => NodeVerdict::refused("read-only states"),
                            _ => NodeVerdict::accepted(),
                        })
                        .collect(),
                )
            };
            legalise(&entry, judge).unwrap().graph
        }
    }
}

fn loaded(entry: &EntryGraph, plan: &Plan) -> (LoadedEntry, Vec<Option<Encoding>>) {
    let mut interface = EntryInterface::of(entry).unwrap();
    let wanted: Vec<Option<Encoding>> = interface
        .ports
        .iter()
        .map(|port| plan.storages.as_ref().and_then(|storages| storages(&interface, port)))
        .collect();
    let numeric = |port: &Port| port.dtype != DType::I32;
    if !plan.rounded {
        for (port, encoding) in interface.ports.iter_mut().zip(&wanted) {
            if let Some(encoding) = encoding.filter(|_| numeric(port)) {
                port.dtype = encoding.element;
                port.encoding = encoding.affine().map(|_| encoding);
            }
        }
    }
    let bindings = interface.ports.iter().map(|port| Binding {
        port: port.clone(),
        dtype: port.dtype,
        bytes: port.shape.iter().product::<u64>() * port.dtype.bytes(),
        alignment: plan.alignment,
        strides: None,
        memory_kinds: MemoryKinds(1),
        update: match port.direction {
            Direction::State => Update::InGraph,
            _ => Update::None,
        },
    });
    let bindings = bindings.collect();
    let rounding = if plan.rounded { wanted } else { vec![None; interface.ports.len()] };
    (LoadedEntry { interface, bindings }, rounding)
}

pub fn parts(graph: &Graph, plan: &Plan) -> Parts {
    let generative = graph.is_generative();
    let mut points = Vec::new();
    let point = |kind, rows, context| EntryPoint { kind, rows, context, largest_rows: plan.largest };
    if generative {
        points.extend(plan.prefill.iter().map(|&rows| point(EntryKind::Prefill, rows, plan.context)));
        points.extend(plan.decode.iter().map(|&rows| point(EntryKind::Decode, rows, plan.context)));
    } else {
        let encode =
            |&rows: &u64| EntryPoint { kind: EntryKind::Encode, rows, context: rows, largest_rows: rows };
        points.extend(plan.encode.iter().map(encode));
    }
    let mut parts = Parts {
        description: ChainDescription::of(graph, Vec::new()),
        executors: Vec::new(),
        assets: graph.assets.clone(),
        troubles: Vec::new(),
    };
    for component in &graph.components {
        let mut ranges: Vec<Range<u32>> = Vec::new();
        if component.kind == ComponentKind::Decoder {
            let mut start = 0;
            for end in plan.cuts.iter().copied().chain([component.layers]) {
                ranges.push(start..end);
                start = end;
            }
        } else {
            ranges.push(0..0);
        }
        for (index, layers) in ranges.into_iter().enumerate() {
            let decoder = component.kind == ComponentKind::Decoder;
            let instance = match decoder {
                true => plan.decoders[index.min(plan.decoders.len() - 1)],
                false => plan.around,
            };
            let mut entries = Vec::new();
            let mut evaluators = Vec::new();
            let mut rounding = Vec::new();
            for &point in &points {
                let options = EntryOptions { taps: plan.taps };
                let Some(entry) = graph.entry(component.kind, layers.clone(), point, options).unwrap() else {
                    continue;
                };
                let entry = in_form(entry, plan.form);
                let (entry_loaded, rounded) = loaded(&entry, plan);
                entries.push(entry_loaded);
                rounding.push(rounded);
                let weights: &[Weight] = &graph.weights;
                evaluators.push(Evaluator::new(entry, Weights::new(weights)).unwrap());
            }
            let name = match decoder {
                true => format!("decoder.{}-{}", layers.start, layers.end),
                false => component.kind.to_string(),
            };
            parts.description.shards.push(ShardDescription {
                name,
                segments: entries[0].interface.segments.clone(),
                place: place(instance),
                entries: entries.iter().map(|entry| entry.interface.clone()).collect(),
                logits_softcap: None,
                origin: ShardOrigin::default(),
            });
            let trouble = Arc::new(Trouble::default());
            parts.troubles.push(trouble.clone());
            let shard = PlainShard { entries: entries.clone(), evaluators, rounding, trouble };
            parts.executors.push(LoadedShard::new(Box::new(shard), place(instance), entries));
        }
    }
    parts
}

/// Creates a chain with the fault controls of its shards.
pub fn disturbed(graph: &Graph, plan: &Plan) -> (Chain, Vec<Arc<Trouble>>) {
    let mut parts = parts(graph, plan);
    let troubles = std::mem::take(&mut parts.troubles);
    (parts.chain().unwrap_or_else(|error| panic!("{error}")), troubles)
}

pub fn chain(graph: &Graph, plan: &Plan) -> Chain {
    parts(graph, plan).chain().unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the logits after each of `ids`, run through decode entries from an empty session.
pub fn scores(chain: &Chain, ids: &[u32]) -> Vec<Vec<f32>> {
    let mut session = chain.session().unwrap();
    let mut rows = Vec::new();
    session
        .score(ids, &mut |step| {
            rows.extend((0..step.rows()).map(|row| step.logits(row).unwrap().to_vec()));
        })
        .unwrap();
    rows
}

/// Returns the bits, so that comparisons are exact and NaN equals itself.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Returns the logits after a prefill of all ids but the last, and a decode of the last.
pub fn last_logits(chain: &Chain, ids: &[u32]) -> Vec<u32> {
    let mut session = chain.session().unwrap();
    session.append(ids).unwrap();
    bits(session.logits().unwrap())
}
