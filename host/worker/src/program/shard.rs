//! Shards in the worker. Each has a thread and a channel, and runs on memory that the host shares.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shardwright_shims::{
    Artefact, Binding, Bound, Buffer, Direction, LoadReport, LoadedEntry, LoadedShard, RunOptions, ShimError,
    ShimInstance,
};

use super::{Line, ShardState, cancelled, one, shared};
use crate::lock;
use crate::os::{self, Region};
use crate::protocol::{Ask, Shown};

/// Maximum length of a message on a shard's channel in bytes. A run lists its bound memory.
const RUN_LIMIT: usize = 4 << 20;

/// A buffer of the host.
pub(super) struct Mapped {
    region: Region,
    offset: usize,
    length: usize,
    alignment: u64,
    /// Copies in the shim's own memory, by device, with the host's change count that they match.
    /// They are for shims that accept no other memory.
    own: Mutex<BTreeMap<String, (Buffer, u64)>>,
}

/// Maps shared memory between guard pages and returns its address.
pub(super) fn map(
    buffer: u64,
    offset: u64,
    length: u64,
    alignment: u64,
    descriptors: Vec<OwnedFd>,
) -> Result<u64, ShimError> {
    let fd = one(descriptors)?;
    let refuse = |reason: String| ShimError::Argument(format!("cannot map shared memory: {reason}"));
    let total = os::sealed_length(fd.as_fd()).map_err(|error| refuse(error.to_string()))?;
    let end = offset.checked_add(length).filter(|&end| end <= total as u64);
    if end.is_none() || !alignment.is_power_of_two() {
        return Err(refuse(format!("{length} bytes at offset {offset} of {total}")));
    }
    let region =
        Region::map(fd.as_fd(), total, alignment as usize).map_err(|error| refuse(error.to_string()))?;
    let address = region.data() as u64;
    let mapped = Mapped {
        region,
        offset: offset as usize,
        length: length as usize,
        alignment,
        own: Mutex::new(BTreeMap::new()),
    };
    lock(&shared().buffers).insert(buffer, Arc::new(mapped));
    Ok(address)
}

/// Loads an artefact and starts the thread that runs it.
pub(super) fn load(
    instance: &ShimInstance,
    shard: u64,
    device: &str,
    options: &[(String, String)],
    (offset, length): (u64, u64),
    descriptors: Vec<OwnedFd>,
) -> Result<LoadReport, ShimError> {
    let [artefact, channel] = <[OwnedFd; 2]>::try_from(descriptors)
        .map_err(|all| ShimError::Argument(format!("expected 2 descriptors, got {}", all.len())))?;
    let artefact = Artefact::received(File::from(artefact), offset, length);
    let artefact = artefact.map_err(ShimError::artefact)?;
    let channel = UnixStream::from(os::move_high(channel));
    // The host also compares the report with the artefact, and rejects a mismatch. Then the
    // artefact is not run.
    let (loaded, report) = instance.load_reported(device, &artefact, options)?;
    let state = ShardState { canceller: loaded.canceller(), running: 0, stopped: 0 };
    let mut runner = Runner {
        instance: instance.name().to_owned(),
        shard,
        device: device.to_owned(),
        entries: loaded.entries().to_vec(),
        loaded: Some(loaded),
    };
    lock(&shared().shards).insert(shard, state);
    let line = Line::new(channel, RUN_LIMIT);
    std::thread::Builder::new().name(format!("shard-{shard}")).spawn(move || runner.serve(line)).map_err(
        |error| {
            ShimError::Argument(format!("cannot start a thread for the shard (check `ulimit -u`): {error}"))
        },
    )?;
    Ok(report)
}

struct Runner {
    instance: String,
    shard: u64,
    device: String,
    /// `None` after unloading.
    loaded: Option<LoadedShard>,
    entries: Vec<LoadedEntry>,
}

impl Drop for Runner {
    fn drop(&mut self) {
        lock(&shared().shards).remove(&self.shard);
    }
}

impl Runner {
    fn serve(&mut self, mut line: Line) {
        while let Some((request, descriptors)) = line.next() {
            match request.ask {
                Ask::Map { buffer, offset, length, alignment } => {
                    line.answer(map(buffer, offset, length, alignment, descriptors));
                }
                Ask::Run { number, entry, rows, bounds, deadline_nanoseconds, largest_logits } => {
                    let deadline = deadline_nanoseconds.map(Duration::from_nanos);
                    let options = RunOptions { deadline, largest_logits };
                    line.answer(self.numbered(number, entry, rows, &bounds, options));
                }
                Ask::Unload => {
                    self.loaded = None;
                    return line.answer(Ok(()));
                }
                _ => line.answer::<()>(Err(ShimError::Argument("the request is not valid here".to_owned()))),
            }
        }
    }

    /// Runs the shard, unless there was a request to stop the run, possibly before it began.
    fn numbered(
        &mut self,
        number: u64,
        entry: u64,
        rows: u64,
        bounds: &[Shown],
        options: RunOptions,
    ) -> Result<(), ShimError> {
        let set = |running: u64| {
            let mut shards = lock(&shared().shards);
            shards.get_mut(&self.shard).is_some_and(|state| {
                state.running = running;
                state.stopped >= number
            })
        };
        if set(number) {
            set(0);
            return Err(cancelled(&self.instance, "run"));
        }
        let result = self.run(entry, rows, bounds, options);
        let mut shards = lock(&shared().shards);
        if let Some(state) = shards.get_mut(&self.shard) {
            state.running = 0;
        }
        result
    }

    fn run(&mut self, entry: u64, rows: u64, bounds: &[Shown], options: RunOptions) -> Result<(), ShimError> {
        let index = entry as usize;
        let refuse = |reason: &str| ShimError::Argument(reason.to_owned());
        let reported = self.entries.get(index).ok_or_else(|| refuse("no such entry"))?;
        let loaded = self.loaded.as_mut().ok_or_else(|| refuse("the shard is unloaded"))?;
        if bounds.len() != reported.bindings.len() {
            return Err(refuse("expected one buffer per binding"));
        }
        let mut places = Vec::with_capacity(bounds.len());
        for (&Shown(buffer, offset, change), binding) in bounds.iter().zip(&reported.bindings) {
            let mapped = lock(&shared().buffers).get(&buffer).cloned();
            let mapped = mapped.ok_or_else(|| refuse("the buffer is not mapped"))?;
            let offset = usize::try_from(offset).ok().filter(|&offset| offset <= mapped.length);
            let offset = offset.ok_or_else(|| refuse("the offset is beyond the buffer"))?;
            let own = match binding.memory_kinds.host() {
                true => None,
                false => Some(mapped.own(loaded, &self.device, change)?),
            };
            places.push((mapped, offset, own));
        }
        let mut bound: Vec<Bound<'_>> = places
            .iter()
            .zip(&reported.bindings)
            .map(|((mapped, offset, own), binding)| match own {
                Some(own) => Bound::BufferAt(own, *offset as u64),
                None => mapped.bound(*offset, binding),
            })
            .collect();
        let result = loaded.run(index, rows, &mut bound, options);
        drop(bound);
        for (((mapped, _, own), &Shown(_, _, change)), binding) in
            places.iter().zip(bounds).zip(&reported.bindings)
        {
            if let Some(own) = own
                && binding.port.direction.is_written()
            {
                mapped.copy_back(own, &self.device, change)?;
            }
        }
        result
    }
}

impl Mapped {
    fn pointer(&self) -> *mut u8 {
        // SAFETY: this is within the region, or one past its end.
        unsafe { self.region.data().add(self.offset) }
    }

    /// Returns the memory from `offset` on, which must be within it.
    fn bound(&self, offset: usize, binding: &Binding) -> Bound<'_> {
        let length = self.length - offset;
        // SAFETY: this is within the region, which lives as long as `self`. The host allows either
        // one run to write it, or any number to read it.
        unsafe {
            let start = self.pointer().add(offset);
            match binding.port.direction {
                Direction::Input | Direction::StateRead => {
                    Bound::Read(std::slice::from_raw_parts(start, length))
                }
                Direction::Output | Direction::State => {
                    Bound::Write(std::slice::from_raw_parts_mut(start, length))
                }
            }
        }
    }

    /// Returns a copy in the shim's memory with the content at the host's `change`.
    fn own(&self, shard: &LoadedShard, device: &str, change: u64) -> Result<Buffer, ShimError> {
        let mut own = lock(&self.own);
        if !own.contains_key(device) {
            let buffer = shard.allocate(self.length as u64, self.alignment)?;
            own.insert(device.to_owned(), (buffer, u64::MAX));
        }
        let Some((buffer, newest)) = own.get_mut(device) else {
            return Err(ShimError::Argument("expected a buffer".to_owned()));
        };
        if *newest != change {
            // SAFETY: this is within the region, and the host allows no writer now.
            let content = unsafe { std::slice::from_raw_parts(self.pointer(), self.length) };
            buffer.write()?.copy_from_slice(content);
            *newest = change;
        }
        Ok(buffer.clone())
    }

    /// Copies back the content of the shim's memory after a run wrote it.
    fn copy_back(&self, buffer: &Buffer, device: &str, change: u64) -> Result<(), ShimError> {
        let written = buffer.read()?;
        // SAFETY: this is within the region, and the host lets only this run write it.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(), self.length) }.copy_from_slice(&written);
        // The host counts a run that writes as one change.
        if let Some((_, newest)) = lock(&self.own).get_mut(device) {
            *newest = change + 1;
        }
        Ok(())
    }
}
