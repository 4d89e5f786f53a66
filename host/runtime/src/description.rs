//! What a chain is made of, as data: what a bundle holds and an assembly of loaded shards is
//! checked against.

use serde::{Deserialize, Serialize};

use shardwright_graph::{Asset, ComponentKind, Graph, State};
use shardwright_shims::{EntryInterface, LoadedShard};
use shardwright_vocabulary::{Beforehand, DType, Granularity, Place, ShardOrigin, scale_count};

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
    /// The cap of a soft-cap, cap · tanh(logits / cap), that is left to the runtime: the logits
    /// this shard gives are not capped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logits_softcap: Option<f32>,
    /// What was asked, and what became of that before it was loaded.
    #[serde(default, skip_serializing_if = "ShardOrigin::is_unknown")]
    pub origin: ShardOrigin,
}

impl ShardDescription {
    /// The description of a loaded shard that holds exactly what its artefact says; `None` where
    /// that has no entry. What was asked is for whoever opens the chain to add to its origin.
    pub fn of(name: impl Into<String>, shard: &LoadedShard) -> Option<Self> {
        let entries: Vec<EntryInterface> =
            shard.entries().iter().map(|entry| entry.interface.clone()).collect();
        let first = entries.first()?;
        Some(ShardDescription {
            name: name.into(),
            component: first.component,
            layers: first.layers,
            place: shard.instance().place(shard.device()),
            entries,
            logits_softcap: None,
            origin: ShardOrigin { loaded_with: shard.flags().to_vec(), ..shard.artefact().head().origin() },
        })
    }
}

/// A gathered table, without its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssetDescription {
    /// `embedding`, `per-layer-embedding`.
    pub name: String,
    /// Rows.
    pub entries: u64,
    /// Values per row.
    pub width: u64,
    /// Stored type.
    pub dtype: DType,
    /// How stored integers stand for values; none for floats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantisation: Option<TableQuantisation>,
}

/// How the stored integers of a gathered table stand for values, without the scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableQuantisation {
    /// Which values share a scale.
    pub granularity: Granularity,
    /// Type of the scales.
    pub scale_dtype: DType,
    /// Stored value that stands for zero.
    pub zero_point: i32,
}

impl AssetDescription {
    /// Of a table.
    pub fn of(asset: &Asset) -> Self {
        let (entries, width) = match asset.table.shape[..] {
            [entries, width] => (entries, width),
            _ => (0, 0),
        };
        let quantisation = asset.table.quantisation.as_ref().map(|held| TableQuantisation {
            granularity: held.granularity,
            scale_dtype: held.scale_dtype,
            zero_point: held.zero_point,
        });
        AssetDescription { name: asset.name.clone(), entries, width, dtype: asset.table.dtype, quantisation }
    }

    /// Bytes of the stored values and of the scales; `None` for a format that no table can have.
    pub(crate) fn bytes(&self) -> Option<[u64; 2]> {
        let shape = [self.entries, self.width];
        let values = self.dtype.packed_bytes(&shape)?;
        let scales = match self.quantisation {
            None if self.dtype.is_float() => 0,
            None => return None,
            Some(held) => {
                let (low, high) = self.dtype.raw_range()?;
                let legal = (low..=high).contains(&held.zero_point)
                    && matches!(held.scale_dtype, DType::F32 | DType::F16);
                scale_count(held.granularity, &shape)
                    .filter(|_| legal)?
                    .checked_mul(held.scale_dtype.bytes())?
            }
        };
        Some([values, scales])
    }

    /// For messages: `bf16`, `i4 (per-channel, zero 0)`.
    pub(crate) fn format(&self) -> String {
        let Some(held) = self.quantisation else { return self.dtype.to_string() };
        let granularity = match held.granularity {
            Granularity::PerTensor => "per-tensor".to_owned(),
            Granularity::PerChannel => "per-channel".to_owned(),
            Granularity::PerBlock { size } => format!("per-block of {size}"),
        };
        format!("{} ({granularity}, scales {}, zero {})", self.dtype, held.scale_dtype, held.zero_point)
    }
}

/// Ordered shards and what they share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChainDescription {
    /// The model's name, for reports.
    pub model: String,
    /// What stands in for the planned targets, if something does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulated_on: Option<String>,
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
    /// What came before it.
    #[serde(default, skip_serializing_if = "Beforehand::is_nothing")]
    pub beforehand: Beforehand,
}

impl ChainDescription {
    /// The description of `graph` cut into `shards`.
    pub fn of(graph: &Graph, shards: Vec<ShardDescription>) -> Self {
        ChainDescription {
            model: graph.name.clone(),
            emulated_on: None,
            hidden: graph.hidden,
            vocabulary: graph.vocabulary,
            per_layer_width: graph.per_layer_width,
            layers: graph.layers(),
            components: graph.components.iter().map(|component| component.kind).collect(),
            states: graph.states.clone(),
            assets: graph.assets.iter().map(AssetDescription::of).collect(),
            shards,
            beforehand: Beforehand::default(),
        }
    }

    /// The cap of a soft-cap that the runtime applies to logits.
    pub fn logits_softcap(&self) -> Option<f32> {
        self.shards.iter().find_map(|shard| shard.logits_softcap)
    }

    /// Whether text is generated step by step (there are states), or encoded in one pass.
    pub fn is_generative(&self) -> bool {
        !self.states.is_empty()
    }
}
