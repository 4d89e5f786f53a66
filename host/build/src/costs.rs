//! Estimates of shims. They are cached because a vendor's compiler needs seconds for each, and
//! rejected outside bounds that are true for any device.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use shardwright_bundle::Digest;
use shardwright_files::private_files;
use shardwright_graph::{EntryGraph, Weight};
use shardwright_shims::{ShimError, ShimInstance, entry_identity};
use shardwright_vocabulary::{Device, Estimate, Notice, Provenance, TimeCost};

/// Version of the files. A file of another version is replaced.
const VERSION: u32 = 3;

/// Bytes per microsecond that no device reaches when it reads weights: 10 TB/s, a hundred times a
/// phone's memory bandwidth and more than that of the largest accelerators.
const ABSURD_BYTES: u64 = 10_000_000;

/// Upper bound for one run of an entry point, in microseconds: one hour.
const ABSURD_MICROSECONDS: u64 = 3_600_000_000;

/// Largest number of bytes read from a file, which contains nine short members.
const FILE_BYTES: u64 = 4096;

/// Cost of one run of an entry graph on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Time of one run with all rows.
    pub microseconds: u64,
    /// Where the number comes from.
    pub provenance: Provenance,
    /// Number of operations that the time leaves out.
    pub uncosted: u64,
    /// Bytes moved to and from main memory, or 0 if unknown.
    pub bytes_moved: u64,
    /// Number of the vendor's operations, or 0 if there is one per node.
    pub operations: u64,
    /// Bytes of an artefact with this entry alone, weights included, or 0 if unknown.
    pub artefact_bytes: u64,
    /// The part of `artefact_bytes` that an artefact stores once for all its entry points.
    pub shared_bytes: u64,
}

/// A row as stored, with the hash of everything it depends on.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    version: u32,
    key: Digest,
    row: Row,
}

/// Estimates, cached in a directory or for this run only.
#[derive(Debug, Default)]
pub struct Costs {
    directory: Option<PathBuf>,
    totals: Arc<Mutex<Totals>>,
}

#[derive(Debug, Default)]
struct Totals {
    recalled: u64,
    made: u64,
    /// Shims that failed to estimate, each with its number of failures and the first reason.
    failed: Vec<(String, u64, String)>,
    /// Shims whose times were rejected, each with the number of times and the first reason.
    disbelieved: Vec<(String, u64, String)>,
    /// Why rows could not be stored.
    unkept: Option<String>,
}

impl Costs {
    /// Creates a cache that stores rows in `directory`, which is created with the first row.
    pub fn kept_in(directory: PathBuf) -> Costs {
        Costs { directory: Some(directory), ..Costs::default() }
    }

    /// Creates a cache that does not store rows.
    pub fn unkept() -> Costs {
        Costs::default()
    }

    /// Returns a cache that does not store rows and adds to the same notices.
    #[must_use]
    pub fn beside(&self) -> Costs {
        Costs { directory: None, totals: self.totals.clone() }
    }

    /// Returns the row of `key`, from the directory or else from the shim. Returns `None` if the
    /// shim has no estimate. A failure is recorded for [`Costs::notices`].
    pub(crate) fn row(
        &self,
        instance: &ShimInstance,
        key: impl FnOnce() -> Option<Digest>,
        ask: impl FnOnce() -> Result<Option<Estimate>, ShimError>,
    ) -> Option<Row> {
        let place = self.directory.as_ref().and_then(|directory| {
            let key = key()?;
            Some((key, directory.join(format!("{key}.json"))))
        });
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(row) = place.as_ref().and_then(|(key, path)| recall(path, *key)) {
            totals.recalled += 1;
            return Some(row);
        }
        match ask() {
            Ok(None) => None,
            Ok(Some(estimate)) => {
                // Only stored estimates count as made now.
                totals.made += u64::from(self.directory.is_some());
                let row = Row {
                    microseconds: estimate.time_microseconds,
                    provenance: estimate.provenance,
                    uncosted: estimate.uncosted.len() as u64,
                    bytes_moved: estimate.bytes_moved,
                    operations: estimate.operations,
                    artefact_bytes: estimate.artefact_bytes,
                    shared_bytes: estimate.shared_bytes,
                };
                if let Some((key, path)) = place
                    && let Err(error) = keep(&path, key, row)
                {
                    totals.unkept.get_or_insert_with(|| format!("{}: {error}", path.display()));
                }
                Some(row)
            }
            Err(error) if error.is_cancelled() => None,
            Err(error) => {
                // A plan can be made without times. The missing one is reported.
                count(&mut totals.failed, instance.shim().name(), || error.to_string());
                None
            }
        }
    }

    /// Returns the time of a row that shim `shim` gave for an entry of `nodes` operations and
    /// `weight_bytes` bytes of weights.
    ///
    /// Returns `None` if every operation is uncosted or the time cannot be true, because a shim's
    /// mistake must not decide a plan. Rejected times are recorded for [`Costs::notices`].
    pub(crate) fn time(&self, shim: &str, row: &Row, nodes: u64, weight_bytes: u64) -> Option<TimeCost> {
        if row.uncosted >= nodes {
            return None;
        }
        let microseconds = row.microseconds;
        // Rounded up, so that reading any weights needs more than 0 µs.
        let why = if microseconds < weight_bytes.div_ceil(ABSURD_BYTES) {
            format!("{microseconds} µs for {weight_bytes} bytes of weights is faster than 10 TB/s")
        } else if microseconds > ABSURD_MICROSECONDS {
            format!("{microseconds} µs for one run is more than an hour")
        } else {
            return Some(TimeCost::exact(microseconds, row.provenance));
        };
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        count(&mut totals.disbelieved, shim, || why);
        None
    }

    /// Returns notices about this machine and run, not about the plan.
    pub fn notices(&self) -> Vec<Notice> {
        let totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        let mut notices = Vec::new();
        if totals.recalled > 0 || (totals.made > 0 && self.directory.is_some()) {
            let (recalled, made) = (totals.recalled, totals.made);
            notices.push(Notice::note(format!("times: {recalled} from the cache, {made} estimated now")));
        }
        for (shim, count, first) in &totals.failed {
            notices.push(Notice::note(format!(
                "times: {count} estimates of shim `{shim}` failed, first: {first}"
            )));
        }
        for (shim, count, first) in &totals.disbelieved {
            notices.push(Notice::note(format!(
                "times: {count} estimates of shim `{shim}` are implausible and ignored, first: {first}"
            )));
        }
        if let Some(error) = &totals.unkept {
            notices.push(Notice::note(format!("times are not cached and will be estimated again: {error}")));
        }
        notices
    }
}

/// Increments the count of a shim. Only the first reason is kept.
fn count(counted: &mut Vec<(String, u64, String)>, shim: &str, reason: impl FnOnce() -> String) {
    match counted.iter_mut().find(|(existing, ..)| existing == shim) {
        Some((_, count, _)) => *count += 1,
        None => counted.push((shim.to_owned(), 1, reason())),
    }
}

/// Returns the hash of everything an estimate depends on: the graph, its weights except their
/// bytes, the shim and its vendor's library, the device, and the chip facts that the shim read.
pub(crate) fn row_key(
    instance: &ShimInstance,
    device: Option<&Device>,
    entry: &EntryGraph,
    weights: &[Weight],
) -> Option<Digest> {
    let shim = instance.shim();
    let options = shim.manifest().map(|manifest| &manifest.options);
    let chip = device.and_then(|device| instance.chip_of(&device.name));
    let made_by = serde_json::to_vec(&(VERSION, shim.description(), options, device, chip)).ok()?;
    let mut bytes = entry_identity(entry, weights).ok()?;
    bytes.extend_from_slice(&made_by);
    Some(Digest::of(&bytes))
}

/// Returns the stored row, unless it is damaged, of another version, of another key, or possibly
/// written by another user.
fn recall(path: &std::path::Path, key: Digest) -> Option<Row> {
    let bytes = private_files::read(path, FILE_BYTES).ok()??;
    let kept: Kept = serde_json::from_slice(&bytes).ok()?;
    (kept.version == VERSION && kept.key == key).then_some(kept.row)
}

/// Writes a row atomically, in a folder that only this user can write.
fn keep(path: &std::path::Path, key: Digest, row: Row) -> crate::Result<()> {
    let content = serde_json::to_vec(&Kept { version: VERSION, key, row }).map_err(std::io::Error::from)?;
    private_files::write(path, &content)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: Row = Row {
        microseconds: 48,
        provenance: Provenance::Simulated,
        uncosted: 2,
        bytes_moved: 9,
        operations: 5,
        artefact_bytes: 11,
        shared_bytes: 7,
    };

    #[test]
    fn a_time_that_no_device_reaches_is_not_believed() {
        let costs = Costs::unkept();
        let time = |shim, microseconds, weight_bytes| {
            let row = Row { microseconds, ..ROW };
            costs.beside().time(shim, &row, 5, weight_bytes).map(|time| time.microseconds)
        };
        // At 10 TB/s a gigabyte needs 100 µs, and a single byte needs more than 0 µs.
        assert_eq!(time("slow", 100, 1_000_000_000), Some(100));
        assert_eq!(time("slow", 1, 1), Some(1));
        assert_eq!(time("slow", 0, 0), Some(0), "nothing is read");
        assert_eq!(time("slow", 3_600_000_000, 1), Some(3_600_000_000));
        assert!(costs.notices().is_empty(), "{:?}", costs.notices());

        assert_eq!(time("fast", 99, 1_000_000_000), None);
        assert_eq!(time("fast", 0, 1), None);
        assert_eq!(time("endless", 3_600_000_001, 1), None);
        let said: Vec<String> = costs.notices().into_iter().map(|notice| notice.text).collect();
        assert_eq!(
            said,
            [
                "times: 2 estimates of shim `fast` are implausible and ignored, first: 99 µs for 1000000000 \
                 bytes of weights is faster than 10 TB/s",
                "times: 1 estimates of shim `endless` are implausible and ignored, first: 3600000001 µs for \
                 one run is more than an hour",
            ]
        );
    }

    #[test]
    fn what_leaves_out_every_operation_is_no_time() {
        let costs = Costs::unkept();
        let row = Row { microseconds: 0, ..ROW };
        assert_eq!(costs.time("counts", &row, 2, 1 << 30), None);
        assert_eq!(costs.time("counts", &row, 0, 0), None);
        assert!(costs.notices().is_empty(), "no time was claimed");
    }

    #[cfg(unix)]
    #[test]
    fn what_others_may_have_written_is_not_believed() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("costs").join("row.json");
        let key = Digest::of(b"this");
        keep(&path, key, ROW).unwrap();
        let open_to_all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(path.parent().unwrap(), open_to_all).unwrap();
        assert_eq!(recall(&path, key), None);
        let error = keep(&path, key, ROW).unwrap_err().to_string();
        assert!(error.contains("may be written by others"), "{error}");
    }

    #[test]
    fn what_was_kept_is_recalled_and_what_is_damaged_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("costs").join("row.json");
        let key = Digest::of(b"this");
        assert_eq!(recall(&path, key), None);
        keep(&path, key, ROW).unwrap();
        assert_eq!(recall(&path, key), Some(ROW));
        assert_eq!(recall(&path, Digest::of(b"that")), None);
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(recall(&path, key), None, "{length}");
        }
        let other = String::from_utf8(whole.clone()).unwrap().replace("\"version\":3", "\"version\":4");
        std::fs::write(&path, other).unwrap();
        assert_eq!(recall(&path, key), None);
        std::fs::write(&path, [whole, vec![b' '; 1 << 20], b"x".to_vec()].concat()).unwrap();
        assert_eq!(recall(&path, key), None, "longer than what is kept");
        keep(&path, key, Row { microseconds: 49, ..ROW }).unwrap();
        assert_eq!(recall(&path, key).map(|row| row.microseconds), Some(49));
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }
}
