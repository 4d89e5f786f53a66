//! GGUF files: their tensors beside a checkpoint's own `config.json` and `tokenizer.json`.
//!
//! Nothing else is read of them: settings and tokenizer inside of the file are skipped, apart from
//! the architecture, which says how tensors are named and what was done to them. The layout is that
//! of the format's specification (`docs/gguf.md` of ggml), versions 2 and 3, little-endian.
//!
//! **What is held.** F32, F16 and BF16 tensors stay in place. Q4_0 (32 integers −8..=7 and a
//! binary16 scale, which may be negative) becomes `I4` and Q8_0 (32 integers of 8 bits and a
//! binary16 scale) `I8`, both per block of 32 with `F16` scales: the same integers and scales, in
//! the graph's order, put together when they are first read. The reference decodes both by
//! definition; the kernels of the CPU shim multiply every integer from −8 and −128 on by scales of
//! either sign, and no product of an integer and a binary16 rounds. `I4` so is
//! `WeightFormat::W4Block32`; `I8` so is a stored format without a name: a plan can keep it, but
//! not ask for it.
//!
//! **What is undone.** The converter of llama.cpp renames tensors, and adds one to the norms of
//! Gemma 3 and EmbeddingGemma; the difference is exact for every sum it can have written, and any
//! other value is refused. It drops rows of the embedding that no token has, which cannot be
//! undone: such a tensor has another shape than the configuration says, and the help of that error
//! says how to change it. Queries and keys of the
//! families here are not reordered.

mod blocks;
mod head;
mod names;
mod types;

pub(crate) use blocks::Blocks;

use std::path::{Path, PathBuf};

use shardwright_graph::WeightBytes as _;

use crate::family::Family;
use crate::json;
use crate::weight_file::{Content, Mapped, StoredTensor, WeightFile};
use crate::{CheckpointError, limits};
use names::Architecture;

/// The GGUF files of a directory, in the order of their names.
pub(crate) fn files(directory: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    let read = |source| CheckpointError::Read { path: directory.to_owned(), source };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(read)? {
        let path = entry.map_err(read)?.path();
        if path.extension().is_some_and(|extension| extension == "gguf") {
            found.push(path);
        }
        if found.len() > limits::WEIGHT_FILES {
            return Err(CheckpointError::TooMany {
                path: directory.to_owned(),
                what: "weight files",
                count: found.len(),
                cap: limits::WEIGHT_FILES,
            });
        }
    }
    found.sort();
    Ok(found)
}

/// Maps the file and checks its head: every tensor within the file, as long as its shape and type
/// say, aligned, overlapping no other, and nothing but padding between them. Tensors get the names
/// they have in a checkpoint of `family`.
pub(crate) fn open(path: &Path, family: Family) -> Result<WeightFile, CheckpointError> {
    let (file, length) = json::open_file(path)?;
    if length < head::LEAST_BYTES {
        return Err(CheckpointError::Truncated {
            path: path.to_owned(),
            what: "the head".to_owned(),
            needed: head::LEAST_BYTES,
            available: length,
        });
    }
    let mapped = Mapped::of(path, &file)?;
    let bytes = mapped.bytes();
    let length = bytes.len() as u64;
    let head = head::read(path, bytes)?;
    let architecture = Architecture::of(path, head.architecture, family)?;
    let mut tensors = Vec::with_capacity(head.tensors.len());
    for described in &head.tensors {
        let mut tensor = described.stored(path, head.data, head.alignment, length)?;
        tensor.alias = architecture.checkpoint_name(&tensor.name);
        if let (Some(name), Content::Float(dtype)) = (&tensor.alias, tensor.dtype.content)
            && architecture.adds_one(name)
        {
            tensor.dtype.content = Content::FloatPlusOne(dtype);
        }
        tensors.push(tensor);
    }
    check_places(path, &mut tensors, head.data, head.alignment, length)?;
    let data = head.data;
    Ok(WeightFile::new(path, tensors, mapped, data, length))
}

/// Sorts tensors by place and checks that they follow each other with padding alone between them.
fn check_places(
    path: &Path,
    tensors: &mut [StoredTensor],
    data: u64,
    alignment: u64,
    length: u64,
) -> Result<(), CheckpointError> {
    tensors.sort_by_key(|tensor| (tensor.begin, tensor.length));
    let mut last: Option<&StoredTensor> = None;
    // A file without tensors may end before the padding of its head.
    let mut position = data.min(length);
    let unclaimed = |offset, bytes| Err(CheckpointError::Unclaimed { path: path.to_owned(), offset, bytes });
    for tensor in tensors.iter().filter(|tensor| tensor.length > 0) {
        if tensor.begin < position {
            return Err(CheckpointError::Overlap {
                path: path.to_owned(),
                first: last.map_or_else(String::new, |tensor| tensor.name.clone()),
                second: tensor.name.clone(),
                offset: tensor.begin,
            });
        }
        if tensor.begin - position >= alignment {
            return unclaimed(position, tensor.begin - position);
        }
        // Checked to lie within the file.
        position = tensor.begin + tensor.length;
        last = Some(tensor);
    }
    match length - position {
        padding if padding < alignment => Ok(()),
        bytes => unclaimed(position, bytes),
    }
}
