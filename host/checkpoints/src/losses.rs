//! Quality losses of formats: measured on the engine where possible, expected elsewhere.
//!
//! Reading order: `loss_table` (known losses), `loss_cache` (losses on disk), `order` (which to
//! measure first), `probe` (how to measure), `sensitivity_report` (measurements that a user
//! requests, not for a plan), `plan_loss` (the loss of a plan), `reference_answers` (reference for
//! comparing a running model).

mod loss_cache;
mod loss_table;
mod order;
mod plan_loss;
mod probe;
mod reference_answers;
mod sensitivity_report;

pub(super) use plan_loss::plan_loss;
pub use reference_answers::{StoredAnswers, unseen_text};
pub use sensitivity_report::{
    FormatShare, LossRow, SensitivityReport, measure_sensitivities, sensitivity_text,
};

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use shardwright_build::{LossGround, Losses, PlanOptions, TableFormats, TableLoss};
use shardwright_graph::{Graph, Ranges};
use shardwright_models::Checkpoint;
use shardwright_planning::request::{Sensitivity, ValueSensitivity};
use shardwright_quantisation::{Calibration, Change, Compensated, Moments, losses_identity};
use shardwright_vocabulary::{
    Error, ErrorKind, FormatTuple, Notice, Part, Provenance, Result, ValueFormat, Watch, WeightFormat,
    WeightRole,
};

use self::loss_cache::LossCache;
use self::loss_table::{Formats, LossTable};
use self::probe::Probe;
use super::moments::{self, engine};
use super::rounding::compensated;
use super::texts::{self, Budget};

/// Text for losses. It is run once for each loss.
const TEXT: Budget = Budget { tokens: 96, longest: 128 };

/// Losses of a value format below this are ignored, in millionths of a nat. It is a hundredth of
/// the strictest named goal. A smaller loss does not justify a KV cache of twice the size.
const LEAST_OF_VALUES: f64 = 50.0;

/// Progress after the stored model has run, in thousandths.
const STORED: u32 = 20;

/// Data needed to change a model's formats.
#[derive(Default)]
pub(super) struct Means<'m> {
    /// Moments by which weights are rounded. `None` if each value is rounded to nearest.
    pub moments: Option<Arc<Moments>>,
    /// Which weights are rounded by moments.
    pub compensated: Compensated,
    /// Calibration of static integers, if there are any.
    pub calibration: Option<&'m Calibration>,
}

/// Returns the expected quality loss of every layer and role in each of the weight formats of
/// `tuples`, of activations, states and attention, and of every gathered table. Returns no losses
/// for encoders, whose losses cannot be predicted.
pub(super) fn expected_losses(
    graph: &Graph,
    options: &PlanOptions,
    tuples: &[FormatTuple],
) -> Result<Losses> {
    if !graph.is_generative() {
        return Ok(Losses::default());
    }
    let formats = Formats::of(tuples, options.recorded.tables);
    Ok(requested(graph, &formats, &LossTable::expected(graph, &formats, compensated(options, graph))?))
}

/// Returns losses like [`expected_losses`], but measured where a measurement is cached, and
/// everywhere if `ground` requires measurements. Tables are always measured with the rest, so that
/// a measurement serves every later goal.
pub(super) fn losses(
    checkpoint: &Checkpoint,
    graph: &Graph,
    options: &PlanOptions,
    (tuples, ground): (&[FormatTuple], LossGround),
    means: &Means<'_>,
    notices: &mut Vec<Notice>,
    watch: &mut dyn Watch,
) -> Result<Losses> {
    let formats = Formats::of(tuples, options.recorded.tables);
    let rounds_tables = options.size_bytes.is_some() || options.recorded.tables != TableFormats::default();
    let rounds = !formats.weights.is_empty() || !formats.values.is_empty() || rounds_tables;
    let looks = ground != LossGround::Expected || LossCache::was_asked_for(checkpoint, options);
    if !rounds || !looks {
        return expected_losses(graph, options, tuples);
    }
    let mut known = LossTable::expected(graph, &formats, compensated(options, graph))?;
    let sequences = texts::conversations(checkpoint, graph, options, TEXT, watch)?;
    let identity = identity(checkpoint, options, &sequences, watch)?;
    if ground == LossGround::Measured {
        let kept = LossCache::make(checkpoint, options, identity, notices);
        if let Some(kept) = &kept {
            kept.read(&mut known, &formats.weights, notices);
        }
        let site = Site { graph, options, sequences: &sequences, kept: kept.as_ref() };
        let started = Instant::now();
        let quality = options.quality_micronats.unwrap_or(u64::MAX);
        let count = measure(&site, &mut known, quality, None, means, notices, watch)?;
        if count > 0 {
            notices.push(Notice::note(format!(
                "losses of formats were measured on {} tokens in {:.1} s",
                sequences.iter().map(Vec::len).sum::<usize>(),
                started.elapsed().as_secs_f64()
            )));
        }
        return Ok(requested(graph, &formats, &known));
    }
    if let Some(kept) = LossCache::find(checkpoint, options, identity) {
        kept.read(&mut known, &formats.weights, notices);
    }
    if known.measured() == 0 && ground == LossGround::Kept {
        notices.push(Notice::note(
            "losses of formats are estimated from the errors of the weights; a plan with `--quality` \
             measures and caches them",
        ));
    }
    // Losses of an encoder cannot be predicted. If only some were measured, their sum would look
    // like the whole loss.
    match graph.is_generative() || known.missing().next().is_none() {
        true => Ok(requested(graph, &formats, &known)),
        false => Ok(Losses::default()),
    }
}

/// Returns a hash of everything that determines the losses of a checkpoint with these options.
fn identity(
    checkpoint: &Checkpoint,
    options: &PlanOptions,
    sequences: &[Vec<u32>],
    watch: &dyn Watch,
) -> Result<[u8; 32]> {
    let hash = checkpoint.content_hash();
    let moments = match compensated(options, checkpoint.graph()) {
        None => None,
        Some(which) => {
            let text = moments::text(checkpoint, checkpoint.graph(), options, watch)?;
            Some(which.identity(Moments::identity_of(hash, &text)))
        }
    };
    Ok(losses_identity(hash, sequences, moments))
}

/// What to measure, and where to cache it.
struct Site<'s> {
    graph: &'s Graph,
    options: &'s PlanOptions,
    sequences: &'s [Vec<u32>],
    kept: Option<&'s LossCache>,
}

/// Measures missing losses, the most valuable first, and caches each of them immediately. Stops
/// between two losses at `until`. Returns the number of measured losses.
fn measure(
    site: &Site<'_>,
    known: &mut LossTable,
    quality: u64,
    until: Option<Instant>,
    means: &Means<'_>,
    notices: &mut Vec<Notice>,
    watch: &mut dyn Watch,
) -> Result<usize> {
    let &Site { graph, options, sequences, mut kept, .. } = site;
    let order = order::by_value(graph, known, quality);
    if order.is_empty() {
        return Ok(0);
    }
    let predicted = sequences.iter().any(|ids| ids.len() > 1);
    if graph.is_generative() && !predicted {
        return Err(Error::invalid("no text has two tokens, so there is no likelihood to compare")
            .with_help("pass a text of at least two tokens"));
    }
    let ranges = ranges_of(&order, means.calibration)?;
    let engine = engine(options, "sensitivities", "losses are measured on the CPU shim")?;
    let mut all = Part::new(watch, 0..1000);
    let mut stored = all.then(STORED).named("running the model as stored");
    let mut probe = Probe::new(
        graph,
        &engine,
        sequences,
        (means.moments.clone(), means.compensated),
        &ranges,
        &mut stored,
    )?;
    drop(stored);
    let total = order.len();
    for (done, change) in order.into_iter().enumerate() {
        if until.is_some_and(|until| Instant::now() >= until) {
            return Ok(done);
        }
        let end = u64::from(STORED) + (u64::from(1000 - STORED) * (done as u64 + 1)) / total as u64;
        let name = format!("measuring losses, {} of {total}", done + 1);
        let loss = probe.loss(change, &mut all.then(end as u32).named(name)).map_err(|error| {
            let help = match error.kind() {
                ErrorKind::Cancelled => "run the same command again to resume",
                _ => return error,
            };
            Error::new(ErrorKind::Cancelled, "measuring losses was interrupted").with_help(help)
        })?;
        if kept.is_some_and(|kept| !kept.keep(&loss, notices)) {
            kept = None;
        }
        known.measure(&loss);
    }
    Ok(total)
}

/// Returns the calibrated ranges for each of the value formats that need them.
fn ranges_of(changes: &[Change], calibration: Option<&Calibration>) -> Result<BTreeMap<ValueFormat, Ranges>> {
    let mut found = BTreeMap::new();
    for change in changes.iter().filter(|change| change.needs_ranges()) {
        let (Change::Values { format, .. }, Some(calibration)) = (change, calibration) else { continue };
        if !found.contains_key(format) {
            let ranges = calibration.ranges_for([&alone(*format)])?;
            found.insert(*format, ranges);
        }
    }
    Ok(found)
}

/// Returns the tuple that has one value format, and floats for the rest.
fn alone(format: ValueFormat) -> FormatTuple {
    match format {
        ValueFormat::Activations(activations) => FormatTuple { activations, ..FormatTuple::F32 },
        ValueFormat::States(states) => FormatTuple { states, ..FormatTuple::F32 },
        ValueFormat::Attention(attention) => FormatTuple { attention, ..FormatTuple::F32 },
    }
}

/// Converts losses to the form of a request. A component without matrices gets rows with loss 0,
/// because a planner cannot distinguish a missing row from an unknown loss.
fn requested(graph: &Graph, formats: &Formats, known: &LossTable) -> Losses {
    let index = |kind| graph.components.iter().position(|component| component.kind == kind);
    let mut losses = Losses::default();
    let mut of_values: BTreeMap<ValueFormat, (f64, Vec<ValueSensitivity>)> = BTreeMap::new();
    for (change, loss, provenance) in known.losses() {
        let micronats = loss.ceil() as u32;
        match change {
            Change::Weights { component, layer, role, format } => {
                losses.layers.extend(index(component).map(|component| Sensitivity {
                    component: component as u32,
                    layer,
                    role,
                    format,
                    micronats,
                    provenance,
                }));
            }
            Change::Values { component, layer, format } => {
                let (total, rows) = of_values.entry(format).or_default();
                *total += loss;
                rows.extend(index(component).map(|component| ValueSensitivity {
                    component: component as u32,
                    layer,
                    format,
                    micronats,
                    provenance,
                }));
            }
            Change::Table { table, format } => {
                losses.tables.push(TableLoss { table, format, micronats, provenance });
            }
        }
    }
    for (total, mut rows) in of_values.into_values() {
        // The rows stay, so that the loss counts as known.
        if total < LEAST_OF_VALUES {
            rows.iter_mut().for_each(|row| row.micronats = 0);
        }
        losses.values.extend(rows);
    }
    let provenance = match known.missing().next() {
        Some(_) => Provenance::Modelled,
        None => Provenance::Measured,
    };
    for (component, of) in graph.components.iter().enumerate() {
        let component = component as u32;
        for layer in 0..of.layers.max(1) {
            let is_known = losses.layers.iter().any(|row| (row.component, row.layer) == (component, layer));
            let none = |&format: &WeightFormat| Sensitivity {
                component,
                layer,
                role: WeightRole::Other,
                format,
                micronats: 0,
                provenance,
            };
            if !is_known {
                losses.layers.extend(formats.weights.iter().map(none));
            }
        }
    }
    losses
}
