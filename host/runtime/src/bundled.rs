//! Descriptions from the manifest of a bundle, and for one.
//!
//! A manifest names shards and what they were made of. What they bind stands in their artefacts, so
//! a chain is described from both: the manifest, and the shards as they were loaded.

use shardwright_bundle::{AssetEntry, ChainEntry, Digest, FileReference, Manifest, ShardEntry, Structure};
use shardwright_vocabulary::{Beforehand, EntryName, ShardOrigin};

use crate::description::{ChainDescription, ShardDescription};
use crate::error::ChainError;

impl ChainDescription {
    /// A chain of a bundle, of which the artefacts are loaded: `shards` are those of
    /// [`ShardDescription::of`], in the chain's order. Each must be what the manifest names; its
    /// origin becomes the manifest's, but for a fallback that was noted already and the flags it
    /// was loaded with.
    pub fn of_bundle(
        manifest: &Manifest,
        chain: &ChainEntry,
        shards: Vec<ShardDescription>,
    ) -> Result<Self, ChainError> {
        if shards.len() != chain.shards.len() {
            return Err(ChainError::ExecutorCount { shards: chain.shards.len(), executors: shards.len() });
        }
        let shards = shards.into_iter().zip(&chain.shards).map(|(mut shard, entry)| {
            is_named(&shard, entry)?;
            let fallback = shard.origin.fallback.take();
            let loaded_with = std::mem::take(&mut shard.origin.loaded_with);
            shard.origin = ShardOrigin { fallback, loaded_with, ..entry.origin() };
            shard.logits_softcap = entry.logits_softcap;
            Ok(shard)
        });
        let structure = &manifest.structure;
        Ok(ChainDescription {
            model: manifest.model.name.clone(),
            emulated_on: chain.emulated_on.clone(),
            hidden: structure.hidden,
            vocabulary: structure.vocabulary,
            per_layer_width: structure.per_layer_width,
            layers: structure.layers,
            components: structure.components.clone(),
            states: structure.states.clone(),
            assets: manifest.assets.iter().map(AssetEntry::described).collect(),
            shards: shards.collect::<Result<_, ChainError>>()?,
            beforehand: Beforehand::default(),
        })
    }

    /// What a manifest says of the model. `context` is how many positions the model was made for,
    /// which a chain does not know.
    pub fn structure(&self, context: u64) -> Structure {
        Structure {
            hidden: self.hidden,
            vocabulary: self.vocabulary,
            context,
            per_layer_width: self.per_layer_width,
            layers: self.layers,
            components: self.components.clone(),
            states: self.states.clone(),
        }
    }
}

/// Files of a bundle that a shard was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardFiles {
    /// The artefact.
    pub artefact: FileReference,
    /// The shim's own head of it.
    pub head: FileReference,
    /// Name of the work order it was compiled from.
    pub work_order: Digest,
}

impl ShardDescription {
    /// What a manifest says of this shard. Its origin must tell target, compiler and formats.
    pub fn bundle_entry(&self, files: ShardFiles) -> Result<ShardEntry, ChainError> {
        let origin = self.origin.clone();
        let missing = |what| ChainError::Bundled {
            shard: self.name.clone(),
            what,
            expected: "one".to_owned(),
            given: "not told".to_owned(),
        };
        let entries = self.entries.iter().map(|entry| {
            entry.name.parse::<EntryName>().map_err(|error| ChainError::Bundled {
                shard: self.name.clone(),
                what: "the name of an entry point",
                expected: error.expected,
                given: error.value,
            })
        });
        Ok(ShardEntry {
            name: self.name.clone(),
            component: self.component,
            layers: self.layers,
            target: origin.requested.ok_or_else(|| missing("the target"))?,
            compiled_by: origin.compiled_by.ok_or_else(|| missing("the compiler"))?,
            formats: origin.formats.ok_or_else(|| missing("the format"))?,
            entries: entries.collect::<Result<_, _>>()?,
            artefact: files.artefact,
            head: files.head,
            work_order: files.work_order,
            flags: origin.flags,
            rewritten: origin.rewritten,
            logits_softcap: self.logits_softcap,
            placements: origin.placements,
        })
    }
}

/// Whether a loaded shard is the one that a manifest names.
fn is_named(shard: &ShardDescription, entry: &ShardEntry) -> Result<(), ChainError> {
    let same = |what, expected: String, given: String| {
        if expected == given {
            return Ok(());
        }
        Err(ChainError::Bundled { shard: entry.name.clone(), what, expected, given })
    };
    let part = |component, layers: (u32, u32)| format!("{component} {}..{}", layers.0, layers.1);
    let entries = entry.entries.iter().map(EntryName::to_string).collect::<Vec<_>>().join(", ");
    let loaded = shard.entries.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>().join(", ");
    same("its name", entry.name.clone(), shard.name.clone())?;
    same("its part", part(entry.component, entry.layers), part(shard.component, shard.layers))?;
    same("its list of entry points", entries, loaded)?;
    same("its shim", entry.compiled_by.shim.clone(), shard.place.shim.clone())
}
