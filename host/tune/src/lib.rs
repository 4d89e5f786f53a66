//! Tuning: times plans on their targets, and uses the measurements for the next plan.
//!
//! **Job.** Requests plans from the planner, builds them, and times each alternately with the
//! default plan ([`tune`]). Stores every trial, and derives from all trials the times that later
//! plans use.
//!
//! **Not its job.** It does not choose between plans itself: it passes times to the planner, and
//! requests another plan. The crates below open, plan and run models.
//!
//! ```
//! use std::path::Path;
//! use std::time::Duration;
//!
//! use shardwright::OpenOptions;
//! use shardwright_tune::tune;
//!
//! fn faster(checkpoint: &Path) -> shardwright::Result<bool> {
//!     let open = OpenOptions::new().soc("generic");
//!     let (report, _) = tune(checkpoint, &open, Some(Duration::from_secs(60)), &mut ())?;
//!     Ok(report.ratio.is_some_and(|ratio| ratio.is_below_one()))
//! }
//! ```

#![forbid(unsafe_code)]

mod drafts;
mod journal;
mod plan_variants;
mod report;
mod spread;
mod table;
mod timing;
mod trial;
mod tuning;

pub use drafts::measure_draft;
pub use report::{Outcome, TimedPlan, TriedPlan, TuneReport};
pub use spread::Spread;
pub use trial::{Sample, TimedPart, Trial, Turn};
pub use tuning::{tune, tune_bundle};

/// Name of the folder of trials in the cache directory.
pub const TRIALS: &str = "trials";
