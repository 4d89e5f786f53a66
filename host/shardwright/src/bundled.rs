//! Opens a bundle: loads the chain of compiled artefacts that suits this machine best.

mod chain_notices;
mod load;
mod load_attempts;
mod loader;
mod memory_estimate;
mod progress;
mod self_test;

use std::sync::Arc;
use std::time::Instant;

use shardwright_bundle::{Bundle, Proofs, Unloaded};
#[cfg(feature = "build")]
use shardwright_runtime::Chain;
use shardwright_runtime::MemoryBudget;
use shardwright_shims::Chip;
use shardwright_trust::Trust;
#[cfg(feature = "build")]
use shardwright_vocabulary::{Beforehand, Pass};
use shardwright_vocabulary::{Flag, Notice, NoticeKind, Watch};

use self::chain_notices::copied_notice;
use self::loader::{Found, Loader, Opening, flags_of};
use crate::load_flags;
use crate::model::{BundleOrigin, OpeningTimes, Origin};
use crate::policy::{FallbackPolicy, NextChainMaker};
use crate::run_options::{RunOptions, run_option_setters};
use crate::strays::stray_notices;
use crate::text_side::{TextSide, TokenizerStart};
use crate::towers::Towers;
use crate::verified_files::{ProofsPlace, Verified};
use crate::{Error, ErrorKind, Model, Result, Source};

/// Options to open a bundle.
#[derive(Clone, Debug, Default)]
pub struct BundleOptions {
    run: RunOptions,
    verify: bool,
    proofs: ProofsPlace,
    policy: FallbackPolicy,
    memory: Option<u64>,
    chip: Option<Chip>,
    flags: Vec<(String, String)>,
    #[cfg(feature = "build")]
    checkpoint: Option<std::path::PathBuf>,
}

impl BundleOptions {
    /// Returns the default options.
    pub fn new() -> Self {
        BundleOptions::default()
    }

    /// Creates options to open a bundle from the options that it shares with opening a checkpoint.
    #[cfg(feature = "build")]
    pub(crate) fn of(run: RunOptions) -> Self {
        BundleOptions { run, ..BundleOptions::default() }
    }

    run_option_setters!();

    /// Sets a flag that takes effect when shards are loaded, such as `power`. It is an error if the
    /// bundle has fixed the flag or no shim of the bundle supports it. A notice reports the outcome
    /// of the flag.
    #[must_use]
    pub fn flag(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.flags.push((name.into(), value.into()));
        self
    }

    /// Verifies every byte of the bundle before any of it is used, including chains that are not
    /// loaded, and ignores remembered proofs. Default: off. Every byte that is loaded is then
    /// verified, now or by an earlier proof.
    #[must_use]
    pub fn verify_all(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }

    /// Sets the directory for proofs of which artefacts and tables were verified against the
    /// manifest. With a proof, opening does not hash a file that cannot have changed since, so a
    /// start does not hash the whole model again.
    ///
    /// Every start hashes the files if a change cannot be excluded (systems other than Linux and
    /// Android, in-memory or layered file systems, files of another user), or if other users may
    /// write to `directory` (reported in a notice). `verified` of [`Model::report`] gives the
    /// reason. Default: `proofs` in the user's cache directory. Without such a directory, no proofs
    /// are stored. No effect with [`verify_all`](Self::verify_all).
    #[must_use]
    pub fn remember_proofs(mut self, directory: impl Into<std::path::PathBuf>) -> Self {
        self.proofs = ProofsPlace::At(directory.into());
        self
    }

    /// Disables stored proofs: every start hashes the files that it uses.
    #[must_use]
    pub fn remember_no_proofs(mut self) -> Self {
        self.proofs = ProofsPlace::Nowhere;
        self
    }

    /// Sets which chains may run if the first one cannot. `strict` is equivalent to
    /// [`FallbackPolicy::Refuse`]. The later of the two calls wins. Default: any chain.
    #[must_use]
    pub fn fallback(mut self, policy: FallbackPolicy) -> Self {
        self.run.strict = policy == FallbackPolicy::Refuse;
        self.policy = policy;
        self
    }

    /// Sets the maximum memory of the model and its sessions together, in bytes: artefacts, KV
    /// cache, buffers and logits. Gathered tables are mapped and not counted. Memory that drivers
    /// allocate for themselves is unknown and not counted.
    ///
    /// A chain that needs more with one session is skipped before any of it is read, with the
    /// reason in a notice. A session that finds too little memory left fails with
    /// [`ErrorKind::Memory`], as does a bundle in which no chain fits. [`Model::memory`] reports
    /// the memory in use. Default: no limit.
    #[must_use]
    pub fn memory_budget(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Overrides the chip of this machine. The chip's own variant of the bundle runs, or the
    /// closest one that the shim accepts on that chip. Shims that simulate the chip run it in a
    /// simulator. Default: the chip that the shims find.
    #[must_use]
    pub fn chip(mut self, chip: Chip) -> Self {
        self.chip = Some(chip);
        self
    }

    /// Sets the checkpoint that the bundle was made from. If a chain cannot be loaded and its plan
    /// specifies `just-in-time` for every shard, the chain is planned and compiled again on this
    /// machine. The placement record reports this and its cost. Default: none, so that no chain is
    /// compiled.
    #[cfg(feature = "build")]
    #[must_use]
    pub fn checkpoint(mut self, directory: impl Into<std::path::PathBuf>) -> Self {
        self.checkpoint = Some(directory.into());
        self
    }

    /// Opens a bundle, in a directory or packed, and loads the chain that suits this machine best.
    pub fn open(&self, source: impl Into<Source>) -> Result<Model> {
        self.open_watched(source, &mut ())
    }

    /// Opens a bundle like [`open`](Self::open), with progress and cancellation.
    ///
    /// Progress is by the bytes of files that are hashed because no proof exists, and of artefacts
    /// that are loaded. Cancellation is possible between blocks of a file, between shards and
    /// between the runs of a self-test. Files that were verified completely by then are remembered.
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Self::open), and [`ErrorKind::Cancelled`] after `watch` requested to
    /// stop.
    pub fn open_watched(&self, source: impl Into<Source>, watch: &mut dyn Watch) -> Result<Model> {
        let started = Instant::now();
        let trust = self.rules()?;
        let bundle = match source.into() {
            Source::Path(path) => Bundle::open_trusting(path, &trust)?,
            Source::Volumes(paths) => Bundle::open_volumes_trusting(&paths, &trust)?,
            Source::Sections(sections) => Bundle::open_sections_trusting(sections, &trust)?,
        };
        self.load(bundle, &trust, started, watch)
    }

    /// Loads one chain of a pass, without notices and without stored proofs.
    #[cfg(feature = "build")]
    pub(crate) fn load_chain(
        &self,
        bundle: &Bundle,
        variant: usize,
        pass: Pass,
        chain: usize,
    ) -> Result<Chain> {
        let loader = self.loader(bundle, &self.rules()?, Vec::new())?;
        let missing = || Error::new(ErrorKind::Internal, "the bundle has no such chain");
        let choice = loader.chains_of(variant, pass).into_iter().nth(chain).ok_or_else(missing)?;
        let (model, entry) = loader.model(&choice)?;
        let loaded =
            loader.load(model, entry, &choice, &Beforehand::default(), false, &mut Opening::new(&mut ()));
        loaded.map_err(|not_loaded| not_loaded.error)
    }

    /// Returns the signature policy.
    pub(crate) fn rules(&self) -> Result<Trust> {
        self.run.rules()
    }

    fn loader(&self, bundle: &Bundle, trust: &Trust, flags: Vec<Flag>) -> Result<Loader> {
        Ok(Loader {
            shims: self.run.shims(trust)?,
            bundle: bundle.clone(),
            flags,
            run: self.run.clone(),
            chip: self.chip.clone(),
            policy: if self.run.strict { FallbackPolicy::Refuse } else { self.policy.clone() },
            verify_all: self.verify,
            budget: MemoryBudget::new(self.memory),
            unloaded: self.run.cache_directory().map(|cache| Unloaded::kept_in(cache.join(Unloaded::FOLDER))),
            #[cfg(feature = "build")]
            checkpoint: self.checkpoint.clone(),
        })
    }

    fn load(&self, bundle: Bundle, trust: &Trust, started: Instant, watch: &mut dyn Watch) -> Result<Model> {
        let cache = self.run.cache_directory();
        let proofs = self.proofs.proofs(cache).filter(|_| !self.verify);
        let disbelieved = proofs.as_ref().and_then(Proofs::refused);
        let bundle = bundle.remembering(proofs);
        let mut opened = Opening::new(watch);
        if self.verify {
            opened.steps.begin(bundle.total_bytes(), 4);
            bundle.verify_all_watched(|progress| opened.steps.verifying(progress))?;
        }
        let text = self.text_side(&bundle, &mut opened)?;
        let reading = started.elapsed();
        let loading = Instant::now();
        let loader = self.loader(&bundle, trust, flags_of(&self.flags))?;
        loader.policy.expect_known(&bundle)?;
        let selection = loader.select(&mut opened)?;
        let chosen = loader.first_that_loads(&selection, &mut opened)?;
        let Found { chain, variant, index, passed, notices: said, rest, compiled } = chosen;
        let bundle = Arc::new(bundle.of_variant(variant));
        let loader = Arc::new(loader);
        let times = OpeningTimes { reading, loading: loading.elapsed(), ..OpeningTimes::default() };
        let mut notices = bundle.variant().notices.clone();
        let made = notices.len();
        let say = |kind, text| Notice { kind, text };
        // Artefacts of a bundle always run in this process. Only shards compiled here could have
        // run in a worker.
        #[cfg(feature = "build")]
        let compiled_here = compiled.plan.is_some();
        #[cfg(not(feature = "build"))]
        let compiled_here = false;
        let no_worker = loader.shims.notice.clone().filter(|_| compiled_here);
        notices.extend(no_worker.map(|text| say(NoticeKind::Note, text)));
        notices.extend(trust.take_notices().into_iter().chain(stray_notices(&bundle)));
        notices.extend(text.notices());
        let refused = disbelieved.as_ref();
        notices.extend(refused.map(|error| {
            let help = error.help().unwrap_or_default();
            let text = format!("remembered proofs were rejected, so every byte was hashed: {error}; {help}");
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
        notices.extend(loader.shims.skipped_notices(&notices));
        if self.run.strict {
            text.ignored_fields().expect_none()?;
        }
        let fallback = notices.iter().find(|notice| notice.kind == NoticeKind::Fallback);
        if let Some(fallback) = fallback.filter(|_| self.run.strict) {
            return Err(Error::new(ErrorKind::Strict, fallback.text.clone()));
        }
        opened.steps.done();
        let origin = Origin::Bundle(Arc::new(BundleOrigin {
            verified: Verified::of(&bundle, refused, self.verify, &self.run),
            policy: loader.policy.clone(),
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
        let next: Option<Arc<NextChainMaker>> = match loader.policy.goes_on() {
            false => None,
            true => Some(Arc::new(move || loader.later(rest.clone()))),
        };
        let towers = Towers::of_bundle(bundle, move |pass, watch| tower_loader.tower(variant, pass, watch));
        Ok(Model::new(chain, next, text, towers.strict(self.run.strict), origin, times))
    }

    /// Reads the text side. Hashes the index of the tokenizer here, with progress, unless the
    /// tokenizer is loaded later.
    fn text_side(&self, bundle: &Bundle, opened: &mut Opening<'_>) -> Result<TextSide> {
        let start = self.run.tokenizer_start();
        let index = bundle.manifest().tokenizer_index.filter(|_| start == TokenizerStart::Beside);
        let index = index.map(|index| {
            opened.steps.begin(index.bytes, 1);
            let blocks = &mut |bytes| opened.steps.within(bytes, "hashing the tokenizer");
            bundle.map_watched(&index, blocks)
        });
        TextSide::of_bundle(&Arc::new(bundle.clone()), start, index.transpose()?)
    }
}

/// Reads the plan report that was recorded when the bundle was made.
#[cfg(feature = "build")]
fn recorded_plan(bundle: &Bundle, chain: usize) -> Result<Option<shardwright_build::PlanReport>> {
    let Some(reference) = bundle.variant().chains[chain].report else { return Ok(None) };
    let bytes = bundle.read(&reference)?;
    serde_json::from_slice(&bytes).map(Some).map_err(|error| {
        Error::new(ErrorKind::Invalid, format!("{}: the recorded plan: {error}", bundle.path().display()))
            .with_help("compile the checkpoint again")
    })
}
