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
mod buffer;
mod call;
mod container;
mod convert;
mod error;
mod interface;
mod layout;
mod library;
mod loaded;
mod manifest;
mod registry;
mod shim;
mod tables;
mod work_order;

pub use artefact::{
    ARTEFACT_SUFFIX, Artefact, ArtefactError, ArtefactHead, FlagReport, Place, PlacementReport,
};
pub use buffer::{Buffer, BufferRead, BufferWrite};
pub use container::ContainerError;
pub use error::{Failure, LoadError, ShimError};
pub use interface::{Direction, EntryInterface, Port};
pub use layout::LayoutCheck;
pub use loaded::{Binding, Bound, Canceller, LoadedEntry, LoadedShard, Update};
pub use manifest::{AbiRange, MANIFEST_SUFFIX, Manifest, Search};
pub use registry::{RegistryBuilder, ShimRegistry, SkippedShim};
pub use shardwright_shim_abi::raw::SwEntryFunction;
pub use shim::{
    Compatibility, Description, Device, DeviceKind, Estimate, MemoryKinds, Shim, ShimInstance, Watch,
};
pub use tables::{EntryTables, WorkOrderTables};
pub use work_order::{
    OrderWeight, WORK_ORDER_SUFFIX, WorkOrder, WorkOrderBuilder, WorkOrderError, WorkOrderHead,
};
