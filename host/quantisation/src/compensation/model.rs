//! The second moments of a whole model.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::factor::Factors;
use super::moments::SecondMoments;

/// Of every matrix of a model the second moments of what it is multiplied with.
///
/// Factors are computed when they are asked for, and the last ones kept: matrices that are
/// multiplied with the same tensor follow each other in a graph.
pub struct Moments {
    identity: [u8; 32],
    /// The tensor that a matrix is multiplied with, by name of the weight.
    inputs: BTreeMap<String, String>,
    /// By tensor.
    moments: BTreeMap<String, SecondMoments>,
    last: Mutex<Option<(String, Option<Arc<Factors>>)>>,
}

impl Moments {
    /// `identity` is a hash of all they follow from: the checkpoint and the text. `inputs` has the
    /// key of what each matrix is multiplied with, `moments` those of each key.
    pub fn new(
        identity: [u8; 32],
        inputs: BTreeMap<String, String>,
        moments: BTreeMap<String, SecondMoments>,
    ) -> Self {
        Moments { identity, inputs, moments, last: Mutex::default() }
    }

    /// Hash of all they follow from.
    pub fn identity(&self) -> [u8; 32] {
        self.identity
    }

    /// The factors by which a weight is rounded; `None` where nothing that it is multiplied with
    /// was seen.
    pub fn factors(&self, weight: &str) -> Option<Arc<Factors>> {
        let key = self.inputs.get(weight)?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((known, factors)) if known == key => factors.clone(),
            _ => {
                let factors = self.moments.get(key).and_then(Factors::of).map(Arc::new);
                *last = Some((key.clone(), factors.clone()));
                factors
            }
        }
    }
}

impl fmt::Debug for Moments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Moments").field("tensors", &self.moments.len()).finish_non_exhaustive()
    }
}

/// Moments are equal if they follow from the same.
impl PartialEq for Moments {
    fn eq(&self, other: &Self) -> bool {
        self.identity == other.identity
    }
}
