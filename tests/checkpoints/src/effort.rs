//! How much of a long sweep a test does.

/// The variable that enables whole sweeps: `SHARDWRIGHT_THOROUGH=1 cargo xtask test`.
pub const THOROUGH: &str = "SHARDWRIGHT_THOROUGH";

/// How many cases of a sweep of `whole` a test does: `part` of them, all with [`THOROUGH`] set to
/// `1`. The sweep itself is the same code either way.
pub fn cases<T>(part: T, whole: T) -> T {
    if std::env::var_os(THOROUGH).is_some_and(|value| value == "1") { whole } else { part }
}
