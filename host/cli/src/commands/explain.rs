use shardwright::ErrorKind;
use shardwright_doctor::About;

use super::{print_by, search_path, trust};
use crate::arguments::{ExplainArguments, Format, PlannerPlaces};
use crate::outcome::{Failure, Outcome};
use crate::views;

/// Prints the report in any case. Fails if no chain would run.
pub fn explain(arguments: &ExplainArguments, format: Format) -> Result<Outcome, Failure> {
    let ExplainArguments { bundle, soc, device, shims, profiles, expected, trust } = arguments;
    let rules = trust::rules_for_bundle(trust, expected)?;
    let about = match (soc, device) {
        (_, Some(device)) => About::Described(device),
        (Some(soc), None) => About::Chip(soc),
        (None, None) => About::Here,
    };
    let report = {
        let _busy = views::Busy::new("querying shims");
        let search = search_path(shims, &PlannerPlaces::default(), profiles);
        shardwright_doctor::explain(bundle, about, &search, &rules)?
    };
    print_by(&rules, format, &report, views::explained)?;
    if report.selection.candidates.is_empty() {
        let chip = match about {
            About::Chip(soc) => format!("`{soc}`"),
            About::Here | About::Described(_) => "the chip of that machine".to_owned(),
        };
        return Err(Failure::Refused {
            kind: ErrorKind::Incompatible,
            message: format!("no chain of {} can run there", bundle.display()),
            help: format!("compile the checkpoint for {chip} too, or for `generic`, which runs anywhere"),
        });
    }
    Ok(Outcome::Done)
}
