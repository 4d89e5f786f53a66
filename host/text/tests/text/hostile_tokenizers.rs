//! Files that are not tokenizers, or are malicious ones: each causes a typed error that names the
//! file, and never a panic or a hang.

use std::path::Path;

use shardwright_text::{Random, TEXT_BYTES_MAX, TextStream, Tokenizer, utf8_text};
use shardwright_vocabulary::ErrorKind;

/// Returns the message of the error for a tokenizer, which must be of this kind.
fn refused(bytes: &[u8], kind: ErrorKind) -> String {
    let error = Tokenizer::from_bytes(bytes, "somewhere/tokenizer.json").unwrap_err();
    assert_eq!((error.kind(), error.place()), (kind, Some("somewhere/tokenizer.json")), "{error}");
    assert!(error.help().is_some(), "{error}");
    error.message().to_owned()
}

fn qwen() -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen3/tokenizer.json"))
        .unwrap()
}

#[test]
fn anything_but_a_tokenizer_is_refused() {
    let nested = format!("{{\"decoder\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let steps = r#"{"type": "Sequence", "decoders": ["#;
    let sequences = format!("{{\"decoder\": {}{}}}", steps.repeat(31), "]}".repeat(31));
    let unknown = sequences.replace("Sequence", "Confusion");
    // The library panics on a merge that is shorter than the prefix.
    let mut prefixed: serde_json::Value = serde_json::from_slice(&qwen()).unwrap();
    prefixed["model"]["continuing_subword_prefix"] = serde_json::json!("##");
    let (qwen, prefixed) = (qwen(), prefixed.to_string());
    let cases: [(&[u8], &str, &str); 15] = [
        (b"", "not valid JSON: ", ""),
        (b"version https://git-lfs.github.com/spec/v1", "not valid JSON: ", " at line 1, "),
        (b"{\"a\": \"\xff\"}", "not UTF-8 text: ", "at offset 7"),
        (&qwen[..20_000], "not valid JSON: ", ""),
        (b"{}", "not a valid tokenizer: ", ""),
        (b"[1, 2]", "not a valid tokenizer: ", ""),
        (
            br#"{"model": {"type": "BPE", "vocab": {"a": 99999999999}, "merges": []}}"#,
            "not a valid tokenizer: ",
            "",
        ),
        (br#"{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}"#, "not a valid tokenizer: ", ""),
        (
            br#"{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}"#,
            "not a valid tokenizer: ",
            "",
        ),
        (br#"{"model": {"type": "Sorcery"}}"#, "not a valid tokenizer: ", ""),
        (
            br#"{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "a": 2}, "merges": []}}"#,
            "a second key `a` at line 1 ",
            "",
        ),
        (nested.as_bytes(), "JSON nested deeper than ", ""),
        (sequences.as_bytes(), "not a valid tokenizer: ", ""),
        (unknown.as_bytes(), "not a valid tokenizer: ", ""),
        (prefixed.as_bytes(), "not a valid tokenizer: ", "lacks the prefix `##`"),
    ];
    for (bytes, fault, words) in cases {
        let message = refused(bytes, ErrorKind::Invalid);
        assert!(message.starts_with(fault) && message.contains(words), "{message}");
    }
    let dropout = String::from_utf8(qwen).unwrap().replacen("\"dropout\": null", "\"dropout\": 0.5", 1);
    let message = refused(dropout.as_bytes(), ErrorKind::Unsupported);
    assert!(message.starts_with("unsupported: dropout "), "{message}");
}

/// If four steps each replace a letter by a thousand, one letter becomes a million million.
#[test]
fn steps_that_would_fill_memory_are_refused_before_any_text() {
    let with = |field: &str, steps: &str| {
        let mut file: serde_json::Value = serde_json::from_slice(&qwen()).unwrap();
        file[field] = serde_json::from_str(steps).unwrap();
        serde_json::to_vec(&file).unwrap()
    };
    let replace = r#"{"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaa"}"#;
    let four = [replace; 4].join(", ");
    for (field, parts) in [("normalizer", "normalizers"), ("decoder", "decoders")] {
        let steps = format!(r#"{{"type": "Sequence", "{parts}": [{four}]}}"#);
        let message = refused(&with(field, &steps), ErrorKind::Unsupported);
        assert!(message.starts_with("unsupported: "), "{field}: {message}");
    }
    // A template that adds ten million tokens.
    let pieces = [r#"{"SpecialToken": {"id": "a", "type_id": 0}}"#; 5000].join(", ");
    let special = serde_json::json!({ "a": { "id": "a", "ids": vec![0; 2000], "tokens": vec!["a"; 2000] } });
    let template = format!(
        r#"{{"type": "TemplateProcessing", "single": [{pieces}], "pair": [], "special_tokens": {special}}}"#
    );
    let message = refused(&with("post_processor", &template), ErrorKind::Unsupported);
    assert!(message.contains("more than 32 pieces"), "{message}");
    // A step that lengthens a text moderately is accepted, but reduces the longest accepted text.
    let twice = format!(r#"{{"type": "Sequence", "normalizers": [{replace}, {{"type": "NFC"}}]}}"#);
    let tokenizer = Tokenizer::from_bytes(&with("normalizer", &twice), "a").unwrap();
    let plain = Tokenizer::from_bytes(&qwen(), "b").unwrap();
    assert_eq!(tokenizer.encode("a", false).unwrap(), plain.encode("aaaaaaaa", false).unwrap());
    let error = tokenizer.encode(&"a".repeat(TEXT_BYTES_MAX / 2), false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Argument);
    let (_, most) = error.message().split_once("at most ").unwrap();
    let most: usize = most.split(' ').next().unwrap().parse().unwrap();
    assert!(most < TEXT_BYTES_MAX / 2, "{error}");
}

#[test]
fn truncation_and_padding_of_the_file_are_ignored() {
    let text = String::from_utf8(qwen()).unwrap();
    let cutting = text
        .replacen("\"truncation\": null", r#""truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}"#, 1)
        .replacen("\"padding\": null", r#""padding": {"strategy": {"Fixed": 4000000000}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}"#, 1);
    assert_ne!(cutting, text);
    let plain = Tokenizer::from_bytes(text.as_bytes(), "a").unwrap();
    let cutting = Tokenizer::from_bytes(cutting.as_bytes(), "b").unwrap();
    let words = "The little engine climbed the hill";
    assert_eq!(cutting.encode(words, true).unwrap(), plain.encode(words, true).unwrap());
}

#[test]
fn files_are_named_when_loading_in_the_background_fails() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("tokenizer.json");
    let begin = || {
        let inside = missing.clone();
        Tokenizer::load_in_background(&missing, || Tokenizer::from_file(inside))
    };
    let error = begin().join().unwrap_err();
    assert_eq!((error.kind(), error.place()), (ErrorKind::Missing, missing.to_str()));
    assert!(error.is_not_found(), "{error}");
    std::fs::write(&missing, "{").unwrap();
    let loading = begin();
    while !loading.is_finished() {
        std::thread::yield_now();
    }
    let error = loading.join().unwrap_err();
    assert_eq!((error.kind(), error.place()), (ErrorKind::Invalid, missing.to_str()));
    assert!(error.message().starts_with("not valid JSON: "), "{error}");
}

#[test]
fn failures_of_the_library_are_errors() {
    // If a decoder strips more characters than a token has, the library panics.
    let spiteful = String::from_utf8(qwen()).unwrap();
    let value: serde_json::Value = serde_json::from_str(&spiteful).unwrap();
    let mut value = value;
    value["decoder"] = serde_json::json!({"type": "Strip", "content": "!", "start": 0, "stop": 1000});
    let tokenizer = Tokenizer::from_bytes(value.to_string().as_bytes(), "spiteful.json").unwrap();
    let id = tokenizer.token_to_id("!").unwrap();
    for error in [
        tokenizer.decode(&[id], false).unwrap_err(),
        TextStream::new(&tokenizer, false).push(id).unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.place()), (ErrorKind::Invalid, Some("spiteful.json")));
        assert!(error.message().starts_with("cannot decode the ids: "), "{error}");
    }

    // The model has neither a token for the text nor an unknown token.
    value["model"] = serde_json::json!({"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "missing"});
    value["decoder"] = serde_json::Value::Null;
    value["added_tokens"] = serde_json::json!([]);
    let tokenizer = Tokenizer::from_bytes(value.to_string().as_bytes(), "spiteful.json").unwrap();
    let error = tokenizer.encode("b", false).unwrap_err();
    assert_eq!((error.kind(), error.place()), (ErrorKind::Invalid, Some("spiteful.json")));
    assert!(error.message().starts_with("cannot encode the text: "), "{error}");
}

#[test]
fn texts_are_bounded() {
    let tokenizer = Tokenizer::from_bytes(&qwen(), "q").unwrap();
    let long = "a".repeat(TEXT_BYTES_MAX + 1);
    let error = tokenizer.encode(&long, false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Argument);
    assert!(error.message().contains(&format!("at most {TEXT_BYTES_MAX} ")), "{error}");
    assert!(error.help().is_some());
    // Characters that are not ASCII may become longer.
    let error = tokenizer.encode(&"é".repeat(TEXT_BYTES_MAX / 4 + 1), false).unwrap_err();
    assert!(error.message().contains(&format!("at most {} ", TEXT_BYTES_MAX / 2)), "{error}");
    let error = utf8_text(b"abc\xffdef", "the prompt").unwrap_err();
    assert_eq!((error.kind(), error.place()), (ErrorKind::Invalid, Some("the prompt")));
    assert_eq!(error.message(), "not UTF-8 text: the first bad byte is at offset 3");
}

/// Small faults throughout a real file. If it is accepted, it must also encode and decode without a
/// panic.
#[test]
fn damaged_files_are_refused_or_work() {
    let mut small: serde_json::Value = serde_json::from_slice(&qwen()).unwrap();
    // The vocabulary is most of the file, but faults in it are the least interesting.
    small["model"]["merges"] = serde_json::json!([]);
    let intact = small.to_string().into_bytes();
    let mut random = Random::new(5);
    let mut below = |bound: usize| (random.next_u64() % bound as u64) as usize;
    let mut accepted = 0;
    let rounds = std::env::var("SHARDWRIGHT_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(400);
    for _ in 0..rounds {
        let mut bytes = intact.clone();
        for _ in 0..1 + below(3) {
            let place = below(bytes.len());
            match below(4) {
                0 => bytes[place] = b"\"{}[],:0-9aZ\\nulltrue \xff"[below(22)],
                1 => drop(bytes.drain(place..(place + 1 + below(20)).min(intact.len() / 2).max(place))),
                2 => bytes.insert(place, b"0123456789"[below(10)]),
                _ => bytes.truncate(bytes.len() - below(40)),
            }
        }
        if let Ok(tokenizer) = Tokenizer::from_bytes(&bytes, "damaged.json") {
            accepted += 1;
            if let Ok(ids) = tokenizer.encode("naïve 東京 <|im_start|> don't 123", true) {
                let _ = tokenizer.decode(&ids, true);
            }
        }
    }
    assert!(accepted > 0, "some damage does no harm");
}
