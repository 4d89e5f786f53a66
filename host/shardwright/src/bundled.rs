//! Opens a bundle: loads its chains of compiled artefacts with the available shims.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

#[cfg(feature = "build")]
use shardwright_build::{PlanOptions, compile_recorded};
use shardwright_bundle::{Bundle, ChainEntry, Digest, Model as ModelEntry, Proofs, ShardEntry, Variant};
use shardwright_files::Section;
use shardwright_runtime::{
    Chain, ChainDescription, Goldens, Likeness, NextChain, NextChainError, PlacementRecord, SessionError,
    ShardDescription,
};
use shardwright_selection::{
    Candidate, OpenShims, Passed, Selection, Standing, Tier, know_chip, only_compiled_for, only_compiles,
    select,
};
use shardwright_shims::{Artefact, Chip, LoadedShard, ShimInstance};
use shardwright_vocabulary::{
    Beforehand, Compatibility, Flag, FlagOutcome, FlagSchema, FlagVerdict, Notice, NoticeKind, Pass,
    PassedOver,
};
use shardwright_worker::Shims;

use crate::load_flags;
use crate::model::{BundleOrigin, NextChainMaker, OpeningTimes, Origin};
use crate::run_options::{RunOptions, run_option_setters};
use crate::text_side::TextSide;
use crate::towers::{LoadedTower, Towers};
use crate::{Error, ErrorKind, Model, Result};

/// How to open a bundle.
#[derive(Clone, Debug, Default)]
pub struct BundleOptions {
    run: RunOptions,
    verify: bool,
    proofs: Option<Proofs>,
    chip: Option<Chip>,
    flags: Vec<(String, String)>,
    #[cfg(feature = "build")]
    checkpoint: Option<std::path::PathBuf>,
}

impl BundleOptions {
    /// The defaults.
    pub fn new() -> Self {
        BundleOptions::default()
    }

    /// Those that ask the same of opening.
    #[cfg(feature = "build")]
    pub(crate) fn of(run: RunOptions) -> Self {
        BundleOptions { run, ..BundleOptions::default() }
    }

    run_option_setters!();

    /// Sets a flag that takes effect when shards are loaded, such as `power`. A flag that the
    /// bundle has decided, or that none of its shims knows, is an error; the flag's outcome is a
    /// notice.
    #[must_use]
    pub fn flag(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.flags.push((name.into(), value.into()));
        self
    }

    /// Verifies every byte of the bundle before anything is used, including chains that are not
    /// loaded, and ignores remembered proofs. Default: off; every byte that is loaded is verified,
    /// or was before.
    #[must_use]
    pub fn verify_all(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }

    /// Remembers in `directory` which artefacts and tables were verified against the manifest, so
    /// that a start does not hash a whole model again: a file that cannot have changed since is not
    /// hashed. If that cannot be determined (systems other than Linux and Android, file systems in
    /// memory or in layers, files of another user), or if others may write `directory` (reported by
    /// a notice), every start hashes them. Default: nothing is remembered and everything is hashed.
    /// No effect with [`verify_all`](Self::verify_all).
    #[must_use]
    pub fn remember_proofs(mut self, directory: impl Into<std::path::PathBuf>) -> Self {
        self.proofs = Some(Proofs::kept_in(directory));
        self
    }

    /// The chip that this machine is taken for, where it has a name: its own variant runs, or the
    /// nearest that the shim accepts on that chip, in a simulator where shims simulate it. Default:
    /// the chip that the shims find.
    #[must_use]
    pub fn chip(mut self, chip: Chip) -> Self {
        self.chip = Some(chip);
        self
    }

    /// The checkpoint the bundle was made from. If a chain cannot be loaded and its plan says
    /// `just-in-time` for every shard, it is planned and compiled again on this machine, which the
    /// placement record reports with its cost. Default: none, nothing is compiled.
    #[cfg(feature = "build")]
    #[must_use]
    pub fn checkpoint(mut self, directory: impl Into<std::path::PathBuf>) -> Self {
        self.checkpoint = Some(directory.into());
        self
    }

    /// Opens a bundle, in a directory or packed, and loads the chain of it that suits this machine
    /// best.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Model> {
        let started = Instant::now();
        self.load(Bundle::open(path)?, started)
    }

    /// Opens a bundle that is packed within an open file: an asset of an app, which the system
    /// gives as a descriptor with an offset and a length.
    pub fn open_section(&self, section: Section) -> Result<Model> {
        let started = Instant::now();
        self.load(Bundle::open_section(section)?, started)
    }

    /// One chain of the text, without anything that is said or remembered of it.
    #[cfg(feature = "build")]
    pub(crate) fn load_chain(&self, bundle: &Bundle, variant: usize, chain: usize) -> Result<Chain> {
        let loader = Loader {
            shims: self.run.shims()?,
            bundle: bundle.clone(),
            flags: Vec::new(),
            options: self.clone(),
        };
        let missing = || Error::new(ErrorKind::Internal, "the bundle has no such chain");
        let choice = loader.chains_of(variant, Pass::Step).into_iter().nth(chain).ok_or_else(missing)?;
        let (model, entry) = loader.model(&choice)?;
        let loaded =
            loader.load(model, entry, &choice, &Beforehand::default(), false, &mut Opening::default());
        loaded.map_err(|NotLoaded { error, .. }| error)
    }

    fn load(&self, bundle: Bundle, started: Instant) -> Result<Model> {
        let proofs = self.proofs.clone().filter(|_| !self.verify);
        let disbelieved = proofs.as_ref().and_then(Proofs::refused);
        let bundle = bundle.remembering(proofs);
        if self.verify {
            bundle.verify_all(|_| ())?;
        }
        let text = TextSide::of_bundle(&Arc::new(bundle.clone()), self.run.tokenizer_start())?;
        let reading = started.elapsed();
        let loading = Instant::now();
        let loader = Loader {
            shims: self.run.shims()?,
            bundle: bundle.clone(),
            flags: flags_of(&self.flags),
            options: self.clone(),
        };
        let mut opened = Opening::default();
        let selection = loader.select(&mut opened);
        let chosen = loader.first_that_loads(&selection, &mut opened)?;
        let Found { chain, variant, index, passed, notices: said, rest, compiled } = chosen;
        let bundle = Arc::new(bundle.of_variant(variant));
        let loader = Arc::new(loader);
        let times = OpeningTimes { reading, loading: loading.elapsed(), ..OpeningTimes::default() };
        let mut notices = bundle.variant().notices.clone();
        let made = notices.len();
        let say = |kind, text| Notice { kind, text };
        // A bundle runs in this process in any case; what is compiled for it here could have been
        // elsewhere.
        #[cfg(feature = "build")]
        let compiled_here = compiled.plan.is_some();
        #[cfg(not(feature = "build"))]
        let compiled_here = false;
        let no_worker = loader.shims.notice.clone().filter(|_| compiled_here);
        notices.extend(no_worker.map(|text| say(NoticeKind::Note, text)));
        notices.extend(disbelieved.map(|error| {
            let help = error.help().unwrap_or_default();
            let text =
                format!("remembered proofs are not believed, so every byte was hashed: {error}; {help}");
            say(NoticeKind::Note, text)
        }));
        let stale = chain.description().shards.iter().filter_map(|shard| shard.origin.fallback.clone());
        notices.extend(passed.into_iter().chain(stale).map(|text| say(NoticeKind::Fallback, text)));
        notices.extend(said);
        notices.extend(copied_notice(&bundle, opened.copied));
        notices.extend(compiled.notices);
        notices.extend(load_flags::outcomes(&chain.description().shards).into_iter().map(
            |(otherwise, text)| {
                let kind = if otherwise { NoticeKind::Fallback } else { NoticeKind::Note };
                say(kind, text)
            },
        ));
        let fallback = notices.iter().find(|notice| notice.kind == NoticeKind::Fallback);
        if let Some(fallback) = fallback.filter(|_| self.run.strict) {
            return Err(Error::new(ErrorKind::Strict, fallback.text.clone()));
        }
        let origin = Origin::Bundle(Arc::new(BundleOrigin {
            #[cfg(feature = "build")]
            plan: match compiled.plan {
                Some(plan) => Some(*plan),
                None => recorded_plan(&bundle, index)?,
            },
            bundle: Arc::clone(&bundle),
            chain: index,
            selection,
            notices,
            made,
        }));
        let tower_loader = Arc::clone(&loader);
        let next: Option<Arc<NextChainMaker>> = match self.run.strict {
            // A fallback is an error then: there is no chain to fall back to.
            true => None,
            false => Some(Arc::new(move || {
                let (loader, rest) = (Arc::clone(&loader), rest.clone().into_iter());
                Box::new(LaterChains { loader, rest }) as Box<dyn NextChain>
            })),
        };
        let towers = Towers::of_bundle(bundle, move |pass| tower_loader.tower(variant, pass));
        Ok(Model::new(chain, next, text, towers, origin, times))
    }
}

/// What opening chains has come to so far.
#[derive(Default)]
struct Opening {
    /// Shims that were opened, by their names, the names of targets, and whether they simulate.
    instances: BTreeMap<(String, String, bool), ShimInstance>,
    /// Bytes of artefacts that were copied into memory, because they begin where no page does.
    copied: u64,
}

/// Loads chains of one bundle.
struct Loader {
    shims: Shims,
    bundle: Bundle,
    /// The last value of each flag that a session requests.
    flags: Vec<Flag>,
    options: BundleOptions,
}

/// A chain of the bundle, to be loaded.
#[derive(Clone)]
struct Choice {
    variant: usize,
    pass: Pass,
    chain: usize,
    /// The devices of its shards; those they were compiled for if nothing was asked about them.
    devices: Vec<Option<String>>,
}

/// A chain that runs.
struct Found {
    chain: Chain,
    /// The variant in the bundle.
    variant: usize,
    /// The chain in the variant.
    index: usize,
    /// Why those before it do not run.
    passed: Vec<String>,
    /// What else is to be said: why it is not the chip's own, what came of its self-test.
    notices: Vec<Notice>,
    /// Those after it.
    rest: Vec<Choice>,
    compiled: Compiled,
}

/// The notice about a chain that was compiled here, if it was.
#[derive(Default)]
struct Compiled {
    notices: Vec<Notice>,
    #[cfg(feature = "build")]
    plan: Option<Box<shardwright_build::PlanReport>>,
}

impl Loader {
    /// Asks the shims which chains run. Nothing is asked of a bundle for one chip on this machine:
    /// its chains are tried in their order, and what does not load says why.
    fn select(&self, opening: &mut Opening) -> Option<Selection> {
        if self.bundle.manifest().variants.len() == 1 && self.options.chip.is_none() {
            return None;
        }
        let mut open = |shard: &ShardEntry| self.instance(shard, opening);
        Some(select(&self.bundle, &mut OpenShims::new(&mut open, self.options.chip.clone())))
    }

    fn instance(&self, shard: &ShardEntry, opening: &mut Opening) -> Result<ShimInstance> {
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

    /// The chains of the text in the order in which they are tried.
    fn choices(&self, selection: Option<&Selection>) -> Result<Vec<Choice>> {
        let Some(selection) = selection else { return Ok(self.chains_of(0, Pass::Step)) };
        let runs = |candidate: &Candidate| Choice {
            variant: candidate.variant,
            pass: Pass::Step,
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
    fn chains_of(&self, variant: usize, pass: Pass) -> Vec<Choice> {
        let chains = self.variant(variant).model_of(pass).map_or(&[][..], |model| model.chains);
        let choice = |(chain, entry): (usize, &ChainEntry)| Choice {
            variant,
            pass,
            chain,
            devices: vec![None; entry.shards.len()],
        };
        chains.iter().enumerate().map(choice).collect()
    }

    fn variant(&self, index: usize) -> &Variant {
        &self.bundle.manifest().variants[index]
    }

    /// The first chain of the text that loads, or is compiled here because its plan allows it.
    fn first_that_loads(&self, selection: &Option<Selection>, opening: &mut Opening) -> Result<Found> {
        let choices = self.choices(selection.as_ref())?;
        let mut found = self.first_of(choices, opening)?;
        let chosen = selection.as_ref().and_then(|selection| {
            let mut candidates = selection.candidates.iter();
            candidates.find(|candidate| (candidate.variant, candidate.chain) == (found.variant, found.index))
        });
        let passed = selection.as_ref().map_or(&[][..], |selection| &selection.passed);
        found.notices.extend(chosen.and_then(|chosen| why_not_better(chosen, passed)));
        Ok(found)
    }

    /// Asks a chain whose shim would compile it otherwise today, or that runs on another chip than
    /// it was compiled for, for the bundle's goldens. What held once on these devices is remembered
    /// where proofs are.
    ///
    /// # Errors
    ///
    /// That it says something else, or that it is for another chip and there is nothing to ask.
    fn self_test(
        &self,
        chain: &Chain,
        choice: &Choice,
        entry: &ChainEntry,
        opening: &mut Opening,
    ) -> Result<Option<String>> {
        let devices = choice.devices.iter().zip(&entry.shards);
        let is_elsewhere = devices
            .filter_map(|(device, shard)| Some((device.as_ref()?, &shard.compiled_by.device)))
            .any(|(device, compiled_for)| device != compiled_for);
        let is_old = chain.description().shards.iter().any(|shard| shard.origin.fallback.is_some());
        if choice.pass != Pass::Step || !(is_elsewhere || is_old) {
            return Ok(None);
        }
        let incompatible = |what: String| {
            Error::new(ErrorKind::Incompatible, what)
                .with_help("compile the checkpoint again with this machine's shims, for this chip")
        };
        let Some(goldens) = self.goldens()? else {
            return match is_elsewhere {
                true => Err(incompatible(
                    "it is for another chip, and the bundle has no goldens to test it by".to_owned(),
                )),
                false => Ok(Some("it was not tested here: the bundle has no goldens".to_owned())),
            };
        };
        let question = self.question(choice, entry, opening)?;
        let proofs = self.bundle.proofs().filter(|proofs| proofs.refused().is_none());
        if proofs.is_some_and(|proofs| proofs.has_passed(question)) {
            return Ok(None);
        }
        let likeness = goldens.compare(chain)?;
        if !likeness.holds() {
            return Err(incompatible(format!(
                "its self-test failed on this machine: {likeness}, at most {} nats",
                Likeness::LIMIT
            )));
        }
        proofs.inspect(|proofs| proofs.pass(question));
        Ok(Some(format!("self-test of chain `{}` on this machine: {likeness}", entry.name)))
    }

    fn goldens(&self) -> Result<Option<Goldens>> {
        let Some(file) = &self.bundle.manifest().goldens else { return Ok(None) };
        let goldens = Goldens::read(&self.bundle.read(file)?).map_err(|reason| {
            let what = format!("{}: its goldens: {reason}", self.bundle.path().display());
            Error::new(ErrorKind::Invalid, what).with_help("compile the checkpoint again")
        })?;
        Ok(Some(goldens))
    }

    /// What a self-test depends on: the bundle, the chain, the devices and the shims' libraries.
    fn question(&self, choice: &Choice, entry: &ChainEntry, opening: &mut Opening) -> Result<Digest> {
        let soc = &self.variant(choice.variant).soc;
        let mut text = format!("{} {soc} {}", self.bundle.sha256(), entry.name);
        for (shard, device) in entry.shards.iter().zip(&choice.devices) {
            let instance = self.instance(shard, opening)?;
            let description = instance.shim().description();
            let device = device.as_deref().unwrap_or(&shard.compiled_by.device);
            let known = instance.devices(None)?.into_iter().chain(instance.devices(Some(soc))?);
            let detail = known.into_iter().find(|known| known.name == device).and_then(|known| known.detail);
            text.push_str(&format!(
                "\n{device} {} {} {:?} {detail:?}",
                description.name, description.version, description.vendor_library
            ));
        }
        Ok(Digest::of(text.as_bytes()))
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
            if self.options.run.strict || ends {
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

    fn model(&self, choice: &Choice) -> Result<(ModelEntry<'_>, &ChainEntry)> {
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
    fn tower(self: &Arc<Self>, variant: usize, pass: Pass) -> Result<LoadedTower> {
        let choices = self.chains_of(variant, pass);
        if choices.is_empty() {
            return Err(self.no_tower(pass));
        }
        let Found { chain, passed, rest, .. } = self.first_of(choices, &mut Opening::default())?;
        let stale = chain.description().shards.iter().filter_map(|shard| shard.origin.fallback.clone());
        let notices: Vec<Notice> = passed.into_iter().chain(stale).map(Notice::fallback).collect();
        match notices.first().filter(|_| self.options.run.strict) {
            Some(fallback) => Err(Error::new(ErrorKind::Strict, fallback.text.clone())),
            None => {
                let next = LaterChains { loader: Arc::clone(self), rest: rest.into_iter() };
                let next = (!self.options.run.strict).then(|| Box::new(next) as Box<dyn NextChain>);
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
        let options = &self.options;
        let asked = PlanOptions { flags: options.flags.clone(), ..options.run.fill(PlanOptions::default()) };
        let bundle = self.bundle.of_variant(variant);
        let made = compile_recorded(&bundle, entry, error, options.checkpoint.as_deref(), &asked)?;
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
    fn load(
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
        let soc = &self.variant(choice.variant).soc;
        for (shard, device) in entry.shards.iter().zip(&choice.devices) {
            let instance = self.instance(shard, opening)?;
            know_chip(&instance, &self.bundle, shard)?;
            if let Some(device) = only_compiled_for(&instance, shard, soc)?
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
        match self.options.run.threads {
            Some(threads) if shim == "cpu" => vec![("threads".to_owned(), threads.to_string())],
            _ => Vec::new(),
        }
    }
}

/// The last value of each flag.
fn flags_of(pairs: &[(String, String)]) -> Vec<Flag> {
    let mut flags: Vec<Flag> = Vec::new();
    for (name, value) in pairs {
        flags.retain(|flag| flag.name != *name);
        flags.push(Flag { name: name.clone(), value: value.clone() });
    }
    flags
}

/// Why a chain was not loaded.
struct NotLoaded {
    error: Error,
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
struct LaterChains {
    loader: Arc<Loader>,
    rest: std::vec::IntoIter<Choice>,
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

/// What is said of artefacts that are not mapped but copied.
fn copied_notice(bundle: &Bundle, bytes: u64) -> Option<Notice> {
    (bytes > 0).then(|| {
        Notice::note(format!(
            "{bytes} bytes of artefacts were copied into memory: {} begins at no multiple of 4096 bytes in its \
             file, where they could be mapped; align it there, as `zipalign -p 4` does",
            bundle.path().display()
        ))
    })
}

/// What is said of a chain that is not the first one of the chip's own variant.
fn why_not_better(chosen: &Candidate, passed: &[Passed]) -> Option<Notice> {
    let Candidate { soc, name, tier, .. } = chosen;
    let because = |passed: &mut dyn Iterator<Item = &Passed>| {
        let reasons: Vec<String> = passed
            .map(|passed| {
                let reason = passed.standing.reason.as_deref().unwrap_or("no reason is given");
                format!("{} {} shard {}: {reason}", passed.soc, passed.name, passed.shard)
            })
            .collect();
        if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join("; ")) }
    };
    let mut hindered = passed.iter().filter(|passed| passed.standing.hindered).peekable();
    match tier {
        Tier::Own | Tier::OwnRecompile | Tier::StandIn => None,
        // What a chip was to run, and something other than its absence keeps from it.
        Tier::General if hindered.peek().is_some() => {
            Some(Notice::fallback(format!("the variant for {soc} runs{}", because(&mut hindered))))
        }
        Tier::General => None,
        Tier::Sibling => {
            Some(Notice::note(format!("this chip has no variant of its own; the one for {soc} runs on it")))
        }
        Tier::Fallback => {
            let own = &mut passed.iter().filter(|passed| passed.soc == *soc);
            Some(Notice::fallback(format!("chain `{name}` of the variant for {soc} runs{}", because(own))))
        }
        Tier::Elsewhere => Some(Notice::fallback(format!(
            "no variant is for this machine; chain `{name}` of the one for {soc} runs{}",
            because(&mut passed.iter())
        ))),
    }
}

/// The plan as it was reported when the bundle was made.
#[cfg(feature = "build")]
fn recorded_plan(bundle: &Bundle, chain: usize) -> Result<Option<shardwright_build::PlanReport>> {
    let Some(reference) = bundle.variant().chains[chain].report else { return Ok(None) };
    let bytes = bundle.read(&reference)?;
    serde_json::from_slice(&bytes).map(Some).map_err(|error| {
        Error::new(ErrorKind::Invalid, format!("{}: the recorded plan: {error}", bundle.path().display()))
            .with_help("compile the checkpoint again")
    })
}
