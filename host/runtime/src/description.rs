//! Description of a chain as data, which is stored in a bundle and compared with the loaded shards.

use serde::{Deserialize, Serialize};

use shardwright_bundle::Structure;
use shardwright_graph::{Graph, Segments};
use shardwright_shims::{EntryInterface, LoadedShard};
use shardwright_vocabulary::{Beforehand, Place, ShardOrigin, Table};

/// Adjacent segments of the model on one place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardDescription {
    /// Name for reports, unique within the chain.
    pub name: String,
    pub segments: Segments,
    /// Shim and device that run the shard.
    pub place: Place,
    pub entries: Vec<EntryInterface>,
    /// The cap of a soft-cap, cap · tanh(logits / cap), that the runtime must apply because this
    /// shard returns uncapped logits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logits_softcap: Option<f32>,
    /// The request, and its outcome up to loading.
    #[serde(default, skip_serializing_if = "ShardOrigin::is_unknown")]
    pub origin: ShardOrigin,
}

impl ShardDescription {
    /// Describes a loaded shard from its artefact alone. Returns `None` if the artefact has no
    /// entry. The caller adds the request to the origin.
    pub fn of(name: impl Into<String>, shard: &LoadedShard) -> Option<Self> {
        let entries: Vec<EntryInterface> =
            shard.entries().iter().map(|entry| entry.interface.clone()).collect();
        let first = entries.first()?;
        Some(ShardDescription {
            name: name.into(),
            segments: first.segments.clone(),
            place: shard.place().clone(),
            entries,
            logits_softcap: None,
            origin: ShardOrigin {
                loaded_with: shard.flags().to_vec(),
                ..shard.artefact().map(|artefact| artefact.head().origin()).unwrap_or_default()
            },
        })
    }
}

/// Ordered shards with their shared data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChainDescription {
    /// Name of the model, for reports.
    pub model: String,
    /// Substitute that emulates the planned targets, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulated_on: Option<String>,
    pub structure: Structure,
    /// All gathered tables, indexed by [`AssetId`](shardwright_graph::AssetId).
    pub assets: Vec<Table<()>>,
    /// Shards in the order in which a step runs them.
    pub shards: Vec<ShardDescription>,
    /// Events before the chain was opened.
    #[serde(default, skip_serializing_if = "Beforehand::is_nothing")]
    pub beforehand: Beforehand,
}

impl ChainDescription {
    /// Describes `graph` divided into `shards`.
    pub fn of(graph: &Graph, shards: Vec<ShardDescription>) -> Self {
        ChainDescription {
            model: graph.name.clone(),
            emulated_on: None,
            structure: Structure::of(graph),
            assets: graph.assets.iter().map(|asset| asset.to_table().described()).collect(),
            shards,
            beforehand: Beforehand::default(),
        }
    }

    /// Returns the cap of the soft-cap that the runtime applies to logits.
    pub fn logits_softcap(&self) -> Option<f32> {
        self.shards.iter().find_map(|shard| shard.logits_softcap)
    }
}
