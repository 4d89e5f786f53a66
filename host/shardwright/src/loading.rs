use shardwright_build::{LoadedPart, Settled};
use shardwright_graph::Graph;
use shardwright_runtime::{Chain, ChainDescription, ShardDescription};
use shardwright_shims::LoadedShard;
use shardwright_vocabulary::Beforehand;

use crate::{Error, ErrorKind, Result};

/// Joins the loaded shards of a settled plan into a chain.
pub fn load(settled: &Settled, beforehand: Beforehand) -> Result<Chain> {
    join(settled.load()?, &settled.graph, settled.report.emulated_on.clone(), beforehand)
}

/// Joins loaded shards, in order of execution, into a chain over the tables of `graph`.
/// `emulated_on` names the executor if it is not the planned targets.
///
/// # Errors
///
/// Fails if a shard has no entry point, or if the shards do not form a chain.
pub fn join(
    parts: Vec<LoadedPart>,
    graph: &Graph,
    emulated_on: Option<String>,
    beforehand: Beforehand,
) -> Result<Chain> {
    let mut descriptions = Vec::new();
    let mut executors: Vec<LoadedShard> = Vec::new();
    for part in parts {
        let mut description = ShardDescription::of(&part.name, &part.shard)
            .ok_or_else(|| Error::new(ErrorKind::Shim, format!("shard {} has no entry point", part.name)))?;
        description.origin = part.origin;
        description.logits_softcap = part.logits_softcap;
        descriptions.push(description);
        executors.push(part.shard);
    }
    let mut description = ChainDescription::of(graph, descriptions);
    description.emulated_on = emulated_on;
    description.beforehand = beforehand;
    Chain::new(description, executors, graph.assets.clone())
}
