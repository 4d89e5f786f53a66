//! Published models, for benches. `cargo xtask vendor models` fetches them.

use std::path::{Path, PathBuf};

use crate::skipped;

/// Environment variable with the folder of the models.
const VARIABLE: &str = "SHARDWRIGHT_MODELS";

/// Returns the GGUF file of a model, such as `smollm2-135m`. Without it, reports that `what` is
/// skipped.
pub fn gguf(name: &str, what: &str) -> Option<PathBuf> {
    let folder = std::env::var_os(VARIABLE).filter(|said| !said.is_empty());
    let file = folder.map(|folder| Path::new(&folder).join(name).join(format!("{name}.gguf")));
    let file = file.filter(|file| file.is_file());
    if file.is_none() {
        skipped(&format!("{what}: {VARIABLE} has no {name}; `cargo xtask vendor models` fetches it"));
    }
    file
}
