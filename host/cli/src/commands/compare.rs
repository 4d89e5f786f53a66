//! Compares plans of one checkpoint for several chips.

use std::path::Path;

use serde::Serialize;
use shardwright::{Error, ErrorKind, PlanReport, Provenance};
use shardwright_build::{ForecastVerdict, GoalReport, Predicted, Speed};

use super::{draft, open_options, print};
use crate::arguments::{Format, PlanArguments};
use crate::outcome::{Failure, Outcome, code, help_of};
use crate::views;

/// The plans of a checkpoint for several chips.
#[derive(Serialize)]
pub struct Comparison {
    /// The chips for which planning succeeded, in the order in which they were named.
    pub chips: Vec<ComparedChip>,
    /// The other chips and their errors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<FailedChip>,
}

/// The plan for a chip.
#[derive(Serialize)]
pub struct ComparedChip {
    /// The chip's name in its profile.
    pub soc: String,
    /// Whether the plan fits, and the memory of the phase that needs most.
    #[serde(flatten)]
    pub verdict: ForecastVerdict,
    /// Time of each token after the prompt, or `None` for an embedding model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<Predicted>,
    /// Likely tokens in 1000 seconds after the prompt, or `None` for an embedding model.
    pub tokens_per_1000_seconds: Option<u64>,
    /// The goals that were set, and how the plan keeps them.
    pub goals: Vec<GoalReport>,
    /// Bytes of artefacts and gathered tables.
    pub bytes: u64,
    /// Where the bytes of artefacts, also of hedges, come from. Bytes of tables are counted.
    pub artefact_provenance: Provenance,
    /// The weakest source of the memory of the phase that needs most, or `None` if it is counted.
    pub memory_provenance: Option<Provenance>,
    /// Least bytes of the artefacts of hedges, in addition to `bytes`, or `None` without a hedge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hedge_bytes: Option<u64>,
    /// Loss in millionths of a nat per token, or `None` if it is unknown.
    pub loss_micronats: Option<u64>,
    pub shards: usize,
    /// The whole plan, with `-v`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<Box<PlanReport>>,
    /// Notices that every report must show, without `-v`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<shardwright::Notice>,
}

/// A chip for which planning failed.
#[derive(Serialize)]
pub struct FailedChip {
    /// The chip, as it was named.
    pub soc: String,
    pub error: String,
    /// The next step for the user.
    pub help: String,
}

impl ComparedChip {
    fn of(plan: PlanReport, detail: views::Detail) -> ComparedChip {
        let (token, rate) = match plan.forecast.speed {
            Speed::Tokens { each, per_1000_seconds, .. } => (Some(each), per_1000_seconds),
            Speed::Vector { .. } => (None, None),
        };
        let hedges = plan.fallback.iter().filter(|chain| chain.is_hedge());
        ComparedChip {
            soc: plan.soc.clone(),
            verdict: plan.forecast.verdict.clone(),
            token,
            tokens_per_1000_seconds: rate,
            goals: plan.goals.clone(),
            bytes: plan.totals.artefacts.bytes.saturating_add(plan.totals.table_bytes),
            artefact_provenance: plan.totals.artefacts.provenance,
            memory_provenance: plan.forecast.largest().and_then(|memory| memory.provenance),
            hedge_bytes: hedges.map(|chain| chain.bytes.unwrap_or(0)).reduce(u64::saturating_add),
            loss_micronats: plan.totals.loss.micronats(),
            shards: plan.shards.len(),
            notices: if detail.is_full() { Vec::new() } else { plan.notices.clone() },
            plan: detail.is_full().then(|| Box::new(plan)),
        }
    }
}

/// Plans for each named chip and compares the plans. After the report, fails with the error of the
/// largest exit code among the chips for which planning failed.
pub fn compare(
    arguments: &PlanArguments,
    checkpoint: &Path,
    format: Format,
    detail: views::Detail,
) -> Result<Outcome, Failure> {
    let of_one = [("--html", &arguments.html), ("--write-request", &arguments.write_request)];
    if let Some((name, _)) = of_one.into_iter().find(|(_, path)| path.is_some()) {
        return Err(Failure::Arguments(format!("{name} needs a single chip, and --soc names several")));
    }
    let options = open_options(&arguments.target, &arguments.execution)?;
    let options = draft::planned(&arguments.drafts.drafts, options)?;
    let options = options.measuring(arguments.measuring.measuring());
    let mut watch = views::ProgressLine::new("planning", checkpoint);
    let mut report = Comparison { chips: Vec::new(), failed: Vec::new() };
    let mut worst: Option<Error> = None;
    for soc in arguments.target.socs() {
        match options.for_chip(&soc).plan_watched(checkpoint, &mut watch) {
            Ok(planned) => report.chips.push(ComparedChip::of(planned.report, detail)),
            Err(error) if error.kind() == ErrorKind::Cancelled => return Err(error.into()),
            Err(error) => {
                let help = help_of(error.kind(), error.help().map(str::to_owned));
                report.failed.push(FailedChip { soc: soc.clone(), error: error.to_string(), help });
                worst = worst.filter(|worst| code(worst.kind()) >= code(error.kind()));
                worst.get_or_insert(error.at(soc));
            }
        }
    }
    drop(watch);
    let done = print(format, &report, |report| views::compared(report, detail))?;
    worst.map_or(Ok(done), |error| Err(error.into()))
}
