//! Runs towers for pictures and sounds through the contract. Results are compared with the plain
//! evaluator, and bit for bit with other numbers of rows, threads and instruction sets.

use std::collections::HashMap;

use crate::support::ranges::{encode_all, observe};
use crate::support::towers::{Matrices, audio, vision};
use crate::support::*;
use shardwright_shim_abi::raw::*;
use shardwright_shim_cpu::artefact::Artefact;
use shardwright_shim_cpu::kernels::elementwise::Unary;
use shardwright_shim_cpu::program::{Step, step};
use shardwright_shim_cpu::simd::Level;

/// Returns the bindings of a run of `rows` valid rows. All values beyond these rows are `beyond`,
/// except where the contract specifies them.
fn inputs(b: &Builder, rows: usize, beyond: f32) -> HashMap<String, Bound> {
    let all = b.rows as usize;
    let bind = |port: &Port| {
        let tensor = &b.tensors[port.tensor as usize];
        let count = tensor.shape.iter().product::<u64>() as usize;
        let valid = count / all * rows;
        let whole = |value: &dyn Fn(usize) -> i32, after| {
            Bound::I32((0..all).map(|row| if row < rows { value(row) } else { after }).collect())
        };
        let value = match (port.role, port.name.as_str()) {
            (SW_ROLE_POSITIONS, _) => Bound::I32((0..all as i32).collect()),
            (_, "columns") => whole(&|row| row as i32 % 4, -1),
            (_, "rows") => whole(&|row| row as i32 / 4, -1),
            (SW_ROLE_VALID, _) => {
                Bound::F32((0..count).map(|at| if at < valid { 1.0 } else { 0.0 }).collect())
            }
            _ => {
                let mut data = values(valid, u64::from(port.tensor) + 50, 1.0);
                data.resize(count, beyond);
                Bound::F32(data)
            }
        };
        (port.name.clone(), value)
    };
    b.inputs.iter().map(bind).collect()
}

fn compile(host: &Host, builder: &Builder) -> Region {
    let entry = builder.build();
    for (node, (verdict, reason)) in host.check(entry).expect("checked").iter().enumerate() {
        assert_eq!(*verdict, SW_VERDICT_TAKEN, "node {node}: {reason}");
    }
    let estimate = host.estimate(entry).expect("estimated").expect("an estimate");
    assert!(estimate.uncosted.is_empty(), "{:?}", estimate.uncosted);
    host.compile(&[entry], &[]).expect("compiled").artefact
}

/// Returns the number of values of an output that the valid rows determine.
fn valid_values(b: &Builder, name: &str, rows: usize) -> usize {
    let port = b.outputs.iter().find(|port| port.name == name).expect("an output");
    let shape = b.shape(port.tensor);
    let count = shape.iter().product::<u64>() as usize;
    (shape[0] as usize * rows).div_ceil(b.rows as usize) * (count / shape[0] as usize)
}

fn agrees(builder: &Builder, rows: &[usize], tolerance: f64, what: &str) {
    let host = open(&[("threads", "2")]).expect("opened");
    let artefact = compile(&host, builder);
    for &rows in rows {
        let exact = evaluate(builder, rows, &inputs(builder, rows, 0.0));
        let mut first: Option<HashMap<String, Vec<u32>>> = None;
        for level in Level::available() {
            for (threads, beyond) in [("1", 0.0), ("2", f32::NAN), ("3", 1e30)] {
                let options = [("simd", level.name()), ("threads", threads)];
                let mut loaded = host.load(&artefact, &options).expect("loaded");
                let mut bound = inputs(builder, rows, beyond);
                loaded.run(&builder.name, rows, &mut bound).expect("ran");
                let mut all = HashMap::new();
                for (name, exact) in &exact {
                    let count = valid_values(builder, name, rows);
                    let got = &bound[name].f32()[..count];
                    let size = exact.data[..count].iter().fold(1e-3f64, |size, v| size.max(v.abs()));
                    for (at, (got, exact)) in got.iter().zip(&exact.data).enumerate() {
                        let error = (f64::from(*got) - exact).abs();
                        assert!(error <= tolerance * size, "{what}, {name}[{at}] is {got}, exactly {exact}");
                    }
                    all.insert(name.clone(), bits(got));
                }
                let first = first.get_or_insert_with(|| all.clone());
                assert_eq!(all, *first, "{what} of {rows} rows, {threads} threads at {}", level.name());
            }
        }
    }
}

#[test]
fn a_picture_of_any_number_of_patches_gives_its_rows() {
    for matrices in [Matrices::Float, Matrices::Bytes, Matrices::Dynamic] {
        // One step of a quantised row is a hundredth of its largest value.
        let tolerance = if matrices == Matrices::Dynamic { 2e-2 } else { 3e-5 };
        for decomposed in [false, true] {
            let what = format!("{matrices:?}, decomposed: {decomposed}");
            agrees(&vision(18, matrices, decomposed), &[18, 15, 3], tolerance, &what);
        }
    }
}

#[test]
fn a_clip_of_any_number_of_frames_gives_its_rows() {
    for matrices in [Matrices::Float, Matrices::Bytes] {
        for decomposed in [false, true] {
            let what = format!("{matrices:?}, decomposed: {decomposed}");
            agrees(&audio(9, matrices, decomposed), &[9, 5, 1], 3e-5, &what);
        }
    }
}

/// A clamp after a map becomes part of its step.
#[test]
fn clamped_maps_are_single_steps() {
    let host = open(&[]).expect("opened");
    for (matrices, dynamic) in [(Matrices::Float, false), (Matrices::Dynamic, true)] {
        let artefact = compile(&host, &vision(6, matrices, false));
        let program = Artefact::read(artefact.bytes()).expect("readable").program;
        let count =
            |is: &dyn Fn(&Step) -> bool| program.entries[0].steps.iter().filter(|step| is(step)).count();
        let held = count(&|step| match step {
            Step::Linear(step) => !dynamic && step.bounds.is_some(),
            Step::DynamicLinear(step) => dynamic && step.maps.iter().all(|map| map.bounds.is_some()),
            _ => false,
        });
        let is_clamp = |step: &step::Unary| matches!(step.kind, Unary::Clamp(..));
        let clamps = count(&|step| matches!(step, Step::Unary(step) if is_clamp(step)));
        // There are seven maps in each of two layers, with the clamps of their inputs.
        assert_eq!((held, clamps), (14, 14), "{matrices:?}");
    }
}

/// A single row has no rows after it, and a mean of all rows is one row.
#[test]
fn the_smallest_towers_give_their_rows() {
    agrees(&audio(1, Matrices::Float, false), &[1], 3e-5, "one row");
    agrees(&vision(3, Matrices::Float, false), &[3], 3e-5, "one mean");
}

/// If a group is only partly valid, its other rows count as zeros.
#[test]
fn a_mean_of_some_valid_rows_sees_only_those() {
    for decomposed in [false, true] {
        let b = vision(6, Matrices::Float, decomposed);
        let host = open(&[]).expect("opened");
        let artefact = compile(&host, &b);
        let mut loaded = host.load(&artefact, &[]).expect("loaded");
        let run = |loaded: &mut Loaded<'_>, beyond| {
            let mut bound = inputs(&b, 4, beyond);
            loaded.run(&b.name, 4, &mut bound).expect("ran");
            bits(&bound["soft"].f32()[..valid_values(&b, "soft", 4)])
        };
        let expected = run(&mut loaded, 0.0);
        assert!(expected.iter().all(|value| f32::from_bits(*value).is_finite()));
        assert_eq!(run(&mut loaded, f32::NAN), expected, "decomposed: {decomposed}");
    }
}

/// Builds every operation of towers, each on inputs.
fn operations() -> Builder {
    let rows = 6;
    let mut b = Builder::new("encode_6", SW_ENTRY_ENCODE, rows, rows);
    let x = b.input("x", SW_ROLE_HIDDEN, &[rows, 24]);
    let y = b.input("y", SW_ROLE_GATHERED_BY_GRID, &[rows, 24]);
    let plane = b.input("plane", SW_ROLE_FEATURES, &[2 * rows, 5, 3]);
    let grid = ["columns", "rows"].map(|name| b.input(name, SW_ROLE_GRID, &[rows]));
    let float = |b: &mut Builder, name: &str, shape: &[u64], scale| {
        let data = values(shape.iter().product::<u64>() as usize, name.len() as u64, scale);
        b.constant(&weight(name, shape, &data, SW_DTYPE_F32))
    };
    let same = [rows, 24];
    let (gain, bias) = (float(&mut b, "gain", &[24], 1.0), float(&mut b, "shift", &[24], 0.4));
    let [low, high] = [("low", -0.3), ("highest", 0.5)]
        .map(|(name, bound)| b.constant(&weight(name, &[1], &[bound], SW_DTYPE_F32)));
    let kernel = float(&mut b, "kernel", &[24, 3], 1.0);
    let by_distance = b.input("by-distance", SW_ROLE_TAP, &[rows, 8]);
    let planes = float(&mut b, "planes", &[7, 27], 0.5);
    let heads = || vec![Attribute::Integer("head_dim", 12), Attribute::Float("theta", 100.0)];
    let relative = ["heads", "head_dim"].into_iter().zip([2, 12]);
    let mut relative: Vec<Attribute> =
        relative.map(|(name, value)| Attribute::Integer(name, value)).collect();
    relative.push(Attribute::Float("softcap", 3.0));
    let window = |stride| {
        let values = [("kernel", 3), ("stride", stride), ("padding", 1)];
        values.map(|(name, value)| Attribute::Integer(name, value)).to_vec()
    };
    let eps = || vec![Attribute::Float("eps", 1e-3)];
    let all = [
        b.node(SW_OP_LAYER_NORM, &[x, gain, bias], &same, eps()),
        b.node(SW_OP_LAYER_NORM, &[y], &same, eps()),
        b.node(SW_OP_AXIAL_ROPE, &[x, grid[0], grid[1]], &same, heads()),
        b.node(SW_OP_RELATIVE_ATTENTION, &[x, y, x, by_distance], &same, relative),
        b.node(SW_OP_CONVOLUTION, &[plane, planes], &[rows, 3, 7], window(2)),
        b.node(SW_OP_CONVOLUTION, &[plane, planes], &[2 * rows, 5, 7], window(1)),
        b.node(SW_OP_DEPTHWISE_CONVOLUTION, &[x, kernel], &same, vec![]),
        b.node(SW_OP_CLAMP, &[x, low, high], &same, vec![]),
        b.unary(SW_OP_SIGMOID, x, vec![]),
        b.node(SW_OP_GLU, &[x], &[rows, 12], vec![]),
        b.node(SW_OP_MEAN_ROWS, &[x], &[2, 24], vec![Attribute::Integer("rows", 3)]),
        b.binary(SW_OP_MAX, x, y),
        b.binary(SW_OP_MIN, x, high),
    ];
    for (index, output) in all.into_iter().enumerate() {
        b.output(&format!("out.{index}"), SW_ROLE_TAP, output);
    }
    b
}

#[test]
fn every_operation_agrees_in_every_encoding() {
    let plain = operations();
    let given = inputs(&plain, 6, 0.0);
    let mut seen = HashMap::new();
    observe(&mut seen, &evaluate_all(&plain, 6, &given));
    let host = open(&[("threads", "2")]).expect("opened");
    for dtype in [SW_DTYPE_F32, SW_DTYPE_F16, SW_DTYPE_U16, SW_DTYPE_I16, SW_DTYPE_U8] {
        let mut b = plain.clone();
        if dtype != SW_DTYPE_F32 {
            encode_all(&mut b, (dtype, dtype), &seen, &HashMap::new());
        }
        let artefact = compile(&host, &b);
        let store = |port: &Port| match &given[&port.name] {
            Bound::F32(values) => Bound::store(b.encoding_of(port.tensor), values),
            other => other.clone(),
        };
        let mut bound: HashMap<String, Bound> =
            b.inputs.iter().map(|port| (port.name.clone(), store(port))).collect();
        let exact = evaluate(&b, 6, &bound);
        let mut first: Option<HashMap<String, Bound>> = None;
        for level in Level::available() {
            for threads in ["1", "2"] {
                let options = [("simd", level.name()), ("threads", threads)];
                let mut loaded = host.load(&artefact, &options).expect("loaded");
                loaded.run(&b.name, 6, &mut bound).expect("ran");
                for port in &b.outputs {
                    let encoding = b.encoding_of(port.tensor);
                    let exact = &exact[&port.name].data;
                    let size = exact.iter().fold(1e-3f64, |size, v| size.max(v.abs()));
                    for (at, (got, exact)) in bound[&port.name].read(encoding).iter().zip(exact).enumerate() {
                        let step = encoding.step(got.abs().max(exact.abs()));
                        let allowed = 2e-5 * size + 1.0001 * step;
                        assert!(
                            (got - exact).abs() <= allowed,
                            "{}[{at}] is {got}, exactly {exact}",
                            port.name
                        );
                    }
                }
                let first = first.get_or_insert_with(|| bound.clone());
                assert_eq!(first, &bound, "type {dtype}, {threads} threads at {}", level.name());
            }
        }
    }
}

/// Contradictory nodes are rejected with a reason, as are nodes that primitives can run instead.
#[test]
fn nodes_of_towers_must_be_consistent() {
    type Change = fn(&mut Builder);
    fn set(b: &mut Builder, node: usize, place: usize, attribute: Attribute) {
        b.nodes[node].attributes[place] = attribute;
    }
    let cases: &[(usize, &str, Change)] = &[
        (0, "input 1 is [7, 27], expected [24]", |b| b.nodes[0].inputs[1] = b.nodes[4].inputs[1]),
        (0, "attribute `eps` is inf", |b| set(b, 0, 0, Attribute::Float("eps", f64::INFINITY))),
        (2, "heads of 6", |b| set(b, 2, 0, Attribute::Integer("head_dim", 6))),
        (2, "theta -1", |b| set(b, 2, 1, Attribute::Float("theta", -1.0))),
        (2, "is not a bound i32 tensor", |b| b.nodes[2].inputs[2] = b.nodes[2].inputs[0]),
        (3, "3 heads of 12", |b| set(b, 3, 0, Attribute::Integer("heads", 3))),
        (3, "capped at -1", |b| set(b, 3, 2, Attribute::Float("softcap", -1.0))),
        (3, "input 3 is [7, 27], expected [6, 26]", |b| b.nodes[3].inputs[3] = b.nodes[4].inputs[1]),
        (3, "input 1 is [12, 5, 3], expected [6, 24]", |b| b.nodes[3].inputs[1] = b.nodes[4].inputs[0]),
        (4, "expected a plane", |b| b.nodes[4].inputs[0] = b.nodes[0].inputs[0]),
        (4, "are computed", |b| b.nodes[4].inputs[1] = b.nodes[0].inputs[0]),
        (4, "with stride 3", |b| set(b, 4, 1, Attribute::Integer("stride", 3))),
        (4, "and padding 3", |b| set(b, 4, 2, Attribute::Integer("padding", 3))),
        (4, "a kernel of 8", |b| set(b, 4, 0, Attribute::Integer("kernel", 8))),
        (4, "the weights 7 by 27", |b| set(b, 4, 0, Attribute::Integer("kernel", 2))),
        (6, "input 1 is [7, 27], expected [24, 27]", |b| b.nodes[6].inputs[1] = b.nodes[4].inputs[1]),
        (7, "input 1 is [24], expected [1]", |b| b.nodes[7].inputs[1] = b.nodes[0].inputs[1]),
        (9, "cannot be halved", |b| b.nodes[9].inputs[0] = b.nodes[4].inputs[0]),
        (10, "6 rows cannot be averaged in groups of 4", |b| set(b, 10, 0, Attribute::Integer("rows", 4))),
        (10, "attribute `rows` is 0", |b| set(b, 10, 0, Attribute::Integer("rows", 0))),
        (10, "from the inputs", |b| set(b, 10, 0, Attribute::Integer("rows", 2))),
    ];
    let host = open(&[]).expect("opened");
    for (node, part, change) in cases {
        let mut b = operations();
        change(&mut b);
        let verdicts = host.check(b.build()).expect("checked");
        assert!(verdicts[*node].1.contains(part), "`{part}` not in `{}`", verdicts[*node].1);
    }
    let mut b = operations();
    let low = b.input("low", SW_ROLE_TAP, &[1]);
    b.nodes[7].inputs[1] = low;
    let verdicts = host.check(b.build()).expect("checked");
    assert!(verdicts[7].1.contains("`max` and `min` support that"), "{}", verdicts[7].1);
}
