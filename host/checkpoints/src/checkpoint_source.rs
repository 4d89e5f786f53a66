//! Makes the inputs of compiling a plan: constants quantised to the formats it names, each once,
//! and calibrated ranges for integer activations and states.

use std::sync::Arc;

use shardwright_build::{
    AcceptedSteps, Download, DownloadBasis, LossGround, Losses, Making, MeasuredLoss, ModelFormats,
    ModelName, ModelSource, PlanMeasuring, PlanOptions, PlanSource, StatedDraft, TableFormats,
    WeightRounding, needs_ranges, stored_formats,
};
use shardwright_graph::{Asset, ConstantFormat, Graph, Ranges, Weight};
use shardwright_models::Checkpoint;
use shardwright_planning::check::CheckedPlan;
use shardwright_quantisation::{
    Calibration, Compensated, Moments, Note, Recipe, Store, TableFormats as Tables, quantise,
};
use shardwright_vocabulary::{
    ErrorKind, FormatTuple, Ignored, Notice, Part, Pass, Result, Watch, WeightFormat, units,
};

use super::losses::{self, Means};
use super::rounding::{compensated, weights_of};
use super::{calibration, drafts, moments, texts};

/// Largest number of bytes of weights that are quantised in memory. Larger models use a store in
/// the cache directory, whose files are mapped.
const MEMORY_BYTES: u64 = 256 << 20;

/// Largest number of weights of a model whose plan is measured by default. Gemma 3 270M (268
/// million weights) in 8 bits needed 19 s of processor time.
const MEASURED_WEIGHTS: u64 = 2_000_000_000;

/// Progress of a measured plan after its weights are made and before its tables are, in
/// thousandths.
const MADE_FOR_LOSS: u32 = 900;

/// Progress before losses are measured, after ranges are calibrated and moments are computed, in
/// thousandths.
const RANGES_FOR_LOSSES: u32 = 200;
const MOMENTS_FOR_LOSSES: u32 = 300;

/// Progress after ranges are calibrated and moments are computed, in thousandths.
const CALIBRATED: u32 = 400;
const MOMENTS_TAKEN: u32 = 700;

/// A checkpoint to plan for and compile from. Constants and ranges are made on demand and kept for
/// the next revision of the plan.
pub struct CheckpointSource<'a> {
    checkpoint: &'a Checkpoint,
    graph: Graph,
    options: &'a PlanOptions,
    /// Recipes carried out so far, with their results.
    made: Vec<(Recipe, Graph)>,
    calibration: Option<Calibration>,
    ranges: Option<Ranges>,
    moments: Option<Arc<Moments>>,
    notices: Vec<Notice>,
}

impl<'a> CheckpointSource<'a> {
    /// Returns the calibration, and makes it if necessary.
    fn calibrated(&mut self, watch: &mut dyn Watch) -> Result<&Calibration> {
        let CheckpointSource { checkpoint, graph, options, notices, calibration, .. } = self;
        match calibration {
            Some(found) => Ok(found),
            none => {
                let found = calibration::calibrate(checkpoint, graph, options, notices, watch)?;
                Ok(none.insert(found))
            }
        }
    }

    /// Returns the moments by which weights in these formats are rounded, and computes them if
    /// necessary. Returns `None` if each value is rounded to nearest.
    fn moments(&mut self, formats: &[WeightFormat], watch: &mut dyn Watch) -> Result<Option<Arc<Moments>>> {
        let compensated = compensated(self.options, &self.graph);
        let has_few_bits = formats.iter().any(|format| Compensated::FourBits.takes(*format));
        let is_usual = self.options.recorded.rounding == WeightRounding::Usual;
        if compensated.is_none() && has_few_bits && is_usual && self.graph.is_generative() {
            self.say_once(format!(
                "weights of 4 bits and fewer are rounded to nearest, because compensation is slow for {} \
                 million weights; `--rounding compensated` has a smaller loss",
                weights_of(&self.graph) / 1_000_000
            ));
        }
        if !formats.iter().any(|format| compensated.is_some_and(|which| which.takes(*format))) {
            return Ok(None);
        }
        let CheckpointSource { checkpoint, graph, options, notices, moments, .. } = self;
        if moments.is_none() {
            *moments = Some(Arc::new(moments::moments(checkpoint, graph, options, true, notices, watch)?));
        }
        Ok(moments.clone())
    }

    /// Adds a notice unless it exists already.
    fn say_once(&mut self, text: String) {
        if self.notices.iter().all(|notice| notice.text != text) {
            self.notices.push(Notice::note(text));
        }
    }

    /// Creates the source of a checkpoint, with its graph altered if `options` request it.
    pub fn new(checkpoint: &'a Checkpoint, options: &'a PlanOptions) -> Self {
        let mut graph = checkpoint.graph().clone();
        if let Some(alter) = options.alter {
            alter(&mut graph);
        }
        let merged = checkpoint.adapters().iter().map(|adapter| {
            let (name, tensors) = (&adapter.name, units::count(adapter.tensors as u64, "tensor"));
            Notice::note(format!("adapter `{name}` is merged into {tensors} with scale {}", adapter.scale))
        });
        CheckpointSource {
            checkpoint,
            graph,
            options,
            made: Vec::new(),
            calibration: None,
            ranges: None,
            moments: None,
            notices: merged.collect(),
        }
    }
}

impl PlanSource for CheckpointSource<'_> {
    fn name(&self) -> ModelName {
        let facts = self.checkpoint.facts();
        let towers = towers(|pass| self.checkpoint.graph_of(pass));
        ModelName { name: facts.name.clone(), family: facts.family.to_string(), towers }
    }

    fn graph(&self) -> &Graph {
        &self.graph
    }

    fn remakes_tables(&self) -> bool {
        true
    }

    fn accepted(&self, conversations: &str, watch: &dyn Watch) -> Result<Option<AcceptedSteps>> {
        texts::accepted(self.checkpoint.directory(), conversations, watch).map(Some)
    }

    fn draft_models(&self, soc: &str, context: u32) -> Result<(Vec<StatedDraft>, Vec<Notice>)> {
        drafts::stated(self.checkpoint, self.options, soc, context)
    }

    fn losses(
        &mut self,
        tuples: &[FormatTuple],
        ground: LossGround,
        watch: &mut dyn Watch,
    ) -> Result<Losses> {
        let mut watch = Part::new(watch, 0..1000);
        let is_measured = ground == LossGround::Measured;
        let calibrates = is_measured && tuples.iter().any(needs_ranges);
        if calibrates {
            self.calibrated(&mut watch.then(RANGES_FOR_LOSSES))?;
        }
        let rounded = if is_measured { rounded_to(&self.graph, tuples) } else { Vec::new() };
        let moments = self.moments(&rounded, &mut watch.then(MOMENTS_FOR_LOSSES))?;
        let CheckpointSource { checkpoint, graph, options, notices, calibration, .. } = self;
        let compensated = compensated(options, graph).unwrap_or_default();
        let means = Means { moments, compensated, calibration: calibration.as_ref() };
        let mut rest = watch.most_of_the_rest();
        let mut losses =
            losses::losses(checkpoint, graph, options, (tuples, ground), &means, notices, &mut rest)?;
        if let Some(calibration) = calibration.as_ref().filter(|_| calibrates) {
            losses.ranges = calibration.ranges_for(tuples)?;
        }
        Ok(losses)
    }

    fn download(&self) -> Option<Download> {
        let files = self.checkpoint.facts().weight_files.iter();
        let bytes = files.map(|file| file.bytes).fold(0, u64::saturating_add);
        Some(Download { bytes, rests_on: DownloadBasis::Headers })
    }

    fn making(&self) -> Making {
        making(&self.graph, self.options)
    }

    fn measured(
        &mut self,
        counted: &ModelFormats,
        plan: &CheckedPlan,
        watch: &mut dyn Watch,
    ) -> Result<Option<MeasuredLoss>> {
        let options = self.options;
        let weights = weights_of(&self.graph);
        if options.measuring == PlanMeasuring::Never || plan.loss().lossy == 0 {
            return Ok(None);
        }
        if options.measuring == PlanMeasuring::Usual && weights > MEASURED_WEIGHTS {
            self.notices.push(Notice::note(format!(
                "the plan's loss was not measured, because that takes minutes for {} million weights; \
                 `--measure` measures it",
                weights / 1_000_000
            )));
            return Ok(None);
        }
        let (checkpoint, graph) = (self.checkpoint, self.graph.clone());
        let mut notices = Vec::new();
        let make = |watch: &mut dyn Watch| {
            let mut watch = Part::new(watch, 0..1000);
            let made = self.made(counted, plan, &mut watch.then(MADE_FOR_LOSS))?;
            let tables = TableFormats::planned(&self.graph, plan);
            let assets = self.tables(tables, &mut watch.most_of_the_rest())?;
            Ok((made, assets))
        };
        let site = (checkpoint, &graph, options);
        let measured = losses::plan_loss(site, (counted, plan), &mut notices, make, watch);
        self.notices.extend(notices);
        match measured {
            Ok(measured) => Ok(Some(measured)),
            Err(error)
                if options.measuring == PlanMeasuring::Usual && error.kind() != ErrorKind::Cancelled =>
            {
                let help = error.help().map_or_else(String::new, |help| format!("; {help}"));
                self.notices.push(Notice::note(format!("the plan's loss was not measured: {error}{help}")));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn ignored(&self) -> &[Ignored] {
        self.checkpoint.ignored()
    }

    fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }
}

impl ModelSource for CheckpointSource<'_> {
    fn made(
        &mut self,
        counted: &ModelFormats,
        plan: &CheckedPlan,
        watch: &mut dyn Watch,
    ) -> Result<ModelFormats> {
        let mut watch = Part::new(watch, 0..1000);
        let used: Vec<FormatTuple> =
            plan.shards().iter().flat_map(|shard| shard.formats.tuples()).cloned().collect();
        if ModelFormats::needs_ranges(plan) {
            let calibration = self.calibrated(&mut watch.then(CALIBRATED))?;
            self.ranges = Some(calibration.ranges_for(&used)?);
        }
        let rounded = rounded_to(&self.graph, &used);
        let moments = self.moments(&rounded, &mut watch.then(MOMENTS_TAKEN))?;
        // Reported only once, whatever plans follow.
        let is_asked = self.options.recorded.rounding == WeightRounding::Compensated;
        if is_asked && rounded.is_empty() && self.made.is_empty() {
            self.notices.push(Notice::note(
                "the plan keeps all weights as stored, so `--rounding compensated` has no effect",
            ));
        }
        let ranges = self.ranges.clone();
        let CheckpointSource { graph, options, made, notices, .. } = self;
        let compensated = compensated(options, graph).unwrap_or_default();
        let make = |from: &Graph, weights| {
            let recipe = Recipe { weights, tables: Tables::default(), moments: moments.clone(), compensated };
            make(made, notices, options, from, recipe, &mut watch.most_of_the_rest())
        };
        counted.made(graph, plan, ranges, make)
    }

    fn tables(&mut self, formats: TableFormats, watch: &mut dyn Watch) -> Result<Vec<Asset>> {
        let remade = |index: usize| {
            let stored = self.graph.assets.get(index)?.table.format();
            formats.of(index).filter(|format| stored != Some(*format))
        };
        let tables = Tables { embedding: remade(0), per_layer: remade(1) };
        if tables == Tables::default() {
            return Ok(self.graph.assets.clone());
        }
        let weights = vec![ConstantFormat::Stored; self.graph.weights.len()];
        let recipe = Recipe { weights, tables, ..Recipe::default() };
        let CheckpointSource { graph, options, made, notices, .. } = self;
        Ok(make(made, notices, options, graph, recipe, watch)?.assets)
    }

    fn ranges(&self) -> Option<&Ranges> {
        self.ranges.as_ref()
    }
}

/// Returns where constants in other formats are made: for large models, in a store of files.
pub(super) fn making(graph: &Graph, options: &PlanOptions) -> Making {
    let tables = graph.assets.iter().map(|asset| &asset.table);
    let stored = graph.weights.iter().chain(tables).map(Weight::bytes).fold(0, u64::saturating_add);
    match options.cache.is_some() && stored > MEMORY_BYTES {
        true => Making::InFiles,
        false => Making::InMemory,
    }
}

/// Returns the formats of integers that weights are converted to in these tuples.
fn rounded_to(graph: &Graph, tuples: &[FormatTuple]) -> Vec<WeightFormat> {
    let stored = stored_formats(graph);
    let converted = tuples.iter().filter(|tuple| **tuple != stored);
    let targets = converted.flat_map(|tuple| graph.constant_formats(tuple));
    let mut formats: Vec<WeightFormat> = targets
        .filter_map(|target| match target {
            ConstantFormat::Matrix(format) => Some(format).filter(|format| format.is_quantised()),
            ConstantFormat::Stored | ConstantFormat::Activation => None,
        })
        .collect();
    formats.sort();
    formats.dedup();
    formats
}

/// Returns the passes of the towers that a checkpoint was opened with. `graph` returns the graph of
/// a pass.
pub(super) fn towers<'g>(graph: impl Fn(Pass) -> Option<&'g Graph>) -> Vec<Pass> {
    let towers = Pass::ALL.iter().copied().filter(|pass| *pass != Pass::Step);
    towers.filter(|pass| graph(*pass).is_some()).collect()
}

/// Carries out a recipe unless it was carried out before, and adds to the notices.
fn make(
    finished: &mut Vec<(Recipe, Graph)>,
    notices: &mut Vec<Notice>,
    options: &PlanOptions,
    graph: &Graph,
    recipe: Recipe,
    watch: &mut dyn Watch,
) -> Result<Graph> {
    if let Some((_, made)) = finished.iter().find(|(known, _)| *known == recipe) {
        return Ok(made.clone());
    }
    let store = options.cache.as_ref().map(|cache| cache.join("weights"));
    let mut notes = Vec::new();
    let made = match store.filter(|_| making(graph, options) == Making::InFiles) {
        Some(directory) => Store::open(directory)?.graph(graph, &recipe, watch, &mut notes),
        None => quantise(graph, &recipe, watch, &mut notes),
    };
    notices.extend(notes.into_iter().filter_map(notice_of));
    let made = made?;
    finished.push((recipe, made.clone()));
    Ok(made)
}

/// Returns the notice of a note that concerns the user of a plan.
fn notice_of(note: Note) -> Option<Notice> {
    let text = match note {
        Note::Remade { weight, reason, .. } => format!("{reason}; `{weight}` was quantised again"),
        Note::Damped { weight, percent } => format!(
            "the input moments of `{weight}` are not positive definite, so they are damped by {percent} % of \
             the mean square of a column"
        ),
        Note::NotSeen { weight } => {
            format!("the calibration text does not reach `{weight}`, so its values are rounded to nearest")
        }
        Note::RowsAlone { weight } => format!(
            "no finite derivatives by the outputs of `{weight}` are known, so its rows are rounded separately"
        ),
        Note::Disbelieved { reason } => format!(
            "quantised weights in the cache are not trusted and were made again: {reason}; run `chmod go-w` \
             on the folder if it is yours"
        ),
        _ => return None,
    };
    Some(Notice::note(text))
}
