//! Towers of a checkpoint in addition to its text: the list of them, their inputs, and sources to
//! plan and compile them from.

mod samples;
mod scope;
mod source;

pub use samples::{SampleSet, tower_samples};
pub use scope::{TowerScope, expect_towers, towers_of};
pub use source::{TowerSource, tower_weights};
