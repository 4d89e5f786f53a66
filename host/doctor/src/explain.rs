//! Explains which variant and chain of a bundle runs on a machine, and why the others do not.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use shardwright::SearchPath;
use shardwright_build::{PlanReport, Speed};
use shardwright_bundle::{Bundle, ChainEntry, ShardEntry};
use shardwright_selection::{Candidate, OpenShims, Selection, select};
use shardwright_shims::{Chip, ShimInstance};
use shardwright_trust::Trust;
use shardwright_vocabulary::{Error, PlannerIdentity, Result};
use shardwright_worker::Shims;

use crate::machine_description::DescribedMachine;
use crate::profiles::chip_named;
use crate::shims;
use crate::unloaded_chains;

/// The state of a bundle's chains on a machine.
#[derive(Clone, Debug, Serialize)]
pub struct ExplainReport {
    /// Path of the bundle.
    pub path: String,
    /// Identity of the bundle: the hash of its manifest.
    pub sha256: String,
    pub model: String,
    /// The assumed chip of the machine. `None` uses the chip that its shims find.
    pub chip: Option<String>,
    /// The described machine, or `None` for this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<DescribedMachine>,
    /// Chips with variants in the bundle.
    pub variants: Vec<String>,
    /// The planners that decided, in the order of `variants`.
    pub planners: Vec<PlannerIdentity>,
    /// Unchecked properties of the bundle, each with the command that checks it.
    pub unchecked: Vec<String>,
    /// Chains that run, but that a start skips because an earlier one could not load them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<SkippedChain>,
    /// The plans of all chains, in the order of `candidates`, then of `passed`.
    pub chains: Vec<ExplainedChain>,
    /// The chains that run, the best first, and the chains that do not.
    #[serde(flatten)]
    pub selection: Selection,
}

/// The recorded plan of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedChain {
    /// The chip of the variant.
    pub soc: String,
    pub chain: String,
    /// Limits of a hedge, by name. Empty for other chains.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub within: Vec<(String, u64)>,
    /// Predicted times on the planned targets, or `None` if the bundle does not record them.
    pub speed: Option<Speed>,
}

/// A chain that a start skips.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SkippedChain {
    /// The chip of the variant.
    pub soc: String,
    pub chain: String,
    pub reason: String,
}

impl ExplainReport {
    /// Returns why a start skips a candidate, if it does.
    pub fn skips(&self, candidate: &Candidate) -> Option<&str> {
        let is_it = |own: &&SkippedChain| (&own.soc, &own.chain) == (&candidate.soc, &candidate.name);
        self.skipped.iter().find(is_it).map(|own| own.reason.as_str())
    }

    /// Returns the plan of a chain of the variant for a chip.
    pub fn chain(&self, soc: &str, name: &str) -> Option<&ExplainedChain> {
        self.chains.iter().find(|own| own.soc == soc && own.chain == name)
    }
}

/// The machine to explain.
#[derive(Clone, Copy, Debug)]
pub enum About<'a> {
    /// This machine, as it is.
    Here,
    /// This machine, assuming the chip of that profile.
    Chip(&'a str),
    /// Another machine, described by a file from `doctor --report`.
    Described(&'a Path),
}

/// Explains every chain of a bundle by querying the shims of `search`, or a file that describes
/// another machine. Bundle, shims and profiles must have signatures that comply with the rules.
pub fn explain(path: &Path, about: About<'_>, search: &SearchPath, trust: &Trust) -> Result<ExplainReport> {
    let bundle = Bundle::open_trusting(path, trust)?;
    let chip = match about {
        About::Chip(soc) => Some(chip_named(soc, search, trust)?),
        About::Here | About::Described(_) => None,
    };
    let manifest = bundle.manifest();
    let (machine, selection, skipped) = match about {
        About::Described(file) => {
            let mut machine = DescribedMachine::read(file)?;
            let selection = select(&bundle, &mut machine)?;
            (Some(machine), selection, Vec::new())
        }
        About::Here | About::Chip(_) => {
            let found = shims::open(search, trust)?;
            let selection = on_this_machine(&bundle, &found, chip.clone())?;
            let skipped = skipped(&bundle, &found, &selection);
            (None, selection, skipped)
        }
    };
    Ok(ExplainReport {
        path: path.display().to_string(),
        sha256: bundle.sha256().to_string(),
        model: manifest.model.name.clone(),
        chip: chip.as_ref().map(|chip| chip.name.clone()),
        variants: manifest.variants.iter().map(|variant| variant.soc.to_string()).collect(),
        planners: manifest.variants.iter().map(|variant| variant.planner.clone()).collect(),
        machine,
        unchecked: unchecked(&bundle),
        skipped,
        chains: chains(&bundle, &selection)?,
        selection,
    })
}

/// Returns the recorded plans of the selected chains.
fn chains(bundle: &Bundle, selection: &Selection) -> Result<Vec<ExplainedChain>> {
    let candidates = selection.candidates.iter().map(|own| (own.variant, own.chain));
    let passed = selection.passed.iter().map(|own| (own.variant, own.chain));
    let explained = |(variant, chain): (usize, usize)| {
        let variant = bundle.manifest().variants.get(variant)?;
        let entry = variant.chains.get(chain)?;
        Some(recorded_speed(bundle, entry).map(|speed| ExplainedChain {
            soc: variant.soc.to_string(),
            chain: entry.name.clone(),
            within: entry.within.clone(),
            speed,
        }))
    };
    candidates.chain(passed).filter_map(explained).collect()
}

/// Returns the predicted times of a chain, if the bundle records its plan.
fn recorded_speed(bundle: &Bundle, chain: &ChainEntry) -> Result<Option<Speed>> {
    let Some(report) = chain.report else { return Ok(None) };
    let plan: PlanReport = serde_json::from_slice(&bundle.read(&report)?).map_err(|error| {
        Error::invalid(format!("not a plan of this version: {error}"))
            .at(format!("{}: chain `{}`", bundle.path().display(), chain.name))
            .with_help("compile the checkpoint again")
    })?;
    Ok(Some(plan.forecast.speed))
}

/// Returns the candidates that a start on this machine skips.
fn skipped(bundle: &Bundle, shims: &Shims, selection: &Selection) -> Vec<SkippedChain> {
    let open = &mut opener(shims);
    let why = |candidate: &Candidate| {
        let variant = bundle.manifest().variants.get(candidate.variant)?;
        let chains = variant.chains.get(candidate.chain..)?;
        if candidate.chain > 0 && !chains.first()?.is_hedge() {
            return None;
        }
        let is_hedge = |other: &&Candidate| {
            other.variant == candidate.variant
                && other.chain > candidate.chain
                && variant.chains.get(other.chain).is_some_and(ChainEntry::is_hedge)
        };
        selection.candidates.iter().find(is_hedge)?;
        let devices = candidate.shards.iter().map(|shard| Some(shard.device.clone()));
        let devices: Vec<Option<String>> = devices.collect();
        let reason = unloaded_chains::skipped(bundle, &variant.soc, chains, &devices, open)?;
        Some(SkippedChain { soc: candidate.soc.clone(), chain: candidate.name.clone(), reason })
    };
    selection.candidates.iter().filter_map(why).collect()
}

/// Lists the unchecked properties. Chains are selected by the heads of artefacts, so other content
/// is not read.
fn unchecked(bundle: &Bundle) -> Vec<String> {
    let content = "the content of artefacts, tables and texts (`shardwright inspect --verify` hashes it)";
    let maker = bundle.signed().is_none().then_some("who made it (`--trust KEY` checks its signature)");
    [content].into_iter().chain(maker).map(str::to_owned).collect()
}

pub(crate) fn on_this_machine(bundle: &Bundle, shims: &Shims, chip: Option<Chip>) -> Result<Selection> {
    select(bundle, &mut OpenShims::new(&mut opener(shims), chip))
}

/// Returns a function that opens the shim of a shard, once.
fn opener(shims: &Shims) -> impl FnMut(&ShardEntry) -> Result<ShimInstance> {
    let mut opened: BTreeMap<(String, String, bool), ShimInstance> = BTreeMap::new();
    move |shard: &ShardEntry| {
        let by = &shard.compiled_by;
        let key = (by.shim.clone(), shard.target.name.clone(), by.simulated);
        if let Some(known) = opened.get(&key) {
            return Ok(known.clone());
        }
        let instance = shims.open_to_compile(&by.shim, &shard.target.name, &[], by.simulated)?;
        opened.insert(key, instance.clone());
        Ok(instance)
    }
}
