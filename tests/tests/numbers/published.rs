//! Published models on the CPU in float, from the folder and from the GGUF file. Prompts give the
//! ids of transformers, and greedy replies equal its replies. Each weight of a file equals the
//! folder's weight.
//!
//! If the oracle's two largest logits are closer than [`NEAR_TIE`], rounding may decide otherwise.
//! The reply is not compared after such a step.

use std::path::{Path, PathBuf};

use serde_json::Value;
use shardwright::{GenerationEvent, OpenOptions, Session};
use shardwright_graph::Graph;
use shardwright_models::Checkpoint;
use shardwright_test_checkpoints::{Random, cases};
use shardwright_tests::program::search_path;
use shardwright_tests::{skipped, tree};
use shardwright_text::{GenerationConfig, Tokenizer};

const NEAR_TIE: f64 = 0.01;

/// The results of transformers for a prompt.
struct Prompt {
    text: String,
    ids: Vec<u32>,
    greedy: Vec<u32>,
    /// For each step, the largest logits and their tokens.
    top: Vec<Vec<(u32, f64)>>,
}

impl Prompt {
    fn of(value: &Value) -> Self {
        let list = |value: &Value| value.as_array().expect("a list").clone();
        let id = |value: &Value| value.as_u64().expect("an id") as u32;
        let ids = |name: &str| list(&value[name]).iter().map(id).collect();
        let pair = |pair: &Value| (id(&pair[0]), pair[1].as_f64().expect("a logit"));
        Prompt {
            text: value["text"].as_str().expect("a text").to_owned(),
            ids: ids("ids"),
            greedy: ids("greedy"),
            top: list(&value["top"]).iter().map(|step| list(step).iter().map(pair).collect()).collect(),
        }
    }
}

/// Returns the folder of the fetched models.
fn models() -> Option<PathBuf> {
    let folder = std::env::var_os("SHARDWRIGHT_MODELS").map(PathBuf::from);
    if folder.is_none() {
        skipped("published models: `cargo xtask vendor models` fetches them");
    }
    folder
}

/// Returns a greedy reply of at most `most` tokens, without the token that ended it.
fn reply(session: &mut Session, ids: &[u32], most: usize) -> Vec<u32> {
    session.clear();
    session.options.sampling.do_sample = false;
    session.options.max_tokens = Some(most);
    let mut tokens = Vec::new();
    for event in session.complete_ids(ids.to_vec()).expect("a reply") {
        if let GenerationEvent::Token { id } = event.expect("an event") {
            tokens.push(id);
        }
    }
    tokens
}

/// Checks that replies equal the oracle's except for near ties: from the folder in floats, and from
/// the file, whose blocks are multiplied as stored and have the same values.
fn agrees(name: &str) {
    let Some(models) = models() else { return };
    let folder = models.join(name).join("folder");
    replies_agree(name, &folder, &folder, "f32/f32/f32");
    replies_agree(name, &folder, &models.join(name).join(format!("{name}.gguf")), "as-stored/f32/f32");
}

fn replies_agree(name: &str, folder: &Path, source: &Path, formats: &str) {
    let oracle = tree::read(format!("tests/models/{name}.json").as_ref());
    let oracle: Vec<Value> = serde_json::from_str(&oracle).expect("prompts");
    let oracle: Vec<Prompt> = oracle.iter().map(Prompt::of).collect();
    let (prompts, steps) = (cases(8, oracle.len()), cases(16, 64));
    let options = OpenOptions::new().search_path(search_path()).threads(2).context(256);
    let options = options.formats(formats.parse().expect("formats"));
    let model = options.open(source).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
    let mut session = model.session().expect("a session");
    let stops = GenerationConfig::from_directory(folder).expect("settings").stop_ids;
    let (mut compared, mut ties) = (0, 0);
    for Prompt { text, ids, greedy, top } in &oracle[..prompts] {
        let tokenizer = session.tokenizer().expect("a tokenizer");
        assert_eq!(&tokenizer.encode(text, true).expect("ids"), ids, "{text:?}");
        let tokens = reply(&mut session, ids, steps);
        let mut agreed = true;
        for (step, (found, expected)) in tokens.iter().zip(greedy).enumerate() {
            if found != expected {
                let distance = top[step][0].1 - top[step][1].1;
                assert!(distance < NEAR_TIE, "{text:?}, step {step}: {tokens:?}, not {greedy:?}");
                assert_eq!(*found, top[step][1].0, "{text:?}, step {step}");
                (ties, agreed) = (ties + 1, false);
                break;
            }
            compared += 1;
        }
        // A reply must not end earlier than the oracle's, whose last token may be a stop token.
        let next = greedy[..steps.min(greedy.len())].get(tokens.len());
        let mut ends = tokens.last().into_iter().chain(next);
        let is_whole = next.is_none() || ends.any(|id| stops.contains(id));
        assert!(!agreed || is_whole, "{text:?}: {tokens:?}");
    }
    assert!(compared > prompts * steps / 2, "{compared} tokens and {ties} near ties");
}

/// The `gguf` package computed the values in the folder.
#[test]
fn a_file_and_its_folder_are_the_same_model() {
    let Some(models) = models() else { return };
    for name in ["gemma3-270m", "smollm2-135m"] {
        let open = |part: &str| {
            let checkpoint = Checkpoint::open(models.join(name).join(part));
            let checkpoint = checkpoint.unwrap_or_else(|error| panic!("{error}"));
            let ignored = checkpoint.ignored();
            assert!(ignored.iter().all(|ignored| ignored.tensor.is_none()), "{name}: {ignored:?}");
            checkpoint.into_graph()
        };
        let (file, folder) = (open(&format!("{name}.gguf")), open("folder"));
        let nodes =
            |graph: &Graph| format!("{:?}", graph.components.iter().map(|c| &c.nodes).collect::<Vec<_>>());
        assert!(nodes(&file) == nodes(&folder) && file.states == folder.states, "{name}");
        let tables = |graph: &Graph| graph.assets.iter().map(|asset| asset.table.clone()).collect::<Vec<_>>();
        let (mut of_file, mut of_folder) = (tables(&file), tables(&folder));
        of_file.extend(file.weights);
        of_folder.extend(folder.weights);
        assert_eq!(of_file.len(), of_folder.len());
        for (one, other) in of_file.iter().zip(&of_folder) {
            assert_eq!((&one.name, &one.shape), (&other.name, &other.shape));
            let (rows, width) = match one.shape[..] {
                [rows, width] => (rows as usize, width as usize),
                _ => (1, one.shape.iter().product::<u64>() as usize),
            };
            let (mut found, mut expected) = (vec![0.0; width], vec![0.0; width]);
            for row in (0..rows).step_by(cases(17, 1)) {
                assert!(one.decode_row(row, &mut found) && other.decode_row(row, &mut expected));
                assert!(found == expected, "{name}: {} row {row}", one.name);
            }
        }
    }
}

/// A file alone is enough: configuration, tokenizer and template come from it.
#[test]
fn a_file_alone_answers() {
    let Some(models) = models() else { return };
    let options = OpenOptions::new().search_path(search_path()).threads(2).context(256);
    let model = options.open(models.join("smollm2-135m/smollm2-135m.gguf"));
    let model = model.unwrap_or_else(|error| panic!("{error}"));
    let mut session = model.session().expect("a session");
    (session.options.sampling.do_sample, session.options.max_tokens) = (false, Some(16));
    let answer = session.chat("What is the capital of France?").expect("a reply").text().expect("text");
    // The answer must match the first page.
    assert!(tree::read("README.md".as_ref()).contains(&format!("`{answer}`")), "{answer}");
}

#[test]
fn gemma_3_270m_replies_as_transformers_does() {
    agrees("gemma3-270m");
}

#[test]
fn smollm2_135m_replies_as_transformers_does() {
    agrees("smollm2-135m");
}

/// Generates texts of every kind: pieces of the project's files, characters of many scripts, and
/// spellings of special tokens.
fn texts(count: usize) -> Vec<String> {
    let files = ["README.md", "docs/architecture.md", "host/text/src/sampler.rs", "demo-model/train.py"];
    let files = files.map(|file| tree::read(file.as_ref()).chars().collect::<Vec<char>>());
    let scripts = [
        ' '..='~',
        '\u{a0}'..='ſ',
        'Ͱ'..='ϻ',
        'Ѐ'..='џ',
        'ఀ'..='౿',
        'ぁ'..='ヾ',
        '一'..='丿',
        '가'..='갿',
        '🌀'..='🌟',
    ];
    let special =
        ["\n", "\n\n", "\t", "   ", "\r\n", "<bos>", "<|im_start|>", "[multimodal]", "▁▁", "'s", "<0x41>"];
    let mut random = Random::new(49, "texts");
    let mut below = |most: usize| random.below(most as u64) as usize;
    let mut text = || match below(3) {
        0 => {
            let file = &files[below(files.len())];
            let begin = below(file.len());
            file[begin..(begin + below(200)).min(file.len())].iter().collect()
        }
        1 => {
            let script = &scripts[below(scripts.len())];
            let characters: Vec<char> = script.clone().collect();
            (0..below(40)).map(|_| characters[below(characters.len())]).collect()
        }
        _ => {
            let mut text = String::new();
            for _ in 0..below(12) {
                let characters: Vec<char> = scripts[below(scripts.len())].clone().collect();
                text.push_str(special[below(special.len())]);
                text.push(characters[below(characters.len())]);
            }
            text
        }
    };
    (0..count).map(|_| text()).collect()
}

/// The folder's tokenizer is the one that transformers converts from the file.
#[test]
fn texts_become_the_ids_of_transformers_conversion() {
    let Some(models) = models() else { return };
    for name in ["gemma3-270m", "smollm2-135m"] {
        let tokenizer = |part: &str| {
            Tokenizer::from_checkpoint(models.join(name).join(part)).unwrap_or_else(|error| panic!("{error}"))
        };
        let (file, folder) = (tokenizer(&format!("{name}.gguf")), tokenizer("folder"));
        let mut compared = 0;
        for text in texts(cases(2_000, 100_000)) {
            // The conversion has no split of its own for this model, which separates digits from
            // other characters.
            if name == "smollm2-135m" && text.contains(char::is_numeric) {
                continue;
            }
            let ids = |tokenizer: &Tokenizer| tokenizer.encode(&text, true).expect("ids");
            assert_eq!(ids(&file), ids(&folder), "{name}: {text:?}");
            compared += 1;
        }
        assert!(compared > cases(1_000, 50_000), "{compared}");
    }
}
