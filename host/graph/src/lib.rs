//! The graph: a model's computation, before its placement is decided.
//!
//! **Job.** The intermediate representation shared by all crates. It has semantic operations with
//! frozen numbers, symbolic row counts, components, layer boundaries as cut points, the three kinds
//! of entry point, step-input roles and states. Passes over it instantiate, decompose, legalise,
//! differentiate and count.
//!
//! **Not its job.** It does not know vendors, model families or file formats. It does not compute
//! tensors or make decisions. A planner chooses cuts, a shim reports the operations it supports,
//! the reference evaluator does the arithmetic.
//!
//! Reading order: [`Op`], [`Role`], [`Component`], [`Graph::entry`], [`EntryGraph`],
//! [`legalise()`].
//!
//! Count the primitive operations of the first two layers of a decoder:
//!
//! ```
//! use shardwright_graph::{ComponentKind, EntryOptions, EntryPoint, Graph, decompose_all};
//! use shardwright_vocabulary::{EntryKind, EntryName, Result};
//!
//! fn primitives(graph: &Graph) -> Result<usize> {
//!     let decode = EntryPoint::of(EntryName { kind: EntryKind::Decode, rows: 1, context: 512 }, 1);
//!     let entry = graph.entry(ComponentKind::Decoder, 0..2, decode, EntryOptions::default())?;
//!     Ok(entry.map_or(0, |entry| decompose_all(&entry).nodes.len()))
//! }
//! ```

mod builder;
mod component;
mod count;
mod decompose;
mod encode;
mod entry;
mod finite;
mod formats;
mod gradient;
mod instantiate;
mod layer_kind;
mod legalise;
mod op;
mod operations;
mod quantisation;
mod role;
mod softcap;
mod state;
mod stream;
mod taps;
pub mod validate;
mod weight;

pub use builder::ComponentBuilder;
pub use component::{Component, Dim, Graph, Node, NodeId, Value, ValueId, ValueSource};
pub use decompose::{decompose_all, decompose_where};
pub use encode::{
    Encodings, LAST_HIDDEN, PER_LAYER, PortSide, Range, Ranges, encode, hidden_key, prepared, range_key,
    state_key, unrounded,
};
pub use entry::{EntryGraph, EntryNode, EntryPoint, PortId, StatePort, Tensor, TensorId};
pub use finite::not_finite;
pub use formats::ConstantFormat;
pub use gradient::{given_gradient_key, gradient_key, gradients};
pub use instantiate::EntryOptions;
pub use layer_kind::{LayerKinds, layer_kinds};
pub use legalise::{LegaliseError, Legalised, NodeVerdict, RefusedWhole, legalise, legalise_encoded};
pub use op::{Attention, Attribute, AttributeValue, AxialRope, KeySource, Op, RelativeAttention, Rope};
pub use operations::{OPERAND_LIMIT, RANK_LIMIT, infer_shape};
pub use quantisation::{WeightQuantisation, nearest_bound_value, nearest_value, too_large};
pub use role::{GridAxis, INVISIBLE, Keys, Mask, Role, Rotary};
pub use shardwright_vocabulary::{ComponentKind, Pass, Segment, Segments};
pub use state::{State, StateId, StateKind};
pub use weight::{Asset, AssetId, Weight, WeightBytes, WeightData, WeightId};
