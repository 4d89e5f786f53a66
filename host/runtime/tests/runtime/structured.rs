//! Tests that replies match their grammar, and are the same with and without drafts, forced tokens
//! in one step, the largest logits alone, and a lost device.

use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};
use shardwright_constraint::{Constraint, Grammar, Vocabulary};
use shardwright_graph::Graph;
use shardwright_models::Checkpoint;
use shardwright_runtime::{
    DoneReason, FallbackChains, Generation, GenerationEvent, GenerationOptions, GenerationStatistics,
    Session, Speculation,
};
use shardwright_text::{SamplingParameters, StopRules, ThoughtTokens, TokenRules, Tokenizer};
use shardwright_vocabulary::ErrorKind;

use crate::support::{self, Plan, Trouble, fixture};

struct Model {
    graph: Graph,
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
}

fn model() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| {
        let directory = fixture("gemma4_text");
        let tokenizer = Tokenizer::from_file(directory.join("tokenizer.json")).unwrap();
        Model {
            graph: Checkpoint::open(&directory).unwrap().into_graph(),
            vocabulary: Vocabulary::new(&tokenizer).unwrap(),
            tokenizer,
        }
    })
}

fn plan(decode: &[u64]) -> Plan {
    let (largest, prefill) = (16, vec![16]);
    Plan { context: 160, largest, prefill, decode: decode.to_vec(), around: "b", ..Plan::default() }
}

fn session(decode: &[u64]) -> Session {
    support::chain(&model().graph, &plan(decode)).session().unwrap()
}

fn prompt() -> Vec<u32> {
    model().tokenizer.encode("And it came to pass in those days", true).unwrap()
}

#[derive(Debug, Default)]
struct Heard {
    ids: Vec<u32>,
    text: String,
    thoughts: String,
    done: Option<(DoneReason, GenerationStatistics)>,
}

impl Heard {
    fn reason(&self) -> &DoneReason {
        &self.done.as_ref().expect("an end").0
    }

    fn statistics(&self) -> GenerationStatistics {
        self.done.as_ref().expect("an end").1
    }
}

fn hear(session: &mut Session, prompt: &[u32], options: &GenerationOptions) -> Heard {
    let mut generation = Generation::new(&model().tokenizer, prompt.to_vec(), options).unwrap();
    let mut heard = Heard::default();
    while let Some(event) = generation.next(session) {
        match event.unwrap() {
            GenerationEvent::Token { id } => heard.ids.push(id),
            GenerationEvent::TextDelta { text } => heard.text += &text,
            GenerationEvent::ThoughtDelta { text } => heard.thoughts += &text,
            GenerationEvent::Done { reason, statistics } => heard.done = Some((reason, statistics)),
            other => panic!("{other:?}"),
        }
    }
    heard
}

fn constrained(grammar: &Grammar) -> GenerationOptions {
    let constraint = Constraint::new(&model().vocabulary, grammar).unwrap();
    GenerationOptions { constraint: Some(constraint), ..GenerationOptions::default() }
}

fn schema() -> Grammar {
    Grammar::json_schema(&json!({
        "type": "object",
        "properties": {
            "name_of_the_person": { "type": "string", "maxLength": 6 },
            "number_of_days": { "type": "integer", "minimum": 0, "maximum": 40 },
        },
        "required": ["name_of_the_person", "number_of_days"],
        "additionalProperties": false,
        "x-guidance": { "whitespace_flexible": false },
    }))
}

fn assert_matches_schema(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(value["name_of_the_person"].as_str().unwrap().chars().count() <= 6, "{text}");
    assert!((0..=40).contains(&value["number_of_days"].as_u64().unwrap()), "{text}");
    assert_eq!(value.as_object().unwrap().len(), 2, "{text}");
}

fn samplings() -> [SamplingParameters; 5] {
    let drawn = SamplingParameters::at_temperature(1.3, 11);
    let greedy = SamplingParameters::greedy();
    [
        greedy,
        SamplingParameters { repetition_penalty: 1.4, ..greedy },
        drawn,
        SamplingParameters { top_k: 7, ..drawn },
        SamplingParameters { repetition_penalty: 1.2, top_k: 20, top_p: 0.9, ..drawn },
    ]
}

#[test]
fn a_reply_matches_its_grammar_and_is_the_same_with_any_rows_and_drafts() {
    let prompt = prompt();
    for sampling in samplings() {
        let options = GenerationOptions { sampling, ..constrained(&schema()) };
        let expected = hear(&mut session(&[1]), &prompt, &options);
        assert_matches_schema(&expected.text);
        let alone = expected.statistics();
        assert_eq!((expected.reason(), alone.incomplete), (&DoneReason::GrammarEnd, false));
        assert!(alone.forced_tokens >= 8, "{alone:?}");
        assert_eq!(alone.speculation.steps as usize, expected.ids.len() - 1);
        for decode in [&[1_u64, 16][..], &[1, 4]] {
            for speculation in [None, Some(Speculation::new().lookup().fixed_length(Some(3)))] {
                let drafts = speculation.is_some();
                let mut session = session(decode);
                session.set_speculation(speculation);
                let heard = hear(&mut session, &prompt, &options);
                let what = format!("{sampling:?} {decode:?} {drafts}");
                assert_eq!((&heard.ids, &heard.text), (&expected.ids, &expected.text), "{what}");
                assert_eq!(heard.reason(), expected.reason(), "{what}");
                let counted = heard.statistics();
                assert_eq!(counted.forced_tokens, alone.forced_tokens, "{what}");
                // Forced tokens run together.
                assert!(counted.speculation.steps < alone.speculation.steps, "{what}: {counted:?}");
                assert_eq!(session.tokens().len(), prompt.len() + heard.ids.len() - 1, "{what}");
            }
        }
    }
}

#[test]
fn the_largest_logits_give_the_tokens_of_all_logits() {
    let prompt = prompt();
    let mut repeated = [0; 2];
    for (index, pattern) in ["(?s:.{60,})", "[0-9]{24}"].into_iter().enumerate() {
        for sampling in samplings().into_iter().filter(|sampling| sampling.largest_logits().is_some()) {
            let options = GenerationOptions {
                sampling,
                max_tokens: Some(40),
                stop: StopRules::new([1]),
                ..constrained(&Grammar::regex(pattern))
            };
            // Likelihoods need all logits.
            let exact = GenerationOptions { likelihoods: Some(1), ..options.clone() };
            for decode in [&[1_u64][..], &[1, 8]] {
                let expected = hear(&mut session(decode), &prompt, &exact);
                assert_eq!(expected.statistics().repeated_steps, 0);
                let heard = hear(&mut session(decode), &prompt, &options);
                assert_eq!((&heard.ids, heard.reason()), (&expected.ids, expected.reason()), "{sampling:?}");
                repeated[index] += heard.statistics().repeated_steps;
                assert!(heard.statistics().repeated_steps < heard.ids.len() / 2, "{pattern} {sampling:?}");
            }
        }
    }
    assert!(repeated[1] > 0, "{repeated:?}");
}

#[test]
fn a_cut_reply_is_incomplete() {
    let prompt = prompt();
    let whole = hear(&mut session(&[1, 8]), &prompt, &constrained(&schema()));
    for limit in [0, 1, 5, whole.ids.len() - 1] {
        let options = GenerationOptions { max_tokens: Some(limit), ..constrained(&schema()) };
        let heard = hear(&mut session(&[1, 8]), &prompt, &options);
        assert_eq!((heard.reason(), heard.ids.as_slice()), (&DoneReason::MaxTokens, &whole.ids[..limit]));
        assert!(heard.statistics().incomplete && whole.text.starts_with(&heard.text), "{limit}");
    }
    let options = GenerationOptions { max_tokens: Some(whole.ids.len()), ..constrained(&schema()) };
    let heard = hear(&mut session(&[1, 8]), &prompt, &options);
    assert_eq!((heard.reason(), heard.statistics().incomplete), (&DoneReason::GrammarEnd, false));

    // A stop string can end a reply within forced tokens.
    let stop = StopRules::default().with_strings(["_of"]).unwrap();
    let heard = hear(&mut session(&[1, 8]), &prompt, &GenerationOptions { stop, ..constrained(&schema()) });
    assert_eq!(heard.reason(), &DoneReason::StopText { text: "_of".to_owned() });
    assert_eq!((heard.text.as_str(), heard.statistics().incomplete), ("{\"name", true));

    let mut small =
        support::chain(&model().graph, &Plan { context: prompt.len() as u64 + 4, ..plan(&[1, 8]) })
            .session()
            .unwrap();
    let heard = hear(&mut small, &prompt, &constrained(&schema()));
    assert_eq!((heard.reason(), heard.statistics().incomplete), (&DoneReason::ContextFull, true));
}

#[test]
fn a_stop_token_is_chosen_only_after_a_complete_reply() {
    let (prompt, stop) = (prompt(), model().tokenizer.token_to_id("<turn|>").unwrap());
    let mut stopped = 0;
    for seed in 0..12 {
        let options = GenerationOptions {
            sampling: SamplingParameters::at_temperature(2.0, seed),
            stop: StopRules::new([stop]),
            max_tokens: Some(100),
            ..constrained(&Grammar::regex("[a-c]{3,8}"))
        };
        let heard = hear(&mut session(&[1, 8]), &prompt, &options);
        let text = &heard.text;
        assert!((3..=8).contains(&text.len()) && text.bytes().all(|byte| b"abc".contains(&byte)), "{text}");
        assert!(!heard.statistics().incomplete, "{heard:?}");
        stopped += usize::from(*heard.reason() == DoneReason::StopToken { id: stop });
    }
    assert!(stopped > 0);
}

#[test]
fn thoughts_are_free_and_the_answer_is_not() {
    let model = model();
    let thoughts = ThoughtTokens::of(&model.tokenizer).unwrap();
    let answer = Grammar::regex("answer: [0-9]{2}");
    let base = GenerationOptions {
        thoughts: Some(thoughts),
        max_thought_tokens: Some(5),
        max_tokens: Some(60),
        ..constrained(&answer)
    };
    let open = [prompt().as_slice(), &[thoughts.open]].concat();
    for decode in [&[1_u64][..], &[1, 8]] {
        let heard = hear(&mut session(decode), &open, &base);
        let statistics = heard.statistics();
        assert_eq!((statistics.thought_tokens, heard.ids[5]), (5, thoughts.close), "{heard:?}");
        assert!(heard.text.starts_with("answer: ") && heard.text.len() == 10, "{heard:?}");
        assert_eq!((heard.reason(), statistics.incomplete), (&DoneReason::GrammarEnd, false));
        // Special tokens in the text do not make the thought a part of the answer.
        let shown = GenerationOptions { show_special: true, max_tokens: Some(9), ..base.clone() };
        let heard = hear(&mut session(decode), &open, &shown);
        assert!(heard.statistics().incomplete && heard.ids.len() == 9, "{heard:?}");
    }
    // Unlikely thoughts do not begin, although few other tokens are allowed.
    for seed in 0..8 {
        let sampling = SamplingParameters::at_temperature(5.0, seed);
        let heard = hear(&mut session(&[1, 8]), &prompt(), &GenerationOptions { sampling, ..base.clone() });
        assert_eq!((heard.thoughts.as_str(), &heard.text[..8]), ("", "answer: "), "{heard:?}");
    }
}

fn dies(trouble: &Arc<Trouble>, after: usize) {
    *trouble.dies_after.lock().unwrap() = Some(after);
}

#[test]
fn a_lost_device_costs_no_token() {
    let prompt = prompt();
    for sampling in [SamplingParameters::greedy(), SamplingParameters::at_temperature(1.1, 3)] {
        let options = GenerationOptions { sampling, ..constrained(&schema()) };
        let expected = hear(&mut session(&[1]), &prompt, &options);
        for decode in [&[1_u64][..], &[1, 4]] {
            for after in [1, 3, 5] {
                let (first, troubles) = support::disturbed(&model().graph, &plan(&[1, 8]));
                let elsewhere = Plan { around: "c", decoders: vec!["c"], ..plan(decode) };
                let next = FallbackChains::new([support::chain(&model().graph, &elsewhere)]);
                let mut session = first.session_with(Box::new(next)).unwrap();
                dies(&troubles[1], after);
                let heard = hear(&mut session, &prompt, &options);
                assert_eq!((&heard.ids, heard.reason()), (&expected.ids, expected.reason()), "after {after}");
                assert_eq!(session.placement().moves.len(), 1, "{decode:?} after {after}");
            }
        }
    }
}

#[test]
fn rules_that_exclude_the_grammar_are_an_error() {
    let digits: Vec<u32> =
        (0..=9).map(|digit: u32| model().tokenizer.encode(&digit.to_string(), false).unwrap()[0]).collect();
    let bytes = model().tokenizer.token_bytes().unwrap();
    let is_digit = |bytes: &Vec<u8>| !bytes.is_empty() && bytes.iter().all(u8::is_ascii_digit);
    let all = (0..).zip(&bytes).filter(|(_, bytes)| is_digit(bytes)).map(|(id, _)| id);
    let rules = TokenRules { suppress_tokens: all.collect(), ..TokenRules::default() };
    assert!(digits.iter().all(|id| rules.suppress_tokens.contains(id)));
    let options = GenerationOptions { rules, ..constrained(&Grammar::regex("[0-9]{4}")) };
    let mut generation = Generation::new(&model().tokenizer, prompt(), &options).unwrap();
    let mut session = session(&[1]);
    let error = generation.next(&mut session).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("the grammar and the rules"), "{error}");
    assert!(error.help().is_some() && generation.next(&mut session).is_none());
}

#[test]
fn given_tokens_ignore_the_grammar() {
    let mut generation = Generation::new(&model().tokenizer, prompt(), &constrained(&schema()))
        .unwrap()
        .given(vec![40, 41, 42]);
    let (mut session, mut ids) = (session(&[1]), Vec::new());
    while let Some(event) = generation.next(&mut session) {
        match event.unwrap() {
            GenerationEvent::Token { id } => ids.push(id),
            GenerationEvent::Done { reason, statistics } => {
                assert_eq!((reason, statistics.incomplete), (DoneReason::MaxTokens, false));
            }
            _ => {}
        }
    }
    assert_eq!(ids, [40, 41, 42]);
}
