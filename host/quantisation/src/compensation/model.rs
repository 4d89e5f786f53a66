//! The second moments of a whole model.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::factor::Factors;
use super::moments::SecondMoments;
use super::taking::MatrixInputs;
use crate::QuantiseError;

/// Of every matrix of a model the second moments of what it is multiplied with.
///
/// Factors are computed when they are asked for, and the last ones kept: matrices that are
/// multiplied with the same tensor follow each other in a graph.
pub struct Moments {
    identity: [u8; 32],
    inputs: MatrixInputs,
    kept: Kept,
    last: Mutex<Option<(String, Option<Arc<Factors>>)>>,
}

/// Where moments are.
enum Kept {
    /// By tensor.
    InMemory(BTreeMap<String, SecondMoments>),
    /// A file each, see [`SecondMoments::path`].
    InFolder(PathBuf),
}

impl Moments {
    /// `identity` is a hash of all they follow from: the checkpoint and the text. `moments` has
    /// those of every tensor of `inputs` that was seen.
    pub fn new(identity: [u8; 32], inputs: MatrixInputs, moments: BTreeMap<String, SecondMoments>) -> Self {
        Moments { identity, inputs, kept: Kept::InMemory(moments), last: Mutex::default() }
    }

    /// Those in a folder, which has a file for every tensor of `inputs`; read when they are asked
    /// for.
    pub fn in_folder(identity: [u8; 32], inputs: MatrixInputs, folder: impl Into<PathBuf>) -> Self {
        Moments { identity, inputs, kept: Kept::InFolder(folder.into()), last: Mutex::default() }
    }

    /// Hash of all they follow from.
    pub fn identity(&self) -> [u8; 32] {
        self.identity
    }

    /// The factors by which a weight is rounded; `None` where nothing that it is multiplied with
    /// was seen.
    pub fn factors(&self, weight: &str) -> Result<Option<Arc<Factors>>, QuantiseError> {
        let Some(key) = self.inputs.of.get(weight) else { return Ok(None) };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, factors)) = last.as_ref().filter(|(known, _)| known == key) {
            return Ok(factors.clone());
        }
        // The factors before make room first.
        *last = None;
        let factors = match &self.kept {
            Kept::InMemory(moments) => moments.get(key).and_then(Factors::of),
            Kept::InFolder(folder) => {
                let width = self.inputs.widths.get(key).copied().unwrap_or_default();
                Factors::of(&SecondMoments::read(SecondMoments::path(folder, key), width)?)
            }
        };
        let factors = factors.map(Arc::new);
        *last = Some((key.clone(), factors.clone()));
        Ok(factors)
    }
}

impl fmt::Debug for Moments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Moments").field("tensors", &self.inputs.widths.len()).finish_non_exhaustive()
    }
}

/// Moments are equal if they follow from the same.
impl PartialEq for Moments {
    fn eq(&self, other: &Self) -> bool {
        self.identity == other.identity
    }
}
