//! Settings of replies, grammars and the choice of tools.

use std::ffi::c_char;

use shardwright_bindings_core::{Error, Grammar, ReplySettings, Result, ToolChoice};

use crate::memory::{Plain, text, texts};

/// Fields of `sw_reply_settings` that are set: `SW_SET_` constants, added.
pub type sw_set = u64;
/// `max_tokens` is set.
pub const SW_SET_MAX_TOKENS: sw_set = 1;
/// `max_thought_tokens` is set.
pub const SW_SET_MAX_THOUGHT_TOKENS: sw_set = 2;
/// `sample` is set.
pub const SW_SET_SAMPLE: sw_set = 4;
/// `temperature` is set. Without `sample`, a temperature above 0 turns sampling on, and 0 turns it
/// off.
pub const SW_SET_TEMPERATURE: sw_set = 8;
/// `top_k` is set.
pub const SW_SET_TOP_K: sw_set = 16;
/// `top_p` is set.
pub const SW_SET_TOP_P: sw_set = 32;
/// `min_p` is set.
pub const SW_SET_MIN_P: sw_set = 64;
/// `repetition_penalty` is set.
pub const SW_SET_REPETITION_PENALTY: sw_set = 128;
/// `seed` is set.
pub const SW_SET_SEED: sw_set = 256;
/// `thinking` is set.
pub const SW_SET_THINKING: sw_set = 512;
/// `show_special` is set.
pub const SW_SET_SHOW_SPECIAL: sw_set = 1024;
/// `token_events` is set.
pub const SW_SET_TOKEN_EVENTS: sw_set = 2048;
/// `picture_tokens` is set.
pub const SW_SET_PICTURE_TOKENS: sw_set = 4096;

/// All `SW_SET_` constants.
const KNOWN: sw_set = 8191;

/// Changes to the settings of replies. A new session has the settings that the model recommends.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sw_reply_settings {
    /// Size of this struct.
    pub size: usize,
    /// The fields that are set. Other fields are ignored, except `stop`.
    pub set: sw_set,
    /// Most tokens of a reply, including thoughts.
    pub max_tokens: u64,
    /// Most tokens of thoughts.
    pub max_thought_tokens: u64,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Whether to sample at random.
    pub sample: i32,
    /// Divisor of the logits. 0 always chooses the likeliest token.
    pub temperature: f32,
    /// Number of likeliest tokens to choose from. 0 for all.
    pub top_k: u32,
    /// Probability that the tokens to choose from have together, above 0 to 1.
    pub top_p: f32,
    /// Least probability of a token, as a fraction of the likeliest token's, 0 to 1.
    pub min_p: f32,
    /// Penalty for tokens of the text so far. 1 for none.
    pub repetition_penalty: f32,
    /// Whether the model thinks before it answers.
    pub thinking: i32,
    /// Whether special tokens, and thoughts and calls with them, are part of the text.
    pub show_special: i32,
    /// Whether replies have an event for each token.
    pub token_events: i32,
    /// Most soft tokens of a picture.
    pub picture_tokens: u32,
    /// Texts that end a reply, in addition to the earlier ones.
    pub stop: *const *const c_char,
}

// SAFETY: all fields are numbers and pointers, for which any bits are valid.
unsafe impl Plain for sw_reply_settings {
    const FIRST_SIZE: usize = size_of::<Self>();
}

/// Converts settings.
pub(crate) fn reply_settings(given: &sw_reply_settings) -> Result<ReplySettings> {
    let unknown = given.set & !KNOWN;
    if unknown != 0 {
        let what = format!("`set` has the unknown bits {unknown:#x}");
        return Err(Error::argument(what, "add `SW_SET_` constants of this version"));
    }
    let is_set = |bit: sw_set| given.set & bit != 0;
    Ok(ReplySettings {
        max_tokens: is_set(SW_SET_MAX_TOKENS).then_some(given.max_tokens),
        max_thought_tokens: is_set(SW_SET_MAX_THOUGHT_TOKENS).then_some(given.max_thought_tokens),
        sample: is_set(SW_SET_SAMPLE).then_some(given.sample != 0),
        temperature: is_set(SW_SET_TEMPERATURE).then_some(given.temperature),
        top_k: is_set(SW_SET_TOP_K).then_some(given.top_k),
        top_p: is_set(SW_SET_TOP_P).then_some(given.top_p),
        min_p: is_set(SW_SET_MIN_P).then_some(given.min_p),
        repetition_penalty: is_set(SW_SET_REPETITION_PENALTY).then_some(given.repetition_penalty),
        seed: is_set(SW_SET_SEED).then_some(given.seed),
        stop: texts(given.stop, "`stop`")?,
        thinking: is_set(SW_SET_THINKING).then_some(given.thinking != 0),
        show_special: is_set(SW_SET_SHOW_SPECIAL).then_some(given.show_special != 0),
        token_events: is_set(SW_SET_TOKEN_EVENTS).then_some(given.token_events != 0),
        picture_tokens: is_set(SW_SET_PICTURE_TOKENS).then_some(given.picture_tokens),
    })
}

/// Kind of a grammar.
pub type sw_grammar = i32;
/// Any text.
pub const SW_GRAMMAR_NONE: sw_grammar = 0;
/// JSON that a schema accepts.
pub const SW_GRAMMAR_JSON_SCHEMA: sw_grammar = 1;
/// Any JSON object.
pub const SW_GRAMMAR_JSON_OBJECT: sw_grammar = 2;
/// A regular expression, without anchors.
pub const SW_GRAMMAR_REGEX: sw_grammar = 3;
/// A Lark grammar.
pub const SW_GRAMMAR_LARK: sw_grammar = 4;

/// Reads a grammar.
pub(crate) fn grammar(kind: sw_grammar, pointer: *const c_char) -> Result<Option<Grammar>> {
    let text = || text(pointer, "the grammar");
    Ok(Some(match kind {
        SW_GRAMMAR_NONE => return Ok(None),
        SW_GRAMMAR_JSON_SCHEMA => Grammar::JsonSchema { schema: text()? },
        SW_GRAMMAR_JSON_OBJECT => Grammar::JsonObject,
        SW_GRAMMAR_REGEX => Grammar::Regex { pattern: text()? },
        SW_GRAMMAR_LARK => Grammar::Lark { grammar: text()? },
        other => {
            let what = format!("the kind of the grammar is {other}");
            return Err(Error::argument(what, "use a `SW_GRAMMAR_` constant"));
        }
    }))
}

/// The tools that a reply may call.
pub type sw_tool_choice = i32;
/// The model decides whether it calls tools.
pub const SW_TOOLS_AUTO: sw_tool_choice = 0;
/// Tools are not offered, and the reply is text.
pub const SW_TOOLS_NONE: sw_tool_choice = 1;
/// The reply is at least one call.
pub const SW_TOOLS_REQUIRED: sw_tool_choice = 2;
/// The reply is one call of the named tool.
pub const SW_TOOLS_NAMED: sw_tool_choice = 3;

/// Reads a choice of tools.
pub(crate) fn tool_choice(choice: sw_tool_choice, name: *const c_char) -> Result<ToolChoice> {
    Ok(match choice {
        SW_TOOLS_AUTO => ToolChoice::Auto,
        SW_TOOLS_NONE => ToolChoice::None,
        SW_TOOLS_REQUIRED => ToolChoice::Required,
        SW_TOOLS_NAMED => ToolChoice::Named { name: text(name, "the name of the tool")? },
        other => {
            let what = format!("the choice of tools is {other}");
            return Err(Error::argument(what, "use a `SW_TOOLS_` constant"));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_set_fields_are_changes() {
        let mut given = sw_reply_settings {
            size: size_of::<sw_reply_settings>(),
            set: 0,
            max_tokens: 5,
            max_thought_tokens: 6,
            seed: 7,
            sample: 1,
            temperature: 0.5,
            top_k: 8,
            top_p: 0.9,
            min_p: 0.1,
            repetition_penalty: 1.1,
            thinking: 1,
            show_special: 1,
            token_events: 1,
            picture_tokens: 9,
            stop: std::ptr::null(),
        };
        assert_eq!(reply_settings(&given).unwrap(), ReplySettings::default());
        given.set = SW_SET_MAX_TOKENS + SW_SET_TEMPERATURE;
        let expected =
            ReplySettings { max_tokens: Some(5), temperature: Some(0.5), ..ReplySettings::default() };
        assert_eq!(reply_settings(&given).unwrap(), expected);
        given.set = KNOWN;
        let all = reply_settings(&given).unwrap();
        assert_eq!((all.seed, all.picture_tokens, all.thinking), (Some(7), Some(9), Some(true)));
        assert_eq!((all.top_k, all.show_special, all.token_events), (Some(8), Some(true), Some(true)));
        given.set = KNOWN + 1;
        assert!(reply_settings(&given).is_err());
    }
}
