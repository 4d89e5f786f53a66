//! GGUF files: metadata, descriptions of tensors, and the values of the block types.
//!
//! **Job.** Parses the head of a file and checks that its counts, lengths, names and places are
//! consistent ([`Head::read`]). Finds the files of a split model ([`files_of`]) and checks that
//! they belong together ([`check_parts`]). Refuses files that are not models ([`expect_model`]).
//! Computes the values of quantised blocks
//! ([`TensorType::values`]).
//!
//! **Not its job.** It knows no model family and no tokenizer. The crates `models` and `text`
//! decide how keys and tensors are used.
//!
//! Source of the layout: `docs/gguf.md` of ggml, versions 2 and 3, little-endian. Source of the
//! block types: the reference implementation `gguf` for Python, which a test compares bit by bit.
//!
//! ```
//! use shardwright_gguf::Head;
//!
//! let file = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
//! let error = Head::read("model.gguf".as_ref(), file).unwrap_err();
//! assert_eq!(error.place(), Some("model.gguf: at byte 0"));
//! assert_eq!(error.to_string(), "model.gguf: at byte 0: metadata has no `general.architecture`");
//! ```

#![forbid(unsafe_code)]

mod blocks;
mod cursor;
mod files;
mod head;
pub mod limits;
mod metadata;
mod purpose;
mod types;

pub use blocks::{Grouping, Levels};
pub use files::{check_parts, files_of, is_gguf, model_at};
pub use head::{ARCHITECTURE, Head, Part, Tensor};
pub use metadata::{List, Metadata, Value};
pub use purpose::expect_model;
pub use types::TensorType;
