//! The norm that follows a boundary.

use shardwright_graph::{
    Component, ComponentKind, EntryGraph, EntryNode, EntryPoint, Graph, Node, Op, Role, Segment, Tensor,
    TensorId, ValueId, ValueSource, WeightId,
};
use shardwright_reference::{Array, Bindings, Evaluator, States, Weights};
use shardwright_vocabulary::{EntryKind, Result};

/// Number of rows normalised at once.
const ROWS: usize = 32;

/// The norm through which the graph after a cut reads the residual stream.
///
/// A residual stream has a few channels a hundred times as large as the others, and errors in them
/// dominate the length of a row. The next layer does not see these channels directly, but only the
/// output of its norm.
pub(crate) struct NextNorm {
    pub(crate) name: String,
    evaluator: Evaluator,
}

impl NextNorm {
    /// Finds the norm after cut number `cut`, which has `cut` layers before it: the norm of the
    /// next layer, or of the component after the last layer. Returns `None` if the stream is not
    /// read through a norm.
    pub(crate) fn after(graph: &Graph, cut: usize) -> Result<Option<NextNorm>> {
        let layered = graph.components.iter().find(|component| component.kind.is_layered());
        let inside = layered.and_then(|layered| {
            let stream = *layered.cuts.get(cut)?;
            first_norm(layered, stream, Some(cut as u32))
        });
        let behind = || {
            graph.components.iter().filter(|component| component.kind.ends_stream()).find_map(|component| {
                let streams = component.values.iter().enumerate().filter(
                    |(_, value)| matches!(&value.source, ValueSource::Input(role) if *role == Role::Hidden),
                );
                let mut streams = streams.map(|(index, _)| ValueId(index as u32));
                streams.find_map(|stream| first_norm(component, stream, None))
            })
        };
        let found = if cut < graph.layers() as usize { inside } else { behind() };
        let Some((norm, scale)) = found else { return Ok(None) };
        let evaluator = Evaluator::new(alone(graph, norm, scale), Weights::new(&graph.weights))?;
        Ok(Some(NextNorm { name: norm.name.clone(), evaluator }))
    }

    /// Returns rows after the norm.
    pub(crate) fn apply(&self, rows: &[f32], width: usize) -> Result<Vec<f32>> {
        let mut normed = Vec::with_capacity(rows.len());
        for some in rows.chunks(ROWS * width) {
            let mut padded = some.to_vec();
            padded.resize(ROWS * width, 0.0);
            let mut bindings = Bindings::new();
            bindings.bind(Role::Hidden, Array::floats_of(&[ROWS as u64, width as u64], padded)?);
            let outputs = self.evaluator.run(&bindings, &mut States::none(), ROWS as u64)?;
            let found = outputs.get(&Role::Hidden).map(Array::floats).unwrap_or_default();
            normed.extend_from_slice(found.get(..some.len()).unwrap_or_default());
        }
        Ok(normed)
    }
}

/// Returns the first norm that reads `stream`, with its scale.
fn first_norm(component: &Component, stream: ValueId, layer: Option<u32>) -> Option<(&Node, WeightId)> {
    let mut norms = component.nodes.iter().filter(|node| {
        matches!(node.op, Op::RmsNorm { .. })
            && node.inputs.first() == Some(&stream)
            && (layer.is_none() || node.layer == layer)
    });
    norms.find_map(|node| {
        let scale = component.values.get(node.inputs.get(1)?.0 as usize)?;
        match scale.source {
            ValueSource::Constant(weight) => Some((node, weight)),
            _ => None,
        }
    })
}

/// Makes an entry graph that contains only the norm.
fn alone(graph: &Graph, norm: &Node, scale: WeightId) -> EntryGraph {
    let shape = vec![ROWS as u64, graph.hidden];
    let weight = graph.weight(scale);
    let rows = ROWS as u64;
    EntryGraph {
        segments: Segment::whole(ComponentKind::Head).into(),
        point: EntryPoint { kind: EntryKind::Encode, rows, context: rows, largest_rows: rows },
        tensors: vec![
            Tensor::plain("stream", shape.clone(), shardwright_vocabulary::DType::F32),
            Tensor { weight: Some(scale), ..Tensor::plain("scale", weight.shape.clone(), weight.dtype) },
            Tensor::plain("normed", shape, shardwright_vocabulary::DType::F32),
        ],
        nodes: vec![EntryNode {
            name: norm.name.clone(),
            op: norm.op.clone(),
            inputs: vec![TensorId(0), TensorId(1)],
            output: TensorId(2),
            layer: None,
        }],
        inputs: vec![(TensorId(0), Role::Hidden)],
        outputs: vec![(TensorId(2), Role::Hidden)],
        states: Vec::new(),
    }
}
