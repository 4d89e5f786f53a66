use super::infer::RANK_LIMIT;
use super::rewrite::Rewrite;
use crate::{Op, TensorId};

pub(crate) fn elements(shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(1_u64, |product, &extent| product.checked_mul(extent))
}

pub(crate) fn with_last(shape: &[u64], last: u64) -> Vec<u64> {
    let mut shape = shape.to_vec();
    if let Some(extent) = shape.last_mut() {
        *extent = last;
    }
    shape
}

pub(crate) fn fits_rank<T>(axes: &[T]) -> bool {
    axes.len() <= RANK_LIMIT
}

pub(crate) fn too_many_axes(axes: usize) -> String {
    format!("{axes} axes exceed {RANK_LIMIT}")
}

pub(crate) fn reshape_shape(x: &[u64], shape: &[u64]) -> Result<Vec<u64>, String> {
    let elements_of_x = elements(x);
    let fits = elements_of_x.is_some() && elements(shape) == elements_of_x;
    if shape.is_empty() || shape.len() > RANK_LIMIT || !fits {
        return Err(format!("cannot reshape {x:?} to {shape:?}"));
    }
    Ok(shape.to_vec())
}

pub(crate) fn transpose_shape(x: &[u64], perm: &[u32]) -> Result<Vec<u64>, String> {
    let mut seen = vec![false; x.len()];
    let valid = perm.len() == seen.len()
        && perm
            .iter()
            .all(|&axis| seen.get_mut(axis as usize).is_some_and(|slot| !std::mem::replace(slot, true)));
    if !valid {
        return Err(format!("{perm:?} is not a permutation of the axes of {x:?}"));
    }
    Ok(perm.iter().map(|&axis| x[axis as usize]).collect())
}

pub(crate) fn slice_shape(x: &[u64], axis: usize, start: u64, end: u64) -> Result<Vec<u64>, String> {
    let extent = x.get(axis).copied().unwrap_or(0);
    if start >= end || end > extent {
        return Err(format!("{start}..{end} is not a range of axis {axis} of {x:?}"));
    }
    let mut shape = x.to_vec();
    shape[axis] = end - start;
    Ok(shape)
}

pub(crate) fn concat_shape(shapes: &[&[u64]], axis: usize) -> Result<Vec<u64>, String> {
    let first = shapes[0];
    if axis >= first.len() {
        return Err(format!("no axis {axis} in {first:?}"));
    }
    let mut total = 0_u64;
    for shape in shapes {
        let fits = shape.len() == first.len()
            && shape.iter().zip(first).enumerate().all(|(index, (a, b))| index == axis || a == b);
        if !fits {
            return Err(format!("{shape:?} does not join {first:?} along axis {axis}"));
        }
        total = total.checked_add(shape[axis]).ok_or("joined extent overflows")?;
    }
    let mut shape = first.to_vec();
    shape[axis] = total;
    Ok(shape)
}

pub(crate) fn mean_rows_shape(x: &[u64], rows: u32) -> Result<Vec<u64>, String> {
    let rows = u64::from(rows);
    match *x {
        [all, width] if rows > 0 && all > 0 && all.is_multiple_of(rows) => Ok(vec![all / rows, width]),
        _ => Err(format!("{x:?} is not [R · {rows}, K]")),
    }
}

/// Writes means of rows. Reductions apply only to the last axis, so the rows are moved there.
pub(crate) fn mean_rows(rewrite: &mut Rewrite, operands: &[TensorId], rows: u32) {
    let shape = rewrite.shape(operands[0]);
    let (means, rows, width) = (shape[0] / u64::from(rows), u64::from(rows), shape[1]);
    let groups = rewrite.step(Op::Reshape { shape: vec![means, rows, width] }, operands);
    let last = rewrite.step(Op::Transpose { perm: vec![0, 2, 1] }, &[groups]);
    let mean = rewrite.step(Op::ReduceMean, &[last]);
    rewrite.step(Op::Reshape { shape: vec![means, width] }, &[mean]);
}
