//! Selects how much of a long sweep a test runs.

/// The variable that enables whole sweeps: `SHARDWRIGHT_THOROUGH=1 cargo xtask test`.
pub const THOROUGH: &str = "SHARDWRIGHT_THOROUGH";

/// Returns `whole` if [`THOROUGH`] is set to `1`, otherwise `part`: how much of a sweep a test
/// runs. The sweep itself is the same code either way.
pub fn cases<T>(part: T, whole: T) -> T {
    if std::env::var_os(THOROUGH).is_some_and(|value| value == "1") { whole } else { part }
}
