//! Measurements that planning or compiling needs: ranges of activations, and the quality each
//! format costs. Cached by the hash of the checkpoint's content.

use shardwright_bundle::Digest;
use shardwright_graph::{Component, ComponentKind, Graph, Ranges};
use shardwright_models::Checkpoint;
use shardwright_planning::request::{Sensitivity, ValueSensitivity};
use shardwright_quantisation::{
    Calibration, CalibrationError, Calibrator, MeasuredFormats, Sensitivities, places, priors, table_priors,
    value_prior,
};
use shardwright_shims::Watch;
use shardwright_vocabulary::{
    Error, ErrorKind, FormatTuple, Notice, Provenance, ValueFormat, WeightFormat, WeightRole,
};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::{LossGround, Losses, PlanOptions, Result, TableFormats, TableLoss};
use shardwright_files::own;

use super::texts::{self, Budget, conversations};

/// Text for ranges, which settle long before its end.
const CALIBRATION: Budget = Budget { tokens: 2048, longest: 128 };

/// Text for sensitivities: it is run once for each layer, role and format.
const SENSITIVITY: Budget = Budget { tokens: 96, longest: 128 };

/// The value ranges of the float model's tensors over the calibration text, from the cache if it
/// has them.
pub(super) fn calibrate(
    checkpoint: &Checkpoint,
    graph: &Graph,
    options: &PlanOptions,
    notices: &mut Vec<Notice>,
    watch: &mut dyn Watch,
) -> Result<Calibration> {
    let started = Instant::now();
    let conversations = conversations(checkpoint, graph, options, CALIBRATION)?;
    let hash = checkpoint.content_hash();
    let kept = kept_as(options, "calibrations", hash, &conversations);
    if let Some(calibration) =
        kept.as_ref().filter(|path| is_own(path)).and_then(|path| Calibration::read(path, hash).ok())
    {
        return Ok(calibration);
    }
    let mut calibrator = Calibrator::new(graph, hash).map_err(calibration_error)?;
    for (index, ids) in conversations.iter().enumerate() {
        if watch.cancelled() {
            return Err(Error::new(ErrorKind::Cancelled, "calibration was cancelled"));
        }
        watch.progress((index * 1000 / conversations.len()) as u32, "calibrating");
        calibrator.add(ids).map_err(calibration_error)?;
    }
    let calibration = calibrator.finish().map_err(calibration_error)?;
    notices.push(Notice::note(format!(
        "ranges of integers were calibrated on {} tokens of {} in {:.1} s",
        calibration.tokens(),
        texts::named(options),
        started.elapsed().as_secs_f64()
    )));
    keep(kept, notices, |path| calibration.write(path).map_err(|error| error.to_string()));
    Ok(calibration)
}

/// The weight formats of `tuples` that lose quality, each once.
pub(super) fn quantised_formats(tuples: &[FormatTuple]) -> Vec<WeightFormat> {
    let mut formats: Vec<WeightFormat> = tuples
        .iter()
        .flat_map(|tuple| tuple.roles.iter().map(|role| role.format).chain([tuple.weights]))
        .filter(|format| format.is_quantised())
        .collect();
    formats.sort();
    formats.dedup();
    formats
}

/// What is expected of the quality loss of every layer and role in each of the weight formats of
/// `tuples`, and of every gathered table. Empty for encoders, of which nothing is known.
pub(super) fn expected_losses(graph: &Graph, asked: TableFormats, tuples: &[FormatTuple]) -> Result<Losses> {
    if !graph.is_generative() {
        return Ok(Losses::default());
    }
    let invalid = |error| Error::caused_by(ErrorKind::Invalid, error, None);
    let formats = quantised_formats(tuples);
    let totals: Vec<(ValueFormat, u64)> =
        value_formats(tuples).into_iter().map(|format| (format, value_prior(format))).collect();
    let values = value_rows(graph, &totals, Provenance::Modelled);
    let layers = match formats.is_empty() {
        true => Vec::new(),
        false => rows(graph, &priors(graph, &formats).map_err(invalid)?, &formats, Provenance::Modelled),
    };
    let tables = table_priors(graph, &asked.to_make());
    let tables = tables.iter().map(|row| table_loss(row, Provenance::Modelled)).collect();
    Ok(Losses { layers, values, tables, ranges: Ranges::new() })
}

/// The formats of activations and states in `tuples` that round, each once.
fn value_formats(tuples: &[FormatTuple]) -> Vec<ValueFormat> {
    let both = |tuple: &FormatTuple| {
        [ValueFormat::Activations(tuple.activations), ValueFormat::States(tuple.states)]
    };
    let formats: BTreeSet<ValueFormat> = tuples.iter().flat_map(both).collect();
    formats.into_iter().filter(|format| !format.is_exact()).collect()
}

/// Millionths of a nat from which what a format of values loses is counted: a hundredth of the
/// strictest named goal. Less is no reason to hold a KV cache of twice the size.
const LEAST_OF_VALUES: u64 = 50;

/// What the whole model loses in a format of values, in equal parts: of activations that of all
/// places with matrices, of states that of the layers which write one.
fn value_rows(graph: &Graph, totals: &[(ValueFormat, u64)], provenance: Provenance) -> Vec<ValueSensitivity> {
    let index = |kind| graph.components.iter().position(|component| component.kind == kind);
    let of = |(kind, layer): (ComponentKind, u32)| Some((index(kind)? as u32, layer));
    let matrices: BTreeSet<(u32, u32)> =
        places(graph).into_keys().filter_map(|(kind, layer, _)| of((kind, layer))).collect();
    let writes = |component: &Component| {
        let writers = (0..component.layers).filter(|layer| graph.writes_states(*layer..*layer + 1));
        writers.filter_map(|layer| of((component.kind, layer))).collect::<Vec<_>>()
    };
    let writers: BTreeSet<(u32, u32)> = graph.components.iter().flat_map(writes).collect();
    let counted = totals.iter().filter(|(_, total)| *total >= LEAST_OF_VALUES);
    let rows = |&(format, total): &(ValueFormat, u64)| {
        let places = match format {
            ValueFormat::Activations(_) => &matrices,
            ValueFormat::States(_) => &writers,
        };
        let part = total.div_ceil((places.len() as u64).max(1));
        let micronats = u32::try_from(part).unwrap_or(u32::MAX);
        let row =
            move |&(component, layer)| ValueSensitivity { component, layer, format, micronats, provenance };
        places.iter().map(row).collect::<Vec<_>>()
    };
    counted.flat_map(rows).collect()
}

fn table_loss(row: &shardwright_quantisation::TableLoss, provenance: Provenance) -> TableLoss {
    let micronats = u32::try_from(row.micronats).unwrap_or(u32::MAX);
    TableLoss { table: row.table, format: row.format, micronats, provenance }
}

/// The quality loss of every layer and role in each of the weight formats of `tuples`, and of every
/// gathered table, and what it is to rest on. Tables are always measured with the rest, so that a
/// measurement serves every later goal.
pub(super) fn losses(
    checkpoint: &Checkpoint,
    graph: &Graph,
    options: &PlanOptions,
    (tuples, ground): (&[FormatTuple], LossGround),
    notices: &mut Vec<Notice>,
    watch: &mut dyn Watch,
) -> Result<Losses> {
    let formats = quantised_formats(tuples);
    let values = value_formats(tuples);
    let table_formats = options.tables.to_make();
    let rounds_tables = options.size_bytes.is_some() || options.tables != TableFormats::default();
    let expected = expected_losses(graph, options.tables, tuples);
    let rounds = !formats.is_empty() || !values.is_empty() || rounds_tables;
    if ground == LossGround::Expected || !rounds {
        return expected;
    }
    let started = Instant::now();
    let sequences = conversations(checkpoint, graph, options, SENSITIVITY)?;
    let hash = checkpoint.content_hash();
    let mut names: Vec<&str> = formats.iter().map(|format| format.name()).collect();
    names.push("tables");
    names.extend(table_formats.iter().map(|format| format.name()));
    names.push("values");
    names.extend(values.iter().map(|format| match format {
        ValueFormat::Activations(format) => format.name(),
        ValueFormat::States(format) => format.name(),
    }));
    // Many names are longer than that of a folder may be.
    let of_formats = Digest::of(names.join(" ").as_bytes()).to_string();
    let kept = kept_as(options, &format!("sensitivities-{}", &of_formats[..16]), hash, &sequences);
    let known =
        kept.as_ref().filter(|path| is_own(path)).and_then(|path| Sensitivities::read(path, hash).ok());
    let measured = match known {
        Some(known) => known,
        None if ground == LossGround::Kept => {
            notices.push(Notice::note(
                "what formats lose was not measured on this checkpoint and is expected from how far weights are off; \
                 a plan with `--quality` measures and keeps it",
            ));
            return expected;
        }
        None => {
            let mut progress = |done: u64, total: u64| {
                watch.progress((done * 1000 / total.max(1)) as u32, "measuring sensitivities");
                if watch.cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let wanted = MeasuredFormats { weights: &formats, tables: &table_formats, values: &values };
            let measured = Sensitivities::measure(graph, hash, &wanted, None, &sequences, &mut progress)
                .map_err(calibration_error)?;
            notices.push(Notice::note(format!(
                "what formats cost was measured on {} tokens in {:.1} s",
                measured.tokens(),
                started.elapsed().as_secs_f64()
            )));
            keep(kept, notices, |path| measured.write(path).map_err(|error| error.to_string()));
            measured
        }
    };
    // What was not measured of tables stays expected, behind what was.
    let mut tables: Vec<TableLoss> =
        measured.tables().iter().map(|row| table_loss(row, Provenance::Measured)).collect();
    tables.extend(expected?.tables);
    let totals: Vec<(ValueFormat, u64)> =
        measured.values().iter().map(|row| (row.format, row.micronats)).collect();
    let values = value_rows(graph, &totals, Provenance::Measured);
    let layers = rows(graph, measured.rows(), &formats, Provenance::Measured);
    Ok(Losses { layers, values, tables, ranges: Ranges::new() })
}

/// Losses in the terms of a request. A component without matrices loses nothing, which a row says,
/// because a planner cannot distinguish that from a loss that is not known.
fn rows(
    graph: &Graph,
    losses: &[shardwright_quantisation::Sensitivity],
    formats: &[WeightFormat],
    provenance: Provenance,
) -> Vec<Sensitivity> {
    let place = |kind| graph.components.iter().position(|component| component.kind == kind);
    let row = |row: &shardwright_quantisation::Sensitivity| {
        Some(Sensitivity {
            component: place(row.component)? as u32,
            layer: row.layer,
            role: row.role,
            format: row.format,
            micronats: u32::try_from(row.micronats).unwrap_or(u32::MAX),
            provenance,
        })
    };
    let mut rows: Vec<Sensitivity> = losses.iter().filter_map(row).collect();
    for (index, component) in graph.components.iter().enumerate() {
        let component_index = index as u32;
        for layer in 0..component.layers.max(1) {
            let known = rows.iter().any(|row| (row.component, row.layer) == (component_index, layer));
            let none = |&format: &WeightFormat| Sensitivity {
                component: component_index,
                layer,
                role: WeightRole::Other,
                format,
                micronats: 0,
                provenance,
            };
            if !known {
                rows.extend(formats.iter().map(none));
            }
        }
    }
    rows
}

/// Path of the cached measurement of these sequences.
fn kept_as(
    options: &PlanOptions,
    what: &str,
    checkpoint: [u8; 32],
    sequences: &[Vec<u32>],
) -> Option<PathBuf> {
    let mut ids = Vec::new();
    for sequence in sequences {
        ids.extend((sequence.len() as u64).to_le_bytes());
        ids.extend(sequence.iter().flat_map(|id| id.to_le_bytes()));
    }
    let name = format!("{}-{}", Digest::from(checkpoint), &Digest::of(&ids).to_string()[..16]);
    options.cache.as_ref().map(|cache| cache.join(what).join(name))
}

/// Whether only this user can have written it.
fn is_own(path: &Path) -> bool {
    own::open_file(path).is_ok()
}

/// Writes a measurement to the cache; a failure is only reported, since it costs nothing but time.
fn keep(
    path: Option<PathBuf>,
    notices: &mut Vec<Notice>,
    write: impl FnOnce(&Path) -> std::result::Result<(), String>,
) {
    let Some(path) = path else { return };
    let own_folder = |folder: &Path| {
        own::create_folder(folder).map_err(|error| error.to_string())?;
        own::expect_folder(folder).map_err(|error| error.to_string())
    };
    if let Err(reason) = path.parent().map_or(Ok(()), own_folder).and_then(|()| write(&path)) {
        notices.push(Notice::note(format!("a measurement was not kept in {}: {reason}", path.display())));
    }
}

pub(super) fn calibration_error(error: CalibrationError) -> Error {
    let kind = match error {
        CalibrationError::Cancelled => ErrorKind::Cancelled,
        _ => ErrorKind::Invalid,
    };
    let help = error.help().map(str::to_owned);
    Error::caused_by(kind, error, help)
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn measurements_that_others_may_have_written_are_neither_read_nor_added_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("calibrations").join("one");
        let mut notices = Vec::new();
        let write = |path: &Path| std::fs::write(path, b"ranges").map_err(|error| error.to_string());
        keep(Some(path.clone()), &mut notices, write);
        assert!(is_own(&path) && notices.is_empty(), "{notices:?}");
        set_permissions(path.parent().unwrap(), Permissions::from_mode(0o777)).unwrap();
        assert!(!is_own(&path));
        keep(Some(path.clone()), &mut notices, write);
        assert!(notices.len() == 1 && notices[0].text.contains("may be written by others"), "{notices:?}");
    }
}

/// The text that ranges are calibrated on, as token ids.
///
/// # Errors
/// A text, template or tokenizer that cannot be read.
pub fn calibration_text(checkpoint: &Checkpoint, options: &PlanOptions) -> Result<Vec<Vec<u32>>> {
    conversations(checkpoint, checkpoint.graph(), options, CALIBRATION)
}
