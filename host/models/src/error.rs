use std::path::{Path, PathBuf};

use shardwright_gguf::GgufError;
use shardwright_graph::GraphError;

use shardwright_vocabulary::Pass;

use crate::family::Family;

/// The kind of fault of a [`CheckpointError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A required file or tensor is missing.
    Missing,
    /// An existing file could not be read.
    Unreadable,
    /// The checkpoint contradicts its own format, or has impossible values.
    Invalid,
    /// The checkpoint may be valid but needs something that is not implemented.
    Unsupported,
}

/// The reason why a checkpoint cannot become a graph.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A required file is missing.
    #[error("{path}: no such file")]
    MissingFile { path: PathBuf },
    /// The path leads to a directory, pipe or device.
    #[error("{path}: not a regular file")]
    NotAFile { path: PathBuf },
    /// The operating system failed to read.
    #[error("{path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    /// A file is larger than its cap.
    #[error("{path}: {bytes} bytes, more than the {cap} that are read of such a file")]
    FileTooLarge { path: PathBuf, bytes: u64, cap: u64 },
    /// A text file is not UTF-8.
    #[error("{path}: not UTF-8 at byte {offset}")]
    NotUtf8 {
        path: PathBuf,
        /// The first invalid byte, counted from the start of the file.
        offset: u64,
    },
    /// A file is not JSON, or nested too deeply.
    #[error("{path}: not JSON: {reason}")]
    NotJson {
        path: PathBuf,
        /// The parser's message, with line and column.
        reason: String,
    },
    /// A field has an invalid value.
    #[error("{path}: `{field}` {reason}")]
    InvalidField {
        path: PathBuf,
        /// The field, with the objects around it: `text_config.head_dim`.
        field: String,
        reason: String,
    },
    /// A field needs something that is not implemented.
    #[error("{path}: `{field}` is {found}, which is not supported")]
    UnsupportedField {
        path: PathBuf,
        /// The field, with the objects around it.
        field: String,
        found: String,
        /// The supported values.
        supported: &'static str,
    },
    /// No family has this `model_type`.
    #[error("{path}: model_type `{found}` is not supported")]
    UnknownModelType { path: PathBuf, found: String },
    /// The family has no tower for the pass.
    #[error("{path}: this family has no tower that a {pass} goes through")]
    NoTower {
        /// The file that names the family.
        path: PathBuf,
        /// The requested pass.
        pass: Pass,
    },
    /// The folder has an adapter (such as LoRA), which changes the weights.
    #[error("{path}: the checkpoint has an adapter, which is not applied")]
    Adapter {
        /// The adapter's file.
        path: PathBuf,
    },
    /// A file name in the checkpoint would leave its directory.
    #[error("{path}: `{name}` does not name a file of the checkpoint's directory")]
    EscapesDirectory {
        /// The file that contains the name.
        path: PathBuf,
        name: String,
    },
    /// The index lists a tensor that is not in its file.
    #[error("{path}: tensor `{tensor}` is said to be in `{file}`, which does not hold it")]
    IndexMismatch {
        /// The index file.
        path: PathBuf,
        tensor: String,
        /// The file that should contain the tensor.
        file: String,
    },
    /// More files or tensors than a checkpoint may have.
    #[error("{path}: {count} {what}, more than {cap}")]
    TooMany {
        /// The file that lists them.
        path: PathBuf,
        /// `weight files` or `tensors`.
        what: &'static str,
        count: usize,
        cap: usize,
    },
    /// The file ends before the end that its header specifies.
    #[error("{path}: {what} ends at byte {needed}, but the file has {available}")]
    Truncated {
        path: PathBuf,
        /// `the header`, or the tensor.
        what: String,
        needed: u64,
        available: u64,
    },
    /// The file ends right after its header, and so contains no weights.
    #[error("{path}: holds the header of {bytes} bytes of weights, and no weights")]
    NoWeights {
        path: PathBuf,
        /// Length of the whole file.
        bytes: u64,
    },
    /// Neither headers nor the configuration specify the element type of the weights.
    #[error("{path}: has no `dtype`, and there is no {weights} that says the type of the weights")]
    UnknownElementType {
        /// The configuration file.
        path: PathBuf,
        /// The missing weight file.
        weights: PathBuf,
    },
    /// The header's length field is larger than the format allows.
    #[error("{path}: a header of {bytes} bytes, more than {cap}")]
    HeaderTooLarge {
        path: PathBuf,
        /// Length that the file specifies.
        bytes: u64,
        cap: u64,
    },
    /// The header is JSON, but does not have the format's structure.
    #[error("{path}: header: {reason}")]
    InvalidHeader { path: PathBuf, reason: String },
    /// A tensor's entry contradicts itself.
    #[error("{path}: tensor `{tensor}` at byte {offset}: {reason}")]
    InvalidTensor {
        path: PathBuf,
        tensor: String,
        /// First byte of the tensor's data or of the fault in them, counted from the start of the
        /// file.
        offset: u64,
        reason: String,
    },
    /// Two tensors share bytes.
    #[error("{path}: tensors `{first}` and `{second}` overlap at byte {offset}")]
    Overlap {
        path: PathBuf,
        /// The tensor that begins first.
        first: String,
        second: String,
        /// First byte of the second tensor, counted from the start of the file.
        offset: u64,
    },
    /// Bytes that belong to no tensor, between tensors or after the last.
    #[error("{path}: {bytes} bytes at byte {offset} belong to no tensor")]
    Unclaimed {
        path: PathBuf,
        /// The first such byte, counted from the start of the file.
        offset: u64,
        bytes: u64,
    },
    /// A tensor of this name occurs twice.
    #[error("{path}: a second tensor `{tensor}`")]
    DuplicateTensor {
        /// The file with the second tensor of that name.
        path: PathBuf,
        tensor: String,
    },
    /// A tensor that the model needs is in no file.
    #[error("{path}: no tensor `{tensor}`")]
    MissingTensor {
        /// The weight file, or the index if there are several.
        path: PathBuf,
        tensor: String,
    },
    /// The weight files have more layers than the configuration specifies.
    #[error(
        "{path}: `{field}` is {configured}, but the weights have {stored} layers: tensor `{tensor}` of {weights} would be ignored"
    )]
    MoreLayers {
        /// The file with the settings.
        path: PathBuf,
        /// The field with the number of layers, or the key of a GGUF file.
        field: String,
        /// The number of layers that the field specifies.
        configured: u32,
        /// The number of stored layers.
        stored: u64,
        /// The file with the tensor, or the index that lists it.
        weights: PathBuf,
        /// The first tensor that the configured layers do not have, by its name in the file.
        tensor: String,
    },
    /// The shape of a required tensor differs from the shape that the configuration implies.
    #[error("{path}: tensor `{tensor}` has the shape {found:?}; the configuration implies {expected:?}")]
    TensorShape { path: PathBuf, tensor: String, found: Vec<u64>, expected: Vec<u64> },
    /// A required tensor has an element type that is not supported for weights.
    #[error("{path}: tensor `{tensor}` is stored as {found}, which no weight is read from")]
    TensorType {
        path: PathBuf,
        tensor: String,
        /// The element type, as the format spells it.
        found: &'static str,
    },
    /// A quantised tensor has integers, scales or an order that no weight of a graph can represent.
    /// Such tensors are not quantised a second time.
    #[error("{path}: tensor `{tensor}` {what}; no weight holds that as it is")]
    NotHeld {
        path: PathBuf,
        /// The tensor, by its name in the file.
        tensor: String,
        /// The property that cannot be represented.
        what: String,
        /// The supported alternatives.
        held: &'static str,
    },
    /// The head of a GGUF file contradicts the format.
    #[error("{path}: at byte {offset}: {reason}")]
    InvalidGguf {
        path: PathBuf,
        /// Offset from the start of the file.
        offset: u64,
        reason: String,
    },
    /// The version of the GGUF file is not supported.
    #[error("{path}: GGUF version {version} is not supported")]
    GgufVersion {
        path: PathBuf,
        /// The file's version. For big-endian files it is a huge number.
        version: u32,
    },
    /// The architecture of a GGUF file differs from that of `config.json`.
    #[error("{path}: the architecture is `{found}`; config.json implies `{expected}`")]
    GgufArchitecture {
        path: PathBuf,
        /// The file's architecture.
        found: String,
        /// The architecture that `config.json` implies.
        expected: &'static str,
    },
    /// No family has this architecture.
    #[error("{path}: architecture `{found}` is not supported")]
    UnknownArchitecture {
        path: PathBuf,
        /// The file's architecture.
        found: String,
        /// The supported architectures.
        known: String,
    },
    /// Another fault of a GGUF file, or of the files of a split model.
    #[error(transparent)]
    Gguf(GgufError),
    /// The translation made an inconsistent graph: a bug in this crate, not a fault of the
    /// checkpoint.
    #[error("the graph of this checkpoint does not hold together: {0}")]
    Graph(#[from] GraphError),
}

impl CheckpointError {
    /// Returns the kind of fault.
    pub fn kind(&self) -> ErrorKind {
        match self {
            CheckpointError::Gguf(GgufError::Split { .. } | GgufError::MissingKey { .. })
            | CheckpointError::MissingFile { .. }
            | CheckpointError::MissingTensor { .. }
            | CheckpointError::NoWeights { .. }
            | CheckpointError::UnknownElementType { .. } => ErrorKind::Missing,
            CheckpointError::Read { .. } => ErrorKind::Unreadable,
            CheckpointError::UnsupportedField { .. }
            | CheckpointError::UnknownModelType { .. }
            | CheckpointError::UnknownArchitecture { .. }
            | CheckpointError::Gguf(GgufError::SeveralModels { .. })
            | CheckpointError::NoTower { .. }
            | CheckpointError::Adapter { .. }
            | CheckpointError::TensorType { .. }
            | CheckpointError::NotHeld { .. }
            | CheckpointError::GgufVersion { .. } => ErrorKind::Unsupported,
            _ => ErrorKind::Invalid,
        }
    }

    /// Returns advice for a `help:` line, if there is any.
    pub fn help(&self) -> Option<String> {
        let text = match self {
            CheckpointError::MissingFile { path } if named(path, "config.json") => {
                "give a directory in Hugging Face layout: config.json, *.safetensors or *.gguf, tokenizer.json"
            }
            CheckpointError::MissingFile { path } if path.extension().is_some_and(|e| e == "safetensors") => {
                "download the weights: they are read from model.safetensors, from the files that model.safetensors.index.json lists, or from *.gguf; other formats must be converted first"
            }
            CheckpointError::MissingFile { path } if named(path, "modules.json") => {
                "download modules.json: it lists the modules whose folders, such as `2_Dense`, are here; remove these folders to get the mean of the rows"
            }
            CheckpointError::UnknownElementType { .. } => {
                "download the weights, or their headers alone: docs/using.md says how"
            }
            CheckpointError::NoWeights { .. } => {
                "download the weights: fetch the whole file in place of its header; only `plan` works without them"
            }
            CheckpointError::Truncated { .. } | CheckpointError::IndexMismatch { .. } => {
                "the download is incomplete or mixed with another one; fetch the file again"
            }
            CheckpointError::HeaderTooLarge { .. } => {
                "this is no safetensors file; the pointer file that Git LFS leaves instead of a large one looks like this"
            }
            CheckpointError::UnsupportedField { supported, .. } => {
                return Some(format!("supported: {supported}"));
            }
            CheckpointError::UnknownModelType { .. } => {
                let known: Vec<_> = Family::MODEL_TYPES.iter().map(|(name, _)| *name).collect();
                return Some(format!("known model types: {}", known.join(", ")));
            }
            CheckpointError::NoTower { .. } => {
                "pictures and sounds go through the towers of `gemma4` checkpoints"
            }
            CheckpointError::EscapesDirectory { .. } => {
                "the files of a checkpoint lie in its own directory; this one should not be trusted"
            }
            CheckpointError::Adapter { .. } => {
                "merge the adapter into the weights first (`merge_and_unload` of PEFT), or move its files elsewhere"
            }
            CheckpointError::MissingTensor { .. } => {
                "config.json and the weight files may belong to different models, or a weight file is missing from the index"
            }
            CheckpointError::MoreLayers { field, stored, .. } => {
                return Some(format!(
                    "set `{field}` to {stored} if the model has these layers; otherwise fetch settings and weight files of the same model"
                ));
            }
            CheckpointError::TensorShape { path, .. } if path.extension().is_some_and(|e| e == "gguf") => {
                "config.json and the weight files belong to different models; where only rows of the embedding are missing, llama.cpp left out those that no token has: set `vocab_size` in config.json to the rows there are"
            }
            CheckpointError::DuplicateTensor { path, .. }
                if path.extension().is_some_and(|e| e == "gguf") =>
            {
                "keep the files of one model: a folder with the same model in two formats is read as one checkpoint"
            }
            CheckpointError::InvalidGguf { .. } => "the file is damaged or no GGUF file; fetch it again",
            CheckpointError::GgufVersion { .. } => {
                "versions 2 and 3 are read, little-endian; convert the file anew"
            }
            CheckpointError::GgufArchitecture { .. } => {
                "put the config.json of the model beside it that the file was made from"
            }
            CheckpointError::UnknownArchitecture { known, .. } => {
                return Some(format!("known architectures: {known}"));
            }
            CheckpointError::Gguf(error) => return error.help().map(str::to_owned),
            CheckpointError::NotHeld { held, .. } => return Some(format!("held: {held}")),
            CheckpointError::TensorShape { .. } => {
                "config.json and the weight files belong to different models"
            }
            CheckpointError::TensorType { .. } => {
                "weights are read as f32, f16 or bf16, from GGUF files also as Q4_0 and Q8_0 and most other types: take the model in one of these"
            }
            CheckpointError::Graph(error) => return error.help().map(str::to_owned),
            _ => return None,
        };
        Some(text.to_owned())
    }
}

/// Maps faults that other weight files can also have to the same variants.
impl From<GgufError> for CheckpointError {
    fn from(error: GgufError) -> Self {
        match error {
            GgufError::Truncated { path, what, needed, available } => {
                CheckpointError::Truncated { path, what, needed, available }
            }
            GgufError::Invalid { path, offset, reason } => {
                CheckpointError::InvalidGguf { path, offset, reason }
            }
            GgufError::Version { path, version } => CheckpointError::GgufVersion { path, version },
            GgufError::TooMany { path, what, count, cap } => CheckpointError::TooMany {
                path,
                what,
                count: usize::try_from(count).unwrap_or(usize::MAX),
                cap: cap as usize,
            },
            GgufError::HeadTooLarge { path, bytes, cap } => {
                CheckpointError::HeaderTooLarge { path, bytes, cap }
            }
            GgufError::NotUtf8 { path, offset } => CheckpointError::NotUtf8 { path, offset },
            GgufError::DuplicateTensor { path, tensor } => CheckpointError::DuplicateTensor { path, tensor },
            GgufError::InvalidTensor { path, tensor, offset, reason } => {
                CheckpointError::InvalidTensor { path, tensor, offset, reason }
            }
            GgufError::Overlap { path, first, second, offset } => {
                CheckpointError::Overlap { path, first, second, offset }
            }
            GgufError::Unclaimed { path, offset, bytes } => {
                CheckpointError::Unclaimed { path, offset, bytes }
            }
            GgufError::Read { path, source } => CheckpointError::Read { path, source },
            error => CheckpointError::Gguf(error),
        }
    }
}

fn named(path: &Path, name: &str) -> bool {
    path.file_name().is_some_and(|file| file == name)
}

/// Classifies the error by the application's possible reaction.
impl From<CheckpointError> for shardwright_vocabulary::Error {
    fn from(error: CheckpointError) -> Self {
        let kind = match error.kind() {
            crate::ErrorKind::Missing | crate::ErrorKind::Unreadable => {
                shardwright_vocabulary::ErrorKind::Missing
            }
            crate::ErrorKind::Unsupported => shardwright_vocabulary::ErrorKind::Unsupported,
            _ => shardwright_vocabulary::ErrorKind::Invalid,
        };
        let help = error.help();
        shardwright_vocabulary::Error::caused_by(kind, error, help)
    }
}
