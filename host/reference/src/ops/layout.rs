//! Operations that move stored elements without computing: operands and result have the same
//! encoding.

use crate::Array;

/// Returns the elements with another shape.
pub(crate) fn reshape(x: &Array, shape: &[usize]) -> Array {
    x.in_memory().into_owned().reshaped(shape)
}

/// Makes input axis `perm[i]` the output axis `i`.
pub(crate) fn transpose(x: &Array, perm: &[u32]) -> Array {
    let mut strides = vec![1; x.shape().len()];
    for axis in (0..strides.len() - 1).rev() {
        strides[axis] = strides[axis + 1] * x.shape()[axis + 1];
    }
    let shape: Vec<usize> = perm.iter().map(|&axis| x.shape()[axis as usize]).collect();
    // Trailing axes that keep their place are moved as one run.
    let staying = perm.iter().enumerate().rev().take_while(|&(axis, &from)| axis == from as usize).count();
    let moving = perm.len() - staying;
    let run: usize = shape[moving..].iter().product();
    let mut offsets = vec![0];
    for (&extent, &axis) in shape.iter().zip(perm).take(moving) {
        let stride = strides[axis as usize];
        offsets =
            offsets.iter().flat_map(|offset| (0..extent).map(move |index| offset + index * stride)).collect();
    }
    let x = x.in_memory();
    Array::assembled(&shape, offsets.into_iter().map(|offset| (x.as_ref(), offset..offset + run)))
}

/// Joins inputs along one axis.
pub(crate) fn concat(inputs: &[&Array], axis: usize) -> Array {
    let mut shape = inputs[0].shape().to_vec();
    shape[axis] = inputs.iter().map(|input| input.shape()[axis]).sum();
    let outer: usize = shape[..axis].iter().product();
    let inputs: Vec<_> = inputs.iter().map(|input| input.in_memory()).collect();
    let runs = (0..outer).flat_map(|index| {
        inputs.iter().map(move |input| {
            let run = input.elements() / outer;
            (input.as_ref(), index * run..(index + 1) * run)
        })
    });
    Array::assembled(&shape, runs)
}
