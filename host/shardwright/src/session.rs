use std::sync::Arc;
use std::time::Instant;

use shardwright_runtime::{
    BeforeStep, CancelHandle, Chain, Generation, GenerationOptions, PlacementRecord, Prompt, Speculation,
};
use shardwright_text::{
    CallFormat, Message, RenderOptions, ThoughtTokens, Tokenizer, ToolChoice, ToolDefinition,
};

use crate::policy::NextChainMaker;
use crate::reopening::{Reopen, Reopened};
use crate::text_side::TextSide;
use crate::towers::Towers;
use crate::{Error, ErrorKind, Result, Turn};
use conversation::Soft;
pub use reply::{DetachedReply, Reply, ReplyRequest};

#[cfg(feature = "constraint")]
mod constrained;
mod conversation;
mod reply;
pub(crate) mod saved;
mod tools;

/// A conversation or a text in progress, with its own states (KV cache).
///
/// Tokens are run only once: a new turn costs only its own tokens. Use [`Session::cancel_handle`]
/// to end a reply from another thread. The session stays usable.
pub struct Session {
    inner: shardwright_runtime::Session,
    text: Arc<TextSide>,
    towers: Arc<Towers>,
    /// Makes the chains that a fork fails over to.
    next: Option<Arc<NextChainMaker>>,
    /// Hash of the model's plan.
    plan: String,
    turns: Vec<Turn>,
    /// The turns as the chat template gets them.
    messages: Vec<Message>,
    /// Rows of the pictures and sounds of all turns, in their order.
    soft: Vec<Soft>,
    tools: Vec<ToolDefinition>,
    tool_choice: ToolChoice,
    /// How the model writes calls, once tools were set.
    call_format: Option<CallFormat>,
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
        next: Option<Arc<NextChainMaker>>,
        plan: String,
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
        Session {
            inner,
            text,
            towers,
            next,
            plan,
            turns: Vec::new(),
            messages: Vec::new(),
            soft: Vec::new(),
            tools: Vec::new(),
            tool_choice: ToolChoice::Auto,
            call_format: None,
            options,
            template,
            picture_tokens: None,
        }
    }

    /// Starts a continuation of `text`, preceded by the special tokens that the tokenizer adds.
    /// Unlike in [`Session::chat`], special tokens that `text` spells out are encoded as such.
    /// Earlier text is forgotten, but a prefix that it shares with the new text is not run again.
    pub fn complete(&mut self, text: &str) -> Result<Reply<'_>> {
        let reply = self.begin_text(text)?;
        Ok(Reply::new(self, reply))
    }

    fn begin_text(&mut self, text: &str) -> Result<DetachedReply> {
        let ids = self.text.encode_text_until(text, &self.inner.cancel_handle())?;
        self.begin_ids(ids)
    }

    /// Starts a continuation of token ids.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Argument`] for an id beyond the vocabulary, and the errors of
    /// [`complete`](Self::complete).
    pub fn complete_ids(&mut self, ids: Vec<u32>) -> Result<Reply<'_>> {
        let reply = self.begin_ids(ids)?;
        Ok(Reply::new(self, reply))
    }

    fn begin_ids(&mut self, ids: Vec<u32>) -> Result<DetachedReply> {
        let vocabulary = self.inner.chain().description().structure.vocabulary;
        if let Some(id) = ids.iter().find(|id| u64::from(**id) >= vocabulary) {
            let what = format!("token {id} is not one of the {vocabulary} tokens of the vocabulary");
            return Err(Error::argument(what).with_help("encode the text with the model's own tokenizer"));
        }
        self.forget_turns();
        let generation = self.reply(ids.into(), false)?;
        Ok(DetachedReply::new(generation, None))
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
        if chat {
            self.expect_calls(&mut options)?;
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
    ///
    /// [`GenerationEvent::ThoughtDelta`]: crate::GenerationEvent::ThoughtDelta
    pub fn set_thinking(&mut self, on: bool) -> Result<()> {
        let switch = SWITCHES.into_iter().find(|name| self.template_takes(name));
        let switch = switch.ok_or_else(|| {
            let what = "the chat template has no switch for thinking (`enable_thinking` or `thinking`)";
            Error::new(ErrorKind::Unsupported, what).with_help("leave the choice to the model")
        })?;
        self.set_template_variable(switch, on);
        Ok(())
    }

    /// Returns the token ids of the history, as far as they were run.
    pub fn tokens(&self) -> &[u32] {
        self.inner.tokens()
    }

    /// Frees the memory of the KV cache, of all buffers and of drafts, for a session that is idle
    /// while memory is short. Messages, tokens, rows of pictures and sounds, and all settings stay.
    /// The next reply allocates the memory again and runs the history again, with the same tokens.
    /// [`GenerationStatistics::recomputed_tokens`] counts them.
    ///
    /// [`GenerationStatistics::recomputed_tokens`]: crate::GenerationStatistics::recomputed_tokens
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

    /// Sets a callback that runs before each step, also within a long prompt. Sessions of several
    /// threads can wait there for their turn. `None`, the default, for none. Towers of pictures and
    /// sounds run without it.
    pub fn set_before_step(&mut self, before: Option<BeforeStep>) {
        self.inner.set_before_step(before);
    }

    /// Sets a callback that opens the model again after its device, or the worker process that
    /// serves it, was lost and the plan has no further fallback. `None`, the default, for none. The
    /// reply continues with the same tokens on the returned chains, within the call that found the
    /// loss, and [`placement`](Self::placement) reports the move. The callback runs on the thread
    /// of that call, before each attempt. It may give up with `None`.
    ///
    /// Set it before the first reply. Forks do not inherit it.
    pub fn set_reopen(&mut self, reopen: Option<Reopen>) {
        let planned = self.next.as_ref().map(|next| next());
        self.inner.set_next_chain(match reopen {
            None => planned,
            Some(reopen) => Some(Box::new(Reopened::new(planned, reopen))),
        });
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
