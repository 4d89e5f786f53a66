//! Items of inputs and outputs.

use serde_json::{Value, json};
use shardwright::{Role, ToolCall, Turn, TurnPart};

use crate::chat::likely_json;
use crate::fields::{Fields, shortened, unexpected};
use crate::generation::Likely;
use crate::limits::Limits;
use crate::messages::{self, Turns, plain_text};
use crate::refusal::Refusal;

/// Reads `input`: a text, or an array of items.
pub(super) fn read(input: Value, limits: &Limits) -> Result<Turns, Refusal> {
    let mut read = Turns::default();
    let values = match input {
        Value::String(text) => {
            read.push(Turn::user(text));
            return Ok(read);
        }
        Value::Array(values) => values,
        other => return Err(unexpected("input", "a string or an array of items", &other)),
    };
    messages::expect_count(values.len(), "input", limits)?;
    for (index, value) in values.into_iter().enumerate() {
        let fields = Fields::of(value, &format!("input[{index}]"))?;
        item(&mut read, fields, limits)?;
    }
    Ok(read)
}

fn item(read: &mut Turns, mut fields: Fields, limits: &Limits) -> Result<(), Refusal> {
    let path = fields.path("type");
    let kind = fields.text("type")?.unwrap_or_else(|| "message".to_owned());
    let turn = match kind.as_str() {
        "message" => {
            let (path, role) = (fields.path("role"), fields.required_text("role")?);
            let role = match role.as_str() {
                "system" | "developer" => Role::System,
                "user" => Role::User,
                "assistant" => Role::Assistant,
                other => {
                    let what = format!("unknown role `{}`", shortened(other));
                    let help = "use `system`, `developer`, `user` or `assistant`";
                    return Err(Refusal::value(&path, what, help));
                }
            };
            let path = fields.path("content");
            let parts = read.parts(fields.required("content")?, &path, limits)?;
            let parts = match role {
                Role::User => parts,
                _ => vec![TurnPart::Text(plain_text(parts, &path)?)],
            };
            Turn { role, parts }
        }
        "function_call" => {
            let (id, name) = (fields.required_text("call_id")?, fields.required_text("name")?);
            let (path, arguments) = (fields.path("arguments"), fields.required_text("arguments")?);
            let arguments = messages::read_arguments(&arguments, &path, limits)?;
            Turn { role: Role::Assistant, parts: vec![TurnPart::ToolCall(ToolCall { id, name, arguments })] }
        }
        "function_call_output" => {
            let id = fields.required_text("call_id")?;
            let path = fields.path("output");
            let parts = read.parts(fields.required("output")?, &path, limits)?;
            Turn::tool_result(id, plain_text(parts, &path)?)
        }
        "reasoning" => {
            let path = fields.path("content");
            let content = fields.take("content").unwrap_or_else(|| json!([]));
            fields.only("summary", &[json!([])], "send the thoughts as `content`")?;
            fields.refuse(&["encrypted_content"], "send the thoughts as `content`")?;
            let texts = thoughts(content, &path)?;
            Turn { role: Role::Assistant, parts: vec![TurnPart::Thought(texts)] }
        }
        other => {
            let what = format!("unsupported item `{}`", shortened(other));
            let help = "use `message`, `function_call`, `function_call_output` or `reasoning`";
            return Err(Refusal::value(&path, what, help));
        }
    };
    // Items of earlier responses have these.
    fields.without_effect(&["id", "status"]);
    let inert = fields.finish()?;
    read.inert.extend(inert.into_iter().filter(|path| !path.ends_with(".id") && !path.ends_with(".status")));
    push(read, turn);
    Ok(())
}

/// Adds a turn. Thoughts, text and calls of one reply are items of their own, but one turn.
fn push(read: &mut Turns, turn: Turn) {
    match read.turns.last_mut() {
        Some(last) if turn.role == Role::Assistant && last.role == Role::Assistant => {
            last.parts.extend(turn.parts);
        }
        _ => read.push(turn),
    }
}

fn thoughts(content: Value, path: &str) -> Result<String, Refusal> {
    let mut texts = String::new();
    for (index, value) in crate::fields::list(content, path)?.into_iter().enumerate() {
        let mut part = Fields::of(value, &format!("{path}[{index}]"))?;
        part.only("type", &[json!("reasoning_text")], "send parts of the type `reasoning_text`")?;
        texts += &part.required_text("text")?;
        part.finish()?;
    }
    Ok(texts)
}

/// Returns the item of an answer.
pub(super) fn message(id: &str, text: &str, likely: &[Likely], status: &str) -> Value {
    json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [text_part(text, likely)],
    })
}

/// Returns the content of an answer.
pub(super) fn text_part(text: &str, likely: &[Likely]) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": likely_json(likely) })
}

/// Returns the item of thoughts.
pub(super) fn thought(id: &str, text: &str, status: &str) -> Value {
    json!({
        "id": id,
        "type": "reasoning",
        "status": status,
        "summary": [],
        "content": [{ "type": "reasoning_text", "text": text }],
    })
}

/// Returns the item of a call.
pub(super) fn call(id: &str, call: &ToolCall) -> Value {
    json!({
        "id": id,
        "type": "function_call",
        "status": "completed",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_a_response_can_be_sent_as_input() {
        let called = ToolCall { id: "c".to_owned(), name: "f".to_owned(), arguments: json!({ "a": 1 }) };
        let input = json!([
            { "role": "user", "content": [{ "type": "input_text", "text": "hi" },
                { "type": "input_image", "image_url": "data:image/png;base64,AQID", "detail": "auto" }] },
            thought("rs_1", "hm", "completed"),
            message("msg_1", "I look.", &[], "completed"),
            call("fc_1", &called),
            { "type": "function_call_output", "call_id": "c", "output": "1" },
        ]);
        let read = read(input, &Limits::default()).unwrap();
        let roles: Vec<Role> = read.turns.iter().map(|turn| turn.role).collect();
        assert_eq!(roles, [Role::User, Role::Assistant, Role::Tool]);
        let expected = [
            TurnPart::Thought("hm".to_owned()),
            TurnPart::Text("I look.".to_owned()),
            TurnPart::ToolCall(called),
        ];
        assert_eq!(read.turns[1].parts, expected);
    }

    #[test]
    fn wrong_items_are_refused_at_their_field() {
        for (item, param) in [
            (json!({ "type": "web_search_call" }), "input[0].type"),
            (json!({ "role": "robot", "content": "x" }), "input[0].role"),
            (json!({ "role": "user", "content": "x", "mood": 1 }), "input[0].mood"),
            (
                json!({ "type": "function_call", "call_id": "c", "name": "f", "arguments": "{" }),
                "input[0].arguments",
            ),
            (json!({ "type": "function_call_output", "output": "x" }), "input[0].call_id"),
            (json!({ "type": "reasoning", "encrypted_content": "x" }), "input[0].encrypted_content"),
            (
                json!({ "role": "user", "content": [{ "type": "input_image", "file_id": "x" }] }),
                "input[0].content[0].file_id",
            ),
        ] {
            let refusal = read(json!([item]), &Limits::default()).unwrap_err().json();
            assert_eq!(refusal["error"]["param"], param, "{item}");
        }
    }
}
