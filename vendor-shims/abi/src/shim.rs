//! The two traits a Rust shim implements, and their plain data types.

use shardwright_vocabulary::{Compatibility, Description, Device, Estimate, FlagStage, Limit, MemoryKinds};

use crate::error::{Error, Result};
use crate::raw;
use crate::run::Run;
use crate::view::{EntryView, WorkOrderView};

/// A vendor's shim: one value is one instance, opened with its own options.
///
/// The host makes one call at a time per instance and, at the same time, runs on any of its shards.
/// A panic in any function becomes an [`Internal`](crate::ErrorClass::Internal) error with the
/// panic's message.
pub trait Shim: Sized + Send + Sync + 'static {
    /// Identifies the shim. Must not touch a device: it is called to list shims.
    fn describe() -> Description;

    /// The facts of a chip's profile that this shim reads. Must not touch a device. Default: none.
    fn facts() -> Vec<Fact> {
        Vec::new()
    }

    /// Opens an instance. Refuse options you do not know ([`Options::only`]).
    fn open(options: &Options<'_>) -> Result<Self>;

    /// The known facts of a chip, passed before [`devices`](Shim::devices) is asked for its name;
    /// the last call for a name counts. The host has validated every fact against
    /// [`facts`](Shim::facts). An error caused by a fact names it in the detail `fact`. Default:
    /// nothing is kept.
    fn chip(&self, chip: Chip<'_>) -> Result<()> {
        let _ = chip;
        Ok(())
    }

    /// Devices of this machine, or with `soc` those this shim compiles for offline or simulates.
    fn devices(&self, soc: Option<&str>) -> Result<Vec<Device>>;

    /// Limits of the device. [`Limit::relief`] comes only from profiles and does not cross the
    /// contract. Default: nothing is known.
    fn limits(&self, device: &str) -> Result<Vec<Limit>> {
        let _ = device;
        Ok(Vec::new())
    }

    /// The compiler flags of the device. Default: none.
    fn flags(&self, device: &str) -> Result<Vec<Flag>> {
        let _ = device;
        Ok(Vec::new())
    }

    /// One verdict per node, in the entry's order. An error is about the entry as a whole. Weights
    /// may have no bytes.
    fn check(&self, device: &str, entry: EntryView<'_>) -> Result<Vec<Verdict>>;

    /// Time of one run with all rows. Default: not known.
    fn estimate(&self, device: &str, entry: EntryView<'_>) -> Result<Option<Estimate>> {
        let _ = (device, entry);
        Ok(None)
    }

    /// Streams the artefact to `output` and sets its head once. The same order produces the same
    /// bytes. Every flag of the order needs a verdict; one without counts as
    /// [`FlagOutcome::Unknown`].
    fn compile(&self, device: &str, order: WorkOrderView<'_>, output: &mut CompileOutput<'_>) -> Result<()>;

    /// Whether an artefact with this head can be loaded.
    fn compatibility(&self, device: &str, head: &[u8]) -> Result<Compatibility>;

    /// Makes an artefact ready to run. The mapping stays readable as long as the shard lives;
    /// nothing needs copying.
    fn load<'m>(
        &'m self,
        device: &str,
        artefact: Artefact<'m>,
        options: &Options<'_>,
    ) -> Result<Box<dyn LoadedShard + 'm>>;

    /// Allocates device-visible memory, zeroed. Default: memory of the process
    /// ([`HostBuffer`](crate::HostBuffer)).
    fn allocate(&self, device: &str, length: usize, alignment: usize) -> Result<Box<dyn Buffer>> {
        let _ = device;
        Ok(Box::new(crate::HostBuffer::new(length, alignment)?))
    }

    /// Makes foreign memory visible to the device. Default: refused.
    fn import(&self, device: &str, import: Import) -> Result<Box<dyn Buffer>> {
        let _ = (device, import);
        Err(Error::invalid_argument("this shim imports no foreign memory"))
    }

    /// Identifies a file: an artefact of this shim, or any file in a format of its vendor's tools;
    /// `None` if it is neither. An error means it is one of these, but damaged or of another
    /// version. The bytes are untrusted. Default: `None`.
    fn inspect(&self, bytes: &[u8]) -> Result<Option<Inspection>> {
        let _ = bytes;
        Ok(None)
    }

    /// Makes a lost device usable again; all its shards and buffers are gone. Default: it stays
    /// lost.
    fn recover(&self, device: &str) -> Result<()> {
        Err(Error::new(crate::ErrorClass::DeviceLost, format!("device `{device}` cannot be recovered")))
    }
}

/// A loaded artefact.
pub trait LoadedShard: Send {
    /// All entries that can be run, with every binding of each. Called once, after loading.
    fn entries(&self) -> Result<Vec<LoadedEntry>>;

    /// Outcomes of the [`FlagStage::Load`] flags that the shard was loaded with. Called once, after
    /// loading; a flag without a report counts as [`FlagOutcome::Unknown`]. Default: no reports.
    fn flag_verdicts(&self) -> Vec<FlagReport> {
        Vec::new()
    }

    /// Runs an entry: blocks until done. States are bound read-write and updated in place. Rows
    /// beyond [`Run::rows`] must not be written to a state nor be seen by a valid row. Call
    /// [`Control::proceed`](crate::Control::proceed) now and then.
    fn run(&mut self, run: Run<'_>) -> Result<()>;
}

/// Device-visible memory.
///
/// # Safety
///
/// [`Buffer::pointer`], when not null, is valid for reads and writes of [`Buffer::length`] bytes
/// until the buffer is dropped, and always the same.
pub unsafe trait Buffer: Send + Sync + std::any::Any {
    /// Address in the host's memory; null when the buffer cannot be mapped.
    fn pointer(&self) -> *mut u8;

    /// Bytes.
    fn length(&self) -> usize;

    /// Makes the host's and the device's views of the buffer agree. Default: they always do.
    fn sync(&self, offset: usize, length: usize, direction: SyncDirection) -> Result<()> {
        let _ = (offset, length, direction);
        Ok(())
    }

    /// For shims that look for their own buffer type among the bound buffers.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// Which side accesses a buffer next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncDirection {
    /// The device wrote; the host is about to read.
    BeforeHost,
    /// The host wrote; the device is about to read.
    AfterHost,
}

/// Legal values of a flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlagKind {
    /// `true` or `false`.
    Boolean,
    /// Within an inclusive range.
    Integer {
        /// Smallest.
        minimum: i64,
        /// Largest.
        maximum: i64,
    },
    /// A decimal number.
    Float,
    /// One of these words.
    Choice(Vec<String>),
    /// Any text.
    Text,
}

/// A flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Name.
    pub name: String,
    /// Effect, in one sentence.
    pub description: String,
    /// Legal values.
    pub kind: FlagKind,
    /// Value if unset. Of a load-time flag it may change while shards run, to what the shim
    /// measured to be best; the host passes that value to later loads on this device.
    pub default: Option<String>,
    /// When it takes effect.
    pub stage: FlagStage,
}

/// A fact of a chip's profile that a shim reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// As profiles spell it, `soc-id`.
    pub name: String,
    /// Meaning, in one sentence.
    pub description: String,
    /// Legal values.
    pub kind: FlagKind,
    /// Whether code generation needs it: nothing is compiled for a chip whose profile lacks it.
    pub required: bool,
}

/// A chip as its profile describes it.
#[derive(Clone, Debug)]
pub struct Chip<'a> {
    /// Profile name; devices of the chip report it as their `soc`.
    pub name: &'a str,
    /// Other names of the chip.
    pub aliases: Vec<&'a str>,
    /// The facts among those that the shim declared.
    pub facts: Options<'a>,
}

/// Whether a shim supports a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Supported.
    Taken,
    /// Not supported, for this reason.
    Refused(String),
}

/// Outcome of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FlagOutcome {
    /// In effect; the evidence says how that was verified.
    Applied = raw::SW_FLAG_APPLIED,
    /// The compiler recorded it; no effect was shown.
    Recorded = raw::SW_FLAG_RECORDED,
    /// Compiling with and without it gave the same code.
    Inert = raw::SW_FLAG_INERT,
    /// Rejected.
    Refused = raw::SW_FLAG_REFUSED,
    /// Nothing is known.
    Unknown = raw::SW_FLAG_UNKNOWN,
}

/// A flag that a shard was loaded with, and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlagReport {
    /// The flag's name.
    pub name: String,
    /// The outcome.
    pub outcome: FlagOutcome,
    /// How that is known, or why it is not.
    pub evidence: String,
}

/// An identified file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// Kebab-case, `qnn-context-binary`.
    pub format: String,
    /// A JSON object as text, at most [`SW_DOCUMENT_LIMIT`](raw::SW_DOCUMENT_LIMIT) bytes.
    pub document: String,
}

/// Something a loaded shard can run.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedEntry {
    /// As in the work order.
    pub name: String,
    /// Largest `rows` of a run.
    pub rows: u64,
    /// As in the work order.
    pub context: u64,
    /// The bindings of a run, in this order.
    pub bindings: Vec<Binding>,
}

/// How a binding is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Direction {
    /// Read.
    Input = raw::SW_BINDING_INPUT,
    /// Written as a whole.
    Output = raw::SW_BINDING_OUTPUT,
    /// Read and written in place, kept between runs.
    State = raw::SW_BINDING_STATE,
    /// A state that a run only reads: another shard or the runtime writes it.
    StateRead = raw::SW_BINDING_STATE_READ,
}

/// One tensor that a run binds; a state read and written is one binding.
#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    /// Of the port in the work order.
    pub name: String,
    /// How it is used.
    pub direction: Direction,
    /// `SW_ROLE_…`
    pub role: u32,
    /// `SW_DTYPE_…` as stored in memory.
    pub dtype: u32,
    /// `SW_UPDATE_…`
    pub update: u32,
    /// Extents.
    pub shape: Vec<u64>,
    /// In elements; `None` for dense row-major.
    pub strides: Option<Vec<u64>>,
    /// Length of the bound memory.
    pub bytes: u64,
    /// Of the first byte; a power of two.
    pub alignment: u64,
    /// Kinds of memory that may be bound.
    pub memory_kinds: MemoryKinds,
    /// `real = (stored − zero_point) · scale`; 1 for floats.
    pub scale: f64,
    /// 0 for floats.
    pub zero_point: i64,
}

/// Foreign memory to import.
#[derive(Clone, Copy, Debug)]
pub enum Import {
    /// A dma-buf; the host owns the descriptor and keeps it open until the buffer is freed.
    DmaBuf {
        /// The descriptor.
        fd: i32,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// An `AHardwareBuffer *`, alive until the buffer is freed.
    HardwareBuffer {
        /// The handle.
        handle: *mut std::ffi::c_void,
        /// Bytes.
        length: u64,
    },
}

pub use crate::compile::CompileOutput;
pub use crate::options::Options;
pub use crate::run::Artefact;
