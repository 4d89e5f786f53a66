//! What proposes tokens.

use shardwright_text::{Distribution, SamplingParameters};

use crate::acceptance::Acceptance;
use crate::error::DraftError;

/// Most tokens that are drafted for a step: with the token before them that makes 16 rows.
pub const DRAFTED_MAX: usize = 15;

/// Tokens that a draft expects.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proposal {
    /// The next tokens, in order; none where the draft expects nothing.
    pub tokens: Vec<u32>,
    /// The distribution that each of them was drawn from, where the draft drew them at random.
    /// Empty where the tokens are a function of the history: then the same seed gives the same text
    /// as without a draft. A draft that states others than it drew from changes what is generated.
    pub drawn_from: Vec<Distribution>,
    /// How much speaks for the proposal; proposals with like evidence are expected to be accepted
    /// alike.
    pub evidence: Evidence,
}

/// What speaks for a proposal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Evidence {
    /// The draft has no measure.
    #[default]
    Unmeasured,
    /// The last tokens, so many, stood before, and are expected to go on as they did.
    Repeated(usize),
    /// The text repeated an earlier passage until a token differed, and is expected to go on with
    /// what stood after that token.
    Resumed,
}

/// Proposes the tokens that may follow a text.
///
/// Implementations that a checkpoint brings, as heads for multi-token prediction, propose from
/// what they keep of the last step; the trait sees the ids alone.
pub trait Draft: Send {
    /// Its name in reports: `lookup`, or that of a model.
    fn name(&self) -> String;

    /// A reply begins that is sampled so. A draft that draws its tokens draws them likewise.
    fn begin(&mut self, sampling: &SamplingParameters) {
        let _ = sampling;
    }

    /// How much of what it proposes is usually right, where that was measured: it is expected until
    /// something else is seen.
    fn expected(&self) -> Option<Acceptance> {
        None
    }

    /// At most `most` tokens that may follow `history`, which is everything before: prompt and
    /// reply. It need not begin as that of the call before.
    ///
    /// # Errors
    ///
    /// After an error it is not asked again.
    fn propose(&mut self, history: &[u32], most: usize) -> Result<Proposal, DraftError>;

    /// Gives back the memory that it can take again when it is next asked, while the session is
    /// idle.
    fn release(&mut self) {}

    /// Bytes of memory that it takes now, beside those of its caller.
    fn memory_bytes(&self) -> u64 {
        0
    }
}
