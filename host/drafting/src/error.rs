//! Errors that end the use of a draft.

use std::time::Duration;

use shardwright_vocabulary::ErrorKind;

/// A fault of a draft. No token is lost, as the model continues without the draft.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DraftError {
    /// The draft proposed an id that is not in the model's vocabulary.
    #[error("the draft `{draft}` proposed token {id}, and the model's vocabulary has {vocabulary}")]
    OutOfVocabulary {
        draft: String,
        id: u32,
        /// Size of the vocabulary.
        vocabulary: usize,
    },
    /// The draft proposed more tokens than requested.
    #[error("the draft `{draft}` proposed {proposed} tokens where at most {most} were asked for")]
    TooMany {
        draft: String,
        /// Number of proposed tokens.
        proposed: usize,
        /// Number of requested tokens.
        most: usize,
    },
    /// The draft states distributions, but not for every token, or wrong ones.
    #[error("the draft `{draft}` gives no distribution that token {index} of its proposal was drawn from")]
    Distribution {
        draft: String,
        /// Index in the proposal.
        index: usize,
    },
    /// The draft did not answer in time.
    #[error("the draft `{draft}` gave no answer within {} ms", after.as_millis())]
    NotAnswered {
        draft: String,
        /// Time limit for the answer.
        after: Duration,
    },
    /// The draft panicked, or its thread could not be started.
    #[error("the draft `{draft}` died: {reason}")]
    Died { draft: String, reason: String },
    /// The draft reported an error.
    #[error("the draft `{draft}` failed: {source}")]
    Failed { draft: String, source: Box<dyn std::error::Error + Send + Sync> },
}

impl DraftError {
    /// Returns the class of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            DraftError::OutOfVocabulary { .. } => ErrorKind::Incompatible,
            DraftError::TooMany { .. } | DraftError::Distribution { .. } => ErrorKind::Invalid,
            DraftError::NotAnswered { .. } | DraftError::Died { .. } | DraftError::Failed { .. } => {
                ErrorKind::Shim
            }
        }
    }

    /// Returns a suggestion for the user.
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
