//! Contract tables, leaked: a test process is short.

use std::ffi::{CString, c_char};
use std::ptr::null;

use half::f16;
use shardwright_shim_abi::EntryView;
use shardwright_shim_abi::raw::*;

use crate::encoding::{Encoding, bits_of};

/// Index of a tensor.
pub type TensorId = u32;

/// Name and value.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    /// One integer.
    Integer(&'static str, i64),
    /// One number.
    Float(&'static str, f64),
    /// A list.
    Integers(&'static str, Vec<i64>),
    /// A word.
    Text(&'static str, &'static str),
}

/// A weight and its values in f32; of integers, the stored ones and the scale of each too.
#[derive(Clone)]
pub struct Weight {
    /// The contract's struct.
    pub raw: &'static SwWeight,
    /// The decoded values.
    pub values: Vec<f32>,
    /// Per value the stored integer less the zero point, and its scale; empty for floats.
    pub stored: Vec<(i32, f32)>,
}

// SAFETY: leaked tables that are never written.
unsafe impl Send for Weight {}
// SAFETY: as above.
unsafe impl Sync for Weight {}

/// How the stored integers of a weight are scaled.
#[derive(Clone, Debug, PartialEq)]
pub struct Scales {
    /// `SW_QUANTISATION_…`
    pub kind: u32,
    /// Along which scales differ.
    pub axis: u32,
    /// Values of a block; 0 without blocks.
    pub block: u64,
    /// Row-major.
    pub values: Vec<f32>,
    /// One for all.
    pub zero_point: i32,
    /// Whether scales are stored in binary16, as those of blocks are, not in f32.
    pub half: bool,
}

impl Scales {
    fn table(self, bits: u32) -> *const SwQuantisation {
        let each = self.values.iter();
        let (scale_dtype, bytes): (u32, Vec<u8>) = match self.half {
            true => (SW_DTYPE_F16, each.flat_map(|scale| f16::from_f32(*scale).to_le_bytes()).collect()),
            false => (SW_DTYPE_F32, each.flat_map(|scale| scale.to_le_bytes()).collect()),
        };
        leak(SwQuantisation {
            size: size_of_struct::<SwQuantisation>(),
            kind: self.kind,
            axis: self.axis,
            block: self.block,
            scale_dtype,
            bits,
            scales: list(bytes).cast(),
            scale_count: self.values.len() as u64,
            zero_points: if self.zero_point == 0 { null() } else { list(vec![self.zero_point]) },
            zero_point_count: u64::from(self.zero_point != 0),
        })
    }
}

impl Weight {
    /// Stored bytes with scales; the decoded values are not computed.
    pub fn raw(name: &str, shape: &[u64], dtype: u32, bytes: Vec<u8>, scales: Option<Scales>) -> Weight {
        let raw = leak(SwWeight {
            size: size_of_struct::<SwWeight>(),
            name: text(name),
            part: text("part"),
            length: bytes.len() as u64,
            data: list(bytes).cast(),
            dtype,
            rank: shape.len() as u32,
            shape: list(shape.to_vec()),
            quantisation: scales.map_or(null(), |scales| scales.table(bits_of(dtype))),
        });
        Weight { raw, values: Vec::new(), stored: Vec::new() }
    }

    /// A matrix [N, K] near `values` with one scale per row, in 8, 4 or 2 bits.
    pub fn matrix(name: &str, shape: [u64; 2], values: &[f32], bits: u32) -> Weight {
        let (high, dtype) = match bits {
            8 => (127.0, SW_DTYPE_I8),
            4 => (7.0, SW_DTYPE_I4),
            _ => (1.0, SW_DTYPE_I2),
        };
        let (mut stored, mut scales) = (Vec::with_capacity(values.len()), Vec::new());
        for row in values.chunks(shape[1] as usize) {
            let scale = row.iter().fold(1e-6f32, |most, value| most.max(value.abs())) / high;
            stored
                .extend(row.iter().map(|value| (value / scale).round_ties_even().clamp(-high, high) as i32));
            scales.push(scale);
        }
        integers(name, &shape, &stored, dtype, (SW_QUANTISATION_PER_CHANNEL, 0), &scales, 0)
    }

    /// A vector near `values` in 16 bits with one scale and zero point.
    pub fn vector(name: &str, values: &[f32]) -> Weight {
        let reach = values.iter().fold(1e-6f32, |most, value| most.max(value.abs())) * 1.001;
        let (scale, zero_point) = (reach / 32_768.0, 32_768);
        let near =
            |value: &f32| ((value / scale).round_ties_even() + zero_point as f32).clamp(0.0, 65_535.0) as i32;
        let stored: Vec<i32> = values.iter().map(near).collect();
        let shape = [values.len() as u64];
        let kind = (SW_QUANTISATION_PER_TENSOR, 0);
        integers(name, &shape, &stored, SW_DTYPE_U16, kind, &[scale], zero_point)
    }

    /// Extents.
    pub fn shape(&self) -> &'static [u64] {
        match self.raw.rank {
            0 => &[],
            // SAFETY: `weight` and `integers` made the struct, its shape has `rank` numbers and
            // lives for ever.
            rank => unsafe { std::slice::from_raw_parts(self.raw.shape, rank as usize) },
        }
    }

    /// A weight with a length but without bytes or scales, as `check` and `estimate` may receive
    /// it.
    pub fn planned(name: &str, shape: &[u64], dtype: u32, length: u64, scales: Option<Scales>) -> Weight {
        let weight = Weight::raw(name, shape, dtype, Vec::new(), scales).without_bytes();
        Weight { raw: leak(SwWeight { length, ..*weight.raw }), ..weight }
    }

    /// The same weight before quantisation, as `check` and `estimate` may receive it: without bytes
    /// and scales.
    pub fn without_bytes(&self) -> Weight {
        // SAFETY: null or a struct that `integers` leaked.
        let quantisation = match unsafe { self.raw.quantisation.as_ref() } {
            Some(existing) => leak(SwQuantisation { scales: null(), ..*existing }),
            None => null(),
        };
        let raw = leak(SwWeight { data: null(), quantisation, ..*self.raw });
        Weight { raw, values: self.values.clone(), stored: self.stored.clone() }
    }
}

/// A tensor as an entry declares it.
#[derive(Clone, Debug, PartialEq)]
pub struct Declared {
    /// Its name.
    pub name: String,
    /// Its encoding; for a constant only the type, its scales are the weight's.
    pub encoding: Encoding,
    /// Extents.
    pub shape: Vec<u64>,
}

/// One operation.
#[derive(Clone, Debug)]
pub struct Node {
    /// `node.N` if `None`.
    pub name: Option<String>,
    /// `SW_OP_…`
    pub op: u32,
    /// 1 unless a test changes it.
    pub version: u32,
    /// Layer of the model.
    pub layer: i64,
    /// Operands.
    pub inputs: Vec<TensorId>,
    /// Results.
    pub outputs: Vec<TensorId>,
    /// By name.
    pub attributes: Vec<Attribute>,
}

/// Where a tensor enters or leaves.
#[derive(Clone, Debug)]
pub struct Port {
    /// Name of the binding.
    pub name: String,
    /// `SW_ROLE_…`
    pub role: u32,
    /// The bound tensor.
    pub tensor: TensorId,
    /// Which one of its role.
    pub index: u64,
    /// `SW_DTYPE_…` to state instead of the tensor's own.
    pub dtype: Option<u32>,
}

/// An entry in the making.
#[derive(Clone)]
pub struct Builder {
    /// `decode_1@64`
    pub name: String,
    /// `SW_ENTRY_…`
    pub kind: u32,
    /// Static rows.
    pub rows: u64,
    /// Positions of linear states.
    pub context: u64,
    /// Layer of nodes added from now on.
    pub layer: i64,
    /// Encoding of results added from now on, f32 at first; [`Builder::encode`] changes one tensor.
    pub encoding: Encoding,
    /// All tensors, by index.
    pub tensors: Vec<Declared>,
    /// In an order in which they can run.
    pub nodes: Vec<Node>,
    /// Inputs.
    pub inputs: Vec<Port>,
    /// Outputs.
    pub outputs: Vec<Port>,
    /// Tensors whose values are fixed.
    pub constants: Vec<(TensorId, Weight)>,
}

/// A leaked C string.
pub fn text(text: &str) -> *const c_char {
    CString::new(text).expect("no NUL in a test's text").into_raw()
}

/// For the rest of the process.
pub fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// A leaked array; null when it is empty.
pub fn list<T: 'static>(items: Vec<T>) -> *const T {
    if items.is_empty() {
        return null();
    }
    Box::leak(items.into_boxed_slice()).as_ptr()
}

fn size_of_struct<T>() -> u64 {
    size_of::<T>() as u64
}

/// A weight of that stored type; values are rounded towards zero to it.
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
            // Towards zero: the eleven leading bits of a normal number are its own.
            let raw: Vec<f16> =
                values.iter().map(|v| f16::from_f32(f32::from_bits(v.to_bits() & !0x1fff))).collect();
            (raw.iter().flat_map(|v| v.to_le_bytes()).collect(), raw.iter().map(|v| v.to_f32()).collect())
        }
        _ => (values.iter().flat_map(|v| v.to_le_bytes()).collect(), values.to_vec()),
    };
    Weight { values, ..Weight::raw(name, shape, dtype, bytes, None) }
}

/// A quantised weight: stored integers row by row, `kind` and `block` as in the contract, scales of
/// f32, or of binary16 for blocks (passed widened). With minimums they are binary16 if all of them
/// are exact in it, and in every row its minimums follow its scales.
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
        SW_QUANTISATION_PER_BLOCK_WITH_MINIMUM => {
            scales[at / width * 2 * blocks + at % width / block as usize]
        }
        _ => scales[at / width * blocks + at % width / block as usize],
    };
    let minimum_of = |at: usize| match kind {
        SW_QUANTISATION_PER_BLOCK_WITH_MINIMUM => {
            scales[(at / width * 2 + 1) * blocks + at % width / block as usize]
        }
        _ => 0.0,
    };
    let pairs: Vec<(i32, f32)> =
        stored.iter().enumerate().map(|(at, raw)| (raw - zero_point, scale_of(at))).collect();
    let quantisation = Scales {
        kind,
        axis: if block > 0 { shape.len() as u32 - 1 } else { 0 },
        block,
        values: scales.to_vec(),
        zero_point,
        half: match kind {
            SW_QUANTISATION_PER_BLOCK_WITH_MINIMUM => {
                scales.iter().all(|scale| f16::from_f32(*scale).to_f32() == *scale)
            }
            kind => kind == SW_QUANTISATION_PER_BLOCK,
        },
    };
    let value = |(at, (raw, scale)): (usize, &(i32, f32))| *raw as f32 * scale - minimum_of(at);
    let values = pairs.iter().enumerate().map(value).collect();
    Weight { values, stored: pairs, ..Weight::raw(name, shape, dtype, bytes, Some(quantisation)) }
}

impl Builder {
    /// Without anything in it.
    pub fn new(name: &str, kind: u32, rows: u64, context: u64) -> Builder {
        Builder {
            name: name.to_owned(),
            kind,
            rows,
            context,
            layer: 0,
            encoding: Encoding::F32,
            tensors: Vec::new(),
            nodes: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            constants: Vec::new(),
        }
    }

    /// Declares a tensor.
    pub fn tensor(&mut self, name: &str, encoding: Encoding, shape: &[u64]) -> TensorId {
        self.tensors.push(Declared { name: name.to_owned(), encoding, shape: shape.to_vec() });
        self.tensors.len() as u32 - 1
    }

    /// Extents of a tensor.
    pub fn shape(&self, tensor: TensorId) -> Vec<u64> {
        self.tensors[tensor as usize].shape.clone()
    }

    /// A tensor that is bound: indices or f32, as its role has it.
    pub fn input(&mut self, name: &str, role: u32, shape: &[u64]) -> TensorId {
        let encoding = match role {
            SW_ROLE_POSITIONS | SW_ROLE_SLOTS | SW_ROLE_GRID => Encoding::I32,
            _ => Encoding::F32,
        };
        self.input_as(name, role, shape, encoding)
    }

    /// A tensor that is bound, in an encoding.
    pub fn input_as(&mut self, name: &str, role: u32, shape: &[u64], encoding: Encoding) -> TensorId {
        let tensor = self.tensor(name, encoding, shape);
        self.inputs.push(Port { name: name.to_owned(), role, tensor, index: 0, dtype: None });
        tensor
    }

    /// Makes a tensor an output.
    pub fn output(&mut self, name: &str, role: u32, tensor: TensorId) {
        self.outputs.push(Port { name: name.to_owned(), role, tensor, index: 0, dtype: None });
    }

    /// A weight as a tensor.
    pub fn constant(&mut self, weight: &Weight) -> TensorId {
        let name = format!("weight.{}", self.tensors.len());
        let tensor = self.tensor(&name, Encoding::plain(weight.raw.dtype), weight.shape());
        self.constants.push((tensor, weight.clone()));
        tensor
    }

    /// Any operation with one result of this shape.
    pub fn node(
        &mut self,
        op: u32,
        inputs: &[TensorId],
        shape: &[u64],
        attributes: Vec<Attribute>,
    ) -> TensorId {
        let output = self.tensor(&format!("value.{}", self.tensors.len()), self.encoding, shape);
        self.nodes.push(Node {
            name: None,
            op,
            version: 1,
            layer: self.layer,
            inputs: inputs.to_vec(),
            outputs: vec![output],
            attributes,
        });
        output
    }

    /// A product whose rows are quantised in blocks of so many values.
    pub fn block_linear(&mut self, inputs: &[TensorId], shape: &[u64], block: i64) -> TensorId {
        let output = self.node(SW_OP_DYNAMIC_LINEAR, inputs, shape, vec![Attribute::Integer("block", block)]);
        self.nodes.last_mut().expect("a node").version = 2;
        output
    }

    /// Data movements keep their operand's encoding, unless the operand is a weight.
    fn moved(&mut self, op: u32, inputs: &[TensorId], shape: &[u64], attributes: Vec<Attribute>) -> TensorId {
        let output = self.node(op, inputs, shape, attributes);
        match self.constants.iter().any(|(id, _)| *id == inputs[0]) {
            true => output,
            false => self.encode(output, self.encoding_of(inputs[0])),
        }
    }

    /// `x · wᵀ`
    pub fn linear(&mut self, x: TensorId, w: &Weight) -> TensorId {
        let w = self.constant(w);
        let mut shape = self.shape(x);
        *shape.last_mut().expect("a matrix") = self.shape(w)[0];
        self.node(SW_OP_LINEAR, &[x, w], &shape, vec![])
    }

    /// RMS norm over groups of `width`.
    pub fn norm(&mut self, x: TensorId, w: Option<&Weight>, width: u64, offset: f32) -> TensorId {
        let mut inputs = vec![x];
        inputs.extend(w.map(|w| self.constant(w)));
        let shape = self.shape(x);
        let attributes = vec![
            Attribute::Integer("width", width as i64),
            Attribute::Float("eps", 1e-6),
            Attribute::Float("weight_offset", offset.into()),
        ];
        self.node(SW_OP_RMS_NORM, &inputs, &shape, attributes)
    }

    /// An operation value by value with one operand.
    pub fn unary(&mut self, op: u32, x: TensorId, attributes: Vec<Attribute>) -> TensorId {
        let shape = self.shape(x);
        self.node(op, &[x], &shape, attributes)
    }

    /// An operation value by value with two operands, broadcast from the last axis.
    pub fn binary(&mut self, op: u32, a: TensorId, b: TensorId) -> TensorId {
        let (a_shape, b_shape) = (self.shape(a), self.shape(b));
        let rank = a_shape.len().max(b_shape.len());
        let at =
            |shape: &[u64], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |axis| shape[axis]);
        let shape: Vec<u64> = (0..rank).map(|axis| at(&a_shape, axis).max(at(&b_shape, axis))).collect();
        self.node(op, &[a, b], &shape, vec![])
    }

    /// The same values in another shape.
    pub fn reshape(&mut self, x: TensorId, shape: &[u64]) -> TensorId {
        let list = shape.iter().map(|extent| *extent as i64).collect();
        self.moved(SW_OP_RESHAPE, &[x], shape, vec![Attribute::Integers("shape", list)])
    }

    /// Axis `i` of the result is axis `perm[i]` of the operand.
    pub fn transpose(&mut self, x: TensorId, perm: &[usize]) -> TensorId {
        let from = self.shape(x);
        let shape: Vec<u64> = perm.iter().map(|axis| from[*axis]).collect();
        let list = perm.iter().map(|axis| *axis as i64).collect();
        self.moved(SW_OP_TRANSPOSE, &[x], &shape, vec![Attribute::Integers("perm", list)])
    }

    /// From `start` up to `end` of one axis.
    pub fn slice(&mut self, x: TensorId, axis: usize, start: u64, end: u64) -> TensorId {
        let mut shape = self.shape(x);
        shape[axis] = end - start;
        let attributes = vec![
            Attribute::Integer("axis", axis as i64),
            Attribute::Integer("start", start as i64),
            Attribute::Integer("end", end as i64),
        ];
        self.moved(SW_OP_SLICE, &[x], &shape, attributes)
    }

    /// One behind the other along an axis.
    pub fn concat(&mut self, parts: &[TensorId], axis: usize) -> TensorId {
        let mut shape = self.shape(parts[0]);
        shape[axis] = parts.iter().map(|part| self.shape(*part)[axis]).sum();
        self.moved(SW_OP_CONCAT, parts, &shape, vec![Attribute::Integer("axis", axis as i64)])
    }

    /// A product over the last two axes; leading axes are broadcast.
    pub fn mat_mul(&mut self, a: TensorId, b: TensorId, transpose_b: bool) -> TensorId {
        let (a_shape, b_shape) = (self.shape(a), self.shape(b));
        let n = b_shape[b_shape.len() - if transpose_b { 2 } else { 1 }];
        let mut shape = if a_shape.len() >= b_shape.len() { a_shape.clone() } else { b_shape.clone() };
        let rank = shape.len();
        for (axis, extent) in shape.iter_mut().enumerate().take(rank - 2) {
            let at = |shape: &[u64]| (axis + shape.len()).checked_sub(rank).map_or(1, |axis| shape[axis]);
            *extent = at(&a_shape).max(at(&b_shape));
        }
        (shape[rank - 2], shape[rank - 1]) = (a_shape[a_shape.len() - 2], n);
        self.node(
            SW_OP_MAT_MUL,
            &[a, b],
            &shape,
            vec![Attribute::Integer("transpose_b", i64::from(transpose_b))],
        )
    }

    /// How a tensor is stored.
    pub fn encoding_of(&self, tensor: TensorId) -> Encoding {
        self.tensors[tensor as usize].encoding
    }

    /// Sets the encoding of a tensor, and returns the tensor.
    pub fn encode(&mut self, tensor: TensorId, encoding: Encoding) -> TensorId {
        self.tensors[tensor as usize].encoding = encoding;
        tensor
    }

    /// Names the last node.
    pub fn name_last(&mut self, name: &str) {
        self.nodes.last_mut().expect("a node").name = Some(name.to_owned());
    }

    /// A checked view of the contract's table.
    ///
    /// # Errors
    ///
    /// The contract's objection.
    pub fn view(&self) -> shardwright_shim_abi::Result<EntryView<'static>> {
        // SAFETY: the table is whole and lives for ever.
        unsafe { EntryView::new(self.build()) }
    }

    /// The contract's table.
    pub fn build(&self) -> &'static SwEntry {
        let tensors: Vec<&SwTensor> = self
            .tensors
            .iter()
            .enumerate()
            .map(|(index, tensor)| {
                let constant = self.constants.iter().find(|(id, _)| *id == index as u32);
                leak(SwTensor {
                    size: size_of_struct::<SwTensor>(),
                    name: text(&tensor.name),
                    dtype: tensor.encoding.dtype,
                    rank: tensor.shape.len() as u32,
                    shape: list(tensor.shape.clone()),
                    quantisation: match (constant, tensor.encoding.affine) {
                        (_, Some(_)) => quantisation(tensor.encoding),
                        (Some((_, weight)), None) => weight.raw.quantisation,
                        (None, None) => null(),
                    },
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
                    layer: node.layer,
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
            let encoding =
                self.tensors.get(port.tensor as usize).map_or(Encoding::F32, |tensor| tensor.encoding);
            let (scale, zero_point) = encoding.affine.unwrap_or((1.0, 0));
            leak(SwPort {
                size: size_of_struct::<SwPort>(),
                tensor: port.tensor,
                role: port.role,
                name: text(&port.name),
                index: port.index,
                dtype: port.dtype.unwrap_or(encoding.dtype),
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

/// Of values with one scale and zero point.
fn quantisation(encoding: Encoding) -> *const SwQuantisation {
    let Some((scale, zero_point)) = encoding.affine else { return null() };
    leak(SwQuantisation {
        size: size_of_struct::<SwQuantisation>(),
        kind: SW_QUANTISATION_PER_TENSOR,
        axis: 0,
        block: 0,
        scale_dtype: SW_DTYPE_F32,
        bits: bits_of(encoding.dtype),
        scales: list(vec![scale]).cast(),
        scale_count: 1,
        zero_points: list(vec![zero_point]),
        zero_point_count: 1,
    })
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
            (raw.name, raw.kind, raw.number) = (text(name), SW_ATTRIBUTE_FLOAT, *value);
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
