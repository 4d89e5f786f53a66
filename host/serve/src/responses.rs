//! `/v1/responses`, without stored responses.

mod events;
mod items;

use serde_json::{Value, json};
use shardwright::{DoneReason, GenerationStatistics, Turn};

use crate::chat::Head;
use crate::fields::{Fields, unsupported};
use crate::limits::Limits;
use crate::refusal::Refusal;
use crate::reply_request::{
    Conversation, INERT, Input, Names, ReplyRequest, Settings, define_tools, read_choice, read_effort,
    read_format, read_max_tokens,
};
use crate::stream::Collected;

pub(crate) use events::ResponseEvents;

/// Most alternatives of a token.
const LIKELIEST_MAX: u64 = 20;

/// A request, and the fields that its response repeats.
#[derive(Debug)]
pub(crate) struct ResponseAsk {
    pub ask: ReplyRequest,
    pub echo: Value,
}

/// Reads a request.
pub(crate) fn read(body: Value, limits: &Limits) -> Result<ResponseAsk, Refusal> {
    let echo = echoed(&body);
    let mut fields = Fields::of(body, "")?;
    let model = fields.required_text("model")?;
    let mut read = items::read(fields.required("input")?, limits)?;
    if let Some(instructions) = fields.text("instructions")? {
        read.turns.insert(0, Turn::system(instructions));
    }
    let tools = read_tools(&mut fields, limits)?;
    let choice = read_choice(&mut fields, &tools)?;
    let mut settings = Settings::read(&mut fields, limits)?;
    settings.expect_effects()?;
    settings.max_tokens = read_max_tokens(&mut fields, &["max_output_tokens"])?;
    if let Some(mut text) = fields.object("text")? {
        settings.grammar = read_format(text.object("format")?, limits)?;
        text.only("verbosity", &[json!("medium")], "remove the field")?;
        text.finish()?;
    }
    settings.one_call = fields.flag("parallel_tool_calls")? == Some(false);
    let likeliest = fields.count("top_logprobs", 0, LIKELIEST_MAX)?;
    let is_included = read_include(&mut fields)?;
    settings.likelihoods = match (is_included, likeliest) {
        (false, None | Some(0)) => None,
        (_, likeliest) => Some(likeliest.unwrap_or(0) as usize),
    };
    if let Some(mut reasoning) = fields.object("reasoning")? {
        let path = reasoning.path("effort");
        settings.thinking = read_effort(reasoning.text("effort")?, &path)?;
        reasoning.refuse(&["summary", "generate_summary"], "thoughts are returned as they are")?;
        reasoning.finish()?;
    }
    let stream = fields.flag("stream")?.unwrap_or(false);
    let stateless = "the server stores no responses; send the whole conversation as `input`";
    fields.refuse(&["previous_response_id", "conversation", "prompt"], stateless)?;
    fields.only("store", &[json!(false)], stateless)?;
    fields.only("background", &[json!(false)], "wait for the response, or set `stream`")?;
    fields.only("truncation", &[json!("disabled")], "shorten the conversation yourself")?;
    fields.refuse(&["max_tool_calls", "stream_options", "context_management"], "remove the field")?;
    fields.without_effect(&INERT);
    let mut inert = fields.finish()?;
    inert.extend(read.inert);
    let input = Input::Conversation(Conversation { turns: read.turns, tools, choice });
    let names = Names::RESPONSES;
    let ask = ReplyRequest { model, input, settings, names, stream, reports_usage: true, inert };
    Ok(ResponseAsk { ask, echo })
}

/// Reads further contents of the response.
fn read_include(fields: &mut Fields) -> Result<bool, Refusal> {
    let mut has_likelihoods = false;
    for value in fields.list("include")?.unwrap_or_default() {
        match value.as_str() {
            Some("message.output_text.logprobs") => has_likelihoods = true,
            _ => return Err(unsupported("include", &value, "use `message.output_text.logprobs`")),
        }
    }
    Ok(has_likelihoods)
}

/// Reads tools, whose fields are not in an object `function`.
fn read_tools(fields: &mut Fields, limits: &Limits) -> Result<Vec<shardwright::ToolDefinition>, Refusal> {
    let mut values = Vec::new();
    for (index, value) in fields.list("tools")?.unwrap_or_default().into_iter().enumerate() {
        let mut tool = Fields::of(value, &format!("tools[{index}]"))?;
        let path = tool.path("type");
        let kind = tool.required("type")?;
        if kind != "function" {
            return Err(unsupported(&path, &kind, "send tools of the type `function`"));
        }
        let mut function = json!({ "name": tool.required("name")? });
        for name in ["description", "parameters", "strict"] {
            if let Some(value) = tool.take(name) {
                function[name] = value;
            }
        }
        tool.finish()?;
        values.push(json!({ "type": "function", "function": function }));
    }
    define_tools(values, "tools", limits)
}

/// Returns the fields that a response repeats, with their defaults.
fn echoed(body: &Value) -> Value {
    let or = |name: &str, default: Value| match body.get(name) {
        None | Some(Value::Null) => default,
        Some(value) => value.clone(),
    };
    json!({
        "instructions": or("instructions", Value::Null),
        "max_output_tokens": or("max_output_tokens", Value::Null),
        "metadata": or("metadata", json!({})),
        "parallel_tool_calls": or("parallel_tool_calls", json!(true)),
        "previous_response_id": null,
        "reasoning": or("reasoning", json!({ "effort": null, "summary": null })),
        "store": false,
        "temperature": or("temperature", Value::Null),
        "text": or("text", json!({ "format": { "type": "text" } })),
        "tool_choice": or("tool_choice", json!("auto")),
        "tools": or("tools", json!([])),
        "top_p": or("top_p", Value::Null),
        "truncation": "disabled",
        "user": or("user", Value::Null),
    })
}

/// Returns a response without its output.
fn envelope(head: &Head, echo: &Value, status: &str) -> Value {
    let mut response = echo.clone();
    response["id"] = json!(head.id);
    response["object"] = json!("response");
    response["created_at"] = json!(head.created);
    response["model"] = json!(head.model);
    response["status"] = json!(status);
    for name in ["error", "incomplete_details", "usage"] {
        response[name] = Value::Null;
    }
    response["output"] = json!([]);
    response
}

/// Returns the status of a response that ended, and the reason if it is incomplete.
fn status(reason: &DoneReason) -> (&'static str, Option<&'static str>) {
    match reason {
        DoneReason::MaxTokens | DoneReason::ContextFull | DoneReason::Deadline => {
            ("incomplete", Some("max_output_tokens"))
        }
        _ => ("completed", None),
    }
}

fn usage(statistics: &GenerationStatistics) -> Value {
    json!({
        "input_tokens": statistics.prompt_tokens,
        "input_tokens_details": { "cached_tokens": statistics.reused_tokens },
        "output_tokens": statistics.generated_tokens,
        "output_tokens_details": { "reasoning_tokens": statistics.thought_tokens },
        "total_tokens": statistics.prompt_tokens + statistics.generated_tokens,
    })
}

/// Returns a response that ended, with its output.
fn ended(
    head: &Head,
    echo: &Value,
    output: &[Value],
    reason: &DoneReason,
    statistics: &GenerationStatistics,
) -> Value {
    let (status, cut) = status(reason);
    let mut response = envelope(head, echo, status);
    response["output"] = json!(output);
    response["usage"] = usage(statistics);
    response["incomplete_details"] = json!(cut.map(|reason| json!({ "reason": reason })));
    response
}

/// Returns the response of a whole reply.
pub(crate) fn whole(head: &Head, echo: &Value, reply: &Collected) -> Value {
    let (status, _) = status(&reply.end.reason);
    let mut output = Vec::new();
    if !reply.thoughts.is_empty() {
        output.push(items::thought(&crate::ids::id("rs_"), &reply.thoughts, status));
    }
    if !reply.text.is_empty() || reply.calls.is_empty() {
        output.push(items::message(&crate::ids::id("msg_"), &reply.text, &reply.likely, status));
    }
    output.extend(reply.calls.iter().map(|call| items::call(&crate::ids::id("fc_"), call)));
    ended(head, echo, &output, &reply.end.reason, &reply.end.statistics)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn param(more: &Value) -> String {
        let mut body = json!({ "model": "m", "input": "hi" });
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        let refusal = read(body, &Limits::default()).expect_err(&more.to_string()).json();
        refusal["error"]["param"].as_str().unwrap_or_default().to_owned()
    }

    #[test]
    fn requests_are_read_and_repeated() {
        let body = json!({ "model": "m", "input": "hi", "instructions": "Be brief.", "max_output_tokens": 5,
            "text": { "format": { "type": "json_object" } }, "metadata": { "a": "b" }, "store": false,
            "include": ["message.output_text.logprobs"], "top_logprobs": 2, "reasoning": { "effort": "none" },
            "tools": [{ "type": "function", "name": "f", "parameters": { "type": "object" },
                "strict": true }] });
        let ResponseAsk { ask, echo } = read(body, &Limits::default()).unwrap();
        let Input::Conversation(conversation) = &ask.input else { panic!("{ask:?}") };
        assert_eq!(conversation.turns, [Turn::system("Be brief."), Turn::user("hi")]);
        assert_eq!(conversation.tools[0].name(), "f");
        assert_eq!((ask.settings.max_tokens, ask.settings.likelihoods), (Some(5), Some(2)));
        assert!(ask.settings.grammar.is_some() && ask.settings.thinking == Some(false));
        assert_eq!(echo["metadata"], json!({ "a": "b" }));
        assert_eq!(echo["tool_choice"], "auto");
    }

    #[test]
    fn stored_state_and_unknown_fields_are_refused_by_name() {
        for (more, expected) in [
            (json!({ "previous_response_id": "resp_1" }), "previous_response_id"),
            (json!({ "conversation": "conv_1" }), "conversation"),
            (json!({ "store": true }), "store"),
            (json!({ "background": true }), "background"),
            (json!({ "truncation": "auto" }), "truncation"),
            (json!({ "include": ["file_search_call.results"] }), "include"),
            (json!({ "reasoning": { "summary": "auto" } }), "reasoning.summary"),
            (json!({ "tools": [{ "type": "web_search" }] }), "tools[0].type"),
            (json!({ "text": { "verbosity": "low" } }), "text.verbosity"),
            (json!({ "max_tokens": 3 }), "max_tokens"),
            (json!({ "input": [] }), "input"),
        ] {
            assert_eq!(param(&more), expected);
        }
    }
}
