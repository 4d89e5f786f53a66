//! Runs a checked program over bound memory.

mod mapped;
mod memory;
mod stage;

use std::sync::Arc;
use std::time::Duration;

use shardwright_shim_abi::{Buffer, Control, Error, HostBuffer, Run, typed};

pub use mapped::{packed, split, tiles};
use memory::{Base, Memory};
pub use stage::{Stage, Ways};

use crate::artefact::Artefact;
use crate::error::{limit, out_of_memory};
use crate::kernels::attention::{Block, Visible};
use crate::kernels::integer;
use crate::ops;
use crate::pool::Pool;
use crate::program::{MAX_VALUES, Program, VALUE_BYTES};
use crate::simd::Level;
use crate::simd::dot::DotLevel;

/// Zeroed f32 values that start on a cache line. Pages that no step touches are never backed by
/// memory.
struct Values {
    buffer: HostBuffer,
    count: usize,
}

const LINE: usize = 64;

impl Values {
    fn new(what: &'static str, count: u64) -> Result<Values, Error> {
        let bytes = count * VALUE_BYTES;
        let buffer = HostBuffer::new(bytes as usize, LINE).map_err(|_| out_of_memory(what, bytes))?;
        Ok(Values { buffer, count: count as usize })
    }

    fn pointer(&self) -> *mut f32 {
        self.buffer.pointer().cast()
    }
}

/// A loaded program with its weights in place and its memory allocated.
pub struct Engine<'m> {
    program: Program,
    weights: &'m [u8],
    constants: &'m [f32],
    arena: Values,
    scratch: Values,
    pool: Arc<Pool>,
    level: Level,
    dot: DotLevel,
    ways: Ways,
    /// Buffer reused by all runs.
    visible: Vec<Visible>,
    blocks: Vec<Block>,
    bases: Bases,
}

/// Tensors bound for a run, valid only during that run.
#[derive(Default)]
struct Bases(Vec<Base>);

// SAFETY: the addresses are used only by the run that wrote them, under its borrow of the engine.
unsafe impl Send for Bases {}

impl<'m> Engine<'m> {
    /// Allocates the memory that the program planned. Weights stay in the mapped artefact.
    pub fn new(
        artefact: Artefact<'m>,
        pool: Arc<Pool>,
        level: Level,
        ways: Ways,
    ) -> Result<Engine<'m>, Error> {
        let Artefact { program, weights, .. } = artefact;
        let dot = DotLevel::within(level);
        let whole = weights.len() / VALUE_BYTES as usize * VALUE_BYTES as usize;
        let constants = typed::<f32>(&weights[..whole])
            .map_err(|_| Error::invalid_argument("the artefact is not mapped at a page"))?;
        let arena = program.entries.iter().map(|entry| entry.arena).max().unwrap_or(0);
        let mut scratch = 0;
        for entry in &program.entries {
            for step in &entry.steps {
                let needed =
                    ops::scratch(step, entry, pool.threads()).filter(|values| *values as u64 <= MAX_VALUES);
                let needed = needed.ok_or_else(|| limit("scratch-values", u64::MAX, MAX_VALUES))?;
                scratch = scratch.max(needed);
            }
        }
        Ok(Engine {
            arena: Values::new("activations", arena)?,
            scratch: Values::new("scratch memory", scratch as u64)?,
            program,
            weights,
            constants,
            pool,
            level,
            dot,
            ways,
            visible: Vec::new(),
            blocks: Vec::new(),
            bases: Bases::default(),
        })
    }

    pub fn program(&self) -> &Program {
        &self.program
    }

    pub fn run(&mut self, mut run: Run<'_>) -> Result<(), Error> {
        let invalid = |reason: String| Error::invalid_argument(reason);
        let entry =
            self.program.entries.get(run.entry).ok_or_else(|| invalid(format!("no entry {}", run.entry)))?;
        let rows = run.rows;
        if rows == 0 || rows as u64 > entry.rows {
            return Err(invalid(format!("{rows} rows, expected 1 to {}", entry.rows)));
        }
        if run.bound.len() != entry.ports.len() {
            return Err(invalid(format!("{} bindings, {} expected", run.bound.len(), entry.ports.len())));
        }
        let bases = &mut self.bases.0;
        bases.clear();
        for (port, bound) in entry.ports.iter().zip(&mut run.bound) {
            let encoding = port.encoding;
            let (pointer, bytes) = if port.direction.is_writable() {
                let bytes = bound.bytes_mut()?;
                (bytes.as_mut_ptr(), bytes.len())
            } else {
                let bytes = bound.bytes();
                (bytes.as_ptr().cast_mut(), bytes.len())
            };
            let width = encoding.element.bytes();
            if !(pointer as usize).is_multiple_of(width) {
                return Err(invalid(format!("binding `{}` is not aligned to {width} bytes", port.name)));
            }
            let elements = bytes / width;
            if port.elements().is_none_or(|needed| needed > elements as u64) {
                return Err(invalid(format!(
                    "binding `{}` has {elements} values, expected {:?}",
                    port.name, port.shape
                )));
            }
            bases.push(Base { pointer, elements, encoding });
        }
        // SAFETY: the arena is owned, was zeroed, and only this run uses it. By the contract, bound
        // memory outlives the run and a written binding overlaps no other. `Artefact::read` checked
        // the program.
        let memory = unsafe { Memory::new(bases, self.constants, self.arena.pointer(), self.arena.count) };
        // SAFETY: the values are owned, and only this run uses them.
        let scratch = unsafe { std::slice::from_raw_parts_mut(self.scratch.pointer(), self.scratch.count) };
        let mut stage = Stage {
            entry,
            memory,
            weights: self.weights,
            scratch,
            pool: &self.pool,
            level: self.level,
            dot: self.dot,
            streams: self.ways.streams.unwrap_or_else(|| self.ways.tuning.streams()),
            ways: &self.ways,
            streamed: (0, Duration::ZERO),
            visible: &mut self.visible,
            blocks: &mut self.blocks,
            rows,
            largest: run.largest_logits,
        };
        steps(&mut stage, run.control)?;
        let (streams, (bytes, time)) = (stage.streams, stage.streamed);
        if bytes > 0 && self.ways.streams.is_none() {
            self.ways.tuning.streamed(streams, bytes, time);
        }
        Ok(())
    }
}

fn steps(stage: &mut Stage<'_, '_>, control: Control<'_>) -> Result<(), Error> {
    let entry = stage.entry;
    for (index, step) in entry.steps.iter().enumerate() {
        control.proceed()?;
        if stage.rows < integer::many(stage.dot) && ops::streamed(step).is_some() {
            // After the last step, the first step of the next token follows.
            let next = entry.steps[index + 1..].iter().chain(&entry.steps).find_map(ops::streamed);
            let pieces = next.unwrap_or_default();
            let weights = stage.weights;
            stage.pool.announce(pieces.map(|(offset, bytes)| &weights[offset as usize..][..bytes as usize]));
        }
        ops::execute(step, stage)?;
    }
    Ok(())
}
