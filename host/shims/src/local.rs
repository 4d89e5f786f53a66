//! An instance in this process: the functions of its table, called one at a time.

use std::ffi::c_void;
use std::fs::File;
use std::panic::resume_unwind;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard};

use memmap2::MmapOptions;
use shardwright_graph::NodeVerdict;
use shardwright_shim_abi::raw::*;
use shardwright_vocabulary::{
    Compatibility, Device, DeviceKind, Estimate, FlagSchema, FlagStage, Limit, MemoryKinds,
};

use crate::artefact::Artefact;
use crate::buffer::Buffer;
use crate::call::{self, Table, c_text, value_type};
use crate::chip::Chip;
use crate::compile::{self, Output};
use crate::convert;
use crate::descriptor::Descriptor;
use crate::error::ShimError;
use crate::functions::{Functions, ShownEntry};
use crate::library;
use crate::loaded_shard::{LoadReport, Running, Shard};
use crate::shim::{Claim, Shim, lock};
use crate::tables::{ChipTable, EntryTables, OptionTables, WorkOrderTables};
use crate::work_order::WorkOrder;

mod memory;
mod shard;

use memory::ShimMemory;
use shard::LocalShard;

/// An open instance. Shards and buffers keep it alive. It closes with the last of them.
pub(crate) struct Local {
    name: String,
    table: Table,
    raw: *mut SwShim,
    /// Allows only one call at a time per instance, as the contract requires. Run and cancel are
    /// exceptions.
    lock: Mutex<()>,
    _claim: Claim,
}

// SAFETY: the contract allows calls from any thread. `lock` keeps them one at a time.
unsafe impl Send for Local {}
// SAFETY: as above.
unsafe impl Sync for Local {}

impl Drop for Local {
    fn drop(&mut self) {
        if let Some(close) = self.table.0.close {
            // SAFETY: created by `open`. Shards and buffers keep this value alive, so none is left.
            unsafe { close(self.raw) };
        }
    }
}

impl Local {
    pub(crate) fn open(
        shim: &Shim,
        name: &str,
        options: &[(String, String)],
        claim: Claim,
    ) -> Result<Arc<Local>, ShimError> {
        let options = OptionTables::new(options).map_err(ShimError::work_order)?;
        let table = shim.table().map_err(ShimError::load)?;
        let function = table.0.open.ok_or_else(|| ShimError::missing(name, "open"))?;
        let mut raw: *mut SwShim = ptr::null_mut();
        // SAFETY: pointers are as the contract specifies.
        let error = unsafe { function(library::host(), options.as_ptr(), options.len(), &mut raw) };
        // SAFETY: the error came from this table.
        unsafe { call::take_error(table, name, "open", error) }?;
        if raw.is_null() {
            return Err(ShimError::contract(name, "open", "success without an instance"));
        }
        Ok(Arc::new(Local { name: name.to_owned(), table, raw, lock: Mutex::new(()), _claim: claim }))
    }

    fn enter(&self) -> MutexGuard<'_, ()> {
        lock(&self.lock)
    }

    /// Converts an error object to an error and frees it.
    ///
    /// # Safety
    ///
    /// `error` was returned by this instance's table and not freed.
    unsafe fn take(&self, function: &'static str, error: *mut SwError) -> Result<(), ShimError> {
        // SAFETY: promised by the caller.
        unsafe { call::take_error(self.table, &self.name, function, error) }
    }

    fn missing(&self, function: &'static str) -> ShimError {
        ShimError::missing(&self.name, function)
    }

    fn contract(&self, function: &'static str, reason: impl Into<String>) -> ShimError {
        ShimError::contract(&self.name, function, reason)
    }

    /// Returns the items that a sink received, unless the function failed.
    fn collected<T>(
        &self,
        function: &'static str,
        error: *mut SwError,
        collected: call::Collected<T>,
    ) -> Result<Vec<T>, ShimError> {
        // SAFETY: the callers pass the result of their table's function.
        unsafe { self.take(function, error) }?;
        collected.finish().map_err(|reason| self.contract(function, reason))
    }
}

impl Functions for Arc<Local> {
    fn chip(&self, chip: &Chip) -> Result<(), ShimError> {
        let function = self.table.0.chip.ok_or_else(|| self.missing("chip"))?;
        let table = ChipTable::new(chip).map_err(ShimError::work_order)?;
        let _one = self.enter();
        // SAFETY: pointers are as the contract specifies, and the table outlives the call. The
        // error came from this table.
        unsafe {
            let error = function(self.raw, table.as_ptr());
            self.take("chip", error)
        }
    }

    fn devices(&self, soc: Option<&str>) -> Result<Vec<Device>, ShimError> {
        let function = self.table.0.devices.ok_or_else(|| self.missing("devices"))?;
        let soc = soc.map(|soc| c_text("the SoC", soc)).transpose()?;
        let soc = soc.as_ref().map_or(ptr::null(), |soc| soc.as_ptr());
        let (error, collected) = {
            let _one = self.enter();
            call::devices(
                |item| {
                    let kind = match item.kind {
                        SW_DEVICE_PRESENT => DeviceKind::Present,
                        SW_DEVICE_OFFLINE => DeviceKind::Offline,
                        SW_DEVICE_SIMULATED => DeviceKind::Simulated,
                        other => return Err(format!("unknown device kind {other}")),
                    };
                    // SAFETY: the contract specifies that they are strings.
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
                // SAFETY: pointers are as the contract specifies.
                |sink| unsafe { function(self.raw, soc, sink) },
            )
        };
        self.collected("devices", error, collected)
    }

    fn limits(&self, device: &str) -> Result<Vec<Limit>, ShimError> {
        let Some(function) = self.table.0.limits else { return Ok(Vec::new()) };
        let device = c_text("the device", device)?;
        let (error, collected) = {
            let _one = self.enter();
            call::limits(
                |item| {
                    // SAFETY: the contract specifies that they are strings.
                    let (name, note) = unsafe { (call::text(item.name)?, call::optional_text(item.note)) };
                    let provenance = convert::provenance(item.provenance)
                        .ok_or_else(|| format!("unknown provenance {}", item.provenance))?;
                    Ok(Limit { note: note.unwrap_or_default(), ..Limit::new(name, item.value, provenance) })
                },
                // SAFETY: pointers are as the contract specifies.
                |sink| unsafe { function(self.raw, device.as_ptr(), sink) },
            )
        };
        self.collected("limits", error, collected)
    }

    fn flags(&self, device: &str) -> Result<Vec<FlagSchema>, ShimError> {
        let Some(function) = self.table.0.flags else { return Ok(Vec::new()) };
        let device = c_text("the device", device)?;
        let (error, collected) = {
            let _one = self.enter();
            // SAFETY: pointers are as the contract specifies.
            call::flags(flag_schema, |sink| unsafe { function(self.raw, device.as_ptr(), sink) })
        };
        self.collected("flags", error, collected)
    }

    fn check(&self, device: &str, entry: ShownEntry) -> Result<Vec<(u64, NodeVerdict)>, ShimError> {
        let function = self.table.0.check.ok_or_else(|| self.missing("check"))?;
        let device = c_text("the device", device)?;
        let tables = EntryTables::new(&entry).map_err(ShimError::work_order)?;
        let (error, collected) = {
            let _one = self.enter();
            call::verdicts(
                |item| {
                    let verdict = match item.verdict {
                        SW_VERDICT_TAKEN => NodeVerdict::accepted(),
                        // SAFETY: the contract specifies that it is a string.
                        SW_VERDICT_REFUSED => NodeVerdict::refused(unsafe { call::text(item.reason) }?),
                        other => return Err(format!("unknown verdict {other}")),
                    };
                    Ok((item.node, verdict))
                },
                // SAFETY: pointers are as the contract specifies. The tables outlive the call.
                |sink| unsafe { function(self.raw, device.as_ptr(), tables.as_ptr(), sink) },
            )
        };
        self.collected("check", error, collected)
    }

    fn estimate(
        &self,
        device: &str,
        entry: ShownEntry,
        _cancelled: &dyn Fn() -> bool,
    ) -> Result<Vec<Estimate>, ShimError> {
        let Some(function) = self.table.0.estimate else { return Ok(Vec::new()) };
        let device = c_text("the device", device)?;
        let tables = EntryTables::new(&entry).map_err(ShimError::work_order)?;
        let (error, collected) = {
            let _one = self.enter();
            call::estimates(
                |item| {
                    Ok(Estimate {
                        time_microseconds: item.time_microseconds,
                        provenance: convert::provenance(item.provenance)
                            .ok_or_else(|| format!("unknown provenance {}", item.provenance))?,
                        bytes_moved: item.bytes_moved,
                        // SAFETY: the contract specifies that many numbers.
                        uncosted: unsafe { call::numbers(item.uncosted, item.uncosted_count) }?,
                        operations: item.operations,
                        artefact_bytes: item.artefact_bytes,
                        shared_bytes: item.shared_bytes,
                    })
                },
                // SAFETY: pointers are as the contract specifies. The tables outlive the call.
                |sink| unsafe { function(self.raw, device.as_ptr(), tables.as_ptr(), sink) },
            )
        };
        self.collected("estimate", error, collected)
    }

    fn compile(&self, device: &str, order: &WorkOrder, output: &mut dyn Output) -> Result<(), ShimError> {
        let function = self.table.0.compile.ok_or_else(|| self.missing("compile"))?;
        let device = c_text("the device", device)?;
        let tables = WorkOrderTables::new(order).map_err(ShimError::work_order)?;
        let called = compile::call(output, |shown| {
            let _one = self.enter();
            // SAFETY: pointers are as the contract specifies. The tables outlive the call.
            unsafe { function(self.raw, device.as_ptr(), tables.as_ptr(), shown) }
        });
        // SAFETY: the error came from this table.
        let result = unsafe { self.take("compile", called.error) };
        if let Some(payload) = called.panic {
            resume_unwind(payload);
        }
        result?;
        match called.contract {
            None => Ok(()),
            Some(reason) => Err(self.contract("compile", reason)),
        }
    }

    fn compatibility(&self, device: &str, head: &[u8]) -> Result<Vec<Compatibility>, ShimError> {
        let function = self.table.0.compatibility.ok_or_else(|| self.missing("compatibility"))?;
        let device = c_text("the device", device)?;
        let pointer: *const c_void = if head.is_empty() { ptr::null() } else { head.as_ptr().cast() };
        let (error, collected) = {
            let _one = self.enter();
            call::compatibilities(
                |item| {
                    // SAFETY: the contract specifies that it is a string or null.
                    let reason = unsafe { call::optional_text(item.reason) }.unwrap_or_default();
                    Ok(match item.answer {
                        SW_COMPATIBILITY_NOT_MINE => Compatibility::NotMine(reason),
                        SW_COMPATIBILITY_OPTIMAL => Compatibility::Optimal,
                        SW_COMPATIBILITY_RECOMPILE => Compatibility::Recompile(reason),
                        SW_COMPATIBILITY_UNSUPPORTED => Compatibility::Unsupported(reason),
                        other => return Err(format!("unknown answer {other}")),
                    })
                },
                // SAFETY: pointers are as the contract specifies. The head outlives the call.
                |sink| unsafe { function(self.raw, device.as_ptr(), pointer, head.len() as u64, sink) },
            )
        };
        self.collected("compatibility", error, collected)
    }

    fn inspect(&self, file: &File, offset: u64, length: u64) -> Result<Vec<(String, String)>, ShimError> {
        let Some(function) = self.table.0.inspect else { return Ok(Vec::new()) };
        let failed = |error: std::io::Error| ShimError::Argument(format!("cannot map the file: {error}"));
        let length_here =
            usize::try_from(length).map_err(|_| ShimError::Argument(format!("cannot map {length} bytes")))?;
        let map = match length_here {
            0 => None,
            // SAFETY: `ShimInstance::inspect` requires that the file is not changed meanwhile. The
            // range was checked against its length.
            _ => Some(
                unsafe { MmapOptions::new().offset(offset).len(length_here).map(file) }.map_err(failed)?,
            ),
        };
        let pointer: *const c_void = map.as_ref().map_or(ptr::null(), |map| map.as_ptr().cast());
        let (error, collected) = {
            let _one = self.enter();
            call::inspections(
                // SAFETY: the contract specifies that they are strings.
                |item| unsafe { Ok((call::text(item.format)?, call::document(item.document)?)) },
                // SAFETY: pointers are as the contract specifies. The mapping outlives the call.
                |sink| unsafe { function(self.raw, pointer, length, sink) },
            )
        };
        self.collected("inspect", error, collected)
    }

    fn recover(&self, device: &str) -> Result<(), ShimError> {
        let function = self.table.0.recover.ok_or_else(|| self.missing("recover"))?;
        let device = c_text("the device", device)?;
        let _one = self.enter();
        // SAFETY: pointers are as the contract specifies. The error came from this table.
        unsafe {
            let error = function(self.raw, device.as_ptr());
            self.take("recover", error)
        }
    }

    fn load(
        &self,
        device: &str,
        artefact: &Artefact,
        options: &[(String, String)],
    ) -> Result<(Box<dyn Shard>, LoadReport), ShimError> {
        let shard = LocalShard::load(self, device, artefact, options)?;
        let report = shard.report()?;
        Ok((Box::new(shard), report))
    }

    fn allocate(&self, device: &str, length: u64, alignment: u64) -> Result<Buffer, ShimError> {
        ShimMemory::allocate(self, device, length, alignment)
    }

    fn import(&self, device: &str, fd: Descriptor, offset: u64, length: u64) -> Result<Buffer, ShimError> {
        ShimMemory::import(self, device, fd, offset, length)
    }

    fn running(&self) -> Running {
        Running::InProcess
    }
}

fn flag_schema(item: &SwFlag) -> Result<FlagSchema, String> {
    let values = value_type(item.kind, (item.minimum, item.maximum), (item.choices, item.choice_count))?;
    let stage = match item.stage {
        SW_FLAG_STAGE_COMPILE => FlagStage::Compile,
        SW_FLAG_STAGE_LOAD => FlagStage::Load,
        other => return Err(format!("unknown flag stage {other}")),
    };
    // SAFETY: the contract specifies that they are strings.
    unsafe {
        Ok(FlagSchema {
            name: call::text(item.name)?,
            values,
            default: call::optional_text(item.standard),
            description: call::text(item.description)?,
            stage,
        })
    }
}
