//! Gemma 4 text: two head sizes, per-layer inputs, and layers that use the keys and values of
//! earlier layers.

mod encoder;

use shardwright_graph::{AssetId, ComponentBuilder, ComponentKind, Dim, Op, Role, ValueId, WeightId};
use shardwright_vocabulary::{DType, Result};

use crate::block::{
    self, AttentionParts, AttentionShape, KeysOf, Logits, Norm, SandwichNorms, SandwichWeights,
};
use crate::dimensions::{self, Dimensions};
use crate::json::Fields;
use crate::rotary::{self, PerType, Rotary};
use crate::store::TensorStore;
use crate::translation::Translation;
use crate::{LayerType, limits, pattern};

/// Checked settings of a Gemma 4 text stack.
#[derive(Clone, Debug)]
pub(crate) struct Gemma4 {
    pub dimensions: Dimensions,
    pub layers: Vec<Layer>,
    /// Visible distance of sliding layers, including the query itself.
    pub window: u32,
    per_layer: Option<PerLayer>,
    rotary: PerType,
    /// Length of the vector that an encoder makes of its rows. `None` for a generating model.
    pub projection: Option<u64>,
    pub tied: bool,
    softcap: Option<f32>,
    /// Row of the table that placeholder tokens read.
    pub pad: u32,
}

/// The properties of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layer {
    pub kind: LayerType,
    pub head_dim: u32,
    pub kv_heads: u32,
    pub intermediate: u64,
    /// The layer whose keys and values this layer reads, if it has none of its own.
    pub donor: Option<u32>,
}

/// Sizes of the per-layer inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PerLayer {
    /// Rows of a second table. Each layer gets a part of the token's row. `None` if the inputs come
    /// from the embedding alone.
    entries: Option<u64>,
    width: u64,
}

/// The defining library's defaults for missing fields.
const DEFAULTS: Dimensions = Dimensions {
    vocabulary: 262_144,
    hidden: 2304,
    intermediate: 9216,
    layers: 30,
    heads: 8,
    kv_heads: 4,
    head_dim: 256,
    context: 131_072,
    eps: 1e-6,
};

impl Gemma4 {
    /// Reads and checks the text settings.
    pub fn read(fields: Fields<'_>) -> Result<Self> {
        let off = ["attention_bias", "attention_k_eq_v", "enable_moe_block", "use_bidirectional_attention"];
        for name in off {
            fields.must_be_off(name)?;
        }
        if fields.text("hidden_activation")?.is_some_and(|name| name != "gelu_pytorch_tanh") {
            return Err(fields.unsupported("hidden_activation", "`gelu_pytorch_tanh`"));
        }
        let dimensions = Dimensions::read(fields, DEFAULTS)?;
        let types = pattern::read_ending_full(fields, dimensions.layers)?;
        let pad = fields.whole("pad_token_id", &(0..=dimensions.vocabulary - 1))?.unwrap_or(0) as u32;
        Ok(Gemma4 {
            layers: read_layers(fields, &dimensions, &types, None)?,
            window: fields.whole("sliding_window", &limits::WINDOW)?.unwrap_or(512) as u32,
            per_layer: read_per_layer(fields, &dimensions)?,
            rotary: read_rotary(fields)?,
            projection: None,
            tied: fields.flag("tie_word_embeddings")?.unwrap_or(true),
            softcap: fields.positive("final_logit_softcapping")?,
            pad,
            dimensions,
        })
    }

    /// Returns the values per layer of the per-layer inputs, or 0 if there are none.
    pub fn per_layer_width(&self) -> u64 {
        self.per_layer.map_or(0, |per_layer| per_layer.width)
    }

    fn shape(&self, layer: &Layer) -> AttentionShape {
        AttentionShape {
            heads: self.dimensions.heads,
            kv_heads: layer.kv_heads,
            head_dim: layer.head_dim,
            rope: Some(self.rotary.of(layer.kind).rope(layer.head_dim)),
            // Queries and keys are normalised with trained weights, so there is no further scale.
            scale: 1.0,
            window: if layer.kind == LayerType::Sliding { self.window } else { 0 },
            causal: self.projection.is_none(),
            value_norm: true,
        }
    }

    pub fn norm(&self) -> Norm {
        Norm { eps: self.dimensions.eps, offset: 0.0 }
    }

    /// Translates embedding and layers. `placeholders` are token ids of pictures or sound. They are
    /// never embedded as themselves: tables return the padding row for them.
    pub fn stack(&self, translation: &mut Translation, placeholders: &[u32]) -> Result<()> {
        let Dimensions { hidden, vocabulary, .. } = self.dimensions;
        let redirect: Vec<(u32, u32)> = placeholders.iter().map(|&id| (id, self.pad)).collect();
        let embedding = translation.embedding(vocabulary, redirect.clone())?;
        block::embed(translation, embedding, (hidden as f64).sqrt() as f32)?;
        if let Some(per_layer) = self.per_layer {
            self.per_layer_input(translation, per_layer, redirect)?;
        }
        self.decoder(translation)
    }

    /// Translates the generating model.
    pub fn translate(&self, store: TensorStore, name: String, placeholders: &[u32]) -> Result<Translation> {
        let Dimensions { hidden, context, vocabulary, .. } = self.dimensions;
        let mut translation = Translation::new(store, name, hidden, context)?;
        self.stack(&mut translation, placeholders)?;
        let logits = self.softcap.map_or(Logits::Plain, Logits::Capped);
        block::head(&mut translation, self.norm(), vocabulary, self.tied, logits)?;
        Ok(translation)
    }

    /// Returns the name of a tensor of the per-layer inputs. An encoder stores these tensors in
    /// separate modules: `module` is then part of the name, after the prefix of the layer.
    fn per_layer_name(&self, layer: &str, module: &str, tensor: &str) -> String {
        let module = if self.projection.is_some() { module } else { "" };
        format!("{layer}{module}{tensor}.weight")
    }

    /// Adds the component of the per-layer inputs: `p = (norm(W e / √H) + t √P) / √2` for all
    /// layers at once. The layout is `[layer, row, P]`, so that a shard's layers are one contiguous
    /// slice. Without a table, the result is `norm(W e / √H)`.
    fn per_layer_input(
        &self,
        translation: &mut Translation,
        PerLayer { entries, width }: PerLayer,
        redirect: Vec<(u32, u32)>,
    ) -> Result<()> {
        let Dimensions { hidden, layers, .. } = self.dimensions;
        let all = u64::from(layers) * width;
        let asset = entries.map(|entries| {
            let table = "embed_tokens_per_layer.weight";
            translation.asset("per-layer-embedding", table, [entries, all], redirect)
        });
        let asset = asset.transpose()?;
        translation.set_per_layer_width(width);
        let name = |tensor| self.per_layer_name("", "ple.", tensor);
        let projection = translation.weight(
            &name("per_layer_model_projection"),
            "per-layer-model-projection",
            &[all, hidden],
        )?;
        let norm = translation.weight(&name("per_layer_projection_norm"), "norm", &[width])?;
        let mut builder = ComponentBuilder::new(translation.graph(), ComponentKind::PerLayerInput);
        let stream = block::hidden_input(&mut builder, hidden);
        let rows = asset.map(|asset| gathered(&mut builder, asset, all));
        let context = builder.linear("model-projection", stream, projection);
        let scale = (hidden as f64).sqrt().recip() as f32;
        let context = builder.op("projection-scale", Op::MulScalar { value: scale }, &[context]);
        let mut combined = self.norm().apply(&mut builder, "projection-norm", context, Some(norm), width);
        if let Some(rows) = rows {
            let value = (width as f64).sqrt() as f32;
            let table = builder.op("table-scale", Op::MulScalar { value }, &[rows]);
            let sum = builder.op("sum", Op::Add, &[combined, table]);
            let value = std::f32::consts::FRAC_1_SQRT_2;
            combined = builder.op("combined", Op::MulScalar { value }, &[sum]);
        }
        let (layers, width) = (Dim::Fixed(u64::from(layers)), Dim::Fixed(width));
        let rows_first = builder.reshape("by-layer", combined, vec![Dim::Rows, layers, width]);
        let layers_first = builder.op_shaped(
            "layer-first",
            Op::Transpose { perm: vec![1, 0, 2] },
            &[rows_first],
            vec![layers, Dim::Rows, width],
        );
        builder.output(layers_first, Role::PerLayer { first: 0, layers: self.dimensions.layers });
        let component = builder.finish()?;
        translation.component(component);
        Ok(())
    }

    fn decoder(&self, translation: &mut Translation) -> Result<()> {
        let hidden = self.dimensions.hidden;
        let mut weights = Vec::with_capacity(self.layers.len());
        for (index, layer) in self.layers.iter().enumerate() {
            weights.push(self.take_layer(translation, index as u32, layer)?);
        }
        let mut builder = ComponentBuilder::new(translation.graph(), ComponentKind::Decoder);
        let mut stream = block::hidden_input(&mut builder, hidden);
        let mut attended = Vec::new();
        for (layer, weights) in self.layers.iter().zip(&weights) {
            builder.begin_layer(stream);
            let shape = self.shape(layer);
            stream = block::sandwich(
                &mut builder,
                stream,
                hidden,
                &shape,
                &weights.blocks,
                self.norm(),
                &mut attended,
            );
            if let Some(injection) = &weights.injection {
                stream = self.inject(&mut builder, stream, injection);
            }
            let scalar = builder.constant(weights.scalar);
            stream = builder.op("layer-scale", Op::Mul, &[stream, scalar]);
        }
        builder.end_layers(stream);
        let component = builder.finish()?;
        translation.component(component);
        Ok(())
    }

    fn take_layer(&self, translation: &mut Translation, index: u32, layer: &Layer) -> Result<LayerWeights> {
        let hidden = self.dimensions.hidden;
        let own = if self.projection.is_some() { KeysOf::Rows } else { KeysOf::States };
        let keys = layer.donor.map_or(own, KeysOf::Donor);
        let blocks = SandwichWeights {
            norms: SandwichNorms::take(translation, index)?,
            attention: block::AttentionWeights::take(
                translation,
                index,
                &self.shape(layer),
                keys,
                AttentionParts::NORMED,
            )?,
            feed_forward: block::FeedForwardWeights::take(translation, index, layer.intermediate)?,
        };
        let stem = format!("layers.{index}.");
        let name = |what| self.per_layer_name(&stem, "ple_block.", what);
        let injection = match self.per_layer {
            Some(PerLayer { width, .. }) => Some(InjectionWeights {
                gate: translation.weight(
                    &name("per_layer_input_gate"),
                    "per-layer-gate",
                    &[width, hidden],
                )?,
                projection: translation.weight(
                    &name("per_layer_projection"),
                    "per-layer-projection",
                    &[hidden, width],
                )?,
                norm: translation.weight(&name("post_per_layer_input_norm"), "norm", &[hidden])?,
            }),
            None => None,
        };
        let scalar = translation.weight(&format!("{stem}layer_scalar"), "layer-scalar", &[1])?;
        Ok(LayerWeights { blocks, injection, scalar })
    }

    /// Builds `h + norm(Wp (gelu(Wg h) ⊙ p))`. The gate reads the stream itself, which is not
    /// normalised.
    fn inject(
        &self,
        builder: &mut ComponentBuilder<'_>,
        stream: ValueId,
        weights: &InjectionWeights,
    ) -> ValueId {
        let own = builder.per_layer_input();
        let gate = builder.linear("per-layer-gate", stream, weights.gate);
        let gate = builder.op("per-layer-activation", Op::Gelu, &[gate]);
        let gated = builder.op("per-layer-gated", Op::Mul, &[gate, own]);
        let x = builder.linear("per-layer-projection", gated, weights.projection);
        let hidden = self.dimensions.hidden;
        let x = self.norm().apply(builder, "post-per-layer-norm", x, Some(weights.norm), hidden);
        builder.op("per-layer-residual", Op::Add, &[stream, x])
    }
}

struct LayerWeights {
    blocks: SandwichWeights,
    injection: Option<InjectionWeights>,
    scalar: WeightId,
}

struct InjectionWeights {
    gate: WeightId,
    projection: WeightId,
    norm: WeightId,
}

fn gathered(builder: &mut ComponentBuilder<'_>, asset: AssetId, width: u64) -> ValueId {
    builder.input(Role::Gathered { asset }, vec![Dim::Rows, Dim::Fixed(width)], DType::F32)
}

/// Reads head sizes, donors and widths of every layer. `full` is the number of key/value heads of
/// full layers, if it differs from that of sliding layers.
fn read_layers(
    fields: Fields<'_>,
    dimensions: &Dimensions,
    types: &[LayerType],
    full: Option<u32>,
) -> Result<Vec<Layer>> {
    let count = u64::from(dimensions.layers);
    let sharing = "num_kv_shared_layers";
    let shared = fields.whole(sharing, &(0..=count - 1))?.unwrap_or(0) as usize;
    let first_shared = types.len() - shared;
    let double_wide = fields.flag("use_double_wide_mlp")?.unwrap_or(false);
    let global = fields.whole("global_head_dim", &limits::HEAD_DIM)?.map(|size| size as u32);
    // A field that is `null` switches the second size off. If it is absent, the library's default
    // of 512 applies.
    let global = if fields.mentions("global_head_dim") { global } else { Some(512) };
    if let Some(size) = global {
        dimensions::check_head_dim(fields, "global_head_dim", size)?;
    }
    let overrides = fields.object("per_layer_config")?;
    let mut layers = Vec::with_capacity(types.len());
    for (index, &kind) in types.iter().enumerate() {
        // A file with `per_layer_config` specifies all differences between layers there.
        let (mut head_dim, mut kv_heads) = match (kind, overrides) {
            (LayerType::Full, None) => {
                (global.unwrap_or(dimensions.head_dim), full.unwrap_or(dimensions.kv_heads))
            }
            _ => (dimensions.head_dim, dimensions.kv_heads),
        };
        let key = index.to_string();
        if let Some(own) = overrides.map(|all| all.object(&key)).transpose()?.flatten() {
            if let Some(size) = own.whole("head_dim", &limits::HEAD_DIM)? {
                head_dim = size as u32;
                dimensions::check_head_dim(own, "head_dim", head_dim)?;
            }
            if let Some(heads) = own.whole("num_key_value_heads", &limits::HEADS)? {
                kv_heads = heads as u32;
                dimensions::check_heads(own, "num_key_value_heads", dimensions.heads, kv_heads)?;
            }
            if let Some(other) = own.names().find(|name| !["head_dim", "num_key_value_heads"].contains(name))
            {
                return Err(own.unsupported(other, "`head_dim` and `num_key_value_heads`"));
            }
        }
        let donor =
            if index < first_shared { None } else { Some(donor_of(fields, types, first_shared, index)?) };
        let wide = double_wide && donor.is_some();
        let intermediate = dimensions.intermediate * if wide { 2 } else { 1 };
        let layer = Layer { kind, head_dim, kv_heads, intermediate, donor };
        if let Some(donor) = donor {
            let donor: &Layer = &layers[donor as usize];
            if (donor.head_dim, donor.kv_heads) != (head_dim, kv_heads) {
                let reason =
                    format!("gives layer {index} other key sizes than the layer it shares keys with");
                return Err(fields.invalid("per_layer_config", reason));
            }
        }
        layers.push(layer);
    }
    if let Some(overrides) = overrides {
        let known = |name: &str| name.parse::<usize>().is_ok_and(|layer| layer < types.len());
        if let Some(stray) = overrides.names().find(|name| !known(name)) {
            return Err(overrides.invalid(stray, format!("is not one of the {count} layers")));
        }
    }
    Ok(layers)
}

/// Returns the last layer of the same type that has its own keys.
fn donor_of(fields: Fields<'_>, types: &[LayerType], first_shared: usize, index: usize) -> Result<u32> {
    let found = types[..first_shared].iter().rposition(|kind| *kind == types[index]);
    found.map(|donor| donor as u32).ok_or_else(|| {
        let reason = format!("leaves layer {index} without an earlier layer of its type to share keys with");
        fields.invalid("num_kv_shared_layers", reason)
    })
}

fn read_per_layer(fields: Fields<'_>, dimensions: &Dimensions) -> Result<Option<PerLayer>> {
    let name = "hidden_size_per_layer_input";
    let width = match fields.whole(name, &limits::PER_LAYER_WIDTH)? {
        Some(width) => width,
        None if fields.mentions(name) => 0,
        None => 256,
    };
    let name = "vocab_size_per_layer_input";
    let entries = fields.whole(name, &limits::VOCABULARY)?.unwrap_or(262_144);
    if width == 0 {
        return Ok(None);
    }
    if entries < dimensions.vocabulary {
        return Err(fields.unsupported(name, "at least `vocab_size`, so that every token has a row"));
    }
    Ok(Some(PerLayer { entries: Some(entries), width }))
}

/// Reads one set of parameters per layer type, or else the fields at the top level of the settings.
fn read_rotary(fields: Fields<'_>) -> Result<PerType> {
    fields.must_be_off("rope_scaling")?;
    let partial = rotary::read_partial(fields)?;
    let full = fields.positive("rope_theta")?.unwrap_or(1e6);
    let defaults = PerType {
        full: Rotary { partial: partial.unwrap_or(0.25), ..Rotary::plain(full) },
        sliding: Rotary::plain(fields.positive("rope_local_base_freq")?.unwrap_or(1e4)),
    };
    Ok(PerType::read(fields, &defaults, partial.unwrap_or(1.0))?.unwrap_or(defaults))
}
