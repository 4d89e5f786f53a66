//! Replies of the demo model with prompt lookup beside the same replies without, in pairs.
//!
//! `cargo test --release -p shardwright-tests --bench speculation [-- ROWS… FORMATS…]`; rows of the
//! entry point that verifies, 16 by default, and formats such as `w8-per-channel/a8-dynamic/f32`,
//! by default as stored. Groups of texts are those of [`shardwright_tests::texts`]; the goldens'
//! replies have 128 tokens.
//!
//! But for the goldens, the text is given: the model is run as for a reply, and what it says is not
//! asked. A line shows tokens a second with and without, the median ratio of pairs and the range of
//! all; then how many steps accepted how many drafted tokens. Tokens are compared, no time is.

use std::time::{Duration, Instant};

use shardwright::{FormatChoice, Model, OpenOptions};
use shardwright_measure::{median, range};
use shardwright_runtime::{
    Acceptance, Generation, GenerationEvent, GenerationOptions, GenerationStatistics, Session, Speculation,
};
use shardwright_tests::measure::row;
use shardwright_tests::texts::{Text, groups};
use shardwright_tests::{program, tree};

/// Pairs that are counted; one more goes before.
const PAIRS: usize = 7;

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
            for (name, texts) in groups(model.tokenizer().expect("a tokenizer")) {
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
    let ids: Vec<u32> =
        (0..(256 / rows * rows) as u32).map(|index| 2 + 37 * index % (vocabulary - 2)).collect();
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
