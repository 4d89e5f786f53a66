//! A shard loaded in a worker, with a channel of its own: runs of several shards go on at the same
//! time.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::process::{Call, Channel, Signal, Worker, answered};
use super::protocol::{Answer, Ask, Shown};
use super::{Remote, SharedMemory, done, reopened};
use crate::artefact::Artefact;
use crate::error::ShimError;
use crate::loaded::{Acquired, Binding, Bound, RunOptions, Told};

/// A loaded artefact in a worker.
pub(crate) struct RemoteShard {
    worker: Arc<Worker>,
    channel: Channel,
    requests: Arc<Requests>,
    shard: u64,
    /// Memory for what is bound as plain memory, by entry and binding.
    copies: BTreeMap<(usize, usize), Arc<SharedMemory>>,
}

/// Which run is in progress, and which was asked to stop; 0 for none.
#[derive(Default)]
struct Requests {
    running: AtomicU64,
    stopping: AtomicU64,
    cancels: bool,
}

/// Ends runs of a shard that it does not keep.
#[derive(Clone)]
pub(crate) struct RemoteCanceller(Weak<Requests>);

impl RemoteCanceller {
    pub(crate) fn cancel(&self) -> bool {
        let Some(requests) = self.0.upgrade().filter(|requests| requests.cancels) else { return false };
        // The thread that waits for the run looks here and tells the worker.
        requests.stopping.fetch_max(requests.running.load(Ordering::SeqCst), Ordering::SeqCst);
        true
    }
}

/// What one binding is in the worker.
struct Place {
    memory: Arc<SharedMemory>,
    offset: u64,
    /// Where the memory is mapped there.
    mapped: u64,
    /// Plain memory of this process that is copied, from its first byte on.
    plain: Option<(*mut u8, usize)>,
}

impl RemoteShard {
    pub(crate) fn load(
        remote: &Remote,
        device: &str,
        artefact: &Artefact,
        options: &[(String, String)],
    ) -> Result<(RemoteShard, Told), ShimError> {
        let worker = remote.worker()?;
        let failed = |error: std::io::Error| worker.host_failure("load", &error);
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let file = reopened(artefact.file()).map_err(failed)?;
        let channel = Channel::new(ours).map_err(failed)?;
        let shard = worker.next_shard();
        let ask = Ask::Load { shard, device: device.to_owned(), options: options.to_vec() };
        let descriptors = vec![OwnedFd::from(file), OwnedFd::from(theirs)];
        let call = Call { descriptors, ..Call::plain("load", worker.caps().run_time) };
        let (told, cancels) = worker.ask_with(call, ask, &mut |incoming| {
            answered(incoming, &mut |answer| match answer {
                Answer::Loaded { entries, flags, cancels } => Some(((entries, flags), cancels)),
                _ => None,
            })
        })?;
        let requests = Arc::new(Requests { cancels, ..Requests::default() });
        Ok((RemoteShard { worker, channel, requests, shard, copies: BTreeMap::new() }, told))
    }

    pub(crate) fn canceller(&self) -> RemoteCanceller {
        RemoteCanceller(Arc::downgrade(&self.requests))
    }

    /// `bound` was checked to have one element per binding.
    pub(crate) fn run(
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
        for (index, (given, binding)) in bound.iter_mut().zip(bindings).enumerate() {
            places.push(self.place((entry, index), given, binding)?);
        }
        let _acquired = Acquired::all(bound, bindings)?;
        let mut bounds = Vec::with_capacity(places.len());
        for place in &mut places {
            if let Some((from, length)) = place.plain {
                let count = length.min(place.memory.length() as usize);
                // SAFETY: `from` is mapped for `length` bytes and taken for this run; the copy is
                // used by this shard's runs alone, one at a time.
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
            cancelled: Some(&mut || requests.stopping.load(Ordering::SeqCst) >= number),
            cancel: Some(Signal::Run { shard: self.shard, number }),
            touched: &locate,
            ..Call::plain("run", time)
        };
        let result =
            self.worker.exchange(&mut self.channel, call, ask, &mut |incoming| answered(incoming, &mut done));
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
                // SAFETY: as above; what is written was taken for writing, or is the caller's
                // `&mut`.
                unsafe { std::ptr::copy_nonoverlapping(place.memory.pointer(), to, count) };
            }
        }
        result
    }

    /// Where a binding lies, refused where in process it would be.
    fn place(
        &mut self,
        place: (usize, usize),
        given: &mut Bound<'_>,
        binding: &Binding,
    ) -> Result<Place, ShimError> {
        let name = &binding.port.name;
        let refuse = |reason: String| ShimError::Argument(format!("binding `{name}`: {reason}"));
        let kinds = binding.memory_kinds;
        // A buffer of this very worker may be memory of the shim, as far as the shim can tell.
        let mut own = false;
        let (pointer, length, shared) = match given {
            Bound::Buffer(_) | Bound::BufferAt(..) => {
                let (buffer, offset) = match given {
                    Bound::BufferAt(buffer, offset) => (*buffer, *offset),
                    Bound::Buffer(buffer) => (*buffer, 0),
                    _ => return Err(refuse("no buffer".to_owned())),
                };
                let length = buffer
                    .length()
                    .checked_sub(offset)
                    .ok_or_else(|| refuse(format!("offset {offset} in a buffer of {}", buffer.length())))?;
                let shared = buffer.shared_memory();
                if let Some(owner) = shared.and_then(|memory| memory.owner()) {
                    if let Some(gone) = owner.gone("buffer") {
                        return Err(gone);
                    }
                    own = Arc::ptr_eq(owner, &self.worker);
                }
                let seen = own || kinds.host() && buffer.is_mapped();
                if !seen {
                    return Err(refuse(
                        "the device cannot see this buffer; copy it into one of its own".to_owned(),
                    ));
                }
                let pointer = buffer.pointer().wrapping_add(offset as usize);
                (pointer, length, shared.map(|memory| (memory.clone(), offset)))
            }
            Bound::Read(bytes) => {
                if binding.port.direction.is_written() {
                    return Err(refuse("it is written, but bound for reading".to_owned()));
                }
                (bytes.as_ptr().cast_mut(), bytes.len() as u64, None)
            }
            Bound::Write(bytes) => (bytes.as_mut_ptr(), bytes.len() as u64, None),
        };
        if length < binding.bytes {
            return Err(refuse(format!("{length} bytes given, {} needed", binding.bytes)));
        }
        if !(own && kinds.shim()) {
            if !kinds.host() {
                let reason = "the device takes no plain memory; bind a buffer it allocated";
                return Err(refuse(reason.to_owned()));
            }
            if binding.bytes > 0 && !(pointer as u64).is_multiple_of(binding.alignment) {
                return Err(refuse(format!("an alignment of {} is needed", binding.alignment)));
            }
        }
        if let Some((memory, offset)) = shared {
            return Ok(Place { memory, offset, mapped: 0, plain: None });
        }
        let memory = match self.copies.get(&place) {
            Some(memory) => memory.clone(),
            None => {
                let memory = Arc::new(SharedMemory::new(binding.bytes, binding.alignment, None)?);
                self.copies.insert(place, memory.clone());
                memory
            }
        };
        Ok(Place { memory, offset: 0, mapped: 0, plain: Some((pointer, length as usize)) })
    }

    /// Has the memory mapped in the worker, if it is not yet; gives the address.
    fn map(&mut self, memory: &Arc<SharedMemory>) -> Result<u64, ShimError> {
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
        let address = worker.exchange(&mut self.channel, call, ask, &mut |incoming| {
            answered(incoming, &mut |answer| match answer {
                Answer::Mapped { address } => Some(address),
                _ => None,
            })
        })?;
        mapped.insert(memory.id(), address);
        drop(mapped);
        memory.used_by(&worker);
        Ok(address)
    }
}

impl Drop for RemoteShard {
    fn drop(&mut self) {
        let call = Call::plain("unload", self.worker.caps().probe_time);
        let unloaded = self
            .worker
            .exchange(&mut self.channel, call, Ask::Unload, &mut |incoming| answered(incoming, &mut done));
        if let Err(error) = unloaded {
            tracing::debug!("shard not unloaded: {error}");
        }
    }
}
