//! Replies of the demo model with prompt lookup beside the same replies without, in pairs.
//!
//! `cargo test --release -p shardwright-tests --bench speculation [-- ROWS…]`; rows of the entry
//! point that verifies, 16 by default. Groups of texts:
//!
//! * *goldens*: greedy replies of 128 tokens to the prompts of the model's goldens;
//! * *rewriting*: a held-out passage, then the same passage with each thirteenth token another one;
//! * *lists*: lines of one form;
//! * *held out*: passages that the model was not trained on.
//!
//! But for the first, the text is given: the model is run as for a reply, and what it says is not
//! asked. A line shows tokens a second with and without, the median ratio of pairs and the range of
//! all; then how many steps accepted how many drafted tokens. Tokens are compared, no time is.

use std::time::Duration;

use serde_json::Value;
use shardwright::{Model, OpenOptions};
use shardwright_measure::{median, range};
use shardwright_runtime::{
    Acceptance, Generation, GenerationEvent, GenerationOptions, GenerationStatistics, Session, Speculation,
};
use shardwright_tests::measure::row;
use shardwright_tests::{program, tree};

/// Pairs that are counted; one more goes before.
const PAIRS: usize = 7;

/// Tokens of a prompt before a given text.
const PROMPT: usize = 16;

struct Text {
    prompt: Vec<u32>,
    /// What follows, unless the model says it.
    given: Option<Vec<u32>>,
}

fn main() {
    let asked = std::env::args().skip(1).filter_map(|argument| argument.parse::<u32>().ok());
    let mut rows: Vec<u32> = asked.collect();
    if rows.is_empty() {
        rows.push(16);
    }
    println!("speculation (demo model on the CPU shim, prompt lookup; {PAIRS} pairs)");
    for rows in rows {
        let model = OpenOptions::new()
            .planner_option("speculation", rows.to_string())
            .search_path(program::search_path())
            .open(tree::root().join("demo-model"))
            .expect("the demo model opens");
        for (name, texts) in groups(&model) {
            compare(&model, &format!("{name}, decode_{rows}"), &texts);
        }
    }
}

fn groups(model: &Model) -> Vec<(&'static str, Vec<Text>)> {
    let tokenizer = model.tokenizer().expect("a tokenizer");
    let encode = |text: &str, special| tokenizer.encode(text, special).expect("tokens");
    let goldens = std::fs::read(tree::root().join("demo-model/goldens.json")).expect("goldens");
    let goldens: Value = serde_json::from_slice(&goldens).expect("JSON");
    let prompts = goldens["prompts"].as_array().expect("prompts").iter();
    let said = prompts.map(|prompt| {
        let text = prompt["text"].as_str().expect("a text").trim_start_matches("<bos>");
        Text { prompt: encode(text, true), given: None }
    });
    let held_out = held_out();
    let vocabulary = tokenizer.vocabulary_size() as u32;
    let rewriting = held_out.iter().take(8).map(|passage| {
        let passage = &passage[..passage.len().min(200)];
        let changed = |(at, &id): (usize, &u32)| if at % 13 == 12 { (id + 1) % vocabulary } else { id };
        Text { prompt: passage.to_vec(), given: Some(passage.iter().enumerate().map(changed).collect()) }
    });
    let lists = ["apple", "king", "program", "river"].map(|what| {
        let line =
            |count: usize| format!("{count}. The {what} of the house was {} and good.\n", count * 7 % 10);
        let text: String = (1..16).map(line).collect();
        let ids = encode(&text, true);
        Text { prompt: ids[..PROMPT].to_vec(), given: Some(ids[PROMPT..].to_vec()) }
    });
    let plain = held_out
        .iter()
        .take(16)
        .map(|passage| Text { prompt: passage[..PROMPT].to_vec(), given: Some(passage[PROMPT..].to_vec()) });
    vec![
        ("goldens", said.collect()),
        ("rewriting", rewriting.collect()),
        ("lists", lists.into()),
        ("held out", plain.collect()),
    ]
}

/// Held-out passages of at least 100 tokens.
fn held_out() -> Vec<Vec<u32>> {
    let bytes = std::fs::read(tree::root().join("demo-model/eval.safetensors")).expect("held-out text");
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("tensors");
    let integers = |name: &str| -> Vec<u32> {
        let data = tensors.tensor(name).expect("a tensor").data().to_vec();
        data.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes) as u32).collect()
    };
    let (ids, lengths) = (integers("input_ids"), integers("lengths"));
    let width = ids.len() / lengths.len();
    let rows = ids.chunks(width).zip(&lengths);
    rows.filter(|(_, length)| **length >= 100).map(|(row, length)| row[..*length as usize].to_vec()).collect()
}

fn compare(model: &Model, name: &str, texts: &[Text]) {
    let mut session = model.chain().session().expect("a session");
    let mut speculation = Some(Speculation::new().lookup());
    let (mut ratios, mut with, mut without) = (Vec::new(), Vec::new(), Vec::new());
    let mut accepted = Acceptance::default();
    for pair in 0..=PAIRS {
        let (mut times, mut tokens) = ([Duration::ZERO; 2], 0);
        for text in texts {
            session.set_speculation(None);
            let (expected, plain) = reply(&mut session, model, text);
            session.set_speculation(speculation.take());
            let (found, drafted) = reply(&mut session, model, text);
            speculation = session.take_speculation();
            assert_eq!(found, expected, "{name}");
            for (time, statistics) in times.iter_mut().zip([plain, drafted]) {
                *time += statistics.decode_time;
            }
            tokens += drafted.generated_tokens - 1;
            if pair == PAIRS {
                accepted = accepted.and(&drafted.speculation.acceptance());
            }
        }
        if pair > 0 {
            let [plain, drafted] = times.map(|time| tokens as f64 / time.as_secs_f64());
            ratios.push(drafted / plain);
            with.push(drafted);
            without.push(plain);
        }
    }
    let (least, most) = range(&ratios);
    let line = format!(
        "{:.2}x ({least:.2} to {most:.2}), {:.0} tok/s beside {:.0}",
        median(&ratios),
        median(&with),
        median(&without)
    );
    row(name, line);
    row("  steps without drafted tokens; by how many were accepted", {
        format!("{}; {:?}", accepted.without, accepted.accepted)
    });
}

fn reply(session: &mut Session, model: &Model, text: &Text) -> (Vec<u32>, GenerationStatistics) {
    session.clear();
    let options = GenerationOptions { max_tokens: Some(128), ..GenerationOptions::default() };
    let tokenizer = model.tokenizer().expect("a tokenizer");
    let mut generation = Generation::new(tokenizer, text.prompt.clone(), &options).expect("a reply");
    if let Some(given) = &text.given {
        generation = generation.given(given.clone());
    }
    let mut ids = Vec::new();
    while let Some(event) = generation.next(session) {
        if let GenerationEvent::Token { id } = event.expect("a good reply") {
            ids.push(id);
        }
    }
    (ids, *generation.statistics())
}
