//! Tests which entry points a session runs, and properties that only the executors of these tests
//! can show: primitives, rows that the runtime writes, misaligned slices.
//! `tests/tests/numbers/exactness.rs` proves on the CPU shim that cuts, chunks and threads change
//! no bit.

use crate::support::{self, Form, Plan, bits, chain, graph, ids, last_logits, scores};
use shardwright_runtime::Truncation;
use shardwright_test_checkpoints::Spec;
use shardwright_vocabulary::Encoding;

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
fn primitives_and_rows_placed_by_the_runtime_agree() {
    for (name, spec) in [("gemma 3", Spec::gemma3()), ("gemma 4", Spec::gemma4()), ("qwen 3", Spec::qwen3())]
    {
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
            let actual = scores(&other, &tokens);
            for (row, (actual, whole)) in actual.iter().zip(&whole).enumerate() {
                for (a, b) in actual.iter().zip(whole) {
                    assert!((a - b).abs() <= 5e-3, "{name} {label} position {row}: {a} {b}");
                }
            }
            // Chunks and truncation keep every bit in this form as well.
            let mut session = other.session().unwrap();
            session.append(&tokens[..50]).unwrap();
            assert_eq!(session.truncate(48).unwrap(), Truncation::Free);
            session.append(&tokens[48..]).unwrap();
            assert_eq!(bits(session.logits().unwrap()), last_logits(&other, &tokens), "{name} {label}");
            assert_eq!(bits(session.logits().unwrap()), bits(&actual[69]), "{name} {label}");
        }
    }
}

#[test]
fn an_encoder_runs_its_smallest_entry_that_holds_the_text() {
    let graph = graph(&Spec::embeddinggemma());
    let chain = chain(&graph, &Plan { encode: vec![16, 48], ..Plan::default() });
    assert_eq!(chain.context(), 48);
    let mut session = chain.session().unwrap();
    for (length, entry) in [(1, "encode_16"), (16, "encode_16"), (17, "encode_48"), (48, "encode_48")] {
        let tokens = ids(length, 90);
        let mut ran = String::new();
        let actual = session.encode_with(&tokens, &mut |step| ran = step.entry().to_owned()).unwrap();
        assert_eq!(ran, entry);
        assert_eq!(actual, session.encode(&tokens).unwrap());
    }
}

#[test]
fn the_reason_for_copying_a_boundary_is_reported() {
    let (slices, whole) = (graph(&Spec::gemma4()), graph(&Spec::gemma3()));
    let plan = Plan { cuts: vec![1], ..Plan::default() };
    for (graph, plan, what, because) in [
        // The start of this slice does not have the alignment that the binding requires.
        (&slices, Plan { alignment: 256, ..plan.clone() }, "per-layer", "the slice is not aligned"),
        (&whole, Plan { storages: support::hidden(Encoding::F16), ..plan }, "hidden", "another encoding"),
    ] {
        let chain = chain(graph, &plan);
        let mut session = chain.session().unwrap();
        session.append(&ids(9, graph.vocabulary)).unwrap();
        let record = session.placement();
        let copied =
            record.boundaries.iter().find(|it| it.what == what && it.copied_because == Some(because));
        assert!(copied.is_some_and(|copied| copied.bytes_copied > 0), "{because}: {:?}", record.boundaries);
        serde_json::to_string(&record).unwrap();
    }
}

/// No plan produces such a chain, but it is valid.
#[test]
fn without_a_prefill_entry_point_decoding_fills_the_states() {
    let graph = graph(&Spec::gemma3());
    let tokens = ids(17, graph.vocabulary);
    let with = |prefill: Vec<u64>, decode: Vec<u64>| {
        let plan = Plan { largest: 32, prefill, decode, ..Plan::default() };
        last_logits(&chain(&graph, &plan), &tokens)
    };
    let once = with(vec![32], vec![1]);
    assert_eq!((with(vec![], vec![1]), with(vec![], vec![1, 4])), (once.clone(), once));
}
