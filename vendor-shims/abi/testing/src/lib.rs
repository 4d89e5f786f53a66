//! Shared by the tests of shims: a writer of contract tables, the host's side of the entry point,
//! and a plain evaluator, independent of `host/reference`.
//!
//! Depends only on the contract, not on a shim: a test passes the shim's entry function. Tables are
//! leaked, because a test's process is short; misuse panics, because the test is at fault.
//!
//! **Not its job.** It is used by no program, tests nothing by itself, and holds no model.

pub mod encoding;
pub mod evaluate;
pub mod host;
pub mod memory;
pub mod numbers;
pub mod ranges;
pub mod tables;

pub use encoding::Encoding;
pub use evaluate::{Tensor, evaluate, evaluate_all};
pub use host::{Compiled, Failure, Host, Loaded, refused};
pub use memory::{Bound, Memory, Region};
pub use numbers::{Random, bits, cosine, values};
pub use tables::{Attribute, Builder, Declared, Node, Port, Scales, TensorId, Weight, integers, weight};
