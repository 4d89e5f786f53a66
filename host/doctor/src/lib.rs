//! Reports on installations and files, for people and tools.
//!
//! **Job.** Report the state of an installation ([`doctor()`]), the shims and their devices
//! ([`list_shims`]), the content of a checkpoint ([`show()`]), the type and origin of any file
//! ([`inspect()`]), the differences between two plans ([`compare_plans`]), a planner's conformance
//! ([`check_planner`]) and its answer to a request ([`replay_request`]).
//!
//! **Not its job.** It does not compile and does not run models. It only writes the planner packs
//! and keys that the caller requests.
//!
//! ```
//! use shardwright::SearchPath;
//! use shardwright_doctor::list_shims;
//!
//! // Nothing is looked into, so nothing is found.
//! let report = list_shims(&SearchPath::default())?;
//! assert!(report.shims.is_empty() && report.skipped.is_empty());
//! # Ok::<(), shardwright::Error>(())
//! ```

#![forbid(unsafe_code)]

mod bundle;
mod explain;
mod fault;
mod flag_advice;
mod inspect;
mod locations;
mod machine;
mod machine_description;
mod planners;
mod plans;
mod profiles;
mod report;
mod shims;
mod show;
mod trust;
mod unloaded_chains;

pub use bundle::{
    BundlePrognosis, ChainPrognosis, ChosenChain, ProofReport, ShardPrognosis, ShardState, TowerPrognosis,
    VariantPrognosis,
};
pub use explain::{About, ExplainReport, ExplainedChain, SkippedChain, explain};
pub use fault::Fault;
pub use flag_advice::{AdvisedFlag, FlagAdvice};
pub use inspect::{
    ArtefactReport, BundleReport, ForeignReport, Inspected, ShardAdvice, ShardInspection, ShimAnswer,
    WorkOrderEntry, WorkOrderReport, inspect,
};
pub use locations::{CacheReport, FoundFile, SearchedPlace, VariableReport};
pub use machine::{Identity, MachineReport};
pub use machine_description::{DescribedDevice, DescribedMachine, DescribedShim};
pub use planners::{
    AskedShardReport, CheckReport, LogReport, PlannerChoice, PlannerOptionReport, PlannerReport,
    ReplayReport, check_planner, pack_planner, replay_request,
};
pub use plans::{
    ComparedPlan, PlanChange, PlanDifference, PlanTopic, PlanUnit, PlanValue, compare_plans, compare_reports,
};
pub use profiles::{chip_named, profiles_in};
pub use report::{DoctorReport, FoundProfileReport, Problem, WorkerPresence, doctor};
pub use shims::{
    DeviceReport, ShimHash, ShimReport, ShimsReport, SkippedReport, hash_shim, list_shims, shim_needs,
};
pub use show::{AssetReport, ComponentReport, LayerKindReport, ShowReport, show};
pub use trust::{SignatureReport, make_key, revoke, show_signature, sign, signer};
