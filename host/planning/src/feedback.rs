//! The outcome of trying a plan, as plain data: the input of `revise`.

use serde::{Deserialize, Serialize};
use shardwright_vocabulary::{EntryName, ErrorClass};

use crate::plan::Plan;

/// One named detail of an error, such as `limit=ops`, `value=4821`, `max=4000`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Detail {
    pub name: String,
    pub value: String,
}

impl Detail {
    /// Creates a detail from any printable value.
    pub fn new(name: impl Into<String>, value: impl ToString) -> Self {
        Self { name: name.into(), value: value.to_string() }
    }
}

/// Measured time of one run of an entry point on the device.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredTime {
    pub entry: EntryName,
    pub microseconds: u64,
}

/// The outcome of one shard, or of the whole plan.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Feedback {
    /// Index of the shard in the plan. `None` if the outcome concerns the whole plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<u32>,
    /// Class of the refusal. `None` if the shard ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<ErrorClass>,
    /// Text of the refusal.
    pub message: String,
    /// Details that a planner can act on.
    pub details: Vec<Detail>,
    pub times: Vec<MeasuredTime>,
    /// Largest relative difference from the reference, in thousandths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift_per_mille: Option<u32>,
}

impl Feedback {
    /// Creates the feedback for a refused shard.
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

    /// Creates the feedback for a shard that exceeds a limit: `limit=NAME value=VALUE max=MAX`,
    /// with the maximum only if the compiler reported it.
    pub fn over_limit(shard: u32, limit: &str, value: u64, max: Option<u64>) -> Self {
        let mut details = vec![Detail::new("limit", limit), Detail::new("value", value)];
        let message = match max {
            Some(max) => {
                details.push(Detail::new("max", max));
                format!("{limit} is {value}, the target accepts at most {max}")
            }
            None => format!("the target does not accept {limit} of {value}"),
        };
        Self::refused(shard, ErrorClass::ResourceLimit, message, details)
    }
}

/// A plan that was tried, with its outcome.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attempt {
    pub plan: Plan,
    /// Outcome of the plan.
    pub feedback: Vec<Feedback>,
}
