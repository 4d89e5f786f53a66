use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Provenance;

/// Speculative decoding of a chain. A draft proposes tokens, and one step of the `decode` entry
/// point with `rows` rows verifies them, next to the token that is already certain.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChosenSpeculation {
    /// Name of the draft: `lookup`, or the name of a smaller model.
    pub draft: String,
    /// Rows of the entry point, at least 2.
    pub rows: u32,
    /// Expected speed-up: time per generated token without speculation divided by the time with it,
    /// in thousandths. `None` if times are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain_thousandths: Option<u32>,
    /// Source of the acceptance rates on which the gain is based.
    pub provenance: Provenance,
    /// Histogram for a smaller model: entry `n` is the usual number of steps in which exactly `n`
    /// tokens of a proposal were right before the first wrong one. A session starts with this
    /// expectation and replaces it with its own observations. Empty for a lookup, whose proposals
    /// each have evidence of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accepted_steps: Vec<u32>,
}

impl ChosenSpeculation {
    /// Name of the draft that looks up earlier occurrences of the latest tokens in prompt and
    /// reply, and proposes their continuation.
    pub const LOOKUP: &'static str = "lookup";

    /// Maximum length of [`accepted_steps`](Self::accepted_steps).
    pub const ACCEPTED_MAX: usize = 64;
}

impl fmt::Display for ChosenSpeculation {
    /// Writes a summary such as `lookup, up to 15 tokens a step, 1.18x expected (modelled)`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}, up to {} tokens a step", self.draft, self.rows.saturating_sub(1))?;
        match self.gain_thousandths {
            Some(gain) => {
                let hundredths = gain / 10;
                let (whole, rest) = (hundredths / 100, hundredths % 100);
                write!(formatter, ", {whole}.{rest:02}x expected ({})", self.provenance)
            }
            None => write!(formatter, ", gain not known"),
        }
    }
}
