//! Prompt lookup: what followed the last time.

use crate::automaton::{Automaton, Repeat};
use crate::draft::{Draft, Proposal};
use crate::error::DraftError;

/// Tokens that are searched, the last ones. Their automaton takes about ten megabytes at most, as
/// its test says.
pub const HISTORY_MAX: usize = 1 << 16;

/// Expects that a text goes on as it did where its last tokens stood before, in the prompt or in
/// the reply. It finds the longest suffix that occurs before, in time that does not grow with the
/// text.
#[derive(Clone, Debug, Default)]
pub struct PromptLookup {
    automaton: Automaton,
    /// What the automaton has.
    tokens: Vec<u32>,
    /// Tokens before these that are not searched.
    skipped: usize,
    repeat: Option<Repeat>,
}

impl PromptLookup {
    /// Makes its tokens equal to the last of `history`.
    fn follow(&mut self, history: &[u32]) {
        let kept = history.get(self.skipped..).and_then(|rest| rest.strip_prefix(&self.tokens[..]));
        let too_long = history.len().saturating_sub(self.skipped) > HISTORY_MAX;
        let new = match kept.filter(|_| !too_long) {
            Some(new) => new,
            None => {
                // Half is left, so that a text that grows is not read again with each token.
                let skipped = if history.len() > HISTORY_MAX { history.len() - HISTORY_MAX / 2 } else { 0 };
                *self = PromptLookup { skipped, ..PromptLookup::default() };
                &history[skipped..]
            }
        };
        for &token in new {
            self.repeat = self.automaton.push(token, self.tokens.len());
            self.tokens.push(token);
        }
    }
}

impl Draft for PromptLookup {
    fn name(&self) -> String {
        "lookup".to_owned()
    }

    fn propose(&mut self, history: &[u32], most: usize) -> Result<Proposal, DraftError> {
        self.follow(history);
        let Some(Repeat { length, end }) = self.repeat else { return Ok(Proposal::default()) };
        let mut tokens = Vec::with_capacity(most);
        // A text that repeats its end goes on with what is proposed here.
        for at in end..end + most {
            let token = self.tokens.get(at).or_else(|| tokens.get(at - self.tokens.len()));
            let Some(&token) = token else { break };
            tokens.push(token);
        }
        Ok(Proposal { tokens, drawn_from: Vec::new(), evidence: length })
    }

    fn memory_bytes(&self) -> u64 {
        self.automaton.bytes() + 4 * self.tokens.capacity() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposed(lookup: &mut PromptLookup, history: &[u32], most: usize) -> (Vec<u32>, usize) {
        let proposal = lookup.propose(history, most).unwrap();
        assert!(proposal.drawn_from.is_empty());
        (proposal.tokens, proposal.evidence)
    }

    #[test]
    fn a_text_is_expected_to_go_on_as_before() {
        let mut lookup = PromptLookup::default();
        let history = [1, 2, 3, 4, 5, 1, 2, 3];
        assert_eq!(proposed(&mut lookup, &history, 4), (vec![4, 5, 1, 2], 3));
        assert_eq!(proposed(&mut lookup, &history, 1), (vec![4], 3));
        assert_eq!(proposed(&mut lookup, &[history.as_slice(), &[9]].concat(), 4), (vec![], 0));
    }

    #[test]
    fn what_repeats_itself_goes_on_doing_so() {
        let mut lookup = PromptLookup::default();
        assert_eq!(proposed(&mut lookup, &[8, 1, 2, 1, 2], 7).0, [1, 2, 1, 2, 1, 2, 1]);
        assert_eq!(proposed(&mut lookup, &[3, 3], 3).0, [3, 3, 3]);
    }

    #[test]
    fn another_history_is_read_anew() {
        let mut lookup = PromptLookup::default();
        assert_eq!(proposed(&mut lookup, &[1, 2, 3, 1], 1).0, [2]);
        for history in [&[1, 7, 1][..], &[1], &[], &[1, 7, 3, 1, 7]] {
            let anew = proposed(&mut PromptLookup::default(), history, 3);
            assert_eq!(proposed(&mut lookup, history, 3), anew, "{history:?}");
        }
    }

    #[test]
    fn memory_is_bounded() {
        let mut lookup = PromptLookup::default();
        // Without a pattern, of a large vocabulary: most states and transitions.
        let token = |at: usize| (at as u32).wrapping_mul(2_654_435_769) >> 14;
        let mut history: Vec<u32> = (0..HISTORY_MAX - 100).map(token).collect();
        let mut largest = 0;
        for at in 0..300 {
            history.push(token(at));
            let proposal = lookup.propose(&history, 15).unwrap();
            assert_eq!(proposal.evidence, if history.len() <= HISTORY_MAX { at + 1 } else { 0 });
            largest = largest.max(lookup.memory_bytes());
            assert!(lookup.tokens.len() <= HISTORY_MAX);
        }
        assert!(lookup.skipped > 0 && largest < 16 << 20, "{largest} bytes");
    }
}
