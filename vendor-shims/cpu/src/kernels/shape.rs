//! Kernels that move values: strided copies and the update of a state.

use serde::{Deserialize, Serialize};

use crate::kernels::encoding::StoredMut;
use crate::simd::Level;

/// Extents of a copy and the strides of source and target along each axis, in elements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strided {
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    pub source: Vec<usize>,
    pub target: Vec<usize>,
}

/// Copies `target[Σ i·t] = source[Σ i·s]` for every index of the shape.
///
/// # Panics
/// When the shape reaches beyond source or target.
pub fn strided_copy(copy: &Strided, source: &[f32], target: &mut [f32]) {
    let rank = copy.shape.len();
    assert!(copy.source.len() == rank && copy.target.len() == rank, "broken copy");
    if copy.shape.contains(&0) {
        return;
    }
    let Some(inner) = rank.checked_sub(1) else {
        target[0] = source[0];
        return;
    };
    let run = copy.shape[inner];
    let (source_step, target_step) = (copy.source[inner], copy.target[inner]);
    let mut index = vec![0usize; inner];
    let (mut from, mut to) = (0usize, 0usize);
    loop {
        if source_step == 1 && target_step == 1 {
            target[to..to + run].copy_from_slice(&source[from..from + run]);
        } else {
            for step in 0..run {
                target[to + step * target_step] = source[from + step * source_step];
            }
        }
        let mut axis = inner;
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            index[axis] += 1;
            from += copy.source[axis];
            to += copy.target[axis];
            if index[axis] < copy.shape[axis] {
                break;
            }
            from -= copy.source[axis] * index[axis];
            to -= copy.target[axis] * index[axis];
            index[axis] = 0;
        }
    }
}

/// Error for a slot outside the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotOutside {
    /// Row whose slot is out of range.
    pub row: usize,
    pub slot: i32,
}

/// Writes row r of `new` to row `slots[r]` of `state`, unless the slot is −1. If a slot is out of
/// range, it returns an error without writing.
///
/// # Panics
/// When `new` is shorter than the slots need.
pub fn state_update(
    level: Level,
    mut state: StoredMut<'_>,
    width: usize,
    new: &[f32],
    slots: &[i32],
) -> Result<(), SlotOutside> {
    assert!(new.len() >= slots.len() * width, "fewer rows than slots");
    let capacity = state.len().checked_div(width).unwrap_or(0);
    for (row, &slot) in slots.iter().enumerate() {
        if slot != -1 && usize::try_from(slot).map_or(true, |slot| slot >= capacity) {
            return Err(SlotOutside { row, slot });
        }
    }
    for (row, &slot) in slots.iter().enumerate() {
        if let Ok(slot) = usize::try_from(slot) {
            state.write(level, slot * width, &new[row * width..(row + 1) * width]);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::encoding::{Element, ElementEncoding, Stored, decode};
    use crate::pool::Pool;

    #[test]
    fn transposes() {
        // Transposes [2, 3, 4] to axes (2, 0, 1).
        let source: Vec<f32> = (0..24).map(|i| i as f32).collect();
        let copy = Strided { shape: vec![4, 2, 3], source: vec![1, 12, 4], target: vec![6, 3, 1] };
        let mut target = vec![-1.0; 24];
        strided_copy(&copy, &source, &mut target);
        for i in 0..4 {
            for j in 0..2 {
                for k in 0..3 {
                    assert_eq!(target[i * 6 + j * 3 + k], (j * 12 + k * 4 + i) as f32);
                }
            }
        }
    }

    #[test]
    fn empty_and_scalar_copies() {
        let mut target = [1.0f32];
        strided_copy(
            &Strided { shape: vec![0, 4], source: vec![4, 1], target: vec![4, 1] },
            &[],
            &mut target,
        );
        assert_eq!(target, [1.0]);
        strided_copy(&Strided::default(), &[5.0], &mut target);
        assert_eq!(target, [5.0]);
    }

    #[test]
    fn states_store_rows_at_their_slots() {
        for (element, scale, zero_point) in [
            (Element::F32, 1.0, 0),
            (Element::F16, 1.0, 0),
            (Element::U16, 0.5, 1000),
            (Element::U8, 0.25, 3),
        ] {
            let encoding = ElementEncoding { element, scale, zero_point };
            let mut bytes = [0u32; 8];
            // SAFETY: plain bytes.
            let bytes = unsafe {
                std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast::<u8>(), 8 * element.bytes())
            };
            let level = Level::detect();
            let read = |bytes: &[u8]| {
                let mut out = [0.0f32; 8];
                decode(level, &Pool::eager(1), Stored::new(encoding, bytes).unwrap(), 8, &mut out);
                out
            };
            let none = -(zero_point as f32) * scale;
            let update = |bytes: &mut [u8], new: &[f32], slots: &[i32]| {
                state_update(level, StoredMut::new(encoding, bytes).unwrap(), 2, new, slots)
            };
            update(bytes, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, -1, 0]).unwrap();
            let before = [5.0, 6.0, none, none, none, none, 1.0, 2.0];
            assert_eq!(read(bytes), before);
            for slot in [4, -2, i32::MAX, i32::MIN] {
                let refused = update(bytes, &[9.0; 4], &[1, slot]);
                assert_eq!(refused, Err(SlotOutside { row: 1, slot }));
                assert_eq!(read(bytes), before);
            }
        }
    }
}
