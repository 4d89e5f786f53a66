//! A loaded part of a model, and its buffers.

use std::collections::BTreeMap;

use shardwright_graph::{Asset, Role, StateId};
use shardwright_reference::step::{Step, step_input};
use shardwright_shims::{Bound, Buffer, Direction, LoadedEntry, LoadedShard, Port, RunOptions};
use shardwright_vocabulary::{DType, Error, ErrorKind, Result};

/// A part that can run.
pub(crate) struct LoadedPart {
    name: String,
    shard: LoadedShard,
    entry: LoadedEntry,
    /// By binding.
    buffers: Vec<Buffer>,
    /// The keys of the residual stream on both sides, where it is looked at.
    pub entering: Option<String>,
    pub leaving: Option<String>,
}

/// What a part reads of one sequence, from its first token on.
pub(crate) struct Given<'g> {
    pub ids: &'g [u32],
    pub assets: &'g [Asset],
    /// `[T, H]`
    pub stream: &'g [f32],
    /// `[layers, T, P]`, all layers.
    pub per_layer: &'g [f32],
    /// `[T, W]` each.
    pub states: &'g BTreeMap<StateId, Vec<f32>>,
    /// Derivatives by the outputs of the part, by name of the tap; others are zero.
    pub gradients: &'g BTreeMap<String, Vec<f32>>,
}

impl LoadedPart {
    pub fn new(name: String, shard: LoadedShard) -> Result<Self> {
        let entry = shard.entries().first().cloned().ok_or_else(|| {
            Error::new(ErrorKind::Shim, format!("{name}: what the shim compiled has no entry point"))
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

    /// Runs one sequence from its beginning and shows every result: its role, its values, and how
    /// many rows those are: of what has one for each token, and of states, those of the sequence.
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
                    // Rows of a layer before this one; what this one writes itself is not there.
                    let known = given.states.get(state).map_or(&[][..], Vec::as_slice);
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
                        .map_err(|error| {
                            let help = error.help().map(|help| help.to_string());
                            Error::caused_by(ErrorKind::Internal, error, help)
                        })?
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
            let all = port.shape.iter().product::<u64>() as usize;
            let (shown, count) = match (&port.role, &port.shape[..]) {
                (Role::PerLayer { .. }, [layers, ..]) | (Role::Tap { .. }, [layers, _, _]) => {
                    let block = all / (*layers as usize).max(1);
                    let valid = block / of as usize * rows;
                    let blocks = floats[..all].chunks_exact(block.max(1));
                    (blocks.flat_map(|block| block[..valid].iter().copied()).collect(), rows)
                }
                // The rows of positions from 0 on lie in the first slots.
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
    let [_, of, width] = port.shape[..] else { return Err(unusable(part, port)) };
    let (own, all) = (rows * width as usize, of as usize * width as usize);
    bytes.fill(0);
    let floats = floats_mut(part, port, bytes)?;
    for (values, into) in values.chunks_exact(own.max(1)).zip(floats.chunks_mut(all.max(1))) {
        into[..own].copy_from_slice(values);
    }
    Ok(())
}

/// Writes values to the beginning of a port's memory, and zeros behind them.
fn put(part: &str, port: &Port, bytes: &mut [u8], values: &[f32]) -> Result<()> {
    bytes.fill(0);
    let floats = floats_mut(part, port, bytes)?;
    match floats.get_mut(..values.len()) {
        Some(into) => into.copy_from_slice(values),
        None => return Err(unusable(part, port)),
    }
    Ok(())
}

fn floats<'b>(part: &str, port: &Port, bytes: &'b [u8]) -> Result<&'b [f32]> {
    let whole = &bytes[..bytes.len() / 4 * 4];
    match port.dtype {
        DType::F32 => bytemuck::try_cast_slice(whole).map_err(|_| unusable(part, port)),
        _ => Err(unusable(part, port)),
    }
}

fn floats_mut<'b>(part: &str, port: &Port, bytes: &'b mut [u8]) -> Result<&'b mut [f32]> {
    let length = bytes.len() / 4 * 4;
    match port.dtype {
        DType::F32 => bytemuck::try_cast_slice_mut(&mut bytes[..length]).map_err(|_| unusable(part, port)),
        _ => Err(unusable(part, port)),
    }
}

fn unusable(part: &str, port: &Port) -> Error {
    let what = format!(
        "{part}: port `{}` ({}) holds {} where f32 in plain memory is needed",
        port.name,
        port.role.name(),
        port.dtype
    );
    Error::new(ErrorKind::Unsupported, what)
        .with_help("a model is looked into on the CPU shim; name one that binds plain memory")
}
