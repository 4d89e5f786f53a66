//! The endpoints.

use std::future::Future;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Extension, Router};
use serde_json::{Value, json};

use crate::app::App;
use crate::body;
use crate::chat::{self, Head};
use crate::generation::begin;
use crate::guard::guard;
use crate::keys::KeyIndex;
use crate::models::Entry;
use crate::refusal::{Refusal, json_response};
use crate::reply_request::ReplyRequest;
use crate::{completions, embeddings, json, page, placement, responses, stream};

/// Header of a response with the fields of its request that have no effect.
const WITHOUT_EFFECT: &str = "shardwright-fields-without-effect";

/// What the page may load: its own files, and pictures and sounds of its user.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data: blob:; media-src data: blob:; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// Creates the routes of all endpoints, behind the guard.
pub(crate) fn router(app: &Arc<App>) -> Router {
    Router::new()
        .route("/", get(|| file("text/html; charset=utf-8", page::INDEX)))
        .route("/page.css", get(|| file("text/css; charset=utf-8", page::STYLE)))
        .route("/page.js", get(|| file("text/javascript; charset=utf-8", page::SCRIPT)))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .route("/v1/models", get(list_models))
        .route("/v1/models/{*id}", get(one_model))
        .route("/v1/placement", get(show_placement))
        .route("/v1/chat/completions", post(post_chat))
        .route("/v1/completions", post(post_completion))
        .route("/v1/embeddings", post(post_embeddings))
        .route("/v1/responses", post(post_response))
        .fallback(|request: Request| std::future::ready(not_found(&request)))
        .method_not_allowed_fallback(|request: Request| std::future::ready(wrong_method(&request)))
        .layer(from_fn_with_state(Arc::clone(app), guard))
        .with_state(Arc::clone(app))
}

fn file(kind: &'static str, text: &'static str) -> impl Future<Output = Response<Body>> {
    let mut response = Response::new(Body::from(text));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    std::future::ready(response)
}

fn not_found(request: &Request) -> Refusal {
    let what = format!("no endpoint `{}`", crate::fields::shortened(request.uri().path()));
    let help =
        "use `/v1/models`, `/v1/chat/completions`, `/v1/completions`, `/v1/embeddings` or `/v1/responses`";
    Refusal::new(StatusCode::NOT_FOUND, "unknown_endpoint", what, help)
}

fn wrong_method(request: &Request) -> Refusal {
    let what = format!("the endpoint does not support the method `{}`", request.method());
    let help = "use GET for reports, and POST for replies and embeddings";
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", what, help)
}

async fn health(State(app): State<Arc<App>>) -> Response<Body> {
    match app.is_stopping() {
        false => json_response(StatusCode::OK, &json!({ "status": "ok" })),
        true => json_response(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "stopping" })),
    }
}

async fn metrics(State(app): State<Arc<App>>) -> Response<Body> {
    let entries = app.models.entries();
    let models: Vec<_> = entries.iter().map(|entry| (&*entry.id, &entry.metrics, entry.state())).collect();
    let text = app.metrics.text(app.open_requests(), app.models.budget(), &models);
    let mut response = Response::new(Body::from(text));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

fn model_json(entry: &Entry) -> Value {
    json!({ "id": entry.id, "object": "model", "created": entry.created, "owned_by": "shardwright" })
}

async fn list_models(State(app): State<Arc<App>>) -> Response<Body> {
    let models: Vec<Value> = app.models.entries().iter().map(|entry| model_json(entry)).collect();
    json_response(StatusCode::OK, &json!({ "object": "list", "data": models }))
}

async fn one_model(State(app): State<Arc<App>>, Path(id): Path<String>) -> Response<Body> {
    match app.models.find(&id) {
        Ok(entry) => json_response(StatusCode::OK, &model_json(entry)),
        Err(refusal) => refusal.into_response(),
    }
}

async fn show_placement(State(app): State<Arc<App>>) -> Response<Body> {
    json_response(StatusCode::OK, &placement::report(&app.models))
}

/// Receives a body and reads it on a thread for work that blocks.
async fn read<T: Send + 'static>(
    app: &Arc<App>,
    request: Request,
    read: fn(Value, &crate::Limits) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let received = body::receive(app, request).await?;
    let app = Arc::clone(app);
    let work = move || read(json::parse(&received.bytes, app.limits.json_depth)?, &app.limits);
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(Refusal::internal("reading the request panicked")))
}

/// Answers with a response, and with the fields that have no effect.
fn answer(result: Result<(Response<Body>, Vec<String>), Refusal>) -> Response<Body> {
    let (mut response, inert) = match result {
        Ok(done) => done,
        Err(refusal) => return refusal.into_response(),
    };
    // A list of paths of this server's own names is ASCII.
    if let (false, Ok(value)) = (inert.is_empty(), HeaderValue::from_str(&listed(&inert))) {
        response.headers_mut().insert(WITHOUT_EFFECT, value);
    }
    response
}

/// Lists fields, and the number of further ones.
fn listed(inert: &[String]) -> String {
    const MOST: usize = 20;
    let shown = inert.iter().take(MOST).cloned().collect::<Vec<_>>().join(", ");
    match inert.len().saturating_sub(MOST) {
        0 => shown,
        more => format!("{shown}, and {more} more"),
    }
}

async fn post_chat(
    State(app): State<Arc<App>>,
    Extension(key): Extension<KeyIndex>,
    request: Request,
) -> Response<Body> {
    answer(chat_response(&app, key, request).await)
}

async fn chat_response(
    app: &Arc<App>,
    key: KeyIndex,
    request: Request,
) -> Result<(Response<Body>, Vec<String>), Refusal> {
    let mut ask: ReplyRequest = read(app, request, chat::read).await?;
    let inert = std::mem::take(&mut ask.inert);
    let (head, stream) = (Head::new("chatcmpl-", &ask.model), ask.stream);
    let (reports_usage, has_likelihoods) = (ask.reports_usage, ask.settings.likelihoods.is_some());
    let mut generating = begin(app, ask, key, app.admit()?)?;
    if !stream {
        let reply = stream::collect(generating).await?;
        return Ok((json_response(StatusCode::OK, &chat::whole(&head, &reply, has_likelihoods)), inert));
    }
    stream::begun(&mut generating).await?;
    let chunks = chat::Chunks::new(head, reports_usage, has_likelihoods);
    Ok((stream::response(generating, chunks), inert))
}

async fn post_completion(
    State(app): State<Arc<App>>,
    Extension(key): Extension<KeyIndex>,
    request: Request,
) -> Response<Body> {
    answer(completion_response(&app, key, request).await)
}

async fn completion_response(
    app: &Arc<App>,
    key: KeyIndex,
    request: Request,
) -> Result<(Response<Body>, Vec<String>), Refusal> {
    let mut ask: ReplyRequest = read(app, request, completions::read).await?;
    let inert = std::mem::take(&mut ask.inert);
    let (head, stream) = (Head::new("cmpl-", &ask.model), ask.stream);
    let (reports_usage, has_likelihoods) = (ask.reports_usage, ask.settings.likelihoods.is_some());
    let mut generating = begin(app, ask, key, app.admit()?)?;
    if !stream {
        let reply = stream::collect(generating).await?;
        let whole = completions::whole(&head, &reply, has_likelihoods);
        return Ok((json_response(StatusCode::OK, &whole), inert));
    }
    stream::begun(&mut generating).await?;
    let chunks = completions::Chunks::new(head, reports_usage, has_likelihoods);
    Ok((stream::response(generating, chunks), inert))
}

async fn post_response(
    State(app): State<Arc<App>>,
    Extension(key): Extension<KeyIndex>,
    request: Request,
) -> Response<Body> {
    answer(response_response(&app, key, request).await)
}

async fn response_response(
    app: &Arc<App>,
    key: KeyIndex,
    request: Request,
) -> Result<(Response<Body>, Vec<String>), Refusal> {
    let responses::ResponseAsk { mut ask, echo } = read(app, request, responses::read).await?;
    let inert = std::mem::take(&mut ask.inert);
    let (head, stream) = (Head::new("resp_", &ask.model), ask.stream);
    let mut generating = begin(app, ask, key, app.admit()?)?;
    if !stream {
        let reply = stream::collect(generating).await?;
        return Ok((json_response(StatusCode::OK, &responses::whole(&head, &echo, &reply)), inert));
    }
    stream::begun(&mut generating).await?;
    let events = responses::ResponseEvents::new(head, echo);
    Ok((stream::response(generating, events), inert))
}

async fn post_embeddings(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    answer(embeddings_response(&app, request).await)
}

async fn embeddings_response(
    app: &Arc<App>,
    request: Request,
) -> Result<(Response<Body>, Vec<String>), Refusal> {
    let mut ask = read(app, request, embeddings::read).await?;
    let inert = std::mem::take(&mut ask.inert);
    let document = embeddings::embed(app, ask, app.admit()?).await?;
    Ok((json_response(StatusCode::OK, &document), inert))
}
