//! Checks that a run that requests only the top-k logits returns the same values as a run that
//! computes all logits.

use std::collections::HashMap;

use crate::support::*;
use shardwright_shim_abi::raw::*;
use shardwright_shim_cpu::artefact::Artefact;
use shardwright_shim_cpu::kernels::integer::split::ROWS;
use shardwright_shim_cpu::program::Step;
use shardwright_shim_cpu::simd::Level;

const WIDTH: u64 = 256;
const VOCABULARY: u64 = 3000;
/// Values of the flag `head`. With `measured`, steps alternate between the other two.
const WAYS: [&str; 3] = ["measured", "bounds", "all"];

fn weights_of_head() -> Weight {
    let stored = values((VOCABULARY * WIDTH) as usize, 1, 127.0);
    let stored: Vec<i32> = stored.iter().map(|value| *value as i32).collect();
    let scales = values(VOCABULARY as usize, 2, 0.01);
    let scales: Vec<f32> = scales.iter().map(|scale| 0.01 + scale.abs()).collect();
    let kind = (SW_QUANTISATION_PER_CHANNEL, 0);
    integers("head", &[VOCABULARY, WIDTH], &stored, SW_DTYPE_I8, kind, &scales, 0)
}

/// Builds a norm and a head, whose logits may be capped. With `read`, another node also reads the
/// logits.
fn head(rows: u64, cap: Option<f32>, read: bool) -> Builder {
    head_of(&weights_of_head(), rows, cap, read)
}

fn head_of(weights: &Weight, rows: u64, cap: Option<f32>, read: bool) -> Builder {
    let mut b = Builder::new(&format!("decode_{rows}@64"), SW_ENTRY_DECODE, rows, 64);
    let w = b.constant(weights);
    let x = b.input("x", SW_ROLE_HIDDEN, &[rows, WIDTH]);
    let norm = weight("norm", &[WIDTH], &values(WIDTH as usize, 3, 1.0), SW_DTYPE_F32);
    let normed = b.norm(x, Some(&norm), WIDTH, 1.0);
    let mut logits = b.node(SW_OP_DYNAMIC_LINEAR, &[normed, w], &[rows, VOCABULARY], vec![]);
    if let Some(cap) = cap {
        logits = b.unary(SW_OP_SOFTCAP, logits, vec![Attribute::Float("cap", cap.into())]);
    }
    b.output("logits", SW_ROLE_LOGITS, logits);
    if read {
        let tanh = b.unary(SW_OP_TANH, logits, vec![]);
        b.output("tap", SW_ROLE_TAP, tanh);
    }
    b
}

fn is_split(artefact: &Region) -> bool {
    let program = Artefact::read(artefact.bytes()).expect("readable").program;
    let steps: Vec<&Step> = program.entries.iter().flat_map(|entry| &entry.steps).collect();
    let split = steps.iter().filter(|step| matches!(step, Step::SplitLinear(_))).count();
    let whole = steps.iter().filter(|step| matches!(step, Step::DynamicLinear(_))).count();
    assert_eq!(split + whole, program.entries.len());
    split > 0
}

fn largest_of(logits: &[f32], wanted: usize) -> Vec<u32> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].partial_cmp(&logits[*a]).expect("numbers").then(a.cmp(b)));
    let mut left = vec![f32::MIN; logits.len()];
    order[..wanted].iter().for_each(|index| left[*index] = logits[*index]);
    bits(&left)
}

#[test]
fn the_largest_logits_equal_those_of_a_full_run() {
    // The caps are far above all logits, within their range, and close to many of them.
    for cap in [None, Some(1e4), Some(30.0), Some(0.5)] {
        WAYS.iter().for_each(|way| largest_are_those_of_all(cap, way));
    }
}

fn largest_are_those_of_all(cap: Option<f32>, way: &str) {
    let host = open(&[]).expect("opened");
    let artefact = host.compile(&[head(1, cap, false).build()], &[]).expect("compiled").artefact;
    assert!(is_split(&artefact));
    for level in Level::available() {
        for threads in ["1", "2", "4"] {
            let options =
                [("threads", threads), ("simd", level.name()), ("verify-weights", "true"), ("head", way)];
            let mut loaded = host.load(&artefact, &options).expect("loaded");
            for seed in 0..8 {
                let x = Bound::F32(values(WIDTH as usize, seed, 3.0));
                let mut bound = HashMap::from([("x".to_owned(), x)]);
                loaded.run("decode_1@64", 1, &mut bound).expect("ran");
                let all = bound["logits"].f32().to_vec();
                let most = cap.unwrap_or(f32::MAX);
                assert!(all.iter().all(|logit| *logit > f32::MIN && logit.abs() <= most));
                for wanted in [1, 5, 64, 256] {
                    loaded.run_for_largest("decode_1@64", 1, &mut bound, wanted).expect("ran");
                    let same = bits(bound["logits"].f32()) == largest_of(&all, wanted as usize);
                    assert!(same, "{wanted} wanted, head={way}");
                }
                // If more logits are requested than the search supports, or than exist, all are
                // returned.
                for wanted in [257, VOCABULARY, u64::MAX] {
                    loaded.run_for_largest("decode_1@64", 1, &mut bound, wanted).expect("ran");
                    assert_eq!(bits(bound["logits"].f32()), bits(&all), "{wanted} wanted");
                }
            }
        }
    }
}

#[test]
fn logits_that_others_read_are_never_left_out() {
    let host = open(&[("threads", "2")]).expect("opened");
    for cap in [None, Some(30.0)] {
        never_left_out(&host, cap);
    }
}

fn never_left_out(host: &Host, cap: Option<f32>) {
    let artefact = host.compile(&[head(1, cap, true).build()], &[]).expect("compiled").artefact;
    assert!(!is_split(&artefact));
    let x = Bound::F32(values(WIDTH as usize, 9, 3.0));
    let mut loaded = host.load(&artefact, &[]).expect("loaded");
    let mut bound = HashMap::from([("x".to_owned(), x)]);
    loaded.run("decode_1@64", 1, &mut bound).expect("ran");
    let all = bits(bound["logits"].f32());
    loaded.run_for_largest("decode_1@64", 1, &mut bound, 1).expect("ran");
    assert_eq!(bits(bound["logits"].f32()), all);
}

/// A shard with a prefill entry, which has no logits. Its head still has single rows only.
#[test]
fn a_head_of_single_rows_is_split_beside_entries_of_several() {
    let host = open(&[("threads", "2")]).expect("opened");
    let mut prefill = Builder::new("prefill_4@64", SW_ENTRY_PREFILL, 4, 64);
    let stored: Vec<i32> =
        values((WIDTH * WIDTH) as usize, 5, 127.0).iter().map(|value| *value as i32).collect();
    let (kind, scales) = ((SW_QUANTISATION_PER_CHANNEL, 0), vec![0.01; WIDTH as usize]);
    let other = integers("layer", &[WIDTH, WIDTH], &stored, SW_DTYPE_I8, kind, &scales, 0);
    let w = prefill.constant(&other);
    let x = prefill.input("x", SW_ROLE_HIDDEN, &[4, WIDTH]);
    let y = prefill.node(SW_OP_DYNAMIC_LINEAR, &[x, w], &[4, WIDTH], vec![]);
    prefill.output("y", SW_ROLE_HIDDEN, y);
    let artefact =
        host.compile(&[head(1, None, false).build(), prefill.build()], &[]).expect("compiled").artefact;
    assert!(is_split(&artefact));
}

/// A shard whose entries have one row and a few rows. Each row must have the same logits as alone.
#[test]
fn every_row_of_a_few_has_the_logits_it_has_alone() {
    let host = open(&[("threads", "2")]).expect("opened");
    let weights = weights_of_head();
    let most = ROWS as u64;
    for cap in [None, Some(30.0)] {
        let entries = [1, most].map(|rows| head_of(&weights, rows, cap, false).build());
        let artefact = host.compile(&entries, &[]).expect("compiled").artefact;
        assert!(is_split(&artefact));
        let x = values((most * WIDTH) as usize, 4, 3.0);
        for level in Level::available() {
            let mut loaded = host.load(&artefact, &[("simd", level.name())]).expect("loaded");
            let mut logits = |entry: u64, x: &[f32], rows: usize, wanted: u64| {
                let mut bound = HashMap::from([("x".to_owned(), Bound::F32(x.to_vec()))]);
                loaded.run_for_largest(&format!("decode_{entry}@64"), rows, &mut bound, wanted).expect("ran");
                bits(&bound["logits"].f32()[..rows * VOCABULARY as usize])
            };
            for wanted in [0, 1, 5] {
                let alone: Vec<u32> =
                    x.chunks(WIDTH as usize).flat_map(|x| logits(1, x, 1, wanted)).collect();
                for rows in 1..=ROWS {
                    let expected = &alone[..rows * VOCABULARY as usize];
                    assert!(logits(most, &x, rows, wanted) == expected, "{wanted} of {rows} rows, {cap:?}");
                }
            }
        }
    }
}

#[test]
fn weights_that_many_rows_need_stay_whole() {
    let host = open(&[("threads", "2")]).expect("opened");
    for cap in [None, Some(30.0)] {
        stay_whole(&host, cap);
    }
}

fn stay_whole(host: &Host, cap: Option<f32>) {
    let (weights, many) = (weights_of_head(), ROWS + 1);
    let entries = [1, many as u64].map(|rows| head_of(&weights, rows, cap, false).build());
    let both = host.compile(&entries, &[]).expect("compiled").artefact;
    assert!(!is_split(&both));
    let single = host.compile(&entries[..1], &[]).expect("compiled").artefact;
    let x = values(many * WIDTH as usize, 4, 3.0);
    let logits = |artefact: &Region, rows: usize| {
        let x = Bound::F32(x[..rows * WIDTH as usize].to_vec());
        let mut bound = HashMap::from([("x".to_owned(), x)]);
        let mut loaded = host.load(artefact, &[]).expect("loaded");
        loaded.run_for_largest(&format!("decode_{rows}@64"), rows, &mut bound, 1).expect("ran");
        bound["logits"].f32().to_vec()
    };
    let (one, all) = (logits(&both, 1), logits(&both, many));
    assert_eq!(bits(&one), bits(&all[..VOCABULARY as usize]));
    assert_eq!(bits(&logits(&single, 1)), largest_of(&one, 1));
}
