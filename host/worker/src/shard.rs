//! A shard loaded in a worker. It has its own channel, so several shards can run at the same time.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use shardwright_shims::{
    Acquired, Artefact, Binding, Bound, Buffer, Canceller, LoadReport, Memory, RunOptions, Running, Shard,
    ShimError,
};

use crate::process::{Call, Channel, Signal, Worker};
use crate::protocol::{Ask, Shown};
use crate::remote::{Remote, reopened};
use crate::shared::SharedMemory;

/// A loaded artefact in a worker.
pub(crate) struct RemoteShard {
    remote: Arc<Remote>,
    worker: Arc<Worker>,
    channel: Channel,
    requests: Arc<Requests>,
    /// Whether its runs can be cancelled.
    cancels: bool,
    shard: u64,
    /// Shared memory for bound plain memory, by entry and binding.
    copies: BTreeMap<(usize, usize), SharedMemory>,
}

/// The run in progress, and the run with a request to stop. 0 means none.
#[derive(Default)]
struct Requests {
    running: AtomicU64,
    stopping: AtomicU64,
}

/// One binding in the worker.
struct WorkerBinding {
    memory: SharedMemory,
    offset: u64,
    /// Address at which the memory is mapped in the worker.
    mapped: u64,
    /// Plain memory of this process that is copied: address and length.
    plain: Option<(*mut u8, usize)>,
}

impl RemoteShard {
    pub(crate) fn load(
        remote: &Arc<Remote>,
        device: &str,
        artefact: &Artefact,
        options: &[(String, String)],
    ) -> Result<(RemoteShard, LoadReport), ShimError> {
        let worker = remote.worker()?;
        let failed = |error: std::io::Error| worker.host_failure("load", &error);
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let section = artefact.section();
        let file = reopened(section.file()).map_err(failed)?;
        let channel = Channel::new(ours).map_err(failed)?;
        let shard = worker.next_shard();
        let (offset, length) = (section.offset(), section.length());
        let (device, options) = (device.to_owned(), options.to_vec());
        let ask = Ask::Load { shard, device, options, offset, length };
        let descriptors = vec![OwnedFd::from(file), OwnedFd::from(theirs)];
        let call = Call { descriptors, ..Call::plain("load", worker.caps().run_time) };
        let report: LoadReport = worker.ask_with(call, ask)?;
        let loaded = RemoteShard {
            remote: remote.clone(),
            worker,
            channel,
            requests: Arc::default(),
            cancels: report.cancels,
            shard,
            copies: BTreeMap::new(),
        };
        Ok((loaded, report))
    }

    /// Locates the memory of a binding.
    fn place(
        &mut self,
        place: (usize, usize),
        memory: &mut Bound<'_>,
        binding: &Binding,
    ) -> Result<WorkerBinding, ShimError> {
        let placed = memory.placed(binding, |buffer| {
            // A buffer of this same worker may count as the shim's own memory, since the shim
            // cannot tell the difference.
            match buffer.memory::<SharedMemory>().and_then(SharedMemory::owner) {
                None => Ok(false),
                Some(owner) => match owner.gone("buffer") {
                    None => Ok(Arc::ptr_eq(owner, &self.worker)),
                    Some(gone) => Err(gone),
                },
            }
        })?;
        if let Some((buffer, offset)) = placed.buffer
            && let Some(memory) = buffer.memory::<SharedMemory>()
        {
            return Ok(WorkerBinding { memory: memory.clone(), offset, mapped: 0, plain: None });
        }
        let memory = match self.copies.get(&place) {
            Some(memory) => memory.clone(),
            None => {
                let memory = SharedMemory::new(binding.bytes, binding.alignment, None)?;
                self.copies.insert(place, memory.clone());
                memory
            }
        };
        Ok(WorkerBinding {
            memory,
            offset: 0,
            mapped: 0,
            plain: Some((placed.pointer, placed.length as usize)),
        })
    }

    /// Maps the memory in the worker, if it is not mapped yet. Returns the address.
    fn map(&mut self, memory: &SharedMemory) -> Result<u64, ShimError> {
        let worker = self.worker.clone();
        let mut mapped = worker.mapped();
        if let Some(address) = mapped.get(&memory.id()) {
            return Ok(*address);
        }
        let fd = memory.fd().try_clone().map_err(|error| worker.host_failure("buffer", &error))?;
        let call = Call { descriptors: vec![fd], ..Call::plain("buffer", worker.caps().probe_time) };
        let ask = Ask::Map {
            buffer: memory.id(),
            offset: memory.offset(),
            length: memory.length(),
            alignment: memory.alignment(),
        };
        let address: u64 = worker.exchange(&mut self.channel, call, ask)?;
        mapped.insert(memory.id(), address);
        drop(mapped);
        memory.used_by(&worker);
        Ok(address)
    }
}

impl Shard for RemoteShard {
    fn run(
        &mut self,
        entry: usize,
        rows: u64,
        bindings: &[Binding],
        bound: &mut [Bound<'_>],
        options: RunOptions,
    ) -> Result<(), ShimError> {
        if let Some(gone) = self.worker.gone("run") {
            return Err(gone);
        }
        let number = self.requests.running.fetch_add(1, Ordering::SeqCst) + 1;
        let mut places = Vec::with_capacity(bindings.len());
        for (index, (memory, binding)) in bound.iter_mut().zip(bindings).enumerate() {
            places.push(self.place((entry, index), memory, binding)?);
        }
        let _acquired = Acquired::all(bound, bindings)?;
        let mut bounds = Vec::with_capacity(places.len());
        for place in &mut places {
            if let Some((from, length)) = place.plain {
                let count = length.min(place.memory.length() as usize);
                // SAFETY: `from` is mapped for `length` bytes and reserved for this run. Only this
                // shard's runs use the copy, one at a time.
                unsafe { std::ptr::copy_nonoverlapping(from, place.memory.pointer(), count) };
                place.memory.changed();
            }
            place.mapped = self.map(&place.memory)?;
            bounds.push(Shown(place.memory.id(), place.offset, place.memory.changes()));
        }
        let RunOptions { deadline, largest_logits } = options;
        let nanoseconds = |deadline: Duration| u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX).max(1);
        let ask = Ask::Run {
            number,
            entry: entry as u64,
            rows,
            bounds,
            deadline_nanoseconds: deadline.map(nanoseconds),
            largest_logits,
        };
        let caps = *self.worker.caps();
        let time = deadline.map_or(caps.run_time, |deadline| {
            deadline.checked_add(caps.grace).map_or(caps.run_time, |time| time.min(caps.run_time))
        });
        let locate = |address: u64| {
            places
                .iter()
                .zip(bindings)
                .find_map(|(place, binding)| place.memory.locate(&binding.port.name, place.mapped, address))
        };
        let requests = &self.requests;
        let call = Call {
            cancelled: Some(&|| requests.stopping.load(Ordering::SeqCst) >= number),
            cancel: Some(Signal::Run { shard: self.shard, number }),
            touched: &locate,
            ..Call::plain("run", time)
        };
        let result = self.worker.exchange::<()>(&mut self.channel, call, ask);
        let result = result.and_then(|()| {
            let overrun = places
                .iter()
                .zip(bindings)
                .find_map(|(place, binding)| place.memory.overrun(&binding.port.name));
            overrun.map_or(Ok(()), |touched| Err(self.worker.overran("run", touched)))
        });
        for (place, _) in
            places.iter().zip(bindings).filter(|(_, binding)| binding.port.direction.is_written())
        {
            place.memory.changed();
            if let (Some((to, length)), Ok(())) = (place.plain, &result) {
                let count = length.min(place.memory.length() as usize);
                // SAFETY: as above. The destination was reserved for writing, or is the caller's
                // `&mut`.
                unsafe { std::ptr::copy_nonoverlapping(place.memory.pointer(), to, count) };
            }
        }
        result
    }

    fn allocate(&self, length: u64, alignment: u64) -> Result<Buffer, ShimError> {
        self.remote.allocate(length, alignment)
    }

    fn canceller(&self) -> Canceller {
        let (requests, cancels) = (Arc::downgrade(&self.requests), self.cancels);
        Canceller::new(move || {
            let Some(requests) = requests.upgrade().filter(|_| cancels) else { return false };
            // The thread that waits for the run reads this and signals the worker.
            requests.stopping.fetch_max(requests.running.load(Ordering::SeqCst), Ordering::SeqCst);
            true
        })
    }

    fn running(&self) -> Running {
        self.remote.running()
    }
}

impl Drop for RemoteShard {
    fn drop(&mut self) {
        let call = Call::plain("unload", self.worker.caps().probe_time);
        if let Err(error) = self.worker.exchange::<()>(&mut self.channel, call, Ask::Unload) {
            tracing::debug!("shard not unloaded: {error}");
        }
    }
}
