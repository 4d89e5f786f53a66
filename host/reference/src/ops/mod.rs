//! One plain function per operation. Shapes were checked with the graph, so the functions index
//! without further checks.
//!
//! Operands are in their encodings. Operations that move stored values (`layout`, `state`) keep the
//! operand's encoding. Products of two integer operands (`product`) sum integers. All others decode
//! and return f32, which the evaluator encodes once.

pub(crate) mod activation;
pub(crate) mod attention;
pub(crate) mod convolution;
pub(crate) mod elementwise;
pub(crate) mod layout;
pub(crate) mod norm;
pub(crate) mod product;
pub(crate) mod reduce;
pub(crate) mod relative;
pub(crate) mod rope;
pub(crate) mod softmax;
pub(crate) mod state;

use shardwright_graph::Op;

use crate::Array;

/// Returns the result of `op`, with the shape `shape`. `rows` is the number of valid rows of the
/// run.
///
/// `StateUpdate` works on a copy here. The evaluator writes in place instead.
pub(crate) fn apply(op: &Op, inputs: &[&Array], shape: &[usize], rows: usize) -> Array {
    let x = inputs[0];
    match op {
        Op::Linear => product::linear(x, inputs[1], inputs.get(2).copied()),
        Op::DynamicLinear { block } => {
            product::dynamic_linear(x, inputs[1], inputs.get(2).copied(), *block as usize)
        }
        Op::RmsNorm { width, eps, weight_offset } => {
            norm::rms_norm(x, inputs.get(1).copied(), *width as usize, *eps, *weight_offset)
        }
        Op::Rope(rope) => rope::rope(x, inputs[1].integers(), rope),
        Op::Rotate { head_dim } => rope::rotate(x, inputs[1], inputs[2], *head_dim as usize),
        Op::Attention(attention) => {
            attention::attention(x, inputs[1], inputs[2], inputs[3].integers(), attention, rows)
        }
        Op::AxialRope(rope) => rope::axial_rope(x, inputs[1].integers(), inputs[2].integers(), rope),
        Op::RelativeAttention(attention) => {
            relative::relative_attention([x, inputs[1], inputs[2], inputs[3]], attention, rows)
        }
        Op::Convolution { kernel, stride, padding } => {
            let window = [kernel, stride, padding].map(|number| *number as usize);
            convolution::convolution(x, inputs[1], shape, window)
        }
        Op::DepthwiseConvolution => convolution::depthwise(x, inputs[1]),
        Op::Clamp => activation::clamp(x, inputs[1], inputs[2]),
        Op::Sigmoid => activation::sigmoid(x),
        Op::Glu => activation::glu(x, shape),
        Op::MeanRows { rows } => reduce::mean_rows(x, *rows as usize),
        Op::Gelu => activation::gelu(x),
        Op::Silu => activation::silu(x),
        Op::Softcap { cap } => activation::softcap(x, *cap),
        Op::Softmax => softmax::softmax(x),
        Op::StateUpdate => state::state_update(x.clone(), inputs[1], inputs[2].integers()),
        Op::LayerNorm { eps } => norm::layer_norm(x, inputs.get(1).copied(), inputs.get(2).copied(), *eps),
        Op::L2Normalize => norm::l2_normalize(x),
        Op::Add => elementwise::binary(x, inputs[1], shape, |a, b| a + b),
        Op::Sub => elementwise::binary(x, inputs[1], shape, |a, b| a - b),
        Op::Mul => elementwise::binary(x, inputs[1], shape, |a, b| a * b),
        Op::Div => elementwise::binary(x, inputs[1], shape, |a, b| a / b),
        Op::Max => elementwise::binary(x, inputs[1], shape, f32::max),
        Op::Min => elementwise::binary(x, inputs[1], shape, f32::min),
        Op::AddScalar { value } => elementwise::unary(x, |x| x + value),
        Op::MulScalar { value } => elementwise::unary(x, |x| x * value),
        Op::MaxScalar { value } => elementwise::unary(x, |x| x.max(*value)),
        Op::Round => elementwise::unary(x, f32::round_ties_even),
        // The evaluator encodes the result, as for every operation.
        Op::Convert => elementwise::unary(x, |x| x),
        Op::Neg => elementwise::unary(x, |x| -x),
        Op::Exp => elementwise::unary(x, |x| f64::from(x).exp() as f32),
        Op::Tanh => elementwise::unary(x, |x| f64::from(x).tanh() as f32),
        Op::Sqrt => elementwise::unary(x, f32::sqrt),
        Op::Rsqrt => elementwise::unary(x, |x| (1.0 / f64::from(x).sqrt()) as f32),
        Op::Reciprocal => elementwise::unary(x, |x| 1.0 / x),
        Op::ReduceSum => reduce::sum(x),
        Op::ReduceMean => reduce::mean(x),
        Op::ReduceMax => reduce::max(x),
        Op::MatMul { transpose_b } => product::mat_mul(x, inputs[1], *transpose_b, shape),
        Op::Reshape { .. } => layout::reshape(x, shape),
        Op::Transpose { perm } => layout::transpose(x, perm),
        Op::Slice { axis, start, end } => x.slice(*axis as usize, *start as usize, (end - start) as usize),
        Op::Concat { axis } => layout::concat(inputs, *axis as usize),
    }
}
