use std::path::Path;

use serde::Serialize;
use shardwright_build::planning::check::check;
use shardwright_build::planning::pack::{self, SecretKey};
use shardwright_build::planning::request::Request;
use shardwright_build::planning::sandbox::{LogLine, Planner};

use crate::opening::{PlannerTools, find_planner};
use crate::{Error, ErrorKind, Result, SearchPath};

/// Largest request read for a replay: the tables of a model of 100 layer kinds on 16 targets stay far below.
const REQUEST_BYTES_MAX: u64 = 64 << 20;

/// What a planner says of itself, and what came of asking it.
#[derive(Clone, Debug, Serialize)]
pub struct PlannerReport {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// One sentence.
    pub summary: String,
    /// Options it takes.
    pub options: Vec<PlannerOptionReport>,
    /// What it logged while it was asked.
    pub log: Vec<String>,
    /// What came of it, in one line; none when it was only loaded.
    pub outcome: Option<String>,
}

/// One option of a planner.
#[derive(Clone, Debug, Serialize)]
pub struct PlannerOptionReport {
    /// Its name.
    pub name: String,
    /// Values it takes.
    pub values: String,
    /// One sentence.
    pub summary: String,
}

/// Loads a planner under all the sandbox's rules and, given a recorded request, asks it twice and checks its plan.
///
/// A pack must be signed by one of `trusted_keys` (hexadecimal). Errors: whatever the sandbox refuses, a plan that does not hold, or two answers that differ.
pub fn check_planner(
    planner: &str,
    request: Option<&Path>,
    search: &SearchPath,
    trusted_keys: &[String],
) -> Result<PlannerReport> {
    let tools = PlannerTools::new(None, trusted_keys)?;
    let planner = tools.load(&find_planner(planner, &search.planners)?)?;
    let Some(path) = request else { return Ok(report(&planner, &[], None)) };
    let request = read_request(path)?;
    let answer = planner.make_plan(&request);
    let plan = answer.plan?;
    let again = planner.make_plan(&request).plan?;
    if plan.canonical_bytes() != again.canonical_bytes() {
        return Err(Error::new(ErrorKind::Planning, "the planner gave two plans for one request")
            .with_help("a planner is a pure function: use nothing that differs between calls"));
    }
    let shards = plan.shards.len();
    check(plan, &request).map_err(|fault| Error::from_room(ErrorKind::Planning, fault, None))?;
    Ok(report(&planner, &answer.log, Some(format!("a plan of {shards} shards that holds"))))
}

/// Compiles a planner for the portable interpreter and writes it as a signed pack.
pub fn pack_planner(planner: &Path, key: &Path, output: &Path) -> Result<PlannerReport> {
    let missing = |path: &Path, error: std::io::Error| {
        Error::new(ErrorKind::Missing, format!("{}: {error}", path.display()))
    };
    let seed = std::fs::read_to_string(key).map_err(|error| missing(key, error))?;
    let seed: SecretKey = seed.trim().parse().map_err(|error| {
        Error::from_room(ErrorKind::Argument, error, Some("64 hexadecimal digits are a key".to_owned()))
    })?;
    let tools = PlannerTools::new(None, &[])?;
    let loaded = tools.load(&find_planner(&planner.display().to_string(), &[])?)?;
    let wasm = std::fs::read(planner).map_err(|error| missing(planner, error))?;
    let packed = pack::write(&planner.display().to_string(), &wasm, &seed)?;
    std::fs::write(output, &packed).map_err(|error| missing(output, error))?;
    let outcome = format!("{} bytes in {}, signed by {}", packed.len(), output.display(), seed.public());
    Ok(report(&loaded, &[], Some(outcome)))
}

fn report(planner: &Planner, log: &[LogLine], outcome: Option<String>) -> PlannerReport {
    let described = planner.description();
    PlannerReport {
        name: described.name.clone(),
        version: described.version.clone(),
        summary: described.summary.clone(),
        options: described
            .options
            .iter()
            .map(|option| PlannerOptionReport {
                name: option.name.clone(),
                values: option.values.clone(),
                summary: option.summary.clone(),
            })
            .collect(),
        log: log.iter().map(|line| line.message.clone()).collect(),
        outcome,
    }
}

fn read_request(path: &Path) -> Result<Request> {
    let fault = |kind, what: &dyn std::fmt::Display| Error::new(kind, format!("{}: {what}", path.display()));
    let length = std::fs::metadata(path).map_err(|error| fault(ErrorKind::Missing, &error))?.len();
    if length > REQUEST_BYTES_MAX {
        return Err(fault(
            ErrorKind::Invalid,
            &format!("{length} bytes, at most {REQUEST_BYTES_MAX} are read"),
        ));
    }
    let bytes = std::fs::read(path).map_err(|error| fault(ErrorKind::Missing, &error))?;
    serde_json::from_slice(&bytes).map_err(|error| {
        fault(ErrorKind::Invalid, &error).with_help("write one with `shardwright plan --write-request FILE`")
    })
}
