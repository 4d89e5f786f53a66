//! Checks whether a planner complies with the rules for planners.

use serde::Serialize;
use shardwright::SearchPath;
use shardwright_build::PlannerTools;
use shardwright_planning::conformance::{self, Conformance, RuleVerdict, requests};
use shardwright_planning::registry::{PlannerEntry, PlannerFile};
use shardwright_planning::request::PlannerOption;
use shardwright_planning::sandbox::Planner;
use shardwright_trust::TrustOptions;
use shardwright_vocabulary::{Error, ErrorKind, Result};

use super::{PlannerReport, found, load, report};

/// The results of checking a planner against the rules.
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    /// The planner's own description.
    #[serde(flatten)]
    pub planner: PlannerReport,
    /// The result of every rule, and the resources that the calls used.
    #[serde(flatten)]
    pub conformance: Conformance,
    /// Broken if any rule is broken.
    pub verdict: RuleVerdict,
}

/// Loads a planner under all the sandbox's limits and sends it the requests of the rules, with
/// `options` in every request. A broken rule is a verdict, not an error. The name `generic` is that
/// of the built-in planner.
///
/// A planner must have a signature that complies with `trust`. A pack must always be signed.
///
/// # Errors
///
/// If there is no planner, if the file is not a planner, or if options repeat.
pub fn check_planner(
    planner: &str,
    options: &[(String, String)],
    search: &SearchPath,
    trust: &TrustOptions,
) -> Result<CheckReport> {
    let cache = shardwright::user_cache_directory();
    let tools = PlannerTools::new(cache.as_deref(), &trust.rules(cache.as_deref())?)?;
    let mut base = requests::recorded()
        .map_err(|error| Error::new(ErrorKind::Internal, format!("invalid built-in request: {error}")))?;
    let option =
        |(name, value): &(String, String)| PlannerOption { name: name.clone(), value: value.clone() };
    base.options.extend(options.iter().map(option));
    base.validate()
        .map_err(|fault| fault.with_kind(ErrorKind::Argument).with_help("set each option once"))?;
    let entry = found(planner, search)?;
    let loaded = match load(&tools, entry.as_ref()) {
        Ok(loaded) => loaded,
        Err(error) => {
            let conformance = Conformance::of_stopped(&error).ok_or(error)?;
            let name = entry.map_or_else(|| planner.to_owned(), |entry| entry.name);
            return Ok(CheckReport { planner: unknown(name), conformance, verdict: RuleVerdict::Broken });
        }
    };
    let portable = portable(entry.as_ref(), trust)?;
    let conformance = conformance::run(&loaded, portable.as_ref(), &base);
    let verdict = if conformance.holds() { RuleVerdict::Held } else { RuleVerdict::Broken };
    Ok(CheckReport { planner: report(&loaded, None), conformance, verdict })
}

/// Loads the planner in the portable interpreter. Returns `None` for a pack, which only runs there
/// anyway.
fn portable(entry: Option<&PlannerEntry>, trust: &TrustOptions) -> Result<Option<Planner>> {
    if entry.is_some_and(|entry| entry.file == PlannerFile::Pack) {
        return Ok(None);
    }
    let cache = shardwright::user_cache_directory();
    let tools = PlannerTools::portable(cache.as_deref(), &trust.rules(cache.as_deref())?)?;
    Ok(Some(load(&tools, entry)?))
}

/// Returns a report for a planner that did not provide its description.
fn unknown(name: String) -> PlannerReport {
    PlannerReport {
        name,
        version: String::new(),
        summary: String::new(),
        options: vec![],
        notices: vec![],
        outcome: None,
    }
}
