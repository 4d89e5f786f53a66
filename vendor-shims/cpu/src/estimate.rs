//! Estimates the time of an entry with a model, for planners that have no measurement yet.

use shardwright_shim_abi::raw::SW_DTYPE_F32;
use shardwright_shim_abi::{Estimate, Provenance, WeightView};

use crate::lower::Graph;
use crate::ops::{Operation, Rounding, recognise};

/// Multiply-adds per core and microsecond: a core of 3 GHz with two 8-wide units reaches 48 000,
/// half of it in practice.
const MULTIPLY_ADDS: u64 = 24_000;
/// Byte multiply-adds per core and microsecond: a vector holds four times as many bytes as floats.
/// With 128 rows, AVX-512 with VNNI was measured at 2.7 to 3.1 times the rate of floats with
/// AVX-512.
const BYTE_MULTIPLY_ADDS: u64 = 3 * MULTIPLY_ADDS;
/// Byte multiply-adds per core and microsecond with a scale for every block of a row. Measured like
/// [`BYTE_MULTIPLY_ADDS`], at 0.70 to 0.74 of that rate.
const BLOCK_MULTIPLY_ADDS: u64 = 2 * MULTIPLY_ADDS;
/// Bytes per microsecond from main memory for all cores together. A phone or a small server core
/// reaches 10 GB/s or more.
const BYTES: u64 = 10_000;
/// Values per core and microsecond of elementwise steps, which are limited by the cache.
const VALUES: u64 = 1_000;

/// Estimates the time of a graph. For each node it uses the longer of compute time at the cores'
/// rate and transfer time at the memory's bandwidth, and adds up all nodes.
pub fn estimate(graph: &Graph<'_>, threads: u64) -> Estimate {
    let threads = threads.max(1);
    let mut nanoseconds = 0u64;
    let mut moved = 0u64;
    let mut uncosted = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        let Ok(operation) = recognise(graph, index) else {
            uncosted.push(index as u64);
            continue;
        };
        let elements = |tensor: u32| graph.tensors[tensor as usize].elements() as u64;
        let outputs: u64 = node.outputs().iter().map(|output| elements(*output)).fold(0, u64::saturating_add);
        let weights: u64 = node
            .inputs()
            .flatten()
            .filter_map(|input| graph.tensors[input as usize].weight().map(|weight| stored_bytes(&weight)))
            .fold(0, u64::saturating_add);
        let last = |place| {
            graph.input(index, place).and_then(|tensor| tensor.shape.last().copied()).unwrap_or(1) as u64
        };
        let (multiply_adds, values, bytes) = match operation {
            Operation::Linear { rounding } => {
                let rate = match rounding {
                    Rounding::None => MULTIPLY_ADDS,
                    Rounding::Rows => BYTE_MULTIPLY_ADDS,
                    Rounding::Blocks(_) => BLOCK_MULTIPLY_ADDS,
                };
                (outputs.saturating_mul(last(0)).div_ceil(rate / MULTIPLY_ADDS), 0, weights)
            }
            Operation::MatMul { .. } => (outputs.saturating_mul(last(0)), 0, weights),
            Operation::Attention { heads, window, .. } => {
                let keys = graph.input(index, 1).map_or(0, |keys| keys.shape[0]) as u64;
                let seen = if window == 0 { keys } else { keys.min(window) };
                let element = |place| {
                    let encoding = graph.input(index, place).and_then(|tensor| tensor.encoding);
                    encoding.map_or(4, |encoding| encoding.element.bytes()) as u64
                };
                let row = (element(1) + element(2)) * (heads.kv_heads * heads.head_dim) as u64;
                let state = seen.saturating_mul(row);
                (outputs.saturating_mul(seen).saturating_mul(2), 0, state)
            }
            Operation::RelativeAttention(relative) => {
                let seen = relative.window.min(graph.input(index, 1).map_or(0, |keys| keys.shape[0])) as u64;
                (outputs.saturating_mul(seen).saturating_mul(2), 0, weights)
            }
            Operation::Convolution(_) | Operation::Depthwise { .. } => {
                (outputs.saturating_mul(last(1)), outputs, weights)
            }
            Operation::MeanRows { rows } => (0, outputs.saturating_mul(rows as u64), 0),
            // The state is updated in place, so only the new rows move.
            Operation::StateUpdate => (0, graph.input(index, 1).map_or(0, |new| new.elements()) as u64, 0),
            Operation::Reshape => (0, 0, 0),
            _ => (0, outputs, weights),
        };
        let compute = multiply_adds.saturating_mul(1000) / (MULTIPLY_ADDS * threads)
            + values.saturating_mul(1000) / (VALUES * threads);
        let memory = bytes.saturating_mul(1000) / BYTES;
        nanoseconds = nanoseconds.saturating_add(compute.max(memory));
        moved = moved.saturating_add(bytes);
    }
    Estimate {
        time_microseconds: nanoseconds.div_ceil(1000),
        provenance: Provenance::Modelled,
        bytes_moved: moved,
        uncosted,
        operations: 0,
        artefact_bytes: 0,
        shared_bytes: 0,
    }
}

/// Returns the bytes of a weight with its scales.
fn stored_bytes(weight: &WeightView<'_>) -> u64 {
    let scales = weight.quantisation().map_or(0, |quantisation| {
        let width = if quantisation.scale_dtype() == SW_DTYPE_F32 { 4 } else { 2 };
        quantisation.scale_count().saturating_mul(width)
    });
    weight.length().saturating_add(scales)
}
