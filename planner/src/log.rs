//! Log lines for the person watching.

use std::fmt::Display;

pub use crate::bindings::shardwright::planner::host::Level;

/// Send one line to the host. Outside WebAssembly, in a native test, it is written to standard
/// error.
pub fn log(level: Level, message: impl Display) {
    let message = message.to_string();
    #[cfg(target_arch = "wasm32")]
    crate::bindings::shardwright::planner::host::log(level, &message);
    #[cfg(not(target_arch = "wasm32"))]
    eprintln!("planner {level:?}: {message}");
}

/// Logs a panic's message to the host before the component traps, because the trap itself carries
/// no message. Every call runs in a fresh instance, so each begins with this.
#[doc(hidden)]
pub fn log_panics() {
    #[cfg(target_arch = "wasm32")]
    std::panic::set_hook(Box::new(|panic| {
        // On one line, as a log line is.
        let place = panic.location().map(|place| format!(" at {place}")).unwrap_or_default();
        let message = panic.payload_as_str().unwrap_or("without a message").replace('\n', " ");
        log(Level::Warn, format!("a panic{place}: {message}"));
    }));
}
