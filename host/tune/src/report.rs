//! What tuning found.

use serde::Serialize;
use shardwright_build::{LossReport, MeasuredDraft};
use shardwright_doctor::PlanDifference;

use crate::spread::Spread;

/// What tuning found, from all trials so far.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TuneReport {
    /// Name of the model.
    pub model: String,
    /// The profile it is planned for.
    pub soc: String,
    /// What stands in for the planned targets, if something does.
    pub emulated_on: Option<String>,
    /// How it ended.
    pub outcome: Outcome,
    /// Tokens of the prompt that was run.
    pub prompt_tokens: u32,
    /// Tokens of a usual answer, over which the time of the prompt is spread; 0 if the time of a
    /// token alone counts.
    pub answer_tokens: u32,
    /// The default plan.
    pub before: TimedPlan,
    /// The plan that later commands with these options make.
    pub after: TimedPlan,
    /// Quotient of its time and the default plan's, in turns; `None` if it is the default plan.
    pub ratio: Option<Spread>,
    /// A setting of the planner with which the plan is faster than that, by more than its spread:
    /// pass it to later commands. It loses no more than the default plan.
    pub advice: Option<Tried>,
    /// The same of formats that lose more, or nobody knows what.
    pub trade: Option<Tried>,
    /// Every plan that was named, in that order, the default plan first.
    pub tried: Vec<Tried>,
    /// Rows of the cost table that were measured.
    pub measured_rows: usize,
    /// Rows that the target can run.
    pub rows: usize,
    /// The folder of the measured times that later plans rest on; `None` if none are kept.
    pub kept: Option<String>,
    /// What is known of smaller models as drafts of this one, of those that were measured with it.
    pub drafts: Vec<MeasuredDraft>,
    /// What changed from the default plan, as `plan diff` shows it.
    pub change: PlanDifference,
}

/// How tuning ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Later plans are faster than the default plan by more than the spread.
    Faster,
    /// Not as the planner plans by itself, but with a setting of it: the advice.
    FasterWithSetting,
    /// No plan that the planner names is faster by more than the spread.
    NothingToWin,
    /// The time was over before all plans were timed; the next call goes on.
    Unfinished,
}

impl Outcome {
    /// The name, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Outcome::Faster => "faster",
            Outcome::FasterWithSetting => "faster-with-setting",
            Outcome::NothingToWin => "nothing-to-win",
            Outcome::Unfinished => "unfinished",
        }
    }
}

/// A plan with its times.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimedPlan {
    /// Hash of what it builds.
    pub plan: String,
    /// What it loses by its formats.
    pub loss: LossReport,
    /// Names of its shards.
    pub shards: Vec<String>,
    /// Seconds from the prompt to the first token.
    pub prompt_seconds: Option<Spread>,
    /// Seconds of a token.
    pub token_seconds: Option<Spread>,
}

/// A plan that was named.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tried {
    /// How the planner was asked.
    pub asked: String,
    /// Hash of what it builds; `None` where the planner gave none.
    pub plan: Option<String>,
    /// Quotient of its time and the default plan's, in turns; `None` if it was not timed.
    pub ratio: Option<Spread>,
    /// What it loses by its formats; `None` where the planner gave no plan.
    pub loss: Option<LossReport>,
    /// What came of it, in words.
    pub result: String,
}
