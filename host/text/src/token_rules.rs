//! A checkpoint's published rules for tokens that may not be chosen, regardless of their logits.

use shardwright_vocabulary::{Error, Result};

/// Most ids of one list of rules, and most sequences of `bad_words_ids`. Published files have a few
/// hundred.
pub(crate) const RULE_IDS_MAX: usize = 4096;

/// Rules that exclude tokens from the choice. Each field has the name and meaning of a field in
/// `generation_config.json`, as `transformers` applies it to one sequence.
///
/// ```
/// use shardwright_text::{Sampler, SamplingParameters, TokenRules};
///
/// # fn main() -> shardwright_vocabulary::Result<()> {
/// let rules = TokenRules { suppress_tokens: vec![1], ..TokenRules::default() };
/// let mut sampler = Sampler::new(SamplingParameters::greedy())?.with_rules(rules, 0);
/// assert_eq!(sampler.sample(&[0.5, 2.0, 1.0], &[])?, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenRules {
    /// Ids that are never chosen.
    pub suppress_tokens: Vec<u32>,
    /// Ids that are not chosen as the first token of a reply.
    pub begin_suppress_tokens: Vec<u32>,
    /// Sequences of ids that are never completed. A sequence that is a single stop id has no
    /// effect.
    pub bad_words_ids: Vec<Vec<u32>>,
    /// Length of id sequences that must not occur twice in prompt and reply. 0 allows all.
    pub no_repeat_ngram_size: usize,
    /// Stop ids are not chosen before the reply has this many tokens.
    pub min_new_tokens: usize,
    /// Stop ids are not chosen before prompt and reply together have this many tokens.
    pub min_length: usize,
    /// The id that follows a prompt of one token.
    pub forced_bos_token_id: Option<u32>,
    /// The checkpoint's stop ids, which some of the other rules refer to.
    pub stop_ids: Vec<u32>,
}

impl TokenRules {
    /// Checks whether every token may be chosen at every place.
    pub fn is_empty(&self) -> bool {
        *self == TokenRules { stop_ids: self.stop_ids.clone(), ..TokenRules::default() }
    }

    /// Returns the number of tokens that the rules can exclude at one place. `None` if that grows
    /// with the text.
    pub fn most_excluded(&self) -> Option<usize> {
        if self.no_repeat_ngram_size > 0 || self.forced_bos_token_id.is_some() {
            return None;
        }
        let ends = if self.min_new_tokens.max(self.min_length) > 0 { self.stop_ids.len() } else { 0 };
        let lists = [&self.suppress_tokens, &self.begin_suppress_tokens].map(Vec::len);
        Some(lists.iter().sum::<usize>() + self.bad_words_ids.len() + ends)
    }

    /// Sets the logits of excluded tokens to negative infinity. `history` is the prompt, with
    /// `prompt` tokens, and the reply so far.
    ///
    /// # Errors
    ///
    /// If no token is left.
    pub(crate) fn apply(&self, logits: &mut [f32], history: &[u32], prompt: usize) -> Result<()> {
        let generated = history.len().saturating_sub(prompt);
        let mut exclude = |id: u32| {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = f32::NEG_INFINITY;
            }
        };
        if generated < self.min_new_tokens || history.len() < self.min_length {
            self.stop_ids.iter().copied().for_each(&mut exclude);
        }
        self.suppress_tokens.iter().copied().for_each(&mut exclude);
        if generated == usize::from(prompt == 1 && self.forced_bos_token_id.is_some()) {
            self.begin_suppress_tokens.iter().copied().for_each(&mut exclude);
        }
        self.bad_words_ids.iter().filter_map(|word| self.completes(word, history)).for_each(&mut exclude);
        let repeated =
            self.no_repeat_ngram_size.checked_sub(1).and_then(|size| history.len().checked_sub(size));
        if let Some(start) = repeated {
            let (begun, size) = (&history[start..], self.no_repeat_ngram_size);
            let earlier = history.windows(size).filter(|earlier| earlier[..size - 1] == *begun);
            earlier.for_each(|earlier| exclude(earlier[size - 1]));
        }
        if let (Some(forced), 1) = (self.forced_bos_token_id, history.len()) {
            let suppressed = logits.get(forced as usize).is_none_or(|logit| logit.is_infinite());
            logits.fill(f32::NEG_INFINITY);
            if !suppressed {
                logits[forced as usize] = 0.0;
            }
        }
        match logits.iter().any(|logit| logit.is_finite()) {
            true => Ok(()),
            false => {
                let tokens = history.len();
                let what = "the rules of `generation_config.json` leave no token to follow";
                Err(Error::invalid(format!("{what} {tokens} tokens")).with_help(
                    "remove `suppress_tokens`, `bad_words_ids` or `no_repeat_ngram_size` from the file",
                ))
            }
        }
    }

    /// Returns the last id of a sequence if `history` ends with the ids before it.
    fn completes(&self, word: &[u32], history: &[u32]) -> Option<u32> {
        match word {
            [] => None,
            [id] => (!self.stop_ids.contains(id)).then_some(*id),
            [begun @ .., id] => history.ends_with(begun).then_some(*id),
        }
    }
}
