//! What a plan is compiled from: constants in the formats it names, each made once, and calibrated
//! ranges where integers need them.

use std::ops::ControlFlow;

use shardwright_build::graph::{Asset, ConstantFormat, Graph, Ranges, Weight, state_key};
use shardwright_build::models::Checkpoint;
use shardwright_build::planning::check::CheckedPlan;
use shardwright_build::planning::request::Request;
use shardwright_build::quantisation::{
    Calibration, IntegerBits, Note, Progress, RangeMethod, Recipe, Store, TableFormats as Tables, Watch,
    quantise,
};
use shardwright_build::shims::{Part, Watch as BuildWatch};
use shardwright_build::{BuildError, ModelFormats};
use shardwright_vocabulary::{FormatTuple, Notice, StateFormat};

use crate::{OpenOptions, Result, measuring};

/// Made weights that are kept in memory at most; more go to a store in the cache directory, from
/// which they are mapped.
const MEMORY_BYTES: u64 = 256 << 20;

/// How far the materials are when ranges are calibrated, of 1000.
const CALIBRATED: u32 = 600;

/// Makes constants and ranges on demand, and keeps them for the next plan of a revision.
pub(crate) struct Making<'a> {
    checkpoint: &'a Checkpoint,
    graph: &'a Graph,
    options: &'a OpenOptions,
    /// Recipes carried out so far.
    made: Vec<(Recipe, Graph)>,
    calibration: Option<Calibration>,
    ranges: Option<Ranges>,
    notices: Vec<Notice>,
}

impl<'a> Making<'a> {
    pub(crate) fn new(checkpoint: &'a Checkpoint, graph: &'a Graph, options: &'a OpenOptions) -> Self {
        Making {
            checkpoint,
            graph,
            options,
            made: Vec::new(),
            calibration: None,
            ranges: None,
            notices: Vec::new(),
        }
    }

    /// The model as the shards of `plan` need it.
    pub(crate) fn materials(
        &mut self,
        counted: &ModelFormats,
        request: &Request,
        plan: &CheckedPlan,
        watch: &mut dyn BuildWatch,
    ) -> Result<ModelFormats> {
        let mut watch = Part::new(watch, 0..1000);
        if counted.needs_ranges(plan) {
            if self.calibration.is_none() {
                let Making { checkpoint, graph, options, .. } = *self;
                let mut watch = watch.then(CALIBRATED);
                let found = measuring::calibrate(checkpoint, graph, options, &mut self.notices, &mut watch)?;
                self.calibration = Some(found);
            }
            let used =
                plan.plan().shards.iter().map(|shard| counted.tuples()[shard.formats as usize].clone());
            let used: Vec<FormatTuple> = used.collect();
            self.ranges = self.calibration.as_ref().map(|found| Self::ranges_of(found, &used)).transpose()?;
        }
        let (graph, ranges) = (self.graph, self.ranges.clone());
        let make = |from: &Graph, weights| {
            let recipe = Recipe { weights, tables: Tables::default(), ..Recipe::default() };
            self.make(from, recipe, &mut watch.most_of_the_rest())
        };
        Ok(counted.made(graph, request, plan, ranges, make)?)
    }

    /// The gathered tables in the formats asked for.
    pub(crate) fn tables(&mut self, watch: &mut dyn BuildWatch) -> Result<Vec<Asset>> {
        let tables =
            Tables { embedding: self.options.tables.embedding, per_layer: self.options.tables.per_layer };
        if tables == Tables::default() {
            return Ok(self.graph.assets.clone());
        }
        let weights = vec![ConstantFormat::Stored; self.graph.weights.len()];
        let recipe = Recipe { weights, tables, ..Recipe::default() };
        Ok(self.make(self.graph, recipe, watch)?.assets)
    }

    /// What calibration found, if anything needed it.
    pub(crate) fn ranges(&self) -> Option<&Ranges> {
        self.ranges.as_ref()
    }

    /// What must be said of it.
    pub(crate) fn notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    fn make(
        &mut self,
        graph: &Graph,
        recipe: Recipe,
        watch: &mut dyn BuildWatch,
    ) -> std::result::Result<Graph, BuildError> {
        if let Some((_, made)) = self.made.iter().find(|(held, _)| *held == recipe) {
            return Ok(made.clone());
        }
        let mut told = Told { watch, notices: &mut self.notices };
        let tables: Vec<&Weight> = graph.assets.iter().map(|asset| &asset.table).collect();
        let stored: u64 = graph.weights.iter().chain(tables).map(Weight::bytes).sum();
        let store = self.options.cache_directory_path().map(|cache| cache.join("weights"));
        let made = match store.filter(|_| stored > MEMORY_BYTES) {
            Some(directory) => Store::open(directory)?.graph(graph, &recipe, &mut told)?,
            None => quantise(graph, &recipe, &mut told)?,
        };
        self.made.push((recipe, made.clone()));
        Ok(made)
    }

    /// The ranges for the formats of a plan: ample ones for 16 bits, of least squared error for
    /// states of 8.
    fn ranges_of(calibration: &Calibration, formats: &[FormatTuple]) -> Result<Ranges> {
        let mut ranges =
            calibration.ranges(RangeMethod::Ample, IntegerBits::Sixteen).map_err(measuring::told)?;
        if formats.iter().any(|tuple| tuple.states == StateFormat::A8) {
            let narrow = calibration
                .ranges(RangeMethod::MeanSquaredError, IntegerBits::Eight)
                .map_err(measuring::told)?;
            let states = narrow.into_iter().filter(|(key, _)| key.starts_with(&state_key("")));
            ranges.extend(states);
        }
        Ok(ranges)
    }
}

/// Progress of making, told to whoever watches the build.
struct Told<'w> {
    watch: &'w mut dyn BuildWatch,
    notices: &'w mut Vec<Notice>,
}

impl Watch for Told<'_> {
    fn progress(&mut self, progress: &Progress<'_>) -> ControlFlow<()> {
        let per_mille = (progress.done.saturating_mul(1000) / progress.total.max(1)) as u32;
        self.watch.progress(per_mille, "quantising");
        if self.watch.cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn note(&mut self, note: Note) {
        match note {
            Note::Remade { weight, path, reason } => self
                .notices
                .push(Notice::note(format!("{}: {reason}; `{weight}` was made again", path.display()))),
            Note::Waiting { weight, path } => self.watch.note(&format!(
                "waiting for another program, which makes `{weight}` in {}",
                path.display()
            )),
            Note::Disbelieved { reason } => self.notices.push(Notice::note(format!(
                "made weights in the cache are not believed, so they were made again: {reason}; `chmod go-w` the folder if it is yours"
            ))),
            _ => {}
        }
    }
}
