//! The built-in planner, embedded as a pack: the default, and the fallback for any other.
//!
//! `plugins/generic/generic.pack` is built from the crate next to it by `cargo xtask pack` and
//! committed, so that a host is compiled without a WebAssembly toolchain, and plans without a
//! WebAssembly compiler. A test fails if the pack differs from what its source compiles to.

use crate::error::PlannerError;
use crate::pack;
use crate::sandbox::Planner;
#[cfg(feature = "compiler")]
use crate::sandbox::{CompiledCache, Sandbox};

/// Name of the built-in planner.
pub const NAME: &str = "generic";

/// The pack: the component and its code for Pulley.
pub const PACK: &[u8] = include_bytes!("../../../plugins/generic/generic.pack");

/// Its fuel for one call in shares of [`Bounds::fuel`]. It is as trusted as the program: the bound
/// only ends a fault. A size goal for a model of 35 layers whose tables have four formats each takes
/// 2.5 billion units, two seconds; the default of others is 2 billion.
///
/// [`Bounds::fuel`]: crate::sandbox::Bounds::fuel
const FUEL_SHARES: u64 = 10;

/// Returns the component.
///
/// Errors: the embedded pack is damaged.
pub fn component() -> Result<&'static [u8], PlannerError> {
    pack::component(NAME, PACK)
}

/// Compiles the built-in planner in `sandbox`, or reads its compiled form from `cache`. It is as
/// trusted as the program, so its compilation has no time limit. Of several processes one compiles,
/// and the others wait for it.
#[cfg(feature = "compiler")]
pub fn load(sandbox: &Sandbox, cache: Option<&CompiledCache>) -> Result<Planner, PlannerError> {
    Ok(sandbox.load_trusted(NAME, component()?, cache)?.with_fuel_shares(FUEL_SHARES))
}

/// Opens the built-in planner under Pulley, without compiling it.
///
/// Errors: the embedded pack is damaged, or was compiled by another version of wasmtime.
pub fn open() -> Result<Planner, PlannerError> {
    Ok(pack::open_embedded(NAME, PACK)?.with_fuel_shares(FUEL_SHARES))
}
