//! Contract tables, leaked: a test process is short.

use std::ffi::{CString, c_char};
use std::ptr::null;

use shardwright_shim_abi::raw::*;

/// Index of a tensor.
pub type TensorId = u32;

/// How a tensor is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Encoding {
    F32,
    F16,
    /// 16 bits over ±range, zero in the middle.
    A16(f32),
    /// 8 bits over ±range, zero in the middle.
    A8(f32),
}

impl Encoding {
    pub fn dtype(self) -> u32 {
        match self {
            Encoding::F32 => SW_DTYPE_F32,
            Encoding::F16 => SW_DTYPE_F16,
            Encoding::A16(_) => SW_DTYPE_U16,
            Encoding::A8(_) => SW_DTYPE_U8,
        }
    }

    pub fn affine(self) -> Option<(f32, i32)> {
        match self {
            Encoding::A16(range) => Some((range / 32_768.0, 32_768)),
            Encoding::A8(range) => Some((range / 128.0, 128)),
            _ => None,
        }
    }

    /// The stored bytes of values.
    pub fn encode(self, values: &[f32]) -> Vec<u8> {
        let integer = |value: f32, high: f32| {
            let (scale, zero) = self.affine().expect("integers");
            ((value / scale).round_ties_even() + zero as f32).clamp(0.0, high)
        };
        match self {
            Encoding::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Encoding::F16 => {
                values.iter().flat_map(|value| half::f16::from_f32(*value).to_le_bytes()).collect()
            }
            Encoding::A16(_) => {
                values.iter().flat_map(|value| (integer(*value, 65_535.0) as u16).to_le_bytes()).collect()
            }
            Encoding::A8(_) => values.iter().map(|value| integer(*value, 255.0) as u8).collect(),
        }
    }

    /// The values of stored bytes.
    pub fn decode(self, bytes: &[u8]) -> Vec<f32> {
        let real = |stored: i32| {
            let (scale, zero) = self.affine().expect("integers");
            (stored - zero) as f32 * scale
        };
        let pairs = || bytes.as_chunks::<2>().0.iter();
        let quads = || bytes.as_chunks::<4>().0.iter();
        match self {
            Encoding::F32 => quads().map(|b| f32::from_le_bytes(*b)).collect(),
            Encoding::F16 => pairs().map(|b| half::f16::from_le_bytes(*b).to_f32()).collect(),
            Encoding::A16(_) => pairs().map(|b| real(u16::from_le_bytes(*b).into())).collect(),
            Encoding::A8(_) => bytes.iter().map(|b| real(i32::from(*b))).collect(),
        }
    }
}

/// Name and value.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    Integer(&'static str, i64),
    Float(&'static str, f32),
}

/// A weight and the values it stands for.
#[derive(Clone)]
pub struct Weight {
    pub raw: &'static SwWeight,
    pub values: Vec<f32>,
}

// SAFETY: leaked tables that nobody writes.
unsafe impl Send for Weight {}
// SAFETY: as above.
unsafe impl Sync for Weight {}

pub fn text(text: &str) -> *const c_char {
    CString::new(text).expect("no NUL in a test's text").into_raw()
}

pub fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

pub fn list<T: 'static>(items: Vec<T>) -> *const T {
    Box::leak(items.into_boxed_slice()).as_ptr()
}

fn size<T>() -> u64 {
    size_of::<T>() as u64
}

fn quantisation(kind: u32, bits: u32, scales: Vec<f32>, zero: i32) -> *const SwQuantisation {
    leak(SwQuantisation {
        size: size::<SwQuantisation>(),
        kind,
        axis: 0,
        block: 0,
        scale_dtype: SW_DTYPE_F32,
        bits,
        scale_count: scales.len() as u64,
        scales: list(scales).cast(),
        zero_points: if zero == 0 { null() } else { list(vec![zero]) },
        zero_point_count: u64::from(zero != 0),
    })
}

impl Weight {
    /// A matrix [N, K] with one scale per row, in 8, 4 or 2 bits.
    pub fn matrix(name: &str, shape: [u64; 2], values: &[f32], bits: u32) -> Weight {
        let (high, dtype) = match bits {
            8 => (127.0, SW_DTYPE_I8),
            4 => (7.0, SW_DTYPE_I4),
            _ => (1.0, SW_DTYPE_I2),
        };
        let width = shape[1] as usize;
        let (mut bytes, mut scales, mut real) = (Vec::new(), Vec::new(), Vec::new());
        for row in values.chunks(width) {
            let scale = row.iter().fold(1e-6f32, |most, value| most.max(value.abs())) / high;
            let mut line = vec![0u8; (width * bits as usize).div_ceil(8)];
            for (index, value) in row.iter().enumerate() {
                let stored = (value / scale).round_ties_even().clamp(-high, high);
                real.push(stored * scale);
                for bit in 0..bits as usize {
                    let at = index * bits as usize + bit;
                    line[at / 8] |= ((stored as i32 >> bit & 1) as u8) << (at % 8);
                }
            }
            bytes.extend(line);
            scales.push(scale);
        }
        let held = quantisation(SW_QUANTISATION_PER_CHANNEL, bits, scales, 0);
        Weight::new(name, &shape, dtype, bytes, held, real)
    }

    /// A vector in 16 bits.
    pub fn vector(name: &str, values: &[f32]) -> Weight {
        let range = values.iter().fold(1e-6f32, |most, value| most.max(value.abs())) * 1.001;
        let encoding = Encoding::A16(range);
        let bytes = encoding.encode(values);
        let (scale, zero) = encoding.affine().expect("integers");
        let held = quantisation(SW_QUANTISATION_PER_TENSOR, 16, vec![scale], zero);
        let real = encoding.decode(&bytes);
        Weight::new(name, &[values.len() as u64], SW_DTYPE_U16, bytes, held, real)
    }

    fn new(
        name: &str,
        shape: &[u64],
        dtype: u32,
        bytes: Vec<u8>,
        quantisation: *const SwQuantisation,
        values: Vec<f32>,
    ) -> Weight {
        let raw = leak(SwWeight {
            size: size::<SwWeight>(),
            name: text(name),
            part: text("part"),
            length: bytes.len() as u64,
            data: list(bytes).cast(),
            dtype,
            rank: shape.len() as u32,
            shape: list(shape.to_vec()),
            quantisation,
        });
        Weight { raw, values }
    }

    /// The same without its bytes, as `check` and `estimate` may see it.
    pub fn without_bytes(&self) -> Weight {
        Weight { raw: leak(SwWeight { data: null(), ..*self.raw }), values: self.values.clone() }
    }
}

#[derive(Clone)]
pub struct Node {
    pub op: u32,
    pub layer: i64,
    pub inputs: Vec<u32>,
    pub outputs: Vec<u32>,
    pub attributes: Vec<Attribute>,
}

#[derive(Clone)]
pub struct Port {
    pub name: String,
    pub role: u32,
    pub tensor: u32,
    pub index: u64,
}

#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    pub encoding: Encoding,
    pub shape: Vec<u64>,
    /// Of a constant.
    pub weight: Option<Weight>,
}

/// An entry in the making.
#[derive(Clone)]
pub struct Builder {
    pub name: String,
    pub kind: u32,
    pub rows: u64,
    pub context: u64,
    /// Layer of the nodes to come.
    pub layer: i64,
    pub tensors: Vec<Tensor>,
    pub nodes: Vec<Node>,
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
}

impl Builder {
    pub fn new(name: &str, kind: u32, rows: u64, context: u64) -> Builder {
        Builder {
            name: name.to_owned(),
            kind,
            rows,
            context,
            layer: 0,
            tensors: Vec::new(),
            nodes: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
        }
    }

    pub fn tensor(&mut self, name: &str, shape: &[u64], encoding: Encoding) -> TensorId {
        self.tensors.push(Tensor { name: name.to_owned(), encoding, shape: shape.to_vec(), weight: None });
        self.tensors.len() as u32 - 1
    }

    pub fn shape(&self, tensor: TensorId) -> Vec<u64> {
        self.tensors[tensor as usize].shape.clone()
    }

    pub fn input(&mut self, name: &str, role: u32, shape: &[u64], encoding: Encoding) -> TensorId {
        let tensor = self.tensor(name, shape, encoding);
        self.inputs.push(Port { name: name.to_owned(), role, tensor, index: 0 });
        tensor
    }

    pub fn output(&mut self, name: &str, role: u32, tensor: TensorId) {
        self.outputs.push(Port { name: name.to_owned(), role, tensor, index: 0 });
    }

    pub fn constant(&mut self, weight: &Weight) -> TensorId {
        // SAFETY: `Weight::new` made the struct, its shape has `rank` numbers.
        let shape =
            unsafe { std::slice::from_raw_parts(weight.raw.shape, weight.raw.rank as usize) }.to_vec();
        let name = format!("weight.{}", self.tensors.len());
        self.tensors.push(Tensor { name, encoding: Encoding::F32, shape, weight: Some(weight.clone()) });
        self.tensors.len() as u32 - 1
    }

    pub fn node(
        &mut self,
        op: u32,
        inputs: &[TensorId],
        shape: &[u64],
        encoding: Encoding,
        attributes: Vec<Attribute>,
    ) -> TensorId {
        let output = self.tensor(&format!("value.{}", self.tensors.len()), shape, encoding);
        self.nodes.push(Node {
            op,
            layer: self.layer,
            inputs: inputs.to_vec(),
            outputs: vec![output],
            attributes,
        });
        output
    }

    pub fn linear(&mut self, x: TensorId, w: &Weight, encoding: Encoding) -> TensorId {
        let w = self.constant(w);
        let mut shape = self.shape(x);
        *shape.last_mut().expect("a matrix") = self.shape(w)[0];
        self.node(SW_OP_LINEAR, &[x, w], &shape, encoding, vec![])
    }

    pub fn norm(&mut self, x: TensorId, w: &Weight, encoding: Encoding) -> TensorId {
        let shape = self.shape(x);
        let width = *shape.last().expect("a matrix") as i64;
        let inputs = [x, self.constant(w)];
        let attributes = vec![
            Attribute::Integer("width", width),
            Attribute::Float("eps", 1e-6),
            Attribute::Float("weight_offset", 0.0),
        ];
        self.node(SW_OP_RMS_NORM, &inputs, &shape, encoding, attributes)
    }

    pub fn unary(
        &mut self,
        op: u32,
        x: TensorId,
        encoding: Encoding,
        attributes: Vec<Attribute>,
    ) -> TensorId {
        let shape = self.shape(x);
        self.node(op, &[x], &shape, encoding, attributes)
    }

    pub fn add(&mut self, a: TensorId, b: TensorId, encoding: Encoding) -> TensorId {
        let shape = self.shape(a);
        self.node(SW_OP_ADD, &[a, b], &shape, encoding, vec![])
    }

    /// Along axis 0.
    pub fn concat(&mut self, parts: &[TensorId]) -> TensorId {
        let encoding = self.tensors[parts[0] as usize].encoding;
        let mut shape = self.shape(parts[0]);
        shape[0] = parts.iter().map(|part| self.shape(*part)[0]).sum();
        self.node(SW_OP_CONCAT, parts, &shape, encoding, vec![Attribute::Integer("axis", 0)])
    }

    /// `a · bᵀ` of two matrices.
    pub fn product(&mut self, a: TensorId, b: TensorId, encoding: Encoding) -> TensorId {
        let shape = [self.shape(a)[0], self.shape(b)[0]];
        self.node(SW_OP_MAT_MUL, &[a, b], &shape, encoding, vec![Attribute::Integer("transpose_b", 1)])
    }

    /// The contract's table.
    pub fn build(&self) -> &'static SwEntry {
        let raw_tensor = |tensor: &Tensor| -> &'static SwTensor {
            let (dtype, held) = match &tensor.weight {
                Some(weight) => (weight.raw.dtype, weight.raw.quantisation),
                None => {
                    let bits = if tensor.encoding.dtype() == SW_DTYPE_U8 { 8 } else { 16 };
                    let affine = tensor.encoding.affine();
                    let held = affine.map(|(scale, zero)| {
                        quantisation(SW_QUANTISATION_PER_TENSOR, bits, vec![scale], zero)
                    });
                    (tensor.encoding.dtype(), held.unwrap_or(null()))
                }
            };
            leak(SwTensor {
                size: size::<SwTensor>(),
                name: text(&tensor.name),
                dtype,
                rank: tensor.shape.len() as u32,
                shape: list(tensor.shape.clone()),
                quantisation: held,
            })
        };
        let raw_node = |(index, node): (usize, &Node)| -> &'static SwNode {
            let attributes: Vec<&SwAttribute> = node.attributes.iter().map(attribute).collect();
            leak(SwNode {
                size: size::<SwNode>(),
                op: node.op,
                op_version: 1,
                name: text(&format!("node.{index}")),
                layer: node.layer,
                inputs: list(node.inputs.clone()),
                input_count: node.inputs.len() as u64,
                outputs: list(node.outputs.clone()),
                output_count: node.outputs.len() as u64,
                attribute_count: attributes.len() as u64,
                attributes: list(attributes).cast(),
            })
        };
        let raw_port = |port: &Port| -> &'static SwPort {
            let encoding = self.tensors[port.tensor as usize].encoding;
            let (scale, zero_point) = encoding.affine().unwrap_or((1.0, 0));
            leak(SwPort {
                size: size::<SwPort>(),
                tensor: port.tensor,
                role: port.role,
                name: text(&port.name),
                index: port.index,
                dtype: encoding.dtype(),
                reserved: 0,
                scale: f64::from(scale),
                zero_point: i64::from(zero_point),
            })
        };
        let tensors: Vec<&SwTensor> = self.tensors.iter().map(raw_tensor).collect();
        let nodes: Vec<&SwNode> = self.nodes.iter().enumerate().map(raw_node).collect();
        let inputs: Vec<&SwPort> = self.inputs.iter().map(raw_port).collect();
        let outputs: Vec<&SwPort> = self.outputs.iter().map(raw_port).collect();
        let constants: Vec<&SwConstant> = self
            .tensors
            .iter()
            .enumerate()
            .filter_map(|(tensor, held)| {
                let weight = held.weight.as_ref()?.raw;
                Some(leak(SwConstant {
                    size: size::<SwConstant>(),
                    tensor: tensor as u32,
                    reserved: 0,
                    weight,
                }))
            })
            .collect();
        leak(SwEntry {
            size: size::<SwEntry>(),
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
        size: size::<SwAttribute>(),
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
    }
    leak(raw)
}
