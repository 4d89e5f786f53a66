use std::path::PathBuf;

use super::{open_options, print, search_path};
use crate::arguments::{CompileArguments, Format, PlaceArguments};
use crate::outcome::{Failure, Outcome};
use crate::views;

/// Compiles a checkpoint into a bundle.
pub fn compile(arguments: &CompileArguments, format: Format) -> Result<Outcome, Failure> {
    let options = open_options(&arguments.target, &arguments.execution);
    let mut watch = views::Progress::new();
    let report = options.compile(&arguments.checkpoint, &arguments.output, &mut watch)?;
    drop(watch);
    for notice in &report.plan.notices {
        eprintln!("{}: {}", super::loudness(notice.kind), notice.text);
    }
    print(format, &report, views::compiled)
}

/// Shows what a file or directory says of itself; a damaged bundle is an outcome of its own.
pub fn inspect(
    path: &PathBuf,
    verify: bool,
    soc: Option<&str>,
    places: &PlaceArguments,
    format: Format,
) -> Result<Outcome, Failure> {
    let busy = views::Busy::new("reading");
    let inspected = shardwright::inspect(path, verify, soc, &search_path(places), |_| ())?;
    drop(busy);
    let intact = match &inspected {
        shardwright::Inspected::Bundle(report) => report.inspection.intact,
        _ => true,
    };
    print(format, &inspected, views::inspected)?;
    Ok(if intact { Outcome::Done } else { Outcome::Different })
}
