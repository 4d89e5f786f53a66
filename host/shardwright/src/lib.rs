//! Runs language models on phone NPUs by plan. Applications link this crate.
//!
//! **Job.** Three operations: *open* a checkpoint (read, plan, compile, load), start a *session*,
//! and *stream* text. There is one error type, with a kind to act on and a help line. There are no
//! generics and all types are `Send`, so that bindings can be built on it.
//!
//! **Not its job.** It has no mechanisms of its own: `models` reads, a planner decides, `build`
//! builds and `runtime` runs. Items that those crates export but this crate does not may change
//! without notice.
//!
//! An app runs a bundle that was compiled with `shardwright compile`, and ships the shims with it:
//!
//! ```no_run
//! use shardwright::{GenerationEvent, Model};
//!
//! let model = Model::open("bundle")?;
//! let mut session = model.session()?;
//! for event in session.chat("What does bug mean?")? {
//!     if let GenerationEvent::TextDelta { text } = event? {
//!         print!("{text}");
//!     }
//! }
//! # Ok::<(), shardwright::Error>(())
//! ```
//!
//! A tool that reads checkpoints enables the feature `build`, and plans and compiles as it opens
//! them:
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
//! Where memory is short: [`BundleOptions::memory_budget`], [`Model::memory`],
//! [`Session::release`]. To continue a conversation later or twice: [`Session::save`],
//! [`Model::restore`], [`Session::fork`]. To share the beginnings of prompts: [`PrefixCache`]. Where
//! starts must be short: [`BundleOptions::open_watched`], [`Model::report`], [`Model::prewarm`].
//! Tools find the parts of a model in [`tools`].
//!
//! | feature | brings | costs |
//! |---|---|---|
//! | `runtime` (default) | chains and sessions over loaded shards | no compiler, no checkpoint reader |
//! | `planning` | plans by planner packs, carried out for a model the program brings | the built-in planner and an interpreter, about two megabytes |
//! | `build` | checkpoints, `.wasm` planners, compiling bundles | a WebAssembly compiler |
//! | `pictures`, `sounds` | files, pixels and samples as parts of a turn | decoders, resizing, transforms |
//! | `mp3-ogg` | sounds in MP3 and Ogg Vorbis | decoders, which are under MPL-2.0 |
//! | `static-cpu` | the CPU shim linked in | the engine, two megabytes |

#![forbid(unsafe_code)]
#![warn(missing_docs)]

/// Examples of the page, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Examples of the page, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/how-to/integrate.md")]
struct Integrate;

mod bundled;
mod ignored_fields;
mod load_flags;
mod memory;
mod model;
mod open;
mod packing;
mod parts;
mod policy;
mod reopening;
mod report;
mod run_options;
mod search;
mod session;
mod source;
mod strays;
mod text_side;
pub mod tools;
mod towers;
mod turns;
mod verified_files;

#[cfg(feature = "build")]
mod fallback_chains;
#[cfg(feature = "build")]
mod goldens;
#[cfg(feature = "planning")]
mod loading;
#[cfg(feature = "build")]
mod opening;
#[cfg(feature = "build")]
mod options;

pub use bundled::BundleOptions;
pub use memory::ModelMemory;
pub use model::{EmbedOptions, Model, OpeningTimes};
pub use parts::{ChatPart, RestoredPart};
pub use policy::FallbackPolicy;
pub use reopening::{Chains, Reopen};
pub use report::ModelReport;
pub use search::{SearchPath, user_cache_directory};
pub use session::saved::{RestoreReason, Restored, SavedSession};
pub use session::{DetachedReply, Reply, ReplyRequest, Session};
pub use shardwright_bundle::{Hashed, PackReport, is_bundle};
#[cfg(feature = "constraint")]
pub use shardwright_constraint::{Constraint, Grammar};
pub use shardwright_files::Section;
pub use shardwright_runtime::{
    BeforeStep, CancelHandle, DoneReason, Draft, DroppedDraft, GenerationEvent, GenerationOptions,
    GenerationStatistics, ModelDraft, PlacementRecord, PrefixCache, PrefixCacheStatistics, Proposal,
    SessionMemory, Speculation, SpeculationStatistics, TokenLikelihood,
};
pub use shardwright_selection::{Candidate, Passed, Selection, ShardStanding, Standing, Tier};
pub use shardwright_shims::{Chip, MeasuredFlag};
pub use shardwright_text::{
    Message, RenderOptions, SamplingParameters, StopRules, ThoughtTokens, TokenRules, Tokenizer, ToolCall,
    ToolChoice, ToolDefinition,
};
pub use shardwright_trust::Policy;
pub use shardwright_vocabulary::{
    ChosenSpeculation, Error, ErrorKind, FormatTuple, GoalVerdict, Ignored, Lora, LoraScale, Notice,
    NoticeKind, Pass, PlannerIdentity, Provenance, Result, TimeCost, UnknownName, Watch, WeightFormat,
};
pub use shardwright_worker::Isolation;
pub use source::Source;
pub use turns::{Role, Turn, TurnPart};
pub use verified_files::Verified;

#[cfg(feature = "build")]
pub(crate) use loading::{join, load};
#[cfg(feature = "planning")]
pub use shardwright_build::{
    DraftEstimate, Executor, FormatChoice, LossGround, ModelSource, PlanMeasuring, PlanOptions, PlanReport,
    PlanSource, Planned, Preference, PromptLength, Purpose, Settled, TableFormats, WeightRounding, plan,
    settle,
};
#[cfg(feature = "build")]
pub use {
    options::OpenOptions,
    shardwright_checkpoints::{
        ChainPlan, CompileReport, CompiledVariant, FailedVariant, FormatShare, LossRow, SensitivityReport,
        calibration_prompts,
    },
};
