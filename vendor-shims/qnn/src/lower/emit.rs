//! Converts the draft to the compiler's graph.

use std::collections::HashSet;

use shardwright_shim_abi::Error;
use shardwright_shim_npu::error::too_large;
use shardwright_shim_npu::port::Port;
use shardwright_shim_npu::{ValueId, ValueKind};

use super::Lowered;
use super::draft::{ActKind, Compute, GraphDraft, Source};
use super::encoding::TensorEncoding;
use crate::graph::{
    DataType, Param, QnnEncoding, QnnGraph, QnnNode, QnnTensor, StaticData, TensorIndex, TensorKind,
};

/// Tolerance below which a vector's square sum counts as zero. It implements the contract's
/// `max(‖x‖, 1e-12)`.
const L2_EPSILON: f32 = 1e-24;

struct Emitter<'d, 'w> {
    draft: &'d mut GraphDraft<'w>,
    graph: QnnGraph<'w>,
    /// The tensor of each value.
    tensors: Vec<Option<TensorIndex>>,
    names: HashSet<String>,
    node_names: HashSet<String>,
}

/// Converts a draft of `source` to the compiler's graph.
pub(super) fn emit<'w>(source: &Source<'w>, mut draft: GraphDraft<'w>) -> Result<Lowered<'w>, Error> {
    draft.part_outputs(|draft, value| {
        let encoding = draft.encoding(value).unwrap_or(TensorEncoding::Half);
        let (shape, name) = (draft.shape(value).to_vec(), format!("{}.out", draft.values[value.0].name));
        draft.act(ActKind::Reshape, &[value], (shape, encoding), &name, None)
    });
    let mut names: HashSet<String> = HashSet::new();
    for value in &draft.values {
        if let ValueKind::Constant(constant) = &value.kind {
            names.insert(constant.name.clone());
        }
    }
    let tensors = vec![None; draft.values.len()];
    let graph = QnnGraph { name: source.entry.name().to_owned(), ..QnnGraph::default() };
    let mut emitter = Emitter { draft: &mut draft, graph, tensors, names, node_names: HashSet::new() };
    let sides = [emitter.draft.inputs.clone(), emitter.draft.outputs.clone()];
    let views = [source.entry.inputs().collect::<Vec<_>>(), source.entry.outputs().collect()];
    let mut ports = Vec::new();
    for (is_output, (views, values)) in [false, true].into_iter().zip(views.iter().zip(&sides)) {
        for (view, value) in views.iter().zip(values) {
            let tensor = emitter.tensor(*value, true)?;
            let (scale, zero_point) = emitter.draft.encoding(*value).map_or((1.0, 0), TensorEncoding::affine);
            let shape = emitter.draft.shape(*value);
            ports.push(Port::of(view, is_output, shape, (scale, zero_point), tensor));
        }
    }
    for node in std::mem::take(&mut emitter.draft.nodes) {
        let inputs =
            node.inputs.iter().map(|input| emitter.tensor(*input, false)).collect::<Result<Vec<_>, _>>()?;
        let outputs = vec![emitter.tensor(node.output, false)?];
        let (op, params) = emitter.operation(&node.kind, &node.inputs, node.output);
        let name = unique(&mut emitter.node_names, &node.name);
        let origin = node.origin.map(|origin| origin.node);
        emitter.graph.nodes.push(QnnNode { name, op, params, inputs, outputs, origin });
    }
    let stand_ins = emitter
        .graph
        .tensors
        .iter()
        .filter(|tensor| matches!(tensor.kind, TensorKind::Static(StaticData::Stand { .. })))
        .count();
    Ok(Lowered { graph: emitter.graph, ports, stand_ins, broadcast_mask: None })
}

fn unique(names: &mut HashSet<String>, name: &str) -> String {
    let mut candidate = name.to_owned();
    let mut number = 2;
    while !names.insert(candidate.clone()) {
        candidate = format!("{name}~{number}");
        number += 1;
    }
    candidate
}

impl<'w> Emitter<'_, 'w> {
    fn tensor(&mut self, value: ValueId, is_port: bool) -> Result<TensorIndex, Error> {
        if let Some(known) = self.tensors[value.0] {
            return Ok(known);
        }
        let existing = &self.draft.values[value.0];
        let mut dims = Vec::with_capacity(existing.shape.len());
        for extent in &existing.shape {
            let extent = u32::try_from(*extent)
                .map_err(|_| too_large("tensor-extent", *extent, u64::from(u32::MAX)))?;
            dims.push(extent);
        }
        let computed = |encoding: TensorEncoding| (encoding.dtype(), encoding.qnn());
        let (kind, (dtype, encoding)): (TensorKind<'w>, (DataType, QnnEncoding)) = match &existing.kind {
            ValueKind::Input(encoding) => (TensorKind::Input, computed(*encoding)),
            ValueKind::Computed(encoding) if is_port => (TensorKind::Output, computed(*encoding)),
            ValueKind::Computed(encoding) => (TensorKind::Native, computed(*encoding)),
            ValueKind::Constant(constant) => {
                let content = &constant.content;
                (TensorKind::Static(content.data.clone()), (content.dtype, content.encoding.clone()))
            }
        };
        let name = match &existing.kind {
            ValueKind::Constant(constant) => constant.name.clone(),
            _ => unique(&mut self.names, &existing.name),
        };
        self.graph.tensors.push(QnnTensor { name, kind, dtype, dims, encoding });
        let index = TensorIndex(self.graph.tensors.len() as u32 - 1);
        self.tensors[value.0] = Some(index);
        Ok(index)
    }

    fn operation(
        &self,
        kind: &ActKind,
        inputs: &[ValueId],
        output: ValueId,
    ) -> (&'static str, Vec<(&'static str, Param)>) {
        let rank = self.draft.shape(inputs[0]).len() as u32;
        let last = rank.saturating_sub(1);
        match kind {
            ActKind::Compute(Compute::FullyConnected) => ("FullyConnected", vec![]),
            ActKind::Compute(Compute::Pixel) => (
                "Conv2d",
                vec![
                    ("stride", Param::U32s(vec![1, 1])),
                    ("pad_amount", Param::U32Block(vec![0; 4], vec![2, 2])),
                ],
            ),
            ActKind::Compute(Compute::Plane { stride, padding }) => (
                "Conv2d",
                vec![
                    ("stride", Param::U32s(vec![*stride; 2])),
                    ("pad_amount", Param::U32Block(vec![*padding; 4], vec![2, 2])),
                ],
            ),
            ActKind::Compute(Compute::MatMul { transpose_second }) => (
                "MatMul",
                vec![
                    ("transpose_in0", Param::Bool(false)),
                    ("transpose_in1", Param::Bool(*transpose_second)),
                ],
            ),
            ActKind::Compute(Compute::RmsNorm(epsilon)) => (
                "RmsNorm",
                vec![("epsilon", Param::F32(f32::from_bits(*epsilon))), ("axes", Param::U32s(vec![last]))],
            ),
            ActKind::Compute(Compute::Rotary) => {
                ("RotaryEmbedding", vec![("interleaved", Param::Bool(false))])
            }
            ActKind::Compute(Compute::Unary(op) | Compute::Binary(op)) => (op, vec![]),
            ActKind::Compute(Compute::Softmax) => {
                ("Softmax", vec![("axis", Param::U32(last)), ("beta", Param::F32(1.0))])
            }
            ActKind::Compute(Compute::L2Norm) => {
                ("L2Norm", vec![("axis", Param::U32(last)), ("epsilon", Param::F32(L2_EPSILON))])
            }
            ActKind::Compute(Compute::Reduce(op)) => {
                (op, vec![("axes", Param::U32s(vec![last])), ("keep_dims", Param::Bool(true))])
            }
            ActKind::Reshape => ("Reshape", vec![]),
            ActKind::Transpose(perm) => ("Transpose", vec![("perm", Param::U32s(perm.clone()))]),
            ActKind::Slice { axis, start, end } => {
                let ranges = self.draft.shape(inputs[0]).iter().enumerate().flat_map(|(index, extent)| {
                    let (from, to) = if index == *axis { (*start, *end) } else { (0, *extent) };
                    [from as i32, to as i32, 1]
                });
                ("StridedSlice", vec![("ranges", Param::I32s(ranges.collect(), vec![rank, 3]))])
            }
            ActKind::Concat(axis) => ("Concat", vec![("axis", Param::U32(*axis as u32))]),
            ActKind::Compute(Compute::Convert) => {
                let (from, to) = (self.draft.encoding(inputs[0]), self.draft.encoding(output));
                let is_float =
                    |encoding| matches!(encoding, Some(TensorEncoding::Single | TensorEncoding::Half));
                match (is_float(from), is_float(to)) {
                    (true, true) => ("Cast", vec![]),
                    (true, false) => ("Quantize", vec![]),
                    (false, true) => ("Dequantize", vec![]),
                    (false, false) => ("Convert", vec![]),
                }
            }
        }
    }
}
