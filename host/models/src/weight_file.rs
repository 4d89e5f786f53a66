//! A mapped weight file and its tensors, whatever format describes them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use shardwright_files::{Mapping, Section};
use shardwright_graph::WeightBytes;
use shardwright_vocabulary::DType;

use shardwright_gguf::TensorType;

use crate::CheckpointError;

/// What stored elements are to a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Floats that a weight keeps in place.
    Float(DType),
    /// Floats, each one more than in the checkpoint they come from.
    FloatPlusOne(DType),
    /// Blocks of integers, whose groups have scales.
    Blocks(TensorType),
    /// Nothing that is a weight by itself.
    Other,
}

/// Element type of a stored tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredType {
    /// The format's spelling.
    pub name: &'static str,
    pub content: Content,
}

/// A tensor as the head of a file describes it; its bytes are known to lie within the file and to
/// belong to it alone.
#[derive(Clone, Debug)]
pub(crate) struct StoredTensor {
    /// Name in the file.
    pub name: String,
    /// Name in the checkpoint, where the file has a name of its own for it.
    pub alias: Option<String>,
    pub dtype: StoredType,
    pub shape: Vec<u64>,
    /// First byte, counted from the start of the file.
    pub begin: u64,
    /// Bytes.
    pub length: u64,
    /// Heads whose rows are stored in pairs: row `2 j + i` of a head is row `j + i · size / 2` of
    /// the checkpoint's. `None`: rows are in the checkpoint's order.
    pub paired_heads: Option<u64>,
}

impl StoredTensor {
    /// Name in the checkpoint.
    pub fn checkpoint_name(&self) -> &str {
        self.alias.as_deref().unwrap_or(&self.name)
    }
}

/// A mapped file. Were it truncated by another program while mapped, reading the lost pages would
/// end this process (SIGBUS); the system offers no mapping without that. Checkpoints must not be
/// rewritten in place while in use.
pub(crate) struct Mapped(Mapping);

impl Mapped {
    /// Maps an open file.
    pub fn of(path: &Path, file: &File) -> Result<Self, CheckpointError> {
        let mapped = file.try_clone().and_then(|file| Section::whole(path, file)?.map());
        mapped.map(Mapped).map_err(|source| CheckpointError::Read { path: path.to_owned(), source })
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
/// the head says everything but values.
pub(crate) struct WeightFile {
    pub path: PathBuf,
    /// In the order of their data.
    pub tensors: Vec<StoredTensor>,
    source: Arc<dyn WeightBytes>,
    /// Bytes before the first that a tensor may have.
    head: u64,
    /// Length of the whole file.
    length: u64,
}

impl WeightFile {
    /// A file whose first `head` bytes describe `tensors`, which lie within `length` bytes.
    pub fn new(path: &Path, tensors: Vec<StoredTensor>, mapped: Mapped, head: u64, length: u64) -> Self {
        WeightFile { path: path.to_owned(), tensors, source: Arc::new(mapped), head, length }
    }

    /// Length of the whole file, also where only its head is here.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The bytes that tensors lie in; `None` where only the head is here.
    pub fn weights(&self) -> Option<&Arc<dyn WeightBytes>> {
        (self.source.bytes().len() as u64 == self.length).then_some(&self.source)
    }

    /// All of the file that says what the rest is.
    pub fn header(&self) -> &[u8] {
        let bytes = self.source.bytes();
        bytes.get(..self.head as usize).unwrap_or(bytes)
    }
}
