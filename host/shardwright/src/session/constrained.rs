//! Replies that match a grammar.

use shardwright_constraint::Grammar;

use super::Session;
use crate::Result;

impl Session {
    /// Sets the grammar that later replies must match, `None` for any text. Thoughts before the
    /// answer are not restricted. A reply that is cut, for example by the token limit, is reported
    /// as [`incomplete`](crate::GenerationStatistics::incomplete).
    ///
    /// The first grammar of a model prepares its vocabulary, which takes up to a second.
    ///
    /// ```no_run
    /// use shardwright::{Grammar, Model};
    ///
    /// let mut session = Model::open("bundle")?.session()?;
    /// session.constrain(Some(&Grammar::regex("yes|no")))?;
    /// let answer = session.chat("Is the sky blue?")?.text()?;
    /// assert!(["yes", "no"].contains(&answer.as_str()));
    /// # Ok::<(), shardwright::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Argument`](crate::ErrorKind::Argument) if the grammar is malformed, too large or
    /// matches no finite reply. [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if it uses
    /// an unsupported keyword, which the error names, or if the tokenizer is unsuitable. The
    /// grammar of earlier replies then stays.
    pub fn constrain(&mut self, grammar: Option<&Grammar>) -> Result<()> {
        self.options.constraint = grammar.map(|grammar| self.text.constraint(grammar)).transpose()?;
        Ok(())
    }
}
