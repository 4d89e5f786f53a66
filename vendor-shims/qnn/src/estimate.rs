//! Estimates the time of a graph by simulation. While it compiles, the library estimates cycles for
//! a few chips, one of which serves as a stand-in for phones.
//!
//! Known faults of that estimate, and the workarounds:
//! * The fused rotary embedding costs 0 cycles, so estimates use a spelled-out form.
//! * A conversion to floats at the very end costs as much as a layer, so it is omitted and listed
//!   as uncosted.
//! * The host's side, remote calls and power states are not modelled.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use shardwright_shim_abi::{EntryView, Estimate, Provenance};

use crate::driver::Driver;
use crate::failure::Result;
use crate::graph::{DataType, QnnEncoding, QnnGraph, QnnNode, QnnTensor, TensorIndex, TensorKind};
use crate::lower::{self, Rotary, Variants};
use crate::recognise::recognise;
use crate::rules;
use crate::session::{Context, ContextOptions, Device, GraphOptions, Profile};
use crate::soc::{CodeFor, Soc, SocId};

/// Cost of a graph on a chip for which the library has a cost model.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Cost {
    pub cycles: u64,
    /// Time of one run.
    pub microseconds: u64,
    /// Bytes read from main memory, plus spills from the fast memory and back.
    pub bytes_moved: u64,
    /// Names of the nodes without a cost.
    pub uncosted: Vec<String>,
}

/// Checks whether a node converts internal integers to floats.
fn is_conversion(node: &QnnNode) -> bool {
    matches!(node.op, "Dequantize" | "Convert" | "Cast")
}

fn is_float(dtype: DataType) -> bool {
    matches!(dtype, DataType::Float16 | DataType::Bfloat16 | DataType::Float32)
}

/// Returns the subgraph of the nodes to `keep`. Tensors written by other nodes become inputs,
/// tensors read by other nodes become outputs. Unreferenced tensors are dropped.
pub fn part<'w>(graph: &QnnGraph<'w>, keep: impl Fn(&QnnNode) -> bool) -> QnnGraph<'w> {
    let kept: Vec<bool> = graph.nodes.iter().map(keep).collect();
    let count = graph.tensors.len();
    let (mut written, mut read, mut read_elsewhere) =
        (vec![false; count], vec![false; count], vec![false; count]);
    for (node, kept) in graph.nodes.iter().zip(&kept) {
        for tensor in &node.inputs {
            if *kept {
                read[tensor.0 as usize] = true;
            } else {
                read_elsewhere[tensor.0 as usize] = true;
            }
        }
        for tensor in node.outputs.iter().filter(|_| *kept) {
            written[tensor.0 as usize] = true;
        }
    }
    let mut out = QnnGraph { name: graph.name.clone(), ..QnnGraph::default() };
    let mut places: HashMap<usize, TensorIndex> = HashMap::new();
    for (index, tensor) in
        graph.tensors.iter().enumerate().filter(|(index, _)| read[*index] || written[*index])
    {
        let mut tensor = tensor.clone();
        let leaves = matches!(tensor.kind, TensorKind::Output) || read_elsewhere[index];
        tensor.kind = match tensor.kind {
            TensorKind::Static(data) => TensorKind::Static(data),
            _ if !written[index] => TensorKind::Input,
            _ if leaves => TensorKind::Output,
            _ => TensorKind::Native,
        };
        places.insert(index, TensorIndex(out.tensors.len() as u32));
        out.tensors.push(tensor);
    }
    let moved = |tensors: &[TensorIndex]| -> Vec<TensorIndex> {
        // Every operand of a kept node was kept above.
        tensors.iter().filter_map(|tensor| places.get(&(tensor.0 as usize)).copied()).collect()
    };
    for (node, _) in graph.nodes.iter().zip(&kept).filter(|(_, kept)| **kept) {
        let (inputs, outputs) = (moved(&node.inputs), moved(&node.outputs));
        out.nodes.push(QnnNode { inputs, outputs, ..node.clone() });
    }
    out
}

/// Returns the graph without its final conversions to floats, and the names of these conversions.
fn without_final_conversions<'g, 'w>(graph: &'g QnnGraph<'w>) -> (Cow<'g, QnnGraph<'w>>, Vec<String>) {
    let is_final = |node: &QnnNode| {
        let leaves = |tensor: &TensorIndex| match graph.tensors.get(tensor.0 as usize) {
            Some(tensor) => is_float(tensor.dtype) && matches!(tensor.kind, TensorKind::Output),
            None => false,
        };
        let enters = |tensor: &TensorIndex| match graph.tensors.get(tensor.0 as usize) {
            Some(tensor) => !is_float(tensor.dtype) && !matches!(tensor.kind, TensorKind::Input),
            None => false,
        };
        is_conversion(node) && node.outputs.iter().all(leaves) && node.inputs.iter().all(enters)
    };
    let names: Vec<String> =
        graph.nodes.iter().filter(|node| is_final(node)).map(|node| node.name.clone()).collect();
    match names.is_empty() {
        true => (Cow::Borrowed(graph), names),
        false => (Cow::Owned(part(graph, |node| !is_final(node))), names),
    }
}

/// Estimates the cost of a graph on a chip. Returns `None` if the library has no cost model for the
/// chip. Results are cached by all inputs except the values of weights.
///
/// # Errors
///
/// Returns an error if the graph cannot be compiled.
pub fn cost(
    driver: &Driver,
    soc: SocId,
    graph: &QnnGraph<'_>,
    options: &GraphOptions,
) -> Result<Option<Cost>> {
    let key = format!("{soc} {options:?} {}", shape_of(graph));
    if let Some(known) = driver.costs.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return Ok(known.clone());
    }
    let cost = measure(driver.device(CodeFor::Chip(soc))?, graph, options)?;
    driver.costs.lock().unwrap_or_else(PoisonError::into_inner).insert(key, cost.clone());
    Ok(cost)
}

fn measure(device: Arc<Device>, graph: &QnnGraph<'_>, options: &GraphOptions) -> Result<Option<Cost>> {
    let (graph, left_out) = without_final_conversions(graph);
    let mut context = Context::new(device, ContextOptions::default())?;
    let profile = context.compose(&graph, options)?.finalize(true)?;
    Ok(profile.and_then(|profile| cost_from(profile, left_out)))
}

fn cost_from(profile: Profile, mut uncosted: Vec<String>) -> Option<Cost> {
    let cycles = profile.cycles?;
    uncosted.extend(profile.uncosted);
    Some(Cost {
        cycles,
        microseconds: profile.microseconds.unwrap_or(0),
        bytes_moved: profile.read_bytes.unwrap_or(0).saturating_add(profile.spilled_bytes.unwrap_or(0)),
        uncosted,
    })
}

/// Hashes everything that determines a graph's cost. Weight values are ignored. Of the scales only
/// equality matters, since tensors with the same scale need no conversion. Graphs of equal layers
/// are equal.
pub fn shape_of(graph: &QnnGraph<'_>) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    let mut encodings: HashMap<(u32, i32), usize> = HashMap::new();
    for tensor in &graph.tensors {
        let kind = match tensor.kind {
            TensorKind::Input => 'i',
            TensorKind::Output => 'o',
            TensorKind::Native => 'n',
            TensorKind::Static(_) => 's',
        };
        let encoding = match &tensor.encoding {
            QnnEncoding::PerTensor(one) => {
                let next = encodings.len();
                format!("like {}", encodings.entry((one.scale.to_bits(), one.offset)).or_insert(next))
            }
            other => shape_of_encoding(other),
        };
        let _ = writeln!(text, "{kind}{} {:?} {encoding}", tensor.dtype.name(), tensor.dims);
    }
    for node in &graph.nodes {
        let _ = writeln!(text, "{} {:?} {:?} {:?}", node.op, node.params, node.inputs, node.outputs);
    }
    shardwright_shim_npu::artefact::hash(text.as_bytes())
}

/// Formats kind and bits of an encoding without its scales.
fn shape_of_encoding(encoding: &QnnEncoding) -> String {
    match encoding {
        QnnEncoding::None | QnnEncoding::PerTensor(_) => "plain".to_owned(),
        QnnEncoding::PerAxis { axis, .. } => format!("axis {axis}"),
        QnnEncoding::BitWidth { bits, .. } => format!("{bits} bits"),
        QnnEncoding::BitWidthPerAxis { bits, axis, .. } => format!("{bits} bits axis {axis}"),
        QnnEncoding::BlockExpansion { axis, blocks_per_channel, .. } => {
            format!("{blocks_per_channel} blocks axis {axis}")
        }
        QnnEncoding::Block { extents, .. } => format!("blocks {extents:?}"),
        QnnEncoding::FloatBlock { extents, .. } => format!("float blocks {extents:?}"),
        QnnEncoding::BitWidthFloatBlock { bits, extents, .. } => {
            format!("{bits} bits float blocks {extents:?}")
        }
    }
}

/// Estimates the time of one run of an entry with all rows. Returns `None` if the profile has no
/// stand-in chip or the library has no cost model for it.
///
/// # Errors
///
/// Returns an error if the entry cannot be lowered or compiled.
pub fn estimate(
    driver: &Driver,
    soc: &Soc,
    entry: EntryView<'_>,
    options: &GraphOptions,
    shares_weights: bool,
) -> shardwright_shim_abi::Result<Option<Estimate>> {
    let variants = spelled_out(rules::of(entry, options));
    let Some(stand_in) = soc.stand_in else { return Ok(None) };
    let is_alike = recognise(driver, soc)?.stand_in_is_alike == Some(true);
    let lowered = lower::lower(entry, soc, &variants)?;
    let (shared_bytes, own_bytes) = artefact_bytes(&lowered.graph);
    let Some(cost) = cost(driver, stand_in, &lowered.graph, options)? else { return Ok(None) };
    let mut uncosted: Vec<u64> =
        cost.uncosted.iter().filter_map(|name| origin(&lowered.graph, name)).collect();
    uncosted.sort_unstable();
    uncosted.dedup();
    Ok(Some(Estimate {
        time_microseconds: cost.microseconds,
        provenance: if is_alike { Provenance::Simulated } else { Provenance::Modelled },
        bytes_moved: cost.bytes_moved,
        uncosted,
        operations: 0,
        artefact_bytes: shared_bytes.saturating_add(own_bytes),
        shared_bytes: if shares_weights { shared_bytes } else { 0 },
    }))
}

/// Bytes that the compiler stores per matrix column in addition to its values.
const CHANNEL_BYTES: u64 = 16;
/// Bytes that the compiler stores per node: instructions and addresses.
const NODE_BYTES: u64 = 1024;

/// Calculates the bytes a graph needs in an artefact: first the part shared by graphs with the same
/// weights, then the rest.
pub fn artefact_bytes(graph: &QnnGraph<'_>) -> (u64, u64) {
    let values = |tensor: &QnnTensor<'_>| {
        let count = tensor.dims.iter().map(|&extent| u64::from(extent)).fold(1, u64::saturating_mul);
        let whole = count.saturating_mul(tensor.dtype.bytes());
        let (bits, channels, blocks) = match &tensor.encoding {
            QnnEncoding::PerAxis { scales, .. } => (8, scales.len(), 0),
            QnnEncoding::BitWidth { bits, .. } | QnnEncoding::BitWidthFloatBlock { bits, .. } => {
                (*bits, 0, 0)
            }
            QnnEncoding::BitWidthPerAxis { bits, scales, .. } => (*bits, scales.len(), 0),
            QnnEncoding::BlockExpansion { scales, multiples, .. } => (4, scales.len(), multiples.len()),
            QnnEncoding::None | QnnEncoding::PerTensor(_) => (8, 0, 0),
            QnnEncoding::Block { .. } | QnnEncoding::FloatBlock { .. } => (8, 0, 0),
        };
        // Values of fewer bits occupy one byte each until they are compiled. Block multiples have
        // four bits.
        let packed = whole.saturating_mul(u64::from(bits)) / 8;
        packed.saturating_add(channels as u64 * CHANNEL_BYTES).saturating_add(blocks as u64 / 2)
    };
    let is_static = |tensor: &&QnnTensor<'_>| matches!(tensor.kind, TensorKind::Static(_));
    let shared = graph.tensors.iter().filter(is_static).map(values).fold(0, u64::saturating_add);
    (shared, graph.nodes.len() as u64 * NODE_BYTES)
}

/// Replaces the fused rotary embedding by a form that has a cost.
pub fn spelled_out(variants: Variants) -> Variants {
    match variants.rotary {
        Rotary::Fused => Variants { rotary: Rotary::Pairs, ..variants },
        _ => variants,
    }
}

/// Returns the entry's node for a name reported by the library, which extends our node names.
fn origin(graph: &QnnGraph<'_>, name: &str) -> Option<u64> {
    let ours = name.split_once(" : ").map_or(name, |(ours, _)| ours);
    let exact = graph.nodes.iter().find(|node| node.name == ours);
    let longest = || {
        let within = graph.nodes.iter().filter(|node| name.contains(node.name.as_str()));
        within.max_by_key(|node| node.name.len())
    };
    exact.or_else(longest)?.origin.map(u64::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{ScaleOffset, StaticData};

    fn tensor(name: &str, kind: TensorKind<'static>, dtype: DataType, scale: f32) -> QnnTensor<'static> {
        let encoding = match dtype {
            DataType::Float32 => QnnEncoding::None,
            _ => QnnEncoding::PerTensor(ScaleOffset { scale, offset: 0 }),
        };
        QnnTensor { name: name.to_owned(), kind, dtype, dims: vec![4], encoding }
    }

    fn node(name: &str, op: &'static str, inputs: &[u32], output: u32, origin: u32) -> QnnNode {
        QnnNode {
            name: name.to_owned(),
            op,
            params: vec![],
            inputs: inputs.iter().map(|index| TensorIndex(*index)).collect(),
            outputs: vec![TensorIndex(output)],
            origin: Some(origin),
        }
    }

    /// Builds `x + w → a → tanh → b → floats`, with `a` as an output too.
    fn graph(scale: f32) -> QnnGraph<'static> {
        let stand = TensorKind::Static(StaticData::Stand { seed: 1 });
        QnnGraph {
            name: "g".to_owned(),
            tensors: vec![
                tensor("x", TensorKind::Input, DataType::Ufixed16, scale),
                tensor("w", stand, DataType::Ufixed16, scale),
                tensor("a", TensorKind::Native, DataType::Ufixed16, scale),
                tensor("b", TensorKind::Native, DataType::Ufixed16, 0.25),
                tensor("y", TensorKind::Output, DataType::Float32, 1.0),
            ],
            nodes: vec![
                node("node.1", "ElementWiseAdd", &[0, 1], 2, 5),
                node("node.12", "ElementWiseNeuron", &[2], 3, 6),
                node("node.2", "Dequantize", &[3], 4, 7),
            ],
        }
    }

    #[test]
    fn a_part_has_the_cut_tensors_as_its_inputs_and_outputs() {
        let whole = graph(0.5);
        let kinds = |graph: &QnnGraph<'_>| -> Vec<(String, &str)> {
            let word = |kind: &TensorKind<'_>| match kind {
                TensorKind::Input => "input",
                TensorKind::Output => "output",
                TensorKind::Native => "native",
                TensorKind::Static(_) => "static",
            };
            graph.tensors.iter().map(|tensor| (tensor.name.clone(), word(&tensor.kind))).collect()
        };
        let named = |pairs: &[(&str, &'static str)]| -> Vec<(String, &str)> {
            pairs.iter().map(|(name, kind)| ((*name).to_owned(), *kind)).collect()
        };
        let first = part(&whole, |node| node.origin == Some(5));
        assert_eq!(kinds(&first), named(&[("x", "input"), ("w", "static"), ("a", "output")]));
        assert_eq!(first.nodes[0].outputs, [TensorIndex(2)]);
        let second = part(&whole, |node| node.origin != Some(5));
        assert_eq!(kinds(&second), named(&[("a", "input"), ("b", "native"), ("y", "output")]));
        assert_eq!(
            (&second.nodes[0].inputs[..], &second.nodes[1].outputs[..]),
            (&[TensorIndex(0)][..], &[TensorIndex(2)][..])
        );
        assert_eq!(part(&whole, |_| true), whole);
        assert!(part(&whole, |_| false).tensors.is_empty());
        let (cut, left_out) = without_final_conversions(&whole);
        assert_eq!((cut.nodes.len(), left_out), (2, vec!["node.2".to_owned()]));
        assert_eq!(kinds(&cut)[3], ("b".to_owned(), "output"));
    }

    #[test]
    fn shapes_leave_scales_out_but_not_which_are_equal() {
        assert_eq!(shape_of(&graph(0.5)), shape_of(&graph(0.125)));
        // Now `b` has the encoding of its operand.
        assert_ne!(shape_of(&graph(0.5)), shape_of(&graph(0.25)));
        let mut other = graph(0.5);
        other.tensors[0].dims = vec![5];
        assert_ne!(shape_of(&graph(0.5)), shape_of(&other));
    }

    #[test]
    fn names_of_the_library_lead_back_to_nodes() {
        let graph = graph(0.5);
        assert_eq!(origin(&graph, "node.1 : OpId_491"), Some(5));
        assert_eq!(origin(&graph, "node.12 : OpId_4"), Some(6));
        assert_eq!(origin(&graph, "q::part_of_node.12"), Some(6));
        assert_eq!(origin(&graph, "node.2"), Some(7));
        assert_eq!(origin(&graph, "OpId_4"), None);
    }
}
