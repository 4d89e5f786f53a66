//! Fields and files of a model that have no effect.

#[cfg(feature = "build")]
use std::path::Path;
use std::sync::Arc;

#[cfg(feature = "build")]
use shardwright_build::PlanOptions;
use shardwright_bundle::Bundle;
#[cfg(feature = "build")]
use shardwright_checkpoints::{expect_checkpoint, towers_of};
#[cfg(feature = "build")]
use shardwright_files::eviction;
#[cfg(feature = "build")]
use shardwright_models::Checkpoint;
use shardwright_vocabulary::{Ignored, Notice};

use crate::text_side::{TextSide, TokenizerStart};
use crate::{Error, ErrorKind, Result};

/// The fields and files of a model that have no effect, because they are unknown or although they
/// may change replies.
#[derive(Debug, Default)]
pub struct IgnoredFields {
    /// The fields and files.
    pub fields: Vec<Ignored>,
    /// The error of a text file that could not be read, so that its fields are not checked.
    pub unread: Option<Error>,
}

impl IgnoredFields {
    /// Returns the fields and files of a checkpoint: its generation settings and tokenizer, its
    /// configuration, and unused files of its folder. An index of the tokenizer is kept in `cache`,
    /// if it is set.
    #[cfg(feature = "build")]
    pub fn of_checkpoint(checkpoint: &Checkpoint, cache: Option<&Path>) -> Self {
        let (directory, limit) = (checkpoint.directory(), eviction::CACHE_BYTES_MAX);
        let texts = Self::of_texts(TextSide::load(directory, cache, limit, TokenizerStart::WhenAsked));
        IgnoredFields { fields: [&*texts.fields, checkpoint.ignored()].concat(), ..texts }
    }

    /// Returns the fields of a bundle's text files. The notices of its variants name the other
    /// fields of its checkpoint.
    pub fn of_bundle(bundle: &Arc<Bundle>) -> Self {
        Self::of_texts(TextSide::of_bundle(bundle, TokenizerStart::WhenAsked, None))
    }

    fn of_texts(texts: Result<TextSide>) -> Self {
        match texts {
            Ok(texts) => texts.ignored_fields(),
            Err(error) => IgnoredFields { unread: Some(error), ..IgnoredFields::default() },
        }
    }

    /// Returns a notice for each field and file.
    ///
    /// # Errors
    ///
    /// The error of a text file that could not be read: the model cannot be run or compiled.
    pub fn into_notices(self) -> Result<Vec<Notice>> {
        self.unread.map_or(Ok(()), Err)?;
        Ok(self.fields.iter().map(notice_of).collect())
    }

    /// Rejects a model with ignored fields, for callers under `strict`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Strict`] with the first field or file, and the error of a text file that could
    /// not be read.
    pub fn expect_none(self) -> Result<()> {
        if let Some(field) = self.fields.first() {
            return Err(Error::new(ErrorKind::Strict, field.to_string()));
        }
        self.unread.map_or(Ok(()), Err)
    }
}

/// Returns the notice about a field or file.
pub(crate) fn notice_of(ignored: &Ignored) -> Notice {
    Notice::fallback(ignored.to_string())
}

/// Does `work` for a checkpoint while its tokenizer is read in parallel. Also returns notices about
/// fields of its text files, and of the processor's settings if towers are planned.
///
/// # Errors
///
/// Fails with errors of `work` and of the text files. Under `strict`, also with errors of
/// [`IgnoredFields::expect_none`], before `work` begins.
#[cfg(feature = "build")]
pub(crate) fn reading_texts<T>(
    checkpoint: &Path,
    options: &PlanOptions,
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, Vec<Notice>)> {
    expect_checkpoint(checkpoint)?;
    let (cache, limit) = (options.cache.as_deref(), options.cache_bytes_max());
    let texts = TextSide::load(checkpoint, cache, limit, TokenizerStart::Beside)?;
    let ignored = || {
        let mut ignored = texts.ignored_fields();
        ignored.fields.extend(of_processor(checkpoint, options));
        ignored
    };
    if options.strict {
        ignored().expect_none()?;
        return Ok((work()?, Vec::new()));
    }
    let done = work()?;
    Ok((done, ignored().into_notices()?))
}

/// Returns the fields of the processor's settings that have no effect, if towers are planned. An
/// error of the settings is an error of the plan too, which reports it.
#[cfg(feature = "build")]
fn of_processor(checkpoint: &Path, options: &PlanOptions) -> Vec<Ignored> {
    let scope = towers_of(checkpoint, options).ok().and_then(|(scopes, _)| scopes.into_iter().next());
    scope.map(|scope| scope.processor.ignored).unwrap_or_default()
}
