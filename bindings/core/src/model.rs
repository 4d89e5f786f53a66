//! Models that any thread may use and close.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use shardwright::CancelHandle;

use crate::progress::Watching;
use crate::session::Shared as SharedSession;
use crate::{Cancel, Error, Memory, ModelReport, OpenOptions, Progress, Result, Session, Source};

/// A loaded model.
///
/// Dropping all handles keeps its sessions, which share its memory. [`close`](Self::close) closes
/// them.
#[derive(Clone)]
pub struct Model {
    shared: Arc<Shared>,
}

struct Shared {
    open: Mutex<Option<shardwright::Model>>,
    sessions: Mutex<Vec<Weak<SharedSession>>>,
    calls: Mutex<Calls>,
}

/// Calls in progress that belong to no session.
#[derive(Default)]
struct Calls {
    last: u64,
    running: Vec<(u64, CancelHandle)>,
}

/// Removes a call from the calls in progress at its end.
struct Call<'m> {
    shared: &'m Shared,
    number: u64,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        lock(&self.shared.calls).running.retain(|(number, _)| *number != self.number);
    }
}

/// Options to compute a sentence vector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EmbedSettings {
    /// Name of a prompt of the model, such as `query`. `None` for its default prompt, an empty name
    /// for no prompt.
    pub prompt_name: Option<String>,
    /// Number of leading values to keep. The rest is cut and the vector normalised again.
    pub dimensions: Option<u32>,
}

/// Result of [`Model::restore`].
#[derive(Clone)]
pub struct Restored {
    /// The session.
    pub session: Session,
    /// Why the KV cache of the file is not used, so that the tokens are run again.
    pub recomputed: Option<String>,
}

/// Result of [`Model::release_idle`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// Number of released sessions.
    pub sessions: u64,
    /// Freed bytes of the budget. 0 for a checkpoint, whose use is not counted.
    pub bytes: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Model {
    /// Opens a model. `progress` runs on this thread, and `cancel` works from any thread.
    ///
    /// # Errors
    ///
    /// Errors of reading and loading the model, [`Untrusted`](crate::ErrorKind::Untrusted),
    /// [`Memory`](crate::ErrorKind::Memory), and [`Cancelled`](crate::ErrorKind::Cancelled).
    pub fn open(
        source: &Source,
        options: &OpenOptions,
        progress: Option<&dyn Progress>,
        cancel: Option<&Cancel>,
    ) -> Result<Model> {
        let model = options.open(source, &mut Watching::new(progress, Cancel::handle(cancel)?))?;
        let (sessions, calls) = Default::default();
        Ok(Model { shared: Arc::new(Shared { open: Mutex::new(Some(model)), sessions, calls }) })
    }

    fn opened(&self) -> Result<shardwright::Model> {
        lock(&self.shared.open).clone().ok_or_else(|| Error::closed("model"))
    }

    /// Registers a call that closing the model cancels.
    fn call(&self, handle: &CancelHandle) -> Result<Call<'_>> {
        let mut calls = lock(&self.shared.calls);
        calls.last += 1;
        let number = calls.last;
        calls.running.push((number, handle.clone()));
        drop(calls);
        let call = Call { shared: &self.shared, number };
        // Closing takes the model first and then cancels the registered calls.
        self.opened()?;
        Ok(call)
    }

    /// Adds a session of this model, which closing the model closes.
    fn adopt(&self, session: shardwright::Session) -> Result<Session> {
        let session = Session::new(SharedSession::new(session));
        let mut sessions = lock(&self.shared.sessions);
        sessions.retain(|session| session.strong_count() > 0);
        sessions.push(Arc::downgrade(session.shared()));
        drop(sessions);
        // The model may have been closed before the session was added.
        if let Err(error) = self.opened() {
            session.close();
            return Err(error);
        }
        Ok(session)
    }

    /// Starts a session at position 0.
    ///
    /// # Errors
    ///
    /// [`Memory`](crate::ErrorKind::Memory) if the budget leaves too little, and errors of a
    /// damaged tokenizer.
    pub fn session(&self) -> Result<Session> {
        let model = self.opened()?;
        self.adopt(model.session()?)
    }

    /// Creates a session with the turns, the history and the settings of `session`, which belongs
    /// to this model. Both continue independently.
    ///
    /// # Errors
    ///
    /// [`Argument`](crate::ErrorKind::Argument) for a session of another model,
    /// [`Memory`](crate::ErrorKind::Memory) if the budget leaves too little.
    pub fn fork(&self, session: &Session) -> Result<Session> {
        let own = lock(&self.shared.sessions).iter().any(|own| own.as_ptr() == Arc::as_ptr(session.shared()));
        if !own {
            self.opened()?;
            let what = "the session belongs to another model";
            return Err(Error::argument(what, "fork the session with the model that started it"));
        }
        let (fork, token_events) = session.forked()?;
        self.adopt(fork)?.with_token_events(token_events)
    }

    /// Restores a session that [`Session::save`] wrote.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) for a damaged file,
    /// [`Incompatible`](crate::ErrorKind::Incompatible) for a session of another model,
    /// [`Context`](crate::ErrorKind::Context) for more tokens than the context, and the errors of
    /// [`session`](Self::session).
    pub fn restore(&self, path: impl AsRef<Path>) -> Result<Restored> {
        let shardwright::Restored { session, recomputed } = self.opened()?.restore(path)?;
        let recomputed = recomputed.map(|reason| reason.to_string());
        Ok(Restored { session: self.adopt(session)?, recomputed })
    }

    /// Computes the sentence vector of `text`, of length 1, with an embedding model.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for a model that generates text,
    /// [`Argument`](crate::ErrorKind::Argument) for an unknown prompt or too many dimensions, and
    /// [`Cancelled`](crate::ErrorKind::Cancelled).
    pub fn embed(&self, text: &str, settings: &EmbedSettings, cancel: Option<&Cancel>) -> Result<Vec<f32>> {
        let model = self.opened()?;
        let handle = Cancel::handle(cancel)?;
        let options = shardwright::EmbedOptions {
            prompt_name: settings.prompt_name.clone(),
            dimensions: settings.dimensions.map(|count| count as usize),
        };
        let _call = self.call(&handle)?;
        Ok(model.embed_until(text, &options, &handle)?)
    }

    /// Warms the model up, so that its first token takes no longer than the others. Runs two tokens
    /// on a session of its own. Returns the time in milliseconds.
    ///
    /// # Errors
    ///
    /// [`Memory`](crate::ErrorKind::Memory) if the budget leaves too little for a session, and
    /// [`Cancelled`](crate::ErrorKind::Cancelled).
    pub fn prewarm(&self, cancel: Option<&Cancel>) -> Result<u64> {
        let model = self.opened()?;
        let handle = Cancel::handle(cancel)?;
        let _call = self.call(&handle)?;
        Ok(u64::try_from(model.prewarm(&handle)?.as_millis()).unwrap_or(u64::MAX))
    }

    /// Encodes a text as token ids, with the special tokens that the tokenizer adds if requested.
    ///
    /// # Errors
    ///
    /// Errors of the tokenizer.
    pub fn tokenize(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        let handle = CancelHandle::default();
        let model = self.opened()?;
        let _call = self.call(&handle)?;
        Ok(model.encode_until(text, add_special, || handle.is_requested())?)
    }

    /// Decodes token ids to text, without special tokens if requested.
    ///
    /// # Errors
    ///
    /// Errors of the tokenizer, also for an id beyond the vocabulary.
    pub fn detokenize(&self, tokens: &[u32], skip_special: bool) -> Result<String> {
        Ok(self.opened()?.tokenizer()?.decode(tokens, skip_special)?)
    }

    /// Returns what opening the model found, and all notices so far.
    ///
    /// # Errors
    ///
    /// [`Closed`](crate::ErrorKind::Closed).
    pub fn report(&self) -> Result<ModelReport> {
        Ok(ModelReport::of(&self.opened()?))
    }

    /// Returns the memory use of the model and its sessions.
    ///
    /// # Errors
    ///
    /// [`Closed`](crate::ErrorKind::Closed).
    pub fn memory(&self) -> Result<Memory> {
        Ok(self.opened()?.memory().into())
    }

    /// Frees the memory of all sessions without a reply or a call in progress, for when the system
    /// is short of memory. Their next reply runs their history again.
    ///
    /// # Errors
    ///
    /// [`Closed`](crate::ErrorKind::Closed).
    pub fn release_idle(&self) -> Result<Released> {
        let model = self.opened()?;
        let before = model.memory().used;
        let sessions: Vec<_> = lock(&self.shared.sessions).iter().filter_map(Weak::upgrade).collect();
        let released = sessions.iter().filter(|session| session.release_if_idle()).count();
        let bytes = before.saturating_sub(model.memory().used);
        Ok(Released { sessions: released as u64, bytes })
    }

    /// Closes the model and all of its sessions, from any thread and more than once. Returns at
    /// once: calls in progress are cancelled, and the memory is freed when the last of them ends.
    pub fn close(&self) {
        let model = lock(&self.shared.open).take();
        lock(&self.shared.calls).running.iter().for_each(|(_, handle)| handle.cancel());
        let sessions: Vec<_> = std::mem::take(&mut *lock(&self.shared.sessions));
        sessions.iter().filter_map(Weak::upgrade).for_each(|session| session.close());
        drop(model);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_shared<T: Send + Sync + 'static>() {}

    #[test]
    fn handles_work_on_any_thread() {
        is_shared::<Model>();
        is_shared::<Session>();
        is_shared::<crate::Reply>();
        is_shared::<Cancel>();
        is_shared::<Error>();
    }
}
