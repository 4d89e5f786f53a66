//! What a layer loses in a format tuple, by one rule for the check of a plan, the floor and
//! reports.

use std::collections::{HashMap, HashSet};

use shardwright_vocabulary::{FormatTuple, Provenance, ValueFormat, WeightFormat};

use crate::request::{Request, Sensitivity, ValueSensitivity};

/// The losses of a request, by place.
pub struct Losses<'request> {
    weights: HashMap<(u32, u32), Vec<&'request Sensitivity>>,
    values: HashMap<(u32, u32), Vec<&'request ValueSensitivity>>,
    /// Formats of values of which something is known.
    known_values: HashSet<ValueFormat>,
}

/// What a layer, or a component without layers, loses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitLoss {
    /// Nothing but the rounding of floats.
    None,
    /// So much.
    Known {
        /// KL divergence in millionths of a nat per token.
        micronats: u64,
        /// The part of it that was measured.
        measured: u64,
        /// Whether a part of it was not measured.
        modelled: bool,
    },
    /// Its weights lose something that is not known.
    Unknown,
    /// Its weights are floats, and what its rounded activations or states lose is not known.
    UnknownValues,
}

/// Whether weights in this format are the checkpoint's, or equal them up to float rounding, so that
/// no loss is counted.
const fn is_lossless(format: WeightFormat) -> bool {
    !format.is_quantised() || matches!(format, WeightFormat::AsStored)
}

impl<'request> Losses<'request> {
    /// Of a request.
    pub fn new(request: &'request Request) -> Self {
        let known_values = request.value_sensitivities.iter().map(|row| row.format).collect();
        let mut losses = Self { weights: HashMap::new(), values: HashMap::new(), known_values };
        for row in &request.sensitivities {
            losses.weights.entry((row.component, row.layer)).or_default().push(row);
        }
        for row in &request.value_sensitivities {
            losses.values.entry((row.component, row.layer)).or_default().push(row);
        }
        losses
    }

    /// What a layer loses, zero for a component without layers; one without weights is not asked
    /// about. Beside integer weights, what is not known of activations and states is not counted.
    pub fn of(&self, component: u32, layer: u32, tuple: &FormatTuple) -> UnitLoss {
        let has = |row: &&&ValueSensitivity| match row.format {
            ValueFormat::Activations(format) => format == tuple.activations,
            ValueFormat::States(format) => format == tuple.states,
        };
        let values = self.values.get(&(component, layer)).into_iter().flatten().filter(has);
        let values = values.map(|row| (row.micronats, row.provenance));
        let weights = self.weights.get(&(component, layer)).into_iter().flatten();
        let weights = weights.filter(|row| tuple.weight(row.role) == row.format);
        let mut weights = weights.map(|row| (row.micronats, row.provenance)).peekable();
        let is_float =
            is_lossless(tuple.weights) && tuple.roles.iter().all(|entry| is_lossless(entry.format));
        if !is_float && weights.peek().is_none() {
            return UnitLoss::Unknown;
        }
        let rounded = [ValueFormat::Activations(tuple.activations), ValueFormat::States(tuple.states)];
        let mut rounded = rounded.iter().filter(|format| !format.is_exact()).peekable();
        let has_exact_values = rounded.peek().is_none();
        if is_float && rounded.any(|format| !self.known_values.contains(format)) {
            return UnitLoss::UnknownValues;
        }
        let parts = values.chain(weights.filter(|_| !is_float));
        let (mut micronats, mut measured, mut modelled) = (0_u64, 0_u64, false);
        for (part, provenance) in parts {
            micronats = micronats.saturating_add(part.into());
            match provenance {
                Provenance::Measured => measured = measured.saturating_add(part.into()),
                _ => modelled = true,
            }
        }
        match micronats {
            0 if is_float && has_exact_values => UnitLoss::None,
            _ => UnitLoss::Known { micronats, measured, modelled },
        }
    }
}
