//! Chooses the next token from a row of logits.

mod candidates;
mod parameters;
mod penalty;
mod scan;
#[cfg(test)]
mod tests;
mod weights;

use std::num::NonZeroUsize;

use shardwright_vocabulary::{Error, Result};

use crate::random::Random;
use crate::token_mask::TokenMask;
use crate::token_rules::TokenRules;
use candidates::{Candidate, best, better_first, nucleus};
pub use parameters::SamplingParameters;
use penalty::penalise;
use scan::first_not_finite;
pub(crate) use scan::largest;
use weights::exponential;
pub(crate) use weights::position_at;

/// Samples tokens. The order is that of Hugging Face: repetition penalty, rules that exclude
/// tokens, mask, temperature, top-k, top-p, min-p, sampling.
///
/// Greedy sampling uses the plain maximum. Of equal logits the lower id comes first, so top-k keeps
/// exactly k tokens (Hugging Face keeps all that tie with the last). The same logits, parameters
/// and seed give the same tokens on every platform: probabilities use only operations that IEEE 754
/// defines to the last bit.
///
/// The vocabulary is never sorted as a whole. The time for sampling is proportional to the
/// vocabulary. Scratch memory of a few bytes per token is kept between calls.
#[derive(Debug, Clone)]
pub struct Sampler {
    parameters: SamplingParameters,
    rules: TokenRules,
    /// Tokens that may be chosen next, `None` for all.
    mask: Option<TokenMask>,
    /// Number of tokens in the prompt. The rest of a history is the reply.
    prompt: usize,
    pub(crate) random: Random,
    /// Logits after penalty, rules and mask, by id. Filled only if one of them may change a logit.
    changed: Vec<f32>,
    candidates: Vec<Candidate>,
    weights: Vec<f64>,
}

impl Sampler {
    /// Creates a sampler at the start of the seed's sequence.
    pub fn new(parameters: SamplingParameters) -> Result<Sampler> {
        parameters.validate()?;
        Ok(Sampler {
            parameters,
            rules: TokenRules::default(),
            mask: None,
            prompt: 0,
            random: Random::new(parameters.seed),
            changed: Vec::new(),
            candidates: Vec::new(),
            weights: Vec::new(),
        })
    }

    /// Excludes tokens by `rules` in the reply to a prompt of `prompt` tokens.
    #[must_use]
    pub fn with_rules(mut self, rules: TokenRules, prompt: usize) -> Sampler {
        (self.rules, self.prompt) = (rules, prompt);
        self
    }

    /// Sets the tokens that may be chosen from now on, `None` for all. The caller sets the mask
    /// before each choice.
    pub fn set_mask(&mut self, mask: Option<TokenMask>) {
        self.mask = mask;
    }

    /// Checks whether [`Sampler::sample`] makes the same choice if only the top
    /// [`Sampler::largest_logits`] logits are exact: the mask must allow all tokens that come into
    /// question without it.
    ///
    /// # Errors
    ///
    /// The errors of [`Sampler::sample`].
    pub fn is_decided(&mut self, logits: &[f32], history: &[u32]) -> Result<bool> {
        let Some(mask) = self.mask.take() else { return Ok(true) };
        let decided = self.with_rules_applied(logits, history, |sampler, logits| {
            if sampler.parameters.is_greedy() {
                return mask.allows(largest(logits));
            }
            let kept = (sampler.parameters.top_k as usize).min(logits.len());
            best(logits, kept, &mut sampler.candidates);
            sampler.candidates.iter().all(|candidate| mask.allows(candidate.id))
        });
        self.mask = Some(mask);
        decided
    }

    /// Returns the number of top logits that determine the choice without a mask, like
    /// [`SamplingParameters::largest_logits`], plus the largest number of tokens that rules
    /// exclude.
    pub fn largest_logits(&self) -> Option<NonZeroUsize> {
        self.parameters.largest_logits()?.checked_add(self.rules.most_excluded()?)
    }

    /// Returns the sampling parameters.
    pub fn parameters(&self) -> &SamplingParameters {
        &self.parameters
    }

    /// Samples the token that follows `history` from its row of logits, one for each id. Every
    /// logit must be finite. `history` is the prompt and the generated tokens. Only the repetition
    /// penalty and rules read it.
    pub fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<u32> {
        self.with_rules_applied(logits, history, |sampler, logits| match sampler.parameters.is_greedy() {
            true => largest(logits),
            false => sampler.draw(logits),
        })
    }

    /// Checks the logits, applies the repetition penalty and excludes tokens by rules and the mask.
    /// Then passes the result to `choose`.
    pub(crate) fn with_rules_applied<T>(
        &mut self,
        logits: &[f32],
        history: &[u32],
        choose: impl FnOnce(&mut Self, &[f32]) -> T,
    ) -> Result<T> {
        if logits.is_empty() || u32::try_from(logits.len()).is_err() {
            return Err(Error::invalid(format!("a row of {} logits has no token to choose", logits.len())));
        }
        if let Some(id) = first_not_finite(logits) {
            let help =
                "the model's arithmetic overflowed: run `shardwright verify` to find the first bad layer";
            return Err(Error::invalid(format!("the logit of token {id} is {}", logits[id])).with_help(help));
        }
        let penalty = self.parameters.repetition_penalty;
        if penalty == 1.0 && self.rules.is_empty() && self.mask_keeps_choice(logits) {
            return Ok(choose(self, logits));
        }
        let mut changed = std::mem::take(&mut self.changed);
        changed.clear();
        changed.extend_from_slice(logits);
        if penalty != 1.0 {
            penalise(&mut changed, history, penalty);
        }
        self.rules.apply(&mut changed, history, self.prompt)?;
        if let Some(mask) = &self.mask
            && !mask.apply(&mut changed)
        {
            return Err(all_excluded(history.len()));
        }
        let chosen = choose(self, &changed);
        self.changed = changed;
        Ok(chosen)
    }

    /// Checks whether the mask cannot affect the choice. For greedy choices, that saves a copy of
    /// all logits.
    fn mask_keeps_choice(&self, logits: &[f32]) -> bool {
        let greedy = self.parameters.is_greedy();
        self.mask.as_ref().is_none_or(|mask| greedy && mask.allows(largest(logits)))
    }

    /// Draws one of the tokens that may be chosen.
    fn draw(&mut self, logits: &[f32]) -> u32 {
        let _ = self.weigh(logits);
        let total: f64 = self.weights.iter().sum();
        let index = position_at(&self.weights, total * self.random.next_unit());
        // The index is always valid: the best candidate's weight is 1, which no parameter excludes.
        self.candidates.get(index).map_or(0, |candidate| candidate.id)
    }

    /// Finds the tokens that may be chosen, with positive weights proportional to their
    /// probabilities.
    pub(crate) fn weigh(&mut self, logits: &[f32]) -> impl Iterator<Item = (u32, f64)> + '_ {
        let SamplingParameters { temperature, top_k, top_p, min_p, .. } = self.parameters;
        let candidates = &mut self.candidates;
        let kept = match top_k as usize {
            0 => logits.len(),
            k => k.min(logits.len()),
        };
        // Dividing by a positive temperature keeps the order. So the best are selected first and
        // divided afterwards.
        best(logits, kept, candidates);
        let sorted = kept < logits.len();
        if sorted {
            candidates.sort_unstable_by(better_first);
        }

        let largest = candidates.iter().fold(f32::NEG_INFINITY, |largest, c| largest.max(c.logit));
        let weights = &mut self.weights;
        weights.clear();
        weights.extend(candidates.iter().map(|candidate| {
            let below = (f64::from(candidate.logit) - f64::from(largest)) / f64::from(temperature);
            exponential(below)
        }));
        let total: f64 = weights.iter().sum();

        if top_p < 1.0 {
            let kept = nucleus(candidates, weights, sorted, f64::from(top_p) * total);
            candidates.truncate(kept);
            weights.truncate(kept);
        }
        // The best candidate's weight is exactly 1, so the bound is `min_p` itself.
        let least = f64::from(min_p);
        let may_be_chosen = |weight: f64| weight >= least && weight > 0.0;
        let mut from = weights.iter();
        candidates.retain(|_| from.next().is_some_and(|&weight| may_be_chosen(weight)));
        weights.retain(|&weight| may_be_chosen(weight));
        candidates.iter().map(|candidate| candidate.id).zip(weights.iter().copied())
    }
}

/// Returns the error that neither the rules nor the mask allow a token.
fn all_excluded(tokens: usize) -> Error {
    let what = "the grammar and the rules of `generation_config.json` together leave no token to follow";
    Error::invalid(format!("{what} {tokens} tokens"))
        .with_help("change the grammar, or remove the rules that exclude its tokens from the file")
}
