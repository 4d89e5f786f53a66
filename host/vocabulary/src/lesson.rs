use serde::{Deserialize, Serialize};

/// A limit that a refusal showed about a target, which later plans should keep.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lesson {
    /// Index of the target in the request.
    pub target: u32,
    /// Kebab-case name of the limit, see [`limit_names`](crate::limit_names).
    pub limit: String,
    /// Largest value that should be tried. The unit follows from the name.
    pub value: u64,
    /// The refusal behind the limit, in one sentence.
    pub because: String,
}
