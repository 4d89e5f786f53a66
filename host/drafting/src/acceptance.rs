//! Measures the acceptance of a draft's proposals on a known text.

use serde::Serialize;
use shardwright_vocabulary::Result;

use crate::draft::{DRAFTED_MAX, Draft};
use crate::lookup::PromptLookup;

/// Steps of a text, counted by the number of accepted tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Acceptance {
    /// Number of steps without a proposal.
    pub without: u64,
    /// Number of steps by the number of accepted tokens, from 0 to [`DRAFTED_MAX`].
    pub accepted: [u64; DRAFTED_MAX + 1],
}

/// Counts the acceptance of prompt lookup on a text, like [`acceptance_of`].
pub fn acceptance_of_lookup(prompt: &[u32], reply: &[u32]) -> Acceptance {
    // A lookup does not fail.
    acceptance_of(&mut PromptLookup::default(), prompt, reply).unwrap_or_default()
}

/// Counts the acceptance of a draft on a text with a prompt and a reply. Every step verifies all
/// proposed tokens, and accepts tokens that agree with the reply.
///
/// # Errors
///
/// The draft's error.
pub fn acceptance_of(draft: &mut dyn Draft, prompt: &[u32], reply: &[u32]) -> Result<Acceptance> {
    let mut found = Acceptance::default();
    let text = [prompt, reply].concat();
    // A step runs an already chosen token, and the tokens drafted after it.
    let mut at = prompt.len() + 1;
    while at < text.len() {
        // One more token is chosen after the drafted ones.
        let most = DRAFTED_MAX.min(text.len() - at - 1);
        let proposal = draft.propose(&text[..at], most)?;
        if proposal.tokens.is_empty() {
            found.without += 1;
            at += 1;
            continue;
        }
        let accepted =
            proposal.tokens.iter().zip(&text[at..]).take_while(|(one, other)| one == other).count();
        found.accepted[accepted.min(DRAFTED_MAX)] += 1;
        at += accepted + 1;
    }
    Ok(found)
}

impl Acceptance {
    /// Creates an acceptance from the numbers of steps with 0, 1, 2, … accepted tokens.
    pub fn of_steps(steps: &[u32]) -> Acceptance {
        let mut found = Acceptance::default();
        for (right, steps) in steps.iter().enumerate() {
            found.accepted[right.min(DRAFTED_MAX)] += u64::from(*steps);
        }
        found
    }

    /// Returns two rates: of accepted first tokens, and of accepted later tokens if all tokens
    /// before them were accepted. Returns `None` without a proposal.
    pub(crate) fn rates(&self) -> Option<(f64, f64)> {
        let (mut proposals, mut first, mut tried, mut later) = (0.0, 0.0, 0.0, 0.0);
        for (right, &steps) in self.accepted.iter().enumerate() {
            let steps = steps as f64;
            proposals += steps;
            if right > 0 {
                first += steps;
                later += (right - 1) as f64 * steps;
                tried += right.min(DRAFTED_MAX - 1) as f64 * steps;
            }
        }
        (proposals > 0.0).then(|| (first / proposals, if tried > 0.0 { later / tried } else { 0.0 }))
    }

    /// Adds the acceptance of another text.
    #[must_use]
    pub fn and(mut self, other: &Acceptance) -> Acceptance {
        self.without += other.without;
        for (own, added) in self.accepted.iter_mut().zip(&other.accepted) {
            *own += added;
        }
        self
    }

    /// Returns the number of tokens in the text.
    pub fn tokens(&self) -> u64 {
        let of = |(accepted, steps): (usize, &u64)| (accepted as u64 + 1) * steps;
        self.without + self.accepted.iter().enumerate().map(of).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::Error;

    use super::*;
    use crate::draft::Proposal;

    #[test]
    fn rates_are_of_the_first_token_and_of_later_ones() {
        assert_eq!(Acceptance::default().rates(), None);
        assert_eq!(Acceptance::of_steps(&[4]).rates(), Some((0.0, 0.0)));
        // Of ten proposals, five begin right. Two of those end there, and three after one more.
        assert_eq!(Acceptance::of_steps(&[5, 2, 3]).rates(), Some((0.5, 3.0 / 8.0)));
        let all = Acceptance::of_steps(&[vec![0; 15], vec![2, 1, 1]].concat());
        assert_eq!((all.accepted[15], all.rates()), (4, Some((1.0, 1.0))));
    }

    #[test]
    fn a_draft_that_fails_is_no_draft_that_is_wrong() {
        struct Broken;
        impl Draft for Broken {
            fn name(&self) -> String {
                "broken".to_owned()
            }

            fn propose(&mut self, _: &[u32], _: usize) -> Result<Proposal> {
                Err(Error::internal("on purpose"))
            }
        }
        assert!(acceptance_of(&mut Broken, &[1], &[2, 3]).is_err());
        assert_eq!(acceptance_of(&mut Broken, &[1], &[2]).ok(), Some(Acceptance::default()));
    }

    #[test]
    fn a_text_is_cut_into_steps() {
        // After 1 2 3 4 9 the reply is 1 (9 was new, so no proposal), then 2 3 4, then new tokens.
        let found = acceptance_of_lookup(&[1, 2, 3, 4, 9], &[1, 2, 3, 4, 7, 7]);
        assert_eq!((found.without, found.accepted[3]), (1, 1));
        assert_eq!(found.tokens(), 5);
        assert_eq!(acceptance_of_lookup(&[1, 2], &[3]), Acceptance::default());
        assert_eq!(acceptance_of_lookup(&[], &[]), Acceptance::default());
        let all = acceptance_of_lookup(&[5; 4], &[5; 40]);
        assert_eq!((all.without, all.tokens()), (0, 39));
        assert_eq!(found.and(&all).tokens(), 44);
    }
}
