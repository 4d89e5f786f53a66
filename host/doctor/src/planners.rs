//! Planners: their descriptions, checks, answers to requests, and packs.

use std::path::Path;

use serde::Serialize;
use shardwright::SearchPath;
use shardwright_build::{PlannerTools, find_planner};
use shardwright_files::output::OutputKind;
use shardwright_planning::builtin;
use shardwright_planning::error::PlannerError;
use shardwright_planning::pack::is_pack;
use shardwright_planning::registry::PlannerEntry;
use shardwright_planning::sandbox::Planner;
use shardwright_trust::Trust;
use shardwright_vocabulary::Result;

use crate::trust::read_key;

mod conformance;
mod replay;

pub use conformance::{CheckReport, check_planner};
pub use replay::{AskedShardReport, LogReport, PlannerChoice, ReplayReport, replay_request};

/// A signed pack of a planner.
const PACK: OutputKind = OutputKind { name: "a planner pack", is_earlier: is_pack };

/// A planner's description, and the outcome of an operation on it.
#[derive(Clone, Debug, Serialize)]
pub struct PlannerReport {
    pub name: String,
    pub version: String,
    /// A description in one sentence.
    pub summary: String,
    /// Supported options.
    pub options: Vec<PlannerOptionReport>,
    /// Notices about loading it.
    pub notices: Vec<String>,
    /// The outcome in one line, or `None` if the planner was only loaded.
    pub outcome: Option<String>,
}

/// An option of a planner.
#[derive(Clone, Debug, Serialize)]
pub struct PlannerOptionReport {
    pub name: String,
    /// The supported values.
    pub values: String,
    /// A description in one sentence.
    pub summary: String,
}

/// Compiles a planner for the portable interpreter and writes it as a signed pack.
///
/// # Errors
///
/// If others may read the key file, or if the sandbox rejects the planner.
pub fn pack_planner(planner: &Path, key: &Path, output: &Path) -> Result<PlannerReport> {
    PACK.expect_at(output)?;
    let seed = read_key(key)?;
    let tools = PlannerTools::new(shardwright::user_cache_directory().as_deref(), &Trust::off())?;
    let (loaded, packed) = tools.pack(planner, &seed)?;
    PACK.write(output, &packed)?;
    let outcome = format!("{} bytes in {}, signed by {}", packed.len(), output.display(), seed.public());
    Ok(report(&loaded, Some(outcome)))
}

/// Finds a planner by path or name, as `plan --planner` does. `None` is the built-in planner.
fn found(named: &str, search: &SearchPath) -> Result<Option<PlannerEntry>> {
    if named == builtin::NAME { Ok(None) } else { find_planner(named, &search.planners).map(Some) }
}

/// Loads a planner that was found.
fn load(tools: &PlannerTools, entry: Option<&PlannerEntry>) -> Result<Planner, PlannerError> {
    entry.map_or_else(|| tools.built_in(), |entry| tools.load(entry))
}

fn report(planner: &Planner, outcome: Option<String>) -> PlannerReport {
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
        notices: planner.load_notice().into_iter().map(str::to_owned).collect(),
        outcome,
    }
}
