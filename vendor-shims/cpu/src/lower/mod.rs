//! Lowering of entry graphs to programs.
//!
//! [`Graph::read`] validates an entry as a graph. [`recognise`] decides for each node whether and
//! how it can run. [`entry`] fuses nodes, chooses storage, plans memory and writes the steps.
//! [`Weights`] lays out and packs the weights that the steps read.

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
