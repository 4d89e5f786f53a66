//! A mapped weight file and its tensors, in any format.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use shardwright_files::{Mapping, Section};
use shardwright_graph::WeightBytes;
use shardwright_vocabulary::{At, DType, Error, Result};

use shardwright_gguf::TensorType;

/// The kind of stored elements, for the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Floats that a weight uses in place.
    Float(DType),
    /// Floats, each greater by one than in the original checkpoint.
    FloatPlusOne(DType),
    /// Blocks of integers, whose groups have scales.
    Blocks(TensorType),
    /// Any other type. Such a tensor is not a weight by itself.
    Other,
}

/// Element type of a stored tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredType {
    pub name: &'static str,
    pub content: Content,
}

/// A tensor as the head of a file describes it. Its bytes were checked: they are within the file
/// and shared with no other tensor.
#[derive(Clone, Debug)]
pub(crate) struct StoredTensor {
    /// Name in the file.
    pub name: String,
    /// Name in the checkpoint, if the file uses a different name.
    pub alias: Option<String>,
    pub dtype: StoredType,
    pub shape: Vec<u64>,
    /// First byte, counted from the start of the file.
    pub begin: u64,
    /// Length in bytes.
    pub length: u64,
    /// Number of heads whose rows are stored in pairs: row `2 j + i` of a head is row
    /// `j + i · size / 2` of the checkpoint's. `None` if rows are in the checkpoint's order.
    pub paired_heads: Option<u64>,
}

impl StoredTensor {
    /// Returns the name in the checkpoint.
    pub fn checkpoint_name(&self) -> &str {
        self.alias.as_deref().unwrap_or(&self.name)
    }
}

/// A mapped file. If another program truncates it, reading the lost pages ends this process
/// (SIGBUS). The system offers no mapping without that risk. Checkpoints must not be rewritten in
/// place while in use.
pub(crate) struct Mapped(Mapping);

impl Mapped {
    /// Maps an open file.
    pub fn of(path: &Path, file: &File) -> Result<Self> {
        let mapped = file.try_clone().and_then(|file| Section::whole(path, file)?.map());
        mapped.map(Mapped).at(path.display())
    }
}

impl WeightBytes for Mapped {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn copy(&self, offset: usize, into: &mut [u8]) -> bool {
        self.0.copy(offset, into)
    }

    fn release(&self, range: std::ops::Range<usize>) {
        self.0.release(range);
    }
}

/// A weight file whose head was checked. Its weights may be absent: a file that ends right after
/// the head contains everything except values.
pub(crate) struct WeightFile {
    pub path: PathBuf,
    /// The tensors, in the order of their data.
    pub tensors: Vec<StoredTensor>,
    source: Arc<dyn WeightBytes>,
    /// Number of bytes before the first tensor's data.
    head: u64,
    /// Length of the whole file.
    length: u64,
    /// Whether the file contains only a tower and its projector, which text models do not use.
    pub is_projector: bool,
}

impl WeightFile {
    /// Creates a file whose first `head` bytes describe `tensors`, which are within `length` bytes.
    pub fn new(path: &Path, tensors: Vec<StoredTensor>, mapped: Mapped, head: u64, length: u64) -> Self {
        WeightFile {
            path: path.to_owned(),
            tensors,
            source: Arc::new(mapped),
            head,
            length,
            is_projector: false,
        }
    }

    /// Sets whether the file contains only a tower and its projector.
    pub fn of_projector(self, is_projector: bool) -> Self {
        WeightFile { is_projector, ..self }
    }

    /// Returns the length of the whole file, even if only its head is present.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns the bytes that contain the tensors. `None` if only the head is present.
    pub fn weights(&self) -> Option<&Arc<dyn WeightBytes>> {
        (self.source.bytes().len() as u64 == self.length).then_some(&self.source)
    }

    /// Returns the bytes of the head, which describes the rest of the file.
    pub fn header(&self) -> &[u8] {
        let bytes = self.source.bytes();
        bytes.get(..self.head as usize).unwrap_or(bytes)
    }
}

/// Returns the error of a tensor that the model needs. `path` is the weight file, or the index if
/// there are several.
pub(crate) fn missing_tensor(path: &Path, tensor: &str) -> Error {
    Error::missing(format!("no tensor `{tensor}`")).at(path.display()).with_help(
        "config.json and the weight files may belong to different models, or a weight file is missing from the index",
    )
}
