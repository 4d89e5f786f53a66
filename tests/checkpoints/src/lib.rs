//! Checkpoints made to order, for the tests of any crate: the real architectures at any size, in
//! any spelling.
//!
//! **Job.** Write a directory in Hugging Face layout (settings and weights) from a [`Spec`]:
//! family, sizes, layer pattern, element type, number of files, names, leftovers of other layers.
//! Weights are random from a seed, scaled so that every part of the architecture changes the
//! result, or absent (a sparse file) if only shapes matter. For measurements, write the shapes of
//! published models with a tokenizer of their size, and the same weights in llama.cpp's format
//! ([`write_real`], [`write_gguf`]).
//!
//! **Not its job.** It does not read checkpoints, depends on no crate of the project, and is
//! **not** used outside of tests: its functions panic if a spec contradicts itself.

mod config;
mod effort;
mod file;
mod gguf;
mod pool;
mod random;
mod real;
mod resumable;
mod spec;
mod tensors;
mod tokenizer;
mod towers;

pub use effort::{THOROUGH, cases};
pub use file::{StoredTensor, raw_safetensors, write_safetensors};
pub use gguf::GgufHead;
pub use random::Random;
pub use real::{REAL_SHAPES, real_shape, write_gguf, write_real};
pub use spec::{Family, Fill, Spec, Spelling};
pub use tensors::{Part, TensorSpec};
pub use towers::Towers;
