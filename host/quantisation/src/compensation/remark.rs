//! What there is to say of the moments that a weight is rounded by; kept with the weight, so that
//! it is said of one that was made before too.

use serde::{Deserialize, Serialize};

use crate::Note;

/// Something unusual about moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Remark {
    /// [`Note::Damped`].
    Damped { percent: u64 },
    /// [`Note::RowsAlone`].
    RowsAlone,
    /// [`Note::NotSeen`].
    NotSeen,
}

impl Remark {
    /// The same of a weight.
    pub fn of(self, weight: &str) -> Note {
        let weight = weight.to_owned();
        match self {
            Remark::Damped { percent } => Note::Damped { weight, percent },
            Remark::RowsAlone => Note::RowsAlone { weight },
            Remark::NotSeen => Note::NotSeen { weight },
        }
    }
}
