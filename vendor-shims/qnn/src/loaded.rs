//! A compiled artefact that is ready to run.

use std::sync::Arc;

use shardwright_shim_abi::{
    Bound, Control, Error, FlagOutcome, FlagReport, LoadedEntry, LoadedShard, MemoryKinds, Result, Run,
};
use shardwright_shim_npu::artefact::{Entry as _, corrupt, loads};
use shardwright_shim_npu::port::{PortKind, check_run, element_bytes};
use shardwright_shim_npu::shim::SIMULATED;
use shardwright_shim_npu::{Choice as _, On, Power, Priority, Wishes};

use crate::artefact::{Artefact, Entry, Port};
use crate::compatibility::{self, LoadTarget};
use crate::memory::{SharedBuffer, SharedMemory};
use crate::recognise::recognise;
use crate::session::{
    Device, GraphDescription, LoadedContext, Memory, PowerVote, RegisteredMemory, RunnableGraph,
};
use crate::shim::Qnn;
use crate::soc::CodeFor;

/// The memory kinds that a run supports.
pub const MEMORY_KINDS: MemoryKinds = {
    let plain = MemoryKinds::HOST.and(MemoryKinds::SHIM);
    if crate::memory::IS_PHONE { plain.and(MemoryKinds::DMA_BUF) } else { plain }
};

/// Message of the simulation if the size of its only fast memory has changed since a graph was
/// loaded. Loading or compiling graphs with another size changes it, which invalidates the contexts
/// loaded before.
const FAST_MEMORY_MOVED: &str = "match allocated VTCM pointer";

/// Number of reloads of a context before the error is returned. Compilations may continue
/// concurrently.
const RELOADS: usize = 8;

/// A loaded context with its graphs.
pub struct Shard<'m> {
    /// Active while the shard is loaded.
    _vote: Option<PowerVote>,
    flags: Vec<FlagReport>,
    context: LoadedContext,
    entries: Vec<Loaded>,
    /// Source of reloads, in the simulation.
    source: Option<Source<'m>>,
}

/// Everything needed to load a context.
#[derive(Clone)]
struct Source<'m> {
    device: Arc<Device>,
    binary: &'m [u8],
    priority: Option<Priority>,
}

impl Source<'_> {
    fn load(&self) -> crate::failure::Result<LoadedContext> {
        LoadedContext::from_binary(self.device.clone(), self.binary, self.priority)
    }
}

/// An entry ready to run.
struct Loaded {
    entry: Entry,
    graph: RunnableGraph,
    /// Indices into `entry.ports` of the graph's inputs and outputs, in the graph's order.
    inputs: Vec<usize>,
    outputs: Vec<usize>,
    /// For each port a copy whose rows beyond the valid ones are zero. Empty if not needed.
    staged: Vec<Vec<u8>>,
    /// The last registered memory of each port.
    registered: Vec<Option<(Arc<SharedMemory>, RegisteredMemory)>>,
}

impl<'m> Shard<'m> {
    /// Verifies and loads an artefact. The library itself accepts damaged binaries and binaries for
    /// other chips.
    ///
    /// # Errors
    ///
    /// `ErrorClass::CorruptArtefact`, `ErrorClass::IncompatibleArtefact`, and errors of the
    /// library.
    pub fn load(on: &On<'_, Qnn>, bytes: &'m [u8], wishes: Wishes) -> Result<Shard<'m>> {
        let (driver, soc, is_simulated) = (on.driver()?, &*on.soc, on.is_simulated);
        let artefact = Artefact::read(bytes)?;
        let place = LoadTarget { soc, is_simulated, library: Some(driver.versions()) };
        loads(compatibility::judge(&artefact.descriptor.head, place), || {
            let device = if is_simulated { SIMULATED } else { "" };
            format!("compile the work order for `{}{device}`", soc.name)
        })?;
        let binary = artefact.binary()?;
        // A phone has one chip, which the library finds.
        let code = match is_simulated {
            true => recognise(&driver, soc)?.code,
            false => CodeFor::Own,
        };
        let device = driver.device(code)?;
        let source = Source { device: device.clone(), binary, priority: wishes.priority };
        let context = source.load()?;
        let is_described = |entry: &Entry| match context.description() {
            Some(description) => description.graphs.iter().any(|graph| is_same(graph, &entry.graph)),
            // Without a description, only the hashes above protect against a mismatch.
            None => true,
        };
        if let Some(entry) = artefact.descriptor.entries.iter().find(|entry| !is_described(entry)) {
            return Err(corrupt(0, format!("the graph of entry `{}` is not in the binary", entry.name)));
        }
        let mut entries = Vec::with_capacity(artefact.descriptor.entries.len());
        for entry in artefact.descriptor.entries {
            let graph = context.graph_as(&entry.graph)?;
            // Always succeeds: reading the artefact checked it.
            let (inputs, outputs) =
                (entry.bound(false).unwrap_or_default(), entry.bound(true).unwrap_or_default());
            let staged = |port: &Port| match port.needs_blank_rows(entry.rows) {
                true => vec![0; port.bytes().unwrap_or(0) as usize],
                false => Vec::new(),
            };
            let staged = entry.ports.iter().map(staged).collect();
            let registered = entry.ports.iter().map(|_| None).collect();
            entries.push(Loaded { entry, graph, inputs, outputs, staged, registered });
        }
        let (mut vote, mut flags) = (None, Vec::new());
        if let Some(power) = wishes.power {
            let (cast, report) = voted(device, power, is_simulated);
            vote = cast;
            flags.push(report);
        }
        flags.extend(wishes.priority.map(|priority| ranked(priority, is_simulated)));
        let source = is_simulated.then_some(source);
        Ok(Shard { _vote: vote, flags, context, entries, source })
    }

    fn reload(&mut self, source: &Source<'_>) -> Result<()> {
        let context = source.load()?;
        for loaded in &mut self.entries {
            loaded.graph = context.graph_as(&loaded.entry.graph)?;
        }
        self.context = context;
        Ok(())
    }
}

/// Casts a vote for a power mode and reports the outcome. A shard runs without the vote too, so a
/// refusal is only reported and is not an error.
fn voted(device: Arc<Device>, power: Power, is_simulated: bool) -> (Option<PowerVote>, FlagReport) {
    match PowerVote::cast(device, power) {
        Err(error) => (None, Power::report(FlagOutcome::Refused, error.to_string())),
        Ok(vote) if is_simulated => {
            let evidence = "the library accepted the vote, but reports no power settings on x86-64";
            (Some(vote), Power::report(FlagOutcome::Inert, evidence.to_owned()))
        }
        Ok(vote) => {
            let evidence = "the library accepted the vote; its effect on the processor cannot be queried and \
                            was not tested on a phone";
            (Some(vote), Power::report(FlagOutcome::Unknown, evidence.to_owned()))
        }
    }
}

/// Reports the outcome of a priority that the library accepted with the binary.
fn ranked(priority: Priority, is_simulated: bool) -> FlagReport {
    let taken = format!("the library accepted the context with priority {}", priority.name());
    match is_simulated {
        true => {
            let evidence = format!("{taken}; on x86-64 no other program uses the simulated processor");
            Priority::report(FlagOutcome::Inert, evidence)
        }
        false => {
            let evidence = format!(
                "{taken}; it may silently treat a higher priority as normal, which was not tested on a \
                 phone"
            );
            Priority::report(FlagOutcome::Unknown, evidence)
        }
    }
}

/// Checks whether graphs have the same tensors. The sizes in the binary are not compared.
fn is_same(actual: &GraphDescription, expected: &GraphDescription) -> bool {
    let tensors = |a: &[crate::session::TensorDescription], b: &[crate::session::TensorDescription]| {
        a.len() == b.len()
            && a.iter().zip(b).all(|(a, b)| (a.id, a.data_type, &a.dims) == (b.id, b.data_type, &b.dims))
    };
    actual.name == expected.name
        && tensors(&actual.inputs, &expected.inputs)
        && tensors(&actual.outputs, &expected.outputs)
}

impl LoadedShard for Shard<'_> {
    fn entries(&self) -> Result<Vec<LoadedEntry>> {
        let alignment = |port: &Port| element_bytes(port.dtype).unwrap_or(1);
        let loaded = |loaded: &Loaded| loaded.entry.outline().loaded(MEMORY_KINDS, alignment);
        Ok(self.entries.iter().map(loaded).collect())
    }

    fn flag_verdicts(&self) -> Vec<FlagReport> {
        self.flags.clone()
    }

    fn run(&mut self, run: Run<'_>) -> Result<()> {
        let Run { entry, rows, mut bound, control, .. } = run;
        let count = self.entries.len();
        let Some(loaded) = self.entries.get_mut(entry) else {
            return Err(Error::invalid_argument(format!("no entry {entry} of {count}")));
        };
        let mut result = loaded.run(&self.context, rows, &mut bound, control);
        for _ in 0..RELOADS {
            match (&result, self.source.clone()) {
                (Err(error), Some(source)) if error.message.contains(FAST_MEMORY_MOVED) => {
                    self.reload(&source)?;
                    result = self.entries[entry].run(&self.context, rows, &mut bound, control);
                }
                _ => break,
            }
        }
        result
    }
}

impl Loaded {
    fn run(
        &mut self,
        context: &LoadedContext,
        rows: usize,
        bound: &mut [Bound<'_>],
        control: Control<'_>,
    ) -> Result<()> {
        let Entry { name, rows: static_rows, ports, .. } = &self.entry;
        check_run(name, ports.len(), bound.len(), *static_rows, rows)?;
        // The library cannot be interrupted during a run, so this is the last check.
        control.proceed()?;
        self.register(context, bound);
        let staged = &mut self.staged;
        let mut memory: Vec<Memory<'_>> = Vec::with_capacity(bound.len());
        for (index, (port, bound)) in self.entry.ports.iter().zip(bound).enumerate() {
            let bytes = port.bytes().unwrap_or(0);
            if let Some((_, registered)) = &self.registered[index] {
                memory.push(Memory::Registered(registered));
                continue;
            }
            let data = match port.kind {
                PortKind::Output => bound.bytes_mut()?.as_mut_ptr(),
                PortKind::Input | PortKind::State => bound.bytes().as_ptr().cast_mut(),
            };
            if data.is_null() || bytes == 0 {
                let reason = format!("the memory bound to `{}` cannot be mapped", port.name);
                return Err(Error::invalid_argument(reason));
            }
            let data = match (&mut staged[index], (rows as u64) < self.entry.rows) {
                (copy, true) if !copy.is_empty() => {
                    port.copy_rows(self.entry.rows, rows as u64, bound.bytes(), copy);
                    copy.as_mut_ptr()
                }
                _ => data,
            };
            memory.push(Memory::Raw { data, bytes });
        }
        let chosen = |places: &[usize]| places.iter().map(|place| memory[*place]).collect::<Vec<_>>();
        // SAFETY: each raw pointer is to as many bytes as its port has, bound for this run or our
        // own copy. The host prevents other accesses until the run ends.
        unsafe { self.graph.execute_in(&chosen(&self.inputs), &chosen(&self.outputs)) }?;
        control.proceed()
    }

    /// Registers buffers that are bound as a whole and that the processor can access. If
    /// registration fails, the mapped bytes are bound instead, which only costs a copy.
    fn register(&mut self, context: &LoadedContext, bound: &[Bound<'_>]) {
        for ((port, bound), existing) in self.entry.ports.iter().zip(bound).zip(&mut self.registered) {
            let shared = bound.buffer().filter(|(_, offset)| *offset == 0);
            let shared = shared.and_then(|(buffer, _)| buffer.as_any().downcast_ref::<SharedBuffer>());
            let Some(SharedBuffer(memory)) = shared else {
                *existing = None;
                continue;
            };
            if existing.as_ref().is_some_and(|(known, _)| Arc::ptr_eq(known, memory)) {
                continue;
            }
            *existing = None;
            let sides = [&self.entry.graph.inputs, &self.entry.graph.outputs];
            let tensor = sides.into_iter().flatten().find(|tensor| tensor.id == port.place);
            let Some((tensor, dtype)) = tensor.and_then(|tensor| Some((tensor, tensor.dtype()?))) else {
                continue;
            };
            if memory.length() as u64 == port.bytes().unwrap_or(0)
                && let Ok(registered) = context.register_ion(memory.fd(), dtype, &tensor.dims)
            {
                *existing = Some((memory.clone(), registered));
            }
        }
    }
}
