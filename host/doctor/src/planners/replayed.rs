//! Asks a planner a request that was recorded.

use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use shardwright::SearchPath;
use shardwright_build::{PlannerTools, find_planner};
use shardwright_files::read_named;
use shardwright_planning::check::{CheckedShard, check};
use shardwright_planning::plan::Plan;
use shardwright_planning::request::Request;
use shardwright_planning::sandbox::{LogLevel, LogLine};
use shardwright_trust::TrustOptions;
use shardwright_vocabulary::{Error, ErrorKind, Result};

/// Largest request read: the tables of a model of 100 layer kinds on 16 targets stay far below.
const REQUEST_BYTES_MAX: u64 = 64 << 20;

/// How a request is recorded.
const RECORD: &str = "write one with `shardwright plan CHECKPOINT --write-request FILE`";

/// A planner's answer to a request.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayReport {
    /// The planner.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The file of the request.
    pub request: String,
    /// The model it is about.
    pub model: String,
    /// The targets it offers.
    pub targets: Vec<String>,
    /// What the planner logged.
    pub log: Vec<LogReport>,
    /// Fuel it used.
    pub fuel: u64,
    /// Fuel it had.
    pub fuel_limit: u64,
    /// Bytes of memory it used.
    pub memory: u64,
    /// Bytes of memory it might have used.
    pub memory_limit: u64,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// The shards in words, in order of execution.
    pub shards: Vec<AskedShardReport>,
    /// The plan as the interface has it. It holds.
    pub plan: Plan,
}

/// A line that a planner logged.
#[derive(Clone, Debug, Serialize)]
pub struct LogReport {
    /// `debug`, `info`, `warn` or `error`.
    pub level: &'static str,
    /// The line.
    pub message: String,
}

/// A shard of a plan.
#[derive(Clone, Debug, Serialize)]
pub struct AskedShardReport {
    /// `decoder.0-4`
    pub shard: String,
    /// The target it is for.
    pub target: String,
    /// Its formats.
    pub formats: String,
}

/// Asks `planner` (the built-in one without a name) the request in a file and holds its plan
/// against the request.
///
/// A planner must be signed as `trust` asks, and a pack in any case. Errors: a file that is no
/// sound request; whatever the planner fails with, with what it said; a plan that fails the check.
pub fn replay_request(
    request: &Path,
    planner: Option<&str>,
    search: &SearchPath,
    trust: &TrustOptions,
) -> Result<ReplayReport> {
    let asked = read_request(request)?;
    let cache = shardwright::user_cache_directory();
    let tools = PlannerTools::new(cache.as_deref(), &trust.rules(cache.as_deref())?)?;
    let planner = match planner {
        Some(named) => tools.load(&find_planner(named, &search.planners)?)?,
        None => tools.built_in()?,
    };
    let started = Instant::now();
    let answer = planner.make_plan(&asked);
    let seconds = started.elapsed().as_secs_f64();
    // A planner that stopped said why in its log, if anywhere.
    let said = answer.log.iter().map(|line| line.message.as_str()).collect::<Vec<_>>().join("; ");
    let plan = answer.plan.map_err(|error| match said.is_empty() {
        true => Error::from(error),
        false => Error::from(error).with_more(format!("it said: {said}")),
    })?;
    let checked = check(plan, &asked).map_err(|fault| {
        let help = fault.help().map(str::to_owned);
        Error::caused_by(ErrorKind::Planning, fault, help)
    })?;
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

fn line(line: &LogLine) -> LogReport {
    let level = match line.level {
        LogLevel::Debug => "debug",
        LogLevel::Info => "info",
        LogLevel::Warn => "warn",
        LogLevel::Error => "error",
    };
    LogReport { level, message: line.message.clone() }
}

/// The request in a file, which may be anything.
fn read_request(path: &Path) -> Result<Request> {
    let bytes = read_named(path, REQUEST_BYTES_MAX)?;
    let wrong = |what: &dyn std::fmt::Display| {
        Error::new(ErrorKind::Invalid, format!("{}: {what}", path.display())).with_help(RECORD)
    };
    let request: Request = serde_json::from_slice(&bytes).map_err(|error| wrong(&error))?;
    request.validate().map_err(|fault| wrong(&fault))?;
    Ok(request)
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
        let sound = request.canonical_bytes();
        assert_eq!(read(&sound).expect("it is sound"), request);
        let mut unsound = request;
        unsound.targets.clear();
        for (bytes, says) in [
            (&b""[..], "EOF"),
            (b"[]", "request.json: "),
            (&b"[".repeat(1 << 20), "request.json: "),
            (&sound[..1000], "EOF"),
            (&sound.repeat(2), "trailing"),
            (&unsound.canonical_bytes(), "request has no targets"),
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
