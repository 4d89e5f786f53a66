//! Small graphs run by the real library and compared with a plain computation in f64.
#![allow(dead_code, reason = "each test file uses a part of it")]

#[path = "../found/mod.rs"]
mod found;

pub use found::{library_file, skipped};
use shardwright_shim_qnn::graph::{
    DataType, Param, QnnEncoding, QnnGraph, QnnNode, QnnTensor, ScaleOffset, StaticData, TensorIndex,
    TensorKind,
};
use shardwright_shim_qnn::session::{
    Backend, CodeFor, Context, ContextOptions, Device, GraphOptions, Library, LibraryChoice, QnnError, SocId,
};
use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

thread_local! {
    /// Lock of a test from opening the library to its end. The simulation has one fast memory for
    /// all contexts of a process. A waiting graph becomes invalid if another is compiled or run.
    static TURN: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) };
}

fn wait_for_the_turn() {
    static ONE: Mutex<()> = Mutex::new(());
    TURN.with_borrow_mut(|turn| {
        turn.get_or_insert_with(|| ONE.lock().unwrap_or_else(PoisonError::into_inner));
    });
}

/// Opens the library of [`library_file`]. Tests that use it run one at a time.
pub fn library() -> Option<Arc<Library>> {
    wait_for_the_turn();
    static LIBRARY: OnceLock<Arc<Library>> = OnceLock::new();
    let choice = LibraryChoice { option: Some(library_file()?), ..LibraryChoice::default() };
    let open = || Library::open(&choice).unwrap_or_else(|error| panic!("{error}"));
    Some(LIBRARY.get_or_init(open).clone())
}

/// Creates a device of a chip on the test program's common backend.
pub fn device(library: &Arc<Library>, soc: u32) -> Arc<Device> {
    static BACKEND: OnceLock<Arc<Backend>> = OnceLock::new();
    let backend = BACKEND.get_or_init(|| Backend::new(library.clone()).expect("the backend starts"));
    Device::new(backend.clone(), CodeFor::Chip(SocId(soc))).expect("the chip is known")
}

/// Creates the encoding `(stored + offset) · scale`.
pub fn per_tensor(scale: f64, offset: i32) -> QnnEncoding {
    QnnEncoding::PerTensor(ScaleOffset { scale: scale as f32, offset })
}

/// The type of a tensor with its encoding.
pub type Kind = (DataType, QnnEncoding);

/// Returns 16 bits over [-bound, bound].
pub fn a16(bound: f64) -> Kind {
    (DataType::Ufixed16, per_tensor(bound / 32768.0, -32768))
}

/// Returns 8 bits over [-bound, bound].
pub fn a8(bound: f64) -> Kind {
    (DataType::Ufixed8, per_tensor(bound / 128.0, -128))
}

/// Returns signed 16 bits over [-bound, bound].
pub fn s16(bound: f64) -> Kind {
    (DataType::Sfixed16, per_tensor(bound / 32768.0, 0))
}

/// Returns signed 8 bits over [-bound, bound].
pub fn s8(bound: f64) -> Kind {
    (DataType::Sfixed8, per_tensor(bound / 128.0, 0))
}

pub fn f16() -> Kind {
    (DataType::Float16, QnnEncoding::None)
}

pub fn f32() -> Kind {
    (DataType::Float32, QnnEncoding::None)
}

pub fn i32s() -> Kind {
    (DataType::Int32, QnnEncoding::None)
}

/// Generates numbers in [-bound, bound) from a seed.
pub fn random(count: usize, bound: f64, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as f64 / (1u64 << 24) as f64
    };
    for _ in 0..8 {
        next();
    }
    (0..count).map(|_| (next() * 2.0 - 1.0) * bound).collect()
}

/// Returns scale and offset of one element, and the range of its stored integers.
fn element(tensor: (&DataType, &QnnEncoding, &[u32]), index: usize) -> (f64, f64, f64, f64) {
    let (dtype, encoding, dims) = tensor;
    let container = match dtype {
        DataType::Ufixed8 | DataType::Uint8 => (0.0, 255.0),
        DataType::Ufixed16 | DataType::Uint16 => (0.0, 65535.0),
        DataType::Sfixed8 | DataType::Int8 => (-128.0, 127.0),
        DataType::Sfixed16 | DataType::Int16 => (-32768.0, 32767.0),
        DataType::Sfixed32 | DataType::Int32 => (-2147483648.0, 2147483647.0),
        DataType::Sfixed4 => (-8.0, 7.0),
        DataType::Bool8 => (0.0, 1.0),
        _ => (0.0, 4294967295.0),
    };
    let few = |bits: u32| (-f64::from(1 << (bits - 1)), f64::from((1 << (bits - 1)) - 1));
    let along = |axis: i32| {
        let inner: usize = dims[axis as usize + 1..].iter().map(|extent| *extent as usize).product();
        index / inner % dims[axis as usize] as usize
    };
    let block = |extents: &[u32]| {
        let (mut rest, mut number, mut stride) = (index, 0, 1);
        for (extent, size) in dims.iter().zip(extents).rev() {
            number += rest % *extent as usize / *size as usize * stride;
            stride *= extent.div_ceil(*size) as usize;
            rest /= *extent as usize;
        }
        number
    };
    let (scale, offset, (least, most)) = match encoding {
        QnnEncoding::None => (1.0, 0, container),
        QnnEncoding::PerTensor(one) => (f64::from(one.scale), one.offset, container),
        QnnEncoding::PerAxis { axis, scales } => (f64::from(scales[along(*axis)]), 0, container),
        QnnEncoding::BitWidth { bits, scale_offset } => {
            (f64::from(scale_offset.scale), scale_offset.offset, few(*bits))
        }
        QnnEncoding::BitWidthPerAxis { bits, axis, scales } => {
            (f64::from(scales[along(*axis)]), 0, few(*bits))
        }
        QnnEncoding::BlockExpansion { axis, scales, blocks_per_channel, multiples } => {
            let channel = along(*axis);
            // Blocks run along the other of the two innermost axes.
            let last = dims.len() - 1;
            let other = if *axis as usize == last { last - 1 } else { last };
            let position = along(other as i32);
            let length = dims[other] / blocks_per_channel;
            let multiple = multiples[channel * *blocks_per_channel as usize + position / length as usize];
            (f64::from(scales[channel]) * f64::from(multiple), 0, few(4))
        }
        QnnEncoding::Block { extents, scales } => {
            let one = scales[block(extents)];
            (f64::from(one.scale), one.offset, container)
        }
        QnnEncoding::FloatBlock { extents, scales } => (f64::from(scales[block(extents)]), 0, container),
        QnnEncoding::BitWidthFloatBlock { bits, extents, scales } => {
            (f64::from(scales[block(extents)]), 0, few(*bits))
        }
    };
    (scale, f64::from(offset), least, most)
}

/// Encodes values as the nearest stored bytes.
pub fn encode(values: &[f64], kind: &Kind, dims: &[u32]) -> Vec<u8> {
    let (dtype, encoding) = kind;
    let mut bytes = Vec::with_capacity(values.len() * dtype.bytes() as usize);
    for (index, value) in values.iter().enumerate() {
        match dtype {
            DataType::Float16 => bytes.extend(half::f16::from_f64(*value).to_le_bytes()),
            DataType::Bfloat16 => bytes.extend(half::bf16::from_f64(*value).to_le_bytes()),
            DataType::Float32 => bytes.extend((*value as f32).to_le_bytes()),
            _ => {
                let (scale, offset, least, most) = element((dtype, encoding, dims), index);
                let stored = ((value / scale).round_ties_even() - offset).clamp(least, most) as i64;
                bytes.extend(&stored.to_le_bytes()[..dtype.bytes() as usize]);
            }
        }
    }
    bytes
}

/// Decodes stored bytes.
pub fn decode(bytes: &[u8], kind: &Kind, dims: &[u32]) -> Vec<f64> {
    let (dtype, encoding) = kind;
    let size = dtype.bytes() as usize;
    let value = |(index, bytes): (usize, &[u8])| match dtype {
        DataType::Float16 => half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f64(),
        DataType::Bfloat16 => half::bf16::from_le_bytes([bytes[0], bytes[1]]).to_f64(),
        DataType::Float32 => f64::from(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
        _ => {
            let (scale, offset, least, _) = element((dtype, encoding, dims), index);
            let mut wide = [0u8; 8];
            wide[..size].copy_from_slice(bytes);
            let unused = 64 - 8 * size as u32;
            let raw = i64::from_le_bytes(wide) << unused;
            let stored = if least < 0.0 { raw >> unused } else { ((raw as u64) >> unused) as i64 };
            (stored as f64 + offset) * scale
        }
    };
    bytes.chunks_exact(size).enumerate().map(value).collect()
}

/// A graph with the bytes of its inputs and the decoded values of its inputs and constants.
#[derive(Default)]
pub struct Case {
    pub graph: QnnGraph<'static>,
    pub inputs: Vec<Vec<u8>>,
    values: Vec<Vec<f64>>,
}

pub type Tensor = TensorIndex;

impl Case {
    pub fn new(name: &str) -> Case {
        Case { graph: QnnGraph { name: name.to_owned(), ..QnnGraph::default() }, ..Case::default() }
    }

    fn push(&mut self, kind: TensorKind<'static>, dims: &[u32], of: Kind, values: Vec<f64>) -> Tensor {
        let index = self.graph.tensors.len() as u32;
        self.graph.tensors.push(QnnTensor {
            name: format!("t{index}"),
            kind,
            dtype: of.0,
            dims: dims.to_vec(),
            encoding: of.1,
        });
        self.values.push(values);
        TensorIndex(index)
    }

    pub fn input(&mut self, dims: &[u32], kind: Kind, values: &[f64]) -> Tensor {
        let bytes = encode(values, &kind, dims);
        let decoded = decode(&bytes, &kind, dims);
        self.inputs.push(bytes);
        self.push(TensorKind::Input, dims, kind, decoded)
    }

    pub fn constant(&mut self, dims: &[u32], kind: Kind, values: &[f64]) -> Tensor {
        let bytes = encode(values, &kind, dims);
        let decoded = decode(&bytes, &kind, dims);
        self.push(TensorKind::Static(StaticData::Bytes(Cow::Owned(bytes))), dims, kind, decoded)
    }

    /// Adds a constant with explicit bytes and their values.
    pub fn stored(&mut self, dims: &[u32], kind: Kind, bytes: Vec<u8>, values: Vec<f64>) -> Tensor {
        self.push(TensorKind::Static(StaticData::Bytes(Cow::Owned(bytes))), dims, kind, values)
    }

    pub fn native(&mut self, dims: &[u32], kind: Kind) -> Tensor {
        self.push(TensorKind::Native, dims, kind, Vec::new())
    }

    pub fn output(&mut self, dims: &[u32], kind: Kind) -> Tensor {
        self.push(TensorKind::Output, dims, kind, Vec::new())
    }

    pub fn node(
        &mut self,
        op: &'static str,
        params: Vec<(&'static str, Param)>,
        inputs: &[Tensor],
        outputs: &[Tensor],
    ) {
        let name = format!("{}_n{}_{op}", self.graph.name, self.graph.nodes.len());
        let (inputs, outputs) = (inputs.to_vec(), outputs.to_vec());
        self.graph.nodes.push(QnnNode { name, op, params, inputs, outputs, origin: None });
    }

    /// Returns the values of an input or constant.
    pub fn real(&self, tensor: Tensor) -> &[f64] {
        &self.values[tensor.0 as usize]
    }

    /// Compiles and runs the graph. Returns the outputs' values.
    pub fn run(&self, device: &Arc<Device>) -> Result<Vec<Vec<f64>>, QnnError> {
        self.run_with(device, &GraphOptions { vtcm_megabytes: Some(8), ..GraphOptions::default() })
    }

    pub fn run_with(&self, device: &Arc<Device>, options: &GraphOptions) -> Result<Vec<Vec<f64>>, QnnError> {
        let mut context = Context::new(device.clone(), ContextOptions::default())?;
        let mut composed = context.compose(&self.graph, options)?;
        composed.finalize(false)?;
        let inputs: Vec<&[u8]> = self.inputs.iter().map(Vec::as_slice).collect();
        let sizes: Vec<u64> = composed.outputs().iter().map(|output| output.bytes().unwrap_or(0)).collect();
        let mut outputs: Vec<Vec<u8>> = sizes.iter().map(|bytes| vec![0u8; *bytes as usize]).collect();
        let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
        composed.execute(&inputs, &mut slices)?;
        let of = self.graph.tensors.iter().filter(|tensor| tensor.kind == TensorKind::Output);
        Ok(of
            .zip(&outputs)
            .map(|(tensor, bytes)| decode(bytes, &(tensor.dtype, tensor.encoding.clone()), &tensor.dims))
            .collect())
    }

    /// Checks whether the library supports the first node.
    pub fn validate(&self, device: &Arc<Device>) -> Result<(), QnnError> {
        let context = Context::new(device.clone(), ContextOptions::default())?;
        self.graph.nodes.iter().try_for_each(|node| context.validate(&self.graph, node))
    }
}

/// Returns the largest difference.
pub fn worst(left: &[f64], right: &[f64]) -> f64 {
    assert_eq!(left.len(), right.len());
    left.iter().zip(right).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}
