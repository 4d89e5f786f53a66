//! The files in which code for MediaTek's NPUs travels: read, bounded, and told.
//!
//! **Job.** Reads a compiled `.tflite`, the container of bytecode appended to it, what the Neuron
//! compiler stored, `.litertlm` bundles, the payload of ExecuTorch's MediaTek backend and what this
//! project's simulator of the compiler stores; says of each who compiled it, for which chip, with
//! which options, and what stayed outside. Reads and writes the compiler's option strings, which
//! stand in those files.
//!
//! **Not its job.** It knows no chip's limits, judges no option, opens no library, and reads
//! nothing of the code itself. Nothing here was checked against MediaTek's own documents: the
//! layouts are those seen in published files and written by Google's public tools.
//!
//! Every length, offset and count is checked before it is used, and every list has a cap: the files
//! are anyone's.
//!
//! ```
//! use shardwright_neuron_containers::options::OptionString;
//!
//! let options = OptionString::parse("--arch=mdla5.3 -O3 --relax-fp32")?;
//! assert_eq!(options.get("opt"), Some("3"));
//! # Ok::<(), shardwright_neuron_containers::options::OptionsError>(())
//! ```
//!
//! Reading order: [`inspect`](mod@inspect) is the door; [`tflite`], [`litertlm`], [`executorch`]
//! and [`neuron_schema`] are what wraps a [`blob`]; [`record`] is what a compiler says of itself in
//! it; [`options`] what it was told; [`flatbuffer`] and [`flexbuffer`] are the encodings below.

#![forbid(unsafe_code)]

pub mod blob;
pub mod budget;
pub mod bytes;
mod error;
pub mod executorch;
pub mod flatbuffer;
pub mod flexbuffer;
pub mod inspect;
pub mod litertlm;
pub mod neuron_schema;
mod operators;
pub mod options;
pub mod record;
pub mod tflite;
pub mod version;

pub use error::ContainerError;
pub use version::Version;

/// The result of reading.
pub type Result<T, E = ContainerError> = std::result::Result<T, E>;
