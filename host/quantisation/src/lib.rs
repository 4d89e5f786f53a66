//! Quantisation: weights, tables and constants of a graph in other formats, and what there is to
//! know before choosing them.
//!
//! **Job.** Make any weight in any [`WeightFormat`](shardwright_vocabulary::WeightFormat) with
//! scales of least squared error, or so that errors make up for each other by moments of what it
//! is multiplied with, in memory or streamed through a [`Store`] that survives interruptions;
//! calibrate activation ranges by running the reference on token sequences; measure what a format
//! costs in quality for a whole model, and say what it is expected to cost, and once measured does,
//! by layer and role.
//!
//! **Not its job.** What a stored integer means is defined in `graph` (`Weight::decode_row`,
//! `Encoding`) and what a quantised graph computes in `reference`; this room only chooses scales
//! and ranges. It decides no format (a planner does), knows no text and no checkpoint file, and
//! compiles nothing.
//!
//! The same bytes come out whatever the number of threads, and whether a run was interrupted or
//! not.
//!
//! Reading order: [`Recipe`], [`quantise()`], [`Store`]; [`Moments`], [`Factors`]; [`Calibrator`],
//! [`Calibration`]; [`evaluate()`], [`priors`], [`Loss`].
//!
//! Every matrix of a model in 4 bits, a scale to 32 values:
//!
//! ```
//! use shardwright_graph::Graph;
//! use shardwright_quantisation::{QuantiseError, Recipe, TableFormats, Unwatched, quantise};
//!
//! fn smaller(graph: &Graph) -> Result<Graph, QuantiseError> {
//!     let formats = "w4-block32/f32/f32".parse().expect("a tuple of formats");
//!     quantise(graph, &Recipe::new(graph, &formats, TableFormats::default()), &mut Unwatched)
//! }
//! ```

mod calibration;
mod compensation;
mod envelope;
mod error;
mod evaluate;
mod job;
mod multiples;
mod pack;
mod plan_loss;
mod prior;
mod quality;
mod recipe;
mod scale;
mod sensitivity;
mod source;
mod store;
mod watch;

pub use calibration::{Calibration, Calibrator, FeatureSample, IntegerBits, RangeMethod, content_hash};
pub use compensation::{
    DAMPING, Factors, GRADIENT_DAMPING, MatrixFactors, MatrixInputs, MomentSums, Moments, SecondMoments,
    sampled_gradient,
};
pub use error::{CalibrationError, MeasuredError, QuantiseError, StoreError};
pub use evaluate::{Baseline, Candidate, Evaluation, Table, evaluate};
pub use job::Rounding;
pub use plan_loss::{PlanLoss, plan_loss_identity};
pub use prior::{moment_priors, priors, table_priors, value_prior};
pub use quality::divergence;
pub use recipe::{Compensated, Recipe, TableFormats, quantise, quantise_constant, quantise_weight};
pub use sensitivity::{
    Change, ExpectedLosses, Loss, Sensitivity, TableLoss, losses_identity, places, table_pairs, weights_read,
};
pub use shardwright_vocabulary::{Affine, Granularity};
pub use source::RowSource;
pub use store::Store;
pub use watch::{Note, Progress, Unwatched, Watch};
// What stored values mean is graph's to say.
pub use shardwright_graph::{ConstantFormat, Range, Ranges, WeightQuantisation};
