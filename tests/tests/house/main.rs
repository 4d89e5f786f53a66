//! The project rules: which crate may use which, and rules that can be checked in the files.

mod arrows;
mod circles;
mod dependencies;
mod rules;
mod signatures;
mod words;
