//! The outcome of trying a plan, as plain data: the input of `revise`.

use serde::{Deserialize, Serialize};
use shardwright_vocabulary::{EntryName, ErrorClass};

use crate::plan::Plan;

/// One named detail of an error, such as `limit=ops`, `value=4821`, `max=4000`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Detail {
    /// Name.
    pub name: String,
    /// Value.
    pub value: String,
}

impl Detail {
    /// A detail of any printable value.
    pub fn new(name: impl Into<String>, value: impl ToString) -> Self {
        Self { name: name.into(), value: value.to_string() }
    }
}

/// How long one run of an entry point took on the device.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredTime {
    /// Entry point.
    pub entry: EntryName,
    /// Microseconds.
    pub microseconds: u64,
}

/// The outcome of one shard, or of the whole plan.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Feedback {
    /// Index of the shard in the plan; `None` if it concerns the whole plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<u32>,
    /// Why it was refused; `None` if it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<ErrorClass>,
    /// The refusal in words.
    pub message: String,
    /// Details a planner can act on.
    pub details: Vec<Detail>,
    /// Measured times.
    pub times: Vec<MeasuredTime>,
    /// Worst relative difference from the reference, in thousandths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift_per_mille: Option<u32>,
}

impl Feedback {
    /// A refusal of one shard.
    pub fn refused(shard: u32, class: ErrorClass, message: impl Into<String>, details: Vec<Detail>) -> Self {
        Self {
            shard: Some(shard),
            class: Some(class),
            message: message.into(),
            details,
            times: Vec::new(),
            drift_per_mille: None,
        }
    }

    /// The refusal of a shard that exceeds a limit: `limit=NAME value=VALUE max=MAX`, the maximum
    /// only if the compiler reported it.
    pub fn over_limit(shard: u32, limit: &str, value: u64, max: Option<u64>) -> Self {
        let mut details = vec![Detail::new("limit", limit), Detail::new("value", value)];
        let message = match max {
            Some(max) => {
                details.push(Detail::new("max", max));
                format!("{limit} is {value}, the target takes {max}")
            }
            None => format!("the target refuses {limit} of {value}"),
        };
        Self::refused(shard, ErrorClass::ResourceLimit, message, details)
    }
}

/// A plan that was tried, with its outcome.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attempt {
    /// The plan.
    pub plan: Plan,
    /// Its outcome.
    pub feedback: Vec<Feedback>,
}
