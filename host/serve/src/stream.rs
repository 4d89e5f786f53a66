//! Streams of server-sent events, and replies collected as a whole.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use hyper::body::{Bytes, Frame};
use serde_json::Value;
use shardwright::ToolCall;
use tokio::time::{Instant, Sleep, sleep};

use crate::generation::{End, Generating, Likely, Piece};
use crate::refusal::Refusal;

/// Time without an event after which a comment keeps the connection open.
const BEAT: Duration = Duration::from_secs(15);

/// Writes the pieces of a reply as the events of an endpoint.
pub(crate) trait Wording: Send + Unpin + 'static {
    /// Appends the events of a piece.
    fn piece(&mut self, piece: Piece, out: &mut Events);
    /// Appends the events of an error after the reply began.
    fn failed(&mut self, refusal: &Refusal, out: &mut Events);
}

/// Events to send.
#[derive(Debug, Default)]
pub(crate) struct Events(String);

impl Events {
    /// Adds an event without a name.
    pub fn data(&mut self, data: &Value) {
        self.0 += &format!("data: {data}\n\n");
    }

    /// Adds an event with a name.
    pub fn named(&mut self, name: &str, data: &Value) {
        self.0 += &format!("event: {name}\ndata: {data}\n\n");
    }

    /// Adds the end of a stream.
    pub fn end(&mut self) {
        self.0 += "data: [DONE]\n\n";
    }

    #[cfg(test)]
    pub fn text(&self) -> &str {
        &self.0
    }
}

/// The body of a stream. Dropping it ends the reply.
struct Stream<W> {
    generating: Option<Generating>,
    wording: W,
    /// Events of the beginning.
    first: Option<Events>,
    beat: Pin<Box<Sleep>>,
}

impl<W: Wording> hyper::body::Body for Stream<W> {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        let mut events = this.first.take().unwrap_or_default();
        while let Some(generating) = &mut this.generating {
            match generating.pieces.poll_recv(context) {
                Poll::Ready(Some(Piece::Failed(refusal))) => {
                    this.wording.failed(&refusal, &mut events);
                    this.generating = None;
                }
                Poll::Ready(Some(piece)) => {
                    let is_done = matches!(piece, Piece::Done(_));
                    this.wording.piece(piece, &mut events);
                    if is_done {
                        this.generating = None;
                    }
                }
                Poll::Ready(None) => {
                    this.wording.failed(&without_end(), &mut events);
                    this.generating = None;
                }
                Poll::Pending => break,
            }
        }
        if !events.0.is_empty() {
            this.beat.as_mut().reset(Instant::now() + BEAT);
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from(events.0)))));
        }
        if this.generating.is_none() {
            return Poll::Ready(None);
        }
        match this.beat.as_mut().poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                this.beat.as_mut().reset(Instant::now() + BEAT);
                Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b": waiting\n\n")))))
            }
        }
    }
}

fn without_end() -> Refusal {
    Refusal::internal("the reply ended without a reason")
}

/// Waits until the reply begins. Errors before that have a status of their own.
pub(crate) async fn begun(generating: &mut Generating) -> Result<(), Refusal> {
    match generating.pieces.recv().await {
        Some(Piece::Begun) => Ok(()),
        Some(Piece::Failed(refusal)) => Err(refusal),
        Some(_) | None => Err(without_end()),
    }
}

/// Creates the response with a stream of events, for a reply that has begun.
pub(crate) fn response(generating: Generating, wording: impl Wording) -> Response<Body> {
    let mut first = Events::default();
    let mut wording = wording;
    wording.piece(Piece::Begun, &mut first);
    let beat = Box::pin(sleep(BEAT));
    let stream = Stream { generating: Some(generating), wording, first: Some(first), beat };
    let mut response = Response::new(Body::new(stream));
    let events = HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, events);
    // Proxies must not collect events.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// A whole reply.
#[derive(Debug)]
pub(crate) struct Collected {
    pub text: String,
    pub thoughts: String,
    pub calls: Vec<ToolCall>,
    pub likely: Vec<Likely>,
    pub end: End,
}

/// Collects a reply to its end.
pub(crate) async fn collect(mut generating: Generating) -> Result<Collected, Refusal> {
    begun(&mut generating).await?;
    let (mut text, mut thoughts) = (String::new(), String::new());
    let (mut calls, mut likely) = (Vec::new(), Vec::new());
    loop {
        match generating.pieces.recv().await {
            Some(Piece::Begun) => {}
            Some(Piece::Text(more)) => text += &more,
            Some(Piece::Thought(more)) => thoughts += &more,
            Some(Piece::Call(call)) => calls.push(call),
            Some(Piece::Likely(more)) => likely.extend(more),
            Some(Piece::Done(end)) => return Ok(Collected { text, thoughts, calls, likely, end: *end }),
            Some(Piece::Failed(refusal)) => return Err(refusal),
            None => return Err(without_end()),
        }
    }
}
