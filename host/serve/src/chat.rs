//! `/v1/chat/completions`.

use serde_json::{Value, json};
use shardwright::{DoneReason, GenerationStatistics, ToolCall};

use crate::fields::{Fields, unexpected};
use crate::generation::{End, Likely, Piece, milliseconds};
use crate::ids;
use crate::limits::Limits;
use crate::messages;
use crate::refusal::Refusal;
use crate::reply_request::{
    Conversation, INERT, Input, Names, ReplyRequest, Settings, read_choice, read_effort, read_format,
    read_max_tokens, read_tools,
};
use crate::stream::{Collected, Events, Wording};

/// Most alternatives of a token.
const LIKELIEST_MAX: u64 = 20;

/// Reads a request.
pub(crate) fn read(body: Value, limits: &Limits) -> Result<ReplyRequest, Refusal> {
    let mut fields = Fields::of(body, "")?;
    let model = fields.required_text("model")?;
    let messages = fields.required("messages")?;
    let messages = messages::read(crate::fields::list(messages, "messages")?, "messages", limits)?;
    let tools = read_tools(&mut fields, limits)?;
    let choice = read_choice(&mut fields, &tools)?;
    let mut settings = Settings::read(&mut fields, limits)?;
    settings.expect_effects()?;
    settings.max_tokens = read_max_tokens(&mut fields, &["max_completion_tokens", "max_tokens"])?;
    settings.grammar = read_format(fields.object("response_format")?, limits)?;
    settings.one_call = fields.flag("parallel_tool_calls")? == Some(false);
    settings.likelihoods = read_likelihoods(&mut fields)?;
    settings.thinking = read_effort(fields.text("reasoning_effort")?, "reasoning_effort")?;
    settings.variables = read_variables(&mut fields)?;
    let (stream, reports_usage) = read_stream(&mut fields)?;
    fields.only("modalities", &[json!(["text"])], "request text only")?;
    fields.only("store", &[json!(false)], "the server stores no replies")?;
    let outdated = "use `tools` and `tool_choice`";
    fields.refuse(&["functions", "function_call"], outdated)?;
    let none = "remove the field";
    fields.refuse(&["audio", "prediction", "web_search_options", "verbosity"], none)?;
    fields.without_effect(&INERT);
    let mut inert = fields.finish()?;
    inert.extend(messages.inert);
    let input = Input::Conversation(Conversation { turns: messages.turns, tools, choice });
    Ok(ReplyRequest { model, input, settings, names: Names::CHAT, stream, reports_usage, inert })
}

/// Reads `stream` and `stream_options`.
pub(crate) fn read_stream(fields: &mut Fields) -> Result<(bool, bool), Refusal> {
    let stream = fields.flag("stream")?.unwrap_or(false);
    let path = fields.path("stream_options");
    let Some(mut options) = fields.object("stream_options")? else { return Ok((stream, false)) };
    if !stream {
        let what = "`stream_options` has no effect without `stream`";
        return Err(Refusal::value(&path, what, "remove it, or set `stream`"));
    }
    let reports_usage = options.flag("include_usage")?.unwrap_or(false);
    options.only("include_obfuscation", &[json!(false)], "remove the field")?;
    options.finish()?;
    Ok((stream, reports_usage))
}

fn read_likelihoods(fields: &mut Fields) -> Result<Option<usize>, Refusal> {
    let is_wanted = fields.flag("logprobs")?.unwrap_or(false);
    let likeliest = fields.count("top_logprobs", 0, LIKELIEST_MAX)?;
    match (is_wanted, likeliest) {
        (true, likeliest) => Ok(Some(likeliest.unwrap_or(0) as usize)),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => {
            let what = "`top_logprobs` has no effect without `logprobs`";
            Err(Refusal::value("top_logprobs", what, "set `logprobs` to true"))
        }
    }
}

/// Reads variables of the chat template, such as `enable_thinking`.
fn read_variables(fields: &mut Fields) -> Result<Vec<(String, bool)>, Refusal> {
    let variables = match fields.take("chat_template_kwargs") {
        None => return Ok(Vec::new()),
        Some(Value::Object(variables)) => variables,
        Some(other) => return Err(unexpected("chat_template_kwargs", "an object", &other)),
    };
    let read = |(name, value): (String, Value)| match value.as_bool() {
        Some(on) => Ok((name, on)),
        None => {
            let what = "variables of a chat template are true or false";
            Err(Refusal::value("chat_template_kwargs", what, "remove other variables"))
        }
    };
    variables.into_iter().map(read).collect()
}

/// Returns the `usage` of a reply.
pub(crate) fn usage(statistics: &GenerationStatistics) -> Value {
    json!({
        "prompt_tokens": statistics.prompt_tokens,
        "completion_tokens": statistics.generated_tokens,
        "total_tokens": statistics.prompt_tokens + statistics.generated_tokens,
        "prompt_tokens_details": { "cached_tokens": statistics.reused_tokens },
        "completion_tokens_details": {
            "reasoning_tokens": statistics.thought_tokens,
            "accepted_prediction_tokens": statistics.speculation.accepted,
            "rejected_prediction_tokens":
                statistics.speculation.drafted.saturating_sub(statistics.speculation.accepted),
        },
    })
}

/// Returns the times of a reply, as `llama-server` names them.
pub(crate) fn timings(statistics: &GenerationStatistics) -> Value {
    json!({
        "prompt_n": statistics.run_tokens,
        "cache_n": statistics.reused_tokens,
        "predicted_n": statistics.generated_tokens,
        "prompt_ms": milliseconds(statistics.prompt_time + statistics.parts_time),
        "prompt_per_second": statistics.prefill_tokens_per_second(),
        "predicted_ms": milliseconds(statistics.decode_time),
        "predicted_per_second": statistics.decode_tokens_per_second(),
    })
}

/// Returns the reason in OpenAI's words.
pub(crate) fn finish_reason(reason: &DoneReason, has_calls: bool) -> &'static str {
    match reason {
        DoneReason::MaxTokens | DoneReason::ContextFull | DoneReason::Deadline => "length",
        _ if has_calls => "tool_calls",
        _ => "stop",
    }
}

/// Returns a call of a tool, with its arguments as text.
pub(crate) fn call_json(call: &ToolCall) -> Value {
    json!({
        "id": call.id,
        "type": "function",
        "function": { "name": call.name, "arguments": call.arguments.to_string() },
    })
}

/// Returns likelihoods in the form of chat completions.
pub(crate) fn likely_json(tokens: &[Likely]) -> Value {
    let one = |bytes: &[u8], log: f32| {
        json!({
            "token": String::from_utf8_lossy(bytes),
            "logprob": finite(log),
            "bytes": bytes,
        })
    };
    let token = |token: &Likely| {
        let mut described = one(&token.bytes, token.log_probability);
        let likeliest = token.likeliest.iter().map(|(bytes, log)| one(bytes, *log));
        described["top_logprobs"] = likeliest.collect();
        described
    };
    tokens.iter().map(token).collect()
}

/// Returns a log-probability that JSON can express. An impossible token has the value of OpenAI's
/// interface for very unlikely ones.
pub(crate) fn finite(log: f32) -> f64 {
    const IMPOSSIBLE: f64 = -9999.0;
    if log.is_finite() { f64::from(log) } else { IMPOSSIBLE }
}

/// The fixed fields of a response.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub id: String,
    pub created: u64,
    pub model: String,
}

impl Head {
    pub fn new(prefix: &str, model: &str) -> Self {
        Head { id: ids::id(prefix), created: ids::now(), model: model.to_owned() }
    }
}

/// Returns the response of a whole reply.
pub(crate) fn whole(head: &Head, reply: &Collected, with_likelihoods: bool) -> Value {
    let mut message = json!({ "role": "assistant", "content": reply.text, "refusal": null });
    if !reply.thoughts.is_empty() {
        message["reasoning_content"] = json!(reply.thoughts);
    }
    if !reply.calls.is_empty() {
        message["tool_calls"] = reply.calls.iter().map(call_json).collect();
        if reply.text.is_empty() {
            message["content"] = Value::Null;
        }
    }
    let likely = with_likelihoods.then(|| json!({ "content": likely_json(&reply.likely), "refusal": null }));
    json!({
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "choices": [{
            "index": 0,
            "message": message,
            "logprobs": likely,
            "finish_reason": finish_reason(&reply.end.reason, !reply.calls.is_empty()),
        }],
        "usage": usage(&reply.end.statistics),
        "timings": timings(&reply.end.statistics),
    })
}

/// Chunks of a streamed reply.
#[derive(Debug)]
pub(crate) struct Chunks {
    head: Head,
    reports_usage: bool,
    calls: usize,
    /// Likelihoods for the next chunk of text.
    likely: Vec<Likely>,
    with_likelihoods: bool,
}

impl Chunks {
    pub fn new(head: Head, reports_usage: bool, with_likelihoods: bool) -> Self {
        Chunks { head, reports_usage, calls: 0, likely: Vec::new(), with_likelihoods }
    }

    /// Returns the first chunk, which has the role.
    pub fn first(&self, out: &mut Events) {
        let delta = json!({ "role": "assistant", "content": "" });
        out.data(&self.chunk(&json!([{ "index": 0, "delta": delta, "finish_reason": null }])));
    }

    fn chunk(&self, choices: &Value) -> Value {
        json!({
            "id": self.head.id,
            "object": "chat.completion.chunk",
            "created": self.head.created,
            "model": self.head.model,
            "choices": choices,
        })
    }

    fn delta(&mut self, delta: &Value, out: &mut Events) {
        let mut choice = json!({ "index": 0, "delta": delta, "finish_reason": null });
        if self.with_likelihoods && !self.likely.is_empty() {
            choice["logprobs"] = json!({ "content": likely_json(&std::mem::take(&mut self.likely)) });
        }
        out.data(&self.chunk(&json!([choice])));
    }

    fn done(&mut self, end: &End, out: &mut Events) {
        if !self.likely.is_empty() {
            self.delta(&json!({ "content": "" }), out);
        }
        let reason = finish_reason(&end.reason, self.calls > 0);
        let mut last = self.chunk(&json!([{ "index": 0, "delta": {}, "finish_reason": reason }]));
        last["timings"] = timings(&end.statistics);
        if self.reports_usage {
            out.data(&last);
            last = self.chunk(&json!([]));
            last["timings"] = timings(&end.statistics);
        }
        last["usage"] = usage(&end.statistics);
        out.data(&last);
        out.end();
    }
}

impl Wording for Chunks {
    fn piece(&mut self, piece: Piece, out: &mut Events) {
        match piece {
            Piece::Begun => self.first(out),
            Piece::Text(text) => self.delta(&json!({ "content": text }), out),
            Piece::Thought(text) => self.delta(&json!({ "reasoning_content": text }), out),
            Piece::Call(call) => {
                let mut described = call_json(&call);
                described["index"] = json!(self.calls);
                self.calls += 1;
                self.delta(&json!({ "tool_calls": [described] }), out);
            }
            Piece::Likely(tokens) => self.likely.extend(tokens),
            Piece::Done(end) => self.done(&end, out),
            Piece::Failed(refusal) => self.failed(&refusal, out),
        }
    }

    fn failed(&mut self, refusal: &Refusal, out: &mut Events) {
        out.data(&refusal.json());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(more: Value) -> Value {
        let mut request = json!({ "model": "m", "messages": [{ "role": "user", "content": "hi" }] });
        if let (Value::Object(fields), Value::Object(more)) = (&mut request, more) {
            fields.extend(more);
        }
        request
    }

    fn param(more: Value) -> String {
        let refusal = read(request(more.clone()), &Limits::default()).expect_err(&more.to_string()).json();
        refusal["error"]["param"].as_str().unwrap_or_default().to_owned()
    }

    #[test]
    fn fields_are_used_reported_or_refused() {
        let more = json!({ "stream": true, "stream_options": { "include_usage": true }, "user": "me",
            "logprobs": true, "top_logprobs": 3, "max_tokens": 7, "max_completion_tokens": 7,
            "parallel_tool_calls": false, "reasoning_effort": "none", "metadata": { "a": "b" },
            "response_format": { "type": "json_object" }, "store": false, "service_tier": "auto" });
        let ask = read(request(more), &Limits::default()).unwrap();
        assert!(ask.stream && ask.reports_usage && ask.settings.one_call);
        assert_eq!((ask.settings.likelihoods, ask.settings.max_tokens), (Some(3), Some(7)));
        assert_eq!(ask.settings.thinking, Some(false));
        assert_eq!(ask.inert, ["user", "metadata", "service_tier"]);
        for (more, expected) in [
            (json!({ "model": 5 }), "model"),
            (json!({ "messages": "hi" }), "messages"),
            (json!({ "temprature": 1 }), "temprature"),
            (json!({ "n": 2 }), "n"),
            (json!({ "store": true }), "store"),
            (json!({ "modalities": ["audio"] }), "modalities"),
            (json!({ "functions": [] }), "functions"),
            (json!({ "prediction": {} }), "prediction"),
            (json!({ "stream_options": {} }), "stream_options"),
            (json!({ "stream": true, "stream_options": { "x": 1 } }), "stream_options.x"),
            (json!({ "top_logprobs": 3 }), "top_logprobs"),
            (json!({ "logprobs": true, "top_logprobs": 21 }), "top_logprobs"),
            (json!({ "chat_template_kwargs": { "a": 1 } }), "chat_template_kwargs"),
            (json!({ "response_format": { "type": "xml" } }), "response_format.type"),
            (json!({ "tools": [{ "type": "x" }] }), "tools[0]"),
            (json!({ "tool_choice": "required" }), "tool_choice"),
            (json!({ "temperature": 0, "top_p": 0.5 }), "top_p"),
        ] {
            assert_eq!(param(more), expected);
        }
    }

    #[test]
    fn a_stream_has_role_text_calls_reason_usage_and_an_end_in_this_order() {
        let mut chunks = Chunks::new(Head::new("chatcmpl-", "m"), true, false);
        let mut out = Events::default();
        let call = ToolCall { id: "c".to_owned(), name: "f".to_owned(), arguments: json!({ "a": 1 }) };
        let end = End {
            reason: DoneReason::StopToken { id: 1 },
            statistics: GenerationStatistics {
                prompt_tokens: 5,
                reused_tokens: 2,
                ..GenerationStatistics::default()
            },
        };
        for piece in [
            Piece::Begun,
            Piece::Thought("hm".to_owned()),
            Piece::Text("hi\n\ndata: x".to_owned()),
            Piece::Call(call),
            Piece::Done(Box::new(end)),
        ] {
            chunks.piece(piece, &mut out);
        }
        let events: Vec<&str> = out.text().split_terminator("\n\n").collect();
        assert_eq!(events.len(), 7, "{}", out.text());
        assert_eq!(events[6], "data: [DONE]");
        let parsed = |index: usize| -> Value {
            serde_json::from_str(events[index].strip_prefix("data: ").unwrap()).unwrap()
        };
        let delta = |index: usize| parsed(index)["choices"][0]["delta"].clone();
        assert_eq!(delta(0)["role"], "assistant");
        assert_eq!(delta(1)["reasoning_content"], "hm");
        assert_eq!(delta(2)["content"], "hi\n\ndata: x");
        assert_eq!(delta(3)["tool_calls"][0]["function"]["arguments"], "{\"a\":1}");
        assert_eq!(parsed(4)["choices"][0]["finish_reason"], "tool_calls");
        assert_eq!(parsed(5)["choices"], json!([]));
        assert_eq!(parsed(5)["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
        assert!(parsed(5)["timings"]["predicted_per_second"].is_number());
    }

    #[test]
    fn impossible_tokens_have_a_finite_likelihood() {
        let likely =
            Likely { bytes: vec![0xe2, 0x82], log_probability: f32::NEG_INFINITY, likeliest: vec![] };
        let json = likely_json(&[likely]);
        assert_eq!(json[0]["logprob"], -9999.0);
        assert_eq!(json[0]["bytes"], json!([0xe2, 0x82]));
    }
}
