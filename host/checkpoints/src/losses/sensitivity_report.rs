//! Measures losses when a user requests it and not for one plan: as many as time allows, cached for
//! every later plan.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use shardwright_build::{PlanOptions, USUAL_QUALITY, needs_ranges, offered_formats, skipped_profiles};
use shardwright_graph::Graph;
use shardwright_models::Checkpoint;
use shardwright_planning::profile::{GENERIC, ProfileRegistry};
use shardwright_quantisation::{Change, Compensated, ExpectedLosses, Loss, Moments, moment_priors};
use shardwright_vocabulary::{
    Error, ErrorKind, FormatTuple, Notice, Part, Pass, Provenance, Result, Watch, WeightFormat,
};

use super::loss_cache::LossCache;
use super::loss_table::{Formats, LossTable};
use super::{Means, Site, TEXT, identity, measure};
use crate::calibration::calibrate;
use crate::rounding::compensated;
use crate::{moments, open_adapted, texts};

/// Progress after ranges are calibrated, and after moments are computed, in thousandths.
const CALIBRATED: u32 = 50;
const MOMENTS_TAKEN: u32 = 150;

/// The losses of a checkpoint by format and place. The report is equal for equal checkpoint, text
/// and measured losses, however often measuring was interrupted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SensitivityReport {
    /// Name of the model.
    pub model: String,
    pub family: String,
    /// `nearest` or `compensated`.
    pub rounding: String,
    /// The text: its file, or the names of the texts that come with the program.
    pub text: String,
    /// Number of tokens of the text that were run.
    pub tokens: u64,
    /// Number of measured losses.
    pub measured: u64,
    /// Number of all losses.
    pub of: u64,
    /// The loss of a plan with one format everywhere, and the measured part of it.
    pub formats: Vec<FormatShare>,
    /// The losses by place and format.
    pub losses: Vec<LossRow>,
}

/// The loss of all weights in one format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FormatShare {
    pub format: WeightFormat,
    /// KL divergence in millionths of a nat per token, added up over all layers and roles, or
    /// `None` if a part is unknown.
    pub micronats: Option<f64>,
    /// The measured part of `micronats`.
    pub measured_micronats: f64,
}

/// The loss of one change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossRow {
    /// Name of the component, or `None` for a gathered table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub component: Option<String>,
    /// The layer, or `None` for a component without layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<u32>,
    /// The changed values: a role of weights, `activations`, `states`, or the name of a gathered
    /// table.
    pub what: String,
    pub format: String,
    /// KL divergence in millionths of a nat per token, or `None` if it is unknown. At least 1e16 if
    /// the predictions are not finite numbers.
    pub micronats: Option<f64>,
    pub provenance: Provenance,
}

impl LossRow {
    /// Checks whether predictions with this change are finite numbers, as far as it is known.
    pub fn is_finite(&self) -> bool {
        self.micronats.is_none_or(|micronats| micronats < Loss::NOT_FINITE)
    }
}

/// Returns the text that losses are measured on, as token ids.
///
/// # Errors
/// Fails if a text, template or tokenizer cannot be read.
pub fn sensitivity_text(checkpoint: &Checkpoint, options: &PlanOptions) -> Result<Vec<Vec<u32>>> {
    texts::conversations(checkpoint, checkpoint.graph(), options, TEXT, &())
}

/// Measures the losses of the formats that `options` offer, the most valuable places first, for at
/// most `time`. `None` measures all.
///
/// Every loss is cached. A later call continues from there, and plans with the same text and
/// rounding use these losses. The expected losses of unmeasured places come from the second moments
/// of the inputs of matrices, which are computed first.
///
/// The quality goal of `options`, or else the usual one, determines where the choice between
/// formats is open.
///
/// # Errors
/// Fails if the path is not a checkpoint or has no weights, if all formats are lossless, with
/// errors of the CPU shim, and with [`ErrorKind::Cancelled`]. Under `strict`, also if a field or
/// file of the checkpoint has no effect, or a profile is skipped.
pub fn measure_sensitivities(
    path: &Path,
    options: &PlanOptions,
    time: Option<Duration>,
    watch: &mut dyn Watch,
) -> Result<(SensitivityReport, Vec<Notice>)> {
    let until = time.and_then(|time| Instant::now().checked_add(time));
    let checkpoint = open_adapted(path, &[Pass::Step], options)?;
    let graph = checkpoint.graph();
    let mut notices = ignored(&checkpoint, options.strict)?;
    let tuples = offered(graph, options, &mut notices)?;
    let formats = Formats::of(&tuples, options.recorded.tables);
    if formats.weights.is_empty() && formats.values.is_empty() {
        return Err(Error::new(ErrorKind::Argument, "all of these formats are lossless")
            .with_help("name other formats with `--formats`, or a chip with `--soc`"));
    }
    let sequences = texts::conversations(&checkpoint, graph, options, TEXT, watch)?;
    let identity = identity(&checkpoint, options, &sequences, watch)?;
    let kept = LossCache::make(&checkpoint, options, identity, &mut notices);
    let compensated = compensated(options, graph);
    let mut known = LossTable::expected(graph, &formats, compensated)?;

    let mut all = Part::new(watch, 0..1000);
    let calibration = match tuples.iter().any(needs_ranges) {
        true => Some(calibrate(&checkpoint, graph, options, &mut notices, &mut all.then(CALIBRATED))?),
        false => None,
    };
    let has_expected = kept.as_ref().is_some_and(|kept| kept.has_expected(&formats.weights));
    let is_compensated =
        formats.weights.iter().any(|format| compensated.is_some_and(|which| which.takes(*format)));
    let needs_moments = graph.is_generative() && !formats.weights.is_empty();
    let taken = match needs_moments && (is_compensated || !has_expected) {
        true => {
            let mut watch = all.then(MOMENTS_TAKEN);
            let gradients = is_compensated;
            let taken = moments::moments(&checkpoint, graph, options, gradients, &mut notices, &mut watch)?;
            Some(Arc::new(taken))
        }
        false => None,
    };
    if let Some(moments) = taken.as_ref().filter(|_| !has_expected) {
        for expected in expected_by(graph, &formats, moments, compensated)? {
            known.expect(expected.losses.iter().map(|row| (row.change(), row.micronats)));
            if let Some(kept) = &kept {
                kept.keep_expected(&expected, &mut notices);
            }
        }
    }
    if let Some(kept) = &kept {
        kept.ask(&mut notices);
        kept.read(&mut known, &formats.weights, &mut notices);
    }
    let before = known.measured();
    let started = Instant::now();
    let site = Site { graph, options, sequences: &sequences, kept: kept.as_ref() };
    let quality = options.quality_micronats.unwrap_or(u64::from(USUAL_QUALITY) * 1000);
    let means = Means {
        moments: taken.filter(|_| is_compensated),
        compensated: compensated.unwrap_or_default(),
        calibration: calibration.as_ref(),
    };
    let mut rest = all.most_of_the_rest();
    let now = measure(&site, &mut known, quality, until, &means, &mut notices, &mut rest)?;
    notices.push(Notice::note(format!(
        "{now} losses were measured in {:.1} s, {before} were measured before, {} remain",
        started.elapsed().as_secs_f64(),
        known.missing().count()
    )));
    if kept.is_none() {
        notices.push(Notice::note("losses are not stored, as there is no cache, so plans cannot use them"));
    }
    let facts = checkpoint.facts();
    let report = SensitivityReport {
        model: facts.name.clone(),
        family: facts.family.to_string(),
        rounding: match compensated {
            None => "nearest",
            Some(Compensated::All) => "compensated",
            Some(Compensated::FourBits) => "compensated at 4 bits and fewer",
        }
        .to_owned(),
        text: texts::named(options),
        tokens: sequences.iter().map(|ids| ids.len() as u64).sum(),
        measured: known.measured() as u64,
        of: known.changes().count() as u64,
        formats: shares(&formats, &known),
        losses: rows(graph, &known),
    };
    Ok((report, notices))
}

/// Returns a notice for each field and file without effect. Under `strict`, the first is an error.
fn ignored(checkpoint: &Checkpoint, strict: bool) -> Result<Vec<Notice>> {
    match checkpoint.ignored().first().filter(|_| strict) {
        Some(field) => Err(Error::new(ErrorKind::Strict, field.to_string())),
        None => Ok(checkpoint.ignored().iter().map(|field| Notice::fallback(field.to_string())).collect()),
    }
}

/// Returns the formats that plans with these options choose from if losses decide.
fn offered(graph: &Graph, options: &PlanOptions, notices: &mut Vec<Notice>) -> Result<Vec<FormatTuple>> {
    let directories = options.profiles.iter();
    let profiles = directories.fold(ProfileRegistry::new(), |existing, path| existing.with_directory(path));
    let profiles = profiles.trusting(options.rules()?);
    let profile = profiles.find(options.soc.as_deref().unwrap_or(GENERIC))?.profile;
    notices.extend(skipped_profiles(&profiles, options.strict)?);
    let quality_micronats = options.quality_micronats.or(Some(u64::from(USUAL_QUALITY) * 1000));
    let options = PlanOptions { quality_micronats, ..options.clone() };
    Ok(offered_formats(graph, &profile, &options, false))
}

/// Returns the losses expected from moments, by format.
fn expected_by(
    graph: &Graph,
    formats: &Formats,
    moments: &Moments,
    compensated: Option<Compensated>,
) -> Result<Vec<ExpectedLosses>> {
    let all = moment_priors(graph, &formats.weights, moments, compensated)?;
    let of = |&format: &WeightFormat| {
        let losses = all.iter().filter(|row| row.format == format).copied().collect();
        ExpectedLosses { format, losses }
    };
    Ok(formats.weights.iter().map(of).collect())
}

fn shares(formats: &Formats, known: &LossTable) -> Vec<FormatShare> {
    let losses = known.losses();
    let share = |&format: &WeightFormat| {
        let is_of = |change: &Change| matches!(change, Change::Weights { format: of, .. } if *of == format);
        let own = || losses.iter().filter(|(change, ..)| is_of(change));
        let is_whole = own().count() == known.changes().filter(is_of).count();
        let measured = own().filter(|(.., ground)| *ground == Provenance::Measured);
        FormatShare {
            format,
            micronats: is_whole.then(|| own().map(|(_, loss, _)| loss).sum()),
            measured_micronats: measured.map(|(_, loss, _)| loss).sum(),
        }
    };
    formats.weights.iter().map(share).collect()
}

fn rows(graph: &Graph, known: &LossTable) -> Vec<LossRow> {
    let losses = known.losses();
    let row = |change: Change| {
        let found = losses.iter().find(|(of, ..)| *of == change);
        let (component, layer, what, format) = match change {
            Change::Weights { component, layer, role, format } => {
                (Some(component), layer, role.name().to_owned(), format.name())
            }
            Change::Values { component, layer, format } => {
                (Some(component), layer, format.values().to_owned(), format.name())
            }
            Change::Table { table, format } => {
                let name = graph.assets.get(table as usize).map_or("table", |asset| &asset.name);
                (None, 0, name.to_owned(), format.name())
            }
        };
        let has_layers = |kind| graph.components.iter().any(|own| own.kind == kind && own.layers > 0);
        LossRow {
            component: component.map(|component| component.to_string()),
            layer: component.filter(|kind| has_layers(*kind)).map(|_| layer),
            what,
            format: format.to_owned(),
            micronats: found.map(|(_, loss, _)| *loss),
            provenance: found.map_or(Provenance::Modelled, |(.., ground)| *ground),
        }
    };
    known.changes().map(row).collect()
}
