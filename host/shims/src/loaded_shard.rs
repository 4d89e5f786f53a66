//! A loaded shard: its bindings, running it, cancelling it.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shardwright_shim_abi::raw::*;
use shardwright_vocabulary::{DType, Flag, FlagRecord, FlagVerdict, MemoryKinds, Place};

use crate::artefact::Artefact;
use crate::buffer::Buffer;
use crate::convert;
use crate::error::ShimError;
use crate::interface::{Direction, EntryInterface, Port};
use crate::measured_flags::MeasuredFlag;
use crate::shim::Shim;
use crate::times::CallLog;

/// A tensor that a run binds: the port of the graph, and the shim's requirements on its memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    /// Name, direction, role with its parameters, shape, encoding.
    pub port: Port,
    /// Element type in memory.
    pub dtype: DType,
    /// Number of bytes to bind. More than the dense size if the shim pads.
    pub bytes: u64,
    /// Required alignment of the first byte, a power of two.
    pub alignment: u64,
    /// Strides in elements. `None` for dense row-major.
    pub strides: Option<Vec<u64>>,
    pub memory_kinds: MemoryKinds,
    /// The side that writes new rows of a state.
    pub update: Update,
}

/// The side that writes new rows of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// The binding is not a written state.
    None,
    /// The shim writes them within the run.
    InGraph,
    /// The runtime copies the rows that the run returned to their slots.
    ByRuntime,
}

/// An entry point that a shard can run.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedEntry {
    /// The interface in the artefact: component, layers, entry point, ports, states.
    pub interface: EntryInterface,
    /// Bindings in the order of a run.
    pub bindings: Vec<Binding>,
}

impl LoadedEntry {
    /// Returns the index of the binding with that name.
    pub fn binding(&self, name: &str) -> Option<usize> {
        self.bindings.iter().position(|binding| binding.port.name == name)
    }
}

/// Memory for one binding of one run.
#[derive(Debug)]
pub enum Bound<'a> {
    /// A buffer from its start.
    Buffer(&'a Buffer),
    /// A buffer from an offset, such as a shard's slice of the per-layer inputs.
    BufferAt(&'a Buffer, u64),
    /// Plain read-only memory.
    Read(&'a [u8]),
    /// Plain memory for an output or state.
    Write(&'a mut [u8]),
}

/// Options of one run. By default it has no deadline, and all logits are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunOptions {
    /// Time limit. `None` means no limit, except the worker's own cap in a worker.
    pub deadline: Option<Duration>,
    /// Number of top logits per row whose value and position must be exact. Of equal logits the
    /// lower index comes first. Every other logit may be lower than its value, down to the smallest
    /// finite number, but never higher. `None`: all are exact. Shims may ignore it.
    pub largest_logits: Option<NonZeroUsize>,
}

/// The place where an instance runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Running {
    /// In this process, which a crash of the shim ends.
    InProcess,
    Worker(WorkerReport),
}

/// Report on the worker of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerReport {
    /// Its process id. `None` if it has ended and was not restarted.
    pub pid: Option<u32>,
    /// Peak resident memory, if known.
    pub peak_memory_bytes: Option<u64>,
    /// Number of workers started for the instance so far.
    pub started: u64,
}

/// Runs a shard, in this process or elsewhere. It keeps the required parts of its instance and its
/// artefact alive.
pub trait Shard: Send {
    /// Runs an entry and blocks until it is done. The caller has checked that `bound` has one
    /// element per binding. The implementation checks each element with [`Bound::placed`], and
    /// keeps all of them [`Acquired`] meanwhile.
    fn run(
        &mut self,
        entry: usize,
        rows: u64,
        bindings: &[Binding],
        bound: &mut [Bound<'_>],
        options: RunOptions,
    ) -> Result<(), ShimError>;

    /// Allocates zeroed memory that its device can see.
    fn allocate(&self, length: u64, alignment: u64) -> Result<Buffer, ShimError>;

    /// Returns a handle by which another thread can cancel a run. It does not keep the shard alive.
    fn canceller(&self) -> Canceller;

    /// Returns the place where it runs.
    fn running(&self) -> Running {
        Running::InProcess
    }
}

/// A shard that is ready to run, with its entries and bindings.
pub struct LoadedShard {
    shard: Box<dyn Shard>,
    shim: Option<Shim>,
    place: Place,
    artefact: Option<Artefact>,
    entries: Vec<LoadedEntry>,
    flags: Vec<FlagRecord>,
    times: Arc<CallLog>,
    measured: Measured,
}

/// Queries the measurements of a shard's shim, also while the shard runs.
#[derive(Clone)]
pub struct Measured(Option<Arc<dyn Measures>>);

pub(crate) trait Measures: Send + Sync {
    fn flags(&self) -> Result<Vec<MeasuredFlag>, ShimError>;
    fn keep(&self) -> Result<(), ShimError>;
}

impl Measured {
    pub(crate) fn new(measures: impl Measures + 'static) -> Measured {
        Measured(Some(Arc::new(measures)))
    }

    /// Returns the load-time flags whose values the shim found by measuring, now or in an earlier
    /// process, and that the load did not set.
    pub fn flags(&self) -> Result<Vec<MeasuredFlag>, ShimError> {
        self.0.as_ref().map_or_else(|| Ok(Vec::new()), |measures| measures.flags())
    }

    /// Keeps new values for later processes. See
    /// [`measured_kept_in`](crate::RegistryBuilder::measured_kept_in).
    pub fn keep(&self) -> Result<(), ShimError> {
        self.0.as_ref().map_or(Ok(()), |measures| measures.keep())
    }
}

impl std::fmt::Debug for LoadedShard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let entries: Vec<&str> = self.entries.iter().map(|entry| entry.interface.name.as_str()).collect();
        f.debug_struct("LoadedShard")
            .field("place", &self.place)
            .field("entries", &entries)
            .finish_non_exhaustive()
    }
}

/// Cancels the run in progress of one shard, from any thread.
#[derive(Clone)]
pub struct Canceller(Arc<dyn Fn() -> bool + Send + Sync>);

impl Canceller {
    /// Creates it from a function that cancels a run.
    pub fn new(cancel: impl Fn() -> bool + Send + Sync + 'static) -> Canceller {
        Canceller(Arc::new(cancel))
    }

    /// Ends the run in progress, if any, soon and with a cancelled error. Returns false if the
    /// shard is gone or its shim cannot cancel. A worker that does not obey is killed.
    pub fn cancel(&self) -> bool {
        (self.0)()
    }
}

/// Memory that was checked to fit a binding.
pub struct Placed<'a> {
    /// Its first byte. Null if it is empty or the host has not mapped it.
    pub pointer: *mut u8,
    /// Number of bytes from there on.
    pub length: u64,
    /// The buffer and the offset in it. `None` for plain memory.
    pub buffer: Option<(&'a Buffer, u64)>,
    /// Whether it is the shim's own memory.
    pub own: bool,
}

impl<'a> Bound<'a> {
    /// Checks that the memory fits a binding, and locates it. `is_own` recognises buffers of the
    /// shim's own memory.
    pub fn placed(
        &mut self,
        binding: &Binding,
        is_own: impl FnOnce(&Buffer) -> Result<bool, ShimError>,
    ) -> Result<Placed<'a>, ShimError> {
        let refuse =
            |reason: String| ShimError::Argument(format!("binding `{}`: {reason}", binding.port.name));
        let kinds = binding.memory_kinds;
        let buffer = match self {
            Bound::BufferAt(buffer, offset) => Some((*buffer, *offset)),
            Bound::Buffer(buffer) => Some((*buffer, 0)),
            Bound::Read(_) | Bound::Write(_) => None,
        };
        let mut own = false;
        let (pointer, length) = match (self, buffer) {
            (Bound::Read(_), _) if binding.port.direction.is_written() => {
                return Err(refuse("a run writes it, but it is bound for reading".to_owned()));
            }
            // The contract does not write through an input.
            (Bound::Read(bytes), _) => (bytes.as_ptr().cast_mut(), bytes.len() as u64),
            (Bound::Write(bytes), _) => (bytes.as_mut_ptr(), bytes.len() as u64),
            (_, None) => return Err(refuse("expected a buffer".to_owned())),
            (_, Some((buffer, offset))) => {
                let bytes = buffer.length();
                let length = bytes.checked_sub(offset).ok_or_else(|| {
                    refuse(format!("offset {offset} is beyond the buffer of {bytes} bytes"))
                })?;
                own = is_own(buffer)? && kinds.shim();
                let host_can = kinds.host() && buffer.is_mapped();
                if !own && !host_can {
                    let reason = "the device cannot access this buffer; copy it into one of the device";
                    return Err(refuse(reason.to_owned()));
                }
                let first = buffer.pointer().wrapping_add(offset as usize);
                (if length > 0 && buffer.is_mapped() { first } else { std::ptr::null_mut() }, length)
            }
        };
        if length < binding.bytes {
            return Err(refuse(format!("expected {} bytes, got {length}", binding.bytes)));
        }
        if !own {
            if !kinds.host() {
                let reason = "the device does not accept plain memory; bind a buffer that it allocated";
                return Err(refuse(reason.to_owned()));
            }
            if binding.bytes > 0 && !(pointer as u64).is_multiple_of(binding.alignment) {
                return Err(refuse(format!("expected an alignment of {}", binding.alignment)));
            }
        }
        Ok(Placed { pointer, length, buffer, own })
    }
}

/// Buffers acquired for a run. Dropping it releases them, also if only some could be acquired.
pub struct Acquired<'a, 'b> {
    bound: &'a [Bound<'b>],
    bindings: &'a [Binding],
    count: usize,
}

impl<'a, 'b> Acquired<'a, 'b> {
    /// Acquires every buffer, exclusively if the run writes it.
    pub fn all(bound: &'a [Bound<'b>], bindings: &'a [Binding]) -> Result<Self, ShimError> {
        let mut acquired = Acquired { bound, bindings, count: 0 };
        for (memory, binding) in bound.iter().zip(bindings) {
            if let Bound::Buffer(buffer) | Bound::BufferAt(buffer, _) = memory {
                buffer.acquire(binding.port.direction.is_written())?;
            }
            acquired.count += 1;
        }
        Ok(acquired)
    }
}

impl Drop for Acquired<'_, '_> {
    fn drop(&mut self) {
        for (bound, binding) in self.bound.iter().zip(self.bindings).take(self.count) {
            if let Bound::Buffer(buffer) | Bound::BufferAt(buffer, _) = bound {
                buffer.release(binding.port.direction.is_written());
            }
        }
    }
}

impl LoadedShard {
    /// Creates it from a shard and the entries that it runs.
    pub fn new(shard: Box<dyn Shard>, place: Place, entries: Vec<LoadedEntry>) -> LoadedShard {
        let (shim, artefact, flags, times) = (None, None, Vec::new(), Arc::default());
        LoadedShard { shard, shim, place, artefact, entries, flags, times, measured: Measured(None) }
    }

    /// Creates it from an artefact, the report of its load, and the requested flags.
    pub(crate) fn loaded(
        shard: Box<dyn Shard>,
        report: LoadReport,
        place: Place,
        artefact: &Artefact,
        asked: &[Flag],
        times: Arc<CallLog>,
        measured: Measured,
    ) -> Result<LoadedShard, ShimError> {
        let entries = join_entries(&place.instance, report.entries, &artefact.head().entries)?;
        let flags = asked.iter().map(|flag| {
            let found = report.flags.iter().find(|(name, ..)| *name == flag.name);
            let (verdict, reason) = match found {
                Some((_, verdict, reason)) => (verdict.clone(), reason.clone()),
                None => (FlagVerdict::Unknown, "the shim did not report it".to_owned()),
            };
            FlagRecord { flag: flag.clone(), verdict, reason }
        });
        let (artefact, flags) = (Some(artefact.clone()), flags.collect());
        Ok(LoadedShard { shard, shim: None, place, artefact, entries, flags, times, measured })
    }

    /// Sets the shim that runs it.
    pub(crate) fn run_by(self, shim: Shim) -> LoadedShard {
        LoadedShard { shim: Some(shim), ..self }
    }

    /// Returns the shim that runs it, or `None` if the program itself runs the shard.
    pub fn shim(&self) -> Option<&Shim> {
        self.shim.as_ref()
    }

    /// Returns the instance, shim and device on which it was loaded.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Returns the process in which it runs.
    pub fn running(&self) -> Running {
        self.shard.running()
    }

    /// Returns the artefact from which it was loaded, if any.
    pub fn artefact(&self) -> Option<&Artefact> {
        self.artefact.as_ref()
    }

    /// Allocates zeroed memory that its device can see.
    pub fn allocate(&self, length: u64, alignment: u64) -> Result<Buffer, ShimError> {
        self.shard.allocate(length, alignment)
    }

    /// Returns the flags with which it was loaded, and the outcome of each.
    pub fn flags(&self) -> &[FlagRecord] {
        &self.flags
    }

    /// Returns a handle by which another thread can query measurements, also while the shard runs.
    pub fn measured(&self) -> Measured {
        self.measured.clone()
    }

    /// Returns the entries that can be run.
    pub fn entries(&self) -> &[LoadedEntry] {
        &self.entries
    }

    /// Returns the index of the entry with that name.
    pub fn entry(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.interface.name == name)
    }

    /// Returns a handle by which another thread can cancel a run. It does not keep the shard alive.
    pub fn canceller(&self) -> Canceller {
        self.shard.canceller()
    }

    /// Runs an entry and blocks until it is done.
    ///
    /// `rows` is the number of valid rows, from 1 to the entry's rows. `bound` has one element per
    /// binding, in their order. Outputs and states require a buffer or [`Bound::Write`]. A buffer
    /// of this instance and device is passed directly, any other mapped memory as a pointer (to a
    /// worker: as a copy).
    pub fn run(
        &mut self,
        entry: usize,
        rows: u64,
        bound: &mut [Bound<'_>],
        options: RunOptions,
    ) -> Result<(), ShimError> {
        let count = self.entries.len();
        let called = self
            .entries
            .get(entry)
            .ok_or_else(|| ShimError::Argument(format!("no entry {entry}: the shard has {count}")))?;
        let largest = called.interface.point.rows;
        if rows == 0 || rows > largest {
            let name = &called.interface.name;
            return Err(ShimError::Argument(format!(
                "expected 1 to {largest} rows for `{name}`, got {rows}"
            )));
        }
        if bound.len() != called.bindings.len() {
            return Err(ShimError::Argument(format!(
                "expected {} bindings for `{}`, got {}",
                called.bindings.len(),
                called.interface.name,
                bound.len()
            )));
        }
        let shard = &mut self.shard;
        self.times.timed("run", || shard.run(entry, rows, &called.bindings, bound, options))
    }
}

/// The shim's report on a shard that it has just loaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadReport {
    pub(crate) entries: Vec<ReportedEntry>,
    /// Verdicts on flags: name, verdict, evidence or reason.
    pub(crate) flags: Vec<(String, FlagVerdict, String)>,
    /// Whether runs can be cancelled.
    pub cancels: bool,
}

/// An entry as reported by the shim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReportedEntry {
    pub(crate) index: u64,
    pub(crate) name: String,
    pub(crate) rows: u64,
    /// Number of bindings that the shim declares.
    pub(crate) count: u64,
    pub(crate) bindings: Vec<ReportedBinding>,
}

/// A binding as reported by the shim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReportedBinding {
    pub(crate) index: u64,
    pub(crate) name: String,
    pub(crate) direction: u32,
    pub(crate) role: u32,
    pub(crate) dtype: u32,
    pub(crate) update: u32,
    pub(crate) shape: Vec<u64>,
    pub(crate) strides: Option<Vec<u64>>,
    pub(crate) bytes: u64,
    pub(crate) alignment: u64,
    pub(crate) memory_kinds: u32,
    /// Bits of an f64. Decimal text would not preserve every value.
    pub(crate) scale_bits: u64,
    pub(crate) zero_point: i64,
}

/// Joins the report on a newly loaded shard with the interfaces of its artefact.
fn join_entries(
    shim: &str,
    reported: Vec<ReportedEntry>,
    interfaces: &[EntryInterface],
) -> Result<Vec<LoadedEntry>, ShimError> {
    let wrong = |reason: String| ShimError::contract(shim, "entries", reason);
    let mut entries = Vec::with_capacity(reported.len());
    for (place, ReportedEntry { index, name, rows, count, bindings }) in reported.into_iter().enumerate() {
        if index != place as u64 {
            return Err(wrong(format!("entry {index} is reported at position {place}")));
        }
        let interface = interfaces
            .iter()
            .find(|interface| interface.name == name)
            .ok_or_else(|| wrong(format!("reported entry `{name}`, which the artefact does not list")))?;
        if interface.point.rows != rows {
            return Err(wrong(format!(
                "reported {rows} rows for `{name}`, but the artefact has {}",
                interface.point.rows
            )));
        }
        let bindings = join_bindings(shim, bindings, interface)?;
        if bindings.len() as u64 != count {
            let found = bindings.len();
            return Err(wrong(format!("declared {count} bindings for `{name}`, but reported {found}")));
        }
        entries.push(LoadedEntry { interface: interface.clone(), bindings });
    }
    if let Some(lost) = interfaces
        .iter()
        .find(|interface| !entries.iter().any(|entry: &LoadedEntry| entry.interface.name == interface.name))
    {
        return Err(wrong(format!("did not report entry `{}`, which the artefact lists", lost.name)));
    }
    Ok(entries)
}

fn join_bindings(
    shim: &str,
    reported: Vec<ReportedBinding>,
    interface: &EntryInterface,
) -> Result<Vec<Binding>, ShimError> {
    let wrong =
        |reason: String| ShimError::contract(shim, "bindings", format!("`{}`: {reason}", interface.name));
    let mut bindings: Vec<Binding> = Vec::with_capacity(reported.len());
    for (place, reported) in reported.into_iter().enumerate() {
        if reported.index != place as u64 {
            return Err(wrong(format!("binding {} is reported at position {place}", reported.index)));
        }
        let port = interface
            .port(&reported.name)
            .ok_or_else(|| wrong(format!("binding `{}` is not in the graph", reported.name)))?;
        if bindings.iter().any(|binding| binding.port.name == reported.name) {
            return Err(wrong(format!("binding `{}` is reported twice", reported.name)));
        }
        bindings.push(join(port, reported).map_err(wrong)?);
    }
    // An input on which no result depends need not be bound. A result must be.
    let unbound = interface.ports.iter().find(|port| {
        port.direction.is_written() && !bindings.iter().any(|binding| binding.port.name == port.name)
    });
    match unbound {
        None => Ok(bindings),
        Some(port) => Err(wrong(format!("no binding for the result `{}`", port.name))),
    }
}

fn join(port: &Port, reported: ReportedBinding) -> Result<Binding, String> {
    let name = &reported.name;
    let direction = match port.direction {
        Direction::Input => SW_BINDING_INPUT,
        Direction::Output => SW_BINDING_OUTPUT,
        Direction::State => SW_BINDING_STATE,
        Direction::StateRead => SW_BINDING_STATE_READ,
    };
    if reported.direction != direction {
        return Err(format!("binding `{name}` has direction {}, expected {direction}", reported.direction));
    }
    if reported.role != port.role.number() {
        return Err(format!("binding `{name}` has role {}, expected {}", reported.role, port.role.number()));
    }
    if reported.shape != port.shape {
        return Err(format!("binding `{name}` has shape {:?}, expected {:?}", reported.shape, port.shape));
    }
    let reported_scale = f64::from_bits(reported.scale_bits);
    let (dtype, scale, zero_point) = match port.encoding {
        Some(encoding) => {
            (encoding.element.number(), f64::from(encoding.scale.get()), i64::from(encoding.zero_point))
        }
        None => (port.dtype.number(), 1.0, 0),
    };
    if (reported.dtype, reported_scale, reported.zero_point) != (dtype, scale, zero_point) {
        return Err(format!(
            "binding `{name}` has type {}, scale {}, zero {}, expected {dtype}, {scale}, {zero_point}",
            reported.dtype, reported_scale, reported.zero_point
        ));
    }
    let dtype = convert::dtype(dtype)
        .ok_or_else(|| format!("binding `{name}` has the unknown element type {dtype}"))?;
    if !reported.alignment.is_power_of_two() {
        let alignment = reported.alignment;
        return Err(format!("binding `{name}` has the alignment {alignment}, expected a power of two"));
    }
    let least = least_bytes(&reported.shape, reported.strides.as_deref(), dtype);
    if least.is_none_or(|least| least > reported.bytes) || reported.bytes > isize::MAX as u64 {
        let needs = least.map_or_else(String::new, |least| format!(", expected at least {least}"));
        return Err(format!("binding `{name}` of {:?} has {} bytes{needs}", reported.shape, reported.bytes));
    }
    let update = match reported.update {
        SW_UPDATE_NONE => Update::None,
        SW_UPDATE_IN_GRAPH => Update::InGraph,
        SW_UPDATE_BY_RUNTIME => Update::ByRuntime,
        other => return Err(format!("binding `{name}` has the unknown update {other}")),
    };
    Ok(Binding {
        port: port.clone(),
        dtype,
        bytes: reported.bytes,
        alignment: reported.alignment,
        strides: reported.strides,
        memory_kinds: MemoryKinds(reported.memory_kinds),
        update,
    })
}

/// Returns the number of bytes from the first element to the end of the last.
fn least_bytes(shape: &[u64], strides: Option<&[u64]>, dtype: DType) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    let elements = match strides {
        None => shape.iter().try_fold(1_u64, |product, &extent| product.checked_mul(extent))?,
        Some(strides) => shape.iter().zip(strides).try_fold(1_u64, |last, (extent, stride)| {
            last.checked_add(extent.checked_sub(1)?.checked_mul(*stride)?)
        })?,
    };
    elements.checked_mul(dtype.bytes())
}
