//! One step: computes inputs, runs shards in order, and moves boundaries and state rows between
//! shards.

pub(crate) mod state_rows;

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use shardwright_graph::Role;
use shardwright_shims::{Bound, Buffer, BufferRead, RunOptions, ShimError};
use shardwright_vocabulary::ErrorClass;

use crate::cancel::CancelHandle;
use crate::chain::Chain;
use crate::chain::layout::{
    BoundaryRows, CopyPlan, Located, PlacedRows, Schedule, ShardRun, StepInput, computed_as,
};
use crate::error::SessionError;
use crate::memory::MemoryShare;
use crate::placement::Counters;
use crate::step::{self, Given, Step, Workspace};
use crate::storage::{Storage, convert, widen};

/// Rows of one step.
pub(crate) struct StepRows<'a> {
    /// Position of the first row.
    pub position: usize,
    /// Number of valid rows.
    pub count: usize,
    /// Source of the rows.
    pub given: Given<'a>,
}

/// Calls the front end to write its features, and writes zeros beyond them.
fn write_features(step: Step<'_>, width: usize, values: &mut [f32]) {
    let Given::Features { features, .. } = step.given else { return values.fill(0.0) };
    let (valid, beyond) = values.split_at_mut((features.count * width).min(values.len()));
    (features.write)(valid);
    beyond.fill(0.0);
}

/// Reason why a step did not complete.
enum Stop {
    Cancelled,
    Deadline,
    Failed(ShimError),
}

impl From<ShimError> for Stop {
    fn from(error: ShimError) -> Self {
        if error.is_cancelled() {
            return Stop::Cancelled;
        }
        match error.class() {
            Some(ErrorClass::Deadline) => Stop::Deadline,
            _ => Stop::Failed(error),
        }
    }
}

/// The memory of one session, and the chain that uses it.
pub(crate) struct Engine {
    pub chain: Chain,
    /// One buffer for each memory of the layout, empty while released.
    memories: Vec<Buffer>,
    /// Share of the chain's budget that the memories use.
    share: Option<MemoryShare>,
    workspace: Workspace,
    words: Vec<u32>,
    pub counters: Counters,
    pub cancel: CancelHandle,
    pub deadline: Option<Instant>,
}

impl Engine {
    pub(crate) fn new(chain: Chain) -> Result<Self, SessionError> {
        let mut engine = Engine::released(chain);
        engine.acquire()?;
        Ok(engine)
    }

    /// Creates an engine without memory, until it is [acquired](Self::acquire).
    pub(crate) fn released(chain: Chain) -> Self {
        Engine {
            counters: Counters::new(&chain),
            chain,
            memories: Vec::new(),
            share: None,
            workspace: Workspace::default(),
            words: Vec::new(),
            cancel: CancelHandle::default(),
            deadline: None,
        }
    }

    /// Allocates the memories unless they exist. All states contain zeros afterwards.
    pub(crate) fn acquire(&mut self) -> Result<(), SessionError> {
        let chain = self.chain.clone();
        if !self.is_released() {
            return Ok(());
        }
        let share = chain.share_of_a_session()?;
        let mut memories = Vec::with_capacity(chain.layout().memories.len());
        for plan in &chain.layout().memories {
            let memory = chain.executor(plan.executor).allocate(plan.bytes, plan.alignment);
            let memory = memory.and_then(|memory| {
                if memory.length() < plan.bytes {
                    return Err(ShimError::Argument(format!(
                        "only {} bytes were allocated",
                        memory.length()
                    )));
                }
                if !memory.is_mapped() {
                    return Err(ShimError::Argument("the host cannot map this memory".to_owned()));
                }
                Ok(memory)
            });
            memories.push(memory.map_err(|source| {
                failed(&chain, plan.executor, format!("cannot allocate {} bytes", plan.bytes), source)
            })?);
        }
        (self.memories, self.share) = (memories, share);
        // New memory is zeroed, and zero bytes represent zero in most states. Only states with a
        // zero point need their pages written.
        if chain.layout().states.iter().any(|plan| plan.storage.zero_point != 0) {
            self.clear_states();
        }
        Ok(())
    }

    /// Frees the memories until they are [acquired](Self::acquire) again. Views of their contents
    /// must have been dropped.
    pub(crate) fn release(&mut self) {
        (self.memories, self.words, self.workspace) = Default::default();
        self.share = None;
    }

    /// Reports whether the memories are released.
    pub(crate) fn is_released(&self) -> bool {
        self.memories.is_empty() && !self.chain.layout().memories.is_empty()
    }

    /// Runs every shard of a schedule over these rows. `largest_logits` is the number of top logits
    /// that must be exact, `None` for all. After a failure, state rows at and beyond their position
    /// are undefined.
    pub(crate) fn step(
        &mut self,
        schedule: usize,
        StepRows { position, count, given }: StepRows<'_>,
        largest_logits: Option<NonZeroUsize>,
    ) -> Result<(), SessionError> {
        let chain = self.chain.clone();
        let plan = &chain.layout().schedules[schedule];
        let step = Step { position: position as u64, valid: count as u64, rows: plan.point.rows, given };
        for input in &plan.inputs {
            let unwritten = |source| failed(&chain, plan.runs[0].shard, during(plan, position), source);
            let written = self.fill(input, step, unwritten)?;
            self.counters.entries[schedule].input_bytes += written;
        }
        for run in &plan.runs {
            self.run(run, step, largest_logits).map_err(|stop| match stop {
                Stop::Cancelled => {
                    self.cancel.reset();
                    SessionError::Cancelled { position }
                }
                Stop::Deadline => SessionError::Deadline { position },
                Stop::Failed(source) => failed(&chain, run.shard, during(plan, position), source),
            })?;
        }
        let counter = &mut self.counters.entries[schedule];
        counter.steps += 1;
        counter.rows += count as u64;
        Ok(())
    }

    /// Computes a step input, writes it to its targets, and returns the bytes written. `unwritten`
    /// converts the error of memory that cannot be written.
    fn fill(
        &mut self,
        input: &StepInput,
        step: Step<'_>,
        unwritten: impl Fn(ShimError) -> SessionError,
    ) -> Result<u64, SessionError> {
        let Engine { chain, memories, workspace, words, .. } = self;
        let computed = computed_as(input);
        if let (Role::Features, [(memory, Storage::F32)]) = (&input.role, &input.targets[..]) {
            let mut target = memories[*memory].write().map_err(&unwritten)?;
            if let Ok(values) = bytemuck::try_cast_slice_mut(&mut target[..4 * input.elements]) {
                write_features(step, input.width, values);
                return Ok(4 * input.elements as u64);
            }
        }
        words.resize(input.elements, 0);
        match input.role {
            Role::Features => write_features(step, input.width, bytemuck::cast_slice_mut(words)),
            _ => step::fill(&input.role, step, chain.assets(), workspace, words)?,
        }
        let mut written = 0;
        for &(memory, storage) in &input.targets {
            let bytes = input.elements * storage.dtype.bytes() as usize;
            let mut target = memories[memory].write().map_err(&unwritten)?;
            convert(computed, step::bytes_of(words), storage, &mut target[..bytes]);
            written += bytes as u64;
        }
        Ok(written)
    }

    fn run(
        &mut self,
        run: &ShardRun,
        step: Step<'_>,
        largest_logits: Option<NonZeroUsize>,
    ) -> Result<(), Stop> {
        let rows = step.valid;
        for copy in &run.copies {
            self.counters.boundaries[copy.boundary] += self.copy(copy, rows)?;
        }
        let chain = self.chain.clone();
        let mut executor = chain.executor(run.shard);
        let running = self.cancel.during(chain.canceller(run.shard));
        // Checked only here, because an earlier request would have found no run to interrupt.
        if self.cancel.is_requested() {
            return Err(Stop::Cancelled);
        }
        let options = RunOptions { deadline: self.time_left()?, largest_logits };
        let bindings = run.bindings.iter();
        let mut bound: Vec<Bound<'_>> =
            bindings.map(|binding| Bound::BufferAt(&self.memories[binding.memory], binding.offset)).collect();
        let start = Instant::now();
        let result = executor.run(run.entry, rows, &mut bound, options);
        let (runs, nanoseconds) = &mut self.counters.shards[run.shard];
        *runs += 1;
        *nanoseconds += u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        drop(running);
        drop(executor);
        result?;
        for boundary in &run.boundary_rows {
            self.clear_tail(boundary, rows)?;
        }
        for placed in &run.placed_rows {
            self.counters.states[placed.id] += self.place(placed, step.position, rows)?;
        }
        Ok(())
    }

    /// Zeroes the rows beyond the valid ones, whose contents are undefined. A shim may multiply
    /// them by zero, as masks in primitives do, and must not find infinities or NaN there.
    fn clear_tail(&self, boundary: &BoundaryRows, rows: u64) -> Result<(), ShimError> {
        if rows >= boundary.rows {
            return Ok(());
        }
        let mut bytes = self.memories[boundary.memory].write()?;
        let (block, valid) =
            ((boundary.rows * boundary.row_bytes) as usize, (rows * boundary.row_bytes) as usize);
        for block in bytes.chunks_exact_mut(block).take(boundary.blocks as usize) {
            boundary.storage.fill_zero(&mut block[valid..]);
        }
        Ok(())
    }

    /// Zeroes the state rows of a failed run, whose contents are undefined, so that masked products
    /// find no infinities or NaN. Inaccessible memory is skipped.
    pub(crate) fn clear_state_rows(&self, position: usize, rows: usize) {
        for plan in &self.chain.layout().states {
            let Some(memory) = plan.memory.and_then(|memory| self.memories.get(memory)) else { continue };
            let Ok(mut bytes) = memory.write() else { continue };
            let capacity = plan.capacity as usize;
            let row_bytes = plan.row_bytes as usize;
            for position in position..position + rows {
                let start = position % capacity * row_bytes;
                plan.storage.fill_zero(&mut bytes[start..start + row_bytes]);
            }
        }
    }

    /// Zeroes all state rows after a shim lost them.
    pub(crate) fn clear_states(&self) {
        for plan in &self.chain.layout().states {
            let Some(memory) = plan.memory.and_then(|memory| self.memories.get(memory)) else { continue };
            if let Ok(mut bytes) = memory.write() {
                plan.storage.fill_zero(&mut bytes);
            }
        }
    }

    /// Returns an error if cancellation was requested, and clears the request, or if the deadline
    /// has passed. `position` is the number of complete positions.
    pub(crate) fn interrupted(&self, position: usize) -> Result<(), SessionError> {
        if self.cancel.is_requested() {
            self.cancel.reset();
            return Err(SessionError::Cancelled { position });
        }
        self.time_left().map(drop).map_err(|_| SessionError::Deadline { position })
    }

    fn time_left(&self) -> Result<Option<Duration>, Stop> {
        let Some(deadline) = self.deadline else { return Ok(None) };
        match deadline.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => Ok(Some(left)),
            _ => Err(Stop::Deadline),
        }
    }

    /// Copies the valid rows of each block and returns the bytes written.
    fn copy(&mut self, copy: &CopyPlan, rows: u64) -> Result<u64, ShimError> {
        let (from_size, to_size) =
            (copy.from_storage.dtype.bytes() as usize, copy.to_storage.dtype.bytes() as usize);
        let (block, valid) = ((copy.rows * copy.width) as usize, (rows * copy.width) as usize);
        let source = self.memories[copy.from].read()?;
        let mut target = self.memories[copy.to].write()?;
        for index in 0..copy.blocks as usize {
            let from_start = copy.from_offset as usize + index * block * from_size;
            let to_start = index * block * to_size;
            convert(
                copy.from_storage,
                &source[from_start..from_start + valid * from_size],
                copy.to_storage,
                &mut target[to_start..to_start + valid * to_size],
            );
        }
        Ok(copy.blocks * valid as u64 * to_size as u64)
    }

    /// Writes new rows of a state to their slots and returns the bytes written. Consecutive slots
    /// are written together.
    fn place(&mut self, placed: &PlacedRows, position: u64, rows: u64) -> Result<u64, ShimError> {
        let width = placed.width as usize;
        let (from_size, to_size) = (
            width * placed.rows_storage.dtype.bytes() as usize,
            width * placed.state_storage.dtype.bytes() as usize,
        );
        let source = self.memories[placed.rows].read()?;
        let mut target = self.memories[placed.state].write()?;
        let mut row = 0;
        while row < rows {
            let slot = (position + row) % placed.capacity;
            let count = (rows - row).min(placed.capacity - slot);
            convert(
                placed.rows_storage,
                &source[row as usize * from_size..(row + count) as usize * from_size],
                placed.state_storage,
                &mut target[slot as usize * to_size..(slot + count) as usize * to_size],
            );
            row += count;
        }
        Ok(rows * to_size as u64)
    }

    /// Reads the first `elements` values of a result as f32.
    pub(crate) fn read(
        &self,
        located: &Located,
        elements: usize,
        values: &mut Vec<f32>,
    ) -> Result<(), ShimError> {
        let bytes = elements * located.storage.dtype.bytes() as usize;
        values.resize(elements, 0.0);
        widen(located.storage, &self.bytes(located)?[..bytes], values);
        Ok(())
    }

    /// Returns the first shard of a step that passed a NaN or infinity to a later shard in its
    /// first `rows` rows, otherwise the last shard.
    pub(crate) fn first_not_finite(&self, schedule: usize, rows: u64) -> usize {
        let runs = &self.chain.layout().schedules[schedule].runs;
        let gave = |run: &&ShardRun| run.boundary_rows.iter().any(|boundary| !self.is_finite(boundary, rows));
        runs.iter().find(gave).unwrap_or(&runs[runs.len() - 1]).shard
    }

    /// Checks whether all values are finite. Unreadable memory counts as finite.
    fn is_finite(&self, boundary: &BoundaryRows, rows: u64) -> bool {
        let Ok(bytes) = self.memories[boundary.memory].read() else { return true };
        let (block, valid) =
            ((boundary.rows * boundary.row_bytes) as usize, (rows * boundary.row_bytes) as usize);
        let mut values = vec![0.0; valid / boundary.storage.dtype.bytes() as usize];
        bytes.chunks_exact(block).take(boundary.blocks as usize).all(|block| {
            widen(boundary.storage, &block[..valid], &mut values);
            values.iter().all(|value| value.is_finite())
        })
    }

    /// Creates the error for an unreadable result. Reading the result is part of the last run.
    pub(crate) fn not_read(&self, schedule: usize, position: usize, source: ShimError) -> SessionError {
        let plan = &self.chain.layout().schedules[schedule];
        failed(&self.chain, plan.runs[plan.runs.len() - 1].shard, during(plan, position), source)
    }

    /// Returns the bytes of a result. No run can write the result while it is borrowed.
    pub(crate) fn bytes(&self, located: &Located) -> Result<BufferRead, ShimError> {
        self.memories[located.memory].read()
    }
}

/// Returns the entry point and the first position of a run, for messages.
fn during(plan: &Schedule, position: usize) -> String {
    format!("{} at position {position}", plan.name)
}

fn failed(chain: &Chain, shard: usize, during: String, source: ShimError) -> SessionError {
    let shard = &chain.description().shards[shard];
    SessionError::Run {
        shard: shard.name.clone(),
        place: Box::new(shard.place.clone()),
        during,
        source: Box::new(source),
    }
}
