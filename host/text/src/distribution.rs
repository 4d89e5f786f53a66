//! Probabilities of the tokens that may be chosen.

use crate::random::Random;
use crate::sampler::position_at;

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

    /// Of one token.
    pub(crate) fn certain(id: u32) -> Self {
        Distribution { ids: vec![id], weights: vec![1.0], total: 1.0 }
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
