//! The two traits that a Rust shim implements, and their plain data types.

use shardwright_vocabulary::{Compatibility, Description, Device, Estimate, FlagStage, Limit, MemoryKinds};

use crate::error::{Error, Result};
use crate::raw;
use crate::run::Run;
use crate::view::{EntryView, WorkOrderView};

/// A vendor's shim. One value is one instance, opened with its own options.
///
/// The host makes one call at a time per instance. In parallel, it may run any of the instance's
/// shards. A panic in any function becomes an [`Internal`](crate::ErrorClass::Internal) error with
/// the panic's message.
pub trait Shim: Sized + Send + Sync + 'static {
    /// Identifies the shim. Must not access a device, because it is called to list shims.
    fn describe() -> Description;

    /// Returns the facts of a chip's profile that this shim reads. Must not access a device.
    /// Default: none.
    fn facts() -> Vec<Fact> {
        Vec::new()
    }

    /// Opens an instance. Reject unknown options ([`Options::only`]).
    fn open(options: &Options<'_>) -> Result<Self>;

    /// Receives the known facts of a chip, before the host queries [`devices`](Shim::devices) for
    /// that name. The last call for a name takes effect. The host has validated every fact against
    /// [`facts`](Shim::facts). If a fact causes an error, name it in the detail `fact`. Default:
    /// ignores the chip.
    fn chip(&self, chip: Chip<'_>) -> Result<()> {
        let _ = chip;
        Ok(())
    }

    /// Returns the devices of this machine. With `soc`, returns the devices of that chip that this
    /// shim compiles for offline or simulates.
    fn devices(&self, soc: Option<&str>) -> Result<Vec<Device>>;

    /// Returns the limits of the device. [`Limit::relief`] comes only from profiles and does not
    /// cross the contract. Default: no known limits.
    fn limits(&self, device: &str) -> Result<Vec<Limit>> {
        let _ = device;
        Ok(Vec::new())
    }

    /// Returns the flags of the device. Default: none.
    fn flags(&self, device: &str) -> Result<Vec<Flag>> {
        let _ = device;
        Ok(Vec::new())
    }

    /// Returns one verdict per node, in the entry's order. An error concerns the entry as a whole.
    /// Weights may have no bytes.
    fn check(&self, device: &str, entry: EntryView<'_>) -> Result<Vec<Verdict>>;

    /// Estimates the time of one run with all rows. Default: unknown.
    fn estimate(&self, device: &str, entry: EntryView<'_>) -> Result<Option<Estimate>> {
        let _ = (device, entry);
        Ok(None)
    }

    /// Compiles an order: streams the artefact to `output` and sets its head once. The same order
    /// must produce the same bytes. Every flag of the order needs a verdict. A flag without one
    /// counts as [`FlagOutcome::Unknown`].
    fn compile(&self, device: &str, order: WorkOrderView<'_>, output: &mut CompileOutput<'_>) -> Result<()>;

    /// Reports whether an artefact with this head can be loaded.
    fn compatibility(&self, device: &str, head: &[u8]) -> Result<Compatibility>;

    /// Makes an artefact ready to run. The mapping stays readable as long as the shard exists, so
    /// its content does not need to be copied.
    fn load<'m>(
        &'m self,
        device: &str,
        artefact: Artefact<'m>,
        options: &Options<'_>,
    ) -> Result<Box<dyn LoadedShard + 'm>>;

    /// Allocates zeroed device-visible memory. Default: memory of the process
    /// ([`HostBuffer`](crate::HostBuffer)).
    fn allocate(&self, device: &str, length: usize, alignment: usize) -> Result<Box<dyn Buffer>> {
        let _ = device;
        Ok(Box::new(crate::HostBuffer::new(length, alignment)?))
    }

    /// Makes foreign memory visible to the device. Default: an error.
    fn import(&self, device: &str, import: Import) -> Result<Box<dyn Buffer>> {
        let _ = (device, import);
        Err(Error::invalid_argument("this shim does not import foreign memory"))
    }

    /// Identifies a file: an artefact of this shim, or any file in a format of its vendor's tools.
    /// Returns `None` if it is neither. An error means that it is one of these, but damaged or of
    /// another version. The bytes are untrusted. Default: `None`.
    fn inspect(&self, bytes: &[u8]) -> Result<Option<Inspection>> {
        let _ = bytes;
        Ok(None)
    }

    /// Makes a lost device usable again. All its shards and buffers are gone. Default: an error,
    /// the device stays lost.
    fn recover(&self, device: &str) -> Result<()> {
        Err(Error::new(crate::ErrorClass::DeviceLost, format!("device `{device}` cannot be recovered")))
    }
}

/// A loaded artefact that runs on a device.
pub trait LoadedShard: Send {
    /// Returns all entries that can be run, with all their bindings. Called once, after loading.
    fn entries(&self) -> Result<Vec<LoadedEntry>>;

    /// Returns the outcomes of the [`FlagStage::Load`] flags that the shard was loaded with. Called
    /// once, after loading. A flag without a report counts as [`FlagOutcome::Unknown`]. Default: no
    /// reports.
    fn flag_verdicts(&self) -> Vec<FlagReport> {
        Vec::new()
    }

    /// Runs an entry and blocks until it is done. States are bound read-write and updated in place.
    /// Rows beyond [`Run::rows`] must not be written to a state and must not affect a valid row.
    /// Call [`Control::proceed`](crate::Control::proceed) regularly.
    fn run(&mut self, run: Run<'_>) -> Result<()>;
}

/// Device-visible memory.
///
/// # Safety
///
/// If [`Buffer::pointer`] is not null, it is valid for reads and writes of [`Buffer::length`] bytes
/// until the buffer is dropped, and it never changes.
pub unsafe trait Buffer: Send + Sync + std::any::Any {
    /// Returns the address in the host's memory, or null if the buffer cannot be mapped.
    fn pointer(&self) -> *mut u8;

    /// Returns the length in bytes.
    fn length(&self) -> usize;

    /// Synchronises the host's and the device's view of a range of the buffer. Default: does
    /// nothing, because both always agree.
    fn sync(&self, offset: usize, length: usize, direction: SyncDirection) -> Result<()> {
        let _ = (offset, length, direction);
        Ok(())
    }

    /// Returns the buffer as [`Any`](std::any::Any), so that a shim can find its own buffer type
    /// among the bound buffers.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// The side that accesses a buffer next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncDirection {
    /// The device has written, and the host is about to read.
    BeforeHost,
    /// The host has written, and the device is about to read.
    AfterHost,
}

/// Type and legal values of a flag or fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlagKind {
    /// `true` or `false`.
    Boolean,
    /// An integer within an inclusive range.
    Integer {
        /// Smallest legal value.
        minimum: i64,
        /// Largest legal value.
        maximum: i64,
    },
    /// A decimal number.
    Float,
    /// One of these words.
    Choice(Vec<String>),
    /// Any text.
    Text,
}

/// A compile-time or load-time setting of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Name by which users set the flag.
    pub name: String,
    /// The flag's effect, in one sentence.
    pub description: String,
    /// Type and legal values.
    pub kind: FlagKind,
    /// Value if unset. The default of a load-time flag may change while shards run, to the best
    /// value that the shim measured. The host passes that value to later loads on this device.
    pub default: Option<String>,
    /// The stage at which the flag applies.
    pub stage: FlagStage,
}

/// A fact of a chip's profile that a shim reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Name in profiles, for example `soc-id`.
    pub name: String,
    /// Meaning, in one sentence.
    pub description: String,
    /// Type and legal values.
    pub kind: FlagKind,
    /// Whether code generation needs the fact. If so, the host does not compile for a chip whose
    /// profile lacks it.
    pub required: bool,
}

/// A chip as its profile describes it.
#[derive(Clone, Debug)]
pub struct Chip<'a> {
    /// Name of the profile. Devices of the chip report it as their `soc`.
    pub name: &'a str,
    /// Other names of the chip.
    pub aliases: Vec<&'a str>,
    /// The chip's facts that the shim declared.
    pub facts: Options<'a>,
}

/// Whether a shim supports a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The shim supports the node.
    Taken,
    /// The shim does not support the node, for this reason.
    Refused(String),
}

/// Outcome of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FlagOutcome {
    /// In effect. The evidence explains how that was verified.
    Applied = raw::SW_FLAG_APPLIED,
    /// The compiler recorded the flag, but no effect was shown.
    Recorded = raw::SW_FLAG_RECORDED,
    /// Compiling with and without the flag gave the same code.
    Inert = raw::SW_FLAG_INERT,
    /// The flag or its value was rejected.
    Refused = raw::SW_FLAG_REFUSED,
    /// The shim did not report an outcome.
    Unknown = raw::SW_FLAG_UNKNOWN,
}

/// A flag that a shard was loaded with, and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlagReport {
    /// Name of the flag.
    pub name: String,
    /// Outcome of the flag.
    pub outcome: FlagOutcome,
    /// How the outcome is known, or why it is unknown.
    pub evidence: String,
}

/// Format and content of an identified file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// Name of the format in kebab-case, for example `qnn-context-binary`.
    pub format: String,
    /// A JSON object as text, of at most [`SW_DOCUMENT_LIMIT`](raw::SW_DOCUMENT_LIMIT) bytes.
    pub document: String,
}

/// An entry that a loaded shard can run.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedEntry {
    /// Name as in the work order.
    pub name: String,
    /// Largest number of valid rows of a run.
    pub rows: u64,
    /// Context as in the work order, in positions.
    pub context: u64,
    /// The bindings of a run, in the order in which they are bound.
    pub bindings: Vec<Binding>,
}

/// How a binding is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Direction {
    /// Read by the run.
    Input = raw::SW_BINDING_INPUT,
    /// Written as a whole by the run.
    Output = raw::SW_BINDING_OUTPUT,
    /// Read and written in place, and kept between runs.
    State = raw::SW_BINDING_STATE,
    /// A state that a run only reads. Another shard or the runtime writes it.
    StateRead = raw::SW_BINDING_STATE_READ,
}

/// One tensor that a run binds. A state that is read and written is one binding.
#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    /// Name of the port in the work order.
    pub name: String,
    /// How a run uses the binding.
    pub direction: Direction,
    /// Role of the port, `SW_ROLE_…`.
    pub role: u32,
    /// Element type as stored in memory, `SW_DTYPE_…`.
    pub dtype: u32,
    /// How the state is updated, `SW_UPDATE_…`.
    pub update: u32,
    /// Extents, outermost first.
    pub shape: Vec<u64>,
    /// Strides in elements. `None` means dense row-major.
    pub strides: Option<Vec<u64>>,
    /// Length of the bound memory in bytes.
    pub bytes: u64,
    /// Alignment of the first byte, a power of two.
    pub alignment: u64,
    /// Kinds of memory that may be bound.
    pub memory_kinds: MemoryKinds,
    /// Scale: `real = (stored − zero_point) · scale`. 1 for floats.
    pub scale: f64,
    /// Zero point of stored integers. 0 for floats.
    pub zero_point: i64,
}

/// Foreign memory to import.
#[derive(Clone, Copy, Debug)]
pub enum Import {
    /// A dma-buf. The host owns the descriptor and keeps it open until the buffer is freed.
    DmaBuf {
        /// Descriptor of the dma-buf.
        fd: i32,
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// An `AHardwareBuffer *` that stays valid until the buffer is freed.
    HardwareBuffer {
        /// The `AHardwareBuffer *` itself.
        handle: *mut std::ffi::c_void,
        /// Length in bytes.
        length: u64,
    },
}

pub use crate::compile::CompileOutput;
pub use crate::options::Options;
pub use crate::run::Artefact;
