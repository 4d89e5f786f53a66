//! The location of a checkpoint's settings and tensors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use shardwright_gguf::model_at;
use shardwright_vocabulary::{Ignored, Result};

use crate::gguf::Configuration;
use crate::json::{self, CONFIG, Fields};
use crate::limits;
use crate::register::Seen;

/// A Hugging Face folder, or a GGUF model outside of one.
pub(crate) enum Source {
    Folder(PathBuf),
    /// The files. The file with the metadata is first.
    Gguf(Vec<PathBuf>),
}

/// The settings of a checkpoint.
pub(crate) struct Document {
    /// The file that the settings were read from.
    path: PathBuf,
    /// The settings in the form of `config.json`.
    pub bytes: Vec<u8>,
    value: Value,
    keys: BTreeMap<String, String>,
    /// Assumed facts that the file omits, as sentences.
    pub assumed: Vec<String>,
    seen: Seen,
}

impl Document {
    /// Returns the settings as fields.
    pub fn fields(&self) -> Result<Fields<'_>> {
        Ok(Fields::new(&self.path, &self.value)?.called(&self.keys).recorded(&self.seen))
    }

    /// Returns the fields that may matter and have not been read so far.
    pub fn ignored(&self) -> Vec<Ignored> {
        self.seen.ignored(&self.path, &self.value)
    }
}

impl Source {
    /// Finds the source at a path.
    pub fn of(path: &Path) -> Result<Self> {
        Ok(match model_at(path)? {
            Some(files) => Source::Gguf(files),
            None => Source::Folder(path.to_owned()),
        })
    }

    /// Returns the folder that contains modules and other files.
    pub fn folder(&self) -> &Path {
        match self {
            Source::Folder(folder) => folder,
            Source::Gguf(files) => files.first().and_then(|file| file.parent()).unwrap_or(Path::new("")),
        }
    }

    /// Reads `config.json`, or makes it from metadata.
    pub fn document(&self) -> Result<Document> {
        match self {
            Source::Folder(folder) => {
                let path = folder.join(CONFIG);
                let bytes = json::read_capped(&path, limits::CONFIG_BYTES)?;
                let value = json::parse(&path, &bytes)?;
                Ok(Document {
                    path,
                    bytes,
                    value,
                    keys: BTreeMap::new(),
                    assumed: Vec::new(),
                    seen: Seen::default(),
                })
            }
            Source::Gguf(files) => {
                let path = files.first().cloned().unwrap_or_default();
                let Configuration { value, keys, assumed } = Configuration::read(files)?;
                let bytes = serde_json::to_vec(&value).map_err(|error| json::not_json(&path, error))?;
                Ok(Document { path, bytes, value, keys, assumed, seen: Seen::default() })
            }
        }
    }
}

/// Returns the last part of a path, even if the path is `.`. A snapshot in the cache of a hub,
/// `models--OWNER--NAME/snapshots/COMMIT`, gets the name of its model.
pub(crate) fn name_of(path: &Path) -> String {
    let cached = path.parent().filter(|folder| folder.ends_with("snapshots")).and_then(Path::parent);
    let cached = cached.and_then(|folder| folder.file_name()?.to_str()?.strip_prefix("models--"));
    if let Some((_, name)) = cached.and_then(|id| id.split_once("--")) {
        return name.to_owned();
    }
    let whole = path.canonicalize();
    let named = path.file_name().or_else(|| whole.as_deref().ok()?.file_name());
    named.map_or_else(|| "checkpoint".to_owned(), |name| name.to_string_lossy().into_owned())
}
