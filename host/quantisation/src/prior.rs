//! What a format is expected to cost before it is measured: from how far the weights are off.

use std::collections::BTreeMap;

use shardwright_graph::{Graph, Weight, WeightId};
use shardwright_vocabulary::{ActivationFormat, StateFormat, ValueFormat, WeightFormat, WeightRole};

use crate::sensitivity::{places, table_pairs};
use crate::{QuantiseError, Rounding, RowSource, Sensitivity, TableLoss, Unwatched, quantise_weight};

/// Rows of a matrix that are looked at, evenly chosen.
const ROWS: u64 = 32;

/// Nats per token that a model would lose if all weights of a role were off by their own size: a
/// layer's part is an L-th of it times the square of its relative error, which the head's, of which
/// there is one, is not divided by.
///
/// Fitted to the losses measured of the demo model (the example `format_table` prints them beside
/// these): per role the quotient of both, which is the same in 8 and 4 bits, per channel and in
/// blocks, within a tenth. That model's layers differ by up to five times from their mean, and how
/// far off another model is is not known.
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

/// The expected losses of every layer and role in each of `formats`, in the order of
/// [`Sensitivities::rows`](crate::Sensitivities::rows). Deterministic.
///
/// Of the weights' own values if `graph` has them, otherwise of normally distributed ones; a
/// product of the squared relative error of a role's matrices over a sample of their rows with one
/// constant per role. They rank formats and places; only a measurement says what is lost.
///
/// Empty for encoders, of which nothing was fitted.
pub fn priors(graph: &Graph, formats: &[WeightFormat]) -> Result<Vec<Sensitivity>, QuantiseError> {
    if !graph.is_generative() {
        return Ok(Vec::new());
    }
    let layers = graph.components.iter().map(|component| component.layers).max().unwrap_or(0).max(1);
    let mut rows = Vec::new();
    let mut drawn: BTreeMap<(WeightFormat, usize), (f64, f64)> = BTreeMap::new();
    for ((component, layer, role), weights) in places(graph) {
        let parts = if role == WeightRole::Head { 1.0 } else { f64::from(layers) };
        for &format in formats {
            let (mut off, mut of) = (0.0, 0.0);
            for &WeightId(id) in &weights {
                let weight = &graph.weights[id as usize];
                if weight.format() != Some(format) {
                    let known = drawn.get(&(format, weight.row_width())).filter(|_| is_drawn(weight));
                    let (own_off, own) = match known {
                        Some(known) => *known,
                        None => error(weight, format)?,
                    };
                    if is_drawn(weight) {
                        drawn.insert((format, weight.row_width()), (own_off, own));
                    }
                    // A matrix counts by its values, of which the sample is a part.
                    let factor = weight.rows() as f64 / (weight.rows() as u64).min(ROWS) as f64;
                    (off, of) = (off + own_off * factor, of + own * factor);
                }
            }
            let relative = if of > 0.0 { off / of } else { 0.0 };
            let micronats = (1e6 * scale(role) / parts * relative).ceil() as u64;
            rows.push(Sensitivity { component, layer, role, format, micronats });
        }
    }
    Ok(rows)
}

/// As [`scale`], of a whole gathered table: the embedding, and per-layer embeddings. Fitted to the
/// demo model in 8 and 4 bits, per channel and in blocks, within a seventh.
const fn table_scale(table: usize) -> f64 {
    match table {
        0 => 5.0,
        _ => 0.85,
    }
}

/// The expected loss of a format of values in all of a model, in millionths of a nat per token:
/// that measured of the demo model.
pub const fn value_prior(format: ValueFormat) -> u64 {
    match format {
        ValueFormat::Activations(ActivationFormat::F32) | ValueFormat::States(StateFormat::F32) => 0,
        ValueFormat::Activations(ActivationFormat::A8Dynamic) => 3600,
        ValueFormat::Activations(_) => 12,
        ValueFormat::States(StateFormat::A8) => 1000,
        ValueFormat::States(_) => 1,
    }
}

/// The expected losses of every gathered table in each of `formats` that suits its width, as
/// [`priors`] has those of weights; a table that has the format already loses nothing. What has no
/// number to round in its sample is left out.
///
/// Empty for encoders, of which nothing was fitted.
pub fn table_priors(graph: &Graph, formats: &[WeightFormat]) -> Vec<TableLoss> {
    let mut rows = Vec::new();
    for (index, format) in table_pairs(graph, formats).into_iter().filter(|_| graph.is_generative()) {
        let table = &graph.assets[index].table;
        let (off, of) = match table.format() == Some(format) {
            true => (0.0, 0.0),
            false => match error(table, format) {
                Ok(error) => error,
                Err(_) => continue,
            },
        };
        let relative = if of > 0.0 { off / of } else { 0.0 };
        let micronats = (1e6 * table_scale(index) * relative).ceil() as u64;
        rows.push(TableLoss { table: index as u32, format, micronats });
    }
    rows
}

/// The squared error of a matrix in a format over a sample of its rows, and the sum of its squares.
fn error(weight: &Weight, format: WeightFormat) -> Result<(f64, f64), QuantiseError> {
    let sample = Sample::of(weight);
    let made = quantise_weight(&sample, format, Rounding::Nearest, &mut Unwatched)?;
    let width = weight.row_width();
    let (mut wanted, mut got) = (vec![0.0; width], vec![0.0; width]);
    let (mut off, mut of) = (0.0, 0.0);
    for row in 0..sample.picked.len() {
        sample.rows(row, &mut wanted)?;
        if !made.decode_row(row, &mut got) {
            continue;
        }
        for (&wanted, &got) in wanted.iter().zip(&got) {
            off += f64::from(wanted - got).powi(2);
            of += f64::from(wanted).powi(2);
        }
    }
    Ok((off, of))
}

/// Whether a weight has no bytes, so that its values are drawn.
fn is_drawn(weight: &Weight) -> bool {
    weight.data.bytes().is_empty()
}

/// Some rows of a weight.
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

    fn rows(&self, first: usize, out: &mut [f32]) -> Result<(), QuantiseError> {
        let width = self.weight.row_width().max(1);
        for (row, into) in self.picked[first..].iter().zip(out.chunks_mut(width)) {
            match is_drawn(self.weight) {
                true => draw(*row as u64, into),
                false => RowSource::rows(self.weight, *row, into)?,
            }
        }
        Ok(())
    }

    fn identity(&self) -> Result<[u8; 32], QuantiseError> {
        self.weight.identity()
    }
}

/// Normally distributed values, nearly: the sum of twelve uniform ones.
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
