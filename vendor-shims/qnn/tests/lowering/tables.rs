//! Entries of named nodes with an encoding for each result, based on the tables shared by tests of
//! shims.

use shardwright_shim_abi::EntryView;
use shardwright_shim_abi::raw::*;
use shardwright_shim_testing::{self as testing, Encoding};

pub use shardwright_shim_testing::encoding::bits_of;
pub use shardwright_shim_testing::{Attribute, Random};

/// Storage of an activation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Store {
    F32,
    F16,
    U16(f32, i32),
    U8(f32, i32),
    I16(f32),
    I32,
}

impl Store {
    /// Returns u16 over an interval, as calibration produces it.
    pub fn over(low: f32, high: f32) -> Store {
        let (scale, zero) = affine(low, high, 65_535.0);
        Store::U16(scale, zero)
    }

    /// Returns u8 over an interval.
    pub fn over8(low: f32, high: f32) -> Store {
        let (scale, zero) = affine(low, high, 255.0);
        Store::U8(scale, zero)
    }

    pub fn dtype(self) -> u32 {
        match self {
            Store::F32 => SW_DTYPE_F32,
            Store::F16 => SW_DTYPE_F16,
            Store::U16(..) => SW_DTYPE_U16,
            Store::U8(..) => SW_DTYPE_U8,
            Store::I16(_) => SW_DTYPE_I16,
            Store::I32 => SW_DTYPE_I32,
        }
    }

    pub fn affine(self) -> Option<(f32, i32)> {
        match self {
            Store::U16(scale, zero) | Store::U8(scale, zero) => Some((scale, zero)),
            Store::I16(scale) => Some((scale, 0)),
            _ => None,
        }
    }

    /// Returns the distance between two neighbouring values, for f16 at 1.
    pub fn step(self) -> f64 {
        match self {
            Store::F32 => 1e-6,
            Store::F16 => 1e-3,
            _ => f64::from(self.affine().expect("integers").0),
        }
    }

    pub fn encode(self, values: &[f64]) -> Vec<u8> {
        self.encoding().encode(values)
    }

    pub fn decode(self, bytes: &[u8]) -> Vec<f64> {
        self.encoding().decode(bytes)
    }

    pub fn encoding(self) -> Encoding {
        Encoding { dtype: self.dtype(), affine: self.affine() }
    }
}

fn affine(low: f32, high: f32, steps: f32) -> (f32, i32) {
    let (low, high) = (low.min(0.0), high.max(0.0));
    let scale = ((high - low) / steps).max(f32::MIN_POSITIVE);
    (scale, (-low / scale).round() as i32)
}

/// Scales of a weight's integers.
#[derive(Clone, Debug, PartialEq)]
pub struct Scales {
    pub kind: u32,
    pub axis: u32,
    pub block: u64,
    pub values: Vec<f32>,
    pub zero: i32,
    /// Whether they are stored in f16, like block scales.
    pub half: bool,
}

/// A constant of an entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    pub name: String,
    pub shape: Vec<u64>,
    pub dtype: u32,
    pub bytes: Vec<u8>,
    pub scales: Option<Scales>,
    /// Its decoded values. Empty if no test computes with them.
    pub values: Vec<f64>,
    /// Whether bytes and scales are missing.
    pub planned: bool,
}

impl Weight {
    /// Creates a weight of integers with scales.
    pub fn integers(name: &str, shape: &[u64], dtype: u32, stored: &[i32], scales: Scales) -> Weight {
        let width = *shape.last().expect("a last axis") as usize;
        let bits = bits_of(dtype) as usize;
        let mut bytes = Vec::with_capacity(stored.len() * bits / 8);
        for row in stored.chunks(width) {
            match bits {
                8 => bytes.extend(row.iter().map(|value| *value as u8)),
                16 => bytes.extend(row.iter().flat_map(|value| (*value as u16).to_le_bytes())),
                bits => {
                    let few = 8 / bits;
                    let mask = (1u8 << bits) - 1;
                    bytes.extend(row.chunks(few).map(|few| {
                        few.iter()
                            .enumerate()
                            .fold(0u8, |byte, (at, value)| byte | (*value as u8 & mask) << (at * bits))
                    }));
                }
            }
        }
        let blocks = if scales.block > 0 { width.div_ceil(scales.block as usize) } else { 1 };
        let scale = |at: usize| match scales.kind {
            SW_QUANTISATION_PER_TENSOR => scales.values[0],
            SW_QUANTISATION_PER_CHANNEL => scales.values[at / width],
            _ => scales.values[at / width * blocks + at % width / scales.block as usize],
        };
        let values = match scales.values.is_empty() {
            true => Vec::new(),
            false => stored
                .iter()
                .enumerate()
                .map(|(at, stored)| f64::from(stored - scales.zero) * f64::from(scale(at)))
                .collect(),
        };
        let shape = shape.to_vec();
        Weight { name: name.to_owned(), shape, dtype, bytes, scales: Some(scales), values, planned: false }
    }

    /// Creates a matrix with a scale per output. Its integers use the whole range of the type.
    pub fn matrix(name: &str, [outputs, inputs]: [u64; 2], dtype: u32, random: &mut Random) -> Weight {
        let limit = (1i32 << (bits_of(dtype) - 1)) - 1;
        let stored: Vec<i32> = (0..outputs * inputs).map(|_| random.integer(-limit, limit)).collect();
        let size = 1.5 / (limit as f32 * (inputs as f32).sqrt());
        let values = (0..outputs).map(|_| size * random.between(0.5, 1.5) as f32).collect();
        Weight::integers(name, &[outputs, inputs], dtype, &stored, Scales::per_channel(values))
    }

    /// Creates a weight whose values are encoded like activations.
    pub fn stored(name: &str, shape: &[u64], store: Store, values: &[f64]) -> Weight {
        let bytes = store.encode(values);
        let scales = store.affine().map(|(scale, zero)| Scales {
            kind: SW_QUANTISATION_PER_TENSOR,
            axis: 0,
            block: 0,
            values: vec![scale],
            zero,
            half: false,
        });
        let values = store.decode(&bytes);
        let (name, shape, dtype) = (name.to_owned(), shape.to_vec(), store.dtype());
        Weight { name, shape, dtype, bytes, scales, values, planned: false }
    }

    /// Marks the weight as planned: bytes and scales are missing.
    pub fn planned(mut self) -> Weight {
        self.planned = true;
        self
    }
}

impl Scales {
    pub fn per_channel(values: Vec<f32>) -> Scales {
        Scales { kind: SW_QUANTISATION_PER_CHANNEL, axis: 0, block: 0, values, zero: 0, half: false }
    }

    pub fn per_tensor(value: f32) -> Scales {
        let values = vec![value];
        Scales { kind: SW_QUANTISATION_PER_TENSOR, axis: 0, block: 0, values, zero: 0, half: false }
    }

    pub fn blocks(block: u64, values: Vec<f32>) -> Scales {
        Scales { kind: SW_QUANTISATION_PER_BLOCK, axis: 1, block, values, zero: 0, half: true }
    }
}

#[derive(Clone, Debug)]
pub struct Node {
    pub name: String,
    pub op: u32,
    pub version: u32,
    pub inputs: Vec<u32>,
    pub outputs: Vec<u32>,
    pub attributes: Vec<Attribute>,
    pub layer: i64,
}

#[derive(Clone, Debug)]
pub struct Port {
    pub name: String,
    pub role: u32,
    pub tensor: u32,
}

/// An entry under construction.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    pub name: String,
    pub rows: u64,
    pub tensors: Vec<(String, Vec<u64>, Option<Store>)>,
    pub nodes: Vec<Node>,
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    pub constants: Vec<(u32, Weight)>,
}

impl Tables {
    pub fn new(name: &str, rows: u64) -> Tables {
        Tables { name: name.to_owned(), rows, ..Tables::default() }
    }

    pub fn tensor(&mut self, name: &str, shape: &[u64], store: Store) -> u32 {
        self.tensors.push((name.to_owned(), shape.to_vec(), Some(store)));
        self.tensors.len() as u32 - 1
    }

    pub fn shape(&self, tensor: u32) -> Vec<u64> {
        self.tensors[tensor as usize].1.clone()
    }

    pub fn store(&self, tensor: u32) -> Store {
        self.tensors[tensor as usize].2.expect("an activation")
    }

    pub fn input(&mut self, name: &str, role: u32, shape: &[u64], store: Store) -> u32 {
        let tensor = self.tensor(name, shape, store);
        self.inputs.push(Port { name: name.to_owned(), role, tensor });
        tensor
    }

    pub fn output(&mut self, name: &str, role: u32, tensor: u32) {
        self.outputs.push(Port { name: name.to_owned(), role, tensor });
    }

    pub fn constant(&mut self, weight: Weight) -> u32 {
        if let Some((tensor, _)) = self.constants.iter().find(|(_, known)| known.name == weight.name) {
            return *tensor;
        }
        self.tensors.push((weight.name.clone(), weight.shape.clone(), None));
        let tensor = self.tensors.len() as u32 - 1;
        self.constants.push((tensor, weight));
        tensor
    }

    pub fn node(
        &mut self,
        name: &str,
        op: u32,
        inputs: &[u32],
        (shape, store): (&[u64], Store),
        attributes: Vec<Attribute>,
    ) -> u32 {
        let output = self.tensor(name, shape, store);
        self.nodes.push(Node {
            name: name.to_owned(),
            op,
            version: 1,
            inputs: inputs.to_vec(),
            outputs: vec![output],
            attributes,
            layer: 3,
        });
        output
    }

    /// Adds an elementwise operation with one operand.
    pub fn unary(&mut self, name: &str, op: u32, x: u32, store: Store, attributes: Vec<Attribute>) -> u32 {
        let shape = self.shape(x);
        self.node(name, op, &[x], (&shape, store), attributes)
    }

    pub fn binary(&mut self, name: &str, op: u32, a: u32, b: u32, store: Store) -> u32 {
        let (left, right) = (self.shape(a), self.shape(b));
        let rank = left.len().max(right.len());
        let at =
            |shape: &[u64], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |axis| shape[axis]);
        let shape: Vec<u64> = (0..rank).map(|axis| at(&left, axis).max(at(&right, axis))).collect();
        self.node(name, op, &[a, b], (&shape, store), vec![])
    }

    pub fn linear(&mut self, name: &str, x: u32, weight: Weight, store: Store) -> u32 {
        let mut shape = self.shape(x);
        *shape.last_mut().expect("a matrix") = weight.shape[0];
        let weight = self.constant(weight);
        self.node(name, SW_OP_LINEAR, &[x, weight], (&shape, store), vec![])
    }

    pub fn norm(&mut self, name: &str, x: u32, weight: Option<Weight>, width: u64, store: Store) -> u32 {
        let mut inputs = vec![x];
        inputs.extend(weight.map(|weight| self.constant(weight)));
        let shape = self.shape(x);
        let attributes = vec![
            Attribute::Integer("width", width as i64),
            Attribute::Float("eps", 1e-6),
            Attribute::Float("weight_offset", 0.0),
        ];
        self.node(name, SW_OP_RMS_NORM, &inputs, (&shape, store), attributes)
    }

    pub fn reshape(&mut self, name: &str, x: u32, shape: &[u64]) -> u32 {
        let (store, list) = (self.store(x), shape.iter().map(|extent| *extent as i64).collect());
        self.node(name, SW_OP_RESHAPE, &[x], (shape, store), vec![Attribute::Integers("shape", list)])
    }

    pub fn transpose(&mut self, name: &str, x: u32, perm: &[usize]) -> u32 {
        let (from, store) = (self.shape(x), self.store(x));
        let shape: Vec<u64> = perm.iter().map(|axis| from[*axis]).collect();
        let list = perm.iter().map(|axis| *axis as i64).collect();
        self.node(name, SW_OP_TRANSPOSE, &[x], (&shape, store), vec![Attribute::Integers("perm", list)])
    }

    pub fn slice(&mut self, name: &str, x: u32, axis: usize, start: u64, end: u64) -> u32 {
        let (mut shape, store) = (self.shape(x), self.store(x));
        shape[axis] = end - start;
        let attributes = vec![
            Attribute::Integer("axis", axis as i64),
            Attribute::Integer("start", start as i64),
            Attribute::Integer("end", end as i64),
        ];
        self.node(name, SW_OP_SLICE, &[x], (&shape, store), attributes)
    }

    pub fn concat(&mut self, name: &str, parts: &[u32], axis: usize) -> u32 {
        let (mut shape, store) = (self.shape(parts[0]), self.store(parts[0]));
        shape[axis] = parts.iter().map(|part| self.shape(*part)[axis]).sum();
        self.node(name, SW_OP_CONCAT, parts, (&shape, store), vec![Attribute::Integer("axis", axis as i64)])
    }

    pub fn mat_mul(&mut self, name: &str, a: u32, b: u32, transpose_b: bool, store: Store) -> u32 {
        let (left, right) = (self.shape(a), self.shape(b));
        let columns = right[right.len() - if transpose_b { 2 } else { 1 }];
        let mut shape = if left.len() >= right.len() { left.clone() } else { right.clone() };
        let rank = shape.len();
        for axis in 0..rank - 2 {
            let at = |shape: &[u64]| (axis + shape.len()).checked_sub(rank).map_or(1, |axis| shape[axis]);
            shape[axis] = at(&left).max(at(&right));
        }
        (shape[rank - 2], shape[rank - 1]) = (left[left.len() - 2], columns);
        let attributes = vec![Attribute::Integer("transpose_b", i64::from(transpose_b))];
        self.node(name, SW_OP_MAT_MUL, &[a, b], (&shape, store), attributes)
    }

    /// Returns the tables with every activation and every constant in f16.
    pub fn halved(mut self) -> Tables {
        for (_, _, store) in &mut self.tensors {
            *store = store.map(|_| Store::F16);
        }
        for (_, weight) in &mut self.constants {
            *weight = Weight::stored(&weight.name, &weight.shape, Store::F16, &weight.values);
        }
        self
    }

    /// Returns a checked view of the contract's tables.
    pub fn view(&self) -> EntryView<'static> {
        self.try_view().expect("valid tables")
    }

    /// Returns the view, or the contract's error about the tables.
    pub fn try_view(&self) -> shardwright_shim_abi::Result<EntryView<'static>> {
        self.builder().view()
    }

    /// Returns the entry as a host passes it.
    #[allow(dead_code, reason = "tests of the shim use it")]
    pub fn entry(&self) -> &'static SwEntry {
        self.builder().build()
    }

    /// Converts to tables of the contract, with the values of the constants that have bytes.
    pub fn builder(&self) -> testing::Builder {
        let mut builder = testing::Builder::new(&self.name, SW_ENTRY_DECODE, self.rows, 512);
        for (name, shape, store) in &self.tensors {
            builder.tensor(name, store.map_or(Encoding::F32, Store::encoding), shape);
        }
        let port = |port: &Port| testing::Port {
            name: port.name.clone(),
            role: port.role,
            tensor: port.tensor,
            index: 0,
            dtype: None,
        };
        builder.inputs = self.inputs.iter().map(port).collect();
        builder.outputs = self.outputs.iter().map(port).collect();
        builder.nodes = self
            .nodes
            .iter()
            .map(|node| testing::Node {
                name: Some(node.name.clone()),
                op: node.op,
                version: node.version,
                layer: node.layer,
                inputs: node.inputs.clone(),
                outputs: node.outputs.clone(),
                attributes: node.attributes.clone(),
            })
            .collect();
        for (tensor, weight) in &self.constants {
            builder.tensors[*tensor as usize].encoding = Encoding::plain(weight.dtype);
            builder.constants.push((*tensor, weight.table()));
        }
        builder
    }
}

impl Weight {
    fn table(&self) -> testing::Weight {
        let scales = self.scales.as_ref().map(|existing| testing::Scales {
            kind: existing.kind,
            axis: existing.axis,
            block: existing.block,
            values: existing.values.clone(),
            zero_point: existing.zero,
            half: existing.half,
        });
        let (name, shape) = (&self.name, &self.shape);
        match self.planned {
            true => testing::Weight::planned(name, shape, self.dtype, self.bytes.len() as u64, scales),
            false => testing::Weight {
                values: self.values.iter().map(|value| *value as f32).collect(),
                ..testing::Weight::raw(name, shape, self.dtype, self.bytes.clone(), scales)
            },
        }
    }
}
