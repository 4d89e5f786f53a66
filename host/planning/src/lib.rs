//! Planning: asks a sandboxed WebAssembly planner how to cut and place a model, and holds its answer against the
//! facts.
//!
//! **Job.** The request a planner gets and the plan it gives back ([`request`], [`plan`], [`feedback`]); the sandbox
//! it runs in ([`sandbox`]); the check of its answer as untrusted input ([`check`]); the built-in planner that takes
//! over when another fails, and the bounded loop of revisions ([`session`]); SoC profiles ([`profile`]); planners
//! found in a directory ([`registry`]) and signed packs for hosts without a compiler ([`pack`]).
//!
//! **Not its job.** It decides nothing about a plan, calls no shim and compiles no shard: `build` fills the request,
//! carries out the plan and reports back.
//!
//! Reading order: [`request::Request`], [`plan::Plan`], [`check::check`], [`sandbox::Planner`],
//! [`session::plan_with_fallback`].

pub mod check;
pub mod cost;
pub mod feedback;
pub mod plan;
pub mod request;

/// JSON without whitespace. The types serialised here have no maps and no floats, so equal values give equal bytes
/// and writing cannot fail.
fn canonical_json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}
