//! Planning: calls a sandboxed WebAssembly planner to cut and place a model, and checks its answer
//! against the facts.
//!
//! **Job.** This crate has
//!
//! * the request that a planner receives and the plan that it returns ([`request`], [`plan`],
//!   [`feedback`]),
//! * the sandbox it runs in ([`sandbox`]),
//! * the check of its answer as untrusted input ([`check`]), the sum of its times ([`times`]), and
//!   the rules of its hedges ([`hedge`]),
//! * the built-in planner, which takes over if another fails, the floor, which takes over if no
//!   planner is left ([`floor`]), and the bounded loop of revisions ([`session`]),
//! * the conformance rules for planners ([`conformance`]),
//! * SoC profiles ([`profile`]),
//! * planners found in a directory ([`registry`]), signed packs for hosts without a compiler
//!   ([`pack`]), and the packs that ship with the host ([`shipped`]).
//!
//! **Not its job.** Apart from the floor, it makes no decisions about a plan. It does not call
//! shims or compile shards: `build` fills the request, carries out the plan and reports back.
//!
//! Reading order: [`request::Request`], [`plan::Plan`], [`check::check`], [`sandbox::Planner`],
//! [`session::PlanningSession`].
//!
//! This example checks a planner's answer against its request:
//!
//! ```
//! use shardwright_planning::check::{CheckedPlan, check};
//! use shardwright_planning::request::Request;
//! use shardwright_planning::sandbox::Planner;
//!
//! fn checked(planner: &Planner, request: &Request) -> Result<CheckedPlan, Box<dyn std::error::Error>> {
//!     Ok(check(planner.make_plan(request).plan?, request)?)
//! }
//! ```

mod bindings;
pub mod builtin;
pub mod check;
mod checked_plan;
pub mod conformance;
mod convert;
pub mod cost;
pub mod error;
pub mod feedback;
pub mod floor;
pub mod flow;
pub mod hedge;
mod lessons;
pub mod losses;
pub mod pack;
pub mod plan;
pub mod profile;
pub mod registry;
pub mod request;
pub mod sandbox;
pub mod session;
pub mod shipped;
pub mod times;

use std::path::Path;

use error::PlannerErrorKind;
use shardwright_vocabulary::{At, ErrorKind};

/// Serialises a value as JSON without whitespace. The types serialised here have no maps and no
/// floats, so equal values give equal bytes and writing cannot fail.
fn canonical_json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

/// Returns the last part of a path, for messages.
fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Reads the file of a planner, of at most `cap` bytes.
fn read_capped(path: &Path, cap: u64) -> Result<Vec<u8>, PlannerErrorKind> {
    shardwright_files::read(path, cap).at(path.display()).map_err(|error| match error.kind() {
        // It is longer than `cap`.
        ErrorKind::Invalid if path.is_file() => PlannerErrorKind::Other(error),
        _ => PlannerErrorKind::MissingFile(error),
    })
}
