//! Time and memory of loading a tokenizer: the demo model's, and one with as many tokens as
//! Gemma's, compared with the library that the project uses.
//!
//! The large one is generated. It has 262,144 tokens, of which 6,204 are added ones. Each word
//! except the first ones is the union of earlier words, with 505,593 merges (Gemma's file has
//! 520,853).
//!
//! *library* only reads `tokenizer.json`. *file* reads it and makes its index in memory. *kept
//! index* hashes the file and reads its stored index. *index in memory* is the cost for a bundle,
//! which is mapped and was verified before.

use std::path::Path;
use std::sync::Arc;
use std::{env, fs, process};

use serde_json::{Value, json};
use shardwright_bundle::Digest;
use shardwright_measure::resident_memory;
use shardwright_tests::measure::{row, timed};
use shardwright_tests::tree;
use shardwright_text::Tokenizer;

/// Argument that makes this program load one file and print its memory use. Only a fresh process
/// can measure that, because an earlier load leaves memory allocated.
const MEMORY_OF: &str = "--memory-of";

/// Ways to load a tokenizer.
const WAYS: [&str; 4] = ["library", "file", "kept index", "index in memory"];

enum Loaded {
    Ours(Tokenizer),
    Library(Box<tokenizers::Tokenizer>),
}

impl Loaded {
    fn ids(&self, text: &str) -> Vec<u32> {
        match self {
            Loaded::Ours(tokenizer) => tokenizer.encode(text, false).expect("encodes"),
            Loaded::Library(tokenizer) => {
                tokenizer.encode_fast(text, false).expect("encodes").get_ids().to_vec()
            }
        }
    }
}

/// Loads `folder/tokenizer.json`, whose index is in the same folder.
fn load(way: &str, folder: &Path) -> Loaded {
    let path = folder.join("tokenizer.json");
    Loaded::Ours(match way {
        "library" => {
            let library = tokenizers::Tokenizer::from_file(&path).expect("a good tokenizer");
            return Loaded::Library(Box::new(library));
        }
        "file" => Tokenizer::from_file(&path).expect("a good tokenizer"),
        "kept index" => Tokenizer::from_file_indexed(&path, folder.join("kept")).expect("a good tokenizer"),
        _ => {
            let index = fs::read(folder.join("tokenizer.index")).expect("an index");
            let source = fs::read(folder.join("source")).expect("a hash");
            let source = source.try_into().expect("a SHA-256");
            Tokenizer::from_index(Arc::new(index), source, &path).expect("a good index")
        }
    })
}

fn main() {
    let arguments: Vec<String> = env::args().collect();
    if let [_, flag, way, folder, ..] = &arguments[..]
        && flag == MEMORY_OF
    {
        return print_memory(way, Path::new(folder));
    }

    let demo = fs::read_to_string(tree::root().join("demo-model/tokenizer.json")).expect("a tokenizer");
    let text = fs::read_to_string(tree::root().join("LICENSE-APACHE")).expect("a text");
    println!("tokenizer");
    for (name, content, repetitions) in
        [("demo model, 4,096 tokens", demo.clone(), 21), ("generated, 262,144 tokens", generated(&demo), 5)]
    {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::write(folder.path().join("source"), Digest::of(content.as_bytes()).bytes()).expect("written");
        fs::write(folder.path().join("tokenizer.json"), content).expect("written");
        // Creates and stores the index.
        let Loaded::Ours(ours) = load("kept index", folder.path()) else { unreachable!() };
        fs::write(folder.path().join("tokenizer.index"), ours.index().expect("an index")).expect("written");
        let expected = load("library", folder.path()).ids(&text);
        for way in WAYS {
            let ids = load(way, folder.path()).ids(&text);
            assert!(ids == expected, "what is timed must be right");
            row(&format!("load ({name}, {way})"), timed(repetitions, || load(way, folder.path())));
            let memory = process::Command::new(env::current_exe().expect("this program"))
                .arg(MEMORY_OF)
                .arg(way)
                .arg(folder.path())
                .output()
                .expect("starts again");
            row(&format!("memory ({name}, {way})"), String::from_utf8_lossy(&memory.stdout).trim());
        }
        for way in ["library", "index in memory"] {
            let tokenizer = load(way, folder.path());
            let timing = timed(21, || tokenizer.ids(&text));
            let what = format!("{} kB of text to {} ids", text.len() / 1000, expected.len());
            row(&format!("encode {what} ({name}, {way})"), timing);
        }
    }
}

fn print_memory(way: &str, folder: &Path) {
    let Some((before, _)) = resident_memory() else {
        println!("not measured: this system does not say");
        return;
    };
    let tokenizer = load(way, folder);
    let Some((after, peak)) = resident_memory() else { return };
    let mega = |bytes: u64| bytes as f64 / 1e6;
    println!(
        "{:.1} MB resident, {:.1} MB at most while loading",
        mega(after.saturating_sub(before)),
        mega(peak.saturating_sub(before))
    );
    drop(tokenizer);
}

/// Returns tokenizer settings with a vocabulary of Gemma's size: special and unused tokens, bytes,
/// and words.
fn generated(settings: &str) -> String {
    const TOKENS: usize = 262_144;
    let added = |id: usize, content: &str, special: bool| {
        json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": special })
    };
    let mut tokens: Vec<String> = ["<pad>", "<eos>", "<bos>", "<unk>"].map(String::from).into();
    tokens.extend((0..6200).map(|unused| format!("<unused{unused}>")));
    let added: Vec<Value> = tokens.iter().enumerate().map(|(id, token)| added(id, token, id < 4)).collect();
    tokens.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
    let letters = ['▁', '\n'].into_iter().chain(' '..='~').filter(|letter| *letter != ' ');
    let letters: Vec<String> = letters.map(String::from).collect();
    let words = TOKENS - tokens.len();
    let mut known: Vec<String> = letters.clone();
    let mut merges = Vec::new();
    // Left halves are used in order, right halves have one letter. Every union is new, and lengths
    // stay near those of real words.
    for at in 0..words - letters.len() {
        let (left, right) = (&known[at / letters.len()], &known[at % letters.len()]);
        merges.push(json!([left, right]));
        let whole = format!("{left}{right}");
        // A word is also the union of its first letter and the rest.
        let first = whole.chars().next().map_or(0, char::len_utf8);
        if left.len() > first {
            merges.push(json!([whole[..first], whole[first..]]));
        }
        known.push(whole);
    }
    tokens.extend(known);
    let vocabulary: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
    // The rest of a three-letter word is a two-letter word. For longer words the rest may be
    // missing.
    let merges: Vec<Value> = merges
        .into_iter()
        .filter(|pair| {
            pair.as_array().is_some_and(|pair| {
                pair.iter().all(|half| half.as_str().is_some_and(|half| vocabulary.contains_key(half)))
            })
        })
        .collect();
    let mut file: Value = serde_json::from_str(settings).expect("JSON");
    file["added_tokens"] = json!(added);
    file["post_processor"] = Value::Null;
    file["model"]["vocab"] = Value::Object(vocabulary);
    println!("generated: {} tokens, {} merges", tokens.len(), merges.len());
    file["model"]["merges"] = json!(merges);
    file.to_string()
}
