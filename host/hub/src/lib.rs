//! Models of a Hugging Face hub, by their ids.
//!
//! **Job.** Parses ids ([`HubId`]), finds models in the cache that `hf download` and the libraries
//! of Hugging Face share ([`Cache`]), chooses the files of a repository that a model needs
//! ([`choose`]), and with the feature `pull` fetches them (`pull`): resumed after an interruption,
//! checked against the hashes that the hub lists, and bounded whatever the server sends.
//!
//! **Not its job.** It reads no model and knows no model family: the files it returns are as
//! hostile as any others. It uploads nothing, and contacts no server unless told to pull.
//!
//! ```
//! use shardwright_hub::HubId;
//!
//! let id: HubId = "unsloth/gemma-3-270m-it-GGUF@main:Q4_K_M".parse().unwrap();
//! assert_eq!((id.owner.as_str(), id.revision()), ("unsloth", "main"));
//! assert_eq!(id.file.as_deref(), Some("Q4_K_M"));
//! assert!("../models".parse::<HubId>().is_err());
//! ```

#![forbid(unsafe_code)]

mod cache;
mod choice;
mod error;
mod id;
mod name;
#[cfg(feature = "pull")]
mod pull;
mod settings;

pub use cache::{Cache, Cached};
pub use choice::{Candidate, Listed, choose};
pub use error::HubError;
pub use id::HubId;
#[cfg(feature = "pull")]
pub use pull::{PullReport, Pulled, Repository, Watch, open};
pub use settings::{Settings, Token};
