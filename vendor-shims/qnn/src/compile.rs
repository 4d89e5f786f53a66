//! Compiles a work order to one context with all entry points, and writes it as an artefact.

use shardwright_shim_abi::{CompileOutput, EntryView, Error, FlagOutcome, Result, WorkOrderView};
use shardwright_shim_npu::artefact::{entry_count, hash};
use shardwright_shim_npu::port::{PortKind, at_node, vanished};
use shardwright_shim_npu::{On, error};

use crate::artefact::{Descriptor, Entry, FORMAT, Head};
use crate::driver::Driver;
use crate::failure::QnnError;
use crate::flags::{self, Asked, Flags, Reach};
use crate::graph::{QnnGraph, TensorKind};
use crate::lower::{self, Lowered, MOST_REPEATED_BYTES, Variants};
use crate::probe::{self, ProbedFlag};
use crate::recognise::{Made, recognise};
use crate::rules;
use crate::session::{
    BinaryDescription, Context, ContextBinary, ContextOptions, GraphDescription, GraphOptions,
};
use crate::shim::Qnn;
use crate::soc::{CodeFor, Soc, SocId, facts};

/// Bytes written between two checks for cancellation.
const CHUNK: usize = 8 << 20;

/// Progress reported to the host, in thousandths. Finalizing needs nearly all of the time.
const LOWERED: u32 = 100;
const COMPILED: u32 = 900;

/// Reason given for a node without placement.
const VANISHED: &str = "the graph passed to the compiler does not depend on it";

/// An entry being compiled.
struct Compiling<'w> {
    entry: EntryView<'w>,
    lowered: Lowered<'w>,
    variants: Variants,
    options: GraphOptions,
}

/// Compiles an order and streams the artefact.
///
/// # Errors
///
/// Returns an error if an entry cannot be lowered or compiled, with the entry, layer and operation
/// if known, or if the compilation was cancelled.
pub fn compile(on: &On<'_, Qnn>, order: WorkOrderView<'_>, output: &mut CompileOutput<'_>) -> Result<()> {
    let (driver, soc) = (on.driver()?, &*on.soc);
    order.options().only(&[])?;
    let count = entry_count(order)?;
    // The binary is inspected with the system library.
    driver.backend().library().system()?;
    let flags = Flags::read(&order.flags());
    let mut entries = Vec::with_capacity(count);
    for (index, entry) in order.entries().enumerate() {
        let done = LOWERED * index as u32 / count as u32;
        output.progress(done, "lowering")?;
        let options = flags.graph_options(soc, None);
        let variants = flags.apply(rules::of(entry, &options));
        let lowered = lower::lower(entry, soc, &variants)?;
        if lowered.stand_ins > 0 {
            let reason = format!("{} weights have no bytes", lowered.stand_ins);
            return Err(Error::invalid_graph(entry.name(), reason));
        }
        entries.push(Compiling { entry, lowered, variants, options });
    }
    for (index, compiling) in entries.iter().enumerate() {
        let origins = compiling.lowered.graph.nodes.iter().filter_map(|node| node.origin);
        for node in vanished(compiling.entry, origins) {
            output.placement(index as u64, node, "fused", Some(VANISHED));
        }
    }
    // The x86-64 library does not load artefacts with shared weights.
    let is_shared = count > 1 && !on.is_simulated;
    let known = recognise(&driver, soc)?;
    let binary = finalize(&driver, known.code, &entries, is_shared, output)?;
    let (description, made) = described(&binary, soc, known.code)?;
    output.made_for(facts::SOC_ID, &made.soc.to_string());
    output.made_for(facts::ARCHITECTURE, &format!("v{}", made.arch));
    let descriptor = Descriptor {
        head: Head {
            format: FORMAT.number,
            soc: made.soc,
            asked: soc.id,
            soc_name: soc.name.clone(),
            arch: made.arch,
            vtcm_megabytes: entries
                .iter()
                .filter_map(|entry| entry.options.vtcm_megabytes)
                .max()
                .unwrap_or(0),
            entries: count as u32,
            is_shared,
            made_by: driver.versions().clone(),
            binary_bytes: binary.bytes.len() as u64,
            binary_sha256: hash(&binary.bytes),
        },
        entries: entries
            .iter()
            .map(|compiling| described_entry(compiling, &description.graphs))
            .collect::<std::result::Result<_, _>>()?,
    };
    output.write(&FORMAT.prefix(&descriptor, descriptor.head.binary_bytes)?)?;
    let chunks = binary.bytes.chunks(CHUNK);
    let whole = chunks.len() as u32;
    for (index, chunk) in chunks.enumerate() {
        output.progress(COMPILED + (1000 - COMPILED) * index as u32 / whole, "writing")?;
        output.write(chunk)?;
    }
    output.head(&FORMAT.head_bytes(&descriptor.head)?)?;
    drop(binary);
    report_flags(&driver, soc, &flags, &entries, output)
}

/// Composes and finalizes every entry in one context, and serialises the context. Afterwards the
/// context, which has its own copy of all weights, is freed.
fn finalize(
    driver: &Driver,
    code: CodeFor,
    entries: &[Compiling<'_>],
    weight_sharing: bool,
    output: &mut CompileOutput<'_>,
) -> Result<ContextBinary> {
    let mut context = Context::new(driver.device(code)?, ContextOptions { weight_sharing })?;
    let steps = 2 * entries.len() as u32;
    for (index, compiling) in entries.iter().enumerate() {
        let Compiling { entry, lowered, options, .. } = compiling;
        let mut step = |stage: &str, half: u32| {
            let done = LOWERED + (COMPILED - LOWERED) * (2 * index as u32 + half) / steps;
            output.progress(done, &format!("{stage} `{}`", entry.name()))
        };
        step("handing over", 0)?;
        let placed = |error| place(error, *entry, &lowered.graph);
        // One graph at a time: the library frees its copy of a graph only after compiling it.
        let mut composed = context.compose(&lowered.graph, options).map_err(placed)?;
        step("compiling", 1)?;
        composed.finalize(false).map_err(placed)?;
    }
    output.progress(COMPILED, "serialising")?;
    Ok(context.binary()?)
}

/// Adds the entry, the node and the node's layer to an error of the library.
fn place(error: QnnError, entry: EntryView<'_>, graph: &QnnGraph<'_>) -> Error {
    let node = match &error {
        QnnError::Call(failure) => failure.node.clone(),
        _ => None,
    };
    let origin = node.and_then(|name| graph.nodes.iter().find(|node| node.name == name)?.origin);
    at_node(error, entry, origin)
}

/// Returns the description of the binary after checking it against the target. The architecture
/// must be the profile's. If the library was requested to generate code for a chip by number, the
/// chip must match too.
fn described<'b>(
    binary: &'b ContextBinary,
    soc: &Soc,
    code: CodeFor,
) -> Result<(&'b BinaryDescription, Made)> {
    let Some(description) = &binary.description else {
        return Err(wrong_code(&soc.described(), "a binary that cannot be read"));
    };
    let is_chip = match code {
        CodeFor::Chip(id) => description.soc_model == id.0,
        CodeFor::Own | CodeFor::Architecture(_) => true,
    };
    match description.arch {
        Some(arch) if is_chip && arch == soc.arch => {
            Ok((description, Made { soc: SocId(description.soc_model), arch }))
        }
        found => {
            let arch = found.map_or("unknown".to_owned(), |arch| format!("v{arch}"));
            let made = format!("code for id {}, {arch}", description.soc_model);
            Err(wrong_code(&soc.described(), &made))
        }
    }
}

fn wrong_code(expected: &str, made: &str) -> Error {
    let help = "the library's interface differs from the one that this shim supports; set `SHARDWRIGHT_QNN_LIB` to another library";
    error::wrong_code(expected, made, help)
}

/// Describes an entry with the tensor numbers of the binary. Tensors are matched by the names
/// chosen in lowering.
fn described_entry(
    compiling: &Compiling<'_>,
    graphs: &[GraphDescription],
) -> std::result::Result<Entry, Error> {
    let Compiling { entry, lowered, variants, .. } = compiling;
    let wrong =
        |made: &str| wrong_code(&format!("graph `{}` of entry `{}`", lowered.graph.name, entry.name()), made);
    let graph = graphs.iter().find(|graph| graph.name == lowered.graph.name);
    let graph = graph.ok_or_else(|| wrong("a binary without it"))?;
    let mut ports = Vec::with_capacity(lowered.ports.len());
    for port in &lowered.ports {
        let is_output = port.kind == PortKind::Output;
        let tensors = if is_output { &graph.outputs } else { &graph.inputs };
        let name = &lowered.graph.tensors[port.place.0 as usize].name;
        match tensors.iter().find(|tensor| tensor.name == *name) {
            Some(tensor) => ports.push(port.placed(tensor.id)),
            // No node depends on it, so it is not bound.
            None if !is_output && !is_read(&lowered.graph, port.place.0) => {}
            None => return Err(wrong(&format!("a graph without `{name}` of port `{}`", port.name))),
        }
    }
    let described = Entry {
        name: entry.name().to_owned(),
        rows: entry.rows(),
        context: entry.context(),
        variants: *variants,
        graph: graph.clone(),
        ports,
    };
    match described.bound(false).is_some() && described.bound(true).is_some() {
        true => Ok(described),
        false => Err(wrong("inputs or outputs of other sizes")),
    }
}

fn is_read(graph: &QnnGraph<'_>, tensor: u32) -> bool {
    graph.nodes.iter().any(|node| node.inputs.iter().any(|input| input.0 == tensor))
}

/// Reports a verdict on every flag, according to the flag's [`Reach`].
fn report_flags(
    driver: &Driver,
    soc: &Soc,
    flags: &Flags,
    entries: &[Compiling<'_>],
    output: &mut CompileOutput<'_>,
) -> Result<()> {
    if flags.asked.is_empty() {
        return Ok(());
    }
    output.progress(1000, "checking the effect of flags")?;
    let smallest = entries.iter().map(|entry| &entry.lowered.graph).min_by_key(|graph| constants(graph));
    let probed = probe::judge(driver, soc, flags, smallest);
    for ((index, asked), probed) in flags.asked.iter().enumerate().zip(probed) {
        let ProbedFlag { outcome, evidence } = match (&asked.reach, probed) {
            (_, Some(probed)) => probed,
            (Reach::Refused(reason), None) => verdict(FlagOutcome::Refused, reason.clone()),
            (Reach::Lowering, None) => match too_large(asked, entries) {
                Some(reason) => verdict(FlagOutcome::Refused, reason),
                None => judge_lowering(soc, flags, index, entries),
            },
            (Reach::Compiler(_), None) | (Reach::Unknown, None) => {
                verdict(FlagOutcome::Unknown, "this shim has no such flag".to_owned())
            }
        };
        output.flag(&asked.name, outcome, &evidence);
    }
    Ok(())
}

fn verdict(outcome: FlagOutcome, evidence: String) -> ProbedFlag {
    ProbedFlag { outcome, evidence }
}

/// Returns the number of elements in all constants.
fn constants(graph: &QnnGraph<'_>) -> u64 {
    let is_static = |kind: &TensorKind<'_>| matches!(kind, TensorKind::Static(_));
    let elements =
        |dims: &[u32]| dims.iter().fold(1u64, |count, extent| count.saturating_mul(u64::from(*extent)));
    let bytes =
        graph.tensors.iter().filter(|tensor| is_static(&tensor.kind)).map(|tensor| elements(&tensor.dims));
    bytes.fold(0, u64::saturating_add)
}

/// Returns the reason if a mask is too large to be repeated for its heads, although this was
/// requested.
fn too_large(asked: &Asked, entries: &[Compiling<'_>]) -> Option<String> {
    if !flags::asks_for_repeated_masks(asked) {
        return None;
    }
    let broadcast = entries.iter().filter_map(|Compiling { entry, lowered, .. }| {
        Some(format!("`{}` has one of {} bytes", entry.name(), lowered.broadcast_mask?))
    });
    let broadcast: Vec<String> = broadcast.collect();
    (!broadcast.is_empty()).then(|| {
        format!(
            "a mask of more than {MOST_REPEATED_BYTES} bytes is broadcast, because phones were reported to \
             add it to other rows: {}",
            broadcast.join(", ")
        )
    })
}

/// Compares the lowered entries with and without a flag of the lowering.
fn judge_lowering(soc: &Soc, flags: &Flags, index: usize, entries: &[Compiling<'_>]) -> ProbedFlag {
    let mut changed = Vec::new();
    for Compiling { entry, lowered, variants, options } in entries {
        let Some(variants) = flags.without(index, *variants, rules::of(*entry, options)) else {
            return verdict(FlagOutcome::Inert, "it requests the default".to_owned());
        };
        match lower::lower(*entry, soc, &variants) {
            Ok(other) if other.graph == lowered.graph => {}
            Ok(other) => {
                let (with, without) = (lowered.graph.nodes.len(), other.graph.nodes.len());
                changed
                    .push(format!("`{}` has {with} nodes in its graph, {without} without it", entry.name()));
            }
            Err(error) => changed.push(format!("`{}` cannot be lowered without it: {error}", entry.name())),
        }
    }
    match changed.is_empty() {
        true => verdict(FlagOutcome::Inert, "every entry is lowered in the same way without it".to_owned()),
        false => verdict(FlagOutcome::Applied, changed.join("; ")),
    }
}
