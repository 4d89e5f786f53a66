//! The contract between the host and vendor shims: `include/shim.h`, its Rust twin, and a safe
//! layer for writing a shim in Rust.
//!
//! **Job.** [`raw`] repeats the header struct for struct. [`Shim`] and [`LoadedShard`] are the
//! traits that an author implements, with checked [views](EntryView) over the tables the host
//! passes. [`export_shim!`] turns an implementation into the exported symbol, catches panics at
//! every entry point, and adds the struct layouts by which the host detects a shim built against
//! other structs.
//!
//! **Not its job.** It does not load libraries or parse files, which the host's `shims` crate does,
//! and does not compute operations.
//!
//! The starting point for an author, a shim that does not support any operation yet:
//!
//! ```
//! use shardwright_shim_abi::{
//!     Artefact, Compatibility, CompileOutput, Description, Device, DeviceKind, EntryView, Error, LoadedShard,
//!     MemoryKinds, Options, Result, Shim, Verdict, WorkOrderView,
//! };
//!
//! struct Mine;
//!
//! impl Shim for Mine {
//!     fn describe() -> Description {
//!         let (name, vendor) = ("mine".to_owned(), "me".to_owned());
//!         Description { name, vendor, version: "0.1.0".to_owned(), ..Description::default() }
//!     }
//!
//!     fn open(options: &Options<'_>) -> Result<Self> {
//!         options.only(&[])?;
//!         Ok(Mine)
//!     }
//!
//!     fn devices(&self, _soc: Option<&str>) -> Result<Vec<Device>> {
//!         Ok(vec![Device {
//!             name: "npu".to_owned(),
//!             soc: None,
//!             detail: None,
//!             kind: DeviceKind::Present,
//!             memory_kinds: MemoryKinds::HOST,
//!             memory_bytes: 0,
//!         }])
//!     }
//!
//!     fn check(&self, _device: &str, entry: EntryView<'_>) -> Result<Vec<Verdict>> {
//!         Ok(entry.nodes().map(|node| Verdict::Refused(format!("no op {} yet", node.op()))).collect())
//!     }
//!
//!     fn compile(&self, _: &str, _: WorkOrderView<'_>, _: &mut CompileOutput<'_>) -> Result<()> {
//!         Err(Error::unsupported_op("no operation is implemented"))
//!     }
//!
//!     fn compatibility(&self, _device: &str, _head: &[u8]) -> Result<Compatibility> {
//!         Ok(Compatibility::NotMine("this shim does not write artefacts".to_owned()))
//!     }
//!
//!     fn load<'m>(
//!         &'m self,
//!         _device: &str,
//!         _artefact: Artefact<'m>,
//!         _options: &Options<'_>,
//!     ) -> Result<Box<dyn LoadedShard + 'm>> {
//!         Err(Error::invalid_argument("this shim does not write artefacts"))
//!     }
//! }
//!
//! shardwright_shim_abi::export_shim!(Mine);
//! # fn main() {}
//! ```
//!
//! Reading order: `vendor-shims/README.md`, `include/shim.h`, [`Shim`], [`LoadedShard`],
//! `vendor-shims/template/rust`.

#![warn(missing_docs)]

mod buffer;
mod compile;
mod error;
pub mod export;
mod machine;
mod module;
pub mod numbers;
mod options;
pub mod raw;
mod run;
mod shim;
pub mod sized;
mod view;

#[doc(hidden)]
pub use abi_stable;
pub use buffer::HostBuffer;
pub use compile::CompileOutput;
pub use error::{Error, ErrorClass, Result};
pub use export::{log, version_text};
pub use module::{ShimModule, ShimModuleRef};
pub use options::Options;
pub use run::{Artefact, Bound, Control, Element, Run, typed, typed_mut};
pub use shardwright_vocabulary::{
    Compatibility, Description, Device, DeviceKind, Estimate, FlagStage, Limit, MemoryKinds, Provenance,
};
pub use shim::{
    Binding, Buffer, Chip, Direction, Fact, Flag, FlagKind, FlagOutcome, FlagReport, Import, Inspection,
    LoadedEntry, LoadedShard, Shim, SyncDirection, Verdict,
};
pub use view::{
    EntryView, NodeView, PortView, QuantisationView, TensorIndex, TensorView, WeightView, WorkOrderView,
};

/// Exports a [`Shim`] from a shared library: the C symbol `shardwright_shim_entry`, and the
/// abi_stable root module with the layouts of the contract's structs.
///
/// A program can contain these symbols only once. To also link a shim into a program, put it into a
/// crate without exported symbols that provides [`export::entry`]. Use the macro in a second crate
/// of type `cdylib`, as `vendor-shims/cpu` and `vendor-shims/cpu/library` do. A shim's profile must
/// keep `panic = "unwind"`, because an aborting panic cannot be caught.
///
/// ```
/// use shardwright_shim_abi::*;
///
/// struct Nothing;
///
/// impl Shim for Nothing {
///     fn describe() -> Description {
///         Description { name: "nothing".into(), vendor: "example".into(), version: "1".into(), ..Description::default() }
///     }
///     fn open(options: &Options<'_>) -> Result<Self> {
///         options.only(&[])?;
///         Ok(Nothing)
///     }
///     fn devices(&self, _soc: Option<&str>) -> Result<Vec<Device>> {
///         Ok(Vec::new())
///     }
///     fn check(&self, _device: &str, entry: EntryView<'_>) -> Result<Vec<Verdict>> {
///         Ok(entry.nodes().map(|_| Verdict::Refused("this shim supports no operation".into())).collect())
///     }
///     fn compile(&self, _device: &str, _order: WorkOrderView<'_>, _output: &mut CompileOutput<'_>) -> Result<()> {
///         Err(Error::unsupported_op("this shim supports no operation"))
///     }
///     fn compatibility(&self, _device: &str, _head: &[u8]) -> Result<Compatibility> {
///         Ok(Compatibility::NotMine("this shim does not write artefacts".into()))
///     }
///     fn load<'m>(&'m self, _: &str, _: Artefact<'m>, _: &Options<'_>) -> Result<Box<dyn LoadedShard + 'm>> {
///         Err(Error::invalid_argument("this shim does not load artefacts"))
///     }
/// }
///
/// shardwright_shim_abi::export_shim!(Nothing);
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! export_shim {
    ($shim:ty) => {
        const _: () = {
            /// The entry function that the host calls.
            ///
            /// # Safety
            ///
            /// The pointers are valid under the contract.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn shardwright_shim_entry(
                host: *const $crate::raw::SwHost,
                answer: *mut $crate::raw::SwAnswer,
            ) {
                // SAFETY: the caller makes the same promise.
                unsafe { $crate::export::entry::<$shim>(host, answer) }
            }

            // The name that abi_stable looks for. A test compares it.
            #[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
            pub static SHIM_MODULE: $crate::abi_stable::library::LibHeader =
                $crate::export::lib_header::<$shim>();
        };
    };
}
