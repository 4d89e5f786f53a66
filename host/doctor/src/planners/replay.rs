//! Sends a recorded request to a planner.

use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use shardwright::SearchPath;
use shardwright_build::{PlannerTools, planner_named};
use shardwright_files::read_named;
use shardwright_planning::builtin;
use shardwright_planning::check::{CheckedShard, check};
use shardwright_planning::plan::Plan;
use shardwright_planning::registry::PlannerEntry;
use shardwright_planning::request::RecordedRequest;
use shardwright_planning::sandbox::{LogLevel, LogLine};
use shardwright_trust::TrustOptions;
use shardwright_vocabulary::{At, Error, ErrorKind, Result, UniqueKeys};

use super::{found, load};

/// Largest request that is read, in bytes. One with the tables of a model of 100 layer kinds on 16
/// targets is far smaller.
const REQUEST_BYTES_MAX: u64 = 64 << 20;

/// Suggestion for recording a request.
const RECORD: &str = "write one with `shardwright plan CHECKPOINT --write-request FILE`";

/// A planner's answer to a request.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayReport {
    /// Name of the planner that ran.
    pub name: String,
    pub version: String,
    /// Why this planner ran.
    pub chosen: PlannerChoice,
    /// Path of the request's file.
    pub request: String,
    /// The model in the request.
    pub model: String,
    /// The targets in the request.
    pub targets: Vec<String>,
    /// The planner's log.
    pub log: Vec<LogReport>,
    /// Fuel used by the planner.
    pub fuel: u64,
    /// Maximum fuel.
    pub fuel_limit: u64,
    /// Memory used, in bytes.
    pub memory: u64,
    /// Maximum memory in bytes.
    pub memory_limit: u64,
    /// Elapsed time in seconds.
    pub seconds: f64,
    /// The shards in words, in order of execution.
    pub shards: Vec<AskedShardReport>,
    /// The plan in the form of the interface. It has passed the check.
    pub plan: Plan,
}

/// Why a planner ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlannerChoice {
    /// The caller named it.
    Named,
    /// The request was made for it.
    Recorded,
    /// The request records no planner, so the built-in one ran.
    Default,
}

/// A line of a planner's log.
#[derive(Clone, Debug, Serialize)]
pub struct LogReport {
    /// One of `debug`, `info`, `warn` or `error`.
    pub level: &'static str,
    pub message: String,
}

/// A shard of a plan.
#[derive(Clone, Debug, Serialize)]
pub struct AskedShardReport {
    /// The shard's segments, such as `decoder.0-4`.
    pub shard: String,
    pub target: String,
    pub formats: String,
}

/// Sends the request in a file to `planner` and checks the plan against the request. The default is
/// the planner that the request records, which is found by its name as for a plan, or the built-in
/// one.
///
/// A planner must have a signature that complies with `trust`. A pack must always be signed.
///
/// # Errors
///
/// If the file is not a valid request, if its planner is not here, if the planner fails (the error
/// includes its log), or if the plan fails the check.
pub fn replay_request(
    request: &Path,
    planner: Option<&str>,
    search: &SearchPath,
    trust: &TrustOptions,
) -> Result<ReplayReport> {
    let RecordedRequest { request: asked, planner: recorded } = read_request(request)?;
    let cache = shardwright::user_cache_directory();
    let tools = PlannerTools::new(cache.as_deref(), &trust.rules(cache.as_deref())?)?;
    let (chosen, entry) = match (planner, recorded) {
        (Some(named), _) => (PlannerChoice::Named, found(named, search)?),
        (None, Some(name)) => {
            (PlannerChoice::Recorded, recorded_planner(&name, search).at(request.display())?)
        }
        (None, None) => (PlannerChoice::Default, None),
    };
    let planner = load(&tools, entry.as_ref())?;
    let started = Instant::now();
    let answer = planner.make_plan(&asked);
    let seconds = started.elapsed().as_secs_f64();
    // If a planner stopped, only its log may contain the reason.
    let said = answer.log.iter().map(|line| line.message.as_str()).collect::<Vec<_>>().join("; ");
    let plan = answer.plan.map_err(|error| match said.is_empty() {
        true => Error::from(error),
        false => Error::from(error).with_more(format!("planner log: {said}")),
    })?;
    let checked = check(plan, &asked)?;
    let shard = |shard: &CheckedShard| AskedShardReport {
        shard: shard.name.clone(),
        target: shard.target.name.clone(),
        formats: shard.formats.to_string(),
    };
    let bounds = planner.bounds();
    let bytes = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX);
    Ok(ReplayReport {
        name: planner.description().name.clone(),
        version: planner.description().version.clone(),
        chosen,
        request: request.display().to_string(),
        model: asked.model.name.clone(),
        targets: asked.targets.iter().map(|target| target.target.name.clone()).collect(),
        log: answer.log.iter().map(line).collect(),
        fuel: answer.fuel,
        fuel_limit: bounds.fuel,
        memory: bytes(answer.memory),
        memory_limit: bytes(bounds.memory_bytes),
        seconds,
        shards: checked.shards().iter().map(shard).collect(),
        plan: checked.into_plan(),
    })
}

/// Finds the planner that a request records. It is only a name, so it must not choose a file.
fn recorded_planner(name: &str, search: &SearchPath) -> Result<Option<PlannerEntry>> {
    if name == builtin::NAME {
        return Ok(None);
    }
    planner_named(name, &search.planners).map(Some).map_err(|error| {
        let help = "name another planner with `--planner`, or the directory of this one with `--planners`";
        error.at(format_args!("its planner `{name}`")).with_help(help)
    })
}

fn line(line: &LogLine) -> LogReport {
    let level = match line.level {
        LogLevel::Debug => "debug",
        LogLevel::Info => "info",
        LogLevel::Warn => "warn",
        LogLevel::Error => "error",
    };
    LogReport { level, message: line.message.clone() }
}

/// Reads and validates the request in a file.
fn read_request(path: &Path) -> Result<RecordedRequest> {
    let bytes = read_named(path, REQUEST_BYTES_MAX)?;
    let wrong = |what: &dyn std::fmt::Display| {
        Error::new(ErrorKind::Invalid, format!("{}: {what}", path.display())).with_help(RECORD)
    };
    let UniqueKeys = serde_json::from_slice(&bytes).map_err(|error| wrong(&error))?;
    let recorded: RecordedRequest = serde_json::from_slice(&bytes).map_err(|error| wrong(&error))?;
    recorded.request.validate().map_err(|fault| wrong(&fault))?;
    Ok(recorded)
}

#[cfg(test)]
mod tests {
    use shardwright_planning::conformance::requests;

    use super::*;

    #[test]
    fn a_file_that_is_no_sound_request_is_named_with_what_is_wrong() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("request.json");
        let read = |bytes: &[u8]| {
            std::fs::write(&file, bytes).expect("written");
            read_request(&file)
        };
        let request = requests::recorded().expect("a request");
        let recorded = RecordedRequest { request, planner: Some("even".to_owned()) };
        let sound = recorded.canonical_bytes();
        let twice = String::from_utf8_lossy(&sound).replacen("\"kinds\"", "\"kinds\":[],\"kinds\"", 1);
        assert_eq!(read(&sound).expect("it is sound"), recorded);
        let mut unsound = recorded.request;
        unsound.targets.clear();
        for (bytes, says) in [
            (&b""[..], "EOF"),
            (b"[]", "request.json: "),
            (&b"[".repeat(1 << 20), "request.json: "),
            (&sound[..1000], "EOF"),
            (&sound.repeat(2), "trailing"),
            (twice.as_bytes(), "a second key `kinds`"),
            (&unsound.canonical_bytes(), "request: no targets"),
        ] {
            let error = read(bytes).expect_err(says);
            let text = error.to_string();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
            assert!(text.contains("request.json") && text.contains(says), "{says}: {text}");
            assert!(error.help().is_some_and(|help| help.contains("--write-request")), "{text}");
        }
        let long = std::fs::File::create(&file).expect("a file");
        long.set_len(REQUEST_BYTES_MAX + 1).expect("a long one");
        let error = read_request(&file).expect_err("too long");
        assert!(error.to_string().contains("more than 67108864 bytes"), "{error}");
        std::fs::remove_file(&file).expect("removed");
        assert_eq!(read_request(&file).expect_err("gone").kind(), ErrorKind::Missing);
    }
}
