//! A plan that was timed alternately with the default plan.

use serde::{Deserialize, Serialize};
use shardwright_bundle::Digest;

use crate::spread::Spread;

/// The measurements of a plan. Numbers are integers, so that storing them is exact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    /// Identity of the plan's build, independent of its reasons.
    pub plan: Digest,
    /// Identity of the default plan in the comparison.
    pub baseline: Digest,
    /// Identity of the actual build, which differs if a compiler refused the plan and it was
    /// revised.
    pub built: Digest,
    /// Turns in the order of measurement.
    pub turns: Vec<Turn>,
    /// Times of the shards.
    pub parts: Vec<TimedPart>,
}

/// One turn: both plans, one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Turn {
    /// Times of the default plan.
    pub baseline: Sample,
    /// Times of the plan. Equal to `baseline` if it is the default plan.
    pub own: Sample,
}

/// Times of one plan in a turn, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// Time from a prompt to its first token.
    pub prompt: u64,
    /// Median time of a token.
    pub token: u64,
}

/// Times of a shard at an entry point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimedPart {
    /// Rows of the cost table that the planner adds up for it. A row occurs as often as the shard
    /// has the layer kind.
    pub rows: Vec<u32>,
    /// Nanoseconds of a run in each turn.
    pub nanoseconds: Vec<u64>,
}

/// The measure of a plan, with the planner's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measure {
    /// Number of tokens in a usual answer, over which the time to the first one is spread. 0 if
    /// only the time of a token counts.
    pub answer_tokens: u32,
}

impl Measure {
    /// Returns the nanoseconds of a token, including its share of the first one.
    pub fn of(self, sample: Sample) -> f64 {
        let share = match self.answer_tokens {
            0 => 0.0,
            tokens => sample.prompt as f64 / f64::from(tokens),
        };
        sample.token as f64 + share
    }
}

impl Trial {
    /// Returns the plan's time relative to the default plan, turn by turn, so that a slowdown of
    /// the machine affects both.
    pub fn ratio(&self, measure: Measure) -> Option<Spread> {
        let quotient = |turn: &Turn| measure.of(turn.own) / measure.of(turn.baseline).max(1.0);
        Spread::of(self.turns.iter().map(quotient))
    }

    /// Returns the seconds to the first token.
    pub fn prompt(&self) -> Option<Spread> {
        Spread::of(self.turns.iter().map(|turn| turn.own.prompt as f64 / 1e9))
    }

    /// Returns the seconds per token.
    pub fn token(&self) -> Option<Spread> {
        Spread::of(self.turns.iter().map(|turn| turn.own.token as f64 / 1e9))
    }

    /// Returns the nanoseconds per token of the default plan in the same turns.
    pub fn baseline_token(&self) -> Option<Spread> {
        Spread::of(self.turns.iter().map(|turn| turn.baseline.token as f64))
    }
}
