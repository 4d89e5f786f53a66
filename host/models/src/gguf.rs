//! GGUF files: tensors beside a checkpoint's own `config.json`, or a whole checkpoint.
//!
//! Layout and block types are those of the crate `gguf`; [`configuration`] makes a `config.json` of
//! a file's metadata.
//!
//! **What is held.** F32, F16 and BF16 tensors stay in place. Q4_0 (32 integers −8..=7 and a
//! binary16 scale, which may be negative) becomes `I4` and Q8_0 (32 integers of 8 bits and a
//! binary16 scale) `I8`, both per block of 32 with `F16` scales: the same integers and scales, in
//! the graph's order, put together when they are first read. The reference decodes both by
//! definition; the kernels of the CPU shim multiply every integer from −8 and −128 on by scales of
//! either sign, and no product of an integer and a binary16 rounds. `I4` so is
//! `WeightFormat::W4Block32`; `I8` so is a stored format without a name: a plan can keep it, but
//! not ask for it. Tensors of the other block types become `F32`: their values, computed when they
//! are first read.
//!
//! **What is undone.** The converter of llama.cpp renames tensors, and adds one to the norms of
//! Gemma 3 and EmbeddingGemma; the difference is exact for every sum it can have written, and any
//! other value is refused. Of Llama's queries and keys it changes the order of rows. It drops rows
//! of the embedding that no token has, which cannot be undone: beside a `config.json` such a tensor
//! has another shape than the configuration says, and the help of that error says how to change it.

mod blocks;
mod configuration;
mod names;

pub(crate) use blocks::Blocks;
pub(crate) use configuration::Configuration;

use std::path::{Path, PathBuf};

use shardwright_gguf::{GgufError, Head, Tensor, TensorType};
use shardwright_graph::WeightBytes as _;
use shardwright_vocabulary::DType;

use crate::family::Family;
use crate::json;
use crate::weight_file::{Content, Mapped, StoredTensor, StoredType, WeightFile};
use crate::{CheckpointError, limits};

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

/// Maps a file.
fn map(path: &Path) -> Result<Mapped, CheckpointError> {
    let (file, length) = json::open_file(path)?;
    if length == 0 {
        // An empty file cannot be mapped.
        Head::read(path, &[])?;
    }
    Mapped::of(path, &file)
}

/// Maps the file and checks its head. Tensors get the names they have in a checkpoint of `family`.
pub(crate) fn open(path: &Path, family: Family) -> Result<WeightFile, CheckpointError> {
    let mapped = map(path)?;
    let bytes = mapped.bytes();
    let head = Head::read(path, bytes)?;
    let expected = names::architecture_of(family);
    let projector = head.architecture == names::PROJECTOR;
    if !projector && head.architecture != expected && !is_later_part(&head) {
        return Err(CheckpointError::GgufArchitecture {
            path: path.to_owned(),
            found: head.architecture.chars().take(80).collect(),
            expected,
        });
    }
    let heads = Heads::of(&head)?;
    let tensors = head.tensors.iter().map(|tensor| {
        let alias = if projector { None } else { names::checkpoint_name(family, tensor.name) };
        stored(tensor, alias, family, heads)
    });
    let (tensors, data, length) = (tensors.collect(), head.data, bytes.len() as u64);
    Ok(WeightFile::new(path, tensors, mapped, data, length))
}

/// Whether a file is a part of a split model behind the first, which has little metadata.
fn is_later_part(head: &Head<'_>) -> bool {
    matches!(head.metadata.whole("split.no"), Ok(Some(part)) if part > 0)
}

/// Numbers of heads, which the order of Llama's rows depends on; 0 where the file has none.
#[derive(Clone, Copy)]
struct Heads {
    queries: u64,
    keys: u64,
}

impl Heads {
    fn of(head: &Head<'_>) -> Result<Self, GgufError> {
        let key = |name: &str| format!("{}.attention.{name}", head.architecture);
        // Other architectures may have a list, and rows in their own order.
        let whole = |name| head.metadata.whole(&key(name)).ok().flatten();
        let queries = whole("head_count").unwrap_or(0);
        Ok(Heads { queries, keys: whole("head_count_kv").unwrap_or(queries) })
    }
}

fn stored(tensor: &Tensor<'_>, alias: Option<String>, family: Family, heads: Heads) -> StoredTensor {
    let mut content = match tensor.kind {
        TensorType::F32 => Content::Float(DType::F32),
        TensorType::F16 => Content::Float(DType::F16),
        TensorType::BF16 => Content::Float(DType::Bf16),
        TensorType::Q4_0 => Content::Blocks(Blocks::Q4_0),
        TensorType::Q8_0 => Content::Blocks(Blocks::Q8_0),
        kind if kind.is_read() => Content::Values(kind),
        _ => Content::Other,
    };
    let mut paired_heads = 0;
    if let Some(name) = &alias {
        if let (true, Content::Float(dtype)) = (names::adds_one(family, name), content) {
            content = Content::FloatPlusOne(dtype);
        }
        if names::pairs_rows(family, name) {
            paired_heads = if name.contains("q_proj") { heads.queries } else { heads.keys };
        }
    }
    StoredTensor {
        name: tensor.name.to_owned(),
        alias,
        dtype: StoredType { name: tensor.kind.name(), content },
        shape: tensor.shape.clone(),
        begin: tensor.begin,
        length: tensor.length,
        paired_heads,
    }
}
