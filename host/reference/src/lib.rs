//! The plain evaluator of any graph: the oracle that every shim is compared with.
//!
//! **Job.** Compute every operation of [`Op`](shardwright_graph::Op) in one readable function each, semantic or
//! primitive; compute every step input from positions and token ids; run a whole model, cut anywhere, in any form.
//! Tensors between operations are f32; inside an operation everything is f64 and rounded once, reductions included, so a
//! result is at least as accurate as a careful f32 implementation. Weights are read as stored (f32, f16, bf16) and
//! widened exactly. Every output element is reduced in an order that depends only on the reduction's length, so cuts and
//! chunks agree bit for bit.
//!
//! **Not its job.** It is not fast, never shipped, decides nothing, knows no model family and no shim.
//!
//! Reading order: [`Evaluator`], the functions of [`step`], [`ReferenceModel`].

mod array;
mod bindings;
mod error;
mod evaluator;
mod model;
mod ops;
mod states;
pub mod step;
mod weights;

pub use array::Array;
pub use bindings::Bindings;
pub use error::ReferenceError;
pub use evaluator::Evaluator;
pub use model::{Arrangement, Form, ReferenceModel, Sequence, Trace};
pub use states::States;
pub use weights::{Weights, widen};
