//! The shims crate: finds vendor shims, loads and checks them, and shows them what they compile and
//! run.
//!
//! **Job.** [`ShimRegistry`] reads manifests, opens libraries and says of every shim that is not
//! used why. A [`Shim`] opens as any number of [`ShimInstance`]s. An instance judges entry graphs,
//! compiles a [`WorkOrder`] to an [`Artefact`] and loads it as a [`LoadedShard`], which runs. All C
//! pointers stay in here: what leaves is safe and `Send`.
//!
//! **In a process of its own.** A vendor's compiler or driver aborts, hangs, exits, grows without
//! end, writes where it must not. [`ShimRegistry::open_isolated`] opens the same [`ShimInstance`]
//! in the program `shardwright-worker`: questions, compilations and runs go over a socket under
//! [`Caps`] of time and memory, an artefact streams back into a file of the host, buffers are
//! memory that both map, in the worker between pages that fault. When the worker ends, or is killed
//! for a cap, the call fails with [`ShimError::Worker`], which says how; its shards and buffers are
//! dead, and the next question starts another worker. With [`RegistryBuilder::isolated`] not even
//! the libraries are opened here.
//!
//! It holds mistakes, not malice: a worker has the user's rights. A run costs some ten microseconds
//! more; plain memory that is bound is copied, and so is everything for a device that takes only
//! its shim's own memory. What a shim maps shared or reads from mapped files does not count against
//! the memory cap. A worker that dies while nobody asks it anything is noticed by the next question
//! or when the instance is dropped; until then the system keeps its entry in the process table.
//! Linux only, from 5.3 on.
//!
//! **Not its job.** It decides nothing about cuts, formats or flags (a planner does), converts no
//! boundary and keeps no position (the runtime does), and knows no vendor.
//!
//! Reading order: `vendor-shims/README.md`, [`ShimRegistry`], [`ShimInstance`], [`LoadedShard`],
//! [`Buffer`], [`WorkOrder`], [`Isolation`].

mod artefact;
mod board;
mod buffer;
mod call;
mod chip;
mod compile;
mod container;
mod convert;
mod error;
mod instance;
mod interface;
mod isolated;
mod isolation;
mod layout;
mod library;
mod loaded;
mod local;
mod manifest;
mod os;
mod registry;
mod shim;
mod tables;
mod watch;
mod work_order;
mod worker;

pub use artefact::{ARTEFACT_SUFFIX, Artefact, ArtefactError, ArtefactHead, Place};
pub use buffer::{Buffer, BufferRead, BufferWrite};
pub use chip::{Chip, ChipError, FactSchema};
pub use container::ContainerError;
pub use error::{Failure, LoadError, ShimError};
pub use instance::{CallTimes, ShimInstance};
pub use interface::{Direction, EntryInterface, Port};
pub use isolated::{
    Caps, Launcher, Running, Touched, WorkerEnd, WorkerFailure, WorkerReport, entry_identity, find_worker,
};
pub use isolation::{Isolation, Shims};
pub use layout::LayoutCheck;
pub use loaded::{Binding, Bound, Canceller, LoadedEntry, LoadedShard, RunOptions, Update};
pub use manifest::{AbiRange, MANIFEST_SUFFIX, Manifest, Search};
pub use registry::{RegistryBuilder, ShimRegistry, SkippedShim};
pub use shardwright_shim_abi::raw::SwEntryFunction;
pub use shim::{Inspection, Shim};
pub use tables::{EntryTables, WorkOrderTables};
pub use watch::{Part, Watch};
pub use work_order::{
    OrderQuantisation, OrderWeight, WORK_ORDER_SUFFIX, WorkOrder, WorkOrderBuilder, WorkOrderError,
    WorkOrderHead,
};
pub use worker::worker_main;
