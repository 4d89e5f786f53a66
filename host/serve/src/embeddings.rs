//! `/v1/embeddings`.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use shardwright::tools::ModelTools;
use shardwright::{CancelHandle, EmbedOptions, ErrorKind, Model};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::app::App;
use crate::fields::{self, Fields};
use crate::generation::{Canceller, spawn};
use crate::limits::Limits;
use crate::models::Lease;
use crate::recovery::{Fault, Held};
use crate::refusal::Refusal;
use crate::reply_request::INERT;
use crate::step_queue::Seat;

/// A request for sentence vectors.
#[derive(Debug)]
pub(crate) struct EmbedAsk {
    pub model: String,
    texts: Vec<String>,
    options: EmbedOptions,
    is_base64: bool,
    pub inert: Vec<String>,
}

/// Reads a request.
pub(crate) fn read(body: Value, limits: &Limits) -> Result<EmbedAsk, Refusal> {
    let mut fields = Fields::of(body, "")?;
    let model = fields.required_text("model")?;
    let texts = read_texts(fields.required("input")?, limits)?;
    let dimensions = fields.count("dimensions", 1, 1 << 20)?.map(|count| count as usize);
    let prompt_name = fields.text("prompt_name")?;
    let is_base64 = match fields.text("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            let what = format!("unknown encoding `{}`", fields::shortened(other));
            return Err(Refusal::value("encoding_format", what, "use `float` or `base64`"));
        }
    };
    fields.without_effect(&INERT);
    let inert = fields.finish()?;
    Ok(EmbedAsk { model, texts, options: EmbedOptions { prompt_name, dimensions }, is_base64, inert })
}

fn read_texts(input: Value, limits: &Limits) -> Result<Vec<String>, Refusal> {
    let values = match input {
        Value::String(text) => return Ok(vec![text]),
        Value::Array(values) => values,
        other => return Err(fields::unexpected("input", "a string or an array of strings", &other)),
    };
    if values.is_empty() || values.len() > limits.embedding_texts {
        let what = format!("{} texts, expected 1 to {}", values.len(), limits.embedding_texts);
        return Err(Refusal::value("input", what, "send several requests"));
    }
    let text = |(index, value): (usize, Value)| match value {
        Value::String(text) => Ok(text),
        other => {
            let refusal = fields::unexpected(&format!("input[{index}]"), "a string", &other);
            Err(refusal)
        }
    };
    values.into_iter().enumerate().map(text).collect()
}

/// Ends the work if its client leaves.
struct EndOnDrop(Arc<Canceller>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Computes the vectors on a thread of its own.
pub(crate) async fn embed(
    app: &Arc<App>,
    ask: EmbedAsk,
    permit: OwnedSemaphorePermit,
) -> Result<Value, Refusal> {
    app.models.find(&ask.model)?;
    let canceller = Arc::new(Canceller::default());
    let (registered, _end) = (app.open.register(&canceller), EndOnDrop(Arc::clone(&canceller)));
    let (sender, done) = oneshot::channel();
    let app = Arc::clone(app);
    spawn(move || {
        let held = (registered, permit);
        let done = run(&app, &ask, &canceller);
        // The next request may follow the response at once.
        drop(held);
        // The client may be gone.
        let _ = sender.send(done);
    })?;
    done.await.unwrap_or_else(|_| Err(Refusal::internal("the thread of the request panicked")))
}

fn run(app: &Arc<App>, ask: &EmbedAsk, canceller: &Canceller) -> Result<Value, Refusal> {
    let entry = app.models.find(&ask.model)?;
    let (held, seat) = (Held::new(app, entry), Seat::new(&entry.turns));
    let handle = CancelHandle::default();
    held.retry(|| {
        let lease = lease(app, &held)?;
        canceller.watch(handle.clone());
        expect_prompt(&lease.loaded.model, &ask.options, &handle).map_err(Fault::from)
    })?;
    let (mut data, mut tokens) = (Vec::new(), 0);
    for (index, text) in ask.texts.iter().enumerate() {
        if canceller.is_cancelled() {
            return Err(Refusal::stopping());
        }
        let (vector, count) = held.retry(|| {
            let lease = lease(app, &held)?;
            embed_one(&lease.loaded.model, text, &ask.options, (&seat, &handle))
        })?;
        tokens += count;
        data.push(
            json!({ "object": "embedding", "index": index, "embedding": encoded(&vector, ask.is_base64) }),
        );
    }
    Ok(json!({
        "object": "list",
        "data": data,
        "model": ask.model,
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
    }))
}

/// Returns the open model of a request, if it computes vectors, with room for a session.
fn lease(app: &App, held: &Held) -> Result<Arc<Lease>, Fault> {
    let lease = held.lease().map_err(Fault::of_server)?;
    if lease.loaded.model.chain().is_generative() {
        let what = format!("model `{}` generates text and computes no vectors", lease.entry.id);
        let help = "use `/v1/chat/completions` or `/v1/completions`";
        return Err(Refusal::invalid("unsupported", what, help).at("model").into());
    }
    app.models.hold_session(&lease).map_err(Fault::of_server)?;
    Ok(lease)
}

/// Computes the vector of a text, and returns it with the number of its tokens.
fn embed_one(
    model: &Model,
    text: &str,
    options: &EmbedOptions,
    (seat, handle): (&Seat, &CancelHandle),
) -> Result<(Vec<f32>, usize), Fault> {
    let count = model.embedding_tokens(text, options, handle);
    let count = count.map_err(|error| Fault::of_request(error, "input"))?;
    seat.next();
    let vector = model.embed_until(text, options, handle);
    seat.leave();
    let vector = vector.map_err(|error| {
        // Texts with tokens are valid arguments.
        let is_of_size = error.kind() == ErrorKind::Argument && options.dimensions.is_some();
        let param = if is_of_size && count > 0 { "dimensions" } else { "input" };
        Fault::of_request(error, param)
    })?;
    Ok((vector, count))
}

/// Checks that the model has the named prompt, if there is one.
fn expect_prompt(model: &Model, options: &EmbedOptions, handle: &CancelHandle) -> Result<(), Refusal> {
    let Some(name) = &options.prompt_name else { return Ok(()) };
    let encode = |options: &EmbedOptions| model.embedding_tokens("", options, handle);
    // Errors without the name are not about it.
    encode(&EmbedOptions::default()).map_err(|error| Refusal::of_server(&error))?;
    match encode(options) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::Cancelled => Err(Refusal::stopping()),
        Err(error) => {
            let what = format!("the model has no prompt `{}`", fields::shortened(name));
            Err(Refusal::value("prompt_name", what, error.help().unwrap_or("remove the field")))
        }
    }
}

/// Returns a vector as numbers, or as base64 of little-endian floats.
fn encoded(vector: &[f32], is_base64: bool) -> Value {
    if !is_base64 {
        return json!(vector);
    }
    let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
    Value::String(STANDARD.encode(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_or_refused_at_their_field() {
        let limits = Limits { embedding_texts: 2, ..Limits::default() };
        let body = json!({ "model": "m", "input": ["a", "b"], "encoding_format": "base64", "user": "me" });
        let ask = read(body, &limits).unwrap();
        assert!(ask.is_base64 && ask.texts == ["a", "b"] && ask.inert == ["user"]);
        for (name, value, param) in [
            ("input", json!([]), "input"),
            ("input", json!(["a", "b", "c"]), "input"),
            ("input", json!([[1, 2]]), "input[0]"),
            ("input", json!({}), "input"),
            ("encoding_format", json!("hex"), "encoding_format"),
            ("dimensions", json!(0), "dimensions"),
            ("truncate", json!(true), "truncate"),
        ] {
            let mut body = json!({ "model": "m", "input": "a" });
            body[name] = value;
            assert_eq!(read(body, &limits).unwrap_err().json()["error"]["param"], param);
        }
    }

    #[test]
    fn base64_has_the_bits_of_the_numbers() {
        let encoded = encoded(&[1.5, -0.25], true);
        let bytes = STANDARD.decode(encoded.as_str().unwrap()).unwrap();
        assert_eq!(bytes, [0, 0, 0xc0, 0x3f, 0, 0, 0x80, 0xbe]);
    }
}
