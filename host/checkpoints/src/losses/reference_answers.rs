//! Runs the model as stored over text that is not used for calibration or rounding.

use shardwright_build::{MeasuredLoss, PlanOptions};
use shardwright_graph::Graph;
use shardwright_models::Checkpoint;
use shardwright_quantisation::{PlanLoss, divergence};
use shardwright_vocabulary::{Error, ErrorKind, Result, Watch};

use super::plan_loss::{Outputs, TEXT, run_as_stored};
use crate::moments::engine;
use crate::texts::{self, Budget};

/// Encodes the built-in text that is not used for calibration or rounding: at most `tokens` token
/// ids of `checkpoint`, in sequences that fit its context.
///
/// # Errors
/// The tokenizer or chat template cannot be read, or `tokens` is 0.
///
/// ```no_run
/// # fn main() -> shardwright_vocabulary::Result<()> {
/// let checkpoint = shardwright_checkpoints::open_checkpoint("demo-model".as_ref())?;
/// let sequences = shardwright_checkpoints::unseen_text(&checkpoint, 64)?;
/// assert!(sequences.iter().map(Vec::len).sum::<usize>() <= 64);
/// # Ok(())
/// # }
/// ```
pub fn unseen_text(checkpoint: &Checkpoint, tokens: usize) -> Result<Vec<Vec<u32>>> {
    let tokens = tokens.min(TEXT.tokens);
    let mut left = tokens;
    let mut sequences = texts::unseen(checkpoint, checkpoint.graph(), Budget { tokens, ..TEXT })?;
    for sequence in &mut sequences {
        sequence.truncate(left);
        left -= sequence.len();
    }
    sequences.retain(|sequence| !sequence.is_empty());
    Ok(sequences)
}

/// The outputs of a model as stored for [`unseen_text`], as a reference for a running model.
pub struct StoredAnswers<'g> {
    graph: &'g Graph,
    sequences: Vec<Vec<u32>>,
    outputs: Outputs,
}

impl<'g> StoredAnswers<'g> {
    /// Runs the checkpoint on the CPU shim, a layer at a time, over about `tokens` tokens. Memory:
    /// `tokens` times the vocabulary in f32, and a layer's weights.
    ///
    /// # Errors
    /// Fails like [`unseen_text`], with errors of the shim, and with [`ErrorKind::Cancelled`].
    pub fn of(
        checkpoint: &'g Checkpoint,
        options: &PlanOptions,
        tokens: usize,
        watch: &mut dyn Watch,
    ) -> Result<Self> {
        let graph = checkpoint.graph();
        let sequences = unseen_text(checkpoint, tokens)?;
        let engine = engine(options, "verify", "the model as stored is run on the CPU shim")?;
        let outputs = run_as_stored(graph, &engine, &sequences, watch)?;
        Ok(StoredAnswers { graph, sequences, outputs })
    }

    /// Returns the token ids, in independent sequences.
    pub fn sequences(&self) -> &[Vec<u32>] {
        &self.sequences
    }

    /// Computes the KL divergence in nats of another model's logits after `position` of a sequence.
    /// For encoders, whose sentence vector is at position 0, computes 1 − cosine.
    ///
    /// # Errors
    /// Fails with [`ErrorKind::Invalid`] if the position does not exist, or the number of values
    /// differs.
    pub fn divergence(&self, sequence: usize, position: usize, values: &[f32]) -> Result<f64> {
        let width = self.outputs.width;
        let rows = self.outputs.of.get(sequence).map(|rows| rows.chunks_exact(width));
        match rows.and_then(|mut rows| rows.nth(position)) {
            Some(stored) if stored.len() == values.len() => {
                Ok(divergence(self.graph, stored, values, width).0)
            }
            stored => {
                let (count, wanted) = (values.len(), stored.map_or(0, <[f32]>::len));
                let what = format!(
                    "expected {wanted} values after position {position} of text {sequence}, got {count}"
                );
                Err(Error::new(ErrorKind::Invalid, what)
                    .with_help("verify the model with the checkpoint that it was made from"))
            }
        }
    }

    /// Computes the mean of divergences. Returns `None` if one is not a finite number.
    pub fn loss(&self, divergences: &[f64]) -> Option<MeasuredLoss> {
        PlanLoss::of(divergences.iter().copied()).map(super::plan_loss::reported)
    }
}
