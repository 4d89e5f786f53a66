//! A suffix automaton of a sequence of tokens, built token by token (Blumer et al. 1985).
//!
//! Each state is a set of substrings with the same end positions. The suffix link of the whole
//! sequence's state leads to the state of its longest suffix that occurs earlier. A sequence of n
//! tokens has at most 2 n states and 3 n transitions.

use std::collections::HashMap;

const ROOT: u32 = 0;
const NONE: u32 = u32::MAX;

/// Maximum number of suffixes whose end position is updated. For most sequences that is all of
/// them. In a sequence of equal tokens, each position is the end of as many suffixes as there are
/// tokens.
const TOLD_MAX: usize = 64;

#[derive(Clone, Debug)]
struct State {
    /// Length of the longest substring.
    length: u32,
    link: u32,
    /// One past the end of a recent occurrence.
    end: u32,
    /// Transitions by token, in ascending order.
    next: Vec<(u32, u32)>,
}

/// The substrings of a sequence.
#[derive(Clone, Debug)]
pub(crate) struct Automaton {
    states: Vec<State>,
    /// Transitions of the root, which may have one for each token of the vocabulary.
    first: HashMap<u32, u32>,
    last: u32,
}

/// The longest suffix of a sequence that occurs earlier in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Repeat {
    /// Length of the suffix in tokens.
    pub(crate) length: usize,
    /// One past the end of a recent earlier occurrence.
    pub(crate) end: usize,
}

impl Default for Automaton {
    fn default() -> Self {
        let root = State { length: 0, link: NONE, end: 0, next: Vec::new() };
        Automaton { states: vec![root], first: HashMap::new(), last: ROOT }
    }
}

impl Automaton {
    /// Appends a token at `position`, counted from 0. Returns the longest suffix that occurs
    /// earlier.
    pub(crate) fn push(&mut self, token: u32, position: usize) -> Option<Repeat> {
        let end = position as u32 + 1;
        let new = self.add(State { length: end, link: ROOT, end, next: Vec::new() });
        let mut at = self.last;
        while at != NONE && self.follow(at, token).is_none() {
            self.set(at, token, new);
            at = self.state(at).link;
        }
        if at != NONE
            && let Some(next) = self.follow(at, token)
        {
            let length = self.state(at).length + 1;
            let link =
                if self.state(next).length == length { next } else { self.split(at, token, next, length) };
            self.state_mut(new).link = link;
        }
        self.last = new;
        let repeated = self.state(new).link;
        let found = self.state(repeated).repeat();
        self.tell(repeated, end);
        found
    }

    /// Splits off the substrings of `next` that are no longer than `length`. From now on these have
    /// more end positions than the rest.
    fn split(&mut self, mut at: u32, token: u32, next: u32, length: u32) -> u32 {
        let State { link, end, next: transitions, .. } = self.state(next).clone();
        let part = self.add(State { length, link, end, next: transitions });
        self.state_mut(next).link = part;
        while at != NONE && self.follow(at, token) == Some(next) {
            self.set(at, token, part);
            at = self.state(at).link;
        }
        part
    }

    /// Records the end of an occurrence of a state and of its suffixes.
    fn tell(&mut self, mut at: u32, end: u32) {
        for _ in 0..TOLD_MAX {
            if at == ROOT || at == NONE {
                return;
            }
            let state = self.state_mut(at);
            state.end = end;
            at = state.link;
        }
    }

    fn follow(&self, at: u32, token: u32) -> Option<u32> {
        if at == ROOT {
            return self.first.get(&token).copied();
        }
        let next = &self.state(at).next;
        next.binary_search_by_key(&token, |(of, _)| *of).ok().map(|index| next[index].1)
    }

    fn set(&mut self, at: u32, token: u32, to: u32) {
        if at == ROOT {
            self.first.insert(token, to);
            return;
        }
        let next = &mut self.state_mut(at).next;
        match next.binary_search_by_key(&token, |(of, _)| *of) {
            Ok(index) => next[index].1 = to,
            Err(index) => next.insert(index, (token, to)),
        }
    }

    fn add(&mut self, state: State) -> u32 {
        self.states.push(state);
        self.states.len() as u32 - 1
    }

    fn state(&self, index: u32) -> &State {
        &self.states[index as usize]
    }

    fn state_mut(&mut self, index: u32) -> &mut State {
        &mut self.states[index as usize]
    }

    /// Returns the size of the states and transitions in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let transitions: usize = self.states.iter().map(|state| state.next.capacity()).sum();
        let own = self.states.capacity() * size_of::<State>() + transitions * size_of::<(u32, u32)>();
        (own + self.first.capacity() * size_of::<(u32, u32, u64)>()) as u64
    }
}

impl State {
    /// Returns the repeat that the state represents, or `None` for the root.
    fn repeat(&self) -> Option<Repeat> {
        let (length, end) = (self.length as usize, self.end as usize);
        (length > 0).then_some(Repeat { length, end })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the length of the longest suffix that occurs earlier, by comparing tokens.
    fn plainly(tokens: &[u32]) -> usize {
        let at = tokens.len();
        let of =
            |end: usize| (0..end).take_while(|back| tokens[end - 1 - back] == tokens[at - 1 - back]).count();
        (1..at).map(of).max().unwrap_or(0)
    }

    proptest! {
        #[test]
        fn repeats_are_those_found_by_comparing(
            tokens in proptest::collection::vec(0u32..4, 1..120),
            wide in proptest::collection::vec(0u32..40, 1..200),
        ) {
            for tokens in [tokens, wide] {
                let mut automaton = Automaton::default();
                for (position, &token) in tokens.iter().enumerate() {
                    let repeat = automaton.push(token, position);
                    let read = &tokens[..=position];
                    prop_assert_eq!(repeat.map_or(0, |repeat| repeat.length), plainly(read));
                    if let Some(Repeat { length, end }) = repeat {
                        prop_assert!(end <= position);
                        prop_assert_eq!(&read[end - length..end], &read[read.len() - length..]);
                    }
                }
                prop_assert!(automaton.states.len() <= 2 * tokens.len() + 1);
                let transitions: usize = automaton.states.iter().map(|state| state.next.len()).sum();
                prop_assert!(transitions + automaton.first.len() <= 3 * tokens.len());
            }
        }
    }

    #[test]
    fn of_several_occurrences_a_recent_one_is_named() {
        let mut automaton = Automaton::default();
        let tokens = [1, 2, 3, 1, 2, 4, 1, 2];
        let repeats: Vec<_> = (0..).zip(tokens).map(|(at, token)| automaton.push(token, at)).collect();
        assert_eq!(repeats[7], Some(Repeat { length: 2, end: 5 }));
    }

    #[test]
    fn a_long_run_of_one_token_takes_linear_time() {
        let mut automaton = Automaton::default();
        for position in 0..200_000 {
            let repeat = automaton.push(5, position);
            assert_eq!(repeat.map_or(0, |repeat| repeat.length), position);
        }
    }
}
