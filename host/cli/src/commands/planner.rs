//! `planner`: checking, building, keys and packs.

use std::path::{Path, PathBuf};

use serde::Serialize;
use shardwright::ErrorKind;
use shardwright_doctor::{AskedReport, AskedShardReport, PlannerReport};
use shardwright_planner_build::BuildError;

use super::print;
use crate::arguments::Format;
use crate::outcome::{Failure, Outcome, io};
use crate::views;

/// What a planner says of itself, and its plan.
pub fn view(report: &PlannerReport) -> String {
    use std::fmt::Write;
    let mut text = format!("{} {}: {}\n", report.name, report.version, report.summary);
    for option in &report.options {
        let _ = writeln!(text, "  --planner-option {}={}  {}", option.name, option.values, option.summary);
    }
    for notice in &report.notices {
        let _ = writeln!(text, "note: {notice}");
    }
    for line in &report.log {
        let _ = writeln!(text, "log: {line}");
    }
    if let Some(AskedReport { request, model, targets, fuel, fuel_limit, seconds, shards }) = &report.asked {
        let targets = targets.join(", ");
        let _ = writeln!(text, "asked     {model} on {targets} (request: {request})");
        let _ = writeln!(text, "used      {fuel} of {fuel_limit} units of fuel, {:.1} ms", seconds * 1e3);
        for (index, AskedShardReport { shard, target, formats }) in shards.iter().enumerate() {
            let begin = if index == 0 { "plan" } else { "" };
            let _ = writeln!(text, "{begin:<10}{shard} on {target}, {formats}");
        }
    }
    if let Some(outcome) = &report.outcome {
        let _ = writeln!(text, "{outcome}");
    }
    text
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
    let read = |path: &Path| std::fs::read(path).map_err(io(path.display().to_string()));
    let solver = match solver {
        Some(path) => read(path)?,
        None => shardwright_planning::builtin::WASM.to_vec(),
    };
    let component = shardwright_planner_build::compose(&read(policy)?, &solver).map_err(failed)?;
    written(output, &component, format)
}

fn written(output: &Path, component: &[u8], format: Format) -> Result<Outcome, Failure> {
    std::fs::write(output, component).map_err(io(output.display().to_string()))?;
    let built = Built { component: output.to_owned(), bytes: component.len() as u64 };
    print(format, &built, |built| format!("{} bytes in {}\n", built.bytes, built.component.display()))
}

fn failed(error: BuildError) -> Failure {
    let kind = match &error {
        BuildError::MissingManifest { .. } | BuildError::MissingTarget | BuildError::Run { .. } => {
            ErrorKind::Missing
        }
        _ => ErrorKind::Invalid,
    };
    let help =
        error.help().unwrap_or("see what cargo says; `shardwright planner new NAME` begins one that builds");
    Failure::Refused { kind, message: error.to_string(), help: help.to_owned() }
}

#[derive(Serialize)]
struct KeyMade {
    file: PathBuf,
    public: String,
}

/// Makes a signing key.
pub fn key(file: &Path, format: Format) -> Result<Outcome, Failure> {
    let public = shardwright_doctor::make_planner_key(file)?;
    print(format, &KeyMade { file: file.to_owned(), public }, |made| {
        format!("{}\nthe public half is {}: `--trust` takes it\n", made.file.display(), made.public)
    })
}
