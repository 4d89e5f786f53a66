//! Stores trials in the cache. Each has its own file, written atomically, so that a kill loses only
//! the current trial.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use shardwright_bundle::Digest;
use shardwright_files::private_files;

use crate::TRIALS;
use crate::trial::Trial;

/// Version of the files. A file with another version counts as missing.
const VERSION: u32 = 1;
/// Maximum number of bytes to read from a file. 256 shards with four entry points and as many
/// layers need less.
const FILE_BYTES: u64 = 16 << 20;

/// The trials for one combination of model, chip, library, lowering, formats and goals.
#[derive(Clone, Debug)]
pub struct Journal {
    directory: Option<PathBuf>,
}

/// A stored trial, with the hash of its bytes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    version: u32,
    trial: Trial,
    check: Digest,
}

impl Kept {
    fn of(trial: Trial) -> std::io::Result<Self> {
        let check = Digest::of(&serde_json::to_vec(&(VERSION, &trial))?);
        Ok(Kept { version: VERSION, trial, check })
    }
}

impl Journal {
    /// Creates the journal of a combination in a cache directory. Without a cache, trials are not
    /// stored.
    pub fn of(cache: Option<&Path>, question: Digest) -> Journal {
        Journal { directory: cache.map(|cache| cache.join(TRIALS).join(question.to_string())) }
    }

    /// Returns the folder, if trials are stored.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    fn path(&self, plan: Digest) -> Option<PathBuf> {
        Some(self.directory.as_ref()?.join(format!("{plan}.json")))
    }

    /// Returns the trial of a plan compared with that default plan, or `None` if there is none.
    /// Fails with a message if the file is damaged or another user may have written it.
    pub fn recall(&self, plan: Digest, baseline: Digest) -> Result<Option<Trial>, String> {
        let Some(path) = self.path(plan) else { return Ok(None) };
        let fault = |what: &dyn std::fmt::Display| format!("{}: {what}. Measuring it again", path.display());
        let Some(bytes) = private_files::read(&path, FILE_BYTES).map_err(|error| fault(&error))? else {
            return Ok(None);
        };
        let kept: Kept = serde_json::from_slice(&bytes).map_err(|_| fault(&"damaged"))?;
        if kept.version != VERSION {
            return Ok(None);
        }
        let check = Kept::of(kept.trial.clone()).map_err(|error| fault(&error))?.check;
        if kept.check != check || kept.trial.plan != plan {
            return Err(fault(&"damaged"));
        }
        Ok((kept.trial.baseline == baseline).then_some(kept.trial))
    }

    /// Stores a trial.
    ///
    /// # Errors
    ///
    /// If the file cannot be written, or if the folder may belong to another user.
    pub fn keep(&self, trial: &Trial) -> shardwright_vocabulary::Result<()> {
        let Some(path) = self.path(trial.plan) else { return Ok(()) };
        let content = serde_json::to_vec(&Kept::of(trial.clone())?).map_err(std::io::Error::from)?;
        private_files::write(&path, &content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::{Sample, TimedPart, Turn};

    #[test]
    fn what_was_kept_is_recalled_and_what_is_damaged_is_not() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let journal = Journal::of(Some(folder.path()), Digest::of(b"question"));
        let (plan, baseline) = (Digest::of(b"plan"), Digest::of(b"default"));
        let sample = Sample { prompt: 90, token: 7 };
        let trial = Trial {
            plan,
            baseline,
            built: plan,
            turns: vec![Turn { baseline: sample, own: sample }],
            parts: vec![TimedPart { rows: vec![0, 0, 3], nanoseconds: vec![11] }],
        };
        assert_eq!(journal.recall(plan, baseline), Ok(None));
        journal.keep(&trial).expect("kept");
        assert_eq!(journal.recall(plan, baseline), Ok(Some(trial.clone())));
        assert_eq!(journal.recall(plan, plan), Ok(None), "beside another default plan");
        let path = journal.path(plan).expect("it is kept");
        let whole = std::fs::read_to_string(&path).expect("read");
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).expect("written");
            assert!(journal.recall(plan, baseline).is_err(), "{length}");
        }
        std::fs::write(&path, whole.replace("\"token\":7", "\"token\":6")).expect("written");
        assert!(journal.recall(plan, baseline).is_err());
        std::fs::write(&path, whole.replacen("\"version\":1", "\"version\":2", 1)).expect("written");
        assert_eq!(journal.recall(plan, baseline), Ok(None));
        let nowhere = Journal::of(None, plan);
        nowhere.keep(&trial).expect("nothing to do");
        assert_eq!(nowhere.recall(plan, baseline), Ok(None));
    }
}
