//! Damaged checkpoints: copies of a fixture, each with one fault.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use shardwright_test_checkpoints::cases;
use tempfile::TempDir;

use crate::tree;

/// Folders of the golden fixtures that generate text, relative to the root.
pub const TEXT_FIXTURES: [&str; 4] = [
    "tests/fixtures/gemma3_text",
    "tests/fixtures/gemma4_text",
    "tests/fixtures/gemma4_mm",
    "tests/fixtures/qwen3",
];

/// Fixtures of families that differ from one of [`TEXT_FIXTURES`] in few operations. Llama has two
/// scalings of positions and its own output matrix. Mistral has windows in all and in some layers.
/// Qwen 2 has biases, and SmolLM3 a layer without rotation. Granite has factors. Granite 4 and Phi
/// 4 mini have matrices in one tensor, the latter with partial rotation.
pub const FURTHER_FIXTURES: [&str; 10] = [
    "tests/fixtures/llama",
    "tests/fixtures/llama3",
    "tests/fixtures/tinyllama",
    "tests/fixtures/mistral",
    "tests/fixtures/ministral",
    "tests/fixtures/qwen2",
    "tests/fixtures/smollm3",
    "tests/fixtures/granite",
    "tests/fixtures/granite4",
    "tests/fixtures/phi4mini",
];

/// Returns the [`FURTHER_FIXTURES`] for vendors' shims. Unless a run is thorough, these are the
/// families that differ most from others: by scaled positions, biases, multipliers and fused
/// projections.
pub fn further_cases() -> &'static [&'static str] {
    const SAMPLE: &[&str] = &[
        "tests/fixtures/llama3",
        "tests/fixtures/qwen2",
        "tests/fixtures/granite",
        "tests/fixtures/phi4mini",
    ];
    cases(SAMPLE, &FURTHER_FIXTURES)
}

/// Returns the folders of all fixtures that generate text.
pub fn text_fixtures() -> impl Iterator<Item = &'static str> {
    TEXT_FIXTURES.into_iter().chain(FURTHER_FIXTURES)
}

/// The fixture with towers for pictures and sounds. Its text model is one of [`TEXT_FIXTURES`].
pub const MULTIMODAL_FIXTURE: &str = "tests/fixtures/gemma4_mm";

/// The fixture that computes sentence vectors.
pub const EMBEDDING_FIXTURE: &str = "tests/fixtures/embeddinggemma";

/// All fixtures that compute sentence vectors. The second one has per-layer inputs.
pub const EMBEDDING_FIXTURES: [&str; 2] = [EMBEDDING_FIXTURE, "tests/fixtures/embeddinggemma2"];

/// Folder of the trained demo model.
pub const DEMO_MODEL: &str = "demo-model";

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("a fixture") {
        let path = entry.expect("a fixture's file").path();
        let copied = to.join(path.file_name().expect("files have names"));
        if path.is_dir() {
            fs::create_dir(&copied).expect("a folder");
            copy(&path, &copied);
        } else {
            fs::copy(&path, copied).expect("copied");
        }
    }
}

/// A private copy of a fixture, deleted on drop. Its methods panic if the fixture is not as
/// expected.
#[derive(Debug)]
pub struct Copy {
    folder: TempDir,
}

impl Copy {
    /// Copies a fixture's folder.
    pub fn of(fixture: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        copy(&tree::root().join(fixture), folder.path());
        Self { folder }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the path of a file of the copy.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub fn without(self, name: &str) -> Self {
        fs::remove_file(self.file(name)).expect("removed");
        self
    }

    /// Replaces a file's bytes.
    pub fn with(self, name: &str, bytes: impl AsRef<[u8]>) -> Self {
        fs::write(self.file(name), bytes).expect("written");
        self
    }

    /// Changes a file's bytes.
    pub fn changed(self, name: &str, change: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut bytes = fs::read(self.file(name)).expect("read");
        change(&mut bytes);
        self.with(name, bytes)
    }

    /// Changes a JSON file's value.
    pub fn json(self, name: &str, change: impl FnOnce(&mut Value)) -> Self {
        self.changed(name, |bytes| {
            let mut value = serde_json::from_slice(bytes).expect("JSON");
            change(&mut value);
            *bytes = serde_json::to_vec(&value).expect("JSON");
        })
    }

    /// Truncates `model.safetensors` to its header.
    pub fn only_header(self) -> Self {
        self.changed("model.safetensors", |bytes| {
            let length = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
            bytes.truncate(8 + usize::try_from(length).expect("a small header"));
        })
    }

    /// Adds a tensor of 32-bit floats to `model.safetensors`.
    pub fn tensor(self, name: &str, values: &[f32]) -> Self {
        let added = self.header(|header| {
            let tensors = header.as_object().expect("tensors").values();
            let ends = tensors.filter_map(|tensor| tensor["data_offsets"][1].as_u64());
            let end = ends.max().expect("a tensor");
            let offsets = [end, end + 4 * values.len() as u64];
            header[name] = json!({"dtype": "F32", "shape": [values.len()], "data_offsets": offsets});
        });
        added.changed("model.safetensors", |bytes| {
            bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        })
    }

    /// Changes the data of a tensor of `model.safetensors`.
    pub fn stored(self, name: &str, change: impl FnOnce(&mut [u8])) -> Self {
        self.changed("model.safetensors", |bytes| {
            let length = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
            let data = 8 + usize::try_from(length).expect("a small header");
            let header: Value = serde_json::from_slice(&bytes[8..data]).expect("JSON");
            let offset = |side: usize| header[name]["data_offsets"][side].as_u64().expect("an offset");
            let [begin, end] = [0, 1].map(|side| data + usize::try_from(offset(side)).expect("small"));
            change(&mut bytes[begin..end]);
        })
    }

    /// Makes the last norm so large that logits are not numbers, although all weights are finite.
    pub fn overflowing(self) -> Self {
        // The largest numbers of bf16 are a little greater.
        self.stored("model.norm.weight", |bytes| bytes.fill(0x7f))
    }

    /// Changes the header of `model.safetensors` and keeps its data.
    pub fn header(self, change: impl FnOnce(&mut Value)) -> Self {
        self.changed("model.safetensors", |bytes| {
            let length = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
            let end = 8 + usize::try_from(length).expect("a small header");
            let mut header = serde_json::from_slice(&bytes[8..end]).expect("JSON");
            change(&mut header);
            let mut text = serde_json::to_vec(&header).expect("JSON");
            text.resize(text.len().next_multiple_of(8), b' ');
            let mut file = (text.len() as u64).to_le_bytes().to_vec();
            file.extend(text);
            file.extend_from_slice(&bytes[end..]);
            *bytes = file;
        })
    }
}
