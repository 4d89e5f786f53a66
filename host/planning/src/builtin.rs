//! The built-in planner, embedded as a component: the default, and what takes over when another
//! fails.

use crate::error::PlannerError;
use crate::sandbox::{CompiledCache, Planner, Sandbox};

/// Name of the built-in planner.
pub const NAME: &str = "generic";

/// The component, as built from `plugins/generic`.
pub const WASM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/generic.wasm"));

/// The built-in planner in `sandbox`.
pub fn load(sandbox: &Sandbox, cache: Option<&CompiledCache>) -> Result<Planner, PlannerError> {
    sandbox.load(NAME, WASM, cache)
}
