//! Measures the losses of changes by running the model on the CPU shim.
//!
//! The model as stored runs once, and its sequences before every part are kept. A change then needs
//! a run from the first affected part. Loaded parts of the stored model are kept as far as memory
//! allows, the last ones first, because most changes run them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use shardwright_forward::{Engine, Loaded, Pass};
use shardwright_graph::{Asset, ComponentKind, ConstantFormat, Encodings, Graph, Ranges, Segment, WeightId};
use shardwright_quantisation::{
    Change, Compensated, Loss, Moments, Recipe, TableFormats, divergence, mean_divergence, quantise,
    weights_read,
};
use shardwright_vocabulary::{
    Error, ErrorKind, FormatTuple, Granularity, Result, ValueFormat, Watch, WeightFormat,
};

/// Largest number of bytes of weights of loaded parts that are kept between runs.
const HELD_BYTES: u64 = 2 << 30;

/// The outputs of a model for all sequences, `[rows, width]` each.
struct Outputs {
    of: Vec<Vec<f32>>,
    width: usize,
}

/// A model whose losses are measured.
///
/// Memory: the residual stream of all sequences before every part, their outputs twice (rows times
/// vocabulary, f32), and loaded parts with up to 2 GiB of weights in addition to the running one.
pub(super) struct Probe<'p> {
    graph: &'p Graph,
    moments: Option<Arc<Moments>>,
    compensated: Compensated,
    /// Ranges for the value formats that need them.
    ranges: &'p BTreeMap<ValueFormat, Ranges>,
    parts: Vec<Segment>,
    /// The weights that each part reads.
    reads: Vec<BTreeSet<WeightId>>,
    /// The sequences before each part.
    before: Vec<Pass<'p>>,
    stored: Outputs,
    /// Parts that may be kept between runs.
    may_hold: BTreeSet<usize>,
    held: BTreeMap<usize, Option<Loaded>>,
}

/// The parts of a run that differ from the model as stored.
struct Changed<'c> {
    parts: BTreeSet<usize>,
    graph: &'c Graph,
    encodings: Option<Encodings<'c>>,
}

impl<'p> Probe<'p> {
    /// Creates a probe by running the model as stored. Changes of weights round matrices by
    /// `moments`. Changes to static integers use `ranges`.
    ///
    /// # Errors
    /// Fails with errors of the shim, or if it is interrupted.
    pub fn new(
        graph: &'p Graph,
        engine: &Engine,
        sequences: &'p [Vec<u32>],
        (moments, compensated): (Option<Arc<Moments>>, Compensated),
        ranges: &'p BTreeMap<ValueFormat, Ranges>,
        watch: &mut dyn Watch,
    ) -> Result<Self> {
        let first = Pass::new(graph, engine, sequences)?;
        let parts = first.parts();
        let mut all = weights_read(graph);
        let reads: Vec<BTreeSet<WeightId>> = parts
            .iter()
            .map(|part| all.remove(&(part.component, part.layers.0)).unwrap_or_default())
            .collect();
        let mut may_hold = BTreeSet::new();
        let mut bytes = 0_u64;
        for (index, reads) in reads.iter().enumerate().rev() {
            let own = reads.iter().map(|weight| graph.weight(*weight).bytes());
            bytes = own.fold(bytes, u64::saturating_add);
            if bytes > HELD_BYTES {
                break;
            }
            may_hold.insert(index);
        }
        let stored = Outputs { of: Vec::new(), width: 1 };
        let mut probe = Probe {
            graph,
            moments,
            compensated,
            ranges,
            parts,
            reads,
            before: vec![first],
            stored,
            may_hold,
            held: BTreeMap::new(),
        };
        let none = Changed { parts: BTreeSet::new(), graph, encodings: None };
        probe.stored = probe.run(0, &none, &graph.assets, watch)?;
        Ok(probe)
    }

    /// Measures the loss of a change.
    ///
    /// # Errors
    /// Fails if a weight cannot be quantised, if a value cannot be encoded, with errors of the
    /// shim, or if it is interrupted.
    pub fn loss(&mut self, change: Change, watch: &mut dyn Watch) -> Result<Loss> {
        let graph = self.graph;
        let divergence = match change {
            Change::Values { component, layer, format } => {
                let Some(part) = self.part_of(component, layer) else { return Ok(Loss::of(change, 0.0)) };
                self.of_values(part, format, watch)?
            }
            Change::Weights { .. } | Change::Table { .. } => {
                let recipe = change.recipe(graph).with_moments(self.moments.clone());
                let recipe = recipe.compensating(self.compensated);
                let changed = changed_weights(&recipe);
                if changed.is_empty() && recipe.tables == TableFormats::default() {
                    return Ok(Loss::of(change, 0.0));
                }
                let made = made(graph, &recipe, watch)?;
                let reads = |part: &usize| changed.iter().any(|weight| self.reads[*part].contains(weight));
                let parts: BTreeSet<usize> = (0..self.parts.len()).filter(reads).collect();
                // Rows gathered from a table enter with the first part.
                let first = parts.first().copied().unwrap_or(0);
                let changed = Changed { parts, graph: &made, encodings: None };
                let outputs = self.run(first, &changed, &made.assets, watch)?;
                self.divergence(&self.stored, &outputs)
            }
        };
        Ok(Loss::of(change, divergence))
    }

    fn of_values(&mut self, part: usize, format: ValueFormat, watch: &mut dyn Watch) -> Result<f64> {
        let graph = self.graph;
        let (tuple, none) = (super::alone(format), Ranges::new());
        let ranges = self.ranges.get(&format).unwrap_or(&none);
        let encodings = Some(Encodings::of(&tuple, ranges));
        let parts = BTreeSet::from([part]);
        let block = match format {
            ValueFormat::Activations(activations) => activations.dynamic_block(),
            ValueFormat::States(_) | ValueFormat::Attention(_) => None,
        };
        let Some(block) = block else {
            let changed = Changed { parts, graph, encodings };
            let outputs = self.run(part, &changed, &graph.assets, watch)?;
            return Ok(self.divergence(&self.stored, &outputs));
        };
        let recipe = in_integers(graph, &self.reads[part], block);
        let made = made(graph, &recipe, watch)?;
        let wide = match changed_weights(&recipe).is_empty() {
            true => None,
            false => {
                let plain = Changed { parts: parts.clone(), graph: &made, encodings: None };
                Some(self.run(part, &plain, &graph.assets, watch)?)
            }
        };
        let changed = Changed { parts, graph: &made, encodings };
        let outputs = self.run(part, &changed, &graph.assets, watch)?;
        Ok(self.divergence(wide.as_ref().unwrap_or(&self.stored), &outputs))
    }

    fn part_of(&self, component: ComponentKind, layer: u32) -> Option<usize> {
        self.parts.iter().position(|part| {
            let has_layers = part.layers.1 > 0;
            part.component == component && (!has_layers || part.layers.0 == layer)
        })
    }

    /// Runs all parts from `first` on, with the changed ones in their changed form.
    fn run(
        &mut self,
        first: usize,
        changed: &Changed<'_>,
        assets: &[Asset],
        watch: &mut dyn Watch,
    ) -> Result<Outputs> {
        let before = self.before.get(first).or(self.before.first());
        let Some(mut pass) = before.cloned() else {
            return Err(Error::new(ErrorKind::Internal, "no pass to continue from"));
        };
        let mut outputs = Outputs { of: Vec::new(), width: 1 };
        for index in first..self.parts.len() {
            if self.before.len() == index {
                self.before.push(pass.clone());
            }
            let part = self.parts[index];
            let mut show = |seen: shardwright_forward::Looked<'_>| {
                outputs.width = seen.rows().next().map_or(1, <[f32]>::len).max(1);
                outputs.of.resize(outputs.of.len().max(seen.sequence + 1), Vec::new());
                outputs.of[seen.sequence] = seen.values.to_vec();
            };
            if changed.parts.contains(&index) {
                let encodings = changed.encodings.as_ref();
                let loaded = pass.load(&part, changed.graph, encodings, &|_, _| false, watch)?;
                if let Some(mut loaded) = loaded {
                    pass.run_loaded(&mut loaded, assets, &mut show, watch)?;
                }
                continue;
            }
            let mut loaded = match self.held.remove(&index) {
                Some(held) => held,
                None => pass.load(&part, self.graph, None, &|_, _| false, watch)?,
            };
            if let Some(loaded) = &mut loaded {
                pass.run_loaded(loaded, assets, &mut show, watch)?;
            }
            if self.may_hold.contains(&index) {
                self.held.insert(index, loaded);
            }
        }
        Ok(outputs)
    }

    /// Returns the divergence in nats per row, summed in the order of the sequences. NaN if a
    /// prediction is not finite.
    fn divergence(&self, stored: &Outputs, ours: &Outputs) -> f64 {
        let pairs = stored.of.iter().zip(&ours.of);
        let sums = pairs.map(|(stored, ours)| divergence(self.graph, stored, ours, self.stored.width));
        let (sum, count) = sums.fold((0.0, 0), |all, own| (all.0 + own.0, all.1 + own.1));
        mean_divergence(sum, count)
    }
}

/// Returns the recipe of the reference for activations with a scale per `block` values, or per row
/// if that is 0. Only integer matrices are multiplied with such activations. Stored integers stay
/// as they are, and the other matrices of `reads` are rounded to 8 bits.
fn in_integers(graph: &Graph, reads: &BTreeSet<WeightId>, block: u32) -> Recipe {
    let formats = FormatTuple { weights: WeightFormat::W8PerChannel, ..FormatTuple::F32 };
    let mut recipe = Recipe::new(graph, &formats, TableFormats::default());
    for (index, target) in recipe.weights.iter_mut().enumerate() {
        let id = WeightId(index as u32);
        let granularity = graph.weight(id).quantisation.as_ref().map(|stored| stored.granularity);
        // Blocks of weights that do not hold whole blocks of activations are multiplied in floats.
        let suits = granularity.is_some_and(|granularity| match granularity {
            Granularity::PerBlock { size, .. } => size.is_multiple_of(block.max(1)),
            Granularity::PerTensor | Granularity::PerChannel => true,
        });
        if suits || !reads.contains(&id) {
            *target = ConstantFormat::Stored;
        }
    }
    recipe
}

/// Returns the weights that a recipe changes.
fn changed_weights(recipe: &Recipe) -> Vec<WeightId> {
    let weights = recipe.weights.iter().enumerate();
    let changed = weights.filter(|(_, format)| **format != ConstantFormat::Stored);
    changed.map(|(index, _)| WeightId(index as u32)).collect()
}

/// Quantises the model according to a recipe. Notes about weights are dropped: compiling reports
/// them.
fn made(graph: &Graph, recipe: &Recipe, watch: &dyn Watch) -> Result<Graph> {
    quantise(graph, recipe, &mut Cancelling(watch), &mut Vec::new())
}

/// Forwards interruptions only.
struct Cancelling<'w>(&'w dyn Watch);

impl Watch for Cancelling<'_> {
    fn cancelled(&self) -> bool {
        self.0.cancelled()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use shardwright_models::Checkpoint;

    use super::*;

    #[test]
    fn stored_integers_are_the_reference_for_rounded_activations() {
        let fixture = |folder: &str| {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(folder);
            Checkpoint::open(path).unwrap_or_else(|error| panic!("{folder}: {error}")).into_graph()
        };
        let rounded = |graph: &Graph, block: u32| {
            let all: BTreeSet<WeightId> = weights_read(graph).into_values().flatten().collect();
            let recipe = in_integers(graph, &all, block);
            let targets = recipe.weights.iter();
            let made = ConstantFormat::Matrix(WeightFormat::W8PerChannel);
            targets.filter(|target| **target == made).count()
        };
        let mut blocks = fixture("quantised/gguf_q8_0");
        assert_eq!((rounded(&blocks, 0), rounded(&blocks, 32)), (0, 0));
        let float_head = fixture("quantised/gguf_q4_0");
        assert_eq!(rounded(&float_head, 32), 1);
        let mut matrices = blocks.weights.iter_mut().filter_map(|weight| weight.quantisation.as_mut());
        matrices.next().unwrap().granularity = Granularity::blocks(16);
        assert_eq!((rounded(&blocks, 0), rounded(&blocks, 32)), (0, 1));
        let floats = fixture("qwen3");
        let matrices = floats.matrices().into_iter().filter(|is_matrix| *is_matrix).count();
        assert_eq!((rounded(&floats, 0), rounded(&floats, 32)), (matrices, matrices));
        assert!(changed_weights(&in_integers(&floats, &BTreeSet::new(), 32)).is_empty());
    }
}
