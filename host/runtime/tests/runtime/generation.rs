//! Tests text from real tokenizers against the goldens of the committed checkpoints.

use std::ops::ControlFlow;
use std::time::Instant;

use crate::support::{self, Plan, fixture};
use shardwright_models::Checkpoint;
use shardwright_runtime::{
    Chain, DoneReason, Generation, GenerationEvent, GenerationOptions, GenerationStatistics, Session,
};
use shardwright_text::{SamplingParameters, StopRules, ThoughtTokens, TokenRules, Tokenizer};
use shardwright_vocabulary::ErrorKind;

struct Model {
    chain: Chain,
    tokenizer: Tokenizer,
    goldens: serde_json::Value,
}

fn model(name: &str, context: u64) -> Model {
    let directory = fixture(name);
    let graph = Checkpoint::open(&directory).unwrap().into_graph();
    let plan = Plan { context, largest: 16, prefill: vec![16, 4], around: "b", ..Plan::default() };
    Model {
        chain: support::chain(&graph, &plan),
        tokenizer: Tokenizer::from_file(directory.join("tokenizer.json")).unwrap(),
        goldens: serde_json::from_slice(&std::fs::read(directory.join("goldens.json")).unwrap()).unwrap(),
    }
}

#[derive(Default, Debug)]
struct Heard {
    ids: Vec<u32>,
    text: String,
    thoughts: String,
    done: Option<(DoneReason, GenerationStatistics)>,
}

fn hear(model: &Model, session: &mut Session, prompt: &[u32], options: &GenerationOptions) -> Heard {
    let mut generation = Generation::new(&model.tokenizer, prompt.to_vec(), options).unwrap();
    let mut heard = Heard::default();
    while let Some(event) = generation.next(session) {
        assert!(heard.done.is_none(), "an event after the last");
        match event.unwrap() {
            GenerationEvent::Token { id } => heard.ids.push(id),
            GenerationEvent::TextDelta { text } => {
                assert!(!text.is_empty());
                heard.text += &text;
            }
            GenerationEvent::ThoughtDelta { text } => heard.thoughts += &text,
            GenerationEvent::DraftDropped { draft } => panic!("{draft:?}"),
            event @ (GenerationEvent::ToolCallBegin { .. }
            | GenerationEvent::ToolCallArguments { .. }
            | GenerationEvent::ToolCall { .. }
            | GenerationEvent::ToolCallDropped { .. }) => panic!("{event:?}"),
            GenerationEvent::Done { reason, statistics } => heard.done = Some((reason, statistics)),
        }
    }
    heard
}

fn tokens(count: usize) -> GenerationOptions {
    GenerationOptions { max_tokens: Some(count), ..GenerationOptions::default() }
}

fn prompt(model: &Model) -> Vec<u32> {
    let text = model.goldens["prompts"][0]["text"].as_str().unwrap();
    let ids = model.tokenizer.encode(text, true).unwrap();
    assert_eq!(ids.len() as u64, model.goldens["prompts"][0]["n_prompt"].as_u64().unwrap());
    ids
}

/// Returns the golden continuation of the first prompt.
fn golden(name: &str) -> Vec<u32> {
    let bytes = std::fs::read(fixture(name).join("goldens.safetensors")).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let head: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let (_, tensor) = head
        .as_object()
        .unwrap()
        .iter()
        .find(|(name, _)| name.contains("greedy") && name.contains('0'))
        .unwrap_or_else(|| panic!("{:?}", head.as_object().unwrap().keys().collect::<Vec<_>>()));
    let [start, end] =
        [0, 1].map(|side| tensor["data_offsets"][side].as_u64().unwrap() as usize + 8 + header);
    let size = if tensor["dtype"] == "I64" { 8 } else { 4 };
    bytes[start..end].chunks_exact(size).map(|b| u32::from_le_bytes(b[..4].try_into().unwrap())).collect()
}

#[test]
fn greedy_text_is_that_of_the_goldens() {
    for name in ["gemma3_text", "gemma4_text", "qwen3"] {
        let model = model(name, 256);
        let prompt = prompt(&model);
        let expected = golden(name);
        let expected = expected.strip_prefix(prompt.as_slice()).unwrap_or(&expected);
        let mut session = model.chain.session().unwrap();
        let heard = hear(&model, &mut session, &prompt, &tokens(expected.len()));
        assert_eq!(heard.ids, expected, "{name}");
        assert_eq!(heard.text, model.tokenizer.decode(expected, true).unwrap(), "{name}");
        let (reason, statistics) = heard.done.unwrap();
        assert_eq!(reason, DoneReason::MaxTokens);
        assert_eq!(statistics.prompt_tokens, prompt.len());
        assert_eq!((statistics.reused_tokens, statistics.run_tokens), (0, prompt.len()));
        assert_eq!(statistics.generated_tokens, expected.len());
        assert!(statistics.time_to_first_token >= statistics.prompt_time);
        assert!(statistics.prefill_tokens_per_second() > 0.0 && statistics.decode_tokens_per_second() > 0.0);
        // The session contains all but the last token.
        assert_eq!(session.tokens().len(), prompt.len() + expected.len() - 1);
    }
}

#[test]
fn a_next_turn_runs_only_what_is_new() {
    let model = model("gemma3_text", 256);
    let prompt = prompt(&model);
    let mut session = model.chain.session().unwrap();
    let first = hear(&model, &mut session, &prompt, &tokens(12));
    let next =
        [prompt.as_slice(), &first.ids, &model.tokenizer.encode(" And then?", false).unwrap()].concat();
    let second = hear(&model, &mut session, &next, &tokens(12));
    let (_, statistics) = second.done.unwrap();
    assert_eq!(statistics.reused_tokens, prompt.len() + 11);
    assert_eq!(statistics.run_tokens, next.len() - statistics.reused_tokens);
    let mut fresh = model.chain.session().unwrap();
    assert_eq!(hear(&model, &mut fresh, &next, &tokens(12)).ids, second.ids);
}

#[test]
fn stop_ids_and_strings_end_the_reply() {
    let model = model("gemma3_text", 256);
    let prompt = prompt(&model);
    let mut session = model.chain.session().unwrap();
    let free = hear(&model, &mut session, &prompt, &tokens(30));
    // Finds the first token that did not occur earlier.
    let at = (8..30).find(|&at| !free.ids[..at].contains(&free.ids[at])).unwrap();
    let options = GenerationOptions { stop: StopRules::new([free.ids[at]]), ..tokens(30) };
    let stopped = hear(&model, &mut session, &prompt, &options);
    assert_eq!(stopped.ids, free.ids[..=at]);
    assert_eq!(stopped.text, model.tokenizer.decode(&free.ids[..at], true).unwrap());
    assert_eq!(stopped.done.unwrap().0, DoneReason::StopToken { id: free.ids[at] });

    // This string spans several tokens.
    let text: Vec<char> = free.text.chars().collect();
    let string: String = text[text.len() / 2..text.len() / 2 + 9].iter().collect();
    let options = GenerationOptions {
        stop: StopRules::default().with_strings([string.as_str()]).unwrap(),
        ..tokens(30)
    };
    let stopped = hear(&model, &mut session, &prompt, &options);
    assert_eq!(stopped.text, free.text[..free.text.find(&string).unwrap()]);
    assert_eq!(stopped.done.unwrap().0, DoneReason::StopText { text: string });
    assert!(free.ids.starts_with(&stopped.ids) && stopped.ids.len() < free.ids.len());
}

#[test]
fn thoughts_are_delivered_apart_and_end_at_their_limit() {
    let model = model("gemma3_text", 256);
    let prompt = prompt(&model);
    let mut session = model.chain.session().unwrap();
    let free = hear(&model, &mut session, &prompt, &tokens(12)).ids;
    // Finds the first two tokens after the third one that did not occur earlier.
    let new: Vec<usize> = (3..12).filter(|&at| !free[..at].contains(&free[at])).take(2).collect();
    let [open, close] = new[..] else { panic!("{free:?} repeats itself") };
    let thoughts = Some(ThoughtTokens::new(free[open], free[close]));
    let options = GenerationOptions { thoughts, ..tokens(12) };
    let heard = hear(&model, &mut session, &prompt, &options);
    let text = |ids: &[u32]| model.tokenizer.decode(ids, true).unwrap();
    assert_eq!(heard.ids, free);
    assert_eq!(heard.thoughts, text(&free[open + 1..close]).trim_matches('\n'));
    assert_eq!(heard.text, text(&free[..open]) + text(&free[close + 1..]).trim_start_matches('\n'));
    assert_eq!(heard.done.unwrap().1.thought_tokens, close - open - 1);

    for limit in 0..3 {
        // The end token of the thought is one that the model does not predict.
        let thoughts = Some(ThoughtTokens::new(free[open], 7));
        let options = GenerationOptions { thoughts, max_thought_tokens: Some(limit), ..tokens(12) };
        let heard = hear(&model, &mut session, &prompt, &options);
        let end = open + 1 + limit;
        assert_eq!((&heard.ids[..end], heard.ids[end]), (&free[..end], 7));
        assert_eq!(heard.done.unwrap().1.thought_tokens, limit);
    }
    // With special tokens shown, the text includes the thought.
    let options = GenerationOptions { show_special: true, ..options };
    let heard = hear(&model, &mut session, &prompt, &options);
    assert_eq!((heard.text, heard.thoughts.as_str()), (model.tokenizer.decode(&free, false).unwrap(), ""));
}

#[test]
fn suppressed_tokens_are_never_chosen() {
    let model = model("gemma3_text", 256);
    let prompt = prompt(&model);
    let mut session = model.chain.session().unwrap();
    let free = hear(&model, &mut session, &prompt, &tokens(20)).ids;
    let rules = TokenRules { suppress_tokens: free[4..8].to_vec(), ..TokenRules::default() };
    let heard = hear(&model, &mut session, &prompt, &GenerationOptions { rules, ..tokens(20) }).ids;
    // The tokens before the first suppressed one are unchanged, unless it also occurs there.
    let same = free.iter().position(|id| free[4..8].contains(id)).unwrap();
    assert_eq!(heard[..same], free[..same]);
    assert!(!heard.iter().any(|id| free[4..8].contains(id)), "{heard:?}");
    let rules = TokenRules { no_repeat_ngram_size: 2, ..TokenRules::default() };
    let heard = hear(&model, &mut session, &prompt, &GenerationOptions { rules, ..tokens(60) }).ids;
    let all = [prompt, heard].concat();
    let mut pairs: Vec<&[u32]> = all.windows(2).skip(all.len() - 61).collect();
    let count = pairs.len();
    pairs.sort_unstable();
    pairs.dedup();
    assert_eq!(pairs.len(), count);
}

#[test]
fn pending_text_is_emitted_at_the_end() {
    let model = model("gemma3_text", 256);
    let prompt = prompt(&model);
    let mut session = model.chain.session().unwrap();
    let free = hear(&model, &mut session, &prompt, &tokens(10));
    // The whole text could still become this string.
    let options = GenerationOptions {
        stop: StopRules::default().with_strings([format!("{}\u{0}", free.text)]).unwrap(),
        ..tokens(10)
    };
    let pending = hear(&model, &mut session, &prompt, &options);
    assert_eq!((pending.text, pending.ids), (free.text, free.ids));
    assert_eq!(pending.done.unwrap().0, DoneReason::MaxTokens);
}

#[test]
fn a_full_context_ends_the_reply() {
    let model = model("gemma3_text", 20);
    let prompt = prompt(&model);
    let mut session = model.chain.session().unwrap();
    let heard = hear(&model, &mut session, &prompt, &GenerationOptions::default());
    assert_eq!(heard.done.unwrap().0, DoneReason::ContextFull);
    // There is one token more than positions: the last one is sampled and never run.
    assert_eq!(heard.ids.len(), 20 - prompt.len() + 1);
    assert_eq!(session.remaining(), 0);
    let long: Vec<u32> = prompt.iter().cycle().take(21).copied().collect();
    let mut generation = Generation::new(&model.tokenizer, long, &tokens(1)).unwrap();
    let error = generation.next(&mut session).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Context, "{error}");
    assert!(generation.next(&mut session).is_none());
}

#[test]
fn cancellation_and_deadline_end_a_reply_with_the_text_so_far() {
    let model = model("gemma3_text", 256);
    let prompt = prompt(&model);
    let mut session = model.chain.session().unwrap();
    let free = hear(&model, &mut session, &prompt, &tokens(12));
    let handle = session.cancel_handle();
    let mut ids = Vec::new();
    let (reason, statistics) = session
        .generate(&model.tokenizer, &prompt, &tokens(12), &mut |event| {
            if let GenerationEvent::Token { id } = event {
                ids.push(*id);
                if ids.len() == 5 {
                    handle.cancel();
                }
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!((reason, statistics.generated_tokens), (DoneReason::Cancelled, 5));
    assert_eq!(ids, free.ids[..5]);
    assert!(!session.cancel_handle().is_requested());
    // A late request does not end the next reply.
    session.generate(&model.tokenizer, &prompt, &tokens(1), &mut |_| ControlFlow::Continue(())).unwrap();
    let heard = hear(&model, &mut session, &prompt, &tokens(12));
    assert_eq!(heard.ids, free.ids);

    session.set_deadline(Some(Instant::now()));
    let heard = hear(&model, &mut session, &[&prompt[..], &[5]].concat(), &tokens(12));
    assert_eq!(heard.done.unwrap().0, DoneReason::Deadline);
    assert!(heard.ids.is_empty());
}

#[test]
fn a_receiver_may_break_off() {
    let model = model("qwen3", 256);
    let prompt = prompt(&model);
    let mut session = model.chain.session().unwrap();
    let mut events = 0;
    let (reason, statistics) = session
        .generate(&model.tokenizer, &prompt, &tokens(12), &mut |_| {
            events += 1;
            if events == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    assert_eq!(reason, DoneReason::Cancelled);
    assert_eq!(events, 3);
    assert!(statistics.generated_tokens < 12);
}

#[test]
fn the_same_seed_gives_the_same_reply() {
    let model = model("gemma4_text", 256);
    let prompt = prompt(&model);
    let drawn = |seed| {
        let options =
            GenerationOptions { sampling: SamplingParameters::at_temperature(0.9, seed), ..tokens(16) };
        hear(&model, &mut model.chain.session().unwrap(), &prompt, &options).ids
    };
    assert_eq!(drawn(7), drawn(7));
    assert_ne!(drawn(7), drawn(8));
}

#[test]
fn no_tokens_and_wrong_parameters() {
    let model = model("qwen3", 256);
    let mut session = model.chain.session().unwrap();
    let heard = hear(&model, &mut session, &prompt(&model), &tokens(0));
    assert_eq!(heard.done.unwrap().0, DoneReason::MaxTokens);
    assert!(heard.ids.is_empty() && session.tokens().is_empty());
    let sampling = SamplingParameters { temperature: -1.0, ..SamplingParameters::default() };
    let options = GenerationOptions { sampling, ..GenerationOptions::default() };
    let error = Generation::new(&model.tokenizer, vec![1], &options).unwrap_err();
    assert!(error.to_string().contains("temperature"), "{error}");
    assert_eq!(error.class(), None);
    let mut generation = Generation::new(&model.tokenizer, Vec::new(), &tokens(3)).unwrap();
    let error = generation.next(&mut session).unwrap().unwrap_err();
    assert_eq!(error.to_string(), "no tokens were passed");
}
