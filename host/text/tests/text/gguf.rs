//! Text files of a GGUF file: the tokenizer equals that of the folder, templates and ids are found,
//! and unsupported values are refused by their key.

use std::path::{Path, PathBuf};

use shardwright_test_checkpoints::{GgufHead, Spec, write_gguf, write_real};
use shardwright_text::{ChatTemplate, GenerationConfig, Message, RenderOptions, Tokenizer};
use shardwright_vocabulary::ErrorKind;

const TEXTS: [&str; 6] =
    ["", "a text", "  two  spaces\n\n", "Grüße 你好 🌀", "<bos>x<eos>", "12 345 ▁ <0x41>"];

#[test]
fn the_tokenizer_of_a_file_is_that_of_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let spec = Spec { vocabulary: 600, ..Spec::gemma3() };
    write_real(&spec, folder.path()).unwrap();
    let file = folder.path().join("alone.gguf");
    write_gguf(&spec, "toy", &file).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let of_folder = Tokenizer::from_checkpoint(folder.path()).unwrap();
    let alone = Tokenizer::from_checkpoint(&file).unwrap();
    // Twice: first the index is made, then it is used.
    let indexed = [(); 2].map(|()| Tokenizer::from_checkpoint_indexed(&file, cache.path()).unwrap());
    for text in TEXTS {
        let ids = of_folder.encode(text, true).unwrap();
        for tokenizer in [&alone, &indexed[0], &indexed[1]] {
            assert_eq!(tokenizer.encode(text, true).unwrap(), ids, "{text:?}");
            assert_eq!(tokenizer.decode(&ids, true).unwrap(), of_folder.decode(&ids, true).unwrap());
        }
    }
    assert_eq!(std::fs::read_dir(cache.path()).unwrap().count(), 1);
}

/// Writes a file with a byte-level vocabulary of three words, plus the additions of `add`.
fn byte_level(folder: &Path, add: impl Fn(GgufHead) -> GgufHead) -> PathBuf {
    let alphabet = ["a", "b", "Ġ", "ab", "Ġa", "<|im_end|>"];
    let head = GgufHead::new("qwen2")
        .text("tokenizer.ggml.model", "gpt2")
        .texts("tokenizer.ggml.tokens", &alphabet)
        .texts("tokenizer.ggml.merges", &["a b", "Ġ a"])
        .integers("tokenizer.ggml.token_type", &[1, 1, 1, 1, 1, 3])
        .number("tokenizer.ggml.eos_token_id", 0);
    let file = folder.join("model.gguf");
    std::fs::write(&file, add(head).bytes()).unwrap();
    file
}

#[test]
fn templates_and_ends_of_turns_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let template = "{% for m in messages %}{{ m['content'] }}{% endfor %}{{ eos_token }}";
    let file = byte_level(folder.path(), |head| {
        head.text("tokenizer.ggml.pre", "qwen2").text("tokenizer.chat_template", template)
    });
    let tokenizer = Tokenizer::from_checkpoint(&file).unwrap();
    assert_eq!(tokenizer.encode("ab a<|im_end|>", true).unwrap(), [3, 4, 5]);
    assert_eq!(tokenizer.decode(&[3, 4], true).unwrap(), "ab a");
    let generation = GenerationConfig::from_directory(&file).unwrap();
    // The end of a turn is found by its text.
    assert_eq!((generation.stop_ids, generation.sampling.do_sample), (vec![0, 5], false));
    let template = ChatTemplate::from_directory(&file).unwrap().expect("a template");
    let rendered = template.render(&[Message::user("b")], &RenderOptions::default()).unwrap();
    assert_eq!(rendered, "ba");
    let file = byte_level(folder.path(), |head| {
        head.text("tokenizer.chat_template.tool_use", "t")
            .number("tokenizer.ggml.eot_token_id", 1)
            .float("general.sampling.temp", 0.5)
            .number("general.sampling.top_k", 20)
            .integers("tokenizer.ggml.suppress_tokens", &[2, 4])
    });
    let generation = GenerationConfig::from_directory(&file).unwrap();
    assert_eq!((&*generation.stop_ids, &*generation.rules.suppress_tokens), (&[0, 1][..], &[2, 4][..]));
    assert!(generation.sampling.do_sample && generation.sampling.top_k == 20, "{generation:?}");
    assert!(ChatTemplate::from_directory(&file).unwrap().is_some());
}

#[test]
fn templates_that_write_nothing_are_refused_and_not_the_messages() {
    let folder = tempfile::tempdir().unwrap();
    let options = RenderOptions::default();
    let template = |key: &str, source: &str| {
        let file = byte_level(folder.path(), |head| head.text(key, source));
        let tokenizer = Tokenizer::from_checkpoint(&file).unwrap();
        (tokenizer, ChatTemplate::from_directory(&file).unwrap().expect("a template"))
    };
    let (tokenizer, silent) = template("tokenizer.chat_template", "{% if false %}b{% endif %}");
    let error = silent.encode(&tokenizer, &[Message::user("b")], &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.place().is_some_and(|place| place.ends_with("model.gguf")), "{error}");
    assert_eq!(error.message(), "the template writes no text for the messages");
    assert!(error.help().is_some());
    // The text of a message without words may be empty.
    assert!(silent.encode(&tokenizer, &[Message::user(" ")], &options).unwrap().is_empty());

    let (tokenizer, tool) = template("tokenizer.chat_template.tool", "b");
    let error = tool.encode(&tokenizer, &[Message::user("b")], &options).unwrap_err();
    let expected = "no chat template is named `default`, only tool";
    assert_eq!((error.kind(), error.message()), (ErrorKind::Unsupported, expected));
    assert!(error.place().is_some_and(|place| place.ends_with("model.gguf")), "{error}");
}

#[test]
fn what_is_not_supported_or_wrong_is_refused_by_its_key() {
    type Add = fn(GgufHead) -> GgufHead;
    let cases: [(Add, &str); 10] = [
        (|head| head.text("tokenizer.ggml.pre", "new-idea"), "`tokenizer.ggml.pre` is `new-idea`"),
        (|head| head.text("tokenizer.new_key", "x"), "`tokenizer.new_key` is `x`"),
        (|head| head.number("tokenizer.ggml.bos_token_id", 6), "`tokenizer.ggml.bos_token_id` is 6"),
        (
            |head| head.flag("tokenizer.ggml.add_bos_token", true),
            "metadata has no `tokenizer.ggml.bos_token_id`",
        ),
        (
            |head| head.flag("tokenizer.ggml.add_space_prefix", true),
            "`tokenizer.ggml.add_space_prefix` is true",
        ),
        (|head| head.flag("tokenizer.ggml.add_sep_token", true), "`tokenizer.ggml.add_sep_token` is true"),
        (
            |_| {
                GgufHead::new("qwen2")
                    .texts("tokenizer.ggml.tokens", &["a"])
                    .integers("tokenizer.ggml.token_type", &[-1])
            },
            "`tokenizer.ggml.token_type` is a list of 1, expected a list of whole numbers",
        ),
        (|_| GgufHead::new("qwen2"), "metadata has no `tokenizer.ggml.tokens`"),
        (
            |_| GgufHead::new("t5").text("tokenizer.ggml.model", "t5").texts("tokenizer.ggml.tokens", &["a"]),
            "`tokenizer.ggml.model` is `t5`",
        ),
        (
            |_| {
                GgufHead::new("llama")
                    .text("tokenizer.ggml.model", "llama")
                    .texts("tokenizer.ggml.tokens", &["a"])
            },
            "metadata has no `tokenizer.ggml.scores`",
        ),
    ];
    for (add, words) in cases {
        let folder = tempfile::tempdir().unwrap();
        let file = byte_level(folder.path(), add);
        let error = Tokenizer::from_checkpoint(&file).unwrap_err();
        assert!(error.to_string().contains(words), "{error} lacks {words}");
        assert!(error.to_string().contains("model.gguf") && error.help().is_some(), "{error}");
        // Values of the right kind may be unsupported, and others are wrong.
        let kind = if words.starts_with("metadata has no ") {
            ErrorKind::Missing
        } else if error.message().ends_with("which is not supported") {
            ErrorKind::Unsupported
        } else {
            ErrorKind::Invalid
        };
        assert_eq!((error.kind(), error.place()), (kind, file.to_str()), "{error:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = byte_level(folder.path(), |head| head.float("general.sampling.xtc_threshold", 0.1));
    let error = GenerationConfig::from_directory(&file).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("`general.sampling.xtc_threshold` is 0.1"), "{error}");
    let file = byte_level(folder.path(), |head| head.text("general.type", "adapter"));
    let error = Tokenizer::from_checkpoint(&file).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("the file is an adapter"), "{error}");
    let file = byte_level(folder.path(), |head| head.integers("tokenizer.ggml.suppress_tokens", &[-1]));
    let error = GenerationConfig::from_directory(&file).unwrap_err();
    assert!(error.to_string().contains("`tokenizer.ggml.suppress_tokens` is a list of 1"), "{error}");
    // Merges of tokens that do not exist.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    let head = GgufHead::new("qwen2")
        .text("tokenizer.ggml.model", "gpt2")
        .texts("tokenizer.ggml.tokens", &["a", "b"])
        .texts("tokenizer.ggml.merges", &["a b", "b ab"]);
    std::fs::write(&file, head.bytes()).unwrap();
    let error = Tokenizer::from_checkpoint(&file).unwrap_err();
    assert_eq!((error.kind(), error.place()), (ErrorKind::Invalid, file.to_str()));
    assert!(error.message().starts_with("not a valid tokenizer: "), "{error:?}");
}

/// Checks that a file is refused whose vocabulary would cost far more than its bytes.
fn refused(head: GgufHead, kind: ErrorKind, words: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    std::fs::write(&file, head.bytes()).unwrap();
    let error = Tokenizer::from_checkpoint(&file).unwrap_err();
    assert!(error.to_string().contains(words), "{error} lacks {words}");
    assert!(error.to_string().contains("model.gguf") && error.help().is_some(), "{error}");
    assert_eq!((error.kind(), error.place()), (kind, file.to_str()), "{error:?}");
}

#[test]
fn vocabularies_that_grow_in_memory_are_refused() {
    let pieces = |tokens: &[&str]| {
        GgufHead::new("gemma3").text("tokenizer.ggml.model", "llama").texts("tokenizer.ggml.tokens", tokens)
    };
    // Every two pieces of a run form a third. Half a megabyte of tokens gives merges of 358 MB.
    let run: Vec<String> = (1..=1024).map(|length| "a".repeat(length)).collect();
    let run: Vec<&str> = run.iter().map(String::as_str).collect();
    let unsupported = |head, words| refused(head, ErrorKind::Unsupported, words);
    unsupported(pieces(&run), "`tokenizer.ggml.tokens` is 432915 merges of 268984520 bytes");
    unsupported(pieces(&["a", &"b".repeat(1025)]), "token 1 has 1025 bytes");
    let many = vec![""; (1 << 22) + 1];
    unsupported(pieces(&many), "`tokenizer.ggml.tokens` is a list of 4194305");
    let merges = pieces(&["a"]).texts("tokenizer.ggml.merges", &many);
    unsupported(merges, "`tokenizer.ggml.merges` is a list of 4194305");
    let kinds = pieces(&["a"]).integers("tokenizer.ggml.token_type", &[1; 100]);
    let words = "`tokenizer.ggml.token_type` is a list of 100, expected as many as there are tokens";
    refused(kinds, ErrorKind::Invalid, words);
}

/// A merge is always longer than its parts, unless a part is empty. Then it would produce itself.
#[test]
fn merges_that_make_themselves_end() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    let head = GgufHead::new("qwen2")
        .text("tokenizer.ggml.model", "gpt2")
        .texts("tokenizer.ggml.tokens", &["", "a", "b", "ab", "ba", "aba"])
        .texts("tokenizer.ggml.merges", &[" a", "a ", "a b", "b a", "ab a", "a ba"]);
    std::fs::write(&file, head.bytes()).unwrap();
    let tokenizer = Tokenizer::from_checkpoint(&file).unwrap();
    let ids = tokenizer.encode(&"ab".repeat(1000), false).unwrap();
    assert!(!ids.is_empty() && ids.len() <= 1000, "{}", ids.len());
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), "ab".repeat(1000));
}
