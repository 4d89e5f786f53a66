//! The shims crate: finds vendor shims, loads and checks them, and passes them the graphs they
//! compile and run.
//!
//! **Job.** [`ShimRegistry`] reads manifests, opens libraries and reports a reason for every shim
//! that is not used. A [`Shim`] opens as any number of [`ShimInstance`]s. An instance checks entry
//! graphs, compiles a [`WorkOrder`] to an [`Artefact`] and loads it as a [`LoadedShard`], which
//! runs. C pointers do not leave this crate: its public types are safe and `Send`.
//!
//! ```no_run
//! use shardwright_shims::{ArtefactDestination, ShimRegistry, WorkOrder};
//!
//! let registry = ShimRegistry::builder().directory("shims").build();
//! for skipped in registry.skipped() {
//!     eprintln!("not used: {}", skipped.error);
//! }
//! let instance = registry.open("cpu", "compiler", &[])?;
//! let order = WorkOrder::open("decoder.0-12.swo".as_ref())?;
//! let artefact = instance.compile("cpu", &order, ArtefactDestination::Temporary, &mut ())?;
//! let shard = instance.load("cpu", &artefact, &[])?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Elsewhere.** An instance is called through [`Functions`], and a loaded shard runs through
//! [`Shard`], in this process or wherever an [`Opener`] opened it. The opener of the `worker` crate
//! uses separate processes.
//!
//! **Not its job.** It does not choose cuts, formats or flags (a planner does). It does not convert
//! boundary tensors or track positions (the runtime does). It does not know vendors.
//!
//! Reading order: `vendor-shims/README.md`, [`ShimRegistry`], [`ShimInstance`], [`LoadedShard`],
//! [`Buffer`], [`WorkOrder`], [`Functions`].

mod artefact;
mod buffer;
mod call;
mod chip;
mod chip_facts;
mod compile;
mod container;
mod convert;
mod descriptor;
mod error;
mod functions;
mod heads;
mod huge_pages;
mod instance;
mod interface;
mod layout;
mod library;
mod loaded_shard;
mod local;
mod manifest;
mod measured_flags;
mod registry;
mod shim;
mod tables;
mod times;
mod work_order;

pub use artefact::{ARTEFACT_SUFFIX, Artefact, ArtefactDestination, ArtefactHead};
pub use buffer::{Buffer, BufferRead, BufferWrite, Memory};
pub use chip::{Chip, FactSchema};
pub use compile::{Output, Placement, REPORT_LIMIT};
pub use descriptor::Descriptor;
pub use error::{LoadError, ProcessError, ShimError, ShimFailure};
pub use functions::{Functions, Opener, ShownEntry, entry_identity};
pub use heads::Heads;
pub use instance::ShimInstance;
pub use interface::{Direction, EntryInterface, Port};
pub use layout::LayoutCheck;
pub use library::{log_line, send_log_to};
pub use loaded_shard::{
    Acquired, Binding, Bound, Canceller, LoadReport, LoadedEntry, LoadedShard, Measured, Placed, RunOptions,
    Running, Shard, Update, WorkerReport,
};
pub use manifest::{AbiRange, MANIFEST_SUFFIX, Manifest, Search};
pub use measured_flags::MeasuredFlag;
pub use registry::{RegistryBuilder, ShimRegistry, SkippedShim, manifests_in};
pub use shardwright_files::Pages;
pub use shardwright_shim_abi::raw::SwEntryFunction;
pub use shim::{ArtefactInspection, Claim, Facts, Shim};
pub use tables::{EntryTables, WorkOrderTables};
pub use times::CallTimes;
pub use work_order::{
    OrderQuantisation, OrderWeight, WORK_ORDER_SUFFIX, WorkOrder, WorkOrderBuilder, WorkOrderHead,
};
