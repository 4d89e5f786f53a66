//! The fuzz targets on their committed corpus. Every file is accepted as intended, and the whole,
//! truncated and damaged file gives a result. `SHARDWRIGHT_WRITE_CORPUS=1` rewrites the corpus,
//! which is necessary after a change of format.

#[path = "../../fuzz/src/lib.rs"]
mod targets;

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use shardwright::{ChatPart, OpenOptions, Session};
use shardwright_bundle::{Bundle, Digest};
use shardwright_graph::{ComponentKind, EntryOptions, EntryPoint};
use shardwright_shims::WorkOrderBuilder;
use shardwright_test_checkpoints::{Fill, Spec, write_gguf};
use shardwright_tests::bundles::Compiled;
use shardwright_tests::chain::made;
use shardwright_tests::checkpoints::MULTIMODAL_FIXTURE;
use shardwright_tests::program::search_path;
use shardwright_tests::tree::root;
use shardwright_text::Tokenizer;
use shardwright_trust::{Envelope, Kind, LeastRelease, Revocations, SecretKey, Statement};
use shardwright_vocabulary::EntryKind;
use targets::{ENTRY, TARGETS, collapsed, joined};

/// Largest file of the corpus, in bytes. A fuzzer that starts from large files is slow.
const LARGEST: usize = 60_000;
/// Number of damaged copies of each file.
const DAMAGED: u64 = 60;

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target)
}

/// Returns the files of a target, sorted.
fn files(target: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> =
        fs::read_dir(corpus(target)).expect("a folder").flatten().map(|file| file.path()).collect();
    files.sort();
    files
}

/// Returns checkpoints of several families, as small as possible: settings, and the head of a
/// weight file.
fn checkpoints() -> Vec<(&'static str, Vec<u8>)> {
    let families = [("gemma3", Spec::gemma3()), ("gemma4", Spec::gemma4()), ("qwen3", Spec::qwen3())];
    let one = |(name, spec): (&'static str, Spec)| {
        let layers = spec.layers[..2].to_owned();
        let spec = Spec { layers, kv_shared: 0, fill: Fill::Sparse, ..spec };
        let folder = tempfile::tempdir().expect("a folder");
        spec.write(folder.path()).expect("written");
        let settings = fs::read(folder.path().join("config.json")).expect("settings");
        let weights = fs::read(folder.path().join("model.safetensors")).expect("weights");
        let head = 8 + u64::from_le_bytes(weights[..8].try_into().expect("eight")) as usize;
        let length = (weights.len() - head) as u64;
        (name, joined(&settings, &[&length.to_le_bytes(), &weights[..head]].concat()))
    };
    families.into_iter().map(one).collect()
}

/// Returns whole checkpoints from the fixtures: settings, and the weight file of that name.
fn fixtures(weights: &str, folders: &[&'static str]) -> Vec<(&'static str, Vec<u8>)> {
    let one = |&folder: &&'static str| {
        let path = root().join("tests/fixtures/quantised").join(folder);
        let [settings, weights] =
            ["config.json", weights].map(|name| fs::read(path.join(name)).expect("a file"));
        (folder, joined(&settings, &weights))
    };
    folders.iter().map(one).collect()
}

/// Returns an adapter: its settings and tensors.
fn adapter() -> Vec<u8> {
    let folder = root().join("tests/fixtures/lora/phi4mini");
    let [settings, tensors] = ["adapter_config.json", "adapter_model.safetensors"]
        .map(|name| fs::read(folder.join(name)).expect("a file"));
    joined(&settings, &tensors)
}

/// Returns GGUF files as small as their vocabularies allow.
fn gguf_files() -> Vec<(&'static str, Vec<u8>)> {
    let small = |spec: Spec| Spec {
        vocabulary: 300,
        hidden: 16,
        intermediate: 16,
        layers: "F".to_owned(),
        heads: 2,
        kv_heads: 1,
        kv_shared: 0,
        per_layer: 0,
        ..spec
    };
    let families = [("gemma3", Spec::gemma3()), ("gemma4", Spec::gemma4()), ("qwen3", Spec::qwen3())];
    let one = |(name, spec): (&'static str, Spec)| {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("model.gguf");
        write_gguf(&small(spec), "toy", &file).expect("written");
        (name, fs::read(file).expect("a file"))
    };
    families.into_iter().map(one).collect()
}

/// Folders of quantised matrices in safetensors, one for each way of packing them.
const QUANTISED: [&str; 4] =
    ["gptq4_channel", "awq_symmetric", "compressed_pack4_asymmetric", "compressed_int8_tensor"];

/// Returns work orders for a layer and for the end of a decoder, each with its weights.
fn work_orders() -> Vec<(&'static str, Vec<u8>)> {
    let graph = made(&Spec { layers: "FF".to_owned(), ..Spec::qwen3() });
    let one = |(name, component, layers, kind): (&'static str, _, _, _)| {
        let point = EntryPoint { kind, rows: 4, context: 16, largest_rows: 4 };
        let entry = graph.entry(component, layers, point, EntryOptions { taps: false });
        let entry = entry.expect("a graph").expect("a part in it");
        let order = WorkOrderBuilder::new(&graph.weights).entry(&entry).expect("an order");
        let folder = tempfile::tempdir().expect("a folder");
        let order = order.write(folder.path()).expect("written");
        (name, fs::read(order.path()).expect("a file"))
    };
    [
        ("prefill", ComponentKind::Decoder, 0..1, EntryKind::Prefill),
        ("decode", ComponentKind::Decoder, 1..2, EntryKind::Decode),
        ("head", ComponentKind::Head, 0..0, EntryKind::Decode),
    ]
    .map(one)
    .into()
}

/// Returns templates that use the parts of the language.
fn templates() -> Vec<(&'static str, Vec<u8>)> {
    let demo = fs::read(root().join("demo-model/chat_template.jinja")).expect("a template");
    let tools = "{% set ns = namespace(found=false) %}{% for message in messages %}\
                 {% if message.role == 'system' and not loop.first %}{{ raise_exception('order') }}{% endif %}\
                 {{- bos_token if loop.first else '' }}{{ message['content'] | trim }}\
                 {% if tools is defined and tools %}{{ tools | tojson(indent=2) }}{% endif %}\
                 {% set ns.found = ns.found or message.role == 'user' %}{% endfor %}\
                 {% if ns.found and add_generation_prompt %}{{ '<model>\\n' }}{% endif %}";
    let python = "{% macro turn(role, text) %}<{{ role }}>{{ text.strip().split('?')[0][:9] }}{% endmacro %}\
                  {% for i in range(messages | length) %}{% if i > 3 %}{% break %}{% endif %}\
                  {{ turn(messages[i].role.upper(), messages[i].content.replace('e', 'é')) }}{% endfor %}\
                  {{ strftime_now('%d %b %Y') }}{{ {'a': [1, 2.5, none]} | tojson }}";
    vec![("demo", demo), ("tools", tools.into()), ("python", python.into())]
}

/// Returns a signature and a list of revocations.
fn signatures() -> [(&'static str, Vec<u8>); 2] {
    let key = SecretKey::from_seed([7; 32]);
    let statement = Statement::of(Kind::Bundle, "demo", 3, b"something").expect("a name");
    let least = [LeastRelease { kind: Kind::Bundle, name: "demo".to_owned(), release: 2 }];
    let revoked = [SecretKey::from_seed([8; 32]).public()];
    let list = Revocations::sign("acme", 5, &revoked, &least, &key).expect("a list");
    [("envelope", Envelope::sign(&statement, &key).to_bytes().to_vec()), ("revocations", list)]
}

/// Returns tokenizers without and with a post-processor, small enough for a fuzzer. The index is of
/// the first.
fn tokenizers() -> Vec<(&'static str, Vec<u8>)> {
    let small = |model: &str, post: &str| {
        format!(
            r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{{"id":0,"content":"<bos>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}}],"normalizer":{{"type":"Replace","pattern":{{"String":" "}},"content":"▁"}},"pre_tokenizer":null,"post_processor":{post},"decoder":{{"type":"Sequence","decoders":[{{"type":"Replace","pattern":{{"String":"▁"}},"content":" "}},{{"type":"ByteFallback"}},{{"type":"Fuse"}}]}},"model":{model}}}"#
        )
        .into_bytes()
    };
    let letters = ["A", "t", "e", "x", ",", "▁", "1", "2", "G", "r", "te", "xt", "text"];
    let tokens: Vec<String> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
    let all = ["<bos>", "<unk>"].into_iter().chain(tokens.iter().map(String::as_str)).chain(letters);
    let vocabulary: serde_json::Map<String, serde_json::Value> =
        all.enumerate().map(|(id, token)| (token.to_owned(), id.into())).collect();
    let merging = serde_json::json!({
        "type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
        "vocab": vocabulary, "merges": [["t", "e"], ["x", "t"], ["te", "xt"]],
    });
    let [first, second] = ["A", "B"].map(|id| format!(r#"{{"Sequence":{{"id":"{id}","type_id":0}}}}"#));
    let begin = r#"{"SpecialToken":{"id":"<bos>","type_id":0}}"#;
    let special = r#"{"<bos>":{"id":"<bos>","ids":[0],"tokens":["<bos>"]}}"#;
    let template = format!(
        r#"{{"type":"TemplateProcessing","single":[{begin},{first}],"pair":[{begin},{first},{begin},{second}],"special_tokens":{special}}}"#
    );
    let merging = merging.to_string();
    vec![("merging", small(&merging, "null")), ("template", small(&merging, &template))]
}

/// Returns the index of a tokenizer, after the hash of its source.
fn tokenizer_index() -> Vec<u8> {
    let (_, bytes) = tokenizers().remove(0);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tokenizer.json");
    fs::write(&file, &bytes).expect("written");
    let kept = folder.path().join("kept");
    let tokenizer = Tokenizer::from_file_indexed(&file, &kept).expect("a tokenizer");
    let index = tokenizer.index().expect("an index").to_vec();
    [Digest::of(&bytes).bytes().as_slice(), &index].concat()
}

/// Returns a file with two learned limits of a compiler.
fn learned() -> Vec<u8> {
    let limit = |name: &str| {
        serde_json::json!({
            "name": name, "value": 400,
            "flags": [{ "name": "opt-level", "value": "3" }], "because": "too many operations",
        })
    };
    let compiler = serde_json::json!({
        "chip": "mt6989", "shim": "neuron", "shim_version": "1.0.0", "library": null,
        "device": "adapter 8.2.28", "settings": [["simulate", "yes"]], "facts": [["arch", "mdla5"]],
    });
    let limits = [limit("ops"), limit("weight-bytes")];
    let file = serde_json::json!({ "version": 3, "learned_of": compiler, "limits": limits });
    serde_json::to_vec(&file).expect("JSON")
}

/// Returns a saved session with a KV cache, and one with turns and a picture but without.
fn sessions() -> Vec<(&'static str, Vec<u8>)> {
    let folder = tempfile::tempdir().expect("a folder");
    let session = |checkpoint: &str| {
        let options = OpenOptions::new().search_path(search_path()).context(512);
        let model = options.open(root().join(checkpoint)).expect("a model");
        let mut session = model.session().expect("a session");
        session.options.max_tokens = Some(3);
        session
    };
    let saved = |name: &'static str, mut session: Session| {
        let path = folder.path().join(name);
        session.save(&path).expect("saved");
        (name, fs::read(path).expect("a file"))
    };
    let mut text = session("tests/fixtures/qwen3");
    text.complete_ids(vec![5, 6, 7, 8]).expect("a reply").text().expect("text");
    let mut seen = session(MULTIMODAL_FIXTURE);
    let (width, height, stride) = (50, 38, 150);
    let pixels = (0..stride * height as usize).map(|at| (at % 251) as u8).collect();
    let picture = ChatPart::PictureRgb8 { width, height, stride, pixels };
    seen.chat_parts([picture, "What is this?".into()]).expect("a reply").text().expect("text");
    seen.release();
    vec![saved("states", text), saved("picture", seen)]
}

/// Returns a grammar of each kind, after the byte of its kind.
fn grammars() -> Vec<(&'static str, Vec<u8>)> {
    let schema = r##"{"type": "object", "properties": {
        "name": {"type": "string", "maxLength": 12},
        "code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "parts": {"type": "array", "maxItems": 3, "items": {"$ref": "#/$defs/part"}}
    }, "required": ["name"], "additionalProperties": false,
    "$defs": {"part": {"anyOf": [{"enum": ["a", 1, true]}, {"type": "null"}]}}}"##;
    let lark = "start: item (\", \" item)* end?\n\
                item: \"ab\" | \"c\" NUMBER | %json {\"type\": \"boolean\"}\n\
                end: <|im_end|> | \".\"\n\
                NUMBER: /[0-9]{1,3}/\n";
    let kinds = [("schema", schema), ("regex", "(red|gr(e|a)y)-[0-9]{2,4}|[a-zü]+x?[^a-m]"), ("lark", lark)];
    (0..).zip(kinds).map(|(kind, (name, text))| (name, [&[kind], text.as_bytes()].concat())).collect()
}

/// Returns replies with text and calls in each format, after the byte of their settings.
fn replies() -> Vec<(&'static str, Vec<u8>)> {
    let gemma = "Wait. <|tool_call>call:get_weather{town:<|\"|>Zürich {1}<|\"|>,days:3,\
                 <|\"|>a b<|\"|>:[true,None,{x:-1.5}]}<tool_call|>\n\
                 <|tool_call>call:now{}<tool_call|>\nThen <|tool_call>call:x<tool_call|>.";
    let function = "<start_function_call>call:now{a:<escape>x<escape>}<end_function_call>\
                    <start_function_response>response:now";
    let hermes = "<think>No.</think>\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": \
                  {\"town\": \"<tool_call> \\u00e9\", \"n\": [1e3, {\"a\": null}]}}\n</tool_call>\n\
                  <tool_call>{\"name\": 3}</tool_call> or <tool_call>{\"name\": \"now\"";
    let llama = "{\"name\": \"now\", \"parameters\": {}}; {\"type\": \"function\", \
                 \"name\": \"get_weather\", \"parameters\": \"{\\\"town\\\": 1}\"} {}";
    let all = [
        ("gemma", 0, gemma),
        ("gemma_tokens", 0b1111_0000, gemma),
        ("function_gemma", 0b0101_0001, function),
        ("hermes", 2, hermes),
        ("hermes_hidden", 0b0011_0110, hermes),
        ("llama", 3, llama),
    ];
    all.map(|(name, settings, reply)| (name, [&[settings], reply.as_bytes()].concat())).into()
}

/// Returns an archive with a stored bundle, after an unrelated entry.
fn package() -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (name, content) in [("classes.dex", &b"code"[..]), (ENTRY, b"no bundle")] {
        let offset = bytes.len() as u32;
        let sizes = [(content.len() as u32).to_le_bytes(); 2].concat();
        let common = [&[20, 0, 0, 0, 0, 0, 0, 0, 33, 0], &[0; 4][..], &sizes].concat();
        let named = (name.len() as u16).to_le_bytes();
        bytes.extend([b"PK\x03\x04", &common[..], &named, &[0; 2], name.as_bytes(), content].concat());
        let place = [&[0; 12][..], &offset.to_le_bytes()].concat();
        directory.extend([b"PK\x01\x02\x14\0", &common[..], &named, &place, name.as_bytes()].concat());
    }
    let places = [(directory.len() as u32).to_le_bytes(), (bytes.len() as u32).to_le_bytes()].concat();
    bytes.extend([&directory[..], b"PK\x05\x06\0\0\0\0\x02\0\x02\0", &places, &[0; 2]].concat());
    bytes
}

fn write(target: &str, name: &str, bytes: &[u8]) {
    fs::create_dir_all(corpus(target)).expect("a folder");
    fs::write(corpus(target).join(format!("{name}.bin")), bytes).expect("written");
}

/// Writes the files of the corpus that the program makes when it compiles a fixture: the manifest,
/// the plan and its request.
fn write_bundle() {
    let bundle = Compiled::from("tests/fixtures/qwen3", ["--context", "64"]);
    write("manifest", "cpu", &fs::read(bundle.manifest()).expect("a manifest"));
    let manifest = bundle.variant_json();
    let part = |name: &str| fs::read(bundle.file(&manifest["chains"][0][name])).expect("a file");
    write(
        "heads",
        "cpu",
        &fs::read(bundle.file(&manifest["chains"][0]["shards"][0]["head"])).expect("a file"),
    );
    write("plan", "cpu", &joined(&part("plan"), &part("request")));
    write("packed", "cpu", &collapsed(&without_content(&bundle.path())));
}

/// Returns a packed bundle in which all files except the manifest contain zeros.
fn without_content(bundle: &Path) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cpu.swb");
    let opened = Bundle::open(bundle).expect("a bundle");
    shardwright_bundle::pack(&opened, &path, |_| ControlFlow::Continue(())).expect("packed");
    let mut bytes = fs::read(&path).expect("read");
    let packed = Bundle::open(&path).expect("a bundle");
    for file in packed.files() {
        let place = packed.place(&file).expect("there");
        bytes[place.offset as usize..][..file.bytes as usize].fill(0);
    }
    bytes
}

#[test]
fn every_file_of_the_corpus_is_taken() {
    if std::env::var_os("SHARDWRIGHT_WRITE_CORPUS").is_some() {
        for (target, samples) in [
            ("checkpoint", checkpoints()),
            ("gguf", fixtures("model.gguf", &["gguf_q4_0_gemma3", "gguf_q8_0"])),
            ("gguf_alone", gguf_files()),
            ("quantised", fixtures("model.safetensors", &QUANTISED)),
            ("lora", vec![("phi4mini", adapter())]),
            ("work_order", work_orders()),
            ("template", templates()),
            ("tokenizer", tokenizers()),
            ("tokenizer_index", vec![("merging", tokenizer_index())]),
            ("package", vec![("stored", package())]),
            ("learned", vec![("limits", learned())]),
            ("session", sessions()),
            ("grammar", grammars()),
            ("calls", replies()),
        ] {
            for (name, bytes) in samples {
                write(target, name, &bytes);
            }
        }
        for (target, bytes) in signatures() {
            write(target, "signed", &bytes);
        }
        write_bundle();
    }
    for (name, target) in TARGETS {
        let files = files(name);
        assert!(!files.is_empty(), "{name}");
        for path in files {
            let bytes = fs::read(&path).expect("a file");
            assert!(bytes.len() <= LARGEST, "{}: {} bytes", path.display(), bytes.len());
            let found = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("found-"));
            let help = "`SHARDWRIGHT_WRITE_CORPUS=1` writes the corpus anew";
            assert!(target(&bytes) || found, "{} is not taken any more; {help}", path.display());
        }
    }
}

/// The parser of a list reads mutations too, since the target signs them.
#[test]
fn a_changed_list_of_revocations_passes_its_envelope() {
    let [_, (_, list)] = signatures();
    let text = list.windows(11).position(|part| part == br#""release":2"#).expect("a release");
    let mut changed = list.clone();
    changed[text + 10] = b'9';
    assert!(targets::revocations(&changed) && targets::revocations(&list));
    changed.insert(text, b' ');
    assert!(targets::revocations(&changed));
    changed.truncate(text);
    assert!(!targets::revocations(&changed));
}

/// Returns the next of a sequence of numbers, the same in every run.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn no_target_minds_damage() {
    let mut state = 0x9e37_79b9_7f4a_7c15;
    for (name, target) in TARGETS {
        for file in files(name).iter().map(|path| fs::read(path).expect("a file")) {
            let step = (file.len() / 64).max(1);
            for length in (0..file.len().min(64)).chain((64..file.len()).step_by(step)) {
                target(&file[..length]);
            }
            for _ in 0..DAMAGED {
                let mut damaged = file.clone();
                for _ in 0..=next(&mut state) % 3 {
                    let at = (next(&mut state) % damaged.len() as u64) as usize;
                    match next(&mut state) % 5 {
                        0 => damaged[at] ^= 1 << (next(&mut state) % 8),
                        1 => damaged[at] = [0, 1, 0x7f, 0x80, 0xff][(next(&mut state) % 5) as usize],
                        // Replace a character by one that is likely in text.
                        2 => damaged[at] = b"0189-.e[{\"n"[(next(&mut state) % 11) as usize],
                        3 => damaged[at] = damaged[at].wrapping_add(1),
                        _ => {
                            let from = (next(&mut state) % damaged.len() as u64) as usize;
                            let length = (damaged.len() - at.max(from)).min(8);
                            damaged.copy_within(from..from + length, at);
                        }
                    }
                }
                target(&damaged);
            }
        }
    }
}
