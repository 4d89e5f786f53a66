//! Damaged artefacts and senseless work orders: typed errors, never a crash, a panic or a wrong result.

mod support;

use std::collections::HashMap;

use shardwright_shim_abi::raw::*;
use shardwright_shim_cpu::artefact::{Artefact, Checksum};
use shardwright_shim_cpu::program::Step;
use support::*;

/// Something of everything: a state, attention, rotary, products, copies.
fn sample() -> Builder {
    let rows = 3;
    let mut b = Builder::new("decode_3@8", SW_ENTRY_DECODE, rows, 8);
    let x = b.input("hidden", SW_ROLE_HIDDEN, &[rows, 8]);
    let positions = b.input("positions", SW_ROLE_POSITIONS, &[rows]);
    let slots = b.input("slots", SW_ROLE_SLOTS, &[rows]);
    let state = b.input("layer.0.k", SW_ROLE_STATE, &[8, 8]);
    let w = weight("w", &[8, 8], &values(64, 1, 0.7), SW_DTYPE_BF16);
    let norm = weight("norm", &[8], &values(8, 2, 0.7), SW_DTYPE_F16);
    let a = b.norm(x, Some(&norm), 8, 1.0);
    let k = b.linear(a, &w);
    let k = b.node(
        SW_OP_ROPE,
        &[k, positions],
        &[rows, 8],
        vec![
            Attribute::Integer("head_dim", 4),
            Attribute::Float("theta", 1e4),
            Attribute::Integer("rotated_pairs", 2),
            Attribute::Float("factor", 1.0),
        ],
    );
    let updated = b.node(SW_OP_STATE_UPDATE, &[state, k, slots], &[8, 8], vec![]);
    b.output("layer.0.k", SW_ROLE_STATE, updated);
    let o = b.node(
        SW_OP_ATTENTION,
        &[k, updated, updated, positions],
        &[rows, 8],
        vec![
            Attribute::Integer("heads", 2),
            Attribute::Integer("kv_heads", 2),
            Attribute::Integer("head_dim", 4),
            Attribute::Float("scale", 0.5),
            Attribute::Float("softcap", 0.0),
            Attribute::Integer("window", 5),
            Attribute::Integer("causal", 1),
            Attribute::Text("keys", "state"),
        ],
    );
    let h = b.binary(SW_OP_ADD, x, o);
    let t = b.transpose(h, &[1, 0]);
    let square = b.mat_mul(t, h, false);
    let square = b.unary(SW_OP_SOFTMAX, square, vec![]);
    let sum = b.node(SW_OP_REDUCE_SUM, &[square], &[8, 1], vec![]);
    let part = b.slice(sum, 0, 2, 5);
    let joined = b.concat(&[part, part], 1);
    b.output("tap", SW_ROLE_TAP, joined);
    b.output("hidden.out", SW_ROLE_HIDDEN, h);
    b
}

/// The same with integer weights, activations of 16 bits and a state of 8.
fn encoded_sample() -> Builder {
    let mut b = sample();
    let rows = 3;
    let (x, first) = (b.inputs[0].tensor, b.nodes[0].outputs[0]);
    let blocks: Vec<i32> = (0..64).map(|i| i * 5 % 16 - 8).collect();
    let blocks =
        integers("blocks", &[8, 8], &blocks, SW_DTYPE_I4, (SW_QUANTISATION_PER_BLOCK, 3), &[0.25; 24], 0);
    let crumbs: Vec<i32> = (0..64).map(|i| i % 4 - 2).collect();
    let crumbs =
        integers("crumbs", &[8, 8], &crumbs, SW_DTYPE_I2, (SW_QUANTISATION_PER_CHANNEL, 0), &[0.5; 8], 0);
    let scale = integers("scale", &[8], &[9; 8], SW_DTYPE_U16, (SW_QUANTISATION_PER_TENSOR, 0), &[0.1], 2);
    let y = b.linear(x, &blocks);
    let w = b.constant(&crumbs);
    let y = b.node(SW_OP_DYNAMIC_LINEAR, &[y, w], &[rows, 8], vec![]);
    let y = b.norm(y, Some(&scale), 8, 0.0);
    let y = b.unary(SW_OP_ROUND, y, vec![]);
    b.output("rounded", SW_ROLE_TAP, y);
    for tensor in 0..b.tensors.len() as u32 {
        let constant = b.constants.iter().any(|(held, _)| *held == tensor);
        if b.encoding_of(tensor) == Encoding::F32 && !constant && tensor != first {
            b.encode(tensor, Encoding::integers(SW_DTYPE_U16, 1e-3, 30_000));
        }
    }
    // The state, what moves into it and what it becomes.
    let update = b.nodes.iter().find(|node| node.op == SW_OP_STATE_UPDATE).expect("an update").clone();
    for tensor in [update.inputs[0], update.inputs[1], update.outputs[0]] {
        b.encode(tensor, Encoding::integers(SW_DTYPE_U8, 0.05, 100));
    }
    b.encode(first, Encoding::F16);
    b
}

fn bind(loaded: &Loaded<'_>, entry: usize) -> Option<HashMap<String, Bound>> {
    let bindings = &loaded.entries[entry].1;
    let total: u64 = bindings.iter().map(|binding| binding.bytes).fold(0, u64::saturating_add);
    if total > 1 << 24 {
        return None;
    }
    let mut bound = HashMap::new();
    for binding in bindings {
        let count = binding.shape.iter().product::<u64>() as usize;
        let value = match binding.dtype {
            SW_DTYPE_I32 => Bound::I32((0..count as i32).collect()),
            SW_DTYPE_F32 => Bound::F32(values(count, 3, 1.0)),
            other => Bound::poison(other, binding.bytes),
        };
        // Two bindings of one name cannot be told apart here.
        if bound.insert(binding.name.clone(), value).is_some() {
            return None;
        }
    }
    Some(bound)
}

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

/// Numbers that are edges of something.
const EDGES: [u64; 12] = [0, 1, 2, 3, 7, 16, 64, 1 << 20, 1 << 34, (1 << 34) + 1, u64::MAX / 4, u64::MAX];

/// A head in two parts.
fn head() -> Region {
    let (rows, inputs) = (40, 128);
    let mut b = Builder::new("decode_1@8", SW_ENTRY_DECODE, 1, 8);
    let stored: Vec<i32> =
        values((rows * inputs) as usize, 1, 127.0).iter().map(|value| *value as i32).collect();
    let kind = (SW_QUANTISATION_PER_CHANNEL, 0);
    let w = integers("head", &[rows, inputs], &stored, SW_DTYPE_I8, kind, &[0.01; 40], 0);
    let w = b.constant(&w);
    let x = b.input("x", SW_ROLE_HIDDEN, &[1, inputs]);
    let logits = b.node(SW_OP_DYNAMIC_LINEAR, &[x, w], &[1, rows], vec![]);
    b.output("logits", SW_ROLE_LOGITS, logits);
    let host = open(&[("threads", "1")]).expect("opened");
    let artefact = host.compile(&[b.build()], &[]).expect("compiled").artefact;
    let program = Artefact::read(artefact.bytes()).expect("readable").program;
    assert!(matches!(program.entries[0].steps[..], [Step::SplitLinear { .. }]));
    artefact
}

#[test]
fn forged_programs_are_refused_or_harmless() {
    forge(&artefact());
    forge(&head());
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
        let mut sum = Checksum::default();
        sum.add(&bytes[..48]);
        sum.add(&bytes[64..64 + program]);
        bytes[48..56].copy_from_slice(&sum.finish().to_le_bytes());
        let mut loaded = match host.load(&forged, &[("threads", "1")]) {
            Ok(loaded) => loaded,
            Err(failure) => {
                let classes = [SW_ERROR_CORRUPT_ARTEFACT, SW_ERROR_RESOURCE_LIMIT];
                assert!(classes.contains(&failure.class), "round {round}: {failure:?}");
                refused += 1;
                continue;
            }
        };
        taken += 1;
        for entry in 0..loaded.entries.len() {
            let Some(mut bound) = bind(&loaded, entry) else { continue };
            let name = loaded.entries[entry].0.clone();
            if let Err(failure) = loaded.run_for_largest(&name, 1, &mut bound, round % 3) {
                assert_eq!(failure.class, SW_ERROR_INVALID_ARGUMENT, "round {round}: {failure:?}");
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
                let Some(mut bound) = bind(&loaded, 0) else { continue };
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
