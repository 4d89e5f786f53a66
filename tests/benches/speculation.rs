//! Speed of replies of the demo model with prompt lookup, compared with the same replies without,
//! in pairs.
//!
//! Run `cargo test --release -p shardwright-tests --bench speculation [-- ROWS… FORMATS…]`. The
//! arguments are:
//!
//! * `ROWS`: rows of the entry point that verifies, 16 by default
//! * `FORMATS`: such as `w8-per-channel/a8-dynamic/f32`, by default as stored
//! * `texts=GROUP`: only this group of [`shardwright_tests::texts`]
//! * `model=PATH`: another checkpoint than the demo model, which gets texts as ids
//! * `peer=PROGRAM,GGUF,DRAFT`: alternates with llama.cpp's lookup, whose program is
//!   `peers/lookup.cpp`
//! * `deeper=LAYERS`: the demo model drafts for a model with the same replies and this many more
//!   layers ([`shardwright_tests::deeper`]), measured as `tune` does and verified as its plan
//!   specifies
//!
//! The goldens' replies have 128 tokens. For all other groups the text is given: the model runs as
//! for a reply, but its choice of tokens is ignored. A line shows tokens per second with and
//! without drafts, the median ratio of pairs, and the range of ratios. It also shows how many steps
//! accepted how many drafted tokens. The bench checks tokens but no times.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use shardwright::tools::ModelTools;
use shardwright::{FormatChoice, Model, OpenOptions};
use shardwright_measure::{median, range};
use shardwright_runtime::{
    Acceptance, Generation, GenerationEvent, GenerationOptions, GenerationStatistics, Session, Speculation,
};
use shardwright_tests::deeper::deeper;
use shardwright_tests::measure::row;
use shardwright_tests::texts::{Text, groups};
use shardwright_tests::{program, tree};
use shardwright_text::Tokenizer;
use shardwright_tune::measure_draft;

/// Largest number of tokens in a reply.
const MOST: usize = 128;

/// Number of pairs that count, after one that does not.
const PAIRS: usize = 7;

fn main() {
    let (mut all_rows, mut all_formats, mut peers) = (Vec::new(), Vec::new(), Vec::new());
    let demo_model = tree::root().join("demo-model");
    let (mut checkpoint, mut only, mut layers) = (demo_model.clone(), None, None);
    for argument in std::env::args().skip(1).filter(|argument| !argument.starts_with("--")) {
        if let Some(path) = argument.strip_prefix("model=") {
            checkpoint = path.into();
        } else if let Some(group) = argument.strip_prefix("texts=") {
            only = Some(group.to_owned());
        } else if let Some(more) = argument.strip_prefix("deeper=") {
            layers = Some(more.parse::<usize>().expect("a number of layers"));
        } else if let Some(peer) = argument.strip_prefix("peer=") {
            peers.push(peer.to_owned());
        } else if let Ok(rows) = argument.parse::<u32>() {
            all_rows.push(rows);
        } else {
            all_formats.push(argument.parse().expect("formats"));
        }
    }
    let tokenizer = Tokenizer::from_file(demo_model.join("tokenizer.json")).expect("a tokenizer");
    let mut groups = groups(&tokenizer);
    if checkpoint != demo_model {
        groups.retain(|(_, texts)| texts.iter().all(|text| text.given.is_some()));
    }
    groups.retain(|(name, _)| only.as_ref().is_none_or(|only| only == name));
    if all_rows.is_empty() {
        all_rows.push(16);
    }
    if all_formats.is_empty() {
        all_formats.push(FormatChoice::Stored);
    }
    if let Some(layers) = layers {
        println!("speculation (the demo model as draft of one with {layers} more layers; {PAIRS} pairs)");
        all_formats.iter().for_each(|formats| drafted(layers, formats, &groups));
        return;
    }
    let name = checkpoint.file_name().unwrap_or_default().display();
    println!("speculation ({name} on the CPU shim, prompt lookup; {PAIRS} pairs)");
    for formats in all_formats {
        for rows in &all_rows {
            let model = OpenOptions::new()
                .formats(formats.clone())
                .planner_option("speculation", rows.to_string())
                .search_path(program::search_path())
                .open(&checkpoint)
                .expect("the model opens");
            println!("  {formats}, decode_{rows}");
            steps(&model, *rows as usize);
            for (name, texts) in &groups {
                let mut peers: Vec<Peer> = peers.iter().map(|peer| Peer::start(peer, texts)).collect();
                compare(&model, name, texts, Speculation::new().lookup(), &mut peers);
            }
        }
    }
}

/// Prints the time of a step of `rows` rows, relative to a step of one row. Both compute the logits
/// of every row, after the same number of tokens.
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

/// llama.cpp with its own lookup, loaded once.
struct Peer {
    name: String,
    program: Child,
    answers: Lines<BufReader<ChildStdout>>,
    _texts: tempfile::NamedTempFile,
    speeds: Vec<f64>,
    counts: String,
}

impl Peer {
    fn start(described: &str, texts: &[Text]) -> Peer {
        let [program, gguf, draft] = described.splitn(3, ',').collect::<Vec<_>>()[..] else {
            panic!("peer=PROGRAM,GGUF,DRAFT")
        };
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        for Text { prompt, given } in texts {
            let ids = |ids: &[u32]| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
            let given = given.as_ref().expect("peers are given their text");
            let given = &given[..given.len().min(MOST)];
            writeln!(file, "{}|{}", ids(prompt), ids(given)).expect("written");
        }
        let mut program = Command::new(program);
        let mut program = program
            .arg(gguf)
            .arg(file.path())
            .args([draft, "2"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the peer starts");
        let answers = BufReader::new(program.stdout.take().expect("piped")).lines();
        let name = format!("  llama.cpp, up to {draft} drafted tokens");
        Peer { name, program, answers, _texts: file, speeds: Vec::new(), counts: String::new() }
    }

    /// Runs the texts once and returns tokens per second.
    fn turn(&mut self) -> f64 {
        writeln!(self.program.stdin.as_mut().expect("piped"), "again").expect("it waits");
        let answer = self.answers.next().expect("it answers").expect("it answers");
        let (tokens, rest) = answer.split_once(' ').expect("numbers");
        let (seconds, counts) = rest.split_once(' ').expect("numbers");
        counts.clone_into(&mut self.counts);
        tokens.parse::<f64>().expect("tokens") / seconds.parse::<f64>().expect("seconds")
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.program.stdin.take());
        let _ = self.program.wait();
    }
}

/// Compares a model with and without its draft. The plan is based on measurements of both.
fn drafted(layers: usize, formats: &FormatChoice, groups: &[(&str, Vec<Text>)]) {
    let (deeper, cache) = (deeper(layers), tempfile::tempdir().expect("a folder"));
    let (path, demo_model) = (deeper.path(), tree::root().join("demo-model"));
    let open = OpenOptions::new()
        .formats(formats.clone())
        .cache_directory(cache.path())
        .search_path(program::search_path());
    let small = OpenOptions::new().search_path(program::search_path()).open(&demo_model);
    let small = small.expect("the demo model opens");
    let untuned = open.clone().open(path).expect("the model opens");
    let measured = measure_draft((path, &untuned), (&demo_model, &small), &open, &mut ());
    let times = measured.expect("measured").times["generic"].clone();
    drop(untuned);
    let model = open.draft_model(&demo_model).open(path).expect("the model opens");
    let planned = model.speculation().map_or("no proposals".to_owned(), ToString::to_string);
    println!("  {formats}: {planned}");
    row("  a proposed token, of a token of the model", {
        let part = times.proposed_nanoseconds as f64 / times.model_nanoseconds as f64;
        format!("{part:.3} of {:.2} ms", times.model_nanoseconds as f64 / 1e6)
    });
    for (name, texts) in groups {
        let draft = small.draft_for(&model).expect("the same vocabulary");
        compare(&model, name, texts, Speculation::new().draft(Box::new(draft)), &mut []);
    }
}

fn compare(model: &Model, name: &str, texts: &[Text], drafts: Speculation, peers: &mut [Peer]) {
    let tokenizer = model.tokenizer().expect("a tokenizer");
    let mut session = model.chain().session().expect("a session");
    let mut speculation = Some(drafts);
    let (mut ratios, mut with, mut without) = (Vec::new(), Vec::new(), Vec::new());
    let mut accepted = Acceptance::default();
    for pair in 0..=PAIRS {
        let (mut times, mut tokens) = ([Duration::ZERO; 2], 0);
        for text in texts {
            session.set_speculation(None);
            let (expected, plain) = reply(&mut session, tokenizer, text);
            session.set_speculation(speculation.take());
            let (found, drafted) = reply(&mut session, tokenizer, text);
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
        let turns: Vec<f64> = peers.iter_mut().map(Peer::turn).collect();
        if pair > 0 {
            peers.iter_mut().zip(turns).for_each(|(peer, speed)| peer.speeds.push(speed));
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
    for peer in peers {
        let ratios: Vec<f64> = with.iter().zip(&peer.speeds).map(|(ours, theirs)| ours / theirs).collect();
        let (least, most) = range(&ratios);
        let speed = median(&peer.speeds);
        let line =
            format!("{:.2}x ({least:.2} to {most:.2}) with lookup, beside {speed:.1} tok/s", median(&ratios));
        row(&peer.name, format!("{line}; steps, drafted, accepted: {}", peer.counts));
    }
}

fn reply(session: &mut Session, tokenizer: &Tokenizer, text: &Text) -> (Vec<u32>, GenerationStatistics) {
    session.clear();
    let options = GenerationOptions { max_tokens: Some(MOST), ..GenerationOptions::default() };
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
