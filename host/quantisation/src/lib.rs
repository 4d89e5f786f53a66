//! Quantisation of a graph's weights, tables and constants, and measurements for choosing formats.
//!
//! **Job.** Convert any weight to any [`WeightFormat`](shardwright_vocabulary::WeightFormat), with
//! scales of least squared error or with error compensation based on moments of its inputs. The
//! result is in memory or streamed through a [`Store`] that survives interruptions. Calibrate
//! activation ranges by running the reference implementation on token sequences. Measure the
//! quality cost of a format for a whole model. Estimate and measure the cost by layer and role.
//!
//! **Not its job.** The meaning of a stored integer is defined in `graph` (`Weight::decode_row`,
//! `Encoding`), and the results of a quantised graph in `reference`. This crate only chooses scales
//! and ranges. It does not choose formats (a planner does), does not handle text or checkpoint
//! files, and does not compile.
//!
//! The output bytes do not depend on the number of threads or on interruptions.
//!
//! Reading order: [`Recipe`], [`quantise()`], [`Store`]. Then [`Moments`], [`Factors`]. Then
//! [`Calibrator`], [`Calibration`]. Then [`evaluate()`], [`priors`], [`Loss`].
//!
//! For example, quantise every matrix of a model to 4 bits with one scale for 32 values:
//!
//! ```
//! use shardwright_graph::Graph;
//! use shardwright_quantisation::{Recipe, TableFormats, quantise};
//! use shardwright_vocabulary::Result;
//!
//! fn smaller(graph: &Graph) -> Result<Graph> {
//!     let formats = "w4-block32/f32/f32".parse().expect("a tuple of formats");
//!     let recipe = Recipe::new(graph, &formats, TableFormats::default());
//!     quantise(graph, &recipe, &mut (), &mut Vec::new())
//! }
//! ```

mod calibration;
mod compensation;
mod envelope;
mod evaluate;
mod job;
mod multiples;
mod note;
mod pack;
mod plan_loss;
mod prior;
mod quality;
mod recipe;
mod scale;
mod sensitivity;
mod source;
mod store;

pub use calibration::{Calibration, Calibrator, FeatureSample, IntegerBits, RangeMethod, content_hash};
pub use compensation::{
    DAMPING, Factors, GRADIENT_DAMPING, MatrixFactors, MatrixInputs, MomentSums, Moments, SecondMoments,
    sampled_gradient,
};
pub use evaluate::{Baseline, Candidate, Evaluation, Table, evaluate};
pub use job::Rounding;
pub use note::Note;
pub use plan_loss::{PlanLoss, plan_loss_identity};
pub use prior::{moment_priors, priors, table_priors, value_prior};
pub use quality::{divergence, mean_divergence};
pub use recipe::{Compensated, Recipe, TableFormats, quantise, quantise_constant, quantise_weight};
pub use sensitivity::{
    Change, ExpectedLosses, Loss, Sensitivity, TableLoss, losses_identity, places, table_pairs, weights_read,
};
pub use shardwright_vocabulary::{Affine, Granularity};
pub use source::RowSource;
pub use store::Store;
// `graph` defines the meaning of stored values.
pub use shardwright_graph::{ConstantFormat, Range, Ranges, WeightQuantisation};
