//! Generation of text, token by token.

#[cfg_attr(not(feature = "constraint"), path = "generation/unguided.rs")]
mod guide;
mod statistics;

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use serde::Serialize;
use shardwright_drafting::{Drafted, DroppedDraft, Speculation, SpeculationStatistics};
use shardwright_text::{
    CallEvent, CallRules, Reply, ReplyStep, Sampler, SamplingParameters, Stop, StopRules, ThoughtTokens,
    TokenRules, TokenVerdict, Tokenizer, ToolCall,
};
use shardwright_vocabulary::Error;

use crate::error::{SessionError, no_tokens, not_generative};
use crate::likelihood::TokenLikelihood;
use crate::session::Session;
use crate::soft_rows::Prompt;
use guide::Guide;
pub use statistics::GenerationStatistics;

/// Options of a reply.
#[derive(Clone, Debug, Default)]
pub struct GenerationOptions {
    /// Sampling parameters, greedy by default.
    pub sampling: SamplingParameters,
    /// Tokens that must not be chosen. By default all are allowed.
    pub rules: TokenRules,
    /// Rules that end the reply, none by default.
    pub stop: StopRules,
    /// Most tokens to generate, including thoughts. With `None` the reply continues until a rule
    /// ends it or the context is full.
    pub max_tokens: Option<usize>,
    /// Tokens that enclose thoughts. If set, thoughts are delivered separately from the answer and
    /// are not searched for stop strings. With `None`, the default, thoughts are part of the text.
    pub thoughts: Option<ThoughtTokens>,
    /// Most tokens of thoughts, `None` for no limit. At the limit the token that ends a thought
    /// follows, regardless of the model's prediction.
    pub max_thought_tokens: Option<usize>,
    /// Rules for calls of tools, which are delivered separately from the answer and are not
    /// searched for stop strings. With `None`, the default, calls are part of the text.
    pub calls: Option<CallRules>,
    /// Whether special tokens, and thoughts and calls with them, appear in the text. False by
    /// default.
    pub show_special: bool,
    /// Number of likeliest tokens to report with the likelihood of each chosen token, `None`, the
    /// default, for no report. Then all logits of each row are computed.
    pub likelihoods: Option<usize>,
    /// Grammar that the answer must match, `None`, the default, for any text. Thoughts before the
    /// answer are not restricted.
    #[cfg(feature = "constraint")]
    pub constraint: Option<shardwright_constraint::Constraint>,
}

/// Reason why a reply ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "reason")]
pub enum DoneReason {
    /// The model generated a stop token.
    StopToken {
        /// Id of the stop token.
        id: u32,
    },
    /// A stop string was completed.
    StopText { text: String },
    /// The reply matches the grammar, which allows no further token.
    GrammarEnd,
    /// The requested number of tokens was reached.
    MaxTokens,
    /// The context has no position for another token.
    ContextFull,
    /// The reply was cancelled.
    Cancelled,
    /// The session's deadline passed.
    Deadline,
}

/// An event during a reply.
#[allow(clippy::large_enum_variant, reason = "the large one is the last of a reply")]
#[derive(Clone, Debug, PartialEq)]
pub enum GenerationEvent {
    /// A token was chosen.
    Token {
        /// Id of the token.
        id: u32,
    },
    /// Final text: whole characters, never a part of a stop string.
    TextDelta {
        /// The text, never empty.
        text: String,
    },
    /// Final text of a thought: whole characters.
    ThoughtDelta {
        /// The text, never empty.
        text: String,
    },
    /// A call of a tool began.
    ToolCallBegin {
        /// Number of the call in the reply.
        index: usize,
        /// Id of the call.
        id: String,
        /// Name of the tool.
        name: String,
    },
    /// More of the arguments of a call. The texts of a call together are JSON.
    ToolCallArguments {
        /// Number of the call in the reply.
        index: usize,
        /// The text, never empty.
        text: String,
    },
    /// A call is complete.
    ToolCall {
        /// Number of the call in the reply.
        index: usize,
        /// The call.
        call: ToolCall,
    },
    /// A call that had begun is not a call, or is cut. Its text follows as text of the answer.
    ToolCallDropped {
        /// Number of the call in the reply.
        index: usize,
    },
    /// A draft was dropped, because it failed or made an invalid proposal. The reply continues
    /// without it and is the same, in more steps.
    DraftDropped {
        /// The draft, and the reason.
        draft: DroppedDraft,
    },
    /// The last event of a reply.
    Done {
        /// Reason why the reply ended.
        reason: DoneReason,
        statistics: GenerationStatistics,
    },
}

/// A reply in progress. It does not own a session: pass the same session to every
/// [`Generation::next`]. Afterwards that session contains the prompt and the reply except for the
/// last token, and its logits are exact as far as sampling needs them.
pub struct Generation {
    prompt: Prompt,
    sampler: Sampler,
    reply: Reply,
    max_tokens: usize,
    max_thought_tokens: usize,
    /// Tokens to choose instead of sampled ones.
    given: Option<Vec<u32>>,
    guide: Guide,
    /// Tokens that the grammar forces after the last one.
    forced: Vec<u32>,
    /// Steps for forced tokens, which drafts do not count.
    forced_steps: u64,
    /// Whether only the largest logits of the current step are exact.
    approximate: bool,
    events: VecDeque<GenerationEvent>,
    /// Number of likeliest tokens to report, if requested.
    likeliest: Option<usize>,
    likelihoods: Vec<TokenLikelihood>,
    stage: Stage,
    /// The last chosen token.
    last: Option<u32>,
    /// Reason why the reply ends after the pending events are delivered.
    ended: Option<DoneReason>,
    statistics: GenerationStatistics,
    first_token: Option<Instant>,
    /// Statistics of the session's drafts when the reply began.
    drafted_before: SpeculationStatistics,
    /// Number of drafts that were dropped before the reply or that an event reported.
    dropped_told: usize,
}

impl std::fmt::Debug for Generation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Generation").field("statistics", &self.statistics).finish_non_exhaustive()
    }
}

enum Stage {
    Prompt,
    /// The last sampled token, which has not been run.
    Token(u32),
    Ended,
}

impl Generation {
    /// Starts a reply to `prompt`, which is the whole conversation so far. The prefix that the
    /// session already has is not run again. No run starts before the first [`Generation::next`].
    pub fn new(
        tokenizer: &Tokenizer,
        prompt: impl Into<Prompt>,
        options: &GenerationOptions,
    ) -> Result<Self, SessionError> {
        let prompt = prompt.into();
        let reply = Reply::new(tokenizer, &options.stop, !options.show_special);
        let thoughts = options.thoughts.filter(|_| !options.show_special);
        let reply = match options.calls.clone().filter(|_| !options.show_special) {
            Some(rules) => reply.with_calls(rules),
            None => reply,
        };
        Ok(Generation {
            sampler: Sampler::new(options.sampling)?.with_rules(options.rules.clone(), prompt.ids().len()),
            reply: match thoughts {
                Some(tokens) => reply.with_thoughts(tokens, prompt.ids()),
                None => reply,
            },
            max_tokens: options.max_tokens.unwrap_or(usize::MAX),
            max_thought_tokens: options.max_thought_tokens.unwrap_or(usize::MAX),
            given: None,
            guide: Guide::new(options, prompt.ids())?,
            forced: Vec::new(),
            forced_steps: 0,
            approximate: false,
            events: VecDeque::new(),
            likeliest: options.likelihoods,
            likelihoods: Vec::new(),
            stage: Stage::Prompt,
            last: None,
            ended: None,
            statistics: GenerationStatistics {
                prompt_tokens: prompt.ids().len(),
                ..GenerationStatistics::default()
            },
            first_token: None,
            drafted_before: SpeculationStatistics::default(),
            dropped_told: 0,
            prompt,
        })
    }

    /// Sets the time that pictures and sounds of the last turn needed.
    #[must_use]
    pub fn after_parts(mut self, took: Duration) -> Self {
        self.statistics.parts_time = took;
        self
    }

    /// Forces these tokens instead of sampling, regardless of the model, the stop rules and the
    /// grammar. The reply ends with them. This measures the cost of a known text: the time of a
    /// sampled reply without the sampling.
    #[must_use]
    pub fn given(mut self, reply: Vec<u32>) -> Self {
        self.max_tokens = self.max_tokens.min(reply.len());
        self.reply.never_stop();
        self.guide.release();
        self.given = Some(reply);
        self
    }

    /// Returns the next event, or `None` after [`GenerationEvent::Done`] and after an error. Runs
    /// the session as far as needed.
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

    /// Returns the likelihoods of the tokens that were chosen since the last call, if
    /// [`GenerationOptions::likelihoods`] requests them. There is one for each
    /// [`GenerationEvent::Token`], in the same order, possibly before that event.
    pub fn take_likelihoods(&mut self) -> Vec<TokenLikelihood> {
        std::mem::take(&mut self.likelihoods)
    }

    /// Returns the counts and times so far.
    pub fn statistics(&self) -> &GenerationStatistics {
        &self.statistics
    }

    /// Runs one step of the session and handles its result. Returns `None` at the end.
    fn advance(&mut self, session: &mut Session) -> Option<Result<(), SessionError>> {
        let restricted = matches!(self.stage, Stage::Prompt) && self.guide.is_active();
        let trusted = !restricted && self.likeliest.is_none() && self.guide.trusts_largest();
        let largest = self.sampler.largest_logits().filter(|_| trusted);
        self.approximate = largest.is_some() && self.guide.is_active();
        let before = session.recomputed();
        let stage = std::mem::replace(&mut self.stage, Stage::Ended);
        let ran = match stage {
            Stage::Ended => return None,
            Stage::Prompt => session.looking_at(largest, |session| self.run_prompt(session)),
            Stage::Token(id) => session.looking_at(largest, |session| self.run_step(session, id)),
        };
        self.statistics.recomputed_tokens += session.recomputed() - before;
        let outcome = match ran {
            Ok(()) => self.go_on(session),
            Err(SessionError::Cancelled { .. }) => self.end(session, DoneReason::Cancelled),
            Err(SessionError::Deadline { .. }) => self.end(session, DoneReason::Deadline),
            Err(error) => Err(error),
        };
        Some(outcome)
    }

    fn run_prompt(&mut self, session: &mut Session) -> Result<(), SessionError> {
        if self.max_tokens == 0 {
            self.ended = Some(DoneReason::MaxTokens);
            return Ok(());
        }
        let start = Instant::now();
        self.forced = self.guide.forced(self.max_tokens)?;
        self.guide.begin_mask();
        let prompted = session.prompt_parts(&self.prompt)?;
        self.statistics.prompt_time = start.elapsed();
        self.statistics.reused_tokens = prompted.reused;
        self.statistics.run_tokens = prompted.run;
        if let Some(mut speculation) = session.take_speculation() {
            speculation.begin(self.sampler.parameters());
            self.drafted_before = *speculation.statistics();
            self.dropped_told = speculation.dropped().len();
            session.set_speculation(Some(speculation));
        }
        let choosing = Instant::now();
        let logits = session.logits().unwrap_or(&[]);
        let chosen = self.choose(logits, session.tokens(), &Drafted::default(), 0)?;
        let (id, _) = chosen.ok_or_else(undecided)?;
        self.statistics.time_to_first_token =
            self.statistics.parts_time + self.statistics.prompt_time + choosing.elapsed();
        self.accept(id, session.remaining())
    }

    /// Runs the last token together with drafted tokens after it, and chooses the tokens that
    /// follow.
    fn run_step(&mut self, session: &mut Session, id: u32) -> Result<(), SessionError> {
        let most = self.max_tokens - self.statistics.generated_tokens;
        self.forced = self.guide.forced(most)?;
        if !self.forced.is_empty() {
            return self.run_forced(session, id, most - 1);
        }
        let Some(mut speculation) = session.take_speculation() else {
            self.statistics.speculation.steps += 1;
            return self.verify(session, id, &Drafted::default()).map(drop);
        };
        let done = self.speculate(session, id, &mut speculation);
        for draft in speculation.dropped().iter().skip(self.dropped_told) {
            self.events.push_back(GenerationEvent::DraftDropped { draft: draft.clone() });
        }
        self.dropped_told = speculation.dropped().len();
        self.statistics.speculation = speculation.statistics().since(&self.drafted_before);
        self.statistics.speculation.steps += self.forced_steps;
        session.set_speculation(Some(speculation));
        done
    }

    /// Runs the last token together with as many forced tokens after it as the step has rows for,
    /// at most `most`.
    fn run_forced(&mut self, session: &mut Session, id: u32, most: usize) -> Result<(), SessionError> {
        self.forced_steps += 1;
        self.statistics.speculation.steps += 1;
        let runnable = session.runnable(&self.forced[..most.min(self.forced.len())]);
        let drafted = Drafted::certain(runnable.to_vec());
        self.verify(session, id, &drafted).map(drop)
    }

    fn speculate(
        &mut self,
        session: &mut Session,
        id: u32,
        speculation: &mut Speculation,
    ) -> Result<(), SessionError> {
        // A step chooses one more token than is drafted.
        let wanted = self.max_tokens - self.statistics.generated_tokens - 1;
        let room = session.decode_rows().min(session.remaining()).saturating_sub(1);
        let vocabulary = session.chain().description().structure.vocabulary;
        let vocabulary = usize::try_from(vocabulary).unwrap_or(usize::MAX);
        let history = [session.tokens(), &[id]].concat();
        let interrupted = || session.is_interrupted();
        let mut drafted = speculation.propose(&history, wanted.min(room), vocabulary, &interrupted);
        let runnable = session.runnable(&drafted.tokens).len();
        drafted.tokens.truncate(runnable);
        let allowed = self.guide.allowed(&drafted.tokens)?;
        drafted.tokens.truncate(allowed);
        let start = Instant::now();
        let chosen = self.verify(session, id, &drafted)?;
        speculation.stepped(&drafted, &chosen, start.elapsed());
        Ok(())
    }

    /// Runs a token and the drafted tokens after it. Returns the chosen tokens.
    fn verify(
        &mut self,
        session: &mut Session,
        id: u32,
        drafted: &Drafted,
    ) -> Result<Vec<u32>, SessionError> {
        let history = [session.tokens(), &[id], &drafted.tokens].concat();
        let (before, remaining) = (session.tokens().len(), session.remaining());
        let mut chosen = Vec::new();
        let (mut fault, mut decided) = (None, true);
        if self.forced.is_empty() {
            self.guide.begin_mask();
        }
        let rows = session.verify(id, &drafted.tokens, &mut |row, logits| {
            let history = &history[..=before + row];
            let (flow, done) = match self.choose(logits, history, drafted, row) {
                Ok(Some((id, flow))) => {
                    chosen.push(id);
                    (flow, self.accept(id, remaining - row - 1))
                }
                Ok(None) => {
                    decided = false;
                    (ControlFlow::Break(()), Ok(()))
                }
                Err(error) => (ControlFlow::Break(()), Err(error.into())),
            };
            match done {
                Ok(()) if self.ended.is_none() => flow,
                Ok(()) => ControlFlow::Break(()),
                Err(error) => {
                    fault = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        if let Some(error) = fault {
            return Err(error);
        }
        if rows == 0 {
            // A chain that generates has a decode entry.
            return Err(not_generative());
        }
        self.guide.stepped(self.approximate.then_some(decided));
        if !decided {
            chosen.push(self.choose_exactly(session)?);
        }
        Ok(chosen)
    }

    /// Runs the last row again for all of its logits, and chooses the token after it.
    fn choose_exactly(&mut self, session: &mut Session) -> Result<u32, SessionError> {
        self.statistics.repeated_steps += 1;
        self.approximate = false;
        self.forced.clear();
        session.repeat_last()?;
        let logits = session.logits().unwrap_or(&[]);
        let chosen = self.choose(logits, session.tokens(), &Drafted::default(), 0)?;
        let (id, _) = chosen.ok_or_else(undecided)?;
        self.accept(id, session.remaining())?;
        Ok(id)
    }

    /// Chooses the token after a row. Returns whether the next row is a row of this token, or
    /// `None` if the largest logits do not decide.
    fn choose(
        &mut self,
        logits: &[f32],
        history: &[u32],
        drafted: &Drafted,
        row: usize,
    ) -> Result<Option<(u32, ControlFlow<()>)>, Error> {
        let given = self.given.as_ref().and_then(|given| given.get(self.statistics.generated_tokens));
        let thought_ends = self.reply.thought_tokens() >= self.max_thought_tokens;
        let end = self.reply.thought_end().filter(|_| thought_ends);
        let given = given.or(end.as_ref());
        let forced = self.forced.get(row).filter(|_| given.is_none());
        self.statistics.forced_tokens += usize::from(forced.is_some());
        let given = given.or(forced).copied();
        if given.is_none() && self.guide.is_active() {
            self.sampler.set_mask(self.guide.mask(logits)?);
            if self.approximate && !self.sampler.is_decided(logits, history)? {
                return Ok(None);
            }
        }
        let verdict = match (given, drafted.tokens.get(row)) {
            (None, None) => TokenVerdict::Replaced(self.sampler.sample(logits, history)?),
            (None, Some(&expected)) => {
                self.sampler.verify(logits, history, expected, drafted.drawn_from.get(row))?
            }
            (Some(id), Some(&expected)) if id == expected => TokenVerdict::Accepted,
            (Some(id), _) => TokenVerdict::Replaced(id),
        };
        let expected = drafted.tokens.get(row).copied().unwrap_or_default();
        let (id, flow) = match verdict {
            TokenVerdict::Accepted => (expected, ControlFlow::Continue(())),
            TokenVerdict::Replaced(id) => (id, ControlFlow::Break(())),
        };
        if let Some(count) = self.likeliest {
            self.likelihoods.push(TokenLikelihood::of(logits, id, count));
        }
        Ok(Some((id, flow)))
    }

    /// Delivers a chosen token and determines whether the reply ends with it. `remaining` is the
    /// number of context positions left after it.
    fn accept(&mut self, id: u32, remaining: usize) -> Result<(), SessionError> {
        let now = Instant::now();
        self.statistics.generated_tokens += 1;
        match self.first_token {
            Some(first) => self.statistics.decode_time = now - first,
            None => self.first_token = Some(now),
        }
        self.events.push_back(GenerationEvent::Token { id });
        let was_thought = self.reply.thought_end().is_some();
        let step = self.reply.push(id)?;
        if let (Some(_), Some(last)) = (self.likeliest, self.likelihoods.last_mut()) {
            last.is_of_thought = was_thought || self.reply.thought_end().is_some();
        }
        self.statistics.thought_tokens = self.reply.thought_tokens();
        self.last = Some(id);
        self.guide.accept(id)?;
        let complete = self.guide.must_stop()?;
        self.ended = match self.deliver(step) {
            Some(Stop::Id(id)) => Some(DoneReason::StopToken { id }),
            Some(Stop::Text(text)) => Some(DoneReason::StopText { text }),
            None if complete => Some(DoneReason::GrammarEnd),
            None if self.statistics.generated_tokens >= self.max_tokens => Some(DoneReason::MaxTokens),
            None if remaining == 0 => Some(DoneReason::ContextFull),
            None => None,
        };
        Ok(())
    }

    /// Prepares the next step, or ends the reply.
    fn go_on(&mut self, session: &Session) -> Result<(), SessionError> {
        match (self.ended.take(), self.last) {
            (Some(reason), _) => self.end(session, reason),
            (None, Some(id)) => {
                self.stage = Stage::Token(id);
                Ok(())
            }
            (None, None) => Err(no_tokens()),
        }
    }

    fn deliver(&mut self, step: ReplyStep) -> Option<Stop> {
        if !step.thought.is_empty() {
            self.events.push_back(GenerationEvent::ThoughtDelta { text: step.thought });
        }
        if !step.text.is_empty() {
            self.events.push_back(GenerationEvent::TextDelta { text: step.text });
        }
        self.events.extend(step.calls.into_iter().map(|event| match event {
            CallEvent::Text(text) => GenerationEvent::TextDelta { text },
            CallEvent::Begin { index, id, name } => GenerationEvent::ToolCallBegin { index, id, name },
            CallEvent::Arguments { index, text } => GenerationEvent::ToolCallArguments { index, text },
            CallEvent::End { index, call } => GenerationEvent::ToolCall { index, call },
            CallEvent::Dropped { index } => GenerationEvent::ToolCallDropped { index },
        }));
        step.stop
    }

    fn end(&mut self, session: &Session, mut reason: DoneReason) -> Result<(), SessionError> {
        if self.reply.stop().is_none() {
            let rest = self.reply.finish()?;
            self.deliver(rest);
            // The pending text may complete a stop string, which is then the reason.
            if let Some(Stop::Text(text)) = self.reply.stop() {
                reason = DoneReason::StopText { text: text.clone() };
            }
        }
        self.statistics.incomplete = !self.guide.is_complete();
        session.cancel_handle().reset();
        self.stage = Stage::Ended;
        self.events.push_back(GenerationEvent::Done { reason, statistics: self.statistics });
        Ok(())
    }
}

/// Returns the error of a row without exact logits, which were requested.
fn undecided() -> Error {
    let help = "generate without a grammar, and report the shim";
    Error::internal("the largest logits do not decide the token after a row with all logits").with_help(help)
}

impl Session {
    /// Generates a reply to `prompt` and passes every event to `receive`. If `receive` breaks, the
    /// reply ends as cancelled. Returns the reason and the statistics.
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
