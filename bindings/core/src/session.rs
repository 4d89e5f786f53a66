//! Sessions that any thread may use and close.

use std::path::Path;
use std::sync::{Arc, Mutex, TryLockError};

use shardwright::{ChatPart, DetachedReply, GenerationEvent, ReplyRequest, ToolDefinition};

use crate::activity::Activity;
use crate::progress::Watching;
use crate::{
    Error, Event, Grammar, Part, Placement, Progress, Reply, ReplySettings, Result, Statistics, ToolChoice,
    Turn,
};

/// A conversation or a text in progress, with its own KV cache.
///
/// A session has at most one reply in progress. A call that changes the conversation ends it, as
/// dropping the reply does.
#[derive(Clone)]
pub struct Session {
    shared: Arc<Shared>,
}

/// The session behind all handles.
pub(crate) struct Shared {
    slot: Mutex<Option<Open>>,
    activity: Activity,
}

/// A session that is not closed.
struct Open {
    session: shardwright::Session,
    /// The reply in progress, with its number.
    reply: Option<(u64, DetachedReply)>,
    token_events: bool,
}

/// Result of [`Session::save`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedSession {
    /// Number of tokens of the history.
    pub tokens: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Why the file has no KV cache, so that restoring runs the tokens again.
    pub without_states: Option<String>,
}

impl Open {
    fn end_reply(&mut self, activity: &Activity) {
        if let Some((work, reply)) = self.reply.take() {
            reply.end(&mut self.session);
            activity.end(work);
        }
    }

    /// Returns the next event of a reply, and ends it after the last one.
    fn next(&mut self, work: u64, activity: &Activity) -> Result<Option<Event>> {
        let reply = self.reply.as_mut().filter(|(current, _)| *current == work);
        let (_, reply) = reply.ok_or_else(|| Error::closed("reply"))?;
        let event = loop {
            match reply.next(&mut self.session) {
                Some(Ok(GenerationEvent::Token { .. })) if !self.token_events => {}
                event => break event.transpose(),
            }
        };
        if matches!(event, Ok(None | Some(GenerationEvent::Done { .. })) | Err(_)) {
            self.end_reply(activity);
        }
        Ok(event?.map(Event::from))
    }
}

impl Shared {
    pub(crate) fn new(session: shardwright::Session) -> Arc<Shared> {
        let activity = Activity::new(session.cancel_handle());
        let open = Open { session, reply: None, token_events: false };
        Arc::new(Shared { slot: Mutex::new(Some(open)), activity })
    }

    pub(crate) fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Calls `call` with the open session.
    fn with<T>(&self, call: impl FnOnce(&mut Open) -> Result<T>) -> Result<T> {
        let closed = || Error::closed("session");
        let result = match self.slot.try_lock() {
            _ if self.activity.is_closed() => Err(closed()),
            Ok(mut slot) => slot.as_mut().ok_or_else(closed).and_then(call),
            Err(TryLockError::WouldBlock) => Err(Error::busy()),
            Err(TryLockError::Poisoned(_)) => Err(Error::broken()),
        };
        // A close during the call could not lock the slot.
        if self.activity.is_closed() {
            self.empty();
        }
        result
    }

    /// Calls `call` as work that can be cancelled, after the end of a reply in progress.
    fn work<T>(&self, call: impl FnOnce(&mut Open) -> Result<T>) -> Result<T> {
        self.with(|open| {
            open.end_reply(&self.activity);
            let work = self.activity.begin()?;
            let result = call(open);
            self.activity.end(work);
            result
        })
    }

    /// Frees the session, unless a call is in progress.
    fn empty(&self) {
        let open = match self.slot.try_lock() {
            Ok(mut slot) => slot.take(),
            Err(TryLockError::Poisoned(slot)) => slot.into_inner().take(),
            Err(TryLockError::WouldBlock) => None,
        };
        drop(open);
    }

    pub(crate) fn close(&self) {
        self.activity.close();
        self.empty();
    }

    fn begin(&self, request: ReplyRequest, progress: Option<&dyn Progress>) -> Result<u64> {
        self.with(|open| {
            open.end_reply(&self.activity);
            let work = self.activity.begin()?;
            let mut watching = Watching::new(progress, self.activity.handle());
            match open.session.begin(request, &mut watching) {
                Ok(reply) => open.reply = Some((work, reply)),
                Err(error) => {
                    self.activity.end(work);
                    return Err(error.into());
                }
            }
            Ok(work)
        })
    }

    pub(crate) fn next(&self, work: u64) -> Result<Option<Event>> {
        self.with(|open| open.next(work, &self.activity))
    }

    /// Ends a reply, if it is still in progress.
    pub(crate) fn end_reply(&self, work: u64) -> Result<()> {
        self.with(|open| {
            if open.reply.as_ref().is_some_and(|(current, _)| *current == work) {
                open.end_reply(&self.activity);
            }
            Ok(())
        })
    }

    pub(crate) fn statistics(&self, work: u64) -> Result<Statistics> {
        self.with(|open| {
            let reply = open.reply.as_ref().filter(|(current, _)| *current == work);
            let (_, reply) = reply.ok_or_else(|| Error::closed("reply"))?;
            Ok(reply.statistics().into())
        })
    }

    /// Frees the memory of the session if it has no reply in progress. Returns whether it did.
    pub(crate) fn release_if_idle(&self) -> bool {
        let released = self.with(|open| {
            let is_idle = open.reply.is_none() && !open.session.is_released();
            if is_idle {
                open.session.release();
            }
            Ok(is_idle)
        });
        released.unwrap_or(false)
    }
}

impl Session {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Session { shared }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn start(&self, request: ReplyRequest, progress: Option<&dyn Progress>) -> Result<Reply> {
        let work = self.shared.begin(request, progress)?;
        Ok(Reply::new(Arc::clone(&self.shared), work))
    }

    /// Changes the settings of later replies. Applies all changes, or none if one is an error.
    ///
    /// # Errors
    ///
    /// [`Argument`](crate::ErrorKind::Argument) for a value out of range,
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if the model has no switch for thinking.
    pub fn configure(&self, settings: &ReplySettings) -> Result<()> {
        self.shared.with(|open| {
            settings.apply(&mut open.session)?;
            open.token_events = settings.token_events.unwrap_or(open.token_events);
            Ok(())
        })
    }

    /// Sets the grammar that later replies must match, `None` for any text.
    ///
    /// # Errors
    ///
    /// [`Argument`](crate::ErrorKind::Argument) for an invalid grammar,
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for a keyword that is not supported and for a
    /// library without grammars.
    pub fn constrain(&self, grammar: Option<&Grammar>) -> Result<()> {
        self.shared.with(|open| Grammar::apply(grammar, &mut open.session))
    }

    /// Sets the tools that replies may call: a JSON list as in OpenAI's requests. An empty list
    /// disables calls.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) for text that is not JSON,
    /// [`Argument`](crate::ErrorKind::Argument) for a tool that is not valid,
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if the chat template does not describe tools.
    pub fn set_tools(&self, tools: &str) -> Result<()> {
        let list = ToolDefinition::list_from_json(tools, "the list of tools")?;
        self.shared.with(|open| Ok(open.session.set_tools(list)?))
    }

    /// Sets which tools replies may or must call. A choice that the tools do not allow is an error
    /// of the next reply.
    ///
    /// # Errors
    ///
    /// [`Closed`](crate::ErrorKind::Closed) and [`Busy`](crate::ErrorKind::Busy).
    pub fn choose_tool(&self, choice: ToolChoice) -> Result<()> {
        self.shared.with(|open| {
            open.session.set_tool_choice(choice.into());
            Ok(())
        })
    }

    /// Adds a system turn.
    ///
    /// # Errors
    ///
    /// [`Closed`](crate::ErrorKind::Closed) and [`Busy`](crate::ErrorKind::Busy).
    pub fn system(&self, text: impl Into<String>) -> Result<()> {
        let text = text.into();
        self.shared.work(|open| {
            open.session.system(text);
            Ok(())
        })
    }

    /// Adds a turn of the user and starts the reply. The first picture or sound opens a tower, with
    /// `progress`.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for parts that the model does not support,
    /// [`Context`](crate::ErrorKind::Context) if the conversation is too long,
    /// [`Cancelled`](crate::ErrorKind::Cancelled), and errors of reading the parts. The turn is then
    /// removed again.
    pub fn chat(&self, parts: Vec<Part>, progress: Option<&dyn Progress>) -> Result<Reply> {
        let parts = parts.into_iter().map(Part::into_chat_part).collect::<Result<Vec<ChatPart>>>()?;
        self.start(ReplyRequest::Parts(parts), progress)
    }

    /// Replaces the conversation by `turns`, and starts the reply to the last one. An equal
    /// beginning is not run again.
    ///
    /// # Errors
    ///
    /// [`Argument`](crate::ErrorKind::Argument) for turns that do not fit together, and the errors
    /// of [`chat`](Self::chat). The conversation is then unchanged.
    pub fn reply_to(&self, turns: Vec<Turn>, progress: Option<&dyn Progress>) -> Result<Reply> {
        let turns = turns.into_iter().map(Turn::into_host).collect::<Result<Vec<_>>>()?;
        self.start(ReplyRequest::Turns(turns), progress)
    }

    /// Adds the result of a call. Once all calls of a reply have results,
    /// [`answer`](Self::answer) continues.
    ///
    /// # Errors
    ///
    /// [`Argument`](crate::ErrorKind::Argument) if no call has this id.
    pub fn tool_result(&self, id: &str, content: impl Into<String>) -> Result<()> {
        let content = content.into();
        self.shared.work(|open| Ok(open.session.tool_result(id, content)?))
    }

    /// Starts the reply to the turns so far, which end with results of calls or with a turn of the
    /// user.
    ///
    /// # Errors
    ///
    /// [`Argument`](crate::ErrorKind::Argument) for other turns, and the errors of
    /// [`chat`](Self::chat).
    pub fn answer(&self) -> Result<Reply> {
        self.start(ReplyRequest::Answer, None)
    }

    /// Starts a continuation of a plain text. Earlier turns are forgotten.
    ///
    /// # Errors
    ///
    /// [`Context`](crate::ErrorKind::Context) if the text is too long.
    pub fn complete(&self, text: impl Into<String>) -> Result<Reply> {
        self.start(ReplyRequest::Text(text.into()), None)
    }

    /// Starts a continuation of token ids. Earlier turns are forgotten.
    ///
    /// # Errors
    ///
    /// [`Argument`](crate::ErrorKind::Argument) for an id beyond the vocabulary, and the errors of
    /// [`complete`](Self::complete).
    pub fn complete_tokens(&self, tokens: Vec<u32>) -> Result<Reply> {
        self.start(ReplyRequest::Tokens(tokens), None)
    }

    /// Stops the reply or the call in progress, from any thread. No effect if there is none: a
    /// later reply is never cancelled by an earlier request.
    pub fn cancel(&self) {
        self.shared.activity.cancel();
    }

    /// Returns the turns so far, without the reply in progress.
    ///
    /// # Errors
    ///
    /// [`Closed`](crate::ErrorKind::Closed) and [`Busy`](crate::ErrorKind::Busy).
    pub fn turns(&self) -> Result<Vec<Turn>> {
        self.shared.with(|open| Ok(open.session.turns().iter().map(Turn::of_host).collect()))
    }

    /// Returns the token ids of the history, as far as they were run.
    ///
    /// # Errors
    ///
    /// [`Closed`](crate::ErrorKind::Closed) and [`Busy`](crate::ErrorKind::Busy).
    pub fn tokens(&self) -> Result<Vec<u32>> {
        self.shared.with(|open| Ok(open.session.tokens().to_vec()))
    }

    /// Removes the oldest turn of the user with its reply. Returns whether there was one.
    ///
    /// # Errors
    ///
    /// [`Closed`](crate::ErrorKind::Closed) and [`Busy`](crate::ErrorKind::Busy).
    pub fn forget_oldest_turn(&self) -> Result<bool> {
        self.shared.work(|open| Ok(open.session.forget_oldest_turn()))
    }

    /// Removes all turns from the turn `position` on.
    ///
    /// # Errors
    ///
    /// [`Argument`](crate::ErrorKind::Argument) if there are fewer turns.
    pub fn rewind(&self, position: u64) -> Result<()> {
        let position = usize::try_from(position).unwrap_or(usize::MAX);
        self.shared.work(|open| Ok(open.session.rewind(position)?))
    }

    /// Removes all turns and the history.
    ///
    /// # Errors
    ///
    /// [`Closed`](crate::ErrorKind::Closed) and [`Busy`](crate::ErrorKind::Busy).
    pub fn clear(&self) -> Result<()> {
        self.shared.work(|open| {
            open.session.clear();
            Ok(())
        })
    }

    /// Frees the memory of the KV cache and of all buffers, also between two events of a reply. The
    /// next event or reply allocates it again and runs the history again.
    ///
    /// # Errors
    ///
    /// [`Closed`](crate::ErrorKind::Closed) and [`Busy`](crate::ErrorKind::Busy).
    pub fn release(&self) -> Result<()> {
        self.shared.with(|open| {
            open.session.release();
            Ok(())
        })
    }

    /// Allocates the memory of a released session and runs its history again now. Returns the
    /// number of tokens that were run.
    ///
    /// # Errors
    ///
    /// [`Memory`](crate::ErrorKind::Memory) if the budget leaves too little,
    /// [`Cancelled`](crate::ErrorKind::Cancelled), and errors of running the history.
    pub fn resume(&self) -> Result<u64> {
        self.shared.work(|open| Ok(open.session.resume()? as u64))
    }

    /// Saves the session to a file that [`Model::restore`](crate::Model::restore) reads. The file
    /// has the content of the conversation in the clear.
    ///
    /// # Errors
    ///
    /// [`Argument`](crate::ErrorKind::Argument) if another file exists there, and errors of writing.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<SavedSession> {
        self.shared.work(|open| {
            let shardwright::SavedSession { tokens, bytes, without_states } = open.session.save(path)?;
            Ok(SavedSession { tokens: tokens as u64, bytes, without_states })
        })
    }

    /// Creates a session with the same turns, history and settings. Both continue independently.
    pub(crate) fn forked(&self) -> Result<(shardwright::Session, bool)> {
        self.shared.work(|open| Ok((open.session.fork()?, open.token_events)))
    }

    pub(crate) fn with_token_events(self, token_events: bool) -> Result<Self> {
        self.shared.with(|open| {
            open.token_events = token_events;
            Ok(())
        })?;
        Ok(self)
    }

    /// Returns where every step ran so far.
    ///
    /// # Errors
    ///
    /// [`Closed`](crate::ErrorKind::Closed) and [`Busy`](crate::ErrorKind::Busy).
    pub fn placement(&self) -> Result<Placement> {
        self.shared.with(|open| Placement::of(&open.session.placement()))
    }

    /// Closes the session, from any thread and more than once. Returns at once: a call in progress
    /// is cancelled, and the memory is freed when that call ends.
    pub fn close(&self) {
        self.shared.close();
    }
}
