use shardwright_graph::{INVISIBLE, Keys, Mask};

use super::Step;

/// Returns the number of columns of a mask in an entry of `rows` rows.
pub(crate) fn width(mask: &Mask, rows: u64) -> u64 {
    match mask.keys {
        Keys::State { capacity } => capacity,
        Keys::StateAndRows { capacity } => capacity.saturating_add(rows),
        Keys::Rows => rows,
    }
}

/// Writes 0 where a key is visible to the row's query, and [`INVISIBLE`] elsewhere.
pub(crate) fn fill(mask: &Mask, step: Step<'_>, values: &mut [f32]) {
    let width = width(mask, step.rows) as usize;
    for (row, values) in values.chunks_exact_mut(width).enumerate() {
        let row = row as u64;
        match mask.keys {
            Keys::State { capacity } => {
                let query = step.position + row;
                slots(values, mask.window, query, query + 1, capacity);
            }
            Keys::StateAndRows { capacity } => {
                let (slots_before, new) = values.split_at_mut(capacity as usize);
                slots(slots_before, mask.window, step.position + row, step.position, capacity);
                rows(new, mask, row, step.valid());
            }
            Keys::Rows => rows(values, mask, row, step.valid()),
        }
    }
}

/// Fills the mask for the slots of a state. The positions before `end` were written, and each slot
/// contains its latest one. Rows left by a truncation are invisible: they are beyond the window of
/// every later query, or have a future position.
fn slots(values: &mut [f32], window: u32, query: u64, end: u64, capacity: u64) {
    values.fill(INVISIBLE);
    // The oldest position in the query's window that was not overwritten.
    let mut first = end.saturating_sub(capacity);
    if window != 0 {
        first = first.max((query + 1).saturating_sub(u64::from(window)));
    }
    for position in first..end {
        values[(position % capacity) as usize] = 0.0;
    }
}

/// Fills the mask for the entry's own rows.
fn rows(values: &mut [f32], mask: &Mask, query: u64, valid: u64) {
    for (key, value) in values.iter_mut().enumerate() {
        let key = key as u64;
        let visible = key < valid
            && (!mask.causal || key <= query)
            && (mask.window == 0 || key.abs_diff(query) < u64::from(mask.window));
        *value = if visible { 0.0 } else { INVISIBLE };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::of_tokens;

    /// Applies the visibility rule as the graph defines it.
    fn visible(slot: u64, query: u64, capacity: u64, window: u64) -> bool {
        let (slot, query, capacity, window) = (slot as i64, query as i64, capacity as i64, window as i64);
        let position = query - (query - slot).rem_euclid(capacity);
        position >= 0 && (window == 0 || position > query - window)
    }

    #[test]
    fn state_masks_follow_the_rule() {
        for (capacity, window) in [(16, 0), (6, 4), (7, 4), (5, 3)] {
            let mask = Mask { keys: Keys::State { capacity }, window: window as u32, causal: true };
            for position in 0..40 {
                if window == 0 && position + 2 > capacity {
                    break;
                }
                let mut values = vec![9.0; 2 * capacity as usize];
                fill(&mask, of_tokens(position, &[0, 0], 2), &mut values);
                for (index, value) in values.iter().enumerate() {
                    let (row, slot) = (index as u64 / capacity, index as u64 % capacity);
                    let expected =
                        if visible(slot, position + row, capacity, window) { 0.0 } else { INVISIBLE };
                    assert_eq!(
                        *value, expected,
                        "capacity {capacity} position {position} row {row} slot {slot}"
                    );
                }
            }
        }
    }

    /// A query must see each of the last `window` positions exactly once, wherever they are stored.
    #[test]
    fn state_and_rows_together_hold_the_window_once() {
        let (capacity, window, rows) = (6_u64, 3_u64, 3_u64);
        let mask = Mask { keys: Keys::StateAndRows { capacity }, window: window as u32, causal: true };
        for position in 0..30 {
            for valid in 1..=rows {
                let tokens = vec![0; valid as usize];
                let mut values = vec![9.0; (rows * (capacity + rows)) as usize];
                fill(&mask, of_tokens(position, &tokens, rows), &mut values);
                for row in 0..valid {
                    let line = &values[(row * (capacity + rows)) as usize..][..(capacity + rows) as usize];
                    let mut seen: Vec<u64> = Vec::new();
                    for (column, value) in line.iter().enumerate() {
                        let column = column as u64;
                        if *value != 0.0 {
                            assert_eq!(*value, INVISIBLE);
                        } else if column < capacity {
                            let last = position - 1;
                            seen.push(last - (last + capacity - column) % capacity);
                        } else {
                            seen.push(position + column - capacity);
                        }
                    }
                    seen.sort_unstable();
                    let query = position + row;
                    let expected: Vec<u64> = ((query + 1).saturating_sub(window)..=query).collect();
                    assert_eq!(seen, expected, "position {position} row {row} of {valid}");
                }
            }
        }
    }

    #[test]
    fn rows_see_valid_rows_within_the_window_on_both_sides() {
        let mask = Mask { keys: Keys::Rows, window: 2, causal: false };
        let mut values = [9.0; 16];
        fill(&mask, of_tokens(0, &[0, 0, 0], 4), &mut values);
        let o = INVISIBLE;
        let expected = [[0.0, 0.0, o, o], [0.0, 0.0, 0.0, o], [o, 0.0, 0.0, o], [o, o, 0.0, o]];
        assert_eq!(values, expected.concat()[..]);
    }
}
