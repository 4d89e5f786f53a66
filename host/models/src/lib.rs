//! Models: a checkpoint directory in, a [`Graph`](shardwright_graph::Graph) out.
//!
//! **Job.** The only crate that knows model families. It reads `config.json` in all its spellings,
//! maps the safetensors or GGUF files, checks that both are consistent with each other, and
//! translates a family's equations into the graph. Quantised weights keep their integers and
//! scales.
//!
//! **Not its job.** No tokenizer, chat template or stop id (crate `text`), no arithmetic on
//! weights, no quantisation, no decision about cuts or targets. It writes no file.
//!
//! Files count as hostile until they are checked. Every size is capped (see [`limits`]), every sum
//! is checked, and each error names the file and the field, tensor or byte.
//!
//! [`Outline`] is a checkpoint whose weights are elsewhere. It is enough for plans, but not for
//! computing values.
//!
//! Reading order: [`Checkpoint::open`], `reader.rs`, `settings.rs`, one of the families,
//! `block.rs` for the pieces they share.
//!
//! ```
//! use shardwright_models::Checkpoint;
//!
//! let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo-model");
//! let checkpoint = Checkpoint::open(demo)?;
//! assert_eq!(checkpoint.facts().family.to_string(), "gemma4");
//! assert!(checkpoint.graph().layers() > 0 && checkpoint.graph().is_generative());
//! # Ok::<(), shardwright_vocabulary::Error>(())
//! ```

mod block;
mod checkpoint;
mod deferred_bytes;
mod dimensions;
mod embeddinggemma;
mod facts;
mod family;
mod folder_files;
mod gemma3;
mod gemma4;
mod gguf;
mod json;
pub mod limits;
mod longrope;
mod lora;
mod outline;
mod pattern;
mod prenorm;
mod quantised;
mod reader;
mod register;
mod rotary;
mod rows;
mod safetensors;
mod settings;
mod source;
mod store;
mod tensor_names;
mod threads;
mod towers;
mod translation;
mod unused_tensors;
mod weight_file;
mod yarn;

pub use checkpoint::Checkpoint;
pub use facts::{Facts, FileFacts, LayerFacts};
pub use family::Family;
pub use lora::Adapter;
pub use outline::{Opened, Outline, OutlineBasis};
pub use pattern::LayerType;
pub use reader::passes_of;
pub use store::UnusedTensor;
