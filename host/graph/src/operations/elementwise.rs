/// Returns the shape by NumPy's rule: axes are aligned at the end, and an extent of 1 is repeated.
pub(crate) fn broadcast(a: &[u64], b: &[u64]) -> Result<Vec<u64>, String> {
    let rank = a.len().max(b.len());
    let extent = |shape: &[u64], index: usize| {
        (index + shape.len()).checked_sub(rank).map_or(1, |position| shape[position])
    };
    (0..rank)
        .map(|index| match (extent(a, index), extent(b, index)) {
            (x, y) if x == y => Ok(x),
            (1, y) => Ok(y),
            (x, 1) => Ok(x),
            _ => Err(format!("{a:?} and {b:?} do not broadcast")),
        })
        .collect()
}
