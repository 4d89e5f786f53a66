//! `planner`: checks, builds and packs planners.

use std::path::{Path, PathBuf};

use serde::Serialize;
use shardwright::{Error, SearchPath};
use shardwright_files::output::OutputKind;
use shardwright_planning::conformance::RuleVerdict;
use shardwright_trust::TrustOptions;

use super::print;
use crate::arguments::Format;
use crate::outcome::{Failure, Outcome, io};
use crate::views;

/// The component of a planner. All components of WebAssembly begin with these bytes.
const COMPONENT: OutputKind = OutputKind {
    name: "the component of a planner",
    is_earlier: |begin| begin.starts_with(b"\0asm\x0d\0\x01\0"),
};

/// Checks a planner against the rules. A broken rule is a separate outcome.
pub fn check(
    planner: &str,
    options: &[(String, String)],
    search: &SearchPath,
    trust: &TrustOptions,
    format: Format,
) -> Result<Outcome, Failure> {
    let busy = views::Busy::new("checking");
    let report = shardwright_doctor::check_planner(planner, options, search, trust)?;
    drop(busy);
    print(format, &report, views::checked)?;
    Ok(if report.verdict == RuleVerdict::Broken { Outcome::Different } else { Outcome::Done })
}

#[derive(Serialize)]
struct Built {
    component: PathBuf,
    bytes: u64,
}

/// Compiles the package in `package` and writes the component.
pub fn build(
    package: &Path,
    output: &Path,
    target_dir: Option<&Path>,
    format: Format,
) -> Result<Outcome, Failure> {
    let manifest = if package.is_dir() { package.join("Cargo.toml") } else { package.to_owned() };
    let folder = manifest.parent().unwrap_or(Path::new("."));
    let target_dir = target_dir.map_or_else(|| folder.join("target"), Path::to_owned);
    COMPONENT.expect_at(output)?;
    let busy = views::Busy::new("building");
    let component = shardwright_planner_build::build(&manifest, &target_dir).map_err(failed)?;
    drop(busy);
    written(output, &component, format)
}

/// Joins a policy with the planner in `solver`, or the built-in one, and writes the component.
pub fn compose(
    policy: &Path,
    solver: Option<&Path>,
    output: &Path,
    format: Format,
) -> Result<Outcome, Failure> {
    COMPONENT.expect_at(output)?;
    let read = |path: &Path| std::fs::read(path).map_err(io(path.display().to_string()));
    let solver = match solver {
        Some(path) => read(path)?,
        None => shardwright_planning::builtin::component().map_err(Error::from)?.to_vec(),
    };
    let component = shardwright_planner_build::compose(&read(policy)?, &solver).map_err(failed)?;
    written(output, &component, format)
}

fn written(output: &Path, component: &[u8], format: Format) -> Result<Outcome, Failure> {
    COMPONENT.write(output, component)?;
    let built = Built { component: output.to_owned(), bytes: component.len() as u64 };
    print(format, &built, |built| format!("{} bytes in {}\n", built.bytes, built.component.display()))
}

fn failed(error: Error) -> Failure {
    error.or_help("see the output of cargo; `shardwright planner new NAME` creates one that builds").into()
}
