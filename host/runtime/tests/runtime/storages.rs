//! Tests ports of every storage: values that pass through them are rounded exactly as the graph
//! defines for the encoding, bit for bit.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::support::{Form, Plan, Storages, bits, chain, disturbed, graph, ids};
use proptest::prelude::*;
use shardwright_graph::{ComponentKind, Graph, Role};
use shardwright_runtime::{Chain, Session};
use shardwright_shims::{EntryInterface, Port};
use shardwright_test_checkpoints::Spec;
use shardwright_vocabulary::{DType, Encoding, ErrorClass};

fn number(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

fn bf16() -> Encoding {
    Encoding::of(DType::Bf16, None).unwrap()
}

/// Returns an encoding for values of this range. Narrow encodings clamp, which the test includes.
fn encoding(seed: u64, low: f32, high: f32) -> Encoding {
    let wider = 1.0 + ((seed >> 8) % 8) as f32 / 4.0;
    let (low, high) = (low * wider, high * wider);
    match seed % 7 {
        0 => Encoding::F32,
        1 => Encoding::F16,
        2 => bf16(),
        3 => Encoding::affine_over(low, high, 16),
        4 => Encoding::symmetric_over(low, high, 16),
        5 => Encoding::affine_over(low, high, 8),
        _ => Encoding::symmetric_over(low, high, 8),
    }
}

/// Draws a separate storage for every port from the seed. Entry points and shards differ, but all
/// of them store a state in the same way.
fn drawn(seed: u64) -> Storages {
    Arc::new(move |entry: &EntryInterface, port: &Port| {
        let role = format!("{:?}", port.role);
        let seed = match port.role {
            Role::State { .. } => number((seed, role)),
            _ => number((seed, role, entry.segments.to_string(), &entry.name, port.direction)),
        };
        match port.role {
            Role::Positions | Role::Slots { .. } => None,
            Role::RotaryCos(_) | Role::RotarySin(_) => Some(encoding(seed, -1.0, 1.0)),
            // This is far enough below every score.
            Role::Mask(_) => Some(encoding(seed, -80.0, 0.0)),
            Role::Pooling => Some(encoding(seed, 0.0, 1.0)),
            _ => Some(encoding(seed, -6.0, 4.0)),
        }
    })
}

fn plan(seed: u64, graph: &Graph) -> Plan {
    let form = [Form::Semantic, Form::Decomposed, Form::ByRuntime][(seed % 3) as usize];
    let cut = 1 + (seed >> 4) as u32 % (graph.layers() - 1);
    // Layers that share keys and values must be on one place.
    let shared = (cut..graph.layers()).any(|layer| graph.donor_of(layer).is_some());
    let decoders = if shared || (seed >> 12).is_multiple_of(2) { vec!["a"] } else { vec!["a", "b"] };
    let around = if (seed >> 13).is_multiple_of(2) { "a" } else { "b" };
    let alignment = [4, 64, 256][(seed >> 16) as usize % 3];
    Plan {
        form,
        cuts: vec![cut],
        decoders,
        around,
        alignment,
        largest: 4,
        prefill: vec![4],
        decode: vec![1, 3],
        storages: Some(drawn(seed)),
        ..Plan::default()
    }
}

/// Returns logits after the last of some tokens and after each of some others, with a truncation
/// and a loss in between.
fn run(chain: &Chain, tokens: &[u32]) -> Vec<Vec<u32>> {
    let mut session = chain.session().unwrap();
    let mut rows = Vec::new();
    let mut append = |session: &mut Session, tokens: &[u32]| {
        session.append(tokens).unwrap();
        rows.push(bits(session.logits().unwrap()));
    };
    append(&mut session, &tokens[..9]);
    session.truncate(7).unwrap();
    append(&mut session, &tokens[7..20]);
    session
        .score(&tokens[20..], &mut |step| {
            rows.extend((0..step.rows()).map(|row| bits(step.logits(row).unwrap())));
        })
        .unwrap();
    rows
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// A chain with any storages must compute the same values as an f32 chain whose executors round
    /// every input and output as the graph defines for the encoding.
    #[test]
    fn stored_is_rounded(seed: u64) {
        let spec = [Spec::gemma3(), Spec::gemma4(), Spec::qwen3()][(seed >> 20) as usize % 3].clone();
        let graph = graph(&spec);
        let tokens = ids(30, graph.vocabulary);
        let stored = plan(seed, &graph);
        let rounded = Plan { rounded: true, ..stored.clone() };
        let (stored, rounded) = (chain(&graph, &stored), chain(&graph, &rounded));
        prop_assert_eq!(run(&stored, &tokens), run(&rounded, &tokens));

        let mut session = stored.session().unwrap();
        session.append(&tokens).unwrap();
        for boundary in session.placement().boundaries {
            let copied = boundary.copied_because.is_some();
            prop_assert!(copied || boundary.bytes_copied == 0, "{:?}", boundary);
            prop_assert!(copied || boundary.from_storage == boundary.to_storage, "{:?}", boundary);
        }
    }

    #[test]
    fn encoders_round_too(seed: u64) {
        let graph = graph(&Spec::embeddinggemma());
        let stored = Plan { storages: Some(drawn(seed)), cuts: vec![1], decoders: vec!["a", "b"], ..Plan::default() };
        let rounded = Plan { rounded: true, ..stored.clone() };
        let run = |plan: &Plan| chain(&graph, plan).session().unwrap().encode(&ids(20, 90)).unwrap();
        prop_assert_eq!(bits(&run(&stored)), bits(&run(&rounded)));
    }
}

/// In a chain whose boundaries are 16-bit integers, the streams must be within half a step of the
/// f32 chain's streams, as long as no value upstream was rounded.
#[test]
fn a_rounded_stream_lies_within_half_a_step() {
    let graph = graph(&Spec::gemma4());
    let tokens = ids(8, graph.vocabulary);
    let streams = |plan: &Plan| {
        let mut session = chain(&graph, plan).session().unwrap();
        let mut found = Vec::new();
        session
            .append_with(&tokens, &mut |step| {
                if let Some(tensor) = step.tensor("embed") {
                    found.extend_from_slice(&tensor.values[..step.rows() * graph.hidden as usize]);
                }
            })
            .unwrap();
        found
    };
    let plain = streams(&Plan::default());
    let highest = plain.iter().fold(0.0_f32, |highest, value| highest.max(value.abs()));
    for (bits, dtype) in [(16, "u16"), (8, "u8")] {
        let encoding = Encoding::affine_over(-1.1 * highest, 1.1 * highest, bits);
        let storages: Storages = Arc::new(move |entry, port| {
            let is_hidden = entry.segments.has(ComponentKind::Embed) && port.role == Role::Hidden;
            is_hidden.then_some(encoding)
        });
        let stored = streams(&Plan { storages: Some(storages.clone()), ..Plan::default() });
        let step = encoding.scale.get();
        assert!(plain.iter().zip(&stored).all(|(a, b)| (a - b).abs() <= 0.501 * step));
        assert!(plain.iter().zip(&stored).any(|(a, b)| a != b));
        let chain = chain(&graph, &Plan { storages: Some(storages), ..Plan::default() });
        let mut session = chain.session().unwrap();
        session.append(&tokens).unwrap();
        let record = session.placement();
        let from_embed = record.boundaries.iter().filter(|boundary| boundary.from == "embed");
        let copied: u64 = from_embed
            .map(|boundary| {
                assert!(boundary.from_storage.starts_with(dtype), "{boundary:?}");
                assert_eq!(boundary.copied_because, Some("another encoding"));
                boundary.bytes_copied
            })
            .sum();
        // The per-layer inputs and the decoder share one copy. Its bytes are counted in the storage
        // of the consumer, f32.
        assert_eq!(copied, 8 * graph.hidden * 4);
    }
}

fn states(encoding: Encoding, rows: Encoding) -> Option<Storages> {
    Some(Arc::new(move |_, port| match port.role {
        Role::State { .. } => Some(encoding),
        Role::StateRows { .. } => Some(rows),
        _ => None,
    }))
}

#[test]
fn rows_of_another_encoding_are_converted_and_counted() {
    let graph = graph(&Spec::gemma3());
    let tokens = ids(10, graph.vocabulary);
    let wide = Encoding::affine_over(-3.0, 5.0, 16);
    for (encoding, rows, converted) in [
        (Encoding::F32, Encoding::F32, None),
        (wide, wide, None),
        (Encoding::F16, Encoding::F32, Some("f32")),
        (wide, Encoding::F16, Some("f16")),
    ] {
        let plan = Plan { form: Form::ByRuntime, storages: states(encoding, rows), ..Plan::default() };
        let mut session = chain(&graph, &plan).session().unwrap();
        session.append(&tokens).unwrap();
        for state in session.placement().states {
            assert_eq!(state.converted_from.as_deref(), converted);
            assert_eq!(state.storage, shardwright_runtime::Storage::from(encoding).to_string());
            let row = graph.states.iter().find(|existing| existing.name == state.state).unwrap().width;
            assert_eq!(state.bytes_placed, 10 * row * encoding.element.bytes());
        }
    }
    let in_graph = chain(&graph, &Plan::default());
    let mut session = in_graph.session().unwrap();
    session.append(&tokens).unwrap();
    assert!(session.placement().states.iter().all(|state| state.bytes_placed == 0));
}

/// With a zero point, zero bytes do not represent zero. A cleared state and one that was never
/// written must still be equal.
#[test]
fn states_with_a_zero_point_come_back_from_the_history() {
    let graph = graph(&Spec::gemma4());
    let tokens = ids(50, graph.vocabulary);
    for encoding in [Encoding::affine_over(-3.0, 5.0, 16), Encoding::affine_over(-3.0, 5.0, 8)] {
        assert_ne!(encoding.zero_point, 0);
        for form in [Form::Semantic, Form::Decomposed, Form::ByRuntime] {
            let plan = Plan {
                form,
                storages: states(encoding, encoding),
                largest: 4,
                prefill: vec![4],
                ..Plan::default()
            };
            let (chain, troubles) = disturbed(&graph, &plan);
            // The test executors round a state after the run that writes it, so a comparison needs
            // equal chunks.
            let undisturbed = |pieces: &[&[u32]]| {
                let mut session = chain.session().unwrap();
                pieces.iter().for_each(|piece| {
                    session.append(piece).unwrap();
                });
                bits(session.logits().unwrap())
            };
            for (class, expected) in [
                (ErrorClass::StateLost, undisturbed(&[&tokens])),
                (ErrorClass::Internal, undisturbed(&[&tokens[..30], &tokens[30..]])),
            ] {
                let mut session = chain.session().unwrap();
                session.append(&tokens[..30]).unwrap();
                troubles[2].spoil.store(true, std::sync::atomic::Ordering::SeqCst);
                *troubles[2].fail.lock().unwrap() = Some((2, Some(class)));
                session.append(&tokens[30..]).unwrap_err();
                let complete = session.tokens().len();
                session.append(&tokens[complete..]).unwrap();
                assert_eq!(bits(session.logits().unwrap()), expected);
            }
        }
    }
}

/// Shards that need a step input in different storages share one computation, and each receives its
/// own storage.
#[test]
fn a_step_input_is_written_in_every_storage_asked_for() {
    let graph = graph(&Spec::qwen3());
    let bytes = |encoding: Option<Encoding>| {
        let storages = encoding.map(|encoding| -> Storages {
            Arc::new(move |entry, port| {
                (matches!(port.role, Role::Mask(_)) && entry.segments.layers().0 == 2).then_some(encoding)
            })
        });
        let plan =
            Plan { form: Form::Decomposed, cuts: vec![2], prefill: vec![], storages, ..Plan::default() };
        let mut session = chain(&graph, &plan).session().unwrap();
        session.append(&ids(5, graph.vocabulary)).unwrap();
        session.placement().entries[0].input_bytes
    };
    // Every layer uses the same mask: f32 for the first shard, and another storage for the second.
    let one = bytes(None);
    assert_eq!(bytes(Some(Encoding::F32)), one);
    assert_eq!(bytes(Some(Encoding::F16)), one + 5 * 96 * 2);
    assert_eq!(bytes(Some(Encoding::affine_over(-90.0, 0.0, 8))), one + 5 * 96);
}
