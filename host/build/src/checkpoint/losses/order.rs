//! In which order losses are measured: the most valuable first, where the choice between formats is
//! open.
//!
//! What a change loses is expected up to a factor, so that the error of an expectation grows with
//! it: a large loss is worth more than a small one. But a loss decides nothing where the choice is
//! clear. The choice of a format has a price: the loss for a byte that it saves. A plan takes
//! formats from the lowest price on, until the loss that it may have is used up: the price of the
//! last is the plan's. A format that is much cheaper is taken and one that is much dearer is not,
//! whatever a measurement says. So the value of measuring a change is its expected loss times the
//! quotient of its price and the plan's, the smaller by the larger.

use std::collections::BTreeMap;

use shardwright_graph::{ComponentKind, Graph, WeightId};
use shardwright_quantisation::{Change, places};
use shardwright_vocabulary::{WeightFormat, WeightRole};

use super::known::Known;

/// What a format can be chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Weights(ComponentKind, u32, WeightRole),
    Table(u32),
}

/// The changes that were not measured, the most valuable first; `quality` is the loss that a plan
/// may have, in millionths of a nat per token. What was measured changes no place in the order, so
/// that an interrupted measurement goes on where it stopped.
pub(super) fn by_value(graph: &Graph, known: &Known, quality: u64) -> Vec<Change> {
    let savings = savings(graph, known);
    let price = |change: &Change| match savings.get(change) {
        Some(&saved) if saved > 0 => Some(known.prior(change) / saved as f64),
        _ => None,
    };
    let plan = price_of_a_plan(known, &savings, quality as f64);
    let value = |change: &Change| match (change, price(change)) {
        // What computed values lose is bound to no byte.
        (Change::Values { .. }, _) => known.prior(change),
        (_, Some(price)) if price > 0.0 && plan > 0.0 => {
            known.prior(change) * (price / plan).min(plan / price)
        }
        // Nothing is expected, or nothing is saved.
        _ => 0.0,
    };
    let mut order: Vec<(f64, Change)> = known.missing().map(|change| (value(&change), change)).collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    order.into_iter().map(|(_, change)| change).collect()
}

/// Bytes that a change of weights or tables saves; 0 where it saves none.
fn savings(graph: &Graph, known: &Known) -> BTreeMap<Change, u64> {
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

/// The price at which the loss that a plan may have is used up, or that of the dearest format if
/// all are taken before; 0 where nothing is expected of any.
fn price_of_a_plan(known: &Known, savings: &BTreeMap<Change, u64>, quality: f64) -> f64 {
    let mut options: BTreeMap<Place, Vec<(f64, f64)>> = BTreeMap::new();
    for (change, &saved) in savings {
        let place = match *change {
            Change::Weights { component, layer, role, .. } => Place::Weights(component, layer, role),
            Change::Table { table, .. } => Place::Table(table),
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

/// The steps of one place from what is stored to ever fewer bytes, each to the format that costs
/// least for a byte: the price of a step and what it adds to the loss.
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
        // Six bytes for 30 are cheaper than four for 28, which no step goes to.
        let of = steps(vec![(2.0, 2.0), (4.0, 28.0), (6.0, 30.0), (1.0, 9.0)]);
        assert_eq!(of, [(1.0, 2.0), (7.0, 28.0)]);
        assert!(steps(Vec::new()).is_empty());
        // A wider format that loses more is no step.
        assert_eq!(steps(vec![(2.0, 5.0), (4.0, 1.0)]), [(0.25, 1.0)]);
    }
}
