//! Operations that move elements and compute nothing.

use crate::Array;

/// The same elements under another shape.
pub(crate) fn reshape(x: &Array, shape: &[usize]) -> Array {
    x.clone().reshaped(shape)
}

/// Output axis `i` is input axis `perm[i]`.
pub(crate) fn transpose(x: &Array, perm: &[u32]) -> Array {
    let mut strides = vec![1; x.shape().len()];
    for axis in (0..strides.len() - 1).rev() {
        strides[axis] = strides[axis + 1] * x.shape()[axis + 1];
    }
    let shape: Vec<usize> = perm.iter().map(|&axis| x.shape()[axis as usize]).collect();
    let mut offsets = vec![0];
    for (&extent, &axis) in shape.iter().zip(perm) {
        let stride = strides[axis as usize];
        offsets =
            offsets.iter().flat_map(|offset| (0..extent).map(move |index| offset + index * stride)).collect();
    }
    let values = x.floats();
    Array::made(&shape, offsets.iter().map(|&offset| values[offset]).collect())
}

/// `count` entries of one axis, from `start`.
pub(crate) fn slice(x: &Array, axis: usize, start: usize, count: usize) -> Array {
    let mut shape = x.shape().to_vec();
    let extent = std::mem::replace(&mut shape[axis], count);
    let inner: usize = shape[axis + 1..].iter().product();
    let values = x.floats();
    let runs = values.chunks_exact(extent * inner).map(|run| &run[start * inner..][..count * inner]);
    Array::made(&shape, runs.flatten().copied().collect())
}

/// Joins inputs along one axis.
pub(crate) fn concat(inputs: &[&Array], axis: usize) -> Array {
    let mut shape = inputs[0].shape().to_vec();
    shape[axis] = inputs.iter().map(|input| input.shape()[axis]).sum();
    let outer: usize = shape[..axis].iter().product();
    let inputs: Vec<_> = inputs.iter().map(|input| input.floats()).collect();
    let mut values = Vec::with_capacity(shape.iter().product());
    for index in 0..outer {
        for input in &inputs {
            let run = input.len() / outer;
            values.extend_from_slice(&input[index * run..][..run]);
        }
    }
    Array::made(&shape, values)
}
