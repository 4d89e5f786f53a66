//! Rows in a prompt that replace embedding rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use shardwright_vocabulary::Error;

use crate::error::SessionError;

/// Rows that a tower computed from one picture or clip. They have the width and the scale of
/// embedding rows.
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
    /// Creates rows of `width` values. `origin` identifies their source, for example by the hash of
    /// a picture. Rows with the same origin count as equal.
    ///
    /// # Errors
    ///
    /// [`SessionError::NotFinite`] if a value is NaN or infinite, and an error of the kind
    /// [`ErrorKind::Argument`] if there is no row or an incomplete one.
    ///
    /// [`ErrorKind::Argument`]: shardwright_vocabulary::ErrorKind::Argument
    pub fn new(width: usize, values: Vec<f32>, origin: [u8; 32]) -> Result<SoftRows, SessionError> {
        if width == 0 || values.is_empty() || !values.len().is_multiple_of(width) {
            let message = format!("expected rows of {width} values, got {} values", values.len());
            return Err(Error::argument(message).into());
        }
        match values.iter().position(|value| !value.is_finite()) {
            Some(index) => {
                let (row, value) = (index / width, values[index]);
                let error = Error::invalid(format!("soft row {row} has the value {value}"));
                Err(SessionError::NotFinite(error.with_help(
                    "the picture or sound has such values, or a format of the tower overflows (f16 ends at \
                     65504): run the tower in wider formats",
                )))
            }
            None => Ok(SoftRows { width, values, origin }),
        }
    }

    /// Returns the number of rows, which is the number of positions that they occupy in a prompt.
    pub fn rows(&self) -> usize {
        self.values.len() / self.width
    }

    /// Returns the number of values per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns one row, or `None` beyond the last.
    pub fn row(&self, index: usize) -> Option<&[f32]> {
        self.values.chunks_exact(self.width).nth(index)
    }

    /// Returns all values, row by row.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Returns the origin that identifies the source of the rows.
    pub fn origin(&self) -> [u8; 32] {
        self.origin
    }
}

/// A prompt of tokens, some of which are replaced by rows.
#[derive(Clone, Debug, Default)]
pub struct Prompt {
    ids: Vec<u32>,
    soft: Vec<(usize, Arc<SoftRows>)>,
}

impl Prompt {
    /// Creates an empty prompt.
    pub fn new() -> Self {
        Prompt::default()
    }

    pub fn push_tokens(&mut self, ids: &[u32]) {
        self.ids.extend_from_slice(ids);
    }

    /// Appends rows. For each of them, the history shows the placeholder, and tables other than the
    /// embedding read it.
    pub fn push_soft(&mut self, placeholder: u32, rows: &Arc<SoftRows>) {
        self.soft.push((self.ids.len(), Arc::clone(rows)));
        self.ids.extend(std::iter::repeat_n(placeholder, rows.rows()));
    }

    /// Returns a token for each position, with placeholders at the positions of rows.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Returns the parts with soft rows, each with its first position, in their order.
    pub fn parts(&self) -> impl Iterator<Item = (usize, &Arc<SoftRows>)> {
        self.soft.iter().map(|(begin, rows)| (*begin, rows))
    }

    /// Creates a prompt from a token for each position, and parts with their first positions. Each
    /// position of a part has a placeholder among the tokens.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`ErrorKind::Invalid`] if parts overlap, are not in order, or
    /// end beyond the tokens.
    ///
    /// [`ErrorKind::Invalid`]: shardwright_vocabulary::ErrorKind::Invalid
    pub fn with_parts(ids: Vec<u32>, soft: Vec<(usize, Arc<SoftRows>)>) -> Result<Prompt, SessionError> {
        let mut free = 0;
        for (begin, rows) in &soft {
            let end = begin.checked_add(rows.rows()).filter(|end| *begin >= free && *end <= ids.len());
            free = end.ok_or_else(|| {
                let (tokens, rows) = (ids.len(), rows.rows());
                let message =
                    format!("a part of {rows} rows does not fit at position {begin} of {tokens} tokens");
                Error::invalid(message).with_help("save the session again")
            })?;
        }
        Ok(Prompt { ids, soft })
    }

    /// Checks whether a position has a soft row.
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

/// Rows from a position on, up to the end of their used part.
#[derive(Clone, Debug)]
struct Placed {
    rows: Arc<SoftRows>,
    end: usize,
}

/// Positions of a sequence that have soft rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct SoftParts {
    /// Parts by first position, without overlaps.
    parts: BTreeMap<usize, Placed>,
}

impl SoftParts {
    /// Creates the soft rows of a prompt that begins at position `first`.
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

    /// Returns the row at a position, if it is a soft row.
    pub fn row(&self, position: usize) -> Option<&[f32]> {
        let (begin, placed) = self.at(position)?;
        placed.rows.row(position - begin)
    }

    /// Returns the identity of the soft row at a position: its origin and its index. Returns `None`
    /// for tokens.
    pub fn identity(&self, position: usize) -> Option<([u8; 32], usize)> {
        let (begin, placed) = self.at(position)?;
        Some((placed.rows.origin, position - begin))
    }

    /// Returns the position, or the start of the part that a cut at this position would split.
    pub fn boundary(&self, position: usize) -> usize {
        self.at(position).map_or(position, |(begin, _)| begin)
    }

    /// Returns the largest length up to `length` at which every part is complete.
    pub fn whole(&self, length: usize) -> usize {
        let is_cut =
            |&(begin, placed): &(&usize, &Placed)| placed.end.min(length) < begin + placed.rows.rows();
        self.parts.range(..length).find(is_cut).map_or(length, |(begin, _)| *begin)
    }

    /// Returns the prompt of these tokens with their parts, which must be complete.
    pub fn prompt(&self, ids: &[u32]) -> Prompt {
        let within = self.parts.range(..ids.len());
        let soft = within.map(|(&begin, placed)| (begin, Arc::clone(&placed.rows))).collect();
        Prompt { ids: ids.to_vec(), soft }
    }

    /// Removes everything from a position on.
    pub fn trim(&mut self, length: usize) {
        self.parts.retain(|begin, _| *begin < length);
        if let Some(mut last) = self.parts.last_entry() {
            let placed = last.get_mut();
            placed.end = placed.end.min(length);
        }
    }

    /// Adds the parts of `other` that end beyond a position, and replaces this sequence's rows
    /// there.
    pub fn take(&mut self, other: SoftParts, position: usize) {
        self.trim(position);
        self.parts.extend(other.parts.into_iter().filter(|(_, placed)| placed.end > position));
    }

    /// Returns the first width that differs from `width`.
    pub fn other_width(&self, width: usize) -> Option<usize> {
        self.parts.values().map(|placed| placed.rows.width).find(|found| *found != width)
    }
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::ErrorKind;

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
        assert_eq!([11, 12, 13, 14, 15, 16, 17].map(|at| soft.whole(at)), [11, 12, 12, 12, 15, 15, 17]);
        let mut cut = soft.clone();
        cut.trim(13);
        assert_eq!((cut.row(12).is_some(), cut.row(13)), (true, None));
        // The cut part is whole again, and the rows beyond it are replaced.
        cut.take(soft.clone(), 13);
        assert_eq!(cut.row(16), soft.row(16));
        soft.trim(0);
        assert_eq!(soft.row(12), None);
    }

    #[test]
    fn parts_of_a_prompt_do_not_overlap_and_end_within_it() {
        let (first, second) = (rows(3, 1), rows(2, 2));
        let with = |parts: &[(usize, &Arc<SoftRows>)]| {
            let parts = parts.iter().map(|(begin, rows)| (*begin, Arc::clone(rows))).collect();
            Prompt::with_parts(vec![9; 8], parts)
        };
        let prompt = with(&[(2, &first), (5, &second)]).unwrap();
        let parts = SoftParts::of(&prompt, 0).prompt(prompt.ids());
        let begins: Vec<usize> = parts.parts().map(|(begin, _)| begin).collect();
        assert_eq!((begins, parts.ids().len()), (vec![2, 5], 8));
        for wrong in [
            &[(6, &first)][..],
            &[(usize::MAX, &first)],
            &[(2, &first), (4, &second)],
            &[(5, &second), (2, &first)],
        ] {
            let error = with(wrong).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(error.to_string().contains("does not fit") && error.help().is_some(), "{error}");
        }
    }

    #[test]
    fn what_is_no_row_is_refused() {
        for (width, values) in [(0, vec![1.0]), (2, vec![]), (2, vec![1.0; 3])] {
            let error = SoftRows::new(width, values, [0; 32]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
            assert!(error.to_string().starts_with("expected rows of"), "{error}");
        }
        let error = SoftRows::new(2, vec![0.0, 1.0, 2.0, f32::NAN], [0; 32]).unwrap_err();
        assert!(matches!(error, SessionError::NotFinite(_)), "{error}");
        assert!(error.to_string().starts_with("soft row 1 "), "{error}");
        assert!(error.help().is_some());
    }
}
