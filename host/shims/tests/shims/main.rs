//! Shims found, loaded, held to the contract, in process and in a worker.

#[path = "../common/mod.rs"]
mod common;

mod contract;
mod files;
mod layout;
mod loading;
mod template;
mod worker;
