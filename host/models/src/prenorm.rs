//! Decoders with one normalisation before each block and a SiLU gate: Llama, Mistral, Qwen 2, Qwen
//! 3.
//!
//! They differ in their defaults, in how a file gives the size of a head, in biases of queries,
//! keys and values (Qwen 2), in norms of queries and keys (Qwen 3), and in which layers have a
//! window.
//!
//! Source: `modeling_llama.py`, `modeling_mistral.py`, `modeling_ministral.py`, `modeling_qwen2.py`
//! and `modeling_qwen3.py` of transformers.

use shardwright_graph::{ComponentBuilder, ComponentKind, Op, ValueId, WeightId};

use crate::block::{
    self, AttentionParts, AttentionShape, AttentionWeights, FeedForwardWeights, KeyValues, KeysOf, Norm,
};
use crate::dimensions::Dimensions;
use crate::family::Family;
use crate::json::Fields;
use crate::rotary::{self, Rotary};
use crate::store::TensorStore;
use crate::translation::Translation;
use crate::{CheckpointError, LayerType, limits, pattern};

/// The defining library's defaults for missing fields.
const fn defaults(family: Family) -> Dimensions {
    let common = Dimensions {
        vocabulary: 32_000,
        hidden: 4096,
        intermediate: 11_008,
        layers: 32,
        heads: 32,
        kv_heads: 32,
        head_dim: 128,
        context: 2048,
        eps: 1e-6,
    };
    match family {
        Family::Mistral => Dimensions { intermediate: 14_336, kv_heads: 8, context: 131_072, ..common },
        Family::Qwen2 | Family::Qwen3 => {
            Dimensions { vocabulary: 151_936, intermediate: 22_016, context: 32_768, ..common }
        }
        _ => common,
    }
}

/// Checked settings of such a decoder.
#[derive(Clone, Debug)]
pub(crate) struct PreNorm {
    pub family: Family,
    pub dimensions: Dimensions,
    pub types: Vec<LayerType>,
    /// Visible distance of sliding layers, the query itself included; 0 without any.
    pub window: u32,
    rotary: Rotary,
    pub tied: bool,
}

impl PreNorm {
    /// Checks the settings.
    pub fn read(fields: Fields<'_>, family: Family) -> Result<Self, CheckpointError> {
        // `pretraining_tp` of Llama does not count: it cut matrices into parts whose sums are the
        // same, and the library does so no more.
        fields.must_be_off("attention_bias")?;
        fields.must_be_off("mlp_bias")?;
        if fields.text("hidden_act")?.is_some_and(|name| name != "silu") {
            return Err(fields.unsupported("hidden_act", "`silu`"));
        }
        let mut defaults = defaults(family);
        let heads = fields.whole("num_attention_heads", &limits::HEADS)?;
        let heads = heads.map_or(defaults.heads, |heads| heads as u32);
        // Present as `null`, it means as many as query heads. Absent, it has the library's number,
        // which for Llama is that as well.
        if family == Family::Llama || fields.mentions("num_key_value_heads") {
            defaults.kv_heads = heads;
        }
        if family != Family::Qwen3 {
            let hidden = fields.whole("hidden_size", &limits::HIDDEN)?.unwrap_or(defaults.hidden);
            if fields.get("head_dim").is_none() && !hidden.is_multiple_of(heads.into()) {
                let reason = format!("is {hidden}, which {heads} heads do not divide");
                return Err(fields.invalid("hidden_size", reason));
            }
            defaults.head_dim = (hidden / u64::from(heads)) as u32;
        }
        let dimensions = Dimensions::read(fields, defaults)?;
        let (types, window) = match family {
            Family::Mistral => read_mistral_types(fields, dimensions.layers)?,
            Family::Qwen2 | Family::Qwen3 => read_qwen_types(fields, dimensions.layers)?,
            _ => (vec![LayerType::Full; dimensions.layers as usize], 0),
        };
        Ok(PreNorm {
            family,
            types,
            window,
            rotary: read_rotary(fields, dimensions.head_dim)?,
            tied: fields.flag("tie_word_embeddings")?.unwrap_or(false),
            dimensions,
        })
    }

    fn shape(&self, kind: LayerType) -> AttentionShape {
        let Dimensions { heads, kv_heads, head_dim, .. } = self.dimensions;
        AttentionShape {
            heads,
            kv_heads,
            rope: self.rotary.rope(head_dim),
            scale: f64::from(head_dim).sqrt().recip() as f32,
            window: if kind == LayerType::Sliding { self.window } else { 0 },
            causal: true,
            value_norm: false,
        }
    }

    fn parts(&self) -> AttentionParts {
        AttentionParts { norms: self.family == Family::Qwen3, biases: self.family == Family::Qwen2 }
    }

    fn norm(&self) -> Norm {
        Norm { eps: self.dimensions.eps, offset: 0.0 }
    }

    /// The generating model.
    pub fn translate(&self, store: TensorStore, name: String) -> Result<Translation, CheckpointError> {
        let Dimensions { hidden, context, vocabulary, .. } = self.dimensions;
        let mut translation = Translation::new(store, name, hidden, context)?;
        let embedding = translation.embedding(vocabulary, Vec::new())?;
        // The family does not scale; a factor of one is exact and keeps the component the same
        // everywhere.
        block::embed(&mut translation, embedding, 1.0)?;
        let mut layers = Vec::with_capacity(self.types.len());
        for (index, &kind) in self.types.iter().enumerate() {
            let shape = self.shape(kind);
            let weights = self.take_layer(&mut translation, index as u32, &shape)?;
            layers.push((shape, weights));
        }
        let mut builder = ComponentBuilder::new(translation.graph(), ComponentKind::Decoder);
        let mut stream = block::hidden_input(&mut builder, hidden);
        let mut attended = Vec::new();
        for (shape, weights) in &layers {
            builder.begin_layer(stream);
            stream = self.layer(&mut builder, stream, shape, weights, &mut attended);
        }
        builder.end_layers(stream);
        let component = builder.finish()?;
        translation.component(component);
        block::head(&mut translation, self.norm(), vocabulary, self.tied, None)?;
        Ok(translation)
    }

    fn take_layer(
        &self,
        translation: &mut Translation,
        index: u32,
        shape: &AttentionShape,
    ) -> Result<LayerWeights, CheckpointError> {
        let Dimensions { hidden, intermediate, .. } = self.dimensions;
        let name = |what: &str| format!("layers.{index}.{what}.weight");
        Ok(LayerWeights {
            input_norm: translation.weight(&name("input_layernorm"), "norm", &[hidden])?,
            attention: AttentionWeights::take(translation, index, shape, KeysOf::States, self.parts())?,
            // Named for what it follows, though it normalises the feed-forward block's input.
            feed_forward_norm: translation.weight(&name("post_attention_layernorm"), "norm", &[hidden])?,
            feed_forward: FeedForwardWeights::take(translation, index, intermediate)?,
        })
    }

    fn layer(
        &self,
        builder: &mut ComponentBuilder<'_>,
        stream: ValueId,
        shape: &AttentionShape,
        weights: &LayerWeights,
        attended: &mut Vec<KeyValues>,
    ) -> ValueId {
        let (hidden, norm) = (self.dimensions.hidden, self.norm());
        let x = norm.apply(builder, "input-norm", stream, Some(weights.input_norm), hidden);
        let x = block::attention(builder, x, shape, &weights.attention, norm, attended);
        let stream = builder.op("attention-residual", Op::Add, &[stream, x]);
        let x = norm.apply(builder, "feed-forward-norm", stream, Some(weights.feed_forward_norm), hidden);
        let x = block::feed_forward(builder, x, &weights.feed_forward, Op::Silu);
        builder.op("feed-forward-residual", Op::Add, &[stream, x])
    }
}

struct LayerWeights {
    input_norm: WeightId,
    attention: AttentionWeights,
    feed_forward_norm: WeightId,
    feed_forward: FeedForwardWeights,
}

/// The list of types, or else sliding from `max_window_layers` on where the window is switched on;
/// and the window.
fn read_qwen_types(fields: Fields<'_>, layers: u32) -> Result<(Vec<LayerType>, u32), CheckpointError> {
    let sliding = fields.flag("use_sliding_window")?.unwrap_or(false);
    // Files that switch the window off may still carry its width.
    let window = if sliding { fields.whole("sliding_window", &limits::WINDOW)? } else { None };
    let window = window.unwrap_or(0) as u32;
    let first_sliding = fields.whole("max_window_layers", &(0..=u64::from(u32::MAX)))?.unwrap_or(28);
    let by_rule = |layer: u32| {
        if window > 0 && u64::from(layer) >= first_sliding { LayerType::Sliding } else { LayerType::Full }
    };
    let types = match pattern::read_list(fields, layers)? {
        Some(types) => types,
        None => (0..layers).map(by_rule).collect(),
    };
    if window == 0 && types.contains(&LayerType::Sliding) {
        return Err(fields.invalid("layer_types", "has sliding layers, but no window is switched on"));
    }
    Ok((types, window))
}

/// The list of types, or else all sliding unless the file has `null` for the window; and the
/// window.
fn read_mistral_types(fields: Fields<'_>, layers: u32) -> Result<(Vec<LayerType>, u32), CheckpointError> {
    let window = match fields.whole("sliding_window", &limits::WINDOW)? {
        Some(window) => window as u32,
        None if fields.mentions("sliding_window") => 0,
        None => 4096,
    };
    let every = if window > 0 { LayerType::Sliding } else { LayerType::Full };
    let types = pattern::read_list(fields, layers)?.unwrap_or_else(|| vec![every; layers as usize]);
    match types.contains(&LayerType::Sliding) {
        true if window == 0 => {
            Err(fields.invalid("layer_types", "has sliding layers, but `sliding_window` is null"))
        }
        true => Ok((types, window)),
        false => Ok((types, 0)),
    }
}

/// `rope_parameters`, or the older `rope_theta` with `rope_scaling`.
fn read_rotary(fields: Fields<'_>, head_dim: u32) -> Result<Rotary, CheckpointError> {
    let theta = fields.positive("rope_theta")?.unwrap_or(1e4);
    // The library moves these two into the set of parameters, over what the set has.
    if rotary::read_partial(fields)?.is_some_and(|partial| partial != 1.0) {
        return Err(fields.unsupported("partial_rotary_factor", "1"));
    }
    fields.must_be_off("original_max_position_embeddings")?;
    let name = match fields.object("rope_parameters")? {
        Some(_) => {
            // With both spellings it is not known which one counts.
            fields.must_be_off("rope_scaling")?;
            "rope_parameters"
        }
        None => "rope_scaling",
    };
    match fields.object(name)? {
        Some(parameters) => Rotary::read_for(parameters, theta, head_dim),
        None => Ok(Rotary::plain(theta)),
    }
}
