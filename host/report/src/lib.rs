//! Shows a checked plan to people and programs.
//!
//! **Job.** Turns a checked plan and its request into the data of a report ([`report_plan`]):
//! shards, layers, limits, goals, losses and reasons. It predicts the demands of the plan on a
//! device ([`forecast()`]): memory, download and times.
//!
//! **Not its job.** It makes no plans, measures nothing and prints nothing.

mod forecast;
mod interval_text;
mod report;

pub use forecast::{Making, Weighed, forecast, stored_bytes};
pub use interval_text::IntervalText;
pub use report::{
    BoundaryReport, BytesReport, Download, DownloadBasis, EntryReport, EntryTime, FallbackReport, Figure,
    Fits, Forecast, ForecastVerdict, Goal, GoalReport, LayerReport, LimitUse, LossReport, MeasuredLoss,
    MemoryPart, Phase, PhaseMemory, PlanHeading, PlanReport, PlanTotals, Predicted, ReasonReport,
    ShardReport, Speed, TableReport, TargetLimit, TargetLimitUse, TimeShare, report_plan,
};
