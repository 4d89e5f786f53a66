//! Gemma 3 text: a stack of blocks that are normalised before and after. Most layers have a sliding
//! window.
//!
//! It is also the stack of EmbeddingGemma, which has bidirectional attention and ends in a pooling
//! head instead of logits.

use shardwright_graph::{ComponentBuilder, ComponentKind};
use shardwright_vocabulary::Result;

use crate::block::{
    self, AttentionParts, AttentionShape, KeysOf, Logits, Norm, SandwichNorms, SandwichWeights,
};
use crate::dimensions::Dimensions;
use crate::json::Fields;
use crate::rotary::{PerType, Rotary};
use crate::store::TensorStore;
use crate::translation::Translation;
use crate::{LayerType, limits, pattern};

/// Checked settings of a Gemma 3 text stack.
#[derive(Clone, Debug)]
pub(crate) struct Gemma3 {
    pub dimensions: Dimensions,
    pub types: Vec<LayerType>,
    /// Visible distance of sliding layers, including the query itself. In a bidirectional stack it
    /// applies to both sides.
    pub window: u32,
    rotary: PerType,
    scale: f32,
    /// Whether queries attend to later keys.
    pub bidirectional: bool,
    pub tied: bool,
    softcap: Option<f32>,
}

/// The defining library's defaults for missing fields.
const DEFAULTS: Dimensions = Dimensions {
    vocabulary: 262_208,
    hidden: 2304,
    intermediate: 9216,
    layers: 26,
    heads: 8,
    kv_heads: 4,
    head_dim: 256,
    context: 131_072,
    eps: 1e-6,
};

impl Gemma3 {
    /// Reads and checks the text settings.
    pub fn read(fields: Fields<'_>) -> Result<Self> {
        for name in ["attention_bias", "attn_logit_softcapping"] {
            fields.must_be_off(name)?;
        }
        if fields.text("hidden_activation")?.is_some_and(|name| name != "gelu_pytorch_tanh") {
            return Err(fields.unsupported("hidden_activation", "`gelu_pytorch_tanh`"));
        }
        let dimensions = Dimensions::read(fields, DEFAULTS)?;
        let types = pattern::read(fields, dimensions.layers)?;
        let bidirectional = fields.flag("use_bidirectional_attention")?.unwrap_or(false);
        let window = fields.whole("sliding_window", &limits::WINDOW)?.unwrap_or(4096) as u32;
        Ok(Gemma3 {
            dimensions,
            types,
            // The file specifies the width of the whole window. Half of it counts on either side,
            // plus the query itself.
            window: if bidirectional { window / 2 + 1 } else { window },
            rotary: read_rotary(fields)?,
            scale: f64::from(fields.positive("query_pre_attn_scalar")?.unwrap_or(256.0)).sqrt().recip()
                as f32,
            bidirectional,
            tied: fields.flag("tie_word_embeddings")?.unwrap_or(true),
            softcap: fields.positive("final_logit_softcapping")?,
        })
    }

    fn shape(&self, layer: usize, causal: bool) -> AttentionShape {
        let kind = self.types[layer];
        AttentionShape {
            heads: self.dimensions.heads,
            kv_heads: self.dimensions.kv_heads,
            head_dim: self.dimensions.head_dim,
            rope: Some(self.rotary.of(kind).rope(self.dimensions.head_dim)),
            scale: self.scale,
            window: if kind == LayerType::Sliding { self.window } else { 0 },
            causal,
            value_norm: false,
        }
    }

    pub fn norm(&self) -> Norm {
        Norm { eps: self.dimensions.eps, offset: 1.0 }
    }

    /// Translates embedding and layers. Keys are kept in states or, for an encoder, are the rows of
    /// the pass.
    pub fn stack(
        &self,
        translation: &mut Translation,
        keys: KeysOf,
        redirect: Vec<(u32, u32)>,
    ) -> Result<()> {
        let hidden = self.dimensions.hidden;
        let asset = translation.embedding(self.dimensions.vocabulary, redirect)?;
        let mut layers = Vec::with_capacity(self.types.len());
        for layer in 0..self.dimensions.layers {
            let shape = self.shape(layer as usize, !self.bidirectional);
            let weights = SandwichWeights {
                norms: SandwichNorms::take(translation, layer)?,
                attention: block::AttentionWeights::take(
                    translation,
                    layer,
                    &shape,
                    keys,
                    AttentionParts::NORMED,
                )?,
                feed_forward: block::FeedForwardWeights::take(
                    translation,
                    layer,
                    self.dimensions.intermediate,
                )?,
            };
            layers.push((shape, weights));
        }
        block::embed(translation, asset, (hidden as f64).sqrt() as f32)?;
        let mut builder = ComponentBuilder::new(translation.graph(), ComponentKind::Decoder);
        let mut stream = block::hidden_input(&mut builder, hidden);
        let mut attended = Vec::new();
        for (shape, weights) in &layers {
            builder.begin_layer(stream);
            stream =
                block::sandwich(&mut builder, stream, hidden, shape, weights, self.norm(), &mut attended);
        }
        builder.end_layers(stream);
        let component = builder.finish()?;
        translation.component(component);
        Ok(())
    }

    /// Translates the generating model.
    pub fn translate(
        &self,
        store: TensorStore,
        name: String,
        redirect: Vec<(u32, u32)>,
    ) -> Result<Translation> {
        let Dimensions { hidden, context, vocabulary, .. } = self.dimensions;
        let mut translation = Translation::new(store, name, hidden, context)?;
        self.stack(&mut translation, KeysOf::States, redirect)?;
        block::head(
            &mut translation,
            self.norm(),
            vocabulary,
            self.tied,
            self.softcap.map_or(Logits::Plain, Logits::Capped),
        )?;
        Ok(translation)
    }
}

/// Reads rotary settings. Older files specify two thetas and a scaling of the full layers. Newer
/// files have a set of parameters per layer type.
fn read_rotary(fields: Fields<'_>) -> Result<PerType> {
    let plain = PerType {
        full: Rotary::plain(fields.positive("rope_theta")?.unwrap_or(1e6)),
        sliding: Rotary::plain(fields.positive("rope_local_base_freq")?.unwrap_or(1e4)),
    };
    if let Some(parameters) = PerType::read(fields, &plain, 1.0)? {
        // With both spellings present, the intended one is unknown.
        fields.must_be_off("rope_scaling")?;
        return Ok(parameters);
    }
    match fields.object("rope_scaling")? {
        Some(scaling) => Ok(PerType { full: Rotary::read(scaling, plain.full.theta, 1.0)?, ..plain }),
        None => Ok(plain),
    }
}
