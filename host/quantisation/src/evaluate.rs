//! The cost of format combinations for a whole model: bytes and likelihood of text, computed with
//! the reference implementation.

use std::ops::ControlFlow;
use std::sync::Arc;

use serde::Serialize;
use shardwright_graph::{Graph, Ranges, Weight};
use shardwright_vocabulary::{Error, FormatTuple, Result};

use crate::calibration::no_sequences;
use crate::quality::{Answers, answers};
use crate::{Moments, Recipe, TableFormats, quantise};

/// A combination of formats to evaluate.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Formats of weights, activations, states and attention.
    pub formats: FormatTuple,
    /// Formats of the gathered tables.
    pub tables: TableFormats,
    /// Moments of the inputs of matrices, see [`Recipe::moments`].
    pub moments: Option<Arc<Moments>>,
}

/// The cost of a combination of formats.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// Names of the formats.
    pub formats: String,
    /// Formats of embedding and per-layer tables.
    pub tables: String,
    /// Bytes of the weights.
    pub weight_bytes: u64,
    /// Bytes of the gathered tables.
    pub table_bytes: u64,
    /// Mean negative log-likelihood in nats. `None` for encoders.
    pub nll: Option<f64>,
    /// Relative increase of [`nll`](Evaluation::nll) over the model as stored, in thousandths. For
    /// encoders, 1 − cosine in thousandths.
    pub loss_per_mille: f64,
    /// Mean KL divergence from the predictions of the model as stored, in nats. For encoders, 1 −
    /// cosine.
    pub divergence: f64,
    /// The layer whose output differs most from the model as stored, and its relative error. `None`
    /// if no layer differs.
    pub worst_layer: Option<(u32, f64)>,
}

/// Costs of format combinations compared with the model as stored.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    /// Number of sequences run.
    pub sequences: usize,
    /// Number of tokens whose likelihood was computed.
    pub predictions: u64,
    /// Bytes of weights and tables as stored.
    pub stored_bytes: u64,
    /// Mean negative log-likelihood of the model as stored, in f32. `None` for encoders.
    pub nll: Option<f64>,
    /// One row per combination, in the order given.
    pub rows: Vec<Evaluation>,
}

/// Runs `sequences` through the model as stored and in each format combination, using the reference
/// implementation and its definition of every format.
///
/// Static integer formats need `ranges`, see [`Calibration::ranges`](crate::Calibration::ranges).
/// Memory: the outputs for all sequences (rows times vocabulary, f32) twice, and the weights in one
/// combination. `progress` receives the number of completed sequences and the total.
pub fn evaluate(
    graph: &Graph,
    candidates: &[Candidate],
    ranges: &Ranges,
    sequences: &[Vec<u32>],
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Table> {
    let (mut done, total) = (0, (sequences.len() * (candidates.len() + 1)) as u64);
    let mut alive = || {
        done += 1;
        progress(done, total).is_continue()
    };
    if sequences.is_empty() {
        return Err(no_sequences());
    }
    let stored = answers(graph, &FormatTuple::F32, ranges, sequences, &mut alive)?;
    let before = stored.likelihood(graph, sequences);
    if graph.is_generative() && before.is_none() {
        return Err(Error::invalid("no sequence has two tokens, so there is no likelihood to compare")
            .with_help("pass a sequence of at least two ids"));
    }
    let mut table = Table {
        sequences: sequences.len(),
        predictions: before.map_or(0, |(_, count)| count),
        stored_bytes: weight_bytes(graph) + table_bytes(graph),
        nll: before.map(|(nll, _)| nll),
        rows: Vec::new(),
    };
    for candidate in candidates {
        let recipe =
            Recipe::new(graph, &candidate.formats, candidate.tables).with_moments(candidate.moments.clone());
        let made = quantise(graph, &recipe, &mut (), &mut Vec::new())?;
        let answers = answers(&made, &candidate.formats, ranges, sequences, &mut alive)?;
        let nll = answers.likelihood(graph, sequences).map(|(nll, _)| nll);
        let divergence = answers.divergence(&stored, graph);
        let loss = match (nll, table.nll) {
            (Some(nll), Some(before)) if before > 0.0 => nll / before - 1.0,
            _ => divergence,
        };
        let of = |format: Option<_>| format.map_or("stored".to_owned(), |format| format!("{format}"));
        table.rows.push(Evaluation {
            formats: candidate.formats.to_string(),
            tables: format!("{}, {}", of(candidate.tables.embedding), of(candidate.tables.per_layer)),
            weight_bytes: weight_bytes(&made),
            table_bytes: table_bytes(&made),
            nll,
            loss_per_mille: 1000.0 * loss,
            divergence,
            worst_layer: answers.worst_layer(&stored),
        });
    }
    Ok(table)
}

/// The predictions of a model as stored for some sequences, for comparison with many variants.
pub struct Baseline<'g> {
    graph: &'g Graph,
    sequences: &'g [Vec<u32>],
    stored: Answers,
}

impl<'g> Baseline<'g> {
    /// Runs the sequences through the reference implementation. Memory: all outputs, rows times
    /// vocabulary, f32.
    pub fn of(graph: &'g Graph, sequences: &'g [Vec<u32>]) -> Result<Self> {
        if sequences.is_empty() {
            return Err(no_sequences());
        }
        let stored = answers(graph, &FormatTuple::F32, &Ranges::new(), sequences, &mut || true)?;
        Ok(Baseline { graph, sequences, stored })
    }

    /// Computes the divergence of the model quantised with `recipe`, one entry per sequence: the
    /// sum over its rows of the KL divergence in nats (1 − cosine for encoders), and the number of
    /// rows. Activations and states stay floats.
    pub fn divergences(&self, recipe: &Recipe) -> Result<Vec<(f64, u64)>> {
        self.divergences_of(&quantise(self.graph, recipe, &mut (), &mut Vec::new())?)
    }

    /// Like [`divergences`](Baseline::divergences), but for a graph whose weights are already
    /// quantised. `made` may differ from the model only in its weights.
    pub fn divergences_of(&self, made: &Graph) -> Result<Vec<(f64, u64)>> {
        let ours = answers(made, &FormatTuple::F32, &Ranges::new(), self.sequences, &mut || true)?;
        Ok(ours.divergences(&self.stored, self.graph))
    }
}

fn weight_bytes(graph: &Graph) -> u64 {
    graph.weights.iter().map(Weight::bytes).sum()
}

fn table_bytes(graph: &Graph) -> u64 {
    graph.assets.iter().map(|asset| asset.table.bytes()).sum()
}
