//! Rows that stand in a prompt where embedding rows stand.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::SessionError;

/// What a tower made of one picture or clip: rows of the width of the embedding, scaled as its rows
/// are.
#[derive(Clone, PartialEq)]
pub struct SoftRows {
    width: usize,
    values: Vec<f32>,
    origin: [u8; 32],
}

impl std::fmt::Debug for SoftRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SoftRows")
            .field("rows", &self.rows())
            .field("width", &self.width)
            .finish_non_exhaustive()
    }
}

impl SoftRows {
    /// Rows of `width` values. `origin` says what they were made of, such as the hash of a picture:
    /// rows of one origin are taken to be equal.
    ///
    /// # Errors
    ///
    /// [`SessionError::SoftRowsShape`] if there is none or a part of one;
    /// [`SessionError::SoftRowsNotFinite`] if a value is no number.
    pub fn new(width: usize, values: Vec<f32>, origin: [u8; 32]) -> Result<SoftRows, SessionError> {
        if width == 0 || values.is_empty() || !values.len().is_multiple_of(width) {
            return Err(SessionError::SoftRowsShape { values: values.len(), width });
        }
        match values.iter().position(|value| !value.is_finite()) {
            Some(index) => Err(SessionError::SoftRowsNotFinite { row: index / width, value: values[index] }),
            None => Ok(SoftRows { width, values, origin }),
        }
    }

    /// How many there are: the positions they take in a prompt.
    pub fn rows(&self) -> usize {
        self.values.len() / self.width
    }

    /// Values per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// One row; `None` beyond the last.
    pub fn row(&self, index: usize) -> Option<&[f32]> {
        self.values.chunks_exact(self.width).nth(index)
    }

    /// All values, row by row.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// What they were made of.
    pub fn origin(&self) -> [u8; 32] {
        self.origin
    }
}

/// A prompt: tokens, and rows in the place of some of them.
#[derive(Clone, Debug, Default)]
pub struct Prompt {
    ids: Vec<u32>,
    soft: Vec<(usize, Arc<SoftRows>)>,
}

impl Prompt {
    /// An empty one.
    pub fn new() -> Self {
        Prompt::default()
    }

    /// Goes on with tokens.
    pub fn push_tokens(&mut self, ids: &[u32]) {
        self.ids.extend_from_slice(ids);
    }

    /// Goes on with rows. The placeholder is what other tables than the embedding read for each of
    /// them, and what the history shows.
    pub fn push_soft(&mut self, placeholder: u32, rows: &Arc<SoftRows>) {
        self.soft.push((self.ids.len(), Arc::clone(rows)));
        self.ids.extend(std::iter::repeat_n(placeholder, rows.rows()));
    }

    /// A token for each position; placeholders where there are rows.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Whether a position has a soft row.
    pub fn is_soft(&self, position: usize) -> bool {
        self.soft.iter().any(|(begin, rows)| (*begin..begin + rows.rows()).contains(&position))
    }
}

impl From<Vec<u32>> for Prompt {
    fn from(ids: Vec<u32>) -> Self {
        Prompt { ids, soft: Vec::new() }
    }
}

impl From<&[u32]> for Prompt {
    fn from(ids: &[u32]) -> Self {
        ids.to_vec().into()
    }
}

/// Rows from a position on, as far as they are in use.
#[derive(Clone, Debug)]
struct Placed {
    rows: Arc<SoftRows>,
    end: usize,
}

/// Which positions of a sequence have soft rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct SoftParts {
    /// By first position; they do not overlap.
    parts: BTreeMap<usize, Placed>,
}

impl SoftParts {
    /// The soft rows of a prompt that begins at `first`.
    pub fn of(prompt: &Prompt, first: usize) -> SoftParts {
        let placed = prompt.soft.iter().map(|(begin, rows)| {
            let begin = first + begin;
            (begin, Placed { rows: Arc::clone(rows), end: begin + rows.rows() })
        });
        SoftParts { parts: placed.collect() }
    }

    fn at(&self, position: usize) -> Option<(usize, &Placed)> {
        let (&begin, placed) = self.parts.range(..=position).next_back()?;
        (position < placed.end).then_some((begin, placed))
    }

    /// The row of a position, if it is a soft one.
    pub fn row(&self, position: usize) -> Option<&[f32]> {
        let (begin, placed) = self.at(position)?;
        placed.rows.row(position - begin)
    }

    /// What makes two rows of a position equal: none for tokens.
    pub fn identity(&self, position: usize) -> Option<([u8; 32], usize)> {
        let (begin, placed) = self.at(position)?;
        Some((placed.rows.origin, position - begin))
    }

    /// The position itself, or where the part begins that it would split.
    pub fn boundary(&self, position: usize) -> usize {
        self.at(position).map_or(position, |(begin, _)| begin)
    }

    /// Forgets everything from a position on.
    pub fn trim(&mut self, length: usize) {
        self.parts.retain(|begin, _| *begin < length);
        if let Some(mut last) = self.parts.last_entry() {
            let placed = last.get_mut();
            placed.end = placed.end.min(length);
        }
    }

    /// Takes over the parts of another that end beyond a position.
    pub fn take(&mut self, other: SoftParts, position: usize) {
        self.trim(position);
        self.parts.extend(other.parts.into_iter().filter(|(_, placed)| placed.end > position));
    }

    /// The first width that is not this one.
    pub fn other_width(&self, width: usize) -> Option<usize> {
        self.parts.values().map(|placed| placed.rows.width).find(|found| *found != width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: usize, origin: u8) -> Arc<SoftRows> {
        let values = (0..2 * count).map(|value| value as f32).collect();
        Arc::new(SoftRows::new(2, values, [origin; 32]).unwrap())
    }

    #[test]
    fn parts_take_their_positions() {
        let (first, second) = (rows(3, 1), rows(2, 2));
        let mut prompt = Prompt::from(&[5, 6][..]);
        prompt.push_soft(9, &first);
        prompt.push_soft(8, &second);
        prompt.push_tokens(&[7]);
        assert_eq!(prompt.ids(), [5, 6, 9, 9, 9, 8, 8, 7]);
        assert_eq!([1, 2, 6, 7].map(|at| prompt.is_soft(at)), [false, true, true, false]);
        let mut soft = SoftParts::of(&prompt, 10);
        assert_eq!(soft.row(11), None);
        assert_eq!(soft.row(12), Some(&[0.0, 1.0][..]));
        assert_eq!(soft.row(14), Some(&[4.0, 5.0][..]));
        assert_eq!(soft.row(15), Some(&[0.0, 1.0][..]));
        assert_eq!(soft.row(17), None);
        assert_eq!((soft.identity(13), soft.identity(16)), (Some(([1; 32], 1)), Some(([2; 32], 1))));
        assert_eq!([11, 12, 13, 14, 15, 16, 17].map(|at| soft.boundary(at)), [11, 12, 12, 12, 15, 15, 17]);
        assert_eq!((soft.other_width(2), soft.other_width(3)), (None, Some(2)));
        let mut cut = soft.clone();
        cut.trim(13);
        assert_eq!((cut.row(12).is_some(), cut.row(13)), (true, None));
        // The part that was cut is whole again, and what is beyond is replaced.
        cut.take(soft.clone(), 13);
        assert_eq!(cut.row(16), soft.row(16));
        soft.trim(0);
        assert_eq!(soft.row(12), None);
    }

    #[test]
    fn what_is_no_row_is_refused() {
        for (width, values) in [(0, vec![1.0]), (2, vec![]), (2, vec![1.0; 3])] {
            let error = SoftRows::new(width, values, [0; 32]).unwrap_err();
            assert!(matches!(error, SessionError::SoftRowsShape { .. }), "{error}");
        }
        let error = SoftRows::new(2, vec![0.0, 1.0, 2.0, f32::NAN], [0; 32]).unwrap_err();
        assert!(matches!(error, SessionError::SoftRowsNotFinite { row: 1, .. }), "{error}");
        assert!(error.help().is_some());
    }
}
