use super::infer::RANK_LIMIT;

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
        return Err(format!("{x:?} cannot take the shape {shape:?}"));
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
