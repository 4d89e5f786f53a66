//! Options shared by opening a checkpoint and opening a bundle.

use std::path::{Path, PathBuf};

use shardwright_files::eviction;
use shardwright_shims::RegistryBuilder;
use shardwright_trust::{Trust, TrustOptions};
use shardwright_worker::{Isolation, Shims};

use crate::text_side::TokenizerStart;
use crate::{Result, SearchPath};

/// Folder of the cache for values of flags that shims measured.
const MEASURED: &str = "measured";

/// Folder of the cache for proofs that files were verified.
pub(crate) const PROOFS: &str = "proofs";

/// Locations of files, and how shims run.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunOptions {
    pub(crate) search: Option<SearchPath>,
    pub(crate) threads: Option<u32>,
    pub(crate) isolation: Isolation,
    pub(crate) strict: bool,
    pub(crate) tokenizer_when_asked: bool,
    #[cfg(feature = "build")]
    pub(crate) cache: Option<PathBuf>,
    pub(crate) cache_limit: Option<u64>,
    pub(crate) trust: TrustOptions,
}

impl RunOptions {
    pub(crate) fn search(&self) -> SearchPath {
        self.search.clone().unwrap_or_else(SearchPath::standard)
    }

    /// Opens the shims that are signed as the policy requires.
    pub(crate) fn shims(&self, trust: &Trust) -> Result<Shims> {
        Shims::open(self.registry().trusting(trust.clone()), self.isolation)
    }

    /// Returns the signature policy.
    pub(crate) fn rules(&self) -> Result<Trust> {
        self.trust.rules(self.cache_directory().as_deref())
    }

    /// Returns the builder of the shim registry, with a directory for measured values.
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

    /// Frees space in the cache directory after proofs were written to `proofs`, unless that is
    /// another directory.
    pub(crate) fn make_room_for(&self, proofs: &Path) {
        if let Some(cache) = self.cache_directory().filter(|cache| cache.join(PROOFS) == proofs) {
            // Ignore the error: `doctor` reports a cache that exceeds its limit.
            let _ = eviction::trim(&cache, self.cache_limit.unwrap_or(eviction::CACHE_BYTES_MAX), |_| false);
        }
    }

    pub(crate) fn tokenizer_start(&self) -> TokenizerStart {
        match self.tokenizer_when_asked {
            true => TokenizerStart::WhenAsked,
            false => TokenizerStart::Beside,
        }
    }

    /// Fills these settings into the options of a plan.
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
            cache_limit: self.cache_limit,
            trust: self.trust.clone(),
            ..plan
        }
    }
}

/// Returns a registry builder for the shims of these directories. Their measured values are read
/// from and stored in the user's cache directory.
pub fn registry_with_measured(search: &SearchPath) -> RegistryBuilder {
    with_measured(search.registry(), crate::user_cache_directory())
}

fn with_measured(registry: RegistryBuilder, cache: Option<PathBuf>) -> RegistryBuilder {
    match cache {
        Some(cache) => registry.measured_kept_in(cache.join(MEASURED)),
        None => registry,
    }
}

/// Defines the setters that both kinds of options share.
macro_rules! run_option_setters {
    () => {
        /// Sets the directories of shims, planners and profiles. Default:
        /// [`SearchPath::standard`](crate::SearchPath::standard).
        #[must_use]
        pub fn search_path(mut self, path: crate::SearchPath) -> Self {
            self.run.search = Some(path);
            self
        }

        /// Sets the number of threads of the CPU engine. Default: the number of cores.
        #[must_use]
        pub fn threads(mut self, threads: u32) -> Self {
            self.run.threads = Some(threads);
            self
        }

        /// Sets which work of shims runs in a separate process.
        #[must_use]
        pub fn isolation(mut self, isolation: crate::Isolation) -> Self {
            self.run.isolation = isolation;
            self
        }

        /// Turns every fallback, every field or file of the model that has no effect and every
        /// profile that is not valid into an error. Default: off, so that they are only reported.
        #[must_use]
        pub fn strict(mut self, strict: bool) -> Self {
            self.run.strict = strict;
            self
        }

        /// Loads the tokenizer on its first use, not in parallel with planning, compiling and
        /// loading. For programs that supply token ids. Default: off. No effect with
        /// [`strict`](Self::strict), which checks the tokenizer when the model is opened.
        #[must_use]
        pub fn tokenizer_when_asked(mut self, when_asked: bool) -> Self {
            self.run.tokenizer_when_asked = when_asked;
            self
        }

        /// Sets a private directory for files that can be made again, such as compiled planners.
        /// Anyone who can write to it can run code in this process. Default: `shardwright` in the
        /// user's cache directory. Without a cache directory, such files are not kept.
        #[cfg(feature = "build")]
        #[must_use]
        pub fn cache_directory(mut self, directory: impl Into<std::path::PathBuf>) -> Self {
            self.run.cache = Some(directory.into());
            self
        }

        /// Sets the most bytes of files in the cache directory that can be made again. When such
        /// files are written, the least recently used ones are removed. Default: 24 GiB.
        #[must_use]
        pub fn cache_limit(mut self, bytes: u64) -> Self {
            self.run.cache_limit = Some(bytes);
            self
        }

        /// Adds a trusted public key (hexadecimal). Its signatures always count for planner packs,
        /// and for bundles, shims, planners and profiles as [`signatures`](Self::signatures)
        /// specifies. Default: none.
        #[must_use]
        pub fn trust_key(mut self, key: impl Into<String>) -> Self {
            self.run.trust.keys.push(key.into());
            self
        }

        /// Sets how to handle a bundle, shim, planner or profile without a signature of a trusted
        /// key: use it, use it with a notice, or refuse it before any of it is parsed. Items built
        /// into the program need no signature. Default: [`Policy::Off`](crate::Policy::Off).
        #[must_use]
        pub fn signatures(mut self, policy: crate::Policy) -> Self {
            self.run.trust.policy = policy;
            self
        }

        /// Sets a list, signed by a trusted key, of revoked keys and of the oldest releases that
        /// may be used. A list that is older than one used here before is refused, if there is a
        /// cache directory to remember it in. With any list, the lists of all trusted keys that
        /// were used here before are needed. Default: none.
        #[must_use]
        pub fn revocations(mut self, list: impl Into<std::path::PathBuf>) -> Self {
            self.run.trust.lists.push(list.into());
            self
        }

        /// Requires that a trusted key signed the bundle under this name. One key signs many
        /// bundles, so without a name any of them would be accepted. A bundle without such a
        /// signature is refused, independent of [`signatures`](Self::signatures). Default: any
        /// name.
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
