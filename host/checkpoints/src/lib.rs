//! Plans and compiles checkpoints: their texts, and their towers for pictures and sounds.
//!
//! **Job.** Supplies the models that `build` plans and compiles. [`CheckpointSource`] is a
//! checkpoint with its weights. It quantises them to the formats of a plan, calibrates ranges and
//! measures quality losses. [`OutlineSource`] is a checkpoint without weights, for plans only.
//! [`TowerSource`] is a tower. [`Builder`] plans, compiles and loads the chains of a text or a
//! tower, and [`compile`] makes a bundle with all of them.
//!
//! **Not its job.** It does not parse checkpoint files (`models`), does not compute quantised
//! values itself (`quantisation`), and neither requests nor revises plans (`build`).
//!
//! ```
//! use shardwright_build::{PlanOptions, PlanReport, plan};
//! use shardwright_checkpoints::{CheckpointSource, open_checkpoint};
//! use shardwright_vocabulary::Result;
//!
//! /// The plan of a checkpoint for a chip, made without its shim.
//! fn planned(checkpoint: &std::path::Path, soc: &str) -> Result<PlanReport> {
//!     let options = PlanOptions { soc: Some(soc.to_owned()), ..PlanOptions::default() };
//!     let checkpoint = open_checkpoint(checkpoint)?;
//!     let planned = plan(&mut CheckpointSource::new(&checkpoint, &options), &options, &mut ())?;
//!     Ok(planned.report)
//! }
//! ```

mod builder;
mod calibration;
mod checkpoint_source;
mod compiling;
mod drafts;
mod losses;
mod moments;
mod outline;
mod path;
mod recompilation;
mod rounding;
mod texts;
mod tower;

pub use builder::{Builder, LoadedChain};
pub use calibration::calibration_text;
pub use checkpoint_source::CheckpointSource;
pub use compiling::{
    CompileReport, CompiledVariant, FailedVariant, Jobs, compile, compile_trying, compile_variants,
};
pub use drafts::{DRAFTS, DraftIdentity, DraftRecords, MeasuredDraft};
pub use losses::{
    FormatShare, LossRow, SensitivityReport, StoredAnswers, measure_sensitivities, sensitivity_text,
    unseen_text,
};
pub use moments::{checkpoint_moments, moment_text};
pub use outline::OutlineSource;
pub use path::{
    ChainPlan, expect_checkpoint, open_adapted, open_checkpoint, plan_all_chains, plan_checkpoint,
};
pub use recompilation::{CompiledAnew, compile_recorded, may_compile_here, options_of, with_adapters};
pub use shardwright_build::PRIMARY_CHAIN;
pub use shardwright_quantisation::FeatureSample;
pub use texts::{calibration_prompts, messages_of, turns_of};
pub use tower::{SampleSet, TowerScope, TowerSource, expect_towers, tower_samples, tower_weights, towers_of};
