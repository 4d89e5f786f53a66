//! Entry graphs become programs.
//!
//! [`Graph::read`] validates an entry as a graph, [`recognise`] decides per node whether and how it
//! can be run, [`entry`] fuses nodes, chooses storage, plans memory and writes the steps,
//! [`Weights`] lays out and packs the weights they read.

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
pub use recognise::{Operation, Rounding, recognise};
pub use weights::Weights;
