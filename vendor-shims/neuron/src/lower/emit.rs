//! Emits the draft as operands and operations. Scalars and shapes become constants.

use std::collections::HashMap;

use shardwright_neuron_adapter::{extension, operand, operation, setting::fuse};
use shardwright_shim_abi::Error;
use shardwright_shim_npu::error::too_large;
use shardwright_shim_npu::port::Port;
use shardwright_shim_npu::{ValueId, ValueKind};

use super::Lowered;
use super::draft::{Act, ActKind, Compute, GraphDraft, Source};
use super::encoding::OperandEncoding;
use crate::graph::{
    NeuronGraph, Operand, OperandIndex, OperandKind, Operation, OperationKind, Value as Bytes,
};

struct Emitter<'d, 'w> {
    draft: &'d GraphDraft<'w>,
    graph: NeuronGraph<'w>,
    /// The operand of each value.
    operands: Vec<Option<OperandIndex>>,
    /// Arguments by type, dimensions and bytes. Equal arguments share one operand.
    arguments: HashMap<(OperandKind, Vec<u32>, Vec<u8>), OperandIndex>,
    /// Zero biases by type, length and scale.
    biases: HashMap<(i32, u32, u32), OperandIndex>,
}

/// Emits the graph of a draft of `source`.
pub(super) fn emit<'w>(source: &Source<'w>, draft: GraphDraft<'w>) -> Result<Lowered<'w>, Error> {
    let graph = NeuronGraph { name: source.entry.name().to_owned(), ..NeuronGraph::default() };
    let operands = vec![None; draft.values.len()];
    let mut emitter =
        Emitter { draft: &draft, graph, operands, arguments: HashMap::new(), biases: HashMap::new() };
    let mut ports = Vec::new();
    // In the order of Google's client: inputs, outputs, then the other operands of the operations.
    let inputs = source.entry.inputs().zip(&draft.inputs).map(|(view, value)| (view, value, false));
    let outputs = source.entry.outputs().zip(&draft.outputs).map(|(view, value)| (view, value, true));
    for (view, value, is_output) in inputs.chain(outputs) {
        let index = emitter.operand(*value)?;
        match is_output {
            true => emitter.graph.outputs.push(index),
            false => emitter.graph.inputs.push(index),
        }
        let shape = source.tensor(view.tensor()).shape;
        let scale = draft.encoding(*value).and_then(OperandEncoding::scale).map_or(1.0, f64::from);
        ports.push(Port::of(&view, is_output, shape, (scale, 0), draft.shape(*value).to_vec()));
    }
    for act in &draft.nodes {
        emitter.act(act)?;
    }
    let kinds = emitter.graph.operands.iter().map(|operand| operand.kind);
    let is_single = |kind| kind == OperandKind::Numbered(operand::TENSOR_FLOAT32);
    emitter.graph.relaxed = kinds.into_iter().any(is_single);
    Ok(Lowered { graph: emitter.graph, ports })
}

fn dimensions(extents: &[u64]) -> Result<Vec<u32>, Error> {
    let of = |extent: &u64| {
        u32::try_from(*extent).ok().filter(|extent| *extent != u32::MAX).ok_or(too_large(
            "tensor-extent",
            *extent,
            u64::from(u32::MAX) - 1,
        ))
    };
    extents.iter().map(of).collect()
}

impl<'w> Emitter<'_, 'w> {
    fn push(&mut self, operand: Operand<'w>) -> OperandIndex {
        self.graph.operands.push(operand);
        self.graph.operands.len() as OperandIndex - 1
    }

    fn operand(&mut self, value: ValueId) -> Result<OperandIndex, Error> {
        if let Some(known) = self.operands[value.0] {
            return Ok(known);
        }
        let existing = &self.draft.values[value.0];
        let dims = dimensions(&existing.shape)?;
        let operand = match &existing.kind {
            ValueKind::Input(encoding) | ValueKind::Computed(encoding) => Operand {
                name: existing.name.clone(),
                kind: OperandKind::Numbered(encoding.kind()),
                dims,
                scale: encoding.scale().unwrap_or(0.0),
                channels: None,
                value: None,
            },
            ValueKind::Constant(constant) => Operand {
                name: constant.name.clone(),
                kind: OperandKind::Numbered(constant.content.kind),
                dims,
                scale: constant.content.scale,
                channels: constant.content.channels.clone(),
                value: Some(constant.content.value.clone()),
            },
        };
        let index = self.push(operand);
        self.operands[value.0] = Some(index);
        Ok(index)
    }

    /// Returns the operand of an argument, a scalar or a small tensor.
    fn argument(&mut self, kind: OperandKind, dims: Vec<u32>, bytes: Vec<u8>) -> OperandIndex {
        let key = (kind, dims, bytes);
        if let Some(known) = self.arguments.get(&key) {
            return *known;
        }
        let index = self.push(Operand {
            name: "argument".to_owned(),
            kind,
            dims: key.1.clone(),
            scale: 0.0,
            channels: None,
            value: Some(Bytes::Owned(key.2.clone())),
        });
        self.arguments.insert(key, index);
        index
    }

    fn scalar_i32(&mut self, value: i32) -> OperandIndex {
        self.argument(OperandKind::Numbered(operand::INT32), Vec::new(), value.to_le_bytes().to_vec())
    }

    fn scalar_bool(&mut self, value: bool) -> OperandIndex {
        self.argument(OperandKind::Numbered(operand::BOOL), Vec::new(), vec![u8::from(value)])
    }

    fn scalar_f32(&mut self, value: f32) -> OperandIndex {
        self.argument(OperandKind::Numbered(operand::FLOAT32), Vec::new(), value.to_le_bytes().to_vec())
    }

    fn list(&mut self, values: &[i32]) -> OperandIndex {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.argument(OperandKind::Numbered(operand::TENSOR_INT32), vec![values.len() as u32], bytes)
    }

    /// Returns zeros as the bias of a product: 32-bit integers with the scale that the interface
    /// requires, or floats.
    fn bias(&mut self, x: OperandIndex, matrix: OperandIndex) -> OperandIndex {
        let (x, matrix) = (&self.graph.operands[x as usize], &self.graph.operands[matrix as usize]);
        let outputs = matrix.dims[0];
        let (kind, width, scale) = match x.kind {
            OperandKind::Numbered(operand::TENSOR_FLOAT32) => (operand::TENSOR_FLOAT32, 4, 0.0),
            OperandKind::Numbered(operand::TENSOR_FLOAT16) => (operand::TENSOR_FLOAT16, 2, 0.0),
            // Per-channel biases do not have a scale of their own. It follows from both operands.
            _ if matrix.channels.is_some() => (operand::TENSOR_INT32, 4, 0.0),
            _ => (operand::TENSOR_INT32, 4, x.scale * matrix.scale),
        };
        let key = (kind, outputs, scale.to_bits());
        if let Some(known) = self.biases.get(&key) {
            return *known;
        }
        let index = self.push(Operand {
            name: format!("zeros.{outputs}"),
            kind: OperandKind::Numbered(kind),
            dims: vec![outputs],
            scale,
            channels: None,
            value: Some(Bytes::Owned(vec![0; width * outputs as usize])),
        });
        self.biases.insert(key, index);
        index
    }

    fn act(&mut self, act: &Act) -> Result<(), Error> {
        let mut inputs =
            act.inputs.iter().map(|input| self.operand(*input)).collect::<Result<Vec<_>, _>>()?;
        let shape = self.draft.shape(act.inputs[0]);
        let last = shape.len() as i32 - 1;
        let signed = |extents: &[u64]| extents.iter().map(|extent| *extent as i32).collect::<Vec<_>>();
        let numbered = OperationKind::Numbered;
        let kind = match &act.kind {
            ActKind::Compute(Compute::FullyConnected) => {
                let bias = self.bias(inputs[0], inputs[1]);
                inputs.extend([bias, self.scalar_i32(fuse::NONE)]);
                numbered(operation::FULLY_CONNECTED)
            }
            ActKind::Compute(Compute::BatchMatMul { transpose_second }) => {
                inputs.extend([self.scalar_bool(false), self.scalar_bool(*transpose_second)]);
                numbered(operation::BATCH_MATMUL)
            }
            ActKind::Compute(Compute::Fused(kind)) => {
                inputs.push(self.scalar_i32(fuse::NONE));
                numbered(*kind)
            }
            ActKind::Compute(Compute::Binary(kind) | Compute::Unary(kind)) => numbered(*kind),
            ActKind::Compute(Compute::Gelu) => {
                // Approximate: the only known client always sends this, and the entry's GELU is the
                // approximate form.
                let approximate = 1u32.to_le_bytes().to_vec();
                inputs.push(self.argument(OperandKind::Numbered(operand::UINT32), Vec::new(), approximate));
                numbered(operation::GELU_V2)
            }
            ActKind::Compute(Compute::Softmax) => {
                inputs.push(self.scalar_f32(1.0));
                numbered(operation::SOFTMAX)
            }
            ActKind::Compute(Compute::RmsNorm(epsilon)) => {
                let width = *shape.last().unwrap_or(&1);
                let axis = self.list(&[last]);
                let zeros = vec![0; 4 * width as usize];
                let width = dimensions(&[width])?;
                let beta = self.argument(OperandKind::Numbered(operand::TENSOR_FLOAT32), width, zeros);
                let epsilon = self.scalar_f32(f32::from_bits(*epsilon));
                let name = extension::string_operand(extension::RMS_NORMALIZATION).unwrap_or_default();
                let length = name.len() as u32;
                let name = self.argument(OperandKind::ExtensionName, vec![length], name);
                inputs = vec![inputs[0], axis, inputs[1], beta, epsilon, name];
                OperationKind::Extension
            }
            ActKind::Compute(Compute::Reduce(kind)) => {
                let axis = self.list(&[last]);
                // Some reductions expect a number here, others a boolean.
                let keep = match *kind {
                    operation::MEAN => self.scalar_i32(1),
                    _ => self.scalar_bool(true),
                };
                inputs.extend([axis, keep]);
                numbered(*kind)
            }
            ActKind::Reshape => {
                inputs.push(self.list(&signed(self.draft.shape(act.output))));
                numbered(operation::RESHAPE)
            }
            ActKind::Transpose(perm) => {
                let perm: Vec<i32> = perm.iter().map(|axis| *axis as i32).collect();
                inputs.push(self.list(&perm));
                numbered(operation::TRANSPOSE)
            }
            ActKind::Slice { axis, start, .. } => {
                let begin: Vec<i32> =
                    (0..shape.len()).map(|at| if at == *axis { *start as i32 } else { 0 }).collect();
                let size = signed(self.draft.shape(act.output));
                inputs.extend([self.list(&begin), self.list(&size)]);
                numbered(operation::SLICE)
            }
            ActKind::Concat(axis) => {
                inputs.push(self.scalar_i32(*axis as i32));
                numbered(operation::CONCATENATION)
            }
        };
        let outputs = vec![self.operand(act.output)?];
        self.graph.operations.push(Operation {
            name: act.name.clone(),
            kind,
            inputs,
            outputs,
            origin: act.origin.map(|origin| origin.node),
        });
        Ok(())
    }
}
