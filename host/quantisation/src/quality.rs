//! Comparison of a model in other formats with the model as stored: likelihood of text, divergence
//! of predictions, error by layer.

use shardwright_graph::{Encodings, Graph, Ranges};
use shardwright_reference::{Arrangement, Array, ReferenceModel, Trace};
use shardwright_vocabulary::{Error, FormatTuple, Result};

/// Outputs of a model for some sequences.
pub(crate) struct Answers {
    /// One output per sequence: `[T, V]`, or `[D]` for an encoder.
    outputs: Vec<Vec<f32>>,
    /// Values per output row.
    width: usize,
    /// The output of every layer for the first sequences.
    layers: Vec<Vec<Vec<f32>>>,
}

/// Number of sequences whose layer outputs are kept.
const LAYERS_OF: usize = 4;

/// Returns whether activations, states or products of attention are in another format.
fn is_encoded(formats: &FormatTuple) -> bool {
    formats.values().iter().any(|format| !format.is_exact())
}

/// Runs every sequence through a model whose weights are already in their target formats.
pub(crate) fn answers(
    graph: &Graph,
    formats: &FormatTuple,
    ranges: &Ranges,
    sequences: &[Vec<u32>],
    alive: &mut dyn FnMut() -> bool,
) -> Result<Answers> {
    let longest = sequences.iter().map(Vec::len).max().unwrap_or_default() as u64;
    let mut answers = Answers { outputs: Vec::new(), width: 1, layers: Vec::new() };
    for (index, ids) in sequences.iter().enumerate() {
        // As many rows as there are tokens, so that no unread row is computed. States keep their
        // size.
        let arrangement = Arrangement { rows: ids.len() as u64, ..Arrangement::whole(longest) };
        let model = match is_encoded(formats) {
            true => ReferenceModel::new_encoded(graph, arrangement, Encodings::of(formats, ranges))?,
            false => ReferenceModel::new(graph, arrangement)?,
        };
        let mut trace = match (index < LAYERS_OF, graph.is_generative()) {
            (true, _) => model.trace(ids)?,
            (false, true) => model.decode(&mut model.start(), ids, false)?,
            (false, false) => model.encode(ids, false)?,
        };
        if index < LAYERS_OF {
            let layers = trace.hidden.iter().skip(1).map(|hidden| hidden.floats().into_owned());
            answers.layers.push(layers.collect());
        }
        let Trace { logits, embedding, .. } = &mut trace;
        let output = logits.take().or_else(|| embedding.take());
        answers.width = output.as_ref().and_then(|output| output.shape().last().copied()).unwrap_or(1).max(1);
        answers.outputs.push(output.map(Array::into_floats).unwrap_or_default());
        if !alive() {
            return Err(Error::cancelled());
        }
    }
    Ok(answers)
}

impl Answers {
    /// Computes the mean negative log-likelihood in nats of every id but the first of each
    /// sequence, and the number of such ids. Returns `None` for encoders and without any
    /// predictions.
    pub fn likelihood(&self, graph: &Graph, sequences: &[Vec<u32>]) -> Option<(f64, u64)> {
        let (mut sum, mut count) = (0.0, 0);
        for (output, ids) in self.outputs.iter().zip(sequences).filter(|_| graph.is_generative()) {
            for (logits, &target) in output.chunks_exact(self.width).zip(ids.iter().skip(1)) {
                let logit = logits.get(target as usize).copied().map_or(f64::NEG_INFINITY, f64::from);
                sum += log_sum(logits) - logit;
                count += 1;
            }
        }
        (count > 0).then(|| (sum / count as f64, count))
    }

    /// Computes the divergence from the predictions of the model as stored: the mean over rows of Σ
    /// p (ln p − ln q). For encoders, 1 − cosine of the vectors. It is never negative, 0 for equal
    /// answers, and NaN if an answer is not finite.
    pub fn divergence(&self, stored: &Answers, graph: &Graph) -> f64 {
        let sums = self.divergences(stored, graph).into_iter();
        let (sum, count) = sums.fold((0.0, 0), |(sum, count), own| (sum + own.0, count + own.1));
        mean_divergence(sum, count)
    }

    /// Computes the divergence of each sequence: the sum over its rows, and the number of rows.
    pub fn divergences(&self, stored: &Answers, graph: &Graph) -> Vec<(f64, u64)> {
        let pairs = self.outputs.iter().zip(&stored.outputs);
        pairs.map(|(ours, stored)| divergence(graph, stored, ours, self.width)).collect()
    }

    /// Returns the layer whose output differs most from the model as stored, and its relative
    /// error: the root of the mean squared difference divided by the mean square of the values.
    /// `None` if no layer differs.
    pub fn worst_layer(&self, stored: &Answers) -> Option<(u32, f64)> {
        let layers = self.layers.first()?.len();
        let error = |layer: usize| {
            let (mut off, mut of) = (0.0, 0.0);
            for (ours, theirs) in self.layers.iter().zip(&stored.layers) {
                for (a, b) in ours[layer].iter().zip(&theirs[layer]) {
                    off += (f64::from(*a) - f64::from(*b)).powi(2);
                    of += f64::from(*b).powi(2);
                }
            }
            // Values that are not finite are the largest error.
            if off.is_nan() {
                return f64::INFINITY;
            }
            if of > 0.0 { (off / of).sqrt() } else { 0.0 }
        };
        // Of equal errors the last one counts, so the first layer that is not finite comes last.
        let errors = (0..layers).rev().map(|layer| (layer as u32, error(layer)));
        errors.filter(|(_, error)| *error > 0.0).max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// Computes the divergence of a model's outputs from the outputs of the model as stored. Both are
/// dense `[rows, width]`. Returns the sum over rows of the KL divergence Σ p (ln p − ln q) in nats
/// (1 − cosine for encoders), and the number of rows. Sums in f64 in the order of rows and columns.
pub fn divergence(graph: &Graph, stored: &[f32], ours: &[f32], width: usize) -> (f64, u64) {
    let pairs = ours.chunks_exact(width.max(1)).zip(stored.chunks_exact(width.max(1)));
    pairs.fold((0.0, 0), |(sum, count), (ours, stored)| {
        let own = match graph.is_generative() {
            true => relative_entropy(stored, ours),
            false => 1.0 - cosine(stored, ours),
        };
        (sum + own, count + 1)
    })
}

/// Returns the mean of `count` divergences with this sum, at least 0, and 0 without any. NaN stays
/// NaN, so that values that are not finite never count as equal.
pub fn mean_divergence(sum: f64, count: u64) -> f64 {
    let mean = if count == 0 { 0.0 } else { sum / count as f64 };
    if mean < 0.0 { 0.0 } else { mean }
}

fn log_sum(logits: &[f32]) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    largest + logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum::<f64>().ln()
}

fn relative_entropy(theirs: &[f32], ours: &[f32]) -> f64 {
    let (their_sum, our_sum) = (log_sum(theirs), log_sum(ours));
    let terms = theirs.iter().zip(ours).map(|(&theirs, &ours)| {
        let log_p = f64::from(theirs) - their_sum;
        log_p.exp() * (log_p - (f64::from(ours) - our_sum))
    });
    terms.sum()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum() };
    let size = (dot(a, a) * dot(b, b)).sqrt();
    if size > 0.0 { dot(a, b) / size } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_is_none_of_equals_and_positive_otherwise() {
        let logits = [0.5, -1.0, 3.0, 0.0];
        assert_eq!(relative_entropy(&logits, &logits), 0.0);
        let shifted = logits.map(|logit| logit + 7.0);
        assert!(relative_entropy(&logits, &shifted).abs() < 1e-12);
        assert!(relative_entropy(&logits, &[0.5, -1.0, 2.5, 0.0]) > 1e-3);
        // For two outcomes: p ln(p/q) + (1 − p) ln((1 − p)/(1 − q)) with p = 3/4, q = 1/2.
        let wanted = 0.75 * 1.5_f64.ln() + 0.25 * 0.5_f64.ln();
        assert!((relative_entropy(&[3.0_f32.ln(), 0.0], &[0.0, 0.0]) - wanted).abs() < 1e-6);
        assert!((cosine(&[1.0, 0.0], &[1.0, 1.0]) - 0.5_f64.sqrt()).abs() < 1e-12);
        assert_eq!(cosine(&[0.0], &[1.0]), 0.0);
    }

    #[test]
    fn answers_that_are_not_finite_never_count_as_equal() {
        for wrong in [f32::NAN, f32::INFINITY] {
            assert!(relative_entropy(&[0.5, -1.0], &[0.5, wrong]).is_nan());
        }
        assert!(mean_divergence(f64::NAN, 3).is_nan());
        let means = [(-1e-17, 3), (6.0, 3), (0.0, 0)].map(|(sum, count)| mean_divergence(sum, count));
        assert_eq!(means, [0.0, 2.0, 0.0]);
    }
}
