//! The unpacked wheel `ai-edge-litert`.

use std::io::Write;
use std::path::PathBuf;

/// The environment variable that names its folder `ai_edge_litert`.
const VARIABLE: &str = "SHARDWRIGHT_LITERT";

/// Returns the folder with this file: from the variable, or where `cargo xtask vendor litert`
/// unpacks it. If it is missing, the function prints this and returns `None`.
pub fn with(file: &str, test: &str) -> Option<PathBuf> {
    let unpacked = || {
        let cache = std::env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
            .or_else(|| Some(std::env::home_dir()?.join(".cache")))?;
        Some(cache.join("shardwright/vendor/ai-edge-litert-2.3.0/ai_edge_litert"))
    };
    let said = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    let found = said.or_else(unpacked).filter(|folder| folder.join(file).is_file());
    if found.is_none() {
        let why = format!("no LiteRT with {file}; run `cargo xtask vendor litert` or set {VARIABLE}");
        let _ = writeln!(std::io::stdout().lock(), "SKIPPED: {test}: {why}");
    }
    found
}
