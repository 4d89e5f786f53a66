//! The one place where engine settings are made: compiled code runs only under the settings it was
//! compiled with, so the compiler of a pack and the phone that runs it must both come through here.

use sha2::{Digest, Sha256};
use wasmtime::Config;

use super::EngineKind;

/// Linear memory a planner may have. Also reserved at once, so that growing never moves it and a
/// process with a small address space can still host one.
pub(super) const MEMORY_BYTES: usize = 64 << 20;

/// Stack of a planner. Two calls per layer of recursion for a thousand layers fit.
const STACK_BYTES: usize = 256 << 10;

/// The version compiled code is bound to; a test holds it against the lock file.
pub(crate) const WASMTIME_VERSION: &str = "48.0.8";

/// Engine settings for planners.
pub(super) fn config(kind: EngineKind) -> wasmtime::Result<Config> {
    let mut config = Config::new();
    config.wasm_component_model(true);
    config.consume_fuel(true);
    config.max_wasm_stack(STACK_BYTES);
    config.memory_reservation(MEMORY_BYTES as u64);
    config.memory_reservation_for_growth(0);
    config.memory_guard_size(0);
    // Explicit checks instead of signal handlers: the host may be an app with a crash reporter of
    // its own.
    config.signals_based_traps(false);
    // What could differ between processors.
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

/// Identity of everything compiled code depends on besides the planner.
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
