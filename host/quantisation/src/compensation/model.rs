//! The second moments of a whole model.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::factor::{DAMPING, Factors};
use super::moments::SecondMoments;
use super::taking::MatrixInputs;
use crate::{Note, QuantiseError, Watch};

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

    /// [`Moments::factors`] of a weight that is rounded, with what there is to say of them.
    pub(crate) fn factors_said(
        &self,
        weight: &str,
        watch: &mut dyn Watch,
    ) -> Result<Option<Arc<Factors>>, QuantiseError> {
        let factors = self.factors(weight)?;
        let name = || weight.to_owned();
        match &factors {
            Some(factors) if factors.damping() > DAMPING => {
                let percent = (100.0 * factors.damping()).round() as u64;
                watch.note(Note::Damped { weight: name(), percent });
            }
            None if self.inputs.of.contains_key(weight) => watch.note(Note::NotSeen { weight: name() }),
            _ => {}
        }
        Ok(factors)
    }

    /// The moments of what a weight is multiplied with; `None` where nothing of that was seen.
    pub(crate) fn second(&self, weight: &str) -> Result<Option<SecondMoments>, QuantiseError> {
        let Some(key) = self.inputs.of.get(weight) else { return Ok(None) };
        Ok(match &self.kept {
            Kept::InMemory(moments) => moments.get(key).cloned(),
            Kept::InFolder(folder) => {
                let width = self.inputs.widths.get(key).copied().unwrap_or_default();
                Some(SecondMoments::read(SecondMoments::path(folder, key), width)?)
            }
        })
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

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::Progress;

    struct Notes(Vec<Note>);

    impl Watch for Notes {
        fn progress(&mut self, _: &Progress<'_>) -> ControlFlow<()> {
            ControlFlow::Continue(())
        }

        fn note(&mut self, note: Note) {
            self.0.push(note);
        }
    }

    #[test]
    fn more_damping_than_usual_is_said() {
        let of = |triangle: Vec<f32>| {
            let inputs = MatrixInputs {
                of: BTreeMap::from([("w".to_owned(), "x".to_owned())]),
                widths: BTreeMap::from([("x".to_owned(), 2)]),
            };
            let moments = SecondMoments { width: 2, rows: 9, triangle };
            let moments = Moments::new([0; 32], inputs, BTreeMap::from([("x".to_owned(), moments)]));
            let mut notes = Notes(Vec::new());
            assert!(moments.factors_said("w", &mut notes).unwrap().is_some());
            notes.0
        };
        assert_eq!(of(vec![1.0, 0.3, 1.0]), []);
        // No moments of real rows: a negative eigenvalue of twice the mean square.
        assert_eq!(of(vec![1.0, 3.0, 1.0]), [Note::Damped { weight: "w".to_owned(), percent: 1000 }]);
    }
}
