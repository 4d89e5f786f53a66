//! Verifies drafted tokens, so that chosen tokens have the same distribution as without a draft.

use shardwright_vocabulary::Result;

use crate::distribution::Distribution;
use crate::sampler::{Sampler, SamplingParameters, largest};

/// The result of verifying a drafted token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenVerdict {
    /// The drafted token was chosen.
    Accepted,
    /// A different token was chosen.
    Replaced(u32),
}

impl SamplingParameters {
    /// Returns the parameters with the random sequence of a draft. It must be independent of the
    /// sequence of the sampler that verifies the draft's tokens.
    #[must_use]
    pub const fn of_a_draft(self) -> SamplingParameters {
        SamplingParameters { seed: self.seed ^ 0xd1b5_4a32_d192_ed03, ..self }
    }
}

impl Sampler {
    /// Returns the distribution from which [`Sampler::sample`] draws.
    ///
    /// # Errors
    ///
    /// The errors of [`Sampler::sample`].
    pub fn distribution(&mut self, logits: &[f32], history: &[u32]) -> Result<Distribution> {
        self.with_rules_applied(logits, history, |sampler, logits| {
            let best = || Distribution::certain(largest(logits));
            match sampler.parameters().is_greedy() {
                true => best(),
                // There is at least one token, and no parameter excludes the best one.
                false => Distribution::new(sampler.weigh(logits)).unwrap_or_else(best),
            }
        })
    }

    /// Chooses the token after `history` from its row of logits, given that a draft expected
    /// `drafted`.
    ///
    /// Without `drawn_from`, the draft is a function of the history. The token is sampled as in
    /// [`Sampler::sample`], with the same use of the random sequence, and compared. So the same
    /// seed gives the same text with or without such a draft. This is rejection sampling from a
    /// distribution that has one token: the draft is accepted with its probability p, and its
    /// replacement is drawn from the rest.
    ///
    /// With `drawn_from`, the draft drew its token from that distribution q. It is accepted with
    /// probability min(1, p / q). Its replacement is drawn in proportion to max(0, p − q)
    /// (Leviathan et al. 2023, appendix A.1). Greedy sampling only compares.
    ///
    /// # Errors
    ///
    /// The errors of [`Sampler::sample`].
    pub fn verify(
        &mut self,
        logits: &[f32],
        history: &[u32],
        drafted: u32,
        drawn_from: Option<&Distribution>,
    ) -> Result<TokenVerdict> {
        let Some(draft) = drawn_from.filter(|_| !self.parameters().is_greedy()) else {
            let chosen = self.sample(logits, history)?;
            return Ok(if chosen == drafted {
                TokenVerdict::Accepted
            } else {
                TokenVerdict::Replaced(chosen)
            });
        };
        let target = self.distribution(logits, history)?;
        let (p, q) = (target.probability(drafted), draft.probability(drafted));
        if self.random.next_unit() * q < p {
            return Ok(TokenVerdict::Accepted);
        }
        let rest =
            target.tokens().map(|(id, p)| (id, p - draft.probability(id))).filter(|(_, rest)| *rest > 0.0);
        // The rest is empty if the two distributions differ only by rounding. Then they are the
        // same.
        let replaced = Distribution::new(rest).unwrap_or(target).draw(&mut self.random);
        Ok(TokenVerdict::Replaced(replaced))
    }
}
