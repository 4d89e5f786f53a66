//! Why a draft is not asked again.

use std::time::Duration;

use shardwright_vocabulary::ErrorKind;

/// A fault of a draft. It costs no token: the model goes on without the draft.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DraftError {
    /// It proposed an id that the model has no token for.
    #[error("the draft `{draft}` proposed token {id}, and the model's vocabulary has {vocabulary}")]
    OutOfVocabulary {
        /// Its name.
        draft: String,
        /// The id.
        id: u32,
        /// Entries of the vocabulary.
        vocabulary: usize,
    },
    /// It proposed more than it was asked for.
    #[error("the draft `{draft}` proposed {proposed} tokens where at most {most} were asked for")]
    TooMany {
        /// Its name.
        draft: String,
        /// Tokens proposed.
        proposed: usize,
        /// Tokens asked for.
        most: usize,
    },
    /// It says what it drew its tokens from, but not for each of them, or something else.
    #[error("the draft `{draft}` gives no distribution that token {index} of its proposal was drawn from")]
    Distribution {
        /// Its name.
        draft: String,
        /// Index in the proposal.
        index: usize,
    },
    /// It gave no answer.
    #[error("the draft `{draft}` gave no answer within {} ms", after.as_millis())]
    NotAnswered {
        /// Its name.
        draft: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// It panicked, or its thread could not be started.
    #[error("the draft `{draft}` died: {reason}")]
    Died {
        /// Its name.
        draft: String,
        /// What is known.
        reason: String,
    },
    /// It failed.
    #[error("the draft `{draft}` failed: {source}")]
    Failed {
        /// Its name.
        draft: String,
        /// Its error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl DraftError {
    /// The class of error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            DraftError::OutOfVocabulary { .. } => ErrorKind::Incompatible,
            DraftError::TooMany { .. } | DraftError::Distribution { .. } => ErrorKind::Invalid,
            DraftError::NotAnswered { .. } | DraftError::Died { .. } | DraftError::Failed { .. } => {
                ErrorKind::Shim
            }
        }
    }

    /// What would help.
    pub fn help(&self) -> String {
        match self {
            DraftError::OutOfVocabulary { .. } => "use a draft model with the tokenizer of the model".into(),
            DraftError::TooMany { .. } | DraftError::Distribution { .. } => {
                "correct the draft, or go on without it: text is the same, in more steps".into()
            }
            DraftError::NotAnswered { .. } => "use a faster draft, or wait longer for it".into(),
            DraftError::Died { .. } | DraftError::Failed { .. } => {
                "go on without it: text is the same, in more steps".into()
            }
        }
    }
}
