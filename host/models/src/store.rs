//! All tensors of a checkpoint by name, whether one file holds them or many, and which of them were
//! used.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use shardwright_graph::{Weight, WeightBytes, WeightData};
use shardwright_vocabulary::DType;

use crate::safetensors::{StoredTensor, WeightFile};
use crate::{CheckpointError, json, limits};

/// The usual name of an unsharded weight file.
const SINGLE: &str = "model.safetensors";

/// The usual name of the list of shards.
const INDEX: &str = "model.safetensors.index.json";

/// A tensor of the checkpoint that no part of the graph reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusedTensor {
    /// Name in the checkpoint.
    pub name: String,
    /// Stored size in bytes.
    pub bytes: u64,
}

/// Every tensor of a directory.
pub(crate) struct TensorStore {
    /// The weight file, or the index: named in messages about missing tensors.
    listing: PathBuf,
    files: Vec<WeightFile>,
    /// File and place of each tensor.
    places: BTreeMap<String, (usize, usize)>,
    used: BTreeSet<String>,
    unaligned_budget: u64,
}

impl TensorStore {
    /// Opens `model.safetensors`, or else all files that `model.safetensors.index.json` lists.
    pub fn open(directory: &Path) -> Result<Self, CheckpointError> {
        let single = directory.join(SINGLE);
        match WeightFile::open(&single) {
            Ok(file) => return Self::of_files(single, vec![file], None),
            Err(CheckpointError::MissingFile { .. }) => {}
            Err(error) => return Err(error),
        }
        let index = directory.join(INDEX);
        let listed = match json::read_capped(&index, limits::INDEX_BYTES) {
            Ok(bytes) => Listed::parse(&index, &bytes)?,
            // Without either, the plain file is what one would expect.
            Err(CheckpointError::MissingFile { .. }) => {
                return Err(CheckpointError::MissingFile { path: single });
            }
            Err(error) => return Err(error),
        };
        let mut files = Vec::with_capacity(listed.files.len());
        for name in &listed.files {
            files.push(WeightFile::open(&directory.join(name))?);
        }
        Self::of_files(index, files, Some(&listed))
    }

    /// Opens one file.
    pub fn open_single(path: &Path) -> Result<Self, CheckpointError> {
        Self::of_files(path.to_owned(), vec![WeightFile::open(path)?], None)
    }

    fn of_files(
        listing: PathBuf,
        files: Vec<WeightFile>,
        listed: Option<&Listed>,
    ) -> Result<Self, CheckpointError> {
        let mut places = BTreeMap::new();
        for (file_index, file) in files.iter().enumerate() {
            for (place, tensor) in file.tensors.iter().enumerate() {
                if places.insert(tensor.name.clone(), (file_index, place)).is_some() {
                    return Err(CheckpointError::DuplicateTensor {
                        path: file.path.clone(),
                        tensor: tensor.name.clone(),
                    });
                }
            }
        }
        if places.len() > limits::TENSORS {
            return Err(CheckpointError::TooMany {
                path: listing,
                what: "tensors",
                count: places.len(),
                cap: limits::TENSORS,
            });
        }
        for (tensor, &file) in listed.iter().flat_map(|listed| &listed.tensors) {
            if places.get(tensor).map(|(existing, _)| *existing) != Some(file) {
                let file = listed.map_or_else(String::new, |listed| listed.files[file].clone());
                return Err(CheckpointError::IndexMismatch { path: listing, tensor: tensor.clone(), file });
            }
        }
        let unaligned_budget = limits::UNALIGNED_BYTES;
        Ok(TensorStore { listing, files, places, used: BTreeSet::new(), unaligned_budget })
    }

    /// Whether a tensor of that name exists.
    pub fn has(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// A fault of the configuration's claim that `name` exists.
    pub fn missing(&self, name: &str) -> CheckpointError {
        CheckpointError::MissingTensor { path: self.listing.clone(), tensor: name.to_owned() }
    }

    /// A tensor of exactly that shape, as a weight.
    pub fn weight(
        &mut self,
        name: &str,
        part: &'static str,
        shape: &[u64],
    ) -> Result<Weight, CheckpointError> {
        let Some(&(file, place)) = self.places.get(name) else { return Err(self.missing(name)) };
        let file = &self.files[file];
        let tensor = &file.tensors[place];
        // A single value may be stored without axes.
        if tensor.shape != shape && !(tensor.shape.is_empty() && shape == [1]) {
            return Err(CheckpointError::TensorShape {
                path: file.path.clone(),
                tensor: name.to_owned(),
                found: tensor.shape.clone(),
                expected: shape.to_vec(),
            });
        }
        let Some(dtype) = tensor.dtype.weight else {
            return Err(CheckpointError::TensorType {
                path: file.path.clone(),
                tensor: name.to_owned(),
                found: tensor.dtype.name,
            });
        };
        let data = if tensor.begin.is_multiple_of(dtype.bytes()) {
            WeightData::new(Arc::clone(&file.source), tensor.begin as usize, tensor.length as usize)?
        } else {
            copied(file, tensor, dtype, &mut self.unaligned_budget)?
        };
        self.used.insert(name.to_owned());
        Ok(Weight { name: name.to_owned(), part, shape: shape.to_vec(), dtype, data, quantisation: None })
    }

    /// The tensors that were not asked for, by name.
    pub fn unused(&self) -> Vec<UnusedTensor> {
        self.places
            .iter()
            .filter(|(name, _)| !self.used.contains(*name))
            .map(|(name, &(file, place))| UnusedTensor {
                name: name.clone(),
                bytes: self.files[file].tensors[place].length,
            })
            .collect()
    }

    /// The files, in the order of their names.
    pub fn files(&self) -> &[WeightFile] {
        &self.files
    }
}

/// An owned copy of a tensor that cannot be read in place.
fn copied(
    file: &WeightFile,
    tensor: &StoredTensor,
    dtype: DType,
    budget: &mut u64,
) -> Result<WeightData, CheckpointError> {
    struct Aligned(Vec<u64>);
    impl WeightBytes for Aligned {
        fn bytes(&self) -> &[u8] {
            bytemuck::cast_slice(&self.0)
        }
    }
    *budget = budget.checked_sub(tensor.length).ok_or_else(|| CheckpointError::Misaligned {
        path: file.path.clone(),
        tensor: tensor.name.clone(),
        dtype: dtype.name(),
        offset: tensor.begin,
    })?;
    let length = tensor.length as usize;
    let stored = &file.source.bytes()[tensor.begin as usize..][..length];
    let mut aligned = vec![0_u64; length.div_ceil(8)];
    bytemuck::cast_slice_mut(&mut aligned)[..length].copy_from_slice(stored);
    Ok(WeightData::new(Arc::new(Aligned(aligned)), 0, length)?)
}

/// What an index says: the files, each once and in order, and which of them holds each tensor.
struct Listed {
    files: Vec<String>,
    tensors: BTreeMap<String, usize>,
}

impl Listed {
    fn parse(path: &Path, bytes: &[u8]) -> Result<Self, CheckpointError> {
        let value = json::parse(path, bytes)?;
        let fields = json::Fields::new(path, &value)?;
        let Some(Value::Object(map)) = fields.get("weight_map") else {
            return Err(fields.invalid("weight_map", "is not an object of tensor and file names"));
        };
        let too_many =
            |what, count, cap| CheckpointError::TooMany { path: path.to_owned(), what, count, cap };
        if map.len() > limits::TENSORS {
            return Err(too_many("tensors", map.len(), limits::TENSORS));
        }
        let mut named = Vec::with_capacity(map.len());
        for (tensor, file) in map {
            let Value::String(file) = file else {
                return Err(fields.invalid("weight_map", format!("gives no file name for `{tensor}`")));
            };
            named.push((tensor, file_name(path, file)?));
        }
        let files: BTreeSet<&str> = named.iter().map(|(_, file)| *file).collect();
        if files.len() > limits::WEIGHT_FILES {
            return Err(too_many("weight files", files.len(), limits::WEIGHT_FILES));
        }
        let files: Vec<String> = files.into_iter().map(str::to_owned).collect();
        let tensors = named
            .into_iter()
            .filter_map(|(tensor, file)| {
                let index = files.binary_search_by(|existing| existing.as_str().cmp(file)).ok()?;
                Some((tensor.clone(), index))
            })
            .collect();
        Ok(Listed { files, tensors })
    }
}

/// Accepts a name that stands for a file or folder right in the checkpoint's directory.
pub(crate) fn file_name<'n>(path: &Path, name: &'n str) -> Result<&'n str, CheckpointError> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(only)), None) if only == name => Ok(name),
        _ => Err(CheckpointError::EscapesDirectory { path: path.to_owned(), name: name.to_owned() }),
    }
}
