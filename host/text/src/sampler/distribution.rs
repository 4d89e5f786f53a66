//! Probabilities of the tokens that may be chosen.

use super::{Sampler, SamplingParameters, position_at};
use crate::error::Result;
use crate::random::Random;

/// The tokens that may be chosen after a text, each with its probability; all others have none.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    /// Ascending.
    ids: Vec<u32>,
    /// One for each id, positive.
    weights: Vec<f64>,
    /// Of the weights.
    total: f64,
}

impl Distribution {
    /// Of these tokens with weights in proportion to their probabilities, in any order; `None` if
    /// a token occurs twice, a weight is not a positive number, or there is no token.
    pub fn new(tokens: impl IntoIterator<Item = (u32, f64)>) -> Option<Self> {
        let mut tokens: Vec<(u32, f64)> = tokens.into_iter().collect();
        tokens.sort_unstable_by_key(|(id, _)| *id);
        let total: f64 = tokens.iter().map(|(_, weight)| weight).sum();
        let sound = tokens.iter().all(|(_, weight)| *weight > 0.0) && total.is_finite() && total > 0.0;
        if !sound || tokens.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return None;
        }
        let (ids, weights) = tokens.into_iter().unzip();
        Some(Distribution { ids, weights, total })
    }

    /// The probability of a token.
    pub fn probability(&self, id: u32) -> f64 {
        self.ids.binary_search(&id).map_or(0.0, |index| self.weights[index] / self.total)
    }

    /// Its tokens with their probabilities, ids ascending.
    pub fn tokens(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        self.ids.iter().copied().zip(self.weights.iter().map(|weight| weight / self.total))
    }

    /// One of the tokens, drawn by their probabilities.
    pub fn draw(&self, random: &mut Random) -> u32 {
        let index = position_at(&self.weights, self.total * random.next_unit());
        self.ids.get(index).copied().unwrap_or(0)
    }
}

impl Sampler {
    /// What [`Sampler::sample`] draws from.
    ///
    /// # Errors
    ///
    /// Those of [`Sampler::sample`].
    pub fn distribution(&mut self, logits: &[f32], history: &[u32]) -> Result<Distribution> {
        self.with_penalty(logits, history, |sampler, logits| {
            if sampler.parameters.is_greedy() {
                return Distribution { ids: vec![super::largest(logits)], weights: vec![1.0], total: 1.0 };
            }
            sampler.weigh(logits);
            let candidates = std::mem::take(&mut sampler.candidates);
            let mut tokens: Vec<(u32, f64)> =
                candidates.iter().map(|candidate| candidate.id).zip(sampler.weights.drain(..)).collect();
            sampler.candidates = candidates;
            tokens.sort_unstable_by_key(|(id, _)| *id);
            let total = tokens.iter().map(|(_, weight)| weight).sum();
            let (ids, weights) = tokens.into_iter().unzip();
            Distribution { ids, weights, total }
        })
    }
}

impl SamplingParameters {
    /// The same with the random sequence of a draft, which must be independent of that of the
    /// sampler that verifies its tokens.
    #[must_use]
    pub const fn of_a_draft(self) -> SamplingParameters {
        SamplingParameters { seed: self.seed ^ 0xd1b5_4a32_d192_ed03, ..self }
    }
}
