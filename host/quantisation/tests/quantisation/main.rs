//! The tests of the room, one program.

#[path = "../support/mod.rs"]
mod support;

#[path = "../support/killed.rs"]
mod killed;

mod calibration;
mod formats;
mod kill;
mod quality;
mod store;
