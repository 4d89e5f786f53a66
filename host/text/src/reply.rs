//! One reply: ids in, text to display out, until a rule ends it.

use shardwright_vocabulary::Result;

use crate::calls::{CallEvent, CallParser, CallRules};
use crate::stop::{StopMatcher, StopRules};
use crate::stream::TextStream;
use crate::thoughts::{Thought, ThoughtTokens};
use crate::tokenizer::Tokenizer;

/// Converts the ids of one reply into text to deliver, and reports when the reply has ended. It
/// combines a [`TextStream`] with a [`StopMatcher`], and keeps thoughts and calls apart from the
/// answer.
#[derive(Debug, Clone)]
pub struct Reply {
    stream: TextStream,
    matcher: StopMatcher,
    rules: StopRules,
    stop: Option<Stop>,
    /// The tokens around thoughts, if thoughts are kept apart.
    thoughts: Option<ThoughtTokens>,
    thought: Option<Thought>,
    thought_tokens: usize,
    /// Whether newlines between a thought and the answer are being skipped.
    skips_newlines: bool,
    /// The calls, if calls are kept apart.
    calls: Option<CallParser>,
}

/// The reason why a reply ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// The model generated a stop id.
    Id(u32),
    /// This stop string was completed.
    Text(String),
}

/// The result of processing one id.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ReplyStep {
    /// Text of a thought to deliver now, often empty. It precedes the text of the answer.
    pub thought: String,
    /// Text of the answer to deliver now, often empty. It precedes the calls.
    pub text: String,
    /// Events of calls to deliver now, and text of the answer between and after them.
    pub calls: Vec<CallEvent>,
    /// Set once the reply has ended. The texts of this step are then the last ones.
    pub stop: Option<Stop>,
}

impl Reply {
    /// Starts a reply in `tokenizer`'s text that ends by `rules`. Special tokens are omitted if
    /// `skip_special` is set.
    pub fn new(tokenizer: &Tokenizer, rules: &StopRules, skip_special: bool) -> Reply {
        Reply {
            stream: TextStream::new(tokenizer, skip_special),
            matcher: rules.matcher(),
            rules: rules.clone(),
            stop: None,
            thoughts: None,
            thought: None,
            thought_tokens: 0,
            skips_newlines: false,
            calls: None,
        }
    }

    /// Keeps thoughts between `tokens` apart from the answer to `prompt`. The prompt may end within
    /// a thought. Stop strings are then searched in the answer only.
    #[must_use]
    pub fn with_thoughts(mut self, tokens: ThoughtTokens, prompt: &[u32]) -> Reply {
        self.thoughts = Some(tokens);
        self.thought = tokens.is_open_in(prompt).then(Thought::continued);
        self
    }

    /// Keeps calls of tools apart from the answer. Stop strings are then not searched in calls.
    #[must_use]
    pub fn with_calls(mut self, rules: CallRules) -> Reply {
        self.calls = Some(CallParser::new(rules));
        self
    }

    /// Removes all rules that end the reply.
    pub fn never_stop(&mut self) {
        self.rules = StopRules::default();
        self.matcher = self.rules.matcher();
    }

    /// Processes the next id. A stop id produces no text itself, but delivers pending text. After
    /// the end, ids are ignored.
    pub fn push(&mut self, id: u32) -> Result<ReplyStep> {
        if self.stop.is_some() {
            return Ok(ReplyStep { stop: self.stop.clone(), ..ReplyStep::default() });
        }
        let is_result = |calls: &CallParser| self.thought.is_none() && calls.ends_at(id);
        if self.rules.is_stop_id(id) || self.calls.as_ref().is_some_and(is_result) {
            let step = self.finish()?;
            // The pending text may have completed a stop string, which is then the reason.
            self.stop.get_or_insert(Stop::Id(id));
            return Ok(ReplyStep { stop: self.stop.clone(), ..step });
        }
        match self.thoughts {
            Some(tokens) if id == tokens.open && self.thought.is_none() => {
                let text = self.stream.finish()?;
                let step = self.deliver(&text);
                self.thought = Some(Thought::after(tokens));
                Ok(step)
            }
            Some(tokens) if id == tokens.close && self.thought.is_some() => self.close_thought(),
            _ if self.thought.is_none() && self.calls.as_ref().is_some_and(|calls| calls.is_mark(id)) => {
                self.push_mark(id)
            }
            _ => {
                self.thought_tokens += usize::from(self.thought.is_some());
                let text = self.stream.push(id)?;
                Ok(self.deliver(&text))
            }
        }
    }

    /// Ends the reply for another reason (enough tokens, cancelled) and returns the pending text.
    pub fn finish(&mut self) -> Result<ReplyStep> {
        let mut step = match self.thought {
            Some(_) => self.close_thought()?,
            None => {
                let rest = self.stream.finish()?;
                if self.stop.is_some() {
                    return Ok(ReplyStep::default());
                }
                self.deliver(&rest)
            }
        };
        let events = self.calls.as_mut().map(CallParser::finish).unwrap_or_default();
        self.add_events(&mut step, events);
        step.say(self.matcher.finish());
        Ok(step)
    }

    /// Processes a token with a meaning in calls, after the text before it.
    fn push_mark(&mut self, id: u32) -> Result<ReplyStep> {
        let text = self.stream.flush()?;
        let mut step = self.deliver(&text);
        let visible = self.stream.shows(id);
        let events = self.calls.as_mut().and_then(|calls| calls.push_token(id, visible));
        self.add_events(&mut step, events.unwrap_or_default());
        Ok(step)
    }

    /// Returns the reason why the reply ended, if a rule ended it.
    pub fn stop(&self) -> Option<&Stop> {
        self.stop.as_ref()
    }

    /// Returns the number of tokens in thoughts so far, without the tokens around them.
    pub fn thought_tokens(&self) -> usize {
        self.thought_tokens
    }

    /// Returns the token that would end the current thought. `None` outside of thoughts.
    pub fn thought_end(&self) -> Option<u32> {
        self.thought.as_ref().and(self.thoughts).map(|tokens| tokens.close)
    }

    fn close_thought(&mut self) -> Result<ReplyStep> {
        let rest = self.stream.finish()?;
        let mut step = self.deliver(&rest);
        step.thought += &self.thought.take().map(Thought::finish).unwrap_or_default();
        self.skips_newlines = true;
        Ok(step)
    }

    /// Adds text to the thought or to the answer.
    fn deliver(&mut self, text: &str) -> ReplyStep {
        if let Some(thought) = &mut self.thought {
            return ReplyStep { thought: thought.push(text), ..ReplyStep::default() };
        }
        let text = if self.skips_newlines { text.trim_start_matches('\n') } else { text };
        self.skips_newlines &= text.is_empty();
        let mut step = ReplyStep::default();
        let events = match &mut self.calls {
            Some(calls) => calls.push(text),
            None => vec![CallEvent::Text(text.to_owned())],
        };
        self.add_events(&mut step, events);
        step
    }

    /// Adds events to a step until a stop string is completed. It is searched in the text of the
    /// answer between two calls.
    fn add_events(&mut self, step: &mut ReplyStep, events: Vec<CallEvent>) {
        for event in events {
            if self.stop.is_some() {
                break;
            }
            let CallEvent::Text(text) = event else {
                step.say(self.matcher.finish());
                step.calls.push(event);
                continue;
            };
            let found = self.matcher.push(&text);
            step.say(found.text);
            if let Some(index) = found.stopped {
                self.stop = self.rules.strings().get(index).cloned().map(Stop::Text);
            }
        }
        step.stop.clone_from(&self.stop);
    }
}

impl ReplyStep {
    /// Adds text of the answer.
    fn say(&mut self, text: String) {
        match self.calls.last_mut() {
            None => self.text += &text,
            Some(CallEvent::Text(said)) => *said += &text,
            Some(_) if text.is_empty() => {}
            Some(_) => self.calls.push(CallEvent::Text(text)),
        }
    }
}
