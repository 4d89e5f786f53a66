//! What a chain is made of, as data: what a bundle holds and an assembly of loaded shards is checked against.

use serde::{Deserialize, Serialize};
use shardwright_graph::{Asset, ComponentKind, DType, Graph, State};

use shardwright_shims::{EntryInterface, LoadedShard};

/// Where a shard runs. Two shards with an equal place can bind the same memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The opened shim, as the session that opened it calls it: two instances of one shim are two places.
    pub instance: String,
    /// The shim.
    pub shim: String,
    /// The device within the shim.
    pub device: String,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} on {})", self.instance, self.shim, self.device)
    }
}

/// A component, or a range of the decoder's layers, on one place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardDescription {
    /// For reports; unique within the chain.
    pub name: String,
    /// Which component.
    pub component: ComponentKind,
    /// First layer and one past the last; both 0 for components without layers.
    pub layers: (u32, u32),
    /// Where it runs.
    pub place: Place,
    /// What it can run.
    pub entries: Vec<EntryInterface>,
}

impl ShardDescription {
    /// The description of a loaded shard that holds exactly what its artefact says; `None` where that has no entry.
    pub fn of(name: impl Into<String>, shard: &LoadedShard) -> Option<Self> {
        let entries: Vec<EntryInterface> =
            shard.entries().iter().map(|entry| entry.interface.clone()).collect();
        let first = entries.first()?;
        Some(ShardDescription {
            name: name.into(),
            component: first.component,
            layers: first.layers,
            place: Place::of(shard),
            entries,
        })
    }
}

/// A gathered table, without its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssetDescription {
    /// `embedding`, `per-layer-embedding`.
    pub name: String,
    /// Rows.
    pub entries: u64,
    /// Values per row.
    pub width: u64,
    /// Stored type.
    pub dtype: DType,
}

impl AssetDescription {
    /// Of a table.
    pub fn of(asset: &Asset) -> Self {
        let (entries, width) = match asset.table.shape[..] {
            [entries, width] => (entries, width),
            _ => (0, 0),
        };
        AssetDescription { name: asset.name.clone(), entries, width, dtype: asset.table.dtype }
    }
}

/// Ordered shards and what they share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChainDescription {
    /// The model's name, for reports.
    pub model: String,
    /// Values per row of the residual stream.
    pub hidden: u64,
    /// Values per row of the logits; 0 without a head.
    pub vocabulary: u64,
    /// Values per layer and row of the per-layer inputs; 0 for none.
    pub per_layer_width: u64,
    /// Layers of the decoder.
    pub layers: u32,
    /// Components that must be there.
    pub components: Vec<ComponentKind>,
    /// All states, by [`StateId`](shardwright_graph::StateId).
    pub states: Vec<State>,
    /// All gathered tables, by [`AssetId`](shardwright_graph::AssetId).
    pub assets: Vec<AssetDescription>,
    /// In the order in which a step runs them.
    pub shards: Vec<ShardDescription>,
}

impl ChainDescription {
    /// The description of `graph` cut into `shards`.
    pub fn of(graph: &Graph, shards: Vec<ShardDescription>) -> Self {
        ChainDescription {
            model: graph.name.clone(),
            hidden: graph.hidden,
            vocabulary: graph.vocabulary,
            per_layer_width: graph.per_layer_width,
            layers: graph.layers(),
            components: graph.components.iter().map(|component| component.kind).collect(),
            states: graph.states.clone(),
            assets: graph.assets.iter().map(AssetDescription::of).collect(),
            shards,
        }
    }

    /// Whether text is generated step by step (there are states), or encoded in one pass.
    pub fn is_generative(&self) -> bool {
        !self.states.is_empty()
    }
}
