//! Verification: whether a running model reproduces the checkpoint's outputs.
//!
//! **Job.** Proves a model that was opened from a checkpoint ([`verify`]), a bundle
//! ([`verify_bundle`]), and itself ([`self_test`]): as a whole against recorded outputs, and shard
//! by shard against the reference evaluator, so that the first divergent layer can be named. Finds
//! the cause of a bundle's drift and has it planned differently ([`repair`]).
//!
//! **Not its job.** It opens, plans and runs models through the public crate and does not change
//! the models that it proves.
//!
//! ```
//! use std::path::Path;
//!
//! use shardwright::OpenOptions;
//! use shardwright_verify::{VerifyOptions, verify};
//!
//! fn proved(checkpoint: &Path, goldens: Option<&Path>) -> shardwright::Result<bool> {
//!     let open = OpenOptions::new().soc("generic");
//!     Ok(verify(checkpoint, goldens, &open, &VerifyOptions::new(), &mut ())?.passed)
//! }
//! ```

#![forbid(unsafe_code)]

mod boundaries;
mod bundled;
mod chain_comparison;
mod divergence;
mod effort;
mod goldens;
mod next_norm;
mod options;
mod progress;
mod recorded_rows;
mod repair;
mod report;
mod rows;
mod shard_run;
mod thresholds;
mod tower;
mod trace;
mod values;
mod verification;

pub use bundled::{store_verification, verify_bundle};
pub use divergence::DivergenceVerification;
pub use effort::{Effort, EffortReport, LeftOut};
pub use options::VerifyOptions;
pub use repair::{COMPILATIONS, Evidence, FaultyPlace, RepairAttempt, RepairReport, RepairedBundle, repair};
pub use report::{
    BoundaryVerification, Comparison, EntryVerification, NotRun, RowComparison, SelfTestReport,
    ShardVerification, TokenVerification, TowerVerification, TwinArtefact, TwinReport, VerifyReport,
    tolerance,
};
pub use thresholds::Thresholds;
pub use verification::{self_test, verify};
