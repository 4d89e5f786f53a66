//! A loaded shard: what it binds, running it, cancelling it.

use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use shardwright_graph::DType;
use shardwright_shim_abi::raw::*;

use crate::artefact::Artefact;
use crate::buffer::Buffer;
use crate::call;
use crate::convert;
use crate::error::ShimError;
use crate::interface::{Direction, EntryInterface, Port};
use crate::shim::{InstanceInner, MemoryKinds, ShimInstance, c_text};
use crate::tables::OptionTables;

/// One thing a run binds: the port of the graph, and what the shim asks of its memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    /// Name, direction, role with its parameters, shape, encoding.
    pub port: Port,
    /// Element type as it lies in memory.
    pub dtype: DType,
    /// Bytes to bind; more than the dense size when the shim pads.
    pub bytes: u64,
    /// Of the first byte, a power of two.
    pub alignment: u64,
    /// In elements; none for dense row-major.
    pub strides: Option<Vec<u64>>,
    /// What may be bound.
    pub memory_kinds: MemoryKinds,
    /// Who writes new rows of a state.
    pub update: Update,
}

/// Who writes new rows of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// Not a written state.
    None,
    /// The shim, within the run.
    InGraph,
    /// The runtime copies the rows that the run returned to their slots.
    ByRuntime,
}

/// Something a shard can run.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedEntry {
    /// As in the artefact: component, layers, point, ports, states.
    pub interface: EntryInterface,
    /// What a run binds, in this order.
    pub bindings: Vec<Binding>,
}

impl LoadedEntry {
    /// Place of the binding of that name.
    pub fn binding(&self, name: &str) -> Option<usize> {
        self.bindings.iter().position(|binding| binding.port.name == name)
    }
}

/// Memory for one binding of one run.
#[derive(Debug)]
pub enum Bound<'a> {
    /// A buffer from its start.
    Buffer(&'a Buffer),
    /// A buffer from an offset: a shard's slice of the per-layer inputs.
    BufferAt(&'a Buffer, u64),
    /// Plain memory, read only.
    Read(&'a [u8]),
    /// Plain memory for an output or state.
    Write(&'a mut [u8]),
}

struct Inner {
    instance: ShimInstance,
    device: String,
    raw: *mut SwShard,
    // Dropped after `drop` has unloaded: the mapping outlives the handle.
    artefact: Artefact,
}

// SAFETY: the contract allows run and cancel from any thread; `LoadedShard::run` takes `&mut self`, so one run at a time.
unsafe impl Send for Inner {}
// SAFETY: as above; through a shared reference only cancel is called, which the contract allows at any time.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        let inner = &self.instance.0;
        if let Some(unload) = inner.table().0.unload {
            let _one = inner.enter();
            // SAFETY: made by load, unloaded once; a run borrows the shard, so none is in progress.
            unsafe { unload(self.raw) };
        }
    }
}

/// A shard that is ready to run. It keeps its instance open and its artefact mapped.
pub struct LoadedShard {
    inner: Arc<Inner>,
    entries: Vec<LoadedEntry>,
    bounds: Vec<SwBound>,
    pointers: Vec<*const SwBound>,
}

// SAFETY: the scratch arrays hold pointers only during a run, which borrows the shard.
unsafe impl Send for LoadedShard {}

impl std::fmt::Debug for LoadedShard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let entries: Vec<&str> = self.entries.iter().map(|entry| entry.interface.name.as_str()).collect();
        f.debug_struct("LoadedShard")
            .field("instance", &self.inner.instance.name())
            .field("device", &self.inner.device)
            .field("entries", &entries)
            .finish_non_exhaustive()
    }
}

/// Ends the run in progress of one shard, from any thread.
#[derive(Clone)]
pub struct Canceller(Weak<Inner>);

impl Canceller {
    /// The run in progress, if there is one, ends soon with a cancelled error. False when the shard is gone or its shim cannot
    /// cancel.
    pub fn cancel(&self) -> bool {
        let Some(inner) = self.0.upgrade() else { return false };
        let Some(cancel) = inner.instance.0.table().0.cancel else { return false };
        // SAFETY: the shard is held by `inner`; the contract allows cancel from any thread.
        unsafe { cancel(inner.raw) };
        true
    }
}

/// Gives back the buffers of a run, also when it fails half-way.
struct Acquired<'a, 'b> {
    bound: &'a [Bound<'b>],
    bindings: &'a [Binding],
    count: usize,
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
    pub(crate) fn load(
        instance: &ShimInstance,
        device: &str,
        artefact: &Artefact,
        options: &[(String, String)],
    ) -> Result<LoadedShard, ShimError> {
        let inner = &instance.0;
        let function = inner.table().0.load.ok_or_else(|| inner.missing("load"))?;
        let name = c_text("the device", device)?;
        let options = OptionTables::new(options)?;
        let (head, payload) = (artefact.shim_head(), artefact.payload());
        let shown = SwArtefact {
            size: size_of::<SwArtefact>() as u64,
            head: if head.is_empty() { ptr::null() } else { head.as_ptr().cast() },
            head_length: head.len() as u64,
            pointer: if payload.is_empty() { ptr::null() } else { payload.as_ptr().cast() },
            length: payload.len() as u64,
            fd: artefact.file().as_raw_fd(),
            reserved: 0,
            fd_offset: artefact.payload_offset(),
        };
        let mut raw = ptr::null_mut();
        {
            let _one = inner.enter();
            // SAFETY: pointers are as the contract says; the mapping is kept by `Inner` until unload; the error came from this
            // table.
            unsafe {
                let error =
                    function(inner.raw(), name.as_ptr(), &shown, options.as_ptr(), options.len(), &mut raw);
                inner.take("load", error)?;
            }
        }
        if raw.is_null() {
            return Err(inner.contract("load", "success without a shard"));
        }
        // From here on dropping unloads.
        let loaded = Arc::new(Inner {
            instance: instance.clone(),
            device: device.to_owned(),
            raw,
            artefact: artefact.clone(),
        });
        let entries = read_entries(inner, raw, &artefact.head().entries)?;
        let most = entries.iter().map(|entry| entry.bindings.len()).max().unwrap_or(0);
        Ok(LoadedShard {
            inner: loaded,
            entries,
            bounds: Vec::with_capacity(most),
            pointers: Vec::with_capacity(most),
        })
    }

    /// The instance it runs on.
    pub fn instance(&self) -> &ShimInstance {
        &self.inner.instance
    }

    /// The device it runs on.
    pub fn device(&self) -> &str {
        &self.inner.device
    }

    /// The artefact it was made from.
    pub fn artefact(&self) -> &Artefact {
        &self.inner.artefact
    }

    /// What can be run.
    pub fn entries(&self) -> &[LoadedEntry] {
        &self.entries
    }

    /// Place of the entry of that name.
    pub fn entry(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.interface.name == name)
    }

    /// A handle by which another thread can end a run. It does not keep the shard.
    pub fn canceller(&self) -> Canceller {
        Canceller(Arc::downgrade(&self.inner))
    }

    /// Runs an entry and blocks until it is done.
    ///
    /// `rows` are valid, 1 to the entry's rows. `bound` has one element per binding, in their order; outputs and states take a
    /// buffer or [`Bound::Write`]. A buffer of this instance and device is handed over as it is, any other mapped memory as a
    /// pointer. Without a deadline the run takes as long as it takes.
    pub fn run(
        &mut self,
        entry: usize,
        rows: u64,
        bound: &mut [Bound<'_>],
        deadline: Option<Duration>,
    ) -> Result<(), ShimError> {
        let instance = &self.inner.instance.0;
        let function = instance.table().0.run.ok_or_else(|| instance.missing("run"))?;
        let told = self
            .entries
            .get(entry)
            .ok_or_else(|| ShimError::Argument(format!("entry {entry} of {}", self.entries.len())))?;
        let largest = told.interface.point.rows;
        if rows == 0 || rows > largest {
            return Err(ShimError::Argument(format!("{rows} rows in `{}`", told.interface.name)));
        }
        if bound.len() != told.bindings.len() {
            return Err(ShimError::Argument(format!(
                "{} bindings given, `{}` has {}",
                bound.len(),
                told.interface.name,
                told.bindings.len()
            )));
        }
        self.bounds.clear();
        self.pointers.clear();
        for (given, binding) in bound.iter_mut().zip(&told.bindings) {
            self.bounds.push(bind(instance, &self.inner.device, given, binding)?);
        }
        let mut acquired = Acquired { bound, bindings: &told.bindings, count: 0 };
        for (given, binding) in acquired.bound.iter().zip(&told.bindings) {
            if let Bound::Buffer(buffer) | Bound::BufferAt(buffer, _) = given {
                buffer.acquire(binding.port.direction.is_written())?;
            }
            acquired.count += 1;
        }
        self.pointers.extend(self.bounds.iter().map(ptr::from_ref));
        let run = SwRun {
            size: size_of::<SwRun>() as u64,
            entry: entry as u64,
            rows,
            bounds: if self.pointers.is_empty() { ptr::null() } else { self.pointers.as_ptr() },
            bound_count: self.pointers.len() as u64,
            // 0 means none in the contract: a deadline of zero is the shortest there is.
            deadline_nanoseconds: deadline
                .map_or(0, |deadline| u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX).max(1)),
        };
        // SAFETY: pointers are as the contract says. Written memory overlaps nothing: `&mut` guarantees it for plain memory,
        // `acquired` for buffers. The error came from this table.
        unsafe {
            let error = function(self.inner.raw, &run);
            instance.take("run", error)
        }
    }
}

/// What is handed over for one binding.
fn bind(
    instance: &Arc<InstanceInner>,
    device: &str,
    given: &mut Bound<'_>,
    binding: &Binding,
) -> Result<SwBound, ShimError> {
    let refuse = |reason: String| ShimError::Argument(format!("binding `{}`: {reason}", binding.port.name));
    let mut shown = SwBound {
        size: size_of::<SwBound>() as u64,
        buffer: ptr::null_mut(),
        pointer: ptr::null_mut(),
        offset: 0,
        length: 0,
    };
    match given {
        Bound::Buffer(_) | Bound::BufferAt(..) => {
            let (buffer, offset) = match given {
                Bound::BufferAt(buffer, offset) => (*buffer, *offset),
                Bound::Buffer(buffer) => (*buffer, 0),
                _ => return Err(refuse("no buffer".to_owned())),
            };
            shown.length = buffer
                .length()
                .checked_sub(offset)
                .ok_or_else(|| refuse(format!("offset {offset} in a buffer of {}", buffer.length())))?;
            match buffer.handle_for(instance, device) {
                Some(handle) if binding.memory_kinds.shim() => {
                    shown.buffer = handle;
                    shown.offset = offset;
                }
                _ if binding.memory_kinds.host() && buffer.is_mapped() => {
                    if shown.length > 0 {
                        // SAFETY: the offset lies within the mapped buffer.
                        shown.pointer = unsafe { buffer.pointer().add(offset as usize) }.cast();
                    }
                }
                _ => {
                    return Err(refuse(
                        "the device cannot see this buffer; copy it into one of its own".to_owned(),
                    ));
                }
            }
        }
        Bound::Read(bytes) => {
            if binding.port.direction.is_written() {
                return Err(refuse("it is written, but bound for reading".to_owned()));
            }
            shown.length = bytes.len() as u64;
            // The contract does not write through an input.
            shown.pointer = bytes.as_ptr().cast_mut().cast();
        }
        Bound::Write(bytes) => {
            shown.length = bytes.len() as u64;
            shown.pointer = bytes.as_mut_ptr().cast();
        }
    }
    if shown.length < binding.bytes {
        return Err(refuse(format!("{} bytes given, {} needed", shown.length, binding.bytes)));
    }
    if shown.buffer.is_null() {
        if !binding.memory_kinds.host() {
            return Err(refuse("the device takes no plain memory; bind a buffer it allocated".to_owned()));
        }
        if binding.bytes > 0 && !(shown.pointer as u64).is_multiple_of(binding.alignment) {
            return Err(refuse(format!("an alignment of {} is needed", binding.alignment)));
        }
    }
    Ok(shown)
}

/// Asks a fresh shard what it runs and joins that with what the artefact says.
fn read_entries(
    instance: &Arc<InstanceInner>,
    raw: *mut SwShard,
    interfaces: &[EntryInterface],
) -> Result<Vec<LoadedEntry>, ShimError> {
    let table = instance.table().0;
    let function = table.entries.ok_or_else(|| instance.missing("entries"))?;
    let (error, told) = {
        let _one = instance.enter();
        call::loaded_entries(
            |item| {
                // SAFETY: the contract makes it a string.
                let name = unsafe { call::text(item.name) }?;
                Ok((item.index, name, item.rows, item.context, item.binding_count))
            },
            // SAFETY: the shard was just loaded; the sink is as the contract says.
            |sink| unsafe { function(raw, sink) },
        )
    };
    // SAFETY: the error came from this table.
    unsafe { instance.take("entries", error) }?;
    let told = told.finish().map_err(|reason| instance.contract("entries", reason))?;
    let wrong = |reason: String| instance.contract("entries", reason);
    let mut entries = Vec::with_capacity(told.len());
    for (place, (index, name, rows, _context, count)) in told.into_iter().enumerate() {
        if index != place as u64 {
            return Err(wrong(format!("entry {index} told in place {place}")));
        }
        let interface = interfaces
            .iter()
            .find(|interface| interface.name == name)
            .ok_or_else(|| wrong(format!("entry `{name}`, which the artefact does not list")))?;
        if interface.point.rows != rows {
            return Err(wrong(format!(
                "`{name}` with {rows} rows, the artefact says {}",
                interface.point.rows
            )));
        }
        let bindings = read_bindings(instance, raw, index, interface)?;
        if bindings.len() as u64 != count {
            return Err(wrong(format!("`{name}` with {count} bindings, {} were told", bindings.len())));
        }
        entries.push(LoadedEntry { interface: interface.clone(), bindings });
    }
    if let Some(lost) = interfaces
        .iter()
        .find(|interface| !entries.iter().any(|entry: &LoadedEntry| entry.interface.name == interface.name))
    {
        return Err(wrong(format!("no entry `{}`, which the artefact lists", lost.name)));
    }
    Ok(entries)
}

/// One binding as the shim told it.
struct Told {
    index: u64,
    name: String,
    direction: u32,
    role: u32,
    dtype: u32,
    update: u32,
    shape: Vec<u64>,
    strides: Option<Vec<u64>>,
    bytes: u64,
    alignment: u64,
    memory_kinds: u32,
    scale: f64,
    zero_point: i64,
}

fn read_bindings(
    instance: &Arc<InstanceInner>,
    raw: *mut SwShard,
    entry: u64,
    interface: &EntryInterface,
) -> Result<Vec<Binding>, ShimError> {
    let function = instance.table().0.bindings.ok_or_else(|| instance.missing("bindings"))?;
    let (error, told) = {
        let _one = instance.enter();
        call::bindings(
            |item| {
                // SAFETY: the contract gives a string and arrays of `rank` numbers.
                unsafe {
                    Ok(Told {
                        index: item.index,
                        name: call::text(item.name)?,
                        direction: item.direction,
                        role: item.role,
                        dtype: item.dtype,
                        update: item.update,
                        shape: call::numbers(item.shape, item.rank)?,
                        strides: match item.strides.is_null() {
                            true => None,
                            false => Some(call::numbers(item.strides, item.rank)?),
                        },
                        bytes: item.bytes,
                        alignment: item.alignment,
                        memory_kinds: item.memory_kinds,
                        scale: item.scale,
                        zero_point: item.zero_point,
                    })
                }
            },
            // SAFETY: the shard is loaded; the sink is as the contract says.
            |sink| unsafe { function(raw, entry, sink) },
        )
    };
    // SAFETY: the error came from this table.
    unsafe { instance.take("bindings", error) }?;
    let told = told.finish().map_err(|reason| instance.contract("bindings", reason))?;
    let wrong = |reason: String| instance.contract("bindings", format!("`{}`: {reason}", interface.name));
    let mut bindings: Vec<Binding> = Vec::with_capacity(told.len());
    for (place, told) in told.into_iter().enumerate() {
        if told.index != place as u64 {
            return Err(wrong(format!("binding {} told in place {place}", told.index)));
        }
        let port = interface
            .port(&told.name)
            .ok_or_else(|| wrong(format!("binding `{}`, which the graph does not have", told.name)))?;
        if bindings.iter().any(|binding| binding.port.name == told.name) {
            return Err(wrong(format!("binding `{}` told twice", told.name)));
        }
        bindings.push(join(port, told).map_err(wrong)?);
    }
    // An input that nothing depends on need not be bound; a result must be.
    let unbound = interface.ports.iter().find(|port| {
        port.direction.is_written() && !bindings.iter().any(|binding| binding.port.name == port.name)
    });
    match unbound {
        None => Ok(bindings),
        Some(port) => Err(wrong(format!("no binding for the result `{}`", port.name))),
    }
}

fn join(port: &Port, told: Told) -> Result<Binding, String> {
    let name = &told.name;
    let direction = match port.direction {
        Direction::Input => SW_BINDING_INPUT,
        Direction::Output => SW_BINDING_OUTPUT,
        Direction::State => SW_BINDING_STATE,
        Direction::StateRead => SW_BINDING_STATE_READ,
    };
    if told.direction != direction {
        return Err(format!("binding `{name}` has direction {}, the graph {direction}", told.direction));
    }
    if told.role != port.role.number() {
        return Err(format!("binding `{name}` has role {}, the graph {}", told.role, port.role.number()));
    }
    if told.shape != port.shape {
        return Err(format!("binding `{name}` has shape {:?}, the graph {:?}", told.shape, port.shape));
    }
    let (dtype, scale, zero_point) = match port.encoding {
        Some(encoding) => (
            convert::element_number(encoding.element),
            f64::from(encoding.scale.get()),
            i64::from(encoding.zero_point),
        ),
        None => (port.dtype.number(), 1.0, 0),
    };
    if (told.dtype, told.scale, told.zero_point) != (dtype, scale, zero_point) {
        return Err(format!(
            "binding `{name}` is encoded as type {} scale {} zero {}, agreed were {dtype}, {scale}, {zero_point}",
            told.dtype, told.scale, told.zero_point
        ));
    }
    let dtype = convert::dtype(dtype).ok_or_else(|| format!("binding `{name}` has element type {dtype}"))?;
    if !told.alignment.is_power_of_two() {
        return Err(format!("binding `{name}` asks for an alignment of {}", told.alignment));
    }
    let least = least_bytes(&told.shape, told.strides.as_deref(), dtype);
    if least.is_none_or(|least| least > told.bytes) || told.bytes > isize::MAX as u64 {
        return Err(format!("binding `{name}` of {:?} in {} bytes", told.shape, told.bytes));
    }
    let update = match told.update {
        SW_UPDATE_NONE => Update::None,
        SW_UPDATE_IN_GRAPH => Update::InGraph,
        SW_UPDATE_BY_RUNTIME => Update::ByRuntime,
        other => return Err(format!("binding `{name}` has update {other}")),
    };
    Ok(Binding {
        port: port.clone(),
        dtype,
        bytes: told.bytes,
        alignment: told.alignment,
        strides: told.strides,
        memory_kinds: MemoryKinds(told.memory_kinds),
        update,
    })
}

/// Bytes from the first element to the end of the last.
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
