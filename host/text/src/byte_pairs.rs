//! BPE tokenizers, read in one pass.
//!
//! **Job.** The library reads a model through several copies of its JSON, which takes most of the
//! startup time with a vocabulary of 262,144 tokens. Here vocabulary and merges are parsed directly
//! into their final form; the rest of the file is passed to the library unchanged.
//!
//! **Not its job.** Anything unusual: another kind of model, another spelling, any error. Then it
//! returns nothing, and the library reads the file.

use serde::Deserialize;
use serde_json::{Value, json};
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::{AddedToken, Tokenizer};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: Value,
    truncation: Value,
    padding: Value,
    added_tokens: Vec<Added>,
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    decoder: Value,
    model: Model,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    #[serde(flatten)]
    token: AddedToken,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    #[serde(rename = "type")]
    _kind: Kind,
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    vocab: Vocab,
    merges: Merges,
}

#[derive(Deserialize)]
enum Kind {
    #[serde(rename = "BPE")]
    BytePairs,
}

/// The tokenizer of a `tokenizer.json`, equal to the library's; `None` if the library must read the
/// file.
pub(crate) fn read(bytes: &[u8]) -> Option<Tokenizer> {
    let file: File = serde_json::from_slice(bytes).ok()?;
    let rest = json!({
        "version": file.version,
        "truncation": file.truncation,
        "padding": file.padding,
        "added_tokens": [],
        "normalizer": file.normalizer,
        "pre_tokenizer": file.pre_tokenizer,
        "post_processor": file.post_processor,
        "decoder": file.decoder,
        "model": { "type": "BPE", "vocab": {}, "merges": [] },
    });
    let mut tokenizer = Tokenizer::from_bytes(rest.to_string()).ok()?;
    tokenizer.with_model(model(file.model)?);
    // They are found in the vocabulary only once the model is set.
    let expected =
        |added: &Added| tokenizer.token_to_id(&added.token.content).is_none_or(|id| id == added.id);
    if !file.added_tokens.iter().all(expected) {
        return None;
    }
    let added: Vec<AddedToken> = file.added_tokens.into_iter().map(|added| added.token).collect();
    tokenizer.add_tokens(&added);
    Some(tokenizer)
}

fn model(model: Model) -> Option<BPE> {
    let mut builder = BPE::builder().vocab_and_merges(model.vocab, model.merges);
    if let Some(dropout) = model.dropout {
        builder = builder.dropout(dropout);
    }
    if let Some(token) = model.unk_token {
        builder = builder.unk_token(token);
    }
    if let Some(prefix) = model.continuing_subword_prefix {
        builder = builder.continuing_subword_prefix(prefix);
    }
    if let Some(suffix) = model.end_of_word_suffix {
        builder = builder.end_of_word_suffix(suffix);
    }
    if let Some(fuse) = model.fuse_unk {
        builder = builder.fuse_unk(fuse);
    }
    if let Some(fallback) = model.byte_fallback {
        builder = builder.byte_fallback(fallback);
    }
    if let Some(ignore) = model.ignore_merges {
        builder = builder.ignore_merges(ignore);
    }
    builder.build().ok()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn published(folder: &str) -> Vec<u8> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        std::fs::read(root.join(folder).join("tokenizer.json")).unwrap()
    }

    const TEXTS: [&str; 4] = [
        "",
        "In the beginning\n\n God's 2nd  word: naïve 日本語 🙂",
        "<bos><start_of_turn>user\n<eos>",
        "\u{0}\u{7f}ﬁ é",
    ];

    #[test]
    fn the_result_equals_the_librarys() {
        for folder in
            ["demo-model", "tests/fixtures/gemma3_text", "tests/fixtures/gemma4_text", "tests/fixtures/qwen3"]
        {
            let bytes = published(folder);
            let ours = read(&bytes).unwrap_or_else(|| panic!("{folder} is left to the library"));
            let library = Tokenizer::from_bytes(&bytes).unwrap();
            assert_eq!(ours.to_string(false).unwrap(), library.to_string(false).unwrap(), "{folder}");
            for text in TEXTS {
                for special in [false, true] {
                    let ids =
                        |tokenizer: &Tokenizer| tokenizer.encode(text, special).unwrap().get_ids().to_vec();
                    assert_eq!(ids(&ours), ids(&library), "{folder}: {text:?}");
                    assert_eq!(
                        ours.decode(&ids(&ours), false).unwrap(),
                        library.decode(&ids(&ours), false).unwrap()
                    );
                }
            }
        }
    }

    #[test]
    fn anything_unusual_is_left_to_the_library() {
        let whole: Value = serde_json::from_slice(&published("demo-model")).unwrap();
        let left = |change: &dyn Fn(&mut Value)| {
            let mut file = whole.clone();
            change(&mut file);
            read(file.to_string().as_bytes()).is_none()
        };
        assert!(!left(&|_| {}));
        assert!(left(&|file| file["model"]["type"] = json!("WordPiece")));
        assert!(left(&|file| file["model"]["merges"] = json!(["a b"])));
        assert!(left(&|file| file["model"]["merges"] = json!([["no such token", "nor this"]])));
        assert!(left(&|file| file["model"]["new_rule"] = json!(true)));
        assert!(left(&|file| file["new_part"] = json!(null)));
        assert!(left(&|file| file["version"] = json!("2.0")));
        assert!(left(&|file| file["added_tokens"][0]["id"] = json!(77)));
        assert!(left(&|file| file["model"]["dropout"] = json!(7.0)));
        assert!(read(b"{").is_none());
    }
}
