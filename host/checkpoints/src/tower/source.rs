//! The tower of a checkpoint as a source of a model to plan and compile.

use std::time::Instant;

use shardwright_build::{
    AcceptedSteps, LossGround, Losses, MeasuredLoss, ModelFormats, ModelName, ModelSource, PlanOptions,
    PlanSource, StatedDraft, TableFormats,
};
use shardwright_graph::{Asset, Graph, Pass, Ranges};
use shardwright_models::{Checkpoint, Outline};
use shardwright_planning::check::CheckedPlan;
use shardwright_quantisation::{Calibration, Calibrator, Recipe, content_hash, quantise};
use shardwright_vocabulary::{Error, ErrorKind, FormatTuple, Ignored, Notice, Part, Result, Watch};

use super::samples::{SampleSet, tower_samples};
use super::scope::TowerScope;
use crate::calibration::MeasurementCache;

/// The model of a tower: a pass of a checkpoint in addition to the steps of its text. Weights are
/// rounded to nearest. Ranges of integers come from generated pictures and sounds.
pub struct TowerSource<'a> {
    graph: &'a Graph,
    name: ModelName,
    ignored: &'a [Ignored],
    scope: &'a TowerScope,
    options: &'a PlanOptions,
    calibration: Option<Calibration>,
    ranges: Option<Ranges>,
    notices: Vec<Notice>,
}

/// Progress after ranges are calibrated, in thousandths.
const CALIBRATED: u32 = 700;

impl<'a> TowerSource<'a> {
    /// Creates the source of a tower. The checkpoint must have been opened for its pass.
    ///
    /// # Errors
    ///
    /// Fails if it was opened without the pass.
    pub fn new(checkpoint: &'a Checkpoint, scope: &'a TowerScope, options: &'a PlanOptions) -> Result<Self> {
        let family = checkpoint.facts().family.to_string();
        let tower = (checkpoint.graph_of(scope.pass), checkpoint.ignored_of(scope.pass));
        Self::of(tower, family, scope, options)
    }

    /// Creates the source of a tower of an outline, to plan for.
    ///
    /// # Errors
    ///
    /// Fails like [`TowerSource::new`].
    pub fn of_outline(outline: &'a Outline, scope: &'a TowerScope, options: &'a PlanOptions) -> Result<Self> {
        let tower = (outline.graph_of(scope.pass), outline.ignored_of(scope.pass));
        Self::of(tower, outline.family().to_string(), scope, options)
    }

    fn of(
        (graph, ignored): (Option<&'a Graph>, &'a [Ignored]),
        family: String,
        scope: &'a TowerScope,
        options: &'a PlanOptions,
    ) -> Result<Self> {
        let graph = graph.ok_or_else(|| {
            let pass: Pass = scope.pass;
            Error::new(
                ErrorKind::Internal,
                format!("the checkpoint was opened without its tower of a {pass}"),
            )
        })?;
        let name = ModelName { name: graph.name.clone(), family, towers: Vec::new() };
        Ok(TowerSource {
            graph,
            name,
            ignored,
            scope,
            options,
            calibration: None,
            ranges: None,
            notices: Vec::new(),
        })
    }

    /// Returns the calibration, and makes it if necessary.
    fn calibrated(&mut self, watch: &mut dyn Watch) -> Result<&Calibration> {
        let TowerSource { graph, scope, options, notices, calibration, .. } = self;
        match calibration {
            Some(found) => Ok(found),
            none => Ok(none.insert(calibrate(graph, scope, options, notices, watch)?)),
        }
    }
}

/// Returns a hash over every value of a tower's weights and tables, by which bundles identify the
/// tower.
///
/// # Errors
///
/// Fails if a weight cannot be read.
pub fn tower_weights(graph: &Graph) -> Result<[u8; 32]> {
    content_hash(graph)
}

/// Returns the value ranges of the float tower's tensors, from the cache if possible.
fn calibrate(
    graph: &Graph,
    scope: &TowerScope,
    options: &PlanOptions,
    notices: &mut Vec<Notice>,
    watch: &mut dyn Watch,
) -> Result<Calibration> {
    let started = Instant::now();
    let rows = options.recorded.context.unwrap_or(u32::MAX);
    let samples = tower_samples(scope.pass, &scope.processor, rows, SampleSet::Calibration)?;
    let hash = tower_weights(graph)?;
    let origins: Vec<u8> = samples.iter().flat_map(|(_, sample)| sample.origin).collect();
    let kept = MeasurementCache::new(options, "calibrations", hash, &origins);
    if let Some(calibration) = kept.read(|path| Calibration::read(path, hash).ok()) {
        return Ok(calibration);
    }
    let mut calibrator = Calibrator::new(graph, hash)?;
    for (index, (name, sample)) in samples.iter().enumerate() {
        let done = index * 1000 / samples.len();
        watch.progress(done as u32, &format!("calibrating the tower of a {}: {name}", scope.pass));
        calibrator.add_features(sample, &|| watch.cancelled())?;
    }
    let calibration = calibrator.finish()?;
    notices.push(Notice::note(format!(
        "ranges of the tower of a {} were calibrated on {} ({} rows) in {:.1} s",
        scope.pass,
        match scope.pass {
            Pass::Picture => format!("{} generated pictures", samples.len()),
            _ => format!("{} generated sounds", samples.len()),
        },
        calibration.tokens(),
        started.elapsed().as_secs_f64()
    )));
    kept.write(notices, |path| calibration.write(path).map_err(|error| error.to_string()));
    Ok(calibration)
}

impl PlanSource for TowerSource<'_> {
    fn name(&self) -> ModelName {
        self.name.clone()
    }

    fn graph(&self) -> &Graph {
        self.graph
    }

    fn accepted(&self, _: &str, _: &dyn Watch) -> Result<Option<AcceptedSteps>> {
        Ok(None)
    }

    fn draft_models(&self, _: &str, _: u32) -> Result<(Vec<StatedDraft>, Vec<Notice>)> {
        Ok((Vec::new(), Vec::new()))
    }

    fn losses(&mut self, _: &[FormatTuple], _: LossGround, _: &mut dyn Watch) -> Result<Losses> {
        Ok(Losses::default())
    }

    fn measured(
        &mut self,
        _: &ModelFormats,
        _: &CheckedPlan,
        _: &mut dyn Watch,
    ) -> Result<Option<MeasuredLoss>> {
        Ok(None)
    }

    fn ignored(&self) -> &[Ignored] {
        self.ignored
    }

    fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }
}

impl ModelSource for TowerSource<'_> {
    fn made(
        &mut self,
        counted: &ModelFormats,
        plan: &CheckedPlan,
        watch: &mut dyn Watch,
    ) -> Result<ModelFormats> {
        let mut watch = Part::new(watch, 0..1000);
        if ModelFormats::needs_ranges(plan) {
            let used: Vec<FormatTuple> =
                plan.shards().iter().flat_map(|shard| shard.formats.tuples()).cloned().collect();
            let calibration = self.calibrated(&mut watch.then(CALIBRATED))?;
            self.ranges = Some(calibration.ranges_for(&used)?);
        }
        let make = |graph: &Graph, weights| {
            quantise(graph, &Recipe { weights, ..Recipe::default() }, &mut (), &mut Vec::new())
        };
        counted.made(self.graph, plan, self.ranges.clone(), make)
    }

    fn tables(&mut self, _: TableFormats, _: &mut dyn Watch) -> Result<Vec<Asset>> {
        Ok(self.graph.assets.clone())
    }

    fn ranges(&self) -> Option<&Ranges> {
        self.ranges.as_ref()
    }
}
