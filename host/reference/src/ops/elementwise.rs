//! Functions of one or two elements, with NumPy broadcasting.

use crate::Array;

/// Applies `f` to every element.
pub(crate) fn unary(x: &Array, f: impl Fn(f32) -> f32) -> Array {
    Array::made(x.shape(), x.floats().iter().map(|&x| f(x)).collect())
}

/// Applies `f` to every pair of elements after broadcasting both operands to `shape`.
pub(crate) fn binary(a: &Array, b: &Array, shape: &[usize], f: impl Fn(f32, f32) -> f32) -> Array {
    let (a_values, b_values) = (a.floats(), b.floats());
    let y = if a.shape() == b.shape() {
        a_values.iter().zip(b_values.iter()).map(|(&a, &b)| f(a, b)).collect()
    } else {
        let from_a = broadcast_offsets(a.shape(), shape);
        let from_b = broadcast_offsets(b.shape(), shape);
        from_a.iter().zip(&from_b).map(|(&a, &b)| f(a_values[a], b_values[b])).collect()
    };
    Array::made(shape, y)
}

/// Returns, for each element of a tensor of `shape` in order, the offset of the operand's element
/// that broadcasting uses.
pub(crate) fn broadcast_offsets(operand: &[usize], shape: &[usize]) -> Vec<usize> {
    // Stride of each axis of the result within the operand. It is 0 if the operand has extent 1 or
    // no such axis.
    let missing = shape.len() - operand.len();
    let mut strides = vec![0; shape.len()];
    let mut stride = 1;
    for axis in (0..operand.len()).rev() {
        if operand[axis] != 1 {
            strides[missing + axis] = stride;
        }
        stride *= operand[axis];
    }
    let mut offsets = vec![0];
    for (&extent, &stride) in shape.iter().zip(&strides) {
        offsets =
            offsets.iter().flat_map(|offset| (0..extent).map(move |index| offset + index * stride)).collect();
    }
    offsets
}
