use shardwright_build::Settled;
use shardwright_runtime::{Chain, ChainDescription, ShardDescription};
use shardwright_shims::LoadedShard;
use shardwright_vocabulary::Beforehand;

use crate::{Error, ErrorKind, Result};

/// Joins the loaded shards of a carried-out plan into a chain. For plans that were settled by hand,
/// and for tools that accompany this crate.
pub fn load(settled: &Settled, beforehand: Beforehand) -> Result<Chain> {
    let mut descriptions = Vec::new();
    let mut executors: Vec<LoadedShard> = Vec::new();
    for part in settled.load()? {
        let mut description = ShardDescription::of(&part.name, &part.shard).ok_or_else(|| {
            Error::new(ErrorKind::Shim, format!("shard {} was compiled to nothing that can run", part.name))
        })?;
        description.origin = part.origin;
        description.logits_softcap = part.logits_softcap;
        descriptions.push(description);
        executors.push(part.shard);
    }
    let mut description = ChainDescription::of(&settled.graph, descriptions);
    description.emulated_on.clone_from(&settled.report.emulated_on);
    description.beforehand = beforehand;
    Ok(Chain::new(description, executors, settled.graph.assets.clone())?)
}
