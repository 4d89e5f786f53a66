//! Checkpoints made to order, for the tests of any room: the real architectures at any size, in any spelling.
//!
//! **Job.** Write a directory in Hugging Face layout (settings and weights) from a [`Spec`]: family, sizes, layer
//! pattern, element type, number of files, names, leftovers of other layers. Weights are random from a seed, scaled so
//! that every part of the architecture moves the result, or absent (a sparse file) where only shapes matter.
//!
//! **Not its job.** It writes no tokenizer, reads nothing, knows no room, and is **not** used outside of tests: its
//! functions panic where a spec contradicts itself.

mod config;
mod file;
mod random;
mod spec;
mod tensors;

pub use file::{StoredTensor, raw_safetensors, write_safetensors};
pub use random::Random;
pub use spec::{Family, Fill, Spec, Spelling};
pub use tensors::{Part, TensorSpec};
