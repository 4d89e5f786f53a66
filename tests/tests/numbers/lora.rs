//! Models with adapters, compared with a checkpoint that has the merged weights in its file.

use std::fs;
use std::path::Path;

use serde_json::Value;
use shardwright::tools::ModelTools;
use shardwright::{LoraScale, Model, OpenOptions, WeightRounding};
use shardwright_models::Checkpoint;
use shardwright_tests::program::search_path;
use shardwright_tests::tree;
use shardwright_vocabulary::{Lora, Pass};

const BASE: &str = "tests/fixtures/tinyllama";
const ADAPTER: &str = "tests/fixtures/lora/tinyllama";

/// Writes the checkpoint with other bytes in place of the tensors of these names.
fn write_merged(into: &Path, changed: &[(String, Vec<u8>)]) {
    let base = tree::root().join(BASE);
    for entry in fs::read_dir(&base).expect("a folder").flatten() {
        fs::copy(entry.path(), into.join(entry.file_name())).expect("copied");
    }
    let mut bytes = fs::read(base.join("model.safetensors")).expect("weights");
    let end = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("eight")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..end]).expect("JSON");
    for (name, values) in changed {
        let first = end + header[name]["data_offsets"][0].as_u64().expect("an offset") as usize;
        bytes[first..first + values.len()].copy_from_slice(values);
    }
    fs::write(into.join("model.safetensors"), bytes).expect("written");
}

fn reply(model: &Model) -> Vec<u32> {
    let mut session = model.session().expect("a session");
    session.options.sampling.do_sample = false;
    session.options.max_tokens = Some(24);
    session.complete("In the beginning").expect("a reply").text().expect("text");
    session.tokens().to_vec()
}

#[test]
fn quantised_and_stored_models_see_the_merged_weights() {
    let scale = LoraScale::default();
    let lora = Lora { folder: tree::root().join(ADAPTER), scale };
    let adapted = Checkpoint::open_adapted(tree::root().join(BASE), &[Pass::Step], &[lora]).expect("it fits");
    let plain = Checkpoint::open(tree::root().join(BASE)).expect("a checkpoint");
    let tables = adapted.graph().assets.iter().map(|asset| &asset.table);
    let changed: Vec<(String, Vec<u8>)> = adapted
        .graph()
        .weights
        .iter()
        .chain(tables)
        .map(|weight| (weight.name.clone(), weight.data.bytes().to_vec()))
        .collect();
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_merged(folder.path(), &changed);
    assert_ne!(adapted.content_hash(), plain.content_hash());
    for formats in ["stored", "w8-per-channel/f32/f32", "w4-block32/f32/f32"] {
        let options = OpenOptions::new().search_path(search_path()).threads(2).context(64);
        let options = options.formats(formats.parse().expect("formats")).rounding(WeightRounding::Nearest);
        let merged = options.open(folder.path()).expect("it opens");
        let found = options.clone().lora(tree::root().join(ADAPTER), scale).open(tree::root().join(BASE));
        let found = found.expect("it opens");
        let base = options.open(tree::root().join(BASE)).expect("it opens");
        assert_eq!(reply(&found), reply(&merged), "{formats}");
        assert_ne!(reply(&found), reply(&base), "{formats}");
        // Tables do not belong to a shard.
        let table = |model: &Model| model.chain().assets()[0].table.data.bytes().to_vec();
        assert!(table(&found) == table(&merged) && table(&found) != table(&base), "{formats}");
    }
}
