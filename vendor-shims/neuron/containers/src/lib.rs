//! Reads and reports on the files in which code for MediaTek's NPUs is shipped, within bounds.
//!
//! **Job.** Reads a compiled `.tflite`, the container of bytecode appended to it, the Neuron
//! compiler's output, `.litertlm` bundles, the payload of ExecuTorch's MediaTek backend and the
//! output of this project's simulator of the compiler; reports for each the compiler, the chip, the
//! options, and the operations left outside. Reads and writes the compiler's option strings, which
//! these files contain.
//!
//! **Not its job.** It knows no chip's limits, judges no option, opens no library, and reads
//! nothing of the code itself. Nothing here was checked against MediaTek's own documents: the
//! layouts are those seen in published files and written by Google's public tools.
//!
//! Every length, offset and count is checked before it is used, and every list has a cap: the files
//! are untrusted.
//!
//! ```
//! use shardwright_neuron_containers::options::OptionString;
//!
//! let options = OptionString::parse("--arch=mdla5.3 -O3 --relax-fp32")?;
//! assert_eq!(options.get("opt"), Some("3"));
//! # Ok::<(), shardwright_neuron_containers::options::OptionsError>(())
//! ```
//!
//! Reading order: [`inspect`](mod@inspect) is the entry point; [`tflite`], [`litertlm`],
//! [`executorch`] and [`neuron_schema`] wrap a [`blob`]; [`record`] reads the compiler's record in
//! it, and [`options`] its options; [`flatbuffer`] and [`flexbuffer`] are the encodings below.

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
