use std::path::PathBuf;

use shardwright::SearchPath;
use shardwright_doctor::Inspected;

use super::{open_options, print};
use crate::arguments::{CompileArguments, Format};
use crate::outcome::{Failure, Outcome};
use crate::views;

/// Compiles a checkpoint into a bundle.
pub fn compile(
    arguments: &CompileArguments,
    format: Format,
    detail: views::Detail,
) -> Result<Outcome, Failure> {
    let options = open_options(&arguments.target, &arguments.execution)?;
    let mut watch = views::Progress::new("compiling", &arguments.checkpoint);
    let report = options.compile(&arguments.checkpoint, &arguments.output, &mut watch)?;
    drop(watch);
    for notice in &report.plan.notices {
        views::say(&format!("{}: {}", super::loudness(notice.kind), notice.text));
    }
    print(format, &report, |report| views::compiled(report, detail))
}

/// Shows the content of a file or directory; a damaged bundle is a separate outcome.
pub fn inspect(
    path: &PathBuf,
    verify: bool,
    soc: Option<&str>,
    search: &SearchPath,
    format: Format,
) -> Result<Outcome, Failure> {
    let busy = views::Busy::new("reading");
    let inspected = shardwright_doctor::inspect(path, verify, soc, search, |_| ())?;
    drop(busy);
    let intact = match &inspected {
        Inspected::Bundle(report) => report.inspection.intact,
        _ => true,
    };
    if let Some(unused) = unused(&inspected, verify, soc) {
        return Err(Failure::Arguments(format!("{unused}, and {} is none", path.display())));
    }
    print(format, &inspected, views::inspected)?;
    Ok(if intact { Outcome::Done } else { Outcome::Different })
}

/// The correct use of an option that was passed with another command.
fn unused(inspected: &Inspected, verify: bool, soc: Option<&str>) -> Option<&'static str> {
    match inspected {
        // The hash of an artefact is always checked, and so is that of a work order.
        Inspected::Bundle(_) | Inspected::Artefact(_) => None,
        Inspected::WorkOrder(_) => soc.map(|_| "--soc is for what was compiled"),
        Inspected::Checkpoint(_) if verify => Some("--verify is for bundles"),
        Inspected::Checkpoint(_) => soc.map(|_| "--soc is for what was compiled"),
        Inspected::Foreign(_) => verify.then_some("--verify is for bundles"),
    }
}
