use shardwright::ErrorKind;

use super::{print, search_path};
use crate::arguments::{ExplainArguments, Format, PlannerPlaces};
use crate::outcome::{Failure, Outcome};
use crate::views;

/// Prints the report whatever it says; an error where nothing would run.
pub fn explain(arguments: &ExplainArguments, format: Format) -> Result<Outcome, Failure> {
    let ExplainArguments { bundle, soc, shims, profiles } = arguments;
    let report = {
        let _busy = views::Busy::new("asking shims");
        let search = search_path(shims, &PlannerPlaces::default(), profiles);
        shardwright_doctor::explain(bundle, soc.as_deref(), &search)?
    };
    print(format, &report, views::explained)?;
    if report.selection.candidates.is_empty() {
        return Err(Failure::Refused {
            kind: ErrorKind::Incompatible,
            message: format!("no chain of {} runs there", bundle.display()),
            help: "compile the checkpoint for that chip too, or for `generic`, which runs anywhere"
                .to_owned(),
        });
    }
    Ok(Outcome::Done)
}
