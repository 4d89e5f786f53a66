//! The engine behind the contract.

use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use shardwright_shim_abi::raw;
use shardwright_shim_abi::{
    Artefact as MappedArtefact, Binding, Compatibility, CompileOutput, Description, Device, DeviceKind,
    Direction, EntryView, Error, Estimate, Flag, FlagKind, FlagOutcome, FlagReport, FlagStage, Limit,
    LoadedEntry, LoadedShard, MemoryKinds, Options, Provenance, Result, Run, Shim, Verdict, WorkOrderView,
};

use crate::artefact::{self, Artefact};
use crate::error::limit;
use crate::estimate;
use crate::execute::{Engine, Ways};
use crate::kernels::integer::Streams;
use crate::kernels::integer::split::Head;
use crate::lower::{self, Graph, Weights};
use crate::ops;
use crate::pool::{MAX_THREADS, Pool, performance_cores};
use crate::processor;
use crate::program::{MAX_ENTRIES, MAX_STEPS, PortDirection, Program};
use crate::simd::Level;
use crate::simd::dot::DotLevel;
use crate::tuning::{HeadTuning, Tuning};

const DEVICE: &str = "cpu";
const THREADS: &str = "threads";
const STREAMS: &str = "streams";
const PRODUCTS: &str = "products";
const HEAD: &str = "head";
/// Value of a flag that lets the engine measure which way is fastest.
const MEASURED: &str = "measured";

/// One instance of the CPU shim.
///
/// The option `threads` sets the number of threads that share a kernel. With 0, the default, the
/// artefact's own request applies, or one thread per performance core if there is none. Shards of
/// an instance share the threads. A shard that runs while another one is running uses only its
/// calling thread.
pub struct CpuShim {
    threads: usize,
    pools: Mutex<Vec<(usize, Weak<Pool>)>>,
    /// Measurements for each level that shards were loaded with.
    tunings: Mutex<Vec<(DotLevel, Arc<Tuning>)>>,
}

fn thread_count(options: &Options<'_>) -> Result<Option<usize>> {
    let count: Option<usize> = options.number(THREADS)?;
    match count {
        Some(count) if count > MAX_THREADS => {
            Err(Error::invalid_value(THREADS, count, format_args!("0 to {MAX_THREADS}")))
        }
        count => Ok(count),
    }
}

fn known_device(device: &str) -> Result<()> {
    if device == DEVICE {
        return Ok(());
    }
    Err(Error::unknown_device(device, "the only device of this shim is `cpu`"))
}

impl CpuShim {
    /// Returns the pool with this many threads. Starts it if no loaded shard uses one.
    fn pool(&self, threads: usize) -> Arc<Pool> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|(_, pool)| pool.strong_count() > 0);
        if let Some(pool) =
            pools.iter().find(|(count, _)| *count == threads).and_then(|(_, pool)| pool.upgrade())
        {
            return pool;
        }
        let pool = Arc::new(Pool::new(threads));
        pools.push((threads, Arc::downgrade(&pool)));
        pool
    }

    fn tuning(&self, dot: DotLevel) -> Arc<Tuning> {
        let mut tunings = self.tunings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, tuning)) = tunings.iter().find(|(level, _)| *level == dot) {
            return Arc::clone(tuning);
        }
        let tuning = Arc::new(Tuning::new(dot));
        tunings.push((dot, Arc::clone(&tuning)));
        tuning
    }
}

/// Reads a load-time flag that selects a way of computing, and reports its outcome. Returns
/// `None` if the engine should measure. `nearest` returns the way to use if the registers in use do
/// not support the requested one.
fn way<T: Copy + PartialEq + Display>(
    options: &Options<'_>,
    name: &str,
    all: &[T],
    nearest: impl Fn(T) -> T,
    reports: &mut Vec<FlagReport>,
) -> Result<Option<T>> {
    let Some(value) = options.get(name) else { return Ok(None) };
    let mut report = |outcome, evidence| {
        reports.push(FlagReport { name: name.to_owned(), outcome, evidence });
    };
    if value == MEASURED {
        report(FlagOutcome::Applied, "runs alternate until one way is found faster".to_owned());
        return Ok(None);
    }
    let Some(&wanted) = all.iter().find(|way| way.to_string() == value) else {
        let expected = choices(all).join(", ");
        return Err(Error::invalid_value(name, value, expected));
    };
    let used = nearest(wanted);
    match used == wanted {
        true => report(FlagOutcome::Applied, format!("{used}, on every run")),
        false => report(FlagOutcome::Refused, format!("these registers only support {used}, which is used")),
    }
    Ok(Some(used))
}

/// Returns the valid values of such a flag.
fn choices<T: Display>(all: &[T]) -> Vec<String> {
    [MEASURED.to_owned()].into_iter().chain(all.iter().map(T::to_string)).collect()
}

impl Shim for CpuShim {
    fn describe() -> Description {
        Description {
            name: "cpu".into(),
            vendor: "Shardwright".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            vendor_library: None,
            instance_limit: 0,
        }
    }

    fn open(options: &Options<'_>) -> Result<Self> {
        options.only(&[THREADS])?;
        Ok(CpuShim {
            threads: thread_count(options)?.unwrap_or(0),
            pools: Mutex::default(),
            tunings: Mutex::default(),
        })
    }

    fn devices(&self, soc: Option<&str>) -> Result<Vec<Device>> {
        if soc.is_some() {
            return Ok(Vec::new());
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let nodes = match processor::memory_nodes() {
            1 => String::new(),
            nodes => format!("{nodes} memory nodes, "),
        };
        Ok(vec![Device {
            name: DEVICE.into(),
            soc: None,
            detail: Some(format!(
                "{}, {}, {cores} cores, {nodes}{}",
                std::env::consts::ARCH,
                Level::detect().name(),
                processor::model().unwrap_or_else(|| "model not known".to_owned())
            )),
            kind: DeviceKind::Present,
            memory_kinds: MemoryKinds::HOST.and(MemoryKinds::SHIM),
            memory_bytes: 0,
        }])
    }

    fn limits(&self, device: &str) -> Result<Vec<Limit>> {
        known_device(device)?;
        let ops = Limit::new("ops", MAX_STEPS, Provenance::Declared);
        Ok(vec![ops.with_note("nodes of one entry in the artefact's format")])
    }

    fn flags(&self, device: &str) -> Result<Vec<Flag>> {
        known_device(device)?;
        let tuning = self.tuning(DotLevel::within(Level::detect()));
        let or_measured = |found: Option<String>| Some(found.unwrap_or_else(|| MEASURED.to_owned()));
        let streams = Flag {
            name: STREAMS.into(),
            description: "streams of weights that are read in parallel for one token; measured: the fastest on this machine. With few registers, 4 means 2 for weights in blocks. Results do not change".into(),
            kind: FlagKind::Choice(choices(&Streams::ALL)),
            default: or_measured(tuning.found_streams().map(|streams| streams.to_string())),
            stage: FlagStage::Load,
        };
        let products = Flag {
            name: PRODUCTS.into(),
            description: "instructions that multiply bytes for many rows; measured: the fastest on this machine. Results do not change".into(),
            kind: FlagKind::Choice(choices(&DotLevel::available())),
            default: or_measured(tuning.found_products().map(|dot| dot.to_string())),
            stage: FlagStage::Load,
        };
        let head = Flag {
            name: HEAD.into(),
            description: "how the largest logits are found: by bounds that exclude most logits, or by computing all; measured: the fastest for the loaded weights. Results do not change".into(),
            kind: FlagKind::Choice(choices(&Head::ALL)),
            // What was found depends on the weights, so it does not apply to other artefacts.
            default: Some(MEASURED.into()),
            stage: FlagStage::Load,
        };
        let threads = Flag {
            name: THREADS.into(),
            description: "threads of an artefact unless load or instance set them; 0: one per core".into(),
            kind: FlagKind::Integer { minimum: 0, maximum: MAX_THREADS as i64 },
            default: Some("0".into()),
            stage: FlagStage::Compile,
        };
        Ok(vec![threads, streams, products, head])
    }

    fn check(&self, device: &str, entry: EntryView<'_>) -> Result<Vec<Verdict>> {
        known_device(device)?;
        let graph = Graph::read(entry)?;
        Ok((0..graph.nodes.len())
            .map(|index| match ops::recognise(&graph, index) {
                Ok(_) => Verdict::Taken,
                Err(refusal) => Verdict::Refused(refusal.reason().to_owned()),
            })
            .collect())
    }

    fn estimate(&self, device: &str, entry: EntryView<'_>) -> Result<Option<Estimate>> {
        known_device(device)?;
        let graph = Graph::read(entry)?;
        let threads = match self.threads {
            0 => performance_cores(),
            threads => threads,
        };
        Ok(Some(estimate::estimate(&graph, threads as u64)))
    }

    fn compile(&self, device: &str, order: WorkOrderView<'_>, output: &mut CompileOutput<'_>) -> Result<()> {
        known_device(device)?;
        order.options().only(&[])?;
        let mut threads = 0u32;
        for (name, value) in order.flags().iter() {
            let (outcome, evidence) = match (name, value.parse::<u32>()) {
                (THREADS, Ok(count)) if count as usize <= MAX_THREADS => {
                    threads = count;
                    (FlagOutcome::Applied, format!("the artefact requests {count} threads from load"))
                }
                (THREADS, _) => (FlagOutcome::Refused, format!("`{value}` is not within 0 to {MAX_THREADS}")),
                _ => (FlagOutcome::Unknown, "unknown flag".to_owned()),
            };
            output.flag(name, outcome, &evidence);
        }
        if order.entries().len() as u64 > MAX_ENTRIES {
            let value = order.entries().len() as u64;
            return Err(limit("entries", value, MAX_ENTRIES));
        }
        let mut weights = Weights::of(order.entries());
        let mut program = Program { threads, entries: Vec::new() };
        for (index, entry) in order.entries().enumerate() {
            output.progress(0, "lowering")?;
            let graph = Graph::read(entry)?;
            let (lowered, removed) = lower::entry(&graph, &mut weights)?;
            for node in removed {
                output.placement(index as u64, node as u64, "none", Some("no output depends on it"));
            }
            program.entries.push(lowered);
        }
        let length = weights.length();
        program.check(length).map_err(|reason| Error::invalid_graph(order.name(), reason))?;
        let mut written = 0u64;
        let mut reported = 0u64;
        artefact::write(
            &program,
            length,
            |bytes| {
                written += bytes.len() as u64;
                // Progress is reported about once per percent, so that cancellation takes effect
                // soon at negligible cost.
                if written - reported > length / 100 {
                    reported = written;
                    output.progress(
                        (written.saturating_mul(1000) / length.max(1)).min(1000) as u32,
                        "packing weights",
                    )?;
                }
                output.write(bytes)
            },
            |sink| weights.write(sink),
        )?;
        output.head(&artefact::head(&program))
    }

    fn compatibility(&self, device: &str, head: &[u8]) -> Result<Compatibility> {
        known_device(device)?;
        Ok(match artefact::format_of(head) {
            None => Compatibility::NotMine("the head was not written by the CPU shim".into()),
            Some(artefact::FORMAT) => Compatibility::Optimal,
            Some(older) if older < artefact::FORMAT => {
                Compatibility::Recompile(format!("format {older}, expected {}", artefact::FORMAT))
            }
            Some(other) => {
                Compatibility::Unsupported(format!("format {other}, expected {}", artefact::FORMAT))
            }
        })
    }

    fn load<'m>(
        &'m self,
        device: &str,
        mapped: MappedArtefact<'m>,
        options: &Options<'_>,
    ) -> Result<Box<dyn LoadedShard + 'm>> {
        known_device(device)?;
        options.only(&[THREADS, STREAMS, PRODUCTS, HEAD, "simd", "verify-weights"])?;
        let read = Artefact::read(mapped.bytes())?;
        match options.get("verify-weights") {
            None | Some("false") => {}
            Some("true") => read.verify_weights()?,
            Some(other) => return Err(Error::invalid_value("verify-weights", other, "true or false")),
        }
        let level = match options.get("simd") {
            None => Level::detect(),
            Some(name) => {
                let levels = Level::available();
                let names: Vec<&str> = levels.iter().map(|level| level.name()).collect();
                let found = levels.iter().find(|level| level.name() == name);
                *found.ok_or_else(|| Error::invalid_value("simd", name, names.join(", ")))?
            }
        };
        let dot = DotLevel::within(level);
        let mut flags = Vec::new();
        let streams = way(options, STREAMS, &Streams::ALL, |way| way.within(dot), &mut flags)?;
        let products = way(options, PRODUCTS, &DotLevel::available(), |way| way.at_most(dot), &mut flags)?;
        let head = way(options, HEAD, &Head::ALL, |way| way, &mut flags)?;
        let ways = Ways { tuning: self.tuning(dot), streams, products, heads: HeadTuning::default(), head };
        let threads = match (thread_count(options)?, self.threads) {
            (Some(asked), _) => asked,
            (None, 0) => (read.program.threads as usize).min(MAX_THREADS),
            (None, instance) => instance,
        };
        let engine = Engine::new(read, self.pool(threads), level, ways)?;
        Ok(Box::new(CpuShard { engine, flags }))
    }
}

struct CpuShard<'m> {
    engine: Engine<'m>,
    flags: Vec<FlagReport>,
}

impl LoadedShard for CpuShard<'_> {
    fn entries(&self) -> Result<Vec<LoadedEntry>> {
        Ok(self
            .engine
            .program()
            .entries
            .iter()
            .map(|entry| LoadedEntry {
                name: entry.name.clone(),
                rows: entry.rows,
                context: entry.context,
                bindings: entry
                    .ports
                    .iter()
                    .map(|port| Binding {
                        name: port.name.clone(),
                        direction: match port.direction {
                            PortDirection::Input => Direction::Input,
                            PortDirection::Output => Direction::Output,
                            PortDirection::State => Direction::State,
                            PortDirection::StateRead => Direction::StateRead,
                        },
                        role: port.role,
                        dtype: port.encoding.element.dtype(),
                        update: match port.direction {
                            PortDirection::State => raw::SW_UPDATE_IN_GRAPH,
                            _ => raw::SW_UPDATE_NONE,
                        },
                        shape: port.shape.clone(),
                        strides: None,
                        bytes: port
                            .elements()
                            .unwrap_or(0)
                            .saturating_mul(port.encoding.element.bytes() as u64),
                        alignment: port.encoding.element.bytes() as u64,
                        memory_kinds: MemoryKinds::HOST.and(MemoryKinds::SHIM),
                        scale: f64::from(port.encoding.scale),
                        zero_point: i64::from(port.encoding.zero_point),
                    })
                    .collect(),
            })
            .collect())
    }

    fn flag_verdicts(&self) -> Vec<FlagReport> {
        self.flags.clone()
    }

    fn run(&mut self, run: Run<'_>) -> Result<()> {
        self.engine.run(run)
    }
}
