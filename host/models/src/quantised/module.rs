//! The tensors of one module of a checkpoint.

use std::sync::Arc;

use half::{bf16, f16};
use shardwright_graph::{WeightBytes, WeightData};
use shardwright_vocabulary::{Error, Result};

use crate::weight_file::{StoredTensor, WeightFile};

type Find<'s> = dyn Fn(&str) -> Option<Found<'s>> + 's;

/// A module, and a record of its tensors that were used.
pub(crate) struct Module<'s> {
    name: &'s str,
    find: &'s Find<'s>,
    missing: &'s dyn Fn(&str) -> Error,
    /// Names of the used tensors.
    pub used: Vec<String>,
}

impl<'s> Module<'s> {
    /// Returns the module `name`. `find` finds a tensor, and `missing` makes the error of a missing
    /// one.
    pub fn new(name: &'s str, find: &'s Find<'s>, missing: &'s dyn Fn(&str) -> Error) -> Self {
        Module { name, find, missing, used: Vec::new() }
    }

    /// Returns the name that the matrix would have if it were stored as a single tensor.
    pub fn weight_name(&self) -> String {
        format!("{}.weight", self.name)
    }

    /// Returns an optional tensor.
    pub fn find(&mut self, what: &str) -> Option<Found<'s>> {
        let name = format!("{}.{what}", self.name);
        let found = (self.find)(&name)?;
        self.used.push(name);
        Some(found)
    }

    /// Returns a required tensor, which must have one of these types and that shape.
    pub fn take(&mut self, what: &str, types: &[&str], shape: &[u64]) -> Result<Found<'s>> {
        self.take_shaped(what, types, &[shape.to_vec()])
    }

    /// Like [`Module::take`], but accepts several shapes, the usual one first.
    pub fn take_shaped(&mut self, what: &str, types: &[&str], shapes: &[Vec<u64>]) -> Result<Found<'s>> {
        let found = self.find(what).ok_or_else(|| (self.missing)(&format!("{}.{what}", self.name)))?;
        found.check_shaped(types, shapes)?;
        Ok(found)
    }
}

/// Supported types of scales.
pub(super) const FLOATS: &[&str] = &["F16", "BF16", "F32"];

/// A tensor and its file.
#[derive(Clone, Copy)]
pub(crate) struct Found<'s> {
    pub file: &'s WeightFile,
    pub tensor: &'s StoredTensor,
}

impl Found<'_> {
    /// Checks that the tensor has one of these types and that shape.
    pub fn check(&self, types: &[&str], shape: &[u64]) -> Result<()> {
        self.check_shaped(types, &[shape.to_vec()])
    }

    /// Checks that the tensor has one of these types and one of these shapes, the usual one first.
    pub fn check_shaped(&self, types: &[&str], shapes: &[Vec<u64>]) -> Result<()> {
        if !types.contains(&self.tensor.dtype.name) {
            return Err(self.invalid(format!(
                "is stored as {} instead of {}",
                self.tensor.dtype.name,
                types.join(" or ")
            )));
        }
        if !shapes.contains(&self.tensor.shape) {
            return Err(self.wrong_shape(shapes.first().map_or(&[], Vec::as_slice)));
        }
        Ok(())
    }

    /// Returns the error of a tensor whose shape differs from the one that the configuration
    /// implies.
    pub fn wrong_shape(&self, expected: &[u64]) -> Error {
        let (path, StoredTensor { name, shape, .. }) = (&self.file.path, self.tensor);
        let help = match path.extension().is_some_and(|extension| extension == "gguf") {
            true => {
                "config.json and the weight files belong to different models; if only rows of the embedding are missing, llama.cpp dropped those of unused tokens: set `vocab_size` in config.json to the number of rows"
            }
            false => "config.json and the weight files belong to different models",
        };
        let message =
            format!("tensor `{name}` has the shape {shape:?}; the configuration implies {expected:?}");
        Error::invalid(message).at(path.display()).with_help(help)
    }

    /// Returns the error of an invalid tensor.
    pub fn invalid(&self, reason: String) -> Error {
        self.invalid_at(self.tensor.begin, reason)
    }

    /// Like [`Found::invalid`], for a fault at this offset of the file.
    pub fn invalid_at(&self, offset: u64, reason: String) -> Error {
        Error::invalid(reason)
            .at(format_args!("tensor `{}` at byte {offset}", self.tensor.name))
            .at(self.file.path.display())
    }

    /// Returns the error of a valid tensor that no weight of a graph can represent.
    pub fn unheld(&self, what: String, supported: &str) -> Error {
        Error::unsupported(format!("tensor `{}` {what}; no weight can represent this", self.tensor.name))
            .at(self.file.path.display())
            .with_help(format!("supported: {supported}"))
    }

    /// Returns the tensor's bytes. `None` if only the file's head is present.
    pub fn bytes(&self) -> Option<Stored> {
        let source = Arc::clone(self.file.weights()?);
        Some(Stored { source, begin: self.tensor.begin as usize, length: self.tensor.length as usize })
    }

    /// Returns the tensor's values. `None` if only the file's head is present, or if they are not
    /// floats.
    pub fn floats(&self) -> Option<Vec<f32>> {
        let stored = self.bytes()?;
        let (pairs, quads) = (stored.bytes().as_chunks::<2>().0, stored.bytes().as_chunks::<4>().0);
        match self.tensor.dtype.name {
            "F16" => Some(pairs.iter().map(|pair| f16::from_le_bytes(*pair).to_f32()).collect()),
            "BF16" => Some(pairs.iter().map(|pair| bf16::from_le_bytes(*pair).to_f32()).collect()),
            "F32" => Some(quads.iter().map(|quad| f32::from_le_bytes(*quad)).collect()),
            _ => None,
        }
    }

    /// Returns the tensor's two integers. `None` if only the file's head is present.
    pub fn integers(&self) -> Option<[i64; 2]> {
        let stored = self.bytes()?;
        let (quads, eights) = (stored.bytes().as_chunks::<4>().0, stored.bytes().as_chunks::<8>().0);
        match (quads, eights) {
            (_, [a, b]) => Some([*a, *b].map(i64::from_le_bytes)),
            ([a, b], _) => Some([*a, *b].map(|quad| i64::from(i32::from_le_bytes(quad)))),
            _ => None,
        }
    }

    /// Returns the tensor's words. `None` if only the file's head is present.
    pub fn words(&self) -> Option<Vec<u32>> {
        let stored = self.bytes()?;
        Some(stored.bytes().as_chunks::<4>().0.iter().map(|quad| u32::from_le_bytes(*quad)).collect())
    }

    /// Refuses group numbers of inputs that do not follow the order of the inputs.
    pub fn check_order(&self, inputs: u64, group: u64) -> Result<()> {
        self.check(&["I32"], &[inputs])?;
        let order = self.words().unwrap_or_default();
        let wrong = order.iter().zip(0_u64..).position(|(&found, input)| u64::from(found) != input / group);
        match wrong {
            None => Ok(()),
            Some(input) => Err(self.unheld(
                format!("has input {input} in group {}, not in the order of the matrix", order[input] as i32),
                "inputs in the order of the matrix (quantise with `desc_act` or `actorder` off)",
            )),
        }
    }
}

/// The bytes of a tensor, shared with their file.
#[derive(Clone)]
pub(crate) struct Stored {
    source: Arc<dyn WeightBytes>,
    begin: usize,
    length: usize,
}

impl Stored {
    /// Returns the bytes in place, as the data of a weight.
    pub fn in_place(self) -> Result<WeightData> {
        WeightData::new(self.source, self.begin, self.length)
    }

    pub fn bytes(&self) -> &[u8] {
        self.source.bytes().get(self.begin..self.begin + self.length).unwrap_or_default()
    }
}

/// Returns a little-endian word, or 0 beyond the end.
pub(super) fn word(bytes: &[u8], index: usize) -> u32 {
    bytes.as_chunks::<4>().0.get(index).map_or(0, |quad| u32::from_le_bytes(*quad))
}
