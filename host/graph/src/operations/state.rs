use super::infer::expect;

pub(crate) fn update_shape(shapes: &[&[u64]]) -> Result<Vec<u64>, String> {
    let [state, rows, slots] = [shapes[0], shapes[1], shapes[2]];
    if state.len() != 2 || rows.len() != 2 || state[1] != rows[1] {
        return Err(format!("rows {rows:?} do not fit a state {state:?}"));
    }
    expect(slots, &[rows[0]], "slots")?;
    Ok(state.to_vec())
}
