//! Readers of foreign containers: known files and a corpus of hostile ones.

#[path = "../support/mod.rs"]
mod support;

mod corpus;
mod reading;
