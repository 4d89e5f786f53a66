//! The C interface of Shardwright: `include/shardwright.h` and a shared or static library.
//!
//! **Job.** Functions with the calling convention of C over the types of `bindings/core`. Arguments
//! that are NULL, closed, too long or not UTF-8 are errors with a status. No panic crosses the
//! interface. Structs begin with their size, so that they may grow.
//!
//! **Not its job.** It has no behaviour of its own: the core decides what a call does. This is the
//! only crate of the bindings with unsafe code, which reads and writes memory of the caller as the
//! introduction of the header specifies.

#![warn(missing_docs)]
#![allow(non_camel_case_types, reason = "types have the names of the C interface")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the introduction of the header has the rules for all pointers"
)]

mod cancel;
mod handle;
mod memory;
mod model;
mod notice;
mod open;
mod outcome;
mod part;
mod reply;
mod session;
mod settings;
mod status;

#[cfg(test)]
mod header;
#[cfg(test)]
mod hostile;

pub use cancel::{sw_cancel, sw_cancel_close, sw_cancel_new, sw_cancel_request};
pub use model::*;
pub use notice::*;
pub use open::*;
pub use outcome::*;
pub use part::*;
pub use reply::*;
pub use session::*;
pub use settings::*;
pub use status::*;

/// Version that this header belongs to: 1,000,000 times the major, 1,000 times the minor version,
/// plus the patch.
pub const SW_VERSION: u32 = 1_000;

/// Returns the version of the library, in the form of `SW_VERSION`. Libraries of the same major
/// version, and of the same minor version while the major one is 0, have the same interface.
#[unsafe(no_mangle)]
pub extern "C" fn sw_version() -> u32 {
    SW_VERSION
}
