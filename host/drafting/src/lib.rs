//! Drafts for speculative decoding: guesses of the tokens that follow a text, which a step of
//! several rows then verifies.
//!
//! **Job.** A trait for sources of proposals ([`Draft`]). Prompt lookup in the whole text so far
//! ([`PromptLookup`]). The choice of how many drafted tokens to verify, based on earlier acceptance
//! and step times ([`Speculation`]). Drafts that fail, give wrong answers or never answer are
//! dropped, and reported.
//!
//! **Not its job.** It only handles token ids, not models, tensors, chains or sessions. It does not
//! verify tokens: the sampler chooses the final tokens from the logits of the model.
//!
//! ```
//! use shardwright_drafting::{Draft, Evidence, PromptLookup};
//!
//! let mut lookup = PromptLookup::default();
//! let proposal = lookup.propose(&[7, 8, 9, 4, 7, 8], 2)?;
//! assert_eq!(proposal.tokens, [9, 4]);
//! assert_eq!(proposal.evidence, Evidence::Repeated(2));
//! # Ok::<(), shardwright_vocabulary::Error>(())
//! ```

#![forbid(unsafe_code)]

mod acceptance;
mod automaton;
mod draft;
mod draft_thread;
mod lookup;
mod pace;
mod speculation;
mod times;

pub use acceptance::{Acceptance, acceptance_of, acceptance_of_lookup};
pub use draft::{DRAFTED_MAX, Draft, Evidence, Proposal};
pub use draft_thread::{PATIENCE, READING_PATIENCE};
pub use lookup::{HISTORY_MAX, PromptLookup};
pub use speculation::{Drafted, DroppedDraft, Speculation, SpeculationStatistics};
