//! Decides which operations are supported, with a reason for each unsupported one.
//!
//! An operation is supported if the vendor's library validates, prepares and computes it correctly.
//! The library validates many operations that it computes wrongly. If such a combination is known,
//! the reason reports that the results are wrong.

use shardwright_shim_abi::{WeightView, raw};
use shardwright_shim_npu::encoding::dtype_name;
use shardwright_shim_npu::{Encoding as _, Rules};

use super::encoding::TensorEncoding;
use super::weights::{MatrixForm, matrix_form};

/// The operations that the library computes correctly. They are the same for every known chip.
pub(super) struct Hexagon;

impl Rules for Hexagon {
    type Encoding = TensorEncoding;

    /// Highest rank that operations are known to support.
    const MAX_RANK: usize = 5;
    const REFUSED: &'static [(u32, &'static str)] = &[
        (
            raw::SW_OP_DYNAMIC_LINEAR,
            "it quantises rows at run time, for which the processor has no operation",
        ),
        (raw::SW_OP_ROUND, "the processor has no rounding with correct results"),
    ];
    const BIAS: &'static str =
        "a bias needs 32 bits with a separate scale; a sum after the product is supported instead";

    fn computes(&self, encoding: TensorEncoding) -> Result<(), String> {
        match encoding {
            TensorEncoding::Single => Err(
                "f32; the processor computes in 16-bit integers or f16, and f32 is only supported in a conversion at a port"
                    .to_owned(),
            ),
            _ => Ok(()),
        }
    }

    fn together(&self, encodings: &[TensorEncoding]) -> Result<(), String> {
        let first = encodings.first().copied().unwrap_or(TensorEncoding::Half);
        match encodings.iter().find(|encoding| encoding.is_fixed() != first.is_fixed()) {
            Some(other) => Err(format!(
                "{} with {}; the compiler does not validate integers mixed with f16",
                first.describe(),
                other.describe()
            )),
            None => Ok(()),
        }
    }

    fn pointwise(&self, op: u32, x: TensorEncoding) -> Result<(), String> {
        match (op, x) {
            (raw::SW_OP_SQRT, x) if x != TensorEncoding::Half => {
                Err(format!("the library's root of {} is wrong by a thousandth of its range", x.describe()))
            }
            _ => Ok(()),
        }
    }

    fn convolution(&self, weight: &WeightView<'_>, x: TensorEncoding) -> Result<(), String> {
        match matrix_form(weight, x)? {
            MatrixForm::PerChannel { bits: 8 } | MatrixForm::PerTensor { bits: 8 } | MatrixForm::Half => {
                Ok(())
            }
            _ => Err(format!(
                "weight `{}` is {}; kernels of more than one place must be i8, or f16 with f16",
                weight.name(),
                dtype_name(weight.dtype())
            )),
        }
    }

    fn matrix(&self, weight: &WeightView<'_>, x: TensorEncoding) -> Result<(), String> {
        matrix_form(weight, x).map(drop)
    }
}
