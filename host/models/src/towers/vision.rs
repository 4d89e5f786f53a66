//! The vision tower of Gemma 4: a stack over patches with full attention, rotated by column and
//! row, and means of square groups of patches.
//!
//! Patches are ordered by the soft rows they become: the patches of a group are consecutive, so
//! that a mean of consecutive rows pools them.

use shardwright_graph::{
    AssetId, Attention, AxialRope, ComponentKind, Dim, GridAxis, KeySource, Op, Role, WeightId,
};
use shardwright_vocabulary::{AttentionFormat, DType, Error, Pass, Result};

use super::clipped::ClippedLinear;
use super::{Prompt, component, prefix, soft_rows, stream};
use crate::block::Norm;
use crate::dimensions;
use crate::json::Fields;
use crate::limits;
use crate::store::TensorStore;
use crate::translation::Translation;

#[derive(Clone, Debug)]
pub(crate) struct Vision {
    hidden: u64,
    intermediate: u64,
    layers: u32,
    heads: u32,
    kv_heads: u32,
    rope: AxialRope,
    eps: f32,
    /// Values of a patch: its rows, columns and colours.
    patch: u64,
    /// Number of patches that become one row.
    pooled: u32,
    /// Number of columns, and of rows, that have their own position.
    positions: u64,
    /// Whether pooled rows are shifted and scaled by trained values.
    standardize: bool,
    clipped: bool,
}

struct Layer {
    norms: [WeightId; 4],
    q: ClippedLinear,
    k: ClippedLinear,
    v: ClippedLinear,
    o: ClippedLinear,
    q_norm: WeightId,
    k_norm: WeightId,
    gate: ClippedLinear,
    up: ClippedLinear,
    down: ClippedLinear,
}

impl Vision {
    /// Reads and checks `vision_config`. Defaults are the defining library's.
    pub fn read(fields: Fields<'_>) -> Result<Self> {
        match fields.text("model_type")? {
            None | Some("gemma4_vision") => {}
            Some(_) => return Err(fields.unsupported("model_type", "`gemma4_vision`")),
        }
        fields.must_be_off("attention_bias")?;
        if fields.text("hidden_activation")?.is_some_and(|name| name != "gelu_pytorch_tanh") {
            return Err(fields.unsupported("hidden_activation", "`gelu_pytorch_tanh`"));
        }
        // The table of positions limits a picture.
        fields.superseded("max_position_embeddings");
        let whole = |name, range, default: u64| Ok::<_, Error>(fields.whole(name, range)?.unwrap_or(default));
        let heads = whole("num_attention_heads", &limits::HEADS, 12)? as u32;
        let kv_heads = whole("num_key_value_heads", &limits::HEADS, 12)? as u32;
        dimensions::check_heads(fields, "num_key_value_heads", heads, kv_heads)?;
        let head_dim = whole("head_dim", &limits::HEAD_DIM, 64)? as u32;
        if !head_dim.is_multiple_of(4) {
            return Err(
                fields.invalid("head_dim", format!("is {head_dim}, which has no two halves of pairs"))
            );
        }
        let patch = whole("patch_size", &limits::PATCH, 16)?;
        let pool = whole("pooling_kernel_size", &limits::POOL, 3)?;
        Ok(Vision {
            hidden: whole("hidden_size", &limits::HIDDEN, 768)?,
            intermediate: whole("intermediate_size", &limits::INTERMEDIATE, 3072)?,
            layers: whole("num_hidden_layers", &limits::LAYERS, 16)? as u32,
            heads,
            kv_heads,
            rope: AxialRope { head_dim, theta: read_theta(fields)? },
            eps: fields.positive("rms_norm_eps")?.unwrap_or(1e-6),
            patch: 3 * patch * patch,
            pooled: (pool * pool) as u32,
            positions: whole("position_embedding_size", &limits::GRID, 10_240)?,
            standardize: fields.flag("standardize")?.unwrap_or(false),
            clipped: fields.flag("use_clipped_linears")?.unwrap_or(false),
        })
    }

    fn norm(&self) -> Norm {
        Norm { eps: self.eps, offset: 0.0 }
    }

    /// Translates the tower into a graph of three components.
    pub fn translate(&self, store: TensorStore, name: &str, prompt: Prompt) -> Result<Translation> {
        let rows = u64::from(self.pooled) * limits::SOFT_TOKENS;
        let mut translation = Translation::tower(store, Pass::Picture, name, self.hidden, rows);
        let prefix = prefix(&translation, "vision_tower", "patch_embedder.input_proj.weight");
        self.embed(&mut translation, &prefix)?;
        self.tower(&mut translation, &prefix)?;
        self.projector(&mut translation, &prefix, prompt)?;
        Ok(translation)
    }

    /// Builds `W (2 · patch − 1) + table[0][column] + table[1][row]`.
    fn embed(&self, translation: &mut Translation, prefix: &str) -> Result<()> {
        let name = format!("{prefix}patch_embedder.input_proj.weight");
        let projection = translation.whole_name(&name, "patch-projection", &[self.hidden, self.patch])?;
        let name = format!("{prefix}patch_embedder.position_embedding_table");
        let tables = translation.stacked_tables(
            &name,
            ["vision-position-column", "vision-position-row"],
            [self.positions, self.hidden],
        )?;
        component(translation, ComponentKind::VisionEmbed, |builder| {
            let (hidden, patch) = (Dim::Fixed(self.hidden), Dim::Fixed(self.patch));
            let patches = builder.input(Role::Features, vec![Dim::Rows, patch], DType::F32);
            let centred = builder.op("patch-centre", Op::AddScalar { value: -0.5 }, &[patches]);
            let scaled = builder.op("patch-scale", Op::MulScalar { value: 2.0 }, &[centred]);
            let mut x = builder.linear("patch-projection", scaled, projection);
            let axes: [(AssetId, GridAxis, &str); 2] = [
                (tables[0], GridAxis::Column, "column-position"),
                (tables[1], GridAxis::Row, "row-position"),
            ];
            for (asset, axis, name) in axes {
                let role = Role::GatheredByGrid { asset, axis };
                let position = builder.input(role, vec![Dim::Rows, hidden], DType::F32);
                x = builder.op(name, Op::Add, &[x, position]);
            }
            builder.output(x, Role::Hidden);
        })
    }

    fn tower(&self, translation: &mut Translation, prefix: &str) -> Result<()> {
        let layers =
            (0..self.layers).map(|index| self.take(translation, &format!("{prefix}encoder.layers.{index}.")));
        let layers = layers.collect::<Result<Vec<Layer>, _>>()?;
        component(translation, ComponentKind::VisionTower, |builder| {
            let norm = self.norm();
            let head = u64::from(self.rope.head_dim);
            let mut x = stream(builder, self.hidden);
            for layer in &layers {
                builder.begin_layer(x);
                let [input, post_attention, pre_feed_forward, post_feed_forward] = layer.norms;
                let positions = builder.positions();
                let grid = [GridAxis::Column, GridAxis::Row]
                    .map(|axis| builder.input(Role::Grid { axis }, vec![Dim::Rows], DType::I32));
                let turned = Op::AxialRope(self.rope);
                let a = norm.apply(builder, "input-norm", x, Some(input), self.hidden);
                let q = layer.q.apply(builder, "q-projection", a);
                let q = norm.apply(builder, "q-norm", q, Some(layer.q_norm), head);
                let q = builder.op("q-rope", turned.clone(), &[q, grid[0], grid[1]]);
                let k = layer.k.apply(builder, "k-projection", a);
                let k = norm.apply(builder, "k-norm", k, Some(layer.k_norm), head);
                let k = builder.op("k-rope", turned, &[k, grid[0], grid[1]]);
                let v = layer.v.apply(builder, "v-projection", a);
                let v = norm.apply(builder, "v-norm", v, None, head);
                let attention = Op::Attention(Attention {
                    heads: self.heads,
                    kv_heads: self.kv_heads,
                    head_dim: self.rope.head_dim,
                    scale: 1.0,
                    softcap: 0.0,
                    window: 0,
                    causal: false,
                    keys: KeySource::Rows,
                    products: AttentionFormat::F32,
                });
                let mixed = builder.op("attention", attention, &[q, k, v, positions]);
                let mixed = layer.o.apply(builder, "o-projection", mixed);
                let mixed =
                    norm.apply(builder, "post-attention-norm", mixed, Some(post_attention), self.hidden);
                x = builder.op("attention-residual", Op::Add, &[x, mixed]);
                let m = norm.apply(builder, "pre-feed-forward-norm", x, Some(pre_feed_forward), self.hidden);
                let gate = layer.gate.apply(builder, "gate-projection", m);
                let gate = builder.op("gate-activation", Op::Gelu, &[gate]);
                let up = layer.up.apply(builder, "up-projection", m);
                let gated = builder.op("gated", Op::Mul, &[gate, up]);
                let down = layer.down.apply(builder, "down-projection", gated);
                let down =
                    norm.apply(builder, "post-feed-forward-norm", down, Some(post_feed_forward), self.hidden);
                x = builder.op("feed-forward-residual", Op::Add, &[x, down]);
            }
            builder.end_layers(x);
        })
    }

    fn take(&self, translation: &mut Translation, prefix: &str) -> Result<Layer> {
        let head = u64::from(self.rope.head_dim);
        let (queries, keys) = (u64::from(self.heads) * head, u64::from(self.kv_heads) * head);
        let (hidden, inner) = (self.hidden, self.intermediate);
        let mut norm = |name: &str, width: u64| {
            translation.whole_name(&format!("{prefix}{name}.weight"), "norm", &[width])
        };
        let norms = [
            norm("input_layernorm", hidden)?,
            norm("post_attention_layernorm", hidden)?,
            norm("pre_feedforward_layernorm", hidden)?,
            norm("post_feedforward_layernorm", hidden)?,
        ];
        let (q_norm, k_norm) = (norm("self_attn.q_norm", head)?, norm("self_attn.k_norm", head)?);
        let mut linear = |name: &str, part, shape: [u64; 2]| {
            ClippedLinear::take(translation, &format!("{prefix}{name}"), part, &shape, self.clipped)
        };
        Ok(Layer {
            norms,
            q: linear("self_attn.q_proj", "q", [queries, hidden])?,
            k: linear("self_attn.k_proj", "k", [keys, hidden])?,
            v: linear("self_attn.v_proj", "v", [keys, hidden])?,
            o: linear("self_attn.o_proj", "o", [hidden, queries])?,
            q_norm,
            k_norm,
            gate: linear("mlp.gate_proj", "gate", [inner, hidden])?,
            up: linear("mlp.up_proj", "up", [inner, hidden])?,
            down: linear("mlp.down_proj", "down", [hidden, inner])?,
        })
    }

    fn projector(&self, translation: &mut Translation, prefix: &str, prompt: Prompt) -> Result<()> {
        let mut standard =
            |name: &str| translation.whole_name(&format!("{prefix}{name}"), "norm", &[self.hidden]);
        let standard = match self.standardize {
            true => Some((standard("std_bias")?, standard("std_scale")?)),
            false => None,
        };
        let embed = super::prefix(translation, "embed_vision", PROJECTION);
        let shape = [prompt.hidden, self.hidden];
        let projection = translation.whole_name(&format!("{embed}{PROJECTION}"), "projection", &shape)?;
        component(translation, ComponentKind::VisionProjector, |builder| {
            let x = stream(builder, self.hidden);
            let rows = vec![Dim::RowsOver(self.pooled), Dim::Fixed(self.hidden)];
            let x = builder.op_shaped("pooled-mean", Op::MeanRows { rows: self.pooled }, &[x], rows);
            let scale = Op::MulScalar { value: (self.hidden as f64).sqrt() as f32 };
            let mut x = builder.op("pooled", scale, &[x]);
            builder.tap("pooled", x);
            if let Some((bias, scale)) = standard {
                let (bias, scale) = (builder.constant(bias), builder.constant(scale));
                x = builder.op("standard-shift", Op::Sub, &[x, bias]);
                x = builder.op("standard-scale", Op::Mul, &[x, scale]);
            }
            soft_rows(builder, x, self.norm(), self.hidden, projection, prompt);
        })
    }
}

/// The tensor that projects a tower's row to a row of the prompt.
pub(super) const PROJECTION: &str = "embedding_projection.weight";

/// Reads the base of the rotary frequencies. Refuses types with a different computation.
fn read_theta(fields: Fields<'_>) -> Result<f32> {
    let parameters = fields.object("rope_parameters")?.unwrap_or(fields);
    if parameters.text("rope_type")?.is_some_and(|name| !["default", "axial"].contains(&name)) {
        return Err(parameters.unsupported("rope_type", "`default`, `axial`"));
    }
    Ok(parameters.positive("rope_theta")?.unwrap_or(100.0))
}
