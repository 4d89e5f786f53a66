//! Settings of replies.

use shardwright::Session;

use crate::Result;

/// Changes to the settings of replies. `None` leaves a setting unchanged. A new session has the
/// settings that the model recommends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplySettings {
    /// Most tokens of a reply, including thoughts.
    pub max_tokens: Option<u64>,
    /// Most tokens of thoughts.
    pub max_thought_tokens: Option<u64>,
    /// Whether to sample at random. If only `temperature` is set, a temperature above 0 turns
    /// sampling on.
    pub sample: Option<bool>,
    /// Divisor of the logits. 0 always chooses the likeliest token.
    pub temperature: Option<f32>,
    /// Number of likeliest tokens to choose from. 0 for all.
    pub top_k: Option<u32>,
    /// Probability that the tokens to choose from have together, above 0 to 1.
    pub top_p: Option<f32>,
    /// Least probability of a token, as a fraction of the likeliest token's, 0 to 1.
    pub min_p: Option<f32>,
    /// Penalty for tokens of the text so far. 1 for none.
    pub repetition_penalty: Option<f32>,
    /// Seed of the random numbers.
    pub seed: Option<u64>,
    /// Texts that end a reply, in addition to the earlier ones.
    pub stop: Vec<String>,
    /// Whether the model thinks before it answers.
    pub thinking: Option<bool>,
    /// Whether special tokens, and thoughts and calls with them, are part of the text.
    pub show_special: Option<bool>,
    /// Whether replies have an event for each token, in addition to the events of text. Default:
    /// no.
    pub token_events: Option<bool>,
    /// Most soft tokens of a picture.
    pub picture_tokens: Option<u32>,
}

impl ReplySettings {
    /// Applies all changes, or none if one of them is an error. Does not apply `token_events`.
    pub(crate) fn apply(&self, session: &mut Session) -> Result<()> {
        let mut options = session.options.clone();
        let sampling = &mut options.sampling;
        let implied = self.temperature.map(|temperature| temperature > 0.0);
        sampling.do_sample = self.sample.or(implied).unwrap_or(sampling.do_sample);
        sampling.temperature = self.temperature.unwrap_or(sampling.temperature);
        sampling.top_k = self.top_k.unwrap_or(sampling.top_k);
        sampling.top_p = self.top_p.unwrap_or(sampling.top_p);
        sampling.min_p = self.min_p.unwrap_or(sampling.min_p);
        sampling.repetition_penalty = self.repetition_penalty.unwrap_or(sampling.repetition_penalty);
        sampling.seed = self.seed.unwrap_or(sampling.seed);
        sampling.validate()?;
        options.max_tokens = self.max_tokens.map(count).or(options.max_tokens);
        options.max_thought_tokens = self.max_thought_tokens.map(count).or(options.max_thought_tokens);
        options.show_special = self.show_special.unwrap_or(options.show_special);
        options.stop = options.stop.with_strings(&self.stop)?;
        if let Some(thinking) = self.thinking {
            session.set_thinking(thinking)?;
        }
        session.picture_tokens = self.picture_tokens.or(session.picture_tokens);
        session.options = options;
        Ok(())
    }
}

/// Converts a number of tokens.
fn count(tokens: u64) -> usize {
    usize::try_from(tokens).unwrap_or(usize::MAX)
}

/// The texts that a reply may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grammar {
    /// JSON that a schema accepts.
    JsonSchema {
        /// The schema as JSON text.
        schema: String,
    },
    /// Any JSON object.
    JsonObject,
    /// Text that as a whole matches a regular expression, in the syntax of Rust's `regex`.
    Regex {
        /// The expression, without anchors.
        pattern: String,
    },
    /// Text of a Lark grammar in the dialect of llguidance.
    Lark {
        /// The grammar.
        grammar: String,
    },
}

impl Grammar {
    /// Sets the grammar of later replies of `session`, `None` for any text.
    #[cfg(feature = "constraint")]
    pub(crate) fn apply(grammar: Option<&Grammar>, session: &mut Session) -> Result<()> {
        let grammar = match grammar {
            None => None,
            Some(Grammar::JsonSchema { schema }) => Some(shardwright::Grammar::json_schema_text(schema)?),
            Some(Grammar::JsonObject) => Some(shardwright::Grammar::json_object()),
            Some(Grammar::Regex { pattern }) => Some(shardwright::Grammar::regex(pattern)),
            Some(Grammar::Lark { grammar }) => Some(shardwright::Grammar::lark(grammar)),
        };
        Ok(session.constrain(grammar.as_ref())?)
    }

    /// Reports that grammars are unsupported.
    #[cfg(not(feature = "constraint"))]
    pub(crate) fn apply(grammar: Option<&Grammar>, _: &mut Session) -> Result<()> {
        match grammar {
            None => Ok(()),
            Some(_) => Err(crate::Error::new(
                crate::ErrorKind::Unsupported,
                "this library was built without grammars",
                "build it with the feature `constraint`",
            )),
        }
    }
}

/// The tools that a reply may call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides whether it calls tools.
    #[default]
    Auto,
    /// Tools are not offered, and the reply is text.
    None,
    /// The reply is at least one call.
    Required,
    /// The reply is one call of this tool.
    Named {
        /// Name of the tool.
        name: String,
    },
}

impl From<ToolChoice> for shardwright::ToolChoice {
    fn from(choice: ToolChoice) -> Self {
        match choice {
            ToolChoice::Auto => shardwright::ToolChoice::Auto,
            ToolChoice::None => shardwright::ToolChoice::None,
            ToolChoice::Required => shardwright::ToolChoice::Required,
            ToolChoice::Named { name } => shardwright::ToolChoice::Named(name),
        }
    }
}
