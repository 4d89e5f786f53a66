//! Compares the index of a tokenizer with the library that reads the same file: ids, texts and
//! spellings, for published settings and random ones. Also tests damaged indexes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use shardwright_text::{Random, Tokenizer, is_index_of};
use shardwright_vocabulary::ErrorKind;

const FIXTURES: [&str; 8] = [
    "demo-model",
    "tests/fixtures/gemma3_text",
    "tests/fixtures/gemma4_text",
    "tests/fixtures/gemma4_mm",
    "tests/fixtures/qwen3",
    "tests/fixtures/embeddinggemma",
    "tests/fixtures/embeddinggemma2",
    "tests/fixtures/functiongemma",
];
/// Number of texts over all tokenizers.
const TEXTS: usize = 100_000;

fn bytes_of(folder: &str) -> (PathBuf, Vec<u8>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder).join("tokenizer.json");
    let bytes = std::fs::read(&path).expect("a tokenizer");
    (path, bytes)
}

/// Returns a random number below `end`.
fn below(random: &mut Random, end: usize) -> usize {
    (random.next_u64() % end as u64) as usize
}

/// Returns a text of tokens, halves of tokens, and characters of every length in bytes.
fn text(random: &mut Random, tokens: &[String]) -> String {
    let mut text = String::new();
    for _ in 0..below(random, 24) {
        match below(random, 8) {
            0 => text.push(' '),
            1 => text.push_str(["\n", "\n\n", "  ", "\t", "'s", "12", "\u{200d}", "\r\n"][below(random, 8)]),
            2 => text.extend(char::from_u32(below(random, 0x11_0000) as u32)),
            3 => text.extend(char::from_u32(below(random, 0x3000) as u32)),
            4 => {
                let token = &tokens[below(random, tokens.len())];
                let half = (0..=token.len() / 2).rev().find(|at| token.is_char_boundary(*at)).unwrap_or(0);
                text.push_str(&token[half..]);
            }
            _ => text.push_str(&tokens[below(random, tokens.len())].replace('▁', " ")),
        }
    }
    text
}

/// Compares the two tokenizers on `texts` random texts.
fn agree(name: &str, ours: &Tokenizer, library: &tokenizers::Tokenizer, texts: usize) {
    assert!(ours.index().is_some(), "{name} is left to the library");
    assert_eq!(ours.vocabulary_size(), library.get_vocab_size(true), "{name}");
    let mut tokens: Vec<(String, u32)> = library.get_vocab(true).into_iter().collect();
    tokens.sort_unstable();
    for (token, id) in &tokens {
        assert_eq!(ours.token_to_id(token), Some(*id), "{name}: {token:?}");
        assert_eq!(ours.id_to_token(*id), library.id_to_token(*id), "{name}: {id}");
    }
    assert_eq!(ours.id_to_token(u32::MAX), None);
    assert_eq!(ours.token_to_id("no token is spelled so"), None);
    let tokens: Vec<String> = tokens.into_iter().map(|(token, _)| token).collect();
    let mut random = Random::new(7);
    for _ in 0..texts {
        let text = text(&mut random, &tokens);
        let special = random.next_u64().is_multiple_of(2);
        let expected = library.encode_fast(text.as_str(), special).expect("encodes").get_ids().to_vec();
        assert_eq!(ours.encode(&text, special).expect("encodes"), expected, "{name}: {text:?}");
        assert_eq!(
            ours.decode(&expected, special).expect("decodes"),
            library.decode(&expected, special).expect("decodes"),
            "{name}: {text:?}"
        );
    }
}

#[test]
fn an_index_gives_what_the_library_gives() {
    for folder in FIXTURES {
        let (path, bytes) = bytes_of(folder);
        let library = tokenizers::Tokenizer::from_bytes(&bytes).expect("a tokenizer");
        let made = Tokenizer::from_bytes(&bytes, &path).expect("a tokenizer");
        let index = made.index().expect("an index").to_vec();
        assert!(is_index_of(&index, Sha256::digest(&bytes).into()));
        let source = Sha256::digest(&bytes).into();
        let stored = Tokenizer::from_index(Arc::new(index.clone()), source, &path).expect("its index");
        let other = Tokenizer::from_index(Arc::new(index.clone()), [7; 32], &path).unwrap_err();
        assert!(other.to_string().contains("of another tokenizer.json"), "{other}");
        assert_eq!(stored.index(), Some(&*index));
        assert_eq!(stored.special_ids(), made.special_ids());
        agree(folder, &stored, &library, TEXTS / FIXTURES.len() + 1);
    }
}

/// Returns a file whose vocabulary lacks characters and bytes. No published file has the same
/// combination of rules.
fn unusual(random: &mut Random) -> Value {
    let alphabet: Vec<String> = "abcdeé日🙂▁".chars().map(String::from).collect();
    let mut tokens: Vec<String> = vec!["<unk>".to_owned()];
    tokens.extend(alphabet.iter().filter(|_| !random.next_u64().is_multiple_of(8)).cloned());
    tokens.extend(
        (0..=255u8).filter(|_| !random.next_u64().is_multiple_of(4)).map(|byte| format!("<0x{byte:02X}>")),
    );
    let mut merges = Vec::new();
    for _ in 0..60 {
        let [left, right] = [(); 2].map(|()| tokens[below(random, tokens.len())].clone());
        let whole = format!("{left}{right}");
        if whole.contains(['<', ' ']) || merges.contains(&json!([left, right])) {
            continue;
        }
        if !tokens.contains(&whole) {
            tokens.push(whole);
        }
        merges.push(json!([left, right]));
    }
    let vocabulary: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
    let mut flag = || random.next_u64().is_multiple_of(2);
    let added = json!({ "id": tokens.len(), "content": "<eos>", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [added],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": if flag() { json!("<unk>") } else { json!(null) },
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": flag(),
            "byte_fallback": flag(), "ignore_merges": flag(), "vocab": vocabulary, "merges": merges,
        },
    })
}

#[test]
fn rules_that_meet_nowhere_else_agree_too() {
    let mut random = Random::new(3);
    for at in 0..200 {
        let mut file = unusual(&mut random);
        if at % 2 == 0 {
            // The spelling of merges in older files.
            for merge in file["model"]["merges"].as_array_mut().expect("merges") {
                *merge = json!(format!("{} {}", merge[0].as_str().unwrap(), merge[1].as_str().unwrap()));
            }
        }
        let bytes = file.to_string().into_bytes();
        let library = tokenizers::Tokenizer::from_bytes(&bytes).expect("a tokenizer");
        let ours = Tokenizer::from_bytes(&bytes, "tokenizer.json").expect("a tokenizer");
        agree(&file["model"].to_string(), &ours, &library, 50);
    }
}

#[test]
fn anything_unusual_is_left_to_the_library() {
    let (path, bytes) = bytes_of("demo-model");
    let whole: Value = serde_json::from_slice(&bytes).unwrap();
    let indexed = |change: &dyn Fn(&mut Value)| {
        let mut file = whole.clone();
        change(&mut file);
        let read = Tokenizer::from_bytes(file.to_string().as_bytes(), &path);
        read.is_ok_and(|tokenizer| tokenizer.index().is_some())
    };
    assert!(indexed(&|_| {}));
    assert!(indexed(&|file| file["model"]["merges"] = json!(["t h"])));
    assert!(indexed(&|file| file["model"]["merges"] = json!([])));
    assert!(indexed(&|file| file["model"]["dropout"] = json!(0.0)));
    let unusual: [&dyn Fn(&mut Value); 13] = [
        &|file| file["version"] = json!("2.0"),
        &|file| file["new_part"] = json!(null),
        &|file| file["added_tokens"][0]["id"] = json!(77),
        &|file| file["model"]["type"] = json!("WordPiece"),
        &|file| file["model"]["new_rule"] = json!(true),
        &|file| file["model"]["dropout"] = json!(0.5),
        &|file| file["model"]["continuing_subword_prefix"] = json!("#"),
        &|file| file["model"]["end_of_word_suffix"] = json!("#"),
        &|file| file["model"]["unk_token"] = json!("no such token"),
        &|file| file["model"]["vocab"]["one more"] = json!(1 << 20),
        &|file| file["model"]["vocab"]["one more"] = json!(3),
        &|file| file["model"]["merges"] = json!([["no such token", "nor this"]]),
        &|file| file["model"]["merges"] = json!(["t h", "t h"]),
    ];
    for (at, change) in unusual.into_iter().enumerate() {
        assert!(!indexed(change), "change {at} made an index");
    }
}

/// An index with any content leads to an error or to ids, but never to a panic or an endless
/// search.
#[test]
fn a_damaged_index_ends_in_an_error_or_in_other_ids() {
    let (path, bytes) = bytes_of("tests/fixtures/gemma3_text");
    let source: [u8; 32] = Sha256::digest(&bytes).into();
    let whole = Tokenizer::from_bytes(&bytes, &path).unwrap().index().unwrap().to_vec();
    let tries = |index: Vec<u8>| {
        let opened = catch_unwind(AssertUnwindSafe(|| Tokenizer::from_index(Arc::new(index), source, &path)));
        match opened.expect("no panic") {
            Ok(tokenizer) => {
                let _ = tokenizer.encode("In the beginning 日本 <bos>", true);
                let _ = tokenizer.decode(&[0, 5, 300, u32::MAX], false);
                true
            }
            Err(error) => {
                assert_eq!((error.kind(), error.place()), (ErrorKind::Invalid, path.to_str()));
                assert!(error.message().starts_with("not a valid tokenizer: "), "{error}");
                assert!(error.help().is_some());
                false
            }
        }
    };
    assert!(tries(whole.clone()));
    let mut random = Random::new(11);
    for _ in 0..2_000 {
        let mut index = whole.clone();
        let at = below(&mut random, index.len());
        match below(&mut random, 4) {
            0 => index.truncate(at),
            1 => index[at] ^= 1 << below(&mut random, 8),
            2 => index[at..].fill(0xff),
            _ => index[at..].iter_mut().take(64).for_each(|byte| *byte = 0),
        }
        if index != whole {
            assert!(!is_index_of(&index, source), "a change at {at} is not seen");
        }
        tries(index);
    }
    for end in [0, 1, 15, 16, 40, 55, 56, 88, whole.len() - 1] {
        assert!(!tries(whole[..end].to_vec()), "{end} bytes are an index");
    }
    assert!(!is_index_of(&whole, [0; 32]) && !is_index_of(&[], source));
    // The numbers of the head, each with its largest value.
    for at in 0..8 {
        let mut index = whole.clone();
        index[16 + 4 * at..][..4].fill(0xff);
        tries(index);
    }
    // A table without an empty slot.
    let mut index = whole;
    let tokens = u32::from_le_bytes(index[16..20].try_into().unwrap()) as usize;
    let slots = u32::from_le_bytes(index[20..24].try_into().unwrap()) as usize;
    for slot in 0..slots {
        index[88 + 4 * tokens + 4 * slot..][..4].copy_from_slice(&1u32.to_le_bytes());
    }
    tries(index);
}

/// Only a complete index that belongs to this user is used.
#[test]
fn an_index_is_kept_and_made_anew_when_it_is_damaged() {
    let (path, bytes) = bytes_of("tests/fixtures/gemma3_text");
    let folder = tempfile::tempdir().unwrap();
    let indexes = folder.path().join("tokenizers");
    let files = || -> Vec<PathBuf> {
        std::fs::read_dir(&indexes).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let reads = || {
        let tokenizer = Tokenizer::from_file_indexed(&path, &indexes).expect("a tokenizer");
        assert_eq!(tokenizer.path(), path);
        tokenizer.encode("In the beginning", true).unwrap()
    };
    let expected = Tokenizer::from_bytes(&bytes, &path).unwrap().encode("In the beginning", true).unwrap();
    assert_eq!(reads(), expected);
    let [kept] = &files()[..] else { panic!("{:?}", files()) };
    let whole = std::fs::read(kept).unwrap();
    assert!(is_index_of(&whole, Sha256::digest(&bytes).into()));

    let file: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    let added = file["added_tokens"].as_array().unwrap();
    let added: Vec<u32> = added.iter().map(|token| token["id"].as_u64().unwrap() as u32).collect();
    // The index is used: an undetected change of it changes the ids. Its hash can be forged.
    // Therefore no other user may write to the folder.
    let forged = {
        let mut index = whole.clone();
        let tokens = u32::from_le_bytes(index[16..20].try_into().unwrap()) as usize;
        let slots = u32::from_le_bytes(index[20..24].try_into().unwrap()) as usize;
        // Added tokens keep their slots, because their ids are compared with the file's. All other
        // slots have the first token, which is found for none of their texts.
        for slot in index[88 + 4 * tokens..][..4 * slots].chunks_exact_mut(4) {
            let id = u32::from_le_bytes(slot.try_into().unwrap()).checked_sub(1);
            if id.is_some_and(|id| !added.contains(&id)) {
                slot.copy_from_slice(&1u32.to_le_bytes());
            }
        }
        let end = index.len() - 32;
        let hash: [u8; 32] = Sha256::digest(&index[..end]).into();
        index[end..].copy_from_slice(&hash);
        index
    };
    std::fs::write(kept, forged).unwrap();
    assert_ne!(reads(), expected);

    let damages: [fn(&mut Vec<u8>); 3] =
        [|index| index.truncate(100), |index| index[200] ^= 1, |index| index.clear()];
    for damage in damages {
        let mut index = whole.clone();
        damage(&mut index);
        std::fs::write(kept, index).unwrap();
        assert_eq!(reads(), expected);
        assert_eq!(std::fs::read(kept).unwrap(), whole, "it is made anew");
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&indexes, std::fs::Permissions::from_mode(0o777)).unwrap();
        std::fs::write(kept, &whole[..100]).unwrap();
        assert_eq!(reads(), expected);
        assert_eq!(std::fs::read(kept).unwrap(), &whole[..100], "nothing is written where others may");
    }
    // A missing tokenizer, and one that only the library can read.
    let missing = Tokenizer::from_file_indexed(folder.path().join("tokenizer.json"), &indexes).unwrap_err();
    assert!(missing.kind() == ErrorKind::Missing && missing.is_not_found(), "{missing}");
}
