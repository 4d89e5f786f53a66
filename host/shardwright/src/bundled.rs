//! Opens a bundle: loads its chains of compiled artefacts with the available shims.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

#[cfg(feature = "build")]
use shardwright_build::{PlanOptions, compile_recorded};
use shardwright_bundle::{Bundle, ChainEntry, Model as ModelEntry, Proofs, ProvedFile, ShardEntry};
use shardwright_runtime::{
    Chain, ChainDescription, NextChain, NextChainError, PlacementRecord, SessionError, ShardDescription,
    know_chip, only_compiled_for, only_compiles,
};
use shardwright_shims::{Artefact, LoadedShard, ShimInstance};
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

    /// The checkpoint the bundle was made from. If a chain cannot be loaded and its plan says
    /// `just-in-time` for every shard, it is planned and compiled again on this machine, which the
    /// placement record reports with its cost. Default: none, nothing is compiled.
    #[cfg(feature = "build")]
    #[must_use]
    pub fn checkpoint(mut self, directory: impl Into<std::path::PathBuf>) -> Self {
        self.checkpoint = Some(directory.into());
        self
    }

    /// Opens a bundle and loads its first chain that can run here.
    pub fn open(&self, directory: impl AsRef<Path>) -> Result<Model> {
        let started = Instant::now();
        let proofs = self.proofs.clone().filter(|_| !self.verify);
        let disbelieved = proofs.as_ref().and_then(Proofs::refused);
        let bundle = Arc::new(Bundle::open(directory)?.remembering(proofs));
        if self.verify {
            bundle.verify_all(|_| ())?;
        }
        let text = TextSide::of_bundle(&bundle, self.run.tokenizer_start())?;
        let reading = started.elapsed();
        let loading = Instant::now();
        let loader = Arc::new(Loader {
            shims: self.run.shims()?,
            bundle: Arc::clone(&bundle),
            flags: flags_of(&self.flags),
            options: self.clone(),
        });
        let (tower_loader, tower_bundle) = (Arc::clone(&loader), Arc::clone(&bundle));
        let Found { chain, index, passed, compiled } = loader.first_that_loads(Pass::Step)?;
        let times = OpeningTimes { reading, loading: loading.elapsed(), ..OpeningTimes::default() };
        let mut notices = bundle.manifest().notices.clone();
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
            bundle,
            chain: index,
            notices,
            made,
        }));
        let next: Option<Arc<NextChainMaker>> = match self.run.strict {
            // A fallback is an error then: there is no chain to fall back to.
            true => None,
            false => Some(Arc::new(move || {
                let loader = Arc::clone(&loader);
                Box::new(LaterChains { loader, pass: Pass::Step, next: index + 1 }) as Box<dyn NextChain>
            })),
        };
        let towers = Towers::of_bundle(tower_bundle, move |pass| tower_loader.tower(pass));
        Ok(Model::new(chain, next, text, towers, origin, times))
    }
}

/// Loads chains of one bundle.
struct Loader {
    shims: Shims,
    bundle: Arc<Bundle>,
    /// The last value of each flag that a session requests.
    flags: Vec<Flag>,
    options: BundleOptions,
}

/// A chain that runs.
struct Found {
    chain: Chain,
    /// Its index in the bundle.
    index: usize,
    /// Why those before it do not run.
    passed: Vec<String>,
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
    /// The first chain of a pass that loads, or is compiled here because its plan allows it.
    fn first_that_loads(&self, pass: Pass) -> Result<Found> {
        let mut passed = Vec::new();
        let mut beforehand = Beforehand::default();
        let mut first_error = None;
        let model = self.model(pass)?;
        for (index, entry) in model.chains.iter().enumerate() {
            // Flags that no shim of a tower knows may be the text's.
            let is_first = index == 0 && pass == Pass::Step;
            let NotLoaded { error, ends, elsewhere } = match self.load(model, entry, &beforehand, is_first) {
                Ok(chain) => return Ok(Found { chain, index, passed, compiled: Compiled::default() }),
                Err(not_loaded) => not_loaded,
            };
            let error = match elsewhere {
                // What is only compiled for here is no failure that compiling would mend.
                true => error,
                false if pass != Pass::Step => error,
                false => match self.compile_here(entry, error, &beforehand) {
                    Ok((chain, compiled)) => return Ok(Found { chain, index, passed, compiled }),
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

    fn model(&self, pass: Pass) -> Result<ModelEntry<'_>> {
        self.bundle.manifest().model_of(pass).ok_or_else(|| {
            let directory = self.bundle.directory().display();
            Error::new(ErrorKind::Unsupported, format!("{directory}: it holds no tower of a {pass}"))
                .with_help("compile the checkpoint with that tower, or open the checkpoint itself")
        })
    }

    /// The tower of a pass, with what is to be said of it.
    fn tower(self: &Arc<Self>, pass: Pass) -> Result<LoadedTower> {
        let Found { chain, index, passed, .. } = self.first_that_loads(pass)?;
        let stale = chain.description().shards.iter().filter_map(|shard| shard.origin.fallback.clone());
        let notices: Vec<Notice> = passed.into_iter().chain(stale).map(Notice::fallback).collect();
        match notices.first().filter(|_| self.options.run.strict) {
            Some(fallback) => Err(Error::new(ErrorKind::Strict, fallback.text.clone())),
            None => {
                let next = LaterChains { loader: Arc::clone(self), pass, next: index + 1 };
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
        entry: &ChainEntry,
        error: Error,
        beforehand: &Beforehand,
    ) -> Result<(Chain, Compiled)> {
        let options = &self.options;
        let asked = PlanOptions { flags: options.flags.clone(), ..options.run.fill(PlanOptions::default()) };
        let made = compile_recorded(&self.bundle, entry, error, options.checkpoint.as_deref(), &asked)?;
        let beforehand = Beforehand { compiled_here: Some(made.compiled_here), ..beforehand.clone() };
        let chain = crate::load(&made.settled, beforehand)?;
        let plan = Some(Box::new(made.settled.report_now()));
        Ok((chain, Compiled { notices: made.notices, plan }))
    }

    /// Without a compiler there is nothing to try.
    #[cfg(not(feature = "build"))]
    fn compile_here(&self, _: &ChainEntry, error: Error, _: &Beforehand) -> Result<(Chain, Compiled)> {
        Err(error)
    }

    /// Loads every artefact of a chain on the shim that compiled it and joins them. A flag that no
    /// shim of the first chain knows is an error; a later chain runs without it, which its origins
    /// record.
    fn load(
        &self,
        model: ModelEntry<'_>,
        entry: &ChainEntry,
        beforehand: &Beforehand,
        is_first: bool,
    ) -> std::result::Result<Chain, NotLoaded> {
        let ends = |error| NotLoaded { error, ends: true, elsewhere: false };
        let mut schemas: Vec<FlagSchema> = Vec::new();
        let mut instances: Vec<(String, ShimInstance)> = Vec::new();
        let mut executors: Vec<LoadedShard> = Vec::new();
        let mut shards = Vec::new();
        for shard in &entry.shards {
            let instance = match instances.iter().find(|(name, _)| *name == shard.target.name) {
                Some((_, instance)) => instance.clone(),
                None => {
                    let by = &shard.compiled_by;
                    let options = self.options(&by.shim);
                    let opened =
                        self.shims.open_to_run(&by.shim, &shard.target.name, &options, by.simulated)?;
                    instances.push((shard.target.name.clone(), opened.clone()));
                    opened
                }
            };
            know_chip(&instance, &self.bundle, shard)?;
            if let Some(device) = only_compiled_for(&instance, shard, &self.bundle.manifest().soc)? {
                let error = only_compiles(shard, &device);
                return Err(NotLoaded { error, ends: true, elsewhere: true });
            }
            let schema = match (self.flags.as_slice(), shard.load_flags.as_slice()) {
                ([], []) => Vec::new(),
                _ => instance.flags(&shard.compiled_by.device)?,
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
            let (mut description, executor) = self.load_shard(shard, &instance, &flags)?;
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
        let mut description = ChainDescription::of_bundle(self.bundle.manifest(), model, entry, shards)?;
        description.beforehand.clone_from(beforehand);
        Ok(Chain::new(description, executors, assets)?)
    }

    fn load_shard(
        &self,
        shard: &ShardEntry,
        instance: &ShimInstance,
        flags: &[Flag],
    ) -> Result<(ShardDescription, LoadedShard)> {
        let device = &shard.compiled_by.device;
        let ProvedFile { path, file } = self.bundle.proved(&shard.artefact)?;
        let artefact = Artefact::proved(&path, file).map_err(|error| {
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
        if (&head.shim, &head.shim_version, device) != (&compiled_by.shim, &compiled_by.version, &head.device)
        {
            return Err(refused(format!(
                "its artefact was compiled by {} {} for {}, not by {} {} for {device} as the manifest says",
                head.shim, head.shim_version, head.device, compiled_by.shim, compiled_by.version
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
        Ok((description, loaded))
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

/// The chains of a pass of a bundle after the one that runs, loaded when they are needed.
struct LaterChains {
    loader: Arc<Loader>,
    pass: Pass,
    next: usize,
}

impl NextChain for LaterChains {
    fn next(
        &mut self,
        _lost: &SessionError,
        _so_far: &PlacementRecord,
    ) -> Option<std::result::Result<Chain, NextChainError>> {
        let model = self.loader.model(self.pass).ok()?;
        let entry = model.chains.get(self.next)?;
        self.next += 1;
        Some(self.loader.load(model, entry, &Beforehand::default(), false).map_err(
            |NotLoaded { error, .. }| NextChainError::new(format_args!("chain `{}`: {error}", entry.name)),
        ))
    }
}

/// The plan as it was reported when the bundle was made.
#[cfg(feature = "build")]
fn recorded_plan(bundle: &Bundle, chain: usize) -> Result<Option<shardwright_build::PlanReport>> {
    let Some(reference) = bundle.manifest().chains[chain].report else { return Ok(None) };
    let bytes = bundle.read(&reference)?;
    serde_json::from_slice(&bytes).map(Some).map_err(|error| {
        Error::new(
            ErrorKind::Invalid,
            format!("{}: the recorded plan: {error}", bundle.directory().display()),
        )
        .with_help("compile the checkpoint again")
    })
}
