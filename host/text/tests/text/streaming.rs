//! Text streamed token by token equals the text decoded at once.

use std::path::{Path, PathBuf};

use shardwright_text::{PENDING_BYTE_TOKENS_MAX, Random, Reply, Stop, StopRules, TextStream, Tokenizer};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn tokenizer(folder: &str) -> Tokenizer {
    Tokenizer::from_file(repository().join(folder).join("tokenizer.json")).unwrap()
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> String {
    let mut stream = TextStream::new(tokenizer, skip_special);
    let mut text: String = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    text += &stream.finish().unwrap();
    text
}

/// Returns a tokenizer with byte tokens, words and the given decoder.
fn small(decoder: &str) -> Tokenizer {
    let bytes = (0..256).map(|byte| format!("\"<0x{byte:02X}>\": {}", byte + 10));
    let words = ["<s>", "▁", "▁the", "cat", "##s", "a", "é", "東", " ", "b"];
    let words = words.iter().enumerate().map(|(id, word)| format!("\"{word}\": {id}"));
    let vocabulary: Vec<String> = words.chain(bytes).collect();
    let json = format!(
        r#"{{"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": null,
            "post_processor": null, "decoder": {decoder},
            "added_tokens": [{{"id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true}}],
            "model": {{"type": "BPE", "vocab": {{{}}}, "merges": []}}}}"#,
        vocabulary.join(", ")
    );
    Tokenizer::from_bytes(json.as_bytes(), "small.json").unwrap()
}

const REPLACE: &str = r#"{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}"#;

fn sequence(steps: &[&str]) -> String {
    format!(r#"{{"type": "Sequence", "decoders": [{}]}}"#, steps.join(", "))
}

#[test]
fn random_ids_stream_to_what_they_decode_to() {
    let strip = r#"{"type": "Strip", "content": " ", "start": 1, "stop": 0}"#;
    let (bytes, fuse) = (r#"{"type": "ByteFallback"}"#, r#"{"type": "Fuse"}"#);
    let tokenizers = [
        ("gemma", tokenizer("tests/fixtures/gemma4_text")),
        ("demo", tokenizer("demo-model")),
        ("qwen", tokenizer("tests/fixtures/qwen3")),
        ("strip", small(&sequence(&[REPLACE, bytes, fuse, strip]))),
        ("no bytes", small(&sequence(&[REPLACE, fuse]))),
        (
            "metaspace",
            small(r#"{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}"#),
        ),
        ("word pieces", small(r###"{"type": "WordPiece", "prefix": "##", "cleanup": false}"###)),
        ("none", small("null")),
    ];
    for (name, tokenizer) in tokenizers {
        let mut random = Random::new(7);
        let size = tokenizer.vocabulary_size() as u64;
        for round in 0..400 {
            let length = random.next_u64() % 60;
            // Also ids beyond the vocabulary, and rounds with few distinct ids to produce
            // repetitions.
            let range = if round % 4 == 0 { 12 } else { size + 5 };
            let ids: Vec<u32> = (0..length).map(|_| (random.next_u64() % range) as u32).collect();
            for skip_special in [true, false] {
                let decoded = tokenizer.decode(&ids, skip_special).unwrap();
                assert_eq!(streamed(&tokenizer, &ids, skip_special), decoded, "{name}: {ids:?}");
            }
        }
    }
}

#[test]
fn random_bytes_stream_to_what_they_decode_to() {
    // Bytes that often form complete, truncated and broken characters.
    let likely = [0x41, 0xc3, 0xa9, 0xe6, 0x9d, 0xb1, 0xf0, 0x9f, 0x99, 0x82, 0x80, 0xff];
    for folder in ["tests/fixtures/gemma3_text", "tests/fixtures/qwen3"] {
        let tokenizer = tokenizer(folder);
        let byte_ids: Vec<u32> = likely
            .iter()
            .map(|&byte: &u8| {
                // Byte-level alphabets spell bytes as characters. The others spell them as
                // `<0x41>`.
                let spelled = tokenizer.token_to_id(&format!("<0x{byte:02X}>"));
                let character = match byte {
                    0x41 | 0xc3 | 0xa9 | 0xe6 | 0xb1 | 0xf0 | 0xff => char::from(byte),
                    byte => char::from_u32(0x100 + u32::from(byte) - 0x7f + 0x21).unwrap(),
                };
                spelled.or_else(|| tokenizer.token_to_id(&character.to_string())).unwrap()
            })
            .collect();
        let mut random = Random::new(1);
        for _ in 0..3000 {
            let length = random.next_u64() % PENDING_BYTE_TOKENS_MAX as u64;
            let ids: Vec<u32> =
                (0..length).map(|_| byte_ids[(random.next_u64() % byte_ids.len() as u64) as usize]).collect();
            let decoded = tokenizer.decode(&ids, true).unwrap();
            assert_eq!(streamed(&tokenizer, &ids, true), decoded, "{folder}: {ids:?}");
        }
    }
}

#[test]
fn characters_come_whole() {
    for folder in ["tests/fixtures/gemma4_text", "tests/fixtures/qwen3", "demo-model"] {
        let tokenizer = tokenizer(folder);
        let text = "naïve 東京は日本 🙂👩‍👩‍👧‍👦 end é";
        let ids = tokenizer.encode(text, false).unwrap();
        let mut stream = TextStream::new(&tokenizer, true);
        let mut streamed = String::new();
        for id in ids {
            let chunk = stream.push(id).unwrap();
            assert!(!chunk.contains('\u{fffd}'), "{folder}: {chunk:?}");
            streamed += &chunk;
        }
        streamed += &stream.finish().unwrap();
        assert_eq!(streamed, text, "{folder}");
    }
}

#[test]
fn long_byte_runs_do_not_wait_for_their_end() {
    let tokenizer = tokenizer("tests/fixtures/gemma4_text");
    let text = "京都".repeat(200);
    let ids = tokenizer.encode(&text, false).unwrap();
    let mut stream = TextStream::new(&tokenizer, true);
    let mut streamed = String::new();
    let mut longest_wait = 0;
    let mut waiting = 0;
    for id in ids {
        let chunk = stream.push(id).unwrap();
        waiting = if chunk.is_empty() { waiting + 1 } else { 0 };
        longest_wait = longest_wait.max(waiting);
        streamed += &chunk;
    }
    streamed += &stream.finish().unwrap();
    assert_eq!(streamed, text);
    assert!(longest_wait <= PENDING_BYTE_TOKENS_MAX + 1, "{longest_wait}");
}

#[test]
fn a_stream_can_be_used_again() {
    let strip = r#"{"type": "Strip", "content": " ", "start": 1, "stop": 0}"#;
    let tokenizer = small(&sequence(&[REPLACE, r#"{"type": "ByteFallback"}"#, r#"{"type": "Fuse"}"#, strip]));
    let mut stream = TextStream::new(&tokenizer, true);
    for _ in 0..2 {
        assert_eq!(stream.push(2).unwrap(), "the", "the first space is stripped");
        assert_eq!(stream.push(2).unwrap(), " the");
        assert_eq!(stream.push(10 + 0xe6).unwrap(), "");
        assert_eq!(stream.finish().unwrap(), "\u{fffd}");
    }
}

#[test]
fn cost_of_a_token_does_not_grow() {
    let tokenizer = tokenizer("tests/fixtures/qwen3");
    let ids = tokenizer.encode(&"The little engine climbed the hill, again. ".repeat(40), false).unwrap();
    let mut stream = TextStream::new(&tokenizer, true);
    let time = |stream: &mut TextStream, rounds: usize| {
        let start = std::time::Instant::now();
        for _ in 0..rounds {
            for &id in &ids {
                stream.push(id).unwrap();
            }
        }
        start.elapsed()
    };
    let first = time(&mut stream, 20);
    time(&mut stream, 100);
    let last = time(&mut stream, 20);
    // Decoding the whole history again would make this some hundred times slower.
    assert!(last < first * 20 + std::time::Duration::from_millis(200), "{first:?} {last:?}");
}

fn reply(tokenizer: &Tokenizer, rules: &StopRules, text: &str) -> (String, Option<Stop>) {
    let mut reply = Reply::new(tokenizer, rules, true);
    let mut shown = String::new();
    for id in tokenizer.encode(text, false).unwrap() {
        let step = reply.push(id).unwrap();
        shown += &step.text;
        if step.stop.is_some() {
            assert_eq!(reply.stop(), step.stop.as_ref());
            let after = reply.push(id).unwrap();
            assert_eq!((after.text.as_str(), after.stop), ("", step.stop.clone()), "nothing after the end");
            assert_eq!(reply.finish().unwrap().text, "");
            return (shown, step.stop);
        }
    }
    shown += &reply.finish().unwrap().text;
    (shown, None)
}

#[test]
fn replies_end_by_their_rules() {
    let tokenizer = tokenizer("demo-model");
    let rules = StopRules::new([1, 16]).with_strings(["STOP", "東京"]).unwrap();
    for (text, shown, stop) in [
        ("a kluge<turn|>more", "a kluge", Some(Stop::Id(16))),
        ("before STOP after", "before ", Some(Stop::Text("STOP".into()))),
        ("before ST<turn|>", "before ST", Some(Stop::Id(16))),
        ("in 東京 now", "in ", Some(Stop::Text("東京".into()))),
        ("in 東<turn|>", "in 東", Some(Stop::Id(16))),
        // The bytes of the string are pending when the stop id comes, but the string was complete
        // before it.
        ("in 東京<turn|>", "in ", Some(Stop::Text("東京".into()))),
        ("no end STO", "no end STO", None),
        ("<|turn>hidden special", "hidden special", None),
    ] {
        assert_eq!(reply(&tokenizer, &rules, text), (shown.to_owned(), stop), "{text}");
    }
}
