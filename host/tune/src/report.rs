//! The results of tuning.

use serde::Serialize;
use shardwright_build::LossReport;
use shardwright_checkpoints::MeasuredDraft;
use shardwright_doctor::PlanDifference;

use crate::spread::Spread;

/// The results of tuning, from all trials so far.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TuneReport {
    pub model: String,
    /// The profile used for planning.
    pub soc: String,
    /// The executor that replaces the planned targets, if any.
    pub emulated_on: Option<String>,
    pub outcome: Outcome,
    /// Number of tokens in the prompt of the runs.
    pub prompt_tokens: u32,
    /// Number of tokens in a usual answer, over which the time of the prompt is spread. 0 if only
    /// the time of a token counts.
    pub answer_tokens: u32,
    /// The default plan.
    pub before: TimedPlan,
    /// The plan that later commands with these options use.
    pub after: TimedPlan,
    /// Time of that plan relative to the default plan, from alternating runs. `None` if it is the
    /// default plan.
    pub ratio: Option<Spread>,
    /// A setting of the planner that gives a faster plan, by more than its spread. Pass it to later
    /// commands. It does not lose more than the default plan.
    pub advice: Option<TriedPlan>,
    /// A setting that gives a faster plan, by more than its spread, with formats that lose more or
    /// whose loss is unknown.
    pub trade: Option<TriedPlan>,
    /// Every tried plan in order, starting with the default plan.
    pub tried: Vec<TriedPlan>,
    /// Number of measured rows of the cost table.
    pub measured_rows: usize,
    /// Number of rows that the target can run.
    pub rows: usize,
    /// The folder of the measured times that later plans use. `None` if none are stored.
    pub kept: Option<String>,
    /// Stored measurements of smaller models as drafts of this one.
    pub drafts: Vec<MeasuredDraft>,
    /// The changes from the default plan, as in `plan diff`.
    pub change: PlanDifference,
}

/// The outcome of tuning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Later plans are faster than the default plan by more than the spread.
    Faster,
    /// The planner's own plans are not faster, but a plan with a setting is: the advice.
    FasterWithSetting,
    /// None of the planner's plans is faster by more than the spread.
    NothingToWin,
    /// The time ended before all plans were timed. The next call continues.
    Unfinished,
}

impl Outcome {
    /// Returns the name, as in JSON.
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
    /// Hash of the plan's build.
    pub plan: String,
    /// Loss caused by its formats.
    pub loss: LossReport,
    pub shards: Vec<String>,
    /// Seconds from the prompt to the first token.
    pub prompt_seconds: Option<Spread>,
    /// Seconds per token.
    pub token_seconds: Option<Spread>,
}

/// A tried plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TriedPlan {
    /// The way it was requested.
    pub asked: String,
    /// Hash of the plan's build. `None` if the planner returned no plan.
    pub plan: Option<String>,
    /// Time relative to the default plan, from alternating runs. `None` if it was not timed.
    pub ratio: Option<Spread>,
    /// Loss caused by its formats. `None` if the planner returned no plan.
    pub loss: Option<LossReport>,
    /// The result in words.
    pub result: String,
}
