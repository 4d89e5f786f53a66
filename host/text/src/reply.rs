//! One reply: ids in, text to display out, until a rule ends it.

use shardwright_vocabulary::Result;

use crate::stop::{StopMatcher, StopRules};
use crate::stream::TextStream;
use crate::thoughts::{Thought, ThoughtTokens};
use crate::tokenizer::Tokenizer;

/// Converts the ids of one reply into text to deliver, and reports when the reply has ended. It
/// combines a [`TextStream`] with a [`StopMatcher`], and keeps thoughts apart from the answer.
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
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplyStep {
    /// Text of a thought to deliver now, often empty. It precedes the text of the answer.
    pub thought: String,
    /// Text of the answer to deliver now, often empty.
    pub text: String,
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
        if self.rules.is_stop_id(id) {
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
        step.text += &self.matcher.finish();
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
        let found = self.matcher.push(text);
        if let Some(index) = found.stopped {
            self.stop = self.rules.strings().get(index).cloned().map(Stop::Text);
        }
        ReplyStep { text: found.text, stop: self.stop.clone(), ..ReplyStep::default() }
    }
}
