//! Structured output: the tokens that may follow in a reply that must match a JSON schema, a
//! regular expression or a Lark grammar.
//!
//! **Job.** Checks and compiles a [`Grammar`] for the tokens of a model ([`Vocabulary`],
//! [`Constraint`]), and refuses grammars that no reply can match, that are too large, that never
//! end or that use unsupported keywords, before the first token. Follows one reply
//! ([`ConstraintState`]): the mask of the next token, computed on another thread while the model
//! runs, the tokens that the grammar forces, and whether the reply may end. The crate `llguidance`
//! does the parsing.
//!
//! **Not its job.** It knows token ids, but no models, logits or sessions. It does not choose
//! tokens: a sampler applies the mask.
//!
//! ```
//! use shardwright_constraint::{Constraint, Grammar, Vocabulary};
//! use shardwright_text::Tokenizer;
//!
//! # let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo-model");
//! let tokenizer = Tokenizer::from_checkpoint(demo)?;
//! let vocabulary = Vocabulary::new(&tokenizer)?;
//! let grammar = Grammar::regex("[0-9]+ (cats|dogs)");
//! let mut state = Constraint::new(&vocabulary, &grammar)?.start()?;
//! let three = tokenizer.encode("3", false)?;
//! assert!(state.mask()?.allows(three[0]));
//! state.accept(three[0])?;
//! assert!(!state.is_complete()?);
//! # Ok::<(), shardwright_vocabulary::Error>(())
//! ```

#![forbid(unsafe_code)]

mod compiled;
mod constraint;
mod counts;
mod faults;
mod grammar;
mod mask_worker;
mod schema;
mod state;
mod token_environment;
mod vocabulary;

pub use constraint::Constraint;
pub use grammar::{GRAMMAR_BYTES_MAX, Grammar, NESTING_MAX, REGEX_BYTES_MAX, SCHEMA_BYTES_MAX};
pub use state::ConstraintState;
pub use vocabulary::Vocabulary;
