use shardwright_doctor::DescribedMachine;
use shardwright_files::output::OutputKind;

use super::{print_by, search_path, trust};
use crate::arguments::{DoctorArguments, Format};
use crate::outcome::{Failure, Outcome};
use crate::views;

/// The description of a machine for `explain --device`.
const MACHINE: OutputKind =
    OutputKind { name: "the description of a machine", is_earlier: DescribedMachine::begins };

/// Prints the report in any case. The exit code is the code of the verdict.
pub fn doctor(
    arguments: &DoctorArguments,
    format: Format,
    detail: views::Detail,
) -> Result<Outcome, Failure> {
    if arguments.expected.expect.is_some() && arguments.bundle.is_none() {
        return Err(Failure::Arguments("--expect needs a bundle, and no bundle is named".to_owned()));
    }
    if let Some(path) = &arguments.report {
        MACHINE.expect_at(path)?;
    }
    let rules = trust::rules_for_bundle(&arguments.trust, &arguments.expected)?;
    let report = {
        let _busy = views::Busy::new("querying shims");
        let search = search_path(&arguments.shims, &arguments.planners, &arguments.profiles);
        shardwright_doctor::doctor(&search, arguments.bundle.as_deref(), &rules)?
    };
    if let Some(path) = &arguments.report {
        let described = super::json(&DescribedMachine::of(&report))?;
        MACHINE.write(path, described.as_bytes())?;
    }
    print_by(&rules, format, &report, |report| views::doctor(report, detail))?;
    report.verdict()?;
    Ok(Outcome::Done)
}
