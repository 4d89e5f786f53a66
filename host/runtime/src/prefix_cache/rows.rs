//! Memory for the states of adjacent positions.

use std::ops::Range;

use memmap2::MmapMut;

use crate::memory::MemoryShare;

/// Fewest bytes with pages of their own. The waste of the last page is then at most a sixteenth.
const PAGES_MIN: usize = 1 << 16;

/// Bytes in pages of their own where possible. Dropping them gives the memory back to the system.
/// Memory of the heap stays with the process, and cannot always be used again by other threads.
enum Memory {
    Heap(Vec<u8>),
    Pages(MmapMut),
}

impl Memory {
    fn of(bytes: &[u8]) -> Memory {
        let pages = (bytes.len() >= PAGES_MIN).then(|| MmapMut::map_anon(bytes.len()));
        match pages {
            Some(Ok(mut pages)) => {
                pages.copy_from_slice(bytes);
                Memory::Pages(pages)
            }
            _ => Memory::Heap(bytes.to_vec()),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Memory::Heap(bytes) => bytes,
            Memory::Pages(pages) => pages,
        }
    }
}

/// States of adjacent positions: the rows of each state, by position.
pub(super) struct Rows {
    memory: Memory,
    /// The end of each state's rows.
    ends: Vec<usize>,
    positions: usize,
    /// Share of the chain's memory budget.
    pub share: Option<MemoryShare>,
}

impl Rows {
    /// Copies the rows of all states, one state after the other. `ends` are the ends of their rows.
    pub fn new(rows: &[u8], ends: Vec<usize>, positions: usize, share: Option<MemoryShare>) -> Rows {
        Rows { memory: Memory::of(rows), ends, positions, share }
    }

    /// Returns the rows of positions within this node. A state without rows has no bytes.
    pub fn of(&self, state: usize, within: Range<usize>) -> &[u8] {
        let begin = state.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied());
        let rows =
            begin.zip(self.ends.get(state)).and_then(|(begin, end)| self.memory.bytes().get(begin..*end));
        let rows = rows.unwrap_or_default();
        let row_bytes = rows.len() / self.positions.max(1);
        rows.get(within.start * row_bytes..within.end * row_bytes).unwrap_or_default()
    }

    /// Copies the rows of positions within this node.
    pub fn part(&self, within: &Range<usize>, share: Option<MemoryShare>) -> Rows {
        let (mut rows, mut ends) = (Vec::new(), Vec::with_capacity(self.ends.len()));
        for state in 0..self.ends.len() {
            rows.extend_from_slice(self.of(state, within.clone()));
            ends.push(rows.len());
        }
        Rows::new(&rows, ends, within.len(), share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of 3, 0 and 1 times `scale` bytes, whose bytes are the position.
    fn rows(positions: u8, scale: usize) -> Rows {
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for row_bytes in [3 * scale, 0, scale] {
            (0..positions).for_each(|position| bytes.extend(vec![position; row_bytes]));
            ends.push(bytes.len());
        }
        Rows::new(&bytes, ends, usize::from(positions), None)
    }

    #[test]
    fn parts_have_the_rows_of_their_positions_in_either_memory() {
        for (scale, are_pages) in [(1, false), (PAGES_MIN, true)] {
            let whole = rows(7, scale);
            assert_eq!(matches!(whole.memory, Memory::Pages(_)), are_pages);
            let part = whole.part(&(2..5), None);
            for rows in [part.of(0, 1..3), whole.of(0, 3..5)] {
                assert_eq!(rows, [vec![3; 3 * scale], vec![4; 3 * scale]].concat());
            }
            assert_eq!(part.of(2, 0..1), vec![2; scale]);
            for nothing in [part.of(1, 0..3), part.of(3, 0..1), part.of(0, 3..4), part.of(0, 1..1)] {
                assert!(nothing.is_empty());
            }
        }
    }
}
