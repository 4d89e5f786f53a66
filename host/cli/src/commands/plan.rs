//! Makes plans as a report and a page, and compares plans.

use std::path::{Path, PathBuf};

use shardwright::Pass;
use shardwright_files::output::OutputKind;
use shardwright_trust::Trust;

use super::{compare, draft, no_name_expected, open_options, print, print_by, trust};
use crate::arguments::{Format, PlanArguments, PlanCommand};
use crate::outcome::{Failure, Outcome};
use crate::views;

/// The page of a plan.
const PAGE: OutputKind = OutputKind { name: "the page of a plan", is_earlier: views::is_page };

/// Plans a checkpoint, or compares two plans.
pub fn plan(arguments: &PlanArguments, format: Format, detail: views::Detail) -> Result<Outcome, Failure> {
    match (&arguments.command, &arguments.checkpoint) {
        (Some(PlanCommand::Diff { before, after, trust, expected }), _) => {
            if ![before, after].iter().any(shardwright::is_bundle) {
                no_name_expected(before, expected)?;
            }
            difference((before, after), &trust::rules_for_bundle(trust, expected)?, format, detail)
        }
        (None, Some(checkpoint)) if arguments.target.socs().len() > 1 => {
            compare::compare(arguments, checkpoint, format, detail)
        }
        (None, Some(checkpoint)) => made(arguments, checkpoint, format, detail),
        (None, None) => Err(Failure::Arguments("no checkpoint is named".to_owned())),
    }
}

fn made(
    arguments: &PlanArguments,
    checkpoint: &Path,
    format: Format,
    detail: views::Detail,
) -> Result<Outcome, Failure> {
    let options = open_options(&arguments.target, &arguments.execution)?;
    if let Some(path) = &arguments.html {
        PAGE.expect_at(path)?;
    }
    let options = draft::planned(&arguments.drafts.drafts, options)?;
    let options = options.measuring(arguments.measuring.measuring());
    let options = match &arguments.write_request {
        Some(path) => options.request_file(path),
        None => options,
    };
    let mut watch = views::ProgressLine::new("planning", checkpoint);
    let planned = options.plan_watched(checkpoint, &mut watch)?;
    drop(watch);
    if let Some(path) = &arguments.html {
        PAGE.write(path, views::page(&planned.report).as_bytes())?;
        for tower in &planned.report.towers {
            PAGE.write(&beside(path, tower.pass()), views::page(tower).as_bytes())?;
        }
    }
    print(format, &planned.report, |report| views::plan(report, detail))
}

/// Returns the path of a tower's file, next to the file of the text: `plan.picture.html`.
fn beside(path: &Path, pass: Pass) -> PathBuf {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some(extension) => path.with_extension(format!("{pass}.{extension}")),
        None => path.with_extension(pass.to_string()),
    }
}

/// Compares two plans. A difference is a separate outcome.
fn difference(
    (before, after): (&Path, &Path),
    rules: &Trust,
    format: Format,
    detail: views::Detail,
) -> Result<Outcome, Failure> {
    let difference = shardwright_doctor::compare_plans(before, after, rules)?;
    print_by(rules, format, &difference, |difference| views::difference(difference, detail))?;
    Ok(if difference.same { Outcome::Done } else { Outcome::Different })
}
