//! The files in which code for MediaTek's NPUs is shipped: reads and reports on them with bounded
//! work. The shim, the simulator and the call recorder share this crate.
//!
//! **Job.** Reads a compiled `.tflite`, the container of bytecode appended to it, the Neuron
//! compiler's output, `.litertlm` bundles, the payload of ExecuTorch's MediaTek backend, and the
//! output of this project's simulator of the compiler. Reports for each the compiler, the chip, the
//! options, and the operations left outside. Reads and writes the compiler's option strings and
//! records, which these files contain. Writes the head of the simulator's output.
//!
//! **Not its job.** Limits of chips, judging options, opening a library, and reading the code
//! itself. The layouts come from published files and from Google's public tools. They were not
//! checked against MediaTek's own documents.
//!
//! The files are untrusted. So every length, offset and count is checked before it is used, and
//! every list has a maximum length.
//!
//! ```
//! use shardwright_neuron_files::options::OptionString;
//!
//! let options = OptionString::parse("--arch=mdla5.3 -O3 --relax-fp32")?;
//! assert_eq!(options.get("opt"), Some("3"));
//! # Ok::<(), shardwright_neuron_files::options::OptionsError>(())
//! ```
//!
//! Reading order: [`inspect`](mod@inspect) is the entry point. [`tflite`], [`litertlm`],
//! [`executorch`] and [`neuron_schema`] wrap a [`blob`]. [`record`] reads the compiler's record in
//! it, [`options`] its options, and [`known_options`] lists the options that public sources name.
//! [`flatbuffer`], [`flexbuffer`] and [`sequence`] are the underlying encodings.

#![forbid(unsafe_code)]

pub mod blob;
pub mod budget;
pub mod bytes;
mod error;
pub mod executorch;
pub mod flatbuffer;
pub mod flexbuffer;
pub mod inspect;
pub mod known_options;
pub mod litertlm;
pub mod neuron_schema;
mod operators;
pub mod options;
pub mod record;
pub mod sequence;
pub mod simulated;
pub mod tflite;

pub use error::ContainerError;

/// Result of reading a file.
pub type Result<T, E = ContainerError> = std::result::Result<T, E>;
