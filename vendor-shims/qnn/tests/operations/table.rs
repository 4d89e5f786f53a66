//! The cells: one operation each, with its expected result.

use crate::cases::*;
use shardwright_shim_qnn::graph::{DataType, Param, QnnEncoding, ScaleOffset};

/// One operation in one combination of types.
pub struct Cell {
    /// For example `FullyConnected a16 w4-channel`.
    pub name: String,
    pub case: Case,
    /// Values of each output.
    pub expected: Vec<Vec<f64>>,
}

/// Short names of activation types. The types with a range use [-bound, bound].
const ACTIVATIONS: [&str; 5] = ["a16", "a8", "s16", "f16", "f32"];

fn activation(name: &str, bound: f64) -> Kind {
    match name {
        "a16" => a16(bound),
        "a8" => a8(bound),
        "s16" => s16(bound),
        "s8" => s8(bound),
        "f16" => f16(),
        "f32" => f32(),
        "i32" => i32s(),
        "u32" => (DataType::Uint32, QnnEncoding::None),
        "i64" => (DataType::Int64, QnnEncoding::None),
        "u16" => (DataType::Uint16, QnnEncoding::None),
        "bf16" => (DataType::Bfloat16, QnnEncoding::None),
        other => panic!("no type {other}"),
    }
}

/// Returns all cells, in the order of the table.
pub fn cells() -> Vec<Cell> {
    let mut cells = Table(Vec::new());
    cells.products();
    cells.biases();
    cells.norms();
    cells.pointwise();
    cells.pairs();
    cells.dynamic_products();
    cells.rotary();
    cells.gathers();
    cells.moves();
    cells.reductions();
    cells.conversions();
    cells.rest();
    cells.0
}

struct Table(Vec<Cell>);

impl Table {
    fn add(&mut self, name: String, case: Case, expected: Vec<f64>) {
        self.add_all(name, case, vec![expected]);
    }

    fn add_all(&mut self, name: String, mut case: Case, expected: Vec<Vec<f64>>) {
        case.graph.name = format!("cell{}", self.0.len());
        self.0.push(Cell { name, case, expected });
    }

    /// Adds a cell for `op(x)`, elementwise.
    fn unary(
        &mut self,
        name: String,
        op: &'static str,
        params: Vec<(&'static str, Param)>,
        kinds: (Kind, Kind),
        x: &[f64],
        plain: impl Fn(f64) -> f64,
    ) {
        let mut case = Case::new("");
        let dims = [4, x.len() as u32 / 4];
        let input = case.input(&dims, kinds.0, x);
        let output = case.output(&dims, kinds.1);
        case.node(op, params, &[input], &[output]);
        let expected = case.real(input).iter().map(|x| plain(*x)).collect();
        self.add(name, case, expected);
    }

    // ---- products with constant weights

    fn products(&mut self) {
        for op in ["FullyConnected", "MatMul", "MatMul-transposed", "Conv2d"] {
            for act in ACTIVATIONS.into_iter().chain(["bf16"]) {
                for weight in WEIGHTS {
                    if act == "bf16" && *weight != "w8-channel" {
                        continue;
                    }
                    self.product(op, act, weight, 64, 32);
                }
            }
        }
        // Block-expanded weights depend on the shape.
        for (channels, inner) in [(256, 1536), (2048, 256), (256, 256)] {
            self.product("FullyConnected", "a16", "w4-expansion", inner, channels);
            self.product("Conv2d", "a16", "w4-expansion", inner, channels);
        }
        for (dims, keep, name) in [
            (vec![1, 4, 64], false, "rank 3"),
            (vec![1, 1, 4, 64], false, "rank 4"),
            (vec![1, 4, 64], true, "rank 3 kept"),
        ] {
            let mut case = Case::new("");
            let x = case.input(&dims, a16(1.0), &random(256, 1.0, 1));
            let (kind, values) = weight("w8-channel", 0, 32, &[32, 64]);
            let w = case.constant(&[32, 64], kind, &values);
            let y = case.output(if keep { &[1, 4, 32] } else { &[4, 32] }, a16(2.0));
            case.node("FullyConnected", vec![("keep_dims", Param::Bool(keep))], &[x, w], &[y]);
            let expected = plain_product(case.real(x), case.real(w), 4, 64, 32, true);
            self.add(format!("FullyConnected a16 {name}"), case, expected);
        }
    }

    fn product(&mut self, op: &str, act: &str, weight_name: &str, inner: u32, channels: u32) {
        let mut case = Case::new("");
        let rows = 2u32;
        let (name, outer, axis, channels_first): (&'static str, &[u32], i32, bool) = match op {
            "FullyConnected" => ("FullyConnected", &[], 0, true),
            "MatMul" => ("MatMul", &[], 1, false),
            "MatMul-transposed" => ("MatMul", &[1, 1], 2, true),
            _ => ("Conv2d", &[1, 1], 3, false),
        };
        let weight_dims = if channels_first { [channels, inner] } else { [inner, channels] };
        let [x_dims, w_dims, y_dims] =
            [[rows, inner], weight_dims, [rows, channels]].map(|dims| [outer, &dims].concat());
        let x = case.input(&x_dims, activation(act, 1.0), &random((rows * inner) as usize, 1.0, 1));
        let (kind, values) = weight(weight_name, axis, channels, &w_dims);
        let w = match weight_name {
            "w8-expansion" => {
                // Eight bits if the multiples are of blocks: the container's full range.
                let bytes: Vec<u8> =
                    random(values.len(), 127.0, 9).iter().map(|value| *value as i8 as u8).collect();
                let reals = decode(&bytes, &kind, &w_dims);
                case.stored(&w_dims, kind, bytes, reals)
            }
            _ => case.constant(&w_dims, kind, &values),
        };
        let expected = plain_product(
            case.real(x),
            case.real(w),
            rows as usize,
            inner as usize,
            channels as usize,
            channels_first,
        );
        let most = expected.iter().fold(0.0f64, |most, value| most.max(value.abs()));
        let y = case.output(&y_dims, activation(act, most * 1.05));
        let params = match name {
            "MatMul" => vec![
                ("transpose_in0", Param::Bool(false)),
                ("transpose_in1", Param::Bool(op == "MatMul-transposed")),
            ],
            "Conv2d" => vec![
                ("stride", Param::U32s(vec![1, 1])),
                ("pad_amount", Param::U32Block(vec![0; 4], vec![2, 2])),
                ("dilation", Param::U32s(vec![1, 1])),
            ],
            _ => vec![],
        };
        case.node(name, params, &[x, w], &[y]);
        let shape =
            if (inner, channels) == (64, 32) { String::new() } else { format!(" {channels}x{inner}") };
        self.add(format!("{op} {act} {weight_name}{shape}"), case, expected);
    }

    fn biases(&mut self) {
        for (name, per_channel) in [("i32 per channel", true), ("i32 one scale", false)] {
            let mut case = Case::new("");
            let x = case.input(&[2, 64], a16(1.0), &random(128, 1.0, 1));
            let (kind, values) = weight("w8-channel", 0, 32, &[32, 64]);
            let QnnEncoding::PerAxis { scales, .. } = kind.1.clone() else {
                unreachable!("weights per channel")
            };
            let w = case.constant(&[32, 64], kind, &values);
            let of_product: Vec<f32> = scales.iter().map(|scale| scale / 32768.0).collect();
            let encoding = match per_channel {
                true => QnnEncoding::PerAxis { axis: 0, scales: of_product },
                false => per_tensor(f64::from(scales[0]) / 32768.0, 0),
            };
            let b = case.constant(&[32], (DataType::Sfixed32, encoding), &random(32, 2.0, 3));
            let y = case.output(&[2, 32], a16(4.0));
            case.node("FullyConnected", vec![], &[x, w, b], &[y]);
            let mut expected = plain_product(case.real(x), case.real(w), 2, 64, 32, true);
            expected.iter_mut().enumerate().for_each(|(at, value)| *value += case.real(b)[at % 32]);
            self.add(format!("FullyConnected a16 w8-channel bias {name}"), case, expected);
        }
    }

    // ---- norms, softmax, pointwise

    fn norms(&mut self) {
        let mut rms = |name: String, act: &str, gamma: Kind, beta: Option<Kind>, dims: &[u32]| {
            let mut case = Case::new("");
            let count: u32 = dims.iter().product();
            let x = case.input(dims, activation(act, 3.0), &random(count as usize, 3.0, 1));
            let gains: Vec<f64> = random(64, 1.0, 2).iter().map(|gain| gain.abs() + 0.2).collect();
            let mut inputs = vec![x, case.constant(&[64], gamma, &gains)];
            let shift = beta.map(|kind| case.constant(&[64], kind, &random(64, 0.5, 3)));
            inputs.extend(shift);
            let y = case.output(dims, activation(act, 5.0));
            let params =
                vec![("epsilon", Param::F32(1e-6)), ("axes", Param::U32s(vec![dims.len() as u32 - 1]))];
            case.node("RmsNorm", params, &inputs, &[y]);
            let mut expected = Vec::new();
            for row in case.real(x).chunks(64) {
                let root = (row.iter().map(|x| x * x).sum::<f64>() / 64.0 + 1e-6).sqrt();
                for (at, x) in row.iter().enumerate() {
                    expected
                        .push(x / root * case.real(inputs[1])[at] + shift.map_or(0.0, |b| case.real(b)[at]));
                }
            }
            self.add(name, case, expected);
        };
        for act in ACTIVATIONS {
            rms(format!("RmsNorm {act}"), act, activation(act, 1.3), None, &[4, 64]);
        }
        for gamma in ["a8", "s16", "s8", "f16"] {
            rms(format!("RmsNorm a16 gamma {gamma}"), "a16", activation(gamma, 1.3), None, &[4, 64]);
        }
        rms("RmsNorm f16 gamma f32".to_owned(), "f16", f32(), None, &[4, 64]);
        rms("RmsNorm a16 beta a16".to_owned(), "a16", a16(1.3), Some(a16(0.5)), &[4, 64]);
        let fine = (DataType::Sfixed32, per_tensor(1e-8, 0));
        rms("RmsNorm a16 beta s32".to_owned(), "a16", a16(1.3), Some(fine), &[4, 64]);
        rms("RmsNorm a16 rank 3".to_owned(), "a16", a16(1.3), None, &[1, 4, 64]);
        rms("RmsNorm a16 rank 4".to_owned(), "a16", a16(1.3), None, &[1, 2, 2, 64]);
        // Rows and heads as separate axes, and only rows.
        for act in ACTIVATIONS {
            for dims in [
                &[48, 64][..],
                &[1, 1, 48, 64],
                &[1, 8, 4, 64],
                &[1, 9, 1, 64],
                &[1, 12, 4, 64],
                &[1, 4, 16, 64],
                &[1, 4, 17, 64],
                &[12, 4, 64],
            ] {
                rms(format!("RmsNorm {act} {dims:?}"), act, activation(act, 1.3), None, dims);
            }
        }

        let mut softmax = |name: String, input: Kind, output: Kind| {
            let mut case = Case::new("");
            let x = case.input(&[4, 64], input, &random(256, 4.0, 1));
            let y = case.output(&[4, 64], output);
            case.node("Softmax", vec![("axis", Param::U32(1)), ("beta", Param::F32(1.0))], &[x], &[y]);
            let expected = case.real(x).chunks(64).flat_map(plain_softmax).collect();
            self.add(name, case, expected);
        };
        let unsigned = |bits: i32, most: f64| match bits {
            16 => (DataType::Ufixed16, per_tensor(most / 65536.0, 0)),
            _ => (DataType::Ufixed8, per_tensor(most / 256.0, 0)),
        };
        softmax("Softmax a16".to_owned(), a16(4.0), unsigned(16, 1.0));
        softmax("Softmax a16 coarser".to_owned(), a16(4.0), unsigned(16, 2.0));
        softmax("Softmax a16 any scale".to_owned(), a16(4.0), unsigned(16, 0.7));
        softmax("Softmax a8".to_owned(), a8(4.0), unsigned(8, 0.2));
        softmax("Softmax a16 to a8".to_owned(), a16(4.0), unsigned(8, 0.2));
        softmax("Softmax s16".to_owned(), s16(4.0), s16(1.0));
        softmax("Softmax f16".to_owned(), f16(), f16());
        softmax("Softmax f32".to_owned(), f32(), f32());

        let mut masked = Case::new("");
        let x = masked.input(&[1, 1, 4, 64], a16(4.0), &random(256, 4.0, 1));
        let mask = masked.input(&[1, 1, 4, 64], a16(4.0), &[0.0; 256]);
        let y = masked.output(&[1, 1, 4, 64], unsigned(16, 1.0));
        masked.node("MaskedSoftmax", vec![], &[x, mask], &[y]);
        let expected = masked.real(x).chunks(64).flat_map(plain_softmax).collect();
        self.add("MaskedSoftmax a16".to_owned(), masked, expected);

        for act in ["a16", "f16", "f32"] {
            let mut case = Case::new("");
            let x = case.input(&[4, 64], activation(act, 3.0), &random(256, 3.0, 1));
            let y = case.output(&[4, 64], activation(act, 0.5));
            case.node("L2Norm", vec![("axes", Param::U32s(vec![1]))], &[x], &[y]);
            let mut expected = Vec::new();
            for row in case.real(x).chunks(64) {
                let root = row.iter().map(|x| x * x).sum::<f64>().sqrt();
                expected.extend(row.iter().map(|x| x / root));
            }
            self.add(format!("L2Norm {act}"), case, expected);
        }
    }

    fn pointwise(&mut self) {
        let wide = random(256, 4.0, 1);
        let above: Vec<f64> = random(256, 1.8, 1).iter().map(|value| value + 2.2).collect();
        type Plain = fn(f64) -> f64;
        /// Name, operation and its number, operands, largest result, computation.
        type Row<'a> = (&'a str, &'static str, Option<u32>, &'a [f64], f64, Plain);
        let rows: [Row<'_>; 9] = [
            ("Gelu", "Gelu", None, &wide, 4.0, gelu),
            ("Neuron 1 (gelu)", "ElementWiseNeuron", Some(1), &wide, 4.0, gelu),
            ("Tanh", "Tanh", None, &wide, 1.0, f64::tanh),
            ("Neuron 8 (tanh)", "ElementWiseNeuron", Some(8), &wide, 1.0, f64::tanh),
            ("Sigmoid", "Sigmoid", None, &wide, 1.0, |x| 1.0 / (1.0 + (-x).exp())),
            ("Exp", "ElementWiseExp", None, &wide, 55.0, f64::exp),
            ("Rsqrt", "ElementWiseRsqrt", None, &above, 1.7, |x| 1.0 / x.sqrt()),
            ("Sin", "ElementWiseSin", None, &wide, 1.0, f64::sin),
            ("Cos", "ElementWiseCos", None, &wide, 1.0, f64::cos),
        ];
        for (name, op, number, x, most, plain) in rows {
            for act in ACTIVATIONS {
                let params = number.map(|number| ("operation", Param::U32(number))).into_iter().collect();
                let kinds = (activation(act, 4.0), activation(act, most));
                self.unary(format!("{name} {act}"), op, params, kinds, x, plain);
            }
        }
        // Soft-capping passes it much larger values than it distinguishes.
        let far = random(256, 30.0, 1);
        self.unary("Tanh a16 of 30".to_owned(), "Tanh", vec![], (a16(30.0), a16(1.0)), &far, f64::tanh);
    }

    fn pairs(&mut self) {
        type Plain = fn(f64, f64) -> f64;
        let operations: [(&'static str, f64, Plain); 6] = [
            ("ElementWiseAdd", 6.0, |a, b| a + b),
            ("ElementWiseMultiply", 9.0, |a, b| a * b),
            ("ElementWiseSubtract", 6.0, |a, b| a - b),
            ("ElementWiseDivide", 7.0, |a, b| a / b),
            ("ElementWiseMaximum", 3.0, f64::max),
            ("ElementWiseMinimum", 3.0, f64::min),
        ];
        let mut pair =
            |name: String, op: &'static str, kinds: (Kind, Kind, Kind), how: &str, plain: Plain| {
                let mut case = Case::new("");
                // The values are away from zero, so that quotients stay in range.
                let second: Vec<f64> =
                    random(256, 2.5, 2).iter().map(|value| value + 0.5 * value.signum()).collect();
                let a = case.input(&[4, 64], kinds.0, &random(256, 3.0, 1));
                let b = match how {
                    "scalar" => case.constant(&[1], kinds.1, &[1.5]),
                    "row" => case.input(&[64], kinds.1, &second[..64]),
                    _ => case.input(&[4, 64], kinds.1, &second),
                };
                let y = case.output(&[4, 64], kinds.2);
                let params = match op {
                    "ElementWiseBinary" => vec![("operation", Param::U32(13))],
                    _ => vec![],
                };
                case.node(op, params, &[a, b], &[y]);
                let repeated = case.real(b).iter().cycle();
                let expected = case.real(a).iter().zip(repeated).map(|(a, b)| plain(*a, *b)).collect();
                self.add(name, case, expected);
            };
        for (op, most, plain) in operations {
            let short = op.trim_start_matches("ElementWise");
            for act in ACTIVATIONS {
                let kinds = || (activation(act, 3.0), activation(act, 3.0), activation(act, most));
                pair(format!("{short} {act}"), op, kinds(), "", plain);
            }
            pair(format!("{short} a16 row"), op, (a16(3.0), a16(3.0), a16(most)), "row", plain);
            let scalar = (DataType::Ufixed16, per_tensor(1.5 / 65535.0, 0));
            pair(format!("{short} a16 scalar"), op, (a16(3.0), scalar, a16(most)), "scalar", plain);
            pair(format!("{short} f16 scalar"), op, (f16(), f16(), f16()), "scalar", plain);
            pair(format!("{short} a16 and a8"), op, (a16(3.0), a8(3.0), a16(most)), "", plain);
            pair(format!("{short} a16 and f16"), op, (a16(3.0), f16(), a16(most)), "", plain);
        }
        pair("Add i32".to_owned(), "ElementWiseAdd", (i32s(), i32s(), i32s()), "", |a, b| a + b);
        pair(
            "Binary 13 (multiply) a16".to_owned(),
            "ElementWiseBinary",
            (a16(3.0), a16(3.0), a16(9.0)),
            "",
            |a, b| a * b,
        );
    }

    fn dynamic_products(&mut self) {
        let mut product = |name: String, kinds: (Kind, Kind, Kind), heads: (u32, u32), transposed: bool| {
            let (rows, inner, columns) = (4u32, 32u32, 8u32);
            let mut case = Case::new("");
            let second = if transposed { [1, heads.1, columns, inner] } else { [1, heads.1, inner, columns] };
            let a = case.input(
                &[1, heads.0, rows, inner],
                kinds.0,
                &random((heads.0 * rows * inner) as usize, 1.0, 1),
            );
            let b = case.input(&second, kinds.1, &random((heads.1 * inner * columns) as usize, 1.0, 2));
            let y = case.output(&[1, heads.0, rows, columns], kinds.2);
            let params =
                vec![("transpose_in0", Param::Bool(false)), ("transpose_in1", Param::Bool(transposed))];
            case.node("MatMul", params, &[a, b], &[y]);
            let mut expected = Vec::new();
            for head in 0..heads.0 as usize {
                let own = (rows * inner) as usize;
                let other = (inner * columns) as usize;
                let shared = head % heads.1 as usize;
                expected.extend(plain_product(
                    &case.real(a)[head * own..][..own],
                    &case.real(b)[shared * other..][..other],
                    rows as usize,
                    inner as usize,
                    columns as usize,
                    transposed,
                ));
            }
            self.add(name, case, expected);
        };
        let most = 12.0;
        for (a, b, y) in [
            ("a16", "a16", "a16"),
            ("a16", "a8", "a16"),
            ("a8", "a8", "a8"),
            ("a8", "a8", "a16"),
            ("a16", "s8", "a16"),
            ("a16", "s16", "a16"),
            ("s16", "s16", "s16"),
            ("f16", "f16", "f16"),
            ("f32", "f32", "f32"),
            ("f16", "a8", "f16"),
        ] {
            for transposed in [false, true] {
                let kinds = (activation(a, 1.0), activation(b, 1.0), activation(y, most));
                let how = if transposed { " transposed" } else { "" };
                product(format!("MatMul {a} x {b} to {y}{how}"), kinds, (2, 2), transposed);
            }
        }
        let odd = (DataType::Ufixed8, per_tensor(2.2 / 255.0, -100));
        product(
            "MatMul a16 x a8 with an odd zero point".to_owned(),
            (a16(1.0), odd, a16(most)),
            (2, 2),
            true,
        );
        product("MatMul a16 x a16 of 8 heads by 1".to_owned(), (a16(1.0), a16(1.0), a16(most)), (8, 1), true);
        product("MatMul a16 x a8 of 8 heads by 1".to_owned(), (a16(1.0), a8(1.0), a16(most)), (8, 1), true);
        product("MatMul f16 x f16 of 8 heads by 1".to_owned(), (f16(), f16(), f16()), (8, 1), true);
    }

    fn rotary(&mut self) {
        for act in ACTIVATIONS {
            for rank in [3, 2, 4] {
                if rank != 3 && !matches!(act, "a16" | "f16") {
                    continue;
                }
                let (heads, rows, width) = (2usize, 4usize, 64usize);
                let mut case = Case::new("");
                let x = case.input(&[1, 2, 4, 64], activation(act, 1.0), &random(512, 1.0, 1));
                let dims: &[u32] = match rank {
                    2 => &[4, 32],
                    3 => &[1, 4, 32],
                    _ => &[1, 1, 4, 32],
                };
                let angles = random(128, 3.1, 2);
                let tables: Vec<Tensor> = [f64::cos as fn(f64) -> f64, f64::sin]
                    .iter()
                    .map(|of| {
                        let values: Vec<f64> = angles.iter().map(|angle| of(*angle)).collect();
                        case.input(dims, activation(act, 1.0), &values)
                    })
                    .collect();
                let y = case.output(&[1, 2, 4, 64], activation(act, 1.5));
                case.node(
                    "RotaryEmbedding",
                    vec![("interleaved", Param::Bool(false))],
                    &[x, tables[0], tables[1]],
                    &[y],
                );
                let (source, cos, sin) = (case.real(x), case.real(tables[0]), case.real(tables[1]));
                let mut expected = vec![0.0; 512];
                for head in 0..heads {
                    for row in 0..rows {
                        let first = (head * rows + row) * width;
                        for pair in 0..width / 2 {
                            let (low, high) = (source[first + pair], source[first + pair + width / 2]);
                            let (cos, sin) = (cos[row * 32 + pair], sin[row * 32 + pair]);
                            expected[first + pair] = low * cos - high * sin;
                            expected[first + pair + width / 2] = high * cos + low * sin;
                        }
                    }
                }
                let how = if rank == 3 { String::new() } else { format!(" tables of rank {rank}") };
                self.add(format!("RotaryEmbedding {act}{how}"), case, expected);
            }
        }
    }

    fn gathers(&mut self) {
        let indices = [3.0, 0.0, 7.0, 3.0, 1.0];
        let mut gather = |name: String, act: &str, index: &str| {
            let mut case = Case::new("");
            let table = case.constant(&[8, 64], activation(act, 1.0), &random(512, 1.0, 1));
            let at = case.input(&[5], activation(index, 0.0), &indices);
            let y = case.output(&[5, 64], activation(act, 1.0));
            case.node("Gather", vec![("axis", Param::I32(0))], &[table, at], &[y]);
            let expected = indices
                .iter()
                .flat_map(|row| case.real(table)[*row as usize * 64..][..64].to_vec())
                .collect();
            self.add(name, case, expected);
        };
        for act in ACTIVATIONS {
            gather(format!("Gather {act}"), act, "i32");
        }
        for index in ["u32", "i64", "u16"] {
            gather(format!("Gather a16 by {index}"), "a16", index);
        }

        for act in ["a16", "a8", "s8", "f16"] {
            let mut case = Case::new("");
            let state = case.input(&[8, 64], activation(act, 1.0), &random(512, 1.0, 1));
            let slots = case.input(&[2, 1], i32s(), &[5.0, 2.0]);
            let rows = case.input(&[2, 64], activation(act, 1.0), &random(128, 1.0, 2));
            let y = case.output(&[8, 64], activation(act, 1.0));
            case.node("ScatterNd", vec![("reduction", Param::U32(0))], &[state, slots, rows], &[y]);
            let mut expected = case.real(state).to_vec();
            expected[5 * 64..6 * 64].copy_from_slice(&case.real(rows)[..64]);
            expected[2 * 64..3 * 64].copy_from_slice(&case.real(rows)[64..]);
            self.add(format!("ScatterNd {act}"), case, expected);
        }
        for act in ["a16", "f16"] {
            let mut case = Case::new("");
            let choice: Vec<f64> = (0..256).map(|at| f64::from(at % 3 == 0)).collect();
            let choose = case.input(&[4, 64], (DataType::Bool8, QnnEncoding::None), &choice);
            let a = case.input(&[4, 64], activation(act, 1.0), &random(256, 1.0, 1));
            let b = case.input(&[4, 64], activation(act, 1.0), &random(256, 1.0, 2));
            let y = case.output(&[4, 64], activation(act, 1.0));
            case.node("ElementWiseSelect", vec![], &[choose, a, b], &[y]);
            let both = case.real(a).iter().zip(case.real(b));
            let expected =
                both.zip(&choice).map(|((a, b), choice)| if *choice == 1.0 { *a } else { *b }).collect();
            self.add(format!("Select {act}"), case, expected);
        }
    }

    fn moves(&mut self) {
        for act in ACTIVATIONS.into_iter().chain(["s8"]) {
            let kind = || activation(act, 1.0);
            let x = random(256, 1.0, 1);

            let mut case = Case::new("");
            let a = case.input(&[4, 64], kind(), &x);
            let b = case.input(&[2, 64], kind(), &random(128, 1.0, 2));
            let y = case.output(&[6, 64], kind());
            case.node("Concat", vec![("axis", Param::U32(0))], &[a, b], &[y]);
            let expected = [case.real(a), case.real(b)].concat();
            self.add(format!("Concat {act}"), case, expected);

            let mut simple = |name: &str,
                              op: &'static str,
                              params: Vec<(&'static str, Param)>,
                              dims: &[u32],
                              from: &dyn Fn(usize) -> usize| {
                let mut case = Case::new("");
                let a = case.input(&[4, 64], kind(), &x);
                let y = case.output(dims, kind());
                case.node(op, params, &[a], &[y]);
                let count: u32 = dims.iter().product();
                let expected = (0..count as usize).map(|at| case.real(a)[from(at)]).collect();
                self.add(format!("{name} {act}"), case, expected);
            };
            simple("Reshape", "Reshape", vec![], &[1, 8, 32], &|at| at);
            let perm = vec![("perm", Param::U32s(vec![1, 0]))];
            simple("Transpose", "Transpose", perm, &[64, 4], &|at| at % 4 * 64 + at / 4);
            let ranges = vec![("ranges", Param::I32s(vec![1, 3, 1, 8, 24, 1], vec![2, 3]))];
            simple("StridedSlice", "StridedSlice", ranges, &[2, 16], &|at| (at / 16 + 1) * 64 + at % 16 + 8);
            let multiples = vec![("multiples", Param::U32s(vec![2, 1]))];
            simple("Tile", "Tile", multiples, &[8, 64], &|at| at % 256);

            let mut case = Case::new("");
            let a = case.input(&[4, 64], kind(), &x);
            let low = case.output(&[4, 24], kind());
            let high = case.output(&[4, 40], kind());
            let params = vec![("axis", Param::U32(1)), ("split_index", Param::U32s(vec![24]))];
            case.node("Split", params, &[a], &[low, high]);
            let rows = || case.real(a).chunks(64);
            let expected = vec![
                rows().flat_map(|row| row[..24].to_vec()).collect(),
                rows().flat_map(|row| row[24..].to_vec()).collect(),
            ];
            self.add_all(format!("Split {act}"), case, expected);
        }
        // The result has another encoding than the operand.
        for (name, op) in [
            ("Concat", "Concat"),
            ("StridedSlice", "StridedSlice"),
            ("StridedSlice of everything", "StridedSlice"),
            ("Reshape", "Reshape"),
            ("Transpose", "Transpose"),
        ] {
            let mut case = Case::new("");
            let a = case.input(&[4, 64], a16(1.0), &random(256, 1.0, 1));
            let rows = if name == "StridedSlice" { 2 } else { 4 };
            let (dims, params, inputs): (&[u32], _, _) = match op {
                "Concat" => {
                    let b = case.input(&[4, 64], a16(0.5), &random(256, 0.5, 2));
                    (&[8, 64], vec![("axis", Param::U32(0))], vec![a, b])
                }
                "StridedSlice" => {
                    let ranges = Param::I32s(vec![0, rows, 1, 0, 64, 1], vec![2, 3]);
                    (if rows == 2 { &[2, 64] } else { &[4, 64] }, vec![("ranges", ranges)], vec![a])
                }
                "Transpose" => (&[4, 64], vec![("perm", Param::U32s(vec![0, 1]))], vec![a]),
                _ => (&[4, 64], vec![], vec![a]),
            };
            let y = case.output(dims, a16(1.7));
            case.node(op, params, &inputs, &[y]);
            let mut expected: Vec<f64> = inputs.iter().flat_map(|input| case.real(*input).to_vec()).collect();
            expected.truncate(dims.iter().product::<u32>() as usize);
            self.add(format!("{name} a16 into another scale"), case, expected);
        }
        for second in ["a8", "f16"] {
            let mut case = Case::new("");
            let a = case.input(&[4, 64], a16(1.0), &random(256, 1.0, 1));
            let b = case.input(&[2, 64], activation(second, 1.0), &random(128, 1.0, 2));
            let y = case.output(&[6, 64], a16(1.0));
            case.node("Concat", vec![("axis", Param::U32(0))], &[a, b], &[y]);
            let expected = [case.real(a), case.real(b)].concat();
            self.add(format!("Concat a16 and {second}"), case, expected);
        }
    }

    fn reductions(&mut self) {
        type Plain = fn(&[f64]) -> f64;
        let operations: [(&'static str, f64, Plain); 3] = [
            ("ReduceMean", 1.0, |row| row.iter().sum::<f64>() / row.len() as f64),
            ("ReduceSum", 30.0, |row| row.iter().sum()),
            ("ReduceMax", 1.0, |row| row.iter().copied().fold(f64::MIN, f64::max)),
        ];
        for (op, most, plain) in operations {
            for act in ["a16", "a8", "f16", "f32"] {
                let mut case = Case::new("");
                // The values are not centred, so that means are not zero.
                let values: Vec<f64> = random(256, 0.6, 1).iter().map(|value| value + 0.3).collect();
                let x = case.input(&[4, 64], activation(act, 1.0), &values);
                let y = case.output(&[4, 1], activation(act, most));
                let params = vec![("axes", Param::U32s(vec![1])), ("keep_dims", Param::Bool(true))];
                case.node(op, params, &[x], &[y]);
                let expected = case.real(x).chunks(64).map(plain).collect();
                self.add(format!("{op} {act}"), case, expected);
            }
        }
        for act in ["a16", "a8", "f16"] {
            let mut case = Case::new("");
            let values: Vec<f64> = (0..256).map(|at| f64::from((at * 37 + 11) % 64) / 64.0).collect();
            let x = case.input(&[4, 64], activation(act, 1.0), &values);
            let y = case.output(&[4], i32s());
            case.node("Argmax", vec![("axis", Param::U32(1)), ("keep_dims", Param::Bool(false))], &[x], &[y]);
            let expected = case.real(x).chunks(64).map(|row| plain_top(row)[0].0 as f64).collect();
            self.add(format!("Argmax {act}"), case, expected);

            let mut case = Case::new("");
            let x = case.input(&[4, 64], activation(act, 1.0), &values);
            let y = case.output(&[4, 3], activation(act, 1.0));
            let at = case.output(&[4, 3], i32s());
            case.node("TopK", vec![("k", Param::U32(3)), ("largest", Param::Bool(true))], &[x], &[y, at]);
            let top = || case.real(x).chunks(64).flat_map(|row| plain_top(row).into_iter().take(3));
            let expected =
                vec![top().map(|(_, value)| value).collect(), top().map(|(at, _)| at as f64).collect()];
            self.add_all(format!("TopK {act}"), case, expected);
        }
    }

    fn conversions(&mut self) {
        // A Reshape or Cast between elements of different sizes writes out of bounds, so only
        // plausible uses are tested.
        for (op, pairs) in [
            ("Quantize", "f32>a16 f32>a8 f32>s8 f32>s16 f16>a16 f16>s16 a16>a8"),
            ("Dequantize", "a16>f32 a16>f16 a8>f16 s8>f16 s16>f16 a8>f32"),
            (
                "Convert",
                "a16>a8 a8>a16 a16>s8 s8>a16 a16>s16 s16>a16 a16>f16 f16>a16 a16>f32 f32>a16 f16>f32 f32>f16 \
                 a8>f16 f16>a8 a8>f32 f32>a8",
            ),
            ("Cast", "f32>a16 f16>a16 a16>f16 f16>f32 f32>f16 i32>f16 i32>f32 i32>a16"),
        ] {
            for (from, to) in pairs.split(' ').filter_map(|pair| pair.split_once('>')) {
                let values: Vec<f64> = match from {
                    "i32" => (0..256).map(|at| f64::from(at % 7 - 3)).collect(),
                    _ => random(256, 3.0, 1),
                };
                let kinds = (activation(from, 3.0), activation(to, 3.0));
                self.unary(format!("{op} {from} to {to}"), op, vec![], kinds, &values, |x| x);
            }
        }
        let values = random(256, 3.0, 1);
        for op in ["Convert", "Cast"] {
            for (name, kinds) in [("a16", (a16(3.0), a16(5.0))), ("a8", (a8(3.0), a8(5.0)))] {
                self.unary(format!("{op} {name} to another scale"), op, vec![], kinds, &values, |x| x);
            }
        }
    }

    fn rest(&mut self) {
        for act in ["a16", "f16"] {
            let mut case = Case::new("");
            let x = case.input(&[4, 64], activation(act, 1.0), &random(256, 1.0, 1));
            let y = case.output(&[4, 64], activation(act, 2.0));
            case.node("HadamardTransform", vec![("scale", Param::F32(1.0))], &[x], &[y]);
            let mut expected = Vec::new();
            for row in case.real(x).chunks(64) {
                for at in 0..64u32 {
                    let sign =
                        |of: usize| if (of as u32 & at).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
                    expected.push(row.iter().enumerate().map(|(of, x)| x * sign(of)).sum::<f64>() / 8.0);
                }
            }
            self.add(format!("HadamardTransform {act}"), case, expected);
        }
        for act in ["a16", "f16"] {
            let mut case = Case::new("");
            let q = case.input(&[1, 4, 512], activation(act, 1.0), &random(2048, 1.0, 1));
            let k = case.input(&[1, 4, 64], activation(act, 1.0), &random(256, 1.0, 2));
            let v = case.input(&[1, 4, 64], activation(act, 1.0), &random(256, 1.0, 3));
            let y = case.output(&[1, 4, 512], activation(act, 1.0));
            let params = vec![("num_heads", Param::U32(8)), ("kv_num_heads", Param::U32(1))];
            case.node("GroupQueryAttention", params, &[q, k, v], &[y]);
            self.add(format!("GroupQueryAttention {act}"), case, vec![0.0; 2048]);
        }
        // The result has another shape than the operation computes.
        let mut case = Case::new("");
        let x = case.input(&[4, 64], a16(1.0), &random(256, 1.0, 1));
        let y = case.output(&[5, 64], a16(1.0));
        case.node("Tanh", vec![], &[x], &[y]);
        let mut expected: Vec<f64> = case.real(x).iter().map(|x| x.tanh()).collect();
        expected.extend([1.0; 64]);
        self.add("Tanh a16 into a wrong shape".to_owned(), case, expected);
    }
}

/// Short names of constant weights.
const WEIGHTS: &[&str] = &[
    "w8-channel",
    "w8-tensor",
    "u8-tensor",
    "w4-channel",
    "w4-tensor",
    "w2-channel",
    "w16-tensor",
    "w4-expansion",
    "w8-expansion",
    "w4-float-block",
    "w8-float-block",
    "w8-block",
    "s4",
    "f16",
    "f32",
];

/// Returns type and values of a weight whose channels are an axis. Blocks of 32 run along the other
/// of the two innermost axes.
fn weight(name: &str, axis: i32, channels: u32, dims: &[u32]) -> (Kind, Vec<f64>) {
    let count: u32 = dims.iter().product();
    let values = random(count as usize, 0.1, 2);
    let steps = |most: f32| -> Vec<f32> {
        (0..channels).map(|channel| 0.1 / most * (1.0 - channel as f32 / (3.0 * channels as f32))).collect()
    };
    let last = dims.len() - 1;
    let other = if axis as usize == last { last - 1 } else { last };
    let blocks = dims[other] / 32;
    let extents: Vec<u32> = (0..dims.len()).map(|at| if at == other { 32 } else { 1 }).collect();
    let block_count = (count / 32) as usize;
    let block_scales = |most: f32| -> Vec<f32> {
        (0..block_count).map(|block| 0.1 / most * (1.0 - (block % 5) as f32 / 10.0)).collect()
    };
    let multiples: Vec<u8> = (0..channels * blocks).map(|block| 8 + (block % 9) as u8).collect();
    let one = |scale: f32| ScaleOffset { scale, offset: 0 };
    let s8 = DataType::Sfixed8;
    let kind = match name {
        "w8-channel" => (s8, QnnEncoding::PerAxis { axis, scales: steps(127.0) }),
        "w8-tensor" => (s8, per_tensor(0.1 / 127.0, 0)),
        "u8-tensor" => (DataType::Ufixed8, per_tensor(0.2 / 255.0, -128)),
        "w4-channel" => (s8, QnnEncoding::BitWidthPerAxis { bits: 4, axis, scales: steps(7.0) }),
        "w4-tensor" => (s8, QnnEncoding::BitWidth { bits: 4, scale_offset: one(0.1 / 7.0) }),
        "w2-channel" => (s8, QnnEncoding::BitWidthPerAxis { bits: 2, axis, scales: steps(1.0) }),
        "w16-tensor" => (DataType::Sfixed16, per_tensor(0.1 / 32767.0, 0)),
        "w4-expansion" => (
            s8,
            QnnEncoding::BlockExpansion {
                axis,
                scales: steps(7.0 * 16.0),
                blocks_per_channel: blocks,
                multiples,
            },
        ),
        "w8-expansion" => (
            s8,
            QnnEncoding::BlockExpansion {
                axis,
                scales: steps(127.0 * 16.0),
                blocks_per_channel: blocks,
                multiples,
            },
        ),
        "w4-float-block" => {
            (s8, QnnEncoding::BitWidthFloatBlock { bits: 4, extents, scales: block_scales(7.0) })
        }
        "w8-float-block" => (s8, QnnEncoding::FloatBlock { extents, scales: block_scales(127.0) }),
        "w8-block" => {
            (s8, QnnEncoding::Block { extents, scales: block_scales(127.0).into_iter().map(one).collect() })
        }
        "s4" => (DataType::Sfixed4, per_tensor(0.1 / 7.0, 0)),
        "f16" => f16(),
        "f32" => f32(),
        other => panic!("no weight {other}"),
    };
    (kind, values)
}

/// Computes `x [rows, inner]` times `w [channels, inner]` or `[inner, channels]`.
fn plain_product(
    x: &[f64],
    w: &[f64],
    rows: usize,
    inner: usize,
    channels: usize,
    channels_first: bool,
) -> Vec<f64> {
    let weight = |channel: usize, at: usize| match channels_first {
        true => w[channel * inner + at],
        false => w[at * channels + channel],
    };
    let mut y = Vec::with_capacity(rows * channels);
    for row in x.chunks(inner).take(rows) {
        y.extend(
            (0..channels)
                .map(|channel| row.iter().enumerate().map(|(at, x)| x * weight(channel, at)).sum::<f64>()),
        );
    }
    y
}

fn plain_softmax(row: &[f64]) -> Vec<f64> {
    let most = row.iter().copied().fold(f64::MIN, f64::max);
    let sum: f64 = row.iter().map(|x| (x - most).exp()).sum();
    row.iter().map(|x| (x - most).exp() / sum).collect()
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
}

/// Sorts places and values by value in descending order, and equal values by place.
fn plain_top(row: &[f64]) -> Vec<(usize, f64)> {
    let mut all: Vec<(usize, f64)> = row.iter().copied().enumerate().collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all
}
