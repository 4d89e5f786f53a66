//! Writes new rows to a state with the same encoding.

use shardwright_vocabulary::{Error, Result};

use crate::Array;

/// Returns the state with row `slots[r]` replaced by `rows[r]`. Slot −1 is skipped.
pub(crate) fn state_update(mut state: Array, rows: &Array, slots: &[i32]) -> Array {
    write_rows(&mut state, rows, slots);
    state
}

/// Writes `rows[r]` to row `slots[r]` of the state, in place. Slots were checked.
pub(crate) fn write_rows(state: &mut Array, rows: &Array, slots: &[i32]) {
    let width = state.shape()[1];
    let rows = rows.in_memory();
    for (row, &slot) in slots.iter().enumerate() {
        if let Ok(slot) = usize::try_from(slot) {
            state.overwrite(slot * width, &rows, row * width..(row + 1) * width);
        }
    }
}

/// Checks that every slot is −1 or a row of the state.
pub(crate) fn check_slots(slots: &[i32], capacity: usize) -> Result<()> {
    match slots.iter().position(|&slot| slot < -1 || slot >= 0 && slot as usize >= capacity) {
        Some(row) => {
            let slot = slots[row];
            Err(Error::argument(format!("slot {slot} of row {row} is outside a state of {capacity} rows")))
        }
        None => Ok(()),
    }
}
