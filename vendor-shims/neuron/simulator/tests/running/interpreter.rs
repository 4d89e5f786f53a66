//! Compares the simulator's arithmetic with the reference kernels of LiteRT, formerly TensorFlow
//! Lite, operation by operation. Both run a model of one operation on equal stored integers, and
//! the stored outputs are compared.
//!
//! Each case states by how many units integers may differ. At least one element must differ by that
//! many, so a case with too wide a tolerance fails too. For floats a unit is the step to the next
//! float at the largest result. The number of units is only an upper limit there, because the
//! system's math library takes part.
//!
//! Whether MediaTek's own library computes like TensorFlow Lite is unknown. A compiler may lower
//! some of the operations differently. The bounds of a proof cover that.

use std::slice::from_ref;

use shardwright_neuron_adapter::operand::{
    TENSOR_FLOAT16, TENSOR_FLOAT32, TENSOR_INT32, TENSOR_QUANT8_ASYMM_SIGNED, TENSOR_QUANT8_SYMM,
    TENSOR_QUANT8_SYMM_PER_CHANNEL, TENSOR_QUANT16_SYMM,
};
use shardwright_neuron_adapter::operation as op;

use crate::client::{Kind, Model, numbers, tensor};
use crate::flatbuffer::{Field, Table};
use crate::{models, runtime};

/// Tensor types in a model file.
const FLOAT32: u8 = 0;
const FLOAT16: u8 = 1;
const INT32: u8 = 2;
const INT16: u8 = 7;
const INT8: u8 = 9;

/// Why integers differ: some values of LiteRT's sigmoid table are not the nearest ones.
const TABLE: &str = "their table is not the rounded function";
/// Why floats differ: the function is computed in another order or width.
const WIDER: &str = "in another order, or in 64 bits here";

/// Operation numbers in a model file.
mod flat {
    pub const ADD: u8 = 0;
    pub const CONCATENATION: u8 = 2;
    pub const CONV_2D: u8 = 3;
    pub const DEQUANTIZE: u8 = 6;
    pub const FULLY_CONNECTED: u8 = 9;
    pub const L2_NORMALIZATION: u8 = 11;
    pub const LOGISTIC: u8 = 14;
    pub const MUL: u8 = 18;
    pub const RELU: u8 = 19;
    pub const RELU6: u8 = 21;
    pub const RESHAPE: u8 = 22;
    pub const SOFTMAX: u8 = 25;
    pub const TANH: u8 = 28;
    pub const PAD: u8 = 34;
    pub const TRANSPOSE: u8 = 39;
    pub const MEAN: u8 = 40;
    pub const SUB: u8 = 41;
    pub const DIV: u8 = 42;
    pub const STRIDED_SLICE: u8 = 45;
    pub const EXP: u8 = 47;
    pub const MAXIMUM: u8 = 55;
    pub const MINIMUM: u8 = 57;
    pub const SLICE: u8 = 65;
    pub const TILE: u8 = 69;
    pub const SUM: u8 = 74;
    pub const RSQRT: u8 = 76;
    pub const REDUCE_MAX: u8 = 82;
    pub const REDUCE_MIN: u8 = 89;
    pub const ABS: u8 = 101;
    pub const QUANTIZE: u8 = 114;
    pub const HARD_SWISH: u8 = 117;
    pub const BATCH_MATMUL: u8 = 126;
    pub const GELU: u8 = 150;
}

/// A constant operand of the operation in the file.
struct Constant {
    kind: u8,
    shape: Vec<i32>,
    scales: Vec<f32>,
    bytes: Vec<u8>,
}

/// Makes operands of the simulator's operation.
type Rest = dyn Fn(&mut Model) -> Vec<u32>;

/// One operation, for the simulator and for LiteRT.
struct Case {
    what: String,
    code: i32,
    flat: u8,
    inputs: Vec<Kind>,
    /// Operands of the simulator's operation after the inputs.
    rest: Box<Rest>,
    /// Operands of LiteRT's operation after the inputs.
    constants: Vec<Constant>,
    /// Number of LiteRT's options table, and the table.
    options: Option<(u8, fn() -> Table)>,
    out: Kind,
    /// Largest difference of the results in units of the output. For integers it must be reached.
    units: u64,
    /// Why the results differ.
    why: &'static str,
}

impl Case {
    fn new(what: &str, (code, flat): (i32, u8), inputs: &[Kind], out: Kind) -> Case {
        Case {
            what: what.to_owned(),
            code,
            flat,
            inputs: inputs.to_vec(),
            rest: Box::new(|_| Vec::new()),
            constants: Vec::new(),
            options: None,
            out,
            units: 0,
            why: "",
        }
    }

    fn rest(mut self, rest: impl Fn(&mut Model) -> Vec<u32> + 'static) -> Case {
        self.rest = Box::new(rest);
        self
    }

    fn options(mut self, number: u8, table: fn() -> Table) -> Case {
        self.options = Some((number, table));
        self
    }

    fn constant(mut self, kind: u8, shape: &[i32], scales: &[f32], bytes: Vec<u8>) -> Case {
        self.constants.push(Constant { kind, shape: shape.to_vec(), scales: scales.to_vec(), bytes });
        self
    }

    /// Appends a list of integers to the inputs on both sides.
    fn ints(self, shape: &'static [i32], values: &'static [i32]) -> Case {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let before = self.rest;
        let dimensions: Vec<u32> = shape.iter().map(|extent| *extent as u32).collect();
        let rest = Box::new(move |model: &mut Model| {
            let mut operands = before(model);
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            operands.push(model.constant(&tensor(TENSOR_INT32, &dimensions, 0.0, 0), bytes));
            operands
        });
        Case { rest, ..Case { rest: Box::new(|_| Vec::new()), ..self } }.constant(INT32, shape, &[], bytes)
    }

    /// Appends scalars to the simulator's operands.
    fn then(self, scalars: fn(&mut Model) -> Vec<u32>) -> Case {
        let before = self.rest;
        let rest = Box::new(move |model: &mut Model| {
            let mut operands = before(model);
            operands.extend(scalars(model));
            operands
        });
        Case { rest, ..Case { rest: Box::new(|_| Vec::new()), ..self } }
    }

    fn differs(mut self, units: u64, why: &'static str) -> Case {
        (self.units, self.why) = (units, why);
        self
    }
}

fn i16s(dimensions: &[u32], reach: f32) -> Kind {
    tensor(TENSOR_QUANT16_SYMM, dimensions, reach / 32_768.0, 0)
}

fn i8s(dimensions: &[u32], reach: f32, zero: i32) -> Kind {
    tensor(TENSOR_QUANT8_ASYMM_SIGNED, dimensions, reach / 128.0, zero)
}

fn f32s(dimensions: &[u32]) -> Kind {
    tensor(TENSOR_FLOAT32, dimensions, 0.0, 0)
}

fn f16s(dimensions: &[u32]) -> Kind {
    tensor(TENSOR_FLOAT16, dimensions, 0.0, 0)
}

fn flat_type(kind: &Kind) -> u8 {
    match kind.of {
        TENSOR_FLOAT32 => FLOAT32,
        TENSOR_FLOAT16 => FLOAT16,
        TENSOR_QUANT16_SYMM => INT16,
        TENSOR_INT32 => INT32,
        _ => INT8,
    }
}

/// Returns stored values: the ends of the range, the numbers around zero, then pseudo-random
/// values.
fn stored(kind: &Kind, seed: u64) -> Vec<u8> {
    let count = kind.elements();
    let reach = match flat_type(kind) {
        INT16 => 32_768.0,
        INT8 => 128.0,
        // Other types only get pseudo-random values in [-4, 4].
        _ => return kind.encode(&numbers(count, 4.0, seed)),
    };
    let ends = [-reach, reach - 1.0, 0.0, 1.0, -1.0];
    let drawn = numbers(count, reach, seed).into_iter().map(|x| x.floor().clamp(-reach, reach - 1.0));
    let values = ends.into_iter().cycle().take(if count > 20 { 5 } else { 0 }).chain(drawn).take(count);
    let bytes = |value: f64| match reach > 128.0 {
        true => (value as i16).to_le_bytes().to_vec(),
        false => vec![value as i8 as u8],
    };
    values.flat_map(bytes).collect()
}

fn file_of(case: &Case) -> Vec<u8> {
    let mut model = models::Builder::new();
    let mut put = |kind: &Kind| {
        let shape: Vec<i32> = kind.dimensions.iter().map(|extent| *extent as i32).collect();
        let scales = if kind.is_quantised() { vec![kind.scale] } else { Vec::new() };
        model.affine(flat_type(kind), &shape, (&scales, kind.zero), None)
    };
    let inputs: Vec<i32> = case.inputs.iter().map(&mut put).collect();
    let out = put(&case.out);
    let mut operands = inputs.clone();
    for Constant { kind, shape, scales, bytes } in &case.constants {
        operands.push(model.affine(*kind, shape, (scales, 0), Some(bytes.clone())));
    }
    let options = case.options.map(|(number, table)| (number, table()));
    model.operator_with(case.flat, &operands, out, options);
    model.finish(&inputs, &[out])
}

fn ours(case: &Case, inputs: &[Vec<u8>], size: usize) -> Vec<u8> {
    let mut model = Model::new();
    let outside: Vec<u32> = case.inputs.iter().map(|kind| model.operand(kind)).collect();
    let mut operands = outside.clone();
    operands.extend((case.rest)(&mut model));
    let result = model.operand(&case.out);
    model.operation(case.code, &operands, &[result]);
    model.compile(&outside, &[result]).run(inputs, &[size]).remove(0)
}

/// Returns the step between two floats at the largest of the given ones, or 1 for other types.
fn step(kind: &Kind, bytes: &[u8]) -> f64 {
    let floats = bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]));
    match flat_type(kind) {
        FLOAT32 => f64::from(f32::EPSILON * floats.map(f32::abs).fold(f32::MIN_POSITIVE, f32::max)),
        _ => 1.0,
    }
}

/// Returns stored values as whole numbers. Floats are counted in steps.
fn units(kind: &Kind, step: f64, bytes: &[u8]) -> Vec<i64> {
    match flat_type(kind) {
        FLOAT32 => {
            let one = |four: &[u8]| {
                (f64::from(f32::from_le_bytes([four[0], four[1], four[2], four[3]])) / step).round() as i64
            };
            bytes.chunks_exact(4).map(one).collect()
        }
        INT32 => {
            let one = |four: &[u8]| i64::from(i32::from_le_bytes([four[0], four[1], four[2], four[3]]));
            bytes.chunks_exact(4).map(one).collect()
        }
        INT16 => bytes.chunks_exact(2).map(|two| i64::from(i16::from_le_bytes([two[0], two[1]]))).collect(),
        _ => bytes.iter().map(|byte| i64::from(*byte as i8)).collect(),
    }
}

/// Runs every case on both sides and fails with a list of all differences.
fn compared(test: &str, cases: Vec<Case>) {
    let Some(runtime) = runtime::open(test) else { return };
    let mut wrong = Vec::new();
    for case in cases {
        let inputs: Vec<Vec<u8>> =
            case.inputs.iter().enumerate().map(|(seed, kind)| stored(kind, seed as u64 + 11)).collect();
        let size = case.out.encode(&vec![0.0; case.out.elements()]).len();
        let theirs = match runtime.run(&file_of(&case), &inputs, &[size]) {
            Ok(mut theirs) => theirs.remove(0),
            Err(error) => {
                wrong.push(format!("{}: {error}", case.what));
                continue;
            }
        };
        let step = step(&case.out, &theirs);
        let ours = units(&case.out, step, &ours(&case, &inputs, size));
        let theirs = units(&case.out, step, &theirs);
        let apart: Vec<u64> = ours.iter().zip(&theirs).map(|(a, b)| a.abs_diff(*b)).collect();
        let most = apart.iter().copied().max().unwrap_or(0);
        if most > case.units || flat_type(&case.out) != FLOAT32 && most < case.units {
            let differing = apart.iter().filter(|apart| **apart > 0).count();
            let at = apart.iter().position(|apart| *apart == most).unwrap_or(0);
            wrong.push(format!(
                "{}: {most} units apart, {} are stated; {differing} of {} differ, element {at} is {} and theirs {}",
                case.what,
                case.units,
                apart.len(),
                ours[at],
                theirs[at],
            ));
        }
        assert_eq!(case.units > 0, !case.why.is_empty(), "{}: a difference has a reason", case.what);
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

fn no_fuse(model: &mut Model) -> Vec<u32> {
    vec![model.int(0)]
}

fn relu(model: &mut Model) -> Vec<u32> {
    vec![model.int(1)]
}

/// Returns options without a fused activation and without the requirement that scales are powers of
/// two.
fn plain_sum() -> Table {
    Table::new().with(0, Field::U8(0)).with(1, Field::U8(0))
}

fn sum_and_relu() -> Table {
    Table::new().with(0, Field::U8(1)).with(1, Field::U8(0))
}

fn empty() -> Table {
    Table::new()
}

#[test]
fn sums_and_products_of_integers_are_theirs() {
    let mut cases = Vec::new();
    for (name, make) in [
        ("i16", (|d: &[u32], reach: f32| i16s(d, reach)) as fn(&[u32], f32) -> Kind),
        ("i8", |d: &[u32], reach: f32| i8s(d, reach, 7)),
    ] {
        let (whole, part) = ([3u32, 40, 50], [40u32, 1]);
        for (what, codes, number) in [
            ("ADD", (op::ADD, flat::ADD), 11),
            ("SUB", (op::SUB, flat::SUB), 28),
            ("MUL", (op::MUL, flat::MUL), 21),
        ] {
            let reach = if what == "MUL" { 9.0 } else { 6.5 };
            let both = [make(&whole, 4.0), make(&whole, 2.3)];
            let one = Case::new(&format!("{what} {name}"), codes, &both, make(&whole, reach));
            cases.push(one.rest(no_fuse).options(number, plain_sum));
            let both = [make(&whole, 4.0), make(&part, 2.3)];
            let one = Case::new(&format!("{what} {name} broadcast, RELU"), codes, &both, make(&whole, reach));
            cases.push(one.rest(relu).options(number, sum_and_relu));
        }
        let both = [make(&whole, 4.0), make(&whole, 4.0)];
        for (what, codes) in
            [("MAXIMUM", (op::MAXIMUM, flat::MAXIMUM)), ("MINIMUM", (op::MINIMUM, flat::MINIMUM))]
        {
            cases.push(
                Case::new(&format!("{what} {name}"), codes, &both, make(&whole, 4.0)).options(39, empty),
            );
        }
    }
    compared("sums_and_products_of_integers_are_theirs", cases);
}

/// Returns a product with a constant matrix of 24 outputs.
fn product(what: &str, x: Kind, out: Kind, depth: usize, per_channel: bool) -> Case {
    let columns = 24usize;
    let scales: Vec<f32> = match per_channel {
        true => (0..columns).map(|column| 0.002 + 0.0001 * column as f32).collect(),
        false => vec![0.0031],
    };
    let shape = [columns as u32, depth as u32];
    let of = if per_channel { TENSOR_QUANT8_SYMM_PER_CHANNEL } else { TENSOR_QUANT8_SYMM };
    let weights: Vec<u8> = stored(&tensor(TENSOR_QUANT8_SYMM, &shape, 1.0, 0), 3)
        .into_iter()
        .map(|byte| (byte as i8).max(-127) as u8)
        .collect();
    let biases: Vec<i32> = (0..columns as i32).map(|column| column * 7001 - 80_000).collect();
    let theirs = biases.iter().flat_map(|bias| bias.to_le_bytes()).collect();
    let bias_scales: Vec<f32> = scales.iter().map(|scale| scale * x.scale).collect();
    let (existing, all) = (weights.clone(), scales.clone());
    let x_scale = x.scale;
    let rest = move |model: &mut Model| {
        let scale = if per_channel { 0.0 } else { all[0] };
        let weight = model.constant(&tensor(of, &shape, scale, 0), existing.clone());
        if per_channel {
            assert_eq!(model.symmetric_channels(weight, 0, &all), 0);
        }
        let scale = if per_channel { 0.0 } else { x_scale * all[0] };
        let bytes = biases.iter().flat_map(|bias| bias.to_le_bytes()).collect();
        let bias = model.constant(&tensor(TENSOR_INT32, &[columns as u32], scale, 0), bytes);
        vec![weight, bias, model.int(0)]
    };
    let keep_rank: fn() -> Table =
        || Table::new().with(0, Field::U8(0)).with(2, Field::U8(1)).with(4, Field::U8(INT32));
    Case::new(what, (op::FULLY_CONNECTED, flat::FULLY_CONNECTED), &[x], out)
        .rest(rest)
        .constant(INT8, &[columns as i32, depth as i32], &scales, weights)
        .constant(INT32, &[columns as i32], &bias_scales, theirs)
        .options(8, keep_rank)
}

#[test]
fn products_with_matrices_are_theirs() {
    let mut cases = vec![
        product("A16W8 per channel", i16s(&[5, 300], 4.0), i16s(&[5, 24], 60.0), 300, true),
        product("A16W8 per channel, rank 3", i16s(&[1, 5, 300], 4.0), i16s(&[1, 5, 24], 60.0), 300, true),
        product("A16W8", i16s(&[5, 300], 4.0), i16s(&[5, 24], 60.0), 300, false),
        product("A8W8 per channel", i8s(&[5, 300], 4.0, 11), i8s(&[5, 24], 60.0, -9), 300, true),
        product("A8W8", i8s(&[5, 300], 4.0, 11), i8s(&[5, 24], 60.0, -9), 300, false),
    ];
    for (name, make) in [
        ("i16", (|d: &[u32], reach: f32| i16s(d, reach)) as fn(&[u32], f32) -> Kind),
        ("i8", |d: &[u32], reach: f32| i8s(d, reach, 3)),
    ] {
        for transposed in [false, true] {
            let (second, table): ([u32; 4], fn() -> Table) = match transposed {
                false => ([2, 1, 50, 6], || Table::new().with(0, Field::U8(0)).with(1, Field::U8(0))),
                true => ([2, 1, 6, 50], || Table::new().with(0, Field::U8(0)).with(1, Field::U8(1))),
            };
            let inputs = [make(&[2, 3, 4, 50], 2.0), make(&second, 2.0)];
            let what = format!("BATCH_MATMUL {name}, second transposed {transposed}");
            let one =
                Case::new(&what, (op::BATCH_MATMUL, flat::BATCH_MATMUL), &inputs, make(&[2, 3, 4, 6], 60.0));
            let rest = move |model: &mut Model| vec![model.truth(false), model.truth(transposed)];
            cases.push(one.rest(rest).options(101, table));
        }
    }
    compared("products_with_matrices_are_theirs", cases);
}

#[test]
fn convolutions_are_theirs() {
    let cases = [
        ("CONV_2D A16W8", i16s(&[1, 6, 5, 2], 1.0), i16s(&[1, 6, 5, 3], 12.0)),
        ("CONV_2D A8W8", i8s(&[1, 6, 5, 2], 1.0, 6), i8s(&[1, 6, 5, 3], 12.0, 1)),
    ]
    .map(|(what, x, out)| {
        let shape = [3, 3, 3, 2];
        let weights: Vec<u8> = stored(&tensor(TENSOR_QUANT8_SYMM, &shape, 1.0, 0), 3)
            .into_iter()
            .map(|byte| (byte as i8).max(-127) as u8)
            .collect();
        let biases = [500i32, -70_000, 9];
        let theirs = biases.iter().flat_map(|bias| bias.to_le_bytes()).collect();
        let scale = x.scale * 0.01;
        let existing = weights.clone();
        let rest = move |model: &mut Model| {
            let weight = model.constant(&tensor(TENSOR_QUANT8_SYMM, &shape, 0.01, 0), existing.clone());
            let bytes = biases.iter().flat_map(|bias| bias.to_le_bytes()).collect();
            let bias = model.constant(&tensor(TENSOR_INT32, &[3], scale, 0), bytes);
            let settings = [1, 1, 1, 0].map(|value| model.int(value));
            let first = model.truth(false);
            let dilations = [1, 1].map(|value| model.int(value));
            [&[weight, bias][..], &settings, &[first], &dilations].concat()
        };
        let table: fn() -> Table = || {
            let table = Table::new().with(0, Field::U8(0)).with(1, Field::I32(1)).with(2, Field::I32(1));
            let table = table.with(3, Field::U8(0)).with(4, Field::I32(1)).with(5, Field::I32(1));
            table.with(6, Field::U8(INT32))
        };
        Case::new(what, (op::CONV_2D, flat::CONV_2D), &[x], out)
            .rest(rest)
            .constant(INT8, &[3, 3, 3, 2], &[0.01], weights)
            .constant(INT32, &[3], &[scale], theirs)
            .options(1, table)
    });
    compared("convolutions_are_theirs", cases.into());
}

#[test]
fn functions_of_integers_are_theirs() {
    let wide = |reach: f32| i16s(&[40, 100], reach);
    let narrow = |reach: f32, zero: i32| i8s(&[16, 32], reach, zero);
    let beta: fn() -> Table = || Table::new().with(0, Field::U32(1f32.to_bits()));
    let softmax_rest = |model: &mut Model| vec![model.real(1.0)];
    let fraction = |d: &[u32]| tensor(TENSOR_QUANT16_SYMM, d, 1.0 / 32_768.0, 0);
    let tanh_gelu: fn() -> Table = || Table::new().with(0, Field::U8(1));
    let approximate = |model: &mut Model| vec![model.int(1)];
    let cases = vec![
        Case::new("SOFTMAX i16", (op::SOFTMAX, flat::SOFTMAX), &[wide(8.0)], fraction(&[40, 100]))
            .rest(softmax_rest)
            .options(9, beta),
        Case::new(
            "SOFTMAX i8",
            (op::SOFTMAX, flat::SOFTMAX),
            &[narrow(8.0, 5)],
            tensor(TENSOR_QUANT8_ASYMM_SIGNED, &[16, 32], 1.0 / 256.0, -128),
        )
        .rest(softmax_rest)
        .options(9, beta),
        Case::new("LOGISTIC i16", (op::LOGISTIC, flat::LOGISTIC), &[wide(9.0)], fraction(&[40, 100]))
            .differs(1, TABLE),
        Case::new(
            "LOGISTIC i8",
            (op::LOGISTIC, flat::LOGISTIC),
            &[narrow(9.0, 5)],
            tensor(TENSOR_QUANT8_ASYMM_SIGNED, &[16, 32], 1.0 / 256.0, -128),
        ),
        Case::new("TANH i16", (op::TANH, flat::TANH), &[wide(5.0)], fraction(&[40, 100])).differs(1, TABLE),
        Case::new(
            "TANH i8",
            (op::TANH, flat::TANH),
            &[narrow(5.0, 5)],
            tensor(TENSOR_QUANT8_ASYMM_SIGNED, &[16, 32], 1.0 / 128.0, 0),
        ),
        Case::new("GELU i8", (op::GELU_V2, flat::GELU), &[narrow(5.0, 5)], narrow(5.0, 5))
            .rest(approximate)
            .options(116, tanh_gelu),
        Case::new("EXP i16", (op::EXP, flat::EXP), &[wide(3.0)], wide(20.0)).options(33, empty),
        Case::new("EXP i8", (op::EXP, flat::EXP), &[narrow(3.0, 5)], narrow(20.0, -100)).options(33, empty),
        Case::new("ABS i16", (op::ABS, flat::ABS), &[wide(3.0)], wide(3.0)).options(78, empty),
        Case::new("ABS i8", (op::ABS, flat::ABS), &[narrow(3.0, 5)], narrow(3.0, -60)).options(78, empty),
        Case::new("RELU i16", (op::RELU, flat::RELU), &[wide(3.0)], wide(2.5)),
        Case::new("RELU i8", (op::RELU, flat::RELU), &[narrow(3.0, 5)], narrow(2.5, -100)),
        Case::new("RELU6 i16", (op::RELU6, flat::RELU6), &[wide(9.0)], wide(6.5)),
        Case::new("RELU6 i8", (op::RELU6, flat::RELU6), &[narrow(9.0, 5)], narrow(3.5, -100)),
        Case::new("HARD_SWISH i8", (op::HARD_SWISH, flat::HARD_SWISH), &[narrow(5.0, 5)], narrow(5.0, -50))
            .options(91, empty),
        Case::new("RSQRT i8", (op::RSQRT, flat::RSQRT), &[narrow(3.0, -128)], narrow(8.0, -128)),
        Case::new(
            "L2_NORMALIZATION i8",
            (op::L2_NORMALIZATION, flat::L2_NORMALIZATION),
            &[narrow(3.0, 5)],
            tensor(TENSOR_QUANT8_ASYMM_SIGNED, &[16, 32], 1.0 / 128.0, 0),
        )
        .options(12, empty),
    ];
    compared("functions_of_integers_are_theirs", cases);
}

#[test]
fn conversions_are_theirs() {
    let dimensions = [30u32, 70];
    let (quantise, dequantise) = ((op::QUANTIZE, flat::QUANTIZE), (op::DEQUANTIZE, flat::DEQUANTIZE));
    let cases = vec![
        Case::new("QUANTIZE f32 i16", quantise, &[f32s(&dimensions)], i16s(&dimensions, 3.0)),
        Case::new("QUANTIZE f32 i8", quantise, &[f32s(&dimensions)], i8s(&dimensions, 3.0, 9)),
        Case::new("QUANTIZE i16 i16", quantise, &[i16s(&dimensions, 3.0)], i16s(&dimensions, 2.1)),
        Case::new("QUANTIZE i8 i8", quantise, &[i8s(&dimensions, 3.0, 9)], i8s(&dimensions, 2.1, -4)),
        Case::new("QUANTIZE i16 i8", quantise, &[i16s(&dimensions, 3.0)], i8s(&dimensions, 2.1, -4)),
        Case::new("QUANTIZE i8 i16", quantise, &[i8s(&dimensions, 3.0, 9)], i16s(&dimensions, 2.1)),
        Case::new("DEQUANTIZE i16", dequantise, &[i16s(&dimensions, 3.0)], f32s(&dimensions)),
        Case::new("DEQUANTIZE i8", dequantise, &[i8s(&dimensions, 3.0, 9)], f32s(&dimensions)),
        Case::new("f16 to f32", (op::CAST, flat::DEQUANTIZE), &[f16s(&dimensions)], f32s(&dimensions)),
    ];
    compared("conversions_are_theirs", cases);
}

#[test]
fn reductions_are_theirs() {
    let keep: fn() -> Table = || Table::new().with(0, Field::U8(1));
    let mut cases = Vec::new();
    for (name, make) in [
        ("i16", (|d: &[u32], reach: f32| i16s(d, reach)) as fn(&[u32], f32) -> Kind),
        ("i8", |d: &[u32], reach: f32| i8s(d, reach, 7)),
    ] {
        let x = make(&[20, 6, 50], 4.0);
        let codes = (op::MEAN, flat::MEAN);
        let one = Case::new(&format!("MEAN {name}"), codes, from_ref(&x), make(&[20, 6, 1], 1.5));
        let one = one.ints(&[1], &[2]).then(|model| vec![model.int(1)]).options(27, keep);
        cases.push(one);
        let one = Case::new(&format!("MEAN {name} of two axes"), codes, from_ref(&x), make(&[20, 1, 1], 1.5));
        cases.push(one.ints(&[2], &[1, 2]).then(|model| vec![model.int(1)]).options(27, keep));
        for (what, codes, reach) in [
            ("SUM", (op::REDUCE_SUM, flat::SUM), 90.0),
            ("REDUCE_MAX", (op::REDUCE_MAX, flat::REDUCE_MAX), 4.0),
            ("REDUCE_MIN", (op::REDUCE_MIN, flat::REDUCE_MIN), 4.0),
        ] {
            let one = Case::new(&format!("{what} {name}"), codes, from_ref(&x), make(&[20, 6, 1], reach));
            cases.push(one.ints(&[1], &[2]).then(|model| vec![model.truth(true)]).options(27, keep));
        }
    }
    compared("reductions_are_theirs", cases);
}

#[test]
fn movements_are_theirs() {
    let mut cases = Vec::new();
    for (name, make) in [
        ("i16", (|d: &[u32]| i16s(d, 4.0)) as fn(&[u32]) -> Kind),
        ("i8", |d: &[u32]| i8s(d, 4.0, 7)),
        ("f32", f32s),
    ] {
        let x = make(&[2, 3, 20]);
        let case = |what: &str, codes, inputs: &[Kind], out: &[u32]| {
            Case::new(&format!("{what} {name}"), codes, inputs, make(out))
        };
        let one = [x.clone()];
        cases.push(case("RESHAPE", (op::RESHAPE, flat::RESHAPE), &one, &[6, 4, 5]).ints(&[3], &[6, 4, 5]));
        let codes = (op::TRANSPOSE, flat::TRANSPOSE);
        cases.push(case("TRANSPOSE", codes, &one, &[20, 2, 3]).ints(&[3], &[2, 0, 1]).options(26, empty));
        let joined = case(
            "CONCATENATION",
            (op::CONCATENATION, flat::CONCATENATION),
            &[x.clone(), make(&[2, 5, 20])],
            &[2, 8, 20],
        );
        let axis: fn() -> Table = || Table::new().with(0, Field::I32(1)).with(1, Field::U8(0));
        cases.push(joined.rest(|model| vec![model.int(1)]).options(10, axis));
        let codes = (op::SLICE, flat::SLICE);
        let slice = case("SLICE", codes, &one, &[1, 2, 7]).ints(&[3], &[1, 0, 5]);
        cases.push(slice.ints(&[3], &[1, 2, 7]).options(48, empty));
        let codes = (op::STRIDED_SLICE, flat::STRIDED_SLICE);
        let strided = case("STRIDED_SLICE", codes, &one, &[2, 2, 4]).ints(&[3], &[0, 0, 1]);
        let strided = strided.ints(&[3], &[2, 3, 17]).ints(&[3], &[1, 2, 4]);
        cases.push(strided.then(|model| [0, 0, 0].map(|value| model.int(value)).to_vec()).options(32, empty));
        let padded = case("PAD", (op::PAD, flat::PAD), &one, &[3, 3, 25]).ints(&[3, 2], &[1, 0, 0, 0, 2, 3]);
        cases.push(padded.options(22, empty));
        if name != "i16" {
            let tiled = case("TILE", (op::TILE, flat::TILE), &one, &[2, 6, 20]).ints(&[3], &[1, 2, 1]);
            cases.push(tiled.options(51, empty));
        }
    }
    compared("movements_are_theirs", cases);
}

#[test]
fn floats_are_theirs_but_for_their_last_places() {
    let x = f32s(&[30, 40]);
    let pair = [x.clone(), f32s(&[30, 40])];
    let fuse: fn() -> Table = || Table::new().with(0, Field::U8(0));
    let beta: fn() -> Table = || Table::new().with(0, Field::U32(1f32.to_bits()));
    let one = [x.clone()];
    let keep: fn() -> Table = || Table::new().with(0, Field::U8(1));
    let exact: fn() -> Table = || Table::new().with(0, Field::U8(0));
    let cases = vec![
        Case::new("ADD", (op::ADD, flat::ADD), &pair, x.clone()).rest(no_fuse).options(11, fuse),
        Case::new("SUB", (op::SUB, flat::SUB), &pair, x.clone()).rest(no_fuse).options(28, fuse),
        Case::new("MUL", (op::MUL, flat::MUL), &pair, x.clone()).rest(no_fuse).options(21, fuse),
        Case::new("DIV", (op::DIV, flat::DIV), &pair, x.clone()).rest(no_fuse).options(29, fuse),
        Case::new("ABS", (op::ABS, flat::ABS), &one, x.clone()).options(78, empty),
        Case::new("SOFTMAX", (op::SOFTMAX, flat::SOFTMAX), &one, x.clone())
            .rest(|model| vec![model.real(1.0)])
            .options(9, beta)
            .differs(2, WIDER),
        Case::new("LOGISTIC", (op::LOGISTIC, flat::LOGISTIC), &one, x.clone()).differs(2, WIDER),
        Case::new("TANH", (op::TANH, flat::TANH), &one, x.clone()).differs(2, WIDER),
        Case::new("EXP", (op::EXP, flat::EXP), &one, x.clone()).options(33, empty).differs(1, WIDER),
        Case::new("GELU by tanh", (op::GELU_V2, flat::GELU), &one, x.clone())
            .rest(|model| vec![model.int(1)])
            .options(116, keep)
            .differs(2, WIDER),
        Case::new("GELU by erf", (op::GELU_V2, flat::GELU), &one, x.clone())
            .rest(|model| vec![model.int(0)])
            .options(116, exact)
            .differs(2, WIDER),
        Case::new("MEAN", (op::MEAN, flat::MEAN), &one, f32s(&[30, 1]))
            .ints(&[1], &[1])
            .then(|model| vec![model.int(1)])
            .options(27, keep)
            .differs(2, WIDER),
        Case::new("SUM", (op::REDUCE_SUM, flat::SUM), &one, f32s(&[30, 1]))
            .ints(&[1], &[1])
            .then(|model| vec![model.truth(true)])
            .options(27, keep),
    ];
    compared("floats_are_theirs_but_for_their_last_places", cases);
}
