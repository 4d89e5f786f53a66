//! Tests of the shim through the contract's entry function, with the real library if it is
//! available.

mod bad;
mod compiling;
mod estimates;
mod flags;
#[path = "../found/mod.rs"]
mod found;
mod layer;
mod masks;
mod platform;
mod running;

use std::path::Path;

pub(crate) use found::library_file as library;
pub(crate) use layer::Layer;
use shardwright_shim_abi::raw::{SW_DTYPE_U8, SW_DTYPE_U16};
pub(crate) use shardwright_shim_testing::{
    Builder, Compiled, ErrorObject, Host, Loaded, Region, TableEncoding, Weight, cosine, profile, refused,
    values,
};

/// Returns 16 bits over ±`reach`, with the zero point in the middle.
const fn a16(reach: f32) -> TableEncoding {
    TableEncoding::centred(SW_DTYPE_U16, reach)
}

/// Returns 8 bits over ±`reach`, with the zero point in the middle.
const fn a8(reach: f32) -> TableEncoding {
    TableEncoding::centred(SW_DTYPE_U8, reach)
}

/// Registers a chip by the facts of its profile.
fn register(host: &Host, name: &str) {
    let profile = profile(name, &shardwright_shim_qnn::soc::read_facts());
    host.chip(name, &profile.aliases, &profile.facts).expect("a chip");
}

/// Opens an instance with several registered chips, for a chip in the middle of the list.
fn open(options: &[(&str, &str)]) -> Result<Host, ErrorObject> {
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

/// Opens an instance that uses the library, if it is available.
fn host(device: &str) -> Option<Host> {
    Some(on(&library()?, device))
}

/// Returns format and document of a file's bytes.
fn inspected(host: &Host, bytes: &[u8]) -> Result<Option<(String, serde_json::Value)>, ErrorObject> {
    let description = host.inspect(bytes)?;
    Ok(description.map(|(format, document)| (format, serde_json::from_str(&document).expect("JSON"))))
}
