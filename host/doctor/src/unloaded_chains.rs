//! Chains of bundles that earlier starts could not load, so that a start runs their hedges.

use shardwright_bundle::{Bundle, ChainEntry, ShardEntry, Unloaded, UnloadedFile};
use shardwright_selection::load_trial;
use shardwright_shims::ShimInstance;
use shardwright_vocabulary::Result;

use crate::report::Problem;

/// Returns the memory in the user's cache, if there is a cache directory.
fn memory() -> Option<Unloaded> {
    Some(Unloaded::kept_in(shardwright::user_cache_directory()?.join(Unloaded::FOLDER)))
}

/// Returns why a start would skip the first chain of a list, if an earlier one could not load it
/// and another chain of the list is its hedge. `devices` has the device of each shard, as for
/// [`load_trial`].
pub(crate) fn skipped(
    bundle: &Bundle,
    soc: &str,
    chains: &[ChainEntry],
    devices: &[Option<String>],
    open: &mut dyn FnMut(&ShardEntry) -> Result<ShimInstance>,
) -> Option<String> {
    let (chain, later) = chains.split_first()?;
    let unloaded = memory().filter(|_| later.iter().any(ChainEntry::is_hedge))?;
    let trial = load_trial(bundle, soc, chain, devices, open).ok()?;
    let known = unloaded.find(&trial).ok()??;
    Some(format!(
        "an earlier start could not load it ({}): {}; remove {} to try it again",
        known.class,
        known.message,
        unloaded.path(&trial).display()
    ))
}

/// Lists the chains in the user's cache. An unusable file is reported as a problem and ignored.
pub(crate) fn list(problems: &mut Vec<Problem>) -> Vec<UnloadedFile> {
    let files = memory().map_or(Ok(Vec::new()), |unloaded| unloaded.list()).unwrap_or_else(|error| {
        let what = format!("cannot list chains that were not loaded: {error}");
        problems.push(Problem { what, help: None });
        Vec::new()
    });
    for file in &files {
        if let Some(fault) = &file.fault {
            let what = format!("{}: {fault}; it is ignored", file.path);
            problems.push(Problem { what, help: Some("remove the file".to_owned()) });
        }
    }
    files
}
