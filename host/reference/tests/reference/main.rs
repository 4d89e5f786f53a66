//! Compares the plain evaluator with goldens, known values, decompositions and formats.

#[path = "../random/mod.rs"]
mod random;
#[path = "../../../graph/tests/support/mod.rs"]
mod support;

mod corrected;
mod encoded;
mod errors;
mod formats;
mod forms;
mod goldens;
mod operations;
mod quantised;
mod steps;
mod tower_operations;
