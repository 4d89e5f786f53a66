//! A grammar along one reply.

use llguidance::Matcher;
use shardwright_text::TokenMask;
use shardwright_vocabulary::{Error, Result};

use crate::faults;
use crate::mask_worker::{Next, Worker, mask_of};
use crate::vocabulary::Vocabulary;

/// The position of a grammar after the tokens of a reply.
pub struct ConstraintState {
    vocabulary: Vocabulary,
    /// The parser, unless the worker has it.
    parser: Option<Box<Matcher>>,
    /// The tokens that may follow, if they are computed.
    next: Option<Next>,
    worker: Option<Worker>,
    tokens: Vec<u32>,
}

impl std::fmt::Debug for ConstraintState {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ConstraintState").field("tokens", &self.tokens).finish_non_exhaustive()
    }
}

impl ConstraintState {
    pub(crate) fn new(vocabulary: Vocabulary, parser: Matcher) -> ConstraintState {
        let (parser, tokens) = (Some(Box::new(parser)), Vec::new());
        ConstraintState { vocabulary, parser, next: None, worker: None, tokens }
    }

    /// Returns the accepted tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Starts to compute the mask of the next token on another thread. [`ConstraintState::mask`]
    /// waits for it.
    pub fn begin_mask(&mut self) {
        // A stopped parser has no next token.
        if self.next.is_some() || self.parser.as_ref().is_some_and(|parser| parser.is_stopped()) {
            return;
        }
        let Some(parser) = self.parser.take() else { return };
        if self.worker.is_none() {
            self.worker = Worker::start();
        }
        // Without a thread, the mask is computed when it is needed.
        self.parser = match &self.worker {
            Some(worker) => worker.begin(parser),
            None => Some(parser),
        };
        if self.parser.is_some() {
            self.worker = None;
        }
    }

    /// Returns the tokens that may follow. It is empty if the reply must end.
    ///
    /// # Errors
    ///
    /// If no token can follow although the reply is incomplete, or if the parser exceeds its
    /// limits.
    pub fn mask(&mut self) -> Result<TokenMask> {
        if self.must_stop()? {
            return Ok(TokenMask::none(self.vocabulary.tokens()));
        }
        let tokens = self.vocabulary.tokens();
        let next = match self.next.take() {
            Some(next) => next,
            None => mask_of(self.parser()?),
        };
        match &*self.next.insert(next) {
            Next::Mask(words) => Ok(TokenMask::from_words(words.clone())),
            Next::End => Ok(TokenMask::none(tokens)),
            Next::Stuck => Err(stuck(self.tokens.len())),
            Next::Failed(message) => Err(faults::of_parser(message)),
        }
    }

    /// Appends a token.
    ///
    /// # Errors
    ///
    /// If the grammar does not allow the token, or if the parser exceeds its limits.
    pub fn accept(&mut self, id: u32) -> Result<()> {
        if id as usize >= self.vocabulary.tokens() {
            return Err(not_allowed(id));
        }
        let consumed = self.parser()?.try_consume_tokens(&[id]);
        match consumed.map_err(|error| faults::of_parser(&format!("{error:#}")))? {
            0 => Err(not_allowed(id)),
            _ => {
                self.next = None;
                self.tokens.push(id);
                Ok(())
            }
        }
    }

    /// Returns how many leading tokens of `ids` the grammar allows next.
    ///
    /// # Errors
    ///
    /// If the parser exceeds its limits.
    pub fn allowed(&mut self, ids: &[u32]) -> Result<usize> {
        if self.must_stop()? {
            return Ok(0);
        }
        // An id beyond the vocabulary would end the parser.
        let end = self.vocabulary.tokens();
        let known = ids.iter().take_while(|id| (**id as usize) < end).count();
        let valid = self.parser()?.validate_tokens(&ids[..known]);
        valid.map_err(|error| faults::of_parser(&format!("{error:#}")))
    }

    /// Removes the last `count` tokens.
    ///
    /// # Errors
    ///
    /// If there are fewer tokens, or if the parser has failed before.
    pub fn rollback(&mut self, count: usize) -> Result<()> {
        let Some(left) = self.tokens.len().checked_sub(count) else {
            let what = format!("cannot remove {count} tokens of {}", self.tokens.len());
            return Err(Error::argument(what).with_help("remove at most the accepted tokens"));
        };
        let removed = self.parser()?.rollback(count);
        removed.map_err(|error| faults::of_parser(&format!("{error:#}")))?;
        self.next = None;
        self.tokens.truncate(left);
        Ok(())
    }

    /// Returns the tokens that must follow, spelled as the tokenizer would.
    ///
    /// # Errors
    ///
    /// If the parser exceeds its limits.
    pub fn forced(&mut self) -> Result<Vec<u32>> {
        if self.must_stop()? {
            return Ok(Vec::new());
        }
        let parser = self.parser()?;
        let forced = parser.compute_ff_tokens();
        match parser.get_error() {
            None => Ok(forced),
            Some(message) => Err(faults::of_parser(&message)),
        }
    }

    /// Checks whether the tokens so far are a complete text of the grammar, so that the reply may
    /// end.
    ///
    /// # Errors
    ///
    /// If the parser exceeds its limits.
    pub fn is_complete(&mut self) -> Result<bool> {
        if self.must_stop()? {
            return Ok(true);
        }
        self.parser()?.is_accepting().map_err(|error| faults::of_parser(&format!("{error:#}")))
    }

    /// Checks whether the text is complete and no token can follow.
    ///
    /// # Errors
    ///
    /// If the thread that computes masks has ended.
    pub fn must_stop(&mut self) -> Result<bool> {
        let parser = self.parser()?;
        let stopped = parser.is_stopped() && parser.stop_reason().is_ok();
        Ok(stopped || matches!(self.next, Some(Next::End)))
    }

    /// Checks whether a token is special, so that only a rule that names it allows it.
    pub fn is_special(&self, id: u32) -> bool {
        self.vocabulary.is_special(id)
    }

    /// Returns the parser, waiting for the worker if that has it.
    fn parser(&mut self) -> Result<&mut Matcher> {
        if self.parser.is_none() {
            let done = self.worker.as_ref().map(Worker::end);
            let (parser, next) = done.unwrap_or_else(|| Err(lost()))?;
            (self.parser, self.next) = (Some(parser), Some(next));
        }
        self.parser.as_deref_mut().ok_or_else(lost)
    }
}

fn lost() -> Error {
    faults::of_library("cannot continue the grammar", "its parser is lost")
}

/// Returns the error that the tokens of the vocabulary cannot continue the text.
fn stuck(tokens: usize) -> Error {
    Error::unsupported(format!("no token of the model can continue the grammar after {tokens} tokens"))
        .with_help("use a grammar whose texts the model's tokens can spell")
}

fn not_allowed(id: u32) -> Error {
    Error::argument(format!("the grammar does not allow token {id} next"))
        .with_help("choose a token of the mask")
}
