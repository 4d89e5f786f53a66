//! Messages of chat completions as turns of a conversation.

use serde_json::{Value, json};
use shardwright::{ChatPart, Role, ToolCall, Turn, TurnPart};

use crate::fields::{self, Fields, unsupported};
use crate::limits::Limits;
use crate::media::{self, Media};
use crate::refusal::Refusal;

/// Turns made of messages, and the fields of the messages without effect.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    pub turns: Vec<Turn>,
    pub inert: Vec<String>,
    media: usize,
}

/// Reads `messages`.
pub(crate) fn read(values: Vec<Value>, path: &str, limits: &Limits) -> Result<Turns, Refusal> {
    expect_count(values.len(), path, limits)?;
    let mut read = Turns::default();
    for (index, value) in values.into_iter().enumerate() {
        read.message(Fields::of(value, &format!("{path}[{index}]"))?, limits)?;
    }
    Ok(read)
}

/// Checks the number of messages.
pub(crate) fn expect_count(count: usize, path: &str, limits: &Limits) -> Result<(), Refusal> {
    match count {
        0 => Err(Refusal::value(path, format!("`{path}` is empty"), "send at least one message")),
        count if count > limits.messages => {
            let what = format!("{count} messages, expected at most {}", limits.messages);
            Err(Refusal::value(path, what, "send fewer messages"))
        }
        _ => Ok(()),
    }
}

impl Turns {
    fn message(&mut self, mut fields: Fields, limits: &Limits) -> Result<(), Refusal> {
        let path = fields.path("role");
        let role = fields.required_text("role")?;
        fields.without_effect(&["name"]);
        let turn = match role.as_str() {
            "system" | "developer" => self.plain(&mut fields, Role::System, limits)?,
            "user" => self.plain(&mut fields, Role::User, limits)?,
            "assistant" => self.reply(&mut fields, limits)?,
            "tool" => {
                let id = fields.required_text("tool_call_id")?;
                let (path, content) = (fields.path("content"), fields.required("content")?);
                Turn::tool_result(id, plain_text(self.parts(content, &path, limits)?, &path)?)
            }
            other => {
                let what = format!("unknown role `{}`", fields::shortened(other));
                let help = "use `system`, `developer`, `user`, `assistant` or `tool`";
                return Err(Refusal::value(&path, what, help));
            }
        };
        self.inert.extend(fields.finish()?);
        self.push(turn);
        Ok(())
    }

    /// Adds a turn. Results of one reply's calls belong to one turn.
    pub fn push(&mut self, turn: Turn) {
        match self.turns.last_mut() {
            Some(last) if turn.role == Role::Tool && last.role == Role::Tool => last.parts.extend(turn.parts),
            _ => self.turns.push(turn),
        }
    }

    fn plain(&mut self, fields: &mut Fields, role: Role, limits: &Limits) -> Result<Turn, Refusal> {
        let (path, content) = (fields.path("content"), fields.required("content")?);
        let parts = self.parts(content, &path, limits)?;
        if role == Role::System {
            return Ok(Turn::system(plain_text(parts, &path)?));
        }
        Ok(Turn { role, parts })
    }

    fn reply(&mut self, fields: &mut Fields, limits: &Limits) -> Result<Turn, Refusal> {
        let mut parts = Vec::new();
        // Clients return the field of a reply under either name.
        for name in ["reasoning_content", "reasoning"] {
            parts.extend(fields.text(name)?.filter(|text| !text.is_empty()).map(TurnPart::Thought));
        }
        let path = fields.path("content");
        if let Some(content) = fields.take("content") {
            let text = plain_text(self.parts(content, &path, limits)?, &path)?;
            parts.extend((!text.is_empty()).then_some(TurnPart::Text(text)));
        }
        let path = fields.path("tool_calls");
        for (index, value) in fields.list("tool_calls")?.unwrap_or_default().into_iter().enumerate() {
            let call = read_call(Fields::of(value, &format!("{path}[{index}]"))?, limits)?;
            parts.push(TurnPart::ToolCall(call));
        }
        fields.refuse(&["audio", "function_call"], "remove the field")?;
        // Replies of this server have these fields with these values.
        fields.only("refusal", &[json!("")], "send the text as `content`")?;
        fields.only("annotations", &[json!([])], "remove the field")?;
        Ok(Turn { role: Role::Assistant, parts })
    }

    /// Reads a content: a string, or an array of parts.
    pub fn parts(&mut self, content: Value, path: &str, limits: &Limits) -> Result<Vec<TurnPart>, Refusal> {
        let values = match content {
            Value::String(text) => return Ok(vec![TurnPart::Text(text)]),
            Value::Array(values) => values,
            other => return Err(fields::unexpected(path, "a string or an array of parts", &other)),
        };
        let part = |(index, value)| self.part(Fields::of(value, &format!("{path}[{index}]"))?, limits);
        values.into_iter().enumerate().map(part).collect()
    }

    fn part(&mut self, mut fields: Fields, limits: &Limits) -> Result<TurnPart, Refusal> {
        let path = fields.path("type");
        let kind = fields.required_text("type")?;
        let part = match kind.as_str() {
            "text" | "input_text" | "output_text" => {
                fields.without_effect(&["annotations", "logprobs"]);
                TurnPart::Text(fields.required_text("text")?)
            }
            "refusal" => TurnPart::Text(fields.required_text("refusal")?),
            "image_url" => {
                let mut address = fields.object("image_url")?.ok_or_else(|| absent(&fields, "image_url"))?;
                let path = address.path("url");
                let uri = address.required_text("url")?;
                expect_detail(&mut address)?;
                address.finish()?;
                self.media(media::from_uri(&uri, Media::Picture, &path)?, Media::Picture, &path, limits)?
            }
            "input_image" => {
                fields.refuse(&["file_id"], "send the picture as a data URI in `image_url`")?;
                let path = fields.path("image_url");
                let uri = fields.required_text("image_url")?;
                expect_detail(&mut fields)?;
                self.media(media::from_uri(&uri, Media::Picture, &path)?, Media::Picture, &path, limits)?
            }
            "audio_url" => {
                let mut address = fields.object("audio_url")?.ok_or_else(|| absent(&fields, "audio_url"))?;
                let path = address.path("url");
                let uri = address.required_text("url")?;
                address.finish()?;
                self.media(media::from_uri(&uri, Media::Sound, &path)?, Media::Sound, &path, limits)?
            }
            "input_audio" => {
                let mut audio =
                    fields.object("input_audio")?.ok_or_else(|| absent(&fields, "input_audio"))?;
                let path = audio.path("data");
                let data = audio.required_text("data")?;
                // The decoder recognises the format by the content.
                audio.without_effect(&["format"]);
                audio.finish()?;
                self.media(media::decode(&data, Media::Sound, &path)?, Media::Sound, &path, limits)?
            }
            _ => {
                let help = "send `text`, `image_url` or `input_audio`";
                return Err(unsupported(&path, &Value::String(kind), help));
            }
        };
        self.inert.extend(fields.finish()?);
        Ok(part)
    }

    fn media(
        &mut self,
        bytes: Vec<u8>,
        media: Media,
        path: &str,
        limits: &Limits,
    ) -> Result<TurnPart, Refusal> {
        self.media += 1;
        if self.media > limits.media {
            let what = format!("more than {} pictures and sounds", limits.media);
            return Err(Refusal::value(path, what, "send fewer"));
        }
        Ok(match media {
            Media::Picture => TurnPart::Picture(ChatPart::PictureBytes(bytes)),
            Media::Sound => TurnPart::Sound(ChatPart::SoundBytes(bytes)),
        })
    }
}

fn absent(fields: &Fields, name: &str) -> Refusal {
    let path = fields.path(name);
    let what = format!("the field `{path}` is missing");
    Refusal::invalid("missing_field", what, format!("set `{path}`")).at(&path)
}

/// Accepts the detail of a picture that the model's processor chooses.
fn expect_detail(fields: &mut Fields) -> Result<(), Refusal> {
    fields.only("detail", &[json!("auto")], "use `auto`: the model's processor chooses the size")
}

/// Joins parts that must be text.
pub(crate) fn plain_text(parts: Vec<TurnPart>, path: &str) -> Result<String, Refusal> {
    let text = |part| match part {
        TurnPart::Text(text) => Ok(text),
        _ => Err(Refusal::value(path, "only text is expected here", "move other parts to a user message")),
    };
    parts.into_iter().map(text).collect()
}

fn read_call(mut fields: Fields, limits: &Limits) -> Result<ToolCall, Refusal> {
    let id = fields.required_text("id")?;
    fields.only("type", &[json!("function")], "send calls of functions")?;
    fields.without_effect(&["index"]);
    let path = fields.path("function");
    let mut function = Fields::of(fields.required("function")?, &path)?;
    let name = function.required_text("name")?;
    let (path, arguments) = (function.path("arguments"), function.required_text("arguments")?);
    function.finish()?;
    fields.finish()?;
    Ok(ToolCall { id, name, arguments: read_arguments(&arguments, &path, limits)? })
}

/// Parses the arguments of a call, which are JSON in a string. No text means no arguments.
pub(crate) fn read_arguments(text: &str, path: &str, limits: &Limits) -> Result<Value, Refusal> {
    if text.trim().is_empty() {
        return Ok(json!({}));
    }
    crate::json::parse(text.as_bytes(), limits.json_depth).map_err(|refusal| refusal.at(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(messages: Value) -> Result<Turns, Refusal> {
        let Value::Array(values) = messages else { panic!("messages are an array") };
        read(values, "messages", &Limits { media: 1, messages: 5, ..Limits::default() })
    }

    #[test]
    fn messages_become_turns_in_order() {
        let read = turns(json!([
            {"role": "developer", "content": [
                {"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
            {"role": "user", "name": "Ada", "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AQID", "detail": "auto"}}]},
            {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}},
                {"id": "2", "type": "function", "function": {"name": "g", "arguments": ""}}]},
            {"role": "tool", "tool_call_id": "1", "content": "one"},
            {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "two"}]},
        ]))
        .unwrap();
        assert_eq!(read.inert, ["messages[1].name"]);
        let call = |id: &str, name: &str, arguments| {
            TurnPart::ToolCall(ToolCall { id: id.to_owned(), name: name.to_owned(), arguments })
        };
        let result = |id: &str, content: &str| TurnPart::ToolResult {
            id: id.to_owned(),
            name: String::new(),
            content: content.to_owned(),
        };
        let expected = [
            Turn::system("Be brief."),
            Turn {
                role: Role::User,
                parts: vec![
                    TurnPart::Text("What is this?".to_owned()),
                    TurnPart::Picture(ChatPart::PictureBytes(vec![1, 2, 3])),
                ],
            },
            Turn {
                role: Role::Assistant,
                parts: vec![
                    TurnPart::Thought("hm".to_owned()),
                    call("1", "f", json!({"a": 1})),
                    call("2", "g", json!({})),
                ],
            },
            Turn { role: Role::Tool, parts: vec![result("1", "one"), result("2", "two")] },
        ];
        assert_eq!(read.turns, expected);
    }

    #[test]
    fn each_wrong_message_is_refused_at_its_field() {
        let picture = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AQID"}});
        for (message, param) in [
            (json!({"content": "x"}), "messages[0].role"),
            (json!({"role": "robot", "content": "x"}), "messages[0].role"),
            (json!({"role": "user"}), "messages[0].content"),
            (json!({"role": "user", "content": 5}), "messages[0].content"),
            (json!({"role": "user", "content": "x", "mood": 1}), "messages[0].mood"),
            (json!({"role": "user", "content": [{"type": "video"}]}), "messages[0].content[0].type"),
            (json!({"role": "user", "content": [{"type": "image_url"}]}), "messages[0].content[0].image_url"),
            (
                json!({"role": "user", "content": [
                    {"type": "image_url", "image_url": {"url": "http://x/y"}}]}),
                "messages[0].content[0].image_url.url",
            ),
            (
                json!({"role": "user", "content": [{"type": "image_url",
                    "image_url": {"url": "data:image/png;base64,AQID", "detail": "high"}}]}),
                "messages[0].content[0].image_url.detail",
            ),
            (json!({"role": "user", "content": [picture, picture]}), "messages[0].content[1].image_url.url"),
            (
                json!({"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "?"}}]}),
                "messages[0].content[0].input_audio.data",
            ),
            (json!({"role": "system", "content": [picture]}), "messages[0].content"),
            (json!({"role": "tool", "content": "x"}), "messages[0].tool_call_id"),
            (json!({"role": "assistant", "function_call": {}}), "messages[0].function_call"),
            (json!({"role": "assistant", "tool_calls": [{"id": "1"}]}), "messages[0].tool_calls[0].function"),
            (
                json!({"role": "assistant", "tool_calls": [
                    {"id": "1", "function": {"name": "f", "arguments": "{"}}]}),
                "messages[0].tool_calls[0].function.arguments",
            ),
        ] {
            let document = turns(json!([message])).unwrap_err().json();
            assert_eq!(document["error"]["param"], param, "{message}: {document}");
        }
        assert_eq!(turns(json!([])).unwrap_err().json()["error"]["param"], "messages");
        let many = json!(vec![json!({"role": "user", "content": "x"}); 6]);
        assert_eq!(turns(many).unwrap_err().json()["error"]["param"], "messages");
    }
}
