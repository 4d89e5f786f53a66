//! Counts and times of a reply.

use std::time::Duration;

use serde::Serialize;
use shardwright_drafting::SpeculationStatistics;

/// Counts and times of one reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct GenerationStatistics {
    /// Tokens of the prompt, including the conversation so far.
    pub prompt_tokens: usize,
    /// Prompt tokens whose states already existed.
    pub reused_tokens: usize,
    /// Prompt tokens that were run.
    pub run_tokens: usize,
    /// Tokens of the history (prompt or reply) that were run again because their states were
    /// released or lost.
    pub recomputed_tokens: usize,
    /// Generated tokens, including a stop token.
    pub generated_tokens: usize,
    /// Generated tokens of thoughts, without the enclosing tokens.
    pub thought_tokens: usize,
    /// Generated tokens that the grammar forced, so that they were not sampled.
    pub forced_tokens: usize,
    /// Steps that ran twice, because the grammar excluded the largest logits and the others were
    /// not computed.
    pub repeated_steps: usize,
    /// Whether the reply ended before it matched its grammar, for example by the token limit.
    pub incomplete: bool,
    /// Time for pictures and sounds of the last turn before the prompt was run, 0 if there are
    /// none.
    pub parts_time: Duration,
    /// Time from the first call to the first token, plus the time for pictures and sounds.
    pub time_to_first_token: Duration,
    /// Time to run the prompt.
    pub prompt_time: Duration,
    /// Time from the first token to the last.
    pub decode_time: Duration,
    /// Steps and drafted tokens of the reply. Without drafts only the steps are counted.
    pub speculation: SpeculationStatistics,
}

impl GenerationStatistics {
    /// Returns the prompt tokens run per second, or 0 if none were run.
    pub fn prefill_tokens_per_second(&self) -> f64 {
        rate(self.run_tokens, self.prompt_time)
    }

    /// Returns the generated tokens per second after the first token, or 0 if there are none.
    pub fn decode_tokens_per_second(&self) -> f64 {
        rate(self.generated_tokens.saturating_sub(1), self.decode_time)
    }
}

fn rate(tokens: usize, time: Duration) -> f64 {
    if tokens == 0 || time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}
