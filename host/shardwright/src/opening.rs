//! Opening of a checkpoint: from its directory to a running model.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use shardwright_build::{BuildTimes, PlanOptions, Settled};
use shardwright_checkpoints::{Builder, LoadedChain, expect_checkpoint, expect_towers, open_adapted};
use shardwright_runtime::Chain;
use shardwright_vocabulary::{Beforehand, Notice, Part, Pass, Watch};

use crate::fallback_chains::on_demand;
use crate::load_flags;
use crate::model::{BuiltOrigin, OpeningTimes, Origin};
use crate::policy::NextChainMaker;
use crate::text_side::{TextSide, TokenizerStart};
use crate::{Error, ErrorKind, Model, Result};
use crate::{join, towers};

/// Progress when all shards are compiled but not yet loaded, in thousandths.
const SETTLED: u32 = 950;

/// Plans, compiles, revises refused plans, and loads.
pub(crate) fn open(
    directory: &Path,
    options: &PlanOptions,
    start: TokenizerStart,
    watch: &mut dyn Watch,
) -> Result<Model> {
    let started = Instant::now();
    expect_checkpoint(directory)?;
    expect_towers(directory, &options.recorded.towers)?;
    // Loading of the tokenizer starts before the checkpoint is read, on its own thread.
    let text = TextSide::load(directory, options.cache.as_deref(), options.cache_bytes_max(), start)?;
    if options.strict {
        text.ignored_fields().expect_none()?;
    }
    let checkpoint = open_adapted(directory, &[Pass::Step], options)?;
    let reading = started.elapsed();
    watch.progress(0, "reading");
    let mut settling = Part::new(watch, 0..SETTLED);
    let loaded = Builder::new(&checkpoint, None).loaded_chain(options, &mut settling)?;
    let LoadedChain { settled, keeping, parts, loading } = loaded;
    let joining = Instant::now();
    let emulated_on = settled.report.emulated_on.clone();
    let chain = join(parts, &settled.graph, emulated_on, Beforehand::default())?;
    let flags = flag_notices(&chain, options.strict)?;
    let BuildTimes { planning, quantising, compiling } = settled.times;
    let loading = loading + joining.elapsed();
    let times = OpeningTimes { reading, planning, quantising, compiling, loading };
    let plan_id = settled.plan_id();
    let next = failover(directory, options, &settled);
    let mut plan = settled.report_now();
    plan.notices.extend(text.notices());
    plan.notices.extend(flags);
    let prepared = planning + quantising + compiling;
    plan.notices.extend(keeping.notice(prepared));
    let compiled = match options.taps {
        true => settled.shards.into_iter().map(|shard| shard.compiled).collect(),
        false => Vec::new(),
    };
    let origin = BuiltOrigin { plan, plan_id, compiled };
    let towers = towers::of_checkpoint(directory, options.clone());
    Ok(Model::new(chain, next, text, towers, Origin::Built(Box::new(origin)), times))
}

/// Returns notices about the flags that a chain was loaded with. Under `strict`, a flag without
/// effect is an error.
fn flag_notices(chain: &Chain, strict: bool) -> Result<Vec<Notice>> {
    let outcomes = load_flags::outcomes(&chain.description().shards).into_iter();
    outcomes
        .map(|(otherwise, text)| match (otherwise, strict) {
            (true, true) => Err(Error::new(ErrorKind::Strict, text)),
            (true, false) => Ok(Notice::fallback(text)),
            (false, _) => Ok(Notice::note(text)),
        })
        .collect()
}

/// Returns the fallbacks of a session for a lost chip: the chains of the plan on other targets,
/// each built on demand. Returns `None` if the plan has no other target, and under `strict`.
fn failover(directory: &Path, options: &PlanOptions, settled: &Settled) -> Option<Arc<NextChainMaker>> {
    let chains = settled.takeovers(options);
    if chains.is_empty() {
        return None;
    }
    let directory = directory.to_owned();
    Some(Arc::new(move || on_demand(&directory, None, chains.clone())))
}
