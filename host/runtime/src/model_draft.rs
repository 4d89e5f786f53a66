//! Speculative decoding with a smaller model as the draft.

use std::time::{Duration, Instant};

use shardwright_drafting::{Acceptance, DRAFTED_MAX, Draft, PATIENCE, Proposal, READING_PATIENCE};
use shardwright_text::{Random, Sampler, SamplingParameters};
use shardwright_vocabulary::{Error, ErrorKind};

use crate::error::{SessionError, not_generative};
use crate::session::Session;

/// Drafts with a model of the same vocabulary, on its own session. It is greedy if the reply is.
/// Otherwise it samples its tokens with the reply's parameters.
///
/// The caller must ensure that the vocabularies are equal. A token that the reply's model lacks is
/// detected when it is proposed.
pub struct ModelDraft {
    name: String,
    session: Session,
    sampler: Sampler,
    random: Random,
    longest: Duration,
    expected: Option<Acceptance>,
}

impl ModelDraft {
    /// Creates a draft with this name on a session.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`ErrorKind::Unsupported`] if the session's model does not
    /// generate.
    pub fn new(name: impl Into<String>, session: Session) -> Result<Self, SessionError> {
        if !session.chain().is_generative() {
            return Err(not_generative());
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

    /// Sets the expected acceptance of the draft.
    #[must_use]
    pub fn expecting(mut self, expected: Acceptance) -> Self {
        self.expected = Some(expected);
        self
    }

    /// Proposes the tokens after `history`, each drawn after the previous ones.
    fn continued(&mut self, history: &[u32], most: usize) -> Result<Proposal, SessionError> {
        // The reply continues without the draft while the draft reads a prompt.
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
        // The parameters of a started reply are valid.
        if let Ok(sampler) = Sampler::new(*sampling) {
            self.sampler = sampler;
        }
        self.random = Random::new(sampling.of_a_draft().seed);
    }

    fn propose(&mut self, history: &[u32], most: usize) -> Result<Proposal, Error> {
        let largest = self.sampler.parameters().largest_logits();
        self.session.set_largest_logits(largest);
        let continued = self.continued(history, most);
        continued.map_err(|error| {
            let help = "continue without the draft: the text is the same, in more steps";
            Error::caused_by(ErrorKind::Shim, error, Some(help.to_owned()))
        })
    }

    fn release(&mut self) {
        self.session.release();
    }

    /// Returns the bytes of the draft's weights, and of its session unless that is released.
    fn memory_bytes(&self) -> u64 {
        let chain = self.session.chain();
        let session = if self.session.is_released() { 0 } else { chain.session_memory().bytes() };
        chain.weight_bytes().saturating_add(session)
    }
}
