//! Entries of named nodes with an encoding for each result, built with the tables that tests of
//! shims share.

use std::ops::{Deref, DerefMut};

use shardwright_shim_abi::EntryView;
use shardwright_shim_abi::raw::*;
use shardwright_shim_testing::{Builder, integers};

pub use shardwright_shim_testing::encoding::bits_of;
pub use shardwright_shim_testing::{Attribute, Random, Scales, TableEncoding, Weight};

/// Returns u16 over an interval, as calibration produces it.
pub fn over(low: f32, high: f32) -> TableEncoding {
    affine(SW_DTYPE_U16, low, high, 65_535.0)
}

/// Returns u8 over an interval.
pub fn over8(low: f32, high: f32) -> TableEncoding {
    affine(SW_DTYPE_U8, low, high, 255.0)
}

fn affine(dtype: u32, low: f32, high: f32, steps: f32) -> TableEncoding {
    let (low, high) = (low.min(0.0), high.max(0.0));
    let scale = ((high - low) / steps).max(f32::MIN_POSITIVE);
    TableEncoding::integers(dtype, scale, (-low / scale).round() as i32)
}

/// Creates a matrix with a scale per output. Its integers use the whole range of the type.
pub fn random_matrix(name: &str, [outputs, inputs]: [u64; 2], dtype: u32, random: &mut Random) -> Weight {
    let limit = (1i32 << (bits_of(dtype) - 1)) - 1;
    let stored: Vec<i32> = (0..outputs * inputs).map(|_| random.integer(-limit, limit)).collect();
    let size = 1.5 / (limit as f32 * (inputs as f32).sqrt());
    let scales: Vec<f32> = (0..outputs).map(|_| size * random.between(0.5, 1.5) as f32).collect();
    integers(name, &[outputs, inputs], &stored, dtype, (SW_QUANTISATION_PER_CHANNEL, 0), &scales, 0)
}

/// An entry under construction.
#[derive(Clone)]
pub struct Tables(Builder);

impl Deref for Tables {
    type Target = Builder;

    fn deref(&self) -> &Builder {
        &self.0
    }
}

impl DerefMut for Tables {
    fn deref_mut(&mut self) -> &mut Builder {
        &mut self.0
    }
}

impl Tables {
    pub fn new(name: &str, rows: u64) -> Tables {
        Tables(Builder { layer: 3, ..Builder::new(name, SW_ENTRY_DECODE, rows, 512) })
    }

    pub fn input(&mut self, name: &str, role: u32, shape: &[u64], store: TableEncoding) -> u32 {
        self.0.input_as(name, role, shape, store)
    }

    pub fn constant(&mut self, weight: Weight) -> u32 {
        let tensor = self.0.tensor(weight.name(), TableEncoding::plain(weight.raw.dtype), weight.shape());
        self.0.constants.push((tensor, weight));
        tensor
    }

    pub fn node(
        &mut self,
        name: &str,
        op: u32,
        inputs: &[u32],
        (shape, store): (&[u64], TableEncoding),
        attributes: Vec<Attribute>,
    ) -> u32 {
        self.named(name, store, |tables| tables.node(op, inputs, shape, attributes))
    }

    /// Adds an operation, and names it and its result.
    fn named(&mut self, name: &str, store: TableEncoding, add: impl FnOnce(&mut Builder) -> u32) -> u32 {
        self.0.encoding = store;
        let output = add(&mut self.0);
        self.0.name_last(name);
        self.0.tensors[output as usize].name = name.to_owned();
        output
    }

    /// Adds a movement, whose result has the operand's encoding.
    fn moved(&mut self, name: &str, x: u32, add: impl FnOnce(&mut Builder) -> u32) -> u32 {
        let store = self.0.encoding_of(x);
        self.named(name, store, add)
    }

    /// Adds an elementwise operation with one operand.
    pub fn unary(
        &mut self,
        name: &str,
        op: u32,
        x: u32,
        store: TableEncoding,
        attributes: Vec<Attribute>,
    ) -> u32 {
        self.named(name, store, |tables| tables.unary(op, x, attributes))
    }

    pub fn binary(&mut self, name: &str, op: u32, a: u32, b: u32, store: TableEncoding) -> u32 {
        self.named(name, store, |tables| tables.binary(op, a, b))
    }

    pub fn linear(&mut self, name: &str, x: u32, weight: Weight, store: TableEncoding) -> u32 {
        let mut shape = self.0.shape(x);
        *shape.last_mut().expect("a matrix") = weight.shape()[0];
        let weight = self.constant(weight);
        self.node(name, SW_OP_LINEAR, &[x, weight], (&shape, store), vec![])
    }

    pub fn norm(
        &mut self,
        name: &str,
        x: u32,
        weight: Option<Weight>,
        width: u64,
        store: TableEncoding,
    ) -> u32 {
        let weight = weight.map(|weight| self.constant(weight));
        let output = self.named(name, store, |tables| tables.norm(x, None, width, 0.0));
        self.0.nodes.last_mut().expect("a node").inputs.extend(weight);
        output
    }

    pub fn reshape(&mut self, name: &str, x: u32, shape: &[u64]) -> u32 {
        self.moved(name, x, |tables| tables.reshape(x, shape))
    }

    pub fn transpose(&mut self, name: &str, x: u32, perm: &[usize]) -> u32 {
        self.moved(name, x, |tables| tables.transpose(x, perm))
    }

    pub fn slice(&mut self, name: &str, x: u32, axis: usize, start: u64, end: u64) -> u32 {
        self.moved(name, x, |tables| tables.slice(x, axis, start, end))
    }

    pub fn concat(&mut self, name: &str, parts: &[u32], axis: usize) -> u32 {
        self.moved(name, parts[0], |tables| tables.concat(parts, axis))
    }

    pub fn mat_mul(&mut self, name: &str, a: u32, b: u32, transpose_b: bool, store: TableEncoding) -> u32 {
        self.named(name, store, |tables| tables.mat_mul(a, b, transpose_b))
    }

    /// Returns the tables with every activation and every constant in f16.
    pub fn halved(mut self) -> Tables {
        for tensor in &mut self.0.tensors {
            tensor.encoding = TableEncoding::F16;
        }
        for (_, weight) in &mut self.0.constants {
            let values: Vec<f64> = weight.values.iter().map(|value| f64::from(*value)).collect();
            *weight = Weight::encoded(weight.name(), weight.shape(), TableEncoding::F16, &values);
        }
        self
    }

    /// Returns a checked view of the contract's tables.
    pub fn view(&self) -> EntryView<'static> {
        self.0.view().expect("valid tables")
    }
}
