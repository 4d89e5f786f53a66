//! Where a checkpoint's settings and tensors are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use shardwright_gguf::model_at;
use shardwright_vocabulary::Ignored;

use crate::gguf::Configuration;
use crate::json::{self, CONFIG, Fields};
use crate::register::Seen;
use crate::{CheckpointError, limits};

/// A Hugging Face folder, or a GGUF model without one.
pub(crate) enum Source {
    /// The folder.
    Folder(PathBuf),
    /// The files, the one with the metadata first.
    Gguf(Vec<PathBuf>),
}

/// The settings of a checkpoint.
pub(crate) struct Document {
    /// The file they were read from.
    path: PathBuf,
    /// As `config.json` has them, or would have them.
    pub bytes: Vec<u8>,
    value: Value,
    keys: BTreeMap<String, String>,
    /// Facts that the file omits, as sentences.
    pub assumed: Vec<String>,
    seen: Seen,
}

impl Document {
    /// The settings as fields.
    pub fn fields(&self) -> Result<Fields<'_>, CheckpointError> {
        Ok(Fields::new(&self.path, &self.value)?.called(&self.keys).recorded(&self.seen))
    }

    /// Returns the fields that may matter and have not been read so far.
    pub fn ignored(&self) -> Vec<Ignored> {
        self.seen.ignored(&self.path, &self.value)
    }
}

impl Source {
    /// Finds out what is at a path.
    pub fn of(path: &Path) -> Result<Self, CheckpointError> {
        Ok(match model_at(path)? {
            Some(files) => Source::Gguf(files),
            None => Source::Folder(path.to_owned()),
        })
    }

    /// The folder that modules and other files are in.
    pub fn folder(&self) -> &Path {
        match self {
            Source::Folder(folder) => folder,
            Source::Gguf(files) => files.first().and_then(|file| file.parent()).unwrap_or(Path::new("")),
        }
    }

    /// Reads `config.json`, or makes it of metadata.
    pub fn document(&self) -> Result<Document, CheckpointError> {
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
                let bytes = serde_json::to_vec(&value).map_err(|error| CheckpointError::NotJson {
                    path: path.clone(),
                    reason: error.to_string(),
                })?;
                Ok(Document { path, bytes, value, keys, assumed, seen: Seen::default() })
            }
        }
    }
}
