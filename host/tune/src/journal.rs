//! Trials in the cache: one file each, written whole or not at all, so that a kill loses the trial
//! at hand and no other.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use shardwright_bundle::Digest;
use shardwright_files::own;

use crate::TRIALS;
use crate::trial::Trial;

/// Version of the files; a file of another version counts as missing.
const VERSION: u32 = 1;
/// Most bytes read of a file: 256 shards at four entry points of as many layers stay below.
const FILE_BYTES: u64 = 16 << 20;

/// The trials of one question: model, chip, library, lowering, formats and goals.
#[derive(Clone, Debug)]
pub struct Journal {
    directory: Option<PathBuf>,
}

/// A trial as kept, with the hash of its bytes.
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
    /// That of a question in a cache directory; one that keeps nothing without a cache.
    pub fn of(cache: Option<&Path>, question: Digest) -> Journal {
        Journal { directory: cache.map(|cache| cache.join(TRIALS).join(question.to_string())) }
    }

    /// The folder, if trials are kept.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    fn path(&self, plan: Digest) -> Option<PathBuf> {
        Some(self.directory.as_ref()?.join(format!("{plan}.json")))
    }

    /// The trial of a plan beside that default plan; `None` if there is none. Fails, in words, if
    /// the file is damaged or another user may have written it.
    pub fn recall(&self, plan: Digest, baseline: Digest) -> Result<Option<Trial>, String> {
        let Some(path) = self.path(plan) else { return Ok(None) };
        let fault =
            |what: &dyn std::fmt::Display| format!("{}: {what}; it is measured again", path.display());
        let Some(bytes) = own::read(&path, FILE_BYTES).map_err(|error| fault(&error))? else {
            return Ok(None);
        };
        let kept: Kept = serde_json::from_slice(&bytes).map_err(|_| fault(&"is damaged"))?;
        if kept.version != VERSION {
            return Ok(None);
        }
        let check = Kept::of(kept.trial.clone()).map_err(|error| fault(&error))?.check;
        if kept.check != check || kept.trial.plan != plan {
            return Err(fault(&"is damaged"));
        }
        Ok((kept.trial.baseline == baseline).then_some(kept.trial))
    }

    /// Keeps a trial.
    ///
    /// # Errors
    ///
    /// That it cannot be written, or that the folder is not the user's own.
    pub fn keep(&self, trial: &Trial) -> std::io::Result<()> {
        let Some(path) = self.path(trial.plan) else { return Ok(()) };
        Ok(own::write(&path, &serde_json::to_vec(&Kept::of(trial.clone())?)?)?)
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
