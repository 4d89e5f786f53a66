//! What a format costs, by layer and role: the weights of one role in one layer are in it,
//! everything else as stored.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use shardwright_files::hex;
use shardwright_graph::{Asset, ComponentKind, ConstantFormat, Graph, Op, Ranges, ValueSource, WeightId};
use shardwright_vocabulary::{
    ActivationFormat, FormatTuple, StateFormat, ValueFormat, WeightFormat, WeightRole,
};

use crate::envelope::{HEAD, Kind};
use crate::quality::answers;
use crate::{
    Calibration, CalibrationError, Calibrator, MeasuredError, Moments, Recipe, TableFormats, Unwatched,
    quantise,
};

/// Lines of a hundred bytes for every layer, role and format of the largest models, many times.
const KIND: Kind = Kind { magic: b"sw-sensi", version: 4, name: "sensitivities", limit: 1 << 26 };

/// The loss from one format in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sensitivity {
    /// The component's name.
    pub component: ComponentKind,
    /// Layer; zero for a component without layers.
    pub layer: u32,
    /// Which weights.
    pub role: WeightRole,
    /// In which format.
    pub format: WeightFormat,
    /// Mean KL divergence of the model's predictions from those of the model as stored, in
    /// millionths of a nat per token. Unlike the difference of two likelihoods it is never negative
    /// and needs few tokens. For encoders 1 − cosine in millionths. Rounded up, so that a loss is
    /// never reported as none.
    pub micronats: u64,
}

/// The loss from one gathered table in one format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableLoss {
    /// Position of the table in [`Graph::assets`].
    pub table: u32,
    /// In which format.
    pub format: WeightFormat,
    /// As [`Sensitivity::micronats`].
    pub micronats: u64,
}

/// The loss from one format of the values that a model computes, in all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValueLoss {
    /// Of which values, in which format.
    pub format: ValueFormat,
    /// As [`Sensitivity::micronats`].
    pub micronats: u64,
}

/// What is measured of a model.
#[derive(Clone, Copy, Debug, Default)]
pub struct MeasuredFormats<'f> {
    /// Formats of every layer and role.
    pub weights: &'f [WeightFormat],
    /// Formats of every gathered table whose width they suit.
    pub tables: &'f [WeightFormat],
    /// Formats of activations and states.
    pub values: &'f [ValueFormat],
}

/// Losses of one checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sensitivities {
    checkpoint: String,
    /// Hash over the ids they were measured with.
    ids: String,
    /// Tokens they were measured with.
    tokens: u64,
    rows: Vec<Sensitivity>,
    tables: Vec<TableLoss>,
    values: Vec<ValueLoss>,
}

impl Sensitivities {
    /// Measures every layer and role, every gathered table, and the values of the whole model, each
    /// in its `formats` alone and everything else as stored, over a few sequences. Static integers
    /// are calibrated on the same ones.
    ///
    /// Costs a run of all sequences for each: take few tokens. `progress` hears of runs done and to
    /// be done.
    pub fn measure(
        graph: &Graph,
        checkpoint: [u8; 32],
        formats: &MeasuredFormats<'_>,
        moments: Option<&Arc<Moments>>,
        sequences: &[Vec<u32>],
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Self, CalibrationError> {
        let places = places(graph);
        let pairs = table_pairs(graph, formats.tables);
        let runs = places.len() * formats.weights.len() + pairs.len() + formats.values.len() + 1;
        let (mut done, total) = (0, runs as u64);
        let ranges = Ranges::new();
        if sequences.is_empty() {
            return Err(CalibrationError::NoSequences);
        }
        let stored = answers(graph, &FormatTuple::F32, &ranges, sequences, &mut || true)?;
        if graph.is_generative() && stored.likelihood(graph, sequences).is_none() {
            return Err(CalibrationError::NoPredictions);
        }
        let mut ended = |done: &mut u64| {
            *done += 1;
            progress(*done, total).is_break()
        };
        if ended(&mut done) {
            return Err(CalibrationError::Cancelled);
        }
        let loss_of = |recipe: &Recipe| -> Result<u64, CalibrationError> {
            let made = quantise(graph, recipe, &mut Unwatched)?;
            let ours = answers(&made, &FormatTuple::F32, &ranges, sequences, &mut || true)?;
            Ok(micronats(ours.divergence(&stored, graph)))
        };
        let mut rows = Vec::new();
        for (&(component, layer, role), weights) in &places {
            for &format in formats.weights {
                let mut recipe = Recipe {
                    weights: vec![ConstantFormat::Stored; graph.weights.len()],
                    tables: TableFormats::default(),
                    moments: moments.cloned(),
                };
                for &WeightId(id) in weights {
                    if graph.weights[id as usize].format() != Some(format) {
                        recipe.weights[id as usize] = ConstantFormat::Matrix(format);
                    }
                }
                let micronats = loss_of(&recipe)?;
                rows.push(Sensitivity { component, layer, role, format, micronats });
                if ended(&mut done) {
                    return Err(CalibrationError::Cancelled);
                }
            }
        }
        let mut tables = Vec::new();
        for (table, format) in pairs {
            let weights = vec![ConstantFormat::Stored; graph.weights.len()];
            let recipe = Recipe { weights, tables: TableFormats::one(table, format), ..Recipe::default() };
            tables.push(TableLoss { table: table as u32, format, micronats: loss_of(&recipe)? });
            if ended(&mut done) {
                return Err(CalibrationError::Cancelled);
            }
        }
        let mut values = Vec::new();
        let calibrated = match formats.values.iter().any(|format| is_static(*format)) {
            true => Some(calibrated(graph, checkpoint, sequences)?),
            false => None,
        };
        for &format in formats.values {
            let mut tuple = FormatTuple::F32;
            match format {
                ValueFormat::Activations(activations) => tuple.activations = activations,
                ValueFormat::States(states) => tuple.states = states,
            }
            let ranges = match &calibrated {
                Some(calibration) => calibration.ranges_for([&tuple])?,
                None => Ranges::new(),
            };
            let divergence = match format {
                // Only integer matrices are multiplied with them: against those in 8 bits.
                ValueFormat::Activations(ActivationFormat::A8Dynamic) => {
                    tuple.weights = WeightFormat::W8PerChannel;
                    let recipe = Recipe::new(graph, &tuple, TableFormats::default());
                    let made = quantise(graph, &recipe, &mut Unwatched)?;
                    let wide = answers(&made, &FormatTuple::F32, &ranges, sequences, &mut || true)?;
                    answers(&made, &tuple, &ranges, sequences, &mut || true)?.divergence(&wide, graph)
                }
                _ => answers(graph, &tuple, &ranges, sequences, &mut || true)?.divergence(&stored, graph),
            };
            values.push(ValueLoss { format, micronats: micronats(divergence) });
            if ended(&mut done) {
                return Err(CalibrationError::Cancelled);
            }
        }
        let mut ids = Sha256::new();
        for sequence in sequences {
            ids.update((sequence.len() as u64).to_le_bytes());
            sequence.iter().for_each(|id| ids.update(id.to_le_bytes()));
        }
        Ok(Sensitivities {
            checkpoint: hex::encode(&checkpoint),
            ids: hex::encode(&ids.finalize()),
            tokens: sequences.iter().map(|sequence| sequence.len() as u64).sum(),
            rows,
            tables,
            values,
        })
    }

    /// The losses, by component, layer, role and format.
    pub fn rows(&self) -> &[Sensitivity] {
        &self.rows
    }

    /// The losses of gathered tables, by table and format.
    pub fn tables(&self) -> &[TableLoss] {
        &self.tables
    }

    /// The losses of activations and states.
    pub fn values(&self) -> &[ValueLoss] {
        &self.values
    }

    /// Tokens they were measured with.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Writes them to a file, whole or not at all.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), MeasuredError> {
        let path = path.as_ref();
        let content = serde_json::to_vec(self).map_err(|_| KIND.damaged(path, HEAD, "the text"))?;
        KIND.write(path, &content)
    }

    /// Reads those of `checkpoint`; those of another are refused.
    pub fn read(path: impl AsRef<Path>, checkpoint: [u8; 32]) -> Result<Self, MeasuredError> {
        let path = path.as_ref();
        let content = KIND.read(path)?;
        let read: Sensitivities = serde_json::from_slice(&content)
            .map_err(|error| KIND.damaged(path, HEAD + error.column(), "the text"))?;
        let wanted = hex::encode(&checkpoint);
        if read.checkpoint != wanted {
            let found: String = read.checkpoint.chars().take(2 * checkpoint.len()).collect();
            return Err(MeasuredError::OtherCheckpoint { path: path.to_owned(), found, wanted });
        }
        Ok(read)
    }
}

/// Millionths of a nat. Of a number that is not one, 0; beyond the integers, the largest.
fn micronats(divergence: f64) -> u64 {
    (1e6 * divergence).ceil() as u64
}

/// Whether a format has scales that are calibrated.
const fn is_static(format: ValueFormat) -> bool {
    match format {
        ValueFormat::Activations(format) => {
            matches!(format, ActivationFormat::A16 | ActivationFormat::A16Symmetric)
        }
        ValueFormat::States(format) => matches!(format, StateFormat::A16 | StateFormat::A8),
    }
}

fn calibrated(
    graph: &Graph,
    checkpoint: [u8; 32],
    sequences: &[Vec<u32>],
) -> Result<Calibration, CalibrationError> {
    let mut calibrator = Calibrator::new(graph, checkpoint)?;
    sequences.iter().try_for_each(|ids| calibrator.add(ids))?;
    calibrator.finish()
}

/// Positions of the gathered tables, each with those of `formats` that suit its width.
pub(crate) fn table_pairs(graph: &Graph, formats: &[WeightFormat]) -> Vec<(usize, WeightFormat)> {
    let of = |(index, asset): (usize, &Asset)| {
        let suits = |format: &&WeightFormat| asset.table.planned(**format).is_ok();
        formats.iter().filter(suits).map(|format| (index, *format)).collect::<Vec<_>>()
    };
    graph.assets.iter().enumerate().flat_map(of).collect()
}

/// The matrices of each component, layer (0 in a component without layers) and role.
pub fn places(graph: &Graph) -> BTreeMap<(ComponentKind, u32, WeightRole), Vec<WeightId>> {
    let mut places: BTreeMap<_, Vec<WeightId>> = BTreeMap::new();
    for component in &graph.components {
        for node in component.nodes.iter().filter(|node| matches!(node.op, Op::Linear | Op::DynamicLinear)) {
            let operand = node.inputs.get(1).and_then(|input| component.values.get(input.0 as usize));
            let Some(ValueSource::Constant(id)) = operand.map(|value| &value.source) else { continue };
            let role = WeightRole::of_part(graph.weight(*id).part);
            let weights = places.entry((component.kind, node.layer.unwrap_or(0), role)).or_default();
            if !weights.contains(id) {
                weights.push(*id);
            }
        }
    }
    places
}
