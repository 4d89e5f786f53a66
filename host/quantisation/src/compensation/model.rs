//! The second moments of a whole model.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use shardwright_vocabulary::Result;

use super::factor::{Factors, MatrixFactors};
use super::matrix_inputs::{MatrixInputs, PassedOn};
use super::moment_warning::MomentWarning;
use super::moments::SecondMoments;

/// Second moments of the inputs of every matrix of a model.
///
/// Factors are computed on request and the last ones are cached, since matrices with the same input
/// follow each other in a graph.
pub struct Moments {
    identity: [u8; 32],
    inputs: MatrixInputs,
    kept: Kept,
    last: Mutex<Option<(String, Option<Arc<Factors>>)>>,
}

/// Storage of the moments.
enum Kept {
    /// In memory, by tensor.
    InMemory(BTreeMap<String, SecondMoments>),
    /// One file per tensor, see [`SecondMoments::path`]. Gradients use
    /// [`MatrixInputs::gradient_key`].
    InFolder(PathBuf),
}

impl Moments {
    /// Creates moments in memory. `identity` is a hash of the checkpoint and the text. `moments`
    /// has an entry for every observed tensor of `inputs`, and entries for gradients by
    /// [`MatrixInputs::gradient_key`].
    pub fn new(identity: [u8; 32], inputs: MatrixInputs, moments: BTreeMap<String, SecondMoments>) -> Self {
        Moments { identity, inputs, kept: Kept::InMemory(moments), last: Mutex::default() }
    }

    /// Creates moments stored in a folder with one file for every tensor and gradient of `inputs`.
    /// Files are read on request.
    pub fn in_folder(identity: [u8; 32], inputs: MatrixInputs, folder: impl Into<PathBuf>) -> Self {
        Moments { identity, inputs, kept: Kept::InFolder(folder.into()), last: Mutex::default() }
    }

    /// Returns the hash of the checkpoint and the text.
    pub fn identity(&self) -> [u8; 32] {
        self.identity
    }

    /// Returns [`Moments::factors`] of a weight, with remarks for the user.
    pub(crate) fn factors_and_remarks(
        &self,
        weight: &str,
    ) -> Result<(Option<MatrixFactors>, Vec<MomentWarning>)> {
        let factors = self.factors(weight)?;
        let mut remarks = Vec::new();
        match &factors {
            Some(MatrixFactors { columns, rows }) => {
                let both = [Some(columns), rows.as_ref()];
                for factors in both.into_iter().flatten().filter(|factors| factors.is_damped_more()) {
                    let percent = (100.0 * factors.damping()).round() as u64;
                    remarks.push(MomentWarning::Damped { percent });
                }
                if rows.is_none() && self.inputs.gradients.contains_key(weight) {
                    remarks.push(MomentWarning::RowsAlone);
                }
            }
            None if self.inputs.of.contains_key(weight) => remarks.push(MomentWarning::NotSeen),
            _ => {}
        }
        Ok((factors, remarks))
    }

    /// Returns where errors of a weight are passed on to, assuming that its inputs and gradients
    /// were observed.
    pub(crate) fn passed_on(&self, weight: &str) -> PassedOn {
        self.inputs.passed_on(weight)
    }

    /// Returns the moments of a weight's inputs, or `None` if these were not observed.
    pub(crate) fn second(&self, weight: &str) -> Result<Option<SecondMoments>> {
        let Some(key) = self.inputs.of.get(weight) else { return Ok(None) };
        let width = self.inputs.widths.get(key).copied().unwrap_or_default();
        Ok(self.moments(key, width)?.map(Cow::into_owned))
    }

    /// Returns the factors for rounding a weight, or `None` if its inputs were not observed.
    pub fn factors(&self, weight: &str) -> Result<Option<MatrixFactors>> {
        let Some(columns) = self.columns(weight)? else { return Ok(None) };
        let rows = match self.inputs.gradients.get(weight) {
            Some(&rows) => {
                let moments = self.moments(&MatrixInputs::gradient_key(weight), rows)?;
                moments.and_then(|moments| Factors::of_gradients(&moments)).map(Arc::new)
            }
            None => None,
        };
        Ok(Some(MatrixFactors { columns, rows }))
    }

    /// Returns only the factors of the weight's inputs.
    pub(crate) fn columns(&self, weight: &str) -> Result<Option<Arc<Factors>>> {
        let Some(key) = self.inputs.of.get(weight) else { return Ok(None) };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, factors)) = last.as_ref().filter(|(known, _)| known == key) {
            return Ok(factors.clone());
        }
        // Free the previous factors first.
        *last = None;
        let width = self.inputs.widths.get(key).copied().unwrap_or_default();
        let factors = self.moments(key, width)?.and_then(|moments| Factors::of(&moments)).map(Arc::new);
        *last = Some((key.clone(), factors.clone()));
        Ok(factors)
    }

    fn moments(&self, key: &str, width: usize) -> Result<Option<Cow<'_, SecondMoments>>> {
        Ok(match &self.kept {
            Kept::InMemory(moments) => moments.get(key).map(Cow::Borrowed),
            Kept::InFolder(folder) => {
                Some(Cow::Owned(SecondMoments::read(SecondMoments::path(folder, key), width)?))
            }
        })
    }
}

impl fmt::Debug for Moments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Moments").field("tensors", &self.inputs.widths.len()).finish_non_exhaustive()
    }
}

/// Moments are equal if their identities are.
impl PartialEq for Moments {
    fn eq(&self, other: &Self) -> bool {
        self.identity == other.identity
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_without_derivatives_are_said_to_be_rounded_alone() {
        let noted = |gradients: Vec<f32>| {
            let inputs = MatrixInputs {
                of: BTreeMap::from([("w".to_owned(), "x".to_owned())]),
                widths: BTreeMap::from([("x".to_owned(), 2)]),
                gradients: BTreeMap::from([("w".to_owned(), 2)]),
            };
            let of = |triangle: Vec<f32>| SecondMoments { width: 2, rows: 9, triangle };
            let key = MatrixInputs::gradient_key("w");
            let moments = BTreeMap::from([("x".to_owned(), of(vec![1.0, 0.3, 1.0])), (key, of(gradients))]);
            let (factors, remarks) = Moments::new([0; 32], inputs, moments).factors_and_remarks("w").unwrap();
            (factors.unwrap().rows.is_some(), remarks)
        };
        assert_eq!(noted(vec![1.0, 0.3, 1.0]), (true, Vec::new()));
        assert_eq!(noted(vec![1.0, f32::NAN, f32::NAN]), (false, vec![MomentWarning::RowsAlone]));
    }

    #[test]
    fn more_damping_than_usual_is_said() {
        let of = |triangle: Vec<f32>| {
            let inputs = MatrixInputs {
                of: BTreeMap::from([("w".to_owned(), "x".to_owned())]),
                widths: BTreeMap::from([("x".to_owned(), 2)]),
                gradients: BTreeMap::new(),
            };
            let moments = SecondMoments { width: 2, rows: 9, triangle };
            let moments = Moments::new([0; 32], inputs, BTreeMap::from([("x".to_owned(), moments)]));
            let (factors, remarks) = moments.factors_and_remarks("w").unwrap();
            assert!(factors.is_some());
            remarks
        };
        assert_eq!(of(vec![1.0, 0.3, 1.0]), []);
        // Not moments of real rows: one negative eigenvalue of twice the mean square.
        assert_eq!(of(vec![1.0, 3.0, 1.0]), [MomentWarning::Damped { percent: 1000 }]);
    }
}
