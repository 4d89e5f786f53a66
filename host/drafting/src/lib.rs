//! Drafts for speculative decoding: guesses at the tokens that follow a text, which a step of
//! several rows then verifies.
//!
//! **Job.** One trait for whatever proposes tokens ([`Draft`]); prompt lookup over everything in
//! the text so far ([`PromptLookup`]); the choice of how many drafted tokens are worth verifying,
//! from how often they were accepted and how long steps took ([`Speculation`]); drafts that fail,
//! lie or never answer are dropped, and that is reported.
//!
//! **Not its job.** It knows token ids alone: no model, tensor, chain or session. It verifies
//! nothing: the tokens that stand are chosen by the sampler from the logits of the model.
//!
//! ```
//! use shardwright_drafting::{Draft, Evidence, PromptLookup};
//!
//! let mut lookup = PromptLookup::default();
//! let proposal = lookup.propose(&[7, 8, 9, 4, 7, 8], 2)?;
//! assert_eq!(proposal.tokens, [9, 4]);
//! assert_eq!(proposal.evidence, Evidence::Repeated(2));
//! # Ok::<(), shardwright_drafting::DraftError>(())
//! ```

#![forbid(unsafe_code)]

mod acceptance;
mod automaton;
mod detached;
mod draft;
mod error;
mod lookup;
mod pace;
mod speculation;
mod times;

pub use acceptance::{Acceptance, acceptance_of, acceptance_of_lookup};
pub use detached::{PATIENCE, READING_PATIENCE};
pub use draft::{DRAFTED_MAX, Draft, Evidence, Proposal};
pub use error::DraftError;
pub use lookup::{HISTORY_MAX, PromptLookup};
pub use speculation::{Drafted, DroppedDraft, Speculation, SpeculationStatistics};
