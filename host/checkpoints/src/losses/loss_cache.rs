//! Losses in the cache, one file each, in a folder named by the hash of everything that determines
//! them.

use std::path::{Path, PathBuf};

use shardwright_build::PlanOptions;
use shardwright_bundle::Digest;
use shardwright_files::private_files;
use shardwright_models::Checkpoint;
use shardwright_quantisation::{Change, ExpectedLosses, Loss};
use shardwright_vocabulary::{Notice, WeightFormat};

use super::loss_table::LossTable;

/// Folder of losses in the cache.
const FOLDER: &str = "sensitivities";

/// Name of the empty file that marks a checkpoint whose losses a user measured explicitly.
const ASKED: &str = "asked";

/// A folder that only this user can have written.
pub(super) struct LossCache(PathBuf);

impl LossCache {
    /// Checks whether a user measured the losses of a checkpoint explicitly. Does not read its
    /// weights.
    pub fn was_asked_for(checkpoint: &Checkpoint, options: &PlanOptions) -> bool {
        of_checkpoint(checkpoint, options)
            .is_some_and(|folder| private_files::open_file(&folder.join(ASKED)).is_ok())
    }

    /// Returns the folder of an identity, if it exists and is trusted.
    pub fn find(checkpoint: &Checkpoint, options: &PlanOptions, identity: [u8; 32]) -> Option<Self> {
        let folder = of_identity(checkpoint, options, identity)?;
        private_files::expect_folder(&folder).ok().map(|()| LossCache(folder))
    }

    /// Returns the folder of an identity, and creates it if necessary. Returns `None` without a
    /// cache. Also returns `None`, with a notice, if it cannot be created or others may write to
    /// it.
    pub fn make(
        checkpoint: &Checkpoint,
        options: &PlanOptions,
        identity: [u8; 32],
        notices: &mut Vec<Notice>,
    ) -> Option<Self> {
        let folder = of_identity(checkpoint, options, identity)?;
        let made = private_files::create_folder(&folder)
            .map_err(|error| error.to_string())
            .and_then(|()| private_files::expect_folder(&folder).map_err(|error| error.to_string()));
        match made {
            Ok(()) => Some(LossCache(folder)),
            Err(error) => {
                notices.push(not_kept(&folder, &error));
                None
            }
        }
    }

    /// Records that a user measures the losses of this checkpoint explicitly.
    pub fn ask(&self, notices: &mut Vec<Notice>) {
        let path = self.0.parent().unwrap_or(&self.0).join(ASKED);
        if private_files::open_file(&path).is_err()
            && let Err(error) = std::fs::write(&path, [])
        {
            notices.push(not_kept(&self.0, &error.to_string()));
        }
    }

    /// Reads all losses in the folder, measured ones and those expected from moments, into `known`.
    /// Adds a notice about damaged files.
    pub fn read(&self, known: &mut LossTable, weights: &[WeightFormat], notices: &mut Vec<Notice>) {
        let mut damaged = 0;
        for format in weights {
            let path = ExpectedLosses::path(&self.0, *format);
            if private_files::open_file(&path).is_ok() {
                match ExpectedLosses::read(&self.0, *format) {
                    Ok(expected) => {
                        known.expect(expected.losses.iter().map(|row| (row.change(), row.micronats)))
                    }
                    Err(_) => damaged += 1,
                }
            }
        }
        for change in known.changes().collect::<Vec<Change>>() {
            if private_files::open_file(&Loss::path(&self.0, &change)).is_ok() {
                match Loss::read(&self.0, &change) {
                    Ok(loss) => known.measure(&loss),
                    Err(_) => damaged += 1,
                }
            }
        }
        if damaged > 0 {
            let folder = self.0.display();
            notices.push(Notice::note(format!(
                "{damaged} files of measured losses in {folder} are damaged and ignored"
            )));
        }
    }

    /// Checks whether the folder contains the losses expected from moments in these formats.
    pub fn has_expected(&self, weights: &[WeightFormat]) -> bool {
        weights.iter().all(|format| ExpectedLosses::read(&self.0, *format).is_ok())
    }

    /// Stores losses expected from moments.
    pub fn keep_expected(&self, expected: &ExpectedLosses, notices: &mut Vec<Notice>) {
        if let Err(error) = expected.write(&self.0) {
            notices.push(not_kept(&self.0, &error.to_string()));
        }
    }

    /// Stores a loss. Returns `false` with a notice on failure, which costs no more than the time
    /// to measure again.
    pub fn keep(&self, loss: &Loss, notices: &mut Vec<Notice>) -> bool {
        match loss.write(&self.0) {
            Ok(()) => true,
            Err(error) => {
                notices.push(not_kept(&self.0, &error.to_string()));
                false
            }
        }
    }
}

fn not_kept(folder: &Path, reason: &str) -> Notice {
    Notice::note(format!("measured losses cannot be cached in {}: {reason}", folder.display()))
}

fn of_checkpoint(checkpoint: &Checkpoint, options: &PlanOptions) -> Option<PathBuf> {
    let name = Digest::from(checkpoint.weights_fingerprint()).to_string();
    options.cache.as_ref().map(|cache| cache.join(FOLDER).join(&name[..16]))
}

fn of_identity(checkpoint: &Checkpoint, options: &PlanOptions, identity: [u8; 32]) -> Option<PathBuf> {
    of_checkpoint(checkpoint, options).map(|folder| folder.join(Digest::from(identity).to_string()))
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    use shardwright_vocabulary::{StateFormat, ValueFormat};

    use super::super::loss_table::Formats;
    use super::*;

    #[test]
    fn what_others_may_have_written_or_is_damaged_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model");
        std::fs::create_dir(&model).unwrap();
        shardwright_test_checkpoints::Spec::gemma3().write(&model).unwrap();
        let checkpoint = Checkpoint::open(model).unwrap();
        let cache = Some(folder.path().join("cache"));
        let options = PlanOptions { cache, ..PlanOptions::default() };
        let mut notices = Vec::new();
        let kept = LossCache::make(&checkpoint, &options, [7; 32], &mut notices).unwrap();
        let formats = Formats { values: vec![ValueFormat::States(StateFormat::F16)], ..Formats::default() };
        let nothing = LossTable::expected(checkpoint.graph(), &formats, None).unwrap();
        let change = nothing.changes().next().unwrap();
        assert!(kept.keep(&Loss::of(change, 0.5), &mut notices) && notices.is_empty());
        let read = |notices: &mut Vec<Notice>| {
            let mut known = nothing.clone();
            if let Some(kept) = LossCache::find(&checkpoint, &options, [7; 32]) {
                kept.read(&mut known, &[], notices);
            }
            known.measured()
        };
        assert_eq!((read(&mut notices), notices.len()), (1, 0));
        assert!(LossCache::find(&checkpoint, &options, [8; 32]).is_none());
        assert!(!LossCache::was_asked_for(&checkpoint, &options));
        kept.ask(&mut notices);
        assert!(LossCache::was_asked_for(&checkpoint, &options) && notices.is_empty());

        let path = Loss::path(&kept.0, &change);
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(read(&mut notices), 0);
        assert!(notices.pop().unwrap().text.contains("1 files of measured losses"));
        kept.keep(&Loss::of(change, 0.5), &mut notices);
        set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        assert_eq!((read(&mut notices), notices.len()), (0, 0));
        set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        set_permissions(&kept.0, Permissions::from_mode(0o777)).unwrap();
        assert_eq!(read(&mut notices), 0);
        assert!(LossCache::make(&checkpoint, &options, [7; 32], &mut notices).is_none());
        assert!(notices.pop().unwrap().text.contains("may be written by others"));
    }
}
