//! The known loss of every change that a plan may make to a model: measured, or expected.

use std::collections::{BTreeMap, BTreeSet};

use shardwright_build::TableFormats;
use shardwright_graph::{Component, ComponentKind, Graph, Op};
use shardwright_quantisation::{
    Change, Compensated, Loss, places, priors, table_pairs, table_priors, value_prior,
};
use shardwright_vocabulary::{FormatTuple, Provenance, Result, ValueFormat, WeightFormat, WeightRole};

use crate::calibration::quantised_formats;

/// Formats that a plan may choose from, without duplicates and without lossless formats.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Formats {
    pub weights: Vec<WeightFormat>,
    pub tables: Vec<WeightFormat>,
    pub values: Vec<ValueFormat>,
}

impl Formats {
    /// Returns the formats of tuples, and the formats into which gathered tables may be converted.
    pub fn of(tuples: &[FormatTuple], asked: TableFormats) -> Self {
        let values: BTreeSet<ValueFormat> = tuples.iter().flat_map(FormatTuple::values).collect();
        Formats {
            weights: quantised_formats(tuples),
            tables: asked.to_make(),
            values: values.into_iter().filter(|format| !format.is_exact()).collect(),
        }
    }
}

/// The known loss of one change, in millionths of a nat per token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Row {
    /// Expectation before measurements. `None` for encoders, for which no model was fitted.
    expected: Option<f64>,
    measured: Option<f64>,
}

/// A group of changes whose expectations have a common error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kin {
    Role(WeightRole),
    Values(ValueFormat),
    Table(u32),
}

impl Kin {
    const fn of(change: &Change) -> Self {
        match *change {
            Change::Weights { role, .. } => Kin::Role(role),
            Change::Values { format, .. } => Kin::Values(format),
            Change::Table { table, .. } => Kin::Table(table),
        }
    }
}

/// Losses below this are too affected by rounding to judge an expectation, in millionths of a nat.
const LEAST_FITTED: f64 = 2.0;

/// Number of measurements that the default factor 1 of a role counts as. A few measured places are
/// a weak indication for the others.
const OF_THE_DEFAULT: f64 = 2.0;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LossTable {
    rows: BTreeMap<Change, Row>,
}

impl LossTable {
    /// Lists every possible change with its expected loss, which is estimated from the rounding
    /// errors of the weights. `compensated` selects the matrices rounded with compensation.
    pub fn expected(graph: &Graph, formats: &Formats, compensated: Option<Compensated>) -> Result<Self> {
        let mut rows = BTreeMap::new();
        // A format that the checkpoint already has is lossless.
        let kept = |is_kept: bool| Row { measured: is_kept.then_some(0.0), ..Row::default() };
        for ((component, layer, role), weights) in places(graph) {
            for &format in &formats.weights {
                let is_kept = weights.iter().all(|&id| graph.weight(id).is_in(format));
                rows.insert(Change::Weights { component, layer, role, format }, kept(is_kept));
            }
        }
        for &format in &formats.values {
            let places = value_places(graph, format);
            let total = graph.is_generative().then(|| value_prior(format) as f64);
            let expected = total.map(|total| total / places.len().max(1) as f64);
            for (component, layer) in places {
                let change = Change::Values { component, layer, format };
                rows.insert(change, Row { expected, measured: None });
            }
        }
        for (table, format) in table_pairs(graph, &formats.tables) {
            let is_kept = graph.assets[table].table.is_in(format);
            rows.insert(Change::Table { table: table as u32, format }, kept(is_kept));
        }
        let mut known = LossTable { rows };
        let of_weights = match formats.weights.is_empty() {
            true => Vec::new(),
            false => priors(graph, &formats.weights, compensated)?,
        };
        known.expect(of_weights.iter().map(|row| (row.change(), row.micronats)));
        let of_tables = table_priors(graph, &formats.tables);
        known.expect(of_tables.iter().map(|row| (row.change(), row.micronats)));
        Ok(known)
    }

    pub fn expect(&mut self, rows: impl IntoIterator<Item = (Change, u64)>) {
        for (change, micronats) in rows {
            if let Some(row) = self.rows.get_mut(&change) {
                row.expected = Some(micronats as f64);
            }
        }
    }

    /// Records the measured loss of a change.
    pub fn measure(&mut self, loss: &Loss) {
        if let Some(row) = self.rows.get_mut(&loss.change) {
            row.measured = Some(loss.micronats());
        }
    }

    /// Returns all changes in their order.
    pub fn changes(&self) -> impl Iterator<Item = Change> + '_ {
        self.rows.keys().copied()
    }

    /// Returns the changes that were not measured.
    pub fn missing(&self) -> impl Iterator<Item = Change> + '_ {
        self.rows.iter().filter(|(_, row)| row.measured.is_none()).map(|(change, _)| *change)
    }

    /// Returns the number of measured changes.
    pub fn measured(&self) -> usize {
        self.rows.len() - self.missing().count()
    }

    /// Returns the expected loss of a change before any measurement, in millionths of a nat, or 0
    /// without an expectation.
    pub fn prior(&self, change: &Change) -> f64 {
        self.rows.get(change).and_then(|row| row.expected).unwrap_or(0.0)
    }

    /// Returns the loss of every change in millionths of a nat: the measured one, or else the
    /// expected one times the mean ratio of measured to expected losses of the same role. Changes
    /// without either are left out.
    pub fn losses(&self) -> Vec<(Change, f64, Provenance)> {
        let factors = self.factors();
        let loss = |(change, row): (&Change, &Row)| match (row.measured, row.expected) {
            (Some(measured), _) => Some((*change, measured, Provenance::Measured)),
            (None, Some(expected)) => {
                let factor = factors.get(&Kin::of(change)).copied().unwrap_or(1.0);
                Some((*change, expected * factor, Provenance::Modelled))
            }
            (None, None) => None,
        };
        self.rows.iter().filter_map(loss).collect()
    }

    /// Returns the geometric mean of the ratios of measured to expected losses. With few
    /// measurements it is shrunk towards 1.
    fn factors(&self) -> BTreeMap<Kin, f64> {
        let mut sums: BTreeMap<Kin, (f64, f64)> = BTreeMap::new();
        for (change, row) in &self.rows {
            if let (Some(measured), Some(expected)) = (row.measured, row.expected)
                && (LEAST_FITTED..Loss::NOT_FINITE).contains(&measured)
                && expected >= LEAST_FITTED
            {
                let (sum, count) = sums.entry(Kin::of(change)).or_default();
                (*sum, *count) = (*sum + (measured / expected).ln(), *count + 1.0);
            }
        }
        let factor = |(sum, count): (f64, f64)| (sum / (count + OF_THE_DEFAULT)).exp();
        sums.into_iter().map(|(kin, sums)| (kin, factor(sums))).collect()
    }
}

/// Returns the places where computed values may have a format: components and layers with matrices
/// for activations, layers that write a state for states, layers that attend for attention.
pub(super) fn value_places(graph: &Graph, format: ValueFormat) -> Vec<(ComponentKind, u32)> {
    match format {
        ValueFormat::Activations(_) => {
            let with_matrices: BTreeSet<(ComponentKind, u32)> =
                places(graph).into_keys().map(|(kind, layer, _)| (kind, layer)).collect();
            with_matrices.into_iter().collect()
        }
        ValueFormat::States(_) => {
            let writers = |component: &Component| {
                let layers = 0..component.layers;
                let writes = layers.filter(|layer| graph.writes_states(*layer..*layer + 1));
                writes.map(|layer| (component.kind, layer)).collect::<Vec<_>>()
            };
            graph.components.iter().flat_map(writers).collect()
        }
        ValueFormat::Attention(_) => {
            let attends = |component: &Component| {
                let nodes = component.nodes.iter().filter(|node| matches!(node.op, Op::Attention(_)));
                nodes.map(|node| (component.kind, node.layer.unwrap_or(0))).collect::<Vec<_>>()
            };
            let places: BTreeSet<(ComponentKind, u32)> = graph.components.iter().flat_map(attends).collect();
            places.into_iter().collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(layer: u32, role: WeightRole) -> Change {
        Change::Weights { component: ComponentKind::Decoder, layer, role, format: WeightFormat::W4Block32 }
    }

    #[test]
    fn what_was_measured_scales_what_is_expected_of_the_same_role() {
        use WeightRole::{MlpInput, MlpOutput};
        let all = [(0, MlpInput), (1, MlpInput), (2, MlpInput), (0, MlpOutput)];
        let rows = all.map(|(layer, role)| (change(layer, role), Row::default()));
        let mut known = LossTable { rows: rows.into() };
        assert!(known.losses().is_empty());
        known.expect(all.map(|(layer, role)| (change(layer, role), 1000)));
        let loss = |known: &LossTable, of: Change| {
            let losses = known.losses().into_iter();
            let mut of = losses.filter(|(change, ..)| *change == of);
            of.next().map(|(_, loss, ground)| (loss.round(), ground))
        };
        let (near, far) = (change(2, MlpInput), change(0, MlpOutput));
        assert_eq!(loss(&known, near), Some((1000.0, Provenance::Modelled)));
        known.measure(&Loss::of(change(0, MlpInput), 4e-3));
        known.measure(&Loss::of(change(1, MlpInput), 4e-3));
        assert_eq!((known.measured(), known.missing().count()), (2, 2));
        // Two of four weights belong to the default factor.
        assert_eq!(loss(&known, near), Some((2000.0, Provenance::Modelled)));
        assert_eq!(loss(&known, far), Some((1000.0, Provenance::Modelled)));
        assert_eq!(loss(&known, change(0, MlpInput)), Some((4000.0, Provenance::Measured)));
        // A loss that is rounded to a millionth does not affect the others.
        known.measure(&Loss::of(far, 1e-6));
        assert_eq!(loss(&known, far), Some((1.0, Provenance::Measured)));
        assert_eq!(known.prior(&near), 1000.0);
        assert!(known.factors().len() == 1);
        // A loss that is not finite is the largest one, and yields no factor for other places.
        known.measure(&Loss::of(far, f64::NAN));
        assert_eq!(loss(&known, far), Some((Loss::NOT_FINITE.round(), Provenance::Measured)));
        assert!(known.factors().len() == 1);
    }
}
