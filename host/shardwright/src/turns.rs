//! The turns of a conversation as values, and the messages that a chat template gets for them.

use std::collections::HashMap;

use shardwright_text::{Content, ContentPart, Message, TemplateValue, ToolCall};

use crate::parts::Sense;
use crate::{ChatPart, Error, Result};

/// Field of a message with the thoughts that precede it, as in the templates of Qwen 3 and Gemma 4.
const THOUGHTS: &str = "reasoning_content";

/// A turn of a conversation.
///
/// Chat templates decide how a turn appears in a prompt. Most of them leave earlier thoughts out.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// The author of the turn.
    pub role: Role,
    /// The content in order.
    pub parts: Vec<TurnPart>,
}

/// The author of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Instructions. Chat templates support them only before the first user turn.
    System,
    /// The user: text, pictures and sounds.
    User,
    /// The model: thoughts, text and calls of tools.
    Assistant,
    /// The application: results of calls.
    Tool,
}

/// A part of a turn.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum TurnPart {
    /// Text.
    Text(String),
    /// A thought of the model.
    Thought(String),
    /// A call of a tool by the model.
    ToolCall(ToolCall),
    /// The result of a call.
    ToolResult {
        /// Id of the call.
        id: String,
        /// Name of the tool. If it is empty, the name in the call is used.
        name: String,
        /// The result as text, often JSON. Control tokens in it are encoded as plain text.
        content: String,
    },
    /// A picture: any [`ChatPart`] of a picture.
    Picture(ChatPart),
    /// A sound: any [`ChatPart`] of a sound.
    Sound(ChatPart),
}

impl Role {
    /// Returns the name in chat templates.
    pub const fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

impl From<ChatPart> for TurnPart {
    fn from(part: ChatPart) -> TurnPart {
        match (part.sense(), part) {
            (_, ChatPart::Text(text)) => TurnPart::Text(text),
            (Some(Sense::Sound), part) => TurnPart::Sound(part),
            (_, part) => TurnPart::Picture(part),
        }
    }
}

impl From<&str> for TurnPart {
    fn from(text: &str) -> TurnPart {
        TurnPart::Text(text.to_owned())
    }
}

impl From<String> for TurnPart {
    fn from(text: String) -> TurnPart {
        TurnPart::Text(text)
    }
}

impl TurnPart {
    /// Returns the noun for messages.
    const fn noun(&self) -> &'static str {
        match self {
            TurnPart::Text(_) => "text",
            TurnPart::Thought(_) => "a thought",
            TurnPart::ToolCall(_) => "a tool call",
            TurnPart::ToolResult { .. } => "a tool result",
            TurnPart::Picture(_) => "a picture",
            TurnPart::Sound(_) => "a sound",
        }
    }

    /// Returns the picture or sound.
    pub(crate) fn chat_part(&self) -> Option<&ChatPart> {
        match self {
            TurnPart::Picture(part) | TurnPart::Sound(part) => Some(part),
            _ => None,
        }
    }

    /// Returns the part of a message's content. `None` for parts that are fields of a message.
    fn content(&self) -> Option<ContentPart> {
        match self {
            TurnPart::Text(text) => Some(ContentPart::text(text)),
            TurnPart::Picture(_) => Some(ContentPart::placeholder(Sense::Picture.kind())),
            TurnPart::Sound(_) => Some(ContentPart::placeholder(Sense::Sound.kind())),
            TurnPart::Thought(_) | TurnPart::ToolCall(_) | TurnPart::ToolResult { .. } => None,
        }
    }
}

impl Turn {
    /// Creates a turn of these parts.
    pub fn new<P: Into<TurnPart>>(role: Role, parts: impl IntoIterator<Item = P>) -> Turn {
        Turn { role, parts: parts.into_iter().map(Into::into).collect() }
    }

    /// Creates a turn with instructions.
    pub fn system(text: impl Into<String>) -> Turn {
        Turn::new(Role::System, [text.into()])
    }

    /// Creates a turn of the user with plain text.
    pub fn user(text: impl Into<String>) -> Turn {
        Turn::new(Role::User, [text.into()])
    }

    /// Creates a turn of the model with plain text.
    pub fn assistant(text: impl Into<String>) -> Turn {
        Turn::new(Role::Assistant, [text.into()])
    }

    /// Creates a turn with the result of the call with this id.
    pub fn tool_result(id: impl Into<String>, content: impl Into<String>) -> Turn {
        let result = TurnPart::ToolResult { id: id.into(), name: String::new(), content: content.into() };
        Turn { role: Role::Tool, parts: vec![result] }
    }

    /// Returns the text of the turn, without thoughts.
    pub fn text(&self) -> String {
        let texts = self.parts.iter().filter_map(|part| match part {
            TurnPart::Text(text) => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// Returns the calls of the turn.
    pub fn calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.parts.iter().filter_map(|part| match part {
            TurnPart::ToolCall(call) => Some(call),
            _ => None,
        })
    }

    /// Returns the number of pictures and sounds.
    pub(crate) fn soft_parts(&self) -> usize {
        self.parts.iter().filter(|part| part.chat_part().is_some()).count()
    }

    /// Checks that the author of the turn can write its parts.
    pub(crate) fn check(&self) -> Result<()> {
        for part in &self.parts {
            let fits = match part {
                TurnPart::Text(_) => self.role != Role::Tool,
                TurnPart::Thought(_) | TurnPart::ToolCall(_) => self.role == Role::Assistant,
                TurnPart::ToolResult { .. } => self.role == Role::Tool,
                TurnPart::Picture(_) | TurnPart::Sound(_) => self.role == Role::User,
            };
            if !fits {
                let what = format!("a turn of the role `{}` cannot have {}", self.role.name(), part.noun());
                return Err(Error::argument(what).with_help(match part {
                    TurnPart::Text(_) => "pass the text as the result of a call",
                    TurnPart::Thought(_) | TurnPart::ToolCall(_) => "use a turn of the role `assistant`",
                    TurnPart::ToolResult { .. } => "use a turn of the role `tool`",
                    TurnPart::Picture(_) | TurnPart::Sound(_) => "use a turn of the role `user`",
                }));
            }
            let (expected, part) = match part {
                TurnPart::Picture(part) => (Sense::Picture, part),
                TurnPart::Sound(part) => (Sense::Sound, part),
                _ => continue,
            };
            if part.sense() != Some(expected) {
                let what = format!("a part of a turn is not a {}", expected.noun());
                return Err(Error::argument(what).with_help("convert the part with `TurnPart::from`"));
            }
        }
        Ok(())
    }

    /// Returns the messages for a chat template: one, or one for each result of a call.
    pub(crate) fn messages(&self) -> Vec<Message> {
        match self.role {
            Role::Tool => self.parts.iter().filter_map(result_message).collect(),
            Role::Assistant => vec![self.reply_message()],
            Role::System | Role::User => {
                let parts: Vec<ContentPart> = self.parts.iter().filter_map(TurnPart::content).collect();
                let content = match <[ContentPart; 1]>::try_from(parts) {
                    Ok([ContentPart { text: Some(text), .. }]) => Content::Text(text),
                    Ok(one) => Content::Parts(one.into()),
                    Err(parts) => Content::Parts(parts),
                };
                let role = self.role.name().to_owned();
                vec![Message { role, content: Some(content), fields: Vec::new() }]
            }
        }
    }

    /// Returns the message of a turn of the model. Its content is text in any case, because some
    /// templates reject a missing one.
    fn reply_message(&self) -> Message {
        let mut message = Message::assistant(self.text());
        let thoughts = self.parts.iter().filter_map(|part| match part {
            TurnPart::Thought(text) => Some(text.as_str()),
            _ => None,
        });
        let thoughts: Vec<&str> = thoughts.collect();
        if !thoughts.is_empty() {
            message.fields.push((THOUGHTS.to_owned(), TemplateValue::from(thoughts.concat())));
        }
        let calls: Vec<_> = self.calls().map(ToolCall::template_value).collect();
        if !calls.is_empty() {
            message
                .fields
                .push(("tool_calls".to_owned(), TemplateValue::from(serde_json::Value::Array(calls))));
        }
        message
    }
}

fn result_message(part: &TurnPart) -> Option<Message> {
    let TurnPart::ToolResult { id, name, content } = part else { return None };
    let mut message = Message::new(Role::Tool.name(), content);
    message.fields.push(("tool_call_id".to_owned(), TemplateValue::from(id.as_str())));
    message.fields.push(("name".to_owned(), TemplateValue::from(name.as_str())));
    Some(message)
}

/// Checks the turns of a conversation, and adds missing names of tools to results.
///
/// # Errors
///
/// [`ErrorKind::Argument`](crate::ErrorKind::Argument) for a part in the turn of another author,
/// for two calls with one id, and for a result without a call before it.
pub(crate) fn checked(mut turns: Vec<Turn>) -> Result<Vec<Turn>> {
    let mut names: HashMap<String, String> = HashMap::new();
    for turn in &mut turns {
        turn.check()?;
        for part in &mut turn.parts {
            match part {
                TurnPart::ToolCall(call) if names.contains_key(&call.id) => {
                    return Err(Error::argument(format!("two calls have the id `{}`", shown(&call.id)))
                        .with_help("give each call of a conversation its own id"));
                }
                TurnPart::ToolCall(call) => {
                    names.insert(call.id.clone(), call.name.clone());
                }
                TurnPart::ToolResult { id, name, .. } => {
                    let called = names.get(id).ok_or_else(|| without_call(id))?;
                    if name.is_empty() {
                        name.clone_from(called);
                    }
                }
                _ => {}
            }
        }
    }
    Ok(turns)
}

/// Returns the name of the tool that the call with this id calls.
pub(crate) fn called<'t>(turns: &'t [Turn], id: &str) -> Result<&'t str> {
    let call = turns.iter().flat_map(Turn::calls).find(|call| call.id == id);
    call.map(|call| call.name.as_str()).ok_or_else(|| without_call(id))
}

fn without_call(id: &str) -> Error {
    Error::argument(format!("no earlier call has the id `{}`", shown(id)))
        .with_help("pass the id of the call that the result belongs to")
}

fn shown(id: &str) -> String {
    id.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use shardwright_text::messages_from_json;

    use super::*;
    use crate::ErrorKind;

    fn call(id: &str, name: &str, arguments: serde_json::Value) -> TurnPart {
        TurnPart::ToolCall(ToolCall { id: id.to_owned(), name: name.to_owned(), arguments })
    }

    fn result(id: &str, name: &str, content: &str) -> TurnPart {
        TurnPart::ToolResult { id: id.to_owned(), name: name.to_owned(), content: content.to_owned() }
    }

    /// The messages are the ones of `tests/templates/cases.json`, whose rendering by 70 published
    /// templates is compared with Jinja2.
    #[test]
    fn turns_become_the_messages_that_templates_expect() {
        let turns = checked(vec![
            Turn::system("Be brief."),
            Turn::user("Weather?"),
            Turn::new(
                Role::Assistant,
                [
                    TurnPart::Thought("two towns".to_owned()),
                    "I look.".into(),
                    call("abcdefghi", "get_weather", json!({"town": "Bern", "days": null})),
                    call("jklmnopqr", "now", json!({})),
                ],
            ),
            Turn::new(Role::Tool, [result("abcdefghi", "", "cold"), result("jklmnopqr", "now", "noon")]),
            Turn::assistant("It is cold."),
        ]);
        let messages: Vec<Message> = turns.unwrap().iter().flat_map(Turn::messages).collect();
        let expected = r#"[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "I look.", "reasoning_content": "two towns", "tool_calls": [
                {"id": "abcdefghi", "type": "function",
                 "function": {"name": "get_weather", "arguments": {"town": "Bern", "days": null}}},
                {"id": "jklmnopqr", "type": "function", "function": {"name": "now", "arguments": {}}}]},
            {"role": "tool", "content": "cold", "tool_call_id": "abcdefghi", "name": "get_weather"},
            {"role": "tool", "content": "noon", "tool_call_id": "jklmnopqr", "name": "now"},
            {"role": "assistant", "content": "It is cold."}
        ]"#;
        assert_eq!(messages, messages_from_json(expected, "expected").unwrap());
    }

    #[test]
    fn pictures_and_sounds_keep_their_place() {
        let picture = ChatPart::Patches { values: Vec::new(), positions: Vec::new() };
        let turn = Turn::new(Role::User, ["a".into(), picture, "b".into(), ChatPart::Frames(Vec::new())]);
        turn.check().unwrap();
        assert_eq!(turn.soft_parts(), 2);
        let expected = r#"[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"},
            {"type": "text", "text": "b"}, {"type": "audio"}]}]"#;
        assert_eq!(turn.messages(), messages_from_json(expected, "expected").unwrap());
    }

    #[test]
    fn parts_in_turns_of_other_authors_are_rejected() {
        let thought = || TurnPart::Thought("why".to_owned());
        let frames = || ChatPart::Frames(Vec::new());
        let calling = || Turn::new(Role::Assistant, [call("1", "f", json!({}))]);
        for (turns, expected) in [
            (vec![Turn::new(Role::User, [thought()])], "`user` cannot have a thought"),
            (vec![Turn::new(Role::User, [call("1", "f", json!({}))])], "`user` cannot have a tool call"),
            (vec![Turn::new(Role::Tool, ["x"])], "`tool` cannot have text"),
            (vec![Turn::new(Role::System, [frames()])], "`system` cannot have a sound"),
            (
                vec![Turn::new(Role::Assistant, [result("1", "f", "")])],
                "`assistant` cannot have a tool result",
            ),
            (vec![Turn::new(Role::User, [TurnPart::Picture(frames())])], "not a picture"),
            (vec![Turn::new(Role::User, [TurnPart::Sound("x".into())])], "not a sound"),
            (vec![Turn::tool_result("1", "x")], "no earlier call has the id `1`"),
            (vec![Turn::tool_result("1", "x"), calling()], "no earlier call has the id `1`"),
            (vec![calling(), calling()], "two calls have the id `1`"),
        ] {
            let error = checked(turns).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
            assert!(error.message().contains(expected) && error.help().is_some(), "{error} lacks {expected}");
        }
    }
}
