//! The rules of every operation. [`rules`] has one arm per operation of the common list in
//! [`operations!`](shardwright_vocabulary::operations).
//!
//! To add an operation, add a line there, a variant of [`Op`], an arm here and an arm of the
//! reference. Engines that do not know it get its decomposition.

mod activation;
pub(crate) mod attention;
mod convolution;
mod elementwise;
mod infer;
mod layout;
mod norm;
mod product;
mod relative;
mod rewrite;
mod rotary;
mod state;

use std::ops::RangeInclusive;

pub use infer::{OPERAND_LIMIT, RANK_LIMIT, infer_shape};
pub(crate) use rewrite::Rewrite;

use crate::{Op, Rope, TensorId};
use infer::last;

type Shape<'o> = dyn Fn(&[&[u64]]) -> Result<Vec<u64>, String> + 'o;
type Decompose<'o> = dyn Fn(&mut Rewrite, &[TensorId]) + 'o;
type MultiplyAdds<'o> = dyn Fn(&[&[u64]], &[u64]) -> u64 + 'o;

/// Properties of an operation with certain attributes.
pub(crate) struct Rules<'o> {
    /// Allowed number of operands.
    pub(crate) operands: RangeInclusive<usize>,
    /// Number of the last operands that are indices: positions or slots.
    pub(crate) indices: usize,
    /// Error if the attributes are invalid.
    pub(crate) attributes: Result<(), String>,
    /// Returns the shape of the result for the operands' shapes, whose number was checked.
    pub(crate) shape: Box<Shape<'o>>,
    /// Decomposes by one level: adds steps, the last of which produces the result. Only semantic
    /// operations have it.
    pub(crate) decompose: Option<Box<Decompose<'o>>>,
    /// Returns the multiply-adds for the shapes of operands and result. Elementwise work is not
    /// counted.
    pub(crate) multiply_adds: Box<MultiplyAdds<'o>>,
}

impl<'o> Rules<'o> {
    fn new(
        operands: RangeInclusive<usize>,
        shape: impl Fn(&[&[u64]]) -> Result<Vec<u64>, String> + 'o,
    ) -> Self {
        Rules {
            operands,
            indices: 0,
            attributes: Ok(()),
            shape: Box::new(shape),
            decompose: None,
            multiply_adds: Box::new(|_, _| 0),
        }
    }

    /// Creates rules for one operand, whose shape is also the result's.
    fn unary() -> Self {
        Rules::new(1..=1, |shapes| Ok(shapes[0].to_vec()))
    }

    /// Creates rules for two operands that broadcast.
    fn binary() -> Self {
        Rules::new(2..=2, |shapes| elementwise::broadcast(shapes[0], shapes[1]))
    }

    /// Creates rules for one operand whose last axis becomes 1.
    fn reduction() -> Self {
        Rules::new(1..=1, |shapes| Ok(layout::with_last(shapes[0], 1)))
    }

    fn decomposed(self, decompose: impl Fn(&mut Rewrite, &[TensorId]) + 'o) -> Self {
        Rules { decompose: Some(Box::new(decompose)), ..self }
    }

    fn with_indices(self, indices: usize) -> Self {
        Rules { indices, ..self }
    }

    fn counted(self, multiply_adds: impl Fn(&[&[u64]], &[u64]) -> u64 + 'o) -> Self {
        Rules { multiply_adds: Box::new(multiply_adds), ..self }
    }

    fn require(self, holds: bool, otherwise: impl FnOnce() -> String) -> Self {
        let attributes = if holds { self.attributes } else { Err(otherwise()) };
        Rules { attributes, ..self }
    }
}

/// Returns the rules of an operation.
pub(crate) fn rules(op: &Op) -> Rules<'_> {
    match op {
        Op::Linear => Rules::new(2..=3, product::linear_shape)
            .decomposed(product::linear)
            .counted(product::linear_multiply_adds),
        Op::DynamicLinear { block } => Rules::new(2..=3, product::linear_shape)
            .decomposed(|rewrite, x| product::dynamic_linear(rewrite, x, u64::from(*block)))
            .counted(product::linear_multiply_adds),
        Op::RmsNorm { width, eps, weight_offset } => {
            Rules::new(1..=2, |shapes| norm::rms_norm_shape(shapes, u64::from(*width)))
                .decomposed(|rewrite, x| norm::rms_norm(rewrite, x, u64::from(*width), *eps, *weight_offset))
                .require(*eps >= 0.0, || format!("eps {eps} is negative"))
        }
        Op::LayerNorm { eps } => Rules::new(1..=3, norm::layer_norm_shape)
            .decomposed(|rewrite, x| norm::layer_norm(rewrite, x, *eps))
            .require(*eps >= 0.0, || format!("eps {eps} is negative")),
        Op::L2Normalize => Rules::unary().decomposed(norm::l2_normalize),
        Op::Rope(rope) => Rules::new(2..=2, |shapes| rotary::rope_shape(shapes, rope))
            .with_indices(1)
            .decomposed(|rewrite, x| rotary::rope(rewrite, x, rope))
            .require(rotary::turns(rope), || rotary::why_it_does_not_turn(rope))
            .require(rotary::frequencies_are_numbers(rope), || {
                let Rope { theta, factor, magnitude, .. } = rope;
                format!("theta {theta}, factor {factor}, magnitude {magnitude} and divisors must be positive")
            }),
        Op::Rotate { head_dim } => Rules::new(3..=3, |shapes| rotary::rotate_shape(shapes, *head_dim))
            .decomposed(|rewrite, x| rotary::rotate(rewrite, x, u64::from(*head_dim))),
        Op::Attention(attention) => Rules::new(4..=4, |shapes| attention::shape(shapes, attention))
            .with_indices(1)
            .decomposed(|rewrite, x| attention::of_one_source(rewrite, x, attention))
            .counted(attention::multiply_adds)
            .require(attention.softcap >= 0.0, || format!("softcap {} is negative", attention.softcap))
            .require(attention.causal || !attention.reads_a_state(), || {
                "attention over a state is causal".to_owned()
            }),
        Op::AxialRope(rope) => Rules::new(3..=3, |shapes| rotary::axial_shape(shapes, rope))
            .with_indices(2)
            .decomposed(|rewrite, x| rotary::axial(rewrite, x, rope))
            .require(rope.head_dim.is_multiple_of(4) && rotary::turns(&rope.half()), || {
                format!("a head of {} has no two halves that turn", rope.head_dim)
            })
            .require(rotary::frequencies_are_numbers(&rope.half()), || {
                format!("theta {} must be positive", rope.theta)
            }),
        Op::RelativeAttention(attention) => Rules::new(4..=4, |shapes| relative::shape(shapes, attention))
            .decomposed(|rewrite, x| relative::attention(rewrite, x, attention))
            .counted(|shapes, result| relative::multiply_adds(shapes, result, attention))
            .require(attention.softcap >= 0.0, || format!("softcap {} is negative", attention.softcap)),
        Op::Convolution { kernel, stride, padding } => {
            let window = convolution::Window::new(*kernel, *stride, *padding);
            Rules::new(2..=2, move |shapes| convolution::shape(shapes, window))
                .decomposed(move |rewrite, x| convolution::convolution(rewrite, x, window))
                .counted(convolution::multiply_adds)
                .require(window.is_possible(), || {
                    format!("a kernel of {kernel} by steps of {stride} beyond {padding} is not possible")
                })
        }
        Op::DepthwiseConvolution => Rules::new(2..=2, convolution::depthwise_shape)
            .decomposed(convolution::depthwise)
            .counted(convolution::depthwise_multiply_adds),
        Op::Clamp => Rules::new(3..=3, activation::clamp_shape).decomposed(activation::clamp),
        Op::Sigmoid => Rules::unary().decomposed(activation::sigmoid),
        Op::Glu => Rules::new(1..=1, activation::glu_shape).decomposed(activation::glu),
        Op::MeanRows { rows } => Rules::new(1..=1, |shapes| layout::mean_rows_shape(shapes[0], *rows))
            .decomposed(|rewrite, x| layout::mean_rows(rewrite, x, *rows)),
        Op::Gelu => Rules::unary().decomposed(activation::gelu),
        Op::Silu => Rules::unary().decomposed(activation::silu),
        Op::Softcap { cap } => Rules::unary()
            .decomposed(|rewrite, x| activation::softcap(rewrite, x, *cap))
            .require(*cap > 0.0, || format!("cap {cap} is not positive")),
        Op::Softmax => Rules::unary().decomposed(activation::softmax),
        // Has no decomposition. `legalise` turns it into rows for the runtime instead.
        Op::StateUpdate => Rules::new(3..=3, state::update_shape).with_indices(1),
        Op::Add | Op::Sub | Op::Mul | Op::Div | Op::Max | Op::Min => Rules::binary(),
        Op::AddScalar { .. }
        | Op::MulScalar { .. }
        | Op::MaxScalar { .. }
        | Op::Neg
        | Op::Exp
        | Op::Tanh
        | Op::Sqrt
        | Op::Rsqrt
        | Op::Reciprocal
        | Op::Round
        | Op::Convert => Rules::unary(),
        Op::ReduceSum | Op::ReduceMean | Op::ReduceMax => Rules::reduction(),
        Op::MatMul { transpose_b } => {
            Rules::new(2..=2, |shapes| product::mat_mul_shape(shapes, *transpose_b)).counted(
                |shapes, result| layout::elements(result).unwrap_or(u64::MAX).saturating_mul(last(shapes[0])),
            )
        }
        Op::Reshape { shape } => Rules::new(1..=1, |shapes| layout::reshape_shape(shapes[0], shape))
            .require(layout::fits_rank(shape), || layout::too_many_axes(shape.len())),
        Op::Transpose { perm } => Rules::new(1..=1, |shapes| layout::transpose_shape(shapes[0], perm))
            .require(layout::fits_rank(perm), || layout::too_many_axes(perm.len())),
        Op::Slice { axis, start, end } => {
            Rules::new(1..=1, |shapes| layout::slice_shape(shapes[0], *axis as usize, *start, *end))
        }
        Op::Concat { axis } => {
            Rules::new(1..=OPERAND_LIMIT, |shapes| layout::concat_shape(shapes, *axis as usize))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::tests::every_op;

    #[test]
    fn every_semantic_operation_has_a_decomposition_and_no_primitive_has_one() {
        for op in every_op() {
            let has = rules(&op).decompose.is_some();
            assert_eq!(has, op.kind().is_semantic() && op != Op::StateUpdate, "{op:?}");
        }
    }

    #[test]
    fn the_list_says_how_many_operands_there_are() {
        for op in every_op() {
            let listed = op.kind().operands();
            let least = listed.iter().filter(|operand| !operand.ends_with('?')).count();
            let rules = rules(&op);
            match op {
                Op::Concat { .. } => assert_eq!(rules.operands, 1..=OPERAND_LIMIT),
                _ => assert_eq!(rules.operands, least..=listed.len(), "{op:?}"),
            }
            let indices = listed.iter().filter(|operand| operand.contains(" i32 ")).count();
            assert_eq!(rules.indices, indices, "{op:?}");
        }
    }
}
