//! Measures ranges of activations, which static integers need. They are cached by the hash of the
//! checkpoint's content.

use std::path::{Path, PathBuf};
use std::time::Instant;

use shardwright_build::PlanOptions;
use shardwright_bundle::Digest;
use shardwright_files::private_files;
use shardwright_graph::Graph;
use shardwright_models::Checkpoint;
use shardwright_quantisation::{Calibration, Calibrator};
use shardwright_vocabulary::{FormatTuple, Notice, Result, Watch, WeightFormat};

use super::texts::{self, Budget, conversations};

/// Text for ranges. They stabilise long before its end.
const CALIBRATION: Budget = Budget { tokens: 2048, longest: 128 };

/// Returns the value ranges of the float model's tensors over the calibration text, from the cache
/// if possible.
pub(super) fn calibrate(
    checkpoint: &Checkpoint,
    graph: &Graph,
    options: &PlanOptions,
    notices: &mut Vec<Notice>,
    watch: &mut dyn Watch,
) -> Result<Calibration> {
    let started = Instant::now();
    let conversations = conversations(checkpoint, graph, options, CALIBRATION, watch)?;
    let hash = checkpoint.content_hash();
    let mut ids = Vec::new();
    for sequence in &conversations {
        ids.extend((sequence.len() as u64).to_le_bytes());
        ids.extend(sequence.iter().flat_map(|id| id.to_le_bytes()));
    }
    let kept = MeasurementCache::new(options, "calibrations", hash, &ids);
    if let Some(calibration) = kept.read(|path| Calibration::read(path, hash).ok()) {
        return Ok(calibration);
    }
    let mut calibrator = Calibrator::new(graph, hash)?;
    for (index, ids) in conversations.iter().enumerate() {
        watch.progress((index * 1000 / conversations.len()) as u32, "calibrating");
        calibrator.add_until(ids, &|| watch.cancelled())?;
    }
    let calibration = calibrator.finish()?;
    notices.push(Notice::note(format!(
        "ranges of integers were calibrated on {} tokens of {} in {:.1} s",
        calibration.tokens(),
        texts::named(options),
        started.elapsed().as_secs_f64()
    )));
    kept.write(notices, |path| calibration.write(path).map_err(|error| error.to_string()));
    Ok(calibration)
}

/// Returns the weight formats of `tuples` that lose quality, without duplicates.
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

/// Where a measurement is stored in the cache, if there is one.
pub(super) struct MeasurementCache(Option<PathBuf>);

impl MeasurementCache {
    /// Returns the place of a measurement of a checkpoint on inputs of these bytes.
    pub fn new(options: &PlanOptions, what: &str, checkpoint: [u8; 32], inputs: &[u8]) -> Self {
        let name = format!("{}-{}", Digest::from(checkpoint), &Digest::of(inputs).to_string()[..16]);
        MeasurementCache(options.cache.as_ref().map(|cache| cache.join(what).join(name)))
    }

    /// Reads the stored measurement, if only this user can have written it.
    pub fn read<T>(&self, read: impl FnOnce(&Path) -> Option<T>) -> Option<T> {
        let path = self.0.as_deref()?;
        private_files::open_file(path).ok()?;
        read(path)
    }

    /// Writes a measurement. A failure is only reported, since it costs no more than the time to
    /// measure again.
    pub fn write(
        &self,
        notices: &mut Vec<Notice>,
        write: impl FnOnce(&Path) -> std::result::Result<(), String>,
    ) {
        let Some(path) = &self.0 else { return };
        let own_folder = |folder: &Path| {
            private_files::create_folder(folder).map_err(|error| error.to_string())?;
            private_files::expect_folder(folder).map_err(|error| error.to_string())
        };
        if let Err(reason) = path.parent().map_or(Ok(()), own_folder).and_then(|()| write(path)) {
            let what = format!("a measurement cannot be cached in {}: {reason}", path.display());
            notices.push(Notice::note(what));
        }
    }
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
        let kept = MeasurementCache(Some(path.clone()));
        kept.write(&mut notices, write);
        assert!(kept.read(|_| Some(())).is_some() && notices.is_empty(), "{notices:?}");
        set_permissions(path.parent().unwrap(), Permissions::from_mode(0o777)).unwrap();
        assert!(kept.read(|_| Some(())).is_none());
        kept.write(&mut notices, write);
        assert!(notices.len() == 1 && notices[0].text.contains("may be written by others"), "{notices:?}");
    }
}

/// Returns the text that ranges are calibrated on, as token ids.
///
/// # Errors
/// Fails if a text, template or tokenizer cannot be read.
pub fn calibration_text(checkpoint: &Checkpoint, options: &PlanOptions) -> Result<Vec<Vec<u32>>> {
    conversations(checkpoint, checkpoint.graph(), options, CALIBRATION, &())
}
