//! Loads chains of a bundle on the shims of this machine, best first.

use std::collections::BTreeMap;
use std::sync::Arc;

#[cfg(feature = "build")]
use shardwright_build::PlanOptions;
use shardwright_bundle::{Bundle, ChainEntry, Model as ModelEntry, Proofs, ShardEntry, Unloaded, Variant};
#[cfg(feature = "build")]
use shardwright_checkpoints::{compile_recorded, may_compile_here};
use shardwright_runtime::{Chain, MemoryBudget};
use shardwright_selection::{
    Candidate, Machine, OpenShims, Passed, Selection, Standing, Tier, select, select_of,
};
use shardwright_shims::{Chip, ShimInstance};
use shardwright_vocabulary::{Beforehand, ErrorClass, Flag, Notice, NoticeKind, Pass, PassedOver, Watch};
use shardwright_worker::Shims;

use super::chain_notices::why_not_better;
use super::load_attempts::LoadAttempts;
use super::memory_estimate::MemoryEstimate;
use super::progress::OpeningProgress;
use crate::policy::FallbackPolicy;
use crate::run_options::RunOptions;
use crate::towers::LoadedTower;
use crate::verified_files::Verified;
use crate::{Error, ErrorKind, Result};

/// State of opening chains so far.
pub(super) struct Opening<'w> {
    /// Opened shims by shim name, target name, and whether they simulate.
    instances: BTreeMap<(String, String, bool), ShimInstance>,
    /// Bytes of artefacts that were copied into memory because they do not start on a page
    /// boundary.
    pub(super) copied: u64,
    pub(super) steps: OpeningProgress<'w>,
}

impl<'w> Opening<'w> {
    pub(super) fn new(watch: &'w mut dyn Watch) -> Self {
        Opening { instances: BTreeMap::new(), copied: 0, steps: OpeningProgress::new(watch) }
    }
}

/// Loads chains of one bundle.
pub(super) struct Loader {
    pub(super) shims: Shims,
    pub(super) bundle: Bundle,
    /// The last value of each flag that a session requests.
    pub(super) flags: Vec<Flag>,
    pub(super) run: RunOptions,
    /// Chip that overrides the one of this machine.
    pub(super) chip: Option<Chip>,
    pub(super) policy: FallbackPolicy,
    /// Whether to verify every file, even with a proof.
    pub(super) verify_all: bool,
    /// Memory use of everything that is loaded, with its limit.
    pub(super) budget: MemoryBudget,
    /// Chains that earlier starts could not load. `None` without a cache directory.
    pub(super) unloaded: Option<Unloaded>,
    /// Path of the checkpoint that the bundle was made from.
    #[cfg(feature = "build")]
    pub(super) checkpoint: Option<std::path::PathBuf>,
}

/// A chain of the bundle, to be loaded.
#[derive(Clone)]
pub(super) struct Choice {
    pub(super) variant: usize,
    pub(super) pass: Pass,
    pub(super) chain: usize,
    /// Devices of its shards. `None` if the shims were not queried: then the device that the shard
    /// was compiled for is used.
    pub(super) devices: Vec<Option<String>>,
    /// Why a shim refuses its artefacts, if compiling the chain here may help.
    pub(super) refused: Option<Refused>,
}

/// A shim's refusal of an artefact.
#[derive(Clone)]
pub(super) struct Refused {
    reason: String,
    help: Option<String>,
}

impl Refused {
    fn of(passed: &Passed) -> Self {
        let reason = passed.standing.reason.as_deref().unwrap_or("its shim refuses it");
        Refused { reason: format!("shard {}: {reason}", passed.shard), help: passed.standing.help.clone() }
    }

    fn error(&self) -> Error {
        let error = Error::new(ErrorKind::Incompatible, self.reason.clone());
        self.help.iter().fold(error, |error, help| error.with_help(help.clone()))
    }
}

/// A chain that runs.
pub(super) struct Found {
    pub(super) chain: Chain,
    /// Index of the variant in the bundle.
    pub(super) variant: usize,
    /// Index of the chain in the variant.
    pub(super) index: usize,
    /// Why the chains before it do not run.
    pub(super) passed: Vec<String>,
    /// Further notices: why the chain is not the chip's own, and the result of its self-test.
    pub(super) notices: Vec<Notice>,
    /// Chains that follow it in order.
    pub(super) rest: Vec<Choice>,
    pub(super) compiled: Compiled,
}

/// Notices and plan of a chain that was compiled here, if it was.
#[derive(Default)]
pub(super) struct Compiled {
    pub(super) notices: Vec<Notice>,
    #[cfg(feature = "build")]
    pub(super) plan: Option<Box<shardwright_build::PlanReport>>,
}

impl Loader {
    /// Queries the shims which chains run. Shims are not queried for a bundle for one chip on this
    /// machine: its chains are tried in order, and errors of loading give the reasons.
    pub(super) fn select(&self, opening: &mut Opening<'_>) -> Result<Option<Selection>> {
        self.asking(opening, |machine| select(&self.bundle, machine))
    }

    fn asking(
        &self,
        opening: &mut Opening<'_>,
        select: impl FnOnce(&mut dyn Machine) -> Result<Selection>,
    ) -> Result<Option<Selection>> {
        if self.bundle.manifest().variants.len() == 1 && self.chip.is_none() {
            return Ok(None);
        }
        let mut open = |shard: &ShardEntry| self.instance(shard, opening);
        select(&mut OpenShims::new(&mut open, self.chip.clone())).map(Some)
    }

    pub(super) fn instance(&self, shard: &ShardEntry, opening: &mut Opening<'_>) -> Result<ShimInstance> {
        let by = &shard.compiled_by;
        let key = (by.shim.clone(), shard.target.name.clone(), by.simulated);
        if let Some(known) = opening.instances.get(&key) {
            return Ok(known.clone());
        }
        let options = self.options(&by.shim);
        let opened = self.shims.open_to_run(&by.shim, &shard.target.name, &options, by.simulated)?;
        opening.instances.insert(key, opened.clone());
        Ok(opened)
    }

    /// Returns the selected chains of a pass in the order in which they are tried. Chains to
    /// compile here are placed as if they ran.
    fn choices(&self, selection: &Selection, pass: Pass) -> Result<Vec<Choice>> {
        let runs = |candidate: &Candidate| Choice {
            variant: candidate.variant,
            pass,
            chain: candidate.chain,
            devices: candidate.shards.iter().map(|shard| Some(shard.device.clone())).collect(),
            refused: None,
        };
        let anew = |passed: &Passed| Choice {
            variant: passed.variant,
            pass,
            chain: passed.chain,
            devices: Vec::new(),
            refused: Some(Refused::of(passed)),
        };
        let mut choices: Vec<(Tier, Choice)> =
            selection.candidates.iter().map(|candidate| (candidate.tier, runs(candidate))).collect();
        for passed in &selection.passed {
            let tier = if self.compiles(passed, pass)? { passed.anew } else { None };
            choices.extend(tier.map(|tier| (tier, anew(passed))));
        }
        // The sort is stable, so candidates of one rank keep their order.
        choices.sort_by_key(|(tier, choice)| (*tier, choice.chain));
        let is_any_anew = choices.iter().any(|(_, choice)| choice.refused.is_some());
        let choices: Vec<Choice> = choices.into_iter().map(|(_, choice)| choice).collect();
        if is_any_anew {
            return Ok(choices);
        }
        let elsewhere = |candidate: &&Candidate| candidate.tier == Tier::Elsewhere;
        // A machine that can only compile for the chip does not fall back from it.
        let mut passed = selection.passed.iter();
        let offline = passed.find(|passed| passed.standing.standing == Standing::Offline);
        match (offline, selection.candidates.iter().all(|candidate| elsewhere(&candidate))) {
            (Some(offline), true) => Err(self.nothing_runs(offline)),
            (None, true) if choices.is_empty() => match selection.passed.first() {
                Some(first) => Err(self.nothing_runs(first)),
                None => Err(Error::new(ErrorKind::Invalid, "the bundle has no chain")),
            },
            _ => Ok(choices),
        }
    }

    fn nothing_runs(&self, passed: &Passed) -> Error {
        let reason = passed.standing.reason.as_deref().unwrap_or("no reason is given");
        let variants: Vec<&str> =
            self.bundle.manifest().variants.iter().map(|variant| variant.soc.as_str()).collect();
        let what = format!(
            "no chain of {} runs here: {} shard {}: {reason}; it has variants for {}",
            self.bundle.path().display(),
            passed.soc,
            passed.shard,
            variants.join(", ")
        );
        let error = Error::new(ErrorKind::Incompatible, what);
        match &passed.standing.help {
            Some(help) => error.with_help(help.clone()),
            None => error,
        }
    }

    /// Returns all chains of a variant, in their order.
    pub(super) fn chains_of(&self, variant: usize, pass: Pass) -> Vec<Choice> {
        let chains = self.variant(variant).model_of(pass).map_or(&[][..], |model| model.chains);
        let choice = |(chain, entry): (usize, &ChainEntry)| Choice {
            variant,
            pass,
            chain,
            devices: vec![None; entry.shards.len()],
            refused: None,
        };
        chains.iter().enumerate().map(choice).collect()
    }

    pub(super) fn variant(&self, index: usize) -> &Variant {
        &self.bundle.manifest().variants[index]
    }

    /// Returns the first chain of the text that loads, or that is compiled here because its plan
    /// allows it.
    pub(super) fn first_that_loads(
        &self,
        selection: &Option<Selection>,
        opening: &mut Opening<'_>,
    ) -> Result<Found> {
        self.first_selected(selection.as_ref(), (0, Pass::Step), opening)
    }

    /// Returns the first chain of a pass that loads. Without a selection, only chains of `variant`
    /// are tried.
    fn first_selected(
        &self,
        selection: Option<&Selection>,
        (variant, pass): (usize, Pass),
        opening: &mut Opening<'_>,
    ) -> Result<Found> {
        let Some(selection) = selection else {
            let mut found = self.first_of(self.chains_of(variant, pass), opening)?;
            let model = self.variant(variant).model_of(pass);
            let runs = model.and_then(|model| model.chains.get(found.index));
            if let (Some(last), Some(runs)) = (found.passed.last_mut(), runs) {
                last.push_str(&format!("; chain `{}` runs", runs.name));
            }
            return Ok(found);
        };
        let mut found = self.first_of(self.choices(selection, pass)?, opening)?;
        let mut candidates = selection.candidates.iter();
        let chosen =
            candidates.find(|candidate| (candidate.variant, candidate.chain) == (found.variant, found.index));
        let mut untold = Vec::new();
        for passed in &selection.passed {
            // Chains that were to be compiled here are in `found.passed`, with the reason.
            if !self.compiles(passed, pass)? {
                untold.push(passed);
            }
        }
        let mut said = chosen.and_then(|chosen| why_not_better(chosen, &untold));
        if pass != Pass::Step {
            // The notice for the text has already reported that a sibling's variant runs.
            said = said.filter(|notice| notice.kind == NoticeKind::Fallback);
        }
        found.notices.extend(said);
        Ok(found)
    }

    /// Loads the first possible chain of `choices`, which are of one pass.
    fn first_of(&self, choices: Vec<Choice>, opening: &mut Opening<'_>) -> Result<Found> {
        let mut passed = Vec::new();
        let mut beforehand = Beforehand::default();
        let mut first_error = None;
        let (mut untried, mut too_large) = (Vec::new(), Vec::new());
        let mut tried = LoadAttempts::new(self.unloaded.as_ref());
        for (position, choice) in choices.iter().enumerate() {
            let Choice { variant, pass, chain: index, .. } = *choice;
            let (model, entry) = self.model(choice)?;
            let is_later = position > 0 || index > 0;
            if is_later && self.policy != FallbackPolicy::Refuse && !self.policy.opens(&entry.name) {
                untried.push(format!("`{}`", entry.name));
                continue;
            }
            // A flag that no shim of a tower supports may be meant for the text.
            let is_first = position == 0 && pass == Pass::Step;
            let found = |chain, passed, compiled, notices| {
                let rest = choices[position + 1..].to_vec();
                Found { chain, variant, index, passed, notices, rest, compiled }
            };
            let trial = self.trial(&choices[position..], opening);
            let recalled = trial.as_ref().and_then(|trial| tried.recall(trial, &self.policy));
            let is_recalled = recalled.is_some();
            let loaded = match recalled.or_else(|| choice.refused.as_ref().map(Refused::error)) {
                Some(error) => Err(NotLoaded::from(error)),
                None => self.load(model, entry, choice, &beforehand, is_first, opening),
            };
            let NotLoaded { error, class, ends, elsewhere } = match loaded {
                Ok(chain) => match self.self_test(&chain, choice, entry, opening) {
                    Ok(said) => {
                        let hedged = entry.is_hedge().then(|| self.variant(variant).soc.as_str());
                        let mut notices = tried.notices(hedged);
                        notices.extend(said.map(Notice::note));
                        return Ok(found(chain, passed, Compiled::default(), notices));
                    }
                    Err(error) => NotLoaded::from(error),
                },
                Err(not_loaded) => not_loaded,
            };
            // Compiling does not help if the machine can only compile for the chip, if the chain
            // does not fit in memory, or if opening was cancelled.
            let is_final =
                elsewhere || is_recalled || matches!(error.kind(), ErrorKind::Memory | ErrorKind::Cancelled);
            let error = match is_final || pass != Pass::Step {
                true => error,
                false => match self.compile_here(variant, entry, error, &beforehand) {
                    Ok((chain, compiled)) => return Ok(found(chain, passed, compiled, tried.notices(None))),
                    Err(error) => error,
                },
            };
            if let Some((trial, class)) = trial.zip(class) {
                tried.fail(trial, class, &error);
            }
            if self.policy == FallbackPolicy::Refuse || ends {
                return Err(error);
            }
            if error.kind() == ErrorKind::Memory {
                too_large.push((MemoryEstimate::of(model, entry), &entry.name, &self.variant(variant).soc));
            }
            passed.push(format!("chain `{}` does not run here: {error}", entry.name));
            beforehand.passed_over.push(PassedOver {
                chain: entry.name.clone(),
                kind: error.kind().name().to_owned(),
                error: error.to_string(),
            });
            first_error.get_or_insert(error);
        }
        let Some(error) = first_error else {
            let what = match untried.as_slice() {
                [] => "the bundle has no chain".to_owned(),
                untried => format!("the fallback policy allows none of the chains {}", untried.join(", ")),
            };
            let kind = if untried.is_empty() { ErrorKind::Invalid } else { ErrorKind::Strict };
            return Err(Error::new(kind, what).with_help("name a chain of the bundle in the policy"));
        };
        let smallest = too_large.iter().min_by_key(|(need, ..)| need.bytes()).filter(|_| too_large.len() > 1);
        let error = match smallest {
            Some((need, name, soc)) => {
                error.with_more(format!("chain `{name}` of the variant for {soc} needs the least: {need}"))
            }
            None => error,
        };
        Err(match untried.as_slice() {
            [] => error,
            untried => error.with_more(format!("the fallback policy excludes {}", untried.join(", "))),
        })
    }

    pub(super) fn model(&self, choice: &Choice) -> Result<(ModelEntry<'_>, &ChainEntry)> {
        let model = self.variant(choice.variant).model_of(choice.pass);
        let entry = model.and_then(|model| Some((model, model.chains.get(choice.chain)?)));
        entry.ok_or_else(|| self.no_tower(choice.pass))
    }

    fn no_tower(&self, pass: Pass) -> Error {
        let path = self.bundle.path().display();
        Error::new(ErrorKind::Unsupported, format!("{path}: the bundle has no tower for a {pass}"))
            .with_help("compile the checkpoint with that tower, or open the checkpoint itself")
    }

    /// Loads the tower of a pass, with notices. Progress is by the bytes that are hashed and
    /// loaded.
    pub(super) fn tower(
        self: &Arc<Self>,
        variant: usize,
        pass: Pass,
        watch: &mut dyn Watch,
    ) -> Result<LoadedTower> {
        if self.chains_of(variant, pass).is_empty() {
            return Err(self.no_tower(pass));
        }
        self.bundle.take_hashed();
        let opening = &mut Opening::new(watch);
        let selection = self.asking(opening, |machine| select_of(&self.bundle, variant, pass, machine))?;
        let found = self.first_selected(selection.as_ref(), (variant, pass), opening)?;
        let Found { chain, passed, rest, notices: said, .. } = found;
        let stale = chain.description().shards.iter().filter_map(|shard| shard.origin.fallback.clone());
        let mut notices: Vec<Notice> = passed.into_iter().chain(stale).map(Notice::fallback).collect();
        notices.extend(said);
        let mut fallbacks = notices.iter().filter(|notice| notice.kind == NoticeKind::Fallback);
        match fallbacks.next().filter(|_| self.run.strict) {
            Some(fallback) => Err(Error::new(ErrorKind::Strict, fallback.text.clone())),
            None => {
                let next = self.policy.goes_on().then(|| self.later(rest));
                let refused = self.bundle.proofs().and_then(Proofs::refused);
                let verified = Verified::of(&self.bundle, refused.as_ref(), self.verify_all, &self.run);
                Ok(LoadedTower { chain, notices, verified, next })
            }
        }
    }

    /// Compiles a chain on this machine, if its plan allows that and the checkpoint is available.
    /// Otherwise returns `error`, with help.
    #[cfg(feature = "build")]
    fn compile_here(
        &self,
        variant: usize,
        entry: &ChainEntry,
        error: Error,
        beforehand: &Beforehand,
    ) -> Result<(Chain, Compiled)> {
        let flags = self.flags.iter().map(|flag| (flag.name.clone(), flag.value.clone()));
        let mut asked = self.run.fill(PlanOptions::default());
        asked.recorded.flags = flags.collect();
        let bundle = self.bundle.of_variant(variant);
        let made = compile_recorded(&bundle, entry, error, self.checkpoint.as_deref(), &asked)?;
        let beforehand = Beforehand { compiled_here: Some(made.compiled_here), ..beforehand.clone() };
        let chain = self.within_budget(crate::load(&made.settled, beforehand)?)?;
        let plan = Some(Box::new(made.settled.report_now()));
        Ok((chain, Compiled { notices: made.notices, plan }))
    }

    /// Returns whether to compile a chain here that a shim refuses. Its plan must allow it.
    #[cfg(feature = "build")]
    fn compiles(&self, passed: &Passed, pass: Pass) -> Result<bool> {
        let is_wanted = pass == Pass::Step && passed.anew.is_some();
        let entry = self.variant(passed.variant).chains.get(passed.chain).filter(|_| is_wanted);
        entry.map_or(Ok(false), |entry| may_compile_here(&self.bundle, entry))
    }

    /// Returns `false`: this build has no compiler.
    #[cfg(not(feature = "build"))]
    fn compiles(&self, _: &Passed, _: Pass) -> Result<bool> {
        Ok(false)
    }

    /// Returns `error`: this build has no compiler.
    #[cfg(not(feature = "build"))]
    fn compile_here(
        &self,
        _: usize,
        _: &ChainEntry,
        error: Error,
        _: &Beforehand,
    ) -> Result<(Chain, Compiled)> {
        Err(error)
    }
}

/// Returns the last value of each flag.
pub(super) fn flags_of(pairs: &[(String, String)]) -> Vec<Flag> {
    let mut flags: Vec<Flag> = Vec::new();
    for (name, value) in pairs {
        flags.retain(|flag| flag.name != *name);
        flags.push(Flag { name: name.clone(), value: value.clone() });
    }
    flags
}

/// Why a chain was not loaded.
pub(super) struct NotLoaded {
    pub(super) error: Error,
    /// The class of the error, if the driver would repeat it at another start.
    pub(super) class: Option<ErrorClass>,
    /// Whether no other chain may be tried: the bundle is damaged, opening was cancelled, or the
    /// machine lacks the chip and can only compile for it.
    pub(super) ends: bool,
    /// Whether the machine lacks the chip and can only compile for it.
    pub(super) elsewhere: bool,
}

impl<E: Into<Error>> From<E> for NotLoaded {
    fn from(error: E) -> Self {
        let error = error.into();
        let ends = matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Cancelled);
        NotLoaded { error, class: None, ends, elsewhere: false }
    }
}
