//! The order in which losses are measured: the most valuable first, where the choice between
//! formats is open.
//!
//! The loss of a change is expected up to a factor, so the error of an expectation grows with it. A
//! large loss is therefore worth more than a small one. But a measurement does not matter where the
//! choice is clear.
//!
//! The choice of a format has a price: the loss per byte that it saves. A plan chooses formats from
//! the lowest price on, until its allowed loss is used up. The price of the last one is the plan's
//! price. A much cheaper format is chosen and a much dearer one is not, whatever a measurement
//! shows. The value of measuring a change is therefore its expected loss times the ratio of its
//! price and the plan's, the smaller divided by the larger.

use std::collections::BTreeMap;

use shardwright_graph::{ComponentKind, Graph, WeightId};
use shardwright_quantisation::{Change, places};
use shardwright_vocabulary::{WeightFormat, WeightRole};

use super::loss_table::LossTable;

/// A place for which a format can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FormatSlot {
    Weights(ComponentKind, u32, WeightRole),
    Table(u32),
}

/// Returns the changes that were not measured, the most valuable first. `quality` is the allowed
/// loss of a plan, in millionths of a nat per token. Measured losses do not affect the order, so an
/// interrupted measurement continues where it stopped.
pub(super) fn by_value(graph: &Graph, known: &LossTable, quality: u64) -> Vec<Change> {
    let savings = savings(graph, known);
    let price = |change: &Change| match savings.get(change) {
        Some(&saved) if saved > 0 => Some(known.prior(change) / saved as f64),
        _ => None,
    };
    let plan = price_of_a_plan(known, &savings, quality as f64);
    let value = |change: &Change| match (change, price(change)) {
        // Losses of computed values do not depend on bytes.
        (Change::Values { .. }, _) => known.prior(change),
        (_, Some(price)) if price > 0.0 && plan > 0.0 => {
            known.prior(change) * (price / plan).min(plan / price)
        }
        // Without an expected loss, or without a saving.
        _ => 0.0,
    };
    let mut order: Vec<(f64, Change)> = known.missing().map(|change| (value(&change), change)).collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    order.into_iter().map(|(_, change)| change).collect()
}

/// Returns the bytes that a change of weights or tables saves, or 0 if it saves none.
fn savings(graph: &Graph, known: &LossTable) -> BTreeMap<Change, u64> {
    let places = places(graph);
    let of_weight = |weight: &shardwright_graph::Weight, format: WeightFormat| {
        weight.planned(format).map_or(0, |planned| weight.bytes().saturating_sub(planned.bytes()))
    };
    let saved = |change: Change| match change {
        Change::Weights { component, layer, role, format } => {
            let weights = places.get(&(component, layer, role))?.iter();
            let weights = weights.filter_map(|&WeightId(id)| graph.weights.get(id as usize));
            Some((change, weights.map(|weight| of_weight(weight, format)).fold(0, u64::saturating_add)))
        }
        Change::Table { table, format } => {
            Some((change, of_weight(&graph.assets.get(table as usize)?.table, format)))
        }
        Change::Values { .. } => None,
    };
    known.changes().filter_map(saved).collect()
}

/// Returns the price at which the allowed loss of a plan is used up, or the price of the dearest
/// format if the loss allows all. Returns 0 without expected losses.
fn price_of_a_plan(known: &LossTable, savings: &BTreeMap<Change, u64>, quality: f64) -> f64 {
    let mut options: BTreeMap<FormatSlot, Vec<(f64, f64)>> = BTreeMap::new();
    for (change, &saved) in savings {
        let place = match *change {
            Change::Weights { component, layer, role, .. } => FormatSlot::Weights(component, layer, role),
            Change::Table { table, .. } => FormatSlot::Table(table),
            Change::Values { .. } => continue,
        };
        if saved > 0 {
            options.entry(place).or_default().push((saved as f64, known.prior(change)));
        }
    }
    let mut steps: Vec<(f64, f64)> = options.into_values().flat_map(steps).collect();
    steps.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut spent, mut last) = (0.0, 0.0);
    for (price, loss) in steps {
        (spent, last) = (spent + loss, price);
        if spent >= quality {
            break;
        }
    }
    last
}

/// Returns the steps of one place from the stored format to fewer and fewer bytes, each to the
/// format with the lowest price per byte. A step is its price and the loss that it adds.
fn steps(mut options: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let (mut saved, mut lost, mut steps) = (0.0, 0.0, Vec::new());
    loop {
        options.retain(|(bytes, _)| *bytes > saved);
        let price = |(bytes, loss): &(f64, f64)| (loss - lost).max(0.0) / (bytes - saved);
        let Some(next) = options.iter().copied().min_by(|a, b| price(a).total_cmp(&price(b))) else {
            return steps;
        };
        steps.push((price(&next), (next.1 - lost).max(0.0)));
        (saved, lost) = (next.0, next.1.max(lost));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_go_from_the_cheapest_byte_to_the_dearest() {
        // Six bytes for 30 are cheaper than four for 28, so no step leads to the latter.
        let of = steps(vec![(2.0, 2.0), (4.0, 28.0), (6.0, 30.0), (1.0, 9.0)]);
        assert_eq!(of, [(1.0, 2.0), (7.0, 28.0)]);
        assert!(steps(Vec::new()).is_empty());
        // A wider format with a larger loss is not a step.
        assert_eq!(steps(vec![(2.0, 5.0), (4.0, 1.0)]), [(0.25, 1.0)]);
    }
}
