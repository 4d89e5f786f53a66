//! A plan that was timed in turns with the default plan.

use serde::{Deserialize, Serialize};
use shardwright_bundle::Digest;

use crate::spread::Spread;

/// What was measured of a plan. Numbers are integers, so that what is kept is what was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    /// Identity of what the plan builds, whatever its reasons say.
    pub plan: Digest,
    /// The same of the default plan that it was timed beside.
    pub baseline: Digest,
    /// The same of what was built, where a compiler refused the plan and it was revised.
    pub built: Digest,
    /// In the order in which they were measured.
    pub turns: Vec<Turn>,
    /// What the shards took.
    pub parts: Vec<TimedPart>,
}

/// One turn: both plans, one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Turn {
    /// The default plan.
    pub baseline: Sample,
    /// The plan; the same as the default plan's where it is that.
    pub own: Sample,
}

/// What one plan took in a turn, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// From a prompt to its first token.
    pub prompt: u64,
    /// A token, the median of some.
    pub token: u64,
}

/// What a shard took at an entry point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimedPart {
    /// Rows of the cost table that the planner adds up for it, each as often as it has the layer
    /// kind.
    pub rows: Vec<u32>,
    /// Nanoseconds of a run in each turn.
    pub nanoseconds: Vec<u64>,
}

/// What a plan is measured by, as the planner weighs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measure {
    /// Tokens of a usual answer, over which the time to the first one is spread; 0 if the time of
    /// a token alone counts.
    pub answer_tokens: u32,
}

impl Measure {
    /// Nanoseconds of a token, with its share of the first one.
    pub fn of(self, sample: Sample) -> f64 {
        let share = match self.answer_tokens {
            0 => 0.0,
            tokens => sample.prompt as f64 / f64::from(tokens),
        };
        sample.token as f64 + share
    }
}

impl Trial {
    /// Quotient of the plan's time and the default plan's, turn by turn, so that what slows the
    /// machine down slows both.
    pub fn ratio(&self, measure: Measure) -> Option<Spread> {
        let quotient = |turn: &Turn| measure.of(turn.own) / measure.of(turn.baseline).max(1.0);
        Spread::of(self.turns.iter().map(quotient))
    }

    /// Seconds to the first token.
    pub fn prompt(&self) -> Option<Spread> {
        Spread::of(self.turns.iter().map(|turn| turn.own.prompt as f64 / 1e9))
    }

    /// Seconds of a token.
    pub fn token(&self) -> Option<Spread> {
        Spread::of(self.turns.iter().map(|turn| turn.own.token as f64 / 1e9))
    }

    /// Nanoseconds of a token of the default plan beside it.
    pub fn baseline_token(&self) -> Option<Spread> {
        Spread::of(self.turns.iter().map(|turn| turn.baseline.token as f64))
    }
}
