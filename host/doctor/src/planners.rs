use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use shardwright_files::{own, read_from};
use shardwright_planning::check::{CheckedShard, check};
use shardwright_planning::pack::{self, KeyError, SecretKey};
use shardwright_planning::request::Request;
use shardwright_planning::sandbox::{LogLine, Planner};
use zeroize::Zeroizing;

use shardwright::SearchPath;
use shardwright_build::{PlannerTools, find_planner};
use shardwright_files::read_named;
use shardwright_vocabulary::{Error, ErrorKind, Result};

/// Largest request read for a replay: the tables of a model of 100 layer kinds on 16 targets stay
/// far below.
const REQUEST_BYTES_MAX: u64 = 64 << 20;

/// Longest key file read: its 64 digits and some blanks.
const KEY_BYTES_MAX: u64 = 256;

/// A planner's description, and the result of a trial.
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
    /// Notices about loading it.
    pub notices: Vec<String>,
    /// Its log during the trial.
    pub log: Vec<String>,
    /// The trial; `None` if it was only loaded.
    pub asked: Option<AskedReport>,
    /// The outcome in one line; `None` if it was only loaded.
    pub outcome: Option<String>,
}

/// A planner's answer to a request.
#[derive(Clone, Debug, Serialize)]
pub struct AskedReport {
    /// Where the request is from: a file, or `built in`.
    pub request: String,
    /// The model it is about.
    pub model: String,
    /// The targets it offers.
    pub targets: Vec<String>,
    /// Fuel used while planning.
    pub fuel: u64,
    /// Fuel available.
    pub fuel_limit: u64,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// The plan, in order of execution.
    pub shards: Vec<AskedShardReport>,
}

/// A shard of such a plan.
#[derive(Clone, Debug, Serialize)]
pub struct AskedShardReport {
    /// `decoder.0-4`
    pub shard: String,
    /// The target it is for.
    pub target: String,
    /// Its formats.
    pub formats: String,
}

/// One option of a planner.
#[derive(Clone, Debug, Serialize)]
pub struct PlannerOptionReport {
    /// Its name.
    pub name: String,
    /// Legal values.
    pub values: String,
    /// One sentence.
    pub summary: String,
}

/// A request that planners are tried on: the demo model on a chip with two formats and a limit on
/// operations, and the CPU.
const SAMPLE_REQUEST: &str = include_str!("planners/sample_request.json");

/// Loads a planner under all the sandbox's rules, calls it twice and checks its plan; without a
/// recorded request it uses a built-in one.
///
/// A pack must be signed by one of `trusted_keys` (hexadecimal). Errors: everything the sandbox
/// refuses, a plan that fails the check, or two answers that differ.
pub fn check_planner(
    planner: &str,
    request: Option<&Path>,
    search: &SearchPath,
    trusted_keys: &[String],
) -> Result<PlannerReport> {
    let tools = PlannerTools::new(shardwright::user_cache_directory().as_deref(), trusted_keys)?;
    let planner = tools.load(&find_planner(planner, &search.planners)?)?;
    let (request, source) = match request {
        Some(path) => (read_request(path)?, path.display().to_string()),
        None => (sample_request()?, "built in".to_owned()),
    };
    let started = Instant::now();
    let answer = planner.make_plan(&request);
    let seconds = started.elapsed().as_secs_f64();
    // A planner that stopped said why in its log, if anywhere.
    let said = answer.log.iter().map(|line| line.message.as_str()).collect::<Vec<_>>().join("; ");
    let plan = answer.plan.map_err(|error| match said.is_empty() {
        true => Error::from(error),
        false => Error::from(error).with_more(format!("it said: {said}")),
    })?;
    let again = planner.make_plan(&request).plan?;
    if plan.canonical_bytes() != again.canonical_bytes() {
        return Err(Error::new(ErrorKind::Planning, "the planner gave two plans for one request")
            .with_help("a planner is a pure function: use nothing that differs between calls"));
    }
    let shards = plan.shards.len();
    let checked =
        check(plan, &request).map_err(|fault| Error::caused_by(ErrorKind::Planning, fault, None))?;
    let shard = |shard: &CheckedShard| AskedShardReport {
        shard: shard.name.clone(),
        target: shard.target.name.clone(),
        formats: shard.formats.to_string(),
    };
    let asked = AskedReport {
        request: source,
        model: request.model.name.clone(),
        targets: request.targets.iter().map(|target| target.target.name.clone()).collect(),
        fuel: answer.fuel,
        fuel_limit: tools.sandbox.bounds().fuel,
        seconds,
        shards: checked.shards().iter().map(shard).collect(),
    };
    let outcome = format!("a plan of {shards} shards that holds");
    Ok(PlannerReport { asked: Some(asked), ..report(&planner, &answer.log, Some(outcome)) })
}

fn sample_request() -> Result<Request> {
    serde_json::from_str(SAMPLE_REQUEST)
        .map_err(|error| Error::new(ErrorKind::Internal, format!("the built-in request: {error}")))
}

/// Makes a random signing key in a new file that only this user may read, and returns the public
/// half, which hosts are configured to trust.
///
/// Errors: the file is there already, or cannot be written.
pub fn make_planner_key(file: &Path) -> Result<String> {
    let failed = |error: std::io::Error| {
        let kind = match error.kind() {
            std::io::ErrorKind::AlreadyExists => ErrorKind::Argument,
            _ => ErrorKind::Missing,
        };
        Error::new(kind, format!("{}: {error}", file.display()))
            .with_help("name a file that is not there yet, in a folder that is")
    };
    let key = SecretKey::generate().map_err(failed)?;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let text = Zeroizing::new(key.to_hex());
    let mut written = options.open(file).map_err(failed)?;
    std::io::Write::write_all(&mut written, text.as_bytes()).map_err(failed)?;
    written.sync_all().map_err(failed)?;
    Ok(key.public().to_string())
}

/// Compiles a planner for the portable interpreter and writes it as a signed pack.
///
/// Errors: a key file that others may read; whatever the sandbox refuses.
pub fn pack_planner(planner: &Path, key: &Path, output: &Path) -> Result<PlannerReport> {
    let missing = |path: &Path, error: std::io::Error| {
        Error::new(ErrorKind::Missing, format!("{}: {error}", path.display()))
    };
    let seed = read_key(key)?;
    let tools = PlannerTools::new(shardwright::user_cache_directory().as_deref(), &[])?;
    let loaded = tools.load(&find_planner(&planner.display().to_string(), &[])?)?;
    let wasm = read_named(planner, tools.sandbox.bounds().wasm_bytes)?;
    let packed = pack::write(&planner.display().to_string(), &wasm, &seed)?;
    std::fs::write(output, &packed).map_err(|error| missing(output, error))?;
    let outcome = format!("{} bytes in {}, signed by {}", packed.len(), output.display(), seed.public());
    Ok(report(&loaded, &[], Some(outcome)))
}

/// The key in a file that only its owner may read. The bytes read are wiped.
fn read_key(path: &Path) -> Result<SecretKey> {
    let read = own::open_secret(path).and_then(|file| read_from(file, KEY_BYTES_MAX));
    let text = Zeroizing::new(read.map_err(|error| error.about(path))?);
    let key = std::str::from_utf8(&text).unwrap_or_default().parse();
    key.map_err(|error: KeyError| {
        let what = format!("{}: {error}", path.display());
        Error::new(ErrorKind::Argument, what)
            .with_help("64 hexadecimal digits are a key; `shardwright planner key FILE` makes one")
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
        asked: None,
        outcome,
    }
}

fn read_request(path: &Path) -> Result<Request> {
    let fault = |kind, what: &dyn std::fmt::Display| Error::new(kind, format!("{}: {what}", path.display()));
    let bytes = read_named(path, REQUEST_BYTES_MAX)?;
    serde_json::from_slice(&bytes).map_err(|error| {
        fault(ErrorKind::Invalid, &error).with_help("write one with `shardwright plan --write-request FILE`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_request_offers_a_chip_two_formats_and_the_cpu() {
        let request = sample_request().expect("a request");
        assert_eq!((request.targets.len(), request.formats.len()), (2, 2));
        assert!(request.targets[0].limits.iter().any(|limit| limit.name == "ops"));
    }

    #[test]
    fn a_key_is_made_once_and_is_secret() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("key");
        let public = make_planner_key(&file).expect("a key");
        assert_eq!(read_key(&file).expect("it is read").public().to_string(), public);
        let error = make_planner_key(&file).expect_err("it is there");
        assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
        let error = make_planner_key(&folder.path().join("none/key")).expect_err("no folder");
        assert_eq!(error.kind(), ErrorKind::Missing, "{error}");
    }
}
