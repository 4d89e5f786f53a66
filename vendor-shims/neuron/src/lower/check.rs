//! Decides which operations are supported, and why others are not.
//!
//! An operation is supported if it can be lowered to operations and types that known clients of the
//! adapter use. Whether a chip's compiler accepts them is only known from compiling.

use shardwright_shim_abi::{WeightView, raw};
use shardwright_shim_npu::{Encoding as _, Rules};

use super::Target;
use super::encoding::OperandEncoding;
use super::weights::matrix_form;

/// Restrictions of a target's adapter.
pub(super) struct Adapter<'a>(pub &'a Target<'a>);

impl Rules for Adapter<'_> {
    type Encoding = OperandEncoding;

    /// Public guidelines state rank 4, and the library reports padding for four axes.
    const MAX_RANK: usize = 4;
    const REFUSED: &'static [(u32, &'static str)] = &[
        (raw::SW_OP_DYNAMIC_LINEAR, "it quantises rows at run time, for which the adapter has no operation"),
        (raw::SW_OP_ROUND, "the adapter has no rounding to the nearest even number"),
    ];
    const BIAS: &'static str = "a bias is supported only as a sum after the product";

    fn computes(&self, _: OperandEncoding) -> Result<(), String> {
        Ok(())
    }

    fn together(&self, encodings: &[OperandEncoding]) -> Result<(), String> {
        let first = encodings.first().copied().unwrap_or(OperandEncoding::Half);
        match (first.family(), encodings.iter().find(|encoding| encoding.family() != first.family())) {
            (_, Some(other)) => {
                Err(format!("{} with {}; operands must have one type", first.describe(), other.describe()))
            }
            (Some(_), None) => Ok(()),
            (None, None) => Err(format!("it computes with {}", first.describe())),
        }
    }

    fn pointwise(&self, _: u32, _: OperandEncoding) -> Result<(), String> {
        Ok(())
    }

    fn convolution(&self, _: &WeightView<'_>, _: OperandEncoding) -> Result<(), String> {
        Err("it is supported only as a product with the inputs of each place of the kernel".to_owned())
    }

    fn matrix(&self, weight: &WeightView<'_>, x: OperandEncoding) -> Result<(), String> {
        matrix_form(weight, x, self.0).map(drop)
    }
}
