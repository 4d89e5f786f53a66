//! Entry graphs become programs.
//!
//! [`Graph::read`] makes sure that an entry is a graph at all, [`recognise`] says per node whether
//! and as what it can be run, [`entry`] joins what is one step, chooses storage, plans memory and
//! writes the steps, [`Weights`] lays out and packs what they read.

mod constant;
mod emit;
mod fuse;
mod graph;
mod memory;
mod order;
mod recognise;
mod rows;
mod storage;
mod weights;

pub use emit::entry;
pub use graph::Graph;
pub use recognise::{Operation, recognise};
pub use weights::Weights;
