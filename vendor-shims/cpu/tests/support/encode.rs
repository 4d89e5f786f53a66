//! What encodings hold, written apart from the shim: in f64, and with the arithmetic of each type spelled out.

use std::collections::HashMap;

use shardwright_shim_abi::raw::*;

use super::evaluate::Tensor;
use super::host::Bound;
use super::tables::Builder;

/// Smallest and largest stored integer.
pub fn range(dtype: u32) -> Option<(i32, i32)> {
    match dtype {
        SW_DTYPE_U16 => Some((0, 65535)),
        SW_DTYPE_I16 => Some((-32768, 32767)),
        SW_DTYPE_U8 => Some((0, 255)),
        SW_DTYPE_I8 => Some((-128, 127)),
        _ => None,
    }
}

/// To so many bits of a fraction, with so small an exponent at least; ties to even.
fn rounded(value: f64, fraction: i32, least: i32) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let exponent = value.abs().log2().floor() as i32;
    // The logarithm of a value just below a power of two may be rounded up to it.
    let exponent = if 2f64.powi(exponent) > value.abs() { exponent - 1 } else { exponent };
    let step = 2f64.powi(exponent.max(least) - fraction);
    (value / step).round_ties_even() * step
}

/// The stored integer for a value.
fn raw(dtype: u32, (scale, zero_point): (f32, i32), value: f64) -> i32 {
    let (low, high) = range(dtype).expect("integers");
    let steps = f64::from((value as f32 / scale).round_ties_even());
    (steps + f64::from(zero_point)).clamp(low.into(), high.into()) as i32
}

/// What a tensor makes of a value.
pub fn hold(builder: &Builder, tensor: u32, value: f64) -> f64 {
    match (builder.tensors[tensor as usize].1, builder.affine.get(&tensor)) {
        (SW_DTYPE_F32, _) => f64::from(value as f32),
        (SW_DTYPE_F16, _) => rounded(f64::from(value as f32).clamp(-65504.0, 65504.0), 10, -14),
        (SW_DTYPE_BF16, _) => rounded(f64::from(value as f32), 7, -126),
        (dtype, Some(affine)) => f64::from((raw(dtype, *affine, value) - affine.1) as f32 * affine.0),
        (dtype, None) => panic!("a value of type {dtype}"),
    }
}

/// One step of a tensor's encoding near a value.
pub fn step(builder: &Builder, tensor: u32, value: f64) -> f64 {
    let relative = |fraction: i32, least: f64| value.abs().max(least) * 2f64.powi(-fraction);
    match (builder.tensors[tensor as usize].1, builder.affine.get(&tensor)) {
        (SW_DTYPE_F16, _) => relative(10, 2f64.powi(-14)),
        (SW_DTYPE_BF16, _) => relative(7, 2f64.powi(-126)),
        (_, Some(affine)) => f64::from(affine.0),
        _ => 0.0,
    }
}

/// Values as the memory of a tensor.
pub fn store(builder: &Builder, tensor: u32, values: &[f32]) -> Bound {
    let dtype = builder.tensors[tensor as usize].1;
    let held = |value: &f32| hold(builder, tensor, f64::from(*value)) as f32;
    match (dtype, builder.affine.get(&tensor)) {
        (SW_DTYPE_F32, _) => Bound::F32(values.to_vec()),
        (SW_DTYPE_F16, _) => {
            Bound::U16(values.iter().map(|v| shardwright_shim_cpu::simd::narrow_f16(held(v))).collect())
        }
        (SW_DTYPE_BF16, _) => Bound::U16(values.iter().map(|v| (held(v).to_bits() >> 16) as u16).collect()),
        (SW_DTYPE_U16 | SW_DTYPE_I16, Some(affine)) => {
            Bound::U16(values.iter().map(|v| raw(dtype, *affine, f64::from(*v)) as u16).collect())
        }
        (_, Some(affine)) => {
            Bound::U8(values.iter().map(|v| raw(dtype, *affine, f64::from(*v)) as u8).collect())
        }
        (dtype, None) => panic!("a value of type {dtype}"),
    }
}

/// The values that memory stands for as a tensor.
pub fn read(builder: &Builder, tensor: u32, bound: &Bound) -> Vec<f64> {
    let dtype = builder.tensors[tensor as usize].1;
    let (scale, zero_point) = builder.affine.get(&tensor).copied().unwrap_or((1.0, 0));
    let value = |raw: i32| f64::from((raw - zero_point) as f32 * scale);
    match bound {
        Bound::F32(values) => values.iter().map(|v| f64::from(*v)).collect(),
        Bound::I32(values) => values.iter().map(|v| f64::from(*v)).collect(),
        Bound::U16(bits) => bits
            .iter()
            .map(|bits| match dtype {
                SW_DTYPE_F16 => f64::from(shardwright_shim_cpu::simd::widen_f16(*bits)),
                SW_DTYPE_BF16 => f64::from(f32::from_bits(u32::from(*bits) << 16)),
                SW_DTYPE_I16 => value(i32::from(*bits as i16)),
                _ => value(i32::from(*bits)),
            })
            .collect(),
        Bound::U8(bits) if dtype == SW_DTYPE_I8 => bits.iter().map(|b| value(i32::from(*b as i8))).collect(),
        Bound::U8(bits) => bits.iter().map(|bits| value(i32::from(*bits))).collect(),
    }
}

/// Lowest and highest value seen.
pub type Ends = (f64, f64);

/// Widens the ends of every tensor by what one evaluation gave.
pub fn observe(seen: &mut HashMap<u32, Ends>, tensors: &HashMap<u32, Tensor>) {
    for (tensor, values) in tensors {
        let ends = seen.entry(*tensor).or_insert((0.0, 0.0));
        for value in values.data.iter().filter(|value| value.is_finite()) {
            *ends = (ends.0.min(*value), ends.1.max(*value));
        }
    }
}

/// Scale and zero point that cover the ends; none for floats.
pub fn affine(dtype: u32, (low, high): Ends) -> Option<(f32, i32)> {
    let (least, most) = range(dtype)?;
    if least == 0 {
        let scale = ((high - low).max(1e-6) / f64::from(most)) as f32;
        return Some((scale, (-low / f64::from(scale)).round() as i32));
    }
    Some(((low.abs().max(high).max(1e-6) / f64::from(most)) as f32, 0))
}

/// Which tensors that only move into each other must share an encoding, by tensor: the smallest of them.
fn classes(builder: &Builder) -> Vec<u32> {
    let mut of: Vec<u32> = (0..builder.tensors.len() as u32).collect();
    let moves = [SW_OP_RESHAPE, SW_OP_TRANSPOSE, SW_OP_SLICE, SW_OP_CONCAT, SW_OP_STATE_UPDATE];
    for node in builder.nodes.iter().filter(|node| moves.contains(&node.op)) {
        for input in &node.inputs {
            let constant = builder.constants.iter().any(|(tensor, _)| tensor == input);
            if builder.tensors[*input as usize].1 == SW_DTYPE_F32 && !constant {
                let (a, b) = (of[*input as usize], of[node.outputs[0] as usize]);
                of.iter_mut()
                    .filter(|class| **class == a || **class == b)
                    .for_each(|class| *class = a.min(b));
            }
        }
    }
    of
}

/// Encodes every tensor of values as `activation`, states and what moves into them as `state`. `seen` are the ends of this entry's tensors,
/// `states` those of each state in all entries. Logits stay f32.
pub fn encode_all(
    builder: &mut Builder,
    (activation, state): (u32, u32),
    seen: &HashMap<u32, Ends>,
    states: &HashMap<String, Ends>,
) {
    let of = classes(builder);
    let outputs = builder.outputs.clone();
    for class in 0..of.len() as u32 {
        let members: Vec<u32> = (0..of.len() as u32).filter(|tensor| of[*tensor as usize] == class).collect();
        let is_value = |tensor: &u32| {
            let constant = builder.constants.iter().any(|(held, _)| held == tensor);
            builder.tensors[*tensor as usize].1 == SW_DTYPE_F32 && !constant
        };
        let logits =
            |tensor: &u32| outputs.iter().any(|port| port.tensor == *tensor && port.role == SW_ROLE_LOGITS);
        if members.is_empty() || !members.iter().all(is_value) || members.iter().any(logits) {
            continue;
        }
        let name = builder
            .inputs
            .iter()
            .find(|port| port.role == SW_ROLE_STATE && members.contains(&port.tensor))
            .map(|port| port.name.clone());
        let dtype = if name.is_some() { state } else { activation };
        let ends = match name {
            Some(name) => states[&name],
            None => members
                .iter()
                .filter_map(|tensor| seen.get(tensor))
                .fold((0.0, 0.0), |ends: Ends, held| (ends.0.min(held.0), ends.1.max(held.1))),
        };
        for tensor in members {
            builder.encode(tensor, dtype, affine(dtype, ends));
        }
    }
}
