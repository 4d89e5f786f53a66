//! Runs a model over windows and scores the tokens that it predicts.

use rayon::prelude::*;
use shardwright::tools::ModelTools;
use shardwright::{Error, ErrorKind, Model, Result};
use shardwright_runtime::Session;
use shardwright_vocabulary::Watch;

use crate::distribution::NextTokenDistribution;
use crate::score::{Against, WindowScore};

/// Rows whose logits are in memory at once: as many as the largest step of a plan decodes. They
/// need a few megabytes even with a large vocabulary.
const ROWS: usize = 16;

/// A model with its own session. The session has no fallback, so another device never scores the
/// rest of a window.
pub(crate) struct Predictor<'m> {
    model: &'m Model,
    session: Session,
    /// Logits of the last rows.
    logits: Vec<f32>,
}

impl<'m> Predictor<'m> {
    /// Creates a session of the model.
    ///
    /// # Errors
    ///
    /// The model computes embeddings, or no session can be created.
    pub fn new(model: &'m Model) -> Result<Self> {
        if !model.chain().is_generative() {
            let what = format!("`{}` computes embeddings and does not predict tokens", name(model));
            return Err(Error::new(ErrorKind::Unsupported, what).with_help("use a model that generates text"));
        }
        Ok(Predictor { model, session: model.chain().session()?, logits: Vec::new() })
    }

    /// Clears the KV cache and runs the context of a window.
    fn begin(&mut self, context: &[u32]) -> Result<()> {
        self.session.clear();
        if !context.is_empty() {
            self.session.append(context)?;
        }
        Ok(())
    }

    /// Runs further tokens and returns the logits that follow each of them.
    fn run(&mut self, ids: &[u32]) -> Result<Logits<'_>> {
        let Predictor { model, session, logits } = self;
        logits.clear();
        session.score(ids, &mut |view| {
            for row in 0..view.rows() {
                logits.extend_from_slice(view.logits(row).unwrap_or_default());
            }
        })?;
        Ok(Logits { model: name(model), width: (logits.len() / ids.len()).max(1), values: logits })
    }
}

/// Logits of consecutive rows.
struct Logits<'l> {
    model: &'l str,
    width: usize,
    values: &'l [f32],
}

impl<'l> Logits<'l> {
    fn rows(&self) -> rayon::slice::ChunksExact<'l, f32> {
        self.values.par_chunks_exact(self.width)
    }

    /// Checks the logits of the row at `position` of the window.
    fn row(&self, logits: &'l [f32], position: usize) -> Result<NextTokenDistribution<'l>> {
        NextTokenDistribution::new(logits).map_err(|token| {
            let what = format!(
                "`{}`: the logit of token {token} after token {position} of a window is not finite",
                self.model
            );
            Error::new(ErrorKind::Shim, what)
                .with_help("run `shardwright verify` to find the first layer that differs")
        })
    }
}

/// Scores the last `scored` tokens of `ids` with the model. The reference, if given, runs the same
/// steps. Returns `None` if cancelled.
pub(crate) fn score(
    model: &mut Predictor<'_>,
    mut reference: Option<&mut Predictor<'_>>,
    (ids, scored): (&[u32], usize),
    watch: &dyn Watch,
) -> Result<Option<WindowScore>> {
    let first = ids.len() - 1 - scored;
    model.begin(&ids[..first])?;
    if let Some(reference) = &mut reference {
        reference.begin(&ids[..first])?;
    }
    let mut found = WindowScore { nll: Vec::new(), against: reference.is_some().then(Against::default) };
    for (chunk, run) in ids[first..ids.len() - 1].chunks(ROWS).enumerate() {
        if watch.cancelled() {
            return Ok(None);
        }
        let position = first + chunk * ROWS;
        let next = &ids[position + 1..=position + run.len()];
        let own = model.run(run)?;
        match &mut reference {
            None => found.nll.extend(likelihoods(&own, position, next)?),
            Some(reference) => compare(&own, &reference.run(run)?, (position, next), &mut found)?,
        }
    }
    Ok(Some(found))
}

/// Computes the nats of the tokens in `next`, each from the row before it. The first row is at
/// `position` of the window.
fn likelihoods(own: &Logits<'_>, position: usize, next: &[u32]) -> Result<Vec<f64>> {
    let rows = own.rows().zip(next).enumerate();
    // Collected in order, so that the error names the first row that is not finite.
    let nats: Vec<Result<f64>> =
        rows.map(|(row, (logits, &token))| Ok(own.row(logits, position + row)?.nll(token))).collect();
    nats.into_iter().collect()
}

/// Adds the scores of these rows by both models to `found`.
fn compare(
    own: &Logits<'_>,
    others: &Logits<'_>,
    (position, next): (usize, &[u32]),
    found: &mut WindowScore,
) -> Result<()> {
    let rows = own.rows().zip(others.rows()).zip(next).enumerate();
    let scores: Vec<Result<_>> = rows
        .map(|(row, ((model, reference), &token))| {
            let model = own.row(model, position + row)?;
            let reference = others.row(reference, position + row)?;
            let (kl, same_top) = (reference.divergence(&model), reference.same_top(&model));
            Ok((model.nll(token), reference.nll(token), kl, same_top))
        })
        .collect();
    for score in scores {
        let (own, others, kl, same_top) = score?;
        found.nll.push(own);
        if let Some(against) = &mut found.against {
            against.nll.push(others);
            against.kl.push(kl);
            against.same_top.push(same_top);
        }
    }
    Ok(())
}

/// Returns the model's name for messages.
pub(crate) fn name(model: &Model) -> &str {
    &model.chain().description().model
}
