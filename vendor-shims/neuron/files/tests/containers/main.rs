//! Tests the readers of third-party containers with known files and a corpus of hostile files.

#[path = "../support/mod.rs"]
mod support;

mod corpus;
mod reading;
