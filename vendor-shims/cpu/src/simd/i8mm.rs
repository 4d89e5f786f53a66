//! Products of pairs of rows of signed bytes (i8mm). A product is two rows by two columns over
//! eight bytes, summed exactly.
//!
//! The kernel must lay out the operands. The instruction has no stable intrinsic, so the code is
//! assembly.

use std::arch::aarch64::{int8x16_t, int32x4_t};
use std::arch::asm;

use super::dot::NeonDot;

/// Proof that the processor has products of pairs of rows in addition to [`NeonDot`].
#[derive(Clone, Copy, Debug)]
pub struct NeonI8mm(NeonDot);

impl NeonI8mm {
    /// Returns the token if the processor has the instructions.
    #[inline]
    pub fn detect() -> Option<Self> {
        if !std::arch::is_aarch64_feature_detected!("i8mm") {
            return None;
        }
        NeonDot::detect().map(NeonI8mm)
    }

    /// Returns the token for vector operations.
    #[inline(always)]
    pub fn vectors(self) -> NeonDot {
        self.0
    }

    /// Computes `sums[2r + c] + Σ rows[8r + k] · columns[8c + k]` for r and c of 0 and 1, wrapping.
    #[inline(always)]
    pub fn product(self, mut sums: int32x4_t, rows: int8x16_t, columns: int8x16_t) -> int32x4_t {
        // SAFETY: `self` proves the instruction, which only accesses registers.
        unsafe {
            asm!(
                ".arch_extension i8mm",
                "smmla {sums:v}.4s, {rows:v}.16b, {columns:v}.16b",
                sums = inout(vreg) sums,
                rows = in(vreg) rows,
                columns = in(vreg) columns,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use std::arch::aarch64::{vld1q_s8, vld1q_s32, vst1q_s32};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pairs_are_multiplied_exactly(rows: [i8; 16], columns: [i8; 16], start: [i32; 4]) {
            let Some(i8mm) = NeonI8mm::detect() else {
                return Ok(());
            };
            let mut got = [0; 4];
            // SAFETY: sixteen bytes, four integers.
            unsafe {
                let (left, right) = (vld1q_s8(rows.as_ptr()), vld1q_s8(columns.as_ptr()));
                vst1q_s32(got.as_mut_ptr(), i8mm.product(vld1q_s32(start.as_ptr()), left, right));
            }
            let expected: [i32; 4] = std::array::from_fn(|at| {
                let (row, column) = (&rows[at / 2 * 8..][..8], &columns[at % 2 * 8..][..8]);
                let products = row.iter().zip(column).map(|(r, c)| i32::from(*r) * i32::from(*c));
                start[at].wrapping_add(products.sum())
            });
            prop_assert_eq!(got, expected);
        }
    }
}
