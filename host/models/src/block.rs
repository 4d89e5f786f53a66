//! Building blocks that the decoders of several families share.

use shardwright_graph::{
    AssetId, Attention, ComponentBuilder, ComponentKind, Dim, KeySource, Op, Role, Rope, StateId, ValueId,
    WeightId,
};
use shardwright_vocabulary::{AttentionFormat, DType, Error, Result};

use crate::translation::Translation;

/// How a family normalises: `rms(x) ⊙ (weight + offset)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Norm {
    pub eps: f32,
    /// 1 where the file stores the weight minus one (Gemma 3), else 0.
    pub offset: f32,
}

impl Norm {
    pub fn apply(
        &self,
        builder: &mut ComponentBuilder<'_>,
        name: &str,
        x: ValueId,
        weight: Option<WeightId>,
        width: u64,
    ) -> ValueId {
        // Widths come from checked dimensions, all far below 2³².
        builder.rms_norm(name, x, weight, width as u32, self.eps, self.offset)
    }
}

/// Shape of one layer's attention.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AttentionShape {
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    /// Rotary positions of queries and keys, if they have any.
    pub rope: Option<Rope>,
    pub scale: f32,
    /// Visible distance, or 0 for an unlimited one.
    pub window: u32,
    pub causal: bool,
    /// Whether values are normalised. That norm has no weight.
    pub value_norm: bool,
}

impl AttentionShape {
    fn head_dim(&self) -> u64 {
        u64::from(self.head_dim)
    }

    fn query_width(&self) -> u64 {
        u64::from(self.heads) * self.head_dim()
    }

    fn key_width(&self) -> u64 {
        u64::from(self.kv_heads) * self.head_dim()
    }
}

/// Source of the keys and values that a layer attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeysOf {
    /// The layer's own, kept in states.
    States,
    /// The layer's own, of this pass only.
    Rows,
    /// The keys and values of an earlier layer.
    Donor(u32),
}

/// Optional parts of a family's attention, in addition to its four matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttentionParts {
    /// Whether queries and keys are normalised.
    pub norms: bool,
    /// Whether queries, keys and values have biases.
    pub biases: bool,
    /// Whether queries, keys and values are one matrix in the file.
    pub fused: bool,
    /// Whether the rotated values of a head come first in the file, in two halves that form pairs.
    /// The graph's rotation pairs the halves of the whole head. So the rows of queries and keys are
    /// reordered, in each head alike. Products of queries and keys do not depend on the order.
    pub leading: bool,
}

impl AttentionParts {
    /// Norms, but no biases and no fused matrix.
    pub const NORMED: AttentionParts =
        AttentionParts { norms: true, biases: false, fused: false, leading: false };
}

#[derive(Clone, Copy)]
struct Projection {
    matrix: WeightId,
    bias: Option<WeightId>,
    /// The norm that is applied to each head of the result.
    norm: Option<WeightId>,
}

/// Weights of one layer's attention.
pub(crate) struct AttentionWeights {
    q: Projection,
    o: WeightId,
    keys: KeyWeights,
}

enum KeyWeights {
    Own { k: Projection, v: Projection, states: Option<(StateId, StateId)> },
    Donor(u32),
}

impl AttentionWeights {
    /// Reads the tensors below `layers.N.self_attn.` and declares the states, if any. A layer that
    /// reads a donor's keys uses no key or value tensors, even if the file has them.
    pub fn take(
        translation: &mut Translation,
        layer: u32,
        shape: &AttentionShape,
        keys: KeysOf,
        parts: AttentionParts,
    ) -> Result<Self> {
        let hidden = translation.graph().hidden;
        let name = |what: &str| format!("layers.{layer}.self_attn.{what}.weight");
        let (queries, key_width, head_dim) = (shape.query_width(), shape.key_width(), shape.head_dim());
        let fused = parts.fused.then(|| {
            let rows = [("q", queries), ("k", key_width), ("v", key_width)];
            translation.fused(&name("qkv_proj"), rows, hidden)
        });
        let fused = fused.transpose()?;
        let mut project = |index: usize, width: u64, normed: bool| {
            let part = ["q", "k", "v"][index];
            let matrix = match fused {
                Some(matrices) => matrices[index],
                None => translation.weight(&name(&format!("{part}_proj")), part, &[width, hidden])?,
            };
            if let (true, true, Some(rope)) = (normed, parts.leading, &shape.rope) {
                lead(translation, matrix, rope)?;
            }
            let bias = format!("layers.{layer}.self_attn.{part}_proj.bias");
            let bias = parts.biases.then(|| translation.weight(&bias, "bias", &[width])).transpose()?;
            let norm = (normed && parts.norms)
                .then(|| translation.weight(&name(&format!("{part}_norm")), "norm", &[head_dim]))
                .transpose()?;
            Ok::<_, Error>(Projection { matrix, bias, norm })
        };
        let q = project(0, queries, true)?;
        let keys = match keys {
            KeysOf::Donor(donor) => KeyWeights::Donor(donor),
            KeysOf::States | KeysOf::Rows => KeyWeights::Own {
                k: project(1, key_width, true)?,
                v: project(2, key_width, false)?,
                states: (keys == KeysOf::States).then(|| {
                    let k = translation.state(layer, "k", key_width, shape.window);
                    (k, translation.state(layer, "v", key_width, shape.window))
                }),
            },
        };
        let o = translation.weight(&name("o_proj"), "o", &[hidden, queries])?;
        Ok(AttentionWeights { q, o, keys })
    }
}

/// Reorders the rows of each head: from rotated halves in front to halves of the whole head, each
/// of which begins with its rotated rows.
fn lead(translation: &mut Translation, matrix: WeightId, rope: &Rope) -> Result<()> {
    let (size, turning) = (rope.head_dim as usize, rope.rotated_pairs as usize);
    let half = size / 2;
    translation.reorder(matrix, size, move |row| match (row < half, row % half) {
        (true, within) if within < turning => within,
        (false, within) if within < turning => turning + within,
        (true, within) => turning + within,
        (false, within) => half + within,
    })
}

/// Keys and values that a layer attended to.
#[derive(Clone, Copy)]
pub(crate) struct KeyValues {
    k: ValueId,
    v: ValueId,
    source: KeySource,
}

/// Builds `Wo · attention(x)` for a normalised input.
///
/// `attended` lists the keys and values of each earlier layer. The function appends the keys and
/// values of this layer.
pub(crate) fn attention(
    builder: &mut ComponentBuilder<'_>,
    x: ValueId,
    shape: &AttentionShape,
    weights: &AttentionWeights,
    norm: Norm,
    attended: &mut Vec<KeyValues>,
) -> ValueId {
    let head_dim = shape.head_dim();
    let positions = builder.positions();
    let project = |builder: &mut ComponentBuilder<'_>, part: &str, projection: Projection| {
        let Projection { matrix, bias, norm: weight } = projection;
        let rows = builder.linear_with_bias(&format!("{part}-projection"), x, matrix, bias);
        match weight {
            Some(_) => norm.apply(builder, &format!("{part}-norm"), rows, weight, head_dim),
            None => rows,
        }
    };
    let q = project(builder, "q", weights.q);
    let turned = |builder: &mut ComponentBuilder<'_>, name: &str, rows: ValueId| match &shape.rope {
        Some(rope) => builder.op(name, Op::Rope(rope.clone()), &[rows, positions]),
        None => rows,
    };
    let q = turned(builder, "q-rope", q);
    let keys = match weights.keys {
        KeyWeights::Donor(donor) => attended[donor as usize],
        KeyWeights::Own { k, v, states } => {
            let k = project(builder, "k", k);
            let k = turned(builder, "k-rope", k);
            let mut v = project(builder, "v", v);
            if shape.value_norm {
                v = norm.apply(builder, "v-norm", v, None, head_dim);
            }
            match states {
                Some((k_state, v_state)) => KeyValues {
                    k: builder.state_update("k-update", k_state, k),
                    v: builder.state_update("v-update", v_state, v),
                    source: KeySource::State,
                },
                None => KeyValues { k, v, source: KeySource::Rows },
            }
        }
    };
    attended.push(keys);
    let attention = Op::Attention(Attention {
        heads: shape.heads,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
        scale: shape.scale,
        softcap: 0.0,
        window: shape.window,
        causal: shape.causal,
        keys: keys.source,
        products: AttentionFormat::F32,
    });
    let mixed = builder.op("attention", attention, &[q, keys.k, keys.v, positions]);
    builder.linear("o-projection", mixed, weights.o)
}

/// Weights of a gated feed-forward block.
pub(crate) struct FeedForwardWeights {
    gate: WeightId,
    up: WeightId,
    down: WeightId,
}

impl FeedForwardWeights {
    /// Reads the tensors of a block from below `layers.N.`. Its gate and its other inner matrix are
    /// one tensor, with the gate on top.
    pub fn take_fused(
        translation: &mut Translation,
        layer: u32,
        width: u64,
        [inner, outer]: [&str; 2],
    ) -> Result<Self> {
        let hidden = translation.graph().hidden;
        let name = |what: &str| format!("layers.{layer}.{what}.weight");
        let [gate, up] = translation.fused(&name(inner), [("gate", width), ("up", width)], hidden)?;
        Ok(FeedForwardWeights { gate, up, down: translation.weight(&name(outer), "down", &[hidden, width])? })
    }

    /// Reads the tensors below `layers.N.mlp.`.
    pub fn take(translation: &mut Translation, layer: u32, width: u64) -> Result<Self> {
        let hidden = translation.graph().hidden;
        let name = |what: &str| format!("layers.{layer}.mlp.{what}.weight");
        Ok(FeedForwardWeights {
            gate: translation.weight(&name("gate_proj"), "gate", &[width, hidden])?,
            up: translation.weight(&name("up_proj"), "up", &[width, hidden])?,
            down: translation.weight(&name("down_proj"), "down", &[hidden, width])?,
        })
    }
}

/// Builds `Wdown (activation(Wgate x) ⊙ Wup x)`.
pub(crate) fn feed_forward(
    builder: &mut ComponentBuilder<'_>,
    x: ValueId,
    weights: &FeedForwardWeights,
    activation: Op,
) -> ValueId {
    let gate = builder.linear("gate-projection", x, weights.gate);
    let gate = builder.op("gate-activation", activation, &[gate]);
    let up = builder.linear("up-projection", x, weights.up);
    let product = builder.op("gated", Op::Mul, &[gate, up]);
    builder.linear("down-projection", product, weights.down)
}

/// Declares the residual stream `[R, H]` as an input.
pub(crate) fn hidden_input(builder: &mut ComponentBuilder<'_>, hidden: u64) -> ValueId {
    builder.input(Role::Hidden, vec![Dim::Rows, Dim::Fixed(hidden)], DType::F32)
}

/// Adds the component that multiplies gathered rows by `scale`.
pub(crate) fn embed(translation: &mut Translation, asset: AssetId, scale: f32) -> Result<()> {
    let hidden = translation.graph().hidden;
    let mut builder = ComponentBuilder::new(translation.graph(), ComponentKind::Embed);
    let shape = vec![Dim::Rows, Dim::Fixed(hidden)];
    let rows = builder.input(Role::Gathered { asset }, shape, DType::F32);
    let stream = builder.op("embedding-scale", Op::MulScalar { value: scale }, &[rows]);
    builder.output(stream, Role::Hidden);
    let component = builder.finish()?;
    translation.component(component);
    Ok(())
}

/// Operation of a head on its logits.
#[derive(Clone, Copy)]
pub(crate) enum Logits {
    Plain,
    Capped(f32),
    Multiplied(f32),
}

/// Adds the head: final normalisation, output matrix, and an operation on the logits.
pub(crate) fn head(
    translation: &mut Translation,
    norm: Norm,
    vocabulary: u64,
    tied: bool,
    then: Logits,
) -> Result<()> {
    let hidden = translation.graph().hidden;
    let norm_weight = translation.weight("norm.weight", "norm", &[hidden])?;
    let matrix = translation.head(vocabulary, tied)?;
    let mut builder = ComponentBuilder::new(translation.graph(), ComponentKind::Head);
    let stream = hidden_input(&mut builder, hidden);
    let normed = norm.apply(&mut builder, "final-norm", stream, Some(norm_weight), hidden);
    builder.tap("final-norm", normed);
    let logits = builder.linear("logits", normed, matrix);
    let logits = match then {
        Logits::Plain => logits,
        Logits::Capped(cap) => builder.op("logits-softcap", Op::Softcap { cap }, &[logits]),
        Logits::Multiplied(value) => builder.op("logits-scale", Op::MulScalar { value }, &[logits]),
    };
    builder.output(logits, Role::Logits);
    let component = builder.finish()?;
    translation.component(component);
    Ok(())
}

/// The four norms around the two blocks of a Gemma layer.
pub(crate) struct SandwichNorms {
    input: WeightId,
    post_attention: WeightId,
    pre_feed_forward: WeightId,
    post_feed_forward: WeightId,
}

impl SandwichNorms {
    /// Reads the four norm tensors of a layer.
    pub fn take(translation: &mut Translation, layer: u32) -> Result<Self> {
        let shape = [translation.graph().hidden];
        let mut take =
            |what: &str| translation.weight(&format!("layers.{layer}.{what}.weight"), "norm", &shape);
        Ok(SandwichNorms {
            input: take("input_layernorm")?,
            post_attention: take("post_attention_layernorm")?,
            pre_feed_forward: take("pre_feedforward_layernorm")?,
            post_feed_forward: take("post_feedforward_layernorm")?,
        })
    }
}

/// Weights of a Gemma layer's attention and feed-forward blocks.
pub(crate) struct SandwichWeights {
    pub norms: SandwichNorms,
    pub attention: AttentionWeights,
    pub feed_forward: FeedForwardWeights,
}

/// Builds the two blocks of a Gemma layer. Each is normalised before and after, and added to the
/// stream.
pub(crate) fn sandwich(
    builder: &mut ComponentBuilder<'_>,
    stream: ValueId,
    hidden: u64,
    shape: &AttentionShape,
    weights: &SandwichWeights,
    norm: Norm,
    attended: &mut Vec<KeyValues>,
) -> ValueId {
    let norms = &weights.norms;
    let x = norm.apply(builder, "input-norm", stream, Some(norms.input), hidden);
    let x = attention(builder, x, shape, &weights.attention, norm, attended);
    let x = norm.apply(builder, "post-attention-norm", x, Some(norms.post_attention), hidden);
    let stream = builder.op("attention-residual", Op::Add, &[stream, x]);
    let x = norm.apply(builder, "pre-feed-forward-norm", stream, Some(norms.pre_feed_forward), hidden);
    let x = feed_forward(builder, x, &weights.feed_forward, Op::Gelu);
    let x = norm.apply(builder, "post-feed-forward-norm", x, Some(norms.post_feed_forward), hidden);
    builder.op("feed-forward-residual", Op::Add, &[stream, x])
}
