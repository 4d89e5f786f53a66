//! Pulls from local hubs, well-behaved and misbehaving ones.

mod answers;
mod hostile;
mod resumed;
mod server;

use std::path::Path;
use std::time::Duration;

use shardwright_hub::{Cache, HubId, PullReport, PullWatch, Settings, open};
use shardwright_vocabulary::{Error, ErrorKind, Result};

use crate::server::{Hub, Model};

/// Returns a file of `count` bytes that differs from files of other lengths.
fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at * 7 + at / 251 + count) as u8).collect()
}

/// Size of the weights in [`folder`].
const WEIGHTS: usize = 300_000;

/// Returns a model as a folder of safetensors, with additional files that are not needed.
fn folder() -> Model {
    Model::new(
        "a/b",
        [
            ("README.md", bytes(50)),
            ("config.json", b"{}".to_vec()),
            ("tokenizer.json", bytes(5000)),
            ("1_Pooling/config.json", b"{\"x\":1}".to_vec()),
            ("model.safetensors", bytes(WEIGHTS)),
            ("pytorch_model.bin", bytes(200)),
        ],
    )
}

/// Returns a model with one GGUF file.
fn gguf(count: usize) -> Model {
    Model::new("a/b", [("m-Q4_0.gguf", bytes(count))])
}

fn settings(hub: &Hub, cache: &Path) -> Settings {
    Settings {
        endpoint: hub.url.clone(),
        cache: Cache::new(cache),
        token: None,
        offline: false,
        backoff: Duration::from_millis(1),
        patience: Duration::from_secs(20),
    }
}

fn id(text: &str) -> HubId {
    text.parse().expect("an id")
}

fn pull(settings: &Settings, text: &str) -> Result<PullReport> {
    pull_watched(settings, text, &())
}

fn pull_watched(settings: &Settings, text: &str, watch: &dyn PullWatch) -> Result<PullReport> {
    open(settings, &id(text), None, watch)?.pull(watch)
}

/// Checks the kind of an error and a part of its text.
fn is(error: &Error, kind: ErrorKind, words: &str) {
    assert!(error.kind() == kind && error.to_string().contains(words), "{words}: {error:?}");
}

/// Returns a separate cache.
fn cache() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Returns the names of a model's blobs.
fn blobs(cache: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(cache.join("models--a--b/blobs")) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
