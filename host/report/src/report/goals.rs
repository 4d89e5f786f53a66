//! The goals of a plan, and its predictions for them.

use serde::{Deserialize, Serialize};
use shardwright_planning::check::CheckedPlan;
use shardwright_planning::hedge;
use shardwright_planning::request::Request;
use shardwright_planning::times::plan_times;
use shardwright_vocabulary::units::{against_goal, goal};
use shardwright_vocabulary::{EntryKind, GoalVerdict, Notice, Provenance, TimeCost};

use super::{LossReport, PlanTotals};
use crate::interval_text::IntervalText;

/// The quantity of a goal, and its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// Maximum quality loss in millionths of a nat per token.
    Quality,
    /// Maximum bytes of artefacts and states of all shards.
    Memory,
    /// Minimum context in tokens.
    Context,
    /// Maximum rows of a prefill or encode entry point.
    PrefillRows,
    /// Maximum bytes of artefacts of all shards, of hedges and of gathered tables.
    Size,
    /// Maximum microseconds per generated token.
    Token,
    /// Maximum microseconds from a prompt to the first token of its answer.
    FirstToken,
}

impl Goal {
    /// Returns the stable kebab-case name.
    pub const fn name(self) -> &'static str {
        match self {
            Goal::Quality => "quality",
            Goal::Memory => "memory",
            Goal::Context => "context",
            Goal::PrefillRows => "prefill-rows",
            Goal::Size => "size",
            Goal::Token => "token",
            Goal::FirstToken => "first-token",
        }
    }

    /// Returns whether the goal is a lower bound. Other goals are upper bounds.
    pub const fn is_least(self) -> bool {
        matches!(self, Goal::Context)
    }
}

/// A goal and the plan's prediction for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoalReport {
    /// The quantity that is bounded.
    pub goal: Goal,
    /// The requested bound.
    pub asked: u64,
    /// The least value that is expected, or `None` if the error of the prediction is unknown.
    pub low: Option<u64>,
    /// The prediction of the plan, or `None` if it is unknown.
    pub predicted: Option<u64>,
    /// The largest value that is expected, or `None` if the error of the prediction is unknown.
    pub high: Option<u64>,
    /// Where the prediction comes from, or `None` if the plan itself decides the number.
    pub provenance: Option<Provenance>,
    /// How the plan keeps the goal, or `None` without a prediction.
    pub verdict: Option<GoalVerdict>,
}

impl GoalReport {
    /// Judges a single number. It is exact unless a formula estimated it. The error of a formula is
    /// unknown, so its number is at best likely to keep the goal.
    pub(super) fn of(goal: Goal, asked: u64, predicted: Option<u64>, provenance: Option<Provenance>) -> Self {
        let is_exact = provenance != Some(Provenance::Modelled);
        let exact = predicted.filter(|_| is_exact);
        let keeps = |value: u64| if goal.is_least() { value >= asked } else { value <= asked };
        let verdict = predicted.map(|predicted| match (keeps(predicted), is_exact) {
            (true, true) => GoalVerdict::Met,
            (true, false) => GoalVerdict::Likely,
            (false, false) => GoalVerdict::Unlikely,
            (false, true) => GoalVerdict::Missed,
        });
        GoalReport { goal, asked, low: exact, predicted, high: exact, provenance, verdict }
    }

    /// Judges a time by its interval.
    fn of_time(goal: Goal, asked: u64, time: Option<TimeCost>) -> Self {
        GoalReport {
            goal,
            asked,
            low: time.map(|time| time.low),
            predicted: time.map(|time| time.microseconds),
            high: time.map(|time| time.high),
            provenance: time.map(|time| time.provenance),
            verdict: time.map(|time| time.verdict(asked)),
        }
    }

    /// Formats the bound: `token ≤ 16.7 ms`.
    pub fn bound(&self) -> String {
        let sign = if self.goal.is_least() { "≥" } else { "≤" };
        format!("{} {sign} {}", self.goal.name(), self.bounding())
    }

    /// Formats the amount of the bound as it was stated: `7 GB (6.5 GiB)`. It has as many digits as
    /// it needs to differ from the prediction.
    pub fn bounding(&self) -> String {
        match (self.goal, self.predicted) {
            (Goal::Token | Goal::FirstToken, _) | (_, None) => goal(self.goal.name(), self.asked),
            (_, Some(predicted)) => {
                let [_, asked] = against_goal(self.goal.name(), predicted, self.asked);
                asked
            }
        }
    }

    /// Formats the prediction with its interval and its source, or returns `None` without a
    /// prediction: `about 52 ms (20 to 130; modelled)`.
    pub fn prediction(&self) -> Option<String> {
        let predicted = self.predicted?;
        let [shown, _] = against_goal(self.goal.name(), predicted, self.asked);
        Some(match (self.provenance, self.goal, self.low, self.high) {
            (None, ..) => shown,
            (Some(provenance), Goal::Token | Goal::FirstToken, Some(low), Some(high)) => {
                let time = TimeCost::within(low, predicted, high, provenance);
                IntervalText::time(&time).with(provenance.name())
            }
            (Some(provenance), ..) => format!("{shown} ({provenance})"),
        })
    }

    /// Returns a notice if the goal is unlikely to be met. Strict plans refuse it.
    pub fn notice(&self) -> Option<Notice> {
        let prediction = self.prediction().filter(|_| self.verdict == Some(GoalVerdict::Unlikely))?;
        Some(Notice::fallback(format!(
            "the goal {} is unlikely to be met: the prediction is {prediction}",
            self.bound()
        )))
    }
}

/// Returns the goals that were set.
pub(super) fn goals(request: &Request, plan: &CheckedPlan, totals: &PlanTotals) -> Vec<GoalReport> {
    let asked = &request.goals;
    let mut found = Vec::new();
    if let Some(micronats) = asked.quality_micronats {
        let (predicted, provenance) = match totals.loss {
            LossReport::None => (Some(0), None),
            LossReport::Measured { micronats } => (Some(micronats), Some(Provenance::Measured)),
            LossReport::Expected { micronats, .. } => (Some(micronats), Some(Provenance::Modelled)),
            LossReport::NotMeasured { .. } => (None, None),
        };
        found.push(GoalReport::of(Goal::Quality, micronats, predicted, provenance));
    }
    let artefacts = totals.artefacts;
    if let Some(bytes) = asked.memory_bytes {
        let held = artefacts.bytes.saturating_add(totals.state_bytes);
        found.push(GoalReport::of(Goal::Memory, bytes, Some(held), Some(artefacts.provenance)));
    }
    if asked.context > 0 {
        let context = plan.shards().iter().map(|shard| shard.planned.context).min();
        found.push(GoalReport::of(Goal::Context, asked.context.into(), context.map(u64::from), None));
    }
    let rows = plan.shards().iter().flat_map(|shard| &shard.planned.entries);
    let rows = rows.filter(|entry| entry.kind != EntryKind::Decode).map(|entry| entry.rows).max();
    let most_rows = asked.max_prefill_rows.into();
    found.push(GoalReport::of(Goal::PrefillRows, most_rows, rows.map(u64::from), None));
    if let Some(bytes) = asked.size_bytes {
        let hedges = hedge::bytes(request, plan.plan());
        let size = artefacts.bytes.saturating_add(totals.table_bytes).saturating_add(hedges);
        found.push(GoalReport::of(Goal::Size, bytes, Some(size), Some(artefacts.provenance)));
    }
    let times = plan_times(request, plan);
    if let Some(most) = asked.token_microseconds {
        found.push(GoalReport::of_time(Goal::Token, most, Some(times.token)));
    }
    if let Some(most) = asked.first_token_microseconds {
        found.push(GoalReport::of_time(Goal::FirstToken, most, times.first_token));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_a_formula_is_at_best_likely() {
        let of = |goal, predicted, provenance| GoalReport::of(goal, 100, Some(predicted), provenance);
        let cases = [
            (of(Goal::Size, 100, Some(Provenance::Declared)), GoalVerdict::Met),
            (of(Goal::Size, 101, Some(Provenance::Declared)), GoalVerdict::Missed),
            (of(Goal::Size, 100, Some(Provenance::Modelled)), GoalVerdict::Likely),
            (of(Goal::Size, 101, Some(Provenance::Modelled)), GoalVerdict::Unlikely),
            (of(Goal::Context, 101, None), GoalVerdict::Met),
            (of(Goal::Context, 99, None), GoalVerdict::Missed),
        ];
        for (report, verdict) in cases {
            assert_eq!(report.verdict, Some(verdict), "{report:?}");
            let is_modelled = report.provenance == Some(Provenance::Modelled);
            assert_eq!((report.low.is_none(), report.high.is_none()), (is_modelled, is_modelled));
            assert_eq!(report.notice().is_some(), verdict == GoalVerdict::Unlikely, "{report:?}");
        }
        let near = GoalReport::of(Goal::Size, 4_000_000_000, Some(4_015_934_808), Some(Provenance::Modelled));
        let shown = (near.bound(), near.prediction().unwrap());
        assert_eq!(shown, ("size ≤ 4 GB (3.73 GiB)".to_owned(), "3.74 GiB (modelled)".to_owned()));
        let unknown = GoalReport::of(Goal::Quality, 100, None, None);
        assert_eq!((unknown.verdict, unknown.prediction(), unknown.notice()), (None, None, None));
    }

    #[test]
    fn a_goal_for_a_time_is_judged_by_the_interval() {
        let time = TimeCost::within(20_000, 52_000, 130_000, Provenance::Simulated);
        let of = |most| GoalReport::of_time(Goal::Token, most, Some(time));
        let verdicts = [130_000, 60_000, 30_000, 10_000].map(|most| of(most).verdict);
        let expected =
            [GoalVerdict::Met, GoalVerdict::Likely, GoalVerdict::Unlikely, GoalVerdict::Missed].map(Some);
        assert_eq!(verdicts, expected);
        let unlikely = of(30_000);
        let text = "the goal token ≤ 30 ms is unlikely to be met: the prediction is about 52 ms (20 to 130; \
                    simulated)";
        assert_eq!(unlikely.notice(), Some(Notice::fallback(text)));
        assert_eq!([60_000, 10_000].map(|most| of(most).notice()), [None, None]);
        assert_eq!(of(55_555).bound(), "token ≤ 55.6 ms (18 tokens/s)");
        let unread = GoalReport::of_time(Goal::FirstToken, 1, None);
        assert_eq!((unread.predicted, unread.verdict), (None, None));
    }
}
