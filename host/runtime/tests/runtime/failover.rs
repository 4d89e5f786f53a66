//! Tests that a session fails over when a device is lost, without losing a token or running one
//! twice, and that the record is complete.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::{self, Form, Plan, Trouble, bits, chain, disturbed, graph, ids, last_logits, place};
use shardwright_runtime::{
    Appended, Chain, FallbackChains, NextChain, PlacementRecord, Session, SessionError,
};
use shardwright_test_checkpoints::Spec;
use shardwright_vocabulary::{Encoding, Error, ErrorClass, ErrorKind};

fn rings() -> Plan {
    Plan { largest: 4, prefill: vec![4], ..Plan::default() }
}

/// A plan for the same model on another place, with other cuts and values that differ in their last
/// bits.
fn elsewhere(instance: &'static str) -> Plan {
    Plan {
        around: instance,
        decoders: vec![instance],
        cuts: vec![1],
        storages: support::hidden(Encoding::F16),
        ..rings()
    }
}

fn dies(trouble: &Trouble, after: usize) {
    *trouble.dies_after.lock().unwrap() = Some(after);
}

fn logits(session: &Session) -> Vec<u32> {
    bits(session.logits().unwrap())
}

fn fallback(chains: impl IntoIterator<Item = Chain>) -> Box<dyn NextChain> {
    Box::new(FallbackChains::new(chains))
}

/// Text of the error of a lost session, between the loss and the unusable chains.
const STRANDED: &str = "; no fallback chain is left";

#[test]
fn a_lost_device_costs_time_and_nothing_else() {
    let graph = graph(&Spec::gemma4());
    let tokens = ids(50, graph.vocabulary);
    let second = chain(&graph, &elsewhere("b"));
    for form in [Form::Semantic, Form::ByRuntime] {
        for shard in 0..4 {
            for after in [0, 3, 5] {
                let (first, troubles) = disturbed(&graph, &Plan { form, ..rings() });
                let mut session = first.session_with(fallback([second.clone()])).unwrap();
                dies(&troubles[shard], after);
                let mut done = 0;
                for piece in [1, 17, 1, 1, 25, 5] {
                    let moves = session.placement().moves.len();
                    let appended = session.append(&tokens[done..done + piece]).unwrap();
                    done += piece;
                    assert_eq!(appended.tokens, piece);
                    assert_eq!(session.tokens(), &tokens[..done]);
                    let moved = session.placement().moves.len() > moves;
                    assert_eq!(appended.recomputed > 0, moved && session.placement().moves[0].tokens > 0);
                    let on = if session.placement().moves.is_empty() { &first } else { &second };
                    if std::ptr::eq(on, &second) {
                        assert_eq!(
                            logits(&session),
                            last_logits(on, &tokens[..done]),
                            "shard {shard} after {after}"
                        );
                    }
                }
                let record = session.placement();
                let [moved] = &record.moves[..] else { panic!("{} moves", record.moves.len()) };
                assert_eq!(moved.shard, first.description().shards[shard].name);
                assert_eq!((&moved.from, &moved.to[..]), (&place("a"), &[place("b")][..]));
                assert!(moved.error.contains("as the test wished"), "{}", moved.error);
                assert!(moved.passed_over.is_empty() && moved.before.moves.is_empty());
                assert!(moved.seconds_to_first_step.unwrap() <= moved.seconds_to_catch_up.unwrap());
                assert_eq!(moved.before.shards.len(), first.description().shards.len());
                assert_eq!(record.shards.len(), second.description().shards.len());
                let [fallback] = &record.fallbacks()[..] else { panic!("{:?}", record.fallbacks()) };
                assert!(fallback.to_string().contains("failed on a"), "{fallback}");
                assert!(serde_json::to_string(&record).unwrap().contains("seconds_to_catch_up"));
            }
        }
    }
}

#[test]
fn one_call_survives_two_losses() {
    let graph = graph(&Spec::gemma3());
    let tokens = ids(40, graph.vocabulary);
    let (first, one) = disturbed(&graph, &rings());
    let (second, two) = disturbed(&graph, &elsewhere("b"));
    let third = chain(&graph, &Plan { around: "c", decoders: vec!["c"], ..rings() });
    let mut session = first.session_with(fallback([second, third.clone()])).unwrap();
    session.append(&tokens[..10]).unwrap();
    dies(&one[1], 3);
    // The device dies while the history is run again.
    dies(&two[1], 1);
    let appended = session.append(&tokens[10..]).unwrap();
    let record = session.placement();
    let at: Vec<usize> = record.moves.iter().map(|moved| moved.tokens).collect();
    assert_eq!(at, [22, 22]);
    assert_eq!(appended, Appended { tokens: 30, recomputed: 22 });
    assert_eq!(session.tokens(), tokens);
    assert_eq!(logits(&session), last_logits(&third, &tokens));
    assert!(record.moves[0].seconds_to_first_step.is_some() && record.moves[0].seconds_to_catch_up.is_none());
    assert!(record.moves[1].seconds_to_catch_up.is_some());
    // No chain is left.
    assert_eq!(record.fallbacks().len(), 2);
}

#[test]
fn every_scored_row_is_shown_once() {
    let graph = graph(&Spec::gemma3());
    let tokens = ids(30, graph.vocabulary);
    let expected = support::scores(&chain(&graph, &rings()), &tokens);
    for after in 0..30 {
        let (first, troubles) = disturbed(&graph, &rings());
        let same = chain(&graph, &Plan { around: "b", decoders: vec!["b"], ..rings() });
        let mut session = first.session_with(fallback([same])).unwrap();
        session.append(&tokens[..5]).unwrap();
        dies(&troubles[2], after);
        let mut rows = Vec::new();
        session
            .score(&tokens[5..], &mut |step| {
                for row in 0..step.rows() {
                    rows.push((step.position() + row, bits(step.logits(row).unwrap())));
                }
            })
            .unwrap();
        let expected: Vec<_> = (5..30).map(|row| (row, bits(&expected[row]))).collect();
        assert_eq!(rows, expected, "after {after}");
        assert_eq!(session.placement().moves.len(), usize::from(after < 25));
    }
}

#[test]
fn the_history_can_be_interrupted_while_it_runs_again() {
    let graph = graph(&Spec::gemma3());
    let tokens = ids(40, graph.vocabulary);
    let (first, one) = disturbed(&graph, &rings());
    let (second, two) = disturbed(&graph, &elsewhere("b"));
    let expected = last_logits(&second, &tokens);
    let start = || {
        let mut session = first.session().unwrap();
        session.set_next_chain(Some(fallback([second.clone()])));
        session.append(&tokens[..30]).unwrap();
        session
    };
    let mut sessions = [start(), start()];
    dies(&one[1], 0);
    let [session, timed] = &mut sessions;

    two[1].block.store(true, Ordering::SeqCst);
    let (handle, blocked) = (session.cancel_handle(), two[1].clone());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while !blocked.blocked.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            handle.cancel();
        });
        let error = session.append(&tokens[30..]).unwrap_err();
        assert!(matches!(error, SessionError::Cancelled { .. }), "{error}");
    });
    assert_eq!(session.tokens(), &tokens[..30]);
    assert_eq!(session.placement().moves.len(), 1);
    assert!(session.placement().moves[0].seconds_to_catch_up.is_none());
    assert_eq!(session.append(&tokens[30..]).unwrap(), Appended { tokens: 10, recomputed: 30 });
    assert_eq!(logits(session), expected);
    assert!(session.placement().moves[0].seconds_to_catch_up.is_some());

    two[1].block.store(true, Ordering::SeqCst);
    timed.set_deadline(Some(Instant::now() + Duration::from_millis(200)));
    let error = timed.append(&tokens[30..]).unwrap_err();
    assert!(matches!(error, SessionError::Deadline { .. }), "{error}");
    timed.set_deadline(None);
    // On a slow machine the deadline may pass before the block.
    two[1].block.store(false, Ordering::SeqCst);
    timed.append(&tokens[30..]).unwrap();
    assert_eq!(logits(timed), expected);
}

#[test]
fn a_request_or_deadline_while_the_next_chain_is_made_ends_the_call() {
    let graph = graph(&Spec::gemma3());
    let tokens = ids(20, graph.vocabulary);
    let second = chain(&graph, &elsewhere("b"));
    let (first, troubles) = disturbed(&graph, &rings());
    let mut session = first.session().unwrap();
    session.append(&tokens[..10]).unwrap();
    dies(&troubles[0], 0);
    let handle = session.cancel_handle();
    let next = second.clone();
    session.set_next_chain(Some(Box::new(move |_: &SessionError, _: &PlacementRecord| {
        handle.cancel();
        Some(Ok(next.clone()))
    })));
    let error = session.append(&tokens[10..]).unwrap_err();
    assert!(matches!(error, SessionError::Cancelled { .. }), "{error}");
    session.append(&tokens[10..]).unwrap();
    assert_eq!(logits(&session), last_logits(&second, &tokens));

    // With an earlier request, no chain is built needlessly.
    let (first, troubles) = disturbed(&graph, &rings());
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    let mut session = first
        .session_with(Box::new(move |_: &SessionError, _: &PlacementRecord| {
            counter.fetch_add(1, Ordering::SeqCst);
            Some(Err(Error::internal("not yet")))
        }))
        .unwrap();
    let handle = session.cancel_handle();
    dies(&troubles[2], 0);
    let error = session.append_with(&tokens, &mut |_| handle.cancel()).unwrap_err();
    assert!(matches!(error, SessionError::Cancelled { .. }), "{error}");
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}

#[test]
fn without_a_next_chain_a_loss_is_an_error() {
    let graph = graph(&Spec::gemma3());
    let tokens = ids(20, graph.vocabulary);
    let (first, troubles) = disturbed(&graph, &rings());
    let mut session = first.session_with(fallback([chain(&graph, &elsewhere("b"))])).unwrap();
    // This is the behaviour with `--strict`.
    session.set_next_chain(None);
    dies(&troubles[0], 0);
    let error = session.append(&tokens).unwrap_err();
    assert!(matches!(error, SessionError::Run { .. }), "{error}");
    assert_eq!(error.class(), Some(ErrorClass::DeviceLost));
    assert_eq!(error.at(), Some(("embed", &place("a"))));
    assert!(Error::from(error).is_device_lost());
    assert!(session.placement().moves.is_empty() && session.placement().fallbacks().is_empty());
    // Other failures cause no failover.
    session.set_next_chain(Some(fallback([chain(&graph, &elsewhere("b"))])));
    *troubles[0].dies_after.lock().unwrap() = None;
    *troubles[0].fail.lock().unwrap() = Some((0, Some(ErrorClass::Internal)));
    let error = session.append(&tokens).unwrap_err();
    assert_eq!(error.class(), Some(ErrorClass::Internal));
    assert!(!Error::from(error).is_device_lost());
    assert!(session.placement().moves.is_empty());
}

#[test]
fn chains_that_cannot_take_over_are_named() {
    let graph = graph(&Spec::gemma3());
    let tokens = ids(40, graph.vocabulary);
    let (first, troubles) = disturbed(&graph, &rings());
    let (full, fulls) = disturbed(&graph, &elsewhere("d"));
    *fulls[0].full.lock().unwrap() = Some(ErrorClass::ResourceLimit);
    let chains = [
        // The head of this chain is on the lost place.
        chain(&graph, &Plan { decoders: vec!["b"], ..rings() }),
        chain(&graph, &Plan { context: 39, ..elsewhere("b") }),
        chain(&support::graph(&Spec::gemma4()), &elsewhere("b")),
        full,
    ];
    let mut session = first.session_with(fallback(chains)).unwrap();
    session.append(&tokens[..30]).unwrap();
    dies(&troubles[1], 0);
    let error = session.append(&tokens[30..]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shim);
    let text = error.to_string();
    let (lost, passed_over) = text.split_once(STRANDED).unwrap();
    assert!(lost.starts_with("shard `") && lost.contains(&place("a").to_string()), "{error}");
    let passed_over: Vec<&str> = passed_over.split("; ").collect();
    for (reason, expected) in passed_over.iter().zip([
        "`embed` would run on the lost device too",
        "40 positions",
        "another model",
        "cannot allocate",
    ]) {
        assert!(reason.contains(expected), "{reason}");
    }
    assert_eq!(passed_over.len(), 4, "{error}");
    assert!(error.help().is_some());
    assert!(Error::from(error).is_device_lost());
    // The history is kept for another chain.
    assert_eq!(session.tokens(), &tokens[..30]);
    let last = chain(&graph, &elsewhere("e"));
    session.set_next_chain(Some(fallback([last.clone()])));
    session.append(&tokens[30..]).unwrap();
    assert_eq!(logits(&session), last_logits(&last, &tokens));
}

#[test]
fn an_endless_supply_of_broken_chains_is_stopped() {
    let graph = graph(&Spec::gemma3());
    let (first, troubles) = disturbed(&graph, &rings());
    let asked = Arc::new(AtomicUsize::new(0));
    let (counter, again) = (asked.clone(), first.clone());
    let mut session = first
        .session_with(Box::new(move |_: &SessionError, so_far: &PlacementRecord| {
            assert_eq!(so_far.moves.len(), counter.fetch_add(1, Ordering::SeqCst));
            Some(Ok(again.clone()))
        }))
        .unwrap();
    dies(&troubles[1], 0);
    let error = session.append(&[1, 2, 3]).unwrap_err();
    assert!(error.to_string().contains(STRANDED), "{error}");
    assert_eq!(asked.load(Ordering::SeqCst), 16);
    assert_eq!(session.placement().moves.len(), 16);
}

#[test]
fn a_session_starts_on_the_next_chain_when_its_chain_is_lost_already() {
    let graph = graph(&Spec::gemma3());
    let (first, troubles) = disturbed(&graph, &rings());
    *troubles[1].full.lock().unwrap() = Some(ErrorClass::DeviceLost);
    let second = chain(&graph, &elsewhere("b"));
    let mut session = first.session_with(fallback([second.clone()])).unwrap();
    session.append(&[1, 2, 3]).unwrap();
    assert_eq!(logits(&session), last_logits(&second, &[1, 2, 3]));
    let record = session.placement();
    assert_eq!((record.moves.len(), record.moves[0].tokens), (1, 0));
    let error = first.session_with(fallback([])).unwrap_err();
    assert!(error.to_string().contains(STRANDED), "{error}");
    let (full, fulls) = disturbed(&graph, &rings());
    *fulls[1].full.lock().unwrap() = Some(ErrorClass::ResourceLimit);
    let error = full.session_with(fallback([second])).unwrap_err();
    assert!(matches!(&error, SessionError::Run { .. }), "{error}");
    assert!(error.to_string().contains("cannot allocate"), "{error}");
}
