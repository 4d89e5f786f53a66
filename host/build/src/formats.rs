//! A model in the formats a plan may choose from: counted for planning, quantised for compiling.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use shardwright_graph::{ConstantFormat, Encodings, EntryOptions, Graph, GraphError, Ranges, WeightId};
use shardwright_planning::check::{CheckedPlan, CheckedShard};
use shardwright_planning::plan::Shard;
use shardwright_vocabulary::{ActivationFormat, FormatTuple, StateFormat};

use crate::compile::point_of;
use crate::{BuildError, stored_formats};

/// One model, once per format tuple of a request, in the request's order.
///
/// The graphs differ only in their constants. Counted graphs have no quantised data and assumed
/// ranges: enough for a planner and for a shim's `check`, not for compiling.
pub struct ModelFormats {
    tuples: Vec<FormatTuple>,
    graphs: Vec<Graph>,
    ranges: Option<Ranges>,
}

impl ModelFormats {
    /// The model as its checkpoint stores it: one tuple, nothing to quantise.
    pub fn stored(graph: &Graph) -> ModelFormats {
        ModelFormats { tuples: vec![stored_formats(graph)], graphs: vec![graph.clone()], ranges: None }
    }

    /// The model counted in each of `tuples`; a tuple equal to [`stored_formats`] keeps the stored
    /// constants.
    pub fn counted(graph: &Graph, tuples: &[FormatTuple]) -> Result<ModelFormats, GraphError> {
        let stored = stored_formats(graph);
        let count = |tuple: &FormatTuple| match *tuple == stored {
            true => Ok(graph.clone()),
            false => graph.planned(tuple),
        };
        let graphs = tuples.iter().map(count).collect::<Result<_, _>>()?;
        Ok(ModelFormats { tuples: tuples.to_vec(), graphs, ranges: None })
    }

    /// The format tuples, in the request's order.
    pub fn tuples(&self) -> &[FormatTuple] {
        &self.tuples
    }

    /// The model in the tuple with this index.
    pub fn graph(&self, formats: usize) -> &Graph {
        &self.graphs[formats]
    }

    /// How tensors are encoded in the tuple with this index.
    pub fn encodings(&self, formats: usize) -> Encodings<'_> {
        let tuple = &self.tuples[formats];
        match &self.ranges {
            Some(ranges) => Encodings::of(tuple, ranges),
            None => Encodings::counting(tuple),
        }
    }

    /// Whether a plan has a shard whose integers need calibrated ranges.
    pub fn needs_ranges(plan: &CheckedPlan) -> bool {
        plan.shards().iter().flat_map(|shard| shard.formats.tuples()).any(needs_ranges)
    }

    /// What a plan's shards are compiled from. For every tuple they use, `make` makes the constants
    /// read in it, from the stored model and the target format of each weight. `ranges` are the
    /// calibrated ranges, if the plan needs them.
    ///
    /// `from` is the model as its checkpoint stores it.
    pub fn made(
        &self,
        from: &Graph,
        plan: &CheckedPlan,
        ranges: Option<Ranges>,
        mut make: impl FnMut(&Graph, Vec<ConstantFormat>) -> Result<Graph, BuildError>,
    ) -> Result<ModelFormats, BuildError> {
        let stored = stored_formats(from);
        let mut graphs = self.graphs.clone();
        for (formats, weights) in self.used(from, plan)? {
            let tuple = &self.tuples[formats];
            if *tuple == stored {
                continue;
            }
            let mut wanted = from.constant_formats(tuple);
            for (index, format) in wanted.iter_mut().enumerate() {
                if !weights.contains(&WeightId(index as u32)) {
                    *format = ConstantFormat::Stored;
                }
            }
            let made = make(from, wanted)?;
            for id in weights {
                graphs[formats].weights[id.0 as usize] = made.weight(id).clone();
            }
        }
        Ok(ModelFormats {
            tuples: self.tuples.clone(),
            graphs,
            ranges: ranges.or_else(|| self.ranges.clone()),
        })
    }

    /// The weights that the layers in each tuple read.
    fn used(
        &self,
        graph: &Graph,
        plan: &CheckedPlan,
    ) -> Result<BTreeMap<usize, BTreeSet<WeightId>>, BuildError> {
        let mut used: BTreeMap<usize, BTreeSet<WeightId>> = BTreeMap::new();
        for checked in plan.shards() {
            for (layers, formats) in runs(&checked.planned) {
                used.entry(formats).or_default().extend(weights_of(graph, plan, checked, layers)?);
            }
        }
        Ok(used)
    }

    /// The model in the formats of one shard: as in the tuple of its first layer, the weights of
    /// its other layers in theirs.
    pub fn graph_of<'g>(
        &'g self,
        plan: &CheckedPlan,
        checked: &CheckedShard,
    ) -> Result<Cow<'g, Graph>, BuildError> {
        let mut runs = runs(&checked.planned).into_iter();
        let first = runs.next().map_or(0, |(_, formats)| formats);
        let mut graph = Cow::Borrowed(self.graph(first));
        for (layers, formats) in runs {
            let weights = weights_of(self.graph(formats), plan, checked, layers)?;
            for id in weights {
                graph.to_mut().weights[id.0 as usize] = self.graph(formats).weight(id).clone();
            }
        }
        Ok(graph)
    }
}

/// Adjacent layers of a shard in one format tuple, by its index.
fn runs(shard: &Shard) -> Vec<(Range<u32>, usize)> {
    if shard.first == shard.end {
        return shard.formats.first().map(|&formats| (0..0, formats as usize)).into_iter().collect();
    }
    let mut runs: Vec<(Range<u32>, usize)> = Vec::new();
    for (layer, &formats) in (shard.first..shard.end).zip(&shard.formats) {
        match runs.last_mut() {
            Some((layers, last)) if *last == formats as usize => layers.end = layer + 1,
            _ => runs.push((layer..layer + 1, formats as usize)),
        }
    }
    runs
}

/// The weights that layers of a shard read at its entry points.
fn weights_of(
    graph: &Graph,
    plan: &CheckedPlan,
    checked: &CheckedShard,
    layers: Range<u32>,
) -> Result<BTreeSet<WeightId>, BuildError> {
    let mut weights = BTreeSet::new();
    for entry in &checked.planned.entries {
        let point = point_of(plan, entry);
        let instance = graph.entry(checked.component, layers.clone(), point, EntryOptions::default())?;
        weights.extend(instance.iter().flat_map(|entry| entry.constants().map(|(_, weight)| weight)));
    }
    Ok(weights)
}

/// Whether integers of these formats need calibrated ranges.
pub fn needs_ranges(formats: &FormatTuple) -> bool {
    matches!(formats.activations, ActivationFormat::A16 | ActivationFormat::A16Symmetric)
        || matches!(formats.states, StateFormat::A16 | StateFormat::A8)
}
