//! Vendor-independent parts of the NPU shims.
//!
//! **Job.** Finds the vendor's library by one rule ([`library`]). Reads an entry of a work order
//! ([`Source`]) and checks the conditions on a node that are common to all compilers ([`check`]).
//! Each compiler's own restrictions are its [`Rules`]. Recognises attention ([`attention`]), reads
//! constants ([`constant`]), stores the graph between an entry and the compiler's graph ([`Draft`],
//! [`Work`]), and walks an entry's nodes for a shim that lowers them ([`Lowering`]). Lays out
//! compiled artefacts ([`artefact`]) and the ports that a run binds ([`port`]). Defines the session
//! flags for power and priority ([`power`], [`priority`]), and keeps an instance's state between
//! calls ([`instance`]).
//!
//! **Not its job.** Anything specific to a vendor or a model family, calls to a vendor's library,
//! and decisions about layouts. The shims do these.
//!
//! ```
//! use shardwright_shim_abi::Options;
//! use shardwright_shim_npu::Power;
//!
//! let asked = Power::read(&Options::default())?;
//! assert_eq!(asked, None, "without the option a shim uses its own default");
//! # Ok::<(), shardwright_shim_abi::Error>(())
//! ```
//!
//! Reading order: [`source`], [`check`], [`work`], [`draft`], [`lowering`], then [`artefact`] and
//! [`port`]. [`library`] and [`instance`] are independent.

pub mod artefact;
pub mod attention;
pub mod check;
mod choice;
pub mod constant;
pub mod draft;
pub mod encoding;
pub mod error;
pub mod instance;
pub mod library;
pub mod lowering;
pub mod port;
pub mod power;
pub mod priority;
pub mod source;
pub mod work;

pub use check::Rules;
pub use draft::{Act, Constant, Draft, Kind, NodeRef, ValueId, ValueKind};
pub use encoding::Encoding;
pub use lowering::Lowering;
pub use power::Power;
pub use priority::Priority;
pub use source::{Origin, Source};
pub use work::{Movements, Work};
