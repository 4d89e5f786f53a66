//! Quantisation: weights, tables and constants of a graph in other formats, and what there is to know before choosing them.
//!
//! **Job.** Make any weight in any [`WeightFormat`](shardwright_graph::target::WeightFormat) with scales of least squared error, in memory
//! or streamed through a [`Store`] that survives interruptions; calibrate activation ranges by running the reference on token
//! sequences; measure what a format costs in quality, by layer and role or for a whole model.
//!
//! **Not its job.** What a stored integer means is defined in `graph` (`Weight::decode_row`, `Encoding`) and what a quantised graph computes
//! in `reference`; this room only chooses scales and ranges. It decides no format (a planner does), knows no text and no checkpoint file,
//! and compiles nothing.
//!
//! The same bytes come out whatever the number of threads, and whether a run was interrupted or not.
//!
//! Reading order: [`Recipe`], [`quantise()`], [`Store`].

mod error;
mod job;
mod pack;
mod recipe;
mod scale;
mod source;
mod store;
mod watch;

pub use error::{QuantiseError, StoreError};
pub use recipe::{Importance, Recipe, TableFormats, quantise, quantise_constant, quantise_weight};
pub use source::RowSource;
pub use store::Store;
pub use watch::{Note, Progress, Unwatched, Watch};
// What stored values mean is graph's to say.
pub use shardwright_graph::{Affine, ConstantFormat, Granularity, Range, Ranges, WeightQuantisation};
