//! Compares two existing plans.

use std::path::Path;

use serde::Serialize;
use shardwright_build::PlanReport;
use shardwright_bundle::{Bundle, is_bundle};
use shardwright_files::read_named;
use shardwright_trust::Trust;
use shardwright_vocabulary::{Error, ErrorKind, Result, UniqueKeys};

mod difference;
mod facts;
#[cfg(test)]
mod tests;

pub use difference::{PlanChange, PlanTopic, PlanUnit, PlanValue};

/// Largest report that is read, in bytes. One with 256 shards and as many layers is far smaller.
const REPORT_BYTES_MAX: u64 = 64 << 20;

/// The changes from one plan to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlanDifference {
    pub before: ComparedPlan,
    pub after: ComparedPlan,
    /// Whether the plans are equal.
    pub same: bool,
    /// Everything that changed, by topic.
    pub changes: Vec<PlanChange>,
}

/// A plan that was compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ComparedPlan {
    /// The file or bundle with the plan, or its name.
    pub path: String,
    pub model: String,
    /// The profile of the plan.
    pub soc: String,
}

/// Compares two plans. Each is a report from `shardwright plan --format json`, or a bundle whose
/// signature complies with the rules. The plan of a bundle is that of its first chain.
///
/// # Errors
///
/// If a file cannot be read, is too long or is not such a report (the error names the file), or if
/// a bundle is damaged.
pub fn compare_plans(before: &Path, after: &Path, trust: &Trust) -> Result<PlanDifference> {
    let name = |path: &Path| path.display().to_string();
    Ok(compare_reports((&name(before), &read(before, trust)?), (&name(after), &read(after, trust)?)))
}

/// Compares two reports, each given with its name.
pub fn compare_reports(before: (&str, &PlanReport), after: (&str, &PlanReport)) -> PlanDifference {
    let changes = difference::between(before.1, after.1);
    let compared = |(path, report): (&str, &PlanReport)| ComparedPlan {
        path: path.to_owned(),
        model: report.model.clone(),
        soc: report.soc.clone(),
    };
    PlanDifference { before: compared(before), after: compared(after), same: changes.is_empty(), changes }
}

fn read(path: &Path, trust: &Trust) -> Result<PlanReport> {
    let bytes = match is_bundle(path) {
        true => recorded(path, trust)?,
        false => read_named(path, REPORT_BYTES_MAX)?,
    };
    let unique = serde_json::from_slice::<UniqueKeys>(&bytes);
    unique.and_then(|UniqueKeys| serde_json::from_slice(&bytes)).map_err(|error| {
        Error::new(ErrorKind::Invalid, format!("{}: not a plan of this version: {error}", path.display()))
            .with_help("create one with `shardwright plan CHECKPOINT --format json`")
    })
}

/// Reads the plan of a bundle's first chain.
fn recorded(path: &Path, trust: &Trust) -> Result<Vec<u8>> {
    let bundle = Bundle::open_trusting(path, trust)?;
    let report = bundle.variant().chains.first().and_then(|chain| chain.report);
    let Some(report) = report else {
        return Err(Error::new(ErrorKind::Missing, format!("{}: the bundle has no plan", path.display()))
            .with_help("compile the checkpoint again"));
    };
    bundle.read(&report)
}
