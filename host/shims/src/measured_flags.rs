//! Keeps values of load-time flags that shims found by measuring, for the next load.
//!
//! A shim may leave such a flag open and measure the fastest value while it runs. The flag's
//! default then becomes the measured value (`standard` of `sw_flag` in the contract). The host
//! keeps these values and passes them to later loads, so that shims need not measure again. They
//! are valid for one version of the shim, on a device with the same detail, which includes the
//! processor's name, and for [`LASTS`]. They are only hints. A file that cannot be read counts as
//! empty, and artefacts do not depend on one.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use shardwright_files::private_files;
use shardwright_vocabulary::{Description, Device, Flag};

/// Values expire, because a measurement may have been unlucky and a system changes.
const LASTS: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Maximum size of a file, and maximum number of values in it.
const FILE_BYTES: u64 = 64 << 10;
const VALUES: usize = 64;

/// A load-time flag whose value a shim found by measuring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MeasuredFlag {
    /// The flag with the value in use.
    pub flag: Flag,
    /// Whether it was kept from an earlier load. Otherwise it was measured since this one.
    pub kept: bool,
}

/// Storage of measured values, with one file per shim.
#[derive(Clone, Debug)]
pub(crate) struct MeasuredFlags {
    folder: PathBuf,
}

/// The kept value of one flag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Value {
    version: String,
    device: String,
    detail: Option<String>,
    flag: Flag,
    /// Time of the measurement, in seconds since the epoch.
    seconds: u64,
}

impl MeasuredFlags {
    pub(crate) fn kept_in(folder: impl Into<PathBuf>) -> MeasuredFlags {
        MeasuredFlags { folder: folder.into() }
    }

    /// Returns whether values are kept for this shim, although not necessarily for its present
    /// devices.
    pub(crate) fn knows(&self, shim: &Description) -> bool {
        self.file(shim).is_some_and(|file| file.exists())
    }

    /// Returns the values that are valid for a device.
    pub(crate) fn of(&self, shim: &Description, device: &Device) -> Vec<Flag> {
        let values = self.file(shim).map(|file| read(&file)).unwrap_or_default();
        values.into_iter().filter(|value| value.is_of(shim, device)).map(|value| value.flag).collect()
    }

    /// Keeps values and replaces older values of the same flags. After a failure the next load
    /// measures again.
    pub(crate) fn keep(&self, shim: &Description, device: &Device, flags: &[Flag]) {
        let Some(file) = self.file(shim) else { return };
        let mut values = read(&file);
        let replaced = |value: &Value| {
            value.is_of(shim, device) && flags.iter().any(|flag| flag.name == value.flag.name)
        };
        values.retain(|value| value.version == shim.version && !replaced(value));
        values.extend(flags.iter().map(|flag| Value {
            version: shim.version.clone(),
            device: device.name.clone(),
            detail: device.detail.clone(),
            flag: flag.clone(),
            seconds: now(),
        }));
        // The latest values are at the end.
        values.drain(..values.len().saturating_sub(VALUES));
        let written = serde_json::to_vec_pretty(&values).map(|text| private_files::write(&file, &text));
        if !matches!(written, Ok(Ok(()))) {
            tracing::debug!(file = %file.display(), "measured values are not kept: {written:?}");
        }
    }

    /// Returns the path of a shim's file, or `None` if the shim's name is not valid in a file name.
    fn file(&self, shim: &Description) -> Option<PathBuf> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let is_plain = !shim.name.is_empty() && shim.name.bytes().all(plain);
        is_plain.then(|| self.folder.join(format!("{}.json", shim.name)))
    }
}

impl Value {
    fn is_of(&self, shim: &Description, device: &Device) -> bool {
        let age = now().checked_sub(self.seconds);
        (&self.version, &self.device, &self.detail) == (&shim.version, &device.name, &device.detail)
            && age.is_some_and(|age| age <= LASTS.as_secs())
    }
}

fn read(file: &Path) -> Vec<Value> {
    let text = private_files::read(file, FILE_BYTES).ok().flatten();
    text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::{DeviceKind, MemoryKinds};

    use super::*;

    fn shim(name: &str, version: &str) -> Description {
        Description {
            name: name.to_owned(),
            vendor: "test".to_owned(),
            version: version.to_owned(),
            vendor_library: None,
            instance_limit: 0,
        }
    }

    fn device(detail: &str) -> Device {
        Device {
            name: "cpu".to_owned(),
            soc: None,
            detail: Some(detail.to_owned()),
            kind: DeviceKind::Present,
            memory_kinds: MemoryKinds::HOST,
            memory_bytes: 0,
        }
    }

    fn flag(name: &str, value: &str) -> Flag {
        Flag { name: name.to_owned(), value: value.to_owned() }
    }

    #[test]
    fn values_hold_for_one_version_on_one_processor() {
        let folder = tempfile::tempdir().unwrap();
        let kept = MeasuredFlags::kept_in(folder.path().join("measured"));
        let (one, big, small) = (shim("one", "1"), device("big"), device("small"));
        assert!(!kept.knows(&one) && kept.of(&one, &big).is_empty());
        kept.keep(&one, &big, &[flag("streams", "1"), flag("products", "wide")]);
        kept.keep(&one, &small, &[flag("streams", "4")]);
        kept.keep(&one, &big, &[flag("streams", "8")]);
        assert!(kept.knows(&one));
        assert_eq!(kept.of(&one, &big), [flag("products", "wide"), flag("streams", "8")]);
        assert_eq!(kept.of(&one, &small), [flag("streams", "4")]);
        for other in [shim("one", "2"), shim("two", "1"), shim("../one", "1"), shim("", "1")] {
            assert_eq!(kept.of(&other, &big), []);
        }
        // A newer version replaces the values of the older one.
        kept.keep(&shim("one", "2"), &big, &[flag("streams", "1")]);
        assert_eq!(kept.of(&one, &big), []);
        kept.keep(&shim("../one", "1"), &big, &[flag("streams", "1")]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no file beside the folder");
    }

    #[test]
    fn damaged_old_and_future_values_are_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let kept = MeasuredFlags::kept_in(folder.path().join("measured"));
        let (one, big) = (shim("one", "1"), device("big"));
        kept.keep(&one, &big, &[flag("streams", "1")]);
        let file = folder.path().join("measured/one.json");
        let text = std::fs::read_to_string(&file).unwrap();
        let of = |text: String| {
            std::fs::write(&file, text).unwrap();
            kept.of(&one, &big)
        };
        let written: Vec<Value> = serde_json::from_str(&text).unwrap();
        let at = |seconds: u64| serde_json::to_string(&[Value { seconds, ..written[0].clone() }]).unwrap();
        assert_eq!(of(at(now() - 1000)), [flag("streams", "1")]);
        assert_eq!(of(at(now() - LASTS.as_secs() - 1)), []);
        assert_eq!(of(at(now() + 1000)), []);
        assert_eq!(of(at(u64::MAX)), []);
        for damaged in ["", "{}", "[1]", &text[..text.len() / 2], &text.replace("seconds", "second")] {
            assert_eq!(of(damaged.to_owned()), [], "{damaged}");
            kept.keep(&one, &big, &[flag("streams", "4")]);
            assert_eq!(kept.of(&one, &big), [flag("streams", "4")]);
        }
        assert_eq!(of(format!("{}{text}", " ".repeat(FILE_BYTES as usize))), [], "too long");
    }

    #[test]
    fn only_so_many_values_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let kept = MeasuredFlags::kept_in(folder.path().join("measured"));
        for index in 0..VALUES + 3 {
            kept.keep(&shim("one", "1"), &device(&index.to_string()), &[flag("streams", "1")]);
        }
        let of = |index: usize| kept.of(&shim("one", "1"), &device(&index.to_string()));
        assert_eq!((of(2).len(), of(3).len(), of(VALUES + 2).len()), (0, 1, 1));
    }
}
