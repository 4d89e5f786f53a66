//! Planners that ship with the host as files next to the program.
//!
//! `cargo xtask pack` writes the packs of `plugins/` and the list of their digests. A pack with a
//! listed digest is as trusted as the program, so it needs no trusted key and has the fuel of the
//! built-in planner. If a single bit of it changes, it is refused as damaged.

use sha2::{Digest, Sha256};
use shardwright_files::hex;

use crate::builtin::FUEL_SHARES;
use crate::error::PlannerError;
use crate::pack;
use crate::sandbox::Planner;
#[cfg(feature = "compiler")]
use crate::sandbox::{CompiledCache, EngineKind, Sandbox};

/// The packs: a SHA-256 and a path relative to `plugins/` in each line, as `sha256sum` writes them.
pub const DIGESTS: &str = include_str!("../../../plugins/packs.sha256");

/// Returns whether this host ships with a pack of these bytes.
pub fn is_shipped(bytes: &[u8]) -> bool {
    let digest = hex::encode(&Sha256::digest(bytes));
    DIGESTS.lines().filter_map(|line| line.split_once(' ')).any(|(known, _)| known == digest)
}

/// Compiles a shipped planner in `sandbox`, or reads its compiled form from `cache`. Without a
/// cache, or if compiling fails, it runs under Pulley. `cancelled` ends the compilation.
#[cfg(feature = "compiler")]
pub(crate) fn load(
    name: &str,
    bytes: &[u8],
    sandbox: &Sandbox,
    cache: Option<&CompiledCache>,
    cancelled: &dyn Fn() -> bool,
) -> Result<Planner, PlannerError> {
    if cache.is_none() || sandbox.kind() != EngineKind::Native {
        return open(name, bytes);
    }
    let loaded = sandbox.load_trusted(name, pack::component(name, bytes)?, cache, cancelled);
    let loaded = loaded.or_else(|error| {
        if error.is_cancelled() {
            return Err(error);
        }
        let notice = format!("{error}; the planner is interpreted, which only takes longer");
        Ok(pack::open_embedded(name, bytes)?.loaded_with(notice))
    })?;
    Ok(loaded.with_fuel_shares(FUEL_SHARES))
}

/// Opens a shipped planner under Pulley.
pub(crate) fn open(name: &str, bytes: &[u8]) -> Result<Planner, PlannerError> {
    Ok(pack::open_embedded(name, bytes)?.with_fuel_shares(FUEL_SHARES))
}
