//! Tuning: plans are timed where they run, and what was measured decides the next plan.
//!
//! **Job.** Has the planner name plans, builds them, times each in turns with the default plan
//! ([`tune`]), keeps every trial, and from all of them derives the times that later plans rest on.
//!
//! **Not its job.** It decides between no plans a planner could decide between: it tells the
//! planner times, and asks again. It opens, plans and runs through the crates below it.
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
mod naming;
mod report;
mod spread;
mod table;
mod timing;
mod trial;
mod tuning;

pub use drafts::measure_draft;
pub use report::{Outcome, TimedPlan, Tried, TuneReport};
pub use spread::Spread;
pub use trial::{Sample, TimedPart, Trial, Turn};
pub use tuning::{tune, tune_bundle};

/// Folder of trials in the cache directory.
pub const TRIALS: &str = "trials";
