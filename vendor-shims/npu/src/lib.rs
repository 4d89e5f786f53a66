//! Vendor-independent parts of the NPU shims.
//!
//! **Job.** Finds the vendor's library by one rule ([`library`]). Reads an entry of a work order
//! ([`Source`]) and checks the conditions on a node that are common to all compilers ([`check`]).
//! Each compiler's own restrictions are its [`Rules`]. Recognises attention ([`attention`]), reads
//! constants ([`constant`]), stores the graph between an entry and the compiler's graph
//! ([`GraphDraft`], [`Work`]), and walks an entry's nodes for a shim that lowers them
//! ([`Lowering`]). Lays out compiled artefacts ([`artefact`]) and the ports that a run binds
//! ([`port`]). Maps shared memory ([`mapping`]). Defines the session flags for power and priority
//! ([`power`], [`priority`]). Implements the contract for any vendor ([`NpuShim`]).
//!
//! **Not its job.** Anything specific to a vendor or a model family, calls to a vendor's library,
//! and decisions about layouts. Each vendor's crate does these, behind the trait [`Vendor`].
//!
//! ```
//! use shardwright_shim_abi::Options;
//! use shardwright_shim_npu::{Choice as _, Power};
//!
//! let asked = Power::read(&Options::default())?;
//! assert_eq!(asked, None, "without the option a shim uses its own default");
//! # Ok::<(), shardwright_shim_abi::Error>(())
//! ```
//!
//! Reading order: [`source`], [`check`], [`work`], [`draft`], [`lowering`], then [`artefact`] and
//! [`port`], then [`vendor`] and [`shim`]. [`library`] is independent.

pub mod artefact;
pub mod attention;
pub mod check;
pub mod choice;
pub mod constant;
pub mod draft;
pub mod encoding;
pub mod error;
pub mod facts;
pub mod lazy;
pub mod library;
pub mod lowering;
pub mod mapping;
pub mod port;
pub mod power;
pub mod priority;
pub mod shim;
pub mod source;
pub mod vendor;
pub mod work;

pub use check::Rules;
pub use choice::Choice;
pub use draft::{Act, Constant, GraphDraft, Kind, NodeRef, ValueId, ValueKind};
pub use encoding::Encoding;
pub use lazy::Lazy;
pub use lowering::Lowering;
pub use power::Power;
pub use priority::Priority;
pub use shim::{NpuShim, On};
pub use source::{Origin, Source};
pub use vendor::{Vendor, Wishes};
pub use work::{Movements, Work};
