//! The data flow of a chain: for every entry point the runs of a step, their bindings, and the
//! copies between them.

use shardwright_graph::{ComponentKind, EntryPoint, Role, Segment, StateId};
use shardwright_shims::{Binding, Direction, EntryInterface, LoadedShard, Port};
use shardwright_vocabulary::{EntryKind, Error, Place, Result};

use super::check::{RECOMPILE, SAME_ENTRIES};
use crate::chain::Chain;
use crate::description::ChainDescription;
use crate::step::natural_storage;
use crate::storage::{Storage, elements_of, storage_of};

/// Memory that a session allocates once.
#[derive(Clone, Debug)]
pub(crate) struct MemoryPlan {
    key: Key,
    /// Executor that allocates the memory, one of the executors on its place.
    pub executor: usize,
    pub bytes: u64,
    pub alignment: u64,
}

impl MemoryPlan {
    pub fn is_state(&self) -> bool {
        matches!(self.key, Key::State(_))
    }

    fn grow(&mut self, bytes: u64, alignment: u64) {
        self.bytes = self.bytes.max(bytes);
        self.alignment = self.alignment.max(alignment);
    }
}

/// Requirements of a binding on its memory. A shim may pad at the end.
#[derive(Clone, Copy)]
struct Need {
    bytes: u64,
    alignment: u64,
}

impl Need {
    fn of(binding: &Binding) -> Self {
        Need { bytes: binding.bytes, alignment: binding.alignment.max(1) }
    }
}

/// Purpose of a memory. Entry points share memories, since only one of them runs at a time. The
/// largest one determines the size.
#[derive(Clone, Debug, PartialEq)]
enum Key {
    StepInput { place: usize, role: Role, storage: Storage },
    Given { shard: usize, role: Role },
    Taken { place: usize, from: usize, role: Role, storage: Storage },
    State(StateId),
}

/// Location of values after a step.
#[derive(Clone, Debug)]
pub(crate) struct Located {
    pub memory: usize,
    pub shape: Vec<u64>,
    pub storage: Storage,
}

/// A step input, computed once and written to each target from which a place can bind it.
#[derive(Clone, Debug)]
pub(crate) struct StepInput {
    pub role: Role,
    pub elements: usize,
    /// Values per row.
    pub width: usize,
    pub targets: Vec<(usize, Storage)>,
}

/// Binding of a whole port in a run. The order follows the loaded entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BindingPlan {
    pub memory: usize,
    pub offset: u64,
}

/// Copy of a boundary that the next shard cannot bind in place: `blocks` times `rows` rows of
/// `width` values.
#[derive(Clone, Debug)]
pub(crate) struct CopyPlan {
    pub boundary: usize,
    pub from: usize,
    pub from_offset: u64,
    pub from_storage: Storage,
    pub to: usize,
    pub to_storage: Storage,
    pub blocks: u64,
    pub rows: u64,
    pub width: u64,
}

/// New rows of a state that the runtime writes to their slots.
#[derive(Clone, Debug)]
pub(crate) struct PlacedRows {
    /// Index of the state.
    pub id: usize,
    pub rows: usize,
    pub rows_storage: Storage,
    pub state: usize,
    pub state_storage: Storage,
    pub capacity: u64,
    pub width: u64,
}

/// Rows of a boundary: `blocks` times `rows` rows of `row_bytes`, stored as `storage`.
#[derive(Clone, Debug)]
pub(crate) struct BoundaryRows {
    pub memory: usize,
    pub blocks: u64,
    pub rows: u64,
    pub row_bytes: u64,
    pub storage: Storage,
}

/// One run of one shard.
#[derive(Clone, Debug)]
pub(crate) struct ShardRun {
    pub shard: usize,
    /// Index of the loaded entry.
    pub entry: usize,
    pub copies: Vec<CopyPlan>,
    pub bindings: Vec<BindingPlan>,
    pub placed_rows: Vec<PlacedRows>,
    /// Boundary rows that later shards read.
    pub boundary_rows: Vec<BoundaryRows>,
}

/// The runs of a step under one entry point.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    pub point: EntryPoint,
    pub name: String,
    pub inputs: Vec<StepInput>,
    pub runs: Vec<ShardRun>,
    pub logits: Option<Located>,
    pub embedding: Option<Located>,
    pub soft_rows: Option<Located>,
    /// Taps and residual streams by name.
    pub named: Vec<(String, Located)>,
}

impl Schedule {
    /// Returns the number of features of a front end, and the number of values of each.
    pub(crate) fn features(&self) -> Option<(usize, usize)> {
        let input = self.inputs.iter().find(|input| input.role == Role::Features)?;
        Some((input.elements / input.width.max(1), input.width))
    }

    /// Checks whether the rows are positions on a grid of columns and rows.
    pub(crate) fn reads_a_grid(&self) -> bool {
        self.inputs.iter().any(|input| is_of_a_grid(&input.role))
    }

    /// Returns the number of columns and rows for which every table read by them has a position.
    pub(crate) fn grid_limit(&self, chain: &Chain) -> i64 {
        let entries = self.inputs.iter().filter_map(|input| match input.role {
            Role::GatheredByGrid { asset, .. } => chain.assets().get(asset.0 as usize),
            _ => None,
        });
        entries.map(|asset| asset.entries() as i64).min().unwrap_or(i64::from(i32::MAX))
    }
}

fn is_of_a_grid(role: &Role) -> bool {
    matches!(role, Role::Grid { .. } | Role::GatheredByGrid { .. } | Role::AxialCos(_) | Role::AxialSin(_))
}

/// Storage of a state.
#[derive(Clone, Debug)]
pub(crate) struct StatePlan {
    pub bytes: u64,
    pub capacity: u64,
    pub window: u64,
    pub writer: usize,
    pub readers: Vec<usize>,
    pub by_runtime: bool,
    pub storage: Storage,
    /// Storage of new rows returned to the runtime, if different.
    pub rows_storage: Option<Storage>,
    pub row_bytes: u64,
    /// Memory of the state, `None` only while the layout is being built.
    pub memory: Option<usize>,
}

impl StatePlan {
    /// Checks whether truncation to `length` keeps the state valid after positions up to
    /// `high_water` were written. Every position visible to a query at `length` or later must still
    /// be stored, and no row written at or beyond `length` may be mistaken for a visible one.
    pub(crate) fn keeps(&self, length: usize, high_water: usize) -> bool {
        let beyond = self.capacity.saturating_sub(self.window);
        high_water as u64 <= self.capacity || length as u64 >= (high_water as u64).saturating_sub(beyond)
    }

    /// Returns the first position whose row was not overwritten after positions up to `high_water`
    /// were written.
    pub(crate) fn first_kept(&self, high_water: usize) -> usize {
        high_water.saturating_sub(usize::try_from(self.capacity).unwrap_or(usize::MAX))
    }

    /// Returns the number of rows and the bytes of a row.
    pub(crate) fn extents(&self) -> (usize, usize) {
        let size = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        (size(self.capacity), size(self.row_bytes))
    }
}

/// A boundary between two shards.
#[derive(Clone, Debug)]
pub(crate) struct Boundary {
    pub what: &'static str,
    pub from: usize,
    pub to: usize,
    pub from_storage: Storage,
    pub to_storage: Storage,
    /// Reason for the copy, or `None` if both shards share one buffer.
    pub copied_because: Option<&'static str>,
}

/// Everything a session needs from a chain.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub schedules: Vec<Schedule>,
    pub memories: Vec<MemoryPlan>,
    pub states: Vec<StatePlan>,
    pub boundaries: Vec<Boundary>,
}

pub(super) fn lay_out(description: &ChainDescription, executors: &[LoadedShard]) -> Result<Layout> {
    let mut places: Vec<&Place> = Vec::new();
    let place_of = description
        .shards
        .iter()
        .map(|shard| match places.iter().position(|place| **place == shard.place) {
            Some(index) => index,
            None => {
                places.push(&shard.place);
                places.len() - 1
            }
        })
        .collect();
    let mut builder = Builder {
        description,
        executors,
        place_of,
        layout: Layout {
            schedules: Vec::new(),
            memories: Vec::new(),
            states: Vec::new(),
            boundaries: Vec::new(),
        },
        writers: vec![None; description.structure.states.len()],
    };
    let mut points: Vec<EntryPoint> = Vec::new();
    for point in description.shards.iter().flat_map(|shard| &shard.entries).map(|entry| entry.point) {
        if !points.iter().any(|other| (other.kind, other.rows) == (point.kind, point.rows)) {
            points.push(point);
        }
    }
    points.sort_by_key(|point| (point.kind, point.rows));
    let needed = if description.structure.is_generative() { EntryKind::Decode } else { EntryKind::Encode };
    if !points.iter().any(|point| point.kind == needed) {
        return Err(Error::incompatible(format!("the chain has no {needed} entry point"))
            .with_help("a plan needs decode_1 for a generative model and encode_N for an encoder"));
    }
    builder.find_writers()?;
    for point in points {
        let schedule = Wiring::new(&mut builder, point).wire()?;
        builder.layout.schedules.push(schedule);
    }
    Ok(builder.layout)
}

struct Builder<'a> {
    description: &'a ChainDescription,
    executors: &'a [LoadedShard],
    place_of: Vec<usize>,
    layout: Layout,
    /// Shard that writes each state.
    writers: Vec<Option<usize>>,
}

impl<'a> Builder<'a> {
    fn name(&self, shard: usize) -> &'a str {
        &self.description.shards[shard].name
    }

    fn fault(&self, shard: usize, message: String) -> Error {
        Error::incompatible(message).at(format_args!("shard `{}`", self.name(shard)))
    }

    fn entry(&self, shard: usize, point: EntryPoint) -> Option<&'a EntryInterface> {
        let entries = &self.description.shards[shard].entries;
        entries.iter().find(|entry| (entry.point.kind, entry.point.rows) == (point.kind, point.rows))
    }

    /// Finds the writer of each state. Every state must have one writer, on the place of all its
    /// readers and before them.
    fn find_writers(&mut self) -> Result<()> {
        let states = &self.description.structure.states;
        let uses = || {
            let shards = self.description.shards.iter().enumerate();
            shards.flat_map(|(index, shard)| {
                shard
                    .entries
                    .iter()
                    .flat_map(move |entry| entry.states.iter().map(move |port| (index, entry, port)))
            })
        };
        let mut writers: Vec<Option<usize>> = vec![None; states.len()];
        let mut plans: Vec<Option<StatePlan>> = vec![None; states.len()];
        for (shard, entry, port) in uses().filter(|(_, _, port)| port.written) {
            let id = port.id.0 as usize;
            // `check` ensured that only the shard with the state's layer writes it, so there is
            // exactly one.
            writers[id] = Some(shard);
            let by_runtime =
                entry.ports.iter().any(|output| output.role == Role::StateRows { state: port.id });
            let window = match port.state.kind {
                shardwright_graph::StateKind::Linear => port.capacity,
                shardwright_graph::StateKind::Ring { window } => u64::from(window),
            };
            let plan = plans[id].get_or_insert(StatePlan {
                bytes: 0,
                capacity: port.capacity,
                window,
                writer: shard,
                readers: Vec::new(),
                by_runtime,
                storage: Storage::F32,
                rows_storage: None,
                row_bytes: 0,
                memory: None,
            });
            plan.by_runtime |= by_runtime;
        }
        for (shard, _, port) in uses().filter(|(_, _, port)| !port.written) {
            let id = port.id.0 as usize;
            let state = &states[id].name;
            let Some(writer) = writers[id] else {
                return Err(unwritten(state, "any entry"));
            };
            if writer > shard {
                let (reader, writer) = (self.name(shard), self.name(writer));
                return Err(Error::incompatible(format!(
                    "the state `{state}` is read by `{reader}`, which runs before its writer `{writer}`"
                )));
            }
            if self.place_of[writer] != self.place_of[shard] {
                let [(writer, writer_place), (reader, reader_place)] =
                    [writer, shard].map(|shard| (self.name(shard), &self.description.shards[shard].place));
                return Err(Error::incompatible(format!(
                    "state-not-shareable: `{state}` is written by `{writer}` on {writer_place} and read by \
                     `{reader}` on {reader_place}"
                ))
                .with_help(
                    "layers that share keys and values must be on the same instance and device; move the cut \
                     or the target",
                ));
            }
            if let Some(plan) = &mut plans[id]
                && writer != shard
                && !plan.readers.contains(&shard)
            {
                plan.readers.push(shard);
            }
        }
        for (state, plan) in states.iter().zip(&plans) {
            if plan.is_none() {
                return Err(unwritten(&state.name, "any entry"));
            }
        }
        self.layout.states = plans.into_iter().flatten().collect();
        self.writers = writers;
        self.state_storages()
    }

    /// Checks that all entries that bind a state store it in the same way, because they share one
    /// buffer.
    fn state_storages(&mut self) -> Result<()> {
        let mut found: Vec<Option<(usize, Storage)>> = vec![None; self.layout.states.len()];
        for (shard, described) in self.description.shards.iter().enumerate() {
            for entry in &described.entries {
                for port in &entry.ports {
                    let Role::State { state } = port.role else { continue };
                    let (first, storage) = *found[state.0 as usize].get_or_insert((shard, storage_of(port)));
                    if storage != storage_of(port) {
                        let name = &self.description.structure.states[state.0 as usize].name;
                        let (first, second) = (self.name(first), self.name(shard));
                        return Err(Error::incompatible(format!(
                            "the state `{name}` is {storage} for `{first}` and {} for `{second}`",
                            storage_of(port)
                        )));
                    }
                }
            }
        }
        for ((plan, found), state) in
            self.layout.states.iter_mut().zip(found).zip(&self.description.structure.states)
        {
            plan.storage = found.map_or(Storage::F32, |(_, storage)| storage);
            plan.row_bytes = state.width.saturating_mul(plan.storage.dtype.bytes());
        }
        Ok(())
    }

    /// Returns the index of the memory with this key. Creates or grows it as needed.
    fn memory(&mut self, key: Key, executor: usize, need: Need) -> usize {
        let memories = &mut self.layout.memories;
        let index = match memories.iter().position(|memory| memory.key == key) {
            Some(index) => index,
            None => {
                memories.push(MemoryPlan { key, executor, bytes: 0, alignment: 1 });
                memories.len() - 1
            }
        };
        memories[index].grow(need.bytes, need.alignment);
        index
    }

    fn boundary(&mut self, boundary: Boundary) -> usize {
        let known = &mut self.layout.boundaries;
        let same = |other: &Boundary| {
            (other.what, other.from, other.to) == (boundary.what, boundary.from, boundary.to)
        };
        match known.iter().position(same) {
            Some(index) => {
                // One entry point that needs a copy is enough to record it.
                if known[index].copied_because.is_none() {
                    known[index] = boundary;
                }
                index
            }
            None => {
                known.push(boundary);
                known.len() - 1
            }
        }
    }
}

/// A boundary produced earlier in the step.
#[derive(Clone)]
struct Flowing<'a> {
    shard: usize,
    port: &'a Port,
    memory: usize,
}

struct Wiring<'a, 'b> {
    builder: &'b mut Builder<'a>,
    schedule: Schedule,
    /// The residual stream with its current layer boundary.
    stream: Option<(Flowing<'a>, u32)>,
    per_layer: Option<Flowing<'a>>,
    /// Memories that contain a copy made in this step.
    copied: Vec<usize>,
}

impl<'a, 'b> Wiring<'a, 'b> {
    fn new(builder: &'b mut Builder<'a>, point: EntryPoint) -> Self {
        let schedule = Schedule {
            point,
            name: point.name().to_string(),
            inputs: Vec::new(),
            runs: Vec::new(),
            logits: None,
            embedding: None,
            soft_rows: None,
            named: Vec::new(),
        };
        Wiring { builder, schedule, stream: None, per_layer: None, copied: Vec::new() }
    }

    fn wire(mut self) -> Result<Schedule> {
        let point = self.schedule.point;
        let mut written = vec![false; self.builder.description.structure.states.len()];
        for shard in 0..self.builder.description.shards.len() {
            let Some(entry) = self.builder.entry(shard, point) else {
                if point.kind != EntryKind::Prefill {
                    return Err(self.entry_missing(shard, "which every shard needs"));
                }
                continue;
            };
            for port in entry.states.iter().filter(|port| port.written) {
                written[port.id.0 as usize] = true;
            }
            self.run(shard, entry)?;
        }
        // A prefill may skip shards, but must not skip a state.
        if let Some(state) = written.iter().position(|written| !written) {
            let writer = self.builder.writers[state];
            let state = &self.builder.description.structure.states[state].name;
            return Err(match writer {
                Some(shard) if self.builder.entry(shard, point).is_none() => {
                    self.entry_missing(shard, &format!("which must fill `{state}`"))
                }
                _ => unwritten(state, &self.schedule.name),
            });
        }
        let missing = match point.kind {
            EntryKind::Decode if self.schedule.logits.is_none() => Some("logits"),
            EntryKind::Encode if self.schedule.embedding.is_none() && self.schedule.soft_rows.is_none() => {
                Some("embedding or soft rows")
            }
            _ => None,
        };
        match missing {
            Some(what) => Err(Error::incompatible(format!("{} does not return {what}", self.schedule.name))),
            None => Ok(self.schedule),
        }
    }

    fn entry_missing(&self, shard: usize, because: &str) -> Error {
        let message = format!("the shard lacks the entry point {}, {because}", self.schedule.name);
        self.builder.fault(shard, message).with_help(SAME_ENTRIES)
    }

    fn run(&mut self, shard: usize, entry: &'a EntryInterface) -> Result<()> {
        // `check` ensured that both exist.
        let loaded = self.builder.executors[shard].entries();
        let Some(index) = loaded.iter().position(|loaded| loaded.interface.name == self.schedule.name) else {
            let message = format!("the loaded artefact lacks {}", self.schedule.name);
            return Err(self.builder.fault(shard, message).with_help(RECOMPILE));
        };
        let executors = self.builder.executors;
        let loaded = &executors[shard].entries()[index];
        let mut run = ShardRun {
            shard,
            entry: index,
            copies: Vec::new(),
            bindings: Vec::new(),
            placed_rows: Vec::new(),
            boundary_rows: Vec::new(),
        };
        let mut results = Vec::new();
        for binding in &loaded.bindings {
            let Some(port) = entry.port(&binding.port.name) else { continue };
            let need = Need::of(binding);
            let (memory, offset) = match (port.direction, &port.role) {
                (_, Role::State { state }) => (self.state(*state, need), 0),
                (Direction::Input, role) if role.is_step_input() => (self.step_input(shard, port, need), 0),
                (Direction::Input, _) => self.take(shard, port, need, &mut run.copies)?,
                (_, role) => {
                    let key = Key::Given { shard, role: role.clone() };
                    let memory = self.builder.memory(key, shard, need);
                    results.push((port, memory));
                    (memory, 0)
                }
            };
            run.bindings.push(BindingPlan { memory, offset });
        }
        let replaces_stream = |segment: Segment| segment.component != ComponentKind::PerLayerInput;
        if self.builder.description.shards[shard].segments.iter().any(replaces_stream) {
            // The stream ends at a shard that does not pass it on.
            self.stream = None;
        }
        for (port, memory) in results {
            self.give(shard, port, memory, entry, &mut run)?;
        }
        self.schedule.runs.push(run);
        Ok(())
    }

    fn state(&mut self, state: StateId, need: Need) -> usize {
        let plan = &mut self.builder.layout.states[state.0 as usize];
        plan.bytes = plan.bytes.max(need.bytes);
        let writer = plan.writer;
        let memory = self.builder.memory(Key::State(state), writer, need);
        self.builder.layout.states[state.0 as usize].memory = Some(memory);
        memory
    }

    fn step_input(&mut self, shard: usize, port: &Port, need: Need) -> usize {
        let key = Key::StepInput {
            place: self.builder.place_of[shard],
            role: port.role.clone(),
            storage: storage_of(port),
        };
        let memory = self.builder.memory(key, shard, need);
        let inputs = &mut self.schedule.inputs;
        let index = match inputs.iter().position(|input| input.role == port.role) {
            Some(index) => index,
            None => {
                let (role, elements) = (port.role.clone(), elements_of(port) as usize);
                let width = port.shape.last().map_or(1, |width| *width as usize);
                inputs.push(StepInput { role, elements, width, targets: Vec::new() });
                inputs.len() - 1
            }
        };
        let targets = &mut inputs[index].targets;
        if !targets.iter().any(|(other, _)| *other == memory) {
            targets.push((memory, storage_of(port)));
        }
        memory
    }

    /// Binds a boundary in place, or plans a copy of it.
    fn take(
        &mut self,
        shard: usize,
        port: &'a Port,
        need: Need,
        copies: &mut Vec<CopyPlan>,
    ) -> Result<(usize, u64)> {
        let description = self.builder.description;
        let unfed = || {
            Error::incompatible(format!("no earlier shard returns `{}`", port.name))
                .at(format_args!("shard `{}`, {}", description.shards[shard].name, self.schedule.name))
        };
        let rows = self.schedule.point.rows;
        let (flowing, from_offset, blocks) = match &port.role {
            Role::Hidden => {
                let (flowing, at) = self.stream.clone().ok_or_else(unfed)?;
                let segments = &description.shards[shard].segments;
                if Some(at) != segments.stream_enters(description.structure.layers) {
                    return Err(unfed());
                }
                (flowing, 0, 1)
            }
            Role::PerLayer { first, layers } => {
                let flowing = self.per_layer.clone().ok_or_else(unfed)?;
                // `check` ensured that the producer has all layers and the consumer its own ones.
                let skipped = u64::from(*first) * rows * description.structure.per_layer_width;
                (flowing.clone(), skipped * storage_of(flowing.port).dtype.bytes(), u64::from(*layers))
            }
            _ => return Err(unfed()),
        };
        let what = port.role.name();
        let (from_place, to_place) = (self.builder.place_of[flowing.shard], self.builder.place_of[shard]);
        let copied_because = if from_place != to_place {
            Some("another instance or device")
        } else if storage_of(flowing.port) != storage_of(port) {
            Some("another encoding")
        } else if !from_offset.is_multiple_of(need.alignment) {
            Some("the slice is not aligned")
        } else {
            None
        };
        let boundary = self.builder.boundary(Boundary {
            what,
            from: flowing.shard,
            to: shard,
            from_storage: storage_of(flowing.port),
            to_storage: storage_of(port),
            copied_because,
        });
        if copied_because.is_none() {
            self.builder.layout.memories[flowing.memory]
                .grow(from_offset.saturating_add(need.bytes), need.alignment);
            return Ok((flowing.memory, from_offset));
        }
        let key = Key::Taken {
            place: to_place,
            from: flowing.shard,
            role: port.role.clone(),
            storage: storage_of(port),
        };
        let memory = self.builder.memory(key, shard, need);
        if !self.copied.contains(&memory) {
            self.copied.push(memory);
            copies.push(CopyPlan {
                boundary,
                from: flowing.memory,
                from_offset,
                from_storage: storage_of(flowing.port),
                to: memory,
                to_storage: storage_of(port),
                blocks,
                rows,
                width: port.shape.last().copied().unwrap_or(0),
            });
        }
        Ok((memory, 0))
    }

    fn give(
        &mut self,
        shard: usize,
        port: &'a Port,
        memory: usize,
        entry: &'a EntryInterface,
        run: &mut ShardRun,
    ) -> Result<()> {
        let located = Located { memory, shape: port.shape.clone(), storage: storage_of(port) };
        let described = &self.builder.description.shards[shard];
        if let (Role::Hidden | Role::PerLayer { .. }, [before @ .., rows, width]) =
            (&port.role, &port.shape[..])
        {
            run.boundary_rows.push(BoundaryRows {
                memory,
                blocks: before.iter().product(),
                rows: *rows,
                row_bytes: width.saturating_mul(storage_of(port).dtype.bytes()),
                storage: storage_of(port),
            });
        }
        match &port.role {
            Role::Hidden => {
                let flowing = Flowing { shard, port, memory };
                let at = described.segments.stream_leaves().unwrap_or(0);
                let name = match at.checked_sub(1) {
                    Some(layer) => format!("layer.{layer}"),
                    None => described
                        .segments
                        .iter()
                        .next()
                        .map_or_else(String::new, |segment| segment.component.to_string()),
                };
                self.stream = Some((flowing, at));
                self.schedule.named.push((name, located));
            }
            Role::PerLayer { .. } => {
                self.per_layer = Some(Flowing { shard, port, memory });
                self.schedule.named.push((ComponentKind::PerLayerInput.to_string(), located));
            }
            Role::Logits => self.schedule.logits = Some(located),
            Role::Embedding => self.schedule.embedding = Some(located),
            Role::SoftRows => self.schedule.soft_rows = Some(located),
            Role::Tap { name } => self.schedule.named.push((name.clone(), located)),
            Role::StateRows { state } => {
                let Some(existing) = entry.states.iter().find(|existing| existing.id == *state) else {
                    return Ok(());
                };
                let (stored, row_bytes) = {
                    let plan = &self.builder.layout.states[state.0 as usize];
                    (plan.storage, plan.row_bytes)
                };
                let need = Need { bytes: existing.capacity.saturating_mul(row_bytes), alignment: 1 };
                let memory_of_state = self.state(*state, need);
                if storage_of(port) != stored {
                    self.builder.layout.states[state.0 as usize].rows_storage = Some(storage_of(port));
                }
                run.placed_rows.push(PlacedRows {
                    id: state.0 as usize,
                    rows: memory,
                    rows_storage: storage_of(port),
                    state: memory_of_state,
                    state_storage: stored,
                    capacity: existing.capacity,
                    width: existing.state.width,
                });
            }
            _ => {}
        }
        Ok(())
    }
}

fn unwritten(state: &str, entry: &str) -> Error {
    Error::incompatible(format!("no shard writes the state `{state}` in {entry}"))
}

/// Returns the storage in which a step input is computed.
pub(crate) fn computed_as(input: &StepInput) -> Storage {
    natural_storage(&input.role)
}
