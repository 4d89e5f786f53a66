//! Owned, blocking types over the public crate, for bindings to other languages.
//!
//! **Job.** The interface that C, Kotlin, Swift and Python share: models, sessions, replies, turns,
//! settings, reports and errors as types without lifetimes and generics. Every handle can be used
//! from any thread, closed at any time and closed twice. A use after that is an error of the kind
//! [`ErrorKind::Closed`].
//!
//! **Not its job.** It has no mechanisms, no unsafe code and no threads of its own: the crate
//! `shardwright` does the work on the thread of the caller. It does not know any other language.
//!
//! # Handles
//!
//! [`Model`], [`Session`], [`Reply`] and [`Cancel`] are handles: clones refer to the same object.
//! Dropping the last handle of an object closes it. A session keeps the memory of its model, so
//! handles may be dropped in any order. [`Model::close`] closes the model and all of its sessions.
//!
//! # Threads
//!
//! Calls block their thread until they are done. A session does one thing at a time: a call while
//! another one runs fails with [`ErrorKind::Busy`], and never waits. `cancel` and `close` do not
//! wait either, and work from any thread at any time, also from a callback.
//!
//! ```no_run
//! use shardwright_bindings_core::{Event, Model, OpenOptions, Source};
//!
//! let model = Model::open(&Source::path("model.swb"), &OpenOptions::default(), None, None)?;
//! let session = model.session()?;
//! let reply = session.chat(vec!["What does bug mean?".into()], None)?;
//! while let Some(event) = reply.next_event()? {
//!     if let Event::Text { text } = event {
//!         print!("{text}");
//!     }
//! }
//! # Ok::<(), shardwright_bindings_core::Error>(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod activity;
mod error;
mod message;
mod model;
mod options;
mod progress;
mod reply;
mod report;
mod session;
mod settings;

pub use error::{Error, ErrorKind, Result};
pub use message::{Part, Role, Turn};
pub use model::{EmbedSettings, Model, Released, Restored};
pub use options::{
    Chip, Fallback, FileSection, Isolation, NamedValue, OpenOptions, Proofs, ShimLibrary, Signatures, Source,
};
pub use progress::{Cancel, Progress};
pub use reply::{EndReason, Event, Flow, Reply};
pub use report::{Memory, ModelReport, Notice, NoticeKind, NoticeStage, Placement, ShardPlace, Statistics};
pub use session::{SavedSession, Session};
pub use settings::{Grammar, ReplySettings, ToolChoice};

/// Returns the version of this library, such as `0.1.0`.
pub const fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}
