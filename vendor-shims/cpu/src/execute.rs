//! Runs a checked program over bound memory.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use shardwright_shim_abi::{Buffer, Control, Error, HostBuffer, Run, typed};

use crate::artefact::Artefact;
use crate::error::{limit, out_of_memory};
use crate::kernels::attention::{self, Everyone, Operands, Visible, attention_of_all};
use crate::kernels::axial::{Tables, axial_rope};
use crate::kernels::elementwise::{binary, gated, glu, unary};
use crate::kernels::encoding::{Encoding, Stored, StoredMut, decode, encode, nearest};
use crate::kernels::integer::split::{Split, split_linear};
use crate::kernels::integer::{self, Map, Streams, Tiles, integer_linear};
use crate::kernels::linear::{self, Finish, Maps, PanelData, PanelType, Panels, Scales, Sizes};
use crate::kernels::norm::{l2_normalize, layer_norm, rms_norm, softmax};
use crate::kernels::pooling::mean_rows;
use crate::kernels::reduce::reduce;
use crate::kernels::relative::{self, relative_attention};
use crate::kernels::rotary::{rope, rotary_table};
use crate::kernels::shape::{state_update, strided_copy};
use crate::kernels::{convolution, depthwise};
use crate::pool::{PIECES, Pool};
use crate::program::{
    AttentionKeys, DynamicMap, Entry, MAX_MAPS, MAX_VALUES, Operand, PackedScales, PackedSplit, PackedTiles,
    PackedWeights, Place, Program, Step, VALUE_BYTES,
};
use crate::simd::Level;
use crate::simd::dot::DotLevel;
use crate::tuning::{Shape, Tuning};

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

/// Selects how byte products are computed. No selection changes a bit of a result.
pub struct Ways {
    /// Measurements that find the fastest way.
    pub tuning: Arc<Tuning>,
    /// Streams for one row, if a flag sets them.
    pub streams: Option<Streams>,
    /// Instructions for many rows, if a flag sets them.
    pub products: Option<DotLevel>,
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
    blocks: Vec<attention::Block>,
    bases: Bases,
}

/// Tensors bound for a run, valid only during that run.
#[derive(Default)]
struct Bases(Vec<Base>);

// SAFETY: the addresses are used only by the run that wrote them, under its borrow of the engine.
unsafe impl Send for Bases {}

/// Address, number of elements, and encoding of a bound tensor.
#[derive(Clone, Copy)]
struct Base {
    pointer: *mut u8,
    elements: usize,
    encoding: Encoding,
}

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
                    scratch_values(entry, step, pool.threads()).filter(|values| *values as u64 <= MAX_VALUES);
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
            return Err(invalid(format!("{rows} rows, 1 to {} are possible", entry.rows)));
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
                    "binding `{}` has {elements} values, {:?} expected",
                    port.name, port.shape
                )));
            }
            bases.push(Base { pointer, elements, encoding });
        }
        let memory = Memory {
            bases,
            constants: self.constants,
            arena: self.arena.pointer(),
            arena_values: self.arena.count,
        };
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
        stage.steps(run.control)?;
        let (streams, (bytes, time)) = (stage.streams, stage.streamed);
        if bytes > 0 && self.ways.streams.is_none() {
            self.ways.tuning.streamed(streams, bytes, time);
        }
        Ok(())
    }
}

/// Returns the number of scratch values that a step needs, or `None` on overflow.
fn scratch_values(entry: &Entry, step: &Step, threads: usize) -> Option<usize> {
    match step {
        Step::Attention { heads, window, keys, k, v, rows, .. } => {
            let rows = rows.most(entry.rows)?;
            let keys = match *keys {
                AttentionKeys::State { capacity } if *window > 0 => capacity.min(*window),
                AttentionKeys::State { capacity } => capacity,
                AttentionKeys::Rows { .. } => rows,
            };
            let encoded = [k, v].iter().any(|operand| is_encoded(entry, **operand));
            let keys = usize::try_from(keys).ok()?;
            match sees_all(entry, step) {
                true => attention::scratch_of_all(*heads, keys, threads),
                false => attention::scratch_values(*heads, keys, threads, encoded),
            }
        }
        Step::MatMul { sizes: [m, k, n], transpose_b, .. } => linear::scratch_values(Sizes {
            m: usize::try_from(*m).ok()?,
            k: usize::try_from(*k).ok()?,
            n: usize::try_from(*n).ok()?,
            transpose_b: *transpose_b,
        }),
        Step::DynamicLinear { maps, rows, block, .. } => {
            let rows = usize::try_from(rows.most(entry.rows)?).ok()?;
            integer::scratch_values(maps.first()?.weights.rows(*block)?, rows, threads)
        }
        Step::SplitLinear { weights, rows, .. } => {
            let rows = usize::try_from(rows.most(entry.rows)?).ok()?;
            integer::split::scratch_values(usize::try_from(weights.inputs).ok()?, rows, threads)
        }
        Step::RelativeAttention { relative, rows, .. } => {
            let rows = usize::try_from(rows.most(entry.rows)?).ok()?;
            relative::scratch_values(*relative, rows, threads)
        }
        Step::Convolution { plane, .. } => convolution::scratch_values(*plane, threads),
        Step::Depthwise { sizes: [channels, kernel], .. } => {
            depthwise::scratch_values(usize::try_from(*channels).ok()?, usize::try_from(*kernel).ok()?)
        }
        _ => Some(0),
    }
}

fn is_encoded(entry: &Entry, operand: Operand) -> bool {
    match operand.place {
        Place::Bound(port) => entry.ports.get(port as usize).is_none_or(|port| !port.encoding.is_direct()),
        _ => false,
    }
}

/// Checks whether a step is an attention of unencoded rows that all see each other.
fn sees_all(entry: &Entry, step: &Step) -> bool {
    let Step::Attention { window: 0, keys: AttentionKeys::Rows { causal: false }, k, v, .. } = step else {
        return false;
    };
    ![k, v].iter().any(|operand| is_encoded(entry, **operand))
}

/// Returns the mapped panels of a checked program.
fn packed<'m>(section: &'m [u8], weights: &PackedWeights) -> Result<Panels<'m>, Error> {
    let [panels, scales] = weights.bytes().unwrap_or_default();
    let bytes = &section[weights.offset as usize..][..panels as usize];
    let data = match weights.kind {
        PanelType::F32 => PanelData::F32(typed(bytes)?.as_chunks().0),
        PanelType::Bf16 => PanelData::Bf16(typed(bytes)?.as_chunks().0),
        PanelType::F16 => PanelData::F16(typed(bytes)?.as_chunks().0),
        PanelType::I8 => PanelData::I8(typed(bytes)?.as_chunks().0),
        PanelType::I4 => PanelData::I4(bytes.as_chunks().0),
        PanelType::I2 => PanelData::I2(bytes.as_chunks().0),
    };
    let scales = packed_scales(section, weights.scales, scales)?;
    Ok(Panels { data, scales, inputs: weights.inputs as usize, outputs: weights.outputs as usize })
}

/// Returns the mapped tiles of a checked program.
fn tiles<'m>(section: &'m [u8], weights: &PackedTiles) -> Result<Tiles<'m>, Error> {
    let [bytes, scales] = weights.bytes();
    Ok(Tiles {
        kind: weights.kind,
        data: &section[weights.offset as usize..][..bytes as usize],
        scales: packed_scales(section, weights.scales, scales)?,
        inputs: weights.inputs as usize,
        outputs: weights.outputs as usize,
    })
}

/// Returns the mapped weights in two parts of a checked program.
fn split<'m>(section: &'m [u8], weights: &PackedSplit) -> Result<Split<'m>, Error> {
    let [high, low, spread, scales] =
        weights.parts().map(|(offset, bytes)| &section[offset as usize..][..bytes as usize]);
    let (inputs, outputs) = (weights.inputs as usize, weights.outputs as usize);
    Ok(Split { high, low, spread, scales: typed(scales)?, inputs, outputs })
}

fn packed_scales(section: &[u8], scales: PackedScales, bytes: u64) -> Result<Scales<'_>, Error> {
    let part = |offset: u64| &section[offset as usize..][..bytes as usize];
    Ok(match scales {
        PackedScales::None => Scales::None,
        PackedScales::PerOutput { offset } => Scales::PerOutput(typed(part(offset))?),
        PackedScales::PerBlock { offset, size } => {
            let values = typed(part(offset))?.as_chunks().0;
            Scales::PerBlock { size: size as usize, values }
        }
        PackedScales::Affine { offset, size, zero, minimum, half } => {
            let values = match half {
                true => Maps::F16(typed(part(offset))?.as_chunks().0),
                false => Maps::F32(typed(part(offset))?.as_chunks().0),
            };
            Scales::Affine { size: size as usize, zero, minimum, values }
        }
    })
}

/// Addresses of operands during one run.
#[derive(Clone, Copy)]
struct Memory<'r> {
    bases: &'r [Base],
    constants: &'r [f32],
    arena: *mut f32,
    arena_values: usize,
}

impl<'r> Memory<'r> {
    /// Returns the address, number of elements, and encoding of an operand.
    fn locate(&self, operand: Operand) -> (*mut u8, usize, Encoding) {
        let (pointer, available, encoding) = match operand.place {
            Place::Arena => (self.arena.cast(), self.arena_values, Encoding::F32),
            Place::Constant => {
                (self.constants.as_ptr().cast_mut().cast(), self.constants.len(), Encoding::F32)
            }
            Place::Bound(port) => {
                let Base { pointer, elements, encoding } = self.bases[port as usize];
                (pointer, elements, encoding)
            }
        };
        let (offset, elements) = (operand.offset as usize, operand.elements as usize);
        assert!(offset <= available && elements <= available - offset, "the program was checked");
        // SAFETY: the range is inside the place, by the assertion above.
        (unsafe { pointer.add(offset * encoding.element.bytes()) }, elements, encoding)
    }

    /// Returns the address and number of elements of an unencoded operand.
    fn direct(&self, operand: Operand) -> (*mut f32, usize) {
        let (pointer, elements, encoding) = self.locate(operand);
        assert!(encoding.is_direct(), "the program was checked");
        (pointer.cast(), elements)
    }

    fn stored(&self, operand: Operand) -> Stored<'r> {
        let (pointer, elements, encoding) = self.locate(operand);
        // SAFETY: as `read`.
        let bytes = unsafe { std::slice::from_raw_parts(pointer, elements * encoding.element.bytes()) };
        Stored::new(encoding, bytes).expect("checked and aligned when it was bound")
    }

    /// # Safety
    /// See [`Memory::write`].
    unsafe fn stored_mut(&self, operand: Operand) -> StoredMut<'r> {
        let (pointer, elements, encoding) = self.locate(operand);
        // SAFETY: as `read`, and exclusive by the caller's promise.
        let bytes = unsafe { std::slice::from_raw_parts_mut(pointer, elements * encoding.element.bytes()) };
        StoredMut::new(encoding, bytes).expect("checked and aligned when it was bound")
    }

    fn read(&self, operand: Operand) -> &'r [f32] {
        let (pointer, elements) = self.direct(operand);
        // SAFETY: the memory is initialised and outlives the run. The check of the program proved
        // that no step writes memory that it reads, and by the contract a written binding overlaps
        // no other.
        unsafe { std::slice::from_raw_parts(pointer, elements) }
    }

    fn read_i32(&self, operand: Operand) -> &'r [i32] {
        let (pointer, elements) = self.direct(operand);
        // SAFETY: as `read`, and every bit pattern is a valid i32.
        unsafe { std::slice::from_raw_parts(pointer.cast(), elements) }
    }

    /// # Safety
    /// The operand must be in writable memory and must not overlap any other operand of this step.
    unsafe fn write(&self, operand: Operand) -> &'r mut [f32] {
        let (pointer, elements) = self.direct(operand);
        // SAFETY: as `read`, and exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(pointer, elements) }
    }
}

/// One run in progress.
struct Stage<'r, 'e> {
    entry: &'e Entry,
    memory: Memory<'r>,
    weights: &'r [u8],
    scratch: &'r mut [f32],
    pool: &'e Pool,
    level: Level,
    dot: DotLevel,
    streams: Streams,
    ways: &'e Ways,
    /// Bytes of weights read by products of one row, and the time of these products.
    streamed: (u64, Duration),
    visible: &'e mut Vec<Visible>,
    blocks: &'e mut Vec<attention::Block>,
    rows: usize,
    largest: Option<NonZeroUsize>,
}

impl Stage<'_, '_> {
    fn steps(&mut self, control: Control<'_>) -> Result<(), Error> {
        let entry = self.entry;
        for (index, step) in entry.steps.iter().enumerate() {
            control.proceed()?;
            if self.rows < integer::many(self.dot) && streamed(step).is_some() {
                // After the last step, the first step of the next token follows.
                let next = entry.steps[index + 1..].iter().chain(&entry.steps).find_map(streamed);
                let pieces = next.unwrap_or_default();
                self.pool.announce(
                    pieces.map(|(offset, bytes)| &self.weights[offset as usize..][..bytes as usize]),
                );
            }
            self.step(step)?;
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), Error> {
        let Stage { memory, level, dot, streams, pool, rows: valid, .. } = *self;
        let read = |operand: &Operand| memory.read(*operand);
        // SAFETY: `Program::check` proved for every step that it writes only writable memory that
        // is disjoint from the memory it reads.
        let write = |operand: &Operand| unsafe { memory.write(*operand) };
        match step {
            Step::Linear { x, rows, weights, bias, bounds, out } => {
                let panels = packed(self.weights, weights)?;
                let finish = Finish { bias: bias.as_ref().map(read), bounds: *bounds };
                linear::linear(level, pool, read(x), panels, finish, rows.at(valid), write(out));
            }
            Step::DynamicLinear { x, rows, block, maps } => {
                let block = block.map(|block| block as usize);
                let mut all = [const { None }; MAX_MAPS];
                for (slot, DynamicMap { weights, bias, bounds, out }) in all.iter_mut().zip(maps) {
                    let weights = tiles(self.weights, weights)?;
                    *slot = Some(Map {
                        weights,
                        bias: bias.as_ref().map(read),
                        bounds: *bounds,
                        out: write(out),
                    });
                }
                let rows = rows.at(valid);
                let bytes = |map: &DynamicMap| map.weights.bytes().iter().sum::<u64>();
                let shape = Shape {
                    rows,
                    inputs: maps.first().map_or(0, |map| map.weights.inputs),
                    outputs: maps.iter().map(|map| map.weights.outputs).sum(),
                    bytes: maps.iter().map(bytes).sum(),
                };
                let Ways { tuning, products, .. } = self.ways;
                let many = rows >= integer::many(dot);
                let dot = match many {
                    true => products.unwrap_or_else(|| tuning.products(shape)),
                    false => dot,
                };
                let begun = Instant::now();
                integer_linear(level, dot, streams, pool, read(x), block, all, rows, self.scratch);
                if rows == 1 {
                    self.streamed.0 += shape.bytes;
                    self.streamed.1 += begun.elapsed();
                } else if many && products.is_none() {
                    tuning.multiplied(shape, dot, begun.elapsed());
                }
            }
            Step::SplitLinear { x, rows, weights, cap, out } => {
                let split = split(self.weights, weights)?;
                split_linear(
                    level,
                    dot,
                    streams,
                    pool,
                    read(x),
                    split,
                    *cap,
                    self.largest,
                    rows.at(valid),
                    self.scratch,
                    write(out),
                );
            }
            Step::MatMul { a, b, out, sizes: [m, k, n], transpose_b, batch } => {
                let sizes =
                    Sizes { m: *m as usize, k: *k as usize, n: *n as usize, transpose_b: *transpose_b };
                linear::mat_mul(level, pool, sizes, batch, read(a), read(b), self.scratch, write(out));
            }
            Step::RmsNorm { norm, x, weight, residual, groups, out } => {
                rms_norm(
                    level,
                    pool,
                    *norm,
                    read(x),
                    weight.as_ref().map(read),
                    residual.as_ref().map(read),
                    groups.at(valid),
                    write(out),
                );
            }
            Step::L2Normalize { x, width, groups, out } => {
                l2_normalize(level, pool, read(x), *width as usize, groups.at(valid), write(out));
            }
            Step::Softmax { x, width, groups, out } => {
                softmax(level, pool, read(x), *width as usize, groups.at(valid), write(out));
            }
            Step::Reduce { kind, x, width, groups, out } => {
                reduce(level, pool, *kind, read(x), *width as usize, groups.at(valid), write(out));
            }
            Step::RotaryTable { positions, inverse, rows, cos, sin } => {
                rotary_table(
                    pool,
                    memory.read_i32(*positions),
                    read(inverse),
                    rows.at(valid),
                    write(cos),
                    write(sin),
                );
            }
            Step::Rope { x, cos, sin, sizes: [head_dim, heads, pairs], rows, out } => {
                let [head_dim, heads, pairs] = [*head_dim as usize, *heads as usize, *pairs as usize];
                rope(
                    level,
                    pool,
                    read(x),
                    read(cos),
                    read(sin),
                    head_dim,
                    heads,
                    pairs,
                    rows.at(valid),
                    write(out),
                );
            }
            Step::Attention { heads, q, k, v, rows, out, .. } if sees_all(self.entry, step) => {
                let operands = Everyone { q: read(q), k: read(k), v: read(v) };
                let rows = rows.at(valid);
                attention_of_all(level, pool, *heads, operands, rows, self.scratch, write(out));
            }
            Step::Attention { heads, window, keys, q, k, v, positions, rows, out } => {
                let rows = rows.at(valid);
                let capacity = self.see(*keys, *window, memory.read_i32(*positions), rows)?;
                let (k, v) = (memory.stored(*k), memory.stored(*v));
                let operands = Operands { q: read(q), k, v, capacity };
                attention::attention(
                    level,
                    pool,
                    *heads,
                    operands,
                    self.visible,
                    self.blocks,
                    self.scratch,
                    write(out),
                );
            }
            Step::Unary { kind, x, count, out } => {
                unary(level, pool, *kind, read(x), count.at(valid), write(out))
            }
            Step::Gated { kind, gate, up, count, out } => {
                gated(level, pool, *kind, read(gate), read(up), count.at(valid), write(out));
            }
            Step::Binary { kind, broadcast, outer, a, b, out } => {
                binary(level, pool, *kind, broadcast, outer.at(valid), read(a), read(b), write(out));
            }
            Step::Copy { copy, source, target } => strided_copy(copy, read(source), write(target)),
            Step::StateUpdate { state, width, new, slots, rows } => {
                let slots = &memory.read_i32(*slots)[..rows.at(valid)];
                // SAFETY: as `write`.
                let target = unsafe { memory.stored_mut(*state) };
                state_update(level, target, *width as usize, read(new), slots).map_err(|outside| {
                    let (row, slot, rows) = (outside.row, outside.slot, state.elements / width);
                    Error::invalid_argument(format!(
                        "row {row} goes to slot {slot}, the state has {rows} rows"
                    ))
                })?;
            }
            Step::Decode { source, count, out } => {
                decode(level, pool, memory.stored(*source), count.at(valid), write(out));
            }
            Step::Encode { x, count, target } => {
                // SAFETY: as `write`.
                encode(level, pool, read(x), count.at(valid), unsafe { memory.stored_mut(*target) });
            }
            Step::Nearest { encoding, count, values } => {
                nearest(level, pool, *encoding, count.at(valid), write(values));
            }
            Step::ZeroTail { target, valid: values } => write(target)[values.at(valid)..].fill(0.0),
            Step::LayerNorm { norm, x, weight, bias, groups, out } => {
                let [weight, bias] = [weight, bias].map(|values| values.as_ref().map(read));
                layer_norm(level, pool, *norm, read(x), weight, bias, groups.at(valid), write(out));
            }
            Step::AxialRope { x, cos, sin, sizes: [head_dim, heads], rows, out } => {
                let tables = [0, 1].map(|half| Tables { cos: read(&cos[half]), sin: read(&sin[half]) });
                let [head_dim, heads] = [*head_dim as usize, *heads as usize];
                axial_rope(level, pool, read(x), tables, head_dim, heads, rows.at(valid), write(out));
            }
            Step::RelativeAttention { relative, q, k, v, by_distance, rows, out } => {
                let operands =
                    relative::Operands { q: read(q), k: read(k), v: read(v), by_distance: read(by_distance) };
                let rows = rows.at(valid);
                relative_attention(level, pool, *relative, operands, rows, self.scratch, write(out));
            }
            Step::Convolution { plane, x, weights, height, rows, out } => {
                let panels = packed(self.weights, weights)?;
                let [height, rows] = [height.at(valid), rows.at(valid)];
                convolution::convolution(
                    level,
                    pool,
                    *plane,
                    read(x),
                    panels,
                    height,
                    rows,
                    self.scratch,
                    write(out),
                );
            }
            Step::Depthwise { x, weight, sizes: [channels, kernel], rows, out } => {
                let [channels, kernel] = [*channels as usize, *kernel as usize];
                let (x, weight, rows) = (read(x), read(weight), rows.at(valid));
                depthwise::depthwise(
                    level,
                    pool,
                    x,
                    weight,
                    channels,
                    kernel,
                    rows,
                    self.scratch,
                    write(out),
                );
            }
            Step::Glu { x, width, groups, out } => {
                glu(level, pool, read(x), *width as usize, groups.at(valid), write(out));
            }
            Step::MeanRows { x, sizes: [width, rows], valid: of, groups, out } => {
                let [width, rows] = [*width as usize, *rows as usize];
                mean_rows(level, pool, read(x), width, rows, of.at(valid), groups.at(valid), write(out));
            }
        }
        Ok(())
    }

    /// Stores the keys that each row sees in `self.visible`, and returns the number of rows of the
    /// keys.
    fn see(
        &mut self,
        keys: AttentionKeys,
        window: u64,
        positions: &[i32],
        rows: usize,
    ) -> Result<usize, Error> {
        let window = if window == 0 { u64::MAX } else { window };
        self.visible.clear();
        match keys {
            AttentionKeys::State { capacity } => {
                for (row, &position) in positions[..rows].iter().enumerate() {
                    let Ok(position) = u64::try_from(position) else {
                        let reason = format!("row {row} is at position {position}");
                        return Err(Error::invalid_argument(reason));
                    };
                    let count = (position + 1).min(window).min(capacity);
                    self.visible.push(Visible { start: position + 1 - count, count: count as usize });
                }
                Ok(capacity as usize)
            }
            AttentionKeys::Rows { causal } => {
                for row in 0..rows as u64 {
                    let start = (row + 1).saturating_sub(window);
                    let end = if causal { row + 1 } else { row.saturating_add(window).min(rows as u64) };
                    self.visible.push(Visible { start, count: (end - start) as usize });
                }
                Ok(rows)
            }
        }
    }
}

/// Returns offset and length in bytes, within the weight section, of the data that a step reads
/// once from front to back. Returns `None` for steps without such data.
fn streamed(step: &Step) -> Option<[(u64, u64); PIECES]> {
    let mut pieces = [(0, 0); PIECES];
    match step {
        Step::Linear { weights, .. } => pieces[0] = (weights.offset, weights.bytes()?[0]),
        Step::DynamicLinear { maps, .. } => {
            for (piece, DynamicMap { weights, .. }) in pieces.iter_mut().zip(maps) {
                *piece = (weights.offset, weights.bytes()[0]);
            }
        }
        Step::SplitLinear { weights, .. } => pieces[0] = weights.parts()[0],
        _ => return None,
    }
    Some(pieces)
}

const _: () = assert!(PIECES == MAX_MAPS);
