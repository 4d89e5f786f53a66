//! A small graph that is compiled to determine the effect of a flag. It has products, a sum, a
//! hyperbolic tangent and a softmax.

use shardwright_neuron_adapter::{operand, operation, setting::fuse};

use crate::graph::{Channels, NeuronGraph, Operand, OperandKind, Operation, OperationKind, Value};

/// Rows of the sample. `WIDTH` is the extent of its square matrices.
const ROWS: u32 = 8;
const WIDTH: u32 = 64;

/// Builds the graph.
pub(crate) fn graph() -> NeuronGraph<'static> {
    let mut graph = NeuronGraph { name: "sample".to_owned(), relaxed: true, ..NeuronGraph::default() };
    let mut add = |name: &str, kind: i32, dims: Vec<u32>, scale: f32, value: Option<Vec<u8>>| {
        graph.operands.push(Operand {
            name: name.to_owned(),
            kind: OperandKind::Numbered(kind),
            dims,
            scale,
            channels: None,
            value: value.map(Value::Owned),
        });
        graph.operands.len() as u32 - 1
    };
    let activation = |scale: f32| (operand::TENSOR_QUANT16_SYMM, vec![ROWS, WIDTH], scale);
    let (kind, dims, scale) = activation(1.0 / 4096.0);
    let x = add("x", kind, dims.clone(), scale, None);
    let out = add("out", kind, dims.clone(), 1.0 / 32_768.0, None);
    let weights = |step: usize| (0..(WIDTH * WIDTH) as usize).map(|at| (at * step % 255) as u8).collect();
    let matrix_dims = vec![WIDTH, WIDTH];
    let matrix = operand::TENSOR_QUANT8_SYMM_PER_CHANNEL;
    let first = add("first", matrix, matrix_dims.clone(), 0.0, Some(weights(7)));
    let second = add("second", matrix, matrix_dims, 0.0, Some(weights(11)));
    let zeros = vec![0; 4 * WIDTH as usize];
    let bias = add("zeros", operand::TENSOR_INT32, vec![WIDTH], 0.0, Some(zeros));
    let none = add("none", operand::INT32, Vec::new(), 0.0, Some(fuse::NONE.to_le_bytes().to_vec()));
    let one = add("one", operand::FLOAT32, Vec::new(), 0.0, Some(1f32.to_le_bytes().to_vec()));
    let product = add("product", kind, dims.clone(), 1.0 / 1024.0, None);
    let bounded = add("bounded", kind, dims.clone(), 1.0 / 32_768.0, None);
    let again = add("again", kind, dims.clone(), 1.0 / 1024.0, None);
    let sum = add("sum", kind, dims, 1.0 / 1024.0, None);
    for matrix in [first, second] {
        let scales = vec![1.0 / 1024.0; WIDTH as usize];
        graph.operands[matrix as usize].channels = Some(Channels { dimension: 0, scales });
    }
    let mut act = |kind: i32, inputs: &[u32], output: u32| {
        graph.operations.push(Operation {
            name: format!("sample.{kind}"),
            kind: OperationKind::Numbered(kind),
            inputs: inputs.to_vec(),
            outputs: vec![output],
            origin: None,
        });
    };
    act(operation::FULLY_CONNECTED, &[x, first, bias, none], product);
    act(operation::TANH, &[product], bounded);
    act(operation::FULLY_CONNECTED, &[bounded, second, bias, none], again);
    act(operation::ADD, &[product, again, none], sum);
    act(operation::SOFTMAX, &[sum, one], out);
    (graph.inputs, graph.outputs) = (vec![x], vec![out]);
    graph
}
