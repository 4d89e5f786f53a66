//! Byte for byte against Hugging Face: ids, decoded text, rendered conversations, and the text streamed token by token.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use shardwright_text::{
    ChatTemplate, GenerationConfig, Message, RenderOptions, StopRules, TemplateValue, TextStream, Tokenizer,
};

const FIXTURES: [&str; 5] = ["gemma3_text", "gemma4_text", "gemma4_mm", "qwen3", "embeddinggemma"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn checkpoints() -> Vec<PathBuf> {
    let fixtures = FIXTURES.iter().map(|name| repository().join("tests/fixtures").join(name));
    fixtures.chain([repository().join("demo-model")]).collect()
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[derive(Deserialize)]
struct TokenizerGolden {
    text: String,
    ids: Vec<u32>,
    ids_no_special: Vec<u32>,
    decoded: String,
}

#[derive(Deserialize)]
struct ChatGolden {
    messages: Vec<Message>,
    kw: std::collections::BTreeMap<String, bool>,
    rendered: String,
    ids: Vec<u32>,
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> String {
    let mut stream = TextStream::new(tokenizer, skip_special);
    let mut text: String = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    text += &stream.finish().unwrap();
    text
}

#[test]
fn tokenizers_agree_with_hugging_face() {
    for checkpoint in checkpoints() {
        let path = checkpoint.join("tokenizer.json");
        let inside = path.clone();
        let tokenizer =
            Tokenizer::load_bytes_in_background(path, move || std::fs::read(inside)).join().unwrap();
        let goldens: Vec<TokenizerGolden> = read(&checkpoint.join("tokenizer_goldens.json"));
        assert!(goldens.len() >= 20);
        for golden in goldens {
            let place = format!("{}: {:?}", checkpoint.display(), golden.text);
            assert_eq!(tokenizer.encode(&golden.text, true).unwrap(), golden.ids, "{place}");
            assert_eq!(tokenizer.encode(&golden.text, false).unwrap(), golden.ids_no_special, "{place}");
            for skip_special in [true, false] {
                let decoded = tokenizer.decode(&golden.ids, skip_special).unwrap();
                assert_eq!(streamed(&tokenizer, &golden.ids, skip_special), decoded, "{place}");
            }
            // The goldens were decoded from the ids without special tokens.
            assert_eq!(tokenizer.decode(&golden.ids_no_special, true).unwrap(), golden.decoded, "{place}");
        }
    }
}

#[test]
fn conversations_agree_with_hugging_face() {
    for name in FIXTURES.into_iter().filter(|name| *name != "embeddinggemma") {
        let checkpoint = repository().join("tests/fixtures").join(name);
        let tokenizer = Tokenizer::from_file(checkpoint.join("tokenizer.json")).unwrap();
        let template = ChatTemplate::from_directory(&checkpoint).unwrap().unwrap();
        let goldens: Vec<ChatGolden> = read(&checkpoint.join("chat_goldens.json"));
        assert!(goldens.len() >= 6);
        for golden in goldens {
            let mut options = RenderOptions::default();
            for (name, value) in golden.kw {
                if name == "add_generation_prompt" {
                    options.add_generation_prompt = value;
                } else {
                    options.variables.push((name, TemplateValue::from(value)));
                }
            }
            let rendered = template.render(&golden.messages, &options).unwrap();
            assert_eq!(rendered, golden.rendered, "{name}: {:?}", golden.messages);
            let ids = tokenizer.encode(&rendered, false).unwrap();
            assert_eq!(ids, golden.ids, "{name}: {rendered:?}");
            assert_eq!(streamed(&tokenizer, &ids, false), tokenizer.decode(&ids, false).unwrap());
        }
    }
}

#[test]
fn templates_are_found_in_either_place() {
    let path = |folder: &str| {
        let found = ChatTemplate::from_directory(repository().join(folder)).unwrap();
        found.map(|template| template.path().file_name().unwrap().to_owned())
    };
    assert_eq!(path("tests/fixtures/gemma4_text").unwrap(), "chat_template.jinja");
    assert_eq!(path("tests/fixtures/qwen3").unwrap(), "tokenizer_config.json");
    assert_eq!(path("demo-model").unwrap(), "chat_template.jinja");
    assert_eq!(path("tests/fixtures/embeddinggemma"), None);
}

#[test]
fn stop_ids_are_the_checkpoints() {
    let config = |folder: &str| GenerationConfig::from_directory(repository().join(folder)).unwrap();
    let demo = config("demo-model");
    assert_eq!(StopRules::from_generation(&demo).ids(), [1, 16]);
    assert_eq!((demo.bos_id, demo.pad_id), (Some(2), Some(0)));
    assert!(demo.sampling.do_sample && demo.sampling.top_k == 64 && demo.sampling.top_p == 0.95);
    assert_eq!(config("tests/fixtures/gemma4_text").stop_ids, [1]);
    assert_eq!(config("tests/fixtures/qwen3").stop_ids, [635]);
    assert_eq!(config("tests/fixtures/embeddinggemma").stop_ids, [1]);
}

#[test]
fn special_tokens_are_known() {
    let tokenizer = Tokenizer::from_file(repository().join("demo-model/tokenizer.json")).unwrap();
    assert_eq!(tokenizer.vocabulary_size(), 4096);
    assert_eq!(tokenizer.token_to_id("<turn|>"), Some(16));
    assert_eq!(tokenizer.id_to_token(16).as_deref(), Some("<turn|>"));
    assert_eq!(tokenizer.id_to_token(4096), None);
    assert!(tokenizer.is_special(2) && !tokenizer.is_special(300));
    assert_eq!(tokenizer.special_ids()[..3], [0, 1, 2]);
    assert_eq!(tokenizer.decode(&[2, 9999, 375], true).unwrap(), " ", "ids without a token give no text");
}
