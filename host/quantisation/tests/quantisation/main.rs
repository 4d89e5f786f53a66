//! The tests of the room, one program.

#[path = "../support/mod.rs"]
mod support;

mod formats;
mod store;
