//! Loading a tokenizer: time and memory, for the demo model's and for one with as many tokens as
//! Gemma's.
//!
//! The large one is generated: 262,144 tokens, each but the first ones the union of two earlier
//! ones, with one merge each (the published file has about two merges per token, so it takes longer
//! than this).

use std::fmt::Write;
use std::path::Path;
use std::{env, fs, process};

use shardwright_measure::resident_memory;
use shardwright_tests::measure::{row, timed};
use shardwright_tests::tree;
use shardwright_text::Tokenizer;

/// Argument that makes this program load one file and print its memory use: only a fresh process
/// can measure that, since an earlier load leaves memory allocated.
const MEMORY_OF: &str = "--memory-of";

fn main() {
    let arguments: Vec<String> = env::args().collect();
    if let [_, flag, path, ..] = &arguments[..]
        && flag == MEMORY_OF
    {
        return print_memory(Path::new(path));
    }

    let folder = tempfile::tempdir().expect("a temporary folder");
    let large = folder.path().join("tokenizer.json");
    fs::write(&large, generated(262_144)).expect("written");
    println!("tokenizer");
    for (name, path, repetitions) in [
        ("demo model, 4,096 tokens", tree::root().join("demo-model/tokenizer.json"), 21),
        ("generated, 262,144 tokens", large, 5),
    ] {
        let timing = timed(repetitions, || Tokenizer::from_file(&path).expect("a good tokenizer"));
        row(&format!("load ({name})"), timing);
        let memory = process::Command::new(env::current_exe().expect("this program"))
            .arg(MEMORY_OF)
            .arg(&path)
            .output()
            .expect("starts again");
        row(&format!("memory ({name})"), String::from_utf8_lossy(&memory.stdout).trim());
    }

    let tokenizer =
        Tokenizer::from_file(tree::root().join("demo-model/tokenizer.json")).expect("a good tokenizer");
    let text = fs::read_to_string(tree::root().join("LICENSE-APACHE")).expect("a text");
    let ids = tokenizer.encode(&text, true).expect("encodes");
    assert!(tokenizer.decode(&ids, true).expect("decodes") == text, "what is timed must be right");
    let timing = timed(21, || tokenizer.encode(&text, true).expect("encodes"));
    row(&format!("encode {} kB of text to {} ids (demo model)", text.len() / 1000, ids.len()), timing);
}

fn print_memory(path: &Path) {
    let Some((before, _)) = resident_memory() else {
        println!("not measured: this system does not say");
        return;
    };
    let tokenizer = Tokenizer::from_file(path).expect("a good tokenizer");
    let Some((after, peak)) = resident_memory() else { return };
    let mega = |bytes: u64| bytes as f64 / 1e6;
    println!(
        "{:.1} MB resident, {:.1} MB at most while loading",
        mega(after.saturating_sub(before)),
        mega(peak.saturating_sub(before))
    );
    drop(tokenizer);
}

/// A byte-fallback BPE with this many tokens.
fn generated(count: usize) -> String {
    let mut tokens: Vec<String> = ('a'..='z').chain('A'..='Z').map(String::from).collect();
    let base = tokens.len();
    let mut merges = String::new();
    // Left halves in order, right halves of one letter: every union is new, and lengths stay near
    // those of words.
    for at in 0..count.saturating_sub(base) {
        let (left, right) = (tokens[at / base].clone(), tokens[at % base].clone());
        let _ = write!(merges, "{}\"{left} {right}\"", if at == 0 { "" } else { "," });
        tokens.push(left + &right);
    }
    let mut vocabulary = String::new();
    for (id, token) in tokens.iter().enumerate() {
        let _ = write!(vocabulary, "{}\"{token}\":{id}", if id == 0 { "" } else { "," });
    }
    format!(
        r#"{{"version":"1.0","added_tokens":[],"model":{{"type":"BPE","vocab":{{{vocabulary}}},"merges":[{merges}]}}}}"#
    )
}
