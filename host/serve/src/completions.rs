//! `/v1/completions`.

use serde_json::{Value, json};

use crate::chat::{Head, finish_reason, finite, read_stream, timings, usage};
use crate::fields::{Fields, unexpected};
use crate::generation::{End, Likely, Piece};
use crate::limits::Limits;
use crate::refusal::Refusal;
use crate::reply_request::{INERT, Input, Names, ReplyRequest, Settings, read_max_tokens};
use crate::stream::{Collected, Events, Wording};

/// Most alternatives of a token.
const LIKELIEST_MAX: u64 = 5;

/// Tokens of a reply without `max_tokens`, as in OpenAI's interface.
const TOKENS: usize = 16;

/// Reads a request.
pub(crate) fn read(body: Value, limits: &Limits) -> Result<ReplyRequest, Refusal> {
    let mut fields = Fields::of(body, "")?;
    let model = fields.required_text("model")?;
    let input = read_prompt(fields.required("prompt")?)?;
    let mut settings = Settings::read(&mut fields, limits)?;
    settings.expect_effects()?;
    settings.max_tokens = Some(read_max_tokens(&mut fields, &["max_tokens"])?.unwrap_or(TOKENS));
    settings.likelihoods = fields.count("logprobs", 0, LIKELIEST_MAX)?.map(|count| count as usize);
    let (stream, reports_usage) = read_stream(&mut fields)?;
    fields.only("echo", &[json!(false)], "put the prompt before the reply yourself")?;
    fields.only("best_of", &[json!(1)], "send one request for each reply")?;
    fields.only("suffix", &[json!("")], "use a prompt of the model's own form")?;
    fields.without_effect(&INERT);
    let inert = fields.finish()?;
    Ok(ReplyRequest { model, input, settings, names: Names::COMPLETIONS, stream, reports_usage, inert })
}

/// Reads a prompt: a text or token ids, possibly in an array of one.
fn read_prompt(prompt: Value) -> Result<Input, Refusal> {
    let several = |prompts: &[Value]| {
        let what = format!("{} prompts, expected one", prompts.len());
        Refusal::value("prompt", what, "send one request for each prompt")
    };
    match prompt {
        Value::String(text) => Ok(Input::Text(text)),
        Value::Array(values) => match values.as_slice() {
            [Value::String(text)] => Ok(Input::Text(text.clone())),
            [Value::Array(ids)] => read_ids(ids),
            [Value::String(_) | Value::Array(_), ..] => Err(several(&values)),
            ids => read_ids(ids),
        },
        other => Err(unexpected("prompt", "a string or an array of token ids", &other)),
    }
}

fn read_ids(ids: &[Value]) -> Result<Input, Refusal> {
    let id = |value: &Value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| unexpected("prompt", "token ids", value))
    };
    Ok(Input::Ids(ids.iter().map(id).collect::<Result<_, _>>()?))
}

/// Likelihoods in the older form, with offsets of the tokens in the text.
#[derive(Debug, Default)]
struct OldLikely {
    /// Characters of the tokens so far.
    offset: usize,
}

impl OldLikely {
    fn json(&mut self, tokens: &[Likely]) -> Value {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut offsets = Vec::new();
        for token in tokens {
            offsets.push(self.offset);
            self.offset += text(&token.bytes).chars().count();
        }
        let likeliest = |token: &Likely| -> Value {
            let pairs = token.likeliest.iter().map(|(bytes, log)| (text(bytes), json!(finite(*log))));
            Value::Object(pairs.collect())
        };
        json!({
            "tokens": tokens.iter().map(|token| text(&token.bytes)).collect::<Vec<_>>(),
            "token_logprobs": tokens.iter().map(|token| finite(token.log_probability)).collect::<Vec<_>>(),
            "top_logprobs": tokens.iter().map(likeliest).collect::<Vec<_>>(),
            "text_offset": offsets,
        })
    }
}

/// Returns the response of a whole reply.
pub(crate) fn whole(head: &Head, reply: &Collected, with_likelihoods: bool) -> Value {
    let likely = with_likelihoods.then(|| OldLikely::default().json(&reply.likely));
    // Thoughts and calls have no field of their own here.
    let text = format!("{}{}", reply.thoughts, reply.text);
    json!({
        "id": head.id,
        "object": "text_completion",
        "created": head.created,
        "model": head.model,
        "choices": [{
            "index": 0,
            "text": text,
            "logprobs": likely,
            "finish_reason": finish_reason(&reply.end.reason, false),
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
    likely: Vec<Likely>,
    likely_form: OldLikely,
    with_likelihoods: bool,
}

impl Chunks {
    pub fn new(head: Head, reports_usage: bool, with_likelihoods: bool) -> Self {
        Chunks {
            head,
            reports_usage,
            likely: Vec::new(),
            likely_form: OldLikely::default(),
            with_likelihoods,
        }
    }

    fn chunk(&self, choices: &Value) -> Value {
        json!({
            "id": self.head.id,
            "object": "text_completion",
            "created": self.head.created,
            "model": self.head.model,
            "choices": choices,
        })
    }

    fn text(&mut self, text: &str, reason: Option<&str>) -> Value {
        let tokens = std::mem::take(&mut self.likely);
        let likely = (self.with_likelihoods && !tokens.is_empty()).then(|| self.likely_form.json(&tokens));
        self.chunk(&json!([{ "index": 0, "text": text, "logprobs": likely, "finish_reason": reason }]))
    }

    fn done(&mut self, end: &End, out: &mut Events) {
        let mut last = self.text("", Some(finish_reason(&end.reason, false)));
        if self.reports_usage {
            out.data(&last);
            last = self.chunk(&json!([]));
        }
        last["usage"] = usage(&end.statistics);
        last["timings"] = timings(&end.statistics);
        out.data(&last);
        out.end();
    }
}

impl Wording for Chunks {
    fn piece(&mut self, piece: Piece, out: &mut Events) {
        match piece {
            Piece::Begun | Piece::Call(_) => {}
            Piece::Text(text) | Piece::Thought(text) => out.data(&self.text(&text, None)),
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

    #[test]
    fn prompts_are_text_or_ids_and_one_at_a_time() {
        let read = |prompt: Value| read(json!({ "model": "m", "prompt": prompt }), &Limits::default());
        let input = |prompt| format!("{:?}", read(prompt).unwrap().input);
        assert_eq!(input(json!("a")), "Text(\"a\")");
        assert_eq!(input(json!(["a"])), "Text(\"a\")");
        assert_eq!(input(json!([1, 2])), "Ids([1, 2])");
        assert_eq!(input(json!([[1, 2]])), "Ids([1, 2])");
        for wrong in
            [json!(5), json!(["a", "b"]), json!([[1], [2]]), json!([1.5]), json!([-1]), json!([1, "a"])]
        {
            let refusal = read(wrong.clone()).unwrap_err().json();
            assert_eq!(refusal["error"]["param"], "prompt", "{wrong}");
        }
        assert_eq!(read(json!("a")).unwrap().settings.max_tokens, Some(16));
    }

    #[test]
    fn unsupported_fields_are_named() {
        for (name, value) in
            [("echo", json!(true)), ("best_of", json!(2)), ("suffix", json!("x")), ("logprobs", json!(6))]
        {
            let mut body = json!({ "model": "m", "prompt": "a" });
            body[name] = value;
            let refusal = read(body, &Limits::default()).unwrap_err().json();
            assert_eq!(refusal["error"]["param"], name);
        }
    }

    #[test]
    fn offsets_count_characters_over_chunks() {
        let likely = |text: &str| Likely {
            bytes: text.as_bytes().to_vec(),
            log_probability: -1.0,
            likeliest: vec![(b"x".to_vec(), -0.5)],
        };
        let mut form = OldLikely::default();
        assert_eq!(form.json(&[likely("é"), likely("ab")])["text_offset"], json!([0, 1]));
        let next = form.json(&[likely("c")]);
        assert_eq!(next["text_offset"], json!([3]));
        assert_eq!(next["top_logprobs"], json!([{ "x": -0.5 }]));
    }
}
