//! How much of what a draft proposes is accepted in a text that is known.

use serde::Serialize;

use crate::draft::{DRAFTED_MAX, Draft};
use crate::lookup::PromptLookup;

/// Steps of a text by how many drafted tokens they accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Acceptance {
    /// Steps without a proposal.
    pub without: u64,
    /// Steps in which so many proposed tokens were accepted, from 0 to [`DRAFTED_MAX`].
    pub accepted: [u64; DRAFTED_MAX + 1],
}

/// What prompt lookup would have proposed in a text that went on as `reply` after `prompt`, where
/// every step verifies as many tokens as are proposed, and accepts those that stand in the text.
pub fn acceptance_of_lookup(prompt: &[u32], reply: &[u32]) -> Acceptance {
    let mut found = Acceptance::default();
    let mut lookup = PromptLookup::default();
    let text = [prompt, reply].concat();
    // A step runs a token that is chosen already, and what is drafted after it.
    let mut at = prompt.len() + 1;
    while at < text.len() {
        // A token after the drafted ones is chosen too.
        let most = DRAFTED_MAX.min(text.len() - at - 1);
        let Ok(proposal) = lookup.propose(&text[..at], most) else { break };
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
    found
}

impl Acceptance {
    /// The sum of two texts.
    #[must_use]
    pub fn and(mut self, other: &Acceptance) -> Acceptance {
        self.without += other.without;
        for (own, added) in self.accepted.iter_mut().zip(&other.accepted) {
            *own += added;
        }
        self
    }

    /// Tokens of the text.
    pub fn tokens(&self) -> u64 {
        let of = |(accepted, steps): (usize, &u64)| (accepted as u64 + 1) * steps;
        self.without + self.accepted.iter().enumerate().map(of).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_into_steps() {
        // After 1 2 3 4 the reply says 1 (nothing expected of 9), 2 3 4, then something new.
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
