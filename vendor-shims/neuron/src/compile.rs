//! Compiles each entry point of a work order to a network, and writes the networks as an artefact.

use shardwright_neuron_files::blob;
use shardwright_neuron_files::budget::Budget;
use shardwright_neuron_files::bytes::Bytes;
use shardwright_shim_abi::raw::SW_LOG_INFO;
use shardwright_shim_abi::{CompileOutput, EntryView, Error, Result, WorkOrderView};
use shardwright_shim_npu::artefact::entry_count;
use shardwright_shim_npu::port::{at_node, vanished};

use crate::artefact::{self, Descriptor, Entry, FORMAT, Head};
use crate::driver::Driver;
use crate::failure::NeuronError;
use crate::flags::{Flags, Judged, Subject, Trials};
use crate::graph::NeuronGraph;
use crate::library::set_platform;
use crate::lower::{self, Lowered, Lowering, Target};
use crate::priority;
use crate::sample;
use crate::session::{Compilation, CompileSettings, Model};
use crate::soc::facts;

/// Number of bytes written between two checks for cancellation.
const CHUNK: usize = 8 << 20;

/// Reason reported for a node that was lowered to no operation of its own.
const VANISHED: &str = "it is part of another operation, or has no effect";

/// Place where nodes run.
const PLACE: &str = "npu";

/// Reason reported for a node whose operations have values in f32.
const RELAXED: &str = "its 32-bit floats are computed as 16-bit floats, because the processor has no others";

/// Maximum bytes of constants of an entry that is compiled again for each flag.
const LARGEST_PROBE: u64 = 4 << 20;

/// Progress after compiling, in per mille, as reported to the host.
const COMPILED: u32 = 900;

/// Compiles an order and streams the artefact.
///
/// # Errors
///
/// If an entry cannot be lowered or compiled, with the entry, layer and operation if known. Also if
/// the host cancels the compilation.
pub(crate) fn compile(
    driver: &Driver,
    target: &Target<'_>,
    lowering: Lowering,
    order: WorkOrderView<'_>,
    trials: &mut Trials,
    output: &mut CompileOutput<'_>,
) -> Result<()> {
    order.options().only(&[])?;
    let count = entry_count(order)?;
    set_platform(&target.soc.platform);
    let flags = Flags::read(&order.flags(), target.soc, Some(driver.library().version()));
    let options = flags.option_string(None);
    let number = |name: &str| flags.value(name).and_then(|value| value.parse().ok());
    let settings = CompileSettings {
        l1_kilobytes: number("l1-size-kb"),
        priority: priority::number(flags.priority().unwrap_or(priority::UNASKED)),
        ..CompileSettings::default()
    };
    let is_relaxed = flags.value("relax-fp32") == Some("true");
    let mut entries = Vec::with_capacity(count);
    let mut blobs = Vec::with_capacity(count);
    for (index, entry) in order.entries().enumerate() {
        let mut step = |stage: &str, half: u32| {
            let done = COMPILED * (2 * index as u32 + half) / (2 * count as u32);
            output.progress(done, &format!("{stage} `{}`", entry.name()))
        };
        step("lowering", 0)?;
        let mut lowered = lower::lower(entry, target, lowering)?;
        lowered.graph.relaxed |= is_relaxed;
        let absent = lowered.graph.absent();
        if absent > 0 {
            let reason = format!("{absent} weights have no bytes");
            return Err(Error::invalid_graph(entry.name(), reason));
        }
        let operations = lowered.graph.operations.len() as u64;
        let constants = lowered.graph.constant_bytes();
        shardwright_shim_abi::log(
            SW_LOG_INFO,
            &format!(
                "entry `{}`: {operations} operations ({}), {constants} bytes of constants, options `{options}`",
                entry.name(),
                lowering.name()
            ),
        );
        let origins = lowered.graph.operations.iter().filter_map(|operation| operation.origin);
        for node in vanished(entry, origins) {
            output.placement(index as u64, node, "fused", Some(VANISHED));
        }
        for node in lowered.graph.nodes_in_single_precision() {
            output.placement(index as u64, node.into(), PLACE, Some(RELAXED));
        }
        let mut step = |stage: &str, half: u32| {
            let done = COMPILED * (2 * index as u32 + half) / (2 * count as u32);
            output.progress(done, &format!("{stage} `{}`", entry.name()))
        };
        step("compiling", 1)?;
        // Entries are compiled one at a time, because a model reads its weights until it is freed.
        let blob = compiled(driver, &lowered.graph, &options, &settings)
            .map_err(|error| place(error, entry, &lowered))?;
        entries.push(described(entry, &lowered, operations, constants));
        blobs.push(blob);
    }
    let descriptor = Descriptor {
        head: Head {
            format: FORMAT.number,
            soc: target.soc.platform.clone(),
            made_by: driver.maker().clone(),
            options: options.clone(),
            lowering: lowering.name().to_owned(),
            entries: count as u32,
            blob_bytes: 0,
        },
        entries,
    };
    if let Some(platform) = blobs.iter().find_map(|blob| stored_platform(blob)) {
        output.made_for(facts::PLATFORM, &platform);
    }
    write(descriptor, &blobs, output)?;
    if flags.asked.is_empty() {
        return Ok(());
    }
    output.progress(1000, "checking the effect of flags")?;
    for judged in judge(driver, target, lowering, order, &flags, &settings, blobs.first(), trials) {
        output.flag(&judged.name, judged.outcome, &judged.evidence);
    }
    Ok(())
}

/// Returns the chip for which a stored network was compiled, if the network names it.
fn stored_platform(blob: &[u8]) -> Option<String> {
    let mut budget = Budget::of(blob.len());
    blob::read(Bytes::new(blob), &mut budget).ok()?.compilation("", None).soc
}

/// Determines the outcomes of all flags. A small graph, and the order's smallest entry if it is
/// small enough, are compiled with and without each flag.
#[expect(clippy::too_many_arguments, reason = "all of it decides what is compiled")]
fn judge(
    driver: &Driver,
    target: &Target<'_>,
    lowering: Lowering,
    order: WorkOrderView<'_>,
    flags: &Flags,
    settings: &CompileSettings,
    blob: Option<&Vec<u8>>,
    trials: &mut Trials,
) -> Vec<Judged> {
    let echoed = blob.and_then(|blob| {
        let mut budget = Budget::of(blob.len());
        blob::read(Bytes::new(blob), &mut budget).ok()?.trailer?.options
    });
    let version = driver.library().version();
    let small = sample::graph();
    let small_key = format!("sample {:?} {version}", target.soc);
    let smallest = order
        .entries()
        .filter_map(|entry| Some((entry.name(), lower::lower(entry, target, lowering).ok()?.graph)))
        .filter(|(_, graph)| graph.constant_bytes() <= LARGEST_PROBE)
        .min_by_key(|(_, graph)| graph.constant_bytes());
    let smallest_key = smallest
        .as_ref()
        .map(|(entry, _)| format!("{} {entry} {:?} {version}", order.name(), target.soc))
        .unwrap_or_default();
    let made = |graph: &NeuronGraph<'_>, options: &str| {
        compiled(driver, graph, options, settings).map_err(|error| error.to_string())
    };
    let mut of_sample = |options: &str| made(&small, options);
    let mut of_smallest = |options: &str| match &smallest {
        Some((_, graph)) => made(graph, options),
        None => Err("every entry is too large to be compiled only for this check".to_owned()),
    };
    let mut subjects = vec![Subject { what: "a small graph", key: &small_key, compile: &mut of_sample }];
    if smallest.is_some() {
        subjects.push(Subject { what: "the smallest entry", key: &smallest_key, compile: &mut of_smallest });
    }
    let is_simulated = driver.library().simulator().is_some();
    flags.judge(&mut subjects, echoed.as_deref(), is_simulated, trials)
}

/// Compiles a graph and returns the stored network.
fn compiled(
    driver: &Driver,
    graph: &NeuronGraph<'_>,
    options: &str,
    settings: &CompileSettings,
) -> std::result::Result<Vec<u8>, NeuronError> {
    let model = Model::build(driver.library(), graph)?;
    Compilation::finish(model, options, settings)?.store()
}

fn write(descriptor: Descriptor, blobs: &[Vec<u8>], output: &mut CompileOutput<'_>) -> Result<()> {
    let written = artefact::write(descriptor, blobs)?;
    let mut at = written.prefix.len() as u64;
    output.write(&written.prefix)?;
    let whole = written.descriptor.head.blob_bytes.max(1);
    let mut done = 0u64;
    for (entry, blob) in written.descriptor.entries.iter().zip(blobs) {
        output.write(&vec![0; (entry.blob_at - at) as usize])?;
        for chunk in blob.chunks(CHUNK) {
            let share = u64::from(1000 - COMPILED) * done / whole;
            output.progress(COMPILED + share as u32, "writing")?;
            output.write(chunk)?;
            done += chunk.len() as u64;
        }
        at = entry.blob_at + entry.blob_bytes;
    }
    output.head(&FORMAT.head_bytes(&written.descriptor.head)?)
}

/// Adds the entry, node and layer to an error of the library.
fn place(error: NeuronError, entry: EntryView<'_>, lowered: &Lowered<'_>) -> Error {
    let subject = match &error {
        NeuronError::Call(failure) => failure.subject.clone(),
        _ => None,
    };
    let named = |name: &str| subject.as_ref().is_some_and(|subject| subject.contains(&format!("`{name}`")));
    let origin = lowered.graph.operations.iter().find(|operation| named(&operation.name));
    let node = origin.and_then(|operation| operation.origin);
    at_node(error, entry, node).detail("operations", lowered.graph.operations.len())
}

fn described(entry: EntryView<'_>, lowered: &Lowered<'_>, operations: u64, constant_bytes: u64) -> Entry {
    Entry {
        name: entry.name().to_owned(),
        rows: entry.rows(),
        context: entry.context(),
        operations,
        constant_bytes,
        blob_at: 0,
        blob_bytes: 0,
        blob_sha256: String::new(),
        ports: lowered.ports.clone(),
    }
}
