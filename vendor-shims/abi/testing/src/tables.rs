//! Contract tables, leaked because a test process is short.

use std::ffi::{CStr, CString, c_char};
use std::ptr::null;

use half::f16;
use shardwright_shim_abi::EntryView;
use shardwright_shim_abi::raw::*;

use crate::encoding::{TableEncoding, bits_of};

/// Index of a tensor.
pub type TensorId = u32;

/// An attribute of a node, by name and value.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    Integer(&'static str, i64),
    Float(&'static str, f64),
    Integers(&'static str, Vec<i64>),
    Text(&'static str, &'static str),
}

/// A weight and its values in f32. Integer weights also have the stored integers and the scale of
/// each.
#[derive(Clone)]
pub struct Weight {
    pub raw: &'static SwWeight,
    pub values: Vec<f32>,
    /// For each value, the stored integer minus the zero point, and the scale. Empty for floats.
    pub stored: Vec<(i32, f32)>,
    /// For each value, the minimum that is subtracted. Empty without minimums.
    pub minimums: Vec<f32>,
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
    /// Axis along which scales differ.
    pub axis: u32,
    /// Values per block, or 0 without blocks.
    pub block: u64,
    /// Scales in row-major order.
    pub values: Vec<f32>,
    /// One zero point for all values.
    pub zero_point: i32,
    /// Whether scales are stored in binary16, as scales of blocks are, instead of f32.
    pub half: bool,
}

impl Scales {
    pub fn per_tensor(value: f32) -> Scales {
        let values = vec![value];
        Scales { kind: SW_QUANTISATION_PER_TENSOR, axis: 0, block: 0, values, zero_point: 0, half: false }
    }

    /// Creates scales of the first axis.
    pub fn per_channel(values: Vec<f32>) -> Scales {
        Scales { kind: SW_QUANTISATION_PER_CHANNEL, axis: 0, block: 0, values, zero_point: 0, half: false }
    }

    /// Creates scales of blocks in the rows of a matrix.
    pub fn blocks(block: u64, values: Vec<f32>) -> Scales {
        Scales { kind: SW_QUANTISATION_PER_BLOCK, axis: 1, block, values, zero_point: 0, half: true }
    }

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
    /// Creates a weight from stored bytes and scales. The decoded values are not computed.
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
        Weight { raw, values: Vec::new(), stored: Vec::new(), minimums: Vec::new() }
    }

    /// Creates a matrix [N, K] close to `values` with one scale per row, in 8, 4 or 2 bits.
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

    /// Creates a vector close to `values` in 16 bits with one scale and zero point.
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

    /// Creates a weight whose values are encoded like activations.
    pub fn encoded(name: &str, shape: &[u64], encoding: TableEncoding, values: &[f64]) -> Weight {
        let bytes = encoding.encode(values);
        let values = encoding.decode_f32(&bytes);
        let scales =
            encoding.affine.map(|(scale, zero_point)| Scales { zero_point, ..Scales::per_tensor(scale) });
        Weight { values, ..Weight::raw(name, shape, encoding.dtype, bytes, scales) }
    }

    pub fn name(&self) -> &'static str {
        // SAFETY: `raw` made the struct. Its name is a C string that is never freed.
        unsafe { CStr::from_ptr(self.raw.name) }.to_str().expect("UTF-8")
    }

    /// Returns the extents.
    pub fn shape(&self) -> &'static [u64] {
        match self.raw.rank {
            0 => &[],
            // SAFETY: `raw` made the struct. Its shape has `rank` numbers and is never freed.
            rank => unsafe { std::slice::from_raw_parts(self.raw.shape, rank as usize) },
        }
    }

    /// Creates a weight with a length but without bytes or scales, as `check` and `estimate` may
    /// receive it.
    pub fn planned(name: &str, shape: &[u64], dtype: u32, length: u64, scales: Option<Scales>) -> Weight {
        let weight = Weight::raw(name, shape, dtype, Vec::new(), scales).without_bytes();
        Weight { raw: leak(SwWeight { length, ..*weight.raw }), ..weight }
    }

    /// Returns the weight as it is before quantisation, without bytes and scales. `check` and
    /// `estimate` may receive it like this.
    pub fn without_bytes(&self) -> Weight {
        // SAFETY: null, or a struct that `Scales::table` leaked.
        let quantisation = match unsafe { self.raw.quantisation.as_ref() } {
            Some(existing) => leak(SwQuantisation { scales: null(), ..*existing }),
            None => null(),
        };
        let raw = leak(SwWeight { data: null(), quantisation, ..*self.raw });
        Weight { raw, ..self.clone() }
    }
}

/// A tensor that an entry declares.
#[derive(Clone, Debug, PartialEq)]
pub struct Declared {
    pub name: String,
    /// Encoding of the values. For a constant this is only the type, because the weight has the
    /// scales.
    pub encoding: TableEncoding,
    pub shape: Vec<u64>,
}

#[derive(Clone, Debug)]
pub struct Node {
    /// Name of the node, `node.N` if `None`.
    pub name: Option<String>,
    /// `SW_OP_…`
    pub op: u32,
    /// 1 unless a test changes it.
    pub version: u32,
    /// Layer of the model.
    pub layer: i64,
    pub inputs: Vec<TensorId>,
    pub outputs: Vec<TensorId>,
    pub attributes: Vec<Attribute>,
}

/// An input or output of an entry.
#[derive(Clone, Debug)]
pub struct Port {
    /// Name of the binding.
    pub name: String,
    /// `SW_ROLE_…`
    pub role: u32,
    pub tensor: TensorId,
    /// Detail of the role, see `sw_port`.
    pub index: u64,
    /// `SW_DTYPE_…` to state instead of the tensor's own type.
    pub dtype: Option<u32>,
}

/// Builds the table of an entry.
#[derive(Clone)]
pub struct Builder {
    /// Name of the entry, for example `decode_1@64`.
    pub name: String,
    /// `SW_ENTRY_…`
    pub kind: u32,
    /// Static rows.
    pub rows: u64,
    /// Number of positions of linear states.
    pub context: u64,
    /// Layer of nodes that are added from now on.
    pub layer: i64,
    /// Encoding of results that are added from now on, initially f32. [`Builder::encode`] changes
    /// one tensor.
    pub encoding: TableEncoding,
    /// All tensors, by index.
    pub tensors: Vec<Declared>,
    /// Operations in an order in which they can run.
    pub nodes: Vec<Node>,
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    /// Tensors whose values are weights.
    pub constants: Vec<(TensorId, Weight)>,
}

/// Leaks a C string.
pub fn text(text: &str) -> *const c_char {
    CString::new(text).expect("no NUL in a test's text").into_raw()
}

/// Leaks a value, so that it lives for the rest of the process.
pub fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// Leaks an array. Returns null if it is empty.
pub fn list<T: 'static>(items: Vec<T>) -> *const T {
    if items.is_empty() {
        return null();
    }
    Box::leak(items.into_boxed_slice()).as_ptr()
}

fn size_of_struct<T>() -> u64 {
    size_of::<T>() as u64
}

/// Creates a weight of a float type. Values are rounded towards zero to that type.
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
            // Rounded towards zero: only the eleven leading bits of a normal number are kept.
            let raw: Vec<f16> =
                values.iter().map(|v| f16::from_f32(f32::from_bits(v.to_bits() & !0x1fff))).collect();
            (raw.iter().flat_map(|v| v.to_le_bytes()).collect(), raw.iter().map(|v| v.to_f32()).collect())
        }
        _ => (values.iter().flat_map(|v| v.to_le_bytes()).collect(), values.to_vec()),
    };
    Weight { values, ..Weight::raw(name, shape, dtype, bytes, None) }
}

/// Creates a quantised weight. `stored` has the integers row by row. `kind` and `block` are as in
/// the contract.
///
/// `scales` are stored in f32. Scales of blocks are stored in binary16 if all of them are exact in
/// it. The minimums of a row follow the row's scales.
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
        half: block > 0 && scales.iter().all(|scale| f16::from_f32(*scale).to_f32() == *scale),
    };
    let value = |(at, (raw, scale)): (usize, &(i32, f32))| *raw as f32 * scale - minimum_of(at);
    let values = pairs.iter().enumerate().map(value).collect();
    let minimums = match kind {
        SW_QUANTISATION_PER_BLOCK_WITH_MINIMUM => (0..stored.len()).map(minimum_of).collect(),
        _ => Vec::new(),
    };
    Weight { values, stored: pairs, minimums, ..Weight::raw(name, shape, dtype, bytes, Some(quantisation)) }
}

impl Builder {
    /// Creates an empty entry.
    pub fn new(name: &str, kind: u32, rows: u64, context: u64) -> Builder {
        Builder {
            name: name.to_owned(),
            kind,
            rows,
            context,
            layer: 0,
            encoding: TableEncoding::F32,
            tensors: Vec::new(),
            nodes: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            constants: Vec::new(),
        }
    }

    /// Declares a tensor.
    pub fn tensor(&mut self, name: &str, encoding: TableEncoding, shape: &[u64]) -> TensorId {
        self.tensors.push(Declared { name: name.to_owned(), encoding, shape: shape.to_vec() });
        self.tensors.len() as u32 - 1
    }

    /// Returns the extents of a tensor.
    pub fn shape(&self, tensor: TensorId) -> Vec<u64> {
        self.tensors[tensor as usize].shape.clone()
    }

    /// Declares an input. The role determines the encoding: indices or f32.
    pub fn input(&mut self, name: &str, role: u32, shape: &[u64]) -> TensorId {
        let encoding = match role {
            SW_ROLE_POSITIONS | SW_ROLE_SLOTS | SW_ROLE_GRID => TableEncoding::I32,
            _ => TableEncoding::F32,
        };
        self.input_as(name, role, shape, encoding)
    }

    /// Declares an input with an encoding.
    pub fn input_as(&mut self, name: &str, role: u32, shape: &[u64], encoding: TableEncoding) -> TensorId {
        let tensor = self.tensor(name, encoding, shape);
        self.inputs.push(Port { name: name.to_owned(), role, tensor, index: 0, dtype: None });
        tensor
    }

    /// Makes a tensor an output.
    pub fn output(&mut self, name: &str, role: u32, tensor: TensorId) {
        self.outputs.push(Port { name: name.to_owned(), role, tensor, index: 0, dtype: None });
    }

    /// Adds a weight as a tensor.
    pub fn constant(&mut self, weight: &Weight) -> TensorId {
        let name = format!("weight.{}", self.tensors.len());
        let tensor = self.tensor(&name, TableEncoding::plain(weight.raw.dtype), weight.shape());
        self.constants.push((tensor, weight.clone()));
        tensor
    }

    /// Adds an operation with one result of this shape.
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

    /// Adds a product whose rows are quantised in blocks of `block` values.
    pub fn block_linear(&mut self, inputs: &[TensorId], shape: &[u64], block: i64) -> TensorId {
        let output = self.node(SW_OP_DYNAMIC_LINEAR, inputs, shape, vec![Attribute::Integer("block", block)]);
        self.nodes.last_mut().expect("a node").version = 2;
        output
    }

    /// Rounds the operands of every attention that was added to `products`, `bf16` or `f16`.
    pub fn round_attention(&mut self, products: &'static str) {
        for node in self.nodes.iter_mut().filter(|node| node.op == SW_OP_ATTENTION) {
            node.version = 2;
            node.attributes.push(Attribute::Text("products", products));
        }
    }

    /// Adds a data movement. Its result keeps the operand's encoding, unless the operand is a
    /// weight.
    fn moved(&mut self, op: u32, inputs: &[TensorId], shape: &[u64], attributes: Vec<Attribute>) -> TensorId {
        let output = self.node(op, inputs, shape, attributes);
        match self.constants.iter().any(|(id, _)| *id == inputs[0]) {
            true => output,
            false => self.encode(output, self.encoding_of(inputs[0])),
        }
    }

    /// Adds `x · wᵀ`.
    pub fn linear(&mut self, x: TensorId, w: &Weight) -> TensorId {
        let w = self.constant(w);
        let mut shape = self.shape(x);
        *shape.last_mut().expect("a matrix") = self.shape(w)[0];
        self.node(SW_OP_LINEAR, &[x, w], &shape, vec![])
    }

    /// Adds an RMS norm over groups of `width` values.
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

    /// Adds an elementwise operation with one operand.
    pub fn unary(&mut self, op: u32, x: TensorId, attributes: Vec<Attribute>) -> TensorId {
        let shape = self.shape(x);
        self.node(op, &[x], &shape, attributes)
    }

    /// Adds an elementwise operation with two operands, broadcast from the last axis.
    pub fn binary(&mut self, op: u32, a: TensorId, b: TensorId) -> TensorId {
        let (a_shape, b_shape) = (self.shape(a), self.shape(b));
        let rank = a_shape.len().max(b_shape.len());
        let at =
            |shape: &[u64], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |axis| shape[axis]);
        let shape: Vec<u64> = (0..rank).map(|axis| at(&a_shape, axis).max(at(&b_shape, axis))).collect();
        self.node(op, &[a, b], &shape, vec![])
    }

    /// Adds a reshape.
    pub fn reshape(&mut self, x: TensorId, shape: &[u64]) -> TensorId {
        let list = shape.iter().map(|extent| *extent as i64).collect();
        self.moved(SW_OP_RESHAPE, &[x], shape, vec![Attribute::Integers("shape", list)])
    }

    /// Adds a transpose. Axis `i` of the result is axis `perm[i]` of the operand.
    pub fn transpose(&mut self, x: TensorId, perm: &[usize]) -> TensorId {
        let from = self.shape(x);
        let shape: Vec<u64> = perm.iter().map(|axis| from[*axis]).collect();
        let list = perm.iter().map(|axis| *axis as i64).collect();
        self.moved(SW_OP_TRANSPOSE, &[x], &shape, vec![Attribute::Integers("perm", list)])
    }

    /// Adds a slice from `start` up to, but not including, `end` of one axis.
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

    /// Adds a concatenation along an axis.
    pub fn concat(&mut self, parts: &[TensorId], axis: usize) -> TensorId {
        let mut shape = self.shape(parts[0]);
        shape[axis] = parts.iter().map(|part| self.shape(*part)[axis]).sum();
        self.moved(SW_OP_CONCAT, parts, &shape, vec![Attribute::Integer("axis", axis as i64)])
    }

    /// Adds a matrix product over the last two axes. Leading axes are broadcast.
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

    /// Returns the encoding of a tensor.
    pub fn encoding_of(&self, tensor: TensorId) -> TableEncoding {
        self.tensors[tensor as usize].encoding
    }

    /// Sets the encoding of a tensor and returns the tensor.
    pub fn encode(&mut self, tensor: TensorId, encoding: TableEncoding) -> TensorId {
        self.tensors[tensor as usize].encoding = encoding;
        tensor
    }

    /// Sets the name of the last node.
    pub fn name_last(&mut self, name: &str) {
        self.nodes.last_mut().expect("a node").name = Some(name.to_owned());
    }

    /// Builds the table and returns a checked view of it.
    ///
    /// # Errors
    ///
    /// If the contract layer rejects the table.
    pub fn view(&self) -> shardwright_shim_abi::Result<EntryView<'static>> {
        // SAFETY: the table is whole and never freed.
        unsafe { EntryView::new(self.build()) }
    }

    /// Builds the table.
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
                self.tensors.get(port.tensor as usize).map_or(TableEncoding::F32, |tensor| tensor.encoding);
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

/// Creates the quantisation of values with one scale and zero point.
fn quantisation(encoding: TableEncoding) -> *const SwQuantisation {
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
