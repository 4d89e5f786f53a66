//! A plain evaluator in f64: the meaning of every operation, with one readable arm each.

use std::collections::HashMap;

use shardwright_shim_abi::raw::*;

use crate::memory::Bound;
use crate::tables::{Attribute, Builder, Node};

/// A dense tensor.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub shape: Vec<usize>,
    /// Values in row-major order.
    pub data: Vec<f64>,
}

fn integer(node: &Node, name: &str) -> i64 {
    node.attributes
        .iter()
        .find_map(|attribute| match attribute {
            Attribute::Integer(key, value) if *key == name => Some(*value),
            _ => None,
        })
        .expect("an integer attribute")
}

fn float(node: &Node, name: &str) -> f64 {
    node.attributes
        .iter()
        .find_map(|attribute| match attribute {
            Attribute::Float(key, value) if *key == name => Some(*value),
            _ => None,
        })
        .expect("a float attribute")
}

fn integers(node: &Node, name: &str) -> Vec<usize> {
    node.attributes
        .iter()
        .find_map(|attribute| match attribute {
            Attribute::Integers(key, values) if *key == name => {
                Some(values.iter().map(|v| *v as usize).collect())
            }
            _ => None,
        })
        .expect("a list attribute")
}

fn is_text(node: &Node, name: &str, expected: &str) -> bool {
    node.attributes
        .iter()
        .any(|attribute| *attribute == Attribute::Text(leak_name(name), leak_name(expected)))
}

fn leak_name(name: &str) -> &'static str {
    name.to_owned().leak()
}

impl Tensor {
    fn map(&self, f: impl Fn(f64) -> f64) -> Tensor {
        Tensor { shape: self.shape.clone(), data: self.data.iter().map(|v| f(*v)).collect() }
    }

    fn last(&self) -> usize {
        *self.shape.last().expect("a last axis")
    }

    /// Returns the value at an index. Missing axes and axes of extent 1 are broadcast.
    fn at(&self, index: &[usize]) -> f64 {
        self.data[self.place(index)]
    }

    fn place(&self, index: &[usize]) -> usize {
        let skip = index.len() - self.shape.len();
        self.shape.iter().enumerate().fold(0, |place, (axis, extent)| {
            place * extent + if *extent == 1 { 0 } else { index[axis + skip] }
        })
    }
}

fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut out = vec![Vec::new()];
    for extent in shape {
        out = out
            .into_iter()
            .flat_map(|index| {
                (0..*extent).map(move |at| {
                    let mut index = index.clone();
                    index.push(at);
                    index
                })
            })
            .collect();
    }
    out
}

fn by_last(x: &Tensor, f: impl Fn(&[f64]) -> Vec<f64>) -> Tensor {
    let data: Vec<f64> = x.data.chunks(x.last()).flat_map(f).collect();
    let mut shape = x.shape.clone();
    *shape.last_mut().expect("a last axis") = data.len() * x.last() / x.data.len();
    Tensor { shape, data }
}

/// Computes the values of every tensor. `bound` contains inputs and states. `rows` rows are valid.
///
/// Operands are decoded, an operation is computed in f64 and rounded to f32, and the result is
/// encoded with its tensor's encoding.
pub fn evaluate_all(builder: &Builder, rows: usize, bound: &HashMap<String, Bound>) -> HashMap<u32, Tensor> {
    let mut tensors: HashMap<u32, Tensor> = HashMap::new();
    let shape_of = |tensor: u32| {
        builder.tensors[tensor as usize].shape.iter().map(|e| *e as usize).collect::<Vec<usize>>()
    };
    for port in &builder.inputs {
        let data = bound[&port.name].read(builder.tensors[port.tensor as usize].encoding);
        tensors.insert(port.tensor, Tensor { shape: shape_of(port.tensor), data });
    }
    for (tensor, weight) in &builder.constants {
        let data = weight.values.iter().map(|v| f64::from(*v)).collect();
        tensors.insert(*tensor, Tensor { shape: shape_of(*tensor), data });
    }
    for node in &builder.nodes {
        let inputs: Vec<&Tensor> = node.inputs.iter().map(|input| &tensors[input]).collect();
        let shape = shape_of(node.outputs[0]);
        let result = match node.op {
            SW_OP_DYNAMIC_LINEAR => dynamic_linear(builder, node, &inputs),
            SW_OP_MAT_MUL => mat_mul(builder, node, &inputs, &shape),
            _ => one(node, &inputs, &shape, rows),
        };
        assert_eq!(result.shape, shape, "op {}", node.op);
        let output = node.outputs[0];
        let encoding = builder.tensors[output as usize].encoding;
        tensors.insert(output, result.map(|value| encoding.hold(value)));
    }
    tensors
}

/// Computes the output values by port name, see [`evaluate_all`].
pub fn evaluate(builder: &Builder, rows: usize, bound: &HashMap<String, Bound>) -> HashMap<String, Tensor> {
    let tensors = evaluate_all(builder, rows, bound);
    builder.outputs.iter().map(|port| (port.name.clone(), tensors[&port.tensor].clone())).collect()
}

/// Computes `y = s · Σ q · (scale · w − minimum) (+ bias)`. Rows are quantised to eight bits as a
/// whole (version 1) or block by block (version 2).
fn dynamic_linear(builder: &Builder, node: &Node, inputs: &[&Tensor]) -> Tensor {
    let (_, weight) =
        builder.constants.iter().find(|(tensor, _)| *tensor == node.inputs[1]).expect("a constant");
    let [n, k] = [inputs[1].shape[0], inputs[1].shape[1]];
    let block = if node.version == 1 { k } else { integer(node, "block") as usize };
    by_last(inputs[0], |row| {
        let mut sums = vec![0.0; n];
        for (index, values) in row.chunks(block).enumerate() {
            let largest = values.iter().fold(1e-30f32, |largest, value| largest.max(value.abs() as f32));
            let scale = largest * (1.0f32 / 127.0);
            let q = values.iter().map(|value| f64::from((*value as f32 / scale).round_ties_even()));
            let q: Vec<f64> = q.collect();
            for (output, sum) in sums.iter_mut().enumerate() {
                let first = output * k + index * block;
                let value = |(at, (w, scale)): (usize, &(i32, f32))| {
                    let minimum = weight.minimums.get(first + at).copied().unwrap_or(0.0);
                    f64::from(*w) * f64::from(*scale) - f64::from(minimum)
                };
                let values = weight.stored[first..][..q.len()].iter().enumerate().map(value);
                let terms = q.iter().zip(values).map(|(q, value)| q * value);
                *sum += f64::from(scale) * terms.sum::<f64>();
            }
        }
        let bias = |output| inputs.get(2).map_or(0.0, |bias| bias.data[output]);
        sums.iter().enumerate().map(|(output, sum)| sum + bias(output)).collect()
    })
}

/// Computes a matrix product. Products of integers are summed exactly and multiplied by their
/// scales once.
fn mat_mul(builder: &Builder, node: &Node, inputs: &[&Tensor], shape: &[usize]) -> Tensor {
    let transposed = integer(node, "transpose_b") == 1;
    let [a, b] = [0, 1].map(|place| steps(builder, node.inputs[place], inputs[place], transposed));
    let data = match (a, b) {
        (Some((a, a_scales)), Some((b, b_scales))) if a_scales.len() == 1 => {
            let columns = shape[shape.len() - 1];
            let scale = |column: usize| f64::from(b_scales[if b_scales.len() == 1 { 0 } else { column }]);
            let sums = products(&a, &b, shape, transposed).into_iter().enumerate();
            sums.map(|(at, sum)| sum * (f64::from(a_scales[0]) * scale(at % columns))).collect()
        }
        _ => products(inputs[0], inputs[1], shape, transposed),
    };
    Tensor { shape: shape.to_vec(), data }
}

/// Returns the integer values of a factor (minus the zero point) and its scale. A matrix whose rows
/// are columns of the result has one scale per row. Returns `None` for other factors.
fn steps(builder: &Builder, tensor: u32, values: &Tensor, transposed: bool) -> Option<(Tensor, Vec<f32>)> {
    let tensor_of = |data| Tensor { shape: values.shape.clone(), data };
    let Some((_, weight)) = builder.constants.iter().find(|(constant, _)| *constant == tensor) else {
        let (scale, _) = builder.tensors[tensor as usize].encoding.affine?;
        let data = values.data.iter().map(|value| (value / f64::from(scale)).round()).collect();
        return Some((tensor_of(data), vec![scale]));
    };
    let rows = || weight.stored.chunks(values.last());
    let mut scales: Vec<f32> = rows().map(|row| row[0].1).collect();
    let uniform = rows().zip(&scales).all(|(row, scale)| row.iter().all(|(_, other)| other == scale));
    if scales.iter().all(|scale| *scale == scales[0]) {
        scales.truncate(1);
    }
    let fits =
        scales.len() == 1 || (transposed && scales.len() == values.shape[0] && values.shape.len() == 2);
    (uniform && fits)
        .then(|| (tensor_of(weight.stored.iter().map(|(steps, _)| f64::from(*steps)).collect()), scales))
}

fn products(x: &Tensor, y: &Tensor, shape: &[usize], transposed: bool) -> Vec<f64> {
    let step = if transposed { 1 } else { y.last() };
    let one = |mut index: Vec<usize>| {
        let rank = index.len();
        let column = std::mem::take(&mut index[rank - 1]);
        let a = x.place(&index);
        (index[rank - 2], index[rank - 1]) = if transposed { (column, 0) } else { (0, column) };
        let b = y.place(&index);
        (0..x.last()).map(|k| x.data[a + k] * y.data[b + k * step]).sum()
    };
    indices(shape).into_iter().map(one).collect()
}

fn one(node: &Node, inputs: &[&Tensor], shape: &[usize], rows: usize) -> Tensor {
    let x = inputs[0];
    let pair = |f: fn(f64, f64) -> f64| Tensor {
        shape: shape.to_vec(),
        data: indices(shape).iter().map(|index| f(x.at(index), inputs[1].at(index))).collect(),
    };
    match node.op {
        SW_OP_LINEAR => {
            let w = inputs[1];
            let [n, k] = [w.shape[0], w.shape[1]];
            by_last(x, |row| {
                (0..n)
                    .map(|output| {
                        let sum: f64 = (0..k).map(|at| row[at] * w.data[output * k + at]).sum();
                        sum + inputs.get(2).map_or(0.0, |bias| bias.data[output])
                    })
                    .collect()
            })
        }
        SW_OP_RMS_NORM => {
            let (width, eps, offset) =
                (integer(node, "width") as usize, float(node, "eps"), float(node, "weight_offset"));
            let data = x
                .data
                .chunks(width)
                .flat_map(|group| {
                    let mean: f64 = group.iter().map(|v| v * v).sum::<f64>() / width as f64;
                    group
                        .iter()
                        .enumerate()
                        .map(|(at, v)| {
                            v / (mean + eps).sqrt() * inputs.get(1).map_or(1.0, |w| w.data[at] + offset)
                        })
                        .collect::<Vec<f64>>()
                })
                .collect();
            Tensor { shape: shape.to_vec(), data }
        }
        SW_OP_ROPE => {
            let (d, pairs) = (integer(node, "head_dim") as usize, integer(node, "rotated_pairs") as usize);
            let (theta, factor) = (float(node, "theta"), float(node, "factor"));
            let mut out = x.clone();
            for (row, position) in inputs[1].data.iter().enumerate() {
                for head in 0..x.last() / d {
                    for pair in 0..pairs {
                        let angle = position * theta.powf(-2.0 * pair as f64 / d as f64) / factor;
                        let at = row * x.last() + head * d + pair;
                        let (a, b) = (x.data[at], x.data[at + d / 2]);
                        out.data[at] = a * angle.cos() - b * angle.sin();
                        out.data[at + d / 2] = b * angle.cos() + a * angle.sin();
                    }
                }
            }
            out
        }
        SW_OP_ROTATE => {
            let d = integer(node, "head_dim") as usize;
            let mut out = x.clone();
            for (row, values) in out.data.chunks_exact_mut(x.last()).enumerate() {
                for head in values.chunks_exact_mut(d) {
                    for pair in 0..d / 2 {
                        let (a, b) = (head[pair], head[pair + d / 2]);
                        let [cos, sin] = [1, 2].map(|table: usize| inputs[table].data[row * d / 2 + pair]);
                        (head[pair], head[pair + d / 2]) = (a * cos - b * sin, b * cos + a * sin);
                    }
                }
            }
            out
        }
        SW_OP_ATTENTION => attention(node, inputs, rows),
        SW_OP_GELU => x.map(|v| {
            0.5 * v * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (v + 0.044715 * v * v * v)).tanh())
        }),
        SW_OP_SILU => x.map(|v| v / (1.0 + (-v).exp())),
        SW_OP_SOFTCAP => x.map(|v| float(node, "cap") * (v / float(node, "cap")).tanh()),
        SW_OP_SOFTMAX => by_last(x, |row| {
            let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = row.iter().map(|v| (v - largest).exp()).sum();
            row.iter().map(|v| (v - largest).exp() / sum).collect()
        }),
        SW_OP_STATE_UPDATE => {
            let mut out = x.clone();
            let width = x.last();
            for row in 0..rows {
                let slot = inputs[2].data[row];
                if slot >= 0.0 {
                    let at = slot as usize * width;
                    out.data[at..at + width].copy_from_slice(&inputs[1].data[row * width..(row + 1) * width]);
                }
            }
            out
        }
        SW_OP_L2_NORMALIZE => by_last(x, |row| {
            let length = row.iter().map(|v| v * v).sum::<f64>().sqrt().max(1e-12);
            row.iter().map(|v| v / length).collect()
        }),
        SW_OP_LAYER_NORM => by_last(x, |row| {
            let count = row.len() as f64;
            let mean = row.iter().sum::<f64>() / count;
            let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count;
            let normed = row.iter().map(|v| (v - mean) / (variance + float(node, "eps")).sqrt());
            let of = |place: usize, at: usize, without| inputs.get(place).map_or(without, |of| of.data[at]);
            normed.enumerate().map(|(at, v)| v * of(1, at, 1.0) + of(2, at, 0.0)).collect()
        }),
        SW_OP_AXIAL_ROPE => {
            let (d, theta) = (integer(node, "head_dim") as usize, float(node, "theta"));
            let mut out = x.clone();
            for (at, head) in out.data.chunks_exact_mut(d).enumerate() {
                let row = at / (x.last() / d);
                for (half, coordinate) in head.chunks_exact_mut(d / 2).zip(&inputs[1..]) {
                    for pair in 0..d / 4 {
                        let angle = coordinate.data[row] * theta.powf(-4.0 * pair as f64 / d as f64);
                        let (a, b) = (half[pair], half[pair + d / 4]);
                        half[pair] = a * angle.cos() - b * angle.sin();
                        half[pair + d / 4] = b * angle.cos() + a * angle.sin();
                    }
                }
            }
            out
        }
        SW_OP_RELATIVE_ATTENTION => relative_attention(node, inputs),
        SW_OP_CONVOLUTION => convolution(node, x, inputs[1], shape),
        SW_OP_DEPTHWISE_CONVOLUTION => {
            let kernel = inputs[1].last();
            let of = |index: &Vec<usize>| {
                let (row, channel) = (index[0], index[1]);
                let places = (0..kernel).filter(|place| row + place + 1 >= kernel);
                let product =
                    |place| inputs[1].at(&[channel, place]) * x.at(&[row + place + 1 - kernel, channel]);
                places.map(product).sum()
            };
            Tensor { shape: shape.to_vec(), data: indices(shape).iter().map(of).collect() }
        }
        SW_OP_CLAMP => x.map(|v| v.max(inputs[1].data[0]).min(inputs[2].data[0])),
        SW_OP_SIGMOID => x.map(|v| 1.0 / (1.0 + (-v).exp())),
        SW_OP_GLU => by_last(x, |row| {
            let (values, gates) = row.split_at(row.len() / 2);
            values.iter().zip(gates).map(|(value, gate)| value / (1.0 + (-gate).exp())).collect()
        }),
        SW_OP_MEAN_ROWS => {
            let rows = integer(node, "rows") as usize;
            let of = |index: &Vec<usize>| {
                let sum: f64 = (0..rows).map(|row| x.at(&[index[0] * rows + row, index[1]])).sum();
                sum / rows as f64
            };
            Tensor { shape: shape.to_vec(), data: indices(shape).iter().map(of).collect() }
        }
        SW_OP_MAX => pair(f64::max),
        SW_OP_MIN => pair(f64::min),
        SW_OP_ADD => pair(|a, b| a + b),
        SW_OP_SUB => pair(|a, b| a - b),
        SW_OP_MUL => pair(|a, b| a * b),
        SW_OP_DIV => pair(|a, b| a / b),
        SW_OP_ADD_SCALAR => x.map(|v| v + float(node, "value")),
        SW_OP_MUL_SCALAR => x.map(|v| v * float(node, "value")),
        SW_OP_MAX_SCALAR => x.map(|v| v.max(float(node, "value"))),
        SW_OP_NEG => x.map(|v| -v),
        SW_OP_EXP => x.map(f64::exp),
        SW_OP_TANH => x.map(f64::tanh),
        SW_OP_SQRT => x.map(f64::sqrt),
        SW_OP_RSQRT => x.map(|v| 1.0 / v.sqrt()),
        SW_OP_RECIPROCAL => x.map(|v| 1.0 / v),
        SW_OP_ROUND => x.map(f64::round_ties_even),
        SW_OP_CONVERT => x.clone(),
        SW_OP_REDUCE_SUM => by_last(x, |row| vec![row.iter().sum()]),
        SW_OP_REDUCE_MEAN => by_last(x, |row| vec![row.iter().sum::<f64>() / row.len() as f64]),
        SW_OP_REDUCE_MAX => by_last(x, |row| vec![row.iter().copied().fold(f64::NEG_INFINITY, f64::max)]),
        SW_OP_RESHAPE => Tensor { shape: shape.to_vec(), data: x.data.clone() },
        SW_OP_TRANSPOSE => {
            let perm = integers(node, "perm");
            let data = indices(shape)
                .iter()
                .map(|index| {
                    let mut from = vec![0; index.len()];
                    perm.iter().zip(index).for_each(|(axis, at)| from[*axis] = *at);
                    x.at(&from)
                })
                .collect();
            Tensor { shape: shape.to_vec(), data }
        }
        SW_OP_SLICE => {
            let (axis, start) = (integer(node, "axis") as usize, integer(node, "start") as usize);
            let data = indices(shape)
                .into_iter()
                .map(|mut index| {
                    index[axis] += start;
                    x.at(&index)
                })
                .collect();
            Tensor { shape: shape.to_vec(), data }
        }
        SW_OP_CONCAT => {
            let axis = integer(node, "axis") as usize;
            let data = indices(shape)
                .into_iter()
                .map(|mut index| {
                    let mut part = 0;
                    while index[axis] >= inputs[part].shape[axis] {
                        index[axis] -= inputs[part].shape[axis];
                        part += 1;
                    }
                    inputs[part].at(&index)
                })
                .collect();
            Tensor { shape: shape.to_vec(), data }
        }
        other => panic!("op {other}"),
    }
}

fn attention(node: &Node, inputs: &[&Tensor], rows: usize) -> Tensor {
    let [q, k, v, positions] = [inputs[0], inputs[1], inputs[2], inputs[3]];
    let (heads, kv_heads, d) = (
        integer(node, "heads") as usize,
        integer(node, "kv_heads") as usize,
        integer(node, "head_dim") as usize,
    );
    let (scale, cap, window) = (float(node, "scale"), float(node, "softcap"), integer(node, "window"));
    let (causal, state) = (integer(node, "causal") == 1, is_text(node, "keys", "state"));
    let capacity = k.shape[0] as i64;
    let products = match node.version {
        1 => Products::F32,
        _ if is_text(node, "products", "bf16") => Products::Bf16,
        _ if is_text(node, "products", "f16") => Products::F16,
        other => panic!("products of attention in version {other}"),
    };
    let [q, k, v] = [q, k, v].map(|operand| operand.map(|value| products.round(value)));
    let mut out = q.map(|_| 0.0);
    for row in 0..rows {
        let position = positions.data[row] as i64;
        let seen: Vec<usize> = (0..capacity)
            .filter(|slot| {
                if state {
                    let stored = position - (position - slot).rem_euclid(capacity);
                    stored >= 0 && (window == 0 || stored > position - window)
                } else {
                    let (row, key) = (row as i64, *slot);
                    key < rows as i64
                        && (!causal || key <= row)
                        && (window == 0 || (row - key).abs() < window)
                }
            })
            .map(|slot| slot as usize)
            .collect();
        for head in 0..heads {
            let kv = head / (heads / kv_heads);
            let query = &q.data[(row * heads + head) * d..][..d];
            let scores: Vec<f64> = seen
                .iter()
                .map(|slot| {
                    let key = &k.data[(slot * kv_heads + kv) * d..][..d];
                    let score = query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>() * scale;
                    if cap == 0.0 { score } else { cap * (score / cap).tanh() }
                })
                .collect();
            let block = |slot: usize| match state {
                true => (position - (position - slot as i64).rem_euclid(capacity)) / KEYS_OF_BLOCK,
                false => slot as i64 / KEYS_OF_BLOCK,
            };
            let blocks: Vec<i64> = seen.iter().map(|slot| block(*slot)).collect();
            let weights = products.weights(&scores, &blocks);
            let sum: f64 = weights.iter().sum();
            for at in 0..d {
                let of =
                    |(slot, weight): (&usize, &f64)| weight / sum * v.data[(slot * kv_heads + kv) * d + at];
                out.data[(row * heads + head) * d + at] = seen.iter().zip(&weights).map(of).sum();
            }
        }
    }
    out
}

/// Positions of a block of keys, in version 2 of attention.
const KEYS_OF_BLOCK: i64 = 64;

/// Type of the operands of an attention's products.
#[derive(Clone, Copy)]
enum Products {
    F32,
    Bf16,
    F16,
}

impl Products {
    fn round(self, value: f64) -> f64 {
        match self {
            Products::F32 => value,
            Products::Bf16 => half::bf16::from_f32(value as f32).to_f64(),
            Products::F16 => half::f16::from_f32(value as f32).to_f64(),
        }
    }

    /// Returns the weight of every score. Rounded ones are relative to the largest score of their
    /// block.
    fn weights(self, scores: &[f64], blocks: &[i64]) -> Vec<f64> {
        let largest = |block: Option<i64>| {
            let of = scores.iter().zip(blocks).filter(|(_, own)| block.is_none_or(|block| block == **own));
            of.map(|(score, _)| *score).fold(f64::NEG_INFINITY, f64::max)
        };
        let all = largest(None);
        let weight = |(score, block): (&f64, &i64)| match self {
            Products::F32 => (score - all).exp(),
            _ => {
                let own = largest(Some(*block));
                self.round((score - own).exp()) * (own - all).exp()
            }
        };
        scores.iter().zip(blocks).map(weight).collect()
    }
}

/// Computes attention in which row i sees the rows from i − window + 1 to i, with the scores
/// `q_i · k_j + distances[i − j]`.
fn relative_attention(node: &Node, inputs: &[&Tensor]) -> Tensor {
    let [q, k, v, by_distance] = [inputs[0], inputs[1], inputs[2], inputs[3]];
    let (d, cap) = (integer(node, "head_dim") as usize, float(node, "softcap"));
    let width = q.last();
    let window = by_distance.last() / (width / d);
    let mut out = q.map(|_| 0.0);
    for (at, out) in out.data.chunks_exact_mut(d).enumerate() {
        let (row, first) = (at / (width / d), at % (width / d) * d);
        let seen: Vec<usize> = ((row + 1).saturating_sub(window)..=row).collect();
        let score = |key: &usize| {
            let product = |at| q.at(&[row, at]) * k.at(&[*key, at]);
            let column = first / d * window + window - 1 - (row - key);
            let score = (first..first + d).map(product).sum::<f64>() + by_distance.at(&[row, column]);
            if cap == 0.0 { score } else { cap * (score / cap).tanh() }
        };
        let scores: Vec<f64> = seen.iter().map(score).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let sum: f64 = weights.iter().sum();
        for (index, out) in out.iter_mut().enumerate() {
            let mixed = seen.iter().zip(&weights).map(|(key, weight)| weight * v.at(&[*key, first + index]));
            *out = mixed.sum::<f64>() / sum;
        }
    }
    out
}

/// Computes a 2-D convolution. The columns of the weight are ordered by channel, then kernel row,
/// then kernel column.
fn convolution(node: &Node, x: &Tensor, weight: &Tensor, shape: &[usize]) -> Tensor {
    let [kernel, stride, padding] = ["kernel", "stride", "padding"].map(|name| integer(node, name) as usize);
    let of = |index: &Vec<usize>| {
        let product = |at: usize| {
            let (channel, within) = (at / (kernel * kernel), at % (kernel * kernel));
            let place = [index[0] * stride + within / kernel, index[1] * stride + within % kernel];
            let inside = |axis: usize| place[axis].checked_sub(padding).filter(|at| *at < x.shape[axis]);
            match (inside(0), inside(1)) {
                (Some(row), Some(column)) => weight.at(&[index[2], at]) * x.at(&[row, column, channel]),
                _ => 0.0,
            }
        };
        (0..weight.last()).map(product).sum()
    };
    Tensor { shape: shape.to_vec(), data: indices(shape).iter().map(of).collect() }
}
