//! The expected loss of a format before measurement, estimated from the quantisation error of the
//! weights.

use std::collections::BTreeMap;

use shardwright_graph::{Graph, Weight, WeightId};
use shardwright_vocabulary::{
    ActivationFormat, AttentionFormat, Result, StateFormat, ValueFormat, WeightFormat, WeightRole,
};

use crate::compensation::SecondMoments;
use crate::sensitivity::{places, table_pairs};
use crate::{
    Compensated, MatrixFactors, Moments, Rounding, RowSource, Sensitivity, TableLoss, quantise_weight,
};

/// Number of evenly spaced rows of a matrix to sample.
const ROWS: u64 = 32;

/// Returns the nats per token that a model would lose if all weights of a role had a relative error
/// of 1. A layer loses an L-th of it, for L layers, times the square of its relative error. The
/// model has only one head, so the head's constant is not divided.
///
/// Fitted to the measured losses of the demo model on held-out text: per role, the ratio of loss to
/// squared error. The ratio agrees within a tenth for 8 and 4 bits, per channel and in blocks. That
/// model's layers differ by up to five times from their mean. For other models see [`PUBLISHED`].
const fn scale(role: WeightRole) -> f64 {
    match role {
        WeightRole::AttentionInput => 5.2,
        WeightRole::AttentionOutput => 2.3,
        WeightRole::MlpInput => 6.5,
        WeightRole::MlpOutput => 3.1,
        WeightRole::PerLayer | WeightRole::Other => 2.1,
        WeightRole::Head => 2.2,
    }
}

/// Expected loss of other models, as a multiple of the demo model's.
///
/// Fitted to Gemma 3 270M on an essay (KL divergence with all weights in one format: 8 bits per
/// channel 4.4 millinats, 8 bits in blocks of 32 0.57, 4 bits in blocks 398) and checked on SmolLM2
/// 135M (3.8, 1.1, 339). All of these are within a factor of 1.7. With 4 bits per channel, both
/// models lose two to five times as much as expected, since errors of that size do not add up.
/// Tables were not measured separately. The same factor preserves their rank among the weights.
const PUBLISHED: f64 = 2.5;

/// Loss of compensated rounding relative to rounding to the nearest.
///
/// With 4 bits in blocks of 32 and a head of 8, on an essay: Gemma 3 270M 0.31 (103 millinats
/// instead of 329), SmolLM2 135M 0.47 (115 instead of 244). The demo model 0.83, as it was trained
/// on other text than the moments are computed from.
const COMPENSATED: f64 = 0.4;

/// Like [`scale`], but for the relative error of products instead of values. Fitted to the same
/// losses, per role within a fifth in 8 and 4 bits.
const fn moment_scale(role: WeightRole) -> f64 {
    match role {
        WeightRole::AttentionInput => 11.0,
        WeightRole::AttentionOutput => 4.8,
        WeightRole::MlpInput => 10.6,
        WeightRole::MlpOutput => 4.8,
        WeightRole::PerLayer | WeightRole::Other => 2.7,
        WeightRole::Head => 4.6,
    }
}

/// Estimates the loss of every layer and role in each of `formats`, ordered by place and format.
/// The result is deterministic.
///
/// Each loss is the squared relative error of a role's matrices, over a sample of their rows, times
/// a constant of the role. The values come from `graph` if it has them, otherwise they are normally
/// distributed. The estimates rank formats and places. Only a measurement gives the actual loss.
///
/// Formats that `compensated` includes lose less, see [`COMPENSATED`].
///
/// The result is empty for encoders, as no constants are fitted for them.
pub fn priors(
    graph: &Graph,
    formats: &[WeightFormat],
    compensated: Option<Compensated>,
) -> Result<Vec<Sensitivity>> {
    let mut drawn: BTreeMap<(WeightFormat, usize), (f64, f64)> = BTreeMap::new();
    let mut rows = by_place(graph, formats, scale, &mut |weight, formats| {
        let of_format = |&format: &WeightFormat| {
            let key = (format, weight.row_width());
            if let Some(known) = drawn.get(&key).filter(|_| is_drawn(weight)) {
                return Ok(*known);
            }
            let own = error(weight, format)?;
            if is_drawn(weight) {
                drawn.insert(key, own);
            }
            Ok(own)
        };
        formats.iter().map(of_format).collect()
    })?;
    for row in rows.iter_mut().filter(|row| compensated.is_some_and(|which| which.takes(row.format))) {
        row.micronats = (row.micronats as f64 * COMPENSATED).ceil() as u64;
    }
    Ok(rows)
}

/// Estimates losses like [`priors`], but from the error of matrix products: tr(ΔW · H · ΔWᵀ) over
/// tr(W · H · Wᵀ) for a sample of rows. H is the second moments of the inputs, and ΔW the rounding
/// error, with error compensation for formats that `compensated` includes. Matrices without moments
/// use the plain squared error.
///
/// Time: for every matrix two products of the sample with its moments, and one for each format.
/// Memory: the moments of one matrix, and its factors if errors are compensated.
///
/// # Errors
/// If the moments cannot be read.
pub fn moment_priors(
    graph: &Graph,
    formats: &[WeightFormat],
    moments: &Moments,
    compensated: Option<Compensated>,
) -> Result<Vec<Sensitivity>> {
    by_place(graph, formats, moment_scale, &mut |weight, formats| {
        let own = moments.second(&weight.name)?.filter(|own| own.mean_square() > 0.0);
        let is_compensated = |format| compensated.is_some_and(|which| which.takes(format));
        let factors = match formats.iter().any(|format| is_compensated(*format)) {
            // A sample lacks most of the rows that the gradient factors cover.
            true => moments.columns(&weight.name)?.map(|columns| MatrixFactors { columns, rows: None }),
            false => None,
        };
        let error = |&format: &WeightFormat| {
            let factors = factors.as_ref().filter(|_| is_compensated(format));
            error_by(weight, format, own.as_ref(), factors)
        };
        formats.iter().map(error).collect()
    })
}

/// Computes the squared error and the square of a weight in each of some formats.
type Errors<'e> = dyn FnMut(&Weight, &[WeightFormat]) -> Result<Vec<(f64, f64)>> + 'e;

/// Estimates losses from the relative errors of the matrices of each place.
fn by_place(
    graph: &Graph,
    formats: &[WeightFormat],
    scale: fn(WeightRole) -> f64,
    errors: &mut Errors<'_>,
) -> Result<Vec<Sensitivity>> {
    if !graph.is_generative() {
        return Ok(Vec::new());
    }
    let layers = graph.components.iter().map(|component| component.layers).max().unwrap_or(0).max(1);
    let mut rows = Vec::new();
    for ((component, layer, role), weights) in places(graph) {
        let parts = if role == WeightRole::Head { 1.0 } else { f64::from(layers) };
        let mut sums = vec![(0.0, 0.0); formats.len()];
        for &WeightId(id) in &weights {
            let weight = &graph.weights[id as usize];
            let lossy: Vec<WeightFormat> =
                formats.iter().copied().filter(|format| !weight.is_in(*format)).collect();
            let mut errors = errors(weight, &lossy)?.into_iter();
            for (sum, format) in sums.iter_mut().zip(formats) {
                let lossy = lossy.contains(format);
                if let Some((off, of)) = if lossy { errors.next() } else { None } {
                    // Weighs a matrix by its full number of rows, not by the sampled rows.
                    let factor = weight.rows() as f64 / (weight.rows() as u64).min(ROWS) as f64;
                    *sum = (sum.0 + off * factor, sum.1 + of * factor);
                }
            }
        }
        for ((off, of), &format) in sums.into_iter().zip(formats) {
            let relative = if of > 0.0 { off / of } else { 0.0 };
            let micronats = (1e6 * PUBLISHED * scale(role) / parts * relative).ceil() as u64;
            rows.push(Sensitivity { component, layer, role, format, micronats });
        }
    }
    Ok(rows)
}

/// Like [`scale`], but for a whole gathered table: the embedding (0), or per-layer embeddings.
/// Fitted to the demo model in 8 and 4 bits, per channel and in blocks, within a seventh.
const fn table_scale(table: usize) -> f64 {
    match table {
        0 => 5.0,
        _ => 0.85,
    }
}

/// Returns the expected loss if the whole model uses a value format, in millionths of a nat per
/// token.
///
/// The values are between the losses of Gemma 3 270M and SmolLM2 135M, measured on an essay in
/// thousandths of a nat:
///
/// | format | Gemma 3 270M | SmolLM2 135M |
/// |---|---:|---:|
/// | 16-bit integers | 35 | 37 |
/// | 16-bit integers, stream in floats | 0.2 | 4.8 |
/// | 8 bits by row | 31 | 29 |
/// | 8 bits by blocks of 32, weights in such blocks | 1.9 | 2.8 |
/// | 16-bit floats | 0.013 | 0.016 |
/// | 8-bit states | 14 | 2.7 |
///
/// The demo model has no massive activations. It loses 0.012 with 16-bit integers, 3.6 with 8 bits
/// by row, and 1 with 8-bit states.
pub const fn value_prior(format: ValueFormat) -> u64 {
    match format {
        ValueFormat::Activations(ActivationFormat::F32)
        | ValueFormat::States(StateFormat::F32)
        | ValueFormat::Attention(AttentionFormat::F32) => 0,
        ValueFormat::Activations(ActivationFormat::A8Dynamic) => 30_000,
        ValueFormat::Activations(ActivationFormat::A8DynamicBlock32) => 2400,
        ValueFormat::Activations(ActivationFormat::A16 | ActivationFormat::A16Symmetric) => 36_000,
        ValueFormat::Activations(
            ActivationFormat::A16F16Stream | ActivationFormat::A16SymmetricF16Stream,
        ) => 2000,
        ValueFormat::Activations(ActivationFormat::F16) => 15,
        ValueFormat::States(StateFormat::A8) => 6000,
        ValueFormat::States(StateFormat::A16 | StateFormat::F16) => 1,
        // Not measured. Operands have the errors of 16-bit states, and those of bfloat16 are eight
        // times as large. The loss grows with their square.
        ValueFormat::Attention(AttentionFormat::F16) => 2,
        ValueFormat::Attention(AttentionFormat::Bf16) => 130,
    }
}

/// Estimates the loss of every gathered table in each of `formats` that suits its width, like
/// [`priors`] for weights. A table that already has the format loses 0. Tables that cannot be
/// quantised are left out, for example with non-finite values in the sample.
///
/// The result is empty for encoders, as no constants are fitted for them.
pub fn table_priors(graph: &Graph, formats: &[WeightFormat]) -> Vec<TableLoss> {
    let mut rows = Vec::new();
    for (index, format) in table_pairs(graph, formats).into_iter().filter(|_| graph.is_generative()) {
        let table = &graph.assets[index].table;
        let (off, of) = match table.is_in(format) {
            true => (0.0, 0.0),
            false => match error(table, format) {
                Ok(error) => error,
                Err(_) => continue,
            },
        };
        let relative = if of > 0.0 { off / of } else { 0.0 };
        let micronats = (1e6 * PUBLISHED * table_scale(index) * relative).ceil() as u64;
        rows.push(TableLoss { table: index as u32, format, micronats });
    }
    rows
}

/// Computes the squared error of a matrix in a format over a sample of its rows, and the sum of its
/// squares.
fn error(weight: &Weight, format: WeightFormat) -> Result<(f64, f64)> {
    error_by(weight, format, None, None)
}

/// Like [`error()`], but weighs errors by the moments of the inputs, if any, and rounds with the
/// factors.
fn error_by(
    weight: &Weight,
    format: WeightFormat,
    moments: Option<&SecondMoments>,
    factors: Option<&MatrixFactors>,
) -> Result<(f64, f64)> {
    let sample = Sample::of(weight);
    let made = quantise_weight(&sample, format, Rounding::by(factors), &mut ())?;
    let width = weight.row_width();
    let (mut wanted, mut errors) = (vec![0.0; sample.picked.len() * width], Vec::new());
    sample.rows(0, &mut wanted)?;
    let mut got = vec![0.0; width];
    for (row, wanted) in wanted.chunks_exact(width.max(1)).enumerate() {
        match made.decode_row(row, &mut got) {
            true => errors.extend(wanted.iter().zip(&got).map(|(wanted, got)| wanted - got)),
            false => errors.resize(errors.len() + width, 0.0),
        }
    }
    let size = |values: &[f32]| match moments {
        Some(moments) => moments.of_errors(values),
        None => values.iter().map(|&value| f64::from(value).powi(2)).sum(),
    };
    Ok((size(&errors), size(&wanted)))
}

/// Returns whether a weight has no bytes, so that random values replace them.
fn is_drawn(weight: &Weight) -> bool {
    weight.data.bytes().is_empty()
}

/// A sample of a weight's rows.
struct Sample<'a> {
    weight: &'a Weight,
    picked: Vec<usize>,
    shape: [u64; 2],
}

impl<'a> Sample<'a> {
    fn of(weight: &'a Weight) -> Self {
        let rows = weight.rows() as u64;
        let count = rows.min(ROWS);
        let picked = (0..count).map(|index| (index * rows / count.max(1)) as usize).collect();
        let shape = [count, weight.row_width() as u64];
        Sample { weight, picked, shape }
    }
}

impl RowSource for Sample<'_> {
    fn name(&self) -> &str {
        &self.weight.name
    }

    fn part(&self) -> &'static str {
        self.weight.part
    }

    fn shape(&self) -> &[u64] {
        &self.shape
    }

    fn rows(&self, first: usize, out: &mut [f32]) -> Result<()> {
        let width = self.weight.row_width().max(1);
        for (row, into) in self.picked[first..].iter().zip(out.chunks_mut(width)) {
            match is_drawn(self.weight) {
                true => draw(*row as u64, into),
                false => RowSource::rows(self.weight, *row, into)?,
            }
        }
        Ok(())
    }

    fn identity(&self) -> Result<[u8; 32]> {
        self.weight.identity()
    }
}

/// Fills a row with nearly normally distributed values, each the sum of twelve uniform ones.
fn draw(row: u64, into: &mut [f32]) {
    let mut state = row.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for value in into {
        let mut sum = 0.0;
        for _ in 0..12 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            sum += (state >> 40) as f32 / (1 << 24) as f32;
        }
        *value = sum - 6.0;
    }
}
