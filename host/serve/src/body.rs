//! Bodies of requests, within limits of size, time and memory.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use hyper::body::Body as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::app::{App, BODY_UNIT};
use crate::fields::shortened;
use crate::refusal::Refusal;

/// A body, and the permits for its memory.
pub(crate) struct Received {
    pub bytes: Vec<u8>,
    _memory: Option<OwnedSemaphorePermit>,
}

/// Receives the JSON body of a request.
pub(crate) async fn receive(app: &App, request: Request) -> Result<Received, Refusal> {
    let most = app.limits.body_bytes;
    if let Err(refusal) = check_kind(request.headers()) {
        discard(request.into_body()).await;
        return Err(refusal);
    }
    let claimed = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if claimed.and_then(|length| length.parse::<u64>().ok()).is_some_and(|length| length > most as u64) {
        discard(request.into_body()).await;
        return Err(too_large(most));
    }
    let received = timeout(app.limits.body_time, collect(request.into_body(), most, &app.bodies)).await;
    received.unwrap_or_else(|_| {
        let what = format!("the body did not arrive within {} s", app.limits.body_time.as_secs_f64());
        Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "timeout", what, "send it faster, or send less"))
    })
}

/// Most bytes of a refused body that are read and forgotten, and the time for that. If a connection
/// is closed while a client still sends, many clients do not see the response.
const DISCARDED: (usize, Duration) = (1 << 20, Duration::from_secs(1));

/// Reads the body of a refused request as far as it is small.
pub(crate) async fn discard(mut body: Body) {
    let (most, time) = DISCARDED;
    let read = async {
        let mut length = 0;
        while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            length += frame.data_ref().map_or(0, |data| data.len());
            if length > most {
                return;
            }
        }
    };
    // A body that takes longer is not read to its end.
    let _ = timeout(time, read).await;
}

/// Checks that the body is JSON. A form of another site could send other kinds without a preflight
/// request.
fn check_kind(headers: &HeaderMap) -> Result<(), Refusal> {
    let unsupported = |what: String, help: &str| {
        Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", what, help))
    };
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let main = kind.split(';').next().unwrap_or_default().trim();
    if !main.eq_ignore_ascii_case("application/json") {
        let what = format!("unsupported type of the body: `{}`", shortened(main));
        return unsupported(what, "send `Content-Type: application/json`");
    }
    match headers.get(header::CONTENT_ENCODING) {
        Some(encoding) if encoding != "identity" => {
            unsupported("compressed bodies are not supported".to_owned(), "send the body as it is")
        }
        _ => Ok(()),
    }
}

async fn collect(mut body: Body, most: usize, memory: &Arc<Semaphore>) -> Result<Received, Refusal> {
    let (mut bytes, mut held) = (Vec::new(), None::<OwnedSemaphorePermit>);
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let broken = |_| Refusal::invalid("invalid_body", "the body is cut or malformed", "send it whole");
        let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
        if bytes.len() + data.len() > most {
            return Err(too_large(most));
        }
        let units = (bytes.len() + data.len()).div_ceil(BODY_UNIT);
        let missing = units.saturating_sub(held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits));
        let missing = u32::try_from(missing).unwrap_or(u32::MAX);
        let more = Arc::clone(memory).try_acquire_many_owned(missing).map_err(|_| {
            let what = "other requests have too large bodies at the moment";
            Refusal::busy(
                StatusCode::SERVICE_UNAVAILABLE,
                "busy",
                what,
                "retry after the time in `Retry-After`",
            )
        })?;
        match &mut held {
            Some(held) => held.merge(more),
            None => held = Some(more),
        }
        bytes.extend_from_slice(&data);
    }
    Ok(Received { bytes, _memory: held })
}

fn too_large(most: usize) -> Refusal {
    let what = format!("the body has more than {most} bytes");
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", what, "send smaller pictures or less text")
}
