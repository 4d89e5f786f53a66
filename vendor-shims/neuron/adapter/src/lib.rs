//! MediaTek's Neuron Adapter C API: layouts, numbers, names and signatures. The shim that calls the
//! library and the simulator that implements it share this crate.
//!
//! **Not its job.** Loading a library, implementing functions, and decisions. It is not a copy of
//! the vendor's header, of which only copies under a confidentiality notice exist. The interface
//! was observed at the boundary of real clients or read in openly licensed code. Tags name the
//! source:
//!
//! | tag | known from |
//! |---|---|
//! | R | run: values that Google's published compiler plugin (wheel `ai-edge-litert` 2.3.0) passed to a library that logs |
//! | L | read in google-ai-edge/LiteRT, `litert/vendors/mediatek` (Apache-2.0) |
//! | E | read in pytorch/executorch, `backends/mediatek` (BSD) |
//! | M | read in MediaTek-NeuroPilot/tflite-neuron-delegate (MIT) |
//! | A | read in Android's `NeuralNetworks.h` (Apache-2.0), whose numbers of types and operations M repeats as far as it goes |
//! | I | inferred from the pattern of the others |
//!
//! Numbers and functions that are known only from copies of the header are left out, even if
//! plausible: an extension's 4-bit and 32-bit unsigned types, hints for flushing caches, kinds of
//! compilation, batched executions, first versions.
//!
//! ```
//! use shardwright_neuron_adapter::operation;
//!
//! assert_eq!(operation::name(operation::ADD), Some("ADD"));
//! ```
//!
//! This crate was not tested on a phone. It supports only 64-bit little-endian systems.

pub mod extension;
pub mod functions;
pub mod library;
pub mod operand;
pub mod operation;
pub mod result;
pub mod setting;
pub mod version;

pub use functions::{FUNCTIONS, Function, Functions};
pub use operand::{OperandType, PerChannelQuantParams, SymmPerChannelQuantParams};
pub use version::RuntimeVersion;

#[cfg(not(all(target_pointer_width = "64", target_endian = "little")))]
compile_error!("the Neuron Adapter's layouts are known for 64-bit little-endian systems only");
