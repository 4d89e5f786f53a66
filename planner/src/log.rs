//! Log lines for people.

use std::fmt::Display;

pub use crate::bindings::shardwright::planner::host::Level;

/// Sends one line to the host. Outside WebAssembly, in a native test, writes it to standard error.
pub fn log(level: Level, message: impl Display) {
    let message = message.to_string();
    #[cfg(target_arch = "wasm32")]
    crate::bindings::shardwright::planner::host::log(level, &message);
    #[cfg(not(target_arch = "wasm32"))]
    eprintln!("planner {level:?}: {message}");
}

/// Logs the message of a panic to the host before the component traps, because the trap itself has
/// no message. Every call runs in a new instance, so each begins with this.
#[doc(hidden)]
pub fn log_panics() {
    #[cfg(target_arch = "wasm32")]
    std::panic::set_hook(Box::new(|panic| {
        // Joined to one line, because a log line is one.
        let place = panic.location().map(|place| format!(" at {place}")).unwrap_or_default();
        let message = panic.payload_as_str().unwrap_or("without a message").replace('\n', " ");
        log(Level::Warn, format!("a panic{place}: {message}"));
    }));
}
