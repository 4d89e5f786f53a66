//! What every shim of a neural processor needs before it knows its vendor's operations.
//!
//! **Job.** Finds the vendor's library by one rule ([`library`]). Reads an entry of a work order
//! ([`Source`]), looks at everything about a node that holds for any compiler ([`check`], with what
//! one compiler takes told by its [`Rules`]), recognises attention ([`attention`]), reads constants
//! ([`constant`]), keeps the graph between an entry and the compiler's ([`Draft`], [`Work`]), and
//! walks an entry's nodes for a shim that writes them ([`Lowering`]). Lays out compiled artefacts
//! ([`artefact`]) and what their ports are to a run ([`port`]). Names how much power a session may
//! ask for ([`power`]), and keeps what an instance knows between calls ([`instance`]).
//!
//! **Not its job.** It knows no vendor, no vendor's operation and no model family, calls no
//! function of a vendor's library and decides no layout: those are the shims'.
//!
//! ```
//! use shardwright_shim_abi::Options;
//! use shardwright_shim_npu::Power;
//!
//! let asked = Power::read(&Options::default())?;
//! assert_eq!(asked, None, "without the option a shim uses its own default");
//! # Ok::<(), shardwright_shim_npu::ShimError>(())
//! ```
//!
//! Reading order: [`source`], [`check`], [`work`], [`draft`], [`lowering`]; then [`artefact`] and
//! [`port`]; [`library`] and [`instance`] stand alone.

pub mod artefact;
pub mod attention;
pub mod check;
pub mod constant;
pub mod draft;
pub mod encoding;
mod error;
pub mod instance;
pub mod library;
mod lower_error;
pub mod lowering;
pub mod port;
pub mod power;
pub mod source;
pub mod work;

pub use check::Rules;
pub use draft::{Act, Constant, Draft, Kind, NodeRef, ValueId, ValueKind};
pub use encoding::Encoding;
pub use error::ShimError;
pub use lower_error::LowerError;
pub use lowering::Lowering;
pub use power::Power;
pub use source::{Origin, Source};
pub use work::{Movements, Work};
