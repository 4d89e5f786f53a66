//! How well a model predicts a text, alone and compared with a reference.
//!
//! **Job.** Cuts a text into windows and computes the likelihood of its tokens as llama.cpp's
//! `llama-perplexity` does. Runs a second model over the same windows for the KL divergence. Gives
//! each figure a standard error, and resumes an interrupted measurement ([`perplexity`]).
//!
//! **Not its job.** It does not open models or judge figures. It compares with another model, not
//! with recorded outputs, which is `verify`'s job.
//!
//! ```
//! use shardwright::{Model, Result};
//! use shardwright_perplexity::{PerplexityOptions, Text, perplexity};
//!
//! fn loss(model: &Model, float: &Model, text: &Text) -> Result<Option<f64>> {
//!     let options = PerplexityOptions::default();
//!     let (report, _) = perplexity(model, Some(float), text, &options, None, &mut ())?;
//!     Ok(report.against.map(|against| against.kl.mean.value))
//! }
//! ```

#![forbid(unsafe_code)]

mod bootstrap;
mod distribution;
mod measurement;
mod predictor;
mod question;
mod report;
mod score;
mod text;
mod window_cache;
mod windows;

pub use measurement::{PerplexityOptions, perplexity};
pub use report::{
    AgainstReport, Divergence, Estimate, Likelihood, ModelReport, PerplexityReport, ResamplingReport,
    TextReport,
};

pub use text::Text;

/// Folder of interrupted measurements in the cache directory.
pub const PERPLEXITIES: &str = "perplexities";
