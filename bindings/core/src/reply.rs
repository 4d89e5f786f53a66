//! Replies in progress and their events.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shardwright::{DoneReason, GenerationEvent};

use crate::session::Shared;
use crate::{Error, ErrorKind, Result, Statistics};

/// An event of a reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A token was chosen. Only if `token_events` of the settings requests it.
    Token {
        /// Id of the token.
        id: u32,
    },
    /// Final text: whole characters, never a part of a stop text.
    Text {
        /// The text, never empty.
        text: String,
    },
    /// Final text of a thought.
    Thought {
        /// The text, never empty.
        text: String,
    },
    /// A call of a tool began.
    ToolCallBegin {
        /// Number of the call in the reply.
        index: u64,
        /// Id of the call.
        id: String,
        /// Name of the tool.
        name: String,
    },
    /// More of the arguments of a call. The texts of a call together are JSON.
    ToolCallArguments {
        /// Number of the call in the reply.
        index: u64,
        /// The text, never empty.
        text: String,
    },
    /// A call is complete.
    ToolCall {
        /// Number of the call in the reply.
        index: u64,
        /// Id of the call.
        id: String,
        /// Name of the tool.
        name: String,
        /// The arguments as JSON text.
        arguments: String,
    },
    /// A call that had begun is not a call, or is cut. Its text follows as text of the answer.
    ToolCallDropped {
        /// Number of the call in the reply.
        index: u64,
    },
    /// A draft was dropped. The reply continues without it and is the same, in more steps.
    DraftDropped {
        /// Name of the draft.
        name: String,
        /// The reason.
        reason: String,
    },
    /// The last event of a reply. The conversation has the turn of the model by then.
    Done {
        /// Reason why the reply ended.
        reason: EndReason,
        /// Counts and times.
        statistics: Statistics,
    },
}

/// Reason why a reply ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The model generated a stop token.
    StopToken {
        /// Id of the token.
        id: u32,
    },
    /// A stop text was completed.
    StopText {
        /// The text.
        text: String,
    },
    /// The reply matches the grammar, which allows no further token.
    GrammarEnd,
    /// The requested number of tokens was reached.
    MaxTokens,
    /// The context has no position for another token.
    ContextFull,
    /// The reply was cancelled.
    Cancelled,
    /// The deadline of the session passed.
    Deadline,
}

impl From<DoneReason> for EndReason {
    fn from(reason: DoneReason) -> Self {
        match reason {
            DoneReason::StopToken { id } => EndReason::StopToken { id },
            DoneReason::StopText { text } => EndReason::StopText { text },
            DoneReason::GrammarEnd => EndReason::GrammarEnd,
            DoneReason::MaxTokens => EndReason::MaxTokens,
            DoneReason::ContextFull => EndReason::ContextFull,
            DoneReason::Cancelled => EndReason::Cancelled,
            DoneReason::Deadline => EndReason::Deadline,
        }
    }
}

impl From<GenerationEvent> for Event {
    fn from(event: GenerationEvent) -> Self {
        match event {
            GenerationEvent::Token { id } => Event::Token { id },
            GenerationEvent::TextDelta { text } => Event::Text { text },
            GenerationEvent::ThoughtDelta { text } => Event::Thought { text },
            GenerationEvent::ToolCallBegin { index, id, name } => {
                Event::ToolCallBegin { index: index as u64, id, name }
            }
            GenerationEvent::ToolCallArguments { index, text } => {
                Event::ToolCallArguments { index: index as u64, text }
            }
            GenerationEvent::ToolCall { index, call } => {
                let arguments = call.arguments.to_string();
                Event::ToolCall { index: index as u64, id: call.id, name: call.name, arguments }
            }
            GenerationEvent::ToolCallDropped { index } => Event::ToolCallDropped { index: index as u64 },
            GenerationEvent::DraftDropped { draft } => {
                Event::DraftDropped { name: draft.draft, reason: draft.because }
            }
            GenerationEvent::Done { reason, statistics } => {
                Event::Done { reason: reason.into(), statistics: statistics.into() }
            }
        }
    }
}

/// Whether a callback wants more events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Continue.
    Continue,
    /// End the reply.
    Stop,
}

/// A reply in progress. Dropping the last handle ends it: the conversation keeps the text so far.
#[derive(Clone)]
pub struct Reply {
    inner: Arc<Inner>,
}

struct Inner {
    session: Arc<Shared>,
    /// Number of the reply among the work of its session.
    work: u64,
    end: Mutex<End>,
}

/// How a reply ended.
#[derive(Clone, Copy)]
enum End {
    Running,
    /// After [`Event::Done`].
    Done(Statistics),
    /// After an error.
    Failed,
    /// By [`Reply::close`].
    Closed,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // While another call of the session runs, the reply stays until the next one begins.
        if let End::Running = *self.end() {
            let _ = self.session.end_reply(self.work);
        }
    }
}

impl Inner {
    fn end(&self) -> MutexGuard<'_, End> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reply {
    pub(crate) fn new(session: Arc<Shared>, work: u64) -> Self {
        Reply { inner: Arc::new(Inner { session, work, end: Mutex::new(End::Running) }) }
    }

    /// Runs the session until the next event and returns it. Returns `None` after
    /// [`Event::Done`] and after an error.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Closed`] after [`close`](Self::close), after the session was closed, and after
    /// another call of the session ended this reply. [`ErrorKind::Busy`] while another call of the
    /// session is in progress. Errors of running the session end the reply.
    pub fn next_event(&self) -> Result<Option<Event>> {
        match *self.inner.end() {
            End::Running => {}
            End::Done(_) | End::Failed => return Ok(None),
            End::Closed => return Err(Error::closed("reply")),
        }
        let result = self.inner.session.next(self.inner.work);
        let end = match &result {
            Ok(Some(Event::Done { statistics, .. })) => End::Done(*statistics),
            Ok(Some(_)) => return result,
            Ok(None) => End::Failed,
            Err(error) if error.kind == ErrorKind::Busy => return result,
            Err(error) if error.kind == ErrorKind::Closed => End::Closed,
            Err(_) => End::Failed,
        };
        let mut ended = self.inner.end();
        if let End::Running = *ended {
            *ended = end;
        }
        drop(ended);
        result
    }

    /// Passes all further events to `each`, on this thread. No lock is held meanwhile, so `each`
    /// may call any function.
    ///
    /// # Errors
    ///
    /// The errors of [`next_event`](Self::next_event).
    pub fn for_each(&self, mut each: impl FnMut(Event) -> Flow) -> Result<()> {
        while let Some(event) = self.next_event()? {
            if each(event) == Flow::Stop {
                self.close();
                return Ok(());
            }
        }
        Ok(())
    }

    /// Runs the reply to its end and returns the rest of its text, without thoughts.
    ///
    /// # Errors
    ///
    /// The errors of [`next_event`](Self::next_event).
    pub fn text(&self) -> Result<String> {
        let mut said = String::new();
        while let Some(event) = self.next_event()? {
            if let Event::Text { text } = event {
                said.push_str(&text);
            }
        }
        Ok(said)
    }

    /// Ends the reply early, from any thread. The call in progress, if there is any, delivers its
    /// pending text and then [`Event::Done`] with [`EndReason::Cancelled`]. No effect after the
    /// end.
    pub fn cancel(&self) {
        self.inner.session.activity().cancel_work(self.inner.work);
    }

    /// Returns counts and times so far.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Closed`] and [`ErrorKind::Busy`], as [`next_event`](Self::next_event).
    pub fn statistics(&self) -> Result<Statistics> {
        let end = *self.inner.end();
        match end {
            End::Done(statistics) => Ok(statistics),
            End::Running => self.inner.session.statistics(self.inner.work),
            End::Failed | End::Closed => Err(Error::closed("reply")),
        }
    }

    /// Ends the reply. The conversation keeps its text so far. Later calls fail with
    /// [`ErrorKind::Closed`]. Returns at once, also while another thread waits for an event: that
    /// call is cancelled.
    pub fn close(&self) {
        let before = std::mem::replace(&mut *self.inner.end(), End::Closed);
        if let End::Running = before
            && self.inner.session.end_reply(self.inner.work).is_err()
        {
            self.cancel();
        }
    }
}
