//! Layers in f16 with one row and with many, compiled and run by the vendor's library and compared
//! with the same graph in f64.
//!
//! An operation that is correct on a few rows may be wrong on many. So whole layers are run in all
//! forms, with more rows than a tile of the processor has.

use std::collections::HashMap;

use shardwright_shim_abi::raw::*;
use shardwright_shim_qnn::graph::{DataType, Param, QnnGraph, QnnNode, StaticData, TensorIndex, TensorKind};
use shardwright_shim_qnn::lower::{KeyRows, Product, Variants};

use super::layers::Layer;
use super::shapes::{lowered, sound};
use super::tables::{Random, TableEncoding, Tables};
use super::vendor::{device, run};

/// Bound relative to the root mean square of a result. The largest observed value is 0.004.
const BOUND: f64 = 0.01;

type Values = HashMap<TensorIndex, Vec<f64>>;

fn dims(graph: &QnnGraph<'_>, tensor: TensorIndex) -> Vec<usize> {
    graph.tensors[tensor.0 as usize].dims.iter().map(|extent| *extent as usize).collect()
}

/// Returns the index, in a broadcast operand of the extents `own`, for an element of `shape`.
fn broadcast(index: usize, shape: &[usize], own: &[usize]) -> usize {
    let (mut rest, mut place, mut stride) = (index, 0, 1);
    for (back, extent) in shape.iter().rev().enumerate() {
        let size = own.len().checked_sub(back + 1).map_or(1, |axis| own[axis]);
        place += if size > 1 { rest % extent * stride } else { 0 };
        stride *= size;
        rest /= extent;
    }
    place
}

/// Returns the coordinates of an element.
fn coordinates(index: usize, shape: &[usize]) -> Vec<usize> {
    let mut rest = index;
    let mut found: Vec<usize> = shape.iter().rev().map(|extent| (rest % extent, rest /= extent).0).collect();
    found.reverse();
    found
}

/// Returns the index of coordinates.
fn place(coordinates: &[usize], shape: &[usize]) -> usize {
    coordinates.iter().zip(shape).fold(0, |sum, (at, extent)| sum * extent + at)
}

/// Computes the values of every tensor of a graph of floats.
fn plain(graph: &QnnGraph<'_>, inputs: &[Vec<f64>]) -> Values {
    let mut values_of = Values::new();
    let mut arguments = inputs.iter();
    for (index, tensor) in (0..).map(TensorIndex).zip(&graph.tensors) {
        assert_eq!(tensor.dtype, DataType::Float16, "{}", tensor.name);
        let values = match &tensor.kind {
            TensorKind::Input => arguments.next().expect("an input").clone(),
            TensorKind::Static(StaticData::Bytes(bytes)) => TableEncoding::F16.decode(bytes),
            TensorKind::Static(_) => panic!("{} is not stored as it is", tensor.name),
            TensorKind::Native | TensorKind::Output => continue,
        };
        values_of.insert(index, values);
    }
    for node in &graph.nodes {
        let result = result(graph, node, &values_of);
        assert_eq!(result.len(), dims(graph, node.outputs[0]).iter().product::<usize>(), "{}", node.name);
        values_of.insert(node.outputs[0], result);
    }
    values_of
}

fn result(graph: &QnnGraph<'_>, node: &QnnNode, values_of: &Values) -> Vec<f64> {
    let param = |name| node.params.iter().find(|(own, _)| *own == name).map(|(_, param)| param);
    let (x, from, to) =
        (&values_of[&node.inputs[0]], dims(graph, node.inputs[0]), dims(graph, node.outputs[0]));
    let count = to.iter().product();
    let last = *from.last().expect("an axis");
    let second = || (&values_of[&node.inputs[1]], dims(graph, node.inputs[1]));
    let each = |f: fn(f64) -> f64| x.iter().map(|x| f(*x)).collect();
    let pairs = |f: fn(f64, f64) -> f64| {
        let (other, own) = second();
        (0..count).map(|at| f(x[broadcast(at, &to, &from)], other[broadcast(at, &to, &own)])).collect()
    };
    let along = |f: &dyn Fn(&[f64]) -> Vec<f64>| x.chunks(last).flat_map(f).collect();
    let dot = |a: &[f64], b: &mut dyn Iterator<Item = f64>| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    match (node.op, param("epsilon"), param("perm").or(param("ranges")).or(param("axis"))) {
        ("FullyConnected", ..) => {
            let w = second().0;
            along(&|row| w.chunks(last).map(|w| dot(row, &mut w.iter().copied())).collect())
        }
        ("Conv2d", ..) => {
            let (w, own) = second();
            let column = |at: usize| w.iter().skip(at).step_by(own[3]).copied();
            along(&|row| (0..own[3]).map(|at| dot(row, &mut column(at))).collect())
        }
        ("MatMul", ..) => {
            let turned = matches!(param("transpose_in1"), Some(Param::Bool(true)));
            let (b, own) = second();
            let outer = to.len() - 2;
            let (rows, columns) = (to[outer], to[outer + 1]);
            let own_outer = &own[..own.len() - 2];
            (0..count)
                .map(|at| {
                    let (batch, row, column) = (at / columns / rows, at / columns % rows, at % columns);
                    let a = broadcast(batch, &to[..outer], &from[..outer]) * rows + row;
                    let b =
                        &b[broadcast(batch, &to[..outer], own_outer) * last * columns..][..last * columns];
                    let row = &x[a * last..][..last];
                    match turned {
                        true => dot(row, &mut b[column * last..][..last].iter().copied()),
                        false => dot(row, &mut b.iter().skip(column).step_by(columns).copied()),
                    }
                })
                .collect()
        }
        ("RmsNorm", Some(Param::F32(epsilon)), _) => {
            let gamma = second().0;
            along(&|row| {
                let mean = row.iter().map(|x| x * x).sum::<f64>() / last as f64;
                let root = (mean + f64::from(*epsilon)).sqrt();
                row.iter().zip(gamma).map(|(x, gamma)| x / root * gamma).collect()
            })
        }
        ("Softmax", ..) => along(&|row| {
            let most = row.iter().copied().fold(f64::MIN, f64::max);
            let powers: Vec<f64> = row.iter().map(|x| (x - most).exp()).collect();
            let sum: f64 = powers.iter().sum();
            powers.into_iter().map(|power| power / sum).collect()
        }),
        ("Gelu", ..) => each(|x| {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
        }),
        ("ElementWiseNeg", ..) => each(|x| -x),
        ("ElementWiseAdd", ..) => pairs(|a, b| a + b),
        ("ElementWiseSubtract", ..) => pairs(|a, b| a - b),
        ("ElementWiseMultiply", ..) => pairs(|a, b| a * b),
        ("Reshape", ..) => x.clone(),
        ("Transpose", _, Some(Param::U32s(perm))) => (0..count)
            .map(|at| {
                let mut source = vec![0; from.len()];
                for (axis, at) in perm.iter().zip(coordinates(at, &to)) {
                    source[*axis as usize] = at;
                }
                x[place(&source, &from)]
            })
            .collect(),
        ("StridedSlice", _, Some(Param::I32s(ranges, _))) => (0..count)
            .map(|at| {
                let starts = ranges.chunks(3).map(|range| range[0] as usize);
                let source: Vec<usize> =
                    coordinates(at, &to).into_iter().zip(starts).map(|(at, start)| at + start).collect();
                x[place(&source, &from)]
            })
            .collect(),
        ("Concat", _, Some(Param::U32(axis))) => {
            let inner = |input: &TensorIndex| dims(graph, *input)[*axis as usize..].iter().product::<usize>();
            let blocks: usize = to[..*axis as usize].iter().product();
            let block = |block: usize| {
                let part = move |input| &values_of[input][block * inner(input)..][..inner(input)];
                node.inputs.iter().flat_map(part)
            };
            (0..blocks).flat_map(block).copied().collect()
        }
        (op, ..) => panic!("{op} has no meaning here"),
    }
}

/// Creates inputs of a layer whose rows are the last of its keys. Each row sees itself and some
/// rows before.
fn inputs(tables: &Tables) -> Vec<Vec<u8>> {
    let mut random = Random(11);
    let port = |port: &shardwright_shim_testing::Port| {
        let shape = tables.shape(port.tensor);
        let count = shape.iter().product();
        let values = match port.role {
            SW_ROLE_MASK => (0..count)
                .map(|at| {
                    let (row, key) = (at / shape[1] + shape[1] - shape[0], at % shape[1]);
                    if key <= row && row < key + 20 { 0.0 } else { -100.0 }
                })
                .collect(),
            SW_ROLE_ROTARY_COS | SW_ROLE_ROTARY_SIN => random.values(count, -1.0, 1.0),
            _ => random.values(count, -2.0, 2.0),
        };
        TableEncoding::F16.encode(&values)
    };
    tables.inputs.iter().map(port).collect()
}

/// Returns the root mean square of the differences relative to the correct values'.
fn relative(found: &[f64], right: &[f64]) -> f64 {
    let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
    let difference = squares(&mut found.iter().zip(right).map(|(a, b)| a - b));
    let error = (difference / squares(&mut right.iter().copied()).max(1e-30)).sqrt();
    if error.is_nan() { f64::INFINITY } else { error }
}

/// Checks layers with these numbers of rows and key heads, each in the requested forms.
fn examine(soc: u32, extents: &[(u64, u64)], forms: fn(&Tables) -> Vec<Variants>) {
    let Some(device) = device(soc) else { return };
    let mut worst = 0.0f64;
    for &(rows, kv_heads) in extents {
        let tables = Layer::small(rows, kv_heads).tables(false).halved();
        let inputs = inputs(&tables);
        let decoded: Vec<Vec<f64>> = inputs.iter().map(|bytes| TableEncoding::F16.decode(bytes)).collect();
        for variants in forms(&tables) {
            let graph = lowered(&tables, &variants).graph;
            sound(&graph);
            let right = plain(&graph, &decoded);
            let found = run(&device, &graph, &inputs).expect("it runs");
            let of = (0..).map(TensorIndex).zip(&graph.tensors);
            let outputs = of.filter(|(_, tensor)| tensor.kind == TensorKind::Output);
            for ((index, tensor), found) in outputs.zip(&found) {
                let error = relative(&TableEncoding::F16.decode(found), &right[&index]);
                let shown = format!("{} of {rows} rows, {kv_heads} heads of keys", tensor.name);
                assert!(error <= BOUND, "{shown}: {error:.1e} on chip {soc}, {variants:?}");
                worst = worst.max(error);
            }
        }
    }
    println!("chip {soc}: worst {worst:.1e}");
}

#[test]
fn layers_of_floats_are_right_with_any_number_of_rows() {
    let extents = [1, 2, 7, 8, 9, 12, 16, 31, 32, 33, 64, 96].map(|rows| [(rows, 1), (rows, 2)]).concat();
    examine(87, &extents, |_| vec![Variants::default()]);
}

#[test]
fn layers_of_floats_are_right_in_every_form() {
    examine(87, &[(12, 1), (16, 2)], |tables| {
        let mut forms = crate::candidates::candidates(tables.view());
        let rule = forms[0];
        forms.push(Variants { keys: KeyRows::Split, ..rule });
        forms.push(Variants { product: Product::Convolution, ..rule });
        forms.push(Variants { product: Product::MatMul, ..rule });
        forms
    });
}

#[test]
fn layers_of_floats_are_right_on_older_and_newer_chips() {
    for soc in [43, 57, 69, 103] {
        examine(soc, &[(32, 1)], |_| vec![Variants::default()]);
    }
}
