//! Cuts, chunks and continued sessions change no bit of a result.

use crate::support::{self, Form, Plan, bits, chain, graph, ids, last_logits, parts, scores};
use shardwright_reference::{Arrangement, ReferenceModel};
use shardwright_runtime::{ChainError, Truncation};
use shardwright_test_checkpoints::Spec;
use shardwright_vocabulary::Encoding;

fn generating() -> [(&'static str, Spec); 3] {
    [("gemma 3", Spec::gemma3()), ("gemma 4", Spec::gemma4()), ("qwen 3", Spec::qwen3())]
}

#[test]
fn the_whole_model_is_what_the_oracle_says() {
    for (name, spec) in generating() {
        let graph = graph(&spec);
        let tokens = ids(40, graph.vocabulary);
        let arrangement = Arrangement { rows: 8, ..Arrangement::whole(96) };
        let oracle = ReferenceModel::new(&graph, arrangement).unwrap();
        let expected = oracle.logits(&tokens).unwrap();
        let chain = chain(&graph, &Plan { decode: vec![1, 8], ..Plan::default() });
        let given = scores(&chain, &tokens);
        for (row, given) in given.iter().enumerate() {
            assert_eq!(bits(given), bits(&expected.row(row)), "{name} position {row}");
        }
        assert_eq!(last_logits(&chain, &tokens), bits(&expected.row(39)), "{name}");
    }
}

#[test]
fn every_cut_into_two_changes_no_bit() {
    for (name, spec) in generating() {
        let graph = graph(&spec);
        let tokens = ids(21, graph.vocabulary);
        let whole = last_logits(&chain(&graph, &Plan::default()), &tokens);
        for cut in 1..graph.layers() {
            let same = Plan { cuts: vec![cut], ..Plan::default() };
            assert_eq!(last_logits(&chain(&graph, &same), &tokens), whole, "{name} cut at {cut}");
            // Embedding and head on one instance, the layers on another.
            let around = Plan { around: "a", decoders: vec!["b"], ..same.clone() };
            assert_eq!(
                last_logits(&chain(&graph, &around), &tokens),
                whole,
                "{name} cut at {cut}, two instances"
            );
            let apart = Plan { decoders: vec!["b", "c"], ..same };
            let shares =
                (cut..graph.layers()).any(|layer| graph.donor_of(layer).is_some_and(|donor| donor < cut));
            match parts(&graph, &apart).chain() {
                Ok(chain) => {
                    assert!(!shares, "{name} cut at {cut}");
                    assert_eq!(last_logits(&chain, &tokens), whole, "{name} cut at {cut}, three instances");
                }
                Err(error) => {
                    assert!(shares, "{name} cut at {cut}: {error}");
                    assert!(matches!(error, ChainError::StateNotShareable { .. }), "{error}");
                    assert!(error.to_string().starts_with("state-not-shareable: "), "{error}");
                    assert!(error.help().is_some());
                }
            }
        }
    }
}

#[test]
fn three_and_four_shards_change_no_bit() {
    for (name, spec) in generating() {
        let graph = graph(&spec);
        let tokens = ids(21, graph.vocabulary);
        let whole = last_logits(&chain(&graph, &Plan::default()), &tokens);
        for cuts in [vec![1, 2], vec![1, 3], vec![1, 2, 3]] {
            let plan = Plan { cuts: cuts.clone(), around: "b", ..Plan::default() };
            assert_eq!(last_logits(&chain(&graph, &plan), &tokens), whole, "{name} cut at {cuts:?}");
        }
    }
}

#[test]
fn chunks_change_no_bit() {
    for (name, spec) in generating() {
        let graph = graph(&spec);
        for length in [2, 3, 17, 33, 34] {
            let tokens = ids(length, graph.vocabulary);
            let with = |prefill: Vec<u64>, decode: Vec<u64>| {
                chain(&graph, &Plan { largest: 32, prefill, decode, ..Plan::default() })
            };
            let once = last_logits(&with(vec![32], vec![1]), &tokens);
            for (prefill, decode) in [
                (vec![8], vec![1]),
                (vec![3, 8], vec![1]),
                (vec![1, 5, 16], vec![1]),
                (vec![], vec![1]),
                (vec![], vec![1, 4]),
                (vec![16], vec![3]),
            ] {
                let label = format!("{name}, {length} tokens, prefill {prefill:?}, decode {decode:?}");
                assert_eq!(last_logits(&with(prefill, decode), &tokens), once, "{label}");
            }
        }
    }
}

#[test]
fn the_largest_filled_prefill_goes_first() {
    let graph = graph(&Spec::gemma3());
    let plan = Plan { prefill: vec![2, 8], decode: vec![1, 4], ..Plan::default() };
    let chain = chain(&graph, &plan);
    let mut session = chain.session().unwrap();
    let mut steps = Vec::new();
    session
        .append_with(&ids(22, graph.vocabulary), &mut |step| {
            steps.push((step.entry().to_owned(), step.position(), step.rows()));
        })
        .unwrap();
    let expected = [
        ("prefill_8@96", 0, 8),
        ("prefill_8@96", 8, 8),
        ("prefill_2@96", 16, 2),
        ("prefill_2@96", 18, 2),
        ("prefill_2@96", 20, 1),
        ("decode_1@96", 21, 1),
    ];
    let expected: Vec<_> =
        expected.map(|(entry, position, rows)| (entry.to_owned(), position, rows)).to_vec();
    assert_eq!(steps, expected);
}

#[test]
fn a_continued_session_equals_a_fresh_one() {
    for (name, spec) in generating() {
        let graph = graph(&spec);
        let chain = chain(&graph, &Plan { cuts: vec![2], around: "b", ..Plan::default() });
        let tokens = ids(60, graph.vocabulary);
        let mut session = chain.session().unwrap();
        let mut end = 0;
        for piece in [1, 5, 13, 1, 1, 20, 9] {
            session.append(&tokens[end..end + piece]).unwrap();
            end += piece;
            assert_eq!(session.tokens(), &tokens[..end]);
            assert_eq!(
                bits(session.logits().unwrap()),
                last_logits(&chain, &tokens[..end]),
                "{name} at {end}"
            );
        }
    }
}

#[test]
fn rings_wrap_many_times_and_long_prompts_are_right() {
    for (name, spec) in [("gemma 3", Spec::gemma3()), ("gemma 4", Spec::gemma4())] {
        let graph = graph(&spec);
        // Rings of 6 + 4 rows: 120 positions go round twelve times.
        let plan = Plan { context: 128, largest: 4, prefill: vec![4], cuts: vec![2], ..Plan::default() };
        let rings = chain(&graph, &plan);
        assert!(rings.session().unwrap().placement().states.iter().any(|state| state.capacity == 10));
        let tokens = ids(120, graph.vocabulary);
        let arrangement = Arrangement { rows: 4, ..Arrangement::whole(128) };
        let oracle = ReferenceModel::new(&graph, arrangement).unwrap().logits(&tokens).unwrap();
        assert_eq!(last_logits(&rings, &tokens), bits(&oracle.row(119)), "{name}");
        for (row, given) in scores(&rings, &tokens).iter().enumerate() {
            assert_eq!(bits(given), bits(&oracle.row(row)), "{name} position {row}");
        }
        // The same without a ring: the largest entry makes every state as long as the context.
        let linear =
            chain(&graph, &Plan { context: 128, largest: 128, prefill: vec![128], ..Plan::default() });
        let mut session = linear.session().unwrap();
        session.append(&tokens).unwrap();
        for (a, b) in session.logits().unwrap().iter().zip(oracle.row(119)) {
            assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{name}: {a} {b}");
        }
    }
}

#[test]
fn primitives_and_rows_placed_by_the_runtime_agree() {
    for (name, spec) in generating() {
        let graph = graph(&spec);
        let tokens = ids(70, graph.vocabulary);
        let plan =
            Plan { largest: 4, prefill: vec![4], decode: vec![1, 4], cuts: vec![2], ..Plan::default() };
        let whole = scores(&chain(&graph, &plan), &tokens);
        for (label, form) in [("decomposed", Form::Decomposed), ("by runtime", Form::ByRuntime)] {
            let other = chain(&graph, &Plan { form, ..plan.clone() });
            let placement = other.session().unwrap().placement();
            let update = if form == Form::ByRuntime { "by-runtime" } else { "in-graph" };
            assert!(placement.states.iter().all(|state| state.update == update), "{name} {label}");
            let given = scores(&other, &tokens);
            for (row, (given, whole)) in given.iter().zip(&whole).enumerate() {
                for (a, b) in given.iter().zip(whole) {
                    assert!((a - b).abs() <= 5e-3, "{name} {label} position {row}: {a} {b}");
                }
            }
            // Chunks and truncation keep every bit in this form as well.
            let mut session = other.session().unwrap();
            session.append(&tokens[..50]).unwrap();
            assert_eq!(session.truncate(48).unwrap(), Truncation::Free);
            session.append(&tokens[48..]).unwrap();
            assert_eq!(bits(session.logits().unwrap()), last_logits(&other, &tokens), "{name} {label}");
            assert_eq!(bits(session.logits().unwrap()), bits(&given[69]), "{name} {label}");
        }
    }
}

#[test]
fn boundaries_are_shared_or_copied_and_counted() {
    let graph = graph(&Spec::gemma4());
    let tokens = ids(9, graph.vocabulary);
    let record = |plan: &Plan| {
        let chain = chain(&graph, plan);
        let mut session = chain.session().unwrap();
        session.append(&tokens).unwrap();
        (session.placement(), bits(session.logits().unwrap()))
    };
    let (shared, whole) = record(&Plan { cuts: vec![2], alignment: 4, ..Plan::default() });
    assert!(
        shared
            .boundaries
            .iter()
            .all(|boundary| boundary.bytes_copied == 0 && boundary.copied_because.is_none())
    );
    let shards: Vec<&str> = shared.shards.iter().map(|shard| shard.shard.as_str()).collect();
    assert_eq!(shards, ["embed", "per-layer-input", "decoder.0-2", "decoder.2-6", "head"]);
    assert_eq!(shared.entries[0].entry, "prefill_8@96");
    assert_eq!((shared.entries[0].steps, shared.entries[0].rows), (1, 8));
    assert_eq!((shared.entries[1].steps, shared.entries[1].rows), (1, 1));
    assert!(shared.entries[0].input_bytes > 0);
    assert!(shared.shards.iter().all(|shard| shard.runs > 0));

    // Two instances: embed → decoder, per-layer → both decoders, decoder → head.
    let (apart, logits) = record(&Plan { cuts: vec![2], decoders: vec!["b"], ..Plan::default() });
    assert_eq!(logits, whole);
    let of = |from: &str, to: &str, what: &str| {
        let found =
            apart.boundaries.iter().find(|b| (b.from.as_str(), b.to.as_str(), b.what) == (from, to, what));
        found.unwrap_or_else(|| panic!("{from} → {to} {what}"))
    };
    let row = graph.hidden * 4;
    let slice = graph.per_layer_width * 4;
    // Prefill carries 8 rows, decode 1.
    assert_eq!(of("embed", "decoder.0-2", "hidden").bytes_copied, 9 * row);
    assert_eq!(of("embed", "per-layer-input", "hidden").bytes_copied, 0);
    assert_eq!(of("per-layer-input", "decoder.0-2", "per-layer").bytes_copied, 9 * 2 * slice);
    assert_eq!(of("per-layer-input", "decoder.2-6", "per-layer").bytes_copied, 9 * 4 * slice);
    assert_eq!(of("decoder.0-2", "decoder.2-6", "hidden").bytes_copied, 0);
    // Prefill does not reach the head.
    assert_eq!(of("decoder.2-6", "head", "hidden").bytes_copied, row);
    assert_eq!(of("decoder.2-6", "head", "hidden").copied_because, Some("another instance or device"));
    serde_json::to_string(&apart).unwrap();

    // A slice that does not begin where the binding must begin.
    let (skewed, logits) = record(&Plan { cuts: vec![1], alignment: 256, ..Plan::default() });
    let copied = skewed.boundaries.iter().find(|b| b.to == "decoder.1-6" && b.what == "per-layer").unwrap();
    assert_eq!(copied.copied_because, Some("the slice is not aligned"));
    assert!(copied.bytes_copied > 0);
    assert_eq!(logits, whole);
}

#[test]
fn other_encodings_are_converted() {
    let graph = graph(&Spec::gemma3());
    let tokens = ids(12, graph.vocabulary);
    let exact = chain(&graph, &Plan::default());
    let narrow = chain(&graph, &Plan { storages: support::hidden(Encoding::F16), ..Plan::default() });
    let mut sessions = [exact.session().unwrap(), narrow.session().unwrap()];
    for session in &mut sessions {
        session.append(&tokens).unwrap();
    }
    let [exact, narrow] = &sessions;
    let boundary = &narrow.placement().boundaries[0];
    assert_eq!((boundary.from_storage.as_str(), boundary.to_storage.as_str()), ("f32", "f16"));
    assert_eq!(boundary.copied_because, Some("another encoding"));
    let worst = exact
        .logits()
        .unwrap()
        .iter()
        .zip(narrow.logits().unwrap())
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(worst > 0.0 && worst < 0.5, "{worst}");
}

#[test]
fn an_encoder_gives_the_oracles_vector() {
    let graph = graph(&Spec::embeddinggemma());
    let oracle = ReferenceModel::new(&graph, Arrangement { rows: 48, ..Arrangement::whole(48) }).unwrap();
    for (cuts, decoders) in [(vec![], vec!["a"]), (vec![1], vec!["a"]), (vec![2], vec!["b", "c"])] {
        let chain = chain(&graph, &Plan { encode: vec![16, 48], cuts, decoders, ..Plan::default() });
        assert_eq!(chain.context(), 48);
        let mut session = chain.session().unwrap();
        for length in [1, 15, 16, 17, 48] {
            let tokens = ids(length, 90);
            let mut entry = String::new();
            let given = session.encode_with(&tokens, &mut |step| entry = step.entry().to_owned()).unwrap();
            assert_eq!(entry, if length <= 16 { "encode_16" } else { "encode_48" });
            let expected = oracle.embedding(&tokens).unwrap();
            if length > 16 {
                assert_eq!(bits(&given), bits(&expected), "{length} tokens");
            }
            for (a, b) in given.iter().zip(&expected) {
                assert!((a - b).abs() < 1e-6, "{length} tokens: {a} {b}");
            }
            assert_eq!(given, session.encode(&tokens).unwrap());
        }
    }
}

#[test]
fn taps_and_boundaries_can_be_read_by_name() {
    let graph = graph(&Spec::gemma4());
    let tokens = ids(6, graph.vocabulary);
    let arrangement = Arrangement { rows: 8, ..Arrangement::whole(96) };
    let trace = ReferenceModel::new(&graph, arrangement).unwrap().trace(&tokens).unwrap();
    let plan = Plan { decode: vec![1, 8], cuts: vec![3], taps: true, ..Plan::default() };
    let tapped = chain(&graph, &plan);
    let mut session = tapped.session().unwrap();
    let mut seen = 0;
    session
        .score(&tokens, &mut |step| {
            assert!(step.tensor("no such tap").is_none());
            for layer in 0..graph.layers() as usize {
                let tensor =
                    step.tensor(&format!("layer.{layer}")).unwrap_or_else(|| panic!("layer.{layer}"));
                let width = graph.hidden as usize;
                assert_eq!(tensor.shape.last(), Some(&graph.hidden));
                for row in 0..step.rows() {
                    let expected = trace.hidden[layer + 1].row(step.position() + row);
                    assert_eq!(tensor.values[row * width..][..width], expected, "layer {layer} row {row}");
                }
            }
            assert!(step.tensor("embed").is_some());
            assert!(step.names().contains(&"final-norm".to_owned()), "{:?}", step.names());
            seen += step.rows();
        })
        .unwrap();
    assert_eq!(seen, 6);
}

#[test]
fn logits_whose_soft_cap_is_left_to_the_runtime_are_capped_in_every_row() {
    let graph = graph(&Spec::gemma4());
    let tokens = ids(24, graph.vocabulary);
    let plan = Plan { decode: vec![1, 8], ..Plan::default() };
    let mut left = parts(&graph.without_logits_softcap(), &plan);
    let head = left.description.shards.last_mut().unwrap();
    head.logits_softcap = graph.logits_softcap();
    assert!(head.logits_softcap.is_some());
    let (whole, left) = (chain(&graph, &plan), left.chain().unwrap());
    for (row, (one, other)) in scores(&whole, &tokens).iter().zip(scores(&left, &tokens)).enumerate() {
        let size = one.iter().fold(0.0f32, |size, value| size.max(value.abs()));
        for (one, other) in one.iter().zip(&other) {
            assert!((one - other).abs() <= 1e-6 * size, "position {row}: {one} and {other} of {size}");
        }
    }
    let record = left.session().unwrap().placement();
    assert_eq!(record.shards.last().unwrap().logits_softcap, graph.logits_softcap());
}
