//! Integration tests of the graph crate: instantiation, forms, validation, and frozen numbers and
//! names.

#[path = "../support/mod.rs"]
mod support;

mod decompose;
mod encode;
mod frozen;
mod instantiate;
mod json;
mod layer_kinds;
mod legalise;
mod stream;
mod validate;
