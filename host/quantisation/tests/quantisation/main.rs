//! All tests of the crate in one program.

#[path = "../support/mod.rs"]
mod support;

#[path = "../support/killed.rs"]
mod killed;

#[path = "../support/demo.rs"]
mod demo_model;

mod calibration;
mod demo;
mod formats;
mod kill;
mod quality;
mod store;
