//! What opening a checkpoint and opening a bundle are both asked.

use std::path::PathBuf;

use shardwright_shims::RegistryBuilder;
use shardwright_trust::{Trust, TrustOptions};
use shardwright_worker::{Isolation, Shims};

use crate::text_side::TokenizerStart;
use crate::{Result, SearchPath};

/// The folder of the cache with values of flags that shims measured.
const MEASURED: &str = "measured";

/// Where things lie, and how they are run.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunOptions {
    pub(crate) search: Option<SearchPath>,
    pub(crate) threads: Option<u32>,
    pub(crate) isolation: Isolation,
    pub(crate) strict: bool,
    pub(crate) tokenizer_when_asked: bool,
    #[cfg(feature = "build")]
    pub(crate) cache: Option<PathBuf>,
    pub(crate) trust: TrustOptions,
}

impl RunOptions {
    pub(crate) fn search(&self) -> SearchPath {
        self.search.clone().unwrap_or_else(SearchPath::standard)
    }

    /// The shims that are signed as the rules ask.
    pub(crate) fn shims(&self, trust: &Trust) -> Result<Shims> {
        Shims::open(self.registry().trusting(trust.clone()), self.isolation)
    }

    /// The rules of signatures.
    pub(crate) fn rules(&self) -> Result<Trust> {
        self.trust.rules(self.cache_directory().as_deref())
    }

    /// The shims, with a place for what they measure.
    fn registry(&self) -> RegistryBuilder {
        with_measured(self.search().registry(), self.cache_directory())
    }

    #[cfg(feature = "build")]
    pub(crate) fn cache_directory(&self) -> Option<PathBuf> {
        self.cache.clone().or_else(crate::user_cache_directory)
    }

    #[cfg(not(feature = "build"))]
    pub(crate) fn cache_directory(&self) -> Option<PathBuf> {
        crate::user_cache_directory()
    }

    pub(crate) fn tokenizer_start(&self) -> TokenizerStart {
        match self.tokenizer_when_asked {
            true => TokenizerStart::WhenAsked,
            false => TokenizerStart::Beside,
        }
    }

    /// What is asked of a plan, with this.
    #[cfg(feature = "build")]
    pub(crate) fn fill(&self, plan: shardwright_build::PlanOptions) -> shardwright_build::PlanOptions {
        let search = self.search();
        shardwright_build::PlanOptions {
            shims: self.registry(),
            planners: search.planners,
            profiles: search.profiles,
            isolation: self.isolation,
            strict: self.strict,
            threads: self.threads,
            cache: self.cache_directory(),
            trust: self.trust.clone(),
            ..plan
        }
    }
}

/// The shims of these directories, with what they measured before and a place for what they will,
/// in the user's cache directory. For tools that accompany this crate.
pub fn registry_with_measured(search: &SearchPath) -> RegistryBuilder {
    with_measured(search.registry(), crate::user_cache_directory())
}

fn with_measured(registry: RegistryBuilder, cache: Option<PathBuf>) -> RegistryBuilder {
    match cache {
        Some(cache) => registry.measured_kept_in(cache.join(MEASURED)),
        None => registry,
    }
}

/// The setters of both.
macro_rules! run_option_setters {
    () => {
        /// Where shims, planners and profiles are looked for. Default:
        /// [`SearchPath::standard`](crate::SearchPath::standard).
        #[must_use]
        pub fn search_path(mut self, path: crate::SearchPath) -> Self {
            self.run.search = Some(path);
            self
        }

        /// Threads of the CPU engine. Default: the cores there are.
        #[must_use]
        pub fn threads(mut self, threads: u32) -> Self {
            self.run.threads = Some(threads);
            self
        }

        /// Which work of shims happens in a process of its own.
        #[must_use]
        pub fn isolation(mut self, isolation: crate::Isolation) -> Self {
            self.run.isolation = isolation;
            self
        }

        /// Turns every fallback into an error. Default: off; fallbacks are reported.
        #[must_use]
        pub fn strict(mut self, strict: bool) -> Self {
            self.run.strict = strict;
            self
        }

        /// Loads the tokenizer when something asks for it first, not beside planning, compiling and
        /// loading: for programs that bring token ids. Default: off.
        #[must_use]
        pub fn tokenizer_when_asked(mut self, when_asked: bool) -> Self {
            self.run.tokenizer_when_asked = when_asked;
            self
        }

        /// A private directory for what can be made again, such as compiled planners. Whoever can
        /// write to it can run code here. Default: `shardwright` in the user's cache directory;
        /// nothing is kept where there is none.
        #[cfg(feature = "build")]
        #[must_use]
        pub fn cache_directory(mut self, directory: impl Into<std::path::PathBuf>) -> Self {
            self.run.cache = Some(directory.into());
            self
        }

        /// A public key (hexadecimal) whose signatures count: of planner packs always, of bundles,
        /// shims, planners and profiles as [`signatures`](Self::signatures) says. Default: none.
        #[must_use]
        pub fn trust_key(mut self, key: impl Into<String>) -> Self {
            self.run.trust.keys.push(key.into());
            self
        }

        /// What becomes of a bundle, shim, planner or profile without a signature of a trusted key:
        /// it is used, used with a notice, or refused before anything of it is parsed. What is
        /// built into the program needs none. Default: [`Policy::Off`](crate::Policy::Off).
        #[must_use]
        pub fn signatures(mut self, policy: crate::Policy) -> Self {
            self.run.trust.policy = policy;
            self
        }

        /// A list, signed by a trusted key, of keys that count no more and of the least releases
        /// that may be used. An older list than one that was used here before is refused, as far as
        /// there is a cache directory to remember it in. Default: none.
        #[must_use]
        pub fn revocations(mut self, list: impl Into<std::path::PathBuf>) -> Self {
            self.run.trust.lists.push(list.into());
            self
        }

        /// The name that a trusted key must have signed a bundle as: a key signs many bundles, and
        /// each of them would pass for any other. A bundle without such a signature is refused,
        /// whatever [`signatures`](Self::signatures) says. Default: any name.
        ///
        /// ```no_run
        /// # let my_key = "";
        /// let options = shardwright::BundleOptions::new().trust_key(my_key).expect("gemma-3-1b");
        /// let model = options.open("gemma.swb")?;
        /// # Ok::<(), shardwright::Error>(())
        /// ```
        #[must_use]
        pub fn expect(mut self, name: impl Into<String>) -> Self {
            self.run.trust.expected = Some(name.into());
            self
        }
    };
}

pub(crate) use run_option_setters;
