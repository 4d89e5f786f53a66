//! Compiling a bundle's chain on the machine that runs it, where the plan allows that and what was
//! compiled ahead cannot be used.

use std::path::PathBuf;
use std::time::Instant;

use shardwright_build::bundle::{Bundle, ChainEntry, Digest, FileReference};
use shardwright_build::planning::plan::{BuildTime, Plan};
use shardwright_build::planning::request::Request;
use shardwright_build::{NoArtefactStore, PlanReport};
use shardwright_runtime::{Beforehand, Chain, CompiledHere};
use shardwright_vocabulary::Notice;

use crate::opening::{Purpose, settle};
use crate::{Error, ErrorKind, Executor, FormatChoice, Isolation, OpenOptions, Result, SearchPath};

/// What there is to compile with.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    /// The checkpoint of the bundle, if it is at hand.
    pub(crate) checkpoint: Option<PathBuf>,
    /// Flags that the session asks for.
    pub(crate) flags: Vec<(String, String)>,
    pub(crate) cache: Option<PathBuf>,
    /// Whose planner packs are run.
    pub(crate) trusted_keys: Vec<String>,
    pub(crate) search: SearchPath,
    pub(crate) threads: Option<u32>,
    pub(crate) isolation: Isolation,
    pub(crate) strict: bool,
}

/// A chain that was compiled here.
pub(crate) struct CompiledChain {
    pub(crate) chain: Chain,
    pub(crate) plan: PlanReport,
    /// That it was, why, and what it cost; then what was done otherwise than asked.
    pub(crate) notices: Vec<Notice>,
}

impl Site {
    /// Plans and compiles what the chain was made from, for this machine, because of `error`. What
    /// was asked for the bundle is asked again; the plan may be another one, since this machine's
    /// compiler is.
    ///
    /// Errors: `error` itself, with what stood in the way, where the plan does not allow it or the
    /// checkpoint is not at hand; and of planning and compiling.
    pub(crate) fn compile(
        &self,
        bundle: &Bundle,
        entry: &ChainEntry,
        error: Error,
        beforehand: &Beforehand,
    ) -> Result<CompiledChain> {
        let plan: Plan = read(bundle, &entry.plan, "the recorded plan")?;
        if plan.shards.iter().any(|shard| shard.build != BuildTime::JustInTime) {
            return Err(error);
        }
        let Some(directory) = &self.checkpoint else {
            let what =
                format!("{error}; its plan allows compiling it here, for which the checkpoint is needed");
            return Err(
                Error::new(error.kind(), what).with_help("`--checkpoint DIR` says where the checkpoint lies")
            );
        };
        let started = Instant::now();
        let because = error.to_string();
        let compiled = || {
            let checkpoint = crate::given::checkpoint(directory)?;
            let manifest = bundle.manifest();
            if Digest::from(checkpoint.content_hash()) != manifest.model.checkpoint {
                let what = format!("{} is not the checkpoint the bundle was made of", directory.display());
                return Err(Error::new(ErrorKind::Incompatible, what));
            }
            let request: Request = read(bundle, &entry.request, "the recorded request")?;
            settle(&checkpoint, &self.options(bundle, &request)?, Purpose::Run, &mut NoArtefactStore, &mut ())
        };
        let settled = compiled().map_err(|failure: Error| {
            let what = format!("{because}; compiling it here failed too: {failure}");
            let help = failure.help().map(str::to_owned);
            let kind = failure.kind();
            help.into_iter().fold(Error::new(kind, what), Error::with_help)
        })?;
        let compiled_here = CompiledHere {
            because: because.clone(),
            nanoseconds: u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX),
        };
        let seconds = compiled_here.nanoseconds as f64 / 1e9;
        let beforehand = Beforehand { compiled_here: Some(compiled_here), ..beforehand.clone() };
        let chain = settled.preparation.load_after(&settled.graph, &settled.shards, beforehand)?;
        let plan = settled.told();
        let compiled = Notice::note(format!(
            "chain `{}` was compiled on this machine in {seconds:.3} s, as its plan allows: {because}",
            entry.name
        ));
        let known = |notice: &&Notice| bundle.manifest().notices.iter().all(|held| held.text != notice.text);
        let notices = std::iter::once(compiled).chain(plan.notices.iter().filter(known).cloned()).collect();
        Ok(CompiledChain { chain, plan, notices })
    }

    /// What was asked when the bundle was made, as far as a manifest and a request tell it.
    fn options(&self, bundle: &Bundle, request: &Request) -> Result<OpenOptions> {
        let manifest = bundle.manifest();
        let mut options = OpenOptions::new()
            .soc(&manifest.soc)
            .search_path(self.search.clone())
            .isolation(self.isolation)
            .strict(self.strict);
        options.threads = self.threads;
        options.cache.clone_from(&self.cache);
        options.trusted_keys.clone_from(&self.trusted_keys);
        options.quality_per_million = request.goals.quality_per_million;
        options.formats = request.formats.iter().cloned().map(FormatChoice::Tuple).collect();
        if !manifest.planner.built_in {
            options = options.planner(&manifest.planner.name);
            options.planner_by_name = true;
        }
        for (name, value) in &manifest.options {
            let invalid = || {
                let what = format!("{}: option `{name}` is `{value}`", bundle.directory().display());
                Error::new(ErrorKind::Invalid, what).with_help("compile the checkpoint again")
            };
            options = match name.split_once('.') {
                None if name == "context" => options.context(value.parse().map_err(|_| invalid())?),
                None if name == "on" => {
                    let known = [Executor::Device, Executor::Simulator, Executor::Cpu];
                    let on = known.into_iter().find(|on| on.name() == value);
                    options.on(on.ok_or_else(invalid)?)
                }
                Some(("limit", limit)) => options.limit(limit, value.parse().map_err(|_| invalid())?),
                Some(("flag", flag)) => options.flag(flag, value),
                Some(("without-flag", flag)) => options.without_flag(flag),
                Some(("planner", setting)) => options.planner_option(setting, value),
                Some(("table", table)) => {
                    let format = Some(value.parse().map_err(|_| invalid())?);
                    match table {
                        "embedding" => options.tables.embedding = format,
                        "per-layer" => options.tables.per_layer = format,
                        _ => return Err(invalid()),
                    }
                    options
                }
                _ => return Err(invalid()),
            };
        }
        for (name, value) in &self.flags {
            options = options.flag(name, value);
        }
        Ok(options)
    }
}

fn read<T: serde::de::DeserializeOwned>(bundle: &Bundle, file: &FileReference, what: &str) -> Result<T> {
    let bytes = bundle.read(file)?;
    serde_json::from_slice(&bytes).map_err(|error| {
        Error::new(ErrorKind::Invalid, format!("{}: {what}: {error}", bundle.directory().display()))
            .with_help("compile the checkpoint again")
    })
}
