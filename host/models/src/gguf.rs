//! GGUF files: the tensors of a checkpoint with its own `config.json`, or a whole checkpoint.
//!
//! The crate `gguf` reads layout and block types. [`configuration`] makes a `config.json` from a
//! file's metadata.
//!
//! **Stored as.** F32, F16 and BF16 tensors stay in place. Matrices of blocks keep their levels and
//! scales, which are put into the graph's order on first use. Levels of four bits or fewer become
//! `I4`, others `I8`. Each group of 16 or 32 values has a scale, and a minimum if the type has one.
//! They are `F16` if the file stores them as binary16. Products of a superblock's scale with a
//! small integer become `F32`, which represents them exactly. So no value differs from the file's.
//! Q4_0 thus becomes `WeightFormat::W4Block32`. Q5_0, Q8_0 and IQ4_NL become
//! `WeightFormat::W8Block32`. The other types have no format name, and a plan keeps them as stored.
//! Tensors other than matrices become `F32`.
//!
//! **Undone.** The converter of llama.cpp renames tensors. It adds one to the norms of Gemma 3 and
//! EmbeddingGemma. The difference is exact for every sum that the converter can have written, and
//! any other value is refused. It reorders the rows of queries and keys of Llama, SmolLM3 and
//! Granite.
//!
//! **Not undone.** It also drops rows of the embedding that no token has, which cannot be undone.
//! If there is a `config.json`, the tensor's shape then differs from the specified one. The help of
//! that error explains how to change the file.

mod blocks;
mod configuration;
mod groups;
mod names;

pub(crate) use blocks::Blocks;
pub(crate) use configuration::Configuration;

use std::path::{Path, PathBuf};

use shardwright_gguf::{Head, Metadata, Tensor, TensorType, Value, check_parts, expect_model};
use shardwright_graph::WeightBytes as _;
use shardwright_vocabulary::{At, DType, Error, Result};

use crate::family::Family;
use crate::weight_file::{Content, Mapped, StoredTensor, StoredType, WeightFile};
use crate::{json, limits};

/// Lists the GGUF files of a directory, ordered by name.
pub(crate) fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).at(directory.display())? {
        let path = entry.at(directory.display())?.path();
        if path.extension().is_some_and(|extension| extension == "gguf") {
            found.push(path);
        }
        limits::expect_at_most(limits::WEIGHT_FILES, "weight files", found.len(), directory)?;
    }
    found.sort();
    Ok(found)
}

fn map(path: &Path) -> Result<Mapped> {
    let (file, length) = json::open_file(path)?;
    if length == 0 {
        // An empty file cannot be mapped. Parsing an empty head returns the right error.
        Head::read(path, &[])?;
    }
    Mapped::of(path, &file)
}

/// Maps the files of a model and checks their heads. Tensors get the names they have in a
/// checkpoint of `family`.
pub(crate) fn open(paths: &[PathBuf], family: Family) -> Result<Vec<WeightFile>> {
    let files = paths.iter().map(|path| map(path)).collect::<Result<Vec<_>, _>>()?;
    let heads = heads(paths, &files)?;
    check_parts(heads.iter().filter(|head| !is_projector(head)))?;
    let expected = names::architecture_of(family);
    let mut order = None;
    let mut described = Vec::with_capacity(heads.len());
    for head in &heads {
        let projector = is_projector(head);
        if !projector {
            expect_model(&head.metadata)?;
        }
        if let Some(found) = head.architecture.filter(|_| !projector) {
            if found != expected {
                let found: String = found.chars().take(80).collect();
                let message = format!("the architecture is `{found}`; config.json implies `{expected}`");
                return Err(Error::invalid(message)
                    .at(head.metadata.path().display())
                    .with_help("use the config.json of the model that the file was made from"));
            }
            // Later parts of a split model do not contain the numbers of heads.
            order = names::pairs_heads(family).then(|| Heads::of(&head.metadata, found)).transpose()?;
        }
        let tensors = head.tensors.iter().map(|tensor| {
            let alias = if projector { None } else { names::checkpoint_name(family, tensor.name) };
            stored(tensor, alias, family, order)
        });
        described.push((tensors.collect(), head.data, projector));
    }
    drop(heads);
    let files = paths.iter().zip(files).zip(described);
    Ok(files
        .map(|((path, mapped), (tensors, data, projector))| {
            let length = mapped.bytes().len() as u64;
            WeightFile::new(path, tensors, mapped, data, length).of_projector(projector)
        })
        .collect())
}

/// Parses the heads of files, in the same order.
fn heads<'f>(paths: &'f [PathBuf], files: &'f [Mapped]) -> Result<Vec<Head<'f>>> {
    paths.iter().zip(files).map(|(path, file)| Head::read(path, file.bytes())).collect()
}

fn is_projector(head: &Head<'_>) -> bool {
    head.architecture == Some(names::PROJECTOR)
}

/// Numbers of heads, which determine the order of Llama's rows.
#[derive(Clone, Copy)]
struct Heads {
    queries: u64,
    keys: u64,
}

impl Heads {
    fn of(metadata: &Metadata<'_>, architecture: &str) -> Result<Self> {
        let key = |name: &str| format!("{architecture}.attention.{name}");
        let name = key("head_count");
        let queries = metadata.whole(&name)?.ok_or_else(|| metadata.missing(&name))?;
        let name = key("head_count_kv");
        let keys = match metadata.get(&name) {
            Some(Value::List(list)) => {
                // The list has a number for each layer. Families with paired rows have the same
                // number in all.
                let alike = || metadata.wrong(&name, "a number, or the same for each layer");
                let mut numbers = list.iter();
                let first = numbers.next();
                match first {
                    Some(Value::Integer(number)) if numbers.all(|other| Some(other) == first) => {
                        Some(u64::try_from(number).map_err(|_| alike())?)
                    }
                    _ => return Err(alike()),
                }
            }
            _ => metadata.whole(&name)?,
        };
        Ok(Heads { queries, keys: keys.unwrap_or(queries) })
    }
}

fn stored(tensor: &Tensor<'_>, alias: Option<String>, family: Family, heads: Option<Heads>) -> StoredTensor {
    let mut content = match tensor.kind {
        TensorType::F32 => Content::Float(DType::F32),
        TensorType::F16 => Content::Float(DType::F16),
        TensorType::BF16 => Content::Float(DType::Bf16),
        kind if kind.is_read() => Content::Blocks(kind),
        _ => Content::Other,
    };
    let mut paired_heads = None;
    if let Some(name) = &alias {
        if let (true, Content::Float(dtype)) = (names::adds_one(family, name), content) {
            content = Content::FloatPlusOne(dtype);
        }
        if names::pairs_rows(name) {
            paired_heads =
                heads.map(|heads| if name.contains("q_proj") { heads.queries } else { heads.keys });
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
