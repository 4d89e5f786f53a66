use std::sync::Arc;
use std::time::{Duration, Instant};

use shardwright_runtime::{
    CancelHandle, Chain, DoneReason, Generation, GenerationEvent, GenerationOptions, GenerationStatistics,
    PlacementRecord, Prompt, SoftRows, Speculation,
};
use shardwright_text::{
    Content, ContentPart, Message, PartTokens, RenderOptions, TemplateValue, ThoughtTokens, Tokenizer,
};
use shardwright_vocabulary::{Part, Watch};

use crate::parts::{Prepared, Sense, prepare};
use crate::text_side::TextSide;
use crate::towers::Towers;
use crate::{ChatPart, Error, ErrorKind, Result};

/// A conversation or a text in progress, with its own states (KV cache).
///
/// Tokens are run only once: a new turn costs only its own tokens. Use [`Session::cancel_handle`]
/// to end a reply from another thread. The session stays usable.
pub struct Session {
    inner: shardwright_runtime::Session,
    text: Arc<TextSide>,
    towers: Arc<Towers>,
    messages: Vec<Message>,
    /// Rows of the pictures and sounds of all messages, in their order.
    soft: Vec<(Sense, Arc<SoftRows>)>,
    /// Options of replies. Change them between replies.
    pub options: GenerationOptions,
    /// Variables for the chat template, such as `enable_thinking`, and whether control tokens in
    /// messages are encoded as such. Change them between replies.
    pub template: RenderOptions,
    /// Maximum number of soft tokens per picture. `None` uses the value of the checkpoint's
    /// processor.
    pub picture_tokens: Option<u32>,
}

impl Session {
    pub(crate) fn new(
        mut inner: shardwright_runtime::Session,
        text: Arc<TextSide>,
        towers: Arc<Towers>,
    ) -> Self {
        // A plan has entry points with several rows only if it expects speculation to pay.
        inner.set_speculation((inner.decode_rows() > 1).then(|| Speculation::new().lookup()));
        let options = GenerationOptions {
            sampling: text.generation.sampling,
            rules: text.generation.rules.clone(),
            stop: text.stop.clone(),
            max_tokens: text.generation.max_new_tokens,
            ..GenerationOptions::default()
        };
        let template = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
        let (messages, soft) = (Vec::new(), Vec::new());
        Session { inner, text, towers, messages, soft, options, template, picture_tokens: None }
    }

    /// Adds a system turn. Chat templates support one only before the first user turn.
    pub fn system(&mut self, text: impl Into<String>) {
        self.messages.push(Message::system(text));
    }

    /// Adds a user turn and starts the reply. The reply becomes a turn of the conversation when it
    /// is done or dropped. If it fails, or is stopped before it produced any text, the user turn is
    /// removed again and can be repeated.
    ///
    /// Control tokens that `text` spells out, such as `<|turn>`, are encoded as plain text and do
    /// not open or close a turn. This also applies to system turns, tools and earlier replies.
    /// `template.control_tokens_in_text` encodes them as control tokens, as Hugging Face does.
    pub fn chat(&mut self, text: impl Into<String>) -> Result<Reply<'_>> {
        self.messages.push(Message::user(text));
        let known = self.soft.len();
        self.reply_to_last(known, Duration::ZERO)
    }

    /// Adds a user turn with pictures and sounds, in the order of its parts, and starts the reply
    /// like [`chat`](Self::chat). The first picture or sound opens its tower, and equal pictures
    /// and sounds are not run again.
    ///
    /// Unsupported parts and a conversation that exceeds the context are detected before any tower
    /// or shard runs.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] for a model without such a tower or template, errors of reading
    /// the parts, [`ErrorKind::Context`], and [`ErrorKind::Cancelled`] if the cancel handle was
    /// used while a tower was opened or ran.
    pub fn chat_parts(&mut self, parts: impl IntoIterator<Item = ChatPart>) -> Result<Reply<'_>> {
        self.chat_parts_watched(parts, &mut ())
    }

    /// Starts the reply like [`chat_parts`](Self::chat_parts), with progress until the reply
    /// begins. The first time may take seconds: files of a bundle's tower are hashed unless proofs
    /// exist, see `verified_towers` of [`Model::report`](crate::Model::report). `watch` can also
    /// cancel opening a tower.
    ///
    /// # Errors
    ///
    /// The errors of [`chat_parts`](Self::chat_parts).
    pub fn chat_parts_watched(
        &mut self,
        parts: impl IntoIterator<Item = ChatPart>,
        watch: &mut dyn Watch,
    ) -> Result<Reply<'_>> {
        let known = self.soft.len();
        let parts: Vec<ChatPart> = parts.into_iter().collect();
        if parts.iter().all(|part| matches!(part, ChatPart::Text(_))) {
            let texts = parts.into_iter().filter_map(|part| match part {
                ChatPart::Text(text) => Some(ContentPart::text(text)),
                _ => None,
            });
            self.messages.push(of_parts(texts.collect()));
            return self.reply_to_last(known, Duration::ZERO);
        }
        let start = Instant::now();
        let processor = self.towers.processor()?;
        let senses: Vec<Sense> = parts.iter().filter_map(ChatPart::sense).collect();
        senses.into_iter().try_for_each(|sense| self.towers.expect(sense))?;
        let (mut contents, mut prepared) = (Vec::new(), Vec::new());
        for part in parts {
            let (content, more) = prepare(part, &processor, self.picture_tokens)?;
            more.iter().try_for_each(|part| self.towers.expect_room(part, &processor))?;
            contents.push(content);
            prepared.extend(more);
        }
        self.messages.push(of_parts(contents));
        let encoded = self.fits(&prepared).and_then(|()| {
            let cancel = self.inner.cancel_handle();
            let (mut all, count) = (Part::new(watch, 0..1000), prepared.len().max(1));
            let encode = |(index, part): (usize, &Prepared)| {
                let end = u32::try_from((index + 1) * 1000 / count).unwrap_or(1000);
                let rows = self.towers.encode(part, &processor, &cancel, &mut all.then(end))?;
                Ok((part.sense, rows))
            };
            prepared.iter().enumerate().map(encode).collect::<Result<Vec<_>>>()
        });
        match encoded {
            Ok(rows) => self.soft.extend(rows),
            Err(error) => {
                self.messages.pop();
                return Err(error);
            }
        }
        self.reply_to_last(known, start.elapsed())
    }

    /// Starts the reply to the last turn. On failure, the turn is removed, together with the rows
    /// beyond the first `known`. `took` is the time spent on the turn's pictures and sounds.
    fn reply_to_last(&mut self, known: usize, took: Duration) -> Result<Reply<'_>> {
        match self.conversation(&self.soft).and_then(|prompt| self.reply(prompt, true)) {
            Ok(generation) => Ok(Reply::new(self, generation.after_parts(took), Some(known))),
            Err(error) => {
                self.messages.pop();
                self.soft.truncate(known);
                Err(error)
            }
        }
    }

    /// Checks that the context has room for the conversation with these parts in its last turn.
    fn fits(&self, prepared: &[Prepared]) -> Result<()> {
        let cancel = self.inner.cancel_handle();
        let ids = self.text.encode_until(&self.messages, &self.template, &cancel)?;
        let counts = self.soft.iter().map(|(_, rows)| rows.rows());
        let counts = counts.chain(prepared.iter().map(|part| part.soft_tokens));
        // Each placeholder is replaced with its rows, one token before them and one after.
        self.expect_context(ids.len() + counts.map(|count| count + 1).sum::<usize>(), true)
    }

    /// Returns the conversation with rows in place of its placeholders.
    fn conversation(&self, soft: &[(Sense, Arc<SoftRows>)]) -> Result<Prompt> {
        let cancel = self.inner.cancel_handle();
        let ids = self.text.encode_until(&self.messages, &self.template, &cancel)?;
        if soft.is_empty() {
            return Ok(ids.into());
        }
        let tokens = self.text.prompt_tokens();
        let kinds = [(Sense::Picture, tokens.picture), (Sense::Sound, tokens.sound)];
        let mut prompt = Prompt::new();
        let mut left = soft.iter();
        for id in ids {
            let kind = kinds.iter().find_map(|(sense, tokens)| {
                Some((*sense, tokens.filter(|tokens| tokens.placeholder == id)?))
            });
            let Some((sense, PartTokens { placeholder, begin, end })) = kind else {
                prompt.push_tokens(&[id]);
                continue;
            };
            let Some((_, rows)) = left.next().filter(|(of, _)| *of == sense) else { return Err(misplaced()) };
            prompt.push_tokens(&[begin]);
            prompt.push_soft(placeholder, rows);
            prompt.push_tokens(&[end]);
        }
        match left.next() {
            None => Ok(prompt),
            Some(_) => Err(misplaced()),
        }
    }

    /// Starts a continuation of `text`, preceded by the special tokens that the tokenizer adds.
    /// Unlike in [`Session::chat`], special tokens that `text` spells out are encoded as such.
    /// Earlier text is forgotten, but a prefix that it shares with the new text is not run again.
    pub fn complete(&mut self, text: &str) -> Result<Reply<'_>> {
        let ids = self.text.encode_text_until(text, &self.inner.cancel_handle())?;
        self.complete_ids(ids)
    }

    /// Starts a continuation of token ids.
    pub fn complete_ids(&mut self, ids: Vec<u32>) -> Result<Reply<'_>> {
        self.messages.clear();
        self.soft.clear();
        let generation = self.reply(ids.into(), false)?;
        Ok(Reply::new(self, generation, None))
    }

    fn reply(&self, prompt: Prompt, chat: bool) -> Result<Generation> {
        if prompt.ids().is_empty() {
            return Err(Error::new(
                ErrorKind::Argument,
                "the prompt is empty, and the tokenizer does not add a first token",
            )
            .with_help("use a prompt of at least one character"));
        }
        self.expect_context(prompt.ids().len(), chat)?;
        let tokenizer = self.text.tokenizer()?;
        check_modality(self.inner.chain(), tokenizer, &prompt)?;
        let mut options = self.options.clone();
        options.thoughts = options.thoughts.or_else(|| ThoughtTokens::of(tokenizer));
        if let (None, Some(both)) = (options.max_tokens, self.text.generation.max_length) {
            options.max_tokens = Some(both.saturating_sub(prompt.ids().len()));
        }
        Ok(Generation::new(tokenizer, prompt, &options)?)
    }

    fn expect_context(&self, tokens: usize, chat: bool) -> Result<()> {
        let context = self.inner.chain().context();
        if tokens as u64 <= context {
            return Ok(());
        }
        let what = if chat { "conversation" } else { "prompt" };
        let what = format!("the {what} has {tokens} tokens, more than the context of {context}");
        Err(Error::new(ErrorKind::Context, what).with_help(match chat {
            true => "forget the oldest turn, shorten this one, or open the model with a longer context",
            false => "shorten the prompt, or open the model with a longer context",
        }))
    }

    /// Adds texts that end a reply.
    pub fn add_stop_strings<S: AsRef<str>>(&mut self, strings: &[S]) -> Result<()> {
        let strings = strings.iter().map(AsRef::as_ref);
        self.options.stop = self.options.stop.clone().with_strings(strings)?;
        Ok(())
    }

    /// Returns whether the checkpoint limits prompt and reply together (`max_length`). That limit
    /// applies while `options.max_tokens` is `None`.
    pub fn has_length_limit(&self) -> bool {
        self.text.generation.max_length.is_some()
    }

    /// Sets a variable for the chat template.
    pub fn set_template_variable(&mut self, name: &str, value: bool) {
        self.template = std::mem::take(&mut self.template).with_variable(name, value);
    }

    /// Returns whether the chat template reads a variable of this name. Templates ignore other
    /// variables.
    pub fn template_takes(&self, name: &str) -> bool {
        self.text.template_reads(name)
    }

    /// Sets whether the model thinks before it answers, through the variable of its chat template.
    ///
    /// Thoughts are delivered as [`GenerationEvent::ThoughtDelta`] and are not part of the answer.
    /// The conversation keeps them in the field `reasoning_content` of the turn. Templates leave
    /// them out of later prompts. `options.max_thought_tokens` limits their length.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the template reads neither `enable_thinking` nor `thinking`.
    pub fn set_thinking(&mut self, on: bool) -> Result<()> {
        let switch = SWITCHES.into_iter().find(|name| self.template_takes(name));
        let switch = switch.ok_or_else(|| {
            let what = "the chat template has no switch for thinking (`enable_thinking` or `thinking`)";
            Error::new(ErrorKind::Unsupported, what).with_help("leave the choice to the model")
        })?;
        self.set_template_variable(switch, on);
        Ok(())
    }

    /// Returns the turns so far.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Returns the token ids of the history, as far as they were run.
    pub fn tokens(&self) -> &[u32] {
        self.inner.tokens()
    }

    /// Removes the oldest user turn with its reply, and any turns in between. System turns stay.
    /// Returns `false` if there is no user turn. Use it before the next turn of a conversation that
    /// exceeds the context.
    pub fn forget_oldest_turn(&mut self) -> bool {
        let is_user = |message: &Message| message.role == "user";
        let Some(first) = self.messages.iter().position(is_user) else { return false };
        let end = self.messages[first + 1..].iter().position(is_user);
        let end = end.map_or(self.messages.len(), |next| first + 1 + next);
        let parts: usize = self.messages.drain(first..end).map(|message| parts_of(&message)).sum();
        self.soft.drain(..parts);
        true
    }

    /// Removes all messages and the history.
    pub fn clear(&mut self) {
        self.messages.clear();
        self.soft.clear();
        self.inner.clear();
    }

    /// Frees the memory of the KV cache, of all buffers and of drafts, for a session that is idle
    /// while memory is short. Messages, tokens, rows of pictures and sounds, and all settings stay.
    /// The next reply allocates the memory again and runs the history again, with the same tokens.
    /// [`GenerationStatistics::recomputed_tokens`] counts them.
    pub fn release(&mut self) {
        self.inner.release();
    }

    /// Returns whether the session is released.
    pub fn is_released(&self) -> bool {
        self.inner.is_released()
    }

    /// Allocates the memory of a released session and runs its history again now, so that the next
    /// reply does not wait for it. Returns the number of tokens that were run.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Memory`] if the budget leaves too little, [`ErrorKind::Cancelled`], and errors
    /// of running the history. The call can be repeated.
    pub fn resume(&mut self) -> Result<usize> {
        Ok(self.inner.resume()?)
    }

    /// Sets the drafts whose tokens replies verify, several per step. `None` disables drafts. A new
    /// session uses prompt lookup if its plan has an entry point for several rows.
    ///
    /// A draft changes the time of a reply, but not its tokens, which are always the model's. With
    /// sampling and a draft that draws its tokens at random, such as a [`ModelDraft`], the tokens
    /// have the same distribution, but the same seed may give another text.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the plan has no entry point for several rows.
    ///
    /// [`ModelDraft`]: crate::ModelDraft
    pub fn set_speculation(&mut self, speculation: Option<Speculation>) -> Result<()> {
        if speculation.is_some() && self.inner.decode_rows() < 2 {
            let what = "the plan has no entry point that verifies drafted tokens, such as `decode_16`";
            return Err(Error::new(ErrorKind::Unsupported, what).with_help(
                "drop the drafts, measure them with `shardwright tune --draft`, or compile with \
                 `--planner-option speculation=16`; `explain` shows why the plan has no such entry point",
            ));
        }
        self.inner.set_speculation(speculation);
        Ok(())
    }

    /// Returns the drafts whose tokens replies verify.
    pub fn speculation(&self) -> Option<&Speculation> {
        self.inner.speculation()
    }

    /// Returns a handle to end a reply from another thread.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.inner.cancel_handle()
    }

    /// Sets the time at which a reply ends as if it were done. `None` means no limit.
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.inner.set_deadline(deadline);
    }

    /// Returns where every step ran so far, and the copies between shards.
    pub fn placement(&self) -> PlacementRecord {
        self.inner.placement()
    }

    /// Returns the tokenizer. Waits until it is loaded.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.text.tokenizer()
    }
}

/// Variables that make chat templates let a model think first: `enable_thinking` of Gemma 4, Qwen 3
/// and SmolLM3, `thinking` of Granite.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

/// Field of a turn with the thoughts that precede it, as in the templates of Qwen 3 and Gemma 4.
const THOUGHTS: &str = "reasoning_content";

/// Rejects token ids that stand in for pictures or sounds, because only padding would run in their
/// place. The tables of the model list those ids.
pub(crate) fn check_modality(chain: &Chain, tokenizer: &Tokenizer, prompt: &Prompt) -> Result<()> {
    let stands_in = |id: u32| chain.assets().iter().any(|asset| asset.row_of(id) != id);
    let ids = prompt.ids().iter().enumerate();
    let Some((position, id)) = ids.filter(|(at, _)| !prompt.is_soft(*at)).find(|&(_, &id)| stands_in(id))
    else {
        return Ok(());
    };
    let token = tokenizer.id_to_token(*id).unwrap_or_default();
    let what = format!(
        "the prompt has the placeholder `{token}` (token {id}) at position {position}, but no picture or sound \
         for it"
    );
    Err(Error::new(ErrorKind::Unsupported, what)
        .with_help("pass pictures and sounds as parts of a turn, and remove the token"))
}

/// Returns the error that the placeholders of a chat template differ from the parts in number or
/// order.
fn misplaced() -> Error {
    let what = "the chat template does not have a placeholder for each picture and sound, in order";
    Error::new(ErrorKind::Unsupported, what)
        .with_help("use the template that the checkpoint was published with")
}

/// Creates a user's turn of these parts.
fn of_parts(parts: Vec<ContentPart>) -> Message {
    Message { role: "user".to_owned(), content: Some(Content::Parts(parts)), fields: Vec::new() }
}

/// Returns the number of pictures and sounds of a message.
fn parts_of(message: &Message) -> usize {
    match &message.content {
        Some(Content::Parts(parts)) => parts.iter().filter(|part| part.text.is_none()).count(),
        _ => 0,
    }
}

/// A reply in progress: an iterator over its events. Dropping it ends the reply.
pub struct Reply<'s> {
    session: &'s mut Session,
    generation: Generation,
    said: String,
    thoughts: String,
    /// In a conversation: number of rows of pictures and sounds before its last turn.
    chat: Option<usize>,
    ended: Ended,
    statistics: Option<GenerationStatistics>,
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

impl<'s> Reply<'s> {
    fn new(session: &'s mut Session, generation: Generation, chat: Option<usize>) -> Self {
        let (said, thoughts) = (String::new(), String::new());
        Reply { session, generation, said, thoughts, chat, ended: Ended::Early, statistics: None }
    }
}

impl Reply<'_> {
    /// Runs the reply to its end and returns the whole answer, without thoughts.
    pub fn text(mut self) -> Result<String> {
        for event in self.by_ref() {
            event?;
        }
        Ok(self.said.clone())
    }

    /// Returns the thoughts so far.
    pub fn thoughts(&self) -> &str {
        &self.thoughts
    }

    /// Frees the memory of the session between two events, as [`Session::release`] does. The next
    /// event allocates it again.
    pub fn release(&mut self) {
        self.session.release();
    }

    /// Returns counts and times so far.
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
            Ok(GenerationEvent::ThoughtDelta { text }) => self.thoughts.push_str(text),
            Ok(GenerationEvent::Done { statistics, reason }) => {
                self.statistics = Some(*statistics);
                if !matches!(reason, DoneReason::Cancelled | DoneReason::Deadline) {
                    self.ended = Ended::Done;
                }
            }
            Ok(GenerationEvent::Token { .. } | GenerationEvent::DraftDropped { .. }) => {}
            Err(_) => self.ended = Ended::Failed,
        }
        Some(event.map_err(Error::from))
    }
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        let Some(known) = self.chat else { return };
        let said = std::mem::take(&mut self.said);
        if self.ended == Ended::Failed || (self.ended == Ended::Early && said.is_empty()) {
            self.session.messages.pop();
            self.session.soft.truncate(known);
        } else {
            let mut message = Message::assistant(said);
            if !self.thoughts.is_empty() {
                message.fields.push((THOUGHTS.to_owned(), TemplateValue::from(&*self.thoughts)));
            }
            self.session.messages.push(message);
        }
    }
}
