//! The crate from outside, on the committed checkpoints: the tables a planner is asked with, and
//! carrying plans out on the C example as the shim.

mod carrying_out;
mod common;
mod forecast;
mod outlines;
mod report;
mod tables;
