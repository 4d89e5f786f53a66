use std::collections::HashMap;

use sha2::{Digest, Sha256};
use shardwright_vocabulary::{EntryKind, Result};

use crate::{EntryGraph, EntryOptions, EntryPoint, Graph, Role};

/// Layers grouped by equal structure: the same operations, shapes and attributes, but other
/// weights, states and donors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerKinds {
    /// Kind of each layer.
    pub of_layer: Vec<u32>,
    /// The first layer of each kind, which represents it in tables.
    pub representative: Vec<u32>,
}

/// Groups the layers by hashing the graphs of each single layer under all of its entry kinds.
///
/// This includes the prefill graph. So the last layer that writes a state is a separate kind if it
/// computes less there.
pub fn layer_kinds(graph: &Graph) -> Result<LayerKinds> {
    let entry_kinds: &[EntryKind] =
        if graph.is_generative() { &[EntryKind::Prefill, EntryKind::Decode] } else { &[EntryKind::Encode] };
    let mut kinds = HashMap::new();
    let mut found = LayerKinds { of_layer: Vec::new(), representative: Vec::new() };
    let Some(component) = graph.layered().map(|component| component.kind) else { return Ok(found) };
    for layer in 0..graph.layers() {
        let mut digest = Sha256::new();
        for &kind in entry_kinds {
            // Any row count and context is suitable, since both scale all layers in the same way.
            // Distinct primes distinguish the extents.
            let point = EntryPoint { kind, rows: 3, context: 1 << 30, largest_rows: 7 };
            let entry = graph.entry(component, layer..layer + 1, point, EntryOptions::default())?;
            digest.update(structure(entry.as_ref()));
        }
        let next = found.representative.len() as u32;
        let kind = *kinds.entry(digest.finalize()).or_insert_with(|| {
            found.representative.push(layer);
            next
        });
        found.of_layer.push(kind);
    }
    Ok(found)
}

/// Returns a text that is equal for graphs of equal structure. It excludes names, weights, states
/// and layer numbers.
fn structure(entry: Option<&EntryGraph>) -> String {
    let Some(entry) = entry else { return "nothing".to_owned() };
    let mut text = String::new();
    let role = |role: &Role| match role {
        Role::State { .. } => "state".to_owned(),
        Role::StateRows { .. } => "state-rows".to_owned(),
        Role::PerLayer { layers, .. } => format!("per-layer {layers}"),
        other => format!("{other:?}"),
    };
    for tensor in &entry.tensors {
        text += &format!("t {:?} {} {}\n", tensor.shape, tensor.dtype, tensor.weight.is_some());
    }
    for node in &entry.nodes {
        text += &format!("n {:?} {:?} {:?}\n", node.op, node.inputs, node.output);
    }
    for (tensor, existing) in &entry.inputs {
        text += &format!("i {} {}\n", tensor.0, role(existing));
    }
    for (tensor, existing) in &entry.outputs {
        text += &format!("o {} {}\n", tensor.0, role(existing));
    }
    text
}
