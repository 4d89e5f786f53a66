//! The grammar of a reply: which tokens may be chosen, which must follow, and whether the reply may
//! end. Thoughts before the answer are free.

use shardwright_constraint::ConstraintState;
use shardwright_text::{StopRules, ThoughtTokens, TokenMask};
use shardwright_vocabulary::Result;

use super::GenerationOptions;

/// Steps with all logits after the largest logits alone did not decide a token, at first and at
/// most. Such a step runs twice, so frequent ones would cost more than the largest logits save.
const WAITS: (u32, u32) = (4, 128);

/// Steps in a row that the largest logits decide until the first wait applies again.
const WINS: u32 = 16;

/// The grammar along one reply, if it has one.
pub(super) struct Guide(Option<Followed>);

struct Followed {
    state: ConstraintState,
    stop: StopRules,
    /// The tokens around a thought, until the answer begins.
    thoughts: Option<ThoughtTokens>,
    thinking: bool,
    /// Steps with all logits that are left.
    wait: u32,
    next_wait: u32,
    wins: u32,
}

impl Guide {
    /// Starts the grammar of a reply to `prompt`, which may end within a thought.
    pub(super) fn new(options: &GenerationOptions, prompt: &[u32]) -> Result<Guide> {
        let Some(constraint) = &options.constraint else { return Ok(Guide(None)) };
        Ok(Guide(Some(Followed {
            state: constraint.start()?,
            stop: options.stop.clone(),
            thoughts: options.thoughts,
            thinking: options.thoughts.is_some_and(|tokens| tokens.is_open_in(prompt)),
            wait: 0,
            next_wait: WAITS.0,
            wins: 0,
        })))
    }

    /// Ends the use of the grammar.
    pub(super) fn release(&mut self) {
        self.0 = None;
    }

    /// Checks whether the reply has a grammar.
    pub(super) fn is_active(&self) -> bool {
        self.0.is_some()
    }

    /// Checks whether the next step should compute only the largest logits, because they will
    /// probably decide.
    pub(super) fn trusts_largest(&self) -> bool {
        self.0.as_ref().is_none_or(|followed| followed.wait == 0)
    }

    /// Records whether the largest logits decided the tokens of a step. `None` if it had all
    /// logits.
    pub(super) fn stepped(&mut self, decided: Option<bool>) {
        let Some(followed) = &mut self.0 else { return };
        match decided {
            None => followed.wait = followed.wait.saturating_sub(1),
            Some(true) => {
                followed.wins += 1;
                if followed.wins >= WINS {
                    followed.next_wait = WAITS.0;
                }
            }
            Some(false) => {
                followed.wait = followed.next_wait;
                followed.next_wait = (2 * followed.next_wait).min(WAITS.1);
                followed.wins = 0;
            }
        }
    }

    /// Starts to compute the next mask on another thread.
    pub(super) fn begin_mask(&mut self) {
        if let Some(followed) = self.0.as_mut().filter(|followed| !followed.thinking) {
            followed.state.begin_mask();
        }
    }

    /// Returns the tokens that must follow, at most `most`.
    pub(super) fn forced(&mut self, most: usize) -> Result<Vec<u32>> {
        let Some(followed) = &mut self.0 else { return Ok(Vec::new()) };
        if followed.thoughts.is_some() {
            return Ok(Vec::new());
        }
        let mut forced = followed.state.forced()?;
        forced.truncate(most);
        Ok(forced)
    }

    /// Returns how many leading tokens of `drafted` the grammar allows. A thought allows all.
    pub(super) fn allowed(&mut self, drafted: &[u32]) -> Result<usize> {
        let Some(followed) = &mut self.0 else { return Ok(drafted.len()) };
        let opens = |tokens: ThoughtTokens| drafted.first() == Some(&tokens.open);
        if followed.thinking || followed.thoughts.is_some_and(opens) {
            return Ok(drafted.len());
        }
        followed.state.allowed(drafted)
    }

    /// Returns the tokens that may be chosen next, `None` for all. A thought may begin before the
    /// answer if its token is the likeliest of all: among the few tokens that can begin an answer,
    /// it would be frequent even for models that should not think.
    pub(super) fn mask(&mut self, logits: &[f32]) -> Result<Option<TokenMask>> {
        let Some(followed) = self.0.as_mut().filter(|followed| !followed.thinking) else {
            return Ok(None);
        };
        let mut mask = followed.state.mask()?;
        let complete = followed.state.is_complete()?;
        for &id in followed.stop.ids() {
            if complete {
                mask.allow(id);
            } else if !followed.state.is_special(id) {
                mask.forbid(id);
            }
        }
        if let Some(tokens) = followed.thoughts.filter(|tokens| is_largest(logits, tokens.open)) {
            mask.allow(tokens.open);
        }
        Ok(Some(mask))
    }

    /// Follows a chosen token.
    pub(super) fn accept(&mut self, id: u32) -> Result<()> {
        let Some(followed) = &mut self.0 else { return Ok(()) };
        if followed.thinking {
            if followed.thoughts.is_some_and(|tokens| id == tokens.close) {
                followed.thinking = false;
                // The answer follows.
                followed.thoughts = None;
            }
            return Ok(());
        }
        if followed.thoughts.is_some_and(|tokens| id == tokens.open) {
            followed.thinking = true;
            return Ok(());
        }
        // A stop token ends the reply unless a rule of the grammar names it.
        if followed.stop.is_stop_id(id) && followed.state.allowed(&[id])? == 0 {
            return Ok(());
        }
        followed.thoughts = None;
        followed.state.accept(id)
    }

    /// Checks whether the reply is complete and no token can follow.
    pub(super) fn must_stop(&mut self) -> Result<bool> {
        match &mut self.0 {
            Some(followed) if !followed.thinking => followed.state.must_stop(),
            _ => Ok(false),
        }
    }

    /// Checks whether the reply may end here. A reply without a grammar always may.
    pub(super) fn is_complete(&mut self) -> bool {
        self.0.as_mut().is_none_or(|followed| {
            // A parser that exceeded its limits did not complete anything.
            !followed.thinking && followed.state.is_complete().unwrap_or(false)
        })
    }
}

fn is_largest(logits: &[f32], id: u32) -> bool {
    logits.get(id as usize).is_some_and(|logit| logits.iter().all(|other| other <= logit))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use shardwright_constraint::{Constraint, Grammar, Vocabulary};
    use shardwright_text::Tokenizer;

    use super::*;

    fn tokenizer() -> Tokenizer {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
        Tokenizer::from_file(fixtures.join("gemma4_text/tokenizer.json")).unwrap()
    }

    fn guide(tokenizer: &Tokenizer, pattern: &str, thoughts: Option<ThoughtTokens>, stop: &[u32]) -> Guide {
        let vocabulary = Vocabulary::new(tokenizer).unwrap();
        let options = GenerationOptions {
            thoughts,
            stop: StopRules::new(stop.iter().copied()),
            constraint: Some(Constraint::new(&vocabulary, &Grammar::regex(pattern)).unwrap()),
            ..GenerationOptions::default()
        };
        Guide::new(&options, &[]).unwrap()
    }

    #[test]
    fn one_thought_may_begin_before_the_answer_if_its_token_is_the_likeliest() {
        let tokenizer = tokenizer();
        let thoughts = ThoughtTokens::of(&tokenizer).unwrap();
        let ThoughtTokens { open, close, .. } = thoughts;
        let digit = tokenizer.encode("7", false).unwrap()[0];
        let mut guide = guide(&tokenizer, "7777", Some(thoughts), &[]);
        let mut logits = vec![0.0; tokenizer.vocabulary_size()];
        logits[digit as usize] = 1.0;
        assert!(guide.forced(9).unwrap().is_empty());
        let mask = guide.mask(&logits).unwrap().unwrap();
        assert!(mask.allows(digit) && !mask.allows(open));
        logits[open as usize] = 2.0;
        assert!(guide.mask(&logits).unwrap().unwrap().allows(open));
        assert_eq!(guide.allowed(&[open, 40, 41]).unwrap(), 3);
        for id in [open, 40, 41] {
            guide.accept(id).unwrap();
            assert!(guide.mask(&logits).unwrap().is_none() && !guide.is_complete());
            assert!(guide.forced(9).unwrap().is_empty() && !guide.must_stop().unwrap());
        }
        guide.accept(close).unwrap();
        assert!(!guide.mask(&logits).unwrap().unwrap().allows(open));
        let forced = guide.forced(9).unwrap();
        assert_eq!(tokenizer.decode(&forced, true).unwrap(), "7777");
        assert_eq!(guide.forced(1).unwrap(), forced[..1]);
        forced.iter().for_each(|id| guide.accept(*id).unwrap());
        assert!(guide.is_complete() && guide.must_stop().unwrap());
    }

    #[test]
    fn stop_tokens_are_allowed_after_complete_texts_only() {
        let tokenizer = tokenizer();
        let stop = tokenizer.token_to_id("<turn|>").unwrap();
        let seven = tokenizer.encode("7", false).unwrap()[0];
        let mut guide = guide(&tokenizer, "77+", None, &[stop]);
        let allows = |guide: &mut Guide| guide.mask(&[]).unwrap().unwrap().allows(stop);
        assert!(!allows(&mut guide));
        guide.accept(seven).unwrap();
        assert!(!allows(&mut guide) && !guide.is_complete());
        guide.accept(seven).unwrap();
        assert!(allows(&mut guide) && guide.is_complete());
        guide.accept(stop).unwrap();
        assert!(guide.is_complete() && !guide.must_stop().unwrap());
    }

    #[test]
    fn frequent_misses_of_the_largest_logits_are_avoided() {
        let mut guide = guide(&tokenizer(), "7+", None, &[]);
        let mut misses = 0;
        for _ in 0..1000 {
            let trusts = guide.trusts_largest();
            misses += usize::from(trusts);
            guide.stepped(trusts.then_some(false));
        }
        assert!(misses < 20, "{misses}");
        // After many decided steps, a miss costs few steps again.
        while !guide.trusts_largest() {
            guide.stepped(None);
        }
        (0..WINS).for_each(|_| guide.stepped(Some(true)));
        guide.stepped(Some(false));
        (0..WAITS.0).for_each(|_| guide.stepped(None));
        assert!(guide.trusts_largest());
    }
}
