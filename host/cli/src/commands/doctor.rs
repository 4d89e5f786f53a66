use shardwright_doctor::DescribedMachine;

use super::{print_by, search_path, trust};
use crate::arguments::{DoctorArguments, Format};
use crate::outcome::{Failure, Outcome, io};
use crate::views;

/// Prints the report in any case. The exit code is the code of the verdict.
pub fn doctor(
    arguments: &DoctorArguments,
    format: Format,
    detail: views::Detail,
) -> Result<Outcome, Failure> {
    if arguments.expected.expect.is_some() && arguments.bundle.is_none() {
        return Err(Failure::Arguments("--expect needs a bundle, and none is named".to_owned()));
    }
    let rules = trust::rules_for_bundle(&arguments.trust, &arguments.expected)?;
    let report = {
        let _busy = views::Busy::new("asking shims");
        let search = search_path(&arguments.shims, &arguments.planners, &arguments.profiles);
        shardwright_doctor::doctor(&search, arguments.bundle.as_deref(), &rules)?
    };
    if let Some(path) = &arguments.report {
        let described = super::json(&DescribedMachine::of(&report))?;
        std::fs::write(path, described).map_err(io(path.display().to_string()))?;
    }
    print_by(&rules, format, &report, |report| views::doctor(report, detail))?;
    report.verdict()?;
    Ok(Outcome::Done)
}
