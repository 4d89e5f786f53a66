//! Cache of estimates: a vendor's compiler takes seconds for each.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use shardwright_bundle::Digest;
use shardwright_files::own;
use shardwright_graph::{EntryGraph, Weight};
use shardwright_shims::{ShimError, ShimInstance, entry_identity};
use shardwright_vocabulary::{Device, Estimate, Notice, Provenance};

/// Version of the files; a file of another version is replaced.
const VERSION: u32 = 3;

/// Most bytes read of a file, which holds nine short members.
const FILE_BYTES: u64 = 4096;

/// What one run of an entry graph costs on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// One run with all rows.
    pub microseconds: u64,
    /// Where the number comes from.
    pub provenance: Provenance,
    /// Operations it leaves out.
    pub uncosted: u64,
    /// Bytes moved to and from main memory; 0 if unknown.
    pub bytes_moved: u64,
    /// The vendor's operations; 0 if there is one per node.
    pub operations: u64,
    /// Bytes of an artefact of this entry alone, weights included; 0 if unknown.
    pub artefact_bytes: u64,
    /// Of those, the bytes an artefact stores once for all its entry points.
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
    totals: Mutex<Totals>,
}

#[derive(Debug, Default)]
struct Totals {
    recalled: u64,
    made: u64,
    /// Shims that failed to estimate, each with its number of failures and the first reason.
    failed: Vec<(String, u64, String)>,
    /// Why rows could not be stored.
    unkept: Option<String>,
}

impl Costs {
    /// Stores rows in `directory`, which is created when the first row is stored.
    pub fn kept_in(directory: PathBuf) -> Costs {
        Costs { directory: Some(directory), ..Costs::default() }
    }

    /// Stores nothing.
    pub fn unkept() -> Costs {
        Costs::default()
    }

    /// The row of `key`, from the directory or else from the shim. `None` if the shim has no
    /// estimate; a failure is recorded for [`Costs::notices`].
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
                totals.made += 1;
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
                // A plan can be made without times; the missing one is reported.
                let shim = instance.shim().name();
                match totals.failed.iter_mut().find(|(existing, ..)| existing == shim) {
                    Some((_, count, _)) => *count += 1,
                    None => totals.failed.push((shim.to_owned(), 1, error.to_string())),
                }
                None
            }
        }
    }

    /// Notices about this machine and run, not about the plan.
    pub fn notices(&self) -> Vec<Notice> {
        let totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        let mut notices = Vec::new();
        if totals.recalled > 0 || (totals.made > 0 && self.directory.is_some()) {
            let (recalled, made) = (totals.recalled, totals.made);
            notices.push(Notice::note(format!("times: {recalled} from the cache, {made} estimated now")));
        }
        for (shim, count, first) in &totals.failed {
            notices.push(Notice::note(format!("times: shim `{shim}` failed to estimate {count}: {first}")));
        }
        if let Some(error) = &totals.unkept {
            notices.push(Notice::note(format!("times are estimated again next time: {error}")));
        }
        notices
    }
}

/// Hash of everything an estimate depends on: the graph and its weights except their bytes, the
/// shim and its vendor's library, the device, and what the shim read of its chip.
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

/// The stored row, unless it is damaged, of another version, of another key, or possibly written by
/// another user.
fn recall(path: &std::path::Path, key: Digest) -> Option<Row> {
    let mut bytes = Vec::new();
    let (file, _) = own::open_file(path).ok()?;
    file.take(FILE_BYTES).read_to_end(&mut bytes).ok()?;
    let kept: Kept = serde_json::from_slice(&bytes).ok()?;
    (kept.version == VERSION && kept.key == key).then_some(kept.row)
}

/// Writes atomically, in a folder that only this user can write.
fn keep(path: &std::path::Path, key: Digest, row: Row) -> std::io::Result<()> {
    let Some(directory) = path.parent() else { return Ok(()) };
    own::create_folder(directory)?;
    own::expect_folder(directory)?;
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(&serde_json::to_vec(&Kept { version: VERSION, key, row })?)?;
    file.persist(path).map_err(|error| error.error).map(drop)
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
        assert_eq!(recall(&path, key), Some(ROW), "bytes beyond the cap are not read");
        keep(&path, key, Row { microseconds: 49, ..ROW }).unwrap();
        assert_eq!(recall(&path, key).map(|row| row.microseconds), Some(49));
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }
}
