//! The C header and its Rust twin: layouts, and the output of `export_shim!`.

mod export;
mod layout;
