//! Measures the loss of a whole plan: runs the model as stored and the model as planned over the
//! same text.
//!
//! Sums of losses of single places, measured or expected, are a prediction. This is the actual
//! loss. Like them it is measured on the CPU shim, a layer at a time: values are encoded within
//! each layer and are f32 between two layers.

use std::collections::BTreeMap;

use shardwright_build::{MeasuredLoss, ModelFormats, PlanOptions, format_runs};
use shardwright_forward::{Engine, Looked, Pass};
use shardwright_graph::{Asset, Encodings, Graph, Segment};
use shardwright_models::Checkpoint;
use shardwright_planning::check::CheckedPlan;
use shardwright_quantisation::{PlanLoss, divergence, plan_loss_identity};
use shardwright_vocabulary::{Error, ErrorKind, Notice, Part, Result, Watch};

use crate::calibration::MeasurementCache;
use crate::moments::engine;
use crate::texts::{self, Budget};

/// Folder of plans' losses in the cache.
const FOLDER: &str = "plan-losses";

/// Text that a whole plan is run over, twice. It is longer than the text for losses by place, each
/// of which needs a run. Weights are never rounded by this text, so the measurement does not favour
/// the plan.
pub(super) const TEXT: Budget = Budget { tokens: 256, longest: 128 };

/// Progress after weights are made, in thousandths, and progress of the rest after the model as
/// stored has run.
const MADE: u32 = 400;
const STORED: u32 = 300;

/// The model as planned: constants and encodings of each part.
struct AsPlanned<'p> {
    formats: &'p ModelFormats,
    /// Index of the format tuple, by component and first layer.
    of: BTreeMap<Segment, usize>,
    assets: &'p [Asset],
}

impl<'p> AsPlanned<'p> {
    /// Creates the planned model from `formats` as made for `plan`, with its tables.
    pub fn new(formats: &'p ModelFormats, plan: &CheckedPlan, assets: &'p [Asset]) -> Self {
        let mut of = BTreeMap::new();
        for (segment, formats) in plan.shards().iter().flat_map(format_runs) {
            match segment.layers {
                (0, 0) => drop(of.insert(segment, formats)),
                (first, end) => of.extend(
                    (first..end).map(|layer| (Segment { layers: (layer, layer + 1), ..segment }, formats)),
                ),
            }
        }
        AsPlanned { formats, of, assets }
    }

    fn of(&self, part: &Segment) -> Result<(&'p Graph, Encodings<'p>)> {
        let formats =
            self.of.get(part).copied().ok_or_else(|| {
                Error::new(ErrorKind::Internal, format!("the plan has no formats for {part}"))
            })?;
        Ok((self.formats.graph(formats), self.formats.encodings(formats)))
    }
}

/// Returns the loss of a whole plan: from the cache if it was run before, or else measured after
/// `make` has made the model in its formats and with its tables. `counted` is the model in the
/// formats of the request.
///
/// # Errors
/// Fails like [`run_both`], and if a text, template or tokenizer cannot be read.
pub(crate) fn plan_loss(
    (checkpoint, graph, options): (&Checkpoint, &Graph, &PlanOptions),
    (counted, plan): (&ModelFormats, &CheckedPlan),
    notices: &mut Vec<Notice>,
    make: impl FnOnce(&mut dyn Watch) -> Result<(ModelFormats, Vec<Asset>)>,
    watch: &mut dyn Watch,
) -> Result<MeasuredLoss> {
    let sequences = texts::unseen(checkpoint, graph, TEXT)?;
    let identity = identity((checkpoint, options), &sequences, (counted, plan), watch)?;
    let kept = MeasurementCache::new(options, FOLDER, checkpoint.content_hash(), &identity);
    let mut all = Part::new(watch, 0..1000);
    let loss = match kept.read(|path| PlanLoss::read(path, identity).ok()) {
        Some(loss) => loss,
        None => {
            let engine = engine(options, FOLDER, "the loss of a plan is measured on the CPU shim")?;
            let (made, assets) = make(&mut all.then(MADE))?;
            let planned = AsPlanned::new(&made, plan, &assets);
            let loss = run_both(graph, &engine, &sequences, &planned, &mut all.then(1000))?;
            kept.write(notices, |path| loss.write(path, identity).map_err(|error| error.to_string()));
            loss
        }
    };
    Ok(reported(loss))
}

/// Converts a loss on the unseen text for reports.
pub(super) fn reported(loss: PlanLoss) -> MeasuredLoss {
    MeasuredLoss {
        micronats: loss.nanonats.div_ceil(1000),
        error_micronats: loss.error_nanonats.div_ceil(1000),
        tokens: loss.tokens,
        text: texts::UNSEEN_NAME.to_owned(),
    }
}

/// Returns the hash of everything that determines the loss of a plan.
fn identity(
    (checkpoint, options): (&Checkpoint, &PlanOptions),
    sequences: &[Vec<u32>],
    (counted, plan): (&ModelFormats, &CheckedPlan),
    watch: &dyn Watch,
) -> Result<[u8; 32]> {
    let runs = plan.shards().iter().flat_map(format_runs);
    let layers = runs.map(|(segment, formats)| format!("{segment} {}", counted.tuples()[formats]));
    let tables = plan.tables().iter().map(|table| format!("{} {}", table.name, table.chosen.format));
    let forms: Vec<String> = layers.chain(tables).collect();
    Ok(plan_loss_identity(super::identity(checkpoint, options, sequences, watch)?, &forms))
}

/// Runs the model as stored and as planned, and computes the KL divergence of their predictions.
///
/// Memory: the outputs of both (rows times vocabulary, f32), and one part's weights.
///
/// # Errors
/// Fails with errors of the shim, if values cannot be encoded, if predictions are not finite, and
/// with [`ErrorKind::Cancelled`].
fn run_both(
    graph: &Graph,
    engine: &Engine,
    sequences: &[Vec<u32>],
    planned: &AsPlanned<'_>,
    watch: &mut dyn Watch,
) -> Result<PlanLoss> {
    let mut all = Part::new(watch, 0..1000);
    let stored = run_as_stored(graph, engine, sequences, &mut all.then(STORED))?;
    let as_planned = |part: &Segment| planned.of(part).map(|(graph, encodings)| (graph, Some(encodings)));
    let mut rest = all.then(1000).named("running the model as planned");
    let ours = outputs(graph, engine, sequences, (&as_planned, planned.assets), &mut rest)?;
    let width = stored.width.max(1);
    let rows = stored.of.iter().zip(&ours.of).flat_map(|(stored, ours)| {
        let pairs = stored.chunks_exact(width).zip(ours.chunks_exact(width));
        pairs.map(|(stored, ours)| divergence(graph, stored, ours, width).0)
    });
    PlanLoss::of(rows).ok_or_else(|| {
        let what = "the model as planned computes values that are not finite numbers";
        Error::new(ErrorKind::Unsupported, what).with_help(
            "find the operation with `shardwright verify`, or choose wider formats with `--formats`",
        )
    })
}

/// Runs the model as stored.
///
/// # Errors
/// Fails with errors of the shim, and with [`ErrorKind::Cancelled`].
pub(super) fn run_as_stored(
    graph: &Graph,
    engine: &Engine,
    sequences: &[Vec<u32>],
    watch: &mut dyn Watch,
) -> Result<Outputs> {
    let mut watch = Part::new(watch, 0..1000).named("running the model as stored");
    let as_stored = |_: &Segment| Ok((graph, None));
    outputs(graph, engine, sequences, (&as_stored, &graph.assets), &mut watch)
}

/// The outputs of a model for all sequences, `[rows, width]` each.
#[derive(Default)]
pub(super) struct Outputs {
    pub(super) of: Vec<Vec<f32>>,
    pub(super) width: usize,
}

/// Returns the graph and encodings of a part of the model.
type Form<'f> = dyn Fn(&Segment) -> Result<(&'f Graph, Option<Encodings<'f>>)> + 'f;

fn outputs(
    graph: &Graph,
    engine: &Engine,
    sequences: &[Vec<u32>],
    (form, assets): (&Form<'_>, &[Asset]),
    watch: &mut dyn Watch,
) -> Result<Outputs> {
    let mut all = Part::new(watch, 0..1000);
    let mut outputs = Outputs { of: vec![Vec::new(); sequences.len()], width: 1 };
    let mut pass = Pass::new(graph, engine, sequences)?;
    let parts = pass.parts();
    for (index, part) in parts.iter().enumerate() {
        let end = (index + 1) * 1000 / parts.len();
        let mut watch = all.then(end as u32);
        let (graph, encodings) = form(part)?;
        let loaded = pass.load(part, graph, encodings.as_ref(), &|_, _| false, &mut watch)?;
        let Some(mut loaded) = loaded else { continue };
        let mut show = |seen: Looked<'_>| {
            outputs.width = seen.rows().next().map_or(1, <[f32]>::len).max(1);
            outputs.of[seen.sequence] = seen.values.to_vec();
        };
        pass.run_loaded(&mut loaded, assets, &mut show, &mut watch)?;
    }
    Ok(outputs)
}
