//! A loaded shim and its open instances.

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shardwright_graph::target::{FlagSchema, FlagType, FlagVerdict, Limit, Provenance};
use shardwright_graph::{EntryGraph, Verdict, Weight};
use shardwright_shim_abi::raw::*;

use crate::artefact::{
    Artefact, ArtefactError, ArtefactHead, ArtefactWriter, FlagReport, Place, PlacementReport,
};
use crate::buffer::Buffer;
use crate::call;
use crate::convert;
use crate::error::{LoadError, ShimError};
use crate::layout::LayoutCheck;
use crate::library::{self, Table};
use crate::loaded::LoadedShard;
use crate::manifest::Manifest;
use crate::tables::{EntryTables, OptionTables, WorkOrderTables};
use crate::work_order::WorkOrder;

/// Longest text value a flag without a stated bound takes.
const FLAG_TEXT_LIMIT: u32 = 1024;

/// A shim whose library is loaded and whose table is checked; cloning shares it.
#[derive(Clone)]
pub struct Shim(Arc<ShimInner>);

struct ShimInner {
    path: PathBuf,
    manifest: Option<Manifest>,
    table: Table,
    layout: LayoutCheck,
    description: Description,
    open: Mutex<u64>,
}

/// Who a shim says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// `cpu`, `qnn`, …
    pub name: String,
    /// Who makes it.
    pub vendor: String,
    /// Of the shim itself.
    pub version: String,
    /// What it drives.
    pub vendor_library: Option<String>,
    /// Instances that may be open at once; 0 for any number.
    pub instance_limit: u64,
}

/// A device or offline target of a shim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Unique within the shim.
    pub name: String,
    /// Lower case, `mt6989`.
    pub soc: Option<String>,
    /// For people.
    pub detail: Option<String>,
    /// Where it is.
    pub kind: DeviceKind,
    /// What a run accepts.
    pub memory_kinds: MemoryKinds,
    /// What it can address; 0 if not known.
    pub memory_bytes: u64,
}

/// Where a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// In this machine.
    Present,
    /// A named SoC, compiles only.
    Offline,
    /// A named SoC, runs in a simulator.
    Simulated,
}

/// A set of memory kinds, `SW_MEMORY_…` bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryKinds(pub u32);

impl MemoryKinds {
    /// Whether plain memory of the process can be bound.
    pub const fn host(self) -> bool {
        self.0 & SW_MEMORY_HOST != 0
    }

    /// Whether the shim's own buffers can be bound.
    pub const fn shim(self) -> bool {
        self.0 & SW_MEMORY_SHIM != 0
    }
}

/// What one run costs, in a shim's estimate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// One run with all rows, without the uncosted nodes.
    pub time_microseconds: u64,
    /// Where the number comes from.
    pub provenance: Provenance,
    /// From and to main memory; 0 if not known.
    pub bytes_moved: u64,
    /// Indices of nodes left out.
    pub uncosted: Vec<u64>,
}

/// Whether an artefact can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compatibility {
    /// Made by another shim.
    NotMine(String),
    /// As good as freshly compiled.
    Optimal,
    /// Runs, but compiling again would be better.
    Recompile(String),
    /// Made by this shim, cannot run here.
    Unsupported(String),
}

/// Follows a compilation.
pub trait Watch {
    /// How far it is, 0 to 1000, and what it does.
    fn progress(&mut self, per_mille: u32, stage: &str) {
        let _ = (per_mille, stage);
    }

    /// Whether to stop; asked often.
    fn cancelled(&self) -> bool {
        false
    }
}

impl Watch for () {}

impl std::fmt::Debug for Shim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shim")
            .field("name", &self.name())
            .field("path", &self.0.path)
            .field("layout", &self.0.layout)
            .finish_non_exhaustive()
    }
}

impl Shim {
    pub(crate) fn new(
        path: PathBuf,
        manifest: Option<Manifest>,
        table: Table,
        layout: LayoutCheck,
    ) -> Result<Shim, LoadError> {
        let description = describe(&path, table)
            .map_err(|source| LoadError::Describe { path: path.clone(), source: Box::new(source) })?;
        if let Some(manifest) = &manifest
            && manifest.name != description.name
        {
            return Err(LoadError::Answer {
                path,
                reason: format!("it is `{}`, its manifest says `{}`", description.name, manifest.name),
            });
        }
        Ok(Shim(Arc::new(ShimInner { path, manifest, table, layout, description, open: Mutex::new(0) })))
    }

    /// Name under which it is asked for.
    pub fn name(&self) -> &str {
        &self.0.description.name
    }

    /// What it says of itself.
    pub fn description(&self) -> &Description {
        &self.0.description
    }

    /// Its library; `<linked …>` for one that is part of the program.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// What was read before the library was opened; none when it is linked.
    pub fn manifest(&self) -> Option<&Manifest> {
        self.0.manifest.as_ref()
    }

    /// Whether its structs were compared.
    pub fn layout(&self) -> &LayoutCheck {
        &self.0.layout
    }

    /// Contract version that was agreed on, `major.minor`.
    pub fn abi_version(&self) -> String {
        shardwright_shim_abi::version_text(self.0.table.0.version)
    }

    /// Whether it can compile here; if not it only runs what was compiled elsewhere.
    pub fn compiles(&self) -> bool {
        self.0.table.0.compile.is_some()
    }

    /// Whether it can run; if not it only compiles.
    pub fn runs(&self) -> bool {
        self.0.table.0.load.is_some()
    }

    /// Opens an instance with its own options. Names are for people and reports; one shim may be open many times.
    pub fn open(&self, name: &str, options: &[(String, String)]) -> Result<ShimInstance, ShimError> {
        let held = Held::take(self, name)?;
        let options = OptionTables::new(options)?;
        let table = self.0.table;
        let function = table.0.open.ok_or_else(|| missing(name, "open"))?;
        let mut raw: *mut SwShim = ptr::null_mut();
        // SAFETY: pointers are as the contract says.
        let error = unsafe { function(library::host(), options.as_ptr(), options.len(), &mut raw) };
        // SAFETY: the error came from this table.
        unsafe { call::take_error(table, name, "open", error) }?;
        if raw.is_null() {
            return Err(contract(name, "open", "success without an instance"));
        }
        Ok(ShimInstance(Arc::new(InstanceInner {
            shim: self.clone(),
            name: name.to_owned(),
            raw,
            lock: Mutex::new(()),
            _held: held,
        })))
    }
}

fn describe(path: &Path, table: Table) -> Result<Description, ShimError> {
    let name = path.display().to_string();
    let function = table.0.describe.ok_or_else(|| missing(&name, "describe"))?;
    let (error, told) = call::descriptions(
        |item| {
            // SAFETY: the contract makes them strings.
            unsafe {
                Ok(Description {
                    name: call::text(item.name)?,
                    vendor: call::text(item.vendor)?,
                    version: call::text(item.version)?,
                    vendor_library: call::optional_text(item.vendor_library),
                    instance_limit: item.instance_limit,
                })
            }
        },
        // SAFETY: the sink is as the contract says.
        |sink| unsafe { function(sink) },
    );
    // SAFETY: the error came from this table.
    unsafe { call::take_error(table, &name, "describe", error) }?;
    let mut told = told.finish().map_err(|reason| contract(&name, "describe", reason))?;
    match (told.pop(), told.is_empty()) {
        (Some(description), true) if !description.name.is_empty() => Ok(description),
        _ => Err(contract(&name, "describe", "not exactly one description with a name")),
    }
}

fn missing(shim: &str, function: &'static str) -> ShimError {
    ShimError::Missing { shim: shim.to_owned(), function }
}

fn contract(shim: &str, function: &'static str, reason: impl Into<String>) -> ShimError {
    ShimError::Contract { shim: shim.to_owned(), function, reason: reason.into() }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Exclusive resources of this process, with the instance that holds each.
static RESOURCES: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// An instance's share of what is limited; given back when dropped.
struct Held {
    shim: Shim,
    resources: Vec<String>,
}

impl Held {
    fn take(shim: &Shim, instance: &str) -> Result<Held, ShimError> {
        let limit = shim.0.description.instance_limit;
        let mut open = lock(&shim.0.open);
        if limit != 0 && *open >= limit {
            return Err(ShimError::Taken {
                what: format!("shim `{}`, which opens at most {limit} times", shim.name()),
                holder: "other instances".to_owned(),
            });
        }
        let wanted = shim.manifest().map(|manifest| manifest.exclusive.clone()).unwrap_or_default();
        let mut resources = lock(&RESOURCES);
        if let Some((what, holder)) =
            wanted.iter().find_map(|name| resources.get(name).map(|holder| (name, holder)))
        {
            return Err(ShimError::Taken {
                what: format!("resource `{what}`"),
                holder: format!("instance `{holder}`"),
            });
        }
        for name in &wanted {
            resources.insert(name.clone(), instance.to_owned());
        }
        *open += 1;
        drop(open);
        Ok(Held { shim: shim.clone(), resources: wanted })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        *lock(&self.shim.0.open) -= 1;
        let mut resources = lock(&RESOURCES);
        for name in &self.resources {
            resources.remove(name);
        }
    }
}

/// An open instance of a shim; cloning shares it. It closes when the last clone, shard and buffer is gone.
#[derive(Clone)]
pub struct ShimInstance(pub(crate) Arc<InstanceInner>);

pub(crate) struct InstanceInner {
    shim: Shim,
    name: String,
    raw: *mut SwShim,
    /// The contract: one call at a time per instance, but for run and cancel.
    lock: Mutex<()>,
    _held: Held,
}

// SAFETY: the contract allows calls from any thread; `lock` keeps them one at a time.
unsafe impl Send for InstanceInner {}
// SAFETY: as above.
unsafe impl Sync for InstanceInner {}

impl Drop for InstanceInner {
    fn drop(&mut self) {
        if let Some(close) = self.table().0.close {
            // SAFETY: made by `open`; shards and buffers hold this value, so none is left.
            unsafe { close(self.raw) };
        }
    }
}

impl InstanceInner {
    pub(crate) fn table(&self) -> Table {
        self.shim.0.table
    }

    pub(crate) fn raw(&self) -> *mut SwShim {
        self.raw
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn enter(&self) -> MutexGuard<'_, ()> {
        lock(&self.lock)
    }

    /// Error object to error.
    ///
    /// # Safety
    ///
    /// `error` came from this instance's table and was not freed.
    pub(crate) unsafe fn take(&self, function: &'static str, error: *mut SwError) -> Result<(), ShimError> {
        // SAFETY: promised by the caller.
        unsafe { call::take_error(self.table(), &self.name, function, error) }
    }

    pub(crate) fn missing(&self, function: &'static str) -> ShimError {
        missing(&self.name, function)
    }

    pub(crate) fn contract(&self, function: &'static str, reason: impl Into<String>) -> ShimError {
        contract(&self.name, function, reason)
    }
}

pub(crate) fn c_text(what: &str, text: &str) -> Result<CString, ShimError> {
    CString::new(text).map_err(|_| ShimError::Argument(format!("{what} contains a NUL byte")))
}

impl std::fmt::Debug for ShimInstance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShimInstance")
            .field("name", &self.0.name)
            .field("shim", &self.0.shim.name())
            .finish_non_exhaustive()
    }
}

impl ShimInstance {
    /// Name given when it was opened.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The shim it is an instance of.
    pub fn shim(&self) -> &Shim {
        &self.0.shim
    }

    /// Whether two handles are the same instance.
    pub fn same(&self, other: &ShimInstance) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Devices of this machine, or with `soc` those it compiles for offline or simulates. None is an answer, not an error.
    pub fn devices(&self, soc: Option<&str>) -> Result<Vec<Device>, ShimError> {
        let inner = &*self.0;
        let function = inner.table().0.devices.ok_or_else(|| inner.missing("devices"))?;
        let soc = soc.map(|soc| c_text("the SoC", soc)).transpose()?;
        let soc = soc.as_ref().map_or(ptr::null(), |soc| soc.as_ptr());
        let (error, told) = {
            let _one = inner.enter();
            call::devices(
                |item| {
                    let kind = match item.kind {
                        SW_DEVICE_PRESENT => DeviceKind::Present,
                        SW_DEVICE_OFFLINE => DeviceKind::Offline,
                        SW_DEVICE_SIMULATED => DeviceKind::Simulated,
                        other => return Err(format!("device kind {other}")),
                    };
                    // SAFETY: the contract makes them strings.
                    unsafe {
                        Ok(Device {
                            name: call::text(item.name)?,
                            soc: call::optional_text(item.soc),
                            detail: call::optional_text(item.detail),
                            kind,
                            memory_kinds: MemoryKinds(item.memory_kinds),
                            memory_bytes: item.memory_bytes,
                        })
                    }
                },
                // SAFETY: pointers are as the contract says.
                |sink| unsafe { function(inner.raw, soc, sink) },
            )
        };
        self.told("devices", error, told)
    }

    /// What the device cannot exceed.
    pub fn limits(&self, device: &str) -> Result<Vec<Limit>, ShimError> {
        let inner = &*self.0;
        let Some(function) = inner.table().0.limits else { return Ok(Vec::new()) };
        let device = c_text("the device", device)?;
        let (error, told) = {
            let _one = inner.enter();
            call::limits(
                |item| {
                    // SAFETY: the contract makes them strings.
                    let (name, note) = unsafe { (call::text(item.name)?, call::optional_text(item.note)) };
                    let provenance = convert::provenance(item.provenance)
                        .ok_or_else(|| format!("provenance {}", item.provenance))?;
                    Ok(Limit { name, value: item.value, provenance, note: note.unwrap_or_default() })
                },
                // SAFETY: pointers are as the contract says.
                |sink| unsafe { function(inner.raw, device.as_ptr(), sink) },
            )
        };
        self.told("limits", error, told)
    }

    /// Compiler flags of the device.
    pub fn flags(&self, device: &str) -> Result<Vec<FlagSchema>, ShimError> {
        let inner = &*self.0;
        let Some(function) = inner.table().0.flags else { return Ok(Vec::new()) };
        let device = c_text("the device", device)?;
        let (error, told) = {
            let _one = inner.enter();
            // SAFETY: pointers are as the contract says.
            call::flags(flag_schema, |sink| unsafe { function(inner.raw, device.as_ptr(), sink) })
        };
        self.told("flags", error, told)
    }

    /// One verdict per node, in the graph's order. `weights` are those the graph's constants index; their bytes are not shown.
    pub fn check(
        &self,
        device: &str,
        entry: &EntryGraph,
        weights: &[Weight],
    ) -> Result<Vec<Verdict>, ShimError> {
        let inner = &*self.0;
        let function = inner.table().0.check.ok_or_else(|| inner.missing("check"))?;
        let device = c_text("the device", device)?;
        let tables = EntryTables::new(entry, weights)?;
        let (error, told) = {
            let _one = inner.enter();
            call::verdicts(
                |item| {
                    let verdict = match item.verdict {
                        SW_VERDICT_TAKEN => Verdict::accepted(),
                        // SAFETY: the contract makes it a string.
                        SW_VERDICT_REFUSED => Verdict::refused(unsafe { call::text(item.reason) }?),
                        other => return Err(format!("verdict {other}")),
                    };
                    Ok((item.node, verdict))
                },
                // SAFETY: pointers are as the contract says; the tables outlive the call.
                |sink| unsafe { function(inner.raw, device.as_ptr(), tables.as_ptr(), sink) },
            )
        };
        let told = self.told("check", error, told)?;
        let mut verdicts: Vec<Option<Verdict>> = vec![None; entry.nodes.len()];
        for (node, verdict) in told {
            let place = usize::try_from(node)
                .ok()
                .and_then(|node| verdicts.get_mut(node))
                .ok_or_else(|| inner.contract("check", format!("a verdict on node {node}")))?;
            if place.replace(verdict).is_some() {
                return Err(inner.contract("check", format!("two verdicts on node {node}")));
            }
        }
        let unsaid = || Verdict::refused("the shim gave no verdict");
        Ok(verdicts.into_iter().map(|verdict| verdict.unwrap_or_else(unsaid)).collect())
    }

    /// Time of one run with all rows; none when the shim does not know.
    pub fn estimate(
        &self,
        device: &str,
        entry: &EntryGraph,
        weights: &[Weight],
    ) -> Result<Option<Estimate>, ShimError> {
        let inner = &*self.0;
        let Some(function) = inner.table().0.estimate else { return Ok(None) };
        let device = c_text("the device", device)?;
        let tables = EntryTables::new(entry, weights)?;
        let (error, told) = {
            let _one = inner.enter();
            call::estimates(
                |item| {
                    Ok(Estimate {
                        time_microseconds: item.time_microseconds,
                        provenance: convert::provenance(item.provenance)
                            .ok_or_else(|| format!("provenance {}", item.provenance))?,
                        bytes_moved: item.bytes_moved,
                        // SAFETY: the contract gives that many numbers.
                        uncosted: unsafe { call::numbers(item.uncosted, item.uncosted_count) }?,
                    })
                },
                // SAFETY: pointers are as the contract says; the tables outlive the call.
                |sink| unsafe { function(inner.raw, device.as_ptr(), tables.as_ptr(), sink) },
            )
        };
        let mut told = self.told("estimate", error, told)?;
        match (told.pop(), told.len()) {
            (Some(estimate), 0) => {
                let nodes = entry.nodes.len() as u64;
                match estimate.uncosted.iter().find(|&&node| node >= nodes) {
                    None => Ok(Some(estimate)),
                    Some(node) => Err(inner.contract("estimate", format!("node {node} of {nodes}"))),
                }
            }
            (None, _) => Ok(None),
            _ => Err(inner.contract("estimate", "more than one estimate")),
        }
    }

    /// Compiles a work order. The artefact appears whole or not at all; every flag of the order gets a verdict in it.
    pub fn compile(
        &self,
        device: &str,
        order: &WorkOrder,
        place: Place<'_>,
        watch: &mut dyn Watch,
    ) -> Result<Artefact, ShimError> {
        let inner = &*self.0;
        let function = inner.table().0.compile.ok_or_else(|| inner.missing("compile"))?;
        let device_text = c_text("the device", device)?;
        let entries = order.interfaces()?;
        let tables = WorkOrderTables::new(order)?;
        let mut context = Compilation {
            writer: ArtefactWriter::new(place)?,
            watch,
            failed: None,
            contract: None,
            flags: BTreeMap::new(),
            placements: Vec::new(),
            panic: None,
        };
        let output = SwCompileOutput {
            size: size_of::<SwCompileOutput>() as u64,
            context: (&raw mut context).cast(),
            write: Some(compile_write),
            head: Some(compile_head),
            progress: Some(compile_progress),
            cancelled: Some(compile_cancelled),
            flag: Some(compile_flag),
            placement: Some(compile_placement),
        };
        let error = {
            let _one = inner.enter();
            // SAFETY: pointers are as the contract says; tables and context outlive the call.
            unsafe { function(inner.raw, device_text.as_ptr(), tables.as_ptr(), &output) }
        };
        // SAFETY: the error came from this table.
        let result = unsafe { inner.take("compile", error) };
        let Compilation { writer, failed, contract, mut flags, placements, panic, .. } = context;
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
        // The host's own failure is the cause; what the shim says then only follows from it.
        if let Some(failed) = failed {
            return Err(failed.into());
        }
        result?;
        if let Some(reason) = contract {
            return Err(inner.contract("compile", reason));
        }
        if !writer.has_head() {
            return Err(inner.contract("compile", "success without a head"));
        }
        let flags = order
            .head()
            .flags
            .iter()
            .map(|flag| {
                let (verdict, reason) = flags
                    .remove(&flag.name)
                    .unwrap_or((FlagVerdict::Unknown, "the shim said nothing about it".to_owned()));
                FlagReport { flag: flag.clone(), verdict, reason }
            })
            .collect();
        let named = |&(entry, node, ref place, ref reason): &(u64, u64, String, String)| {
            let entry = order.head().entries.get(usize::try_from(entry).ok()?)?;
            let node = entry.nodes.get(usize::try_from(node).ok()?)?;
            Some(PlacementReport {
                entry: entry.point.name(),
                node: node.name.clone(),
                place: place.clone(),
                reason: reason.clone(),
            })
        };
        let placements = placements
            .iter()
            .map(named)
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| inner.contract("compile", "the placement of a node that is not there"))?;
        let description = self.0.shim.description();
        Ok(writer.finish(ArtefactHead {
            shim: description.name.clone(),
            shim_version: description.version.clone(),
            device: device.to_owned(),
            work_order: order.name(),
            payload_length: 0,
            head_length: 0,
            entries,
            flags,
            placements,
        })?)
    }

    /// Whether this instance can use an artefact, judged by its head alone.
    pub fn compatibility(&self, device: &str, artefact: &Artefact) -> Result<Compatibility, ShimError> {
        if artefact.head().shim != self.0.shim.name() {
            return Ok(Compatibility::NotMine(format!("made by shim `{}`", artefact.head().shim)));
        }
        let inner = &*self.0;
        let function = inner.table().0.compatibility.ok_or_else(|| inner.missing("compatibility"))?;
        let device = c_text("the device", device)?;
        let head = artefact.shim_head();
        let pointer: *const c_void = if head.is_empty() { ptr::null() } else { head.as_ptr().cast() };
        let (error, told) = {
            let _one = inner.enter();
            call::compatibilities(
                |item| {
                    // SAFETY: the contract makes it a string or null.
                    let reason = unsafe { call::optional_text(item.reason) }.unwrap_or_default();
                    Ok(match item.answer {
                        SW_COMPATIBILITY_NOT_MINE => Compatibility::NotMine(reason),
                        SW_COMPATIBILITY_OPTIMAL => Compatibility::Optimal,
                        SW_COMPATIBILITY_RECOMPILE => Compatibility::Recompile(reason),
                        SW_COMPATIBILITY_UNSUPPORTED => Compatibility::Unsupported(reason),
                        other => return Err(format!("answer {other}")),
                    })
                },
                // SAFETY: pointers are as the contract says; the artefact outlives the call.
                |sink| unsafe { function(inner.raw, device.as_ptr(), pointer, head.len() as u64, sink) },
            )
        };
        let mut told = self.told("compatibility", error, told)?;
        match (told.pop(), told.len()) {
            (Some(answer), 0) => Ok(answer),
            _ => Err(inner.contract("compatibility", "not exactly one answer")),
        }
    }

    /// Makes an artefact ready to run. Options are the shim's, such as `threads`.
    pub fn load(
        &self,
        device: &str,
        artefact: &Artefact,
        options: &[(String, String)],
    ) -> Result<LoadedShard, ShimError> {
        LoadedShard::load(self, device, artefact, options)
    }

    /// Allocates memory the device can see, zeroed: the shim's when it has its own, else the process's.
    pub fn allocate(&self, device: &str, length: u64, alignment: u64) -> Result<Buffer, ShimError> {
        Buffer::allocate(self, device, length, alignment)
    }

    /// Makes a dma-buf visible to the device. The descriptor must stay open until the buffer is gone.
    pub fn import_dma_buf(
        &self,
        device: &str,
        fd: std::os::fd::OwnedFd,
        offset: u64,
        length: u64,
    ) -> Result<Buffer, ShimError> {
        Buffer::import(self, device, fd, offset, length)
    }

    /// Makes a lost device usable again. Its shards and buffers must be gone.
    pub fn recover(&self, device: &str) -> Result<(), ShimError> {
        let inner = &*self.0;
        let function = inner.table().0.recover.ok_or_else(|| inner.missing("recover"))?;
        let device = c_text("the device", device)?;
        let _one = inner.enter();
        // SAFETY: pointers are as the contract says; the error came from this table.
        unsafe {
            let error = function(inner.raw, device.as_ptr());
            inner.take("recover", error)
        }
    }

    /// What a sink was told, unless the function failed.
    fn told<T>(
        &self,
        function: &'static str,
        error: *mut SwError,
        told: call::Collected<T>,
    ) -> Result<Vec<T>, ShimError> {
        // SAFETY: the callers pass what their table's function returned.
        unsafe { self.0.take(function, error) }?;
        told.finish().map_err(|reason| self.0.contract(function, reason))
    }
}

fn flag_schema(item: &SwFlag) -> Result<FlagSchema, String> {
    let values = match item.kind {
        SW_FLAG_BOOLEAN => FlagType::Switch,
        SW_FLAG_INTEGER if item.minimum > item.maximum => FlagType::Integer { min: i64::MIN, max: i64::MAX },
        SW_FLAG_INTEGER => FlagType::Integer { min: item.minimum, max: item.maximum },
        SW_FLAG_CHOICE => {
            // SAFETY: the contract gives that many strings.
            let pointers = unsafe { call::numbers::<*const c_char>(item.choices, item.choice_count) }?;
            let values = pointers
                .into_iter()
                // SAFETY: the contract makes them strings.
                .map(|choice| unsafe { call::text(choice) }.map_err(str::to_owned))
                .collect::<Result<_, _>>()?;
            FlagType::Choice { values }
        }
        SW_FLAG_FLOAT | SW_FLAG_TEXT => FlagType::Text { max_bytes: FLAG_TEXT_LIMIT },
        other => return Err(format!("flag kind {other}")),
    };
    // SAFETY: the contract makes them strings.
    unsafe {
        Ok(FlagSchema {
            name: call::text(item.name)?,
            values,
            default: call::optional_text(item.standard),
            description: call::text(item.description)?,
        })
    }
}

/// What the callbacks of a compilation work on.
struct Compilation<'a> {
    writer: ArtefactWriter,
    watch: &'a mut dyn Watch,
    failed: Option<ArtefactError>,
    contract: Option<String>,
    flags: BTreeMap<String, (FlagVerdict, String)>,
    placements: Vec<(u64, u64, String, String)>,
    panic: Option<Box<dyn Any + Send>>,
}

/// Most verdicts and placements taken in one compilation.
const REPORT_LIMIT: usize = 1 << 20;

/// Runs `body` on the compilation behind `context`. A panic of the caller's `Watch` is kept and raised when the shim has
/// returned: it must not unwind through foreign code.
///
/// # Safety
///
/// `context` is the one given with the callbacks, on the thread that called compile.
unsafe fn within<T>(context: *mut c_void, stopped: T, body: impl FnOnce(&mut Compilation<'_>) -> T) -> T {
    // SAFETY: promised by the caller; callbacks do not nest.
    let compilation = unsafe { &mut *context.cast::<Compilation<'_>>() };
    match catch_unwind(AssertUnwindSafe(|| body(compilation))) {
        Ok(value) => value,
        Err(payload) => {
            // SAFETY: as above; the panicking borrow has ended.
            unsafe { &mut *context.cast::<Compilation<'_>>() }.panic.get_or_insert(payload);
            stopped
        }
    }
}

/// # Safety
///
/// `pointer` is null or `length` readable bytes.
unsafe fn given<'a>(pointer: *const c_void, length: u64) -> Option<&'a [u8]> {
    match length {
        0 => Some(&[]),
        _ if pointer.is_null() || length > isize::MAX as u64 => None,
        // SAFETY: promised by the caller.
        _ => Some(unsafe { std::slice::from_raw_parts(pointer.cast(), length as usize) }),
    }
}

unsafe extern "C" fn compile_write(context: *mut c_void, bytes: *const c_void, length: u64) -> u32 {
    // SAFETY: as the contract says.
    unsafe {
        within(context, 1, |compilation| {
            let Some(bytes) = given(bytes, length) else {
                compilation.contract.get_or_insert("bytes that are null".to_owned());
                return 1;
            };
            if compilation.failed.is_some() || compilation.panic.is_some() {
                return 1;
            }
            match compilation.writer.write(bytes) {
                Ok(()) => 0,
                Err(error) => {
                    compilation.failed = Some(error);
                    1
                }
            }
        })
    }
}

unsafe extern "C" fn compile_head(context: *mut c_void, bytes: *const c_void, length: u64) -> u32 {
    // SAFETY: as the contract says.
    unsafe {
        within(context, 1, |compilation| {
            let taken = given(bytes, length).is_some_and(|bytes| compilation.writer.set_head(bytes));
            if !taken {
                compilation.contract.get_or_insert(format!(
                    "a head of {length} bytes that is null, too long or not the first"
                ));
            }
            u32::from(!taken)
        })
    }
}

unsafe extern "C" fn compile_progress(context: *mut c_void, per_mille: u32, stage: *const c_char) {
    // SAFETY: as the contract says.
    unsafe {
        within(context, (), |compilation| {
            let stage = call::optional_text(stage).unwrap_or_default();
            compilation.watch.progress(per_mille.min(1000), &stage);
        });
    }
}

unsafe extern "C" fn compile_cancelled(context: *mut c_void) -> u32 {
    // SAFETY: as the contract says.
    unsafe {
        within(context, 1, |compilation| {
            u32::from(
                compilation.watch.cancelled() || compilation.panic.is_some() || compilation.failed.is_some(),
            )
        })
    }
}

unsafe extern "C" fn compile_flag(context: *mut c_void, verdict: *const SwFlagVerdict) {
    // SAFETY: as the contract says.
    unsafe {
        within(context, (), |compilation| {
            let read = || -> Result<(String, FlagVerdict, String), String> {
                let item = call::whole(verdict)?;
                let evidence = call::optional_text(item.evidence).unwrap_or_default();
                let verdict = match item.verdict {
                    SW_FLAG_APPLIED => FlagVerdict::Applied { evidence: evidence.clone() },
                    SW_FLAG_RECORDED => FlagVerdict::Recorded,
                    SW_FLAG_INERT => FlagVerdict::Inert,
                    SW_FLAG_REFUSED => FlagVerdict::Refused,
                    SW_FLAG_UNKNOWN => FlagVerdict::Unknown,
                    other => return Err(format!("flag verdict {other}")),
                };
                Ok((call::text(item.name)?, verdict, evidence))
            };
            match read() {
                Ok((name, verdict, evidence)) if compilation.flags.len() < REPORT_LIMIT => {
                    compilation.flags.insert(name, (verdict, evidence));
                }
                Ok(_) => {}
                Err(reason) => {
                    compilation.contract.get_or_insert(reason);
                }
            }
        });
    }
}

unsafe extern "C" fn compile_placement(context: *mut c_void, placement: *const SwPlacement) {
    // SAFETY: as the contract says.
    unsafe {
        within(context, (), |compilation| {
            let read = || -> Result<(u64, u64, String, String), String> {
                let item = call::whole(placement)?;
                let reason = call::optional_text(item.reason).unwrap_or_default();
                Ok((item.entry, item.node, call::text(item.place)?, reason))
            };
            match read() {
                Ok(item) if compilation.placements.len() < REPORT_LIMIT => compilation.placements.push(item),
                Ok(_) => {}
                Err(reason) => {
                    compilation.contract.get_or_insert(reason);
                }
            }
        });
    }
}
