//! The operations of towers, compared with results by hand and in primitives.

use shardwright_graph::{
    AxialRope, ComponentKind, EntryGraph, EntryNode, EntryPoint, GridAxis, Op, RelativeAttention, Role,
    Segment, Tensor, TensorId, Weight, WeightData, WeightId, decompose_all, infer_shape,
};
use shardwright_reference::step::{Features, Step, feature_input};
use shardwright_reference::{Array, Bindings, Evaluator, States, Weights};
use shardwright_vocabulary::{DType, EntryKind};

use crate::support::Noise;

enum Operand {
    Values(Vec<u64>, Vec<f32>),
    Grid(GridAxis),
}

fn noise(seed: u64, shape: &[u64]) -> Operand {
    let mut noise = Noise(seed);
    let count = shape.iter().product::<u64>() as usize;
    Operand::Values(shape.to_vec(), (0..count).map(|_| 2.0 * noise.next()).collect())
}

/// Returns the results of the operation, whole and in primitives, for a picture with that grid in
/// an entry point of `entry_rows` rows.
fn of(op: &Op, operands: &[Operand], columns: &[i32], rows: &[i32], entry_rows: u64) -> [Vec<f32>; 2] {
    let mut tensors = Vec::new();
    let (mut weights, mut inputs) = (Vec::new(), Vec::new());
    for (index, operand) in operands.iter().enumerate() {
        let name = format!("operand-{index}");
        match operand {
            Operand::Values(shape, values) => {
                let mut tensor = Tensor::plain(name, shape.clone(), DType::F32);
                tensor.weight = Some(WeightId(weights.len() as u32));
                tensors.push(tensor);
                weights.push(Weight {
                    name: format!("weight-{index}"),
                    part: "test",
                    shape: shape.clone(),
                    dtype: DType::F32,
                    data: WeightData::from_vec(values.iter().flat_map(|v| v.to_le_bytes()).collect()),
                    quantisation: None,
                });
            }
            Operand::Grid(axis) => {
                inputs.push((TensorId(index as u32), Role::Grid { axis: *axis }));
                tensors.push(Tensor::plain(name, vec![entry_rows], DType::I32));
            }
        }
    }
    let shapes: Vec<&[u64]> = tensors.iter().map(|tensor| tensor.shape.as_slice()).collect();
    let shape = infer_shape(op, &shapes).unwrap();
    let output = TensorId(tensors.len() as u32);
    tensors.push(Tensor::plain("result", shape, DType::F32));
    let tap = Role::Tap { name: "result".to_owned() };
    let whole = EntryGraph {
        segments: Segment::whole(ComponentKind::VisionEmbed).into(),
        point: EntryPoint {
            kind: EntryKind::Encode,
            rows: entry_rows,
            context: entry_rows,
            largest_rows: entry_rows,
        },
        nodes: vec![EntryNode {
            name: "node".to_owned(),
            op: op.clone(),
            inputs: (0..tensors.len() as u32 - 1).map(TensorId).collect(),
            output,
            layer: None,
        }],
        tensors,
        inputs,
        outputs: vec![(output, tap.clone())],
        states: Vec::new(),
    };
    whole.validate().unwrap();
    let primitive = decompose_all(&whole);
    primitive.validate().unwrap();
    assert!(primitive.nodes.iter().all(|node| !node.op.is_semantic()));
    let values = Array::floats_of(&[columns.len() as u64, 1], vec![0.0; columns.len()]).unwrap();
    let features = Features { values: &values, columns, rows };
    let step = Step { first: 0, rows: columns.len() as u64, of: entry_rows };
    [whole, primitive].map(|entry| {
        let mut bindings = Bindings::new();
        for (_, role) in &entry.inputs {
            bindings.bind(role.clone(), feature_input(role, step, 1, &features, &[]).unwrap().unwrap());
        }
        let evaluator = Evaluator::new(entry, Weights::new(&weights)).unwrap();
        let outputs = evaluator.run(&bindings, &mut States::none(), step.rows).unwrap();
        outputs.get(&tap).unwrap().floats().into_owned()
    })
}

fn close(what: &str, found: &[f32], wanted: &[f32]) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (found, wanted) in found.iter().zip(wanted) {
        assert!((found - wanted).abs() <= 2e-5 * wanted.abs().max(1.0), "{what}: {found} is not {wanted}");
    }
}

/// Checks that both forms agree and return the result computed by hand.
fn gives(op: &Op, operands: &[(&[u64], &[f32])], wanted: &[f32]) {
    let operands: Vec<Operand> =
        operands.iter().map(|(shape, values)| Operand::Values(shape.to_vec(), values.to_vec())).collect();
    for found in of(op, &operands, &[0; 3], &[0; 3], 3) {
        close(op.name(), &found, wanted);
    }
}

#[test]
fn by_hand() {
    let x: &[f32] = &[-2.0, -0.5, 0.25, 1.5];
    gives(&Op::Clamp, &[(&[2, 2], x), (&[1], &[-1.0]), (&[1], &[1.0])], &[-1.0, -0.5, 0.25, 1.0]);
    gives(&Op::Max, &[(&[2, 2], x), (&[2], &[0.0, -1.0])], &[0.0, -0.5, 0.25, 1.5]);
    gives(&Op::Min, &[(&[2, 2], x), (&[2, 1], &[-1.0, 1.0])], &[-2.0, -1.0, 0.25, 1.0]);
    gives(&Op::Sigmoid, &[(&[1, 4], x)], &[0.119203, 0.377541, 0.562177, 0.817574]);
    gives(&Op::Glu, &[(&[1, 4], x)], &[-1.124353, -0.408787]);
    let rows: &[f32] = &[1.0, 2.0, 3.0, 4.0, 5.0, 9.0, -1.0, 1.0];
    gives(&Op::MeanRows { rows: 2 }, &[(&[4, 2], rows)], &[2.0, 3.0, 2.0, 5.0]);
    // Channel 0 counts the preceding row twice, channel 1 only the row itself.
    gives(
        &Op::DepthwiseConvolution,
        &[(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), (&[2, 3], &[0.0, 2.0, 0.0, 0.0, 0.0, -1.0])],
        &[0.0, -2.0, 2.0, -4.0, 6.0, -6.0],
    );
    // Channel 0 sums each element and its neighbours to the right and below. Channel 1 is the
    // element itself.
    let plane: &[f32] = &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
    gives(
        &Op::Convolution { kernel: 2, stride: 1, padding: 0 },
        &[(&[3, 3, 1], plane), (&[2, 4], &[1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0])],
        &[7.0, 1.0, 10.0, 2.0, 16.0, 4.0, 19.0, 5.0],
    );
    // Every second position of a kernel that reads its centre, and zeros beyond the corner.
    let centre: &[f32] = &[1.0, 0.0, 0.0, 0.0, 10.0, 0.0, 0.0, 0.0, 0.0];
    gives(
        &Op::Convolution { kernel: 3, stride: 2, padding: 1 },
        &[(&[3, 3, 1], plane), (&[1, 9], centre)],
        &[10.0, 30.0, 70.0, 95.0],
    );
    // Equal scores except for the distance: the preceding row counts e times as much.
    let attention = Op::RelativeAttention(RelativeAttention { heads: 1, head_dim: 1, softcap: 0.0 });
    let ones: (&[u64], &[f32]) = (&[3, 1], &[1.0, 1.0, 1.0]);
    let (before, itself) =
        (std::f32::consts::E / (1.0 + std::f32::consts::E), 1.0 / (1.0 + std::f32::consts::E));
    gives(
        &attention,
        &[ones, ones, (&[3, 1], &[1.0, 2.0, 4.0]), (&[3, 2], &[1.0, 0.0, 1.0, 0.0, 1.0, 0.0])],
        &[1.0, before + 2.0 * itself, 2.0 * before + 4.0 * itself],
    );
}

#[test]
fn in_primitives() {
    for (kernel, stride, padding) in
        [(1, 1, 0), (2, 2, 1), (3, 1, 1), (3, 2, 1), (3, 2, 2), (5, 2, 0), (7, 2, 6)]
    {
        for [height, width, channels, outputs] in [[7, 8, 1, 2], [8, 7, 3, 4], [9, 16, 2, 1], [7, 7, 1, 1]] {
            let op = Op::Convolution { kernel, stride, padding };
            let square = u64::from(kernel * kernel);
            let operands = [noise(1, &[height, width, channels]), noise(2, &[outputs, channels * square])];
            let [whole, primitive] = of(&op, &operands, &[0], &[0], 1);
            close(&format!("{op:?} of {height} x {width}"), &primitive, &whole);
        }
    }
    for (rows, kernel) in [(1, 1), (1, 5), (2, 5), (9, 1), (9, 4), (40, 5)] {
        let operands = [noise(3, &[rows, 6]), noise(4, &[6, kernel])];
        let [whole, primitive] = of(&Op::DepthwiseConvolution, &operands, &[0], &[0], 1);
        close(&format!("{kernel} over {rows} rows"), &primitive, &whole);
    }
    for (rows, window, valid) in [(1, 1, 1), (5, 1, 5), (5, 3, 4), (7, 12, 7), (30, 12, 23), (70, 66, 70)] {
        for softcap in [0.0, 2.0] {
            let op = Op::RelativeAttention(RelativeAttention { heads: 3, head_dim: 4, softcap });
            let shape = [rows, 12];
            let operands =
                [noise(5, &shape), noise(6, &shape), noise(7, &shape), noise(8, &[rows, 3 * window])];
            let places = vec![0; valid];
            let [whole, primitive] = of(&op, &operands, &places, &places, rows);
            let shown = valid * 12;
            close(&format!("{window} of {rows} rows"), &primitive[..shown], &whole[..shown]);
        }
    }
    for (heads, head_dim) in [(1, 4), (3, 8), (2, 12)] {
        let op = Op::AxialRope(AxialRope { head_dim, theta: 100.0 });
        let columns = [0, 1, 2, 0, 1, 2, 70];
        let rows = [0, 0, 0, 1, 1, 1, 9];
        let operands = [
            noise(9, &[9, heads * u64::from(head_dim)]),
            Operand::Grid(GridAxis::Column),
            Operand::Grid(GridAxis::Row),
        ];
        let [whole, primitive] = of(&op, &operands, &columns, &rows, 9);
        close("axial rope", &primitive, &whole);
        // At the origin, there is no rotation.
        let Operand::Values(_, values) = &operands[0] else { panic!("no values") };
        close(
            "the origin",
            &whole[..(heads * u64::from(head_dim)) as usize],
            &values[..(heads * u64::from(head_dim)) as usize],
        );
    }
}
