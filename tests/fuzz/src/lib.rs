//! Fuzz targets for the readers of the host's input: checkpoints in every format, bundles and the
//! packages around them, artefacts' heads, signatures, plans, work orders, tokenizers, templates,
//! saved sessions, grammars, and calls of tools in replies.
//!
//! **Job.** One function per kind, which must return for any bytes, and returns whether they were
//! accepted. Hashes, lengths and signatures are corrected first, because they would otherwise
//! reject every mutation. `RUSTC_BOOTSTRAP=1 cargo fuzz run -s none TARGET`
//! runs them from `tests`, and the ordinary tests run them on the corpus and on damaged copies of
//! it.
//!
//! **Not its job.** It does **not** check that valid input is read correctly: the tests of each
//! crate do.

mod grammars;
mod tool_calls;

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use shardwright::tools::read_saved_session;
use shardwright_build::{Learned, LearnedLimit};
use shardwright_bundle::{Bundle, Digest};
use shardwright_files::Section;
use shardwright_gguf::{Head, Value};
use shardwright_graph::Graph;
use shardwright_models::Opened;
use shardwright_planning::check::check;
use shardwright_planning::plan::Plan;
use shardwright_planning::request::Request;
use shardwright_shims::{Heads, WorkOrder};
use shardwright_text::{
    ChatTemplate, GenerationConfig, IndexBytes, Message, RenderOptions, TemplateValue, Tokenizer,
};
use shardwright_trust::{ENVELOPE_BYTES, Envelope, Kind, Revocations, SecretKey, Statement};
use shardwright_vocabulary::{Lora, LoraScale, Pass};

pub use grammars::grammar;
pub use tool_calls::calls;

/// A target: its name and its function, which returns whether the bytes were accepted.
pub type Target = (&'static str, fn(&[u8]) -> bool);

/// All targets by name.
pub const TARGETS: &[Target] = &[
    ("checkpoint", checkpoint),
    ("lora", lora),
    ("gguf", gguf),
    ("gguf_head", gguf_head),
    ("gguf_alone", gguf_alone),
    ("quantised", quantised),
    ("manifest", manifest),
    ("packed", packed),
    ("package", package),
    ("heads", heads),
    ("learned", learned),
    ("envelope", envelope),
    ("revocations", revocations),
    ("tokenizer", tokenizer),
    ("tokenizer_index", tokenizer_index),
    ("plan", plan),
    ("work_order", work_order),
    ("template", template),
    ("session", session),
    ("grammar", grammar),
    ("calls", calls),
];

/// Largest number of bytes of weights in a weight file. They occupy no disk space.
const MOST_WEIGHTS: u64 = 1 << 24;

/// Splits a text into two parts. The length of the first part comes before it.
fn parts(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_at_checked(4)?;
    let length = u32::from_le_bytes(length.try_into().ok()?);
    rest.split_at_checked(usize::try_from(length).ok()?)
}

/// Joins two parts into one text, for the corpus.
pub fn joined(first: &[u8], second: &[u8]) -> Vec<u8> {
    [&(first.len() as u32).to_le_bytes(), first, second].concat()
}

/// Reads settings, then the head of a weight file after the number of its weights' bytes, which are
/// zero.
pub fn checkpoint(bytes: &[u8]) -> bool {
    let Some((settings, weights)) = parts(bytes) else { return false };
    let Some((length, head)) = weights.split_at_checked(8) else { return false };
    let Ok(folder) = tempfile::tempdir() else { return false };
    let file = folder.path().join("model.safetensors");
    let length = length.try_into().map_or(0, u64::from_le_bytes).min(MOST_WEIGHTS);
    let made = std::fs::write(folder.path().join("config.json"), settings)
        .and_then(|()| std::fs::write(&file, head))
        .and_then(|()| std::fs::OpenOptions::new().write(true).open(&file))
        .and_then(|file| file.set_len(head.len() as u64 + length));
    if made.is_err() {
        return false;
    }
    match Opened::open(folder.path()) {
        Ok(Opened::Whole(checkpoint)) => {
            let _ = (checkpoint.facts(), checkpoint.content_hash(), checkpoint.graph().layers());
        }
        Ok(Opened::Outline(outline)) => {
            let _ = (outline.download_bytes(), outline.lack().is_some(), outline.graph().layers());
        }
        Err(_) => return false,
    }
    true
}

/// The checkpoint that adapters are merged into.
const LORA_BASE: [(&str, &[u8]); 2] = [
    ("config.json", include_bytes!("../../fixtures/phi4mini/config.json")),
    ("model.safetensors", include_bytes!("../../fixtures/phi4mini/model.safetensors")),
];

/// Reads the settings of an adapter, then its tensors, and merges it into a small checkpoint.
pub fn lora(bytes: &[u8]) -> bool {
    thread_local! {
        static BASE: Option<tempfile::TempDir> = tempfile::tempdir().ok().filter(|folder| {
            LORA_BASE.iter().all(|(name, bytes)| std::fs::write(folder.path().join(name), bytes).is_ok())
        });
    }
    let Some((settings, tensors)) = parts(bytes) else { return false };
    let Ok(folder) = tempfile::tempdir() else { return false };
    let made = std::fs::write(folder.path().join("adapter_config.json"), settings)
        .and_then(|()| std::fs::write(folder.path().join("adapter_model.safetensors"), tensors));
    let adapter = Lora { folder: folder.path().to_owned(), scale: LoraScale::default() };
    BASE.with(|base| {
        let Some(base) = base.as_ref().filter(|_| made.is_ok()) else { return false };
        match Opened::open_adapted(base.path(), &[Pass::Step], &[adapter]) {
            Ok(Opened::Whole(checkpoint)) => {
                decode(checkpoint.graph());
                true
            }
            Ok(Opened::Outline(_)) | Err(_) => false,
        }
    })
}

/// Reads settings, then a GGUF file.
pub fn gguf(bytes: &[u8]) -> bool {
    whole_checkpoint(bytes, "model.gguf")
}

/// Reads the head of a GGUF file in memory, and everything that it describes. Without files and a
/// tokenizer it runs hundreds of times as often as [`gguf_alone`].
pub fn gguf_head(bytes: &[u8]) -> bool {
    let Ok(head) = Head::read(Path::new("model.gguf"), bytes) else { return false };
    let mut items = 0_u64;
    for (key, value) in head.metadata.entries() {
        let shown = value.shown();
        assert!(shown.chars().count() <= 40 && head.metadata.get(key).is_some());
        if let Value::List(list) = value {
            items += list.iter().count() as u64;
            assert!(list.numbers().is_none_or(|numbers| numbers.count() as u64 == list.len()));
            assert!(list.texts().is_none_or(|texts| texts.count() as u64 == list.len()));
        }
    }
    // Every item has a byte, or is a list with a type and a length.
    assert!(items <= bytes.len() as u64);
    for tensor in &head.tensors {
        let stored = bytes.get(tensor.begin as usize..(tensor.begin + tensor.length) as usize);
        if let Some(values) = stored.and_then(|stored| tensor.kind.values(stored)) {
            assert_eq!(values.len() as u64, tensor.shape.iter().product::<u64>());
        }
    }
    true
}

/// Reads a GGUF file without settings: the model, its tokenizer and its chat template.
pub fn gguf_alone(bytes: &[u8]) -> bool {
    thread_local! {
        // One folder for all runs, because creating millions of folders would need more time than
        // the target.
        static FOLDER: Option<tempfile::TempDir> = tempfile::tempdir().ok();
    }
    FOLDER.with(|folder| {
        let Some(file) = folder.as_ref().map(|folder| folder.path().join("model.gguf")) else { return false };
        if std::fs::write(&file, bytes).is_err() {
            return false;
        }
        let model = match Opened::open(&file) {
            Ok(Opened::Whole(checkpoint)) => {
                decode(checkpoint.graph());
                true
            }
            Ok(Opened::Outline(_)) | Err(_) => false,
        };
        let tokenizer = Tokenizer::from_checkpoint(&file);
        if let Ok(tokenizer) = &tokenizer
            && let Ok(ids) = tokenizer.encode("A text, 12 Grüße\n<bos>", true)
        {
            let _ = tokenizer.decode(&ids, true);
        }
        let rest =
            (GenerationConfig::from_directory(&file).is_ok(), ChatTemplate::from_directory(&file).is_ok());
        model && tokenizer.is_ok() && rest == (true, true)
    })
}

/// Reads settings with quantisation, then a safetensors file.
pub fn quantised(bytes: &[u8]) -> bool {
    whole_checkpoint(bytes, "model.safetensors")
}

/// Opens settings and a weight file, and reads every value.
fn whole_checkpoint(bytes: &[u8], name: &str) -> bool {
    let Some((settings, weights)) = parts(bytes) else { return false };
    let Ok(folder) = tempfile::tempdir() else { return false };
    let made = std::fs::write(folder.path().join("config.json"), settings)
        .and_then(|()| std::fs::write(folder.path().join(name), weights));
    let Ok(Opened::Whole(checkpoint)) =
        made.map_err(drop).and_then(|()| Opened::open(folder.path()).map_err(drop))
    else {
        return false;
    };
    decode(checkpoint.graph());
    true
}

/// Reads every value of every weight.
fn decode(graph: &Graph) {
    let weights = graph.weights.iter().chain(graph.assets.iter().map(|asset| &asset.table));
    for weight in weights {
        let mut row = vec![0.0; weight.row_width()];
        (0..weight.rows()).for_each(|index| assert!(weight.decode_row(index, &mut row)));
    }
}

/// The envelope of a manifest: the text before the hash's digits, and their number.
const SEAL: &[u8] = b"{\"shardwright-bundle\":4,\"sha256\":\"";
const DIGITS: usize = 64;

/// Reads a manifest in a bundle without other files. A manifest that names a file counts as
/// accepted if only that file is missing.
pub fn manifest(bytes: &[u8]) -> bool {
    let mut bytes = bytes.to_vec();
    if let Some(after) = bytes.strip_prefix(SEAL).and_then(|rest| rest.get(DIGITS..)) {
        let sum = Digest::of(&[SEAL, after].concat()).to_string();
        bytes[SEAL.len()..SEAL.len() + DIGITS].copy_from_slice(sum.as_bytes());
    }
    let Ok(folder) = tempfile::tempdir() else { return false };
    if std::fs::write(folder.path().join("bundle.json"), &bytes).is_err() {
        return false;
    }
    match Bundle::open(folder.path()) {
        Ok(bundle) => bundle.verify_all(|_| ()).is_ok(),
        Err(error) => is_elsewhere(&error, folder.path()),
    }
}

/// Largest size of a packed bundle in bytes, most of them zeros.
const MOST_PACKED: u64 = 16 << 20;

/// Reads a packed bundle in which zeros are counted: runs of bytes, each after the number of zeros
/// before it and its length. A bundle counts as accepted if only the hashes of its parts are wrong.
pub fn packed(bytes: &[u8]) -> bool {
    thread_local! {
        // One file without a name for all runs. Its zeros are holes, which are not written.
        static FILE: Option<File> = tempfile::tempfile().ok();
    }
    FILE.with(|file| {
        let path = Path::new("fuzzed.swb");
        let section = file.as_ref().and_then(|file| {
            expanded(bytes, file).ok()?;
            Section::whole(path, file.try_clone().ok()?).ok()
        });
        match section.map(Bundle::open_section) {
            Some(Ok(bundle)) => bundle.verify_all(|_| ()).is_ok(),
            Some(Err(error)) => {
                error.message().starts_with("damaged: expected SHA-256")
                    && error.place().is_some_and(|place| !place.ends_with("bundle.json"))
            }
            None => false,
        }
    })
}

/// Writes the runs, with holes between them.
fn expanded(mut bytes: &[u8], mut to: &File) -> std::io::Result<()> {
    let number = |rest: &mut &[u8]| {
        let (number, after) = rest.split_first_chunk::<4>()?;
        *rest = after;
        Some(u64::from(u32::from_le_bytes(*number)))
    };
    to.set_len(0)?;
    let mut length = 0;
    while let (Some(zeros), Some(run)) = (number(&mut bytes), number(&mut bytes)) {
        length = (length + zeros).min(MOST_PACKED);
        let (run, rest) = bytes.split_at(bytes.len().min(run as usize));
        to.seek(SeekFrom::Start(length))?;
        to.write_all(run)?;
        length += run.len() as u64;
        bytes = rest;
    }
    to.set_len(length)
}

/// Encodes bytes with their zeros counted, for the corpus.
pub fn collapsed(bytes: &[u8]) -> Vec<u8> {
    const LEAST: usize = 64;
    let (mut found, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let zeros = rest.iter().take_while(|byte| **byte == 0).count();
        let after = &rest[zeros..];
        let run = after.windows(LEAST).position(|window| window.iter().all(|byte| *byte == 0));
        let run = run.unwrap_or(after.len());
        found.extend((zeros as u32).to_le_bytes());
        found.extend((run as u32).to_le_bytes());
        found.extend_from_slice(&after[..run]);
        rest = &after[run..];
    }
    found
}

/// Checks whether an error is about another file than the manifest.
fn is_elsewhere(error: &dyn std::error::Error, folder: &Path) -> bool {
    let text = error.to_string();
    text.contains(&folder.display().to_string()) && !text.contains("bundle.json")
}

/// Name of the entry that [`package`] looks for.
pub const ENTRY: &str = "assets/model.swb";

/// Reads an archive around a packed bundle, such as an app's package. It counts as accepted if the
/// entry is found, whatever its contents.
pub fn package(bytes: &[u8]) -> bool {
    thread_local! {
        static FOLDER: Option<tempfile::TempDir> = tempfile::tempdir().ok();
    }
    FOLDER.with(|folder| {
        let Some(file) = folder.as_ref().map(|folder| folder.path().join("app.apk")) else { return false };
        if std::fs::write(&file, bytes).is_err() {
            return false;
        }
        let entry = format!("{}!/{ENTRY}", file.display());
        match Bundle::open(&entry) {
            Ok(_) => true,
            // An error in the entry itself names its whole path.
            Err(error) => error.to_string().contains(ENTRY) && error.to_string().contains("another file"),
        }
    })
}

/// Reads a file of learned limits, which has no hash. The file counts as accepted if its limits are
/// read. Estimates and measured flags in the cache have no hash either. They are flat records, and
/// the tests of `shardwright-build` and `shardwright-shims` damage them.
pub fn learned(bytes: &[u8]) -> bool {
    thread_local! {
        static FOLDER: Option<tempfile::TempDir> = tempfile::tempdir().ok();
    }
    FOLDER.with(|folder| {
        let Some(folder) = folder.as_ref().map(tempfile::TempDir::path) else { return false };
        if std::fs::write(folder.join("limits.json"), bytes).is_err() {
            return false;
        }
        let files = Learned::kept_in(folder.to_owned()).list().unwrap_or_default();
        let [file] = &files[..] else { panic!("one file is listed: {files:?}") };
        let sound = |limit: &LearnedLimit| limit.value > 0;
        assert!(file.limits.iter().all(sound), "{:?}", file.limits);
        assert!(file.learned_of.is_some() || file.limits.is_empty() && file.fault.is_some());
        file.learned_of.is_some()
    })
}

/// Reads the heads of an artefact, as a bundle stores them.
pub fn heads(bytes: &[u8]) -> bool {
    let Ok(heads) = Heads::parse(Path::new("heads"), bytes) else { return false };
    assert_eq!(heads.to_bytes().ok().as_deref(), Some(bytes), "one spelling");
    true
}

/// Reads the envelope of a signature.
pub fn envelope(bytes: &[u8]) -> bool {
    let Ok(envelope) = Envelope::parse(Path::new("a.sig"), bytes) else { return false };
    assert_eq!(envelope.to_bytes()[..], *bytes, "one spelling");
    let _ = (envelope.is_signed(), envelope.statement().is_about(b"something"));
    true
}

/// Reads a list of revocations. Its envelope keeps its kind, name and number, and is signed again.
pub fn revocations(bytes: &[u8]) -> bool {
    let path = Path::new("list");
    let (head, payload) = bytes.split_at(bytes.len().min(ENVELOPE_BYTES));
    let Ok(envelope) = Envelope::parse(path, head) else { return false };
    let Statement { kind, name, release, .. } = envelope.statement();
    let Ok(statement) = Statement::of(*kind, name, *release, payload) else { return false };
    let envelope = Envelope::sign(&statement, &SecretKey::from_seed([7; 32]));
    let signed = [&envelope.to_bytes()[..], payload].concat();
    let Ok((list, is_valid)) = Revocations::inspect(path, &signed) else { return false };
    assert_eq!(is_valid, *kind == Kind::Revocations);
    let _ = (list.keys.len(), list.least.iter().map(|least| least.release).max());
    is_valid
}

/// Reads the file of a tokenizer, then encodes and decodes a text.
pub fn tokenizer(bytes: &[u8]) -> bool {
    Tokenizer::from_bytes(bytes, "tokenizer.json").is_ok_and(|tokenizer| works(&tokenizer))
}

/// Reads the hash of a tokenizer's file, then its index.
pub fn tokenizer_index(bytes: &[u8]) -> bool {
    let Some((source, index)) = bytes.split_first_chunk::<32>() else { return false };
    let index: IndexBytes = Arc::new(index.to_vec());
    Tokenizer::from_index(index, *source, "tokenizer.json").is_ok_and(|tokenizer| works(&tokenizer))
}

fn works(tokenizer: &Tokenizer) -> bool {
    let Ok(ids) = tokenizer.encode("A text, 12 Grüße\n<bos>", true) else { return false };
    let _ = (0..8).map(|id| tokenizer.id_to_token(id)).collect::<Vec<_>>();
    tokenizer.decode(&ids, true).is_ok()
}

/// Reads a plan, then its request.
pub fn plan(bytes: &[u8]) -> bool {
    let Some((plan, request)) = parts(bytes) else { return false };
    let Ok(request) = serde_json::from_slice::<Request>(request) else { return false };
    if request.validate().is_err() {
        return false;
    }
    let Ok(plan) = serde_json::from_slice::<Plan>(plan) else { return false };
    let _ = (plan.canonical_bytes(), request.canonical_bytes());
    match check(plan, &request) {
        Ok(checked) => {
            let _ = checked.loss();
            !checked.shards().is_empty()
        }
        Err(fault) => {
            let _ = fault.to_string();
            false
        }
    }
}

/// Offsets of the length of a work order's head, of its own length, and of the hash of everything
/// after the prefix.
const LENGTH_AT: usize = 24;
const HASH_AT: usize = 32;
const PREFIX: usize = 64;

/// Reads a work order.
pub fn work_order(bytes: &[u8]) -> bool {
    let mut bytes = bytes.to_vec();
    if bytes.len() >= PREFIX {
        let length = bytes.len() as u64;
        bytes[LENGTH_AT..HASH_AT].copy_from_slice(&length.to_le_bytes());
        let sum = Digest::of(&bytes[PREFIX..]).to_string();
        let digit = |at: usize| u8::from_str_radix(&sum[2 * at..2 * at + 2], 16).unwrap_or(0);
        (0..PREFIX - HASH_AT).for_each(|at| bytes[HASH_AT + at] = digit(at));
    }
    let Ok(file) = tempfile::NamedTempFile::new() else { return false };
    if std::fs::write(file.path(), &bytes).is_err() {
        return false;
    }
    let Ok(order) = WorkOrder::open(file.path()) else { return false };
    let sizes = |index| (order.weight_bytes(index).len(), order.scale_bytes(index).len());
    let _ = (0..order.head().weights.len()).map(sizes).collect::<Vec<_>>();
    order.interfaces().is_ok()
}

/// Length of the hash at the end of a saved session.
const SESSION_HASH: usize = 32;

/// Reads a saved session for a context of 512 positions and rows of 64 values. Its hash is
/// corrected.
pub fn session(bytes: &[u8]) -> bool {
    let mut bytes = bytes.to_vec();
    if let Some(end) = bytes.len().checked_sub(SESSION_HASH) {
        let sum = Digest::of(&bytes[..end]);
        bytes[end..].copy_from_slice(sum.bytes());
    }
    read_saved_session(&bytes, 512, 64).is_ok_and(|(turns, tokens)| turns <= bytes.len() && tokens <= 512)
}

/// Renders a chat template for a conversation with everything that templates read.
pub fn template(bytes: &[u8]) -> bool {
    let Ok(source) = std::str::from_utf8(bytes) else { return false };
    let tokens = [("bos_token", "<bos>"), ("eos_token", "<eos>")];
    let Ok(template) = ChatTemplate::from_source(source, "chat_template.jinja", &tokens) else {
        return false;
    };
    let messages = [
        Message::system("Answer shortly."),
        Message::user("How many legs has a spider?"),
        Message::assistant("Eight."),
        Message::user("{{ bos_token }} <|im_end|>"),
    ];
    let tools = r#"[{"type":"function","function":{"name":"count","parameters":{"type":"object"}}}]"#;
    let mut options = RenderOptions { now_unix_seconds: Some(0), ..RenderOptions::default() };
    let plain = template.render(&messages, &options).is_ok();
    options.tools = TemplateValue::from_json(tools, "tools").ok();
    let _ = template.render(&messages[1..2], &options.with_variable("enable_thinking", true));
    plain
}
