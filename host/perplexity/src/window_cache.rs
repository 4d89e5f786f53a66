//! Finished windows of an interrupted measurement. Each is one file, which is written atomically.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use shardwright_bundle::Digest;
use shardwright_files::private_files;

use crate::PERPLEXITIES;
use crate::score::WindowScore;

/// Maximum size of a file in bytes, enough for the scores of half a million tokens.
const FILE_BYTES: u64 = 64 << 20;

/// The folder of one measurement. `None` keeps no windows.
#[derive(Debug)]
pub(crate) struct WindowCache(Option<PathBuf>);

/// A finished window with the hash of its content.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptWindow {
    window: usize,
    score: WindowScore,
    check: Digest,
}

impl KeptWindow {
    fn of(window: usize, score: WindowScore) -> std::io::Result<Self> {
        let check = Digest::of(&serde_json::to_vec(&(window, &score))?);
        Ok(KeptWindow { window, score, check })
    }
}

impl WindowCache {
    /// Opens the folder of a measurement in the cache. `place` is the cache, and the hash of
    /// everything that scores depend on.
    pub fn of(place: Option<(&Path, Digest)>) -> Self {
        WindowCache(place.map(|(cache, question)| cache.join(PERPLEXITIES).join(question.to_string())))
    }

    fn path(&self, window: usize) -> Option<PathBuf> {
        Some(self.0.as_ref()?.join(format!("{window}.json")))
    }

    /// Returns the folder if windows are kept.
    pub fn folder(&self) -> Option<&Path> {
        self.0.as_deref()
    }

    /// Reads a window with `tokens` scores. Returns `None` if it was not kept. The error describes
    /// a file that is damaged or belongs to another user.
    pub fn recall(&self, window: usize, tokens: usize) -> Result<Option<WindowScore>, String> {
        let Some(path) = self.path(window) else { return Ok(None) };
        let fault = |what: &dyn std::fmt::Display| format!("{}: {what}. Measuring it again", path.display());
        let Some(bytes) = private_files::read(&path, FILE_BYTES).map_err(|error| fault(&error))? else {
            return Ok(None);
        };
        let kept: KeptWindow = serde_json::from_slice(&bytes).map_err(|_| fault(&"damaged"))?;
        let again = KeptWindow::of(kept.window, kept.score).map_err(|error| fault(&error))?;
        if again.check != kept.check || again.window != window || !again.score.has(tokens) {
            return Err(fault(&"damaged"));
        }
        Ok(Some(again.score))
    }

    /// Writes a finished window.
    ///
    /// # Errors
    ///
    /// The file cannot be written, or the folder belongs to another user.
    pub fn keep(&self, window: usize, score: &WindowScore) -> shardwright_vocabulary::Result<()> {
        let Some(path) = self.path(window) else { return Ok(()) };
        let kept = KeptWindow::of(window, score.clone())?;
        let content = serde_json::to_vec(&kept).map_err(std::io::Error::from)?;
        private_files::write(&path, &content)
    }

    /// Removes all windows after the measurement is complete, so that the next call measures again.
    ///
    /// # Errors
    ///
    /// The folder cannot be removed.
    pub fn clear(&self) -> std::io::Result<()> {
        match self.folder() {
            Some(folder) if folder.exists() => std::fs::remove_dir_all(folder),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::score::Against;

    #[test]
    fn whole_windows_are_recalled_and_damaged_ones_are_not() {
        let cache = tempfile::tempdir().expect("a temporary folder");
        let kept = WindowCache::of(Some((cache.path(), Digest::of(b"question"))));
        let against = Against { nll: vec![0.3], kl: vec![1e-300], same_top: vec![true] };
        let score = WindowScore { nll: vec![0.1 + 0.2], against: Some(against) };
        assert_eq!(kept.recall(3, 1), Ok(None));
        kept.keep(3, &score).expect("kept");
        assert_eq!(kept.recall(3, 1), Ok(Some(score.clone())));
        assert_eq!(kept.recall(2, 1), Ok(None));
        assert!(kept.recall(3, 2).is_err(), "another number of tokens");
        let path = kept.path(3).expect("a path");
        let whole = std::fs::read_to_string(&path).expect("read");
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).expect("written");
            let fault = kept.recall(3, 1).expect_err("damaged");
            assert!(fault.contains("damaged. Measuring it again"), "{fault}");
        }
        std::fs::write(&path, whole.replace("true", "false")).expect("written");
        assert!(kept.recall(3, 1).is_err());
        kept.clear().expect("removed");
        assert_eq!(kept.recall(3, 1), Ok(None));
        kept.clear().expect("nothing to do");
    }

    #[test]
    fn without_a_cache_nothing_is_kept() {
        let nowhere = WindowCache::of(None);
        nowhere.keep(0, &WindowScore::default()).expect("nothing to do");
        assert_eq!((nowhere.recall(0, 0), nowhere.folder()), (Ok(None), None));
        nowhere.clear().expect("nothing to do");
    }
}
