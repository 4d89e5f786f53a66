//! Tests that sessions whose states were written and read back, copied or taken from a prefix cache
//! compute the same bits as new sessions.

use std::io::{self, Write};
use std::sync::Arc;

use crate::support::{Form, Plan, Storages, bits, chain, disturbed, graph, ids, last_logits};
use shardwright_graph::Role;
use shardwright_runtime::{
    Appended, Chain, FallbackChains, MemoryBudget, PrefixCache, Prompt, Prompted, SavedStates, Session,
    SessionError, SoftRows,
};
use shardwright_test_checkpoints::Spec;
use shardwright_vocabulary::{Encoding, ErrorKind};

/// Returns a plan with rings of window 6 + 4 rows in a context of 96.
fn rings() -> Plan {
    Plan { largest: 4, prefill: vec![4], ..Plan::default() }
}

/// Returns models with windows, with shared states and without windows, and plans that store states
/// as f32, as f16 and in 8 bits with a zero point.
fn cases() -> Vec<(&'static str, Spec, Plan)> {
    let states = |encoding: Encoding| -> Option<Storages> {
        Some(Arc::new(move |_, port| matches!(port.role, Role::State { .. }).then_some(encoding)))
    };
    let eight_bits = Encoding::affine_over(-6.0, 4.0, 8);
    vec![
        ("gemma 3", Spec::gemma3(), rings()),
        ("gemma 3, f16", Spec::gemma3(), Plan { storages: states(Encoding::F16), ..rings() }),
        ("gemma 3, u8", Spec::gemma3(), Plan { storages: states(eight_bits), ..rings() }),
        ("gemma 3, by the runtime", Spec::gemma3(), Plan { form: Form::ByRuntime, ..rings() }),
        ("gemma 4", Spec::gemma4(), rings()),
        ("qwen 3", Spec::qwen3(), rings()),
    ]
}

fn logits(session: &Session) -> Vec<u32> {
    bits(session.logits().unwrap())
}

fn other(tokens: &[u32], vocabulary: u64) -> Vec<u32> {
    tokens.iter().map(|id| (id + 1) % vocabulary as u32).collect()
}

/// Writes a session's states, and reads them into a new session with its history.
fn restored(session: &Session, chain: &Chain) -> Session {
    let saved = session.state_rows();
    let mut bytes = Vec::new();
    session.write_states(&mut bytes).unwrap();
    assert_eq!((bytes.len() as u64, saved.bytes()), (session.state_bytes(), Some(session.state_bytes())));
    let mut restored = chain.session().unwrap();
    restored.remember(&session.history()).unwrap();
    let mut left = &bytes[..];
    restored.read_states(&saved, &mut left).unwrap();
    assert!(left.is_empty());
    restored
}

#[test]
fn restored_and_forked_sessions_continue_with_the_same_bits() {
    for (name, spec, plan) in cases() {
        let graph = graph(&spec);
        let chain = chain(&graph, &plan);
        let tokens = ids(60, graph.vocabulary);
        for (length, back) in [(1, 0), (5, 0), (13, 2), (41, 3)] {
            let what = format!("{name}, {length} tokens, back {back}");
            let mut session = chain.session().unwrap();
            session.append(&tokens[..length]).unwrap();
            session.truncate(length - back).unwrap();
            let kept = length - back;
            // With the same steps: rows of one step see each other before their states are rounded.
            let mut plain = chain.session().unwrap();
            plain.append(&tokens[..length]).unwrap();
            plain.truncate(kept).unwrap();
            plain.append(&tokens[kept..kept + 7]).unwrap();
            let expected = logits(&plain);
            plain.truncate(kept + 4).unwrap();
            plain.append(&tokens[kept + 4..kept + 9]).unwrap();
            let later = logits(&plain);
            let mut copies = [restored(&session, &chain), session.fork().unwrap()];
            for copy in &mut copies {
                assert_eq!(copy.tokens(), &tokens[..kept], "{what}");
                let appended = copy.append(&tokens[kept..kept + 7]).unwrap();
                assert_eq!(appended, Appended { tokens: 7, recomputed: 0 }, "{what}");
                assert_eq!(logits(copy), expected, "{what}");
                // As far back as the original could be truncated.
                copy.truncate(kept + 4).unwrap();
                copy.append(&tokens[kept + 4..kept + 9]).unwrap();
                assert_eq!(logits(copy), later, "{what}");
            }
            // The original is independent of its copies.
            let others = other(&tokens[kept..kept + 6], graph.vocabulary);
            session.append(&others).unwrap();
            let mut plain = chain.session().unwrap();
            plain.append(&tokens[..length]).unwrap();
            plain.truncate(kept).unwrap();
            plain.append(&others).unwrap();
            assert_eq!(logits(&session), logits(&plain), "{what}");
        }
    }
}

#[test]
fn a_fork_has_the_logits_and_a_released_one_is_released() {
    let graph = graph(&Spec::gemma3());
    let tokens = ids(40, graph.vocabulary);
    let chain = chain(&graph, &rings());
    let one = chain.session_memory().bytes();
    let budget = MemoryBudget::new(Some(2 * one));
    let chain = chain.within(budget.clone()).unwrap();
    let mut session = chain.session().unwrap();
    session.append(&tokens[..20]).unwrap();
    let fork = session.fork().unwrap();
    assert_eq!((logits(&fork), budget.used()), (logits(&session), 2 * one));
    let error = session.fork().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Memory, "{error}");
    drop(fork);
    session.release();
    let mut fork = session.fork().unwrap();
    assert!(fork.is_released() && fork.logits().is_none() && budget.used() == 0);
    assert_eq!(fork.append(&tokens[20..25]).unwrap().recomputed, 20);
    assert_eq!(logits(&fork), last_logits(&chain, &tokens[..25]));
}

#[test]
fn soft_rows_are_part_of_the_history() {
    let graph = graph(&Spec::gemma4());
    let chain = chain(&graph, &rings());
    let width = chain.description().structure.hidden as usize;
    let rows = |origin: u8| {
        let values = (0..5 * width).map(|value| ((value * usize::from(origin)) as f32).sin()).collect();
        Arc::new(SoftRows::new(width, values, [origin; 32]).unwrap())
    };
    let mut prompt = Prompt::from(&ids(9, graph.vocabulary)[..]);
    prompt.push_soft(3, &rows(1));
    prompt.push_soft(3, &rows(2));
    prompt.push_tokens(&ids(4, graph.vocabulary));
    let more = ids(6, graph.vocabulary);
    let mut session = chain.session().unwrap();
    session.prompt_parts(&prompt).unwrap();
    let history = session.history();
    assert_eq!((history.ids(), history.parts().count()), (prompt.ids(), 2));
    let mut copies = [restored(&session, &chain), session.fork().unwrap()];
    session.append(&more).unwrap();
    for copy in &mut copies {
        copy.append(&more).unwrap();
        assert_eq!(logits(copy), logits(&session));
    }
    // A call that fails within a part leaves a history that ends before it.
    let (failing, troubles) = disturbed(&graph, &rings());
    let mut session = failing.session().unwrap();
    *troubles[2].fail.lock().unwrap() = Some((2, None));
    session.prompt_parts(&prompt).unwrap_err();
    assert_eq!(session.tokens().len(), 8);
    *troubles[2].fail.lock().unwrap() = Some((1, None));
    session
        .append_parts(&{
            let mut rest = Prompt::from(&prompt.ids()[8..9]);
            rest.push_soft(3, &rows(1));
            rest
        })
        .unwrap_err();
    assert_eq!((session.tokens().len(), session.history().ids().len()), (12, 9));
    assert_eq!(session.state_rows().filled, 9);
}

#[test]
fn states_of_another_shape_or_history_are_rejected_before_anything_is_read() {
    let graph = graph(&Spec::gemma3());
    let tokens = ids(40, graph.vocabulary);
    let chain = chain(&graph, &rings());
    let mut session = chain.session().unwrap();
    session.append(&tokens[..30]).unwrap();
    let saved = session.state_rows();
    let history = session.history();
    let mut target = chain.session().unwrap();
    let mut refused = |change: &dyn Fn(&mut SavedStates), kind: ErrorKind, words: &str| {
        let mut changed = saved.clone();
        change(&mut changed);
        target.remember(&history).unwrap();
        let error = target.read_states(&changed, &mut io::repeat(1)).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words) && error.help().is_some(), "no `{words}`: {error}");
    };
    refused(&|saved| _ = saved.states.pop(), ErrorKind::Incompatible, "states, got");
    refused(&|saved| saved.states[1].capacity += 1, ErrorKind::Incompatible, "in the state");
    refused(&|saved| saved.states[0].row_bytes = u64::MAX, ErrorKind::Incompatible, "in the state");
    let other_numbers: [&dyn Fn(&mut SavedStates); 6] = [
        &|saved| saved.filled = 31,
        &|saved| saved.filled = u64::MAX,
        &|saved| saved.high_water = 29,
        &|saved| saved.high_water = u64::MAX,
        // The rings would have lost rows that the next token reads.
        &|saved| saved.high_water = 35,
        &|saved| saved.filled = 20,
    ];
    for change in other_numbers {
        refused(change, ErrorKind::Invalid, "do not belong to 30 tokens");
    }
    let mut contradicting = saved.clone();
    contradicting.states[0].row_bytes = u64::MAX;
    assert_eq!(contradicting.bytes(), None);

    // A reader that ends early leaves a session that runs its history again.
    target.remember(&history).unwrap();
    let error = target.read_states(&saved, &mut &[0_u8; 100][..]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Missing, "{error}");
    assert_eq!(target.append(&tokens[30..31]).unwrap().recomputed, 30);
    assert_eq!(logits(&target), last_logits(&chain, &tokens[..31]));

    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    assert_eq!(session.write_states(&mut Full).unwrap_err().kind(), ErrorKind::Resource);
}

#[test]
fn a_history_that_does_not_fit_changes_nothing() {
    let graph = graph(&Spec::gemma3());
    let tokens = ids(120, graph.vocabulary);
    let chain = chain(&graph, &rings());
    let mut session = chain.session().unwrap();
    session.append(&tokens[..5]).unwrap();
    let refused = |session: &mut Session, prompt: &Prompt, kind: ErrorKind| {
        let error: SessionError = session.remember(prompt).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(session.tokens(), &tokens[..5]);
    };
    refused(&mut session, &Prompt::from(&tokens[..97]), ErrorKind::Context);
    refused(&mut session, &Prompt::from(&[u32::MAX][..]), ErrorKind::Invalid);
    let mut narrow = Prompt::new();
    narrow.push_soft(3, &Arc::new(SoftRows::new(1, vec![0.0], [1; 32]).unwrap()));
    refused(&mut session, &narrow, ErrorKind::Invalid);
    session.remember(&Prompt::new()).unwrap();
    assert!(session.tokens().is_empty() && session.state_bytes() == 0);
    let encoder = crate::support::graph(&Spec::embeddinggemma());
    let mut encoder = crate::support::chain(&encoder, &Plan::default()).session().unwrap();
    assert_eq!(encoder.remember(&Prompt::from(&tokens[..5])).unwrap_err().kind(), ErrorKind::Unsupported);
}

/// Runs a prompt in a new session with this cache, and checks its logits.
fn prompted(chain: &Chain, cache: &PrefixCache, prompt: &[u32]) -> (Session, Prompted) {
    let mut session = chain.session().unwrap();
    session.set_prefix_cache(Some(cache.clone()));
    let prompted = session.prompt(prompt).unwrap();
    assert_eq!(session.tokens(), prompt);
    assert_eq!(logits(&session), last_logits(chain, prompt));
    (session, prompted)
}

#[test]
fn any_beginning_of_an_earlier_prompt_is_reused_with_the_same_bits() {
    // With rounded states, this evaluator's results depend on the steps. Tests of numbers cover
    // them.
    let exact = cases().into_iter().filter(|(name, ..)| !name.ends_with("f16") && !name.ends_with("u8"));
    for (name, spec, plan) in exact {
        let graph = graph(&spec);
        let chain = chain(&graph, &plan);
        let tokens = ids(90, graph.vocabulary);
        let others = other(&tokens, graph.vocabulary);
        let cache = PrefixCache::new(1 << 24);
        let first = prompted(&chain, &cache, &tokens[..60]).1;
        assert_eq!(first, Prompted { reused: 0, run: 60 }, "{name}");
        for common in [59, 33, 7, 1] {
            let prompt = [&tokens[..common], &others[common..common + 20]].concat();
            let (mut session, found) = prompted(&chain, &cache, &prompt);
            assert_eq!(found, Prompted { reused: common, run: 20 }, "{name}, {common} common tokens");
            // The session continues, and can be truncated like any other.
            session.append(&tokens[..5]).unwrap();
            session.truncate(common + 22).unwrap();
            session.append(&tokens[2..6]).unwrap();
            let sequence = [&prompt[..], &tokens[..2], &tokens[2..6]].concat();
            assert_eq!(logits(&session), last_logits(&chain, &sequence), "{name}");
        }
        // The last token always runs. The divided sequences are still found.
        assert_eq!(prompted(&chain, &cache, &tokens[..60]).1.reused, 59, "{name}");
        let again = [&tokens[..33], &others[33..50]].concat();
        assert_eq!(prompted(&chain, &cache, &again).1.reused, 49, "{name}");
        let statistics = cache.statistics();
        assert_eq!((statistics.hits, statistics.misses, statistics.dropped_positions), (6, 1, 0), "{name}");
        assert_eq!(statistics.skipped_positions, 0, "{name}: {statistics:?}");
        assert!(statistics.bytes <= statistics.limit && statistics.positions > 60, "{statistics:?}");
        cache.clear();
        assert_eq!(prompted(&chain, &cache, &tokens[..60]).1.reused, 0, "{name}");
    }
}

/// A reply runs token by token, so rings overwrite rows that the cache must have by then.
#[test]
fn replies_are_reused_and_a_session_reuses_its_own_lost_states() {
    let graph = graph(&Spec::gemma3());
    let chain = chain(&graph, &rings());
    let tokens = ids(80, graph.vocabulary);
    let cache = PrefixCache::new(1 << 24);
    let (mut session, _) = prompted(&chain, &cache, &tokens[..10]);
    tokens[10..60].iter().for_each(|id| _ = session.append(&[*id]).unwrap());
    // Too far back for the rings.
    session.truncate(20).unwrap();
    let again = session.prompt(&tokens[..25]).unwrap();
    assert_eq!(again, Prompted { reused: 24, run: 1 });
    assert_eq!(logits(&session), last_logits(&chain, &tokens[..25]));
    session.release();
    assert_eq!(session.prompt(&tokens[..30]).unwrap(), Prompted { reused: 29, run: 1 });
    assert_eq!(logits(&session), last_logits(&chain, &tokens[..30]));
    session.append(&tokens[30..33]).unwrap();
    let fork = session.fork().unwrap();
    assert!(fork.prefix_cache().is_some());
    drop((session, fork));
    assert_eq!(prompted(&chain, &cache, &tokens[..70]).1, Prompted { reused: 60, run: 10 });
    assert_eq!(cache.statistics().skipped_positions, 0);
}

#[test]
fn parts_are_reused_whole_and_by_their_content() {
    let graph = graph(&Spec::gemma4());
    let chain = chain(&graph, &rings());
    let width = chain.description().structure.hidden as usize;
    let rows = |origin: u8| {
        let values = (0..5 * width).map(|value| ((value + usize::from(origin)) as f32).sin()).collect();
        Arc::new(SoftRows::new(width, values, [origin; 32]).unwrap())
    };
    let before = ids(9, graph.vocabulary);
    let prompt = |parts: &[u8], after: usize| {
        let mut prompt = Prompt::from(&before[..]);
        parts.iter().for_each(|origin| prompt.push_soft(3, &rows(*origin)));
        prompt.push_tokens(&ids(after, graph.vocabulary));
        prompt
    };
    let cache = PrefixCache::new(1 << 24);
    let run = |prompt: &Prompt, cache: Option<&PrefixCache>| {
        let mut session = chain.session().unwrap();
        session.set_prefix_cache(cache.cloned());
        let prompted = session.prompt_parts(prompt).unwrap();
        (prompted.reused, logits(&session))
    };
    for (parts, after, reused) in [
        (&[1, 2][..], 4, 0),
        (&[1, 2], 6, 9 + 10 + 4),
        // The second part differs, although its placeholders are equal.
        (&[1, 3], 4, 9 + 5),
        (&[2], 4, 9),
        // The last token is within a part, which is not cut.
        (&[1, 2], 0, 9 + 5),
        // Tokens do not stand for parts.
        (&[], 4, 9),
    ] {
        let prompt = prompt(parts, after);
        assert_eq!(run(&prompt, Some(&cache)), (reused, run(&prompt, None).1), "{parts:?} {after}");
    }
    let placeholders: Vec<u32> = prompt(&[1], 4).ids().to_vec();
    assert_eq!(run(&Prompt::from(placeholders), Some(&cache)).0, 9);
}

#[test]
fn a_cache_stays_within_its_bytes_and_drops_the_least_recently_used() {
    let graph = graph(&Spec::qwen3());
    let chain = chain(&graph, &rings());
    let tokens = ids(90, graph.vocabulary);
    let starts = |first: u32| {
        let first = (first + 1) % graph.vocabulary as u32;
        [&[first], &tokens[..40]].concat()
    };
    let measured = PrefixCache::new(u64::MAX);
    prompted(&chain, &measured, &starts(0));
    let one = measured.statistics().bytes;
    let cache = PrefixCache::new(3 * one);
    for first in 0..3 {
        prompted(&chain, &cache, &starts(first));
    }
    assert_eq!((cache.statistics().bytes, cache.statistics().dropped_positions), (3 * one, 0));
    // The first is used again, so the second is the oldest.
    assert_eq!(prompted(&chain, &cache, &starts(0)).1.reused, 40);
    prompted(&chain, &cache, &starts(3));
    assert_eq!(cache.statistics().dropped_positions, 41);
    let reused = [0, 2, 3, 1].map(|first| prompted(&chain, &cache, &starts(first)).1.reused);
    assert_eq!(reused, [40, 40, 40, 0]);
    assert!(cache.statistics().bytes <= 3 * one);
    // What does not fit at all is skipped.
    let small = PrefixCache::new(one - 1);
    for _ in 0..2 {
        assert_eq!(prompted(&chain, &small, &starts(0)).1.reused, 0);
    }
    let statistics = small.statistics();
    assert_eq!((statistics.bytes, statistics.positions, statistics.skipped_positions), (0, 0, 82));
}

#[test]
fn sessions_claim_the_memory_of_a_cache() {
    let graph = graph(&Spec::gemma3());
    let chain = chain(&graph, &rings());
    let tokens = ids(90, graph.vocabulary);
    let one = chain.session_memory().bytes();
    let budget = MemoryBudget::new(Some(2 * one));
    let chain = chain.within(budget.clone()).unwrap();
    let cache = PrefixCache::new(u64::MAX);
    let mut session = chain.session().unwrap();
    session.set_prefix_cache(Some(cache.clone()));
    session.prompt(&tokens[..40]).unwrap();
    let cached = cache.statistics().bytes;
    assert!(cached > 0 && budget.used() == one + cached, "{:?}", cache.statistics());
    // The second session needs what the cache has.
    let second = chain.session().unwrap();
    assert_eq!((cache.statistics().bytes, budget.used()), (0, 2 * one));
    assert_eq!(chain.session().unwrap_err().kind(), ErrorKind::Memory);
    // Without memory for the cache, sessions run as without it.
    session.prompt(&tokens[..50]).unwrap();
    assert_eq!(logits(&session), bits(&chain_logits(&graph, &tokens[..50])));
    assert!(cache.statistics().skipped_positions > 0 && budget.used() == 2 * one);
    drop((session, second));
    cache.clear();
    assert_eq!(budget.used(), 0);
}

/// Returns the logits after tokens, on a chain without a budget.
fn chain_logits(graph: &shardwright_graph::Graph, tokens: &[u32]) -> Vec<f32> {
    let mut session = chain(graph, &rings()).session().unwrap();
    session.append(tokens).unwrap();
    session.logits().unwrap().to_vec()
}

#[test]
fn states_of_other_chains_are_not_reused_and_forgotten_when_they_are_unloaded() {
    let graph = graph(&Spec::gemma3());
    let tokens = ids(60, graph.vocabulary);
    let cache = PrefixCache::new(1 << 24);
    let (one, two) = (chain(&graph, &rings()), chain(&graph, &rings()));
    prompted(&one, &cache, &tokens[..40]);
    assert_eq!(prompted(&two, &cache, &tokens[..40]).1.reused, 0);
    assert_eq!(prompted(&one, &cache, &tokens[..40]).1.reused, 39);
    let both = cache.statistics().positions;
    drop(one);
    prompted(&two, &cache, &tokens[..50]);
    let statistics = cache.statistics();
    assert_eq!((statistics.positions, statistics.dropped_positions), (both - 40 + 10, 40));
    assert_eq!(two.identity(), None, "shards without artefacts have no identity");
}

#[test]
fn a_lost_chain_and_a_cancelled_prompt_leave_a_usable_cache() {
    let graph = graph(&Spec::gemma3());
    let tokens = ids(60, graph.vocabulary);
    let cache = PrefixCache::new(1 << 24);
    let second = chain(&graph, &Plan { around: "b", decoders: vec!["b"], ..rings() });
    let (first, troubles) = disturbed(&graph, &rings());
    let mut session = first.session_with(Box::new(FallbackChains::new([second.clone()]))).unwrap();
    session.set_prefix_cache(Some(cache.clone()));
    session.prompt(&tokens[..20]).unwrap();
    *troubles[0].dies_after.lock().unwrap() = Some(0);
    session.prompt(&tokens[..40]).unwrap();
    assert_eq!(session.placement().moves.len(), 1);
    assert_eq!(logits(&session), last_logits(&second, &tokens[..40]));
    assert_eq!(prompted(&second, &cache, &tokens[..50]).1.reused, 40);

    let (third, troubles) = disturbed(&graph, &rings());
    let mut session = third.session().unwrap();
    session.set_prefix_cache(Some(cache.clone()));
    *troubles[1].fail.lock().unwrap() = Some((4, None));
    session.prompt(&tokens[..40]).unwrap_err();
    let complete = session.tokens().len();
    assert!(complete > 0);
    drop(session);
    assert_eq!(prompted(&third, &cache, &tokens[..50]).1.reused, complete);
}

#[test]
fn sessions_of_several_threads_share_a_cache() {
    let graph = graph(&Spec::gemma3());
    let chain = chain(&graph, &rings());
    let tokens = ids(60, graph.vocabulary);
    let cache = PrefixCache::new(40 << 10);
    let expected: Vec<Vec<u32>> = (20..60).map(|length| last_logits(&chain, &tokens[..length])).collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (chain, cache, tokens, expected) = (&chain, &cache, &tokens, &expected);
            scope.spawn(move || {
                for step in 0..20 {
                    let length = 20 + (step * 7 + thread * 11) % 40;
                    let mut session = chain.session().unwrap();
                    session.set_prefix_cache(Some(cache.clone()));
                    session.prompt(&tokens[..length]).unwrap();
                    assert_eq!(logits(&session), expected[length - 20], "{length}");
                }
            });
        }
    });
    let statistics = cache.statistics();
    assert!(statistics.hits > 0 && statistics.bytes <= statistics.limit, "{statistics:?}");
}
