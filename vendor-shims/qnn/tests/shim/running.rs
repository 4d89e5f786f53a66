//! Tests that compiled graphs compute the expected results.

use std::collections::HashMap;

use shardwright_shim_abi::raw::*;

use crate::layer::{Layer, run};
use crate::{Builder, TableEncoding, cosine, host, library, on, values};

#[test]
fn a_layer_is_compiled_simulated_and_right() {
    let Some(host) = host("sm8850.simulated") else { return };
    let layer = Layer::new(64, 128, 8);
    let entry = layer.entry("decode_4@8", 4).build();
    assert_eq!(host.refusals(entry).expect("checked"), []);
    let compiled = host.compile(&[entry], &[]).expect("compiled");
    assert_eq!(host.compatibility(&compiled.head).expect("answered").0, SW_COMPATIBILITY_OPTIMAL);
    let mut loaded = host.load(&compiled.artefact, &[]).expect("loaded");
    let x = values(4 * 64, 5, 4.0);
    let found = run(&mut loaded, "decode_4@8", 4, &x);
    let expected = layer.expected(&x);
    let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    let cosine = cosine(&found, &expected);
    assert!(cosine > 0.9999 && worst < 0.02, "cosine {cosine}, worst {worst}");
}

/// The contents of invalid rows, even NaN, must not affect valid rows.
#[test]
fn rows_beyond_the_valid_ones_are_not_seen() {
    let Some(host) = host("sm8850.simulated") else { return };
    let mut b = Builder::new("encode_4", SW_ENTRY_ENCODE, 4, 4);
    let x = b.input_as("hidden", SW_ROLE_HIDDEN, &[4, 64], TableEncoding::F16);
    b.encoding = TableEncoding::F16;
    let scores = b.mat_mul(x, x, true);
    b.output("tap", SW_ROLE_TAP, scores);
    let entry = b.build();
    assert_eq!(host.refusals(entry).expect("checked"), []);
    let compiled = host.compile(&[entry], &[]).expect("compiled");
    let mut loaded = host.load(&compiled.artefact, &[]).expect("loaded");
    let mut x = values(4 * 64, 5, 1.0);
    x[2 * 64..].fill(f32::NAN);
    let mut bound = HashMap::from([("hidden".to_owned(), TableEncoding::F16.encode_f32(&x))]);
    for _ in 0..2 {
        loaded.run("encode_4", 2, &mut bound).expect("run");
        let scores = TableEncoding::F16.decode_f32(&bound["tap"]);
        let exact: f32 = x[..64].iter().zip(&x[64..128]).map(|(a, b)| a * b).sum();
        assert!(
            (scores[1] - exact).abs() < 0.02 && scores[2] == 0.0 && scores[3] == 0.0,
            "{scores:?}, {exact}"
        );
    }
    // Bound memory is unchanged.
    assert!(TableEncoding::F16.decode_f32(&bound["hidden"])[3 * 64].is_nan());
}

/// The simulation has one fast memory. Before the workaround, a graph that had to yield it became
/// invalid.
#[test]
fn shards_run_beside_each_other_and_beside_a_compilation() {
    let Some(library) = library() else { return };
    let layer = Layer::new(256, 1024, 8);
    let x = values(32 * 256, 5, 4.0);
    std::thread::scope(|scope| {
        let run_often = || {
            let host = on(&library, "sm8850.simulated");
            let compiled = host.compile(&[layer.entry("decode_32@32", 32).build()], &[]).expect("compiled");
            let mut loaded = host.load(&compiled.artefact, &[]).expect("loaded");
            let first = run(&mut loaded, "decode_32@32", 32, &x);
            for _ in 0..20 {
                assert_eq!(run(&mut loaded, "decode_32@32", 32, &x), first);
            }
            first
        };
        let others = [(); 2].map(|()| scope.spawn(run_often));
        // Also with other sizes of the fast memory.
        for (rows, megabytes) in [(1, "8"), (2, "4"), (3, "8"), (4, "2")] {
            let host = on(&library, "sm8550");
            host.compile(&[layer.entry("decode@8", rows).build()], &[("vtcm-megabytes", megabytes)])
                .expect("compiled");
        }
        let [a, b] = others.map(|other| other.join().expect("no panic"));
        assert_eq!(a, b);
    });
}
