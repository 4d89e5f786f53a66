//! A server for models: the endpoints of OpenAI's interface, reports, and a web page.
//!
//! **Job.** Reads requests within limits, and refuses by name each field that it does not support.
//! Replies are generated on threads of their own, which alternate step by step. Async code only
//! moves bytes. Models share a memory budget. Clients are checked by host, origin and key.
//!
//! **Not its job.** It has no TLS, stores no conversation, and fetches no address. It does not open
//! models itself: its caller decides how.
//!
//! ```no_run
//! use shardwright::BundleOptions;
//! use shardwright_serve::{ServedModel, Server};
//!
//! let open = |budget: Option<u64>| {
//!     let options = BundleOptions::new();
//!     let options = if let Some(bytes) = budget { options.memory_budget(bytes) } else { options };
//!     options.open("bundle")
//! };
//! let server = Server::builder().model(ServedModel::new("demo", open)).bind()?;
//! println!("http://{}", server.address());
//! server.run()?;
//! # Ok::<(), shardwright::Error>(())
//! ```
//!
//! | endpoint | content |
//! |---|---|
//! | `POST /v1/chat/completions`, `/v1/completions`, `/v1/responses` | replies, whole or streamed |
//! | `POST /v1/embeddings` | sentence vectors |
//! | `GET /v1/models`, `/v1/placement` | models, and where their shards run |
//! | `GET /health`, `/metrics` | state, and metrics for Prometheus |
//! | `GET /` | the page |
//!
//! Reading order: `server.rs`, `connection.rs`, `guard.rs`, `routes.rs`, then the files of the
//! endpoints, `generation.rs` for the thread of a reply, and `recovery.rs` for losses of a device.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod app;
mod body;
mod chat;
mod completions;
mod connection;
mod embeddings;
mod fields;
mod freed_memory;
mod generation;
mod guard;
mod ids;
mod json;
mod keys;
mod limits;
mod media;
mod messages;
mod metrics;
mod models;
mod page;
mod placement;
mod recovery;
mod refusal;
mod reply_request;
mod responses;
mod routes;
mod server;
mod stall;
mod step_queue;
mod stream;

pub use keys::Keys;
pub use limits::Limits;
pub use models::{Open, ServedModel};
pub use server::{BoundServer, Server, ServerBuilder, Stopper};
