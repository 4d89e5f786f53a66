//! The interface of drafts, which propose tokens.

use shardwright_text::{Distribution, SamplingParameters};
use shardwright_vocabulary::Result;

use crate::acceptance::Acceptance;

/// Maximum number of drafted tokens in a step. With the token before them that makes 16 rows.
pub const DRAFTED_MAX: usize = 15;

/// Tokens that a draft expects.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proposal {
    /// The next tokens, in order. Empty if the draft has no expectation.
    pub tokens: Vec<u32>,
    /// The distribution of each token, if the draft drew the tokens at random. Empty if the tokens
    /// are a function of the history. Then the same seed gives the same text as without a draft. If
    /// a draft states wrong distributions, the generated text changes.
    pub drawn_from: Vec<Distribution>,
    /// The strength of the proposal. Proposals with similar evidence are expected to have the same
    /// acceptance.
    pub evidence: Evidence,
}

/// Evidence for a proposal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Evidence {
    /// The draft has no measure.
    #[default]
    Unmeasured,
    /// This number of last tokens occurred earlier, and the earlier continuation is expected again.
    Repeated(usize),
    /// The text repeated an earlier passage until a token differed. The continuation after that
    /// token is expected.
    Resumed,
}

/// Proposes the tokens that may follow a text.
///
/// Drafts that are part of a checkpoint, such as heads for multi-token prediction, propose from
/// data of the last step that they keep. The trait only passes token ids.
pub trait Draft: Send {
    /// Returns the name for reports: `lookup`, or that of a model.
    fn name(&self) -> String;

    /// Begins a reply with these sampling parameters. A draft that draws its tokens at random
    /// should use them.
    fn begin(&mut self, sampling: &SamplingParameters) {
        let _ = sampling;
    }

    /// Returns the measured acceptance of the draft, if known. It is the expectation until there
    /// are observations.
    fn expected(&self) -> Option<Acceptance> {
        None
    }

    /// Proposes at most `most` tokens that may follow `history`, which is the prompt and the reply
    /// so far. It may begin differently from the history of the previous call.
    ///
    /// # Errors
    ///
    /// After an error the draft is not used again.
    fn propose(&mut self, history: &[u32], most: usize) -> Result<Proposal>;

    /// Releases memory that the draft can allocate again for the next proposal. Called while the
    /// session is idle.
    fn release(&mut self) {}

    /// Returns the memory used by the draft in bytes, not counting that of its caller.
    fn memory_bytes(&self) -> u64 {
        0
    }
}
