//! Chat completions of a server: whole or streamed, with their times.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::http;

/// The endpoint.
pub const PATH: &str = "/v1/chat/completions";

/// A whole reply.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    pub text: String,
    /// Reason for the end, such as `stop`.
    pub finish: String,
    /// Number of generated tokens, if the server reports it.
    pub tokens: u64,
    /// Time from the request to the first text. Zero for a reply that is not streamed.
    pub first: Duration,
    /// Time from the request to the end.
    pub last: Duration,
}

impl Reply {
    /// Checks whether another reply has the same text and the same end.
    pub fn is_same(&self, other: &Reply) -> bool {
        (&self.text, &self.finish) == (&other.text, &other.finish)
    }

    /// Returns the tokens per second after the first one, if there are any.
    pub fn speed(&self) -> Option<f64> {
        let seconds = self.last.saturating_sub(self.first).as_secs_f64();
        (self.tokens > 1 && seconds > 0.0).then(|| (self.tokens - 1) as f64 / seconds)
    }
}

/// A request without a reply.
#[derive(Clone, Debug, PartialEq)]
pub enum ChatFailure {
    /// The server answered with an error.
    Refused {
        /// HTTP status, 200 if the error is an event of a stream.
        status: u16,
        text: String,
    },
    /// The connection ended without a complete answer.
    Lost(String),
}

impl fmt::Display for ChatFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChatFailure::Refused { status, text } => write!(formatter, "status {status}: {text}"),
            ChatFailure::Lost(problem) => write!(formatter, "no complete answer: {problem}"),
        }
    }
}

impl From<io::Error> for ChatFailure {
    fn from(error: io::Error) -> Self {
        ChatFailure::Lost(error.to_string())
    }
}

/// Sends a request and receives its reply, which is streamed if the request says so.
pub fn ask(address: SocketAddr, request: &Value) -> Result<Reply, ChatFailure> {
    let start = Instant::now();
    let stream = http::post(address, PATH, request.to_string().as_bytes())?;
    let (status, body) = http::receive(stream)?;
    read(status, body, request["stream"] == true, start)
}

/// Reads the body of a response. `start` is the time of the request.
pub fn read(status: u16, body: impl Read, is_streamed: bool, start: Instant) -> Result<Reply, ChatFailure> {
    match is_streamed && status == 200 {
        true => streamed(body, start),
        false => whole(status, body, start),
    }
}

fn whole(status: u16, mut body: impl Read, start: Instant) -> Result<Reply, ChatFailure> {
    let mut text = String::new();
    body.read_to_string(&mut text)?;
    if status != 200 {
        return Err(ChatFailure::Refused { status, text });
    }
    let answer = parsed(&text)?;
    let choice = &answer["choices"][0];
    Ok(Reply {
        text: choice["message"]["content"].as_str().unwrap_or_default().to_owned(),
        finish: choice["finish_reason"].as_str().unwrap_or_default().to_owned(),
        tokens: answer["usage"]["completion_tokens"].as_u64().unwrap_or(0),
        first: Duration::ZERO,
        last: start.elapsed(),
    })
}

/// Reads a stream of events to its end.
fn streamed(body: impl Read, start: Instant) -> Result<Reply, ChatFailure> {
    let mut reply = Reply::default();
    let mut is_ended = false;
    for line in BufReader::new(body).lines() {
        let line = line?;
        let Some(data) = line.strip_prefix("data: ") else { continue };
        if data == "[DONE]" {
            is_ended = true;
            continue;
        }
        let event = parsed(data)?;
        if !event["error"].is_null() {
            return Err(ChatFailure::Refused { status: 200, text: data.to_owned() });
        }
        let choice = &event["choices"][0];
        let text = choice["delta"]["content"].as_str().unwrap_or_default();
        if !text.is_empty() && reply.text.is_empty() {
            reply.first = start.elapsed();
        }
        reply.text += text;
        if let Some(finish) = choice["finish_reason"].as_str() {
            finish.clone_into(&mut reply.finish);
            reply.last = start.elapsed();
        }
        if let Some(tokens) = event["usage"]["completion_tokens"].as_u64() {
            reply.tokens = tokens;
        }
    }
    match is_ended && !reply.finish.is_empty() {
        true => Ok(reply),
        false => Err(ChatFailure::Lost("the stream ended without its last event".to_owned())),
    }
}

fn parsed(text: &str) -> Result<Value, ChatFailure> {
    serde_json::from_str(text).map_err(|error| ChatFailure::Lost(format!("{error} in {text}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(data: &[&str]) -> Result<Reply, ChatFailure> {
        let text: String = data.iter().map(|data| format!("data: {data}\n\n")).collect();
        streamed(format!(": waiting\n\n{text}").as_bytes(), Instant::now())
    }

    #[test]
    fn streams_are_joined_and_their_end_is_required() {
        let first = r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#;
        let text = r#"{"choices":[{"index":0,"delta":{"content":"ab"}}]}"#;
        let end = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
        let usage = r#"{"choices":[],"usage":{"completion_tokens":3}}"#;
        let reply = events(&[first, text, text, end, usage, "[DONE]"]).expect("a reply");
        assert_eq!((reply.text.as_str(), reply.finish.as_str(), reply.tokens), ("abab", "stop", 3));
        assert!(reply.first <= reply.last && reply.is_same(&Reply { tokens: 4, ..reply.clone() }));
        assert!(!reply.is_same(&Reply { finish: "length".to_owned(), ..reply.clone() }));
        for cut in [&[first, text][..], &[text, end, usage], &[text, "[DONE]"], &["{"]] {
            assert!(matches!(events(cut), Err(ChatFailure::Lost(_))), "{cut:?}");
        }
        let refused = events(&[first, text, r#"{"error":{"code":"shim"}}"#]).expect_err("an error");
        assert!(matches!(&refused, ChatFailure::Refused { status: 200, .. }), "{refused}");
    }

    #[test]
    fn whole_replies_have_text_and_counts() {
        let answer = r#"{"choices":[{"message":{"content":"ab"},"finish_reason":"length"}],
                         "usage":{"completion_tokens":2}}"#;
        let reply = whole(200, answer.as_bytes(), Instant::now()).expect("a reply");
        assert_eq!((reply.text.as_str(), reply.finish.as_str(), reply.tokens), ("ab", "length", 2));
        let refused = whole(429, "{}".as_bytes(), Instant::now()).expect_err("an error");
        assert_eq!(refused, ChatFailure::Refused { status: 429, text: "{}".to_owned() });
    }

    #[test]
    fn speeds_leave_out_the_first_token() {
        let times = |tokens| Reply {
            tokens,
            first: Duration::from_secs(1),
            last: Duration::from_secs(3),
            ..Reply::default()
        };
        assert_eq!((times(5).speed(), times(1).speed(), times(0).speed()), (Some(2.0), None, None));
    }
}
