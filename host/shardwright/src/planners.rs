use std::path::Path;

use serde::Serialize;
use shardwright_build::planning::check::check;
use shardwright_build::planning::pack::{self, KeyError, SecretKey};
use shardwright_build::planning::request::Request;
use shardwright_build::planning::sandbox::{LogLine, Planner};
use shardwright_files::{own, read_from};
use zeroize::Zeroizing;

use crate::convert::{file_error, read_file};
use crate::opening::{PlannerTools, find_planner};
use crate::{Error, ErrorKind, Result, SearchPath};

/// Largest request read for a replay: the tables of a model of 100 layer kinds on 16 targets stay far below.
const REQUEST_BYTES_MAX: u64 = 64 << 20;

/// Longest key file read: its 64 digits and some blanks.
const KEY_BYTES_MAX: u64 = 256;

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
    /// What is to be said of how it was loaded.
    pub notices: Vec<String>,
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
///
/// Errors: a key file that others may read; whatever the sandbox refuses.
pub fn pack_planner(planner: &Path, key: &Path, output: &Path) -> Result<PlannerReport> {
    let missing = |path: &Path, error: std::io::Error| {
        Error::new(ErrorKind::Missing, format!("{}: {error}", path.display()))
    };
    let seed = read_key(key)?;
    let tools = PlannerTools::new(None, &[])?;
    let loaded = tools.load(&find_planner(&planner.display().to_string(), &[])?)?;
    let wasm = read_file(planner, tools.sandbox.bounds().wasm_bytes)?;
    let packed = pack::write(&planner.display().to_string(), &wasm, &seed)?;
    std::fs::write(output, &packed).map_err(|error| missing(output, error))?;
    let outcome = format!("{} bytes in {}, signed by {}", packed.len(), output.display(), seed.public());
    Ok(report(&loaded, &[], Some(outcome)))
}

/// The key in a file that nobody else may read. What was read of it is wiped.
fn read_key(path: &Path) -> Result<SecretKey> {
    let read = own::open_secret(path).and_then(|file| read_from(file, KEY_BYTES_MAX));
    let text = Zeroizing::new(read.map_err(|error| file_error(path, &error))?);
    let key = std::str::from_utf8(&text).unwrap_or_default().parse();
    key.map_err(|error: KeyError| {
        let what = format!("{}: {error}", path.display());
        Error::new(ErrorKind::Argument, what).with_help("64 hexadecimal digits are a key")
    })
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
        notices: planner.disbelieved().into_iter().map(str::to_owned).collect(),
        log: log.iter().map(|line| line.message.clone()).collect(),
        outcome,
    }
}

fn read_request(path: &Path) -> Result<Request> {
    let fault = |kind, what: &dyn std::fmt::Display| Error::new(kind, format!("{}: {what}", path.display()));
    let bytes = read_file(path, REQUEST_BYTES_MAX)?;
    serde_json::from_slice(&bytes).map_err(|error| {
        fault(ErrorKind::Invalid, &error).with_help("write one with `shardwright plan --write-request FILE`")
    })
}
