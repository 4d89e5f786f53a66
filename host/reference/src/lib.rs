//! The plain evaluator of any graph, float or quantised: the oracle that every shim is compared
//! with.
//!
//! **Job.** Computes every operation of [`Op`](shardwright_graph::Op), semantic or primitive, in
//! one readable function each. Computes every step input from positions and token ids. Runs a whole
//! model, cut anywhere, in any form, with weights, activations and states in any format. Passes the
//! values of every tensor to calibration. Operations compute in f64, including reductions, and
//! round once to f32, so a result is at least as accurate as a careful f32 implementation. The
//! order of a reduction depends only on its length, so cuts and chunks agree bit for bit.
//!
//! **Encoded tensors.** A tensor has the encoding its graph declares: f32, f16, bf16, or integers
//! with a scale and zero point. In an operation
//! 1. operands are decoded to f32, including constants
//!    ([`Weight::decode_row`](shardwright_graph::Weight::decode_row)). This is exact, except that
//!    integers need one f32 multiplication: `(stored − zero point) · scale`.
//! 2. the result is computed as in the float graph and rounded to f32.
//! 3. it is encoded as the result tensor declares: the nearest representable value. Integers are
//!    clamped to the range, and f16 overflows to infinity
//!    ([`nearest_value`](shardwright_graph::nearest_value)).
//!
//! Two kinds of operation differ. Operations that only move values
//! ([`Op::is_movement`](shardwright_graph::Op::is_movement)) move stored values. `Linear` and
//! `MatMul` of two integer operands, and `DynamicLinear`, sum the products of `stored − zero point`
//! exactly, multiply the sum by the product of both scales in f64, add the bias and round to f32.
//! If a weight has scales per block, each block's exact sum is multiplied by its scale. The blocks
//! are added in their order in f64, and multiplied by the other operand's scale. `DynamicLinear`
//! with a scale per block of a row multiplies each block's sum by both scales and adds the blocks
//! in f64.
//!
//! **Calibration.** [`ReferenceModel::observe`] passes every tensor of the float model under its
//! [`range_key`](shardwright_graph::range_key), the residual stream under
//! [`hidden_key`](shardwright_graph::hidden_key) and states under
//! [`state_key`](shardwright_graph::state_key). These are all keys that
//! [`encode`](shardwright_graph::encode) may need, in any form and cut.
//!
//! **Not its job.** It is not fast, is never shipped, makes no decisions, quantises no weights, and
//! knows no model family and no shim.
//!
//! Reading order: [`Evaluator`], the functions of [`step`], [`ReferenceModel`].
//!
//! The logits of a sequence, one row per token:
//!
//! ```
//! use shardwright_graph::Graph;
//! use shardwright_reference::{Arrangement, Array, ReferenceModel};
//! use shardwright_vocabulary::Result;
//!
//! fn logits(graph: &Graph, ids: &[u32]) -> Result<Array> {
//!     ReferenceModel::new(graph, Arrangement::whole(ids.len() as u64))?.logits(ids)
//! }
//! ```

mod array;
mod bindings;
mod evaluator;
mod model;
mod ops;
mod states;
pub mod step;
mod weights;

pub use array::Array;
pub use bindings::Bindings;
pub use evaluator::Evaluator;
pub use model::{Arrangement, Form, ReferenceModel, Sequence, Trace};
pub use states::States;
pub use weights::{Weights, widen};
