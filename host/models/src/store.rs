//! All tensors of a checkpoint by name, in one file or in many, and a record of the tensors that
//! were used.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde_json::Value;
use shardwright_gguf::TensorType;
use shardwright_graph::{Weight, WeightBytes, WeightData, too_large};
use shardwright_vocabulary::{DType, Error, Result};

use crate::deferred_bytes::made;
use crate::family::Family;
use crate::gguf::{self, Blocks};
use crate::json::CONFIG;
use crate::lora::{Adapters, Changes};
use crate::quantised::{self, Found, Module, Scheme};
use crate::weight_file::{Content, StoredTensor, WeightFile, missing_tensor};
use crate::{json, limits, rows, safetensors};

/// The usual name of an unsharded weight file.
const SINGLE: &str = "model.safetensors";

/// The usual name of the index of shards.
const INDEX: &str = "model.safetensors.index.json";

/// A tensor of the checkpoint that no part of the graph reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusedTensor {
    pub name: String,
    /// Stored size in bytes.
    pub bytes: u64,
}

/// A tensor whose name is known from a header or an index.
#[derive(Clone, Copy)]
pub(crate) struct Known<'s> {
    /// Name in the checkpoint.
    pub name: &'s str,
    pub is_used: bool,
    /// The tensor in its file. `None` if only an index lists it.
    found: Option<Found<'s>>,
    listing: &'s Path,
}

impl<'s> Known<'s> {
    /// Returns the name in the file.
    pub fn stored_name(&self) -> &'s str {
        self.found.map_or(self.name, |found| found.tensor.name.as_str())
    }

    /// Returns the file that contains the tensor, or the index that lists it.
    pub fn path(&self) -> &'s Path {
        self.found.map_or(self.listing, |found| found.file.path.as_path())
    }

    /// Returns the stored size in bytes, if a header specifies it.
    pub fn bytes(&self) -> Option<u64> {
        self.found.map(|found| found.tensor.length)
    }

    /// Checks whether the file contains only a tower and its projector.
    pub fn is_of_projector(&self) -> bool {
        self.found.is_some_and(|found| found.file.is_projector)
    }

    /// Checks whether every byte is 0. `None` if the values are not present.
    pub fn is_zero(&self) -> Option<bool> {
        let stored = self.found.and_then(|found| found.bytes())?;
        Some(stored.bytes().iter().all(|byte| *byte == 0))
    }
}

/// The part of a checkpoint that a store must read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Every value. All weights must be present.
    Values,
    /// Names, shapes and element types, which headers contain. Without headers, shapes follow from
    /// the configuration and this is the element type. `None` if the configuration does not specify
    /// it.
    Outline(Option<DType>),
}

/// The properties of weight files that a configuration specifies.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// The family of the tensors.
    pub family: Family,
    /// The quantisation of the modules, if there is any.
    pub scheme: Option<Scheme>,
}

/// The known properties of tensors without headers.
enum Undescribed {
    /// Every tensor has a header.
    None,
    /// An index lists the names of the tensors.
    Listed(BTreeSet<String>, DType),
    /// The configuration implies the tensors.
    Implied(DType),
}

/// All tensors of a directory.
pub(crate) struct TensorStore {
    /// The weight file, or the index. Messages about missing tensors name it.
    listing: PathBuf,
    files: Vec<WeightFile>,
    /// File and place of each tensor, by name.
    places: BTreeMap<String, (usize, usize)>,
    undescribed: Undescribed,
    /// The error of the first missing file, if there are no files.
    missing: Option<Error>,
    /// Bytes of all tensors, according to an index without its files.
    listed_bytes: Option<u64>,
    used: BTreeSet<String>,
    wanted: Wanted,
    scheme: Option<Scheme>,
    /// Unpacked integers and scales, by tensor. A table and a head may share them.
    parted: BTreeMap<String, (WeightData, WeightData)>,
    /// The changes of adapters.
    changes: Changes,
    /// Names of the weights that were changed.
    changed: BTreeSet<String>,
}

impl TensorStore {
    /// Opens `model.safetensors`, or else all files that `model.safetensors.index.json` lists, or
    /// else all GGUF files of the directory.
    ///
    /// An outline needs no file. But if an index has some of its files, all must be there: the
    /// download is incomplete.
    pub fn open(directory: &Path, origin: &Origin, wanted: Wanted) -> Result<Self> {
        let store = Self::open_files(directory, origin, wanted)?;
        Ok(TensorStore { scheme: origin.scheme.clone(), ..store })
    }

    fn open_files(directory: &Path, origin: &Origin, wanted: Wanted) -> Result<Self> {
        let single = directory.join(SINGLE);
        let no_single = match safetensors::open(&single) {
            Ok(file) => return Self::of_files(single, vec![file], None, wanted),
            Err(error) if error.is_not_found() => error,
            Err(error) => return Err(error),
        };
        let index = directory.join(INDEX);
        let listed = match json::read_capped(&index, limits::INDEX_BYTES) {
            Ok(bytes) => Listed::parse(&index, &bytes)?,
            Err(error) if error.is_not_found() => {
                let files = gguf::files(directory)?;
                return match files.is_empty() {
                    // Without any weight files, messages name the plain file.
                    true => Self::implied(single, no_single, wanted),
                    false => Self::of_gguf(directory, files, origin, wanted),
                };
            }
            Err(error) => return Err(error),
        };
        let mut files = Vec::with_capacity(listed.files.len());
        let mut missing = None;
        for name in &listed.files {
            match safetensors::open(&directory.join(name)) {
                Ok(file) => files.push(file),
                Err(error) if error.is_not_found() => {
                    missing.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        match (missing, wanted) {
            (None, _) => Self::of_files(index, files, Some(&listed), wanted),
            (Some(missing), Wanted::Outline(Some(dtype))) if files.is_empty() => {
                let names = listed.tensors.into_keys().collect();
                Ok(TensorStore {
                    missing: Some(missing),
                    listed_bytes: listed.bytes,
                    ..Self::without_files(index, Undescribed::Listed(names, dtype), wanted)
                })
            }
            (Some(missing), Wanted::Outline(None)) if files.is_empty() => Err(untyped(missing)),
            (Some(missing), _) => Err(missing),
        }
    }

    /// Opens GGUF files. `directory` is their folder, for messages.
    pub fn of_gguf(directory: &Path, files: Vec<PathBuf>, origin: &Origin, wanted: Wanted) -> Result<Self> {
        if origin.scheme.is_some() {
            return Err(json::unsupported_field(
                &directory.join(CONFIG),
                quantised::FIELD,
                "present next to GGUF files",
                "no such field, since GGUF files specify their own quantisation",
            ));
        }
        let listing = match files.as_slice() {
            [single] => single.clone(),
            _ => directory.to_owned(),
        };
        Self::of_files(listing, gguf::open(&files, origin.family)?, None, wanted)
    }

    /// Opens another file, and reads as much of it as this store does.
    pub fn open_beside(&self, path: &Path) -> Result<Self> {
        match safetensors::open(path) {
            Ok(file) => Self::of_files(path.to_owned(), vec![file], None, self.wanted),
            Err(error) if error.is_not_found() => Self::implied(path.to_owned(), error, self.wanted),
            Err(error) => Err(error),
        }
    }

    /// Returns a store without the file, if values are not wanted and the element type is known.
    /// `missing` is the error of opening the file.
    fn implied(path: PathBuf, missing: Error, wanted: Wanted) -> Result<Self> {
        match wanted {
            Wanted::Outline(Some(dtype)) => Ok(TensorStore {
                missing: Some(missing),
                ..Self::without_files(path, Undescribed::Implied(dtype), wanted)
            }),
            Wanted::Outline(None) => Err(untyped(missing)),
            Wanted::Values => Err(missing),
        }
    }

    fn without_files(listing: PathBuf, undescribed: Undescribed, wanted: Wanted) -> Self {
        TensorStore {
            listing,
            files: Vec::new(),
            places: BTreeMap::new(),
            undescribed,
            missing: None,
            listed_bytes: None,
            used: BTreeSet::new(),
            wanted,
            scheme: None,
            parted: BTreeMap::new(),
            changes: Changes::default(),
            changed: BTreeSet::new(),
        }
    }

    /// Adds the changes of adapters.
    ///
    /// # Errors
    ///
    /// If a tensor that they change does not exist.
    pub fn merged_with(self, adapters: &Adapters) -> Result<Self> {
        let changes = Changes::of(adapters, &|name| self.has(name))?;
        Ok(TensorStore { changes, ..self })
    }

    /// Returns the changes of adapters.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Iterates over the tensors that adapters change and that no weight was made of.
    pub fn unread_changes(&self) -> impl Iterator<Item = &str> {
        self.changes.tensors().filter(|name| !self.changed.contains(*name))
    }

    fn of_files(
        listing: PathBuf,
        files: Vec<WeightFile>,
        listed: Option<&Listed>,
        wanted: Wanted,
    ) -> Result<Self> {
        let mut places = BTreeMap::new();
        for (file_index, file) in files.iter().enumerate() {
            for (place, tensor) in file.tensors.iter().enumerate() {
                let name = tensor.checkpoint_name().to_owned();
                if places.insert(name, (file_index, place)).is_some() {
                    let help = "keep the files of one model: all weight files of a folder are read as one checkpoint";
                    return Err(Error::invalid(format!("a second tensor `{}`", tensor.name))
                        .at(file.path.display())
                        .with_help(help));
                }
            }
        }
        limits::expect_at_most(limits::TENSORS, "tensors", places.len(), &listing)?;
        for (tensor, &file) in listed.iter().flat_map(|listed| &listed.tensors) {
            if places.get(tensor).map(|(existing, _)| *existing) != Some(file) {
                let file = listed.map_or("", |listed| listed.files[file].as_str());
                let message = format!("tensor `{tensor}` is listed in `{file}`, which does not contain it");
                let help = "the download is incomplete or mixed with another one; fetch the file again";
                return Err(Error::invalid(message).at(listing.display()).with_help(help));
            }
        }
        let store = TensorStore { files, places, ..Self::without_files(listing, Undescribed::None, wanted) };
        match store.lack() {
            Some(error) if wanted == Wanted::Values => Err(error),
            _ => Ok(store),
        }
    }

    /// Checks whether a tensor of that name exists. `None` if no file lists names.
    pub fn has(&self, name: &str) -> Option<bool> {
        let mark = self.mark(name);
        let any = |has: &dyn Fn(&str) -> bool| Some(has(name) || mark.as_deref().is_some_and(has));
        match &self.undescribed {
            Undescribed::None => any(&|name| self.places.contains_key(name)),
            Undescribed::Listed(names, _) => any(&|name| names.contains(name)),
            Undescribed::Implied(_) => None,
        }
    }

    /// Returns the name of the tensor whose presence means that the matrix `name` is quantised.
    fn mark(&self, name: &str) -> Option<String> {
        let scheme = self.scheme.as_ref()?;
        let module = name.strip_suffix(".weight")?;
        Some(format!("{module}.{}", scheme.mark(module)))
    }

    /// Returns the error of reading a value: a file ends after its header, or is missing. `None` if
    /// all values are present.
    pub fn lack(&self) -> Option<Error> {
        let header = self.files.iter().find(|file| file.weights().is_none());
        let Some(file) = header else { return self.missing.clone() };
        let message = format!("contains the header of {} bytes of weights, but no weights", file.length());
        let help = "download the weights: fetch the whole file in place of its header; only `plan` works without them";
        Some(Error::missing(message).at(file.path.display()).with_help(help))
    }

    /// Returns the bytes of all tensors, according to an index without its files. `None` if the
    /// index does not specify it, or if there are files.
    pub fn listed_bytes(&self) -> Option<u64> {
        self.listed_bytes
    }

    /// Returns the error of a tensor that the configuration implies and that does not exist.
    pub fn missing(&self, name: &str) -> Error {
        missing_tensor(&self.listing, name)
    }

    /// Returns a tensor as a weight, with the changes of adapters. It must have exactly the given
    /// shape.
    pub fn weight(&mut self, name: &str, part: &'static str, shape: &[u64]) -> Result<Weight> {
        let stored = self.stored_weight(name, part, shape)?;
        let weight = self.changes.applied(name, stored)?;
        self.changed.insert(name.to_owned());
        Ok(weight)
    }

    /// Returns a tensor as a weight, as the files store it.
    fn stored_weight(&mut self, name: &str, part: &'static str, shape: &[u64]) -> Result<Weight> {
        let mark = self.mark(name);
        let quantised = |names: &BTreeSet<String>| mark.as_ref().is_some_and(|mark| names.contains(mark));
        match (&self.undescribed, &self.scheme, shape) {
            (Undescribed::Implied(_), Some(scheme), &[outputs, inputs])
                if mark.is_some() && scheme.implies(name, part) =>
            {
                return scheme.planned(name, part, [outputs, inputs]);
            }
            (Undescribed::Listed(names, _), Some(scheme), &[outputs, inputs]) if quantised(names) => {
                // The names of the module's own tensors depend on the format.
                let module = name.strip_suffix("weight").unwrap_or(name);
                let of_module = names.range(module.to_owned()..).take_while(|name| name.starts_with(module));
                self.used.extend(of_module.cloned());
                return scheme.planned(name, part, [outputs, inputs]);
            }
            (Undescribed::Implied(dtype), ..) => return implied_weight(name, part, shape, *dtype),
            (Undescribed::Listed(names, dtype), ..) if names.contains(name) => {
                self.used.insert(name.to_owned());
                return implied_weight(name, part, shape, *dtype);
            }
            (Undescribed::None | Undescribed::Listed(..), ..) => {}
        }
        if let (Some(mark), &[outputs, inputs]) = (&mark, shape)
            && self.places.contains_key(mark)
        {
            return self.quantised(name, part, [outputs, inputs]);
        }
        let Some(&(file, place)) = self.places.get(name) else { return Err(self.missing(name)) };
        let file = &self.files[file];
        let tensor = &file.tensors[place];
        // A single value may be stored without axes.
        if tensor.shape != shape && !(tensor.shape.is_empty() && shape == [1]) {
            return Err(Found { file, tensor }.wrong_shape(shape));
        }
        let plain = |dtype, data| Weight {
            name: name.to_owned(),
            part,
            shape: shape.to_vec(),
            dtype,
            data,
            quantisation: None,
        };
        let weight = match tensor.dtype.content {
            Content::Float(dtype) => {
                let data = match file.weights() {
                    Some(source) if tensor.begin.is_multiple_of(dtype.bytes()) => {
                        WeightData::new(Arc::clone(source), tensor.begin as usize, tensor.length as usize)?
                    }
                    Some(source) => {
                        let (begin, length) = (tensor.begin as usize, tensor.length as usize);
                        let (source, copy) = (Arc::clone(source), OnceLock::new());
                        WeightData::new(Arc::new(Unaligned { source, begin, length, copy }), 0, length)?
                    }
                    None => WeightData::planned(in_memory(name, shape, Some(tensor.length))?),
                };
                plain(dtype, data)
            }
            Content::FloatPlusOne(_) => plain(DType::F32, less_one(Found { file, tensor })?),
            Content::Blocks(kind) => match Blocks::of(kind).filter(|_| shape.len() == 2) {
                Some(blocks) => {
                    let (data, scales) = match self.parted.get(name) {
                        Some(known) => known.clone(),
                        None => parted(Found { file, tensor }, kind, blocks)?,
                    };
                    self.parted.insert(name.to_owned(), (data.clone(), scales.clone()));
                    let quantisation = Some(blocks.quantisation.with(scales));
                    Weight { quantisation, ..plain(blocks.dtype, data) }
                }
                // Only matrices and tables can have scales per group.
                None => plain(DType::F32, computed(Found { file, tensor }, kind)?),
            },
            Content::Other => {
                let StoredTensor { name, dtype, .. } = tensor;
                let message = format!(
                    "tensor `{name}` is stored as {}, which is not supported for weights",
                    dtype.name
                );
                return Err(Error::unsupported(message).at(file.path.display()).with_help(
                    "convert the weights to f32, f16 or bf16; GGUF files may also use Q4_0 and Q8_0 and most other types",
                ));
            }
        };
        let weight = match tensor.paired_heads {
            None => weight,
            Some(heads) => unpaired(weight, heads).ok_or_else(|| {
                let rows = shape[0];
                let reason = format!("has {rows} rows, which are not pairs for each of {heads} heads");
                Found { file, tensor }.invalid(reason)
            })??,
        };
        self.used.insert(name.to_owned());
        Ok(weight)
    }

    /// Reads the matrix of a quantised module.
    fn quantised(&mut self, name: &str, part: &'static str, shape: [u64; 2]) -> Result<Weight> {
        let (Some(scheme), Some(module)) = (&self.scheme, name.strip_suffix(".weight")) else {
            return Err(self.missing(name));
        };
        let find = |name: &str| {
            let &(file, place) = self.places.get(name)?;
            let file = &self.files[file];
            Some(Found { file, tensor: &file.tensors[place] })
        };
        let missing = |name: &str| self.missing(name);
        let mut module = Module::new(module, &find, &missing);
        let weight = scheme.weight(&mut module, part, shape)?;
        let used = module.used;
        self.used.extend(used);
        Ok(weight)
    }

    /// Returns the tensors that were not used, by name.
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

    /// Iterates over the tensors whose names are known, by name.
    pub fn known(&self) -> impl Iterator<Item = Known<'_>> {
        let stored = self.places.iter().map(move |(name, &(file, place))| {
            let file = &self.files[file];
            (name, Some(Found { file, tensor: &file.tensors[place] }))
        });
        let listed = match &self.undescribed {
            Undescribed::Listed(names, _) => Some(names),
            Undescribed::None | Undescribed::Implied(_) => None,
        };
        let listed = listed.into_iter().flatten().map(|name| (name, None));
        stored.chain(listed).map(move |(name, found)| Known {
            name: name.as_str(),
            is_used: self.used.contains(name),
            found,
            listing: &self.listing,
        })
    }

    /// Returns the files, ordered by name.
    pub fn files(&self) -> &[WeightFile] {
        &self.files
    }
}

/// Converts a length to this machine's `usize`.
fn in_memory(name: &str, shape: &[u64], bytes: Option<u64>) -> Result<usize> {
    bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(|| too_large(name, shape))
}

/// Returns the error of a missing weight file whose element type is not known either.
fn untyped(missing: Error) -> Error {
    missing
        .with_more("config.json has no `dtype` either")
        .with_help("download the weights, or their headers alone: see docs/using.md")
}

/// Returns a weight without bytes, for a tensor without header.
fn implied_weight(name: &str, part: &'static str, shape: &[u64], dtype: DType) -> Result<Weight> {
    let data = WeightData::planned(in_memory(name, shape, dtype.packed_bytes(shape))?);
    Ok(Weight { name: name.to_owned(), part, shape: shape.to_vec(), dtype, data, quantisation: None })
}

/// Subtracts the one that a converter added to the checkpoint's floats.
///
/// # Errors
///
/// If one cannot be subtracted exactly. From the sum of a float and one it always can.
fn less_one(found: Found<'_>) -> Result<WeightData> {
    let values = found.floats().unwrap_or_default();
    let mut bytes = Vec::with_capacity(4 * values.len());
    for (index, value) in values.into_iter().enumerate() {
        let less = value - 1.0;
        if less + 1.0 != value {
            let what =
                format!("has the value {value:e} at {index}, which is not exactly one more than a float");
            return Err(found.unheld(what, "norms as llama.cpp's converter stores them, one added to each"));
        }
        bytes.extend(less.to_le_bytes());
    }
    Ok(WeightData::from_vec(bytes))
}

fn wrong_scale(found: Found<'_>, at: usize, scale: half::f16) -> Error {
    found.invalid_at(found.tensor.begin + at as u64, format!("has the scale {scale} there"))
}

/// Returns the values of a tensor of blocks, which are computed on first use.
fn computed(found: Found<'_>, kind: TensorType) -> Result<WeightData> {
    let StoredTensor { name, shape, .. } = found.tensor;
    let length = in_memory(name, shape, DType::F32.packed_bytes(shape))?;
    let Some(stored) = found.bytes() else { return Ok(WeightData::planned(length)) };
    if let Some((at, scale)) = kind.wrong_scale(stored.bytes()) {
        return Err(wrong_scale(found, at, scale));
    }
    let values = move || {
        let values = kind.values(stored.bytes()).unwrap_or_default();
        values.into_iter().flat_map(f32::to_le_bytes).collect()
    };
    made(length, values)
}

/// Reorders the rows of each head as in the checkpoint. See [`StoredTensor::paired_heads`]. Returns
/// `None` if heads have no pairs of rows.
fn unpaired(weight: Weight, heads: u64) -> Option<Result<Weight>> {
    let rows = weight.shape[0];
    let size = (heads > 0 && rows.is_multiple_of(2 * heads)).then(|| rows / heads)? as usize;
    Some(rows::reordered(weight, size, move |within| 2 * (within % (size / 2)) + within / (size / 2)))
}

/// Returns the integers and the scales of a matrix of blocks. Checks that all scales are finite.
fn parted(found: Found<'_>, kind: TensorType, blocks: Blocks) -> Result<(WeightData, WeightData)> {
    let StoredTensor { name, shape, .. } = found.tensor;
    let [integers, scales] = blocks.sizes(name, shape)?;
    let Some(stored) = found.bytes() else {
        return Ok((WeightData::planned(integers), WeightData::planned(scales)));
    };
    if let Some((at, scale)) = kind.wrong_scale(stored.bytes()) {
        return Err(wrong_scale(found, at, scale));
    }
    let width = shape.last().map_or(0, |&width| width as usize);
    let again = stored.clone();
    Ok((
        made(integers, move || blocks.integers(stored.bytes(), width))?,
        made(scales, move || blocks.scales(again.bytes(), width))?,
    ))
}

/// A range of a file that is not aligned for its elements. It is copied to memory when it is first
/// read as a whole, and stays there.
struct Unaligned {
    source: Arc<dyn WeightBytes>,
    begin: usize,
    length: usize,
    copy: OnceLock<Vec<u64>>,
}

impl WeightBytes for Unaligned {
    fn bytes(&self) -> &[u8] {
        let words = self.copy.get_or_init(|| {
            let mut words = vec![0_u64; self.length.div_ceil(8)];
            if let Some(stored) = self.source.bytes().get(self.begin..self.begin + self.length) {
                bytemuck::cast_slice_mut(&mut words)[..self.length].copy_from_slice(stored);
            }
            words
        });
        &bytemuck::cast_slice(words)[..self.length]
    }

    fn length(&self) -> usize {
        self.length
    }

    fn copy(&self, offset: usize, into: &mut [u8]) -> bool {
        offset.checked_add(into.len()).is_some_and(|end| end <= self.length)
            && self.source.copy(self.begin + offset, into)
    }
}

/// The content of an index: the files, each once and in order, and the file of each tensor.
struct Listed {
    files: Vec<String>,
    tensors: BTreeMap<String, usize>,
    /// Bytes of all tensors, if the index specifies them.
    bytes: Option<u64>,
}

impl Listed {
    fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let value = json::parse(path, bytes)?;
        let fields = json::Fields::new(path, &value)?;
        let Some(Value::Object(map)) = fields.get("weight_map") else {
            return Err(fields.invalid("weight_map", "is not an object of tensor and file names"));
        };
        limits::expect_at_most(limits::TENSORS, "tensors", map.len(), path)?;
        let mut named = Vec::with_capacity(map.len());
        for (tensor, file) in map {
            let Value::String(file) = file else {
                return Err(fields.invalid("weight_map", format!("gives no file name for `{tensor}`")));
            };
            named.push((tensor, file_name(path, file)?));
        }
        let files: BTreeSet<&str> = named.iter().map(|(_, file)| *file).collect();
        limits::expect_at_most(limits::WEIGHT_FILES, "weight files", files.len(), path)?;
        let files: Vec<String> = files.into_iter().map(str::to_owned).collect();
        let tensors = named
            .into_iter()
            .filter_map(|(tensor, file)| {
                let index = files.binary_search_by(|existing| existing.as_str().cmp(file)).ok()?;
                Some((tensor.clone(), index))
            })
            .collect();
        let metadata = fields.object("metadata").ok().flatten();
        let bytes = metadata.and_then(|metadata| metadata.get("total_size")?.as_u64());
        Ok(Listed { files, tensors, bytes })
    }
}

/// Checks that a name denotes a file or folder directly in the checkpoint's directory.
pub(crate) fn file_name<'n>(path: &Path, name: &'n str) -> Result<&'n str> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(only)), None) if only == name => Ok(name),
        _ => Err(Error::invalid(format!("`{name}` does not name a file of the checkpoint's directory"))
            .at(path.display())
            .with_help("do not trust this checkpoint: its files must be in its own directory")),
    }
}
