use serde::Serialize;
use shardwright_graph::{Graph, Weight};

use crate::family::Family;
use crate::settings::Settings;
use crate::{LayerType, UnusedTensor};

/// A checkpoint's facts, for reports.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Facts {
    /// Name of the checkpoint's directory.
    pub name: String,
    /// Which family reads it.
    pub family: Family,
    /// Values per row of the residual stream.
    pub hidden: u64,
    /// Rows of the embedding table.
    pub vocabulary: u64,
    /// Positions it was made for.
    pub context: u64,
    /// Query heads.
    pub heads: u32,
    /// Each layer.
    pub layers: Vec<LayerFacts>,
    /// Visible distance of sliding layers, the query itself included (both ways in an encoder);
    /// `None` without such layers.
    pub window: Option<u32>,
    /// Values per layer of the per-layer inputs; 0 for none.
    pub per_layer_width: u64,
    /// Whether the output matrix is the embedding table. False without an output matrix.
    pub tied: bool,
    /// Weight files.
    pub weight_files: Vec<FileFacts>,
    /// Element types of the weights in use, in alphabetical order.
    pub dtypes: Vec<&'static str>,
    /// Tensors that no part of the graph reads: towers, keys and values of layers that share
    /// others'.
    pub unused_tensors: usize,
    /// Their bytes.
    pub unused_bytes: u64,
}

/// One layer of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LayerFacts {
    /// What it attends to.
    pub attention: LayerType,
    /// Key/value heads.
    pub kv_heads: u32,
    /// Values per head.
    pub head_dim: u32,
    /// Width of the feed-forward block.
    pub intermediate: u64,
    /// The layer whose keys and values it reads instead of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub donor: Option<u32>,
}

/// One weight file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileFacts {
    /// Name within the checkpoint's directory.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
}

impl Facts {
    /// Number of layers that read a donor's keys and values.
    pub fn kv_shared_layers(&self) -> usize {
        self.layers.iter().filter(|layer| layer.donor.is_some()).count()
    }

    pub(crate) fn new(
        name: String,
        settings: &Settings,
        graph: &Graph,
        weight_files: Vec<FileFacts>,
        dtypes: Vec<&'static str>,
        unused: &[UnusedTensor],
    ) -> Self {
        let (dimensions, window, per_layer_width) = match settings {
            Settings::Gemma3 { stack, .. } | Settings::EmbeddingGemma { stack, .. } => {
                (&stack.dimensions, stack.window, 0)
            }
            Settings::Gemma4 { stack, .. } | Settings::EmbeddingGemma2 { stack, .. } => {
                (&stack.dimensions, stack.window, stack.per_layer_width())
            }
            Settings::PreNorm(stack) => (&stack.dimensions, stack.window, 0),
        };
        // Of all matrices, a tied head alone is a table as well.
        let is_table = |weight: &Weight| graph.assets.iter().any(|asset| asset.table.name == weight.name);
        let tied = graph.weights.iter().any(is_table);
        let alike = |attention: &LayerType| LayerFacts {
            attention: *attention,
            kv_heads: dimensions.kv_heads,
            head_dim: dimensions.head_dim,
            intermediate: dimensions.intermediate,
            donor: None,
        };
        let layers: Vec<LayerFacts> = match settings {
            Settings::Gemma3 { stack, .. } | Settings::EmbeddingGemma { stack, .. } => {
                stack.types.iter().map(alike).collect()
            }
            Settings::PreNorm(stack) => stack.types.iter().map(alike).collect(),
            Settings::Gemma4 { stack, .. } | Settings::EmbeddingGemma2 { stack, .. } => stack
                .layers
                .iter()
                .map(|layer| LayerFacts {
                    attention: layer.kind,
                    kv_heads: layer.kv_heads,
                    head_dim: layer.head_dim,
                    intermediate: layer.intermediate,
                    donor: layer.donor,
                })
                .collect(),
        };
        let slides = layers.iter().any(|layer| layer.attention == LayerType::Sliding);
        Facts {
            name,
            family: settings.family(),
            hidden: dimensions.hidden,
            vocabulary: dimensions.vocabulary,
            context: dimensions.context,
            heads: dimensions.heads,
            layers,
            window: slides.then_some(window),
            per_layer_width,
            tied,
            weight_files,
            dtypes,
            unused_tensors: unused.len(),
            unused_bytes: unused.iter().map(|tensor| tensor.bytes).fold(0, u64::saturating_add),
        }
    }
}
