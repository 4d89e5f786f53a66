//! A shard loaded in this process.

use std::ptr;
use std::sync::Arc;

use shardwright_shim_abi::raw::*;
use shardwright_vocabulary::FlagVerdict;

use super::Local;
use super::memory::ShimMemory;
use crate::artefact::Artefact;
use crate::buffer::Buffer;
use crate::call::{self, c_text};
use crate::compile::flag_verdict;
use crate::descriptor;
use crate::error::ShimError;
use crate::loaded_shard::{
    Acquired, Binding, Bound, Canceller, LoadReport, ReportedBinding, ReportedEntry, RunOptions, Shard,
};
use crate::tables::OptionTables;

struct Inner {
    local: Arc<Local>,
    raw: *mut SwShard,
    // Dropped after `drop` has unloaded the shard, so the mapping outlives the handle.
    _artefact: Artefact,
}

// SAFETY: the contract allows run and cancel from any thread. `LocalShard::run` borrows
// `&mut self`, so there is one run at a time.
unsafe impl Send for Inner {}
// SAFETY: as above. Through a shared reference only cancel is called, which the contract allows at
// any time.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(unload) = self.local.table.0.unload {
            let _one = self.local.enter();
            // SAFETY: created by load, unloaded once. A run borrows the shard, so none is in
            // progress.
            unsafe { unload(self.raw) };
        }
    }
}

pub(super) struct LocalShard {
    inner: Arc<Inner>,
    device: String,
    bounds: Vec<SwBound>,
    pointers: Vec<*const SwBound>,
}

// SAFETY: the scratch arrays contain pointers only during a run, which borrows the shard.
unsafe impl Send for LocalShard {}

impl LocalShard {
    pub(super) fn load(
        local: &Arc<Local>,
        device: &str,
        artefact: &Artefact,
        options: &[(String, String)],
    ) -> Result<LocalShard, ShimError> {
        let function = local.table.0.load.ok_or_else(|| local.missing("load"))?;
        let name = c_text("the device", device)?;
        let options = OptionTables::new(options).map_err(ShimError::work_order)?;
        let (head, payload) = (artefact.shim_head(), artefact.payload());
        let (fd, fd_offset) = match artefact.payload_in_file() {
            Some((file, offset)) => (descriptor::of_file(file), offset),
            None => (-1, 0),
        };
        let shown = SwArtefact {
            size: size_of::<SwArtefact>() as u64,
            head: if head.is_empty() { ptr::null() } else { head.as_ptr().cast() },
            head_length: head.len() as u64,
            pointer: if payload.is_empty() { ptr::null() } else { payload.as_ptr().cast() },
            length: payload.len() as u64,
            fd,
            reserved: 0,
            fd_offset,
        };
        let mut raw = ptr::null_mut();
        {
            let _one = local.enter();
            // SAFETY: pointers are as the contract specifies. `Inner` keeps the mapping until
            // unload. The error came from this table.
            unsafe {
                let error =
                    function(local.raw, name.as_ptr(), &shown, options.as_ptr(), options.len(), &mut raw);
                local.take("load", error)?;
            }
        }
        if raw.is_null() {
            return Err(local.contract("load", "success without a shard"));
        }
        // From here on, dropping unloads the shard.
        let inner = Arc::new(Inner { local: local.clone(), raw, _artefact: artefact.clone() });
        artefact.improve_pages();
        Ok(LocalShard { inner, device: device.to_owned(), bounds: Vec::new(), pointers: Vec::new() })
    }

    /// Returns the shim's report on the shard directly after loading.
    pub(super) fn report(&self) -> Result<LoadReport, ShimError> {
        let cancels = self.inner.local.table.0.cancel.is_some();
        Ok(LoadReport { entries: self.report_entries()?, flags: self.report_flags()?, cancels })
    }

    fn report_entries(&self) -> Result<Vec<ReportedEntry>, ShimError> {
        let local = &self.inner.local;
        let function = local.table.0.entries.ok_or_else(|| local.missing("entries"))?;
        let (error, reported) = {
            let _one = local.enter();
            call::loaded_entries(
                |item| {
                    // SAFETY: the contract specifies that it is a string.
                    let name = unsafe { call::text(item.name) }?;
                    let (index, rows, count) = (item.index, item.rows, item.binding_count);
                    Ok(ReportedEntry { index, name, rows, count, bindings: Vec::new() })
                },
                // SAFETY: the shard was just loaded. The sink is as the contract specifies.
                |sink| unsafe { function(self.inner.raw, sink) },
            )
        };
        // SAFETY: the error came from this table.
        unsafe { local.take("entries", error) }?;
        let mut reported = reported.finish().map_err(|reason| local.contract("entries", reason))?;
        for (place, entry) in reported.iter_mut().enumerate() {
            // Only the indices that the shim listed may be queried.
            if entry.index == place as u64 {
                entry.bindings = self.report_bindings(entry.index)?;
            }
        }
        Ok(reported)
    }

    /// Returns name, verdict, and evidence or reason of each flag.
    fn report_flags(&self) -> Result<Vec<(String, FlagVerdict, String)>, ShimError> {
        let local = &self.inner.local;
        let Some(function) = local.table.0.flag_verdicts else { return Ok(Vec::new()) };
        let (error, reported) = {
            let _one = local.enter();
            call::flag_verdicts(
                |item| {
                    // SAFETY: the contract specifies that they are strings.
                    let (name, reason) = unsafe { (call::text(item.name)?, call::text(item.evidence)?) };
                    Ok((name, flag_verdict(item.verdict, &reason)?, reason))
                },
                // SAFETY: the shard was just loaded. The sink is as the contract specifies.
                |sink| unsafe { function(self.inner.raw, sink) },
            )
        };
        // SAFETY: the error came from this table.
        unsafe { local.take("flag_verdicts", error) }?;
        reported.finish().map_err(|reason| local.contract("flag_verdicts", reason))
    }

    fn report_bindings(&self, entry: u64) -> Result<Vec<ReportedBinding>, ShimError> {
        let local = &self.inner.local;
        let function = local.table.0.bindings.ok_or_else(|| local.missing("bindings"))?;
        let (error, reported) = {
            let _one = local.enter();
            call::bindings(
                |item| {
                    // SAFETY: the contract specifies a string and arrays of `rank` numbers.
                    unsafe {
                        Ok(ReportedBinding {
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
                            scale_bits: item.scale.to_bits(),
                            zero_point: item.zero_point,
                        })
                    }
                },
                // SAFETY: the shard is loaded. The sink is as the contract specifies.
                |sink| unsafe { function(self.inner.raw, entry, sink) },
            )
        };
        // SAFETY: the error came from this table.
        unsafe { local.take("bindings", error) }?;
        reported.finish().map_err(|reason| local.contract("bindings", reason))
    }

    /// Returns the shim's handle of a buffer, if the buffer is its own.
    fn handle(&self, buffer: &Buffer) -> Option<*mut SwBuffer> {
        buffer.memory::<ShimMemory>()?.handle_for(&self.inner.local, &self.device)
    }
}

impl Shard for LocalShard {
    fn run(
        &mut self,
        entry: usize,
        rows: u64,
        bindings: &[Binding],
        bound: &mut [Bound<'_>],
        options: RunOptions,
    ) -> Result<(), ShimError> {
        let local = &self.inner.local;
        let function = local.table.0.run.ok_or_else(|| local.missing("run"))?;
        self.bounds.clear();
        self.pointers.clear();
        for (memory, binding) in bound.iter_mut().zip(bindings) {
            let placed = memory.placed(binding, |buffer| Ok(self.handle(buffer).is_some()))?;
            let own = placed.buffer.filter(|_| placed.own);
            let own = own.and_then(|(buffer, offset)| Some((self.handle(buffer)?, offset)));
            self.bounds.push(SwBound {
                size: size_of::<SwBound>() as u64,
                buffer: own.map_or(ptr::null_mut(), |(handle, _)| handle),
                pointer: if own.is_some() { ptr::null_mut() } else { placed.pointer.cast() },
                offset: own.map_or(0, |(_, offset)| offset),
                length: placed.length,
            });
        }
        let _acquired = Acquired::all(bound, bindings)?;
        self.pointers.extend(self.bounds.iter().map(ptr::from_ref));
        let run = SwRun {
            size: size_of::<SwRun>() as u64,
            entry: entry as u64,
            rows,
            bounds: if self.pointers.is_empty() { ptr::null() } else { self.pointers.as_ptr() },
            bound_count: self.pointers.len() as u64,
            // In the contract, 0 means no deadline. A deadline of zero becomes the shortest
            // possible.
            deadline_nanoseconds: options
                .deadline
                .map_or(0, |deadline| u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX).max(1)),
            largest_logits: options.largest_logits.map_or(0, |count| count.get() as u64),
        };
        // SAFETY: pointers are as the contract specifies. Written memory does not overlap other
        // memory, which `&mut` guarantees for plain memory and `_acquired` for buffers. The error
        // came from this table.
        unsafe {
            let error = function(self.inner.raw, &run);
            local.take("run", error)
        }
    }

    fn allocate(&self, length: u64, alignment: u64) -> Result<Buffer, ShimError> {
        ShimMemory::allocate(&self.inner.local, &self.device, length, alignment)
    }

    fn canceller(&self) -> Canceller {
        let inner = Arc::downgrade(&self.inner);
        Canceller::new(move || {
            let Some(inner) = inner.upgrade() else { return false };
            let Some(cancel) = inner.local.table.0.cancel else { return false };
            // SAFETY: `inner` keeps the shard alive. The contract allows cancel from any thread.
            unsafe { cancel(inner.raw) };
            true
        })
    }
}
