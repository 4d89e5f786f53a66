//! Memory for the longest text of tokenizers that lengthen it as much as is accepted. This is a
//! separate program, since it measures itself.

#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use shardwright_text::{TEXT_BYTES_MAX, Tokenizer};

/// Most bytes of memory for a byte of a text after the steps of its tokenizer.
const PER_BYTE: u64 = 200;

/// Part of the longest text that is encoded. A whole one needs gigabytes.
const PART: usize = 64;

/// Memory that does not depend on the text, such as buffers of the allocator.
const CONSTANT: u64 = 16 << 20;

/// Returns the most memory that this process had since the last reset, in bytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("the kernel's report");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

fn file_of_qwen3() -> Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen3/tokenizer.json");
    serde_json::from_slice(&fs::read(file).expect("a file")).expect("JSON")
}

/// Returns the length of the longest text that is accepted, in bytes.
fn longest(tokenizer: &Tokenizer) -> usize {
    let error = tokenizer.encode(&"a".repeat(TEXT_BYTES_MAX + 1), false).expect_err("a bound");
    let (_, most) = error.message().split_once("at most ").expect("a bound");
    most.split(' ').next().and_then(|most| most.parse().ok()).expect("a number")
}

#[test]
fn texts_that_are_lengthened_need_what_the_page_states() {
    let page = include_str!("../../../docs/security.md").replace('\n', " ");
    assert!(
        page.contains(&format!("up to {PER_BYTE} bytes of memory for each byte of a text after these steps"))
    );
    assert!(page.contains("so that they make at most 48 MiB of it"));
    let replace = |times: usize| json!({ "type": "Replace", "pattern": { "String": "a" }, "content": "a".repeat(times) });
    let twice = json!({ "type": "Sequence", "normalizers": [replace(8), replace(8)] });
    let own = file_of_qwen3()["normalizer"].clone();
    for (what, normalizer, growth) in
        [("own", own, 1), ("one step", replace(32), 32), ("two steps", twice, 64)]
    {
        let mut file = file_of_qwen3();
        file["normalizer"] = normalizer;
        let tokenizer = match Tokenizer::from_bytes(&serde_json::to_vec(&file).expect("JSON"), what) {
            Ok(tokenizer) => tokenizer,
            Err(error) => panic!("{what}: {error}"),
        };
        let longest = longest(&tokenizer);
        assert!(longest * growth <= 48 << 20, "{what}: {longest} bytes become {}", longest * growth);
        let text = "a".repeat(longest / PART);
        // Resets the peak.
        fs::write("/proc/self/clear_refs", "5").expect("the kernel's file");
        let before = peak();
        assert!(!tokenizer.encode(&text, false).expect("encoded").is_empty());
        let (grown, used) = ((text.len() * growth) as u64, peak() - before);
        assert!(used <= grown * PER_BYTE + CONSTANT, "{what}: {used} bytes of memory for {grown}");
    }
}
