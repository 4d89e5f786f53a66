//! Measured times, which replace estimates. There is one file for each layer kind in its formats at
//! an entry point, for one chip, library and lowering.
//!
//! The name of a file is the hash of everything that a time depends on, so a changed library,
//! graph, flag or machine does not find it. Remove the folder to forget all times.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shardwright_bundle::Digest;
use shardwright_files::private_files;
use shardwright_graph::{EntryGraph, Weight};
use shardwright_planning::request::{Request, time_fault};
use shardwright_shims::{ShimInstance, entry_identity};
use shardwright_vocabulary::{Device, EntryKind, Notice, Provenance, Target, TargetKind, TimeCost};
use shardwright_worker::Shims;

use crate::{CPU_SHIM, Executor, PlanOptions, Result};

/// Folder of measured times in the cache directory.
pub const TIMES: &str = "times";

/// Version of the files and of the data that their names are hashes of.
const VERSION: u32 = 2;
/// Largest number of bytes read from a file, which contains six short members.
const FILE_BYTES: u64 = 1024;
/// Largest number of bytes read from the description of the processor. Its first cores are enough
/// to identify it.
const PROCESSOR_BYTES: u64 = 64 << 10;

/// Which measured times a plan uses.
#[derive(Clone, Debug, Default)]
pub enum MeasuredTimes {
    /// The times in the cache.
    #[default]
    Kept,
    /// No measured times, only estimates.
    Ignored,
    /// These times, by the key of their row, and the treatment of other rows.
    These(Arc<BTreeMap<Digest, TimeCost>>, Unmeasured),
}

/// How estimates of unmeasured rows are treated if there are measured times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmeasured {
    /// Their likely times are scaled by the ratio of the sum of the measured times to the sum of
    /// their estimates. The bounds are scaled by the smallest and the largest ratio of a measured
    /// time to its estimate. They include the estimate itself.
    Likely,
    /// They are as fast as the lower bound under [`Unmeasured::Likely`]. This is the fastest that
    /// the measurements make plausible.
    Best,
}

impl MeasuredTimes {
    /// Returns whether rows of the request need keys.
    pub(crate) fn need_keys(&self, cache: Option<&Path>) -> bool {
        match self {
            MeasuredTimes::Kept => cache.is_some_and(|cache| cache.join(TIMES).is_dir()),
            MeasuredTimes::Ignored | MeasuredTimes::These(..) => true,
        }
    }

    /// Writes the measured times into a request whose rows have these keys. Returns a notice if
    /// there are any, or if a file cannot be used.
    pub(crate) fn apply(
        &self,
        request: &mut Request,
        keys: &[Option<Digest>],
        cache: Option<&Path>,
    ) -> Vec<Notice> {
        let (these, rest) = match self {
            MeasuredTimes::Ignored => return Vec::new(),
            MeasuredTimes::These(these, rest) => (these, *rest),
            MeasuredTimes::Kept => {
                let Some(directory) = cache.map(|cache| cache.join(TIMES)) else { return Vec::new() };
                return apply_kept(&Times { directory }, request, keys);
            }
        };
        apply(request, keys, |key| these.get(&key).copied(), rest);
        Vec::new()
    }
}

/// Writes the measured times of a directory into a request whose rows have these keys. Returns a
/// notice if there are any, or if a file cannot be used.
fn apply_kept(times: &Times, request: &mut Request, keys: &[Option<Digest>]) -> Vec<Notice> {
    let mut damaged = None;
    let recalled = |key| match times.recall(key) {
        Ok(time) => time,
        Err(fault) => {
            damaged.get_or_insert(fault);
            None
        }
    };
    let measured = apply(request, keys, recalled, Unmeasured::Likely);
    let of = keys.iter().flatten().count();
    let folder = times.directory.display();
    let mut notices = Vec::new();
    if measured > 0 {
        notices.push(Notice::note(format!(
            "times: {measured} of {of} were measured by `shardwright tune`, and the other estimates are \
             scaled by the same ratio; remove {folder} to forget them"
        )));
    }
    notices.extend(damaged.map(|fault| Notice::note(format!("times: {fault}; the file is ignored"))));
    notices
}

/// Replaces the times of rows whose key is known, and scales the others. Returns the number of
/// replaced times.
fn apply(
    request: &mut Request,
    keys: &[Option<Digest>],
    mut known: impl FnMut(Digest) -> Option<TimeCost>,
    rest: Unmeasured,
) -> usize {
    let found: Vec<Option<TimeCost>> =
        (0..request.costs.len()).map(|row| keys.get(row).copied().flatten().and_then(&mut known)).collect();
    // Estimates of one kind of entry point are wrong by similar factors.
    let mut pairs: BTreeMap<(u32, EntryKind), Vec<Ratio>> = BTreeMap::new();
    for (row, measured) in request.costs.iter().zip(&found) {
        if let (Some(measured), Some(estimate)) = (measured, row.time) {
            let place = pairs.entry((row.target, row.entry.kind)).or_default();
            place.push(Ratio { measured: measured.microseconds, estimated: estimate.microseconds.max(1) });
        }
    }
    for (row, measured) in request.costs.iter_mut().zip(&found) {
        match (measured, row.time, pairs.get(&(row.target, row.entry.kind))) {
            (Some(measured), ..) => {
                row.time = Some(*measured);
                row.uncosted_ops = 0;
            }
            (None, Some(estimate), Some(pairs)) => row.time = Some(scaled(estimate, pairs, rest)),
            (None, ..) => {}
        }
    }
    found.iter().flatten().count()
}

/// A measured time and its estimate, or the sums of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ratio {
    measured: u64,
    estimated: u64,
}

impl Ratio {
    /// The ratio of an estimate that is right.
    const ONE: Ratio = Ratio { measured: 1, estimated: 1 };

    fn and(self, other: Ratio) -> Ratio {
        Ratio {
            measured: self.measured.saturating_add(other.measured),
            estimated: self.estimated.saturating_add(other.estimated),
        }
    }

    fn order(&self, other: &Ratio) -> Ordering {
        let product = |one: u64, other: u64| u128::from(one) * u128::from(other);
        product(self.measured, other.estimated).cmp(&product(other.measured, self.estimated))
    }

    fn scale(self, microseconds: u64) -> u64 {
        let scaled = u128::from(microseconds) * u128::from(self.measured) / u128::from(self.estimated.max(1));
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }
}

/// Scales the estimate of a row that was not measured by the ratios of rows that were.
fn scaled(estimate: TimeCost, ratios: &[Ratio], rest: Unmeasured) -> TimeCost {
    let all = || ratios.iter().copied();
    let likely = all().reduce(Ratio::and).unwrap_or(Ratio::ONE);
    let best = all().min_by(Ratio::order).unwrap_or(likely);
    let worst = all().max_by(Ratio::order).unwrap_or(likely);
    // A row that was not measured may also be as fast as its estimate.
    let fastest = best.scale(estimate.microseconds).min(estimate.microseconds);
    let slowest = worst.scale(estimate.microseconds).max(estimate.microseconds);
    let microseconds = likely.scale(estimate.microseconds);
    // Equal ratios do not show how much ratios differ, so the error of the estimate remains.
    let [low, high] = match best.order(&worst) {
        Ordering::Equal => [best.scale(estimate.low).min(fastest), worst.scale(estimate.high).max(slowest)],
        _ => [fastest, slowest],
    };
    match rest {
        Unmeasured::Likely => TimeCost::within(low, microseconds, high, Provenance::Modelled),
        Unmeasured::Best => TimeCost::exact(fastest, Provenance::Modelled),
    }
}

/// Measured times in a directory.
#[derive(Clone, Debug)]
pub struct Times {
    directory: PathBuf,
}

/// Contents of a file with a time.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    version: u32,
    key: Digest,
    low: u64,
    microseconds: u64,
    high: u64,
    /// Hash of the other members.
    check: Digest,
}

impl Kept {
    fn of(key: Digest, time: TimeCost) -> Self {
        let TimeCost { low, microseconds, high, .. } = time;
        let check = Digest::of(format!("{VERSION} {key} {low} {microseconds} {high}").as_bytes());
        Kept { version: VERSION, key, low, microseconds, high, check }
    }
}

impl Times {
    /// Opens the times of a cache directory.
    pub fn of_cache(cache: &Path) -> Times {
        Times { directory: cache.join(TIMES) }
    }

    /// Returns the folder of the files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn path(&self, key: Digest) -> PathBuf {
        self.directory.join(format!("{key}.json"))
    }

    /// Returns the time of a row, or `None` if it was not measured. Fails with a message if the
    /// file is damaged, no request may contain its time, or another user may have written it.
    fn recall(&self, key: Digest) -> Result<Option<TimeCost>, String> {
        let path = self.path(key);
        let fault = |what: &dyn std::fmt::Display| format!("{}: {what}", path.display());
        let Some(bytes) = private_files::read(&path, FILE_BYTES).map_err(|error| fault(&error))? else {
            return Ok(None);
        };
        let kept: Kept = serde_json::from_slice(&bytes).map_err(|_| fault(&"is damaged"))?;
        let time = TimeCost::within(kept.low, kept.microseconds, kept.high, Provenance::Measured);
        let whole = Kept::of(key, time);
        let is_whole = (kept.version, kept.key, kept.check) == (whole.version, whole.key, whole.check);
        match (is_whole, time_fault(time)) {
            (true, None) => Ok(Some(time)),
            (true, Some(why)) => Err(fault(&why)),
            (false, _) => Err(fault(&"is damaged")),
        }
    }

    /// Stores the measured time of a row. The file is written atomically, in a folder that only
    /// this user can write.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be written, or if the folder is not the user's own.
    pub fn keep(&self, key: Digest, time: TimeCost) -> Result<()> {
        let content = serde_json::to_vec(&Kept::of(key, time)).map_err(std::io::Error::from)?;
        private_files::write(&self.path(key), &content)
    }

    /// Forgets the time of a row, if there is one.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be removed.
    pub fn forget(&self, key: Digest) -> Result<()> {
        match std::fs::remove_file(self.path(key)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// Returns a hash of everything except the graph that determines how fast a target's graphs run, or
/// `None` without an executor for them. `judged` is the device that answers for the target.
pub(crate) fn timer(
    target: &Target,
    judged: Option<(&ShimInstance, &Device)>,
    shims: &Shims,
    options: &PlanOptions,
) -> Option<Digest> {
    let is_chip = target.kind != TargetKind::Cpu;
    let on = if is_chip { options.recorded.on.unwrap_or(Executor::Device) } else { Executor::Cpu };
    let (shim, device, chip) = match judged {
        _ if is_chip && on == Executor::Cpu => (shims.registry.get(CPU_SHIM)?, None, None),
        Some((instance, device)) => (instance.shim(), Some(device), instance.chip_of(&device.name)),
        None => return None,
    };
    let settings = shim.manifest().map(|manifest| (&manifest.options, &manifest.simulator));
    // A device computes equally fast in any machine. Other executors depend on the speed of this
    // machine.
    let machine = (on != Executor::Device).then(|| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = options.threads.map_or(cores, |threads| threads as usize);
        (threads, std::env::consts::ARCH, processor())
    });
    let compiled = (&options.recorded.flags, &options.recorded.flags_left_out);
    let all = (
        (VERSION, on.name(), &target.name),
        (shim.description(), shim.sha256(), settings, device, chip),
        (compiled, machine),
    );
    serde_json::to_vec(&all).ok().map(|bytes| Digest::of(&bytes))
}

/// Returns the key of a row: the executor, and the graph and its weights except their bytes.
pub(crate) fn time_key(timer: Digest, entry: &EntryGraph, weights: &[Weight]) -> Option<Digest> {
    let mut bytes = entry_identity(entry, weights).ok()?;
    bytes.extend_from_slice(timer.to_string().as_bytes());
    Some(Digest::of(&bytes))
}

/// Returns the system's description of the processor, or an empty list without one.
fn processor() -> Vec<String> {
    let mut text = Vec::new();
    let read = std::fs::File::open("/proc/cpuinfo")
        .and_then(|file| file.take(PROCESSOR_BYTES).read_to_end(&mut text));
    if read.is_err() {
        return Vec::new();
    }
    let names = ["model name", "CPU implementer", "CPU part", "Hardware"];
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines().filter(|line| names.iter().any(|name| line.starts_with(name)));
    let mut lines: Vec<String> = lines.map(str::to_owned).collect();
    lines.sort();
    lines.dedup();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn measured(low: u64, microseconds: u64, high: u64) -> TimeCost {
        TimeCost::within(low, microseconds, high, Provenance::Measured)
    }

    #[test]
    fn estimates_beside_measured_times_are_scaled() {
        let estimate = TimeCost::within(10, 1000, 90_000, Provenance::Simulated);
        let time = |pairs: &[(u64, u64)], rest| {
            let ratio = |&(measured, estimated): &(u64, u64)| Ratio { measured, estimated };
            let ratios: Vec<Ratio> = pairs.iter().map(ratio).collect();
            scaled(estimate, &ratios, rest)
        };
        let modelled = |low, likely, high| TimeCost::within(low, likely, high, Provenance::Modelled);
        let pairs = [(300, 100), (100, 100)];
        assert_eq!(time(&pairs, Unmeasured::Likely), modelled(1000, 2000, 3000));
        assert_eq!(time(&pairs, Unmeasured::Best), modelled(1000, 1000, 1000));
        // One ratio, or equal ones, have no spread: the error of the estimate remains.
        for pairs in [&[(300, 100)][..], &[(300, 100), (600, 200)]] {
            assert_eq!(time(pairs, Unmeasured::Likely), modelled(30, 3000, 270_000));
        }
        assert_eq!(time(&[(300, 100)], Unmeasured::Best), modelled(1000, 1000, 1000));
        assert_eq!(time(&[(50, 100), (90, 100)], Unmeasured::Likely), modelled(500, 700, 1000));
        assert_eq!(time(&[(50, 100), (90, 100)], Unmeasured::Best), modelled(500, 500, 500));
        assert_eq!(time(&[(u64::MAX, 1), (u64::MAX, 1)], Unmeasured::Likely).high, u64::MAX);
    }

    #[test]
    fn what_was_kept_is_recalled_and_what_is_damaged_is_not() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let times = Times::of_cache(folder.path());
        let key = Digest::of(b"this");
        assert_eq!(times.recall(key), Ok(None));
        times.keep(key, measured(40, 48, 60)).expect("kept");
        assert_eq!(times.recall(key), Ok(Some(measured(40, 48, 60))));
        assert_eq!(times.recall(Digest::of(b"that")), Ok(None));
        let whole = std::fs::read_to_string(times.path(key)).expect("read");
        for length in 0..whole.len() {
            std::fs::write(times.path(key), &whole[..length]).expect("written");
            assert!(times.recall(key).is_err(), "{length}");
        }
        std::fs::write(times.path(key), whole.replace(":48", ":49")).expect("written");
        let fault = times.recall(key).expect_err("another number");
        assert!(fault.ends_with("is damaged"), "{fault}");
        for (time, expected) in [
            (measured(61, 48, 60), "expected low ≤ likely ≤ high, got 61, 48, 60"),
            (measured(1, 48, 47), "expected low ≤ likely ≤ high, got 1, 48, 47"),
            (measured(1, 48, u64::MAX), "expected a time of at most 3600000000000"),
            (measured(0, 48, 1_000_001), "at most 1000000 times the shortest, got 0 to 1000001"),
        ] {
            times.keep(key, time).expect("kept");
            let fault = times.recall(key).expect_err(expected);
            assert!(fault.contains(expected) && fault.contains(&key.to_string()), "{fault}");
        }
        times.keep(key, measured(50, 50, 50)).expect("kept");
        assert_eq!(times.recall(key), Ok(Some(measured(50, 50, 50))));
        times.forget(key).expect("removed");
        times.forget(key).expect("there is none");
        assert_eq!(times.recall(key), Ok(None));
    }

    #[cfg(unix)]
    #[test]
    fn what_others_may_have_written_is_not_believed() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let times = Times::of_cache(folder.path());
        let key = Digest::of(b"this");
        times.keep(key, measured(40, 48, 60)).expect("kept");
        let open_to_all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(times.directory(), open_to_all).expect("set");
        let fault = times.recall(key).expect_err("anyone may have written it");
        assert!(fault.contains("may be written by others"), "{fault}");
        assert!(times.keep(key, measured(40, 49, 60)).is_err());
    }
}
