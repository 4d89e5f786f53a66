//! The graph crate from outside: instantiation, forms, validation, and what is frozen.

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
