//! Every supported operation, compiled and run by the vendor's library and compared with the plain
//! evaluator of contract tables.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use shardwright_shim_abi::raw::*;
use shardwright_shim_qnn::lower::{Leaving, Product, Rotary, Variants};
use shardwright_shim_qnn::session::Device;
use shardwright_shim_testing::{Bound, evaluate, integers};

use super::shapes::lowered;
use super::tables::{Attribute, Random, TableEncoding, Tables, Weight, over, over8, random_matrix};
use super::vendor::{device, run};

/// An entry of a few operations.
struct Trial {
    name: String,
    tables: Tables,
    variants: Variants,
    /// Range of each input's values.
    ranges: Vec<(f64, f64)>,
    /// Largest accepted difference, in steps of the output's encoding.
    steps: f64,
}

fn elements(shape: &[u64]) -> u64 {
    shape.iter().product()
}

impl Trial {
    fn new(name: impl Into<String>, tables: Tables, ranges: &[(f64, f64)], steps: f64) -> Trial {
        let (name, ranges) = (name.into(), ranges.to_vec());
        Trial { name, tables, variants: Variants::default(), ranges, steps }
    }

    fn with(self, variants: Variants) -> Trial {
        Trial { variants, ..self }
    }

    /// Runs the entry on the library and returns the largest difference in steps of the output's
    /// encoding.
    fn difference(&self, device: &Arc<Device>) -> Result<f64, String> {
        let lowered = catch_unwind(AssertUnwindSafe(|| lowered(&self.tables, &self.variants)))
            .map_err(|_| "not taken".to_owned())?;
        let mut random = Random(11);
        let mut bytes = Vec::new();
        let mut bound = HashMap::new();
        for (port, (low, high)) in self.tables.inputs.iter().zip(&self.ranges) {
            let (shape, store) = (self.tables.shape(port.tensor), self.tables.encoding_of(port.tensor));
            let values = random.values(elements(&shape), *low, *high);
            let singles: Vec<f32> = values.iter().map(|value| *value as f32).collect();
            bound.insert(port.name.clone(), Bound::store(store, &singles));
            bytes.push(store.encode(&values));
        }
        let outputs = run(device, &lowered.graph, &bytes).map_err(|error| error.to_string())?;
        let expected = evaluate(&self.tables, self.tables.rows as usize, &bound);
        let mut worst = 0.0f64;
        for (port, bytes) in self.tables.outputs.iter().zip(&outputs) {
            let store = self.tables.encoding_of(port.tensor);
            let (found, expected) = (store.decode(bytes), &expected[&port.name].data);
            assert_eq!(found.len(), expected.len(), "{}", self.name);
            for (found, expected) in found.iter().zip(expected) {
                let scale = match store.dtype {
                    SW_DTYPE_F32 => 1e-6 * expected.abs().max(1.0),
                    SW_DTYPE_F16 => 1e-3 * expected.abs().max(1.0),
                    _ => store.step(*expected),
                };
                let difference = (found - expected).abs() / scale;
                worst = worst.max(if difference.is_nan() { f64::INFINITY } else { difference });
            }
        }
        Ok(worst)
    }
}

const FAMILIES: [(&str, bool); 2] = [("a16", false), ("f16", true)];

fn store(half: bool, low: f32, high: f32) -> TableEncoding {
    if half { TableEncoding::F16 } else { over(low, high) }
}

/// Creates a trial with one input, one operation and one output of the same extents.
fn single(
    name: impl Into<String>,
    op: u32,
    shape: &[u64],
    (from, range): (TableEncoding, (f64, f64)),
    to: TableEncoding,
    attributes: Vec<Attribute>,
    steps: f64,
) -> Trial {
    let mut tables = Tables::new("trial", shape[0]);
    let x = tables.input("x", SW_ROLE_HIDDEN, shape, from);
    let y = tables.unary("y", op, x, to, attributes);
    tables.output("y", SW_ROLE_HIDDEN, y);
    Trial::new(name, tables, &[range], steps)
}

fn pointwise() -> Vec<Trial> {
    let mut trials = Vec::new();
    let value = |value: f64| vec![Attribute::Float("value", value)];
    for (family, half) in FAMILIES {
        let shape: &[u64] = &[5, 96];
        let s = |low, high| store(half, low, high);
        let mut add = |name: &str, op, from: (TableEncoding, (f64, f64)), to, attributes, steps| {
            trials.push(single(format!("{name} {family}"), op, shape, from, to, attributes, steps));
        };
        let wide = (s(-6.0, 6.0), (-6.0, 6.0));
        let positive = (s(0.0, 6.0), (0.25, 6.0));
        add("gelu", SW_OP_GELU, wide, s(-0.2, 6.0), vec![], 30.0);
        add("silu", SW_OP_SILU, wide, s(-0.3, 6.0), vec![], 8.0);
        add("tanh", SW_OP_TANH, wide, s(-1.0, 1.0), vec![], 8.0);
        add("exp", SW_OP_EXP, (s(-6.0, 1.0), (-6.0, 1.0)), s(0.0, 3.0), vec![], 8.0);
        add("sigmoid", SW_OP_SIGMOID, wide, s(0.0, 1.0), vec![], 8.0);
        add("neg", SW_OP_NEG, wide, s(-6.0, 6.0), vec![], 2.0);
        if half {
            add("sqrt", SW_OP_SQRT, positive, s(0.0, 2.5), vec![], 8.0);
        }
        add("rsqrt", SW_OP_RSQRT, positive, s(0.0, 2.5), vec![], 16.0);
        add("reciprocal", SW_OP_RECIPROCAL, positive, s(0.0, 4.5), vec![], 16.0);
        add("softcap", SW_OP_SOFTCAP, wide, s(-4.0, 4.0), vec![Attribute::Float("cap", 4.0)], 8.0);
        add("mul-scalar", SW_OP_MUL_SCALAR, wide, s(-5.0, 5.0), value(0.8), 2.0);
        add("mul-scalar below", SW_OP_MUL_SCALAR, wide, s(-5.0, 5.0), value(-0.8), 2.0);
        add("mul-scalar large", SW_OP_MUL_SCALAR, wide, s(-400.0, 400.0), value(64.0), 2.0);
        add("add-scalar", SW_OP_ADD_SCALAR, wide, s(-4.0, 8.0), value(1.5), 2.0);
        add("add-scalar below", SW_OP_ADD_SCALAR, wide, s(-8.0, 4.0), value(-1.5), 2.0);
        add("max-scalar", SW_OP_MAX_SCALAR, wide, s(0.0, 6.0), value(0.5), 2.0);
    }
    trials
}

fn along_rows() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (family, half) in FAMILIES {
        let s = |low, high| store(half, low, high);
        let wide = (s(-6.0, 6.0), (-6.0, 6.0));
        for shape in [&[5u64, 96][..], &[1, 4, 3, 96], &[2, 3, 96]] {
            let rank = shape.len();
            for (name, op, to) in
                [("softmax", SW_OP_SOFTMAX, s(0.0, 1.0)), ("l2-normalize", SW_OP_L2_NORMALIZE, s(-1.0, 1.0))]
            {
                trials.push(single(format!("{name} {family} rank {rank}"), op, shape, wide, to, vec![], 8.0));
            }
        }
        for (name, op, to, steps) in [
            ("reduce-sum", SW_OP_REDUCE_SUM, s(-100.0, 100.0), 8.0),
            ("reduce-mean", SW_OP_REDUCE_MEAN, s(-2.0, 2.0), 8.0),
            ("reduce-max", SW_OP_REDUCE_MAX, s(-6.0, 6.0), 2.0),
        ] {
            let mut trial = single(format!("{name} {family}"), op, &[5, 96], wide, to, vec![], steps);
            let y = trial.tables.outputs[0].tensor as usize;
            trial.tables.tensors[y].shape = vec![5, 1];
            trials.push(trial);
        }
    }
    trials
}

/// Creates trials of clamping between two constants and of kernels over a plane.
fn of_towers() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (family, half) in FAMILIES {
        let s = |low, high| store(half, low, high);
        for (name, low, high) in
            [("clamp", -1.5, 2.0), ("clamp above", -100.0, 2.0), ("clamp to nothing", -9.0, 9.0)]
        {
            let mut tables = Tables::new("trial", 5);
            let x = tables.input("x", SW_ROLE_HIDDEN, &[5, 96], s(-6.0, 6.0));
            let bounds = [("low", low), ("high", high)].map(|(name, bound)| {
                tables.constant(Weight::encoded(name, &[1], s(-100.0, 100.0), &[bound]))
            });
            let to = s(-6.0, 6.0);
            let y = tables.node("y", SW_OP_CLAMP, &[x, bounds[0], bounds[1]], (&[5, 96], to), vec![]);
            tables.output("y", SW_ROLE_HIDDEN, y);
            // The bounds are rounded to their own steps, which are wider than the result's.
            trials.push(Trial::new(format!("{name} {family}"), tables, &[(-6.0, 6.0)], 12.0));
        }
        for (height, width, channels, stride) in [(12u64, 16u64, 1u64, 2i64), (7, 9, 4, 1), (6, 8, 32, 2)] {
            let (along, outputs, columns) = (|side: u64| (side - 1) / stride as u64 + 1, 8, channels * 9);
            let weight = match half {
                true => Weight::encoded(
                    "w",
                    &[outputs, columns],
                    TableEncoding::F16,
                    &Random(5).values(outputs * columns, -0.2, 0.2),
                ),
                false => random_matrix("w", [outputs, columns], SW_DTYPE_I8, &mut Random(5)),
            };
            let mut tables = Tables::new("trial", height);
            let x = tables.input("x", SW_ROLE_HIDDEN, &[height, width, channels], s(-3.0, 2.0));
            let kernels = tables.constant(weight);
            let window = [("kernel", 3), ("stride", stride), ("padding", 1)];
            let window = window.map(|(name, value)| Attribute::Integer(name, value)).to_vec();
            let shape = [along(height), along(width), outputs];
            let y = tables.node("y", SW_OP_CONVOLUTION, &[x, kernels], (&shape, s(-8.0, 8.0)), window);
            tables.output("y", SW_ROLE_HIDDEN, y);
            let name = format!("convolution {family} {height} x {width} x {channels} by {stride}");
            trials.push(Trial::new(name, tables, &[(-3.0, 2.0)], 8.0));
        }
    }
    trials
}

fn norms() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (family, half) in FAMILIES {
        for (rows, width, offset, weighted, eight) in [
            (5u64, 96u64, 0.0, true, false),
            (5, 32, 0.0, true, false),
            (5, 32, 0.0, false, false),
            (5, 96, 1.0, true, false),
            (5, 32, 0.0, false, true),
            (12, 96, 0.0, true, false),
            (12, 32, 0.0, true, false),
            (12, 32, 0.0, false, true),
        ] {
            if half && eight {
                continue;
            }
            let mut tables = Tables::new("trial", rows);
            let x = tables.input("x", SW_ROLE_HIDDEN, &[rows, 96], store(half, -6.0, 6.0));
            let values = Random(3).values(width, -0.4, 1.5);
            let own = store(half, -0.4, 1.5);
            let weight = weighted.then(|| Weight::encoded("gamma", &[width], own, &values));
            let to = if eight { over8(-3.0, 3.0) } else { store(half, -6.0, 6.0) };
            let y = tables.norm("y", x, weight, width, to);
            tables.nodes[0].attributes[2] = Attribute::Float("weight_offset", offset);
            tables.output("y", SW_ROLE_HIDDEN, y);
            let name = format!(
                "rms-norm {family} rows {rows} width {width} offset {offset} weight {weighted} u8 {eight}"
            );
            trials.push(Trial::new(name, tables, &[(-6.0, 6.0)], if eight { 1.0 } else { 12.0 }));
        }
    }
    trials
}

fn rotations() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (family, half) in FAMILIES {
        for rotary in [Rotary::Fused, Rotary::Pairs, Rotary::Exchanged, Rotary::Negated] {
            for (rows, heads, eight) in [(1usize, 4usize, false), (7, 1, false), (7, 4, false), (7, 1, true)]
            {
                if half && eight {
                    continue;
                }
                let d = 32;
                let mut tables = Tables::new("trial", rows as u64);
                let x = tables.input(
                    "x",
                    SW_ROLE_HIDDEN,
                    &[rows as u64, (heads * d) as u64],
                    store(half, -4.0, 5.0),
                );
                let unit = store(half, -1.0, 1.0);
                let cos = tables.input("cos", SW_ROLE_ROTARY_COS, &[rows as u64, d as u64 / 2], unit);
                let sin = tables.input("sin", SW_ROLE_ROTARY_SIN, &[rows as u64, d as u64 / 2], unit);
                let to = if eight { over8(-7.0, 7.0) } else { store(half, -7.0, 7.0) };
                let y = tables.node(
                    "y",
                    SW_OP_ROTATE,
                    &[x, cos, sin],
                    (&[rows as u64, (heads * d) as u64], to),
                    vec![Attribute::Integer("head_dim", d as i64)],
                );
                tables.output("y", SW_ROLE_HIDDEN, y);
                let name = format!("rotate {family} {rotary:?} rows {rows} heads {heads} u8 {eight}");
                let (ranges, steps) =
                    ([(-4.0, 5.0), (-1.0, 1.0), (-1.0, 1.0)], if eight { 1.0 } else { 4.0 });
                let variants = Variants { rotary, ..Variants::default() };
                trials.push(Trial::new(name, tables, &ranges, steps).with(variants));
            }
        }
    }
    trials
}

fn matrix_products() -> Vec<Trial> {
    let mut trials = Vec::new();
    let all = [Product::FullyConnected, Product::Convolution, Product::MatMul];
    for (family, half) in FAMILIES {
        for (kind, dtype) in [
            ("i8", SW_DTYPE_I8),
            ("i4", SW_DTYPE_I4),
            ("i2", SW_DTYPE_I2),
            ("i8 whole", SW_DTYPE_I8),
            ("i4 whole", SW_DTYPE_I4),
            ("f16", SW_DTYPE_F16),
            ("blocks", SW_DTYPE_I4),
        ] {
            for product in all {
                for rows in [1u64, 7] {
                    let (inputs, outputs) = (128u64, 96u64);
                    let mut random = Random(5);
                    let count = inputs * outputs;
                    let weight = match kind {
                        "f16" if half => Weight::encoded(
                            "w",
                            &[outputs, inputs],
                            TableEncoding::F16,
                            &random.values(count, -0.2, 0.2),
                        ),
                        "f16" => continue,
                        "blocks" if !half => {
                            let stored: Vec<i32> = (0..count).map(|_| random.integer(-7, 7)).collect();
                            let scales: Vec<f32> = (0..outputs * inputs / 32)
                                .map(|_| half::f16::from_f32(0.002 * random.integer(1, 16) as f32).to_f32())
                                .collect();
                            let kind = (SW_QUANTISATION_PER_BLOCK, 32);
                            integers("w", &[outputs, inputs], &stored, dtype, kind, &scales, 0)
                        }
                        "blocks" => continue,
                        "i8 whole" | "i4 whole" if !half => {
                            let limit = if dtype == SW_DTYPE_I8 { 127 } else { 7 };
                            let stored: Vec<i32> =
                                (0..count).map(|_| random.integer(-limit, limit)).collect();
                            let (kind, scale) = ((SW_QUANTISATION_PER_TENSOR, 0), 0.2 / limit as f32);
                            integers("w", &[outputs, inputs], &stored, dtype, kind, &[scale], 0)
                        }
                        "i8 whole" | "i4 whole" => continue,
                        _ => random_matrix("w", [outputs, inputs], dtype, &mut random),
                    };
                    let mut tables = Tables::new("trial", rows);
                    let x = tables.input("x", SW_ROLE_HIDDEN, &[rows, inputs], store(half, -3.0, 2.0));
                    let y = tables.linear("y", x, weight, store(half, -8.0, 8.0));
                    tables.output("y", SW_ROLE_HIDDEN, y);
                    let name = format!("linear {family} {kind} {product:?} rows {rows}");
                    // The library rounds ternary products more coarsely.
                    let steps = if kind == "i2" { 24.0 } else { 8.0 };
                    let variants = Variants { product, ..Variants::default() };
                    trials.push(Trial::new(name, tables, &[(-3.0, 2.0)], steps).with(variants));
                }
            }
        }
    }
    // Products in blocks of outputs and rows, with a batch, and with eight bits in and out.
    for (name, widest, tallest, shape, eight) in [
        ("cut", 40, 1 << 20, &[7u64, 128][..], false),
        ("cut both ways", 40, 3, &[7, 128], false),
        ("batch", 1 << 20, 1 << 20, &[2, 3, 128], false),
        ("u8", 1 << 20, 1 << 20, &[7, 128], true),
    ] {
        let weight = random_matrix("w", [96, 128], SW_DTYPE_I4, &mut Random(6));
        let mut tables = Tables::new("trial", shape[0]);
        let (from, to) = match eight {
            true => (over8(-3.0, 2.0), over8(-8.0, 8.0)),
            false => (over(-3.0, 2.0), over(-8.0, 8.0)),
        };
        let x = tables.input("x", SW_ROLE_HIDDEN, shape, from);
        let y = tables.linear("y", x, weight, to);
        tables.output("y", SW_ROLE_HIDDEN, y);
        let variants = Variants { widest, tallest, ..Variants::default() };
        let steps = if eight { 1.0 } else { 8.0 };
        trials.push(Trial::new(format!("linear {name}"), tables, &[(-3.0, 2.0)], steps).with(variants));
    }
    trials
}

fn products_of_activations() -> Vec<Trial> {
    let mut trials = Vec::new();
    // For two operands of 16 bits, the products of their low bytes are not summed.
    for (name, second, half, steps) in [
        ("a16 a16", over(-2.0, 3.0), false, 24.0),
        ("a16 u8", over8(-2.0, 3.0), false, 8.0),
        ("a16 u8 middle", TableEncoding::integers(SW_DTYPE_U8, 3.0 / 127.0, 128), false, 8.0),
        ("a16 u8 off", TableEncoding::integers(SW_DTYPE_U8, 3.0 / 127.0, 127), false, 8.0),
        ("f16", TableEncoding::F16, true, 60.0),
    ] {
        for transposed in [true, false] {
            for (heads, kv, rows) in [(8u64, 1u64, 1u64), (8, 1, 7), (2, 2, 7), (1, 1, 7)] {
                let (keys, d) = (40u64, 64u64);
                let tail = if transposed { [keys, d] } else { [d, keys] };
                let mut tables = Tables::new("trial", rows);
                let a = tables.input("a", SW_ROLE_HIDDEN, &[1, heads, rows, d], store(half, -3.0, 3.0));
                let b = tables.input("b", SW_ROLE_HIDDEN, &[1, kv, tail[0], tail[1]], second);
                let y = tables.mat_mul("y", a, b, transposed, store(half, -60.0, 60.0));
                tables.output("y", SW_ROLE_HIDDEN, y);
                let name =
                    format!("mat-mul {name} heads {heads} by {kv} rows {rows} transposed {transposed}");
                trials.push(Trial::new(name, tables, &[(-3.0, 3.0), (-2.0, 3.0)], steps));
            }
        }
    }
    trials
}

fn binaries() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (family, half) in FAMILIES {
        for (name, op) in [
            ("add", SW_OP_ADD),
            ("sub", SW_OP_SUB),
            ("mul", SW_OP_MUL),
            ("div", SW_OP_DIV),
            ("max", SW_OP_MAX),
            ("min", SW_OP_MIN),
        ] {
            let s = |low, high| store(half, low, high);
            let to = if op == SW_OP_MUL { s(-12.0, 12.0) } else { s(-8.0, 8.0) };
            // The extents, and which operand is a constant.
            for (left, right, constant) in [
                (&[5u64, 96][..], &[5u64, 96][..], None),
                (&[2, 5, 96], &[5, 96], None),
                (&[2, 5, 96], &[5, 1], None),
                (&[5, 96], &[96], Some(1)),
                (&[5, 96], &[1], Some(1)),
                (&[1], &[5, 96], Some(0)),
            ] {
                let mut tables = Tables::new("trial", 5);
                let mut operand =
                    |name: &str, shape: &[u64], range: (f32, f32), is_constant: bool| match is_constant {
                        true => {
                            let values = Random(9).values(elements(shape), range.0.into(), range.1.into());
                            tables.constant(Weight::encoded(
                                name,
                                shape,
                                s(range.0.min(0.0), range.1),
                                &values,
                            ))
                        }
                        false => tables.input(name, SW_ROLE_HIDDEN, shape, s(range.0.min(0.0), range.1)),
                    };
                let a = operand("a", left, (-3.0, 3.0), constant == Some(0));
                let b = operand("b", right, (1.0, 4.0), constant == Some(1));
                let y = tables.binary("y", op, a, b, to);
                tables.output("y", SW_ROLE_HIDDEN, y);
                let ranges: &[(f64, f64)] = match constant {
                    None => &[(-3.0, 3.0), (1.0, 4.0)],
                    Some(0) => &[(1.0, 4.0)],
                    Some(_) => &[(-3.0, 3.0)],
                };
                let name = format!("{name} {family} {left:?} {right:?} constant {constant:?}");
                trials.push(Trial::new(name, tables, ranges, if op == SW_OP_DIV { 8.0 } else { 3.0 }));
            }
        }
    }
    trials
}

fn movements() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (name, s) in [("u16", over(-3.0, 3.0)), ("u8", over8(-3.0, 3.0)), ("f16", TableEncoding::F16)] {
        let mut add = |what: &str, shapes: &[&[u64]], build: fn(&mut Tables, &[u32]) -> u32| {
            let mut tables = Tables::new("trial", 5);
            let inputs: Vec<u32> = shapes
                .iter()
                .enumerate()
                .map(|(index, shape)| tables.input(&format!("x{index}"), SW_ROLE_HIDDEN, shape, s))
                .collect();
            let y = build(&mut tables, &inputs);
            tables.output("y", SW_ROLE_HIDDEN, y);
            trials.push(Trial::new(format!("{what} {name}"), tables, &vec![(-3.0, 3.0); shapes.len()], 0.1));
        };
        add("reshape", &[&[6, 32]], |t, x| t.reshape("y", x[0], &[2, 3, 4, 8]));
        add("reshape to rank 5", &[&[6, 32]], |t, x| t.reshape("y", x[0], &[2, 3, 2, 2, 8]));
        add("transpose", &[&[6, 4, 8]], |t, x| t.transpose("y", x[0], &[1, 0, 2]));
        add("transpose of rank 4", &[&[2, 3, 4, 8]], |t, x| t.transpose("y", x[0], &[1, 2, 0, 3]));
        add("transpose of a matrix", &[&[6, 32]], |t, x| t.transpose("y", x[0], &[1, 0]));
        add("slice of columns", &[&[6, 32]], |t, x| t.slice("y", x[0], 1, 5, 21));
        add("slice of layers", &[&[4, 3, 32]], |t, x| t.slice("y", x[0], 0, 2, 3));
        add("concat of rows", &[&[6, 32], &[2, 32]], |t, x| t.concat("y", x, 0));
        add("concat of columns", &[&[6, 32], &[6, 8]], |t, x| t.concat("y", x, 1));
        // An input that is an output, an unread input, and a result that is two outputs and is read
        // again.
        add("input as output", &[&[6, 32]], |_, x| x[0]);
        add("unread input", &[&[6, 32], &[6, 32]], |t, x| t.slice("y", x[0], 1, 0, 16));
        let mut tables = Tables::new("trial", 6);
        let x = tables.input("x", SW_ROLE_HIDDEN, &[6, 32], s);
        let y = tables.slice("y", x, 1, 0, 16);
        let z = tables.slice("z", y, 1, 0, 8);
        for (name, tensor) in [("y", y), ("again", y), ("z", z)] {
            tables.output(name, SW_ROLE_HIDDEN, tensor);
        }
        trials.push(Trial::new(format!("output read inside {name}"), tables, &[(-3.0, 3.0)], 0.1));
    }
    trials
}

fn conversions() -> Vec<Trial> {
    let stores = [
        ("u16", over(-3.0, 4.0)),
        ("other u16", over(-1.0, 1.5)),
        ("u8", over8(-3.0, 3.0)),
        ("other u8", over8(-2.0, 3.5)),
        ("f16", TableEncoding::F16),
        ("f32", TableEncoding::F32),
    ];
    let mut trials = Vec::new();
    for (from_name, from) in stores {
        for (to_name, to) in stores {
            if from_name == to_name {
                continue;
            }
            let name = format!("convert {from_name} to {to_name}");
            let steps = if to == TableEncoding::F32 { 1100.0 } else { 1.01 };
            trials.push(single(name, SW_OP_CONVERT, &[5, 96], (from, (-3.0, 3.0)), to, vec![], steps));
        }
    }
    trials
}

/// Creates trials of sums and products before outputs, in every form of leaving. Operands have the
/// result's extents, one row, or one value.
fn results_in_blocks() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (family, half) in FAMILIES {
        for leaving in [Leaving::Whole, Leaving::Rows, Leaving::Columns] {
            for (what, second) in [("whole", &[9u64, 600][..]), ("one row", &[1, 600]), ("one value", &[1])] {
                let from = store(half, -3.0, 4.0);
                let mut tables = Tables::new("trial", 9);
                let a = tables.input("a", SW_ROLE_HIDDEN, &[9, 600], from);
                let b = tables.input("b", SW_ROLE_HIDDEN, second, from);
                let y = tables.binary("y", SW_OP_ADD, a, b, store(half, -6.0, 8.0));
                tables.output("y", SW_ROLE_HIDDEN, y);
                let name = format!("leaving {family} {leaving:?} with {what}");
                let variants = Variants { leaving, ..Variants::default() };
                trials.push(Trial::new(name, tables, &[(-3.0, 4.0); 2], 3.0).with(variants));
            }
        }
    }
    trials
}

/// Runs trials and reports the failures of all of them at once.
fn examine(trials: &[Trial]) {
    let Some(device) = device(69) else { return };
    let mut wrong = Vec::new();
    for trial in trials {
        match trial.difference(&device) {
            Ok(difference) => {
                println!("{}: {difference:.2} of {} steps", trial.name, trial.steps);
                if difference > trial.steps {
                    wrong.push(format!("{}: {difference:.2} steps, {} expected", trial.name, trial.steps));
                }
            }
            Err(reason) => {
                println!("{}: {reason}", trial.name);
                wrong.push(format!("{}: {reason}", trial.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn values_one_by_one() {
    examine(&pointwise());
}

#[test]
fn values_along_rows() {
    examine(&along_rows());
}

#[test]
fn clamps_and_convolutions() {
    examine(&of_towers());
}

#[test]
fn norms_of_rows_and_heads() {
    examine(&norms());
}

/// Creates trials of a residual stream of halves next to integers: a norm of it, then a product of
/// integers.
fn norms_before_products() -> Vec<Trial> {
    let mut trials = Vec::new();
    for rows in [1, 15, 16, 17, 32] {
        for product in [Product::FullyConnected, Product::Convolution, Product::MatMul] {
            let mut random = Random(rows);
            let mut tables = Tables::new("trial", rows);
            let x = tables.input("x", SW_ROLE_HIDDEN, &[rows, 256], TableEncoding::F16);
            let gain = Weight::encoded("gain", &[256], TableEncoding::F16, &random.values(256, 0.5, 1.5));
            let norm = tables.norm("norm", x, Some(gain), 256, TableEncoding::F16);
            let integers = tables.unary("integers", SW_OP_CONVERT, norm, over(-4.0, 4.0), vec![]);
            let matrix = random_matrix("w", [64, 256], SW_DTYPE_I8, &mut random);
            let y = tables.linear("y", integers, matrix, over(-8.0, 8.0));
            tables.output("y", SW_ROLE_HIDDEN, y);
            let trial = Trial::new(format!("{product:?} of {rows} rows"), tables, &[(-3.0, 3.0)], 8.0);
            trials.push(trial.with(Variants { product, ..Variants::default() }));
        }
    }
    trials
}

#[test]
fn norms_of_halves_before_products_of_integers() {
    examine(&norms_before_products());
}

#[test]
fn rotary_embedding_by_tables() {
    examine(&rotations());
}

#[test]
fn products_with_matrices() {
    examine(&matrix_products());
}

#[test]
fn products_of_two_activations() {
    examine(&products_of_activations());
}

#[test]
fn sums_and_products_value_by_value() {
    examine(&binaries());
}

#[test]
fn results_that_leave_in_blocks() {
    examine(&results_in_blocks());
}

#[test]
fn values_that_move() {
    examine(&movements());
}

#[test]
fn values_in_another_encoding() {
    examine(&conversions());
}
