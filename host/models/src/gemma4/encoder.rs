//! The stack of EmbeddingGemma 2: layers of Gemma 4 with bidirectional attention, and with
//! per-layer inputs that have no table.
//!
//! Source: `modeling_embedding_gemma2.py` of transformers.

use shardwright_vocabulary::Result;

use super::{Gemma4, PerLayer, read_layers};
use crate::dimensions::Dimensions;
use crate::json::Fields;
use crate::rotary::{PerType, Rotary};
use crate::{limits, pattern};

/// The defining library's defaults for missing fields.
const DEFAULTS: Dimensions = Dimensions {
    vocabulary: 262_144,
    hidden: 512,
    intermediate: 2048,
    layers: 24,
    heads: 4,
    kv_heads: 2,
    head_dim: 256,
    context: 262_144,
    eps: 1e-6,
};

/// Default number of key/value heads of full layers.
const FULL_HEADS: u64 = 1;

impl Gemma4 {
    /// Reads and checks the text settings of EmbeddingGemma 2.
    pub fn read_encoder(fields: Fields<'_>) -> Result<Self> {
        for name in ["attention_bias", "num_kv_shared_layers", "use_double_wide_mlp", "rope_scaling"] {
            fields.must_be_off(name)?;
        }
        if fields.text("hidden_activation")?.is_some_and(|name| name != "gelu_pytorch_tanh") {
            return Err(fields.unsupported("hidden_activation", "`gelu_pytorch_tanh`"));
        }
        let dimensions = Dimensions::read(fields, DEFAULTS)?;
        let types = pattern::read_ending_full(fields, dimensions.layers)?;
        let full = fields.whole("num_global_key_value_heads", &limits::HEADS)?.unwrap_or(FULL_HEADS);
        let plain = PerType { full: Rotary::plain(1e6), sliding: Rotary::plain(1e4) };
        let pad = fields.whole("pad_token_id", &(0..=dimensions.vocabulary - 1))?.unwrap_or(0) as u32;
        let width = fields.whole("hidden_size_per_layer_input", &(1..=*limits::PER_LAYER_WIDTH.end()))?;
        Ok(Gemma4 {
            layers: read_layers(fields, &dimensions, &types, Some(full as u32))?,
            // The file specifies the distance of the farthest key that a query attends to.
            window: fields.whole("sliding_window", &limits::WINDOW)?.unwrap_or(512) as u32 + 1,
            per_layer: Some(PerLayer { entries: None, width: width.unwrap_or(512) }),
            rotary: PerType::read(fields, &plain, 1.0)?.unwrap_or(plain),
            projection: Some(fields.whole("embedding_dim", &limits::HIDDEN)?.unwrap_or(768)),
            tied: false,
            softcap: None,
            pad,
            dimensions,
        })
    }
}
