//! Damaged artefacts and senseless work orders: typed errors, never a crash, a panic or a wrong
//! result.

use crate::support::samples::{encoded_sample, head, sample};
use crate::support::*;
use crate::targets::{bind, load_and_run, mend};
use shardwright_shim_abi::raw::*;
use shardwright_shim_cpu::kernels::elementwise::{Binary, Broadcast};
use shardwright_shim_cpu::program::{Entry, Extent, Operand, Place, Program, Step};

/// Most bytes of activations and bindings of what is run.
const MOST_BYTES: u64 = 1 << 24;

fn artefact() -> Region {
    let mut second = encoded_sample();
    second.name = "decode_3@9".to_owned();
    let entries = [sample().build(), second.build()];
    open(&[]).expect("opened").compile(&entries, &[]).expect("compiled").artefact
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[test]
fn every_flipped_bit_of_header_program_and_end_is_noticed() {
    let host = open(&[("threads", "1")]).expect("opened");
    let mut region = artefact();
    let (program, weights, total) =
        (number(region.bytes(), 24), number(region.bytes(), 32), region.bytes().len());
    let classes = [SW_ERROR_CORRUPT_ARTEFACT, SW_ERROR_INCOMPATIBLE_ARTEFACT];
    for bit in (0..(64 + program as usize) * 8).chain((total - 8) * 8..total * 8) {
        region.bytes_mut()[bit / 8] ^= 1 << (bit % 8);
        let failure = host.load(&region, &[]).map(|_| ()).expect_err("a damaged artefact was loaded");
        assert!(classes.contains(&failure.class), "bit {bit}: {failure:?}");
        region.bytes_mut()[bit / 8] ^= 1 << (bit % 8);
    }
    // Weights are compared on request.
    for at in (weights as usize..total - 8).step_by(61) {
        region.bytes_mut()[at] ^= 4;
        assert!(host.load(&region, &[]).is_ok());
        let failure =
            host.load(&region, &[("verify-weights", "true")]).map(|_| ()).expect_err("damaged weights");
        assert_eq!(failure.class, SW_ERROR_CORRUPT_ARTEFACT);
        region.bytes_mut()[at] ^= 4;
    }
    assert!(host.load(&region, &[("verify-weights", "true")]).is_ok());
}

#[test]
fn cut_grown_and_foreign_artefacts_are_refused() {
    let host = open(&[("threads", "1")]).expect("opened");
    let whole = artefact();
    let bytes = whole.bytes();
    let mut cases: Vec<Vec<u8>> =
        (0..bytes.len()).step_by(97).map(|length| bytes[..length].to_vec()).collect();
    cases.push([bytes, &[0]].concat());
    cases.push(vec![0; 4096]);
    cases.push(b"SWCPUART".to_vec());
    cases.push(vec![0xff; 9000]);
    for case in cases {
        let length = case.len();
        let failure = host.load(&Region::new(&case), &[]).map(|_| ()).expect_err("loaded");
        assert_eq!(failure.class, SW_ERROR_CORRUPT_ARTEFACT, "{length} bytes: {failure:?}");
    }
    let mut newer = Region::new(bytes);
    newer.bytes_mut()[8] += 1;
    let failure = host.load(&newer, &[]).map(|_| ()).expect_err("loaded");
    assert_eq!(failure.class, SW_ERROR_INCOMPATIBLE_ARTEFACT);
    assert!(failure.detail("help").is_some());
}

#[test]
fn an_artefact_must_be_aligned() {
    let host = open(&[("threads", "1")]).expect("opened");
    let mut shifted = vec![0u8];
    shifted.extend_from_slice(artefact().bytes());
    let region = Region::new(&shifted);
    let failure = host.load_bytes(&region.bytes()[1..], &[]).map(|_| ()).expect_err("loaded");
    assert_eq!(failure.class, SW_ERROR_INVALID_ARGUMENT, "{failure:?}");
}

/// No memory bounds how often nothing is done.
#[test]
fn steps_that_do_nothing_all_too_often_are_refused() {
    let nothing = Operand { place: Place::Arena, offset: 0, elements: 0 };
    let product = |batches: usize| Step::MatMul {
        a: nothing,
        b: nothing,
        out: nothing,
        sizes: [0, 3, 0],
        transpose_b: false,
        batch: Broadcast { shape: vec![batches], a: vec![0], b: vec![0] },
    };
    let turn = |rows: u64| Step::Rope {
        x: nothing,
        cos: nothing,
        sin: nothing,
        sizes: [0, 4, 0],
        rows: Extent::Fixed(rows),
        out: nothing,
    };
    // A zero between sizes that overflow together.
    let sum = |size: usize| Step::Binary {
        kind: Binary::Add,
        broadcast: Broadcast { shape: vec![0, size, size, 1], a: vec![0; 4], b: vec![0; 4] },
        outer: Extent::Fixed(0),
        a: nothing,
        b: nothing,
        out: nothing,
    };
    let check = |step: Step| {
        let (name, ports, steps) = ("nothing".to_owned(), Vec::new(), vec![step]);
        let entry = Entry { name, rows: 1, context: 1, ports, arena: 0, steps };
        Program { threads: 1, entries: vec![entry] }.check(0)
    };
    for step in [product(2), turn(2), sum(2)] {
        check(step).expect("a little of nothing");
    }
    for step in [product(1 << 34), turn(1 << 34), sum(1 << 34), sum(usize::MAX)] {
        assert!(check(step).expect_err("too much of nothing").contains("too many"));
    }
}

/// Numbers that are edges of something.
const EDGES: [u64; 12] = [0, 1, 2, 3, 7, 16, 64, 1 << 20, 1 << 34, (1 << 34) + 1, u64::MAX / 4, u64::MAX];

#[test]
fn forged_programs_are_refused_or_harmless() {
    forge(&artefact());
    for cap in [None, Some(30.0)] {
        forge(&open(&[]).expect("opened").compile(&[head(cap).build()], &[]).expect("compiled").artefact);
    }
}

fn forge(original: &Region) {
    let host = open(&[("threads", "1")]).expect("opened");
    let program = number(original.bytes(), 24) as usize;
    let mut state = 1u64;
    let mut next = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize
    };
    let (mut taken, mut refused) = (0, 0);
    for round in 0..8000 {
        let mut forged = Region::new(original.bytes());
        let bytes = forged.bytes_mut();
        for _ in 0..1 + next() % 2 {
            let at = 64 + next() % program;
            match next() % 3 {
                0 => bytes[at] = next() as u8,
                1 => bytes[at] = bytes[at].wrapping_add(1),
                _ => {
                    let edge = EDGES[next() % EDGES.len()].to_le_bytes();
                    let end = (at + 8).min(64 + program);
                    bytes[at..end].copy_from_slice(&edge[..end - at]);
                }
            }
        }
        mend(bytes);
        match load_and_run(&host, &forged, round % 3, MOST_BYTES) {
            Ok(()) => taken += 1,
            Err(failure) => {
                let classes = [SW_ERROR_CORRUPT_ARTEFACT, SW_ERROR_RESOURCE_LIMIT];
                assert!(classes.contains(&failure.class), "round {round}: {failure:?}");
                refused += 1;
            }
        }
    }
    assert!(taken > 100 && refused > 1000, "{taken} taken, {refused} refused");
}

#[test]
fn senseless_work_orders_are_refused_or_run() {
    let host = open(&[("threads", "1")]).expect("opened");
    let mut state = 7u64;
    let mut next = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize
    };
    let ops: Vec<u32> = (1..=11).chain(64..=86).chain([0, 12, 999]).collect();
    let mut compiled = 0;
    for round in 0..8000 {
        let mut b = if round % 2 == 0 { sample() } else { encoded_sample() };
        for _ in 0..1 + next() % 3 {
            let node = next() % b.nodes.len();
            let edge = EDGES[next() % EDGES.len()];
            match next() % 11 {
                0 => b.nodes[node].op = ops[next() % ops.len()],
                1 => {
                    let tensor = next() % b.tensors.len();
                    let rank = b.tensors[tensor].shape.len();
                    if rank > 0 {
                        b.tensors[tensor].shape[next() % rank] = edge;
                    }
                }
                2 => {
                    let count = b.nodes[node].inputs.len();
                    let tensor = next() % (b.tensors.len() + 2);
                    b.nodes[node].inputs[next() % count] = tensor as u32;
                }
                3 => b.nodes[node].outputs[0] = (next() % b.tensors.len()) as u32,
                4 => {
                    let count = b.nodes[node].attributes.len();
                    if count > 0 {
                        match &mut b.nodes[node].attributes[next() % count] {
                            Attribute::Integer(_, value) => *value = edge as i64,
                            Attribute::Float(_, value) => *value = f32::from_bits(next() as u32).into(),
                            Attribute::Integers(_, values) => values.push(edge as i64),
                            Attribute::Text(_, value) => *value = "rows",
                        }
                    }
                }
                5 => b.rows = edge,
                6 => {
                    let port = next() % b.inputs.len();
                    b.inputs[port].role = [1, 2, 3, 16, 17, 32, 33][next() % 7];
                }
                7 => {
                    let port = next() % b.outputs.len();
                    b.outputs[port].tensor = (next() % b.tensors.len()) as u32;
                }
                8 => {
                    let dtypes = [1, 2, 3, 4, 6, 7, 8, 10];
                    let tensor = (next() % b.tensors.len()) as u32;
                    let affine = (f32::from_bits(next() as u32 * 2), next() as i32 % 300);
                    let dtype = dtypes[next() % dtypes.len()];
                    b.encode(tensor, Encoding { dtype, affine: (next() % 3 > 0).then_some(affine) });
                }
                9 => {
                    let constant = next() % b.constants.len();
                    let other = next() % b.constants.len();
                    let weight = b.constants[other].1.clone();
                    b.constants[constant].1 = weight;
                }
                _ => {
                    let other = next() % b.nodes.len();
                    b.nodes.swap(node, other);
                }
            }
        }
        let entry = b.build();
        let known = [SW_ERROR_INVALID_ARGUMENT, SW_ERROR_UNSUPPORTED_OP, SW_ERROR_RESOURCE_LIMIT];
        if let Err(failure) = host.check(entry) {
            assert!(known.contains(&failure.class), "round {round}: {failure:?}");
        }
        let artefact = match host.compile(&[entry], &[]) {
            Ok(done) => done.artefact,
            Err(failure) => {
                assert!(known.contains(&failure.class), "round {round}: {failure:?}");
                continue;
            }
        };
        compiled += 1;
        // What was compiled can be loaded, unless memory is short.
        match host.load(&artefact, &[("threads", "1")]) {
            Ok(mut loaded) => {
                let Some(mut bound) = bind(&loaded, 0, MOST_BYTES) else { continue };
                let name = loaded.entries[0].0.clone();
                if let Err(failure) = loaded.run(&name, 1, &mut bound) {
                    assert_eq!(failure.class, SW_ERROR_INVALID_ARGUMENT, "round {round}: {failure:?}");
                }
            }
            Err(failure) => assert_eq!(failure.class, SW_ERROR_RESOURCE_LIMIT, "round {round}: {failure:?}"),
        }
    }
    assert!(compiled > 200, "{compiled} compiled");
}
