use std::path::Path;

use serde::Serialize;
use shardwright::tools::IgnoredFields;
use shardwright_graph::{
    ComponentKind, EntryGraph, EntryOptions, EntryPoint, Graph, decompose_all, layer_kinds,
};
use shardwright_models::Facts;
use shardwright_vocabulary::{EntryKind, Error, ErrorKind, Ignored, Result};

use crate::fault::Fault;

/// The content of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShowReport {
    pub checkpoint: Facts,
    /// Parts of the model in the order in which a step runs them.
    pub components: Vec<ComponentReport>,
    /// Layers grouped by equal structure.
    pub layer_kinds: Vec<LayerKindReport>,
    /// Tables whose rows are gathered.
    pub assets: Vec<AssetReport>,
    /// Size of all states in bytes at the model's full context, in f32.
    pub state_bytes: u64,
    /// The context used for `state_bytes`.
    pub context: u64,
    /// Remarks of the loader about skipped data and default values.
    pub notes: Vec<String>,
    /// Fields and files that have no effect.
    pub ignored: Vec<Ignored>,
    /// The fault of a text file that could not be read, so that the model cannot be run or
    /// compiled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unread: Option<Fault>,
}

impl ShowReport {
    /// Returns the error of a text file that could not be read.
    ///
    /// # Errors
    ///
    /// With `strict`, also a field or file without effect.
    pub fn verdict(&self, strict: bool) -> Result<()> {
        self.unread.as_ref().map_or(Ok(()), |fault| Err(fault.to_error()))?;
        expect_effects(self.ignored.first().filter(|_| strict))
    }
}

/// Rejects a model with a field or file without effect.
pub(crate) fn expect_effects(ignored: Option<&Ignored>) -> Result<()> {
    ignored.map_or(Ok(()), |field| Err(Error::new(ErrorKind::Strict, field.to_string())))
}

/// One part of the model, as one shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ComponentReport {
    pub name: String,
    /// Number of layers, or 0 without layers.
    pub layers: u32,
    /// Number of semantic operations in one decode (or encode) step.
    pub ops: usize,
    /// Number of primitive operations in that step.
    pub primitive_ops: usize,
    /// Multiply-adds per token of that step, without attention over earlier tokens.
    pub multiply_adds: u64,
    /// Number of operations in a prefill step, or 0 if the part is not used there.
    pub prefill_ops: usize,
    /// Size of the weights in bytes, as stored.
    pub weight_bytes: u64,
}

/// Layers that differ only in their weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LayerKindReport {
    /// Numbers of the layers.
    pub layers: Vec<u32>,
    /// Number of semantic operations per layer.
    pub ops: usize,
    /// Number of primitive operations per layer.
    pub primitive_ops: usize,
    /// Size of the weights per layer in bytes.
    pub weight_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AssetReport {
    pub name: String,
    /// Number of rows.
    pub entries: u64,
    /// Values per row.
    pub width: u64,
    /// Stored size in bytes.
    pub bytes: u64,
}

/// Reads a checkpoint and describes it, without computing anything.
pub fn show(checkpoint: &Path) -> Result<ShowReport> {
    let checkpoint = shardwright_checkpoints::open_checkpoint(checkpoint)?;
    let graph = checkpoint.graph();
    let point = |kind| EntryPoint { kind, rows: 1, context: 1, largest_rows: 1 };
    let (step, prefill) = match graph.is_generative() {
        true => (point(EntryKind::Decode), Some(EntryPoint { context: 2, ..point(EntryKind::Prefill) })),
        false => (point(EntryKind::Encode), None),
    };
    let entry = |kind, layers, point| graph.entry(kind, layers, point, EntryOptions::default());

    let mut components = Vec::new();
    for component in &graph.components {
        let layers = 0..component.layers;
        let whole = entry(component.kind, layers.clone(), step)?;
        let filling = match prefill {
            Some(point) => entry(component.kind, layers, point)?,
            None => None,
        };
        components.push(ComponentReport {
            name: component.kind.name().to_owned(),
            layers: component.layers,
            ops: whole.as_ref().map_or(0, |entry| entry.nodes.len()),
            primitive_ops: whole.as_ref().map_or(0, |entry| decompose_all(entry).nodes.len()),
            multiply_adds: whole.as_ref().map_or(0, EntryGraph::multiply_adds),
            prefill_ops: filling.as_ref().map_or(0, |entry| entry.nodes.len()),
            weight_bytes: whole.as_ref().map_or(0, EntryGraph::weight_bytes),
        });
    }

    let kinds = layer_kinds(graph)?;
    let mut reports = Vec::new();
    for (kind, &layer) in kinds.representative.iter().enumerate() {
        let one = entry(ComponentKind::Decoder, layer..layer + 1, step)?;
        let of_kind = |(layer, existing): (usize, &u32)| (*existing as usize == kind).then_some(layer as u32);
        reports.push(LayerKindReport {
            layers: kinds.of_layer.iter().enumerate().filter_map(of_kind).collect(),
            ops: one.as_ref().map_or(0, |entry| entry.nodes.len()),
            primitive_ops: one.as_ref().map_or(0, |entry| decompose_all(entry).nodes.len()),
            weight_bytes: one.as_ref().map_or(0, EntryGraph::weight_bytes),
        });
    }

    let ignored = IgnoredFields::of_checkpoint(&checkpoint, None);
    Ok(ShowReport {
        components,
        layer_kinds: reports,
        assets: graph
            .assets
            .iter()
            .map(|asset| AssetReport {
                name: asset.name.clone(),
                entries: asset.entries(),
                width: asset.width(),
                bytes: asset.table.bytes(),
            })
            .collect(),
        state_bytes: state_bytes(graph),
        context: graph.context,
        notes: checkpoint.notes().to_vec(),
        ignored: ignored.fields,
        unread: ignored.unread.as_ref().map(Fault::of),
        checkpoint: checkpoint.facts().clone(),
    })
}

/// Computes the size of a session's states at the full context, with rings for decode steps of one
/// row.
fn state_bytes(graph: &Graph) -> u64 {
    graph
        .states
        .iter()
        .map(|state| state.capacity(graph.context, 1).saturating_mul(state.width).saturating_mul(4))
        .fold(0, u64::saturating_add)
}
