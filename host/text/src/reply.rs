//! One reply: ids in, text to display out, until a rule ends it.

use crate::error::Result;
use crate::stop::{StopMatcher, StopRules};
use crate::stream::TextStream;
use crate::tokenizer::Tokenizer;

/// Converts the ids of one reply into text to deliver, and reports when the reply has ended. It
/// combines a [`TextStream`] with a [`StopMatcher`].
#[derive(Debug, Clone)]
pub struct Reply {
    stream: TextStream,
    matcher: StopMatcher,
    rules: StopRules,
    stop: Option<Stop>,
}

/// Why a reply ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// The model generated a stop id.
    Id(u32),
    /// This stop string was complete.
    Text(String),
}

/// The result of one id.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplyStep {
    /// Text to deliver now, often empty.
    pub text: String,
    /// Set once the reply has ended. The text above is then the last.
    pub stop: Option<Stop>,
}

impl Reply {
    /// A reply in `tokenizer`'s text, without special tokens if `skip_special`, that ends by
    /// `rules`.
    pub fn new(tokenizer: &Tokenizer, rules: &StopRules, skip_special: bool) -> Reply {
        Reply {
            stream: TextStream::new(tokenizer, skip_special),
            matcher: rules.matcher(),
            rules: rules.clone(),
            stop: None,
        }
    }

    /// From now on no rule ends it.
    pub fn never_stop(&mut self) {
        self.rules = StopRules::default();
        self.matcher = self.rules.matcher();
    }

    /// Processes the next id. A stop id produces no text of its own; text pending before it is
    /// delivered. After the end, ids are ignored.
    pub fn push(&mut self, id: u32) -> Result<ReplyStep> {
        if self.stop.is_some() {
            return Ok(ReplyStep { text: String::new(), stop: self.stop.clone() });
        }
        if self.rules.is_stop_id(id) {
            let text = self.finish()?;
            // A stop string may have become complete in the pending text: then that is the reason.
            if self.stop.is_none() {
                self.stop = Some(Stop::Id(id));
            }
            return Ok(ReplyStep { text, stop: self.stop.clone() });
        }
        let text = self.stream.push(id)?;
        Ok(ReplyStep { text: self.matched(&text), stop: self.stop.clone() })
    }

    /// Ends the reply for another reason (enough tokens, cancelled): returns the pending text.
    pub fn finish(&mut self) -> Result<String> {
        let rest = self.stream.finish()?;
        if self.stop.is_some() {
            return Ok(String::new());
        }
        let mut text = self.matched(&rest);
        text += &self.matcher.finish();
        Ok(text)
    }

    /// Why the reply ended, if a rule ended it.
    pub fn stop(&self) -> Option<&Stop> {
        self.stop.as_ref()
    }

    fn matched(&mut self, text: &str) -> String {
        let found = self.matcher.push(text);
        if let Some(index) = found.stopped {
            self.stop = self.rules.strings().get(index).cloned().map(Stop::Text);
        }
        found.text
    }
}
