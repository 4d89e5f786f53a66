//! Replies in progress, with and without a borrow of their session.

use shardwright_runtime::{DoneReason, Generation, GenerationEvent, GenerationStatistics, TokenLikelihood};
use shardwright_text::ToolCall;
use shardwright_vocabulary::Watch;

use super::Session;
use crate::{ChatPart, Error, Result, Role, Turn, TurnPart};

/// What a reply continues, for [`Session::begin`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ReplyRequest {
    /// A new user turn with these parts, as in [`Session::chat_parts`].
    Parts(Vec<ChatPart>),
    /// A conversation that replaces the turns so far, as in [`Session::reply_to`].
    Turns(Vec<Turn>),
    /// The turns so far, as in [`Session::answer`].
    Answer,
    /// A plain text, as in [`Session::complete`].
    Text(String),
    /// Token ids, as in [`Session::complete_ids`].
    Tokens(Vec<u32>),
}

/// A reply in progress: an iterator over its events. Dropping it ends the reply.
pub struct Reply<'s> {
    session: &'s mut Session,
    detached: DetachedReply,
}

/// A reply in progress that does not borrow its session, for bindings to other languages. Pass the
/// session that began the reply to every call, and call [`end`](Self::end) before that session does
/// anything else.
///
/// Without [`end`](Self::end), the turn of the user stays in the conversation and the turn of the
/// model is missing.
#[must_use]
pub struct DetachedReply {
    generation: Generation,
    /// The reply so far, in order.
    parts: Vec<TurnPart>,
    thoughts: String,
    calls: Vec<ToolCall>,
    /// In a conversation: what happens if the reply fails.
    chat: Option<OnFailure>,
    ended: Ended,
    statistics: Option<GenerationStatistics>,
}

/// What happens to the turns of a conversation if the reply to them fails, or is stopped before it
/// has any text or call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnFailure {
    /// The last turn is removed, and the rows of its pictures and sounds beyond the first `rows`.
    RemovesTurn { rows: usize },
    /// All turns stay.
    KeepsTurns,
}

/// The state of a reply.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// Stopped early.
    Early,
    /// Ended by itself, with or without text.
    Done,
    Failed,
}

impl Session {
    /// Starts a reply that does not borrow the session. `watch` receives the progress until the
    /// reply begins, and can cancel opening a tower.
    ///
    /// ```no_run
    /// use shardwright::{GenerationEvent, Model, ReplyRequest};
    ///
    /// let mut session = Model::open("bundle")?.session()?;
    /// let mut reply = session.begin(ReplyRequest::Parts(vec!["Hello".into()]), &mut ())?;
    /// while let Some(event) = reply.next(&mut session) {
    ///     if let GenerationEvent::TextDelta { text } = event? {
    ///         print!("{text}");
    ///     }
    /// }
    /// reply.end(&mut session);
    /// # Ok::<(), shardwright::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of the function that the request names.
    pub fn begin(&mut self, request: ReplyRequest, watch: &mut dyn Watch) -> Result<DetachedReply> {
        match request {
            ReplyRequest::Parts(parts) => self.begin_parts(parts, watch),
            ReplyRequest::Turns(turns) => self.begin_turns(turns, watch),
            ReplyRequest::Answer => self.begin_answer(),
            ReplyRequest::Text(text) => self.begin_text(&text),
            ReplyRequest::Tokens(ids) => self.begin_ids(ids),
        }
    }
}

impl<'s> Reply<'s> {
    pub(super) fn new(session: &'s mut Session, detached: DetachedReply) -> Self {
        Reply { session, detached }
    }
}

impl Reply<'_> {
    /// Runs the reply to its end and returns the whole answer, without thoughts.
    pub fn text(mut self) -> Result<String> {
        for event in self.by_ref() {
            event?;
        }
        Ok(self.detached.said())
    }

    /// Returns the complete calls so far.
    pub fn calls(&self) -> &[ToolCall] {
        self.detached.calls()
    }

    /// Returns the thoughts so far.
    pub fn thoughts(&self) -> &str {
        self.detached.thoughts()
    }

    /// Frees the memory of the session between two events, as [`Session::release`] does. The next
    /// event allocates it again.
    pub fn release(&mut self) {
        self.session.release();
    }

    /// Returns the likelihoods of the tokens that were chosen since the last call, if
    /// [`GenerationOptions::likelihoods`] requests them. There is one for each
    /// [`GenerationEvent::Token`], in the same order, possibly before that event.
    ///
    /// [`GenerationOptions::likelihoods`]: crate::GenerationOptions::likelihoods
    pub fn take_likelihoods(&mut self) -> Vec<TokenLikelihood> {
        self.detached.take_likelihoods()
    }

    /// Returns counts and times so far.
    pub fn statistics(&self) -> GenerationStatistics {
        self.detached.statistics()
    }
}

impl Iterator for Reply<'_> {
    type Item = Result<GenerationEvent>;

    fn next(&mut self) -> Option<Self::Item> {
        self.detached.next(self.session)
    }
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        self.detached.finish(self.session);
    }
}

impl DetachedReply {
    pub(super) fn new(generation: Generation, chat: Option<OnFailure>) -> Self {
        let (parts, thoughts, calls) = (Vec::new(), String::new(), Vec::new());
        DetachedReply { generation, parts, thoughts, calls, chat, ended: Ended::Early, statistics: None }
    }

    /// Returns the next event, or `None` after [`GenerationEvent::Done`] and after an error. Runs
    /// `session`, which began the reply, as far as needed.
    pub fn next(&mut self, session: &mut Session) -> Option<Result<GenerationEvent>> {
        let event = self.generation.next(&mut session.inner)?;
        match &event {
            Ok(GenerationEvent::TextDelta { text }) => self.say(text),
            Ok(GenerationEvent::ToolCall { call, .. }) => {
                self.calls.push(call.clone());
                self.parts.push(TurnPart::ToolCall(call.clone()));
            }
            Ok(GenerationEvent::ThoughtDelta { text }) => self.thoughts.push_str(text),
            Ok(GenerationEvent::Done { statistics, reason }) => {
                self.statistics = Some(*statistics);
                if !matches!(reason, DoneReason::Cancelled | DoneReason::Deadline) {
                    self.ended = Ended::Done;
                }
            }
            Ok(
                GenerationEvent::Token { .. }
                | GenerationEvent::ToolCallBegin { .. }
                | GenerationEvent::ToolCallArguments { .. }
                | GenerationEvent::ToolCallDropped { .. }
                | GenerationEvent::DraftDropped { .. },
            ) => {}
            Err(_) => self.ended = Ended::Failed,
        }
        Some(event.map_err(Error::from))
    }

    /// Ends the reply as dropping a [`Reply`] does: the reply so far becomes a turn of the
    /// conversation of `session`. If the reply failed, or was stopped before it had any text, the
    /// turn of the user is removed.
    pub fn end(mut self, session: &mut Session) {
        self.finish(session);
    }

    fn finish(&mut self, session: &mut Session) {
        let Some(failure) = self.chat else { return };
        let is_empty = self.parts.is_empty();
        if self.ended == Ended::Failed || (self.ended == Ended::Early && is_empty) {
            session.undo(failure);
            return;
        }
        let mut parts = std::mem::take(&mut self.parts);
        if !self.thoughts.is_empty() {
            parts.insert(0, TurnPart::Thought(std::mem::take(&mut self.thoughts)));
        }
        session.push_turn(Turn { role: Role::Assistant, parts });
    }

    /// Returns the text so far.
    fn said(&self) -> String {
        let texts = self.parts.iter().filter_map(|part| match part {
            TurnPart::Text(text) => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// Adds text to the turn of the reply.
    fn say(&mut self, text: &str) {
        match self.parts.last_mut() {
            Some(TurnPart::Text(said)) => said.push_str(text),
            _ => self.parts.push(TurnPart::Text(text.to_owned())),
        }
    }

    /// Returns the complete calls so far.
    pub fn calls(&self) -> &[ToolCall] {
        &self.calls
    }

    /// Returns the thoughts so far.
    pub fn thoughts(&self) -> &str {
        &self.thoughts
    }

    /// Returns the likelihoods of the tokens that were chosen since the last call, if
    /// [`GenerationOptions::likelihoods`] requests them, as [`Reply::take_likelihoods`] does.
    ///
    /// [`GenerationOptions::likelihoods`]: crate::GenerationOptions::likelihoods
    pub fn take_likelihoods(&mut self) -> Vec<TokenLikelihood> {
        self.generation.take_likelihoods()
    }

    /// Returns counts and times so far.
    pub fn statistics(&self) -> GenerationStatistics {
        self.statistics.unwrap_or(*self.generation.statistics())
    }
}
