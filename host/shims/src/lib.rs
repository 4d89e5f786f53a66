//! The shims room: finds vendor shims, loads and checks them, and shows them what they compile and run.
//!
//! **Job.** [`ShimRegistry`] reads manifests, opens libraries and says of every shim that is not used why. A [`Shim`] opens as
//! any number of [`ShimInstance`]s. An instance judges entry graphs, compiles a [`WorkOrder`] to an [`Artefact`] and loads it as a
//! [`LoadedShard`], which runs. All C pointers stay in here: what leaves is safe and `Send`.
//!
//! **Not its job.** It decides nothing about cuts, formats or flags (a planner does), converts no boundary and keeps no position
//! (the runtime does), and knows no vendor.
//!
//! Reading order: `vendor-shims/README.md`, [`ShimRegistry`], [`ShimInstance`], [`LoadedShard`], [`Buffer`], [`WorkOrder`].

mod artefact;
mod board;
mod buffer;
mod call;
mod compile;
mod container;
mod convert;
mod error;
mod instance;
mod interface;
mod isolated;
mod layout;
mod library;
mod loaded;
mod local;
mod manifest;
mod os;
mod registry;
mod shim;
mod tables;
mod work_order;
mod worker;

pub use artefact::{
    ARTEFACT_SUFFIX, Artefact, ArtefactError, ArtefactHead, FlagReport, Place, PlacementReport,
};
pub use buffer::{Buffer, BufferRead, BufferWrite};
pub use container::ContainerError;
pub use error::{Failure, LoadError, ShimError};
pub use instance::{CallTimes, ShimInstance};
pub use interface::{Direction, EntryInterface, Port};
pub use isolated::{
    Caps, Isolation, Running, Touched, WorkerEnd, WorkerFailure, WorkerReport, find_worker,
};
pub use layout::LayoutCheck;
pub use loaded::{Binding, Bound, Canceller, LoadedEntry, LoadedShard, Update};
pub use manifest::{AbiRange, MANIFEST_SUFFIX, Manifest, Search};
pub use registry::{RegistryBuilder, ShimRegistry, SkippedShim};
pub use shardwright_shim_abi::raw::SwEntryFunction;
pub use shim::{
    Compatibility, Description, Device, DeviceKind, Estimate, MemoryKinds, Shim, Watch,
};
pub use tables::{EntryTables, WorkOrderTables};
pub use work_order::{
    OrderQuantisation, OrderWeight, WORK_ORDER_SUFFIX, WorkOrder, WorkOrderBuilder, WorkOrderError,
    WorkOrderHead,
};
pub use worker::worker_main;
