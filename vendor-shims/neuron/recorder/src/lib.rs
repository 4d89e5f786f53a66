//! A library with the Neuron Adapter's C ABI that checks its client instead of computing. It writes
//! every call as a line to a file. A call that breaks a rule ends the process after the rule is
//! named.
//!
//! **Job.** Checks the order of objects and calls, lifetimes, indices, lengths, memory and buffers
//! on the side that runs compiled networks, which no published client for x86-64 exercises. It
//! returns the smallest plausible results with which a client can work. Compiling makes a blob that
//! lists only inputs and outputs. Restoring reads the blob back. Running checks that every buffer
//! is bound and fills the outputs with zeros.
//!
//! **Not its job.** Simulation. It shares the interface's types and the encodings of files with the
//! simulator, but no rules, so neither can hide the other's mistakes. The rules are derived from
//! two published clients and were not compared with MediaTek's own library.
//!
//! | variable | effect |
//! |---|---|
//! | `SHARDWRIGHT_NEURON_RECORDER` | file to which lines are appended. Without it no file is written, but rules still apply |
//! | `SHARDWRIGHT_NEURON_RECORDER_VERSION` | version that the library reports, `8.2.28` by default |
//! | `SHARDWRIGHT_NEURON_RECORDER_PADDING` | the last dimension of inputs and outputs is padded to a multiple of this number, 1 by default |

mod blob;
pub mod exports;
mod object_ledger;
mod record;
mod rules;

pub use object_ledger::{Io, IoMemory, ObjectLedger, Violation};
pub use rules::Rule;
