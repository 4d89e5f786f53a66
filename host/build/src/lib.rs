//! Builds compiled shards from a model and the options for it.
//!
//! **Job.** Owns the loop. It makes the planner's request ([`make_request`]), calls the planner,
//! and carries out the checked plan ([`compile_plan`]: entry graphs, legalisation, work orders,
//! `compile`). It returns a compiler's refusals to the planner and tries again ([`settle`]), and
//! reports the decisions ([`report_plan`]). A [`ModelSource`] supplies the model: a checkpoint
//! (the crate `checkpoints`), or a program that brings its own constants.
//!
//! **Not its job.** It makes no decision that a planner could make, reads no checkpoints, quantises
//! no weights, and runs no shards: loaded shards ([`Settled::load`]) go to `runtime`.

mod artefact_cache;
mod bundled;
mod chips;
mod compile;
mod costs;
mod drafts;
mod executors;
mod fallback;
mod formats;
mod judge;
mod learned_limits;
mod loop_start;
mod menu;
mod offers;
mod options;
mod placement;
mod planners;
mod planning_loop;
mod preparation;
mod profiles;
mod prover;
mod ranges;
mod request;
mod roofline;
mod shared_writer;
mod shim_judge;
mod source;
mod store;
mod tables;
mod times;

pub use artefact_cache::ArtefactCache;
pub use bundled::{BundleStore, artefact_key};
pub use chips::{chip_of, in_its_words};
pub use compile::{
    BuildError, BuildSite, BuiltShard, CompiledGraphs, Stage, TargetExecutor, compile_plan, feedback_of,
};
pub use costs::{Costs, Row};
pub use drafts::{DraftTimes, StatedDraft, row_bytes};
pub use fallback::{FallbackChain, PRIMARY_CHAIN};
pub use formats::{ModelFormats, format_runs, needs_ranges};
pub use judge::{ArtefactCost, Costing, Judge, PrimitiveCount};
pub use learned_limits::{Compiler, Learned, LearnedFile, LearnedLimit};
pub use menu::EntryMenu;
pub use offers::offered_formats;
pub use options::{
    Executor, FormatChoice, PlanMeasuring, PlanOptions, Purpose, RecordedLora, RecordedOptions, TableFormats,
    TowerOptions, USUAL_QUALITY, WeightRounding, placed_pass,
};
pub use placement::{LoadedPart, thread_options};
pub use planners::{PlannerTools, find_planner, planner_named};
pub use profiles::skipped_profiles;
pub use prover::{Candidate, Prover, Proving};
pub use request::{ModelName, Question, TargetOffer, make_request, stored_formats};
pub use roofline::{TimeModel, Work};
pub use shardwright_vocabulary::units;
// A profile or a user sets the preference of a plan.
pub use loop_start::{BundleLoopStart, LoopStart, RecordedPlan};
pub use planning_loop::{BuildTimes, Planned, Settled, plan, settle, settle_from};
pub use shardwright_planning::feedback::{Attempt, Detail, Feedback, MeasuredTime};
pub use shardwright_planning::profile::Preference;
pub use shardwright_planning::request::{DraftEstimate, PromptLength};
pub use shardwright_planning::times::plan_times;
pub use shardwright_report::{
    BoundaryReport, BytesReport, Download, DownloadBasis, EntryReport, EntryTime, FallbackReport, Figure,
    Fits, Forecast, ForecastVerdict, Goal, GoalReport, IntervalText, LayerReport, LimitUse, LossReport,
    Making, MeasuredLoss, MemoryPart, Phase, PhaseMemory, PlanHeading, PlanReport, PlanTotals, Predicted,
    ReasonReport, ShardReport, Speed, TableReport, TargetLimit, TargetLimitUse, TimeShare, Weighed, forecast,
    report_plan,
};
pub use shared_writer::SharedWriter;
pub use shim_judge::ShimJudge;
pub use source::{AcceptedSteps, LossGround, Losses, ModelSource, PlanSource};
pub use store::{ArtefactStore, Compilations, NoArtefactStore};
pub use tables::TableLoss;
pub use times::{MeasuredTimes, TIMES, Times, Unmeasured};

use shardwright_vocabulary::Result;

/// Folder of learned limits in the cache directory.
pub const LEARNED: &str = "limits";

/// Name of the shim that replaces others under [`Executor::Cpu`].
pub const CPU_SHIM: &str = "cpu";
