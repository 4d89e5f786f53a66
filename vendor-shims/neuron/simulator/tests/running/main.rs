//! The simulator through its C interface: what operations compute, what it refuses, what it stores and restores, how it fails where it is told to.

mod client;
mod operations;
