//! Tests of refusals and of the faults named in their reasons.

use shardwright_shim_abi::raw::*;
use shardwright_shim_abi::{ErrorClass, Verdict};
use shardwright_shim_qnn::lower::{MAX_PARTS, Variants, check, lower};

use super::layers::Layer;
use super::shapes::soc;
use super::tables::{Attribute, Random, Scales, TableEncoding, Tables, Weight, bits_of, over, random_matrix};

const A: TableEncoding = TableEncoding::integers(SW_DTYPE_U16, 0.001, 30_000);

/// Builds an entry with one operation on an input.
fn one(op: u32, shape: &[u64], from: TableEncoding, to: TableEncoding, attributes: Vec<Attribute>) -> Tables {
    let mut tables = Tables::new("trial", 1);
    let x = tables.input("x", SW_ROLE_HIDDEN, shape, from);
    let y = tables.unary("y", op, x, to, attributes);
    tables.output("y", SW_ROLE_HIDDEN, y);
    tables
}

fn product(weight: Weight, from: TableEncoding) -> Tables {
    let mut tables = Tables::new("trial", 5);
    let x = tables.input("x", SW_ROLE_HIDDEN, &[5, weight.shape()[1]], from);
    let to = if from == TableEncoding::F16 { TableEncoding::F16 } else { A };
    let y = tables.linear("y", x, weight, to);
    tables.output("y", SW_ROLE_HIDDEN, y);
    tables
}

/// Creates a matrix of ones.
fn integers(dtype: u32, scales: Scales) -> Weight {
    let bits = bits_of(dtype);
    let byte = (0..8 / bits).fold(0, |byte, at| byte | 1u8 << (at * bits));
    Weight::raw("w", &[4, 64], dtype, vec![byte; 32 * bits as usize], Some(scales))
}

fn reason(tables: &Tables) -> String {
    let verdicts = check(tables.view(), &soc("sm8850"));
    let refused = verdicts.iter().find_map(|verdict| match verdict {
        Verdict::Refused(reason) => Some(reason.clone()),
        Verdict::Taken => None,
    });
    refused.unwrap_or_else(|| panic!("taken: {:?}", tables.nodes))
}

#[test]
fn reasons_name_shape_type_and_encoding() {
    let whole = |value| Scales::per_tensor(value);
    let along = |axis, count| Scales { axis, ..Scales::per_channel(vec![0.1; count]) };
    let with_zero = Scales { zero_point: 3, ..whole(0.1) };
    let uneven: Vec<f32> = (0..8).map(|block| if block % 2 == 0 { 1.0 } else { 1.37 }).collect();
    let cases: Vec<(Tables, &str)> = vec![
        (one(SW_OP_GELU, &[1, 8], TableEncoding::F32, TableEncoding::F32, vec![]), "`x` is f32"),
        (
            one(SW_OP_GELU, &[1, 8], TableEncoding::integers(SW_DTYPE_I16, 0.1, 0), A, vec![]),
            "i16 activations",
        ),
        (one(SW_OP_GELU, &[1, 8], TableEncoding::I32, A, vec![]), "`x` is i32"),
        (one(SW_OP_GELU, &[1, 8], A, TableEncoding::F16, vec![]), "mixed with f16"),
        (one(SW_OP_GELU, &[1, 1, 1, 1, 1, 8], A, A, vec![]), "rank 6"),
        (one(SW_OP_SQRT, &[1, 8], A, A, vec![]), "the library's root"),
        (one(SW_OP_ROUND, &[1, 8], A, A, vec![]), "no rounding"),
        (one(SW_OP_SOFTCAP, &[1, 8], A, A, vec![Attribute::Float("cap", 0.0)]), "a bound of 0"),
        (one(SW_OP_MUL_SCALAR, &[1, 8], A, A, vec![]), "`value`"),
        (one(SW_OP_MUL_SCALAR, &[1, 8], A, A, vec![Attribute::Float("value", f64::NAN)]), "`value` is NaN"),
        (one(SW_OP_RESHAPE, &[1, 8], A, A, vec![Attribute::Integers("shape", vec![-8])]), "be reshaped"),
        (
            one(SW_OP_RESHAPE, &[1, 8], A, over(-1.0, 1.0), vec![Attribute::Integers("shape", vec![1, 8])]),
            "keep their encoding",
        ),
        (one(SW_OP_TRANSPOSE, &[1, 8], A, A, vec![Attribute::Integers("perm", vec![1, 1])]), "not an order"),
        (one(SW_OP_CONVERT, &[1, 8], TableEncoding::I32, A, vec![]), "`x` is i32"),
        (one(SW_OP_ROPE, &[1, 8], A, A, vec![]), "tables from positions"),
        (one(SW_OP_ATTENTION, &[1, 8], A, A, vec![]), "a mask from positions"),
        (one(SW_OP_STATE_UPDATE, &[1, 8], A, A, vec![]), "cannot write into its inputs"),
        (one(SW_OP_DYNAMIC_LINEAR, &[1, 8], A, A, vec![]), "at run time"),
        (one(999, &[1, 8], A, A, vec![]), "operation 999"),
        (product(integers(SW_DTYPE_I8, Scales::blocks(32, vec![0.1; 8])), A), "i8 in blocks"),
        (product(integers(SW_DTYPE_I4, Scales::blocks(16, vec![0.1; 16])), A), "blocks of 16"),
        (product(integers(SW_DTYPE_I4, Scales::blocks(32, uneven)), A), "not multiples 1 to 16"),
        (
            product(integers(SW_DTYPE_I4, Scales::blocks(32, vec![0.1; 8])), TableEncoding::F16),
            "in blocks with f16",
        ),
        (product(integers(SW_DTYPE_I2, Scales::blocks(32, vec![0.1; 8])), A), "i2 in blocks"),
        (product(integers(SW_DTYPE_I2, whole(0.1)), A), "i2 with one scale"),
        (product(integers(SW_DTYPE_I8, whole(0.1)), TableEncoding::F16), "i8 with one scale"),
        (product(integers(SW_DTYPE_I8, with_zero), A), "zero points"),
        (product(integers(SW_DTYPE_I8, along(1, 64)), A), "along axis 1"),
        (product(integers(SW_DTYPE_I8, whole(-0.1)), A), "one of its scales"),
        (product(Weight::encoded("w", &[4, 64], TableEncoding::F16, &[0.5; 256]), A), "f16"),
        (product(Weight::encoded("w", &[4, 64], TableEncoding::F32, &[0.5; 256]), A), "`w` is f32"),
        (product(Weight::encoded("w", &[4, 64], over(-1.0, 1.0), &[0.5; 256]), A), "`w` is u16"),
    ];
    for (tables, expected) in cases {
        let reason = reason(&tables);
        assert!(reason.contains(expected), "{reason:?} does not say {expected:?}");
        // Refused entries cannot be lowered either, and the error names the node at fault.
        let refused = lower(tables.view(), &soc("sm8850"), &Variants::default()).expect_err("refused");
        assert_eq!(refused.class, ErrorClass::UnsupportedOp);
        assert_eq!(refused.detail_of("node").zip(refused.detail_of("layer")), Some(("y", "3")), "{refused}");
    }
}

/// Version 2 of `dynamic-linear` has blocks. The reason must be about the operation, not the
/// version number.
#[test]
fn reasons_name_the_operation_before_its_version() {
    for (op, part) in [(SW_OP_DYNAMIC_LINEAR, "at run time"), (SW_OP_GELU, "version 2 of the operation")] {
        let mut tables = one(op, &[1, 8], A, A, vec![]);
        tables.nodes[0].version = 2;
        let verdicts = check(tables.view(), &soc("sm8850"));
        let [Verdict::Refused(reason)] = &verdicts[..] else { panic!("{verdicts:?}") };
        assert!(reason.contains(part), "{reason}");
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let mut tables = Tables::new("trial", 5);
    let x = tables.input("x", SW_ROLE_HIDDEN, &[5, 64], A);
    let other = tables.input("other", SW_ROLE_HIDDEN, &[4, 64], A);
    let deep = tables.input("deep", SW_ROLE_HIDDEN, &[1, 1, 1, 5, 64], A);
    let matrix = tables.constant(random_matrix("w", [16, 64], SW_DTYPE_I8, &mut Random(1)));
    let bias = tables.constant(Weight::encoded("bias", &[16], A, &[0.5; 16]));
    let flag = |value| vec![Attribute::Integer("transpose_b", value)];
    let norm = |width| {
        vec![
            Attribute::Integer("width", width),
            Attribute::Float("eps", 1e-6),
            Attribute::Float("weight_offset", 0.0),
        ]
    };
    tables.node("biased", SW_OP_LINEAR, &[x, matrix, bias], (&[5, 16], A), vec![]);
    tables.node("wide", SW_OP_LINEAR, &[x, matrix], (&[5, 17], A), vec![]);
    tables.node("variable", SW_OP_LINEAR, &[x, other], (&[5, 4], A), vec![]);
    tables.node("stored", SW_OP_MAT_MUL, &[x, matrix], (&[5, 64], A), flag(0));
    tables.node("deep", SW_OP_MAT_MUL, &[deep, deep], (&[1, 1, 1, 5, 5], A), flag(1));
    tables.node("inner", SW_OP_MAT_MUL, &[x, x], (&[5, 64], A), flag(0));
    tables.node("flag", SW_OP_MAT_MUL, &[x, x], (&[5, 5], A), flag(7));
    tables.node("apart", SW_OP_ADD, &[x, other], (&[5, 64], A), vec![]);
    tables.node("constants", SW_OP_ADD, &[bias, bias], (&[16], A), vec![]);
    tables.node("join", SW_OP_CONCAT, &[x, other], (&[5, 128], A), vec![Attribute::Integer("axis", 1)]);
    tables.node(
        "range",
        SW_OP_SLICE,
        &[x],
        (&[5, 4], A),
        vec![Attribute::Integer("axis", 1), Attribute::Integer("start", 62), Attribute::Integer("end", 66)],
    );
    tables.node("groups", SW_OP_RMS_NORM, &[x], (&[5, 64], A), norm(5));
    tables.node("scale", SW_OP_RMS_NORM, &[x, other], (&[5, 64], A), norm(64));
    tables.node("odd", SW_OP_ROTATE, &[x, x, x], (&[5, 64], A), vec![Attribute::Integer("head_dim", 3)]);
    tables.node("tables", SW_OP_ROTATE, &[x, x, x], (&[5, 64], A), vec![Attribute::Integer("head_dim", 32)]);
    tables.node("lonely", SW_OP_ADD, &[x], (&[5, 64], A), vec![]);
    tables.node("kept", SW_OP_REDUCE_MAX, &[x], (&[5], A), vec![]);
    tables.node("newer", SW_OP_GELU, &[x], (&[5, 64], A), vec![]);
    tables.nodes.last_mut().expect("a node").version = 2;
    tables.node("good", SW_OP_GELU, &[x], (&[5, 64], A), vec![]);
    let expected = [
        "a sum after the product",
        "is [5, 17], not [5, 16]",
        "is not a constant",
        "not stored as [out, in]",
        "more than 4 axes",
        "cannot be multiplied",
        "`transpose_b` is 7",
        "do not broadcast",
        "both operands are constants",
        "cannot be joined",
        "not a range",
        "groups of 5",
        "`other` is not a constant",
        "even head",
        "`x` is [5, 64], not [5, 16]",
        "1 operands",
        "is [5], not [5, 1]",
        "version 2",
    ];
    let verdicts = check(tables.view(), &soc("sm8750"));
    assert_eq!(verdicts.len(), expected.len() + 1);
    for ((verdict, expected), node) in verdicts.iter().zip(expected).zip(&tables.nodes) {
        let Verdict::Refused(reason) = verdict else { panic!("{:?} is taken", node.name) };
        assert!(reason.contains(expected), "{:?}: {reason:?} does not say {expected:?}", node.name);
    }
    assert_eq!(verdicts.last(), Some(&Verdict::Taken));
}

#[test]
fn weights_that_are_not_made_are_judged_by_kind_and_shape() {
    let uneven: Vec<f32> = (0..8).map(|block| 1.0 + block as f32 * 0.37).collect();
    let tables = product(integers(SW_DTYPE_I4, Scales::blocks(32, uneven)).without_bytes(), A);
    assert_eq!(check(tables.view(), &soc("sm8850")), [Verdict::Taken]);
    let lowered = lower(tables.view(), &soc("sm8850"), &Variants::default()).expect("counted");
    assert_eq!(lowered.stand_ins, 1);
}

#[test]
fn ports_and_tables_that_contradict_themselves_are_errors() {
    let variants = Variants::default();
    let mut positions = one(SW_OP_GELU, &[1, 8], A, A, vec![]);
    positions.input("positions", SW_ROLE_POSITIONS, &[1], TableEncoding::I32);
    let refused = lower(positions.view(), &soc("sm8850"), &variants).expect_err("a port");
    assert_eq!((refused.class, refused.detail_of("port")), (ErrorClass::UnsupportedOp, Some("positions")));

    let mut early = one(SW_OP_GELU, &[1, 8], A, A, vec![]);
    let unwritten = early.tensor("unwritten", A, &[1, 8]);
    early.nodes[0].inputs = vec![unwritten];
    let refused = lower(early.view(), &soc("sm8850"), &variants).expect_err("an order");
    assert!(refused.class == ErrorClass::InvalidArgument && refused.message.contains("`unwritten`"));
    assert!(
        matches!(&check(early.view(), &soc("sm8850"))[..], [Verdict::Refused(reason)] if reason.contains("`unwritten`"))
    );

    let large = one(SW_OP_GELU, &[1 << 20, 1 << 20], A, A, vec![]);
    let refused = lower(large.view(), &soc("sm8850"), &variants).expect_err("a size");
    assert_eq!(
        (refused.class, refused.detail_of("limit")),
        (ErrorClass::ResourceLimit, Some("tensor-values"))
    );

    let scales = Scales::per_channel(vec![0.1; 4]);
    let short = product(Weight::raw("w", &[4, 64], SW_DTYPE_I8, vec![1; 255], Some(scales)), A);
    let refused = lower(short.view(), &soc("sm8850"), &variants).expect_err("a length");
    assert_eq!(refused.detail_of("weight").zip(refused.detail_of("layer")), Some(("w", "3")));
    assert!(refused.class == ErrorClass::InvalidArgument && refused.message.contains("255 bytes"));
}

/// Builds products of one input and four outputs with these numbers of rows.
fn products_of(rows: &[u64]) -> Tables {
    let mut tables = Tables::new("trial", 1);
    for (index, rows) in rows.iter().enumerate() {
        let weight = random_matrix(&format!("w{index}"), [4, 1], SW_DTYPE_I8, &mut Random(1));
        let x = tables.input(&format!("x{index}"), SW_ROLE_HIDDEN, &[*rows, 1], A);
        let y = tables.linear(&format!("y{index}"), x, weight, A);
        tables.output(&format!("y{index}"), SW_ROLE_HIDDEN, y);
    }
    tables
}

/// An entry of a few hundred bytes must not become a graph that fills the memory.
#[test]
fn products_with_too_many_parts_are_refused() {
    let tallest = Variants::default().tallest;
    let refused = |tables: &Tables| -> Vec<Option<String>> {
        let reason = |verdict| match verdict {
            Verdict::Refused(reason) => Some(reason),
            _ => None,
        };
        check(tables.view(), &soc("sm8850")).into_iter().map(reason).collect()
    };
    let limit = |tables: &Tables, variants: &Variants| {
        let error = lower(tables.view(), &soc("sm8850"), variants).expect_err("too many parts");
        assert_eq!(error.class, ErrorClass::ResourceLimit, "{error}");
        assert_eq!(error.detail_of("limit"), Some("product-parts"));
        assert!(error.detail_of("help").is_some_and(|help| help.contains("`tallest`")), "{error}");
        error.detail_of("value").map(str::to_owned)
    };

    let most = products_of(&[MAX_PARTS * tallest]);
    assert_eq!(refused(&most), [None]);
    let lowered = lower(most.view(), &soc("sm8850"), &Variants::default()).expect("it has few enough parts");
    // A slice and a product for each part, and a concatenation.
    assert_eq!(lowered.graph.nodes.len() as u64, 2 * MAX_PARTS + 1);

    let one_more = products_of(&[MAX_PARTS * tallest + 1]);
    let [Some(reason)] = &refused(&one_more)[..] else { panic!("it is taken") };
    assert!(reason.contains("65537 products of at most 32768 outputs and 1280 rows"), "{reason}");
    assert_eq!(limit(&one_more, &Variants::default()).as_deref(), Some("65537"));

    // All products of an entry count. Products after a refused one are supported if they fit.
    let several = products_of(&[40_000 * tallest, 40_000 * tallest, 5]);
    let [None, Some(reason), None] = &refused(&several)[..] else { panic!("{:?}", refused(&several)) };
    assert!(reason.contains("have 40000 parts"), "{reason}");
    assert_eq!(limit(&several, &Variants::default()).as_deref(), Some("80001"));

    // Flags can request smaller parts than `check` counts.
    let tall = products_of(&[1 << 20]);
    assert_eq!(refused(&tall), [None]);
    let small = Variants { tallest: 8, ..Variants::default() };
    assert_eq!(limit(&tall, &small).as_deref(), Some("131072"));
}

#[test]
fn a_layer_of_every_format_is_taken() {
    for (dtype, blocks) in
        [(SW_DTYPE_I8, false), (SW_DTYPE_I4, false), (SW_DTYPE_I2, false), (SW_DTYPE_I4, true)]
    {
        for planned in [false, true] {
            let tables = Layer { weights: dtype, blocks, ..Layer::small(5, 2) }.tables(planned);
            let verdicts = check(tables.view(), &soc("sm8850"));
            assert!(
                verdicts.iter().all(|verdict| *verdict == Verdict::Taken),
                "{dtype} {blocks}: {verdicts:?}"
            );
        }
    }
}
