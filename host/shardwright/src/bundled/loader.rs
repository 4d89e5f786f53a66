//! Loads chains of a bundle on the shims of this machine, the best first.

use std::collections::BTreeMap;
use std::sync::Arc;

#[cfg(feature = "build")]
use shardwright_build::{PlanOptions, compile_recorded};
use shardwright_bundle::{Bundle, ChainEntry, Model as ModelEntry, ShardEntry, Variant};
use shardwright_runtime::{
    Chain, ChainDescription, NextChain, NextChainError, PlacementRecord, SessionError, ShardDescription,
};
use shardwright_selection::{
    Candidate, Machine, OpenShims, Passed, Selection, Standing, Tier, know_chip, only_compiled_for,
    only_compiles, select, select_of,
};
use shardwright_shims::{Artefact, Chip, LoadedShard, ShimInstance};
use shardwright_vocabulary::{
    Beforehand, Compatibility, Flag, FlagOutcome, FlagSchema, FlagVerdict, Notice, NoticeKind, Pass,
    PassedOver,
};
use shardwright_worker::Shims;

use super::said::why_not_better;
use crate::load_flags;
use crate::run_options::RunOptions;
use crate::towers::LoadedTower;
use crate::{Error, ErrorKind, Result};

/// What opening chains has come to so far.
#[derive(Default)]
pub(super) struct Opening {
    /// Shims that were opened, by their names, the names of targets, and whether they simulate.
    instances: BTreeMap<(String, String, bool), ShimInstance>,
    /// Bytes of artefacts that were copied into memory, because they begin where no page does.
    pub(super) copied: u64,
}

/// Loads chains of one bundle.
pub(super) struct Loader {
    pub(super) shims: Shims,
    pub(super) bundle: Bundle,
    /// The last value of each flag that a session requests.
    pub(super) flags: Vec<Flag>,
    pub(super) run: RunOptions,
    /// The chip that this machine is taken for.
    pub(super) chip: Option<Chip>,
    /// Where the checkpoint lies that the bundle was made from.
    #[cfg(feature = "build")]
    pub(super) checkpoint: Option<std::path::PathBuf>,
}

/// A chain of the bundle, to be loaded.
#[derive(Clone)]
pub(super) struct Choice {
    pub(super) variant: usize,
    pub(super) pass: Pass,
    pub(super) chain: usize,
    /// The devices of its shards; those they were compiled for if nothing was asked about them.
    pub(super) devices: Vec<Option<String>>,
}

/// A chain that runs.
pub(super) struct Found {
    pub(super) chain: Chain,
    /// The variant in the bundle.
    pub(super) variant: usize,
    /// The chain in the variant.
    pub(super) index: usize,
    /// Why those before it do not run.
    pub(super) passed: Vec<String>,
    /// What else is to be said: why it is not the chip's own, what came of its self-test.
    pub(super) notices: Vec<Notice>,
    /// Those after it.
    pub(super) rest: Vec<Choice>,
    pub(super) compiled: Compiled,
}

/// The notice about a chain that was compiled here, if it was.
#[derive(Default)]
pub(super) struct Compiled {
    pub(super) notices: Vec<Notice>,
    #[cfg(feature = "build")]
    pub(super) plan: Option<Box<shardwright_build::PlanReport>>,
}

impl Loader {
    /// Asks the shims which chains run. Nothing is asked of a bundle for one chip on this machine:
    /// its chains are tried in their order, and what does not load says why.
    pub(super) fn select(&self, opening: &mut Opening) -> Option<Selection> {
        self.asking(opening, |machine| select(&self.bundle, machine))
    }

    fn asking(
        &self,
        opening: &mut Opening,
        select: impl FnOnce(&mut dyn Machine) -> Selection,
    ) -> Option<Selection> {
        if self.bundle.manifest().variants.len() == 1 && self.chip.is_none() {
            return None;
        }
        let mut open = |shard: &ShardEntry| self.instance(shard, opening);
        Some(select(&mut OpenShims::new(&mut open, self.chip.clone())))
    }

    pub(super) fn instance(&self, shard: &ShardEntry, opening: &mut Opening) -> Result<ShimInstance> {
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

    /// The selected chains of a pass in the order in which they are tried.
    fn choices(&self, selection: &Selection, pass: Pass) -> Result<Vec<Choice>> {
        let runs = |candidate: &Candidate| Choice {
            variant: candidate.variant,
            pass,
            chain: candidate.chain,
            devices: candidate.shards.iter().map(|shard| Some(shard.device.clone())).collect(),
        };
        let elsewhere = |candidate: &&Candidate| candidate.tier == Tier::Elsewhere;
        let choices: Vec<Choice> = selection.candidates.iter().map(runs).collect();
        // A machine that only compiles for a chip is not one that falls back from it.
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
        let reason = passed.standing.reason.as_deref().unwrap_or("it does not say why");
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

    /// All chains of a variant, in their order.
    pub(super) fn chains_of(&self, variant: usize, pass: Pass) -> Vec<Choice> {
        let chains = self.variant(variant).model_of(pass).map_or(&[][..], |model| model.chains);
        let choice = |(chain, entry): (usize, &ChainEntry)| Choice {
            variant,
            pass,
            chain,
            devices: vec![None; entry.shards.len()],
        };
        chains.iter().enumerate().map(choice).collect()
    }

    pub(super) fn variant(&self, index: usize) -> &Variant {
        &self.bundle.manifest().variants[index]
    }

    /// The first chain of the text that loads, or is compiled here because its plan allows it.
    pub(super) fn first_that_loads(
        &self,
        selection: &Option<Selection>,
        opening: &mut Opening,
    ) -> Result<Found> {
        self.first_selected(selection.as_ref(), (0, Pass::Step), opening)
    }

    /// The first chain of a pass that loads; of those of `variant`, where nothing was asked.
    fn first_selected(
        &self,
        selection: Option<&Selection>,
        (variant, pass): (usize, Pass),
        opening: &mut Opening,
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
        let mut said = chosen.and_then(|chosen| why_not_better(chosen, &selection.passed));
        if pass != Pass::Step {
            // That a sibling's variant runs was said of the text.
            said = said.filter(|notice| notice.kind == NoticeKind::Fallback);
        }
        found.notices.extend(said);
        Ok(found)
    }

    /// The first of some chains of one pass that loads.
    fn first_of(&self, choices: Vec<Choice>, opening: &mut Opening) -> Result<Found> {
        let mut passed = Vec::new();
        let mut beforehand = Beforehand::default();
        let mut first_error = None;
        for (position, choice) in choices.iter().enumerate() {
            let Choice { variant, pass, chain: index, .. } = *choice;
            let (model, entry) = self.model(choice)?;
            // Flags that no shim of a tower knows may be the text's.
            let is_first = position == 0 && pass == Pass::Step;
            let found = |chain, passed, compiled| {
                let rest = choices[position + 1..].to_vec();
                Found { chain, variant, index, passed, notices: Vec::new(), rest, compiled }
            };
            let loaded = self.load(model, entry, choice, &beforehand, is_first, opening);
            let NotLoaded { error, ends, elsewhere } = match loaded {
                Ok(chain) => match self.self_test(&chain, choice, entry, opening) {
                    Ok(said) => {
                        let notices = said.map(Notice::note).into_iter().collect();
                        return Ok(Found { notices, ..found(chain, passed, Compiled::default()) });
                    }
                    Err(error) => NotLoaded::from(error),
                },
                Err(not_loaded) => not_loaded,
            };
            let error = match elsewhere {
                // What is only compiled for here is no failure that compiling would mend.
                true => error,
                false if pass != Pass::Step => error,
                false => match self.compile_here(variant, entry, error, &beforehand) {
                    Ok((chain, compiled)) => return Ok(found(chain, passed, compiled)),
                    Err(error) => error,
                },
            };
            if self.run.strict || ends {
                return Err(error);
            }
            passed.push(format!("chain `{}` does not run here: {error}", entry.name));
            beforehand.passed_over.push(PassedOver {
                chain: entry.name.clone(),
                kind: error.kind().name().to_owned(),
                error: error.to_string(),
            });
            first_error.get_or_insert(error);
        }
        Err(first_error.unwrap_or_else(|| Error::new(ErrorKind::Invalid, "the bundle has no chain")))
    }

    pub(super) fn model(&self, choice: &Choice) -> Result<(ModelEntry<'_>, &ChainEntry)> {
        let model = self.variant(choice.variant).model_of(choice.pass);
        let entry = model.and_then(|model| Some((model, model.chains.get(choice.chain)?)));
        entry.ok_or_else(|| self.no_tower(choice.pass))
    }

    fn no_tower(&self, pass: Pass) -> Error {
        let path = self.bundle.path().display();
        Error::new(ErrorKind::Unsupported, format!("{path}: it holds no tower of a {pass}"))
            .with_help("compile the checkpoint with that tower, or open the checkpoint itself")
    }

    /// The tower of a pass, with what is to be said of it.
    pub(super) fn tower(self: &Arc<Self>, variant: usize, pass: Pass) -> Result<LoadedTower> {
        if self.chains_of(variant, pass).is_empty() {
            return Err(self.no_tower(pass));
        }
        let opening = &mut Opening::default();
        let selection = self.asking(opening, |machine| select_of(&self.bundle, variant, pass, machine));
        let found = self.first_selected(selection.as_ref(), (variant, pass), opening)?;
        let Found { chain, passed, rest, notices: said, .. } = found;
        let stale = chain.description().shards.iter().filter_map(|shard| shard.origin.fallback.clone());
        let mut notices: Vec<Notice> = passed.into_iter().chain(stale).map(Notice::fallback).collect();
        notices.extend(said);
        let mut fallbacks = notices.iter().filter(|notice| notice.kind == NoticeKind::Fallback);
        match fallbacks.next().filter(|_| self.run.strict) {
            Some(fallback) => Err(Error::new(ErrorKind::Strict, fallback.text.clone())),
            None => {
                let next = LaterChains { loader: Arc::clone(self), rest: rest.into_iter() };
                let next = (!self.run.strict).then(|| Box::new(next) as Box<dyn NextChain>);
                Ok(LoadedTower { chain, notices, next })
            }
        }
    }

    /// The chain compiled on this machine, if its plan allows that and the checkpoint is available;
    /// else `error`, with help.
    #[cfg(feature = "build")]
    fn compile_here(
        &self,
        variant: usize,
        entry: &ChainEntry,
        error: Error,
        beforehand: &Beforehand,
    ) -> Result<(Chain, Compiled)> {
        let flags = self.flags.iter().map(|flag| (flag.name.clone(), flag.value.clone()));
        let asked = PlanOptions { flags: flags.collect(), ..self.run.fill(PlanOptions::default()) };
        let bundle = self.bundle.of_variant(variant);
        let made = compile_recorded(&bundle, entry, error, self.checkpoint.as_deref(), &asked)?;
        let beforehand = Beforehand { compiled_here: Some(made.compiled_here), ..beforehand.clone() };
        let chain = crate::load(&made.settled, beforehand)?;
        let plan = Some(Box::new(made.settled.report_now()));
        Ok((chain, Compiled { notices: made.notices, plan }))
    }

    /// Without a compiler there is nothing to try.
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

    /// Loads every artefact of a chain on the shim that compiled it and joins them. A flag that no
    /// shim of the first chain knows is an error; a later chain runs without it, which its origins
    /// record.
    pub(super) fn load(
        &self,
        model: ModelEntry<'_>,
        entry: &ChainEntry,
        choice: &Choice,
        beforehand: &Beforehand,
        is_first: bool,
        opening: &mut Opening,
    ) -> std::result::Result<Chain, NotLoaded> {
        let ends = |error| NotLoaded { error, ends: true, elsewhere: false };
        let mut schemas: Vec<FlagSchema> = Vec::new();
        let mut executors: Vec<LoadedShard> = Vec::new();
        let mut shards = Vec::new();
        for (shard, device) in entry.shards.iter().zip(&choice.devices) {
            let instance = self.instance(shard, opening)?;
            know_chip(&instance, &self.bundle, shard)?;
            if let Some(device) = only_compiled_for(&instance, shard)?
                && choice.devices.iter().all(Option::is_none)
            {
                let error = only_compiles(shard, &device);
                return Err(NotLoaded { error, ends: true, elsewhere: true });
            }
            let device = device.as_deref().unwrap_or(&shard.compiled_by.device);
            let schema = match (self.flags.as_slice(), shard.load_flags.as_slice()) {
                ([], []) => Vec::new(),
                _ => instance.flags(device)?,
            };
            // The session's own beat those of the plan.
            let planned = shard.load_flags.iter();
            let planned = planned.filter(|flag| self.flags.iter().all(|own| own.name != flag.name));
            let (mut flags, mut passed_over) = (Vec::new(), Vec::new());
            for flag in planned {
                match flag.is_taken_at_load(&schema) {
                    Ok(true) => flags.push(flag.clone()),
                    Ok(false) | Err(_) => passed_over.push(flag.clone()),
                }
            }
            for flag in &self.flags {
                if load_flags::taken(flag, &schema, shard).map_err(ends)? {
                    flags.push(flag.clone());
                }
            }
            schemas.extend(schema);
            let (mut description, executor, copied) = self.load_shard(shard, device, &instance, &flags)?;
            opening.copied += copied;
            for flag in passed_over {
                let reason = format!("shim `{}` takes no such flag at loading", shard.compiled_by.shim);
                let verdict = FlagVerdict::Unknown;
                description.origin.loaded_with.push(FlagOutcome { flag, verdict, reason });
            }
            shards.push(description);
            executors.push(executor);
        }
        for flag in self.flags.iter().filter(|flag| schemas.iter().all(|known| known.name != flag.name)) {
            if is_first {
                return Err(ends(load_flags::unknown(flag, &schemas)));
            }
            for shard in &mut shards {
                let reason = format!("shim `{}` has no such flag", shard.place.shim);
                let verdict = FlagVerdict::Unknown;
                shard.origin.loaded_with.push(FlagOutcome { flag: flag.clone(), verdict, reason });
            }
        }
        let assets = self.bundle.assets_of(model.assets)?;
        let mut description =
            ChainDescription::of_bundle(&self.bundle.manifest().model.name, model, entry, shards)?;
        description.beforehand.clone_from(beforehand);
        Ok(Chain::new(description, executors, assets)?)
    }

    fn load_shard(
        &self,
        shard: &ShardEntry,
        device: &str,
        instance: &ShimInstance,
        flags: &[Flag],
    ) -> Result<(ShardDescription, LoadedShard, u64)> {
        let section = self.bundle.proved(&shard.artefact)?;
        let artefact = Artefact::of_section(section).map_err(|error| {
            let help = error.help().map(str::to_owned);
            Error::caused_by(ErrorKind::Invalid, error, help)
        })?;
        let refused = |reason: String| {
            Error::new(ErrorKind::Incompatible, format!("shard {}: {reason}", shard.name))
                .with_help("compile the checkpoint again with this machine's shims")
        };
        if artefact.head().work_order != shard.work_order.to_string() {
            return Err(refused(
                "its artefact was made of another work order than the manifest says".to_owned(),
            ));
        }
        let (head, compiled_by) = (artefact.head(), &shard.compiled_by);
        if (&head.shim, &head.shim_version, &head.device)
            != (&compiled_by.shim, &compiled_by.version, &compiled_by.device)
        {
            return Err(refused(format!(
                "its artefact was compiled by {} {} for {}, not by {} {} for {} as the manifest says",
                head.shim,
                head.shim_version,
                head.device,
                compiled_by.shim,
                compiled_by.version,
                compiled_by.device
            )));
        }
        let mut fallback = None;
        match instance.compatibility(device, &artefact)? {
            Compatibility::Optimal => {}
            Compatibility::Recompile(reason) => {
                fallback = Some(format!("the shim would compile it otherwise today: {reason}"));
            }
            Compatibility::NotMine(reason) | Compatibility::Unsupported(reason) => {
                return Err(refused(reason));
            }
        }
        let options = self.options(instance.shim().name());
        let loaded = instance.load_with(device, &artefact, &options, flags)?;
        let nothing = || refused("it was compiled to nothing that can run".to_owned());
        let mut description = ShardDescription::of(&shard.name, &loaded).ok_or_else(nothing)?;
        description.origin.fallback = fallback;
        Ok((description, loaded, artefact.copied_bytes()))
    }

    fn options(&self, shim: &str) -> Vec<(String, String)> {
        match self.run.threads {
            Some(threads) if shim == "cpu" => vec![("threads".to_owned(), threads.to_string())],
            _ => Vec::new(),
        }
    }
}

/// The last value of each flag.
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
    /// Whether no other chain must be tried: damage, or a machine that lacks the chip and only
    /// compiles for it.
    ends: bool,
    /// Whether it is the latter.
    elsewhere: bool,
}

impl<E: Into<Error>> From<E> for NotLoaded {
    fn from(error: E) -> Self {
        let error = error.into();
        NotLoaded { ends: error.kind() == ErrorKind::Invalid, error, elsewhere: false }
    }
}

/// The chains of a bundle after the one that runs, loaded when they are needed.
pub(super) struct LaterChains {
    pub(super) loader: Arc<Loader>,
    pub(super) rest: std::vec::IntoIter<Choice>,
}

impl NextChain for LaterChains {
    fn next(
        &mut self,
        _lost: &SessionError,
        _so_far: &PlacementRecord,
    ) -> Option<std::result::Result<Chain, NextChainError>> {
        let choice = self.rest.next()?;
        let (model, entry) = self.loader.model(&choice).ok()?;
        // A lost device may have taken its instance with it.
        let opening = &mut Opening::default();
        let loaded = self.loader.load(model, entry, &choice, &Beforehand::default(), false, opening);
        Some(loaded.map_err(|NotLoaded { error, .. }| {
            NextChainError::new(format_args!("chain `{}`: {error}", entry.name))
        }))
    }
}
