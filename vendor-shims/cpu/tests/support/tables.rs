//! Contract tables, leaked: a test process is short.

use std::collections::HashMap;
use std::ffi::{CString, c_char};
use std::ptr::null;

use shardwright_shim_abi::raw::*;

/// Index of a tensor.
pub type TensorId = u32;

/// Name and value.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    Integer(&'static str, i64),
    Float(&'static str, f32),
    Integers(&'static str, Vec<i64>),
    Text(&'static str, &'static str),
}

/// A weight and its values in f32; of integers, the stored ones and the scale of each too.
#[derive(Clone)]
pub struct Weight {
    pub raw: &'static SwWeight,
    pub values: Vec<f32>,
    pub stored: Vec<(i32, f32)>,
}

#[derive(Clone)]
pub struct Node {
    pub op: u32,
    pub version: u32,
    pub inputs: Vec<u32>,
    pub outputs: Vec<u32>,
    pub attributes: Vec<Attribute>,
    pub name: Option<String>,
}

#[derive(Clone)]
pub struct Port {
    pub name: String,
    pub role: u32,
    pub tensor: u32,
    pub index: u64,
    pub dtype: u32,
}

/// An entry in the making.
#[derive(Clone)]
pub struct Builder {
    pub name: String,
    pub kind: u32,
    pub rows: u64,
    pub context: u64,
    pub tensors: Vec<(String, u32, Vec<u64>)>,
    pub nodes: Vec<Node>,
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    pub constants: Vec<(u32, Weight)>,
    /// Scale and zero point of encoded tensors.
    pub affine: HashMap<u32, (f32, i32)>,
}

pub fn text(text: &str) -> *const c_char {
    CString::new(text).expect("no NUL in a test's text").into_raw()
}

pub fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

pub fn list<T: 'static>(items: Vec<T>) -> *const T {
    Box::leak(items.into_boxed_slice()).as_ptr()
}

fn size_of_struct<T>() -> u64 {
    size_of::<T>() as u64
}

/// A weight of the given stored type; values are rounded towards zero to it.
pub fn weight(name: &str, shape: &[u64], values: &[f32], dtype: u32) -> Weight {
    let (bytes, values): (Vec<u8>, Vec<f32>) = match dtype {
        SW_DTYPE_BF16 => {
            let raw: Vec<u16> = values.iter().map(|v| (v.to_bits() >> 16) as u16).collect();
            (
                raw.iter().flat_map(|v| v.to_le_bytes()).collect(),
                raw.iter().map(|v| f32::from_bits(u32::from(*v) << 16)).collect(),
            )
        }
        SW_DTYPE_F16 => {
            // Normal numbers only: keep ten bits of the fraction.
            let raw: Vec<u16> = values
                .iter()
                .map(|v| {
                    let bits = v.to_bits();
                    let exponent = ((bits >> 23) & 0xff) as i32 - 112;
                    let sign = (bits >> 16) as u16 & 0x8000;
                    if exponent <= 0 {
                        sign
                    } else {
                        sign | (exponent as u16) << 10 | ((bits >> 13) & 0x3ff) as u16
                    }
                })
                .collect();
            (
                raw.iter().flat_map(|v| v.to_le_bytes()).collect(),
                raw.iter().map(|v| shardwright_shim_cpu::simd::widen_f16(*v)).collect(),
            )
        }
        _ => (values.iter().flat_map(|v| v.to_le_bytes()).collect(), values.to_vec()),
    };
    let length = bytes.len() as u64;
    let raw = leak(SwWeight {
        size: size_of_struct::<SwWeight>(),
        name: text(name),
        part: text("part"),
        data: list(bytes).cast(),
        length,
        dtype,
        rank: shape.len() as u32,
        shape: if shape.is_empty() { null() } else { list(shape.to_vec()) },
        quantisation: null(),
    });
    Weight { raw, values, stored: Vec::new() }
}

/// Bits of a stored type.
pub fn bits_of(dtype: u32) -> u32 {
    match dtype {
        SW_DTYPE_I2 => 2,
        SW_DTYPE_I4 => 4,
        SW_DTYPE_I8 | SW_DTYPE_U8 => 8,
        SW_DTYPE_F32 | SW_DTYPE_I32 => 32,
        _ => 16,
    }
}

/// A quantised weight: stored integers row by row, `kind` and `block` as the contract has them, scales of f32, or of binary16 for blocks
/// (given widened).
pub fn integers(
    name: &str,
    shape: &[u64],
    stored: &[i32],
    dtype: u32,
    (kind, block): (u32, u64),
    scales: &[f32],
    zero_point: i32,
) -> Weight {
    let width = *shape.last().expect("a last axis") as usize;
    let bits = bits_of(dtype) as usize;
    let mut bytes = Vec::new();
    for row in stored.chunks(width) {
        let mut line = vec![0u8; (width * bits).div_ceil(8)];
        for (index, value) in row.iter().enumerate() {
            for bit in 0..bits {
                let at = index * bits + bit;
                line[at / 8] |= ((value >> bit & 1) as u8) << (at % 8);
            }
        }
        bytes.extend(line);
    }
    let blocks = if block > 0 { (width as u64).div_ceil(block) as usize } else { 1 };
    let scale_of = |at: usize| match kind {
        SW_QUANTISATION_PER_TENSOR => scales[0],
        SW_QUANTISATION_PER_CHANNEL => scales[at / (stored.len() / shape[0] as usize)],
        _ => scales[at / width * blocks + at % width / block as usize],
    };
    let pairs: Vec<(i32, f32)> =
        stored.iter().enumerate().map(|(at, raw)| (raw - zero_point, scale_of(at))).collect();
    let (scale_dtype, scale_bytes): (u32, Vec<u8>) = if kind == SW_QUANTISATION_PER_BLOCK {
        let narrow = |scale: &f32| shardwright_shim_cpu::simd::narrow_f16(*scale).to_le_bytes();
        (SW_DTYPE_F16, scales.iter().flat_map(narrow).collect())
    } else {
        (SW_DTYPE_F32, scales.iter().flat_map(|scale| scale.to_le_bytes()).collect())
    };
    let quantisation = leak(SwQuantisation {
        size: size_of_struct::<SwQuantisation>(),
        kind,
        axis: if kind == SW_QUANTISATION_PER_BLOCK { shape.len() as u32 - 1 } else { 0 },
        block,
        scale_dtype,
        bits: bits_of(dtype),
        scales: list(scale_bytes).cast(),
        scale_count: scales.len() as u64,
        zero_points: if zero_point == 0 { null() } else { list(vec![zero_point]) },
        zero_point_count: u64::from(zero_point != 0),
    });
    let length = bytes.len() as u64;
    let raw = leak(SwWeight {
        size: size_of_struct::<SwWeight>(),
        name: text(name),
        part: text("part"),
        data: list(bytes).cast(),
        length,
        dtype,
        rank: shape.len() as u32,
        shape: list(shape.to_vec()),
        quantisation,
    });
    let values = pairs.iter().map(|(raw, scale)| *raw as f32 * scale).collect();
    Weight { raw, values, stored: pairs }
}

impl Builder {
    pub fn new(name: &str, kind: u32, rows: u64, context: u64) -> Builder {
        Builder {
            name: name.to_owned(),
            kind,
            rows,
            context,
            tensors: Vec::new(),
            nodes: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            constants: Vec::new(),
            affine: HashMap::new(),
        }
    }

    pub fn tensor(&mut self, name: &str, dtype: u32, shape: &[u64]) -> TensorId {
        self.tensors.push((name.to_owned(), dtype, shape.to_vec()));
        self.tensors.len() as u32 - 1
    }

    pub fn shape(&self, tensor: TensorId) -> Vec<u64> {
        self.tensors[tensor as usize].2.clone()
    }

    pub fn input(&mut self, name: &str, role: u32, shape: &[u64]) -> TensorId {
        let dtype = if role <= SW_ROLE_SLOTS { SW_DTYPE_I32 } else { SW_DTYPE_F32 };
        let tensor = self.tensor(name, dtype, shape);
        self.inputs.push(Port { name: name.to_owned(), role, tensor, index: 0, dtype });
        tensor
    }

    pub fn output(&mut self, name: &str, role: u32, tensor: TensorId) {
        let dtype = self.tensors[tensor as usize].1;
        self.outputs.push(Port { name: name.to_owned(), role, tensor, index: 0, dtype });
    }

    pub fn constant(&mut self, weight: &Weight) -> TensorId {
        // SAFETY: `weight` made the struct, its shape has `rank` numbers.
        let shape =
            unsafe { std::slice::from_raw_parts(weight.raw.shape, weight.raw.rank as usize) }.to_vec();
        let tensor = self.tensor(&format!("weight.{}", self.tensors.len()), weight.raw.dtype, &shape);
        self.constants.push((tensor, weight.clone()));
        tensor
    }

    pub fn node(
        &mut self,
        op: u32,
        inputs: &[TensorId],
        shape: &[u64],
        attributes: Vec<Attribute>,
    ) -> TensorId {
        let output = self.tensor(&format!("value.{}", self.tensors.len()), SW_DTYPE_F32, shape);
        self.nodes.push(Node {
            op,
            version: 1,
            inputs: inputs.to_vec(),
            outputs: vec![output],
            attributes,
            name: None,
        });
        output
    }

    pub fn linear(&mut self, x: TensorId, w: &Weight) -> TensorId {
        let w = self.constant(w);
        let mut shape = self.shape(x);
        *shape.last_mut().expect("a matrix") = self.shape(w)[0];
        self.node(SW_OP_LINEAR, &[x, w], &shape, vec![])
    }

    pub fn norm(&mut self, x: TensorId, w: Option<&Weight>, width: u64, offset: f32) -> TensorId {
        let mut inputs = vec![x];
        inputs.extend(w.map(|w| self.constant(w)));
        let shape = self.shape(x);
        let attributes = vec![
            Attribute::Integer("width", width as i64),
            Attribute::Float("eps", 1e-6),
            Attribute::Float("weight_offset", offset),
        ];
        self.node(SW_OP_RMS_NORM, &inputs, &shape, attributes)
    }

    pub fn unary(&mut self, op: u32, x: TensorId, attributes: Vec<Attribute>) -> TensorId {
        let shape = self.shape(x);
        self.node(op, &[x], &shape, attributes)
    }

    pub fn binary(&mut self, op: u32, a: TensorId, b: TensorId) -> TensorId {
        let (a_shape, b_shape) = (self.shape(a), self.shape(b));
        let rank = a_shape.len().max(b_shape.len());
        let at =
            |shape: &[u64], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |axis| shape[axis]);
        let shape: Vec<u64> = (0..rank).map(|axis| at(&a_shape, axis).max(at(&b_shape, axis))).collect();
        self.node(op, &[a, b], &shape, vec![])
    }

    pub fn reshape(&mut self, x: TensorId, shape: &[u64]) -> TensorId {
        let list = shape.iter().map(|extent| *extent as i64).collect();
        self.node(SW_OP_RESHAPE, &[x], shape, vec![Attribute::Integers("shape", list)])
    }

    pub fn transpose(&mut self, x: TensorId, perm: &[usize]) -> TensorId {
        let from = self.shape(x);
        let shape: Vec<u64> = perm.iter().map(|axis| from[*axis]).collect();
        let list = perm.iter().map(|axis| *axis as i64).collect();
        self.node(SW_OP_TRANSPOSE, &[x], &shape, vec![Attribute::Integers("perm", list)])
    }

    pub fn slice(&mut self, x: TensorId, axis: usize, start: u64, end: u64) -> TensorId {
        let mut shape = self.shape(x);
        shape[axis] = end - start;
        let attributes = vec![
            Attribute::Integer("axis", axis as i64),
            Attribute::Integer("start", start as i64),
            Attribute::Integer("end", end as i64),
        ];
        self.node(SW_OP_SLICE, &[x], &shape, attributes)
    }

    pub fn concat(&mut self, parts: &[TensorId], axis: usize) -> TensorId {
        let mut shape = self.shape(parts[0]);
        shape[axis] = parts.iter().map(|part| self.shape(*part)[axis]).sum();
        self.node(SW_OP_CONCAT, parts, &shape, vec![Attribute::Integer("axis", axis as i64)])
    }

    pub fn mat_mul(&mut self, a: TensorId, b: TensorId, transpose_b: bool) -> TensorId {
        let (a_shape, b_shape) = (self.shape(a), self.shape(b));
        let n = b_shape[b_shape.len() - if transpose_b { 2 } else { 1 }];
        let mut shape = if a_shape.len() >= b_shape.len() { a_shape.clone() } else { b_shape };
        let rank = shape.len();
        (shape[rank - 2], shape[rank - 1]) = (a_shape[a_shape.len() - 2], n);
        self.node(
            SW_OP_MAT_MUL,
            &[a, b],
            &shape,
            vec![Attribute::Integer("transpose_b", i64::from(transpose_b))],
        )
    }

    /// Stores a tensor as `dtype`, with scale and zero point where those are integers.
    pub fn encode(&mut self, tensor: TensorId, dtype: u32, affine: Option<(f32, i32)>) {
        self.tensors[tensor as usize].1 = dtype;
        match affine {
            Some(affine) => self.affine.insert(tensor, affine),
            None => self.affine.remove(&tensor),
        };
        let ports = self.inputs.iter_mut().chain(&mut self.outputs);
        ports.filter(|port| port.tensor == tensor).for_each(|port| port.dtype = dtype);
    }

    fn quantisation(&self, tensor: TensorId) -> *const SwQuantisation {
        let Some((scale, zero_point)) = self.affine.get(&tensor) else { return null() };
        leak(SwQuantisation {
            size: size_of_struct::<SwQuantisation>(),
            kind: SW_QUANTISATION_PER_TENSOR,
            axis: 0,
            block: 0,
            scale_dtype: SW_DTYPE_F32,
            bits: bits_of(self.tensors[tensor as usize].1),
            scales: list(vec![*scale]).cast(),
            scale_count: 1,
            zero_points: list(vec![*zero_point]),
            zero_point_count: 1,
        })
    }

    /// The contract's table.
    pub fn build(&self) -> &'static SwEntry {
        let tensors: Vec<&SwTensor> = self
            .tensors
            .iter()
            .enumerate()
            .map(|(index, (name, dtype, shape))| {
                leak(SwTensor {
                    size: size_of_struct::<SwTensor>(),
                    name: text(name),
                    dtype: *dtype,
                    rank: shape.len() as u32,
                    shape: if shape.is_empty() { null() } else { list(shape.clone()) },
                    quantisation: self.quantisation(index as u32),
                })
            })
            .collect();
        let nodes: Vec<&SwNode> = self
            .nodes
            .iter()
            .enumerate()
            .map(|(index, node)| {
                let attributes: Vec<&SwAttribute> = node.attributes.iter().map(attribute).collect();
                leak(SwNode {
                    size: size_of_struct::<SwNode>(),
                    op: node.op,
                    op_version: node.version,
                    name: text(&node.name.clone().unwrap_or_else(|| format!("node.{index}"))),
                    layer: 3,
                    inputs: list(node.inputs.clone()),
                    input_count: node.inputs.len() as u64,
                    outputs: list(node.outputs.clone()),
                    output_count: node.outputs.len() as u64,
                    attribute_count: attributes.len() as u64,
                    attributes: list(attributes).cast(),
                })
            })
            .collect();
        let port = |port: &Port| -> &'static SwPort {
            let (scale, zero_point) = self.affine.get(&port.tensor).copied().unwrap_or((1.0, 0));
            leak(SwPort {
                size: size_of_struct::<SwPort>(),
                tensor: port.tensor,
                role: port.role,
                name: text(&port.name),
                index: port.index,
                dtype: port.dtype,
                reserved: 0,
                scale: f64::from(scale),
                zero_point: i64::from(zero_point),
            })
        };
        let inputs: Vec<&SwPort> = self.inputs.iter().map(port).collect();
        let outputs: Vec<&SwPort> = self.outputs.iter().map(port).collect();
        let constants: Vec<&SwConstant> = self
            .constants
            .iter()
            .map(|(tensor, weight)| {
                leak(SwConstant {
                    size: size_of_struct::<SwConstant>(),
                    tensor: *tensor,
                    reserved: 0,
                    weight: weight.raw,
                })
            })
            .collect();
        leak(SwEntry {
            size: size_of_struct::<SwEntry>(),
            name: text(&self.name),
            kind: self.kind,
            reserved: 0,
            rows: self.rows,
            context: self.context,
            tensor_count: tensors.len() as u64,
            tensors: list(tensors).cast(),
            node_count: nodes.len() as u64,
            nodes: list(nodes).cast(),
            input_count: inputs.len() as u64,
            inputs: list(inputs).cast(),
            output_count: outputs.len() as u64,
            outputs: list(outputs).cast(),
            constant_count: constants.len() as u64,
            constants: list(constants).cast(),
        })
    }
}

fn attribute(attribute: &Attribute) -> &'static SwAttribute {
    let mut raw = SwAttribute {
        size: size_of_struct::<SwAttribute>(),
        name: null(),
        kind: 0,
        reserved: 0,
        integer: 0,
        number: 0.0,
        integers: null(),
        integer_count: 0,
        text: null(),
    };
    match attribute {
        Attribute::Integer(name, value) => {
            (raw.name, raw.kind, raw.integer) = (text(name), SW_ATTRIBUTE_INTEGER, *value);
        }
        Attribute::Float(name, value) => {
            (raw.name, raw.kind, raw.number) = (text(name), SW_ATTRIBUTE_FLOAT, f64::from(*value));
        }
        Attribute::Integers(name, values) => {
            (raw.name, raw.kind) = (text(name), SW_ATTRIBUTE_INTEGERS);
            (raw.integers, raw.integer_count) = (list(values.clone()), values.len() as u64);
        }
        Attribute::Text(name, value) => {
            (raw.name, raw.kind, raw.text) = (text(name), SW_ATTRIBUTE_TEXT, text(value));
        }
    }
    leak(raw)
}
