//! A library with the Neuron Adapter's C ABI that computes nothing and watches its client: every
//! call is a line in a file, and a call that breaks a rule ends the process after saying which.
//!
//! **Job.** The order of objects and calls, lifetimes, indices, lengths, memory and buffers on the
//! side that runs what was compiled: what no published client for x86-64 shows. It answers
//! plausibly, with the smallest answers a client can work with: compiling makes a blob that only
//! says what goes in and out, restoring reads it back, running checks that every buffer is there
//! and fills the outputs with zeros.
//!
//! **Not its job.** It is no simulator, and shares nothing with ours but the interface's types:
//! neither can hide the other's mistakes. What the rules are is a reading of what two published
//! clients do; nothing here was held against MediaTek's own library.
//!
//! | variable | what it does |
//! |---|---|
//! | `SHARDWRIGHT_NEURON_RECORDER` | the file that lines are appended to; without it nothing is written, rules hold all the same |
//! | `SHARDWRIGHT_NEURON_RECORDER_VERSION` | the version it says it is, `8.2.28` unless set |
//! | `SHARDWRIGHT_NEURON_RECORDER_PADDING` | the last dimension of inputs and outputs is padded to a multiple of it, 1 unless set |

mod blob;
mod books;
pub mod exports;
mod record;
mod rules;

pub use books::{Books, Io, Place, Violation};
pub use rules::Rule;
