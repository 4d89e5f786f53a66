//! Bundles compiled by the program, and their contents.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use shardwright::Model;
use shardwright::tools::ModelTools;
use shardwright_bundle::{Bundle, BundleWriter, FileReference};
use tempfile::TempDir;

use crate::chain::tokens_below;
use crate::program::{Run, shardwright};

/// The files of a bundle, once it is compiled.
type Made = Arc<OnceLock<BTreeMap<PathBuf, Vec<u8>>>>;

/// Bundles compiled in this process, by the words of the command.
static MADE: Mutex<BTreeMap<Vec<OsString>, Made>> = Mutex::new(BTreeMap::new());

/// A bundle in a temporary folder, which is deleted on drop.
#[derive(Debug)]
pub struct Compiled {
    folder: TempDir,
}

impl Compiled {
    /// Compiles a checkpoint with `shardwright compile` and no options, like [`Compiled::from`].
    ///
    /// # Panics
    /// If that fails.
    pub fn of(checkpoint: impl AsRef<OsStr>) -> Self {
        Self::from(checkpoint, [] as [&str; 0])
    }

    /// Compiles a checkpoint with `shardwright compile`. What is compiled from files of the tree
    /// alone is compiled once in this process and copied for every caller.
    ///
    /// # Panics
    /// If that fails.
    pub fn from<A: AsRef<OsStr>>(
        checkpoint: impl AsRef<OsStr>,
        arguments: impl IntoIterator<Item = A>,
    ) -> Self {
        let mut words = vec![checkpoint.as_ref().to_owned()];
        words.extend(arguments.into_iter().map(|word| word.as_ref().to_owned()));
        // Absolute paths lead to files of a single test, which may change.
        if words.iter().any(|word| Path::new(word).is_absolute()) {
            return Self::by(shardwright(["compile"]).arguments(words));
        }
        let made = Arc::clone(MADE.lock().expect("no panic").entry(words.clone()).or_default());
        let compile = || contents(&Self::by(shardwright(["compile"]).arguments(words)).path());
        Self::copy_of(made.get_or_init(compile))
    }

    fn copy_of(files: &BTreeMap<PathBuf, Vec<u8>>) -> Self {
        let copy = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        write_contents(files, &copy.path());
        copy
    }

    /// Compiles with a command to which only the output path is added.
    ///
    /// # Panics
    /// If that fails.
    pub fn by(run: Run) -> Self {
        let compiled = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        run.argument("-o").argument(compiled.path()).succeeds();
        compiled
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("bundle")
    }

    /// Returns the path of the manifest.
    pub fn manifest(&self) -> PathBuf {
        self.path().join("bundle.json")
    }

    /// Returns the manifest as JSON.
    ///
    /// # Panics
    /// If it is not valid JSON.
    pub fn manifest_json(&self) -> serde_json::Value {
        let bytes = fs::read(self.manifest()).expect("a manifest");
        let whole: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
        whole["manifest"].clone()
    }

    /// Returns the only variant as JSON.
    ///
    /// # Panics
    /// If there are several variants.
    pub fn variant_json(&self) -> serde_json::Value {
        let manifest = self.manifest_json();
        assert_eq!(manifest["variants"].as_array().map(Vec::len), Some(1), "one variant");
        manifest["variants"][0].clone()
    }

    /// Returns the path of the file that a reference in the manifest names.
    ///
    /// # Panics
    /// If the value is not a reference.
    pub fn file(&self, reference: &serde_json::Value) -> PathBuf {
        let name = reference["sha256"].as_str().unwrap_or_else(|| panic!("no reference: {reference}"));
        self.path().join("files").join(name)
    }

    /// Returns every file with the field of the manifest that names it, and its path.
    ///
    /// # Panics
    /// If it is not a bundle.
    pub fn references(&self) -> Vec<(String, PathBuf, FileReference)> {
        let bundle = Bundle::open(self.path()).unwrap_or_else(|error| panic!("{error}"));
        let path = |file: &FileReference| bundle.place(file).expect("it is there").path;
        let references = bundle.manifest().references().into_iter();
        references.map(|(used_as, file)| (used_as, path(&file), file)).collect()
    }

    /// Copies the bundle's files to another temporary folder.
    ///
    /// # Panics
    /// If they cannot be copied.
    pub fn copied(&self) -> Self {
        Self::copy_of(&contents(&self.path()))
    }
}

/// Reads every file below a folder, by relative path.
///
/// # Panics
/// If a file cannot be read.
pub fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap_or_else(|error| panic!("{}: {error}", next.display())) {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let bytes = fs::read(&path).expect("read");
                found.insert(path.strip_prefix(folder).expect("below").to_owned(), bytes);
            }
        }
    }
    found
}

/// Writes files as [`contents`] returns them below a folder, which is made.
///
/// # Panics
/// If a file cannot be written.
pub fn write_contents(files: &BTreeMap<PathBuf, Vec<u8>>, folder: &Path) {
    for (path, bytes) in files {
        let to = folder.join(path);
        fs::create_dir_all(to.parent().expect("a folder")).expect("made");
        fs::write(to, bytes).expect("written");
    }
}

/// Changes a bit in the middle of a file.
///
/// # Panics
/// If it cannot be read and written, or is empty.
pub fn damage(file: &Path) {
    let mut bytes = fs::read(file).expect("read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(file, bytes).expect("written");
}

/// Rewrites the goldens of a bundle and updates their hash. If `change` returns `None`, the goldens
/// are removed.
///
/// # Panics
/// If the path is not a bundle, or the bundle has no goldens.
pub fn with_goldens(bundle: &Path, change: impl FnOnce(serde_json::Value) -> Option<serde_json::Value>) {
    let opened = Bundle::open(bundle).unwrap_or_else(|error| panic!("{error}"));
    let file = opened.manifest().goldens.expect("goldens");
    let goldens = serde_json::from_slice(&opened.read(&file).expect("read")).expect("JSON");
    let mut writer = BundleWriter::create(bundle).unwrap_or_else(|error| panic!("{error}"));
    let mut manifest = writer.previous().cloned().expect("a manifest");
    let bytes = change(goldens).map(|goldens| goldens.to_string());
    manifest.goldens = bytes.map(|bytes| writer.add_bytes(bytes.as_bytes()).expect("added"));
    writer.finish(&manifest).unwrap_or_else(|error| panic!("{error}"));
}

/// Returns the bits of the logits after `prompt` and after each single token of `further`, for
/// models that generate.
///
/// # Panics
/// If the model refuses.
pub fn logits(model: &Model, prompt: &[u32], further: &[u32]) -> Vec<Vec<u32>> {
    let mut session = model.chain().session().unwrap_or_else(|error| panic!("{error}"));
    let mut seen = Vec::new();
    for ids in std::iter::once(prompt).chain(further.chunks(1)) {
        session.append(ids).unwrap_or_else(|error| panic!("{error}"));
        let logits = session.logits().expect("logits follow an append");
        seen.push(logits.iter().map(|value| value.to_bits()).collect());
    }
    seen
}

/// Returns `count` tokens of a model's vocabulary without a pattern, the same ones every time.
pub fn some_tokens(model: &Model, count: usize) -> Vec<u32> {
    tokens_below(model.chain().description().structure.vocabulary.max(2), count)
}
