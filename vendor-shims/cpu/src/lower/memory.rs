//! The static memory plan: values that are never alive at the same time share memory.

/// Lifetime of an arena value, from step `first` to step `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Number of elements.
    pub elements: u64,
    /// First step that writes the value.
    pub first: usize,
    /// Last step that reads the value.
    pub last: usize,
}

/// Alignment in elements: values start at multiples of 64 bytes.
const ALIGNMENT: u64 = 16;

/// Returns an offset for each value, and the size of the arena.
///
/// Places the largest values first, each at the lowest offset that is free for its whole lifetime.
pub fn plan(lives: &[Life]) -> (Vec<u64>, u64) {
    let mut order: Vec<usize> = (0..lives.len()).collect();
    order.sort_by_key(|index| (std::cmp::Reverse(lives[*index].elements), *index));
    let mut offsets = vec![0u64; lives.len()];
    let mut total = 0u64;
    // Indices sorted by offset.
    let mut placed: Vec<usize> = Vec::with_capacity(lives.len());
    for index in order {
        let life = lives[index];
        let size = life.elements.next_multiple_of(ALIGNMENT);
        let mut offset = 0u64;
        for &other in &placed {
            let taken = lives[other];
            if taken.first > life.last || life.first > taken.last {
                continue;
            }
            if offset.saturating_add(size) <= offsets[other] {
                break;
            }
            offset = offset.max(offsets[other] + taken.elements.next_multiple_of(ALIGNMENT));
        }
        offsets[index] = offset;
        total = total.max(offset.saturating_add(size));
        let at = placed.partition_point(|other| offsets[*other] <= offset);
        placed.insert(at, index);
    }
    (offsets, total)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn values_alive_together_are_apart(raw in prop::collection::vec((1u64..500, 0usize..40, 0usize..20), 0..60)) {
            let lives: Vec<Life> =
                raw.iter().map(|&(elements, first, length)| Life { elements, first, last: first + length }).collect();
            let (offsets, total) = plan(&lives);
            for (i, a) in lives.iter().enumerate() {
                prop_assert!(offsets[i] % ALIGNMENT == 0 && offsets[i] + a.elements <= total);
                for (j, b) in lives.iter().enumerate().skip(i + 1) {
                    let together = a.first <= b.last && b.first <= a.last;
                    let apart = offsets[i] + a.elements <= offsets[j] || offsets[j] + b.elements <= offsets[i];
                    prop_assert!(!together || apart);
                }
            }
            let sum: u64 = lives.iter().map(|life| life.elements.next_multiple_of(ALIGNMENT)).sum();
            prop_assert!(total <= sum);
        }
    }

    #[test]
    fn a_chain_needs_two_values() {
        let lives: Vec<Life> =
            (0..100).map(|step| Life { elements: 64, first: step, last: step + 1 }).collect();
        assert_eq!(plan(&lives).1, 128);
    }
}
