//! Shims found, loaded, held to the contract, in process.

#[path = "../common/mod.rs"]
mod common;

mod contract;
mod files;
mod layout;
mod loading;
mod template;
