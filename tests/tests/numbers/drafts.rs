//! Drafts on the CPU shim's own library: tokens and logits equal single steps bit for bit. This
//! must be true in every format, however many rows a step verifies and wherever the model is cut.

use shardwright_runtime::{
    Chain, Draft, Generation, GenerationEvent, GenerationOptions, Proposal, Session, Speculation,
};
use shardwright_tests::chain::{Bench, Cut, committed, menu, tokens};
use shardwright_tests::checkpoints::{DEMO_MODEL, TEXT_FIXTURES};
use shardwright_tests::tree;
use shardwright_text::{SamplingParameters, Tokenizer};
use shardwright_vocabulary::{FormatTuple, Result};

const REPLY: usize = 40;

/// A draft that knows the text but proposes a wrong token at every seventh position.
struct Knows(Vec<u32>);

impl Draft for Knows {
    fn name(&self) -> String {
        "knows".to_owned()
    }

    fn propose(&mut self, history: &[u32], most: usize) -> Result<Proposal> {
        let rest = self.0.iter().enumerate().skip(history.len()).take(most);
        let tokens = rest.map(|(at, &id)| if at % 7 == 3 { id ^ 1 } else { id }).collect();
        Ok(Proposal { tokens, ..Proposal::default() })
    }
}

/// Generates a reply and returns it with the bits of the logits after its last token but one.
fn reply(
    session: &mut Session,
    tokenizer: &Tokenizer,
    prompt: &[u32],
    sampling: SamplingParameters,
) -> (Vec<u32>, Vec<u32>) {
    let options = GenerationOptions { sampling, max_tokens: Some(REPLY), ..GenerationOptions::default() };
    let mut generation = Generation::new(tokenizer, prompt.to_vec(), &options).expect("a reply");
    let mut ids = Vec::new();
    while let Some(event) = generation.next(session) {
        match event.unwrap_or_else(|error| panic!("{error}")) {
            GenerationEvent::Token { id } => ids.push(id),
            GenerationEvent::DraftDropped { draft } => panic!("{draft:?}"),
            GenerationEvent::TextDelta { .. }
            | GenerationEvent::ThoughtDelta { .. }
            | GenerationEvent::ToolCallBegin { .. }
            | GenerationEvent::ToolCallArguments { .. }
            | GenerationEvent::ToolCall { .. }
            | GenerationEvent::ToolCallDropped { .. }
            | GenerationEvent::Done { .. } => {}
        }
    }
    let logits = session.logits().expect("logits").iter().map(|logit| logit.to_bits()).collect();
    (ids, logits)
}

/// Compares replies with drafts of every length on `chain` with single steps on `alone`.
fn assert_same(alone: &Chain, chain: &Chain, tokenizer: &Tokenizer, prompt: &[u32], what: &str) {
    // The sampler considers all tokens, so every logit has to be right.
    let drawn = SamplingParameters::at_temperature(0.7, 9);
    let (expected, logits) = reply(&mut alone.session().expect("a session"), tokenizer, prompt, drawn);
    let greedy = SamplingParameters::greedy();
    let (likeliest, _) = reply(&mut alone.session().expect("a session"), tokenizer, prompt, greedy);
    for length in [1, 2, 5, 15] {
        for (sampling, expected) in [(drawn, &expected), (greedy, &likeliest)] {
            let drafted = || {
                let mut session = chain.session().expect("a session");
                let knows = Box::new(Knows([prompt, expected].concat()));
                session.set_speculation(Some(Speculation::new().draft(knows).fixed_length(Some(length))));
                let (ids, bits) = reply(&mut session, tokenizer, prompt, sampling);
                assert_eq!(&ids, expected, "{what}, {length} drafted");
                (bits, *session.speculation().expect("drafts").statistics())
            };
            // On a busy machine most of a reply may end before the draft has read the prompt.
            let mut tries = 1;
            let (bits, counted) = loop {
                let (bits, counted) = drafted();
                if counted.accepted as usize > REPLY / 3 || tries == 10 {
                    break (bits, counted);
                }
                tries += 1;
            };
            assert!(counted.accepted as usize > REPLY / 3, "{what}, {length} drafted: {counted:?}");
            if sampling == drawn {
                let differ = bits.iter().zip(&logits).filter(|(one, other)| one != other).count();
                assert_eq!(differ, 0, "{what}, {length} drafted: {differ} of {} logits differ", bits.len());
            }
        }
    }
}

fn tokenizer(folder: &str) -> Tokenizer {
    Tokenizer::from_file(tree::root().join(folder).join("tokenizer.json")).expect("a tokenizer")
}

#[test]
fn logits_of_accepted_tokens_are_those_of_single_steps() {
    for folder in [TEXT_FIXTURES[0], TEXT_FIXTURES[1], TEXT_FIXTURES[3]] {
        let (graph, tokenizer) = (committed(folder), tokenizer(folder));
        let prompt = tokens(&graph, 21);
        let of = |decode: &[u32], cut: &Cut| Bench::cpu(&graph, &menu(96, &[16], decode), 1).chain(cut);
        let alone = of(&[1], &Cut::default());
        for cut in [Cut::default(), Cut::before(&[1])] {
            assert_same(&alone, &of(&[1, 16], &cut), &tokenizer, &prompt, &format!("{folder} {cut:?}"));
        }
        assert_same(&alone, &of(&[1, 4], &Cut::default()), &tokenizer, &prompt, folder);
    }
}

#[test]
fn so_they_are_in_every_format() {
    let (graph, tokenizer) = (committed(DEMO_MODEL), tokenizer(DEMO_MODEL));
    let prompt = tokens(&graph, 21);
    for formats in [
        "w8-per-channel/a8-dynamic/f32",
        "w4-block32/a8-dynamic/f16",
        "w4-block32[head=w8-per-channel]/f32/f32",
        "bf16/f32/f16",
    ] {
        let tuple: FormatTuple = formats.parse().unwrap_or_else(|error| panic!("{formats}: {error}"));
        let of = |decode: &[u32]| {
            let menu = menu(96, &[16], decode);
            Bench::cpu_in_formats(&graph, &menu, 1, std::slice::from_ref(&tuple)).chain(&Cut::default())
        };
        assert_same(&of(&[1]), &of(&[1, 16]), &tokenizer, &prompt, formats);
    }
}
