//! Measures how far the running chain is from the model as stored on text, and computes the bound.

use serde::Serialize;

use shardwright::Model;
use shardwright::tools::ModelTools;
use shardwright_build::MeasuredLoss;
use shardwright_checkpoints::StoredAnswers;
use shardwright_vocabulary::{Error, Result};

use crate::progress::PartProgress;

/// Largest ratio of the KL divergence to the measured loss of the formats.
const OF_MEASURED: f64 = 1.3;
/// Nats that orders of summation and roundings between operations may add.
const OF_ARITHMETIC: f64 = 1e-3;
/// Number of standard errors by which the measurement may exceed the bound.
const ERRORS: f64 = 3.0;

/// KL divergence of the chain running by itself over a text, from the model as stored on the CPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DivergenceVerification {
    /// Mean KL divergence in nats per token. For encoders, 1 − cosine. Null in JSON if a value is
    /// not a finite number.
    pub nats: f64,
    /// Standard error over the tokens, as if they were independent.
    pub error: f64,
    /// Number of tokens.
    pub tokens: u64,
    /// Name of the text.
    pub text: String,
    /// The largest accepted value, to which three standard errors are added. `None` if the loss of
    /// the formats was not measured.
    pub bound: Option<f64>,
    /// The origin of the bound, in words.
    pub bound_from: String,
    /// Whether the value is a finite number, and within the bound if it has one.
    pub passed: bool,
}

/// The largest accepted divergence in nats, and its origin.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bound {
    pub(crate) nats: Option<f64>,
    from: String,
}

impl Bound {
    /// Returns the bound that was `set`, or else the bound for the loss of the plan that was
    /// `measured` layer by layer on this machine's CPU. Losses expected from other models do not
    /// give a bound for this one.
    pub(crate) fn of(set: Option<f64>, measured: Option<&MeasuredLoss>) -> Self {
        match (set, measured) {
            (Some(nats), _) => Bound { nats: Some(nats), from: "the bound that was set".to_owned() },
            (None, Some(MeasuredLoss { micronats, .. })) => Bound {
                nats: Some(OF_MEASURED * *micronats as f64 / 1e6 + OF_ARITHMETIC),
                from: format!(
                    "{OF_MEASURED} times the {:.2} that these formats lose on the CPU, plus 1",
                    *micronats as f64 / 1e3
                ),
            },
            (None, None) => {
                Bound { nats: None, from: "the loss of these formats was not measured".to_owned() }
            }
        }
    }

    fn judge(self, stored: &StoredAnswers<'_>, divergences: &[f64]) -> DivergenceVerification {
        let measured = stored.loss(divergences);
        let (nats, error) = measured.as_ref().map_or((f64::INFINITY, 0.0), |loss| {
            (loss.micronats as f64 / 1e6, loss.error_micronats as f64 / 1e6)
        });
        DivergenceVerification {
            nats,
            error,
            tokens: divergences.len() as u64,
            text: measured.map_or_else(String::new, |loss| loss.text),
            passed: nats.is_finite() && self.nats.is_none_or(|bound| nats <= bound + ERRORS * error),
            bound: self.nats,
            bound_from: self.from,
        }
    }
}

/// Runs the chain over the text of `stored`.
pub(crate) fn divergence(
    model: &Model,
    stored: &StoredAnswers<'_>,
    bound: Bound,
    progress: &mut PartProgress<'_>,
) -> Result<DivergenceVerification> {
    let mut session = model.chain().session()?;
    let mut divergences = Vec::new();
    let all = stored.sequences().len() as f64;
    for (sequence, ids) in stored.sequences().iter().enumerate() {
        progress
            .step(sequence as f64 / all, || format!("text {sequence}, compared with the stored model"))?;
        if !model.chain().is_generative() {
            divergences.push(stored.divergence(sequence, 0, &session.encode(ids)?)?);
            continue;
        }
        session.clear();
        let mut failed: Option<Error> = None;
        session.score(ids, &mut |view| {
            for row in 0..view.rows() {
                let logits = view.logits(row).unwrap_or_default();
                match stored.divergence(sequence, view.position() + row, logits) {
                    Ok(nats) => divergences.push(nats),
                    Err(error) => drop(failed.get_or_insert(error)),
                }
            }
        })?;
        failed.map_or(Ok(()), Err)?;
    }
    Ok(bound.judge(stored, &divergences))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_the_one_that_was_set_or_follows_from_a_measurement() {
        let measured =
            MeasuredLoss { micronats: 10_000, error_micronats: 500, tokens: 256, text: "text".to_owned() };
        assert_eq!(Bound::of(Some(0.5), Some(&measured)).nats, Some(0.5));
        let bound = Bound::of(None, Some(&measured));
        assert!(bound.nats.is_some_and(|nats| (nats - 0.014).abs() < 1e-12), "{bound:?}");
        assert!(bound.from.contains("the 10.00 that"), "{bound:?}");
        assert_eq!(Bound::of(None, None).nats, None);
    }
}
