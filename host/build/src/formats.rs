//! A model in the formats that a plan may choose from: counted for planning, quantised for
//! compiling.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use shardwright_graph::{ConstantFormat, Encodings, EntryOptions, Graph, Ranges, Segment, WeightId};
use shardwright_planning::check::{CheckedPlan, CheckedShard};
use shardwright_vocabulary::{FormatTuple, StateFormat};

use crate::compile::point_of;
use crate::{Result, stored_formats};

/// One model, once per format tuple of a request, in the request's order.
///
/// The graphs differ only in their constants. Counted graphs have no quantised data and only
/// assumed ranges. That is enough for a planner and for a shim's `check`, but not for compiling.
pub struct ModelFormats {
    tuples: Vec<FormatTuple>,
    graphs: Vec<Graph>,
    ranges: Option<Ranges>,
}

impl ModelFormats {
    /// Returns the model as its checkpoint stores it, as the only tuple.
    pub fn stored(graph: &Graph) -> ModelFormats {
        ModelFormats { tuples: vec![stored_formats(graph)], graphs: vec![graph.clone()], ranges: None }
    }

    /// Returns the model counted in each of `tuples`. A tuple equal to [`stored_formats`] keeps the
    /// stored constants.
    pub fn counted(graph: &Graph, tuples: &[FormatTuple]) -> Result<ModelFormats> {
        let stored = stored_formats(graph);
        let count = |tuple: &FormatTuple| match *tuple == stored {
            true => Ok(graph.clone()),
            false => graph.planned(tuple),
        };
        let graphs = tuples.iter().map(count).collect::<Result<_, _>>()?;
        Ok(ModelFormats { tuples: tuples.to_vec(), graphs, ranges: None })
    }

    /// Returns the format tuples, in the request's order.
    pub fn tuples(&self) -> &[FormatTuple] {
        &self.tuples
    }

    /// Returns the model in the tuple with this index.
    pub fn graph(&self, formats: usize) -> &Graph {
        &self.graphs[formats]
    }

    /// Returns how tensors are encoded in the tuple with this index.
    pub fn encodings(&self, formats: usize) -> Encodings<'_> {
        let tuple = &self.tuples[formats];
        match &self.ranges {
            Some(ranges) => Encodings::of(tuple, ranges),
            None => Encodings::counting(tuple),
        }
    }

    /// Checks whether a plan has a shard whose integers need calibrated ranges.
    pub fn needs_ranges(plan: &CheckedPlan) -> bool {
        plan.shards().iter().flat_map(|shard| shard.formats.tuples()).any(needs_ranges)
    }

    /// Returns the models from which a plan's shards are compiled.
    ///
    /// `from` is the model as its checkpoint stores it. For every tuple that shards use, `make`
    /// computes the constants that are read in it, from the stored model and the target format of
    /// each weight. `ranges` are the calibrated ranges, if the plan needs them.
    pub fn made(
        &self,
        from: &Graph,
        plan: &CheckedPlan,
        ranges: Option<Ranges>,
        mut make: impl FnMut(&Graph, Vec<ConstantFormat>) -> Result<Graph>,
    ) -> Result<ModelFormats> {
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

    /// Returns the weights that the layers in each tuple read.
    fn used(&self, graph: &Graph, plan: &CheckedPlan) -> Result<BTreeMap<usize, BTreeSet<WeightId>>> {
        let mut used: BTreeMap<usize, BTreeSet<WeightId>> = BTreeMap::new();
        for checked in plan.shards() {
            for (segment, formats) in format_runs(checked) {
                used.entry(formats).or_default().extend(weights_of(graph, plan, checked, segment)?);
            }
        }
        Ok(used)
    }

    /// Returns the model in the formats of one shard: the tuple of its first part, with the weights
    /// of its other parts in their own tuples.
    pub fn graph_of<'g>(&'g self, plan: &CheckedPlan, checked: &CheckedShard) -> Result<Cow<'g, Graph>> {
        let mut runs = format_runs(checked).into_iter();
        let first = runs.next().map_or(0, |(_, formats)| formats);
        let mut graph = Cow::Borrowed(self.graph(first));
        for (segment, formats) in runs {
            let weights = weights_of(self.graph(formats), plan, checked, segment)?;
            for id in weights {
                graph.to_mut().weights[id.0 as usize] = self.graph(formats).weight(id).clone();
            }
        }
        Ok(graph)
    }
}

/// Returns the parts of a shard with one format tuple each, by index: adjacent layers, and
/// components without layers.
pub fn format_runs(checked: &CheckedShard) -> Vec<(Segment, usize)> {
    let mut runs: Vec<(Segment, usize)> = Vec::new();
    for (planned, segment) in checked.planned.segments.iter().zip(checked.segments.iter()) {
        let begin = runs.len();
        for (layer, &formats) in (planned.first..).zip(&planned.formats) {
            let formats = formats as usize;
            let layers = if planned.end == 0 { (0, 0) } else { (layer, layer + 1) };
            match runs[begin..].last_mut() {
                Some((run, last)) if *last == formats => run.layers.1 = layers.1,
                _ => runs.push((Segment { layers, ..segment }, formats)),
            }
        }
    }
    runs
}

/// Returns the weights that a part of a shard reads at its entry points.
fn weights_of(
    graph: &Graph,
    plan: &CheckedPlan,
    checked: &CheckedShard,
    segment: Segment,
) -> Result<BTreeSet<WeightId>> {
    let mut weights = BTreeSet::new();
    for entry in &checked.planned.entries {
        let point = point_of(plan, entry);
        let instance = graph.entry_of(&segment.into(), point, EntryOptions::default())?;
        weights.extend(instance.iter().flat_map(|entry| entry.constants().map(|(_, weight)| weight)));
    }
    Ok(weights)
}

/// Checks whether integers of these formats need calibrated ranges.
pub fn needs_ranges(formats: &FormatTuple) -> bool {
    formats.activations.is_static() || matches!(formats.states, StateFormat::A16 | StateFormat::A8)
}
