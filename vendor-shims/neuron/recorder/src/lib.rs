//! A library with the Neuron Adapter's C ABI that computes nothing and checks its client: every
//! call is a line in a file, and a call that breaks a rule ends the process after naming the rule.
//!
//! **Job.** Checks the order of objects and calls, lifetimes, indices, lengths, memory and buffers
//! on the side that runs compiled networks, which no published client for x86-64 exercises. It
//! returns the smallest plausible results a client can work with: compiling makes a blob that lists
//! only inputs and outputs, restoring reads it back, running checks that every buffer is bound and
//! fills the outputs with zeros.
//!
//! **Not its job.** It is no simulator, and shares nothing with ours but the interface's types:
//! neither can hide the other's mistakes. The rules are derived from two published clients; nothing
//! here was compared with MediaTek's own library.
//!
//! | variable | effect |
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
