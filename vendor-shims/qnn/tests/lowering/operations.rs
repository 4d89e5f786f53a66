//! Every supported operation, compiled and run by the vendor's library, compared with the
//! contract's definition in f64.

use std::f64::consts::PI;
use std::panic::{AssertUnwindSafe, catch_unwind};

use shardwright_shim_abi::raw::*;
use shardwright_shim_qnn::lower::{Leaving, Product, Rotary, Variants};

use super::shapes::lowered;
use super::tables::{Attribute, Random, Scales, Store, Tables, Weight};
use super::vendor::{device, run};

type OfRow = Box<dyn Fn(&[f64]) -> Vec<f64>>;
type Meaning = Box<dyn Fn(&[Vec<f64>]) -> Vec<Vec<f64>>>;

/// An entry of a few operations, with its expected result.
struct Trial {
    name: String,
    tables: Tables,
    variants: Variants,
    /// Range of each input's values.
    ranges: Vec<(f64, f64)>,
    meaning: Meaning,
    /// Tolerance in steps of an output's encoding.
    steps: f64,
}

fn elements(shape: &[u64]) -> u64 {
    shape.iter().product()
}

impl Trial {
    /// The largest difference in steps of the output.
    fn difference(&self, soc: u32) -> Option<Result<f64, String>> {
        let device = device("operations", soc)?;
        Some(self.on(&device))
    }

    fn on(&self, device: &std::sync::Arc<shardwright_shim_qnn::session::Device>) -> Result<f64, String> {
        let lowered = catch_unwind(AssertUnwindSafe(|| lowered(&self.tables, &self.variants)))
            .map_err(|_| "not taken".to_owned())?;
        let mut random = Random(11);
        let mut bytes = Vec::new();
        let mut values = Vec::new();
        for (port, (low, high)) in self.tables.inputs.iter().zip(&self.ranges) {
            let (shape, store) = (self.tables.shape(port.tensor), self.tables.store(port.tensor));
            let stored = store.encode(&random.values(elements(&shape), *low, *high));
            values.push(store.decode(&stored));
            bytes.push(stored);
        }
        let outputs = run(device, &lowered.graph, &bytes).map_err(|error| error.to_string())?;
        let expected = (self.meaning)(&values);
        let mut worst = 0.0f64;
        for ((port, bytes), expected) in self.tables.outputs.iter().zip(&outputs).zip(&expected) {
            let store = self.tables.store(port.tensor);
            let got = store.decode(bytes);
            assert_eq!(got.len(), expected.len(), "{}", self.name);
            // Values out of range are expected at the end of the range.
            let nearest = store.decode(&store.encode(expected));
            for ((got, expected), nearest) in got.iter().zip(expected).zip(nearest) {
                let scale = if store == Store::F16 || store == Store::F32 {
                    store.step() * expected.abs().max(1.0)
                } else {
                    store.step()
                };
                let difference = (got - expected).abs().min((got - nearest).abs()) / scale;
                worst = worst.max(if difference.is_nan() { f64::INFINITY } else { difference });
            }
        }
        Ok(worst)
    }
}

const FAMILIES: [(&str, bool); 2] = [("a16", false), ("f16", true)];

fn store(half: bool, low: f32, high: f32) -> Store {
    if half { Store::F16 } else { Store::over(low, high) }
}

/// One input, one operation, one output.
#[allow(clippy::too_many_arguments, reason = "a table of cases")]
fn single(
    name: &str,
    op: u32,
    shape: &[u64],
    (from, range): (Store, (f64, f64)),
    to: Store,
    attributes: Vec<Attribute>,
    steps: f64,
    meaning: impl Fn(&[f64]) -> Vec<f64> + 'static,
) -> Trial {
    let mut tables = Tables::new("trial", shape[0]);
    let x = tables.input("x", SW_ROLE_HIDDEN, shape, from);
    let y = tables.unary("y", op, x, to, attributes);
    tables.output("y", SW_ROLE_HIDDEN, y);
    Trial {
        name: name.to_owned(),
        tables,
        variants: Variants::default(),
        ranges: vec![range],
        meaning: Box::new(move |inputs| vec![meaning(&inputs[0])]),
        steps,
    }
}

fn each(f: impl Fn(f64) -> f64 + 'static) -> impl Fn(&[f64]) -> Vec<f64> + 'static {
    move |x| x.iter().map(|x| f(*x)).collect()
}

fn rows(width: usize, f: impl Fn(&[f64]) -> Vec<f64> + 'static) -> impl Fn(&[f64]) -> Vec<f64> + 'static {
    move |x| x.chunks(width).flat_map(&f).collect()
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
}

fn rms(x: &[f64], gamma: &[f64]) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + 1e-6).sqrt();
    x.iter().zip(gamma).map(|(x, g)| x * scale * g).collect()
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let largest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = x.iter().map(|x| (x - largest).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|power| power / sum).collect()
}

/// `[batch, m, k] · [batch, n, k]ᵀ`, the second batch repeated.
fn products(a: &[f64], b: &[f64], [m, n, k]: [usize; 3], transposed: bool) -> Vec<f64> {
    let mut out = Vec::new();
    for (batch, a) in a.chunks(m * k).enumerate() {
        let second = b.len() / (n * k);
        let b = &b[batch % second * n * k..][..n * k];
        for row in 0..m {
            for column in 0..n {
                let at =
                    |inner: usize| if transposed { b[column * k + inner] } else { b[inner * n + column] };
                out.push((0..k).map(|inner| a[row * k + inner] * at(inner)).sum());
            }
        }
    }
    out
}

fn pointwise() -> Vec<Trial> {
    let mut trials = Vec::new();
    let value = |value: f64| vec![Attribute::Float("value", value)];
    for (family, half) in FAMILIES {
        let shape: &[u64] = &[5, 96];
        let s = |low, high| store(half, low, high);
        let mut add = |name: &str,
                       op,
                       from: (Store, (f64, f64)),
                       to,
                       attributes,
                       steps,
                       f: fn(f64) -> f64| {
            trials.push(single(&format!("{name} {family}"), op, shape, from, to, attributes, steps, each(f)));
        };
        let wide = (s(-6.0, 6.0), (-6.0, 6.0));
        let positive = (s(0.0, 6.0), (0.25, 6.0));
        add("gelu", SW_OP_GELU, wide, s(-0.2, 6.0), vec![], 30.0, gelu);
        add("silu", SW_OP_SILU, wide, s(-0.3, 6.0), vec![], 8.0, |x| x / (1.0 + (-x).exp()));
        add("tanh", SW_OP_TANH, wide, s(-1.0, 1.0), vec![], 8.0, f64::tanh);
        add("exp", SW_OP_EXP, (s(-6.0, 1.0), (-6.0, 1.0)), s(0.0, 3.0), vec![], 8.0, f64::exp);
        add("neg", SW_OP_NEG, wide, s(-6.0, 6.0), vec![], 2.0, |x| -x);
        if half {
            add("sqrt", SW_OP_SQRT, positive, s(0.0, 2.5), vec![], 8.0, f64::sqrt);
        }
        add("rsqrt", SW_OP_RSQRT, positive, s(0.0, 2.5), vec![], 16.0, |x| 1.0 / x.sqrt());
        add("reciprocal", SW_OP_RECIPROCAL, positive, s(0.0, 4.5), vec![], 16.0, |x| 1.0 / x);
        let cap = vec![Attribute::Float("cap", 4.0)];
        add("softcap", SW_OP_SOFTCAP, wide, s(-4.0, 4.0), cap, 8.0, |x| 4.0 * (x / 4.0).tanh());
        add("mul-scalar", SW_OP_MUL_SCALAR, wide, s(-5.0, 5.0), value(0.8), 2.0, |x| 0.8 * x);
        add("mul-scalar below", SW_OP_MUL_SCALAR, wide, s(-5.0, 5.0), value(-0.8), 2.0, |x| -0.8 * x);
        add("mul-scalar large", SW_OP_MUL_SCALAR, wide, s(-400.0, 400.0), value(64.0), 2.0, |x| 64.0 * x);
        add("add-scalar", SW_OP_ADD_SCALAR, wide, s(-4.0, 8.0), value(1.5), 2.0, |x| x + 1.5);
        add("add-scalar below", SW_OP_ADD_SCALAR, wide, s(-8.0, 4.0), value(-1.5), 2.0, |x| x - 1.5);
        add("max-scalar", SW_OP_MAX_SCALAR, wide, s(0.0, 6.0), value(0.5), 2.0, |x| x.max(0.5));
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
            let mut add = |name: &str, op, to, steps, f: OfRow| {
                trials.push(single(
                    &format!("{name} {family} rank {rank}"),
                    op,
                    shape,
                    wide,
                    to,
                    vec![],
                    steps,
                    rows(96, f),
                ));
            };
            add("softmax", SW_OP_SOFTMAX, s(0.0, 1.0), 8.0, Box::new(softmax));
            add(
                "l2-normalize",
                SW_OP_L2_NORMALIZE,
                s(-1.0, 1.0),
                8.0,
                Box::new(|x: &[f64]| {
                    let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt();
                    x.iter().map(|x| x / norm).collect()
                }),
            );
        }
        let shape: &[u64] = &[5, 96];
        let mut add = |name: &str, op, to, steps, f: fn(&[f64]) -> f64| {
            let mut trial = single(
                &format!("{name} {family}"),
                op,
                shape,
                wide,
                to,
                vec![],
                steps,
                rows(96, move |x| vec![f(x)]),
            );
            let y = trial.tables.outputs[0].tensor as usize;
            trial.tables.tensors[y].1 = vec![5, 1];
            trials.push(trial);
        };
        add("reduce-sum", SW_OP_REDUCE_SUM, s(-100.0, 100.0), 8.0, |x| x.iter().sum());
        add("reduce-mean", SW_OP_REDUCE_MEAN, s(-2.0, 2.0), 8.0, |x| x.iter().sum::<f64>() / x.len() as f64);
        add("reduce-max", SW_OP_REDUCE_MAX, s(-6.0, 6.0), 2.0, |x| {
            x.iter().copied().fold(f64::MIN, f64::max)
        });
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
            let weight = weighted.then(|| Weight::stored("gamma", &[width], store(half, -0.4, 1.5), &values));
            let gamma: Vec<f64> = match &weight {
                Some(weight) => weight.values.iter().map(|value| value + offset).collect(),
                None => vec![1.0; width as usize],
            };
            let to = if eight { Store::over8(-3.0, 3.0) } else { store(half, -6.0, 6.0) };
            let y = tables.norm("y", x, weight, width, to);
            tables.nodes[0].attributes[2] = Attribute::Float("weight_offset", offset);
            tables.output("y", SW_ROLE_HIDDEN, y);
            trials.push(Trial {
                name: format!(
                    "rms-norm {family} rows {rows} width {width} offset {offset} weight {weighted} u8 {eight}"
                ),
                tables,
                variants: Variants::default(),
                ranges: vec![(-6.0, 6.0)],
                meaning: Box::new(move |inputs| {
                    vec![inputs[0].chunks(width as usize).flat_map(|x| rms(x, &gamma)).collect()]
                }),
                steps: if eight { 1.0 } else { 12.0 },
            });
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
                let to = if eight { Store::over8(-7.0, 7.0) } else { store(half, -7.0, 7.0) };
                let y = tables.node(
                    "y",
                    SW_OP_ROTATE,
                    &[x, cos, sin],
                    (&[rows as u64, (heads * d) as u64], to),
                    vec![Attribute::Integer("head_dim", d as i64)],
                );
                tables.output("y", SW_ROLE_HIDDEN, y);
                trials.push(Trial {
                    name: format!("rotate {family} {rotary:?} rows {rows} heads {heads} u8 {eight}"),
                    tables,
                    variants: Variants { rotary, ..Variants::default() },
                    ranges: vec![(-4.0, 5.0), (-1.0, 1.0), (-1.0, 1.0)],
                    meaning: Box::new(move |inputs| {
                        let [x, cos, sin] = inputs else { panic!("three inputs") };
                        let mut out = x.clone();
                        for row in 0..rows {
                            for head in 0..heads {
                                for pair in 0..d / 2 {
                                    let at = (row * heads + head) * d + pair;
                                    let (a, b) = (x[at], x[at + d / 2]);
                                    let (c, s) = (cos[row * d / 2 + pair], sin[row * d / 2 + pair]);
                                    (out[at], out[at + d / 2]) = (a * c - b * s, b * c + a * s);
                                }
                            }
                        }
                        vec![out]
                    }),
                    steps: if eight { 1.0 } else { 4.0 },
                });
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
                        "f16" if half => Weight::stored(
                            "w",
                            &[outputs, inputs],
                            Store::F16,
                            &random.values(count, -0.2, 0.2),
                        ),
                        "f16" => continue,
                        "blocks" if !half => {
                            let stored: Vec<i32> = (0..count).map(|_| random.integer(-7, 7)).collect();
                            let scales = (0..outputs * inputs / 32)
                                .map(|_| half::f16::from_f32(0.002 * random.integer(1, 16) as f32).to_f32())
                                .collect();
                            Weight::integers(
                                "w",
                                &[outputs, inputs],
                                dtype,
                                &stored,
                                Scales::blocks(32, scales),
                            )
                        }
                        "blocks" => continue,
                        "i8 whole" | "i4 whole" if !half => {
                            let limit = if dtype == SW_DTYPE_I8 { 127 } else { 7 };
                            let stored: Vec<i32> =
                                (0..count).map(|_| random.integer(-limit, limit)).collect();
                            Weight::integers(
                                "w",
                                &[outputs, inputs],
                                dtype,
                                &stored,
                                Scales::per_tensor(0.2 / limit as f32),
                            )
                        }
                        "i8 whole" | "i4 whole" => continue,
                        _ => Weight::matrix("w", [outputs, inputs], dtype, &mut random),
                    };
                    let values = weight.values.clone();
                    let mut tables = Tables::new("trial", rows);
                    let x = tables.input("x", SW_ROLE_HIDDEN, &[rows, inputs], store(half, -3.0, 2.0));
                    let y = tables.linear("y", x, weight, store(half, -8.0, 8.0));
                    tables.output("y", SW_ROLE_HIDDEN, y);
                    trials.push(Trial {
                        name: format!("linear {family} {kind} {product:?} rows {rows}"),
                        tables,
                        variants: Variants { product, ..Variants::default() },
                        ranges: vec![(-3.0, 2.0)],
                        meaning: Box::new(move |arguments| {
                            vec![products(
                                &arguments[0],
                                &values,
                                [rows as usize, outputs as usize, inputs as usize],
                                true,
                            )]
                        }),
                        // Ternary products are rounded more coarsely inside.
                        steps: if kind == "i2" { 24.0 } else { 8.0 },
                    });
                }
            }
        }
    }
    // In blocks of outputs, with a batch, and of eight bits in and out.
    for (name, widest, shape, eight) in [
        ("cut", 40, &[7u64, 128][..], false),
        ("batch", 1 << 20, &[2, 3, 128], false),
        ("u8", 1 << 20, &[7, 128], true),
    ] {
        let weight = Weight::matrix("w", [96, 128], SW_DTYPE_I4, &mut Random(6));
        let values = weight.values.clone();
        let mut tables = Tables::new("trial", shape[0]);
        let (from, to) = match eight {
            true => (Store::over8(-3.0, 2.0), Store::over8(-8.0, 8.0)),
            false => (Store::over(-3.0, 2.0), Store::over(-8.0, 8.0)),
        };
        let x = tables.input("x", SW_ROLE_HIDDEN, shape, from);
        let y = tables.linear("y", x, weight, to);
        tables.output("y", SW_ROLE_HIDDEN, y);
        let count = (elements(shape) / 128) as usize;
        trials.push(Trial {
            name: format!("linear {name}"),
            tables,
            variants: Variants { widest, ..Variants::default() },
            ranges: vec![(-3.0, 2.0)],
            meaning: Box::new(move |arguments| {
                vec![products(&arguments[0], &values, [count, 96, 128], true)]
            }),
            steps: if eight { 1.0 } else { 8.0 },
        });
    }
    trials
}

fn products_of_activations() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (name, second, half) in [
        ("a16 a16", Store::over(-2.0, 3.0), false),
        ("a16 u8", Store::over8(-2.0, 3.0), false),
        ("a16 u8 middle", Store::U8(3.0 / 127.0, 128), false),
        ("a16 u8 off", Store::U8(3.0 / 127.0, 127), false),
        ("f16", Store::F16, true),
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
                trials.push(Trial {
                    name: format!("mat-mul {name} heads {heads} by {kv} rows {rows} transposed {transposed}"),
                    tables,
                    variants: Variants::default(),
                    ranges: vec![(-3.0, 3.0), (-2.0, 3.0)],
                    meaning: Box::new(move |arguments| {
                        vec![products(
                            &arguments[0],
                            &arguments[1],
                            [rows as usize, keys as usize, d as usize],
                            transposed,
                        )]
                    }),
                    // For two operands of 16 bits the products of their low bytes are not summed.
                    steps: match name {
                        "f16" => 60.0,
                        "a16 a16" => 24.0,
                        _ => 8.0,
                    },
                });
            }
        }
    }
    trials
}

fn binaries() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (family, half) in FAMILIES {
        for (name, op, f) in [
            ("add", SW_OP_ADD, (|a, b| a + b) as fn(f64, f64) -> f64),
            ("sub", SW_OP_SUB, |a, b| a - b),
            ("mul", SW_OP_MUL, |a, b| a * b),
            ("div", SW_OP_DIV, |a, b| a / b),
        ] {
            let s = |low, high| store(half, low, high);
            let to = if op == SW_OP_MUL { s(-12.0, 12.0) } else { s(-8.0, 8.0) };
            // Extents, and which operand is a constant.
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
                            let weight = Weight::stored(name, shape, s(range.0.min(0.0), range.1), &values);
                            let values = weight.values.clone();
                            (tables.constant(weight), Some(values))
                        }
                        false => {
                            (tables.input(name, SW_ROLE_HIDDEN, shape, s(range.0.min(0.0), range.1)), None)
                        }
                    };
                let (a, first) = operand("a", left, (-3.0, 3.0), constant == Some(0));
                let (b, second) = operand("b", right, (1.0, 4.0), constant == Some(1));
                let y = tables.binary("y", op, a, b, to);
                tables.output("y", SW_ROLE_HIDDEN, y);
                let shape = tables.shape(y);
                let ranges = match constant {
                    None => vec![(-3.0, 3.0), (1.0, 4.0)],
                    Some(0) => vec![(1.0, 4.0)],
                    Some(_) => vec![(-3.0, 3.0)],
                };
                let (left, right) = (left.to_vec(), right.to_vec());
                trials.push(Trial {
                    name: format!("{name} {family} {left:?} {right:?} constant {constant:?}"),
                    tables,
                    variants: Variants::default(),
                    ranges,
                    meaning: Box::new(move |arguments| {
                        let a = first.as_ref().unwrap_or(&arguments[0]);
                        let b = second.as_ref().unwrap_or_else(|| arguments.last().expect("an input"));
                        let at = |values: &[f64], from: &[u64], index: u64| {
                            let (mut rest, mut place, mut stride) = (index, 0, 1);
                            for (back, extent) in shape.iter().rev().enumerate() {
                                let own = from.len().checked_sub(back + 1).map_or(1, |axis| from[axis]);
                                if own > 1 {
                                    place += rest % extent * stride;
                                }
                                stride *= own;
                                rest /= extent;
                            }
                            values[place as usize]
                        };
                        vec![
                            (0..elements(&shape))
                                .map(|index| f(at(a, &left, index), at(b, &right, index)))
                                .collect(),
                        ]
                    }),
                    steps: if op == SW_OP_DIV { 8.0 } else { 3.0 },
                });
            }
        }
    }
    trials
}

fn movements() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (name, s) in [("u16", Store::over(-3.0, 3.0)), ("u8", Store::over8(-3.0, 3.0)), ("f16", Store::F16)] {
        let mut add = |what: &str,
                       shapes: &[&[u64]],
                       build: fn(&mut Tables, &[u32]) -> u32,
                       meaning: fn(&[Vec<f64>]) -> Vec<f64>| {
            let mut tables = Tables::new("trial", 5);
            let inputs: Vec<u32> = shapes
                .iter()
                .enumerate()
                .map(|(index, shape)| tables.input(&format!("x{index}"), SW_ROLE_HIDDEN, shape, s))
                .collect();
            let y = build(&mut tables, &inputs);
            tables.output("y", SW_ROLE_HIDDEN, y);
            trials.push(Trial {
                name: format!("{what} {name}"),
                tables,
                variants: Variants::default(),
                ranges: vec![(-3.0, 3.0); shapes.len()],
                meaning: Box::new(move |arguments| vec![meaning(arguments)]),
                steps: 0.1,
            });
        };
        add("reshape", &[&[6, 32]], |t, x| t.reshape("y", x[0], &[2, 3, 4, 8]), |x| x[0].clone());
        add(
            "reshape to rank 5",
            &[&[6, 32]],
            |t, x| t.reshape("y", x[0], &[2, 3, 2, 2, 8]),
            |x| x[0].clone(),
        );
        add(
            "transpose",
            &[&[6, 4, 8]],
            |t, x| t.transpose("y", x[0], &[1, 0, 2]),
            |x| {
                (0..4)
                    .flat_map(|b| (0..6).flat_map(move |a| (0..8).map(move |c| (a * 4 + b) * 8 + c)))
                    .map(|at| x[0][at])
                    .collect()
            },
        );
        add(
            "transpose of rank 4",
            &[&[2, 3, 4, 8]],
            |t, x| t.transpose("y", x[0], &[1, 2, 0, 3]),
            |x| {
                let at = |b: usize, c: usize, a: usize, d: usize| ((a * 3 + b) * 4 + c) * 8 + d;
                let mut out = Vec::new();
                for b in 0..3 {
                    for c in 0..4 {
                        for a in 0..2 {
                            out.extend((0..8).map(|d| x[0][at(b, c, a, d)]));
                        }
                    }
                }
                out
            },
        );
        add(
            "transpose of a matrix",
            &[&[6, 32]],
            |t, x| t.transpose("y", x[0], &[1, 0]),
            |x| (0..32).flat_map(|b| (0..6).map(move |a| a * 32 + b)).map(|at| x[0][at]).collect(),
        );
        add(
            "slice of columns",
            &[&[6, 32]],
            |t, x| t.slice("y", x[0], 1, 5, 21),
            |x| x[0].chunks(32).flat_map(|row| row[5..21].to_vec()).collect(),
        );
        add(
            "slice of layers",
            &[&[4, 3, 32]],
            |t, x| t.slice("y", x[0], 0, 2, 3),
            |x| x[0][192..288].to_vec(),
        );
        add("concat of rows", &[&[6, 32], &[2, 32]], |t, x| t.concat("y", x, 0), |x| x.concat());
        add(
            "concat of columns",
            &[&[6, 32], &[6, 8]],
            |t, x| t.concat("y", x, 1),
            |x| x[0].chunks(32).zip(x[1].chunks(8)).flat_map(|(a, b)| [a, b].concat()).collect(),
        );
        // Special ports: an input that is an output, one that is never read, a result that is two
        // outputs and is read again.
        add("input as output", &[&[6, 32]], |_, x| x[0], |x| x[0].clone());
        add(
            "unread input",
            &[&[6, 32], &[6, 32]],
            |t, x| t.slice("y", x[0], 1, 0, 16),
            |x| x[0].chunks(32).flat_map(|row| row[..16].to_vec()).collect(),
        );
        let mut tables = Tables::new("trial", 6);
        let x = tables.input("x", SW_ROLE_HIDDEN, &[6, 32], s);
        let y = tables.slice("y", x, 1, 0, 16);
        let z = tables.slice("z", y, 1, 0, 8);
        for (name, tensor) in [("y", y), ("again", y), ("z", z)] {
            tables.output(name, SW_ROLE_HIDDEN, tensor);
        }
        trials.push(Trial {
            name: format!("output read inside {name}"),
            tables,
            variants: Variants::default(),
            ranges: vec![(-3.0, 3.0)],
            meaning: Box::new(|arguments| {
                let cut = |width: usize| {
                    arguments[0].chunks(32).flat_map(|row| row[..width].to_vec()).collect::<Vec<_>>()
                };
                vec![cut(16), cut(16), cut(8)]
            }),
            steps: 0.1,
        });
    }
    trials
}

fn conversions() -> Vec<Trial> {
    let stores = [
        ("u16", Store::over(-3.0, 4.0)),
        ("other u16", Store::over(-1.0, 1.5)),
        ("u8", Store::over8(-3.0, 3.0)),
        ("other u8", Store::over8(-2.0, 3.5)),
        ("f16", Store::F16),
        ("f32", Store::F32),
    ];
    let mut trials = Vec::new();
    for (from_name, from) in stores {
        for (to_name, to) in stores {
            if from_name == to_name {
                continue;
            }
            let name = format!("convert {from_name} to {to_name}");
            let steps = if to == Store::F32 { 1100.0 } else { 1.01 };
            trials.push(single(
                &name,
                SW_OP_CONVERT,
                &[5, 96],
                (from, (-3.0, 3.0)),
                to,
                vec![],
                steps,
                each(|x| x),
            ));
        }
    }
    trials
}

/// Sums and products at outputs, in every form of `leaving`: operands of the result's extents, of
/// one row, of one value.
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
                trials.push(Trial {
                    name: format!("leaving {family} {leaving:?} with {what}"),
                    tables,
                    variants: Variants { leaving, ..Variants::default() },
                    ranges: vec![(-3.0, 4.0); 2],
                    meaning: Box::new(|arguments| {
                        let [a, b] = arguments else { panic!("two inputs") };
                        vec![a.iter().enumerate().map(|(at, value)| value + b[at % b.len()]).collect()]
                    }),
                    steps: 3.0,
                });
            }
        }
    }
    trials
}

/// Runs trials and reports all failures at once.
fn examine(test: &str, soc: u32, trials: Vec<Trial>) {
    let mut wrong = Vec::new();
    for trial in &trials {
        let Some(result) = trial.difference(soc) else { return };
        match result {
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
    assert!(wrong.is_empty(), "{test} on chip {soc}:\n{}", wrong.join("\n"));
}

#[test]
fn values_one_by_one() {
    examine("values_one_by_one", 69, pointwise());
}

#[test]
fn values_along_rows() {
    examine("values_along_rows", 69, along_rows());
}

#[test]
fn norms_of_rows_and_heads() {
    examine("norms_of_rows_and_heads", 69, norms());
}

#[test]
fn rotary_embedding_by_tables() {
    examine("rotary_embedding_by_tables", 69, rotations());
}

#[test]
fn products_with_matrices() {
    examine("products_with_matrices", 69, matrix_products());
}

#[test]
fn products_of_two_activations() {
    examine("products_of_two_activations", 69, products_of_activations());
}

#[test]
fn sums_and_products_value_by_value() {
    examine("sums_and_products_value_by_value", 69, binaries());
}

#[test]
fn results_that_leave_in_blocks() {
    examine("results_that_leave_in_blocks", 69, results_in_blocks());
}

#[test]
fn values_that_move() {
    examine("values_that_move", 69, movements());
}

#[test]
fn values_in_another_encoding() {
    examine("values_in_another_encoding", 69, conversions());
}
