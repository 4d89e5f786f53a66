use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Provenance;

/// How a chain verifies tokens that a draft proposes: as many as fit into a step of its `decode`
/// entry point of so many rows, beside the token that is certain.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChosenSpeculation {
    /// Name of the draft: `lookup`, or that of a smaller model.
    pub draft: String,
    /// Rows of the entry point; at least 2.
    pub rows: u32,
    /// Expected time of a generated token without it, in thousandths of that with it; `None` where
    /// times are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain_thousandths: Option<u32>,
    /// How it is known which proposals are right, on which the gain rests.
    pub provenance: Provenance,
    /// Of a smaller model: usual steps by how many tokens of a proposal were right before the first
    /// wrong one: 0, 1, 2, … A session expects that until it sees otherwise. None for a lookup,
    /// each of whose proposals has evidence of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accepted_steps: Vec<u32>,
}

impl ChosenSpeculation {
    /// Name of the draft that looks up what followed the same tokens earlier in prompt and reply.
    pub const LOOKUP: &'static str = "lookup";

    /// Most numbers of [`accepted_steps`](Self::accepted_steps).
    pub const ACCEPTED_MAX: usize = 64;
}

impl fmt::Display for ChosenSpeculation {
    /// `lookup, up to 15 tokens a step, 1.18x expected (modelled)`
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
