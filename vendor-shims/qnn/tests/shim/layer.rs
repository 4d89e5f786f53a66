//! A small layer: norm, product, activation, product, residual.

use std::collections::HashMap;

use shardwright_shim_abi::raw::*;
use shardwright_shim_testing::{Bound, evaluate};

use crate::{Builder, Loaded, TableEncoding, Weight, a16, values};

pub const HIDDEN: TableEncoding = a16(8.0);
pub const INNER: TableEncoding = a16(16.0);

/// Weights are the same at every call.
pub struct Layer {
    norm: Weight,
    up: Weight,
    down: Weight,
}

impl Layer {
    pub fn new(width: u64, inner: u64, bits: u32) -> Layer {
        let count = (width * inner) as usize;
        let gain: Vec<f32> = values(width as usize, 3, 0.3).iter().map(|value| 1.0 + value).collect();
        Layer {
            norm: Weight::vector("norm", &gain),
            up: Weight::matrix("up", [inner, width], &values(count, 1, 0.2), bits),
            down: Weight::matrix("down", [width, inner], &values(count, 2, 0.1), bits),
        }
    }

    pub fn without_bytes(&self) -> Layer {
        Layer {
            norm: self.norm.without_bytes(),
            up: self.up.without_bytes(),
            down: self.down.without_bytes(),
        }
    }

    /// Builds `hidden → norm → up → gelu → down → + hidden`.
    pub fn entry(&self, name: &str, rows: u64) -> Builder {
        let mut b = Builder::new(name, SW_ENTRY_DECODE, rows, 8);
        b.layer = 3;
        let x = b.input_as("hidden", SW_ROLE_HIDDEN, &[rows, self.norm.values.len() as u64], HIDDEN);
        let y = self.add_to(&mut b, x);
        b.output("hidden.out", SW_ROLE_HIDDEN, y);
        b
    }

    /// Adds the nodes of the layer after a tensor.
    pub fn add_to(&self, b: &mut Builder, x: u32) -> u32 {
        b.encoding = HIDDEN;
        let a = b.norm(x, Some(&self.norm), self.norm.values.len() as u64, 0.0);
        b.encoding = INNER;
        let a = b.linear(a, &self.up);
        let a = b.unary(SW_OP_GELU, a, vec![]);
        let a = b.linear(a, &self.down);
        b.binary(SW_OP_ADD, x, a)
    }

    /// Computes the layer's expected result with the plain evaluator.
    pub fn expected(&self, x: &[f32]) -> Vec<f32> {
        let rows = x.len() / self.norm.values.len();
        let bound = HashMap::from([("hidden".to_owned(), Bound::store(HIDDEN, x))]);
        let outputs = evaluate(&self.entry("decode", rows as u64), rows, &bound);
        outputs["hidden.out"].data.iter().map(|value| *value as f32).collect()
    }
}

/// Runs the layer's entry.
pub fn run(loaded: &mut Loaded<'_>, entry: &str, rows: usize, x: &[f32]) -> Vec<f32> {
    let mut bound = HashMap::from([("hidden".to_owned(), HIDDEN.encode_f32(x))]);
    loaded.run(entry, rows, &mut bound).expect("run");
    INNER.decode_f32(&bound["hidden.out"])
}
