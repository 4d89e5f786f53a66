//! The built-in planner, embedded as a pack: the default, and the fallback for any other planner.
//!
//! `cargo xtask pack` builds `plugins/generic/generic.pack` from the crate next to it. The pack is
//! committed, so that hosts compile without a WebAssembly toolchain and plan without a WebAssembly
//! compiler. A test fails if the pack differs from a build of its source.

use crate::error::PlannerError;
use crate::pack;
use crate::sandbox::Planner;
#[cfg(feature = "compiler")]
use crate::sandbox::{CompiledCache, Sandbox};

pub const NAME: &str = "generic";

/// The pack: the component and its code for Pulley.
pub const PACK: &[u8] = include_bytes!("../../../plugins/generic/generic.pack");

/// Fuel of one call, in multiples of [`Bounds::fuel`], also of planners that ship with the program.
/// They are as trusted as the program, so the bound only ends a faulty call. A size goal for a
/// model of 35 layers whose tables have four formats each needs 2.5 billion units, or two seconds.
/// The default of other planners is 2 billion.
///
/// [`Bounds::fuel`]: crate::sandbox::Bounds::fuel
pub(crate) const FUEL_SHARES: u64 = 10;

/// Returns the component.
///
/// Fails if the embedded pack is damaged.
pub fn component() -> Result<&'static [u8], PlannerError> {
    pack::component(NAME, PACK)
}

/// Compiles the built-in planner in `sandbox`, or reads its compiled form from `cache`. It is as
/// trusted as the program, so its compilation has no time limit. If several processes need it, one
/// compiles it while the others wait.
#[cfg(feature = "compiler")]
pub fn load(sandbox: &Sandbox, cache: Option<&CompiledCache>) -> Result<Planner, PlannerError> {
    load_until(sandbox, cache, &|| false)
}

/// Like [`load`], but stops compiling once `cancelled` returns true.
#[cfg(feature = "compiler")]
pub fn load_until(
    sandbox: &Sandbox,
    cache: Option<&CompiledCache>,
    cancelled: &dyn Fn() -> bool,
) -> Result<Planner, PlannerError> {
    Ok(sandbox.load_trusted(NAME, component()?, cache, cancelled)?.with_fuel_shares(FUEL_SHARES))
}

/// Opens the built-in planner under Pulley, without compiling it.
///
/// Fails if the embedded pack is damaged or was compiled by another version of wasmtime.
pub fn open() -> Result<Planner, PlannerError> {
    Ok(pack::open_embedded(NAME, PACK)?.with_fuel_shares(FUEL_SHARES))
}
