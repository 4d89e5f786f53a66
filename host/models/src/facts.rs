use serde::Serialize;
use shardwright_graph::{Graph, Weight};

use crate::family::Family;
use crate::settings::Settings;
use crate::{LayerType, UnusedTensor};

/// A checkpoint's facts, for reports.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Facts {
    pub name: String,
    pub family: Family,
    /// Values per row of the residual stream.
    pub hidden: u64,
    /// Rows of the embedding table.
    pub vocabulary: u64,
    /// Number of positions the model was made for.
    pub context: u64,
    /// Number of query heads.
    pub heads: u32,
    pub layers: Vec<LayerFacts>,
    /// Visible distance of sliding layers, including the query itself. In an encoder it applies to
    /// both sides. `None` without such layers.
    pub window: Option<u32>,
    /// Values per layer of the per-layer inputs, or 0 if there are none.
    pub per_layer_width: u64,
    /// Whether the output matrix is the embedding table. False for models without an output matrix.
    pub tied: bool,
    pub weight_files: Vec<FileFacts>,
    /// Element types of the weights in use, in alphabetical order.
    pub dtypes: Vec<&'static str>,
    /// Number of tensors that no part of the graph reads, such as towers, and keys and values of
    /// layers that share a donor's.
    pub unused_tensors: usize,
    /// Bytes of the unused tensors.
    pub unused_bytes: u64,
}

/// One layer of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LayerFacts {
    /// Whether the layer sees all positions or a window.
    pub attention: LayerType,
    /// Number of key/value heads.
    pub kv_heads: u32,
    /// Values per head.
    pub head_dim: u32,
    /// Width of the feed-forward block.
    pub intermediate: u64,
    /// The layer whose keys and values this layer reads instead of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub donor: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileFacts {
    /// Name within the checkpoint's directory.
    pub name: String,
    pub bytes: u64,
}

impl Facts {
    /// Returns the number of layers that read a donor's keys and values.
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
        // A tied head is the only matrix that is a table too.
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
