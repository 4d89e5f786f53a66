//! Entries are read, checked and lowered to a draft by rules that belong to no vendor.

use shardwright_shim_abi::raw::*;
use shardwright_shim_abi::{ErrorClass, TensorView, Verdict, WeightView};
use shardwright_shim_npu::attention::{Step, recognise, steps};
use shardwright_shim_npu::check::{check_all, verdicts};
use shardwright_shim_npu::constant::{rows_of_bits, symmetric};
use shardwright_shim_npu::encoding::{dtype_name, per_tensor};
use shardwright_shim_npu::{Encoding, Kind, Movements, Rules, Source, Work};
use shardwright_shim_testing::{Attribute, Builder, TableEncoding as Stored, Weight, integers, values};

/// Floats and 16-bit integers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Plain {
    Half,
    Fixed(f32, i32),
    Index,
}

impl Encoding for Plain {
    const HALF: Plain = Plain::Half;
    const FRACTION: Plain = Plain::Fixed(1.0 / 32_768.0, 0);
    const SIGNED_FRACTION: Plain = Plain::FRACTION;

    fn of(tensor: &TensorView<'_>) -> Result<Plain, String> {
        match tensor.dtype() {
            SW_DTYPE_F16 => Ok(Plain::Half),
            SW_DTYPE_I16 => per_tensor(tensor).map(|(scale, zero)| Plain::Fixed(scale, zero)),
            SW_DTYPE_I32 => Ok(Plain::Index),
            other => Err(format!("{} is not read", dtype_name(other))),
        }
    }

    fn is_index(self) -> bool {
        self == Plain::Index
    }

    fn is_fixed(self) -> bool {
        matches!(self, Plain::Fixed(..))
    }

    fn scaled(self, factor: f32) -> Plain {
        match self {
            Plain::Fixed(scale, zero) => Plain::Fixed(scale * factor, zero),
            other => other,
        }
    }

    fn ends(self) -> Option<(f32, f32)> {
        match self {
            Plain::Fixed(scale, zero) => {
                let end = |stored: i32| scale * (stored - zero) as f32;
                Some((end(-32_768), end(32_767)))
            }
            _ => None,
        }
    }

    fn describe(self) -> String {
        format!("{self:?}")
    }
}

struct Any;

impl Rules for Any {
    type Encoding = Plain;

    const MAX_RANK: usize = 4;
    const REFUSED: &'static [(u32, &'static str)] = &[(SW_OP_ROUND, "nothing rounds")];
    const BIAS: &'static str = "no bias";

    fn computes(&self, encoding: Plain) -> Result<(), String> {
        match encoding {
            Plain::Fixed(_, zero) if zero != 0 => Err("around a zero point".to_owned()),
            _ => Ok(()),
        }
    }

    fn together(&self, encodings: &[Plain]) -> Result<(), String> {
        let is_half = |encoding: &Plain| *encoding == Plain::Half;
        match encodings.iter().all(is_half) || !encodings.iter().any(is_half) {
            true => Ok(()),
            false => Err("they do not go together".to_owned()),
        }
    }

    fn pointwise(&self, op: u32, _: Plain) -> Result<(), String> {
        if op == SW_OP_SQRT { Err("roots are wrong".to_owned()) } else { Ok(()) }
    }

    fn matrix(&self, weight: &WeightView<'_>, _: Plain) -> Result<(), String> {
        symmetric(weight).map(drop)
    }

    fn convolution(&self, weight: &WeightView<'_>, _: Plain) -> Result<(), String> {
        symmetric(weight).map(drop)
    }
}

const FIXED: Stored = Stored::integers(SW_DTYPE_I16, 0.01, 0);
const HALF: Stored = Stored::F16;

/// Adds a conversion to another encoding.
fn converted(b: &mut Builder, x: u32, encoding: Stored) -> u32 {
    let shape = b.shape(x);
    let out = b.node(SW_OP_CONVERT, &[x], &shape, vec![]);
    b.encode(out, encoding)
}

fn entry(rows: u64) -> Builder {
    let mut b = Builder::new(&format!("decode_{rows}@8"), SW_ENTRY_DECODE, rows, 8);
    b.encoding = FIXED;
    b
}

fn number(name: &'static str, value: f64) -> Vec<Attribute> {
    vec![Attribute::Float(name, value)]
}

/// Returns the verdict on the last node of an entry over `x` and `y`, both `[3, 16]`.
fn verdict(make: impl FnOnce(&mut Builder, u32, u32) -> u32) -> Result<(), String> {
    let mut b = entry(3);
    let x = b.input_as("x", SW_ROLE_HIDDEN, &[3, 16], FIXED);
    let y = b.input_as("y", SW_ROLE_HIDDEN, &[3, 16], FIXED);
    let out = make(&mut b, x, y);
    b.output("out", SW_ROLE_TAP, out);
    let view = b.view().expect("sound tables");
    let all = verdicts(view, &Any);
    let whole = check_all(&Source::read(view).expect("sound"), &Any);
    assert_eq!(whole.is_ok(), all.iter().all(|verdict| matches!(verdict, Verdict::Taken)));
    match all.into_iter().next_back().expect("a node") {
        Verdict::Taken => Ok(()),
        Verdict::Refused(reason) => Err(reason),
    }
}

type Make = fn(&mut Builder, u32, u32) -> u32;

fn like(b: &mut Builder, op: u32, inputs: &[u32], attributes: Vec<Attribute>) -> u32 {
    b.node(op, inputs, &[3, 16], attributes)
}

fn matrix(outputs: u64, inputs: u64) -> Weight {
    Weight::matrix("w", [outputs, inputs], &values((outputs * inputs) as usize, 3, 0.2), 8)
}

/// Adds a convolution with kernels of 3 and one zero on each side.
fn convolved(b: &mut Builder, plane: u32, kernels: &Weight, stride: i64, shape: &[u64]) -> u32 {
    let kernels = b.constant(kernels);
    let window = [("kernel", 3), ("stride", stride), ("padding", 1)];
    let window = window.map(|(name, value)| Attribute::Integer(name, value)).to_vec();
    b.node(SW_OP_CONVOLUTION, &[plane, kernels], shape, window)
}

#[test]
fn what_holds_for_every_compiler_is_taken() {
    let taken: &[Make] = &[
        |b, x, y| b.binary(SW_OP_ADD, x, y),
        |b, x, _| b.unary(SW_OP_GELU, x, vec![]),
        |b, x, _| b.unary(SW_OP_SOFTCAP, x, number("cap", 3.0)),
        |b, x, _| b.unary(SW_OP_MUL_SCALAR, x, number("value", 3.0)),
        |b, x, _| b.unary(SW_OP_SIGMOID, x, vec![]),
        |b, x, y| b.binary(SW_OP_MIN, x, y),
        |b, x, _| {
            let bounds =
                [b.constant(&Weight::vector("low", &[-1.0])), b.constant(&Weight::vector("high", &[1.0]))];
            like(b, SW_OP_CLAMP, &[x, bounds[0], bounds[1]], vec![])
        },
        |b, x, _| {
            let plane = b.reshape(x, &[4, 6, 2]);
            convolved(b, plane, &matrix(5, 18), 2, &[2, 3, 5])
        },
        |b, x, _| b.unary(SW_OP_SOFTMAX, x, vec![]),
        |b, x, _| b.node(SW_OP_REDUCE_SUM, &[x], &[3, 1], vec![]),
        |b, x, _| b.linear(x, &matrix(5, 16)),
        |b, x, y| b.mat_mul(x, y, true),
        |b, x, _| b.norm(x, None, 8, 1.0),
        |b, x, _| b.reshape(x, &[2, 3, 8]),
        |b, x, _| b.transpose(x, &[1, 0]),
        |b, x, _| b.slice(x, 1, 3, 9),
        |b, x, y| b.concat(&[x, y], 0),
        |b, x, _| converted(b, x, HALF),
    ];
    for (place, make) in taken.iter().enumerate() {
        assert_eq!(verdict(make), Ok(()), "{place}");
    }
}

#[test]
fn what_is_at_fault_is_said() {
    let refused: &[(&str, Make)] = &[
        ("nothing rounds", |b, x, _| b.unary(SW_OP_ROUND, x, vec![])),
        ("roots are wrong", |b, x, _| b.unary(SW_OP_SQRT, x, vec![])),
        ("only tables as inputs", |b, x, _| like(b, SW_OP_ROPE, &[x], vec![])),
        ("with a mask as an input", |b, x, _| like(b, SW_OP_ATTENTION, &[x], vec![])),
        ("the runtime stores the new rows", |b, x, y| like(b, SW_OP_STATE_UPDATE, &[x, y], vec![])),
        ("operation 999 is unknown", |b, x, _| like(b, 999, &[x], vec![])),
        ("2 operands, expected 1 to 1", |b, x, y| like(b, SW_OP_TANH, &[x, y], vec![])),
        ("a bound of -1", |b, x, _| b.unary(SW_OP_SOFTCAP, x, number("cap", -1.0))),
        ("`value` is NaN", |b, x, _| b.unary(SW_OP_ADD_SCALAR, x, number("value", f64::NAN))),
        ("do not broadcast", |b, x, _| {
            let narrow = b.slice(x, 1, 0, 5);
            like(b, SW_OP_MUL, &[x, narrow], vec![])
        }),
        ("cannot be multiplied", |b, x, _| {
            let weight = b.constant(&matrix(5, 8));
            b.node(SW_OP_LINEAR, &[x, weight], &[3, 5], vec![])
        }),
        ("no bias", |b, x, _| {
            let (weight, bias) = (b.constant(&matrix(5, 16)), b.constant(&Weight::vector("b", &[0.0; 5])));
            b.node(SW_OP_LINEAR, &[x, weight, bias], &[3, 5], vec![])
        }),
        ("is not a constant", |b, x, y| b.node(SW_OP_LINEAR, &[x, y], &[3, 3], vec![])),
        ("without scales", |b, x, _| {
            b.linear(x, &Weight::raw("w", &[1, 16], SW_DTYPE_I8, vec![0; 16], None))
        }),
        ("`y` is not a constant", |b, x, y| {
            let low = b.constant(&Weight::vector("low", &[-1.0]));
            like(b, SW_OP_CLAMP, &[x, low, y], vec![])
        }),
        ("not [1]", |b, x, _| {
            let low = b.constant(&Weight::vector("low", &[-1.0, 0.0]));
            like(b, SW_OP_CLAMP, &[x, low, low], vec![])
        }),
        ("do not fit 9 columns", |b, x, _| {
            let plane = b.reshape(x, &[4, 6, 2]);
            convolved(b, plane, &matrix(5, 9), 2, &[2, 3, 5])
        }),
        ("steps of 0", |b, x, _| {
            let plane = b.reshape(x, &[4, 6, 2]);
            convolved(b, plane, &matrix(5, 18), 0, &[2, 3, 5])
        }),
        ("not a plane", |b, x, _| convolved(b, x, &matrix(5, 18), 2, &[2, 3, 5])),
        ("is smaller than a kernel", |b, x, _| {
            let plane = b.reshape(x, &[48, 1, 1]);
            let window = ["kernel", "stride", "padding"].into_iter().zip([3, 1, 0]);
            let window = window.map(|(name, value)| Attribute::Integer(name, value)).collect();
            let kernels = b.constant(&matrix(5, 9));
            b.node(SW_OP_CONVOLUTION, &[plane, kernels], &[46, 1, 5], window)
        }),
        ("groups of 5 do not divide", |b, x, _| b.norm(x, None, 5, 0.0)),
        ("is not a range of axis 1", |b, x, _| {
            let of = |name, value| Attribute::Integer(name, value);
            b.node(SW_OP_SLICE, &[x], &[3, 4], vec![of("axis", 1), of("start", 14), of("end", 18)])
        }),
        ("is not an order of the axes", |b, x, _| {
            like(b, SW_OP_TRANSPOSE, &[x], vec![Attribute::Integers("perm", vec![1, 1])])
        }),
        ("cannot be reshaped", |b, x, _| {
            b.node(SW_OP_RESHAPE, &[x], &[3, 5], vec![Attribute::Integers("shape", vec![3, 5])])
        }),
        ("moved values keep their encoding", |b, x, _| {
            let other = converted(b, x, Stored { affine: Some((0.02, 0)), ..FIXED });
            b.concat(&[x, other], 0)
        }),
        ("they do not go together", |b, x, y| {
            let half = converted(b, y, HALF);
            b.binary(SW_OP_ADD, x, half)
        }),
        ("around a zero point", |b, x, _| {
            let moved = converted(b, x, Stored { affine: Some((0.01, 7)), ..FIXED });
            b.unary(SW_OP_TANH, moved, vec![])
        }),
        ("f32 is not read", |b, x, _| {
            let single = converted(b, x, Stored::F32);
            b.unary(SW_OP_TANH, single, vec![])
        }),
        ("has rank 5; operations support 1 to 4 axes", |b, x, _| b.reshape(x, &[1, 1, 1, 3, 16])),
    ];
    for (part, make) in refused {
        let reason = verdict(make).expect_err(part);
        assert!(reason.contains(part), "`{part}` not in `{reason}`");
    }
}

/// Blocks like in GGUF type Q4_1, which only shims that multiply values can run.
#[test]
fn blocks_with_minimums_are_refused_by_name_and_with_help() {
    let of_blocks = |kind, zero_point| {
        let scales = [0.5, 0.25, 1.5, 2.0];
        let scales = if kind == SW_QUANTISATION_PER_BLOCK { &scales[..2] } else { &scales };
        integers("w", &[1, 16], &[3; 16], SW_DTYPE_I4, (kind, 8), scales, zero_point)
    };
    for (kind, zero_point, reason) in [
        (SW_QUANTISATION_PER_BLOCK_WITH_MINIMUM, 0, "weight `w` has minimums; it must be symmetric"),
        (SW_QUANTISATION_PER_BLOCK_WITH_MINIMUM, -8, "weight `w` has zero points; it must be symmetric"),
        (SW_QUANTISATION_PER_BLOCK, -8, "weight `w` has zero points; it must be symmetric"),
    ] {
        let mut b = entry(3);
        b.layer = 7;
        let x = b.input_as("x", SW_ROLE_HIDDEN, &[3, 16], FIXED);
        let out = b.linear(x, &of_blocks(kind, zero_point));
        b.output("out", SW_ROLE_TAP, out);
        let error = check_all(&Source::read(b.view().expect("tables")).expect("sound"), &Any);
        let error = error.expect_err(reason);
        assert_eq!(
            (error.class, error.detail_of("layer")),
            (ErrorClass::UnsupportedOp, Some("7")),
            "{error}"
        );
        assert!(error.message.ends_with(&format!("is not supported: {reason}")), "{error}");
        assert_eq!(error.detail_of("help"), Some("legalise the entry with this shim's `check` first"));
    }
    assert_eq!(verdict(|b, x, _| b.linear(x, &of_blocks(SW_QUANTISATION_PER_BLOCK, 0))), Ok(()));
}

#[test]
fn entries_that_contradict_themselves_and_ports_that_cannot_be_bound_are_errors() {
    let mut early = entry(3);
    let x = early.input_as("x", SW_ROLE_HIDDEN, &[3, 16], FIXED);
    let later = early.tensor("later", FIXED, &[3, 16]);
    let out = early.binary(SW_OP_ADD, x, later);
    early.output("out", SW_ROLE_TAP, out);
    let read = |b: &Builder| Source::<Plain>::read(b.view().expect("tables")).map(drop);
    let error = read(&early).expect_err("an order");
    assert!(error.class == ErrorClass::InvalidArgument && error.message.contains("`later`"), "{error}");
    let all = verdicts(early.view().expect("tables"), &Any);
    assert!(matches!(&all[0], Verdict::Refused(reason) if reason.contains("`later`")));

    let mut positions = entry(3);
    let at = Stored::I32;
    positions.input_as("positions", SW_ROLE_POSITIONS, &[3], at);
    let view = positions.view().expect("tables");
    let error = check_all(&Source::read(view).expect("sound"), &Any).expect_err("a port");
    assert_eq!((error.class, error.detail_of("port")), (ErrorClass::UnsupportedOp, Some("positions")));

    let mut large = entry(3);
    large.input_as("x", SW_ROLE_HIDDEN, &[1 << 20, 1 << 20], FIXED);
    let error = read(&large).expect_err("a size");
    assert_eq!((error.class, error.detail_of("limit")), (ErrorClass::ResourceLimit, Some("tensor-values")));
}

/// Builds an attention of two key heads and four query heads over five slots of a state and the new
/// rows.
fn attention(rows: u64) -> Builder {
    let (kv, group, width, slots) = (2u64, 2u64, 8u64, 5 + rows);
    let mut b = entry(rows);
    let hidden = b.input_as("hidden", SW_ROLE_HIDDEN, &[rows, kv * group * width], FIXED);
    let state = b.input_as("k", SW_ROLE_STATE, &[5, kv * width], FIXED);
    let new = b.input_as("new", SW_ROLE_HIDDEN, &[rows, kv * width], FIXED);
    let mask = b.input_as("mask", SW_ROLE_MASK, &[rows, slots], FIXED);
    let joined = b.concat(&[state, new], 0);
    let query = b.reshape(hidden, &[rows, kv, group, width]);
    let query = b.transpose(query, &[1, 2, 0, 3]);
    let apart = |b: &mut Builder| {
        let keys = b.reshape(joined, &[slots, kv, width]);
        let keys = b.transpose(keys, &[1, 0, 2]);
        b.reshape(keys, &[kv, 1, slots, width])
    };
    let (keys, values) = (apart(&mut b), apart(&mut b));
    let scores = b.mat_mul(query, keys, true);
    let scores = b.unary(SW_OP_MUL_SCALAR, scores, number("value", 0.35));
    let masked = b.binary(SW_OP_ADD, scores, mask);
    let weights = b.unary(SW_OP_SOFTMAX, masked, vec![]);
    let mixed = b.mat_mul(weights, values, false);
    let mixed = b.transpose(mixed, &[2, 0, 1, 3]);
    let mixed = b.reshape(mixed, &[rows, kv * group * width]);
    b.output("out", SW_ROLE_TAP, mixed);
    b
}

#[test]
fn attention_is_recognised_whole_or_not_at_all() {
    let b = attention(3);
    let source = Source::<Plain>::read(b.view().expect("tables")).expect("sound");
    let found = recognise(&source);
    let [one] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((one.kv, one.group, one.rows, one.width, one.slots), (2, 2, 3, 8, 8));
    assert_eq!((one.between.len(), one.parts.len()), (1, 2), "the state and the new rows are joined of two");
    let order: Vec<(usize, bool)> =
        steps(&source, &found).into_iter().map(|(node, step)| (node, step == Step::Node)).collect();
    assert_eq!(order, [(0, true), (one.last, false)], "the concatenation is a step, everything else is one");
    assert_eq!(steps(&source, &[]).len(), source.nodes.len());

    // Attention is not recognised if its weights are an output.
    let mut open = attention(3);
    let weights = open.nodes.iter().find(|node| node.op == SW_OP_SOFTMAX).expect("there").outputs[0];
    open.output("weights", SW_ROLE_TAP, weights);
    let source = Source::<Plain>::read(open.view().expect("tables")).expect("sound");
    assert_eq!(recognise(&source), []);
}

#[test]
fn movements_that_move_nothing_are_written_only_where_asked_for() {
    let mut b = entry(1);
    let x = b.input_as("x", SW_ROLE_HIDDEN, &[1, 16], FIXED);
    let turned = b.transpose(x, &[1, 0]);
    let whole = b.slice(turned, 0, 0, 16);
    let part = b.slice(whole, 0, 2, 4);
    b.output("part", SW_ROLE_TAP, part);
    b.output("x", SW_ROLE_TAP, x);
    let source = Source::<Plain>::read(b.view().expect("tables")).expect("sound");
    let drafted = |movements| {
        let mut work =
            Work::<Plain, (), ()>::new(&source, movements, |_, shape| shape.to_vec()).expect("ports");
        for index in 0..source.nodes.len() {
            let node = work.begin(index);
            let moved = work.movement(node).expect("there").expect("it only moves");
            work.bind(node.output().expect("one"), moved);
        }
        work.finish().expect("outputs")
    };
    let kinds = |movements| drafted(movements).nodes.iter().map(|act| act.kind.clone()).collect::<Vec<_>>();
    let slice = |start, end| Kind::Slice { axis: 0, start, end };
    let few = Movements { idle_transposes: false, whole_slices: false };
    assert_eq!(kinds(few), [Kind::Reshape, slice(2, 4)]);
    let all = Movements { idle_transposes: true, whole_slices: true };
    assert_eq!(kinds(all), [Kind::Transpose(vec![1, 0]), slice(0, 16), slice(2, 4)]);

    let mut draft = drafted(few);
    assert_eq!(draft.outputs.len(), 2);
    draft.part_outputs(|draft, value| {
        let shape = draft.shape(value).to_vec();
        draft.act(Kind::Reshape, &[value], (shape, Plain::Half), "copy", None)
    });
    assert_eq!(draft.nodes.len(), 3, "an input leaves as a copy");
    assert!(draft.outputs.iter().all(|output| draft.is_computed(*output)));
    draft.outputs.truncate(1);
    draft.sweep();
    assert_eq!(draft.nodes.len(), 2, "unused operations are dropped");
}

#[test]
fn rows_of_packed_bits_are_measured() {
    let mut b = entry(1);
    let x = b.input_as("x", SW_ROLE_HIDDEN, &[1, 5], FIXED);
    let weight = Weight::matrix("w", [3, 5], &values(15, 3, 0.2), 4);
    let out = b.linear(x, &weight);
    b.output("out", SW_ROLE_TAP, out);
    let source = Source::<Plain>::read(b.view().expect("tables")).expect("sound");
    let weight = source.weight(source.nodes[0].input(1).expect("there")).expect("a weight");
    assert_eq!(rows_of_bits(&weight, 4), Ok((3, 5, 3)));
    assert!(rows_of_bits(&weight, 8).expect_err("other bits").contains("9 bytes"));
}
