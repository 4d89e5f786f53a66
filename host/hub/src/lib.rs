//! Models of a Hugging Face hub, by their ids.
//!
//! **Job.** Parses ids ([`HubId`]), finds models in the cache shared with `hf download` and the
//! libraries of Hugging Face ([`Cache`]), and chooses the files of a repository that a model needs
//! ([`choose`]). With the feature `pull` it fetches them (`pull`): resumed after an interruption,
//! verified by the hashes that the hub lists, and with limits on everything the server sends.
//!
//! **Not its job.** It does not read models or support model families: the returned files are as
//! untrusted as any others. It does not upload, and contacts a server only for a pull.
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
mod id;
mod name;
#[cfg(feature = "pull")]
mod pull;
mod settings;

pub use cache::{Cache, Cached};
pub use choice::{Listed, choose};
pub use id::HubId;
#[cfg(feature = "pull")]
pub use pull::{PullReport, PullWatch, Pulled, Repository, open, open_if_available};
pub use settings::{Settings, Token};
