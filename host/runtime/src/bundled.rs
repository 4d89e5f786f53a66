//! Chain descriptions from the manifest of a bundle.
//!
//! A manifest lists shards and their origin, while their bindings are in their artefacts. A chain
//! description therefore needs both the manifest and the loaded shards.

use shardwright_bundle::{AssetEntry, ChainEntry, Model, ShardEntry};
use shardwright_vocabulary::{Beforehand, EntryName, Error, Result, ShardOrigin};

use crate::description::{ChainDescription, ShardDescription};
use crate::error::wrong_count;

impl ChainDescription {
    /// Describes a chain of model `name`, for text or for a tower, whose artefacts are loaded.
    /// `shards` come from [`ShardDescription::of`], in the chain's order. Each shard must match the
    /// manifest. Its origin is replaced by the manifest's, except for a recorded fallback and the
    /// flags it was loaded with.
    pub fn of_bundle(
        name: &str,
        model: Model<'_>,
        chain: &ChainEntry,
        shards: Vec<ShardDescription>,
    ) -> Result<Self> {
        if shards.len() != chain.shards.len() {
            return Err(wrong_count(chain.shards.len(), shards.len()));
        }
        let shards = shards.into_iter().zip(&chain.shards).map(|(mut shard, entry)| {
            is_named(&shard, entry)?;
            let fallback = shard.origin.fallback.take();
            let loaded_with = std::mem::take(&mut shard.origin.loaded_with);
            shard.origin = ShardOrigin { fallback, loaded_with, ..entry.origin() };
            shard.logits_softcap = entry.logits_softcap;
            Ok(shard)
        });
        Ok(ChainDescription {
            model: name.to_owned(),
            emulated_on: chain.emulated_on.clone(),
            structure: model.structure.clone(),
            assets: model.assets.iter().map(AssetEntry::described).collect(),
            shards: shards.collect::<Result<_>>()?,
            beforehand: Beforehand::default(),
        })
    }
}

/// Checks that a loaded shard matches its entry in the manifest.
fn is_named(shard: &ShardDescription, entry: &ShardEntry) -> Result<()> {
    let same = |what: &str, expected: String, actual: String| {
        if expected == actual {
            return Ok(());
        }
        Err(Error::incompatible(format!("the bundle expects {what} {expected}, got {actual}"))
            .at(format_args!("shard `{}`", entry.name))
            .with_help("the artefacts come from another build than the manifest; compile again"))
    };
    let entries = entry.entries.iter().map(EntryName::to_string).collect::<Vec<_>>().join(", ");
    let loaded = shard.entries.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>().join(", ");
    same("the name", entry.name.clone(), shard.name.clone())?;
    same("the segments", entry.segments.to_string(), shard.segments.to_string())?;
    same("the entry points", entries, loaded)?;
    same("the shim", entry.compiled_by.shim.clone(), shard.place.shim.clone())
}
