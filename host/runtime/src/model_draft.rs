//! A smaller model as a draft.

use std::time::{Duration, Instant};

use shardwright_drafting::{
    Acceptance, DRAFTED_MAX, Draft, DraftError, PATIENCE, Proposal, READING_PATIENCE,
};
use shardwright_text::{Random, Sampler, SamplingParameters};

use crate::error::SessionError;
use crate::session::Session;

/// Drafts with a model that has the same vocabulary, on a session of its own. It is greedy where
/// the reply is, and otherwise draws its tokens as the reply's are drawn.
///
/// That the vocabularies are the same is for the caller to see to; a token that the reply's model
/// does not have is found when it is proposed.
pub struct ModelDraft {
    name: String,
    session: Session,
    sampler: Sampler,
    random: Random,
    longest: Duration,
    expected: Option<Acceptance>,
}

impl ModelDraft {
    /// A draft of that name on a session.
    ///
    /// # Errors
    ///
    /// [`SessionError::NotGenerative`].
    pub fn new(name: impl Into<String>, session: Session) -> Result<Self, SessionError> {
        if !session.chain().is_generative() {
            return Err(SessionError::NotGenerative);
        }
        let sampler = Sampler::new(SamplingParameters::greedy())?;
        Ok(ModelDraft {
            name: name.into(),
            session,
            sampler,
            random: Random::new(0),
            longest: PATIENCE,
            expected: None,
        })
    }

    /// The same, of which that much is usually right.
    #[must_use]
    pub fn expecting(mut self, expected: Acceptance) -> Self {
        self.expected = Some(expected);
        self
    }

    /// The tokens after `history`, each drawn with those before it.
    fn continued(&mut self, history: &[u32], most: usize) -> Result<Proposal, SessionError> {
        // A prompt is read while the reply goes on without it.
        let known = self.session.tokens().iter().zip(history).take_while(|(one, other)| one == other);
        let reads = history.len() - known.count() > DRAFTED_MAX + 1;
        let longest = if reads { self.longest * READING_PATIENCE } else { self.longest };
        self.session.set_deadline(Some(Instant::now() + longest));
        let is_greedy = self.sampler.parameters().is_greedy();
        let mut proposal = Proposal::default();
        let room = (self.session.chain().context() as usize + 1).saturating_sub(history.len());
        for _ in 0..most.min(room) {
            match proposal.tokens.last() {
                None => self.session.prompt(history).map(drop)?,
                Some(&last) => self.session.append(&[last]).map(drop)?,
            }
            let Some(logits) = self.session.logits() else { break };
            let text = self.session.tokens();
            if is_greedy {
                proposal.tokens.push(self.sampler.sample(logits, text)?);
            } else {
                let drawn_from = self.sampler.distribution(logits, text)?;
                proposal.tokens.push(drawn_from.draw(&mut self.random));
                proposal.drawn_from.push(drawn_from);
            }
        }
        Ok(proposal)
    }
}

impl Draft for ModelDraft {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn expected(&self) -> Option<Acceptance> {
        self.expected
    }

    fn begin(&mut self, sampling: &SamplingParameters) {
        // Parameters that a reply has begun with are valid.
        if let Ok(sampler) = Sampler::new(*sampling) {
            self.sampler = sampler;
        }
        self.random = Random::new(sampling.of_a_draft().seed);
    }

    fn propose(&mut self, history: &[u32], most: usize) -> Result<Proposal, DraftError> {
        let largest = self.sampler.parameters().largest_logits();
        self.session.set_largest_logits(largest);
        let continued = self.continued(history, most);
        continued.map_err(|error| DraftError::Failed { draft: self.name.clone(), source: Box::new(error) })
    }

    fn release(&mut self) {
        self.session.release();
    }

    /// Of its weights, and of its session unless that is released.
    fn memory_bytes(&self) -> u64 {
        let chain = self.session.chain();
        let session = if self.session.is_released() { 0 } else { chain.session_memory().bytes() };
        chain.weight_bytes().saturating_add(session)
    }
}
