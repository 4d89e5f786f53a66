//! Output matrices that are stored next to the embedding of a tied model.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use shardwright_graph::Weight;
use shardwright_models::{Checkpoint, Outline};
use shardwright_test_checkpoints::{Spec, write_gguf};
use tempfile::TempDir;

const EMBEDDING: &str = "model.embed_tokens.weight";

/// Writes a tied fixture with an output matrix, whose bytes `change` makes from the embedding's.
fn with_head(change: impl FnOnce(&mut Vec<u8>)) -> TempDir {
    let fixture = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/gemma3_text");
    let folder = TempDir::new().unwrap();
    fs::copy(fixture.join("config.json"), folder.path().join("config.json")).unwrap();
    let bytes = fs::read(fixture.join("model.safetensors")).unwrap();
    let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..end]).unwrap();
    let mut data = bytes[end..].to_vec();
    let place = &header[EMBEDDING];
    let [first, last] = [0, 1].map(|index| place["data_offsets"][index].as_u64().unwrap() as usize);
    let mut head = data[first..last].to_vec();
    change(&mut head);
    let mut entry = place.clone();
    entry["data_offsets"] = json!([data.len(), data.len() + head.len()]);
    header["lm_head.weight"] = entry;
    data.extend(head);
    let mut text = header.to_string();
    text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
    let file = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &data].concat();
    fs::write(folder.path().join("model.safetensors"), file).unwrap();
    folder
}

fn head(checkpoint: &Checkpoint) -> &Weight {
    checkpoint.graph().weights.iter().find(|weight| weight.part == "head").unwrap()
}

#[test]
fn a_stored_head_counts_if_it_differs_from_the_embedding() {
    let differs = with_head(|bytes| bytes[5] ^= 1);
    let checkpoint = Checkpoint::open(differs.path()).unwrap();
    assert_eq!(head(&checkpoint).name, "lm_head.weight");
    assert!(!checkpoint.facts().tied);
    assert!(checkpoint.unused_tensors().is_empty());
    let note = "`lm_head.weight` is the output matrix although `tie_word_embeddings` is set";
    assert!(checkpoint.notes().iter().any(|found| found.starts_with(note)), "{:?}", checkpoint.notes());

    let equal = with_head(|_| ());
    let checkpoint = Checkpoint::open(equal.path()).unwrap();
    assert_eq!(head(&checkpoint).name, EMBEDDING);
    assert!(checkpoint.facts().tied && checkpoint.notes().is_empty(), "{:?}", checkpoint.notes());
    assert!(checkpoint.unused_tensors().is_empty());
}

/// Headers alone do not show whether the matrix differs.
#[test]
fn a_plan_before_the_download_reports_a_stored_head() {
    let folder = with_head(|bytes| bytes[5] ^= 1);
    only_header(&folder.path().join("model.safetensors"));
    let outline = Outline::open(folder.path()).unwrap();
    let note = "`lm_head.weight` is stored although `tie_word_embeddings` is set";
    assert!(outline.notes().iter().any(|found| found.starts_with(note)), "{:?}", outline.notes());
}

fn only_header(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    bytes.truncate(8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize);
    fs::write(path, bytes).unwrap();
}

/// The `config.json` next to a GGUF file replaces its metadata, but not its output matrix.
#[test]
fn the_output_matrix_of_a_gguf_file_counts_too() {
    let folder = TempDir::new().unwrap();
    let spec = Spec { vocabulary: 400, dtype: "F16", tied: false, ..Spec::qwen3() };
    write_gguf(&spec, "toy", &folder.path().join("toy.gguf")).unwrap();
    for tied in [false, true] {
        let mut config = spec.config();
        config["tie_word_embeddings"] = json!(tied);
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        assert_eq!(head(&checkpoint).name, "lm_head.weight");
        assert!(!checkpoint.facts().tied && checkpoint.unused_tensors().is_empty());
        let is_reported =
            checkpoint.notes().iter().any(|note| note.contains("is the output matrix although"));
        assert_eq!(is_reported, tied, "{:?}", checkpoint.notes());
    }
}
