//! Damaged artefacts and malformed work orders must give typed errors, never a crash, a panic or a
//! wrong result.

use crate::support::samples::{artefacts, encoded_sample, head, sample, tower};
use crate::support::towers::{Matrices, vision};
use crate::support::*;
use crate::targets::{bind, load_and_run, mend, program_of};
use shardwright_shim_abi::raw::*;
use shardwright_shim_cpu::kernels::attention::{Heads, Products};
use shardwright_shim_cpu::kernels::elementwise::{Binary, Broadcast};
use shardwright_shim_cpu::kernels::encoding;
use shardwright_shim_cpu::kernels::integer::IntegerType;
use shardwright_shim_cpu::kernels::linear::PanelType;
use shardwright_shim_cpu::kernels::shape::Strided;
use shardwright_shim_cpu::program::{
    AttentionKeys, DynamicMap, Entry, Extent, MAX_ENTRIES, MAX_NAME, MAX_PORTS, MAX_RANK, MAX_STEPS,
    NumberForm, Operand, OperandPlace, PackedScales, PackedTiles, PackedWeights, Port, PortDirection,
    Program, Step, step,
};

/// Most bytes of activations and bindings of entries that are run.
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
    // Weights are only verified on request.
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

/// Steps without data also need time, which no memory limit bounds.
#[test]
fn steps_with_too_many_empty_iterations_are_refused() {
    let nothing = Operand { place: OperandPlace::Arena, offset: 0, elements: 0 };
    let product = |batches: usize| {
        Step::MatMul(step::MatMul {
            a: nothing,
            b: nothing,
            out: nothing,
            sizes: [0, 3, 0],
            transpose_b: false,
            batch: Broadcast { shape: vec![batches], a: vec![0], b: vec![0] },
        })
    };
    let turn = |rows: u64| {
        Step::Rope(step::Rope {
            x: nothing,
            cos: nothing,
            sin: nothing,
            sizes: [0, 4, 0],
            rows: Extent::Fixed(rows),
            out: nothing,
        })
    };
    // A zero among sizes whose product overflows must not hide the overflow.
    let sum = |size: usize| {
        Step::Binary(step::Binary {
            kind: Binary::Add,
            broadcast: Broadcast { shape: vec![0, size, size, 1], a: vec![0; 4], b: vec![0; 4] },
            outer: Extent::Fixed(0),
            a: nothing,
            b: nothing,
            out: nothing,
        })
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

/// Attention to rows checks the bounds of its positions although its result does not depend on
/// them.
#[test]
fn positions_that_nothing_reads_are_checked() {
    let nothing = Operand { place: OperandPlace::Arena, offset: 0, elements: 0 };
    let check = |positions: Operand| {
        let heads = Heads { heads: 1, kv_heads: 1, head_dim: 1, scale: 1.0, softcap: 0.0 };
        let [x, out] = [0, 1].map(|offset| Operand { offset, elements: 1, ..nothing });
        let (keys, rows) = (AttentionKeys::Rows { causal: true }, Extent::Fixed(1));
        let step = step::Attention {
            heads,
            window: 0,
            products: Products::F32,
            keys,
            q: x,
            k: x,
            v: x,
            positions,
            rows,
            out,
        };
        let (name, ports, steps) = ("one".to_owned(), Vec::new(), vec![Step::Attention(step)]);
        let entry = Entry { name, rows: 1, context: 1, ports, arena: 2, steps };
        Program { threads: 1, entries: vec![entry] }.check(0)
    };
    check(nothing).expect("no positions");
    let foreign = Operand { place: OperandPlace::Bound(61), ..nothing };
    assert!(check(foreign).expect_err("a foreign binding").contains("no binding 61"));
}

/// Weights of five and six bits and numbers with shared factors must have blocks that suit them.
#[test]
fn weights_that_do_not_suit_their_blocks_are_refused() {
    use IntegerType::{I4, I5, I6, I8};
    let arena = |offset: u64, elements: u64| Operand { place: OperandPlace::Arena, offset, elements };
    let check = |inputs: u64, step: Step| {
        let (name, ports, steps) = ("one".to_owned(), Vec::new(), vec![step]);
        let entry = Entry { name, rows: 1, context: 1, ports, arena: inputs + 16, steps };
        Program { threads: 1, entries: vec![entry] }.check(1 << 15)
    };
    let (outputs, rows) = (16, Extent::Fixed(1));
    let (bias, bounds) = (None, None);
    let tiles = |kind: IntegerType, inputs: u64, scales: PackedScales| {
        let weights = PackedTiles { offset: 0, kind, base: 0, scales, inputs, outputs };
        let maps = vec![DynamicMap { weights, bias, bounds, out: arena(inputs, outputs) }];
        let x = arena(0, inputs);
        check(inputs, Step::DynamicLinear(step::DynamicLinear { x, rows, block: None, maps }))
    };
    let in_blocks =
        |size: u64, form: NumberForm| PackedScales::Blocks { offset: 1 << 14, size, minimum: true, form };
    let small = |group: u64| NumberForm::Small { group };
    let per_output = PackedScales::PerOutput { offset: 1 << 14 };
    for (kind, inputs, size) in [(I8, 33, 32), (I6, 48, 16), (I6, 96, 48), (I5, 96, 32), (I4, 40, 5)] {
        tiles(kind, inputs, in_blocks(size, small(8))).expect("blocks that suit");
        tiles(kind, inputs, in_blocks(size, small(u64::MAX))).expect("a single group");
        let error = tiles(kind, inputs, in_blocks(size, small(0))).expect_err("groups of no blocks");
        assert!(error.contains("have no layout"), "{error}");
    }
    for (kind, inputs, scales) in [
        (I6, 48, per_output),
        (I5, 96, per_output),
        (I6, 48, in_blocks(8, NumberForm::F16)),
        (I6, 40, in_blocks(16, NumberForm::F16)),
        (I5, 48, in_blocks(32, NumberForm::F32)),
        (I5, 96, in_blocks(16, small(16))),
    ] {
        let error = tiles(kind, inputs, scales).expect_err("blocks that do not suit");
        assert!(error.contains(&format!("{kind:?} with")), "{error}");
    }
    // 224 bytes of numbers: 64 of factors for each of two groups, and 32 for each of three blocks.
    let at_end = |left: u64| PackedScales::Blocks {
        offset: (1 << 15) - left,
        size: 16,
        minimum: true,
        form: small(2),
    };
    tiles(I6, 48, at_end(256)).expect("numbers within the section");
    let error = tiles(I6, 48, at_end(192)).expect_err("numbers beyond the section");
    assert!(error.contains("reach beyond"), "{error}");
    // Floats of rows have panels, which do not support such numbers.
    for (form, is_known) in [(NumberForm::F32, true), (small(8), false)] {
        let (kind, scales) = (PanelType::I8, in_blocks(32, form));
        let weights = PackedWeights { offset: 0, kind, scales, zero: 0, inputs: 96, outputs };
        let (x, out) = (arena(0, 96), arena(96, outputs));
        let result = check(96, Step::Linear(step::Linear { x, rows, weights, bias, bounds, out }));
        assert_eq!(result.is_ok(), is_known, "{result:?}");
    }
}

#[test]
fn programs_beyond_a_limit_are_refused() {
    let nothing = Operand { place: OperandPlace::Arena, offset: 0, elements: 0 };
    let step = Step::ZeroTail(step::ZeroTail { target: nothing, valid: Extent::Fixed(0) });
    let port = Port {
        name: "x".to_owned(),
        direction: PortDirection::Input,
        role: 0,
        encoding: encoding::ElementEncoding::F32,
        shape: Vec::new(),
    };
    let entry = Entry {
        name: "nothing".to_owned(),
        rows: 1,
        context: 1,
        ports: vec![port.clone()],
        arena: 0,
        steps: vec![step.clone()],
    };
    let check = |entries: Vec<Entry>| Program { threads: 1, entries }.check(0);
    let one = |change: &dyn Fn(&mut Entry)| {
        let mut changed = entry.clone();
        change(&mut changed);
        check(vec![changed])
    };
    let copy = |rank: usize, stride: usize| {
        let copy = Strided { shape: vec![0; rank], source: vec![stride; rank], target: vec![0; rank] };
        Step::Copy(step::StridedCopy { copy, source: nothing, target: nothing })
    };
    let long = "x".repeat(MAX_NAME as usize + 1);
    check(vec![entry.clone()]).expect("a little");
    one(&|entry| entry.steps = vec![copy(MAX_RANK, 1 << 34)]).expect("all that may be");
    let (steps, ports) = (vec![step; MAX_STEPS as usize + 1], vec![port; MAX_PORTS as usize + 1]);
    for (result, words) in [
        (check(vec![entry.clone(); MAX_ENTRIES as usize + 1]), "257 entries"),
        (one(&|entry| entry.name.clone_from(&long)), "65537 bytes of a name"),
        (one(&|entry| entry.name = "a\0b".to_owned()), "a name contains a NUL"),
        (one(&|entry| entry.ports[0].name.clone_from(&long)), "65537 bytes of a name"),
        (one(&|entry| entry.ports[0].name = "\0".to_owned()), "a name contains a NUL"),
        (one(&|entry| entry.steps.clone_from(&steps)), "1048577 steps"),
        (one(&|entry| entry.ports.clone_from(&ports)), "16385 bindings"),
        (one(&|entry| entry.steps = vec![copy(MAX_RANK + 1, 0)]), "9 axes"),
        (one(&|entry| entry.steps = vec![copy(1, (1 << 34) + 1)]), "too many"),
    ] {
        let error = result.expect_err(words);
        assert!(error.contains(words) && error.len() < 300, "{words}: {error}");
    }
}

const EDGES: [u64; 12] = [0, 1, 2, 3, 7, 16, 64, 1 << 20, 1 << 34, (1 << 34) + 1, u64::MAX / 4, u64::MAX];

#[test]
fn forged_programs_are_refused_or_harmless() {
    forge(&artefact());
    for (rows, cap) in [(1, None), (3, Some(30.0))] {
        forge(
            &open(&[]).expect("opened").compile(&[head(rows, cap).build()], &[]).expect("compiled").artefact,
        );
    }
    for order in [tower(), vision(6, Matrices::Dynamic, false)] {
        forge(&open(&[]).expect("opened").compile(&[order.build()], &[]).expect("compiled").artefact);
    }
    let blocks = artefacts().into_iter().filter(|(name, _)| ["q4k", "q5k", "q6k"].contains(name));
    blocks.for_each(|(_, artefact)| forge(&artefact));
}

/// Builds an artefact with another program.
fn with_program(original: &[u8], program: &[u8]) -> Region {
    let weights = &original[number(original, 32) as usize..];
    let weights_at = (64 + program.len()).next_multiple_of(4096);
    let mut bytes = [&original[..64], program].concat();
    bytes.resize(weights_at, 0);
    bytes.extend(weights);
    for (at, value) in [(16, bytes.len()), (24, program.len()), (32, weights_at)] {
        bytes[at..at + 8].copy_from_slice(&(value as u64).to_le_bytes());
    }
    mend(&mut bytes);
    Region::new(&bytes)
}

fn forge(original: &Region) {
    let host = open(&[("threads", "1")]).expect("opened");
    let program = program_of(original.bytes()).expect("a program");
    let mut random = fastrand::Rng::with_seed(1);
    let mut next = move || random.u32(..) as usize;
    let (mut taken, mut refused) = (0, 0);
    for round in 0..8000 {
        let mut bytes = program.to_vec();
        for _ in 0..1 + next() % 2 {
            let at = next() % bytes.len();
            match next() % 3 {
                0 => bytes[at] = next() as u8,
                1 => bytes[at] = bytes[at].wrapping_add(1),
                _ => {
                    // Replaces a number by another one, which may have another encoded length.
                    let edge = postcard::to_allocvec(&EDGES[next() % EDGES.len()]).expect("a number");
                    let more = bytes[at..].iter().take_while(|byte| **byte >= 0x80).count();
                    let end = (at + more + 1).min(bytes.len());
                    bytes.splice(at..end, edge);
                }
            }
        }
        let forged = with_program(original.bytes(), &bytes);
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
fn malformed_work_orders_are_refused_or_run() {
    let host = open(&[("threads", "1")]).expect("opened");
    let mut random = fastrand::Rng::with_seed(7);
    let mut next = move || random.u32(..) as usize;
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
                    let affine = (f32::from_bits(next() as u32), next() as i32 % 300);
                    let dtype = dtypes[next() % dtypes.len()];
                    b.encode(tensor, TableEncoding { dtype, affine: (next() % 3 > 0).then_some(affine) });
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
        // Compiled artefacts can be loaded, unless memory is insufficient.
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
