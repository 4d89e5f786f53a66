//! Remembers chains that a device could not load, so that later starts run the hedge of such a
//! chain at once.
//!
//! There is one file for each bundle, chip, chain and driver, `CHIP-HASH.json`. Remove it to try
//! its chain again. Another bundle or driver has its own file. The files are hints that only this
//! user can have written: a damaged one is ignored, and the oldest ones are removed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use shardwright_files::private_files;
use shardwright_vocabulary::{At, Error, ErrorClass, Result};

use crate::Digest;

/// Version of the files. A file of another version is ignored.
const VERSION: u32 = 1;
/// Largest file that is read, in bytes.
const FILE_BYTES: u64 = 64 << 10;
/// Largest number of bytes that are stored of a message.
const MESSAGE_BYTES: usize = 1024;
/// Most files that are kept, and listed.
const FILES: usize = 256;

/// The driver that loads a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Driver {
    /// Name of the shim.
    pub shim: String,
    pub shim_version: String,
    /// The vendor's library, as the shim describes it.
    pub library: Option<String>,
    pub device: String,
    /// The shim's description of the device, such as the driver version that it found.
    pub detail: Option<String>,
}

/// Everything that the result of loading a chain depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadTrial {
    /// Hash of the bundle's manifest.
    pub bundle: Digest,
    /// The chip of the variant.
    pub chip: String,
    /// Name of the chain.
    pub chain: String,
    pub drivers: Vec<Driver>,
}

impl LoadTrial {
    fn file_name(&self) -> String {
        let hash = Digest::of(&serde_json::to_vec(&(VERSION, self)).unwrap_or_default()).to_string();
        let plain = |character: char| character.is_ascii_alphanumeric() || character == '-';
        let chip: String = self.chip.chars().filter(|character| plain(*character)).take(64).collect();
        format!("{chip}-{}.json", &hash[..16])
    }
}

/// A chain that could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnloadedChain {
    pub trial: LoadTrial,
    pub class: ErrorClass,
    /// The error of the attempt.
    pub message: String,
}

/// Contents of a file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    version: u32,
    unloaded: UnloadedChain,
}

/// A file in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnloadedFile {
    /// Path of the file. Remove the file to try its chain again.
    pub path: String,
    /// The chain, or `None` if the file cannot be read.
    pub unloaded: Option<UnloadedChain>,
    /// Why the file is ignored, if it is.
    pub fault: Option<String>,
}

/// Chains that could not be loaded, remembered in a directory.
#[derive(Clone, Debug)]
pub struct Unloaded {
    directory: PathBuf,
}

impl Unloaded {
    /// Name of the directory in a cache directory.
    pub const FOLDER: &'static str = "unloaded";

    /// Uses files in `directory`, which is created with the first one.
    pub fn kept_in(directory: impl Into<PathBuf>) -> Unloaded {
        Unloaded { directory: directory.into() }
    }

    /// Returns the file about a trial, which need not exist.
    pub fn path(&self, trial: &LoadTrial) -> PathBuf {
        self.directory.join(trial.file_name())
    }

    /// Returns the earlier result of a trial, or `None` if it is unknown.
    ///
    /// # Errors
    ///
    /// Fails if the file about it is damaged, or may have been written by another user. The file is
    /// the place of the error.
    pub fn find(&self, trial: &LoadTrial) -> Result<Option<UnloadedChain>> {
        let path = self.path(trial);
        let found = read(&path).at(path.display())?;
        match found {
            Some(found) if found.trial != *trial => {
                Err(Error::invalid("it is about another chain").at(path.display()))
            }
            found => Ok(found),
        }
    }

    /// Remembers a chain that could not be loaded, and returns the file. Removes the oldest files
    /// beyond the largest number.
    ///
    /// # Errors
    ///
    /// Fails if the directory cannot be written, or may be written by other users.
    pub fn keep(&self, mut unloaded: UnloadedChain) -> Result<PathBuf> {
        unloaded.message.truncate(unloaded.message.floor_char_boundary(MESSAGE_BYTES));
        let path = self.path(&unloaded.trial);
        let content = serde_json::to_vec_pretty(&Kept { version: VERSION, unloaded });
        private_files::write(&path, &content.map_err(std::io::Error::from)?).at(path.display())?;
        // The chain is remembered even if old files cannot be removed.
        let Ok(mut files) = self.files() else { return Ok(path) };
        let written = |path: &PathBuf| {
            let metadata = fs::metadata(path).and_then(|metadata| metadata.modified());
            metadata.unwrap_or(SystemTime::UNIX_EPOCH)
        };
        files.sort_by_cached_key(|path| std::cmp::Reverse(written(path)));
        for old in files.iter().skip(FILES).filter(|old| **old != path) {
            // Another process may have removed it.
            let _ = fs::remove_file(old);
        }
        Ok(path)
    }

    /// Lists the files, sorted by name.
    ///
    /// # Errors
    ///
    /// Fails if the directory exists and cannot be read.
    pub fn list(&self) -> Result<Vec<UnloadedFile>> {
        let files = self.files()?;
        let file = |path: &PathBuf| {
            let path = path.as_path();
            let (unloaded, fault) = match read(path) {
                Ok(Some(found)) => {
                    let is_named = path.file_name() == Some(found.trial.file_name().as_ref());
                    (Some(found), (!is_named).then(|| "its name does not match its content".to_owned()))
                }
                Ok(None) => return None,
                Err(error) => (None, Some(error.to_string())),
            };
            Some(UnloadedFile { path: path.display().to_string(), unloaded, fault })
        };
        Ok(files.iter().filter_map(file).take(FILES).collect())
    }

    fn files(&self) -> Result<Vec<PathBuf>> {
        private_files::json_files(&self.directory).map_err(Error::from).at(self.directory.display())
    }
}

/// Reads a file. Returns `None` if it does not exist.
fn read(path: &Path) -> Result<Option<UnloadedChain>> {
    let Some(bytes) = private_files::read(path, FILE_BYTES)? else { return Ok(None) };
    let kept: Kept = serde_json::from_slice(&bytes)
        .map_err(|error| Error::invalid(format!("not a file about a chain: {error}")))?;
    match kept.version {
        VERSION => Ok(Some(kept.unloaded)),
        version => Err(Error::invalid(format!("expected version {VERSION}, got {version}"))),
    }
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    fn trial(detail: &str) -> LoadTrial {
        LoadTrial {
            bundle: Digest::of(b"a bundle"),
            chip: "mt1/../x".to_owned(),
            chain: "primary".to_owned(),
            drivers: vec![Driver {
                shim: "neuron".to_owned(),
                shim_version: "0.1.0".to_owned(),
                library: None,
                device: "mt1".to_owned(),
                detail: Some(detail.to_owned()),
            }],
        }
    }

    fn failed(trial: &LoadTrial) -> UnloadedChain {
        let message = format!("a{}", "é".repeat(600));
        UnloadedChain { trial: trial.clone(), class: ErrorClass::Unmappable, message }
    }

    #[test]
    fn a_chain_is_remembered_for_its_bundle_and_driver_until_its_file_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let unloaded = Unloaded::kept_in(folder.path().join("a/unloaded"));
        let own = trial("driver 8.2");
        assert_eq!((unloaded.find(&own).unwrap(), unloaded.list().unwrap()), (None, vec![]));
        let path = unloaded.keep(failed(&own)).unwrap();
        assert_eq!((path.parent(), &path), (Some(unloaded.directory.as_path()), &unloaded.path(&own)));
        let found = unloaded.find(&own).unwrap().unwrap();
        assert_eq!((found.class, &found.trial), (ErrorClass::Unmappable, &own));
        assert_eq!(found.message, format!("a{}", "é".repeat(511)), "cut between characters");
        for other in [
            trial("driver 8.3"),
            LoadTrial { bundle: Digest::of(b"another"), ..own.clone() },
            LoadTrial { chain: "primary-within-ops".to_owned(), ..own.clone() },
            LoadTrial { chip: "mt2".to_owned(), ..own.clone() },
            LoadTrial { drivers: Vec::new(), ..own.clone() },
        ] {
            assert_eq!(unloaded.find(&other).unwrap(), None, "{other:?}");
        }
        let listed = unloaded.list().unwrap();
        assert_eq!((listed.len(), &listed[0].unloaded, &listed[0].fault), (1, &Some(found), &None));
        fs::remove_file(&listed[0].path).unwrap();
        assert_eq!(unloaded.find(&own).unwrap(), None);
    }

    #[test]
    fn damaged_files_are_errors_with_their_place_and_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let unloaded = Unloaded::kept_in(folder.path().join("unloaded"));
        let own = trial("driver 8.2");
        let path = unloaded.keep(failed(&own)).unwrap();
        let whole = fs::read_to_string(&path).unwrap();
        for text in [
            whole[..whole.len() / 2].to_owned(),
            whole.replace("\"version\": 1", "\"version\": 2"),
            whole.replace("driver 8.2", "driver 8.3"),
            whole.replace("unmappable", "bored"),
            whole.replace("\"chain\"", "\"chian\""),
            format!("{whole}{}", " ".repeat(FILE_BYTES as usize)),
            "\u{0}\u{1}".to_owned(),
        ] {
            fs::write(&path, &text).unwrap();
            let error = unloaded.find(&own).unwrap_err();
            assert!(error.kind() == ErrorKind::Invalid && error.place().is_some(), "{error:?}");
            assert!(unloaded.list().unwrap()[0].fault.is_some(), "{text}");
            unloaded.keep(failed(&own)).unwrap();
            assert!(unloaded.find(&own).unwrap().is_some());
        }
    }

    #[test]
    fn the_oldest_files_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let unloaded = Unloaded::kept_in(folder.path().join("unloaded"));
        let begin = SystemTime::now() - std::time::Duration::from_secs(100_000);
        for number in 0..FILES as u64 + 3 {
            let path = unloaded.keep(failed(&trial(&number.to_string()))).unwrap();
            let file = fs::File::options().write(true).open(path).unwrap();
            file.set_modified(begin + std::time::Duration::from_secs(number)).unwrap();
        }
        assert_eq!(unloaded.list().unwrap().len(), FILES);
        let is_known = |number: u64| unloaded.find(&trial(&number.to_string())).unwrap().is_some();
        assert!(!is_known(0) && !is_known(2) && is_known(3) && is_known(FILES as u64 + 2));
    }

    #[cfg(unix)]
    #[test]
    fn files_of_others_are_not_believed() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let unloaded = Unloaded::kept_in(folder.path().join("unloaded"));
        let own = trial("driver 8.2");
        let path = unloaded.keep(failed(&own)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let error = unloaded.find(&own).unwrap_err();
        assert!(error.to_string().contains("may be written by others"), "{error}");
    }
}
