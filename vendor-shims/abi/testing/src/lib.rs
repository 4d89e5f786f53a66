//! What the tests of shims share: a writer of contract tables, the host's side of the door and a
//! plain evaluator, which is the one beside `host/reference`.
//!
//! Knows the contract alone and no shim: a test hands over the shim's entry function. Tables are
//! leaked, since a test's process is short; a misuse panics, since it is the test that is wrong.
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
