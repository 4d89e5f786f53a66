//! Building: from a graph and a plan to loaded shards.
//!
//! **Job.** Fills the request a planner is asked ([`make_request`]), carries the checked plan out
//! (entry graphs, legalisation, work orders, `compile`), turns refusals into feedback for `revise`,
//! and reports what was decided ([`report_plan`]).
//!
//! **Not its job.** It takes no decision a planner could take, reads no checkpoint format, and runs
//! nothing: a built shard goes to `runtime`.

mod bundled;
mod compile;
mod costs;
mod formats;
mod judge;
mod learned;
mod menu;
mod report;
mod request;
mod shim_judge;

pub use bundled::{BundleStore, artefact_key};
pub use compile::{
    ArtefactStore, BuildError, BuildSite, BuiltShard, CompiledGraphs, Executor, NoArtefactStore,
    compile_plan, shard_name,
};
pub use costs::{Costs, Row};
pub use formats::{ModelFormats, needs_ranges};
pub use judge::{ArtefactCost, Costing, Judge, PrimitiveCount};
pub use learned::{Compiler, Learned, LearnedFile, LearnedLimit};
pub use menu::EntryMenu;
pub use report::{
    BoundaryReport, BytesReport, EntryReport, EntryTime, LossReport, PlanHeading, PlanReport, PlanTotals,
    ReasonReport, ShardReport, TargetLimit, report_plan,
};
pub use request::{ModelName, Question, TargetOffer, make_request, stored_formats};
pub use shim_judge::ShimJudge;

pub use {
    shardwright_bundle as bundle, shardwright_graph as graph, shardwright_models as models,
    shardwright_planning as planning, shardwright_quantisation as quantisation,
    shardwright_reference as reference, shardwright_shims as shims,
};
