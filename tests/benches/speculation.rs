//! Replies of the demo model with prompt lookup beside the same replies without, in pairs.
//!
//! `cargo test --release -p shardwright-tests --bench speculation [-- ROWS… FORMATS…]`; rows of the
//! entry point that verifies, 16 by default, and formats such as `w8-per-channel/a8-dynamic/f32`,
//! by default as stored. Groups of texts:
//!
//! * *goldens*: greedy replies of 128 tokens to the prompts of the model's goldens;
//! * *rewriting*: a held-out passage, then the same passage with each thirteenth token another one;
//! * *lists*: lines of one form;
//! * *held out*: passages that the model was not trained on.
//!
//! But for the first, the text is given: the model is run as for a reply, and what it says is not
//! asked. A line shows tokens a second with and without, the median ratio of pairs and the range of
//! all; then how many steps accepted how many drafted tokens. Tokens are compared, no time is.

use std::time::{Duration, Instant};

use serde_json::Value;
use shardwright::{FormatChoice, Model, OpenOptions};
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
    let (mut all_rows, mut all_formats) = (Vec::new(), Vec::new());
    for argument in std::env::args().skip(1).filter(|argument| !argument.starts_with("--")) {
        match argument.parse::<u32>() {
            Ok(rows) => all_rows.push(rows),
            Err(_) => all_formats.push(argument.parse().expect("formats")),
        }
    }
    if all_rows.is_empty() {
        all_rows.push(16);
    }
    if all_formats.is_empty() {
        all_formats.push(FormatChoice::Stored);
    }
    println!("speculation (demo model on the CPU shim, prompt lookup; {PAIRS} pairs)");
    for formats in all_formats {
        for rows in &all_rows {
            let model = OpenOptions::new()
                .formats(formats.clone())
                .planner_option("speculation", rows.to_string())
                .search_path(program::search_path())
                .open(tree::root().join("demo-model"))
                .expect("the demo model opens");
            println!("  {formats}, decode_{rows}");
            steps(&model, *rows as usize);
            for (name, texts) in groups(&model) {
                compare(&model, name, &texts);
            }
        }
    }
}

/// What a step of `rows` rows takes beside one of one row, both with the logits of every row, after
/// as many tokens.
fn steps(model: &Model, rows: usize) {
    let mut session = model.chain().session().expect("a session");
    let vocabulary = model.tokenizer().expect("a tokenizer").vocabulary_size() as u32;
    let ids: Vec<u32> = (0..(256 / rows * rows) as u32).map(|index| 2 + 37 * index % (vocabulary - 2)).collect();
    let mut seconds_for = |at_once: usize| {
        session.clear();
        let start = Instant::now();
        for ids in ids.chunks(at_once) {
            session.score(ids, &mut |_| {}).expect("scored");
        }
        start.elapsed().as_secs_f64() / ids.len().div_ceil(at_once) as f64
    };
    let (mut ones, mut ratios) = (Vec::new(), Vec::new());
    for pair in 0..=3 * PAIRS {
        let (one, several) = (seconds_for(1), seconds_for(rows));
        if pair > 0 {
            ones.push(one * 1e6);
            ratios.push(several / one);
        }
    }
    let (least, most) = range(&ratios);
    row(
        &format!("a step of {rows} rows"),
        format!(
            "{:.2} times one of one row ({least:.2} to {most:.2}), which takes {:.0} us",
            median(&ratios),
            median(&ones)
        ),
    );
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
