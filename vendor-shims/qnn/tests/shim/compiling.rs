//! Tests of the contents of artefacts. Equal orders must produce equal bytes.

use std::process::Command;

use shardwright_shim_abi::raw::*;

use crate::layer::{Layer, run};
use crate::{Builder, Weight, a8, a16, cosine, host, inspected, library, on, refused, values};

/// Environment variable that makes this program, started again, compile once and print the
/// artefact's hash.
const ALONE: &str = "SHARDWRIGHT_QNN_TEST_ALONE";

fn two_entries(layer: &Layer) -> [&'static SwEntry; 2] {
    [layer.entry("decode_1@8", 1).build(), layer.entry("prefill_64@8", 64).build()]
}

#[test]
fn the_same_order_gives_the_same_bytes() {
    let Some(library) = library() else { return };
    let compile = |device: &str| {
        let layer = Layer::new(64, 256, 4);
        let host = on(&library, device);
        host.compile(&two_entries(&layer), &[("finalize-mode", "2")]).expect("compiled")
    };
    if std::env::var_os(ALONE).is_some() {
        let compiled = compile("sm8850");
        println!("artefact {:?} {:?}", sha256(compiled.artefact.bytes()), sha256(&compiled.head));
        // Later ones differ only in numbers. With other tests in the process, a number may grow by
        // a digit in between and shift the bytes behind it.
        let [a, b] = [compile("sm8850"), compile("sm8850")];
        let (a, b) = (a.artefact.bytes(), b.artefact.bytes());
        let differing = a.iter().zip(b).filter(|(a, b)| a != b).count();
        assert!(
            a.len() == b.len() && differing < 4096,
            "{} and {} bytes, {differing} differ",
            a.len(),
            b.len()
        );
        return;
    }
    // The library numbers tensors for the life of a process, so only the first compilation of a
    // process is always the same.
    let alone = || {
        let program = std::env::current_exe().expect("this program");
        let test = "compiling::the_same_order_gives_the_same_bytes";
        let output = Command::new(program)
            .args([test, "--exact", "--nocapture"])
            .env(ALONE, "1")
            .output()
            .expect("started");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text} {}", String::from_utf8_lossy(&output.stderr));
        let line =
            text.lines().find_map(|line| line.split_once("artefact ")).map(|(_, hashes)| hashes.to_owned());
        line.unwrap_or_else(|| panic!("no artefact: {text}"))
    };
    assert_eq!(alone(), alone());
}

fn sha256(bytes: &[u8]) -> String {
    shardwright_shim_npu::artefact::hash(bytes)
}

#[test]
fn shared_and_unshared_twins_differ_in_sharing_alone() {
    let Some(library) = library() else { return };
    let layer = Layer::new(256, 1024, 8);
    let entries = two_entries(&layer);
    let (phone, simulator) = (on(&library, "sm8850"), on(&library, "sm8850.simulated"));
    let shared = phone.compile(&entries, &[]).expect("compiled");
    let unshared = simulator.compile(&entries, &[]).expect("compiled");
    let (small, large) = (shared.artefact.bytes().len(), unshared.artefact.bytes().len());
    assert!(small < large * 3 / 4, "{small} bytes shared, {large} not");

    let reported = |bytes| inspected(&phone, bytes).expect("answered").expect("an artefact");
    let (format, mut shared_text) = reported(shared.artefact.bytes());
    let (_, mut unshared_text) = reported(unshared.artefact.bytes());
    assert_eq!(format, "qnn-artefact");
    assert_eq!(
        (&shared_text["head"]["is_shared"], &unshared_text["head"]["is_shared"]),
        (&true.into(), &false.into())
    );
    let sizes = |text: &serde_json::Value| {
        let constants =
            |entry: &serde_json::Value| entry["graph"]["sizes"]["shared_bytes"].as_u64().expect("a number");
        text["entries"].as_array().expect("a list").iter().map(constants).sum::<u64>()
    };
    assert!(sizes(&shared_text) > 0 && sizes(&unshared_text) == 0);
    for text in [&mut shared_text, &mut unshared_text] {
        for member in ["is_shared", "binary_bytes", "binary_sha256"] {
            text["head"][member].take();
        }
        for entry in text["entries"].as_array_mut().expect("a list") {
            // Sizes, and numbers that differ between compilations of a process.
            entry["graph"]["sizes"].take();
            for side in ["inputs", "outputs"] {
                entry["graph"][side]
                    .as_array_mut()
                    .expect("a list")
                    .iter_mut()
                    .for_each(|tensor| drop(tensor["id"].take()));
            }
            entry["ports"]
                .as_array_mut()
                .expect("a list")
                .iter_mut()
                .for_each(|port| drop(port["place"].take()));
        }
    }
    assert_eq!(
        (&shared_text["head"], &shared_text["entries"]),
        (&unshared_text["head"], &unshared_text["entries"])
    );

    // The phone supports both and prefers the smaller one. The simulation supports only the
    // artefact without sharing.
    assert_eq!(phone.compatibility(&shared.head).expect("answered").0, SW_COMPATIBILITY_OPTIMAL);
    assert_eq!(phone.compatibility(&unshared.head).expect("answered").0, SW_COMPATIBILITY_RECOMPILE);
    assert_eq!(simulator.compatibility(&unshared.head).expect("answered").0, SW_COMPATIBILITY_OPTIMAL);
    assert_eq!(simulator.compatibility(&shared.head).expect("answered").0, SW_COMPATIBILITY_UNSUPPORTED);
    let failure = refused(
        simulator.load(&shared.artefact, &[]).map(|_| ()),
        SW_ERROR_INCOMPATIBLE_ARTEFACT,
        "share their weights, which the x86-64 library cannot load",
    );
    assert!(failure.detail("help").is_some_and(|help| help.contains("sm8850.simulated")), "{failure:?}");
    let failure = refused(
        phone.load(&unshared.artefact, &[]).map(|_| ()),
        SW_ERROR_INVALID_ARGUMENT,
        "only compiles on this machine",
    );
    assert!(failure.detail("help").is_some_and(|help| help.contains("sm8850.simulated")), "{failure:?}");

    let mut loaded = simulator.load(&unshared.artefact, &[]).expect("loaded");
    let x = values(64 * 256, 7, 4.0);
    let many = run(&mut loaded, "prefill_64@8", 64, &x);
    let expected = layer.expected(&x);
    assert!(cosine(&many, &expected) > 0.9999, "cosine {}", cosine(&many, &expected));
    // Rows are independent of each other and of their number, up to a step of the result.
    let one = run(&mut loaded, "decode_1@8", 1, &x[256..512]);
    let step = 16.0 / 32_768.0;
    let worst = one.iter().zip(&many[256..512]).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    assert!(worst <= 4.0 * step, "{worst}");
}

#[test]
fn one_entry_is_the_same_for_phone_and_simulation() {
    let Some(library) = library() else { return };
    let entry = Layer::new(64, 128, 8).entry("encode_4", 4).build();
    let compiled = on(&library, "sm8650").compile(&[entry], &[]).expect("compiled");
    let simulator = on(&library, "sm8650.simulated");
    assert_eq!(simulator.compatibility(&compiled.head).expect("answered").0, SW_COMPATIBILITY_OPTIMAL);
    assert_eq!(simulator.load(&compiled.artefact, &[]).expect("loaded").entries[0].0, "encode_4");
}

#[test]
fn progress_is_reported_and_cancelling_ends_it() {
    let Some(host) = host("sm8850") else { return };
    let entries = two_entries(&Layer::new(64, 128, 8));
    let compiled = host.compile(&entries, &[]).expect("compiled");
    for stage in
        ["lowering", "handing over `decode_1@8`", "compiling `prefill_64@8`", "serialising", "writing"]
    {
        assert!(
            compiled.stages.iter().any(|reported| reported == stage),
            "{stage} not in {:?}",
            compiled.stages
        );
    }
    for patience in [1, 3, 5, 7] {
        refused(host.compile_until(&entries, &[], patience).map(|_| ()), SW_ERROR_CANCELLED, "cancelled");
    }
}

#[test]
fn what_the_lowering_refuses_names_entry_and_layer() {
    let Some(host) = host("sm8850") else { return };
    let mut b = Builder::new("decode_1@8", SW_ENTRY_DECODE, 1, 8);
    b.layer = 5;
    let x = b.input_as("hidden", SW_ROLE_HIDDEN, &[1, 64], a16(8.0));
    b.encoding = a16(8.0);
    let y = b.unary(999, x, vec![]);
    b.output("hidden.out", SW_ROLE_HIDDEN, y);
    let entry = b.build();
    assert_eq!(host.refusals(entry).expect("checked").len(), 1);
    let failure = refused(host.compile(&[entry], &[]).map(|_| ()), SW_ERROR_UNSUPPORTED_OP, "node.0");
    assert_eq!(failure.detail("layer"), Some("5"), "{failure:?}");
    refused(host.compile(&[], &[]).map(|_| ()), SW_ERROR_INVALID_ARGUMENT, "no entry points");
    let without = Layer::new(64, 128, 8).without_bytes().entry("decode_1@8", 1).build();
    refused(host.compile(&[without], &[]).map(|_| ()), SW_ERROR_INVALID_ARGUMENT, "no bytes");
    // A node on which no output depends is not compiled. This is reported.
    let mut b = Layer::new(64, 128, 8).entry("decode_1@8", 1);
    b.encoding = a16(1.0);
    b.unary(SW_OP_TANH, 0, vec![]);
    let compiled = host.compile(&[b.build()], &[]).expect("compiled");
    assert_eq!(compiled.placements, [(0, 5, "fused".to_owned())]);
    let many: Vec<_> =
        (0..65).map(|n| Layer::new(64, 64, 8).entry(&format!("decode_{n}@8"), 1).build()).collect();
    let failure = refused(host.compile(&many, &[]).map(|_| ()), SW_ERROR_RESOURCE_LIMIT, "entries is 65");
    assert_eq!(failure.detail("max"), Some("64"));
}

/// The run reads a state and also the rows it adds.
#[test]
fn states_are_read_and_new_rows_are_returned() {
    let Some(host) = host("sm8750.simulated") else { return };
    let state = a8(2.0);
    let weight = Weight::matrix("k", [64, 64], &values(64 * 64, 9, 0.1), 8);
    let mut b = Builder::new("decode_4@8", SW_ENTRY_DECODE, 4, 8);
    let x = b.input_as("hidden", SW_ROLE_HIDDEN, &[4, 64], a16(4.0));
    let existing = b.input_as("layer.0.k", SW_ROLE_STATE, &[8, 64], state);
    b.encoding = a16(4.0);
    let keys = b.linear(x, &weight);
    b.encoding = state;
    let rows = b.unary(SW_OP_CONVERT, keys, vec![]);
    let all = b.concat(&[existing, rows], 0);
    b.encoding = a16(64.0);
    let scores = b.mat_mul(x, all, true);
    b.output("layer.0.k.rows", SW_ROLE_STATE_ROWS, rows);
    b.output("tap", SW_ROLE_TAP, scores);
    b.inputs[1].index = 4;
    b.outputs[0].index = 4;
    let entry = b.build();
    assert_eq!(host.refusals(entry).expect("checked"), []);
    let compiled = host.compile(&[entry], &[]).expect("compiled");
    let mut loaded = host.load(&compiled.artefact, &[]).expect("loaded");
    let bindings = loaded.bindings("decode_4@8").to_vec();
    let binding = |name: &str| bindings.iter().find(|binding| binding.name == name).expect("a binding");
    let reported = |name: &str| {
        let binding = binding(name);
        (binding.direction, binding.role, binding.dtype, binding.update, binding.bytes)
    };
    assert_eq!(reported("hidden"), (SW_BINDING_INPUT, SW_ROLE_HIDDEN, SW_DTYPE_U16, SW_UPDATE_NONE, 512));
    assert_eq!(
        reported("layer.0.k"),
        (SW_BINDING_STATE_READ, SW_ROLE_STATE, SW_DTYPE_U8, SW_UPDATE_BY_RUNTIME, 512)
    );
    assert_eq!(
        reported("layer.0.k.rows"),
        (SW_BINDING_OUTPUT, SW_ROLE_STATE_ROWS, SW_DTYPE_U8, SW_UPDATE_NONE, 256)
    );
    assert_eq!(reported("tap"), (SW_BINDING_OUTPUT, SW_ROLE_TAP, SW_DTYPE_U16, SW_UPDATE_NONE, 96));
    assert_eq!(
        (binding("layer.0.k").scale, binding("layer.0.k").zero_point),
        (f64::from(2.0f32 / 128.0), 128)
    );
    assert_eq!(binding("layer.0.k").shape, [8, 64]);

    let (x, existing) = (values(4 * 64, 1, 3.0), values(8 * 64, 2, 1.5));
    let mut bound = std::collections::HashMap::from([
        ("hidden".to_owned(), a16(4.0).encode_f32(&x)),
        ("layer.0.k".to_owned(), state.encode_f32(&existing)),
    ]);
    loaded.run("decode_4@8", 4, &mut bound).expect("run");
    let rows = state.decode_f32(&bound["layer.0.k.rows"]);
    let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    for (row, x) in x.chunks(64).enumerate() {
        for (column, weights) in weight.values.chunks(64).enumerate() {
            let (found, exact) = (rows[row * 64 + column], product(x, weights).clamp(-2.0, 2.0));
            assert!(
                (found - exact).abs() <= 1.01 * 2.0 / 128.0,
                "row {row} column {column}: {found}, not {exact}"
            );
        }
    }
    let all: Vec<f32> = state.decode_f32(&state.encode_f32(&existing)).into_iter().chain(rows).collect();
    let expected: Vec<f32> =
        x.chunks(64).flat_map(|x| all.chunks(64).map(|key| product(x, key)).collect::<Vec<_>>()).collect();
    let scores = a16(64.0).decode_f32(&bound["tap"]);
    assert!(cosine(&scores, &expected) > 0.9999, "cosine {}", cosine(&scores, &expected));
}
