//! Probabilities of the tokens that may be chosen.

use crate::random::Random;
use crate::sampler::position_at;

/// The tokens that may be chosen after a text, each with its probability. All others have none.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    /// The tokens, in ascending order.
    ids: Vec<u32>,
    /// A positive weight for each id.
    weights: Vec<f64>,
    /// The sum of the weights.
    total: f64,
}

impl Distribution {
    /// Returns a distribution over tokens, given in any order, with weights proportional to their
    /// probabilities. `None` if a token occurs twice, if a weight is not a positive number, or
    /// without tokens.
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

    /// Returns the distribution with a single token.
    pub(crate) fn certain(id: u32) -> Self {
        Distribution { ids: vec![id], weights: vec![1.0], total: 1.0 }
    }

    /// Returns the probability of a token.
    pub fn probability(&self, id: u32) -> f64 {
        self.ids.binary_search(&id).map_or(0.0, |index| self.weights[index] / self.total)
    }

    /// Iterates over the tokens and their probabilities, in ascending order of ids.
    pub fn tokens(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        self.ids.iter().copied().zip(self.weights.iter().map(|weight| weight / self.total))
    }

    /// Draws one of the tokens according to their probabilities.
    pub fn draw(&self, random: &mut Random) -> u32 {
        let index = position_at(&self.weights, self.total * random.next_unit());
        self.ids.get(index).copied().unwrap_or(0)
    }
}
