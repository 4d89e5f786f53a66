//! Random ids of responses, and times.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns a random number. Without randomness of the system, the clock is used.
pub(crate) fn random() -> u64 {
    getrandom::u64().unwrap_or_else(|_| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.as_nanos() as u64
    })
}

/// Returns an id such as `chatcmpl-0123456789abcdef0123456789abcdef`.
pub(crate) fn id(prefix: &str) -> String {
    format!("{prefix}{:016x}{:016x}", random(), random())
}

/// Returns the seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
