//! Parameters for sampling, with their ranges.

use std::num::NonZeroUsize;

use shardwright_vocabulary::{Error, Result};

/// Parameters for sampling the next token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingParameters {
    /// Whether to sample at random. Otherwise the largest logit wins, and only `repetition_penalty`
    /// has an effect.
    pub do_sample: bool,
    /// Divisor of the logits. 0 means greedy.
    pub temperature: f32,
    /// Keeps this many of the top logits. 0 keeps all.
    pub top_k: u32,
    /// Keeps the likeliest of the remaining tokens, until their probabilities together reach this
    /// value. 1 keeps all.
    pub top_p: f32,
    /// Drops tokens less likely than this fraction of the likeliest one's probability. 0 keeps all.
    pub min_p: f32,
    /// Logits of tokens already in the text are divided by this number if positive, and multiplied
    /// by it if negative. 1 has no effect.
    pub repetition_penalty: f32,
    /// Seed of the random sequence.
    pub seed: u64,
}

impl Default for SamplingParameters {
    fn default() -> Self {
        SamplingParameters::greedy()
    }
}

impl SamplingParameters {
    /// Returns parameters that always choose the largest logit.
    pub const fn greedy() -> SamplingParameters {
        SamplingParameters {
            do_sample: false,
            temperature: 1.0,
            top_k: 50,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
        }
    }

    /// Returns parameters that sample from the whole distribution at `temperature`. The other
    /// fields can narrow it.
    pub const fn at_temperature(temperature: f32, seed: u64) -> SamplingParameters {
        SamplingParameters { do_sample: true, temperature, top_k: 0, seed, ..SamplingParameters::greedy() }
    }

    /// Checks that every field is in range.
    pub fn validate(&self) -> Result<()> {
        match self.first_fault() {
            None => Ok(()),
            Some((name, expected, value)) => {
                let value = f64::from(value);
                Err(Error::argument(format!("`{name}` should be {expected}, but is {value}"))
                    .with_help(format!("set `{name}` to {expected}")))
            }
        }
    }

    /// Returns the first field out of range: its name, its allowed range, its value.
    pub(crate) fn first_fault(&self) -> Option<(&'static str, &'static str, f32)> {
        let temperature = self.temperature;
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Some(("temperature", "a number from 0 up", temperature));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Some(("top_p", "a number above 0 and at most 1", self.top_p));
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return Some(("min_p", "a number from 0 to 1", self.min_p));
        }
        let penalty = self.repetition_penalty;
        if !(penalty.is_finite() && penalty > 0.0) {
            return Some(("repetition_penalty", "a number above 0", penalty));
        }
        None
    }

    /// Checks whether the largest logit is always chosen.
    pub fn is_greedy(&self) -> bool {
        !self.do_sample || self.temperature == 0.0
    }

    /// Returns the number of top logits that determine the choice, or `None` if all of them do. Of
    /// equal logits, the one with the lower id comes first. Lowering any other logits, down to the
    /// smallest finite number, gives the same tokens.
    pub fn largest_logits(&self) -> Option<NonZeroUsize> {
        // A penalised logit may fall behind any number of others.
        if self.repetition_penalty != 1.0 {
            return None;
        }
        NonZeroUsize::new(if self.is_greedy() { 1 } else { self.top_k as usize })
    }
}
