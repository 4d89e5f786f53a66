//! The parts of a neural processor's shim that each vendor's library determines. [`NpuShim`] is the
//! rest of the shim.

use std::sync::Arc;

use serde::Serialize;
use shardwright_shim_abi::{
    Buffer, Chip, Compatibility, CompileOutput, DeviceKind, EntryView, Estimate, Fact, Flag, Inspection,
    Limit, LoadedShard, MemoryKinds, Options, Result, Verdict, WorkOrderView,
};

use crate::artefact::{Format, Head};
use crate::shim::{NpuShim, On};
use crate::{Power, Priority};

/// Load-time settings that a session requests. `None` leaves the vendor's default.
#[derive(Clone, Copy, Debug)]
pub struct Wishes {
    pub power: Option<Power>,
    pub priority: Option<Priority>,
}

/// Devices of a chip, with a description of each.
pub type Offers = Vec<(DeviceKind, String)>;

/// A vendor, with its own state of an instance. [`Shim`](shardwright_shim_abi::Shim) documents the
/// functions that have a function of the same name there.
pub trait Vendor: Sized + Send + Sync + 'static {
    /// A chip, as its profile describes it.
    type Soc: Send + Sync + 'static;
    /// The opened library, with the data that an instance keeps about it.
    type Driver: Send + Sync + 'static;
    type Head: Head;

    const NAME: &'static str;
    const FORMAT: Format;
    /// Names of an instance's options.
    const OPTIONS: &'static [&'static str];
    /// Names of the flags that a load accepts.
    const LOAD_FLAGS: &'static [&'static str];
    /// Kinds of memory that runs accept.
    const MEMORY_KINDS: MemoryKinds;
    /// Whether this machine can have simulated devices.
    const HAS_SIMULATOR: bool = true;
    /// Advice for a user who names an unknown device.
    const DEVICE_HELP: &'static str;
    /// Why an `AHardwareBuffer` is not imported.
    const NO_HARDWARE_BUFFER: &'static str;

    fn facts() -> Vec<Fact>;

    /// Reads the vendor's options, of which only known ones are set.
    fn open(options: &Options<'_>) -> Result<Self>;

    fn read(chip: &Chip<'_>) -> Result<Self::Soc>;

    /// Finds and opens the library.
    fn driver(&self) -> Result<Arc<Self::Driver>>;

    /// Returns whether this machine is a phone with the chip.
    fn is_own(shim: &NpuShim<Self>, soc: &Self::Soc) -> Result<bool>;

    /// Returns the devices that the library offers for a chip.
    fn devices(&self, driver: &Self::Driver, soc: &Self::Soc, is_own: bool) -> Result<Offers>;

    /// Prepares every operation on a device except allocations. Returns whether the library has
    /// the device. Default: it has every device, and is opened only by operations that need it.
    fn enter(on: &mut On<'_, Self>) -> Result<bool> {
        let _ = on;
        Ok(true)
    }

    fn limits(on: &On<'_, Self>) -> Result<Vec<Limit>>;

    fn flags(on: &On<'_, Self>) -> Result<Vec<Flag>>;

    fn check(on: &On<'_, Self>, entry: EntryView<'_>) -> Result<Vec<Verdict>>;

    fn estimate(on: &On<'_, Self>, entry: EntryView<'_>) -> Result<Option<Estimate>>;

    fn compile(on: &On<'_, Self>, order: WorkOrderView<'_>, output: &mut CompileOutput<'_>) -> Result<()>;

    /// Judges from an artefact's head alone whether it can be loaded.
    fn judge(on: &On<'_, Self>, head: &Self::Head) -> Result<Compatibility>;

    /// Loads an artefact on a device that runs on this machine.
    fn load<'m>(on: &On<'_, Self>, bytes: &'m [u8], wishes: Wishes) -> Result<Box<dyn LoadedShard + 'm>>;

    /// Returns the advice for a user who loads an artefact for a device that only compiles here.
    fn run_help(device: &str) -> String;

    fn allocate(on: &On<'_, Self>, length: usize, alignment: usize) -> Result<Box<dyn Buffer>>;

    /// Imports a dma-buf.
    fn import(on: &On<'_, Self>, fd: i32, offset: u64, length: u64) -> Result<Box<dyn Buffer>>;

    /// Describes an artefact of this shim by an object that serialises to JSON.
    fn inspect(shim: &NpuShim<Self>, bytes: &[u8]) -> Result<impl Serialize>;

    /// Identifies a file that is not an artefact of this shim.
    fn inspect_foreign(shim: &NpuShim<Self>, bytes: &[u8]) -> Result<Option<Inspection>>;

    /// Default: succeeds, because the library opens a lost device again when it is used.
    fn recover(on: &On<'_, Self>) -> Result<()> {
        let _ = on;
        Ok(())
    }
}
