//! Prompt lookup: proposes the tokens that followed an earlier occurrence.

use shardwright_vocabulary::Result;

use crate::automaton::{Automaton, Repeat};
use crate::draft::{Draft, Evidence, Proposal};

/// Maximum number of last tokens to search. Their automaton needs about ten megabytes at most, as
/// its test shows.
pub const HISTORY_MAX: usize = 1 << 16;

/// Number of agreeing tokens after a difference that count as a separate repetition.
const AGREED: usize = 4;

/// The position of a text that repeats an earlier passage, possibly with differences.
#[derive(Clone, Copy, Debug)]
struct Passage {
    /// Position of the token that is expected next.
    next: usize,
    /// Number of repeated tokens. A difference removes half of them and one more. So six survive
    /// one difference, and fourteen survive two in a row.
    strength: usize,
    /// Number of tokens since the last difference, or of the whole repetition without one.
    agreed: usize,
    differed: bool,
}

impl Passage {
    /// Returns the passage after one more token, or `None` if the repetition ended.
    fn after(self, is_expected: bool) -> Option<Passage> {
        let Passage { next, strength, agreed, differed } = self;
        let next = next + 1;
        if is_expected {
            return Some(Passage { next, strength: strength + 1, agreed: agreed + 1, differed });
        }
        let strength = (strength / 2).saturating_sub(1);
        (strength > 1).then_some(Passage { next, strength, agreed: 0, differed: true })
    }

    fn evidence(self) -> Evidence {
        if self.differed && self.agreed < AGREED {
            Evidence::Resumed
        } else {
            Evidence::Repeated(self.agreed)
        }
    }
}

/// Expects the continuation of an earlier occurrence of the last tokens, in the prompt or in the
/// reply. It finds the longest suffix that occurs earlier, in time that does not grow with the
/// text. If a token of a repetition differs, as in a rewritten text or a list of similar lines, the
/// continuation after that token is expected.
#[derive(Clone, Debug, Default)]
pub struct PromptLookup {
    automaton: Automaton,
    /// The tokens in the automaton.
    tokens: Vec<u32>,
    /// Number of tokens before them that are not searched.
    skipped: usize,
    passage: Option<Passage>,
}

impl PromptLookup {
    /// Updates the tokens to equal the last ones of `history`.
    fn follow(&mut self, history: &[u32]) {
        let kept = history.get(self.skipped..).and_then(|rest| rest.strip_prefix(&self.tokens[..]));
        let too_long = history.len().saturating_sub(self.skipped) > HISTORY_MAX;
        let new = match kept.filter(|_| !too_long) {
            Some(new) => new,
            None => {
                // Keep half, so that a growing text is not read again with each token.
                let skipped = if history.len() > HISTORY_MAX { history.len() - HISTORY_MAX / 2 } else { 0 };
                *self = PromptLookup { skipped, ..PromptLookup::default() };
                &history[skipped..]
            }
        };
        for &token in new {
            let expected = self.passage.and_then(|passage| self.tokens.get(passage.next));
            let is_expected = expected == Some(&token);
            let went_on = self.passage.and_then(|passage| passage.after(is_expected));
            let repeat = self.automaton.push(token, self.tokens.len());
            self.tokens.push(token);
            // The longest suffix is the better passage once it is at least as long as the remaining
            // strength of a passage with differences.
            self.passage = match repeat {
                Some(Repeat { length, end }) if went_on.is_none_or(|passage| length >= passage.strength) => {
                    Some(Passage { next: end, strength: length, agreed: length, differed: false })
                }
                _ => went_on,
            };
        }
    }
}

impl Draft for PromptLookup {
    fn name(&self) -> String {
        "lookup".to_owned()
    }

    fn propose(&mut self, history: &[u32], most: usize) -> Result<Proposal> {
        self.follow(history);
        let Some(passage) = self.passage else { return Ok(Proposal::default()) };
        let mut tokens = Vec::with_capacity(most);
        // If a text repeats its end, it continues with the tokens proposed here.
        for at in passage.next..passage.next + most {
            let token = self.tokens.get(at).or_else(|| tokens.get(at - self.tokens.len()));
            let Some(&token) = token else { break };
            tokens.push(token);
        }
        Ok(Proposal { tokens, drawn_from: Vec::new(), evidence: passage.evidence() })
    }

    fn release(&mut self) {
        // The history is read again.
        *self = PromptLookup::default();
    }

    fn memory_bytes(&self) -> u64 {
        self.automaton.bytes() + 4 * self.tokens.capacity() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposed(lookup: &mut PromptLookup, history: &[u32], most: usize) -> (Vec<u32>, Evidence) {
        let proposal = lookup.propose(history, most).unwrap();
        assert!(proposal.drawn_from.is_empty());
        (proposal.tokens, proposal.evidence)
    }

    fn repeated(tokens: Vec<u32>, length: usize) -> (Vec<u32>, Evidence) {
        (tokens, Evidence::Repeated(length))
    }

    #[test]
    fn a_text_is_expected_to_go_on_as_before() {
        let mut lookup = PromptLookup::default();
        let history = [1, 2, 3, 4, 5, 1, 2, 3];
        assert_eq!(proposed(&mut lookup, &history, 4), repeated(vec![4, 5, 1, 2], 3));
        assert_eq!(proposed(&mut lookup, &history, 1), repeated(vec![4], 3));
        assert_eq!(
            proposed(&mut lookup, &[history.as_slice(), &[9]].concat(), 4),
            (vec![], Evidence::Unmeasured)
        );
    }

    #[test]
    fn what_repeats_itself_goes_on_doing_so() {
        let mut lookup = PromptLookup::default();
        assert_eq!(proposed(&mut lookup, &[8, 1, 2, 1, 2], 7).0, [1, 2, 1, 2, 1, 2, 1]);
        assert_eq!(proposed(&mut lookup, &[3, 3], 3).0, [3, 3, 3]);
    }

    #[test]
    fn a_repetition_goes_on_after_a_difference() {
        let passage: Vec<u32> = (10..40).collect();
        let mut history = [&passage[..], &[1], &passage[..8]].concat();
        let mut lookup = PromptLookup::default();
        let mut next = |token: Option<u32>, most| {
            history.extend(token);
            proposed(&mut lookup, &history, most)
        };
        assert_eq!(next(None, 2), repeated(vec![18, 19], 8));
        // Another token instead of 18.
        assert_eq!(next(Some(2), 3), (vec![19, 20, 21], Evidence::Resumed));
        assert_eq!(next(Some(19), 1), (vec![20], Evidence::Resumed));
        (20..22).for_each(|token| drop(next(Some(token), 1)));
        // Now the agreeing tokens count as a separate repetition.
        assert_eq!(next(Some(22), 1), repeated(vec![23], 4));
        // An inserted token: two differences in a row are too many.
        assert_eq!(next(Some(3), 1), (vec![24], Evidence::Resumed));
        assert_eq!(next(Some(23), 2), repeated(vec![24, 25], 1));
        // A short repetition does not survive a difference.
        assert_eq!(next(Some(4), 1), (vec![], Evidence::Unmeasured));
        // The proposal ends with the text.
        assert_eq!(next(Some(38), 9).0.len(), 9);
    }

    #[test]
    fn another_passage_is_followed_where_it_repeats_more() {
        let mut lookup = PromptLookup::default();
        let first: Vec<u32> = (10..20).collect();
        let second = [2, 30, 31, 32];
        let history = [&first[..], &second, &[1], &first[..7], &second[..1]].concat();
        assert_eq!(proposed(&mut lookup, &history, 1), (vec![18], Evidence::Resumed));
        let history = [&history[..], &second[1..3]].concat();
        assert_eq!(proposed(&mut lookup, &history, 1), repeated(vec![32], 3));
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
    fn what_was_released_is_read_again() {
        let mut lookup = PromptLookup::default();
        let history = [1, 2, 3, 4, 5, 1, 2, 3];
        proposed(&mut lookup, &history, 4);
        let before = lookup.memory_bytes();
        lookup.release();
        assert!(lookup.memory_bytes() < before);
        assert_eq!(proposed(&mut lookup, &history, 4), repeated(vec![4, 5, 1, 2], 3));
    }

    #[test]
    fn memory_is_bounded() {
        let mut lookup = PromptLookup::default();
        // Tokens without a pattern from a large vocabulary give the most states and transitions.
        let token = |at: usize| (at as u32).wrapping_mul(2_654_435_769) >> 14;
        let mut history: Vec<u32> = (0..HISTORY_MAX - 100).map(token).collect();
        let mut largest = 0;
        for at in 0..300 {
            history.push(token(at));
            let proposal = lookup.propose(&history, 15).unwrap();
            let is_known = history.len() <= HISTORY_MAX;
            let expected = if is_known { Evidence::Repeated(at + 1) } else { Evidence::Unmeasured };
            assert_eq!(proposal.evidence, expected);
            largest = largest.max(lookup.memory_bytes());
            assert!(lookup.tokens.len() <= HISTORY_MAX);
        }
        assert!(lookup.skipped > 0 && largest < 16 << 20, "{largest} bytes");
    }
}
