//! Text, token by token.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use serde::Serialize;
use shardwright_text::{Reply, Sampler, SamplingParameters, Stop, StopRules, Tokenizer};

use crate::error::SessionError;
use crate::session::Session;

/// How a reply is made.
#[derive(Clone, Debug, Default)]
pub struct GenerationOptions {
    /// How tokens are chosen; greedy by default.
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
    /// The model gave a stop id.
    StopToken {
        /// The id.
        id: u32,
    },
    /// A stop string was complete.
    StopText {
        /// The string.
        text: String,
    },
    /// As many tokens as asked for.
    MaxTokens,
    /// No position is left for another token.
    ContextFull,
    /// Somebody asked to stop.
    Cancelled,
    /// The session's deadline passed.
    Deadline,
}

/// Counts and times of one reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct GenerationStatistics {
    /// Tokens of the prompt, the conversation so far included.
    pub prompt_tokens: usize,
    /// Of those, tokens whose states were there already.
    pub reused_tokens: usize,
    /// Of those, tokens that were run.
    pub run_tokens: usize,
    /// Tokens generated, a stop token included.
    pub generated_tokens: usize,
    /// From the first call to the first token.
    pub time_to_first_token: Duration,
    /// Time in which the prompt was run.
    pub prompt_time: Duration,
    /// Time from the first token to the last.
    pub decode_time: Duration,
}

impl GenerationStatistics {
    /// Prompt tokens run in a second; 0 where none were.
    pub fn prefill_tokens_per_second(&self) -> f64 {
        rate(self.run_tokens, self.prompt_time)
    }

    /// Tokens after the first in a second; 0 where there were none.
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
    /// Text that is certain: whole characters, never a part of a stop string.
    TextDelta {
        /// The text; not empty.
        text: String,
    },
    /// The last event.
    Done {
        /// Why it ended.
        reason: DoneReason,
        /// What it took.
        statistics: GenerationStatistics,
    },
}

/// One reply in the making. It owns no session; [`Generation::next`] is given the same one every
/// time, and afterwards that holds the prompt and the reply, but for the last token, and of its
/// logits those right that choosing a token looks at.
pub struct Generation {
    prompt: Vec<u32>,
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
    /// The token that was chosen last and not run yet.
    Token(u32),
    Ended,
}

impl Generation {
    /// A reply to `prompt` (ids of the whole conversation so far; what the session holds of it
    /// already is not run again). Nothing runs before the first [`Generation::next`].
    pub fn new(
        tokenizer: &Tokenizer,
        prompt: Vec<u32>,
        options: &GenerationOptions,
    ) -> Result<Self, SessionError> {
        Ok(Generation {
            sampler: Sampler::new(options.sampling)?,
            reply: Reply::new(tokenizer, &options.stop, !options.show_special),
            max_tokens: options.max_tokens.unwrap_or(usize::MAX),
            events: VecDeque::new(),
            stage: Stage::Prompt,
            statistics: GenerationStatistics {
                prompt_tokens: prompt.len(),
                ..GenerationStatistics::default()
            },
            first_token: None,
            prompt,
        })
    }

    /// The next event; `None` after [`GenerationEvent::Done`] and after an error. Runs the session
    /// as far as needed.
    ///
    /// A cancellation or deadline is no error here: the text held back is given and the reply is
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

    /// One step of the session and what follows from it; `None` at the end.
    fn advance(&mut self, session: &mut Session) -> Option<Result<(), SessionError>> {
        let largest = self.sampler.parameters().largest_logits();
        let ran = match self.stage {
            Stage::Ended => return None,
            Stage::Prompt => session.looking_at(largest, |session| self.run_prompt(session)),
            Stage::Token(id) => session.looking_at(largest, |session| session.append(&[id])).map(|_| ()),
        };
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
        let prompted = session.prompt(&self.prompt)?;
        self.statistics.prompt_time = start.elapsed();
        self.statistics.reused_tokens = prompted.reused;
        self.statistics.run_tokens = prompted.run;
        Ok(())
    }

    /// Chooses a token from the session's logits.
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
                self.statistics.time_to_first_token = self.statistics.prompt_time + (now - choosing);
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
            // The text held back may complete a stop string: then that came first.
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
    /// Generates a reply to `prompt` and hands every event to `receive`, which may break off: that
    /// ends the reply as cancelled. Gives the reason and the statistics.
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
