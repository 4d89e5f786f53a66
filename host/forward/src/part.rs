//! A loaded part of a model, and its buffers.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use half::f16;
use shardwright_graph::{Asset, Role, StateId};
use shardwright_reference::step::{Step, step_input};
use shardwright_shims::{Bound, Buffer, Direction, LoadedEntry, LoadedShard, Port, RunOptions};
use shardwright_vocabulary::{DType, Encoding, Error, ErrorKind, Result};

/// A part that can run.
pub(crate) struct LoadedPart {
    name: String,
    shard: LoadedShard,
    entry: LoadedEntry,
    /// Buffers in the order of the bindings.
    buffers: Vec<Buffer>,
    /// The key of the residual stream at the input, if it is shown.
    pub entering: Option<String>,
    pub leaving: Option<String>,
}

/// The inputs of a part for one sequence, from its first token on.
pub(crate) struct Given<'g> {
    pub ids: &'g [u32],
    pub assets: &'g [Asset],
    /// The residual stream, `[T, H]`.
    pub stream: &'g [f32],
    /// The per-layer inputs of all layers, `[layers, T, P]`.
    pub per_layer: &'g [f32],
    /// The states, `[T, W]` each.
    pub states: &'g BTreeMap<StateId, Arc<Vec<f32>>>,
    /// Derivatives by the outputs of the part, by name of the tap. Missing ones are zero.
    pub gradients: &'g BTreeMap<String, Vec<f32>>,
}

impl LoadedPart {
    pub fn new(name: String, shard: LoadedShard) -> Result<Self> {
        let entry =
            shard.entries().first().cloned().ok_or_else(|| {
                Error::new(ErrorKind::Shim, "the shim's artefact has no entry point").at(&name)
            })?;
        let allocate = |binding: &shardwright_shims::Binding| -> Result<Buffer> {
            let buffer = shard.allocate(binding.bytes, binding.alignment.max(4))?;
            match buffer.is_mapped() && binding.strides.is_none() {
                true => Ok(buffer),
                false => Err(unusable(&name, &binding.port)),
            }
        };
        let buffers = entry.bindings.iter().map(allocate).collect::<Result<_>>()?;
        Ok(LoadedPart { name, shard, entry, buffers, entering: None, leaving: None })
    }

    /// Runs one sequence from its beginning and shows every result: its role, its values, and its
    /// number of rows. For values per token and for states, these are the rows of the sequence.
    pub fn run(&mut self, given: &Given<'_>, show: &mut dyn FnMut(&Role, &[f32], usize)) -> Result<()> {
        let rows = given.ids.len();
        let of = self.entry.interface.point.rows;
        let step = Step { first: 0, rows: rows as u64, of };
        for (binding, buffer) in self.entry.bindings.iter().zip(&self.buffers) {
            let port = &binding.port;
            let mut bytes = buffer.write()?;
            match (&port.role, port.direction) {
                (_, Direction::Output) => {}
                (Role::State { state }, _) => {
                    // Rows of an earlier layer. The rows that this part writes itself are missing.
                    let known = given.states.get(state).map_or(&[][..], |rows| rows.as_slice());
                    put(&self.name, port, &mut bytes, known)?;
                }
                (Role::Hidden, _) => put(&self.name, port, &mut bytes, given.stream)?,
                (Role::PerLayer { first, .. }, _) => {
                    let width = port.shape.last().copied().unwrap_or(0) as usize;
                    let before = (*first as usize).saturating_mul(rows * width);
                    let values = given.per_layer.get(before..).unwrap_or_default();
                    put_by_layer(&self.name, port, &mut bytes, values, rows)?;
                }
                (Role::Tap { name }, _) => {
                    let values = given.gradients.get(name).map_or(&[][..], Vec::as_slice);
                    match port.shape.len() {
                        3 => put_by_layer(&self.name, port, &mut bytes, values, rows)?,
                        _ => put(&self.name, port, &mut bytes, values)?,
                    }
                }
                (role, _) => {
                    let array = step_input(role, step, given.ids, given.assets)
                        .map_err(|error| error.with_kind(ErrorKind::Internal))?
                        .ok_or_else(|| unusable(&self.name, port))?;
                    if array.dtype().is_float() {
                        put(&self.name, port, &mut bytes, &array.floats())?;
                    } else {
                        let indices = bytemuck::cast_slice(array.integers());
                        bytes.fill(0);
                        bytes[..indices.len()].copy_from_slice(indices);
                    }
                }
            }
        }
        let mut bound: Vec<Bound<'_>> = self.buffers.iter().map(Bound::Buffer).collect();
        self.shard.run(0, rows as u64, &mut bound, RunOptions::default())?;
        drop(bound);
        for (binding, buffer) in self.entry.bindings.iter().zip(&self.buffers) {
            let port = &binding.port;
            if port.direction == Direction::Input {
                continue;
            }
            let bytes = buffer.read()?;
            let floats = floats(&self.name, port, &bytes)?;
            let floats = floats.as_ref();
            let all = port.shape.iter().product::<u64>() as usize;
            let (shown, count) = match (&port.role, &port.shape[..]) {
                (Role::PerLayer { .. }, [layers, ..]) | (Role::Tap { .. }, [layers, _, _]) => {
                    let block = all / (*layers as usize).max(1);
                    let valid = block / of as usize * rows;
                    let blocks = floats[..all].chunks_exact(block.max(1));
                    (blocks.flat_map(|block| block[..valid].iter().copied()).collect(), rows)
                }
                // The rows of positions from 0 on are in the first slots.
                (Role::State { .. } | Role::StateRows { .. }, [_, width]) => {
                    (floats[..(rows * *width as usize).min(all)].to_vec(), rows)
                }
                (_, [first, _, ..]) if *first == of => (floats[..all / of as usize * rows].to_vec(), rows),
                _ => (floats[..all].to_vec(), 1),
            };
            show(&port.role, &shown, count);
        }
        Ok(())
    }
}

/// Writes `[layers, rows, P]` to a port that has more rows.
fn put_by_layer(part: &str, port: &Port, bytes: &mut [u8], values: &[f32], rows: usize) -> Result<()> {
    let [layers, of, width] = port.shape[..] else { return Err(unusable(part, port)) };
    let (own, all) = (rows * width as usize, of as usize * width as usize);
    let mut padded = vec![0.0; all.saturating_mul(layers as usize)];
    for (values, into) in values.chunks_exact(own.max(1)).zip(padded.chunks_mut(all.max(1))) {
        into[..own].copy_from_slice(values);
    }
    put(part, port, bytes, &padded)
}

/// Writes values to the beginning of a port's memory in its encoding, followed by zeros.
fn put(part: &str, port: &Port, bytes: &mut [u8], values: &[f32]) -> Result<()> {
    if port.values() == Some(Encoding::F32) {
        bytes.fill(0);
        let whole = bytes.len() / 4 * 4;
        let floats: &mut [f32] =
            bytemuck::try_cast_slice_mut(&mut bytes[..whole]).map_err(|_| unusable(part, port))?;
        return match floats.get_mut(..values.len()) {
            Some(into) => {
                into.copy_from_slice(values);
                Ok(())
            }
            None => Err(unusable(part, port)),
        };
    }
    let stored = Stored::of(port).ok_or_else(|| unusable(part, port))?;
    let width = stored.width();
    let count = bytes.len() / width;
    if values.len() > count {
        return Err(unusable(part, port));
    }
    let behind = std::iter::repeat_n(0.0, count - values.len());
    for (value, into) in values.iter().copied().chain(behind).zip(bytes.chunks_exact_mut(width)) {
        stored.write(value, into);
    }
    Ok(())
}

/// Reads the values in a port's memory.
fn floats<'b>(part: &str, port: &Port, bytes: &'b [u8]) -> Result<Cow<'b, [f32]>> {
    if port.values() == Some(Encoding::F32) {
        let whole = &bytes[..bytes.len() / 4 * 4];
        return bytemuck::try_cast_slice(whole).map(Cow::Borrowed).map_err(|_| unusable(part, port));
    }
    let stored = Stored::of(port).ok_or_else(|| unusable(part, port))?;
    Ok(bytes.chunks_exact(stored.width()).map(|bytes| stored.read(bytes)).collect())
}

/// The encoding of a port that is not f32.
#[derive(Clone, Copy)]
struct Stored(Encoding);

impl Stored {
    /// Returns `None` for types that do not contain a value: packed weights and indices.
    fn of(port: &Port) -> Option<Self> {
        let encoding = port.values().filter(|encoding| encoding.element == port.dtype)?;
        let known = [DType::F16, DType::U16, DType::I16, DType::U8, DType::I8];
        known.contains(&encoding.element).then_some(Stored(encoding))
    }

    fn width(self) -> usize {
        match self.0.element {
            DType::U8 | DType::I8 => 1,
            _ => 2,
        }
    }

    fn write(self, value: f32, into: &mut [u8]) {
        match (self.0.element, into) {
            (DType::F16, into) => {
                into.copy_from_slice(&f16::from_f32(value / self.0.scale.get()).to_le_bytes());
            }
            (_, [byte]) => *byte = self.0.raw(value) as u8,
            (_, into) => into.copy_from_slice(&(self.0.raw(value) as u16).to_le_bytes()),
        }
    }

    fn read(self, bytes: &[u8]) -> f32 {
        let both = u16::from_le_bytes([bytes[0], bytes.get(1).copied().unwrap_or(0)]);
        match self.0.element {
            DType::F16 => f16::from_bits(both).to_f32() * self.0.scale.get(),
            DType::U16 | DType::U8 => self.0.value(i32::from(both)),
            DType::I16 => self.0.value(i32::from(both as i16)),
            _ => self.0.value(i32::from(both as u8 as i8)),
        }
    }
}

fn unusable(part: &str, port: &Port) -> Error {
    let message = format!("expected plain memory of floats or encoded integers, got {}", port.dtype);
    Error::unsupported(message)
        .at(format!("{part}: port `{}` ({})", port.name, port.role.name()))
        .with_help("use the CPU shim, or another shim that binds plain memory")
}
