//! Decoders with one normalisation before each block and a SiLU gate: Llama, SmolLM3, Mistral, Qwen
//! 2, Qwen 3, Granite, Phi 3.
//!
//! They differ in:
//!
//! * their defaults, and how a file specifies the size of a head,
//! * biases of queries, keys and values (Qwen 2),
//! * norms of queries and keys (Qwen 3),
//! * the layers that have a window or rotary positions (SmolLM3),
//! * factors on the stream, the scores and the logits (Granite),
//! * matrices that share one tensor (Phi 3, and Granite 4 without experts).
//!
//! Source: `modeling_llama.py` of transformers, and likewise of `smollm3`, `mistral`, `ministral`,
//! `qwen2`, `qwen3`, `granite`, `granitemoehybrid` and `phi3`.

mod positions;
mod windows;

use shardwright_graph::{ComponentBuilder, ComponentKind, Op, ValueId, WeightId};
use shardwright_vocabulary::{Error, Result};

use crate::block::{
    self, AttentionParts, AttentionShape, AttentionWeights, FeedForwardWeights, KeyValues, KeysOf, Logits,
    Norm,
};
use crate::dimensions::Dimensions;
use crate::family::Family;
use crate::json::Fields;
use crate::rotary::Rotary;
use crate::store::TensorStore;
use crate::translation::Translation;
use crate::{LayerType, limits};

/// Returns the defining library's defaults for missing fields.
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
        Family::SmolLM3 => Dimensions {
            vocabulary: 128_256,
            hidden: 2048,
            layers: 36,
            heads: 16,
            kv_heads: 4,
            context: 32_768,
            ..common
        },
        Family::Phi3 => Dimensions {
            vocabulary: 32_064,
            hidden: 3072,
            intermediate: 8192,
            context: 4096,
            eps: 1e-5,
            ..common
        },
        _ => common,
    }
}

/// Factors of Granite. They are 1 in the other families.
#[derive(Clone, Copy, Debug)]
struct Factors {
    /// Factor on embedded rows.
    embedding: f32,
    /// Factor on each block's contribution to the stream.
    residual: f32,
    /// Factor on products of queries and keys. `None` means the reciprocal root of the head size.
    attention: Option<f32>,
    /// Divisor of logits.
    logits: f32,
}

impl Factors {
    fn read(fields: Fields<'_>, family: Family) -> Result<Self> {
        if family != Family::Granite {
            return Ok(Factors { embedding: 1.0, residual: 1.0, attention: None, logits: 1.0 });
        }
        let factor = |name| Ok::<_, Error>(fields.positive(name)?.unwrap_or(1.0));
        Ok(Factors {
            embedding: factor("embedding_multiplier")?,
            residual: factor("residual_multiplier")?,
            attention: Some(factor("attention_multiplier")?),
            logits: factor("logits_scaling")?,
        })
    }
}

/// Checks whether the file is of the variant of Granite that may have experts and recurrent layers.
/// A model without either has the layers of Granite, under different names.
fn is_hybrid(fields: Fields<'_>) -> Result<bool> {
    Ok(fields.text("model_type")? == Some("granitemoehybrid"))
}

/// Checked settings of a decoder of these families.
#[derive(Clone, Debug)]
pub(crate) struct PreNorm {
    pub family: Family,
    pub dimensions: Dimensions,
    pub types: Vec<LayerType>,
    /// Visible distance of sliding layers, including the query itself. 0 if there are no such
    /// layers.
    pub window: u32,
    rotary: Rotary,
    /// For each layer, whether queries and keys have rotary positions.
    turning: Vec<bool>,
    factors: Factors,
    /// Names of the tensors of a feed-forward block whose gate and other inner matrix are one
    /// tensor, with the gate on top.
    fused: Option<[&'static str; 2]>,
    pub tied: bool,
    /// Choices made where the file specifies none or more than is supported, as sentences for a
    /// report.
    pub notes: Vec<String>,
}

impl PreNorm {
    /// Reads and checks the settings.
    pub fn read(fields: Fields<'_>, family: Family) -> Result<Self> {
        // `pretraining_tp` of Llama is ignored. It split matrices into parts whose sums are the
        // same, which the library no longer does.
        for name in ["attention_bias", "mlp_bias", "lm_head_bias", "use_mrope"] {
            fields.must_be_off(name)?;
        }
        if fields.text("hidden_act")?.is_some_and(|name| name != "silu") {
            return Err(fields.unsupported("hidden_act", "`silu`"));
        }
        let hybrid = family == Family::Granite && is_hybrid(fields)?;
        if hybrid && fields.whole("num_local_experts", &(0..=u64::from(u32::MAX)))? != Some(0) {
            return Err(fields.unsupported("num_local_experts", "0"));
        }
        let mut dimensions = read_dimensions(fields, family)?;
        if hybrid {
            let width = fields.whole("shared_intermediate_size", &limits::INTERMEDIATE)?;
            dimensions.intermediate = width.unwrap_or(1024);
        }
        let (rotary, limit) = positions::read(fields, family, &dimensions)?;
        let mut notes = Vec::new();
        if let Some(limit) = limit {
            notes.push(format!(
                "{limit} of {} positions: `long_factor` of `longrope`, for longer texts, would change the keys of \
                 all earlier positions",
                dimensions.context
            ));
            dimensions.context = limit;
        }
        let turning = positions::read_turning(fields, family, dimensions.layers)?;
        let (types, window) = windows::read(fields, family, &turning, dimensions.context)?;
        let fused = match family {
            Family::Phi3 => Some(["mlp.gate_up_proj", "mlp.down_proj"]),
            _ => hybrid.then_some(["shared_mlp.input_linear", "shared_mlp.output_linear"]),
        };
        Ok(PreNorm {
            family,
            types,
            window,
            rotary,
            turning,
            factors: Factors::read(fields, family)?,
            fused,
            tied: fields.flag("tie_word_embeddings")?.unwrap_or(family == Family::SmolLM3),
            notes,
            dimensions,
        })
    }

    fn shape(&self, layer: usize) -> AttentionShape {
        let Dimensions { heads, kv_heads, head_dim, .. } = self.dimensions;
        let scale = self.factors.attention.unwrap_or(f64::from(head_dim).sqrt().recip() as f32);
        AttentionShape {
            heads,
            kv_heads,
            head_dim,
            rope: self.turning[layer].then(|| self.rotary.rope(head_dim)),
            scale,
            window: if self.types[layer] == LayerType::Sliding { self.window } else { 0 },
            causal: true,
            value_norm: false,
        }
    }

    fn parts(&self) -> AttentionParts {
        AttentionParts {
            norms: self.family == Family::Qwen3,
            biases: self.family == Family::Qwen2,
            fused: self.family == Family::Phi3,
            leading: self.rotary.leading.is_some(),
        }
    }

    fn norm(&self) -> Norm {
        Norm { eps: self.dimensions.eps, offset: 0.0 }
    }

    /// Translates the generating model.
    pub fn translate(&self, store: TensorStore, name: String) -> Result<Translation> {
        let Dimensions { hidden, context, vocabulary, .. } = self.dimensions;
        let mut translation = Translation::new(store, name, hidden, context)?;
        let embedding = translation.embedding(vocabulary, Vec::new())?;
        // Most families do not scale. Multiplying by one is exact, and keeps the component the same
        // for all families.
        block::embed(&mut translation, embedding, self.factors.embedding)?;
        let mut layers = Vec::with_capacity(self.types.len());
        for index in 0..self.types.len() {
            let shape = self.shape(index);
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
        let logits = match self.factors.logits {
            1.0 => Logits::Plain,
            divisor => Logits::Multiplied(divisor.recip()),
        };
        block::head(&mut translation, self.norm(), vocabulary, self.tied, logits)?;
        Ok(translation)
    }

    fn take_layer(
        &self,
        translation: &mut Translation,
        index: u32,
        shape: &AttentionShape,
    ) -> Result<LayerWeights> {
        let Dimensions { hidden, intermediate, .. } = self.dimensions;
        let name = |what: &str| format!("layers.{index}.{what}.weight");
        Ok(LayerWeights {
            input_norm: translation.weight(&name("input_layernorm"), "norm", &[hidden])?,
            attention: AttentionWeights::take(translation, index, shape, KeysOf::States, self.parts())?,
            // Its name refers to the block before it, but it normalises the feed-forward block's
            // input.
            feed_forward_norm: translation.weight(&name("post_attention_layernorm"), "norm", &[hidden])?,
            feed_forward: match self.fused {
                Some(names) => FeedForwardWeights::take_fused(translation, index, intermediate, names)?,
                None => FeedForwardWeights::take(translation, index, intermediate)?,
            },
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
        let x = self.summand(builder, "attention-scale", x);
        let stream = builder.op("attention-residual", Op::Add, &[stream, x]);
        let x = norm.apply(builder, "feed-forward-norm", stream, Some(weights.feed_forward_norm), hidden);
        let x = block::feed_forward(builder, x, &weights.feed_forward, Op::Silu);
        let x = self.summand(builder, "feed-forward-scale", x);
        builder.op("feed-forward-residual", Op::Add, &[stream, x])
    }

    /// Scales a block's contribution to the stream.
    fn summand(&self, builder: &mut ComponentBuilder<'_>, name: &str, x: ValueId) -> ValueId {
        match self.factors.residual {
            1.0 => x,
            value => builder.op(name, Op::MulScalar { value }, &[x]),
        }
    }
}

/// Reads the sizes. Families have different defaults for the keys and the size of a head.
fn read_dimensions(fields: Fields<'_>, family: Family) -> Result<Dimensions> {
    let mut defaults = defaults(family);
    let heads = fields.whole("num_attention_heads", &limits::HEADS)?;
    let heads = heads.map_or(defaults.heads, |heads| heads as u32);
    // If the field is `null`, there are as many as query heads. If it is absent, the library's
    // default applies, which for some families is also the number of query heads.
    let alike = matches!(family, Family::Llama | Family::Granite | Family::Phi3);
    if alike || fields.mentions("num_key_value_heads") {
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
    Dimensions::read(fields, defaults)
}

struct LayerWeights {
    input_norm: WeightId,
    attention: AttentionWeights,
    feed_forward_norm: WeightId,
    feed_forward: FeedForwardWeights,
}
