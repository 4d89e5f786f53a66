//! Holds a planner to the rules for planners.

use serde::Serialize;
use shardwright::SearchPath;
use shardwright_build::{PlannerTools, find_planner};
use shardwright_planning::conformance::{self, Conformance, Verdict, requests};
use shardwright_planning::registry::{PlannerEntry, PlannerFile};
use shardwright_planning::request::PlannerOption;
use shardwright_planning::sandbox::Planner;
use shardwright_trust::TrustOptions;
use shardwright_vocabulary::{Error, ErrorKind, Result};

use super::{PlannerReport, report};

/// A planner, and which rules it keeps.
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    /// What it says of itself.
    #[serde(flatten)]
    pub planner: PlannerReport,
    /// Every rule, and what the calls used.
    #[serde(flatten)]
    pub conformance: Conformance,
    /// Broken if one rule is, otherwise held.
    pub verdict: Verdict,
}

/// Loads a planner under all the sandbox's bounds and asks it what the rules say, with `options` in
/// every request. A rule that is broken is a verdict, not an error.
///
/// A planner must be signed as `trust` asks, and a pack in any case. Errors: no planner is there,
/// or what is there is none; options that repeat.
pub fn check_planner(
    planner: &str,
    options: &[(String, String)],
    search: &SearchPath,
    trust: &TrustOptions,
) -> Result<CheckReport> {
    let cache = shardwright::user_cache_directory();
    let tools = PlannerTools::new(cache.as_deref(), &trust.rules(cache.as_deref())?)?;
    let mut base = requests::recorded()
        .map_err(|error| Error::new(ErrorKind::Internal, format!("the built-in request: {error}")))?;
    let option =
        |(name, value): &(String, String)| PlannerOption { name: name.clone(), value: value.clone() };
    base.options.extend(options.iter().map(option));
    base.validate().map_err(|fault| {
        Error::caused_by(ErrorKind::Argument, fault, Some("set each option once".to_owned()))
    })?;
    let entry = find_planner(planner, &search.planners)?;
    let loaded = match tools.load(&entry) {
        Ok(loaded) => loaded,
        Err(error) => {
            let conformance = Conformance::of_stopped(&error).ok_or(error)?;
            let planner = unknown(&entry);
            return Ok(CheckReport { planner, conformance, verdict: Verdict::Broken });
        }
    };
    let portable = portable(&entry, trust)?;
    let conformance = conformance::run(&loaded, portable.as_ref(), &base);
    let verdict = if conformance.holds() { Verdict::Held } else { Verdict::Broken };
    Ok(CheckReport { planner: report(&loaded, None), conformance, verdict })
}

/// The same planner in the portable interpreter; `None` of a pack, which is for that alone.
fn portable(entry: &PlannerEntry, trust: &TrustOptions) -> Result<Option<Planner>> {
    if entry.file == PlannerFile::Pack {
        return Ok(None);
    }
    let cache = shardwright::user_cache_directory();
    let tools = PlannerTools::portable(cache.as_deref(), &trust.rules(cache.as_deref())?)?;
    Ok(Some(tools.load(entry)?))
}

/// A planner that did not come to say what it is.
fn unknown(entry: &PlannerEntry) -> PlannerReport {
    PlannerReport {
        name: entry.name.clone(),
        version: String::new(),
        summary: String::new(),
        options: vec![],
        notices: vec![],
        outcome: None,
    }
}
