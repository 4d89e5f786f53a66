//! Remarks about the moments used for rounding a weight. They are stored with the weight, so that a
//! reused weight reports them too.

use serde::{Deserialize, Serialize};

use crate::Note;

/// An unusual property of moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum MomentWarning {
    /// Becomes a [`Note::Damped`].
    Damped { percent: u64 },
    /// Becomes a [`Note::RowsAlone`].
    RowsAlone,
    /// Becomes a [`Note::NotSeen`].
    NotSeen,
}

impl MomentWarning {
    /// Converts the remark to a note about a weight.
    pub fn of(self, weight: &str) -> Note {
        let weight = weight.to_owned();
        match self {
            MomentWarning::Damped { percent } => Note::Damped { weight, percent },
            MomentWarning::RowsAlone => Note::RowsAlone { weight },
            MomentWarning::NotSeen => Note::NotSeen { weight },
        }
    }
}
