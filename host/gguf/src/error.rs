use std::path::PathBuf;

/// The reason why a GGUF file is rejected: another format, damage, or unexpected metadata.
///
/// Offsets count from the start of the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The file ends before the end that its head specifies.
    #[error("{path}: {what} ends at byte {needed}, but the file has {available}")]
    Truncated {
        path: PathBuf,
        /// `the head`, or the tensor.
        what: String,
        needed: u64,
        available: u64,
    },
    /// The head contradicts the format.
    #[error("{path}: at byte {offset}: {reason}")]
    Invalid { path: PathBuf, offset: u64, reason: String },
    /// The version has another layout. Big-endian files appear as a huge number.
    #[error("{path}: GGUF version {version} is not supported")]
    Version { path: PathBuf, version: u32 },
    /// More entries than a file may have.
    #[error("{path}: {count} {what}, more than {cap}")]
    TooMany {
        path: PathBuf,
        /// `tensors`, `metadata entries`, `files`.
        what: &'static str,
        count: u64,
        cap: u64,
    },
    /// Metadata and descriptions are larger than [`limits::HEAD_BYTES`](crate::limits::HEAD_BYTES).
    #[error("{path}: a head of {bytes} bytes, more than {cap}")]
    HeadTooLarge { path: PathBuf, bytes: u64, cap: u64 },
    /// A name or text is not UTF-8.
    #[error("{path}: not UTF-8 at byte {offset}")]
    NotUtf8 {
        path: PathBuf,
        /// The first invalid byte.
        offset: u64,
    },
    /// Two tensors have the same name.
    #[error("{path}: a second tensor `{tensor}`")]
    DuplicateTensor { path: PathBuf, tensor: String },
    /// A tensor's description contradicts itself.
    #[error("{path}: tensor `{tensor}` at byte {offset}: {reason}")]
    InvalidTensor {
        path: PathBuf,
        tensor: String,
        /// Offset of the tensor's description.
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
        /// First byte of the second tensor.
        offset: u64,
    },
    /// Bytes that belong to no tensor, between tensors or after the last.
    #[error("{path}: {bytes} bytes at byte {offset} belong to no tensor")]
    Unclaimed {
        path: PathBuf,
        /// The first such byte.
        offset: u64,
        bytes: u64,
    },
    /// A metadata entry has a value of another kind than its key requires.
    #[error("{path}: metadata `{key}` is {found}, expected {expected}")]
    WrongValue {
        path: PathBuf,
        key: String,
        /// The value, shortened.
        found: String,
        /// The required kind of value.
        expected: &'static str,
    },
    /// A metadata entry that the reader needs is missing.
    #[error("{path}: metadata has no `{key}`")]
    MissingKey { path: PathBuf, key: String },
    /// A part of a model that was split is missing, or belongs to another model.
    #[error("{path}: {reason}")]
    Split {
        /// The part, or the folder.
        path: PathBuf,
        reason: String,
    },
    /// A folder has more than one model.
    #[error("{path}: has {} models: {}", names.len(), names.join(", "))]
    SeveralModels {
        path: PathBuf,
        /// The first file of each model.
        names: Vec<String>,
    },
    /// The operating system failed to read.
    #[error("{path}: {source}")]
    Read {
        /// The file or folder.
        path: PathBuf,
        source: std::io::Error,
    },
}

impl GgufError {
    /// Returns advice for a `help:` line, if there is any.
    pub fn help(&self) -> Option<&'static str> {
        Some(match self {
            GgufError::Truncated { .. } => {
                "the download is incomplete or mixed with another one; fetch the file again"
            }
            GgufError::Invalid { .. } | GgufError::NotUtf8 { .. } => {
                "the file is damaged or not a GGUF file; fetch it again"
            }
            GgufError::Version { .. } => {
                "versions 2 and 3 are supported, little-endian; convert the file again with a current converter"
            }
            GgufError::WrongValue { .. } | GgufError::MissingKey { .. } => {
                "convert the model again with a current converter, or use its Hugging Face folder"
            }
            GgufError::Split { .. } => {
                "put all parts of the model into one folder, under the names they were published with"
            }
            GgufError::SeveralModels { .. } => "name the file of the model instead of the folder",
            _ => return None,
        })
    }
}
