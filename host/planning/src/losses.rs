//! Losses of layers in format tuples, by one rule for the check of a plan, the floor and reports.

use std::collections::HashMap;

use shardwright_vocabulary::{FormatTuple, Provenance, ValueFormat, WeightFormat};

use crate::request::{Request, Sensitivity, ValueSensitivity};

/// The losses of a request, by component and layer.
pub struct Losses<'request> {
    weights: HashMap<(u32, u32), Vec<&'request Sensitivity>>,
    values: HashMap<(u32, u32), Vec<&'request ValueSensitivity>>,
    /// Formats of values whose losses are known, and whether all these losses were measured. A
    /// layer without a row of its own has no loss in these formats.
    known_values: HashMap<ValueFormat, bool>,
    has_states: bool,
}

/// Loss of a layer, or of a component without layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitLoss {
    /// No loss except for float rounding.
    None,
    /// The loss is known.
    Known {
        /// KL divergence in millionths of a nat per token.
        micronats: u64,
        /// The measured part of `micronats`.
        measured: u64,
        /// Whether a part of the loss was not measured.
        modelled: bool,
    },
    /// The loss of its weights is unknown.
    Unknown,
    /// The loss of its rounded activations, states or attention is unknown, but the loss of its
    /// weights is known.
    UnknownValues {
        /// Known part: KL divergence in millionths of a nat per token.
        micronats: u64,
        /// The measured part of `micronats`.
        measured: u64,
    },
}

/// Returns whether weights in this format equal the checkpoint's, up to float rounding, so that no
/// loss is counted.
const fn is_lossless(format: WeightFormat) -> bool {
    !format.is_quantised() || matches!(format, WeightFormat::AsStored)
}

impl<'request> Losses<'request> {
    /// Indexes the losses of a request.
    pub fn new(request: &'request Request) -> Self {
        let mut losses = Self {
            weights: HashMap::new(),
            values: HashMap::new(),
            known_values: HashMap::new(),
            has_states: request.model.max_context > 0,
        };
        for row in &request.sensitivities {
            losses.weights.entry((row.component, row.layer)).or_default().push(row);
        }
        for row in &request.value_sensitivities {
            losses.values.entry((row.component, row.layer)).or_default().push(row);
            *losses.known_values.entry(row.format).or_insert(true) &= row.provenance == Provenance::Measured;
        }
        losses
    }

    /// Computes the loss of a layer. Use layer 0 for a component without layers. Components without
    /// weights must not be passed.
    pub fn of(&self, component: u32, layer: u32, tuple: &FormatTuple) -> UnitLoss {
        let weights = self.weights.get(&(component, layer)).into_iter().flatten();
        let weights = weights.filter(|row| tuple.weight(row.role) == row.format);
        let mut weights = weights.map(|row| (row.micronats, row.provenance)).peekable();
        let is_float =
            is_lossless(tuple.weights) && tuple.roles.iter().all(|entry| is_lossless(entry.format));
        if !is_float && weights.peek().is_none() {
            return UnitLoss::Unknown;
        }
        let formats = tuple.values();
        let values = self.values.get(&(component, layer)).into_iter().flatten();
        let values: Vec<_> = values.filter(|row| formats.contains(&row.format)).collect();
        let mut sum = Sum::default();
        values.iter().for_each(|row| sum.add(row.micronats, row.provenance));
        weights.filter(|_| !is_float).for_each(|(micronats, provenance)| sum.add(micronats, provenance));
        let Sum { micronats, measured, mut modelled } = sum;
        let mut is_rounded = false;
        for format in formats.iter().filter(|format| self.rounds(**format)) {
            is_rounded = true;
            match self.known_values.get(format) {
                None => return UnitLoss::UnknownValues { micronats, measured },
                Some(_) if values.iter().any(|row| row.format == *format) => {}
                Some(all_measured) => modelled |= !all_measured,
            }
        }
        match micronats {
            0 if is_float && !is_rounded => UnitLoss::None,
            _ => UnitLoss::Known { micronats, measured, modelled },
        }
    }

    /// Returns whether this format changes values of the float model.
    fn rounds(&self, format: ValueFormat) -> bool {
        !format.is_exact() && (self.has_states || !matches!(format, ValueFormat::States(_)))
    }
}

#[derive(Default)]
struct Sum {
    micronats: u64,
    measured: u64,
    modelled: bool,
}

impl Sum {
    fn add(&mut self, micronats: u32, provenance: Provenance) {
        self.micronats = self.micronats.saturating_add(micronats.into());
        match provenance {
            Provenance::Measured => self.measured = self.measured.saturating_add(micronats.into()),
            _ => self.modelled = true,
        }
    }
}
