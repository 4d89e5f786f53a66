//! The measured loss of a whole plan, and its file.

use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use shardwright_vocabulary::Result;

use crate::envelope::{HEAD, Kind, damaged};

/// The content is a line of some hundred bytes.
const KIND: Kind = Kind { magic: b"sw-plans", version: 1, name: "a plan's measured loss", limit: 1 << 12 };

/// Divergence of a model in the formats of a plan from the model as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanLoss {
    /// Mean KL divergence in billionths of a nat per token, rounded up. For encoders, 1 − cosine in
    /// billionths.
    pub nanonats: u64,
    /// Standard error of the mean, assuming independent tokens. 0 for fewer than two tokens.
    pub error_nanonats: u64,
    /// Number of measured tokens.
    pub tokens: u64,
}

/// File content: the loss and the identity of the measured plan.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    identity: [u8; 32],
    loss: PlanLoss,
}

impl PlanLoss {
    /// Computes the loss from the divergence of each token in nats. It is 0 without tokens. Returns
    /// `None` if a divergence is not a finite number.
    ///
    /// ```
    /// use shardwright_quantisation::PlanLoss;
    ///
    /// let loss = PlanLoss::of([0.001, 0.003].into_iter()).expect("finite numbers");
    /// assert_eq!((loss.nanonats, loss.error_nanonats, loss.tokens), (2_000_000, 1_000_000, 2));
    /// assert_eq!(PlanLoss::of([0.001, f64::NAN].into_iter()), None);
    /// ```
    pub fn of(divergences: impl Iterator<Item = f64>) -> Option<Self> {
        let (mut count, mut mean, mut squares) = (0_u64, 0.0_f64, 0.0_f64);
        for divergence in divergences {
            count += 1;
            let off = divergence - mean;
            mean += off / count as f64;
            squares += off * (divergence - mean);
        }
        let error = match count {
            0 | 1 => 0.0,
            count => (squares / (count - 1) as f64 / count as f64).sqrt(),
        };
        // Rounding of the sum is within a millionth of a nanonat.
        let nanonats = |nats: f64| (1e9 * nats.max(0.0) - 1e-6).ceil().max(0.0) as u64;
        let is_finite = mean.is_finite() && error.is_finite();
        is_finite.then(|| PlanLoss {
            nanonats: nanonats(mean),
            error_nanonats: nanonats(error),
            tokens: count,
        })
    }

    /// Writes the loss to a file atomically.
    ///
    /// # Errors
    /// If the folder cannot be written to.
    pub fn write(&self, path: &Path, identity: [u8; 32]) -> Result<()> {
        let content = serde_json::to_vec(&Kept { identity, loss: *self })
            .map_err(|_| damaged(path, HEAD, "the text"))?;
        KIND.write(path, &content)
    }

    /// Reads the loss with this identity.
    ///
    /// # Errors
    /// If the file is missing, damaged, or belongs to another plan.
    pub fn read(path: &Path, identity: [u8; 32]) -> Result<Self> {
        let content = KIND.read(path)?;
        let kept: Kept = serde_json::from_slice(&content)
            .map_err(|error| damaged(path, HEAD + error.column(), "the text"))?;
        match kept.identity == identity {
            true => Ok(kept.loss),
            false => Err(damaged(path, HEAD, "the plan, which is not that of its name")),
        }
    }
}

/// Computes a hash of everything that determines the loss of a plan: the identity of the losses of
/// places (see [`losses_identity`](crate::losses_identity)), and the `forms` of the model's parts
/// and tables in words.
pub fn plan_loss_identity(losses: [u8; 32], forms: &[String]) -> [u8; 32] {
    let mut digest = Sha256::new();
    digest.update(losses);
    for form in forms {
        digest.update((form.len() as u64).to_le_bytes());
        digest.update(form);
    }
    digest.finalize().into()
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    #[test]
    fn a_file_is_read_for_its_plan_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("loss");
        let loss = PlanLoss::of([0.5, 0.25, 0.0].into_iter()).unwrap();
        loss.write(&path, [1; 32]).unwrap();
        assert_eq!(PlanLoss::read(&path, [1; 32]).unwrap(), loss);
        let fails = |identity: [u8; 32], message: &str| {
            let error = PlanLoss::read(&path, identity).unwrap_err();
            assert!(error.kind() == ErrorKind::Invalid && error.message().starts_with(message), "{error}");
        };
        fails([2; 32], "damaged: the plan, which is not that of its name");
        std::fs::write(&path, b"sw-plans").unwrap();
        fails([1; 32], "expected a plan's measured loss, got another kind of file");
    }

    #[test]
    fn every_part_of_a_plan_counts() {
        let forms = |forms: &[&str]| -> [u8; 32] {
            let forms: Vec<String> = forms.iter().map(|form| (*form).to_owned()).collect();
            plan_loss_identity([0; 32], &forms)
        };
        assert_ne!(forms(&["ab", "c"]), forms(&["a", "bc"]));
        assert_ne!(forms(&[]), forms(&[""]));
        let none = PlanLoss { nanonats: 0, error_nanonats: 0, tokens: 0 };
        assert_eq!(PlanLoss::of([].into_iter()), Some(none));
        assert_eq!(PlanLoss::of([f64::INFINITY, 1.0].into_iter()), None);
    }
}
