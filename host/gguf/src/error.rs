use std::path::PathBuf;

/// A file that is not a GGUF file, is damaged, or has metadata of another kind than expected.
///
/// Offsets count from the start of the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The file ends before what its head announces.
    #[error("{path}: {what} ends at byte {needed}, but the file has {available}")]
    Truncated {
        /// The file.
        path: PathBuf,
        /// `the head`, or the tensor.
        what: String,
        /// Expected bytes.
        needed: u64,
        /// Actual bytes.
        available: u64,
    },
    /// The head contradicts the format.
    #[error("{path}: at byte {offset}: {reason}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// A version that is laid out otherwise; a huge number for big-endian files.
    #[error("{path}: GGUF version {version} is not supported")]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// More entries than a file may have.
    #[error("{path}: {count} {what}, more than {cap}")]
    TooMany {
        /// The file.
        path: PathBuf,
        /// `tensors`, `metadata entries`, `files`.
        what: &'static str,
        /// How many.
        count: u64,
        /// The cap.
        cap: u64,
    },
    /// Metadata and descriptions are larger than [`limits::HEAD_BYTES`](crate::limits::HEAD_BYTES).
    #[error("{path}: a head of {bytes} bytes, more than {cap}")]
    HeadTooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The cap.
        cap: u64,
    },
    /// A name or text is not UTF-8.
    #[error("{path}: not UTF-8 at byte {offset}")]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// First wrong byte.
        offset: u64,
    },
    /// Two tensors have the same name.
    #[error("{path}: a second tensor `{tensor}`")]
    DuplicateTensor {
        /// The file.
        path: PathBuf,
        /// The name.
        tensor: String,
    },
    /// A tensor's description contradicts itself.
    #[error("{path}: tensor `{tensor}` at byte {offset}: {reason}")]
    InvalidTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Place of its description.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// Two tensors share bytes.
    #[error("{path}: tensors `{first}` and `{second}` overlap at byte {offset}")]
    Overlap {
        /// The file.
        path: PathBuf,
        /// The tensor that begins first.
        first: String,
        /// The other.
        second: String,
        /// First byte of the second.
        offset: u64,
    },
    /// Bytes that belong to no tensor, between tensors or after the last.
    #[error("{path}: {bytes} bytes at byte {offset} belong to no tensor")]
    Unclaimed {
        /// The file.
        path: PathBuf,
        /// First such byte.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// A metadata entry has a value of another kind than its key requires.
    #[error("{path}: metadata `{key}` is {found}, expected {expected}")]
    WrongValue {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The value, shortened.
        found: String,
        /// The kind of value.
        expected: &'static str,
    },
    /// A metadata entry that the reader needs is missing.
    #[error("{path}: metadata has no `{key}`")]
    MissingKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// A part of a model that was split is missing, or belongs to another model.
    #[error("{path}: {reason}")]
    Split {
        /// The part, or the folder.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A folder has more than one model.
    #[error("{path}: has {} models: {}", names.len(), names.join(", "))]
    SeveralModels {
        /// The folder.
        path: PathBuf,
        /// The files that they begin with.
        names: Vec<String>,
    },
    /// The operating system failed to read.
    #[error("{path}: {source}")]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

impl GgufError {
    /// What would help the user, for a `help:` line.
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
