//! The operations. Each file has all parts of one operation, or of a few that are alike:
//!
//! * `recognise` checks attributes and shapes of a node, and gives the reason for a refusal
//! * `follows_rows` declares whether rows (tokens) stay independent
//! * `lower` writes the steps of a node
//! * `check` proves that a step stays within its operands
//! * `scratch` returns the scratch memory that a step needs
//! * `streamed` returns the weights that a step reads once from front to back
//! * `execute` calls the kernel of a step
//!
//! This file selects the operation for each part.

mod attention;
mod convolution;
mod elementwise;
mod encoding;
mod linear;
mod mat_mul;
mod movement;
mod norm;
pub mod operation;
mod pair;
mod reduce;
mod relative;
mod rotary;
mod state;

pub use operation::{Operation, Rounding};
pub use pair::lower as lower_pair;
pub use rotary::lower_table as rotary_table;

use linear::Pieces;
use shardwright_shim_abi::{Error, raw};

use crate::execute::Stage;
use crate::kernels::elementwise::{Binary, Unary};
use crate::kernels::reduce::Reduction;
use crate::lower::{Emit, Following, Graph, Here, Recognised, unsupported};
use crate::program::{Bounds, Checked, Entry, Step};

/// Recognises node `index`, or returns the reason why it cannot run.
pub fn recognise(graph: &Graph<'_>, index: usize) -> Recognised<Operation> {
    let here = &Here { graph, index, node: graph.nodes[index] };
    let known = match here.node.op() {
        raw::SW_OP_DYNAMIC_LINEAR | raw::SW_OP_ATTENTION => 2,
        _ => 1,
    };
    if !(1..=known).contains(&here.node.op_version()) {
        return unsupported(format!(
            "version {} of op {} is unknown, expected at most {known}",
            here.node.op_version(),
            here.node.op()
        ));
    }
    let unary = |kind: Unary| elementwise::recognise_unary(here, kind);
    let binary = |kind: Binary| elementwise::recognise_binary(here, kind);
    match here.node.op() {
        raw::SW_OP_LINEAR => linear::recognise(here, Rounding::None),
        raw::SW_OP_DYNAMIC_LINEAR => linear::recognise(here, linear::rounding(here)?),
        raw::SW_OP_RMS_NORM => norm::recognise_rms(here),
        raw::SW_OP_ROPE => rotary::recognise_rope(here),
        raw::SW_OP_ROTATE => rotary::recognise_rotate(here),
        raw::SW_OP_ATTENTION => attention::recognise(here),
        raw::SW_OP_STATE_UPDATE => state::recognise(here),
        raw::SW_OP_GELU => unary(Unary::Gelu),
        raw::SW_OP_SILU => unary(Unary::Silu),
        raw::SW_OP_SOFTCAP => elementwise::recognise_softcap(here),
        raw::SW_OP_LAYER_NORM => norm::recognise_layer(here),
        raw::SW_OP_AXIAL_ROPE => rotary::recognise_axial(here),
        raw::SW_OP_RELATIVE_ATTENTION => relative::recognise(here),
        raw::SW_OP_CONVOLUTION => convolution::recognise_plane(here),
        raw::SW_OP_DEPTHWISE_CONVOLUTION => convolution::recognise_depthwise(here),
        raw::SW_OP_CLAMP => elementwise::recognise_clamp(here),
        raw::SW_OP_SIGMOID => unary(Unary::Sigmoid),
        raw::SW_OP_GLU => elementwise::recognise_glu(here),
        raw::SW_OP_MEAN_ROWS => reduce::recognise_mean_rows(here),
        raw::SW_OP_SOFTMAX => here.last_axis().map(|()| Operation::Softmax),
        raw::SW_OP_L2_NORMALIZE => here.last_axis().map(|()| Operation::L2Normalize),
        raw::SW_OP_ADD => binary(Binary::Add),
        raw::SW_OP_SUB => binary(Binary::Sub),
        raw::SW_OP_MUL => binary(Binary::Mul),
        raw::SW_OP_DIV => binary(Binary::Div),
        raw::SW_OP_MAX => binary(Binary::Max),
        raw::SW_OP_MIN => binary(Binary::Min),
        raw::SW_OP_ADD_SCALAR => unary(Unary::Add(here.node.attribute_f32("value")?)),
        raw::SW_OP_MUL_SCALAR => unary(Unary::Mul(here.node.attribute_f32("value")?)),
        raw::SW_OP_MAX_SCALAR => unary(Unary::Max(here.node.attribute_f32("value")?)),
        raw::SW_OP_NEG => unary(Unary::Neg),
        raw::SW_OP_EXP => unary(Unary::Exp),
        raw::SW_OP_TANH => unary(Unary::Tanh),
        raw::SW_OP_SQRT => unary(Unary::Sqrt),
        raw::SW_OP_RSQRT => unary(Unary::Rsqrt),
        raw::SW_OP_RECIPROCAL => unary(Unary::Reciprocal),
        raw::SW_OP_ROUND => unary(Unary::Round),
        raw::SW_OP_CONVERT => unary(Unary::Copy),
        raw::SW_OP_REDUCE_SUM => reduce::recognise(here, Reduction::Sum),
        raw::SW_OP_REDUCE_MEAN => reduce::recognise(here, Reduction::Mean),
        raw::SW_OP_REDUCE_MAX => reduce::recognise(here, Reduction::Max),
        raw::SW_OP_MAT_MUL => mat_mul::recognise(here),
        raw::SW_OP_RESHAPE => movement::recognise_reshape(here),
        raw::SW_OP_TRANSPOSE => movement::recognise_transpose(here),
        raw::SW_OP_SLICE => movement::recognise_slice(here),
        raw::SW_OP_CONCAT => movement::recognise_concat(here),
        other => unsupported(format!("unknown op {other}")),
    }
}

/// Returns whether the result of an operation follows rows, and declares the operands that it reads
/// across rows.
pub fn follows_rows(operation: &Operation, node: &mut Following<'_, '_>) -> bool {
    match operation {
        Operation::Linear { .. }
        | Operation::RmsNorm(_)
        | Operation::LayerNorm { .. }
        | Operation::Glu
        | Operation::Softmax
        | Operation::L2Normalize
        | Operation::Reduce(_)
        | Operation::Rope { .. }
        | Operation::AxialRope { .. }
        | Operation::Rotate { .. } => node.row_by_row(),
        Operation::Unary(_) | Operation::Clamp => node.follows(node.x()),
        Operation::Attention { .. } => attention::follows_rows(node),
        // Rows only see valid rows, or only rows before them.
        Operation::RelativeAttention(_) | Operation::Depthwise { .. } => {
            node.or_cross(node.follows(node.x()))
        }
        Operation::Convolution(plane) => convolution::plane_follows_rows(node, *plane),
        Operation::MeanRows { .. } => reduce::means_follow_rows(node),
        Operation::StateUpdate => false,
        Operation::Binary(_) => elementwise::binary_follows_rows(node),
        Operation::MatMul { .. } => mat_mul::follows_rows(node),
        Operation::Reshape => movement::reshape_follows_rows(node),
        Operation::Transpose(perm) => movement::transpose_follows_rows(node, perm),
        Operation::Slice { axis, .. } => movement::slice_follows_rows(node, *axis),
        Operation::Concat { axis } => movement::concat_follows_rows(node, *axis),
    }
}

/// Writes the steps of node `index`.
pub fn lower(emit: &mut Emit<'_, '_>, index: usize, operation: &Operation) -> Result<(), Error> {
    let site = &emit.site(index, operation)?;
    let step = match *operation {
        Operation::Linear { rounding } => return linear::lower(emit, site, rounding),
        Operation::MatMul { transpose_b } => mat_mul::lower(emit, site, transpose_b),
        Operation::RmsNorm(norm) => norm::lower_rms(emit, site, norm),
        Operation::LayerNorm { eps } => norm::lower_layer(emit, site, eps),
        Operation::L2Normalize => norm::lower_l2(emit, site),
        Operation::Softmax => norm::lower_softmax(emit, site),
        Operation::Reduce(kind) => reduce::lower(emit, site, kind),
        Operation::MeanRows { rows } => reduce::lower_mean_rows(emit, site, rows),
        Operation::Rope { head_dim, pairs, .. } => rotary::lower_rope(emit, site, operation, head_dim, pairs),
        Operation::Rotate { head_dim } => rotary::lower_rotate(emit, site, head_dim),
        Operation::AxialRope { head_dim, .. } => rotary::lower_axial(emit, site, operation, head_dim),
        Operation::Attention { heads, window, causal, state, products } => {
            attention::lower(emit, site, heads, window, causal, state, products)
        }
        Operation::RelativeAttention(relative) => relative::lower(emit, site, relative),
        Operation::Convolution(plane) => convolution::lower_plane(emit, site, plane),
        Operation::Depthwise { kernel } => convolution::lower_depthwise(emit, site, kernel),
        Operation::StateUpdate => state::lower(emit, site),
        Operation::Unary(kind) => elementwise::lower_unary(emit, site, kind),
        Operation::Binary(kind) => elementwise::lower_binary(emit, site, kind),
        Operation::Clamp => elementwise::lower_clamp(emit, site),
        Operation::Glu => elementwise::lower_glu(emit, site),
        Operation::Reshape => return movement::lower_reshape(emit, site),
        Operation::Transpose(ref perm) => movement::lower_transpose(emit, site, perm),
        Operation::Slice { axis, start } => return movement::lower_slice(emit, site, axis, start),
        Operation::Concat { axis } => return movement::lower_concat(emit, site, axis),
    }?;
    emit.steps.push(step);
    Ok(())
}

/// Checks that a step stays within its operands and writes no memory that it reads.
pub fn check(step: &Step, bounds: &Bounds<'_>) -> Checked {
    match step {
        Step::Linear(step) => step.check(bounds),
        Step::DynamicLinear(step) => step.check(bounds),
        Step::SplitLinear(step) => step.check(bounds),
        Step::MatMul(step) => step.check(bounds),
        Step::RmsNorm(step) => step.check(bounds),
        Step::L2Normalize(step) => step.check(bounds),
        Step::Softmax(step) => step.check(bounds),
        Step::Reduce(step) => step.check(bounds),
        Step::RotaryTable(step) => step.check(bounds),
        Step::Rope(step) => step.check(bounds),
        Step::Attention(step) => step.check(bounds),
        Step::Unary(step) => step.check(bounds),
        Step::Gated(step) => step.check(bounds),
        Step::Binary(step) => step.check(bounds),
        Step::Copy(step) => step.check(bounds),
        Step::StateUpdate(step) => step.check(bounds),
        Step::Decode(step) => step.check(bounds),
        Step::Encode(step) => step.check(bounds),
        Step::Nearest(step) => step.check(bounds),
        Step::ZeroTail(step) => step.check(bounds),
        Step::LayerNorm(step) => step.check(bounds),
        Step::AxialRope(step) => step.check(bounds),
        Step::RelativeAttention(step) => step.check(bounds),
        Step::Convolution(step) => step.check(bounds),
        Step::Depthwise(step) => step.check(bounds),
        Step::Glu(step) => step.check(bounds),
        Step::MeanRows(step) => step.check(bounds),
    }
}

/// Returns the number of scratch values that a step needs, or `None` on overflow.
pub fn scratch(step: &Step, entry: &Entry, threads: usize) -> Option<usize> {
    match step {
        Step::Attention(step) => step.scratch(entry, threads),
        Step::MatMul(step) => step.scratch(),
        Step::DynamicLinear(step) => step.scratch(entry, threads),
        Step::SplitLinear(step) => step.scratch(entry, threads),
        Step::RelativeAttention(step) => step.scratch(entry, threads),
        Step::Convolution(step) => step.scratch(threads),
        Step::Depthwise(step) => step.scratch(),
        _ => Some(0),
    }
}

/// Returns offset and length in bytes, within the weight section, of the data that a step reads
/// once from front to back. Returns `None` for steps without such data.
pub fn streamed(step: &Step) -> Option<Pieces> {
    match step {
        Step::Linear(step) => step.streamed(),
        Step::DynamicLinear(step) => Some(step.streamed()),
        Step::SplitLinear(step) => Some(step.streamed()),
        _ => None,
    }
}

/// Runs a step of a checked program.
pub fn execute(step: &Step, stage: &mut Stage<'_, '_>) -> Result<(), Error> {
    match step {
        Step::Linear(step) => step.execute(stage)?,
        Step::DynamicLinear(step) => step.execute(stage)?,
        Step::SplitLinear(step) => step.execute(stage)?,
        Step::MatMul(step) => step.execute(stage),
        Step::RmsNorm(step) => step.execute(stage),
        Step::L2Normalize(step) => step.execute(stage),
        Step::Softmax(step) => step.execute(stage),
        Step::Reduce(step) => step.execute(stage),
        Step::RotaryTable(step) => step.execute(stage),
        Step::Rope(step) => step.execute(stage),
        Step::Attention(step) => step.execute(stage)?,
        Step::Unary(step) => step.execute(stage),
        Step::Gated(step) => step.execute(stage),
        Step::Binary(step) => step.execute(stage),
        Step::Copy(step) => step.execute(stage),
        Step::StateUpdate(step) => step.execute(stage)?,
        Step::Decode(step) => step.execute(stage),
        Step::Encode(step) => step.execute(stage),
        Step::Nearest(step) => step.execute(stage),
        Step::ZeroTail(step) => step.execute(stage),
        Step::LayerNorm(step) => step.execute(stage),
        Step::AxialRope(step) => step.execute(stage),
        Step::RelativeAttention(step) => step.execute(stage),
        Step::Convolution(step) => step.execute(stage)?,
        Step::Depthwise(step) => step.execute(stage),
        Step::Glu(step) => step.execute(stage),
        Step::MeanRows(step) => step.execute(stage),
    }
    Ok(())
}
