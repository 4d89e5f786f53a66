//! Records the results of every fixture on every shim. Run it before and after a change that should
//! have no effect.
//!
//! The records are plans without their reasons, work orders by their hashes, the vendor library's
//! outputs without our envelope, and the bits of the results. The file is JSON, one value per line,
//! so that two of them can be compared line by line.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use shardwright::{BundleOptions, EmbedOptions, Model};
use shardwright_bundle::Digest;
use shardwright_shims::Artefact;
use shardwright_tests::bundles::{Compiled, contents, logits, some_tokens};
use shardwright_tests::checkpoints::{DEMO_MODEL, EMBEDDING_FIXTURES, text_fixtures};
use shardwright_tests::neuron::A16W8;
use shardwright_tests::program::{search_path, shardwright};
use shardwright_tests::qnn::library;

/// Environment variable with the path of the file to write.
const VARIABLE: &str = "SHARDWRIGHT_RECORD";

/// Names and arguments of compilations. The context is short, because a simulator computes every
/// masked position.
const TARGETS: [(&str, &[&str]); 5] = [
    ("cpu", &["--context", "64"]),
    ("cpu in 8 bits", &["--context", "64", "--planner-option", "format=w8-per-channel/a8-dynamic"]),
    ("cpu in 4 bits", &["--context", "64", "--planner-option", "format=w4-block32/a8-dynamic"]),
    (
        "qnn",
        &[
            "--context",
            "32",
            "--soc",
            "sm8850",
            "--on",
            "simulator",
            "--planner",
            "even",
            "--formats",
            "w8-per-channel/a16/a8",
        ],
    ),
    (
        "neuron",
        &["--context", "32", "--soc", "mt6989", "--on", "simulator", "--planner", "even", "--formats", A16W8],
    ),
];

#[test]
#[ignore = "compares two trees; the command in CONTRIBUTING.md runs it"]
fn what_every_fixture_becomes_is_recorded() {
    let Some(file) = std::env::var_os(VARIABLE) else { panic!("{VARIABLE} names no file") };
    if !library() {
        return;
    }
    let mut lines = String::new();
    for checkpoint in text_fixtures().chain(EMBEDDING_FIXTURES).chain([DEMO_MODEL]) {
        for (target, arguments) in TARGETS {
            record(&mut lines, checkpoint, target, arguments);
        }
    }
    fs::write(file, lines).expect("written");
}

fn record(lines: &mut String, checkpoint: &str, target: &str, arguments: &[&str]) {
    let mut add = |what: &str, value: Value| {
        writeln!(lines, "{checkpoint} · {target} · {what}: {value}").expect("a text grows");
    };
    let mut plan = shardwright(["plan", checkpoint]).arguments(arguments).json();
    without_reasons(&mut plan);
    add("plan", plan);
    let bundle = Compiled::from(checkpoint, arguments);
    for (path, bytes) in contents(&bundle.path()) {
        // Files are named by their hashes, so this list covers their contents.
        let length = bytes.len();
        add("file", json!({ "path": path, "bytes": length }));
        if let Ok(artefact) = Artefact::open(&bundle.path().join(&path)) {
            add("artefact", artefact_value(&artefact));
        }
    }
    add("output", output(&bundle.path()));
}

fn artefact_value(artefact: &Artefact) -> Value {
    let payload = artefact.payload();
    let hash = |bytes: &[u8]| Digest::of(bytes).to_string();
    json!({
        "shim": artefact.head().shim,
        "work_order": artefact.head().work_order,
        "payload": hash(payload),
        "vendor": hash(vendor_part(&artefact.head().shim, payload)),
    })
}

/// Returns the contents of the shim's envelope: weights of the CPU's program, or the network or
/// context binary of the others.
fn vendor_part<'p>(shim: &str, payload: &'p [u8]) -> &'p [u8] {
    let number = |at: usize| {
        let bytes = payload[at..at + 8].try_into().expect("8 bytes");
        usize::try_from(u64::from_le_bytes(bytes)).expect("an offset")
    };
    let (start, length) = if shim == "cpu" { (number(32), number(40)) } else { (number(24), number(32)) };
    &payload[start..start + length]
}

/// Removes reasons, and messages about this machine's cache.
fn without_reasons(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.remove("reasons");
            if let Some(notices) = members.get_mut("notices").and_then(Value::as_array_mut) {
                notices.retain(|notice| !notice.to_string().contains("from the cache"));
            }
            members.values_mut().for_each(without_reasons);
        }
        Value::Array(values) => values.iter_mut().for_each(without_reasons),
        _ => {}
    }
}

/// Returns the hashed bits of the logits, or of the vector of an embedding model.
fn output(bundle: &Path) -> Value {
    let options = BundleOptions::new().search_path(search_path());
    let model: Model = options.open(bundle).unwrap_or_else(|error| panic!("{error}"));
    let bits: Vec<Vec<u32>> = match model.embed("a text of some words", &EmbedOptions::default()) {
        Ok(vector) => vec![vector.iter().map(|value| value.to_bits()).collect()],
        Err(_) => {
            let tokens = some_tokens(&model, 12);
            logits(&model, &tokens[..9], &tokens[9..])
        }
    };
    let hashed = bits.iter().map(|row| {
        let bytes: Vec<u8> = row.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        Digest::of(&bytes).to_string()
    });
    hashed.collect()
}
