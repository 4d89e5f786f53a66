//! The C header and its Rust twin: layouts, and what `export_shim!` makes.

mod export;
mod layout;
