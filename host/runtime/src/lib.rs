//! The runtime: tokens in, logits or a sentence vector out, over shards that were compiled and
//! loaded elsewhere.
//!
//! **Job.** Check that loaded shards form a [`Chain`]; keep a [`Session`]'s states and history;
//! compute the inputs of a step once and share them; pass boundaries and states between shards, by
//! reference where that is legal and as a counted copy elsewhere; prefill, decode, score, encode,
//! truncate, cancel; release the memory of an idle session and fill it again; keep a budget of
//! memory; generate text; continue on another chain, from the history, when a device is lost.
//!
//! **Not its job.** It knows no model family, no planner, no compiler and no file format. It
//! computes only step inputs: all arithmetic of a model happens in a shim.
//!
//! ```no_run
//! use std::error::Error;
//!
//! use shardwright_runtime::{Chain, ChainDescription};
//! use shardwright_shims::LoadedShard;
//!
//! fn first_token(
//!     description: ChainDescription,
//!     shards: Vec<LoadedShard>,
//!     tables: Vec<shardwright_graph::Asset>,
//! ) -> Result<(), Box<dyn Error>> {
//!     let chain = Chain::new(description, shards, tables)?;
//!     let mut session = chain.session()?;
//!     session.append(&[2, 105, 2364])?;
//!     let likeliest = session.logits().into_iter().flatten().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
//!     println!("{likeliest:?} after {:?}; {:?}", session.tokens(), session.placement().boundaries);
//!     Ok(())
//! }
//! ```
//!
//! Reading order: [`ChainDescription`], [`Chain`], [`Session`], [`Generation`],
//! [`PlacementRecord`]; for other shards than those of shims, [`Shard`](shardwright_shims::Shard);
//! for failover when a device is lost, [`NextChain`].

#![forbid(unsafe_code)]

mod bundled;
mod cancel;
mod chain;
mod description;
mod engine;
mod error;
mod features;
mod generation;
mod goldens;
mod memory;
mod model_draft;
mod next_chain;
mod placement;
mod session;
mod soft;
mod softcap;
mod step;
mod storage;
mod tower;

pub use cancel::CancelHandle;
pub use chain::{ASSETS_MAX, Chain, ENTRIES_MAX, PORTS_MAX, SHARDS_MAX, STATES_MAX};
pub use description::{ChainDescription, ShardDescription};
pub use error::{ChainError, SessionError};
pub use features::Features;
pub use generation::{DoneReason, Generation, GenerationEvent, GenerationOptions, GenerationStatistics};
pub use goldens::{Compared, Goldens, Likeness};
pub use memory::{BudgetError, MemoryBudget, MemoryShare, SessionMemory};
pub use model_draft::ModelDraft;
pub use next_chain::{FallbackChains, NextChain, NextChainError};
pub use placement::{
    BoundaryPlacement, EntryPlacement, Fallback, Move, PlacementRecord, ShardPlacement, StatePlacement,
};
pub use session::{Appended, Prompted, Session, StepTensor, StepView, Truncation};
pub use shardwright_drafting::{
    Acceptance, DRAFTED_MAX, Draft, DraftError, Drafted, DroppedDraft, PATIENCE, PromptLookup, Proposal,
    Speculation, SpeculationStatistics, acceptance_of, acceptance_of_lookup,
};
pub use soft::{Prompt, SoftRows};
pub use storage::Storage;
pub use tower::{Tower, TowerMove};
