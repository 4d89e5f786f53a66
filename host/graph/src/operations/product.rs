use super::elementwise::broadcast;
use super::infer::last;
use super::layout::{elements, with_last};
use super::rewrite::Rewrite;
use crate::{Op, TensorId};

pub(crate) fn linear_shape(shapes: &[&[u64]]) -> Result<Vec<u64>, String> {
    let (x, w) = (shapes[0], shapes[1]);
    if x.len() < 2 || w.len() != 2 || last(x) != w[1] {
        return Err(format!("{x:?} does not multiply a weight {w:?} stored as [out, in]"));
    }
    if shapes.get(2).is_some_and(|bias| **bias != [w[0]]) {
        return Err(format!("bias {:?} is not [{}]", shapes[2], w[0]));
    }
    Ok(with_last(x, w[0]))
}

pub(crate) fn linear_multiply_adds(shapes: &[&[u64]], _result: &[u64]) -> u64 {
    elements(shapes[0]).unwrap_or(u64::MAX).saturating_mul(shapes[1][0])
}

pub(crate) fn mat_mul_shape(shapes: &[&[u64]], transpose_b: bool) -> Result<Vec<u64>, String> {
    let (a, b) = (shapes[0], shapes[1]);
    if a.len() < 2 || b.len() < 2 {
        return Err(format!("{a:?} · {b:?} needs two axes on both sides"));
    }
    let (a_batch, a_tail) = a.split_at(a.len() - 2);
    let (b_batch, b_tail) = b.split_at(b.len() - 2);
    let (inner, columns) = if transpose_b { (b_tail[1], b_tail[0]) } else { (b_tail[0], b_tail[1]) };
    if a_tail[1] != inner {
        return Err(format!("{a:?} · {b:?}: inner extents {} and {inner} differ", a_tail[1]));
    }
    let mut shape = broadcast(a_batch, b_batch)?;
    shape.extend([a_tail[0], columns]);
    Ok(shape)
}

pub(crate) fn linear(rewrite: &mut Rewrite, operands: &[TensorId]) {
    let product = rewrite.step(Op::MatMul { transpose_b: true }, &operands[..2]);
    if let Some(&bias) = operands.get(2) {
        rewrite.step(Op::Add, &[product, bias]);
    }
}

pub(crate) fn dynamic_linear(rewrite: &mut Rewrite, operands: &[TensorId], block: u64) {
    let x = rewrite.plain(operands[0]);
    let product = match block {
        0 => {
            let [steps, scale] = quantised(rewrite, x);
            let product = rewrite.step(Op::MatMul { transpose_b: true }, &[steps, operands[1]]);
            rewrite.step(Op::Mul, &[product, scale])
        }
        block => {
            let values = rounded_blocks(rewrite, x, block);
            rewrite.step(Op::MatMul { transpose_b: true }, &[values, operands[1]])
        }
    };
    if let Some(&bias) = operands.get(2) {
        rewrite.step(Op::Add, &[product, bias]);
    }
}

/// Returns the steps and the scale of every vector along the last axis.
fn quantised(rewrite: &mut Rewrite, x: TensorId) -> [TensorId; 2] {
    let negative = rewrite.step(Op::Neg, &[x]);
    let axis = rewrite.shape(x).len() as u32 - 1;
    let both = rewrite.step(Op::Concat { axis }, &[x, negative]);
    let largest = rewrite.step(Op::ReduceMax, &[both]);
    let largest = rewrite.step(Op::MaxScalar { value: 1e-30 }, &[largest]);
    let scale = rewrite.step(Op::MulScalar { value: 1.0 / 127.0 }, &[largest]);
    let steps = rewrite.step(Op::Div, &[x, scale]);
    [rewrite.step(Op::Round, &[steps]), scale]
}

/// Returns `x` with every block of the last axis rounded to the steps of its scale. A product of a
/// step and its scale is rounded to f32, which is the only difference from the exact sums of the
/// operation.
fn rounded_blocks(rewrite: &mut Rewrite, x: TensorId, block: u64) -> TensorId {
    let shape = rewrite.shape(x);
    let (width, axis) = (last(&shape), shape.len() as u32 - 1);
    let whole = width / block * block;
    let mut parts = Vec::new();
    for (start, end, size) in [(0, whole, block), (whole, width, width - whole)] {
        if start == end {
            continue;
        }
        let mut part = x;
        if end - start < width {
            part = rewrite.step(Op::Slice { axis, start, end }, &[x]);
        }
        let mut blocks = with_last(&shape, (end - start) / size);
        blocks.push(size);
        let part = rewrite.step(Op::Reshape { shape: blocks }, &[part]);
        let scaled = quantised(rewrite, part);
        let values = rewrite.step(Op::Mul, &scaled);
        parts.push(rewrite.step(Op::Reshape { shape: with_last(&shape, end - start) }, &[values]));
    }
    match parts[..] {
        [part] => part,
        _ => rewrite.step(Op::Concat { axis }, &parts),
    }
}
