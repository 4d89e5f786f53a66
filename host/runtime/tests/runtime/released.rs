//! Tests that a session whose memory was released continues as if it had kept it, and that a budget
//! counts only the kept memory.

use std::sync::Arc;

use crate::support::{Plan, bits, chain, disturbed, graph, ids, last_logits};
use shardwright_runtime::{
    Appended, CancelHandle, Chain, FallbackChains, MemoryBudget, Prompt, Session, SessionError, SoftRows,
    Truncation,
};
use shardwright_test_checkpoints::Spec;
use shardwright_vocabulary::ErrorKind;

/// Returns a plan with rings of window 6 + 4 rows in a context of 96.
fn rings() -> Plan {
    Plan { largest: 4, prefill: vec![4], ..Plan::default() }
}

fn logits(session: &Session) -> Vec<u32> {
    bits(session.logits().unwrap())
}

#[test]
fn a_released_session_continues_with_the_same_logits() {
    for spec in [Spec::gemma3(), Spec::gemma4(), Spec::qwen3()] {
        let graph = graph(&spec);
        let chain = chain(&graph, &rings());
        let tokens = ids(60, graph.vocabulary);
        let mut session = chain.session().unwrap();
        session.release();
        assert!(session.is_released());
        session.append(&tokens[..20]).unwrap();
        assert!(!session.is_released() && session.recomputed() == 0);
        session.release();
        session.release();
        assert!(session.is_released() && session.logits().is_none());
        assert_eq!(session.tokens(), &tokens[..20]);
        assert_eq!(session.append(&tokens[20..21]).unwrap(), Appended { tokens: 1, recomputed: 20 });
        assert_eq!(logits(&session), last_logits(&chain, &tokens[..21]));
        // A truncation of a released session needs no memory.
        session.append(&tokens[21..50]).unwrap();
        session.release();
        assert_eq!(session.truncate(30).unwrap(), Truncation::Free);
        assert!(session.is_released());
        assert_eq!(session.append(&tokens[30..33]).unwrap().recomputed, 30);
        assert_eq!(logits(&session), last_logits(&chain, &tokens[..33]));
        assert_eq!(session.recomputed(), 50);
        // This prompt has a prefix that the session knows.
        session.release();
        let prompted = session.prompt(&tokens[..40]).unwrap();
        assert_eq!((prompted.reused, prompted.run, session.recomputed()), (0, 40, 83));
        assert_eq!(logits(&session), last_logits(&chain, &tokens[..40]));
        session.release();
        session.clear();
        session.append(&tokens[3..9]).unwrap();
        assert_eq!(logits(&session), last_logits(&chain, &tokens[3..9]));
    }
}

#[test]
fn resuming_fills_it_before_the_next_call() {
    let graph = graph(&Spec::gemma4());
    let chain = chain(&graph, &rings());
    let tokens = ids(40, graph.vocabulary);
    let mut session = chain.session().unwrap();
    session.release();
    assert_eq!(session.resume().unwrap(), 0);
    assert!(!session.is_released());
    session.append(&tokens[..30]).unwrap();
    assert_eq!(session.resume().unwrap(), 0, "nothing was lost");
    session.release();
    assert_eq!(session.resume().unwrap(), 30);
    assert_eq!(logits(&session), last_logits(&chain, &tokens[..30]));
    assert_eq!(session.append(&tokens[30..]).unwrap().recomputed, 0);
    assert_eq!(logits(&session), last_logits(&chain, &tokens));
    // After a cancellation request, the session can be resumed again.
    session.release();
    session.cancel_handle().cancel();
    assert!(matches!(session.resume(), Err(SessionError::Cancelled { position: 0 })));
    assert_eq!(session.resume().unwrap(), 40);
    assert_eq!(logits(&session), last_logits(&chain, &tokens));
}

#[test]
fn soft_rows_are_kept() {
    let graph = graph(&Spec::gemma4());
    let chain = chain(&graph, &rings());
    let width = chain.description().structure.hidden as usize;
    let values = (0..5 * width).map(|value| (value as f32).sin()).collect();
    let rows = Arc::new(SoftRows::new(width, values, [7; 32]).unwrap());
    let mut prompt = Prompt::from(&ids(9, graph.vocabulary)[..]);
    prompt.push_soft(3, &rows);
    prompt.push_tokens(&ids(4, graph.vocabulary));
    let more = ids(6, graph.vocabulary);
    let run = |releases: bool| {
        let mut session = chain.session().unwrap();
        session.prompt_parts(&prompt).unwrap();
        if releases {
            session.release();
        }
        session.append(&more).unwrap();
        logits(&session)
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn a_released_session_fails_over_and_one_that_failed_over_is_released() {
    let graph = graph(&Spec::gemma3());
    let second = chain(&graph, &Plan { around: "b", decoders: vec!["b"], ..rings() });
    let tokens = ids(50, graph.vocabulary);
    let (first, troubles) = disturbed(&graph, &rings());
    let mut session = first.session_with(Box::new(FallbackChains::new([second.clone()]))).unwrap();
    session.append(&tokens[..20]).unwrap();
    session.release();
    *troubles[0].dies_after.lock().unwrap() = Some(0);
    session.append(&tokens[20..25]).unwrap();
    assert_eq!(session.placement().moves.len(), 1);
    assert_eq!(logits(&session), last_logits(&second, &tokens[..25]));
    session.release();
    session.append(&tokens[25..]).unwrap();
    assert_eq!(session.placement().moves.len(), 1);
    assert_eq!(logits(&session), last_logits(&second, &tokens));
}

/// Returns the chain with a budget for this many sessions.
fn with_room(chain: Chain, sessions: u64) -> Chain {
    let bytes = chain.session_memory().bytes() * sessions + chain.weight_bytes();
    chain.within(MemoryBudget::new(Some(bytes))).unwrap()
}

#[test]
fn a_budget_bounds_sessions_and_released_ones_do_not_count() {
    let graph = graph(&Spec::gemma3());
    let chain = with_room(chain(&graph, &rings()), 2);
    let memory = chain.session_memory();
    assert!(memory.states > 0 && memory.buffers > 0 && memory.logits == 4 * graph.vocabulary);
    let states: u64 = chain.session().unwrap().placement().states.iter().map(|state| state.bytes).sum();
    assert_eq!(memory.states, states);
    let tokens = ids(12, graph.vocabulary);
    let mut one = chain.session().unwrap();
    one.append(&tokens).unwrap();
    let two = chain.session().unwrap();
    let budget = chain.budget().unwrap().clone();
    assert_eq!(budget.used(), 2 * memory.bytes());
    let error = chain.session().unwrap_err();
    let (needed, limit) = (memory.bytes(), 2 * memory.bytes());
    let expected =
        format!("{needed} bytes of memory are needed, but {limit} of the budget of {limit} bytes are in use");
    assert_eq!(error.to_string(), expected);
    assert!(error.help().is_some() && error.at().is_none());
    assert_eq!(shardwright_vocabulary::Error::from(error).kind(), ErrorKind::Memory);
    one.release();
    let three = chain.session().unwrap();
    assert_eq!(one.append(&[1]).unwrap_err().kind(), ErrorKind::Memory);
    assert_eq!(one.tokens(), tokens);
    drop(two);
    assert_eq!(one.append(&[1]).unwrap().recomputed, 12);
    drop((one, three));
    assert_eq!(budget.used(), 0);
}

#[test]
fn a_chain_takes_over_only_within_its_budget() {
    let graph = graph(&Spec::gemma3());
    let (first, troubles) = disturbed(&graph, &rings());
    let second = with_room(chain(&graph, &Plan { around: "b", decoders: vec!["b"], ..rings() }), 1);
    let held = second.session().unwrap();
    let mut session = first.session_with(Box::new(FallbackChains::new([second]))).unwrap();
    *troubles[0].dies_after.lock().unwrap() = Some(0);
    let error = session.append(&[1, 2]).unwrap_err();
    let text = error.to_string();
    let (_, passed_over) = text.split_once("no fallback chain is left (").unwrap();
    assert!(passed_over.contains("of the budget of"), "{error}");
    drop(held);
}

#[test]
fn warming_up_runs_what_a_token_runs_and_leaves_nothing() {
    let graph = graph(&Spec::gemma3());
    let (chain, troubles) = disturbed(&graph, &rings());
    let chain = with_room(chain, 1);
    let runs =
        || troubles.iter().map(|t| t.runs.load(std::sync::atomic::Ordering::SeqCst)).collect::<Vec<_>>();
    chain.warm_up(&CancelHandle::default()).unwrap();
    assert!(runs().iter().all(|&runs| runs >= 1), "{:?}", runs());
    assert_eq!(chain.budget().unwrap().used(), 0);
    let before = runs();
    let cancel = CancelHandle::default();
    cancel.cancel();
    assert!(matches!(chain.warm_up(&cancel), Err(SessionError::Cancelled { .. })));
    assert_eq!(runs(), before);
    // The warm-up runs on another thread, concurrently with a session.
    let chain = with_room(chain, 2);
    let tokens = ids(20, graph.vocabulary);
    let expected = last_logits(&chain, &tokens);
    std::thread::scope(|scope| {
        scope.spawn(|| chain.warm_up(&CancelHandle::default()).unwrap());
        let mut session = chain.session().unwrap();
        session.append(&tokens).unwrap();
        assert_eq!(logits(&session), expected);
    });
}
