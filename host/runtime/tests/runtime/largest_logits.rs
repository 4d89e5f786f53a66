//! Tests that shards are requested to compute exactly the number of top logits that is used. These
//! executors make every other logit as small as the contract allows.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::support::{Plan, Trouble, bits, chain, disturbed, fixture, graph, ids, last_logits, parts};
use shardwright_graph::Graph;
use shardwright_models::Checkpoint;
use shardwright_runtime::{FallbackChains, GenerationEvent, GenerationOptions, Prompted, Session};
use shardwright_test_checkpoints::Spec;
use shardwright_text::{SamplingParameters, Tokenizer};

/// Returns the number that every run since the last call requested. It must be the same for all
/// runs.
fn asked(troubles: &[Arc<Trouble>]) -> Option<usize> {
    let mut runs = Vec::new();
    for trouble in troubles {
        runs.append(&mut trouble.largest_logits.lock().unwrap());
    }
    assert!(runs.windows(2).all(|pair| pair[0] == pair[1]), "{runs:?}");
    *runs.first().expect("a run")
}

fn looks_at(session: &mut Session, count: usize) {
    session.set_largest_logits(NonZeroUsize::new(count));
}

fn right(session: &Session) -> Option<usize> {
    session.exact_top_k().map(NonZeroUsize::get)
}

/// Generates a reply and returns its ids.
fn reply(session: &mut Session, tokenizer: &Tokenizer, sampling: SamplingParameters) -> Vec<u32> {
    let options = GenerationOptions { sampling, max_tokens: Some(20), ..GenerationOptions::default() };
    let prompt = tokenizer.encode("And it came to pass", true).unwrap();
    let mut ids = Vec::new();
    session
        .generate(tokenizer, &prompt, &options, &mut |event| {
            if let GenerationEvent::Token { id } = event {
                ids.push(*id);
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    ids
}

/// Returns samplings, with the number of top logits that each uses.
fn samplings() -> [(SamplingParameters, Option<usize>); 5] {
    let drawn = SamplingParameters::at_temperature(1.5, 3);
    let greedy = SamplingParameters::greedy();
    [
        (greedy, Some(1)),
        (SamplingParameters { top_k: 5, top_p: 0.95, ..drawn }, Some(5)),
        (drawn, None),
        (SamplingParameters { repetition_penalty: 1.3, ..greedy }, None),
        (SamplingParameters { repetition_penalty: 1.3, top_k: 5, ..drawn }, None),
    ]
}

/// Returns a model with capped logits, and its tokenizer.
fn capped() -> (Graph, Tokenizer) {
    let directory = fixture("gemma4_text");
    let graph = Checkpoint::open(&directory).unwrap().into_graph();
    assert!(graph.logits_softcap().is_some());
    (graph, Tokenizer::from_file(directory.join("tokenizer.json")).unwrap())
}

#[test]
fn a_reply_requests_as_many_top_logits_as_sampling_uses() {
    let (graph, tokenizer) = capped();
    let (chain, troubles) = disturbed(&graph, &Plan::default());
    for (sampling, expected) in samplings() {
        let mut session = chain.session().unwrap();
        let ids = reply(&mut session, &tokenizer, sampling);
        assert_eq!(asked(&troubles), expected, "{sampling:?}");
        assert_eq!(right(&session), expected);

        // The expected reply is sampled from whole rows.
        let mut sampler = shardwright_text::Sampler::new(sampling).unwrap();
        let mut whole = chain.session().unwrap();
        whole.append(&tokenizer.encode("And it came to pass", true).unwrap()).unwrap();
        for id in ids {
            assert_eq!(sampler.sample(whole.logits().unwrap(), whole.tokens()).unwrap(), id, "{sampling:?}");
            whole.append(&[id]).unwrap();
        }

        // After a reply all logits are requested again.
        asked(&troubles);
        session.append(&[1]).unwrap();
        assert_eq!((asked(&troubles), right(&session)), (None, None));
        assert!(session.logits().unwrap().iter().all(|&logit| logit > f32::MIN));
    }
}

#[test]
fn all_logits_are_requested_where_the_runtime_caps_them() {
    let (graph, tokenizer) = capped();
    let mut parts = parts(&graph.without_logits_softcap(), &Plan::default());
    parts.description.shards.last_mut().unwrap().logits_softcap = graph.logits_softcap();
    let troubles = std::mem::take(&mut parts.troubles);
    let chain = parts.chain().unwrap();
    for (sampling, _) in samplings() {
        let mut session = chain.session().unwrap();
        reply(&mut session, &tokenizer, sampling);
        assert_eq!((asked(&troubles), right(&session)), (None, None), "{sampling:?}");
    }
}

#[test]
fn all_logits_are_requested_unless_the_session_is_set_otherwise() {
    let graph = graph(&Spec::gemma3());
    let tokens = ids(30, graph.vocabulary);
    let (chain, troubles) = disturbed(&graph, &Plan { decode: vec![1, 4], ..Plan::default() });
    let rest = tokens[20..].to_vec();
    let calls: [&dyn Fn(&mut Session); 4] = [
        &|session| {
            session.append(&rest).unwrap();
        },
        &|session| {
            session.append_with(&rest, &mut |_| {}).unwrap();
        },
        &|session| {
            session.score(&rest, &mut |_| {}).unwrap();
        },
        &|session| {
            session.prompt(&tokens).unwrap();
        },
    ];
    let expected = last_logits(&chain, &tokens);
    asked(&troubles);
    for call in calls {
        let mut session = chain.session().unwrap();
        session.append(&tokens[..20]).unwrap();
        call(&mut session);
        assert_eq!((asked(&troubles), right(&session)), (None, None));
        assert_eq!(bits(session.logits().unwrap()), expected);

        let mut session = chain.session().unwrap();
        looks_at(&mut session, 7);
        session.append(&tokens[..20]).unwrap();
        call(&mut session);
        assert_eq!((asked(&troubles), right(&session)), (Some(7), Some(7)));
        let kept =
            session.logits().unwrap().iter().zip(&expected).filter(|(seen, whole)| seen.to_bits() == **whole);
        assert_eq!(kept.count(), 7);
    }
}

#[test]
fn logits_are_reused_where_enough_of_them_are_exact() {
    let graph = graph(&Spec::gemma3());
    let tokens = ids(12, graph.vocabulary);
    let chain = chain(&graph, &Plan::default());
    let expected = last_logits(&chain, &tokens);
    let mut session = chain.session().unwrap();
    looks_at(&mut session, 4);
    session.append(&tokens).unwrap();
    let (reused, again) = (Prompted { reused: 12, run: 0 }, Prompted { reused: 11, run: 1 });
    for (count, prompted, known) in
        [(1, reused, Some(4)), (4, reused, Some(4)), (5, again, Some(5)), (0, again, None), (3, reused, None)]
    {
        looks_at(&mut session, count);
        assert_eq!(session.prompt(&tokens).unwrap(), prompted, "{count}");
        assert_eq!(right(&session), known, "{count}");
    }
    assert_eq!(bits(session.logits().unwrap()), expected);
}

#[test]
fn failover_keeps_the_number_of_top_logits() {
    let graph = graph(&Spec::gemma3());
    let tokens = ids(20, graph.vocabulary);
    let (first, one) = disturbed(&graph, &Plan::default());
    let elsewhere = Plan { around: "b", decoders: vec!["b"], ..Plan::default() };
    let (second, two) = disturbed(&graph, &elsewhere);
    let mut session = first.session_with(Box::new(FallbackChains::new([second.clone()]))).unwrap();
    looks_at(&mut session, 3);
    session.append(&tokens[..10]).unwrap();
    *one[1].dies_after.lock().unwrap() = Some(0);
    session.append(&tokens[10..]).unwrap();
    assert_eq!(session.placement().moves.len(), 1);
    assert_eq!((asked(&two), right(&session)), (Some(3), Some(3)));

    let mut resumed = session.resume_on(&second).unwrap();
    resumed.append(&tokens[..1]).unwrap();
    assert_eq!((asked(&two), right(&resumed)), (Some(3), Some(3)));
}
