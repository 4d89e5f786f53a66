//! Tests of the shim through the contract's entry function, with the real library if it is
//! available.

mod bad;
#[path = "../chips/mod.rs"]
mod chips;
mod compiling;
mod estimates;
mod flags;
mod layer;
mod masks;
mod platform;
mod running;

use std::io::Write;
use std::path::{Path, PathBuf};

pub(crate) use layer::Layer;
use shardwright_shim_abi::raw::{SW_DTYPE_U8, SW_DTYPE_U16};
pub(crate) use shardwright_shim_testing::{
    Builder, Compiled, Encoding, Failure, Host, Loaded, Region, Weight, cosine, refused, values,
};

/// Returns 16 bits over ±`reach`, with the zero point in the middle.
const fn a16(reach: f32) -> Encoding {
    Encoding::centred(SW_DTYPE_U16, reach)
}

/// Returns 8 bits over ±`reach`, with the zero point in the middle.
const fn a8(reach: f32) -> Encoding {
    Encoding::centred(SW_DTYPE_U8, reach)
}

/// Registers a chip by the facts of its profile.
fn register(host: &Host, name: &str) {
    let facts = chips::facts_of(name);
    let facts: Vec<(&str, &str)> =
        facts.iter().map(|(fact, value)| (fact.as_str(), value.as_str())).collect();
    host.chip(name, &[], &facts).expect("a chip");
}

/// Opens an instance with several registered chips, for a chip in the middle of the list.
fn open(options: &[(&str, &str)]) -> Result<Host, Failure> {
    let host = Host::open(shardwright_shim_qnn::shim_entry(), "sm8850", options)?;
    for name in ["sm8550", "sm8650", "sm8750", "sm8850", "sc8380xp", "soc-72"] {
        register(&host, name);
    }
    Ok(host)
}

/// Opens an instance that uses this library.
fn on(library: &Path, device: &str) -> Host {
    let library = library.to_str().expect("a path of text");
    open(&[("library", library)]).expect("opened").on_device(device)
}

/// Returns format and document of a file's bytes.
fn inspected(host: &Host, bytes: &[u8]) -> Result<Option<(String, serde_json::Value)>, Failure> {
    let description = host.inspect(bytes)?;
    Ok(description.map(|(format, document)| (format, serde_json::from_str(&document).expect("JSON"))))
}

/// Returns the vendor's library. If it is missing, reports the skipped test conspicuously and
/// returns `None`.
fn library(test: &str) -> Option<PathBuf> {
    let choice = shardwright_shim_qnn::library::LibraryChoice::new(None);
    let vendored = shardwright_shim_qnn::library::LibraryChoice::vendored();
    let found = choice.variable.or_else(|| vendored.filter(|path| path.is_file()));
    let found = found.map(|path| if path.is_dir() { path.join("libQnnHtp.so") } else { path });
    if found.is_none() {
        let _ = writeln!(
            std::io::stdout().lock(),
            "SKIPPED: {test}: no libQnnHtp.so; run `cargo xtask vendor qnn` or set SHARDWRIGHT_QNN_LIB"
        );
    }
    found
}
