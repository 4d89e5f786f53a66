//! Tests the crate from outside, on the committed checkpoints: the tables of the planner's request,
//! and carrying plans out on the C example as the shim.

mod carrying_out;
mod common;
mod forecast;
mod predictions;
mod report;
mod tables;
