//! Tests of sessions that are truncated, interrupted or overfilled, and of sessions after a shim
//! failure.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::{self, Form, Plan, bits, chain, disturbed, graph, ids, last_logits};
use shardwright_graph::WeightData;
use shardwright_runtime::{Appended, Chain, Prompted, Session, SessionError, Truncation};
use shardwright_test_checkpoints::Spec;
use shardwright_vocabulary::{DType, ErrorClass, ErrorKind};

/// Returns a plan with rings of window 6 + 4 rows in a context of 96.
fn rings() -> Plan {
    Plan { largest: 4, prefill: vec![4], ..Plan::default() }
}

fn logits(session: &Session) -> Vec<u32> {
    bits(session.logits().unwrap())
}

const NO_TOKENS: &str = "no tokens were passed";
const NOT_GENERATIVE: &str = "the model is an encoder";

fn expect(error: &SessionError, kind: ErrorKind, text: &str) {
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(text), "no `{text}`: {error}");
}

fn refused<T: std::fmt::Debug>(result: Result<T, SessionError>, kind: ErrorKind, text: &str) {
    expect(&result.unwrap_err(), kind, text);
}

#[test]
fn truncation_is_free_as_far_back_as_the_largest_entry() {
    for (name, spec) in [("gemma 3", Spec::gemma3()), ("gemma 4", Spec::gemma4())] {
        let graph = graph(&spec);
        let chain = chain(&graph, &rings());
        let tokens = ids(60, graph.vocabulary);
        let other: Vec<u32> = tokens.iter().map(|id| (id + 1) % graph.vocabulary as u32).collect();
        for back in 0..=7 {
            let mut session = chain.session().unwrap();
            session.append(&tokens[..50]).unwrap();
            let kept = 50 - back;
            let free = back <= 4;
            let expected = if free { Truncation::Free } else { Truncation::StateLost { recompute: kept } };
            assert_eq!(session.truncate(kept).unwrap(), expected, "{name}, back {back}");
            assert_eq!(session.tokens(), &tokens[..kept]);
            if back > 0 {
                assert!(session.logits().is_none());
            }
            let appended = session.append(&other[kept..55]).unwrap();
            assert_eq!(appended.recomputed, if free { 0 } else { kept }, "{name}, back {back}");
            let sequence = [&tokens[..kept], &other[kept..55]].concat();
            assert_eq!(logits(&session), last_logits(&chain, &sequence), "{name}, back {back}");
        }
    }
}

#[test]
fn the_free_range_is_counted_from_the_furthest_position() {
    let graph = graph(&Spec::gemma3());
    let chain = chain(&graph, &rings());
    let tokens = ids(60, graph.vocabulary);
    let mut session = chain.session().unwrap();
    session.append(&tokens[..50]).unwrap();
    assert_eq!(session.truncate(46).unwrap(), Truncation::Free);
    session.append(&tokens[46..47]).unwrap();
    // Position 49 was written once, so the rings reach back to 46.
    assert_eq!(session.truncate(46).unwrap(), Truncation::Free);
    assert_eq!(session.truncate(45).unwrap(), Truncation::StateLost { recompute: 45 });
    // A second truncation before the next run has no further cost.
    assert_eq!(session.truncate(44).unwrap(), Truncation::Free);
    assert_eq!(session.append(&tokens[44..50]).unwrap(), Appended { tokens: 6, recomputed: 44 });
    assert_eq!(logits(&session), last_logits(&chain, &tokens[..50]));
    assert_eq!(session.truncate(46).unwrap(), Truncation::Free);
}

#[test]
fn linear_states_and_rings_that_never_wrapped_keep_everything() {
    let graph = graph(&Spec::qwen3());
    let linear = chain(&graph, &rings());
    let mut session = linear.session().unwrap();
    session.append(&ids(50, graph.vocabulary)).unwrap();
    assert_eq!(session.truncate(1).unwrap(), Truncation::Free);

    let graph = support::graph(&Spec::gemma3());
    let chain = chain(&graph, &rings());
    let tokens = ids(40, graph.vocabulary);
    let mut session = chain.session().unwrap();
    session.append(&tokens[..10]).unwrap();
    assert_eq!(session.truncate(2).unwrap(), Truncation::Free);
    session.append(&tokens[2..30]).unwrap();
    assert_eq!(logits(&session), last_logits(&chain, &tokens[..30]));
    assert_eq!(session.truncate(0).unwrap(), Truncation::Free);
    session.append(&tokens[..12]).unwrap();
    assert_eq!(logits(&session), last_logits(&chain, &tokens[..12]));
    session.clear();
    assert!(session.tokens().is_empty() && session.logits().is_none());
    session.append(&tokens[5..9]).unwrap();
    assert_eq!(logits(&session), last_logits(&chain, &tokens[5..9]));
}

#[test]
fn a_prompt_runs_only_what_is_new() {
    let graph = graph(&Spec::gemma4());
    let chain = chain(&graph, &rings());
    let tokens = ids(60, graph.vocabulary);
    let mut session = chain.session().unwrap();
    let check = |session: &mut Session, prompt: &[u32], reused: usize| {
        let run = prompt.len() - reused;
        assert_eq!(session.prompt(prompt).unwrap(), Prompted { reused, run });
        assert_eq!(session.tokens(), prompt);
        assert_eq!(logits(session), last_logits(&chain, prompt));
    };
    check(&mut session, &tokens[..20], 0);
    check(&mut session, &tokens[..33], 20);
    // An identical prompt runs no token.
    check(&mut session, &tokens[..33], 33);
    // For a prefix of the history, only its last token runs, for its logits.
    check(&mut session, &tokens[..31], 30);
    let changed = [&tokens[..30], &[tokens[30] ^ 1], &tokens[31..40]].concat();
    check(&mut session, &changed, 30);
    // This prefix is too far back for the rings.
    check(&mut session, &tokens[..40], 0);
    refused(session.prompt(&[]), ErrorKind::Argument, NO_TOKENS);
}

#[test]
fn two_sessions_do_not_meet() {
    let graph = graph(&Spec::gemma3());
    let chain = chain(&graph, &rings());
    let a = ids(40, graph.vocabulary);
    let b: Vec<u32> = a.iter().rev().copied().collect();
    let expected = [last_logits(&chain, &a), last_logits(&chain, &b)];
    std::thread::scope(|scope| {
        let run = |tokens: &[u32], expected: &Vec<u32>| {
            for _ in 0..3 {
                let mut session = chain.session().unwrap();
                for piece in tokens.chunks(3) {
                    session.append(piece).unwrap();
                }
                assert_eq!(logits(&session), *expected);
            }
        };
        let (a, b, expected) = (&a, &b, &expected);
        scope.spawn(move || run(a, &expected[0]));
        run(b, &expected[1]);
    });
}

#[test]
fn a_failed_run_leaves_the_session_at_its_last_position() {
    let graph = graph(&Spec::gemma4());
    for form in [Form::Semantic, Form::Decomposed, Form::ByRuntime] {
        let plan = Plan { cuts: vec![2], around: "b", form, ..rings() };
        let (chain, troubles) = disturbed(&graph, &plan);
        let tokens = ids(60, graph.vocabulary);
        let expected = last_logits(&chain, &tokens);
        for shard in 0..troubles.len() {
            for after in [0, 1, 4] {
                let mut session = chain.session().unwrap();
                session.append(&tokens[..40]).unwrap();
                let trouble = &troubles[shard];
                trouble.spoil.store(true, Ordering::SeqCst);
                *trouble.fail.lock().unwrap() = Some((after, Some(ErrorClass::Internal)));
                match session.append(&tokens[40..]) {
                    // The head only runs in the last step.
                    Ok(_) => assert!(shard == troubles.len() - 1 && after > 0),
                    Err(error) => {
                        assert!(matches!(&error, SessionError::Run { .. }), "{error}");
                        assert_eq!(error.class(), Some(ErrorClass::Internal));
                        assert!(error.help().is_some());
                        let complete = session.tokens().len();
                        assert!((40..60).contains(&complete), "{complete}");
                        assert_eq!(session.tokens(), &tokens[..complete]);
                        assert!(session.logits().is_none());
                        session.append(&tokens[complete..]).unwrap();
                    }
                }
                *trouble.fail.lock().unwrap() = None;
                assert_eq!(logits(&session), expected, "shard {shard} after {after} runs");
                // The rows of a failed run count as written positions.
                session.truncate(58).unwrap();
                session.append(&tokens[58..]).unwrap();
                assert_eq!(logits(&session), expected);
            }
        }
    }
}

#[test]
fn lost_states_come_back_from_the_history() {
    let graph = graph(&Spec::gemma4());
    for (form, class) in [
        (Form::Semantic, ErrorClass::StateLost),
        (Form::Decomposed, ErrorClass::StateLost),
        (Form::Semantic, ErrorClass::DeviceLost),
    ] {
        let (chain, troubles) = disturbed(&graph, &Plan { form, ..rings() });
        let tokens = ids(50, graph.vocabulary);
        let expected = last_logits(&chain, &tokens);
        let mut session = chain.session().unwrap();
        session.append(&tokens[..30]).unwrap();
        troubles[2].spoil.store(true, Ordering::SeqCst);
        *troubles[2].fail.lock().unwrap() = Some((2, Some(class)));
        let error = session.append(&tokens[30..]).unwrap_err();
        assert_eq!(error.class(), Some(class));
        let complete = session.tokens().len();
        assert_eq!(complete, 38);
        let appended = session.append(&tokens[complete..]).unwrap();
        assert_eq!(appended, Appended { tokens: 12, recomputed: complete });
        assert_eq!(logits(&session), expected);
    }
}

#[test]
fn a_history_goes_on_elsewhere() {
    let graph = graph(&Spec::gemma4());
    let (lost, troubles) = disturbed(&graph, &rings());
    let tokens = ids(50, graph.vocabulary);
    let mut session = lost.session().unwrap();
    session.append(&tokens[..30]).unwrap();
    *troubles[0].fail.lock().unwrap() = Some((0, Some(ErrorClass::DeviceLost)));
    session.append(&tokens[30..]).unwrap_err();

    let elsewhere = chain(&graph, &Plan { around: "b", decoders: vec!["b"], ..rings() });
    let mut resumed = session.resume_on(&elsewhere).unwrap();
    assert_eq!(resumed.tokens(), &tokens[..30]);
    assert_eq!(resumed.append(&tokens[30..]).unwrap(), Appended { tokens: 20, recomputed: 30 });
    assert_eq!(logits(&resumed), last_logits(&lost, &tokens));

    let small = chain(&graph, &Plan { context: 29, ..rings() });
    let error = session.resume_on(&small).unwrap_err();
    expect(&error, ErrorKind::Context, "30 tokens at position 0 exceed the context of 29");
}

#[test]
fn a_recomputation_that_fails_goes_on_where_it_stopped() {
    let graph = graph(&Spec::gemma3());
    let (chain, troubles) = disturbed(&graph, &rings());
    let tokens = ids(50, graph.vocabulary);
    let expected = last_logits(&chain, &tokens);
    let mut session = chain.session().unwrap();
    session.append(&tokens[..40]).unwrap();
    session.truncate(20).unwrap();
    *troubles[1].fail.lock().unwrap() = Some((2, Some(ErrorClass::ResourceLimit)));
    session.append(&tokens[20..]).unwrap_err();
    // The history has its old length, and eight of its rows are valid.
    assert_eq!(session.tokens(), &tokens[..20]);
    assert_eq!(session.append(&tokens[20..]).unwrap(), Appended { tokens: 30, recomputed: 12 });
    assert_eq!(logits(&session), expected);
}

#[test]
fn a_callback_runs_once_before_each_step() {
    let graph = graph(&Spec::gemma3());
    let (chain, troubles) = disturbed(&graph, &rings());
    let tokens = ids(20, graph.vocabulary);
    let mut session = chain.session().unwrap();
    // For each call, the number of earlier runs of the decoder.
    let calls = Arc::new(Mutex::new(Vec::new()));
    let (called, decoder) = (calls.clone(), troubles[1].clone());
    session.set_before_step(Some(Arc::new(move || {
        called.lock().unwrap().push(decoder.runs.load(Ordering::SeqCst));
    })));
    // Three steps of at most four rows, then one for the last token.
    session.append(&tokens[..10]).unwrap();
    assert_eq!(*calls.lock().unwrap(), [0, 1, 2, 3]);
    // The call precedes a step that fails too.
    *troubles[1].fail.lock().unwrap() = Some((0, Some(ErrorClass::Internal)));
    session.append(&tokens[10..11]).unwrap_err();
    assert_eq!(*calls.lock().unwrap(), [0, 1, 2, 3, 4]);
    session.score(&tokens[10..12], &mut |_| {}).unwrap();
    assert_eq!(*calls.lock().unwrap(), [0, 1, 2, 3, 4, 5, 6]);
    session.set_before_step(None);
    session.append(&tokens[12..13]).unwrap();
    assert_eq!(calls.lock().unwrap().len(), 7);
}

#[test]
fn scoring_recomputes_lost_history_first() {
    let graph = graph(&Spec::gemma3());
    let chain = chain(&graph, &rings());
    let tokens = ids(40, graph.vocabulary);
    let expected: Vec<Vec<u32>> = support::scores(&chain, &tokens).iter().map(|row| bits(row)).collect();
    let mut session = chain.session().unwrap();
    session.append(&tokens).unwrap();
    session.truncate(20).unwrap();
    let mut rows = Vec::new();
    let scored = session
        .score(&tokens[20..], &mut |step| {
            assert!(step.logits(step.rows()).is_none());
            rows.extend((0..step.rows()).map(|row| bits(step.logits(row).unwrap())));
        })
        .unwrap();
    assert_eq!(scored, Appended { tokens: 20, recomputed: 20 });
    assert_eq!(rows, expected[20..]);
    assert_eq!(logits(&session), expected[39]);
}

#[test]
fn another_thread_cancels_a_run() {
    let graph = graph(&Spec::gemma3());
    let (chain, troubles) = disturbed(&graph, &rings());
    let tokens = ids(40, graph.vocabulary);
    let expected = last_logits(&chain, &tokens);
    let mut session = chain.session().unwrap();
    session.append(&tokens[..20]).unwrap();
    let handle = session.cancel_handle();
    let trouble = troubles[1].clone();
    trouble.block.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while !trouble.blocked.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            handle.cancel();
        });
        let error = session.append(&tokens[20..]).unwrap_err();
        assert!(matches!(error, SessionError::Cancelled { position: 20 }), "{error}");
        assert_eq!(error.class(), None);
    });
    // The request is cleared, so the next call runs.
    assert!(!session.cancel_handle().is_requested());
    session.append(&tokens[20..]).unwrap();
    assert_eq!(logits(&session), expected);
}

#[test]
fn a_request_between_operations_ends_the_next() {
    let graph = graph(&Spec::gemma3());
    let chain = chain(&graph, &rings());
    let mut session = chain.session().unwrap();
    session.cancel_handle().cancel();
    assert!(matches!(session.append(&[1, 2, 3]), Err(SessionError::Cancelled { position: 0 })));
    assert!(session.tokens().is_empty());
    session.cancel_handle().cancel();
    session.cancel_handle().reset();
    session.append(&[1, 2, 3]).unwrap();
    // A step in the middle also detects the request.
    let handle = session.cancel_handle();
    let error = session.append_with(&ids(20, graph.vocabulary), &mut |_| handle.cancel()).unwrap_err();
    assert!(matches!(error, SessionError::Cancelled { position: 7 }), "{error}");
    assert_eq!(session.tokens().len(), 7);
}

#[test]
fn a_cancellation_reported_without_a_request_is_one() {
    let graph = graph(&Spec::gemma3());
    let (chain, troubles) = disturbed(&graph, &rings());
    let mut session = chain.session().unwrap();
    *troubles[0].fail.lock().unwrap() = Some((0, None));
    assert!(matches!(session.append(&[1, 2]), Err(SessionError::Cancelled { position: 0 })));
}

#[test]
fn deadlines_end_runs_and_steps() {
    let graph = graph(&Spec::gemma3());
    let (chain, troubles) = disturbed(&graph, &rings());
    let mut session = chain.session().unwrap();
    session.set_deadline(Some(Instant::now()));
    let error = session.append(&[1, 2]).unwrap_err();
    assert!(matches!(error, SessionError::Deadline { position: 0 }), "{error}");
    assert_eq!(error.class(), Some(ErrorClass::Deadline));
    session.set_deadline(Some(Instant::now() + Duration::from_millis(30)));
    troubles[1].block.store(true, Ordering::SeqCst);
    assert!(matches!(session.append(&[1, 2]), Err(SessionError::Deadline { position: 0 })));
    session.set_deadline(None);
    session.append(&[1, 2]).unwrap();
    assert_eq!(logits(&session), last_logits(&chain, &[1, 2]));
}

#[test]
fn impossible_requests_change_nothing() {
    let graph = graph(&Spec::gemma4());
    let chain = chain(&graph, &rings());
    let mut session = chain.session().unwrap();
    let tokens = ids(96, graph.vocabulary);
    session.append(&tokens[..90]).unwrap();
    let before = logits(&session);
    assert_eq!(session.remaining(), 6);

    let error = session.append(&tokens[..7]).unwrap_err();
    expect(&error, ErrorKind::Context, "7 tokens at position 90 exceed the context of 96");
    assert!(error.help().unwrap().contains("context"));
    let long = ids(97, graph.vocabulary);
    refused(session.prompt(&long), ErrorKind::Context, "97 tokens at position 0 exceed the context of 96");
    let scored = session.score(&tokens[..7], &mut |_| {});
    refused(scored, ErrorKind::Context, "7 tokens at position 90 exceed the context of 96");

    let error = session.append(&[3, graph.vocabulary as u32]).unwrap_err();
    expect(&error, ErrorKind::Invalid, "token 96 reads row 96 of `");
    assert!(error.to_string().ends_with("which has 96 rows") && error.help().is_some(), "{error}");
    refused(session.prompt(&[u32::MAX]), ErrorKind::Invalid, "token 4294967295 reads row");

    refused(session.append(&[]), ErrorKind::Argument, NO_TOKENS);
    refused(session.encode(&[1]), ErrorKind::Unsupported, "the model generates text");
    let expected = "cannot truncate 90 tokens to 91";
    refused(session.truncate(91), ErrorKind::Argument, expected);

    assert_eq!(session.tokens(), &tokens[..90]);
    assert_eq!(logits(&session), before);
    session.append(&tokens[90..]).unwrap();
    assert_eq!(session.remaining(), 0);
    refused(session.append(&[1]), ErrorKind::Context, "exceed the context");
}

#[test]
fn encoders_refuse_what_they_cannot() {
    let graph = graph(&Spec::embeddinggemma());
    let chain = chain(&graph, &Plan::default());
    let mut session = chain.session().unwrap();
    for error in [session.append(&[1]).unwrap_err(), session.prompt(&[1]).unwrap_err()] {
        expect(&error, ErrorKind::Unsupported, NOT_GENERATIVE);
        assert!(error.help().is_some());
    }
    refused(session.score(&[1], &mut |_| {}), ErrorKind::Unsupported, NOT_GENERATIVE);
    refused(session.encode(&[]), ErrorKind::Argument, NO_TOKENS);
    let expected = "49 tokens exceed the 48 rows";
    refused(session.encode(&ids(49, 90)), ErrorKind::Context, expected);
    refused(session.encode(&[1 << 20]), ErrorKind::Invalid, "token 1048576 reads row");
}

#[test]
fn an_embedding_that_is_not_finite_is_an_error_of_the_first_such_shard() {
    let sound = graph(&Spec::embeddinggemma());
    let plan = || Plan { cuts: vec![1], ..Plan::default() };
    let tokens = ids(5, 90);
    assert!(chain(&sound, &plan()).session().unwrap().encode(&tokens).unwrap().iter().all(|v| v.is_finite()));
    for (layer, value) in [(0, f32::NAN), (1, f32::INFINITY)] {
        let mut broken = sound.clone();
        let name = format!("layers.{layer}.mlp.down_proj.weight");
        let weight = broken.weights.iter_mut().find(|weight| weight.name.ends_with(&name));
        let weight = weight.unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(weight.dtype, DType::Bf16, "{name}");
        let mut bytes = weight.data.bytes().to_vec();
        bytes[..2].copy_from_slice(&((value.to_bits() >> 16) as u16).to_le_bytes());
        weight.data = WeightData::from_vec(bytes);
        let error = chain(&broken, &plan()).session().unwrap().encode(&tokens).unwrap_err();
        assert!(matches!(&error, SessionError::NotFinite(_)), "{error}");
        assert!(error.to_string().contains(&format!("(layers {layer}..")), "{error}");
        assert!(error.to_string().contains(&format!("shard `decoder.{layer}-")), "{error}");
        assert!(error.help().unwrap().contains("f16"), "{error}");
    }
}

#[test]
fn no_memory_is_an_error() {
    let graph = graph(&Spec::gemma3());
    let (chain, troubles) = disturbed(&graph, &rings());
    *troubles[1].full.lock().unwrap() = Some(ErrorClass::ResourceLimit);
    let error = chain.session().unwrap_err();
    assert!(matches!(&error, SessionError::Run { .. }), "{error}");
    assert!(error.to_string().contains("cannot allocate"), "{error}");
    assert_eq!(error.class(), Some(ErrorClass::ResourceLimit));
    assert!(error.help().is_some());
}

#[test]
fn public_types_can_move_between_threads() {
    fn send<T: Send>() {}
    fn shared<T: Send + Sync>() {}
    shared::<Chain>();
    shared::<shardwright_runtime::CancelHandle>();
    shared::<SessionError>();
    send::<Session>();
    send::<shardwright_runtime::Generation>();
    send::<shardwright_runtime::PlacementRecord>();
}
