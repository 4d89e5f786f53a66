//! Runs language models on phone NPUs by plan. This is the crate applications link.
//!
//! **Job.** Three words: *open* a checkpoint (read, plan, compile, load), start a *session*,
//! *stream* text. One error type with a kind to act on and a help line. No generics, everything
//! `Send`, so that bindings can stand on it.
//!
//! **Not its job.** It holds no mechanism of its own: reading is `models`, deciding is a planner,
//! building is `build`, running is `runtime`. What those crates export beside this crate may change
//! without notice.
//!
//! An app runs what was compiled into a bundle (`shardwright compile`), beside which it ships the
//! shims:
//!
//! ```no_run
//! use shardwright::{GenerationEvent, open_bundle};
//!
//! let model = open_bundle("bundle")?;
//! let mut session = model.session()?;
//! for event in session.chat("What does bug mean?")? {
//!     if let GenerationEvent::TextDelta { text } = event? {
//!         print!("{text}");
//!     }
//! }
//! # Ok::<(), shardwright::Error>(())
//! ```
//!
//! A tool that reads checkpoints has the feature `build`, and plans and compiles as it opens them:
//!
#![cfg_attr(feature = "build", doc = "```no_run")]
#![cfg_attr(not(feature = "build"), doc = "```ignore")]
//! use shardwright::OpenOptions;
//!
//! let model = OpenOptions::new().soc("generic").open("demo-model")?;
//! print!("{}", model.session()?.chat("What does bug mean?")?.text()?);
//! # Ok::<(), shardwright::Error>(())
//! ```
//!
//! | feature | brings | costs |
//! |---|---|---|
//! | `runtime` (default) | chains and sessions over loaded shards | no compiler, no checkpoint reader |
//! | `planning` | planner packs under an interpreter | about a megabyte |
//! | `build` | checkpoints, `.wasm` planners, compiling, verification | a WebAssembly compiler |
//! | `static-cpu` | the CPU shim linked in | the engine, two megabytes |

#![forbid(unsafe_code)]

/// Its examples are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod bundled;
mod isolation;
mod load_flags;
mod model;
mod search;
mod session;
mod text_side;

#[cfg(feature = "build")]
mod advised;
#[cfg(feature = "build")]
mod chips;
#[cfg(feature = "build")]
mod compiling;
#[cfg(feature = "build")]
mod doctor;
#[cfg(feature = "build")]
mod given;
#[cfg(feature = "build")]
mod inspect;
#[cfg(feature = "build")]
mod just_in_time;
#[cfg(feature = "build")]
mod kept;
#[cfg(feature = "build")]
mod making;
#[cfg(feature = "build")]
mod measuring;
#[cfg(feature = "build")]
mod opening;
#[cfg(feature = "build")]
mod options;
#[cfg(feature = "build")]
mod planners;
#[cfg(feature = "build")]
mod shims;
#[cfg(feature = "build")]
mod show;
#[cfg(feature = "build")]
mod verify;

pub use bundled::BundleOptions;
pub use model::{EmbedOptions, Model, OpeningTimes};
pub use search::{SearchPath, user_cache_directory};
pub use session::{Reply, Session};
pub use shardwright_runtime as runtime;
pub use shardwright_runtime::shims::Isolation;
pub use shardwright_runtime::{
    CancelHandle, DoneReason, GenerationEvent, GenerationOptions, GenerationStatistics, PlacementRecord,
};

pub use shardwright_vocabulary::{
    Error, ErrorKind, FormatTuple, Notice, NoticeKind, PlannerIdentity, Result, UnknownName, WeightFormat,
};

#[cfg(feature = "planning")]
pub use shardwright_planning as planning;

#[cfg(feature = "build")]
pub use {
    advised::{AdvisedFlag, FlagAdvice},
    compiling::CompileReport,
    doctor::{
        BundlePrognosis, CacheReport, ChainPrognosis, DoctorReport, FoundFile, FoundProfileReport, Identity,
        MachineReport, Problem, ProofReport, SearchedPlace, ShardPrognosis, ShardState, VariableReport,
        WorkerPresence, doctor,
    },
    inspect::{
        ArtefactReport, BundleReport, ForeignReport, Inspected, ShardAdvice, ShardInspection, Told,
        WorkOrderEntry, WorkOrderReport, inspect, is_bundle,
    },
    opening::Planned,
    options::{Executor, FormatChoice, OpenOptions, TableFormats},
    planners::{AskedReport, AskedShardReport, PlannerReport, check_planner, make_planner_key, pack_planner},
    shardwright_build::shims::Watch,
    shardwright_build::{
        BytesReport, Compiler, EntryTime, LearnedFile, LearnedLimit, LossReport, PlanReport, PlanTotals,
        ReasonReport, ShardReport,
    },
    shims::{DeviceReport, ShimHash, ShimReport, ShimsReport, SkippedReport, hash_shim, list_shims},
    show::{AssetReport, ComponentReport, LayerKindReport, ShowReport, show},
    verify::{
        BoundaryVerification, Comparison, Effort, EffortReport, EntryVerification, LeftOut, NotRun,
        RowComparison, SelfTestReport, ShardVerification, Thresholds, TokenVerification, TwinArtefact,
        TwinReport, VerifyOptions, VerifyReport, self_test, store_verification, tolerance, verify,
        verify_bundle,
    },
};

/// Opens a bundle with the default [`BundleOptions`].
pub fn open_bundle(directory: impl AsRef<std::path::Path>) -> Result<Model> {
    BundleOptions::new().open(directory)
}

/// Plans, compiles and loads a checkpoint with the default [`OpenOptions`]: the generic profile on
/// this machine's CPU.
#[cfg(feature = "build")]
pub fn open(checkpoint: impl AsRef<std::path::Path>) -> Result<Model> {
    OpenOptions::new().open(checkpoint)
}
