//! Results and errors of the shim for each function of the contract.

use std::collections::HashMap;

use crate::support::*;
use shardwright_shim_abi::raw::*;
use shardwright_shim_cpu::artefact::FORMAT;
use shardwright_shim_cpu::simd::dot::DotLevel;

/// Builds `hidden → norm → linear → gelu → tap` with four rows.
fn simple() -> Builder {
    let mut b = Builder::new("decode_4@8", SW_ENTRY_DECODE, 4, 8);
    b.layer = 3;
    let x = b.input("hidden", SW_ROLE_HIDDEN, &[4, 6]);
    let w = weight("w", &[5, 6], &values(30, 1, 1.0), SW_DTYPE_BF16);
    let a = b.norm(x, None, 6, 0.0);
    let y = b.linear(a, &w);
    let y = b.unary(SW_OP_GELU, y, vec![]);
    b.output("tap", SW_ROLE_TAP, y);
    b
}

/// Builds a state of eight rows that is updated and attended to.
fn stateful() -> Builder {
    let mut b = Builder::new("decode_4@8", SW_ENTRY_DECODE, 4, 8);
    let x = b.input("hidden", SW_ROLE_HIDDEN, &[4, 6]);
    let positions = b.input("positions", SW_ROLE_POSITIONS, &[4]);
    let slots = b.input("slots", SW_ROLE_SLOTS, &[4]);
    let state = b.input("layer.0.k", SW_ROLE_STATE, &[8, 6]);
    let updated = b.node(SW_OP_STATE_UPDATE, &[state, x, slots], &[8, 6], vec![]);
    let y = b.node(
        SW_OP_ATTENTION,
        &[x, updated, updated, positions],
        &[4, 6],
        vec![
            Attribute::Integer("heads", 2),
            Attribute::Integer("kv_heads", 2),
            Attribute::Integer("head_dim", 3),
            Attribute::Float("scale", 1.0),
            Attribute::Float("softcap", 0.0),
            Attribute::Integer("window", 0),
            Attribute::Integer("causal", 1),
            Attribute::Text("keys", "state"),
        ],
    );
    b.output("layer.0.k", SW_ROLE_STATE, updated);
    b.output("tap", SW_ROLE_TAP, y);
    b
}

fn bound_for_stateful() -> HashMap<String, Bound> {
    HashMap::from([
        ("hidden".to_owned(), Bound::F32(values(24, 4, 1.0))),
        ("positions".to_owned(), Bound::I32(vec![0, 1, 2, 3])),
        ("slots".to_owned(), Bound::I32(vec![0, 1, 2, 3])),
        ("layer.0.k".to_owned(), Bound::F32(vec![0.0; 48])),
    ])
}

#[test]
fn lists_one_device_with_its_features_and_limits() {
    let host = open(&[]).expect("opened");
    let devices = host.devices(None).expect("devices");
    let (flags, limits) = host.told().expect("flags and limits");
    assert_eq!(devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>(), ["cpu"]);
    assert_eq!(flags, ["threads", "streams", "products", "head"]);
    assert_eq!(limits.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["ops"]);
    assert!(host.devices(Some("mt6989")).expect("devices").is_empty());
}

#[test]
fn options_are_supported_or_refused() {
    refused(open(&[("thread", "1")]).map(|_| ()), SW_ERROR_INVALID_ARGUMENT, "thread");
    refused(open(&[("threads", "many")]).map(|_| ()), SW_ERROR_INVALID_ARGUMENT, "many");
    refused(open(&[("threads", "100000")]).map(|_| ()), SW_ERROR_INVALID_ARGUMENT, "100000");
    let host = open(&[("threads", "1")]).expect("opened");
    let artefact = host.compile(&[simple().build()], &[]).expect("compiled").artefact;
    for (option, part) in [
        (("speed", "2"), "speed"),
        (("threads", "-1"), "-1"),
        (("simd", "mmx"), "scalar"),
        (("streams", "3"), "measured, 1, 4, 8"),
        (("products", "3"), "measured, scalar"),
        (("head", "some"), "measured, bounds, all"),
        (("verify-weights", "maybe"), "maybe"),
    ] {
        refused(host.load(&artefact, &[option]).map(|_| ()), SW_ERROR_INVALID_ARGUMENT, part);
    }
}

/// A flag that the registers do not support must not be reported as applied.
#[test]
fn ways_of_computing_end_with_a_verdict() {
    let host = open(&[("threads", "1")]).expect("opened");
    let artefact = host.compile(&[simple().build()], &[]).expect("compiled").artefact;
    let fastest = DotLevel::available().last().expect("scalar").name();
    let beyond = match fastest {
        "scalar" => (SW_FLAG_APPLIED, "scalar, on every run"),
        _ => (SW_FLAG_REFUSED, "only support scalar, which is used"),
    };
    for (flag, value, (outcome, part)) in [
        ("streams", "measured", (SW_FLAG_APPLIED, "runs alternate")),
        ("streams", "1", (SW_FLAG_APPLIED, "1, on every run")),
        ("streams", "8", (SW_FLAG_REFUSED, "only support 1, which is used")),
        ("products", "measured", (SW_FLAG_APPLIED, "runs alternate")),
        ("products", "scalar", (SW_FLAG_APPLIED, "scalar, on every run")),
        ("products", fastest, beyond),
        ("head", "measured", (SW_FLAG_APPLIED, "runs alternate")),
        ("head", "bounds", (SW_FLAG_APPLIED, "bounds, on every run")),
        ("head", "all", (SW_FLAG_APPLIED, "all, on every run")),
    ] {
        let loaded = host.load(&artefact, &[("simd", "scalar"), (flag, value)]).expect("loaded");
        let verdicts = loaded.flags().expect("verdicts");
        let [(name, found, evidence)] = &verdicts[..] else { panic!("{verdicts:?}") };
        assert_eq!((name.as_str(), *found), (flag, outcome), "{evidence}");
        assert!(evidence.contains(part), "{evidence}");
    }
    assert!(host.load(&artefact, &[]).expect("loaded").flags().expect("verdicts").is_empty());
}

#[test]
fn another_device_is_unknown_everywhere() {
    let host = open(&[]).expect("opened");
    let compiled = host.compile(&[simple().build()], &[]).expect("compiled");
    let host = host.on_device("gpu");
    let unknown = "unknown device `gpu`";
    refused(host.check(simple().build()), SW_ERROR_INVALID_ARGUMENT, unknown);
    refused(host.estimate(simple().build()), SW_ERROR_INVALID_ARGUMENT, unknown);
    refused(host.compile(&[simple().build()], &[]).map(|_| ()), SW_ERROR_INVALID_ARGUMENT, unknown);
    refused(host.compatibility(&compiled.head), SW_ERROR_INVALID_ARGUMENT, unknown);
    refused(host.load(&compiled.artefact, &[]).map(|_| ()), SW_ERROR_INVALID_ARGUMENT, unknown);
}

#[test]
fn flags_end_with_a_verdict() {
    let host = open(&[]).expect("opened");
    let flags = [("threads", "3"), ("threads", "x"), ("threads", "100000"), ("turbo", "1")];
    let compiled = host.compile(&[simple().build()], &flags).expect("compiled");
    let outcomes: Vec<u32> = compiled.flags.iter().map(|(_, outcome, _)| *outcome).collect();
    assert_eq!(outcomes, [SW_FLAG_APPLIED, SW_FLAG_REFUSED, SW_FLAG_REFUSED, SW_FLAG_UNKNOWN]);
    assert!(compiled.flags.iter().all(|(_, _, evidence)| !evidence.is_empty()));
}

#[test]
fn the_same_order_gives_the_same_bytes() {
    let host = open(&[]).expect("opened");
    let entries = [simple().build(), stateful().build()];
    let mut second = stateful();
    second.name = "decode_4@9".into();
    let entries = [entries[0], second.build()];
    let [a, b] = [(); 2].map(|()| host.compile(&entries, &[]).expect("compiled"));
    assert_eq!((a.artefact.bytes(), a.head), (b.artefact.bytes(), b.head));
}

#[test]
fn weights_shared_by_entries_are_stored_once() {
    let host = open(&[]).expect("opened");
    let w = weight("w", &[512, 512], &values(512 * 512, 1, 1.0), SW_DTYPE_F32);
    let entry = |rows: u64| {
        let mut b = Builder::new(&format!("decode_{rows}@8"), SW_ENTRY_DECODE, rows, 8);
        let x = b.input("hidden", SW_ROLE_HIDDEN, &[rows, 512]);
        let y = b.linear(x, &w);
        let y = b.linear(y, &w);
        b.output("hidden.out", SW_ROLE_HIDDEN, y);
        b.build()
    };
    let one = host.compile(&[entry(1)], &[]).expect("compiled").artefact.bytes().len();
    let two = host.compile(&[entry(1), entry(8)], &[]).expect("compiled").artefact.bytes().len();
    assert!(one < (1 << 20) + 16384 && two < one + 8192, "{one} and {two} bytes");
}

#[test]
fn heads_decide_what_can_be_loaded() {
    let host = open(&[]).expect("opened");
    let head = host.compile(&[simple().build()], &[]).expect("compiled").head;
    let text = String::from_utf8(head.clone()).expect("text");
    let of_format = |format: u32| {
        let found = text.replace(&format!("format={FORMAT}\n"), &format!("format={format}\n"));
        found.into_bytes()
    };
    for (head, answer) in [
        (head.clone(), SW_COMPATIBILITY_OPTIMAL),
        (b"something else".to_vec(), SW_COMPATIBILITY_NOT_MINE),
        (Vec::new(), SW_COMPATIBILITY_NOT_MINE),
        (of_format(FORMAT - 1), SW_COMPATIBILITY_RECOMPILE),
        (of_format(FORMAT + 1), SW_COMPATIBILITY_UNSUPPORTED),
    ] {
        assert_eq!(host.compatibility(&head).expect("answered").0, answer);
    }
}

#[test]
fn estimates_grow_with_the_work() {
    let host = open(&[("threads", "2")]).expect("opened");
    let w = weight("w", &[2000, 1000], &vec![0.5; 2_000_000], SW_DTYPE_BF16);
    let entry = |rows: u64, odd: bool| {
        let mut b = Builder::new("decode", SW_ENTRY_DECODE, rows, 8);
        let x = b.input("hidden", SW_ROLE_HIDDEN, &[rows, 1000]);
        let y = b.linear(x, &w);
        let y = if odd { b.unary(999, y, vec![]) } else { y };
        b.output("tap", SW_ROLE_TAP, y);
        b.build()
    };
    let of = |entry| host.estimate(entry).expect("estimated").expect("an estimate");
    let EstimateInfo { microseconds: one, bytes, uncosted, provenance } = of(entry(1, false));
    assert_eq!(provenance, SW_PROVENANCE_MODELLED);
    let many = of(entry(500, false)).microseconds;
    assert!(
        one >= 400 && many > 10 * one && bytes == 4_000_000 && uncosted.is_empty(),
        "{one}, {many}, {bytes}"
    );
    assert_eq!(of(entry(1, true)).uncosted, [1]);
    // Bytes are multiplied faster than floats, but memory-bound work is not.
    let stored: Vec<i32> = (0..2_000_000).map(|index| index % 255 - 127).collect();
    let channels = (SW_QUANTISATION_PER_CHANNEL, 0);
    let w = integers("w", &[2000, 1000], &stored, SW_DTYPE_I8, channels, &[0.01; 2000], 0);
    let product = |op, rows: u64| {
        let mut b = Builder::new("decode", SW_ENTRY_DECODE, rows, 8);
        let x = b.input("hidden", SW_ROLE_HIDDEN, &[rows, 1000]);
        let w = b.constant(&w);
        let y = b.node(op, &[x, w], &[rows, 2000], vec![]);
        b.output("tap", SW_ROLE_TAP, y);
        of(b.build()).microseconds
    };
    let in_blocks = |rows: u64| {
        let mut b = Builder::new("decode", SW_ENTRY_DECODE, rows, 8);
        let x = b.input("hidden", SW_ROLE_HIDDEN, &[rows, 1000]);
        let w = b.constant(&w);
        let y = b.block_linear(&[x, w], &[rows, 2000], 32);
        b.output("tap", SW_ROLE_TAP, y);
        of(b.build()).microseconds
    };
    // A scale per block reduces this gain.
    let [floats, blocks, bytes] =
        [product(SW_OP_LINEAR, 500), in_blocks(500), product(SW_OP_DYNAMIC_LINEAR, 500)];
    assert!(bytes < blocks && blocks < floats, "{bytes}, {blocks}, {floats}");
    assert_eq!(in_blocks(1), product(SW_OP_LINEAR, 1));
    assert!(2 * product(SW_OP_DYNAMIC_LINEAR, 500) < product(SW_OP_LINEAR, 500));
    assert_eq!(product(SW_OP_DYNAMIC_LINEAR, 1), product(SW_OP_LINEAR, 1));
}

#[test]
fn nodes_are_refused_with_a_reason() {
    type Change = fn(&mut Builder);
    let cases: &[(&str, Change)] = &[
        ("unknown op 999", |b| b.nodes[0].op = 999),
        ("version 2", |b| b.nodes[0].version = 2),
        ("lacks the attribute `eps`", |b| {
            b.nodes[0].attributes.retain(|a| !matches!(a, Attribute::Float("eps", _)))
        }),
        ("attribute `width` is 0", |b| b.nodes[0].attributes[0] = Attribute::Integer("width", 0)),
        ("attribute `width` is -3", |b| b.nodes[0].attributes[0] = Attribute::Integer("width", -3)),
        ("groups are 4 wide", |b| b.nodes[0].attributes[0] = Attribute::Integer("width", 4)),
        ("attribute `eps` is NaN", |b| b.nodes[0].attributes[1] = Attribute::Float("eps", f64::NAN)),
        ("0 inputs", |b| b.nodes[0].inputs.clear()),
        ("3 inputs, expected 1 to 2", |b| b.nodes[0].inputs = vec![0, 0, 0]),
        ("has no input 0", |b| b.nodes[0].inputs[0] = SW_NO_TENSOR),
        ("is of element type 7", |b| {
            b.tensors[0].encoding = TableEncoding::plain(SW_DTYPE_I8);
        }),
        ("is of element type 9", |b| {
            let output = b.nodes[0].outputs[0] as usize;
            b.tensors[output].encoding = TableEncoding::plain(SW_DTYPE_I64);
        }),
        ("from the inputs", |b| {
            let output = b.nodes[0].outputs[0] as usize;
            b.tensors[output].shape = vec![4, 7];
        }),
        ("0 outputs, expected one", |b| {
            b.nodes[0].outputs.clear();
            b.nodes[1].inputs[0] = 0;
        }),
    ];
    let host = open(&[]).expect("opened");
    for (part, change) in cases {
        let mut b = simple();
        change(&mut b);
        let verdicts = host.check(b.build()).unwrap_or_else(|failure| panic!("`{part}`: {failure:?}"));
        assert_eq!(verdicts[0].0, SW_VERDICT_REFUSED, "{part}");
        assert!(verdicts[0].1.contains(part), "`{part}` not in `{}`", verdicts[0].1);
    }
    // A product with computed weights is supported as a matrix product.
    let mut b = Builder::new("e", SW_ENTRY_ENCODE, 4, 4);
    let x = b.input("x", SW_ROLE_GATHERED, &[4, 4]);
    let y = b.node(SW_OP_LINEAR, &[x, x], &[4, 4], vec![]);
    b.output("y", SW_ROLE_TAP, y);
    let verdicts = host.check(b.build()).expect("checked");
    assert!(verdicts[0].1.contains("a matrix product supports that"), "{}", verdicts[0].1);
}

#[test]
fn semantic_nodes_must_be_consistent() {
    type Change = fn(&mut Vec<Attribute>);
    let cases: &[(&str, Change)] = &[
        ("Heads", |a| a[0] = Attribute::Integer("heads", 3)),
        ("Heads", |a| a[1] = Attribute::Integer("kv_heads", 1)),
        ("attribute `kv_heads` is 0", |a| a[1] = Attribute::Integer("kv_heads", 0)),
        ("Heads", |a| a[2] = Attribute::Integer("head_dim", 6)),
        ("attribute `scale` is inf", |a| a[3] = Attribute::Float("scale", f64::INFINITY)),
        ("attribute `softcap` is -1", |a| a[4] = Attribute::Float("softcap", -1.0)),
        ("attribute `window` is -1", |a| a[5] = Attribute::Integer("window", -1)),
        ("attribute `causal` is 2", |a| a[6] = Attribute::Integer("causal", 2)),
        ("always causal", |a| a[6] = Attribute::Integer("causal", 0)),
        ("4 rows of queries, but 8 of keys", |a| a[7] = Attribute::Text("keys", "rows")),
        ("of keys `cloud`", |a| a[7] = Attribute::Text("keys", "cloud")),
    ];
    let host = open(&[]).expect("opened");
    for (part, change) in cases {
        let mut b = stateful();
        change(&mut b.nodes[1].attributes);
        let verdicts = host.check(b.build()).expect("checked");
        assert!(verdicts[1].1.contains(part), "`{part}` not in `{}`", verdicts[1].1);
        refused(
            host.compile(&[b.build()], &[]).map(|_| ()),
            if *part == "of keys `cloud`" { SW_ERROR_UNSUPPORTED_OP } else { SW_ERROR_INVALID_ARGUMENT },
            part,
        );
    }
}

#[test]
fn products_of_attention_must_be_known() {
    type Change = fn(&mut Builder);
    let cases: &[(u32, &str, Change)] = &[
        (SW_ERROR_UNSUPPORTED_OP, "unknown type of products `f8`", |b| b.round_attention("f8")),
        (SW_ERROR_INVALID_ARGUMENT, "lacks the attribute `products`", |b| b.nodes[1].version = 2),
        (SW_ERROR_UNSUPPORTED_OP, "version 3 of op 4 is unknown, expected at most 2", |b| {
            b.round_attention("bf16");
            b.nodes[1].version = 3;
        }),
    ];
    let host = open(&[]).expect("opened");
    for (class, part, change) in cases {
        let mut b = stateful();
        change(&mut b);
        let verdicts = host.check(b.build()).expect("checked");
        assert_eq!(verdicts[1].0, SW_VERDICT_REFUSED, "{part}");
        assert!(verdicts[1].1.contains(part), "`{part}` not in `{}`", verdicts[1].1);
        refused(host.compile(&[b.build()], &[]).map(|_| ()), *class, part);
    }
}

#[test]
fn graphs_that_contradict_themselves_are_errors() {
    type Change = fn(&mut Builder);
    let invalid = SW_ERROR_INVALID_ARGUMENT;
    let cases: &[(u32, &str, Change)] = &[
        (invalid, "before it exists", |b| b.nodes[0].inputs[0] = b.nodes[2].outputs[0]),
        (invalid, "before it exists", |b| b.nodes[0].inputs[0] = b.nodes[0].outputs[0]),
        (invalid, "defined twice", |b| b.nodes[1].outputs[0] = b.nodes[0].outputs[0]),
        (invalid, "defined twice", |b| b.nodes[1].outputs[0] = 0),
        (invalid, "defined twice", |b| b.constants[0].0 = 0),
        (invalid, "tensor 77", |b| b.nodes[1].inputs[0] = 77),
        (invalid, "tensor 78", |b| b.nodes[1].outputs[0] = 78),
        (invalid, "tensor 79", |b| b.outputs[0].tensor = 79),
        (invalid, "tensor 80", |b| b.inputs[0].tensor = 80),
        (invalid, "no node computes", |b| {
            let stray = b.tensor("stray", TableEncoding::F32, &[1]);
            b.outputs[0].tensor = stray;
        }),
        (invalid, "is empty", |b| b.tensors[0].shape = vec![0, 6]),
        (SW_ERROR_RESOURCE_LIMIT, "tensor-values", |b| b.tensors[0].shape = vec![u64::MAX, 6]),
        (SW_ERROR_RESOURCE_LIMIT, "tensor-values", |b| b.tensors[0].shape = vec![1 << 40]),
        (invalid, "0 rows", |b| b.rows = 0),
        (invalid, "rows", |b| b.rows = u64::MAX),
        (invalid, "does not match weight `w`", |b| {
            let constant = b.constants[0].0 as usize;
            b.tensors[constant].shape = vec![6, 5];
        }),
    ];
    let host = open(&[]).expect("opened");
    for (class, part, change) in cases {
        let mut b = simple();
        change(&mut b);
        refused(host.check(b.build()), *class, part);
        refused(host.compile(&[b.build()], &[]).map(|_| ()), *class, part);
        refused(host.estimate(b.build()), *class, part);
    }
}

#[test]
fn compiling_names_the_node_and_its_layer() {
    let host = open(&[]).expect("opened");
    let mut b = simple();
    b.nodes[2].op = 999;
    let failure = host.compile(&[b.build()], &[]).map(|_| ()).expect_err("refused");
    assert_eq!(
        (failure.class, failure.detail("node"), failure.detail("layer")),
        (SW_ERROR_UNSUPPORTED_OP, Some("node.2"), Some("3"))
    );
    // A node that no output depends on does not prevent compilation.
    let mut b = simple();
    let x = b.nodes[0].outputs[0];
    b.unary(999, x, vec![]);
    let compiled = host.compile(&[b.build()], &[]).expect("compiled");
    assert_eq!(compiled.placements, [(0, 3, "none".to_owned())]);
}

#[test]
fn bindings_are_encoded_as_their_tensors_are() {
    let host = open(&[]).expect("opened");
    for change in [
        |b: &mut Builder| b.inputs[0].dtype = Some(SW_DTYPE_F16),
        |b: &mut Builder| b.outputs[0].dtype = Some(SW_DTYPE_I16),
    ] {
        let mut b = simple();
        change(&mut b);
        refused(host.compile(&[b.build()], &[]).map(|_| ()), SW_ERROR_UNSUPPORTED_OP, "but its tensor has 1");
    }
}

#[test]
fn weights_must_have_the_bytes_of_their_shape() {
    let host = open(&[]).expect("opened");
    for (length, missing, part) in
        [(58u64, false, "58 bytes"), (0, false, "0 bytes"), (60, true, "has no bytes in this call")]
    {
        let mut w = weight("short", &[5, 6], &values(30, 1, 1.0), SW_DTYPE_BF16);
        // SAFETY: this is a copy of the struct, with another length or without bytes.
        let mut raw = unsafe { std::ptr::read(w.raw) };
        raw.length = length;
        if missing {
            raw.data = std::ptr::null();
        }
        w.raw = tables::leak(raw);
        let mut b = Builder::new("decode_4@8", SW_ENTRY_DECODE, 4, 8);
        let x = b.input("hidden", SW_ROLE_HIDDEN, &[4, 6]);
        let y = b.linear(x, &w);
        b.output("tap", SW_ROLE_TAP, y);
        refused(host.compile(&[b.build()], &[]).map(|_| ()), SW_ERROR_INVALID_ARGUMENT, part);
        // Checking reads no bytes.
        assert!(
            host.check(b.build()).expect("checked").iter().all(|(verdict, _)| *verdict == SW_VERDICT_TAKEN)
        );
    }
}

#[test]
fn states_are_updated_in_place() {
    type Change = fn(&mut Builder);
    let cases: &[(&str, Change)] = &[
        ("updates a value that is not a bound state", |b| b.inputs[3].role = SW_ROLE_HIDDEN),
        ("is updated but not an output", |b| {
            b.outputs.remove(0);
        }),
        ("is not an update of the input of that name", |b| b.outputs[0].name = "layer.1.k".into()),
        ("is not an update of the input of that name", |b| b.outputs[0].tensor = b.inputs[0].tensor),
        ("as it was before its update", |b| b.nodes[1].inputs[1] = b.nodes[0].inputs[0]),
    ];
    let host = open(&[]).expect("opened");
    for (part, change) in cases {
        let mut b = stateful();
        change(&mut b);
        refused(host.compile(&[b.build()], &[]).map(|_| ()), SW_ERROR_INVALID_ARGUMENT, part);
    }
    // A state that is only read is bound as read-only.
    let mut b = stateful();
    let state = b.inputs[3].tensor;
    b.nodes[1].inputs[1..3].fill(state);
    b.outputs.remove(0);
    let artefact = host.compile(&[b.build()], &[]).expect("compiled").artefact;
    let loaded = host.load(&artefact, &[]).expect("loaded");
    let direction = |name: &str| {
        loaded.entries[0].1.iter().find(|binding| binding.name == name).expect("bound").direction
    };
    assert_eq!(direction("layer.0.k"), SW_BINDING_STATE_READ);
}

#[test]
fn bindings_are_listed_in_order() {
    let host = open(&[]).expect("opened");
    let artefact = host.compile(&[stateful().build()], &[]).expect("compiled").artefact;
    let loaded = host.load(&artefact, &[]).expect("loaded");
    let (name, bindings) = &loaded.entries[0];
    let listed: Vec<(&str, u32, u32, u32, u64)> =
        bindings.iter().map(|b| (b.name.as_str(), b.direction, b.dtype, b.update, b.bytes)).collect();
    assert_eq!(name, "decode_4@8");
    assert_eq!(
        listed,
        [
            ("hidden", SW_BINDING_INPUT, SW_DTYPE_F32, SW_UPDATE_NONE, 96),
            ("positions", SW_BINDING_INPUT, SW_DTYPE_I32, SW_UPDATE_NONE, 16),
            ("slots", SW_BINDING_INPUT, SW_DTYPE_I32, SW_UPDATE_NONE, 16),
            ("layer.0.k", SW_BINDING_STATE, SW_DTYPE_F32, SW_UPDATE_IN_GRAPH, 192),
            ("tap", SW_BINDING_OUTPUT, SW_DTYPE_F32, SW_UPDATE_NONE, 96),
        ]
    );
}

#[test]
fn impossible_runs_fail_and_the_next_one_is_right() {
    let host = open(&[]).expect("opened");
    let artefact = host.compile(&[stateful().build()], &[]).expect("compiled").artefact;
    let mut loaded = host.load(&artefact, &[]).expect("loaded");
    let mut run = |rows: usize, deadline: u64, change: &dyn Fn(&mut HashMap<String, Bound>)| {
        let mut bound = bound_for_stateful();
        change(&mut bound);
        loaded.run_until("decode_4@8", rows, &mut bound, deadline).map(|()| bits(bound["tap"].f32()))
    };
    let expected = run(4, 0, &|_| {}).expect("ran");
    let invalid = SW_ERROR_INVALID_ARGUMENT;
    let slots = |values: [i32; 4]| {
        move |b: &mut HashMap<String, Bound>| {
            b.insert("slots".into(), Bound::I32(values.to_vec()));
        }
    };
    let positions = |values: [i32; 4]| {
        move |b: &mut HashMap<String, Bound>| {
            b.insert("positions".into(), Bound::I32(values.to_vec()));
        }
    };
    refused(run(0, 0, &|_| {}), invalid, "rows");
    refused(run(5, 0, &|_| {}), invalid, "rows");
    refused(run(4, 0, &slots([0, 1, 8, 3])), invalid, "row 2 goes to slot 8, the state has 8 rows");
    refused(run(4, 0, &slots([0, 1, -2, 3])), invalid, "slot -2");
    refused(run(4, 0, &positions([0, 1, 2, -1])), invalid, "row 3 is at position -1");
    refused(run(4, 1, &|_| {}), SW_ERROR_DEADLINE, "deadline");
    assert_eq!(run(4, 0, &|_| {}).expect("ran"), expected);
    assert_eq!(run(4, 60_000_000_000, &|_| {}).expect("ran"), expected);
    // Rows beyond the valid ones are ignored.
    assert!(run(2, 0, &slots([0, 1, 99, -7])).is_ok() && run(2, 0, &positions([0, 1, -5, -6])).is_ok());
}

#[test]
fn rows_beyond_touch_no_state() {
    let host = open(&[]).expect("opened");
    let artefact = host.compile(&[stateful().build()], &[]).expect("compiled").artefact;
    let mut loaded = host.load(&artefact, &[]).expect("loaded");
    let mut bound = bound_for_stateful();
    loaded.run("decode_4@8", 2, &mut bound).expect("ran");
    let state = bound["layer.0.k"].f32();
    assert_eq!(&state[..12], &bound["hidden"].f32()[..12]);
    assert!(state[12..].iter().all(|value| *value == 0.0));
}

#[test]
fn a_run_can_be_cancelled_from_another_thread() {
    let host = open(&[("threads", "1")]).expect("opened");
    let mut b = Builder::new("encode_64", SW_ENTRY_ENCODE, 64, 64);
    let w = weight("w", &[512, 512], &values(512 * 512, 1, 0.05), SW_DTYPE_F32);
    let mut x = b.input("x", SW_ROLE_GATHERED, &[64, 512]);
    let w = b.constant(&w);
    for _ in 0..4000 {
        x = b.node(SW_OP_LINEAR, &[x, w], &[64, 512], vec![]);
    }
    b.output("y", SW_ROLE_TAP, x);
    let artefact = host.compile(&[b.build()], &[]).expect("compiled").artefact;
    let mut loaded = host.load(&artefact, &[]).expect("loaded");
    let mut bound = HashMap::from([("x".to_owned(), Bound::F32(values(64 * 512, 2, 1.0)))]);
    // The raw address lets the run keep the exclusive reference meanwhile, as the contract allows.
    let address = std::ptr::from_ref(&loaded) as usize;
    let finished = std::sync::atomic::AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !finished.load(std::sync::atomic::Ordering::Relaxed) {
                std::thread::sleep(std::time::Duration::from_millis(5));
                // SAFETY: the shard outlives the scope, and cancelling is allowed from any thread.
                unsafe { (*(address as *const Loaded<'_>)).cancel() };
            }
        });
        let result = loaded.run("encode_64", 64, &mut bound);
        finished.store(true, std::sync::atomic::Ordering::Relaxed);
        result
    });
    refused(result, SW_ERROR_CANCELLED, "cancelled");
}

#[test]
fn a_compilation_can_be_cancelled() {
    let host = open(&[]).expect("opened");
    let entry = simple().build();
    refused(host.compile_until(&[entry], &[], 1).map(|_| ()), SW_ERROR_CANCELLED, "cancelled");
    let w = weight("w", &[1000, 1000], &vec![0.5; 1_000_000], SW_DTYPE_F32);
    let mut b = Builder::new("decode_1@8", SW_ENTRY_DECODE, 1, 8);
    let x = b.input("hidden", SW_ROLE_HIDDEN, &[1, 1000]);
    let y = b.linear(x, &w);
    b.output("tap", SW_ROLE_TAP, y);
    refused(host.compile_until(&[b.build()], &[], 20).map(|_| ()), SW_ERROR_CANCELLED, "cancelled");
}

#[test]
fn two_shards_run_at_the_same_time_on_shared_threads() {
    let host = open(&[("threads", "2")]).expect("opened");
    let artefact = host.compile(&[stateful().build()], &[]).expect("compiled").artefact;
    let expected = {
        let mut bound = bound_for_stateful();
        host.load(&artefact, &[]).expect("loaded").run("decode_4@8", 4, &mut bound).expect("ran");
        bits(bound["tap"].f32())
    };
    let mut shards: Vec<Loaded<'_>> = (0..3).map(|_| host.load(&artefact, &[]).expect("loaded")).collect();
    std::thread::scope(|scope| {
        for shard in &mut shards {
            let expected = &expected;
            scope.spawn(move || {
                for _ in 0..200 {
                    let mut bound = bound_for_stateful();
                    shard.run("decode_4@8", 4, &mut bound).expect("ran");
                    assert_eq!(&bits(bound["tap"].f32()), expected);
                }
            });
        }
    });
}

/// Builds `x → linear → tap` with a weight.
fn product_with(w: &Weight) -> Builder {
    let mut b = Builder::new("decode_4@8", SW_ENTRY_DECODE, 4, 8);
    let x = b.input("hidden", SW_ROLE_HIDDEN, &[4, 70]);
    let y = b.linear(x, w);
    b.output("tap", SW_ROLE_TAP, y);
    b
}

/// Multiplies quantised rows with the weight. The rows have a scale for every `block` values with
/// version 2, and one scale with version 1.
fn dynamic_with(w: &Weight, block: i64, version: u32) -> Builder {
    let mut b = Builder::new("decode_4@8", SW_ENTRY_DECODE, 4, 8);
    let x = b.input("hidden", SW_ROLE_HIDDEN, &[4, 70]);
    let w = b.constant(w);
    let y = b.block_linear(&[x, w], &[4, 5], block);
    b.nodes[0].version = version;
    b.output("tap", SW_ROLE_TAP, y);
    b
}

/// Creates four-bit weights `[5, 70]`, in blocks of 32 or per channel.
fn packed(in_blocks: bool) -> Weight {
    let stored: Vec<i32> = (0..350).map(|i| i * 7 % 16 - 8).collect();
    let (kind, scales) = match in_blocks {
        true => ((SW_QUANTISATION_PER_BLOCK, 32), vec![0.25; 15]),
        false => ((SW_QUANTISATION_PER_CHANNEL, 0), vec![0.25; 5]),
    };
    integers("packed", &[5, 70], &stored, SW_DTYPE_I4, kind, &scales, 0)
}

/// Returns the weight with a modified quantisation table.
fn forged(w: &Weight, change: impl Fn(&mut SwQuantisation)) -> Weight {
    // SAFETY: copies of structs that live as long as the process.
    let (mut raw, mut q) = unsafe { (std::ptr::read(w.raw), std::ptr::read(w.raw.quantisation)) };
    change(&mut q);
    raw.quantisation = tables::leak(q);
    Weight { raw: tables::leak(raw), ..w.clone() }
}

#[test]
fn quantisation_tables_that_contradict_themselves_are_errors() {
    type Change = fn(&mut SwQuantisation);
    // The first field is true if `check` rejects the weight, and false if only compilation does,
    // which reads the scales.
    let cases: &[(bool, &str, Change)] = &[
        (true, "14 scales for [5, 70], expected 15", |q| q.scale_count = 14),
        (true, "16 scales", |q| q.scale_count = 16),
        (true, "blocks of 0 elements", |q| q.block = 0),
        (true, "quantisation kind 9", |q| q.kind = 9),
        (true, "rank 2", |q| q.axis = 2),
        (true, "8 bits for element type 10", |q| q.bits = 8),
        (true, "`sw_quantisation` has 8 bytes, expected at least 64", |q| q.size = 8),
        (true, "zero point 8", |q| {
            q.zero_points = tables::list(vec![8]);
            q.zero_point_count = 1;
        }),
        (false, "scale 7 is NaN", |q| {
            let mut scales = vec![0x3400u16; 15];
            scales[7] = 0x7e00;
            q.scales = tables::list(scales).cast();
        }),
        (false, "scale 14 is inf", |q| {
            let mut scales = vec![0x3400u16; 15];
            scales[14] = 0x7c00;
            q.scales = tables::list(scales).cast();
        }),
        (false, "the scales have no bytes in this call", |q| q.scales = std::ptr::null()),
    ];
    let host = open(&[]).expect("opened");
    for (at_once, part, change) in cases {
        let entry = product_with(&forged(&packed(true), change)).build();
        if *at_once {
            refused(host.check(entry), SW_ERROR_INVALID_ARGUMENT, part);
            refused(host.estimate(entry), SW_ERROR_INVALID_ARGUMENT, part);
        } else {
            assert_eq!(host.check(entry).expect("checked")[0].0, SW_VERDICT_TAKEN, "{part}");
            assert!(host.estimate(entry).expect("estimated").expect("an estimate").uncosted.is_empty());
        }
        refused(host.compile(&[entry], &[]).map(|_| ()), SW_ERROR_INVALID_ARGUMENT, part);
    }
}

/// `check` sees weights without their numbers, and `compile` must give the same verdict with them.
#[test]
fn verdicts_on_blocks_do_not_depend_on_their_numbers() {
    let host = open(&[]).expect("opened");
    for (minimum, zero_point) in [(false, 0), (false, -8), (true, 0), (true, -8)] {
        for scale_dtype in [SW_DTYPE_F16, SW_DTYPE_F32] {
            let count = if minimum { 30 } else { 15 };
            let made = forged(&packed(true), |q| {
                if minimum {
                    q.kind = SW_QUANTISATION_PER_BLOCK_WITH_MINIMUM;
                }
                (q.scale_dtype, q.scale_count) = (scale_dtype, count as u64);
                q.scales = match scale_dtype {
                    SW_DTYPE_F16 => tables::list(vec![0x3400u16; count]).cast(),
                    // Not exact in f16.
                    _ => tables::list(vec![0.1f32; count]).cast(),
                };
                (q.zero_points, q.zero_point_count) = (tables::list(vec![zero_point]), 1);
            });
            let planned = made.without_bytes();
            let operations = |w: &Weight| [product_with(w), dynamic_with(w, 0, 1), dynamic_with(w, 32, 2)];
            for builder in operations(&planned).iter().chain(&operations(&made)) {
                let (verdict, reason) = host.check(builder.build()).expect("checked").remove(0);
                assert_eq!(verdict, SW_VERDICT_TAKEN, "{minimum} {zero_point} {scale_dtype}: {reason}");
            }
            for builder in operations(&made) {
                host.compile(&[builder.build()], &[]).expect("compiled");
            }
        }
    }
}

#[test]
fn unsupported_formats_are_refused_with_a_reason() {
    type Change = fn(&mut SwQuantisation);
    let host = open(&[]).expect("opened");
    let reason = |b: &Builder| {
        let verdicts = host.check(b.build()).expect("checked");
        let (verdict, reason) = verdicts.last().expect("a node").clone();
        assert_eq!(verdict, SW_VERDICT_REFUSED);
        let class = host.compile(&[b.build()], &[]).map(|_| ()).expect_err("refused").class;
        assert!(matches!(class, SW_ERROR_UNSUPPORTED_OP | SW_ERROR_INVALID_ARGUMENT), "{class}");
        reason
    };
    let tables: &[(bool, &str, Change)] = &[
        (false, "scales per channel of axis 1, only axis 0 is supported", |q| {
            (q.axis, q.scale_count) = (1, 70);
            q.scales = tables::list(vec![1.0f32; 70]).cast();
        }),
        (true, "scales per block along axis 0 of 2, only the last is supported", |q| {
            (q.axis, q.block, q.scale_count) = (0, 5, 70);
            q.scales = tables::list(vec![0x3400u16; 70]).cast();
        }),
        (false, "scales per tensor or per channel are f16, only f32 is supported", |q| {
            q.scale_dtype = SW_DTYPE_F16;
        }),
        (false, "scales of element type 3, only f32 and f16 are supported", |q| {
            q.scale_dtype = SW_DTYPE_BF16
        }),
        (false, "with a zero point is not supported", |q| {
            q.zero_points = tables::list(vec![1]);
            q.zero_point_count = 1;
        }),
        (false, "zero points differ", |q| {
            q.zero_points = tables::list(vec![1, 1, 1, 2, 1]);
            q.zero_point_count = 5;
        }),
    ];
    for (in_blocks, part, change) in tables {
        let got = reason(&product_with(&forged(&packed(*in_blocks), change)));
        assert!(got.contains(part), "`{part}` not in `{got}`");
    }
    // Scales in f32 that are exact in f16 are supported and give the same result.
    let wide = |q: &mut SwQuantisation| {
        q.scale_dtype = SW_DTYPE_F32;
        q.scales = tables::list(vec![0.25f32; 15]).cast();
    };
    // A zero point is supported only in blocks.
    let shifted = forged(&packed(false), |q| {
        (q.zero_points, q.zero_point_count) = (tables::list(vec![1]), 1);
    });
    let got = reason(&dynamic_with(&shifted, 0, 1));
    assert!(got.contains("integers with zero point 1 cannot be multiplied directly"), "{got}");
    let in_blocks = |size: u64| {
        let stored: Vec<i32> = (0..350).map(|i| i * 7 % 16 - 8).collect();
        let scales = vec![0.25; 5 * 70usize.div_ceil(size as usize)];
        integers("i", &[5, 70], &stored, SW_DTYPE_I4, (SW_QUANTISATION_PER_BLOCK, size), &scales, 0)
    };
    for (weight, block, version, part) in [
        (in_blocks(8), 32, 2, "blocks of 8 weights do not align with blocks of 32 activations"),
        (in_blocks(48), 32, 2, "blocks of 48 weights"),
        (packed(true), 16, 2, "rows are quantised in blocks of 16, only 32 is supported"),
        (packed(true), -1, 2, "attribute `block` is -1"),
        (packed(true), 32, 3, "version 3 of op 11 is unknown, expected at most 2"),
    ] {
        let got = reason(&dynamic_with(&weight, block, version));
        assert!(got.contains(part), "`{part}` not in `{got}`");
    }
    for weight in [in_blocks(16), in_blocks(32), in_blocks(64), in_blocks(70), packed(false)] {
        host.compile(&[dynamic_with(&weight, 32, 2).build()], &[]).expect("compiled");
    }
    let artefact = |w: &Weight| {
        let compiled = host.compile(&[product_with(w).build()], &[]).expect("compiled");
        compiled.artefact.bytes().to_vec()
    };
    assert!(artefact(&packed(true)) == artefact(&forged(&packed(true), wide)));
    let bytes: Vec<i32> = (0..350).map(|i| i % 200 - 100).collect();
    let pairs: Vec<i32> = (0..350).map(|i| i % 4 - 2).collect();
    let blocks = integers("b", &[5, 70], &pairs, SW_DTYPE_I2, (SW_QUANTISATION_PER_BLOCK, 32), &[1.0; 15], 0);
    assert!(
        reason(&product_with(&blocks)).contains("scales per block of 2 bits, only 8 and 4 are supported")
    );

    // Packed types can only be used as the matrix of a product.
    let mut b = Builder::new("decode_5@8", SW_ENTRY_DECODE, 5, 8);
    let x = b.input("hidden", SW_ROLE_HIDDEN, &[5, 70]);
    let w = b.constant(&packed(false));
    let y = b.binary(SW_OP_MUL, x, w);
    b.output("tap", SW_ROLE_TAP, y);
    assert!(reason(&b).contains("`weight.1`: 4 bits are supported only as weights of a matrix product"));
    b.nodes[0].op = SW_OP_ADD;
    b.nodes[0].inputs = vec![w, x];
    assert!(reason(&b).contains("input 0 `weight.1`: 4 bits"));
    let mut b = Builder::new("decode_5@8", SW_ENTRY_DECODE, 5, 8);
    let x = b.input("hidden", SW_ROLE_HIDDEN, &[3, 5]);
    let w = b.constant(&packed(false));
    let y = b.mat_mul(x, w, false);
    b.output("tap", SW_ROLE_TAP, y);
    assert!(reason(&b).contains("a matrix of 4 bits is supported only as [outputs, inputs]"));
    // This constant has scales per channel but is not a matrix.
    let mut b = Builder::new("decode_5@8", SW_ENTRY_DECODE, 5, 8);
    let x = b.input("hidden", SW_ROLE_HIDDEN, &[5, 70]);
    let channels =
        integers("c", &[5, 70], &bytes, SW_DTYPE_I8, (SW_QUANTISATION_PER_CHANNEL, 0), &[1.0; 5], 0);
    let w = b.constant(&channels);
    let y = b.binary(SW_OP_MUL, x, w);
    b.output("tap", SW_ROLE_TAP, y);
    assert!(reason(&b).contains("scales per channel of axis 0 are supported only for matrices"));
    // Rows are only quantised for integer weights.
    let mut b = product_with(&weight("w", &[5, 70], &values(350, 1, 1.0), SW_DTYPE_F16));
    b.nodes[0].op = SW_OP_DYNAMIC_LINEAR;
    assert!(reason(&b).contains("signed integers of 8, 4 and 2 bits can be multiplied directly"));
}

#[test]
fn unsupported_encodings_are_refused_with_a_reason() {
    let host = open(&[]).expect("opened");
    let reason = |b: &Builder| host.check(b.build()).expect("checked")[0].clone();
    let mut b = simple();
    b.encode(0, TableEncoding::integers(SW_DTYPE_U16, 0.01, 7));
    assert_eq!(reason(&b).0, SW_VERDICT_TAKEN);
    for (scale, part) in [(0.0, "one valid scale"), (-1.0, "one valid scale"), (1e-42, "one valid scale")] {
        b.encode(0, TableEncoding::integers(SW_DTYPE_U16, scale, 7));
        assert!(reason(&b).1.contains(part), "{}", reason(&b).1);
        refused(host.compile(&[b.build()], &[]).map(|_| ()), SW_ERROR_UNSUPPORTED_OP, part);
    }
    b.encode(0, TableEncoding::integers(SW_DTYPE_U16, f32::NAN, 7));
    refused(host.check(b.build()), SW_ERROR_INVALID_ARGUMENT, "scale 0 is NaN");
    b.encode(0, TableEncoding::integers(SW_DTYPE_U16, 0.1, 70_000));
    refused(host.check(b.build()), SW_ERROR_INVALID_ARGUMENT, "zero point 70000");
    for packed in [SW_DTYPE_I4, SW_DTYPE_I2] {
        let mut b = simple();
        b.encode(0, TableEncoding::integers(packed, 0.1, 0));
        assert!(reason(&b).1.contains("is not supported here"), "{}", reason(&b).1);
    }
    // Operations that only move elements must keep their encoding.
    let mut b = Builder::new("e", SW_ENTRY_ENCODE, 4, 4);
    let x = b.input("x", SW_ROLE_GATHERED, &[4, 4]);
    let y = b.transpose(x, &[1, 0]);
    b.output("y", SW_ROLE_TAP, y);
    b.encode(x, TableEncoding::integers(SW_DTYPE_U16, 0.1, 3));
    for affine in [(0.1, 4), (0.2, 3)] {
        b.encode(y, TableEncoding { dtype: SW_DTYPE_U16, affine: Some(affine) });
        assert!(reason(&b).1.contains("must keep the encoding of input 0 `x`"), "{}", reason(&b).1);
    }
    b.encode(y, TableEncoding::integers(SW_DTYPE_U16, 0.1, 3));
    assert_eq!(reason(&b).0, SW_VERDICT_TAKEN);
    // A port must have the encoding of its tensor.
    let raw = b.build();
    // SAFETY: copies of structs that live as long as the process.
    let (mut entry, mut port) = unsafe { (std::ptr::read(raw), std::ptr::read(*raw.inputs)) };
    port.scale = 0.2;
    entry.inputs = tables::list(vec![tables::leak(port)]).cast();
    let entry = tables::leak(entry);
    refused(host.compile(&[entry], &[]).map(|_| ()), SW_ERROR_UNSUPPORTED_OP, "scale 0.2, zero point 3");
}

#[test]
fn estimates_count_the_bytes_of_formats() {
    let host = open(&[("threads", "2")]).expect("opened");
    let moved =
        |w: &Weight| host.estimate(product_with(w).build()).expect("estimated").expect("an estimate").bytes;
    assert_eq!(moved(&packed(false)), 5 * 35 + 5 * 4);
    assert_eq!(moved(&packed(true)), 5 * 35 + 15 * 2);
    let state = |dtype, affine| {
        let mut b = stateful();
        for tensor in [0, 3, 4] {
            b.encode(tensor, TableEncoding { dtype, affine });
        }
        host.estimate(b.build()).expect("estimated").expect("an estimate").bytes
    };
    assert_eq!(state(SW_DTYPE_F32, None), 8 * 6 * 4 * 2);
    assert_eq!(state(SW_DTYPE_F16, None), 8 * 6 * 2 * 2);
    assert_eq!(state(SW_DTYPE_U8, Some((0.1, 3))), 8 * 6 * 2);
}
