use std::sync::Arc;
use std::time::Instant;

use shardwright_runtime::{
    CancelHandle, Chain, DoneReason, Generation, GenerationEvent, GenerationOptions, GenerationStatistics,
    PlacementRecord,
};
use shardwright_text::{Message, RenderOptions, Tokenizer};

use crate::text_side::TextSide;
use crate::{Error, ErrorKind, Result};

/// A conversation or a text in progress, with its own states (KV cache).
///
/// Tokens that were run once are not run again: a new turn costs only its own tokens. Use
/// [`Session::cancel_handle`] to end a reply from another thread; the session stays usable.
pub struct Session {
    inner: shardwright_runtime::Session,
    text: Arc<TextSide>,
    messages: Vec<Message>,
    /// How replies are made; change it between replies.
    pub options: GenerationOptions,
    /// Variables for the chat template, such as `enable_thinking`, and whether control tokens in
    /// messages count; change them between replies.
    pub template: RenderOptions,
}

impl Session {
    pub(crate) fn new(inner: shardwright_runtime::Session, text: Arc<TextSide>) -> Self {
        let options = GenerationOptions {
            sampling: text.generation.sampling,
            stop: shardwright_text::StopRules::from_generation(&text.generation),
            max_tokens: None,
            show_special: false,
        };
        let template = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
        Session { inner, text, messages: Vec::new(), options, template }
    }

    /// Adds a system turn. Chat templates support one only before the first user turn.
    pub fn system(&mut self, text: impl Into<String>) {
        self.messages.push(Message::system(text));
    }

    /// Adds a user turn and starts the reply. The reply becomes a turn of the conversation when it
    /// is done or dropped. If it fails, or is stopped before it produced any text, the user turn is
    /// removed again and can be repeated.
    ///
    /// Control tokens that `text` spells out, such as `<|turn>`, are encoded as the letters they
    /// are and open or close no turn; so are those in a system turn, in tools and in what the model
    /// said before. `template.control_tokens_in_text` makes them tokens, as Hugging Face does.
    pub fn chat(&mut self, text: impl Into<String>) -> Result<Reply<'_>> {
        self.messages.push(Message::user(text));
        match self.text.encode(&self.messages, &self.template).and_then(|ids| self.reply(ids, true)) {
            Ok(generation) => Ok(Reply::new(self, generation, true)),
            Err(error) => {
                self.messages.pop();
                Err(error)
            }
        }
    }

    /// Starts a continuation of `text`, with the special tokens that the tokenizer puts in front;
    /// those that `text` spells out are tokens, unlike in [`Session::chat`]. Earlier text is
    /// forgotten, but
    /// what it has in common with the new one is not run again.
    pub fn complete(&mut self, text: &str) -> Result<Reply<'_>> {
        let ids = self.text.tokenizer()?.encode(text, true)?;
        self.messages.clear();
        let generation = self.reply(ids, false)?;
        Ok(Reply::new(self, generation, false))
    }

    /// Starts a continuation of token ids.
    pub fn complete_ids(&mut self, ids: Vec<u32>) -> Result<Reply<'_>> {
        self.messages.clear();
        let generation = self.reply(ids, false)?;
        Ok(Reply::new(self, generation, false))
    }

    fn reply(&self, ids: Vec<u32>, chat: bool) -> Result<Generation> {
        if ids.is_empty() {
            return Err(Error::new(
                ErrorKind::Argument,
                "the prompt is empty and the tokenizer puts nothing in front",
            )
            .with_help("give a prompt of at least one character"));
        }
        let context = self.inner.chain().context();
        if ids.len() as u64 > context {
            let what = if chat { "conversation" } else { "prompt" };
            return Err(Error::new(
                ErrorKind::Context,
                format!("the {what} has {} tokens, the context holds {context}", ids.len()),
            ));
        }
        check_modality(self.inner.chain(), self.text.tokenizer()?, &ids)?;
        Ok(Generation::new(self.text.tokenizer()?, ids, &self.options)?)
    }

    /// Additional texts that end a reply.
    pub fn add_stop_strings<S: AsRef<str>>(&mut self, strings: &[S]) -> Result<()> {
        let strings = strings.iter().map(AsRef::as_ref);
        self.options.stop = self.options.stop.clone().with_strings(strings)?;
        Ok(())
    }

    /// Sets a variable for the chat template.
    pub fn set_template_variable(&mut self, name: &str, value: bool) {
        self.template = std::mem::take(&mut self.template).with_variable(name, value);
    }

    /// Whether the chat template speaks of a variable of this name; one that does not ignores its
    /// value.
    pub fn template_takes(&self, name: &str) -> bool {
        self.text.template_mentions(name)
    }

    /// The turns so far.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Token ids of the history, as far as they were run.
    pub fn tokens(&self) -> &[u32] {
        self.inner.tokens()
    }

    /// Forgets the oldest user turn with its reply, and any turns in between; system turns stay.
    /// `false` if no user turn is left. For a conversation that outgrew the context, before the
    /// next turn.
    pub fn forget_oldest_turn(&mut self) -> bool {
        let is_user = |message: &Message| message.role == "user";
        let Some(first) = self.messages.iter().position(is_user) else { return false };
        let end = self.messages[first + 1..].iter().position(is_user);
        let end = end.map_or(self.messages.len(), |next| first + 1 + next);
        self.messages.drain(first..end);
        true
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.messages.clear();
        self.inner.clear();
    }

    /// Ends a reply from another thread.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.inner.cancel_handle()
    }

    /// Replies end as done at that time; `None` for no limit.
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.inner.set_deadline(deadline);
    }

    /// Where every step ran so far, and what was copied between shards.
    pub fn placement(&self) -> PlacementRecord {
        self.inner.placement()
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.text.tokenizer()
    }
}

/// Refuses ids of pictures or sounds, in whose place only padding would be run. The tables of the
/// model list those ids.
pub(crate) fn check_modality(chain: &Chain, tokenizer: &Tokenizer, ids: &[u32]) -> Result<()> {
    let stands_in = |id: u32| chain.assets().iter().any(|asset| asset.row_of(id) != id);
    let Some((position, id)) = ids.iter().enumerate().find(|&(_, &id)| stands_in(id)) else {
        return Ok(());
    };
    let token = tokenizer.id_to_token(*id).unwrap_or_default();
    let what = format!(
        "the prompt has `{token}` (token {id}) at position {position}, which stands for a picture or a sound: \
         this modality is not supported"
    );
    Err(Error::new(ErrorKind::Unsupported, what)
        .with_help("leave the token out: of this model the part that reads and writes text is run"))
}

/// A reply in progress: an iterator over its events. Dropping it ends the reply.
pub struct Reply<'s> {
    session: &'s mut Session,
    generation: Generation,
    said: String,
    chat: bool,
    ended: Ended,
    statistics: Option<GenerationStatistics>,
}

/// The state of a reply.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// Stopped before its end.
    Early,
    /// Ended by itself, with text or without.
    Done,
    Failed,
}

impl<'s> Reply<'s> {
    fn new(session: &'s mut Session, generation: Generation, chat: bool) -> Self {
        Reply { session, generation, said: String::new(), chat, ended: Ended::Early, statistics: None }
    }
}

impl Reply<'_> {
    /// Runs to the end and returns the whole text.
    pub fn text(mut self) -> Result<String> {
        for event in self.by_ref() {
            event?;
        }
        Ok(self.said.clone())
    }

    /// Counts and times so far.
    pub fn statistics(&self) -> GenerationStatistics {
        self.statistics.unwrap_or(*self.generation.statistics())
    }
}

impl Iterator for Reply<'_> {
    type Item = Result<GenerationEvent>;

    fn next(&mut self) -> Option<Self::Item> {
        let event = self.generation.next(&mut self.session.inner)?;
        match &event {
            Ok(GenerationEvent::TextDelta { text }) => self.said.push_str(text),
            Ok(GenerationEvent::Done { statistics, reason }) => {
                self.statistics = Some(*statistics);
                if !matches!(reason, DoneReason::Cancelled | DoneReason::Deadline) {
                    self.ended = Ended::Done;
                }
            }
            Ok(GenerationEvent::Token { .. }) => {}
            Err(_) => self.ended = Ended::Failed,
        }
        Some(event.map_err(Error::from))
    }
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        if !self.chat {
            return;
        }
        let said = std::mem::take(&mut self.said);
        match self.ended {
            Ended::Failed => drop(self.session.messages.pop()),
            Ended::Early if said.is_empty() => drop(self.session.messages.pop()),
            Ended::Early | Ended::Done => self.session.messages.push(Message::assistant(said)),
        }
    }
}
