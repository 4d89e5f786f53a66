//! Helpers for the tests of shims: a builder of contract tables, the host's side of the entry
//! point, the shipped profiles of chips, and a plain evaluator that is independent of
//! `host/reference`.
//!
//! The crate depends only on the contract, not on a shim: a test passes the shim's entry function.
//! Tables are leaked, because a test's process is short. Misuse panics, because it is a bug of the
//! test.
//!
//! ```
//! use std::collections::HashMap;
//!
//! use shardwright_shim_abi::raw::{SW_ENTRY_DECODE, SW_OP_NEG, SW_ROLE_HIDDEN};
//! use shardwright_shim_testing::{Bound, Builder, evaluate};
//!
//! let mut entry = Builder::new("decode_1@8", SW_ENTRY_DECODE, 1, 8);
//! let x = entry.input("x", SW_ROLE_HIDDEN, &[1, 2]);
//! let y = entry.unary(SW_OP_NEG, x, vec![]);
//! entry.output("y", SW_ROLE_HIDDEN, y);
//! let bound = HashMap::from([("x".to_owned(), Bound::F32(vec![1.0, -2.0]))]);
//! assert_eq!(evaluate(&entry, 1, &bound)["y"].data, [-1.0, 2.0]);
//! ```
//!
//! **Not its job.** It is not for programs, has no own tests, and knows no models.

pub mod damage;
pub mod encoding;
pub mod evaluate;
pub mod host;
pub mod memory;
pub mod numbers;
pub mod profile;
pub mod ranges;
pub mod tables;

pub use damage::assert_damage_is_found;
pub use encoding::TableEncoding;
pub use evaluate::{Tensor, evaluate, evaluate_all};
pub use host::{Compiled, ErrorObject, EstimateInfo, Host, Loaded, refused};
pub use memory::{Bound, Memory, Region};
pub use numbers::{Random, bits, cosine, values};
pub use profile::{Profile, profile};
pub use tables::{Attribute, Builder, Declared, Node, Port, Scales, TensorId, Weight, integers, weight};
