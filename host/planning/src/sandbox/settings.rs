//! The only place that makes engine settings. Compiled code runs only with the settings it was
//! compiled with, so both the compiler of a pack and the phone that runs it must use these.

use sha2::{Digest, Sha256};
use wasmtime::Config;

use super::EngineKind;

/// Maximum linear memory of a planner. It is reserved at once, so that growing never moves it and a
/// process with a small address space can still host a planner.
pub(super) const MEMORY_BYTES: usize = 64 << 20;

/// Stack of a planner. Sufficient for a thousand levels of recursion with two calls each.
const STACK_BYTES: usize = 256 << 10;

/// The version that compiled code is bound to. A test compares it with the lock file.
pub(crate) const WASMTIME_VERSION: &str = "48.0.8";

/// Returns the engine settings for planners.
pub(super) fn config(kind: EngineKind) -> wasmtime::Result<Config> {
    let mut config = Config::new();
    config.wasm_component_model(true);
    config.consume_fuel(true);
    config.max_wasm_stack(STACK_BYTES);
    config.memory_reservation(MEMORY_BYTES as u64);
    config.memory_reservation_for_growth(0);
    config.memory_guard_size(0);
    // Use explicit checks instead of signal handlers, because the host may be an app with its own
    // crash reporter.
    config.signals_based_traps(false);
    // Disable features whose results could differ between processors.
    config.wasm_relaxed_simd(false);
    #[cfg(feature = "compiler")]
    config.cranelift_nan_canonicalization(true);
    match kind {
        #[cfg(feature = "compiler")]
        EngineKind::Native => {}
        EngineKind::Pulley => {
            config.target("pulley64")?;
        }
    }
    Ok(config)
}

/// Returns the identity of everything that compiled code depends on, except the planner.
pub(super) fn id(kind: EngineKind) -> String {
    let target = match kind {
        #[cfg(feature = "compiler")]
        EngineKind::Native => concat!("native ", env!("SHARDWRIGHT_HOST_TARGET")),
        EngineKind::Pulley => "pulley64",
    };
    let text = format!(
        "wasmtime {WASMTIME_VERSION}; {target}; component model; fuel; stack {STACK_BYTES}; reservation {MEMORY_BYTES}; no \
         growth reservation; no guard; no signals; no relaxed simd; canonical NaN"
    );
    shardwright_files::hex::encode(&Sha256::digest(text.as_bytes()))
}
