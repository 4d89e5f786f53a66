//! The sizes that every family of decoders specifies by the same names.

use shardwright_vocabulary::{Error, Result};

use crate::json::Fields;
use crate::limits;

/// Checked sizes of a decoder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Dimensions {
    pub vocabulary: u64,
    pub hidden: u64,
    pub intermediate: u64,
    pub layers: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub context: u64,
    /// The number that each normalisation adds under its root.
    pub eps: f32,
}

impl Dimensions {
    /// Reads the sizes. `defaults` are the defining library's values for missing fields.
    pub fn read(fields: Fields<'_>, defaults: Dimensions) -> Result<Self> {
        let narrow = |name, range, default: u32| {
            Ok::<_, Error>(fields.whole(name, range)?.map_or(default, |number| number as u32))
        };
        let dimensions = Dimensions {
            vocabulary: fields.whole("vocab_size", &limits::VOCABULARY)?.unwrap_or(defaults.vocabulary),
            hidden: fields.whole("hidden_size", &limits::HIDDEN)?.unwrap_or(defaults.hidden),
            intermediate: fields
                .whole("intermediate_size", &limits::INTERMEDIATE)?
                .unwrap_or(defaults.intermediate),
            layers: narrow("num_hidden_layers", &limits::LAYERS, defaults.layers)?,
            heads: narrow("num_attention_heads", &limits::HEADS, defaults.heads)?,
            kv_heads: narrow("num_key_value_heads", &limits::HEADS, defaults.kv_heads)?,
            head_dim: narrow("head_dim", &limits::HEAD_DIM, defaults.head_dim)?,
            context: fields.whole("max_position_embeddings", &limits::CONTEXT)?.unwrap_or(defaults.context),
            eps: fields.positive("rms_norm_eps")?.unwrap_or(defaults.eps),
        };
        check_heads(fields, "num_key_value_heads", dimensions.heads, dimensions.kv_heads)?;
        check_head_dim(fields, "head_dim", dimensions.head_dim)?;
        Ok(dimensions)
    }
}

/// Checks that each key/value head serves the same number of query heads.
pub(crate) fn check_heads(fields: Fields<'_>, name: &str, heads: u32, kv_heads: u32) -> Result<()> {
    if heads.is_multiple_of(kv_heads) {
        return Ok(());
    }
    Err(fields.invalid(name, format!("is {kv_heads}, which does not divide the {heads} query heads")))
}

/// Checks that a head's size is even: rotary positions rotate pairs of values.
pub(crate) fn check_head_dim(fields: Fields<'_>, name: &str, head_dim: u32) -> Result<()> {
    if head_dim.is_multiple_of(2) {
        return Ok(());
    }
    Err(fields.invalid(name, format!("is {head_dim}, an odd number")))
}
