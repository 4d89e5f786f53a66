//! Checks that fused nodes give the same bits as separate ones.

use std::collections::HashMap;

use crate::support::*;
use shardwright_shim_abi::raw::*;
use shardwright_shim_cpu::artefact::Artefact;
use shardwright_shim_cpu::program::Step;

const WIDTH: u64 = 48;
const INNER: u64 = 80;

/// Builds a block of a decoder: three maps of the same rows with other nodes between them, a gate,
/// and a norm before each sum. Rows are quantised whole or `in_blocks`. With `open`, intermediate
/// tensors are outputs as well, so that only the maps can be fused.
fn block(rows: u64, open: bool, in_blocks: bool) -> Builder {
    let mut b = Builder::new("encode", SW_ENTRY_ENCODE, rows, rows);
    let matrix = |b: &mut Builder, name: &str, outputs: u64, inputs: u64, seed: u64| {
        let stored: Vec<i32> =
            values((outputs * inputs) as usize, seed, 127.0).iter().map(|value| *value as i32).collect();
        let scales = values(outputs as usize, seed ^ 5, 0.01);
        let kind = (SW_QUANTISATION_PER_CHANNEL, 0);
        let scales: Vec<f32> = scales.iter().map(|scale| scale.abs() + 1e-4).collect();
        b.constant(&integers(name, &[outputs, inputs], &stored, SW_DTYPE_I8, kind, &scales, 0))
    };
    let x = b.input("x", SW_ROLE_GATHERED, &[rows, WIDTH]);
    let residual = b.input("residual", SW_ROLE_GATHERED, &[rows, WIDTH]);
    let mut inner = Vec::new();
    let map = |b: &mut Builder, x, name: &str, outputs, inputs, seed| {
        let w = matrix(b, name, outputs, inputs, seed);
        match in_blocks {
            true => b.block_linear(&[x, w], &[rows, outputs], 32),
            false => b.node(SW_OP_DYNAMIC_LINEAR, &[x, w], &[rows, outputs], vec![]),
        }
    };
    let gate = map(&mut b, x, "gate", INNER, WIDTH, 1);
    let gelu = b.unary(SW_OP_GELU, gate, vec![]);
    let third = map(&mut b, x, "third", WIDTH, WIDTH, 2);
    let up = map(&mut b, x, "up", INNER, WIDTH, 3);
    let gated = b.binary(SW_OP_MUL, gelu, up);
    let down = map(&mut b, gated, "down", WIDTH, INNER, 4);
    let norm_weight = weight("norm", &[WIDTH], &values(WIDTH as usize, 6, 1.0), SW_DTYPE_F32);
    let norm = |b: &mut Builder, x| b.norm(x, Some(&norm_weight), WIDTH, 1.0);
    let normed = norm(&mut b, down);
    let sum = b.binary(SW_OP_ADD, residual, normed);
    let also = norm(&mut b, third);
    let other = b.binary(SW_OP_ADD, also, sum);
    inner.extend([gelu, normed, also]);
    b.output("other", SW_ROLE_TAP, other);
    if open {
        for (index, tensor) in inner.into_iter().enumerate() {
            b.output(&format!("inner.{index}"), SW_ROLE_TAP, tensor);
        }
    }
    b
}

fn counts(artefact: &Region) -> [usize; 6] {
    let program = Artefact::read(artefact.bytes()).expect("readable").program;
    let steps = &program.entries[0].steps;
    let count = |is: fn(&Step) -> bool| steps.iter().filter(|step| is(step)).count();
    [
        count(|step| matches!(step, Step::DynamicLinear(step) if step.maps.len() == 3)),
        count(|step| matches!(step, Step::DynamicLinear(step) if step.maps.len() == 1)),
        count(|step| matches!(step, Step::Gated(_))),
        count(|step| matches!(step, Step::RmsNorm(step) if step.residual.is_some())),
        count(|step| matches!(step, Step::RmsNorm(step) if step.residual.is_none())),
        count(|step| matches!(step, Step::Unary(_) | Step::Binary(_))),
    ]
}

#[test]
fn joined_steps_give_the_bits_of_single_ones() {
    let host = open(&[("threads", "2")]).expect("opened");
    for (rows, in_blocks) in [1, 7, 40].into_iter().flat_map(|rows| [(rows, false), (rows, true)]) {
        let [joined, apart] = [false, true].map(|open| {
            host.compile(&[block(rows, open, in_blocks).build()], &[]).expect("compiled").artefact
        });
        assert_eq!(counts(&joined), [1, 1, 1, 2, 0, 0]);
        assert_eq!(counts(&apart), [1, 1, 0, 0, 2, 4]);
        let run = |artefact: &Region| {
            let size = (rows * WIDTH) as usize;
            let mut bound = HashMap::from([
                ("x".to_owned(), Bound::F32(values(size, 7, 2.0))),
                ("residual".to_owned(), Bound::F32(values(size, 8, 2.0))),
            ]);
            let mut loaded = host.load(artefact, &[]).expect("loaded");
            loaded.run("encode", rows as usize, &mut bound).expect("ran");
            bits(bound["other"].f32())
        };
        assert_eq!(run(&joined), run(&apart), "{rows} rows");
    }
}

#[test]
fn nodes_on_which_nothing_depends_are_reported_by_their_own_number() {
    let host = open(&[]).expect("opened");
    let mut b = block(3, false, false);
    let dead = b.nodes.len() as u64;
    let x = b.input("unread", SW_ROLE_GATHERED, &[3, WIDTH]);
    b.unary(SW_OP_TANH, x, vec![]);
    let compiled = host.compile(&[b.build()], &[]).expect("compiled");
    let removed: Vec<u64> = compiled
        .placements
        .iter()
        .filter(|placement| placement.2 == "none")
        .map(|placement| placement.1)
        .collect();
    assert_eq!(removed, [dead]);
}
