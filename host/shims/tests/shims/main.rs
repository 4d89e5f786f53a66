//! Tests of finding shims, loading them and checking their results, in this process.

#[path = "../common/mod.rs"]
mod common;

mod contract;
mod files;
mod layout;
mod loading;
mod signed;
mod template;
