//! Lowering of entry graphs to programs.
//!
//! [`Graph::read`] validates an entry as a graph. [`ops::recognise`](crate::ops::recognise) decides
//! for each node whether and how it can run. [`entry()`] fuses nodes, chooses storage, plans memory
//! and has [`ops::lower`](crate::ops::lower) write the steps. [`Weights`] lays out and packs the
//! weights that the steps read, each in the narrowest form that is exact.

mod constant;
mod emit;
mod entry;
mod forms;
mod fuse;
mod graph;
mod memory;
mod narrow;
mod order;
mod recognise;
mod rows;
mod storage;
mod weights;

pub use constant::{Constant, Scaling};
pub use emit::{Emit, Site};
pub use entry::entry;
pub use fuse::{Fusion, Taken};
pub use graph::{Graph, Source, Tensor};
pub use recognise::{Here, Recognised, expect, invalid, matrix, unsupported};
pub use rows::Following;
pub use storage::TableKey;
pub use weights::Weights;
