//! Builds compiled shards from a model and the options for it.
//!
//! **Job.** Owns the loop. It makes the planner's request ([`make_request`]), calls the planner,
//! and carries out the checked plan ([`compile_plan`]: entry graphs, legalisation, work orders,
//! `compile`). It returns a compiler's refusals to the planner and tries again ([`settle`]), and
//! reports the decisions ([`report_plan`]). With feature `checkpoints` (on by default) models come
//! from checkpoints (`CheckpointSource`) and can be compiled into bundles (`compile`). Plans do not
//! need weights (`OutlineSource`). Without the feature a [`ModelSource`] supplies the model, and no
//! checkpoint reader, quantiser or WebAssembly compiler is linked.
//!
//! **Not its job.** It makes no decision that a planner could make, does not parse checkpoint
//! formats, and runs no shards: loaded shards ([`Settled::load`]) go to `runtime`.
//!
//! ```
//! use shardwright_build::{CheckpointSource, PlanOptions, PlanReport, open_checkpoint, plan};
//! use shardwright_shims::ShimRegistry;
//! use shardwright_vocabulary::Result;
//!
//! /// The plan of a checkpoint for a chip, made without its shim.
//! fn planned(checkpoint: &std::path::Path, soc: &str) -> Result<PlanReport> {
//!     let options = PlanOptions {
//!         soc: Some(soc.to_owned()),
//!         shims: ShimRegistry::builder(),
//!         ..PlanOptions::default()
//!     };
//!     let checkpoint = open_checkpoint(checkpoint)?;
//!     let planned = plan(&mut CheckpointSource::new(&checkpoint, &options), &options, &mut ())?;
//!     Ok(planned.report)
//! }
//! ```

mod bundled;
mod chips;
mod compile;
mod costs;
mod drafts;
mod executors;
mod fallback;
mod formats;
mod judge;
mod kept;
mod learned;
mod menu;
mod offers;
mod options;
mod places;
mod planners;
mod preparation;
mod proving;
mod ranges;
mod request;
mod settle;
mod sharing;
mod shim_judge;
mod source;
mod store;
mod tables;
mod times;
mod trying;

#[cfg(feature = "checkpoints")]
mod builder;
#[cfg(feature = "checkpoints")]
mod checkpoint;
#[cfg(feature = "checkpoints")]
mod compiling;
#[cfg(feature = "checkpoints")]
mod recorded;

pub use bundled::{BundleStore, artefact_key};
pub use chips::{chip_of, in_its_words};
pub use compile::{
    BuildError, BuildSite, BuiltShard, CompiledGraphs, Stage, TargetExecutor, compile_plan, feedback_of,
};
pub use costs::{Costs, Row};
pub use drafts::{DraftTimes, StatedDraft};
pub use fallback::FallbackChain;
pub use formats::{ModelFormats, needs_ranges};
pub use judge::{ArtefactCost, Costing, Judge, PrimitiveCount};
pub use kept::Keeping;
pub use learned::{Compiler, Learned, LearnedFile, LearnedLimit};
pub use menu::EntryMenu;
pub use options::{
    Executor, FormatChoice, PlanMeasuring, PlanOptions, Purpose, RecordedOptions, TableFormats, TowerOptions,
    WeightRounding,
};
pub use places::LoadedPart;
pub use planners::{PlannerTools, find_planner};
pub use proving::{Candidate, Prover, Proving};
pub use request::{ModelName, Question, TargetOffer, make_request, stored_formats};
pub use shardwright_vocabulary::units;
// A profile or a user sets the preference of a plan.
pub use settle::{BuildTimes, Planned, Settled, plan, settle, settle_trying};
pub use shardwright_planning::feedback::{Attempt, Detail, Feedback, MeasuredTime};
pub use shardwright_planning::profile::Preference;
pub use shardwright_planning::request::{DraftEstimate, PromptLength};
pub use shardwright_report::{
    BoundaryReport, BytesReport, Download, DownloadBasis, EntryReport, EntryTime, FallbackReport, Figure,
    Fits, Forecast, Goal, GoalReport, LayerReport, LimitUse, LossReport, Making, MeasuredLoss, MemoryPart,
    Phase, PhaseMemory, PlanHeading, PlanReport, PlanTotals, Predicted, ReasonReport, ShardReport, Speed,
    TableReport, TargetLimit, TargetLimitUse, TimeShare, Verdict, Weighed, forecast, report_plan,
};
pub use sharing::SharedWriter;
pub use shim_judge::ShimJudge;
pub use source::{AcceptedSteps, LossGround, Losses, ModelSource, PlanSource};
pub use store::{ArtefactStore, Compilations, NoArtefactStore};
pub use tables::TableLoss;
pub use times::{MeasuredTimes, TIMES, Times, Unmeasured};
pub use trying::{BundleTrying, RecordedPlan, Trying};

#[cfg(feature = "checkpoints")]
pub use {
    builder::Builder,
    checkpoint::{
        ChainPlan, CheckpointSource, DRAFTS, DraftIdentity, DraftRecords, FormatShare, LossRow,
        MeasuredDraft, OutlineSource, PRIMARY_CHAIN, SampleSet, SensitivityReport, StoredAnswers, TowerScope,
        TowerSource, calibration_prompts, calibration_text, checkpoint_moments, expect_checkpoint,
        expect_towers, measure_sensitivities, messages_of, moment_text, open_checkpoint, plan_all_chains,
        plan_checkpoint, sensitivity_text, tower_samples, tower_weights, towers_of, turns_of, unseen_text,
    },
    compiling::{
        CompileReport, CompiledVariant, FailedVariant, Jobs, compile, compile_trying, compile_variants,
    },
    recorded::{CompiledAnew, compile_recorded, may_compile_here, options_of},
    shardwright_quantisation::FeatureSample,
};

use shardwright_vocabulary::Result;

/// Folder of learned limits in the cache directory.
pub const LEARNED: &str = "limits";

/// Name of the shim that replaces others under [`Executor::Cpu`].
pub const CPU_SHIM: &str = "cpu";
