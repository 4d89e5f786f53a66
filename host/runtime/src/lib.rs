//! The runtime: it computes logits or a sentence vector from tokens, over shards that were compiled
//! and loaded elsewhere.
//!
//! **Job.** Runs sessions over chains of shards:
//! * Checks that loaded shards form a [`Chain`].
//! * Keeps a [`Session`]'s states and history.
//! * Computes the inputs of a step once and shares them.
//! * Passes boundaries and states between shards, by reference if that is legal and otherwise as a
//!   counted copy.
//! * Prefills, decodes, scores, encodes, truncates and cancels.
//! * Releases the memory of an idle session and fills it again.
//! * Forks a session, and writes and reads the rows of its states.
//! * Shares the states of equal beginnings of prompts between sessions.
//! * Enforces a memory budget.
//! * Generates text.
//! * Continues on another chain, from the history, when a device is lost.
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
//! [`PlacementRecord`]. For shards that no shim runs, see [`Shard`](shardwright_shims::Shard). For
//! failover when a device is lost, see [`NextChain`].

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
mod likelihood;
mod memory;
mod model_draft;
mod next_chain;
mod placement;
mod prefix_cache;
mod session;
mod soft_rows;
mod softcap;
mod step;
mod storage;
mod tower;

pub use cancel::CancelHandle;
pub use chain::{ASSETS_MAX, Chain, ChainIdentity, ENTRIES_MAX, PORTS_MAX, SHARDS_MAX, STATES_MAX};
pub use description::{ChainDescription, ShardDescription};
pub use error::SessionError;
pub use features::Features;
pub use generation::{DoneReason, Generation, GenerationEvent, GenerationOptions, GenerationStatistics};
pub use goldens::{Compared, Goldens, Likeness};
pub use likelihood::TokenLikelihood;
pub use memory::{MemoryBudget, MemoryShare, SessionMemory};
pub use model_draft::ModelDraft;
pub use next_chain::{FallbackChains, NextChain};
pub use placement::{
    BoundaryPlacement, EntryPlacement, Fallback, Move, PlacementRecord, ShardPlacement, StatePlacement,
};
pub use prefix_cache::{PrefixCache, PrefixCacheStatistics};
pub use session::saved_states::{SavedState, SavedStates};
pub use session::{Appended, BeforeStep, Prompted, Session, StepTensor, StepView, Truncation};
pub use shardwright_drafting::{
    Acceptance, DRAFTED_MAX, Draft, Drafted, DroppedDraft, PATIENCE, PromptLookup, Proposal, Speculation,
    SpeculationStatistics, acceptance_of, acceptance_of_lookup,
};
pub use soft_rows::{Prompt, SoftRows};
pub use storage::Storage;
pub use tower::{Tower, TowerMove};
