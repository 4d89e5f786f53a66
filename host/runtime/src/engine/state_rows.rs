//! Rows of states (KV cache) in the memory of a session.

use std::ops::Range;

use shardwright_shims::{BufferRead, BufferWrite, ShimError};

use super::{Engine, failed};
use crate::error::SessionError;

/// Returns the bytes of these positions in a state of `capacity` rows: one range, or two if the
/// positions wrap around. There are at most `capacity` positions.
pub(crate) fn pieces(
    positions: Range<usize>,
    capacity: usize,
    row_bytes: usize,
) -> impl Iterator<Item = Range<usize>> {
    let count = positions.len();
    let slot = positions.start.checked_rem(capacity).unwrap_or(0);
    let first = count.min(capacity - slot);
    let pieces = [slot..slot + first, 0..count - first];
    pieces
        .into_iter()
        .filter(|slots| !slots.is_empty())
        .map(move |slots| slots.start * row_bytes..slots.end * row_bytes)
}

impl Engine {
    /// Gives read access to the memory of a state. A state without memory has no bytes.
    pub(crate) fn read_state(&self, state: usize) -> Result<Option<BufferRead>, SessionError> {
        let Some(memory) = self.memory_of(state) else { return Ok(None) };
        let read = self.memories[memory].read();
        read.map(Some).map_err(|source| self.inaccessible(state, "reading a state", source))
    }

    /// Gives write access to the memory of a state.
    pub(crate) fn write_state(&self, state: usize) -> Result<Option<BufferWrite<'_>>, SessionError> {
        let Some(memory) = self.memory_of(state) else { return Ok(None) };
        let write = self.memories[memory].write();
        write.map(Some).map_err(|source| self.inaccessible(state, "writing a state", source))
    }

    fn memory_of(&self, state: usize) -> Option<usize> {
        let memory = self.chain.layout().states[state].memory;
        memory.filter(|memory| *memory < self.memories.len())
    }

    fn inaccessible(&self, state: usize, during: &str, source: ShimError) -> SessionError {
        failed(&self.chain, self.chain.layout().states[state].writer, during.to_owned(), source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_wrap_around_once() {
        let all = |positions, capacity| {
            pieces(positions, capacity, 10).map(|piece| (piece.start, piece.end)).collect::<Vec<_>>()
        };
        assert_eq!(all(0..3, 4), [(0, 30)]);
        assert_eq!(all(2..4, 4), [(20, 40)]);
        assert_eq!(all(3..6, 4), [(30, 40), (0, 20)]);
        assert_eq!(all(7..11, 4), [(30, 40), (0, 30)]);
        assert_eq!(all(8..12, 4), [(0, 40)]);
        assert_eq!(all(5..5, 4), []);
        assert_eq!(all(0..0, 0), []);
    }
}
