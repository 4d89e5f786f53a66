//! Events of a streamed response.

use serde_json::{Value, json};

use super::{ended, envelope, items, status};
use crate::chat::{Head, likely_json};
use crate::generation::{End, Likely, Piece};
use crate::ids;
use crate::refusal::Refusal;
use crate::stream::{Events, Wording};

/// Writes the events of a response: it begins, its items are added, grow and are done, and it ends.
#[derive(Debug)]
pub(crate) struct ResponseEvents {
    head: Head,
    echo: Value,
    sequence: u64,
    /// Items that are done.
    output: Vec<Value>,
    open: Option<Open>,
    likely: Vec<Likely>,
}

/// The item that grows.
#[derive(Debug)]
struct Open {
    id: String,
    is_thought: bool,
    text: String,
    likely: Vec<Likely>,
}

impl ResponseEvents {
    pub fn new(head: Head, echo: Value) -> Self {
        ResponseEvents { head, echo, sequence: 0, output: Vec::new(), open: None, likely: Vec::new() }
    }

    fn event(&mut self, name: &str, mut data: Value, out: &mut Events) {
        data["type"] = json!(name);
        data["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        out.named(name, &data);
    }

    fn begin(&mut self, out: &mut Events) {
        let response = envelope(&self.head, &self.echo, "in_progress");
        self.event("response.created", json!({ "response": response }), out);
        self.event("response.in_progress", json!({ "response": response }), out);
    }

    /// Adds text to the item of the answer or of a thought, and opens it if needed.
    fn text(&mut self, text: &str, is_thought: bool, out: &mut Events) {
        if self.open.as_ref().is_some_and(|open| open.is_thought != is_thought) {
            self.close("completed", out);
        }
        if self.open.is_none() {
            self.open(is_thought, out);
        }
        let index = self.output.len();
        let tokens = if is_thought { Vec::new() } else { std::mem::take(&mut self.likely) };
        let Some(open) = &mut self.open else { return };
        open.text += text;
        let mut data =
            json!({ "item_id": open.id, "output_index": index, "content_index": 0, "delta": text });
        let name = match is_thought {
            true => "response.reasoning_text.delta",
            false => {
                data["logprobs"] = likely_json(&tokens);
                "response.output_text.delta"
            }
        };
        open.likely.extend(tokens);
        self.event(name, data, out);
    }

    fn open(&mut self, is_thought: bool, out: &mut Events) {
        let index = self.output.len();
        let id = ids::id(if is_thought { "rs_" } else { "msg_" });
        let (mut item, part) = match is_thought {
            true => (items::thought(&id, "", "in_progress"), json!({ "type": "reasoning_text", "text": "" })),
            false => (items::message(&id, "", &[], "in_progress"), items::text_part("", &[])),
        };
        item["content"] = json!([]);
        self.event("response.output_item.added", json!({ "output_index": index, "item": item }), out);
        let data = json!({ "item_id": id, "output_index": index, "content_index": 0, "part": part });
        self.event("response.content_part.added", data, out);
        self.open = Some(Open { id, is_thought, text: String::new(), likely: Vec::new() });
    }

    /// Ends the item that grows.
    fn close(&mut self, status: &str, out: &mut Events) {
        let Some(Open { id, is_thought, text, likely }) = self.open.take() else { return };
        let index = self.output.len();
        let mut data = json!({ "item_id": id, "output_index": index, "content_index": 0, "text": text });
        let (name, item, part) = match is_thought {
            true => (
                "response.reasoning_text.done",
                items::thought(&id, &text, status),
                json!({ "type": "reasoning_text", "text": text }),
            ),
            false => {
                data["logprobs"] = likely_json(&likely);
                let item = items::message(&id, &text, &likely, status);
                ("response.output_text.done", item, items::text_part(&text, &likely))
            }
        };
        self.event(name, data, out);
        let data = json!({ "item_id": id, "output_index": index, "content_index": 0, "part": part });
        self.event("response.content_part.done", data, out);
        self.event("response.output_item.done", json!({ "output_index": index, "item": item }), out);
        self.output.push(item);
    }

    fn call(&mut self, call: &shardwright::ToolCall, out: &mut Events) {
        self.close("completed", out);
        let index = self.output.len();
        let id = ids::id("fc_");
        let item = items::call(&id, call);
        let arguments = item["arguments"].clone();
        let mut begun = item.clone();
        begun["arguments"] = json!("");
        begun["status"] = json!("in_progress");
        self.event("response.output_item.added", json!({ "output_index": index, "item": begun }), out);
        let data = json!({ "item_id": id, "output_index": index, "delta": arguments });
        self.event("response.function_call_arguments.delta", data, out);
        let data = json!({ "item_id": id, "output_index": index, "name": call.name, "arguments": arguments });
        self.event("response.function_call_arguments.done", data, out);
        self.event("response.output_item.done", json!({ "output_index": index, "item": item }), out);
        self.output.push(item);
    }

    fn end(&mut self, end: &End, out: &mut Events) {
        let (status, _) = status(&end.reason);
        // A response has at least one item, as a whole one.
        if self.open.is_none() && self.output.is_empty() {
            self.open(false, out);
        }
        // Tokens without a text, such as the end of a call, are not an item of their own.
        if !self.likely.is_empty() && self.open.as_ref().is_some_and(|open| !open.is_thought) {
            self.text("", false, out);
        }
        self.close(status, out);
        let response = ended(&self.head, &self.echo, &self.output, &end.reason, &end.statistics);
        self.event(&format!("response.{status}"), json!({ "response": response }), out);
    }
}

impl Wording for ResponseEvents {
    fn piece(&mut self, piece: Piece, out: &mut Events) {
        match piece {
            Piece::Begun => self.begin(out),
            Piece::Text(text) => self.text(&text, false, out),
            Piece::Thought(text) => self.text(&text, true, out),
            Piece::Call(call) => self.call(&call, out),
            Piece::Likely(tokens) => self.likely.extend(tokens),
            Piece::Done(end) => self.end(&end, out),
            Piece::Failed(refusal) => self.failed(&refusal, out),
        }
    }

    fn failed(&mut self, refusal: &Refusal, out: &mut Events) {
        self.close("incomplete", out);
        let mut response = envelope(&self.head, &self.echo, "failed");
        let error = &refusal.json()["error"];
        response["error"] = json!({ "code": error["code"], "message": error["message"] });
        response["output"] = json!(self.output);
        self.event("response.failed", json!({ "response": response }), out);
    }
}

#[cfg(test)]
mod tests {
    use shardwright::{DoneReason, GenerationStatistics, ToolCall};

    use super::*;

    fn names(pieces: Vec<Piece>) -> (Vec<String>, Value) {
        let mut events = ResponseEvents::new(Head::new("resp_", "m"), json!({ "metadata": {} }));
        let mut out = Events::default();
        pieces.into_iter().for_each(|piece| events.piece(piece, &mut out));
        let mut names = Vec::new();
        let mut last = Value::Null;
        for (sequence, event) in out.text().split_terminator("\n\n").enumerate() {
            let (name, data) = event.split_once('\n').unwrap();
            last = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(last["sequence_number"], sequence);
            let name = name.strip_prefix("event: response.").unwrap();
            assert_eq!(last["type"], format!("response.{name}"));
            names.push(name.to_owned());
        }
        (names, last)
    }

    fn done(reason: DoneReason) -> Piece {
        Piece::Done(Box::new(End { reason, statistics: GenerationStatistics::default() }))
    }

    #[test]
    fn items_begin_grow_and_end_in_order() {
        let call = ToolCall { id: "c".to_owned(), name: "f".to_owned(), arguments: json!({}) };
        let (names, last) = names(vec![
            Piece::Begun,
            Piece::Thought("hm".to_owned()),
            Piece::Text("a".to_owned()),
            Piece::Text("b".to_owned()),
            Piece::Call(call),
            done(DoneReason::StopToken { id: 1 }),
        ]);
        let expected = [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "reasoning_text.delta",
            "reasoning_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "completed",
        ];
        assert_eq!(names, expected);
        let kinds: Vec<&Value> =
            last["response"]["output"].as_array().unwrap().iter().map(|item| &item["type"]).collect();
        assert_eq!(kinds, ["reasoning", "message", "function_call"]);
        assert_eq!(last["response"]["output"][1]["content"][0]["text"], "ab");
    }

    #[test]
    fn likelihoods_without_a_text_are_no_item_of_their_own() {
        let likely = || {
            let token = Likely { bytes: b"x".to_vec(), log_probability: -1.0, likeliest: Vec::new() };
            Piece::Likely(vec![token])
        };
        let call = ToolCall { id: "c".to_owned(), name: "f".to_owned(), arguments: json!({}) };
        let end = || done(DoneReason::StopToken { id: 1 });
        let (_, last) = names(vec![Piece::Begun, Piece::Call(call), likely(), end()]);
        let output = last["response"]["output"].as_array().unwrap();
        assert_eq!((output.len(), &output[0]["type"]), (1, &json!("function_call")));
        let (_, last) = names(vec![Piece::Begun, Piece::Thought("hm".to_owned()), likely(), end()]);
        assert_eq!(last["response"]["output"].as_array().map(Vec::len), Some(1));
        // The last tokens of a text belong to it.
        let (_, last) = names(vec![Piece::Begun, likely(), Piece::Text("x".to_owned()), likely(), end()]);
        let message = &last["response"]["output"][0]["content"][0];
        assert_eq!(message["logprobs"].as_array().map(Vec::len), Some(2), "{last}");
    }

    #[test]
    fn a_cut_or_failed_response_is_reported_as_such() {
        let (names, last) =
            names(vec![Piece::Begun, Piece::Text("a".to_owned()), done(DoneReason::MaxTokens)]);
        assert_eq!(names.last().unwrap(), "incomplete");
        assert_eq!(last["response"]["incomplete_details"]["reason"], "max_output_tokens");
        assert_eq!(last["response"]["output"][0]["status"], "incomplete");
        let (names, last) = self::names(vec![Piece::Begun, Piece::Failed(Refusal::internal("odd"))]);
        assert_eq!(names, ["created", "in_progress", "failed"]);
        assert_eq!(last["response"]["error"]["code"], "internal");
        let (names, _) = self::names(vec![Piece::Begun, done(DoneReason::GrammarEnd)]);
        assert_eq!(names.iter().filter(|name| *name == "output_item.done").count(), 1);
    }
}
