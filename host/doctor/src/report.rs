//! Reports what can run on this machine, what was skipped and why, and whether a bundle would run.

use std::path::Path;

use serde::Serialize;
use shardwright_build::{Learned, LearnedFile};
use shardwright_bundle::UnloadedFile;
use shardwright_planning::profile::{ProfileRegistry, Profiles};
use shardwright_shims::Chip;
use shardwright_trust::Trust;
use shardwright_worker::find_worker;

use crate::bundle::BundlePrognosis;
use crate::flag_advice::Advisers;
use crate::locations::{self, CacheReport, FoundFile, SearchedPlace, VariableReport};
use crate::machine::MachineReport;
use crate::profiles::profiles_in;
use crate::shims::{self, ShimReport, ShimsReport};
use crate::unloaded_chains;
use shardwright::SearchPath;
use shardwright_build::chip_of;
use shardwright_vocabulary::{Error, ErrorKind, Result};

/// The state of an installation on this machine.
#[derive(Clone, Debug, Serialize)]
pub struct DoctorReport {
    pub version: String,
    pub machine: MachineReport,
    /// The process in which shims are queried: a separate process, or this one.
    pub worker: WorkerPresence,
    pub places: Vec<SearchedPlace>,
    /// Shims with their devices, and unusable shims with the reason.
    pub shims: ShimsReport,
    /// Planners. `built-in` is always included.
    pub planners: Vec<FoundFile>,
    pub profiles: Vec<FoundProfileReport>,
    pub caches: Vec<CacheReport>,
    /// Learned limits, which the next plan respects.
    pub learned: Vec<LearnedFile>,
    /// Chains of bundles that could not be loaded, which the next start skips.
    pub unloaded: Vec<UnloadedFile>,
    /// Environment variables that affect this program.
    pub environment: Vec<VariableReport>,
    /// Problems, each with a suggestion.
    pub problems: Vec<Problem>,
    /// Whether this machine can run a model.
    pub can_run: bool,
    /// Prediction for the requested bundle.
    pub bundle: Option<BundlePrognosis>,
}

/// The program in which shims are queried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WorkerPresence {
    pub path: Option<String>,
    /// Consequence for this report.
    pub meaning: String,
}

/// A profile of a chip.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FoundProfileReport {
    pub name: String,
    /// Display name.
    pub title: String,
    /// Origin of the profile.
    pub source: String,
    /// The shim for the chip.
    pub shim: String,
    pub shim_found: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Description of the problem.
    pub what: String,
    /// A suggestion for the user.
    pub help: Option<String>,
}

impl Problem {
    pub(crate) fn of(error: &impl std::fmt::Display, help: Option<String>) -> Problem {
        Problem { what: error.to_string(), help }
    }
}

/// Examines the machine, everything in `search`, and `bundle`. A shim that cannot be queried, or
/// whose signature does not comply with the rules, is a problem in the report.
///
/// Shims run in a worker process if that program is found. Then a vendor's library that crashes or
/// hangs costs only an entry in the report. Otherwise they run in this process, and the report
/// includes that.
///
/// # Errors
///
/// If `bundle` is not a bundle, or its signature does not comply with the rules.
pub fn doctor(search: &SearchPath, bundle: Option<&Path>, trust: &Trust) -> Result<DoctorReport> {
    let mut problems = Vec::new();
    let worker = match find_worker() {
        Ok(worker) => Some(worker),
        Err(error) => {
            let help = error.help();
            problems.push(Problem::of(&error, help));
            None
        }
    };
    let found = shims::open(search, trust)?;
    // Unreadable profiles are reported separately below.
    let advisers = Advisers::of(search, trust).unwrap_or_else(|_| Advisers::built_in());
    let prognosis = |directory| BundlePrognosis::of(directory, &found, &advisers, trust);
    let bundle = bundle.map(prognosis).transpose()?;
    problems.extend(bundle.iter().flat_map(BundlePrognosis::wanting_flags));
    problems.extend(bundle.as_ref().and_then(BundlePrognosis::wasted_memory));
    problems.extend(bundle.iter().flat_map(BundlePrognosis::foreign_files));
    let mut problem = |error: &Error| problems.push(Problem::of(error, error.help().map(str::to_owned)));
    let all = profiles_in(search, trust).list().or_else(|error| {
        problem(&error);
        // Built-in profiles are valid.
        ProfileRegistry::new().list()
    });
    let Profiles { found: profiles, skipped } = all.unwrap_or_default();
    skipped.iter().for_each(problem);
    let mut machine = MachineReport::read(Path::new("/"), &profiles);
    machine.match_profiles(&profiles);
    // The shim for the possible chip of this machine gets its profile, and reports whether the chip
    // is present.
    let named =
        profiles.iter().map(|found| &found.profile).filter(|chip| machine.profiles.contains(&chip.name));
    let chips: Vec<(&str, Chip)> = named.map(|chip| (chip.shim.as_str(), chip_of(chip))).collect();
    let shims = shims::report(&found, &chips);

    let planners = locations::planners(&search.planners, &mut problems);
    for shim in &shims.shims {
        if let Some(error) = &shim.error {
            problems.push(Problem::of(&format!("shim {}: {error}", shim.name), shim.help.clone()));
        }
    }
    for name in &machine.profiles {
        let shim = profiles.iter().find(|found| found.profile.name == *name).map(|found| &found.profile.shim);
        if let Some(shim) = shim.filter(|shim| !shims.shims.iter().any(|found| found.name == **shim)) {
            problems.push(Problem {
                what: format!("this machine is a {name}, but its shim `{shim}` is missing"),
                help: Some("put the shim into a directory of shims; until then, emulate plans for the chip with `--on cpu`".to_owned()),
            });
        }
    }
    let can_run = shims.shims.iter().any(can_run);
    Ok(DoctorReport {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        worker: WorkerPresence {
            meaning: match &worker {
                Some(_) => "shims were queried in a separate process".to_owned(),
                None => "shims were queried in this process, which a crashing shim would end".to_owned(),
            },
            path: worker.map(|worker| worker.display().to_string()),
        },
        places: locations::searched(search),
        planners,
        profiles: profiles
            .iter()
            .map(|found| FoundProfileReport {
                name: found.profile.name.clone(),
                title: found.profile.title.clone(),
                source: found.source.to_string(),
                shim: found.profile.shim.clone(),
                shim_found: shims.shims.iter().any(|shim| shim.name == found.profile.shim),
            })
            .collect(),
        shims,
        machine,
        caches: locations::caches(),
        learned: learned(&mut problems),
        unloaded: unloaded_chains::list(&mut problems),
        environment: locations::environment(),
        problems,
        can_run,
        bundle,
    })
}

/// Lists the limits in the user's cache. An unusable file is reported as a problem and ignored.
fn learned(problems: &mut Vec<Problem>) -> Vec<LearnedFile> {
    let Some(cache) = shardwright::user_cache_directory() else { return Vec::new() };
    let folder = cache.join(shardwright_build::LEARNED);
    let found = Learned::kept_in(folder.clone()).list().unwrap_or_else(|error| {
        let what = format!("{}: cannot list learned limits: {error}", folder.display());
        problems.push(Problem { what, help: None });
        Vec::new()
    });
    for file in &found {
        if let Some(fault) = &file.fault {
            let what = format!("{}: {fault}; it is ignored", file.path);
            problems.push(Problem { what, help: Some("remove the file".to_owned()) });
        }
    }
    found
}

/// Returns whether a shim has a device in this machine that runs its artefacts.
fn can_run(shim: &ShimReport) -> bool {
    shim.runs && shim.devices.iter().any(|device| device.kind != "offline")
}

impl DoctorReport {
    /// Returns an error if this machine cannot run a model, or cannot run the requested bundle.
    pub fn verdict(&self) -> Result<()> {
        if let Some(bundle) = &self.bundle {
            return bundle.verdict();
        }
        if self.can_run {
            return Ok(());
        }
        let (what, help) = match (self.shims.shims.as_slice(), self.shims.skipped.as_slice()) {
            ([], []) => (
                "no shim was found, so no model can run".to_owned(),
                "put a directory of shims next to the program, or name one with `--shims`; `cargo xtask build` builds this project's shims",
            ),
            ([], skipped) => (
                format!("no shim is usable, so no model can run; {} skipped", skipped.len()),
                "see the report for the reasons",
            ),
            (shims, _) => (
                format!("found {} shims, but none has a device here that it can run on", shims.len()),
                "see the report for the devices; the shim `cpu` runs anywhere",
            ),
        };
        Err(Error::new(ErrorKind::Missing, what).with_help(help))
    }
}
