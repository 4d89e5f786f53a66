//! The plain evaluator of any graph, float or quantised: the oracle that every shim is compared
//! with.
//!
//! **Job.** Compute every operation of [`Op`](shardwright_graph::Op) in one readable function each,
//! semantic or primitive; compute every step input from positions and token ids; run a whole model,
//! cut anywhere, in any form, with its weights, activations and states in any format; show every
//! tensor's values to whoever calibrates. Inside an operation everything is f64 and rounded once to
//! f32, reductions included, so a result is at least as accurate as a careful f32 implementation.
//! Every output element is reduced in an order that depends only on the reduction's length, so cuts
//! and chunks agree bit for bit.
//!
//! **Encoded tensors.** A tensor is held as its graph says: f32, f16, bf16, or integers with a
//! scale and zero point. Of an operation
//! 1. operands are decoded to f32 (exactly; of integers `(stored − zero point) · scale`, one f32
//!    multiplication), also constants
//!    ([`Weight::decode_row`](shardwright_graph::Weight::decode_row));
//! 2. the result is computed as in the float graph and rounded to f32;
//! 3. it is encoded as the result tensor declares, the nearest value that it holds, beyond its
//!    range the end of the range.
//!
//! Two kinds of operation differ. What only moves values
//! ([`Op::is_movement`](shardwright_graph::Op::is_movement)) moves stored ones. And `Linear` and
//! `MatMul` of two integer operands, and `DynamicLinear`, sum the products of `stored − zero point`
//! exactly, multiply the sum by the product of both scales in f64 (of a weight with scales per
//! block: each block's exact sum by its scale, blocks added in their order in f64, then by the
//! other operand's), add the bias and round to f32.
//!
//! **Calibration.** [`ReferenceModel::observe`] shows every tensor of the float model under its
//! [`range_key`](shardwright_graph::range_key), the residual stream under
//! [`hidden_key`](shardwright_graph::hidden_key) and states under
//! [`state_key`](shardwright_graph::state_key): every key that
//! [`encode`](shardwright_graph::encode) may ask for, in any form and cut.
//!
//! **Not its job.** It is not fast, never shipped, decides nothing, quantises no weights, knows no
//! model family and no shim.
//!
//! Reading order: [`Evaluator`], the functions of [`step`], [`ReferenceModel`].
//!
//! The logits of a sequence, a row for each token:
//!
//! ```
//! use shardwright_graph::Graph;
//! use shardwright_reference::{Arrangement, Array, ReferenceError, ReferenceModel};
//!
//! fn logits(graph: &Graph, ids: &[u32]) -> Result<Array, ReferenceError> {
//!     ReferenceModel::new(graph, Arrangement::whole(ids.len() as u64))?.logits(ids)
//! }
//! ```

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
