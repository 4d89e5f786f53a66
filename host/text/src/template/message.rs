//! The messages of a conversation, as templates see them.

use std::path::Path;

use minijinja::Value;
use minijinja::value::ValueKind;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use shardwright_vocabulary::Result;

use super::value::TemplateValue;
use crate::input::parse_json;

#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// `user`, `assistant`, `system`, `tool`, or any other role that the template supports.
    pub role: String,
    /// The content. `None` for a message without content, such as a bare tool call.
    pub content: Option<Content>,
    /// Further fields by name, such as `tool_calls`.
    pub fields: Vec<(String, TemplateValue)>,
}

/// Content of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// Plain text.
    Text(String),
    /// Text, images and audio in order.
    Parts(Vec<ContentPart>),
}

/// One part of a message.
#[derive(Debug, Clone, PartialEq)]
pub struct ContentPart {
    /// `text`, `image`, `audio` or `video` (the field `type`).
    pub kind: String,
    /// The text of a text part.
    pub text: Option<String>,
    /// Further fields by name.
    pub fields: Vec<(String, TemplateValue)>,
}

impl Message {
    /// Creates a message of plain text.
    pub fn new(role: impl Into<String>, text: impl Into<String>) -> Message {
        Message { role: role.into(), content: Some(Content::Text(text.into())), fields: Vec::new() }
    }

    /// Creates a message of the user.
    pub fn user(text: impl Into<String>) -> Message {
        Message::new("user", text)
    }

    /// Creates a message of the model.
    pub fn assistant(text: impl Into<String>) -> Message {
        Message::new("assistant", text)
    }

    /// Creates a message with instructions before the conversation.
    pub fn system(text: impl Into<String>) -> Message {
        Message::new("system", text)
    }

    /// Returns the bytes of the text in the content.
    pub(crate) fn text_bytes(&self) -> usize {
        match &self.content {
            None => 0,
            Some(Content::Text(text)) => text.len(),
            Some(Content::Parts(parts)) => {
                parts.iter().filter_map(|part| part.text.as_ref()).map(String::len).sum()
            }
        }
    }

    /// Checks whether the text in the content is more than white space.
    pub(crate) fn has_words(&self) -> bool {
        let has_words = |text: &String| !text.trim().is_empty();
        match &self.content {
            None => false,
            Some(Content::Text(text)) => has_words(text),
            Some(Content::Parts(parts)) => parts.iter().filter_map(|part| part.text.as_ref()).any(has_words),
        }
    }

    pub(crate) fn to_value(&self) -> Value {
        let content = self.content.as_ref().map(|content| ("content".to_owned(), content.to_value()));
        let role = ("role".to_owned(), Value::from(self.role.as_str()));
        let fields = self.fields.iter().map(|(name, value)| (name.clone(), value.0.clone()));
        Value::from_pairs(std::iter::once(role).chain(content).chain(fields))
    }
}

impl Content {
    fn to_value(&self) -> Value {
        match self {
            Content::Text(text) => Value::from(text.as_str()),
            Content::Parts(parts) => parts.iter().map(ContentPart::to_value).collect(),
        }
    }
}

impl ContentPart {
    /// Creates a part with text.
    pub fn text(text: impl Into<String>) -> ContentPart {
        ContentPart { kind: "text".into(), text: Some(text.into()), fields: Vec::new() }
    }

    /// Creates a part of another kind, which the template replaces with its placeholder.
    pub fn placeholder(kind: impl Into<String>) -> ContentPart {
        ContentPart { kind: kind.into(), text: None, fields: Vec::new() }
    }

    fn to_value(&self) -> Value {
        let text = self.text.as_ref().map(|text| ("text".to_owned(), Value::from(text.as_str())));
        let kind = ("type".to_owned(), Value::from(self.kind.as_str()));
        let fields = self.fields.iter().map(|(name, value)| (name.clone(), value.0.clone()));
        Value::from_pairs(std::iter::once(kind).chain(text).chain(fields))
    }
}

/// Parses a conversation: a JSON list of messages. Errors name `origin`, a file or an option.
pub fn messages_from_json(text: &str, origin: &str) -> Result<Vec<Message>> {
    parse_json(text.as_bytes(), Path::new(origin))
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Message, D::Error> {
        let mut role = None;
        let mut content = None;
        let mut fields = Vec::new();
        for (name, value) in entries(&Value::deserialize(deserializer)?).map_err(D::Error::custom)? {
            match name.as_str() {
                "role" => role = Some(string("role", &value).map_err(D::Error::custom)?),
                "content" if !value.is_none() => {
                    content = Some(Content::of(&value).map_err(D::Error::custom)?);
                }
                _ => fields.push((name, TemplateValue(value))),
            }
        }
        let role = role.ok_or_else(|| D::Error::custom("a message has no `role`"))?;
        Ok(Message { role, content, fields })
    }
}

impl Content {
    fn of(value: &Value) -> Result<Content, String> {
        if let Some(text) = value.as_str() {
            return Ok(Content::Text(text.to_owned()));
        }
        if value.kind() != ValueKind::Seq {
            return Err(format!(
                "`content` should be a string or a list of parts, but is a {}",
                value.kind()
            ));
        }
        let parts = value.try_iter().map_err(|error| error.to_string())?;
        Ok(Content::Parts(parts.map(|part| ContentPart::of(&part)).collect::<Result<_, _>>()?))
    }
}

impl ContentPart {
    fn of(value: &Value) -> Result<ContentPart, String> {
        let mut part = ContentPart { kind: String::new(), text: None, fields: Vec::new() };
        let mut has_kind = false;
        for (name, value) in entries(value)? {
            match name.as_str() {
                "type" => {
                    part.kind = string("type", &value)?;
                    has_kind = true;
                }
                "text" => part.text = Some(string("text", &value)?),
                _ => part.fields.push((name, TemplateValue(value))),
            }
        }
        if has_kind { Ok(part) } else { Err("a part of a message has no `type`".to_owned()) }
    }
}

fn entries(value: &Value) -> Result<Vec<(String, Value)>, String> {
    if value.kind() != ValueKind::Map {
        return Err(format!("expected an object, found a {}", value.kind()));
    }
    let names = value.try_iter().map_err(|error| error.to_string())?;
    names
        .map(|name| {
            let item = value.get_item(&name).map_err(|error| error.to_string())?;
            Ok((name.to_string(), item))
        })
        .collect()
}

fn string(name: &str, value: &Value) -> Result<String, String> {
    value
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| format!("`{name}` should be a string, but is a {}", value.kind()))
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    #[test]
    fn conversations_are_read_from_json() {
        let text = r#"[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "image", "url": "x"}, {"type": "text", "text": "?"}]},
            {"role": "assistant", "content": null, "tool_calls": [{"b": 1, "a": 2}]}
        ]"#;
        let messages = messages_from_json(text, "messages").unwrap();
        assert_eq!(messages[0], Message::system("Be brief."));
        let Some(Content::Parts(parts)) = &messages[1].content else { panic!("parts") };
        assert_eq!(parts[1], ContentPart::text("?"));
        assert_eq!(parts[0].fields, [("url".to_owned(), TemplateValue::from("x"))]);
        assert_eq!(messages[2].content, None);
        let names: Vec<&str> = messages[2].fields.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["content", "tool_calls"], "null content stays visible to the template");
        assert_eq!(Message::user("a").to_value(), Message::new("user", "a").to_value());
    }

    #[test]
    fn malformed_messages_say_what_is_wrong() {
        for (text, expected) in [
            ("{}", "expected a sequence"),
            (r#"[{"content": "x"}]"#, "no `role`"),
            (r#"[{"role": 3}]"#, "`role` should be a string"),
            (r#"[{"role": "user", "content": 3}]"#, "`content` should be"),
            (r#"[{"role": "user", "content": [{"text": "x"}]}]"#, "no `type`"),
            (r#"[{"role": "user", "content": [{"type": "text", "text": 1}]}]"#, "`text` should be"),
            (r#"[{"role": "user", "content": ["x"]}]"#, "expected an object"),
            ("[3]", "expected an object"),
        ] {
            let error = messages_from_json(text, "--messages").unwrap_err();
            assert_eq!((error.kind(), error.place()), (ErrorKind::Invalid, Some("--messages")));
            assert!(error.message().starts_with("not valid JSON: "), "{text}: {error}");
            assert!(error.message().contains(expected), "{text}: {error}");
        }
        let deep = format!("{}1{}", "[".repeat(100), "]".repeat(100));
        let error = messages_from_json(&deep, "m").unwrap_err();
        assert_eq!((error.kind(), error.place()), (ErrorKind::Invalid, Some("m")));
        assert!(error.message().starts_with("JSON nested deeper than 64 levels"), "{error}");
    }
}
