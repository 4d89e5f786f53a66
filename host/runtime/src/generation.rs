//! Text, token by token.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use serde::Serialize;
use shardwright_text::{Reply, Sampler, SamplingParameters, Stop, StopRules, Tokenizer};

use crate::error::SessionError;
use crate::session::Session;
use crate::soft::Prompt;

/// Options of a reply.
#[derive(Clone, Debug, Default)]
pub struct GenerationOptions {
    /// How tokens are sampled; greedy by default.
    pub sampling: SamplingParameters,
    /// What ends the reply; nothing by default.
    pub stop: StopRules,
    /// Most tokens to generate; `None`: until a rule ends it or the context is full.
    pub max_tokens: Option<usize>,
    /// Whether special tokens appear in the text; not by default.
    pub show_special: bool,
}

/// Why a reply ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "reason")]
pub enum DoneReason {
    /// The model generated a stop id.
    StopToken {
        /// The id.
        id: u32,
    },
    /// A stop string was complete.
    StopText {
        /// The string.
        text: String,
    },
    /// The requested number of tokens was reached.
    MaxTokens,
    /// The context has no position for another token.
    ContextFull,
    /// The reply was cancelled.
    Cancelled,
    /// The session's deadline passed.
    Deadline,
}

/// Counts and times of one reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct GenerationStatistics {
    /// Tokens of the prompt, the conversation so far included.
    pub prompt_tokens: usize,
    /// Of those, tokens whose states existed already.
    pub reused_tokens: usize,
    /// Of those, tokens that were run.
    pub run_tokens: usize,
    /// Tokens of the history, of the prompt or of the reply, that were run again because their
    /// states were released or lost.
    pub recomputed_tokens: usize,
    /// Tokens generated, a stop token included.
    pub generated_tokens: usize,
    /// Time that pictures and sounds of the last turn took before the prompt was run: 0 without.
    pub parts_time: Duration,
    /// From the first call to the first token, and what pictures and sounds took before.
    pub time_to_first_token: Duration,
    /// Time to run the prompt.
    pub prompt_time: Duration,
    /// Time from the first token to the last.
    pub decode_time: Duration,
}

impl GenerationStatistics {
    /// Prompt tokens run per second; 0 if none were run.
    pub fn prefill_tokens_per_second(&self) -> f64 {
        rate(self.run_tokens, self.prompt_time)
    }

    /// Tokens after the first per second; 0 if there were none.
    pub fn decode_tokens_per_second(&self) -> f64 {
        rate(self.generated_tokens.saturating_sub(1), self.decode_time)
    }
}

fn rate(tokens: usize, time: Duration) -> f64 {
    if tokens == 0 || time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}

/// What happens during a reply.
#[derive(Clone, Debug, PartialEq)]
pub enum GenerationEvent {
    /// A token was chosen.
    Token {
        /// Its id.
        id: u32,
    },
    /// Text that is final: whole characters, never a part of a stop string.
    TextDelta {
        /// The text; not empty.
        text: String,
    },
    /// The last event.
    Done {
        /// Why it ended.
        reason: DoneReason,
        /// Counts and times.
        statistics: GenerationStatistics,
    },
}

/// A reply in progress. It owns no session; pass the same one to every [`Generation::next`].
/// Afterwards that session contains the prompt and the reply except the last token, and its logits
/// are exact as far as sampling needs them.
pub struct Generation {
    prompt: Prompt,
    sampler: Sampler,
    reply: Reply,
    max_tokens: usize,
    events: VecDeque<GenerationEvent>,
    stage: Stage,
    statistics: GenerationStatistics,
    first_token: Option<Instant>,
}

impl std::fmt::Debug for Generation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Generation").field("statistics", &self.statistics).finish_non_exhaustive()
    }
}

enum Stage {
    Prompt,
    /// The token that was sampled last and has not been run.
    Token(u32),
    Ended,
}

impl Generation {
    /// Starts a reply to `prompt` (the whole conversation so far; the prefix that the session
    /// already has is not run again). Nothing runs before the first [`Generation::next`].
    pub fn new(
        tokenizer: &Tokenizer,
        prompt: impl Into<Prompt>,
        options: &GenerationOptions,
    ) -> Result<Self, SessionError> {
        let prompt = prompt.into();
        Ok(Generation {
            sampler: Sampler::new(options.sampling)?,
            reply: Reply::new(tokenizer, &options.stop, !options.show_special),
            max_tokens: options.max_tokens.unwrap_or(usize::MAX),
            events: VecDeque::new(),
            stage: Stage::Prompt,
            statistics: GenerationStatistics {
                prompt_tokens: prompt.ids().len(),
                ..GenerationStatistics::default()
            },
            first_token: None,
            prompt,
        })
    }

    /// The same, where pictures and sounds of the last turn took so long.
    #[must_use]
    pub fn after_parts(mut self, took: Duration) -> Self {
        self.statistics.parts_time = took;
        self
    }

    /// The next event; `None` after [`GenerationEvent::Done`] and after an error. Runs the session
    /// as far as needed.
    ///
    /// A cancellation or deadline is not an error here: pending text is emitted and the reply is
    /// done.
    pub fn next(&mut self, session: &mut Session) -> Option<Result<GenerationEvent, SessionError>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(Ok(event));
            }
            if let Err(error) = self.advance(session)? {
                self.stage = Stage::Ended;
                return Some(Err(error));
            }
        }
    }

    /// Counts and times so far.
    pub fn statistics(&self) -> &GenerationStatistics {
        &self.statistics
    }

    /// Runs one step of the session and handles its result; `None` at the end.
    fn advance(&mut self, session: &mut Session) -> Option<Result<(), SessionError>> {
        let largest = self.sampler.parameters().largest_logits();
        let before = session.recomputed();
        let ran = match self.stage {
            Stage::Ended => return None,
            Stage::Prompt => session.looking_at(largest, |session| self.run_prompt(session)),
            Stage::Token(id) => session.looking_at(largest, |session| session.append(&[id])).map(|_| ()),
        };
        self.statistics.recomputed_tokens += session.recomputed() - before;
        let outcome = match ran {
            Ok(()) => self.choose(session),
            Err(SessionError::Cancelled { .. }) => self.end(session, DoneReason::Cancelled),
            Err(SessionError::Deadline { .. }) => self.end(session, DoneReason::Deadline),
            Err(error) => Err(error),
        };
        Some(outcome)
    }

    fn run_prompt(&mut self, session: &mut Session) -> Result<(), SessionError> {
        if self.max_tokens == 0 {
            return Ok(());
        }
        let start = Instant::now();
        let prompted = session.prompt_parts(&self.prompt)?;
        self.statistics.prompt_time = start.elapsed();
        self.statistics.reused_tokens = prompted.reused;
        self.statistics.run_tokens = prompted.run;
        Ok(())
    }

    /// Samples a token from the session's logits.
    fn choose(&mut self, session: &mut Session) -> Result<(), SessionError> {
        if self.max_tokens == 0 {
            return self.end(session, DoneReason::MaxTokens);
        }
        let choosing = Instant::now();
        let id = self.sampler.sample(session.logits().unwrap_or(&[]), session.tokens())?;
        let now = Instant::now();
        self.statistics.generated_tokens += 1;
        match self.first_token {
            Some(first) => self.statistics.decode_time = now - first,
            None => {
                self.statistics.time_to_first_token =
                    self.statistics.parts_time + self.statistics.prompt_time + (now - choosing);
                self.first_token = Some(now);
            }
        }
        self.events.push_back(GenerationEvent::Token { id });
        let step = self.reply.push(id)?;
        self.deliver(step.text);
        match step.stop {
            Some(Stop::Id(id)) => self.end(session, DoneReason::StopToken { id }),
            Some(Stop::Text(text)) => self.end(session, DoneReason::StopText { text }),
            None if self.statistics.generated_tokens >= self.max_tokens => {
                self.end(session, DoneReason::MaxTokens)
            }
            None if session.remaining() == 0 => self.end(session, DoneReason::ContextFull),
            None => {
                self.stage = Stage::Token(id);
                Ok(())
            }
        }
    }

    fn deliver(&mut self, text: String) {
        if !text.is_empty() {
            self.events.push_back(GenerationEvent::TextDelta { text });
        }
    }

    fn end(&mut self, session: &Session, mut reason: DoneReason) -> Result<(), SessionError> {
        if self.reply.stop().is_none() {
            let rest = self.reply.finish()?;
            self.deliver(rest);
            // The pending text may complete a stop string: then that is the reason.
            if let Some(Stop::Text(text)) = self.reply.stop() {
                reason = DoneReason::StopText { text: text.clone() };
            }
        }
        session.cancel_handle().reset();
        self.stage = Stage::Ended;
        self.events.push_back(GenerationEvent::Done { reason, statistics: self.statistics });
        Ok(())
    }
}

impl Session {
    /// Generates a reply to `prompt` and passes every event to `receive`, which may break: that
    /// ends the reply as cancelled. Returns the reason and the statistics.
    pub fn generate(
        &mut self,
        tokenizer: &Tokenizer,
        prompt: &[u32],
        options: &GenerationOptions,
        receive: &mut dyn FnMut(&GenerationEvent) -> ControlFlow<()>,
    ) -> Result<(DoneReason, GenerationStatistics), SessionError> {
        let mut generation = Generation::new(tokenizer, prompt.to_vec(), options)?;
        while let Some(event) = generation.next(self) {
            let event = event?;
            let flow = receive(&event);
            if let GenerationEvent::Done { reason, statistics } = event {
                return Ok((reason, statistics));
            }
            if flow.is_break() {
                break;
            }
        }
        Ok((DoneReason::Cancelled, *generation.statistics()))
    }
}
