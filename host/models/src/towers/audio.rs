//! The audio tower of Gemma 4. Two convolutions turn four frames into one row. Each layer of the
//! following stack has attention to the preceding rows, convolution along rows and two
//! feed-forwards.

use shardwright_graph::{
    ComponentBuilder, ComponentKind, Dim, Op, RelativeAttention, Role, ValueId, WeightId,
};
use shardwright_vocabulary::{DType, Error, Pass, Result};

use super::clipped::ClippedLinear;
use super::vision::PROJECTION;
use super::{Prompt, component, prefix, soft_rows, stream};
use crate::block::Norm;
use crate::json::Fields;
use crate::limits;
use crate::store::TensorStore;
use crate::translation::Translation;

/// Values of a frame: mel bins. The configuration of a tower does not specify them.
const FRAME: u64 = 128;

/// Frames per row: each of two convolutions halves their number.
const FRAMES_TO_A_ROW: u32 = 4;

/// Number added under the root of the norms between the convolutions. The library does not
/// configure it.
const CONVOLUTION_EPS: f32 = 1e-6;

#[derive(Clone, Debug)]
pub(crate) struct Audio {
    hidden: u64,
    layers: u32,
    heads: u32,
    /// Channels after the first convolution and after the second.
    channels: [u64; 2],
    /// Rows that one row attends to: itself and the preceding rows.
    window: u64,
    softcap: f32,
    /// Rows that the convolution along rows spans.
    kernel: u64,
    /// Factor on the feed-forwards before they are added.
    residual: f32,
    eps: f32,
    /// Values per row of the tower's output.
    output: u64,
    clipped: bool,
}

struct FeedForward {
    before: WeightId,
    up: ClippedLinear,
    down: ClippedLinear,
    after: WeightId,
}

struct Layer {
    feed_forwards: [FeedForward; 2],
    attention_norms: [WeightId; 2],
    q: ClippedLinear,
    /// `softplus(per_dim_scale) / (√d · ln 2)`, repeated for each head.
    q_scale: WeightId,
    k: ClippedLinear,
    v: ClippedLinear,
    o: ClippedLinear,
    /// The matrix that computes scores by distance from queries. See [`Audio::distances`].
    distances: WeightId,
    convolution_norms: [WeightId; 2],
    start: ClippedLinear,
    kernel: WeightId,
    end: ClippedLinear,
    last: WeightId,
}

impl Audio {
    /// Reads and checks `audio_config`. Defaults are the defining library's.
    pub fn read(fields: Fields<'_>) -> Result<Self> {
        match fields.text("model_type")? {
            None | Some("gemma4_audio") => {}
            Some(_) => return Err(fields.unsupported("model_type", "`gemma4_audio`")),
        }
        if fields.text("hidden_act")?.is_some_and(|name| name != "silu") {
            return Err(fields.unsupported("hidden_act", "`silu`"));
        }
        let right = "attention_context_right";
        if fields.whole(right, &limits::WINDOW_OR_NONE)?.unwrap_or(0) != 0 {
            return Err(fields.unsupported(right, "0: rows see no later ones"));
        }
        // Published files clip activations at 1e10, which none reaches.
        if fields.positive("gradient_clipping")?.is_some_and(|most| most < 1e9) {
            return Err(fields.unsupported("gradient_clipping", "1e9 or more"));
        }
        // The logit of a row that is not visible. Its weight is 0.
        let name = "attention_invalid_logits_value";
        if fields.get(name).is_some_and(|value| value.as_f64().is_none_or(|logit| logit > -1e6)) {
            return Err(fields.unsupported(name, "-1e6 or less"));
        }
        // The library computes rows in blocks of this size. The results do not depend on it.
        fields.superseded("attention_chunk_size");
        let whole = |name, range, default: u64| Ok::<_, Error>(fields.whole(name, range)?.unwrap_or(default));
        let hidden = whole("hidden_size", &limits::HIDDEN, 1024)?;
        let heads = whole("num_attention_heads", &limits::HEADS, 8)?;
        if !hidden.is_multiple_of(heads) || !hidden.is_multiple_of(2) || hidden < 4 {
            let reason = format!("is {heads}, and a width of {hidden} has no such heads");
            return Err(fields.invalid("num_attention_heads", reason));
        }
        let left = "attention_context_left";
        let window = whole(left, &limits::AUDIO_CONTEXT, 13)? - 1;
        Ok(Audio {
            hidden,
            layers: whole("num_hidden_layers", &limits::LAYERS, 12)? as u32,
            heads: heads as u32,
            channels: read_channels(fields)?,
            window,
            softcap: fields.positive("attention_logit_cap")?.unwrap_or(50.0),
            kernel: whole("conv_kernel_size", &limits::KERNEL, 5)?,
            residual: fields.positive("residual_weight")?.unwrap_or(0.5),
            eps: fields.positive("rms_norm_eps")?.unwrap_or(1e-6),
            output: whole("output_proj_dims", &limits::HIDDEN, 1536)?,
            clipped: fields.flag("use_clipped_linears")?.unwrap_or(true),
        })
    }

    fn norm(&self) -> Norm {
        Norm { eps: self.eps, offset: 0.0 }
    }

    fn head_dim(&self) -> u64 {
        self.hidden / u64::from(self.heads)
    }

    /// Translates the tower into a graph of three components.
    pub fn translate(&self, store: TensorStore, name: &str, prompt: Prompt) -> Result<Translation> {
        let rows = limits::CLIP_ROWS;
        let mut translation = Translation::tower(store, Pass::Clip, name, self.hidden, rows);
        let prefix = prefix(&translation, "audio_tower", "output_proj.weight");
        self.embed(&mut translation, &prefix)?;
        self.tower(&mut translation, &prefix)?;
        self.projector(&mut translation, &prefix, prompt)?;
        Ok(translation)
    }

    /// Adds two convolutions with stride 2, each normalised over its channels and followed by a
    /// ReLU. Frames beyond the valid ones are set to zero before each, like padding.
    fn embed(&self, translation: &mut Translation, prefix: &str) -> Result<()> {
        let prefix = format!("{prefix}subsample_conv_projection.");
        let mut inputs = 1;
        let mut convolutions = Vec::new();
        for (index, &outputs) in self.channels.iter().enumerate() {
            let name = format!("{prefix}layer{index}.conv.weight");
            let weight = translation.flattened(&name, "convolution", &[outputs, inputs, 3, 3])?;
            let name = format!("{prefix}layer{index}.norm.weight");
            convolutions.push((weight, translation.whole_name(&name, "norm", &[outputs])?, outputs));
            inputs = outputs;
        }
        let bins = FRAME / 4;
        let name = format!("{prefix}input_proj_linear.weight");
        let shape = [self.hidden, bins * self.channels[1]];
        let projection = translation.whole_name(&name, "frame-projection", &shape)?;
        component(translation, ComponentKind::AudioEmbed, |builder| {
            let rows = |rate: u32| if rate == 1 { Dim::Rows } else { Dim::RowsTimes(rate) };
            let valid = |builder: &mut ComponentBuilder<'_>, rate: u32| {
                builder.input(Role::Valid { rate }, vec![rows(rate), Dim::Fixed(1)], DType::F32)
            };
            let mut rate = FRAMES_TO_A_ROW;
            let frames = builder.input(Role::Features, vec![rows(rate), Dim::Fixed(FRAME)], DType::F32);
            let mask = valid(builder, rate);
            let frames = builder.op("frames", Op::Mul, &[frames, mask]);
            let plane = vec![rows(rate), Dim::Fixed(FRAME), Dim::Fixed(1)];
            let mut x = builder.reshape("plane", frames, plane);
            let mut width = FRAME;
            for (index, (weight, norm, channels)) in convolutions.into_iter().enumerate() {
                if index > 0 {
                    let mask = valid(builder, rate);
                    let shape = vec![rows(rate), Dim::Fixed(1), Dim::Fixed(1)];
                    let mask = builder.reshape(&format!("valid-plane.{index}"), mask, shape);
                    x = builder.op(&format!("valid-rows.{index}"), Op::Mul, &[x, mask]);
                }
                (rate, width) = (rate / 2, width / 2);
                let convolution = Op::Convolution { kernel: 3, stride: 2, padding: 1 };
                let shape = vec![rows(rate), Dim::Fixed(width), Dim::Fixed(channels)];
                let weight = builder.constant(weight);
                x = builder.op_shaped(&format!("convolution.{index}"), convolution, &[x, weight], shape);
                let norm = builder.constant(norm);
                let normed = Op::LayerNorm { eps: CONVOLUTION_EPS };
                x = builder.op(&format!("convolution-norm.{index}"), normed, &[x, norm]);
                let positive = Op::MaxScalar { value: 0.0 };
                x = builder.op(&format!("convolution-activation.{index}"), positive, &[x]);
            }
            let flat = vec![Dim::Rows, Dim::Fixed(width * self.channels[1])];
            let flat = builder.reshape("flat", x, flat);
            let x = builder.linear("frame-projection", flat, projection);
            builder.output(x, Role::Hidden);
        })
    }

    fn tower(&self, translation: &mut Translation, prefix: &str) -> Result<()> {
        let layers =
            (0..self.layers).map(|index| self.take(translation, &format!("{prefix}layers.{index}.")));
        let layers = layers.collect::<Result<Vec<Layer>, _>>()?;
        component(translation, ComponentKind::AudioTower, |builder| {
            let mut x = stream(builder, self.hidden);
            for layer in &layers {
                builder.begin_layer(x);
                x = self.feed_forward(builder, "first", x, &layer.feed_forwards[0]);
                x = self.attention(builder, x, layer);
                x = self.convolution(builder, x, layer);
                x = self.feed_forward(builder, "second", x, &layer.feed_forwards[1]);
                x = self.norm().apply(builder, "layer-norm", x, Some(layer.last), self.hidden);
            }
            builder.end_layers(x);
        })
    }

    /// Builds `x + residual · norm(W₂ silu(W₁ norm(x)))`.
    fn feed_forward(
        &self,
        builder: &mut ComponentBuilder<'_>,
        which: &str,
        x: ValueId,
        weights: &FeedForward,
    ) -> ValueId {
        let name = |what: &str| format!("{which}-{what}");
        let (norm, hidden) = (self.norm(), self.hidden);
        let m = norm.apply(builder, &name("pre-feed-forward-norm"), x, Some(weights.before), hidden);
        let m = weights.up.apply(builder, &name("up-projection"), m);
        let m = builder.op(&name("up-activation"), Op::Silu, &[m]);
        let m = weights.down.apply(builder, &name("down-projection"), m);
        let m = norm.apply(builder, &name("post-feed-forward-norm"), m, Some(weights.after), hidden);
        let m = builder.op(&name("feed-forward-share"), Op::MulScalar { value: self.residual }, &[m]);
        builder.op(&name("feed-forward-residual"), Op::Add, &[x, m])
    }

    /// Builds `x + norm(Wo · attention(norm(x)))`, with scores for each distance.
    fn attention(&self, builder: &mut ComponentBuilder<'_>, x: ValueId, layer: &Layer) -> ValueId {
        let (norm, hidden) = (self.norm(), self.hidden);
        let a = norm.apply(builder, "pre-attention-norm", x, Some(layer.attention_norms[0]), hidden);
        let q = layer.q.apply(builder, "q-projection", a);
        let q_scale = builder.constant(layer.q_scale);
        let q = builder.op("q-scaled", Op::Mul, &[q, q_scale]);
        let k = layer.k.apply(builder, "k-projection", a);
        // ln(1 + e) / ln 2.
        let value = (std::f64::consts::E.ln_1p() / std::f64::consts::LN_2) as f32;
        let k = builder.op("k-scaled", Op::MulScalar { value }, &[k]);
        let v = layer.v.apply(builder, "v-projection", a);
        let by_distance = builder.linear("by-distance", q, layer.distances);
        let attention = Op::RelativeAttention(RelativeAttention {
            heads: self.heads,
            head_dim: self.head_dim() as u32,
            softcap: self.softcap,
        });
        let mixed = builder.op("attention", attention, &[q, k, v, by_distance]);
        let mixed = layer.o.apply(builder, "o-projection", mixed);
        let mixed = norm.apply(builder, "post-attention-norm", mixed, Some(layer.attention_norms[1]), hidden);
        builder.op("attention-residual", Op::Add, &[x, mixed])
    }

    /// Builds `x + W_end silu(norm(convolution(glu(W_start norm(x)))))`.
    fn convolution(&self, builder: &mut ComponentBuilder<'_>, x: ValueId, layer: &Layer) -> ValueId {
        let (norm, hidden) = (self.norm(), self.hidden);
        let c = norm.apply(builder, "pre-convolution-norm", x, Some(layer.convolution_norms[0]), hidden);
        let c = layer.start.apply(builder, "start-projection", c);
        let halves = vec![Dim::Rows, Dim::Fixed(hidden)];
        let c = builder.op_shaped("gated", Op::Glu, &[c], halves);
        let kernel = builder.constant(layer.kernel);
        let c = builder.op("convolution", Op::DepthwiseConvolution, &[c, kernel]);
        let c = norm.apply(builder, "convolution-norm", c, Some(layer.convolution_norms[1]), hidden);
        let c = builder.op("convolution-activation", Op::Silu, &[c]);
        let c = layer.end.apply(builder, "end-projection", c);
        builder.op("convolution-residual", Op::Add, &[x, c])
    }

    fn take(&self, translation: &mut Translation, prefix: &str) -> Result<Layer> {
        let hidden = self.hidden;
        let norm = |translation: &mut Translation, name: &str| {
            translation.whole_name(&format!("{prefix}{name}.weight"), "norm", &[hidden])
        };
        let linear = |translation: &mut Translation, name: &str, part, shape: [u64; 2]| {
            ClippedLinear::take(translation, &format!("{prefix}{name}"), part, &shape, self.clipped)
        };
        let feed_forward = |translation: &mut Translation, name: &str| {
            // Published towers are four times as wide inside. No field specifies it.
            let inner = 4 * hidden;
            Ok::<_, Error>(FeedForward {
                before: norm(translation, &format!("{name}.pre_layer_norm"))?,
                up: linear(translation, &format!("{name}.ffw_layer_1"), "up", [inner, hidden])?,
                down: linear(translation, &format!("{name}.ffw_layer_2"), "down", [hidden, inner])?,
                after: norm(translation, &format!("{name}.post_layer_norm"))?,
            })
        };
        let square = [hidden, hidden];
        let kernel = format!("{prefix}lconv1d.depthwise_conv1d.weight");
        Ok(Layer {
            feed_forwards: [
                feed_forward(translation, "feed_forward1")?,
                feed_forward(translation, "feed_forward2")?,
            ],
            attention_norms: [norm(translation, "norm_pre_attn")?, norm(translation, "norm_post_attn")?],
            q: linear(translation, "self_attn.q_proj", "q", square)?,
            q_scale: self.q_scale(translation, &format!("{prefix}self_attn.per_dim_scale"))?,
            k: linear(translation, "self_attn.k_proj", "k", square)?,
            v: linear(translation, "self_attn.v_proj", "v", square)?,
            o: linear(translation, "self_attn.post", "o", square)?,
            distances: self.distances(translation, &format!("{prefix}self_attn.relative_k_proj.weight"))?,
            convolution_norms: [
                norm(translation, "lconv1d.pre_layer_norm")?,
                norm(translation, "lconv1d.conv_norm")?,
            ],
            start: linear(translation, "lconv1d.linear_start", "convolution-start", [2 * hidden, hidden])?,
            kernel: translation.flattened(&kernel, "kernel", &[hidden, 1, self.kernel])?,
            end: linear(translation, "lconv1d.linear_end", "convolution-end", square)?,
            last: norm(translation, "norm_out")?,
        })
    }

    /// Adds `softplus(s) / (√d · ln 2)` for the values of a head, repeated for each head.
    fn q_scale(&self, translation: &mut Translation, name: &str) -> Result<WeightId> {
        let (d, heads) = (self.head_dim() as usize, self.heads as usize);
        translation.derived(name, "scale", &[d as u64], &[self.hidden], move |scales| {
            let factor = 1.0 / ((d as f64).sqrt() * std::f64::consts::LN_2);
            let of = |&scale: &f32| {
                let scale = f64::from(scale);
                // ln(1 + eˢ), in a form that does not overflow.
                ((scale.max(0.0) + (-scale.abs()).exp().ln_1p()) * factor) as f32
            };
            let head: Vec<f32> = scales.iter().map(of).collect();
            head.repeat(heads)
        })
    }

    /// Adds the matrix that computes from a query the summand of each distance to the scores of
    /// each head. Row `h · window + w` contains, in the columns of head h, the columns of
    /// `pe(r) · W_Rᵀ` for the distance `r = window − 1 − w`. The other columns are zero.
    /// `pe(r) = [sin(r · τ), cos(r · τ)]` with `τ_m = 10000^(−m / (hidden/2 − 1))`.
    fn distances(&self, translation: &mut Translation, name: &str) -> Result<WeightId> {
        let (hidden, window) = (self.hidden as usize, self.window as usize);
        let (heads, d) = (self.heads as usize, self.head_dim() as usize);
        let (shape, made) = ([self.hidden; 2], [u64::from(self.heads) * self.window, self.hidden]);
        translation.derived(name, "distances", &shape, &made, move |weight| {
            let half = hidden / 2;
            let step = 10_000_f64.ln() / (half as f64 - 1.0);
            let mut made = vec![0.0; heads * window * hidden];
            for distance in 0..window {
                let angle = |m: usize| distance as f64 * (-(m as f64) * step).exp();
                let sines = (0..half).map(|m| angle(m).sin());
                let encoding: Vec<f64> =
                    sines.chain((0..half).map(|m| angle(m).cos())).map(|x| f64::from(x as f32)).collect();
                for (column, row) in weight.chunks_exact(hidden).enumerate() {
                    let value = row.iter().zip(&encoding).map(|(w, x)| f64::from(*w) * x).sum::<f64>();
                    let place = column / d * window + window - 1 - distance;
                    made[place * hidden + column] = value as f32;
                }
            }
            made
        })
    }

    fn projector(&self, translation: &mut Translation, prefix: &str, prompt: Prompt) -> Result<()> {
        let name = format!("{prefix}output_proj.weight");
        let output = translation.whole_name(&name, "output-projection", &[self.output, self.hidden])?;
        let name = format!("{prefix}output_proj.bias");
        let bias = translation.whole_name(&name, "bias", &[self.output])?;
        let embed = super::prefix(translation, "embed_audio", PROJECTION);
        let shape = [prompt.hidden, self.output];
        let projection = translation.whole_name(&format!("{embed}{PROJECTION}"), "projection", &shape)?;
        component(translation, ComponentKind::AudioProjector, |builder| {
            let x = stream(builder, self.hidden);
            let inputs = [x, builder.constant(output), builder.constant(bias)];
            let shape = vec![Dim::Rows, Dim::Fixed(self.output)];
            let x = builder.op_shaped("output-projection", Op::Linear, &inputs, shape);
            builder.tap("output-projection", x);
            soft_rows(builder, x, self.norm(), self.output, projection, prompt);
        })
    }
}

/// Reads the channels of the two convolutions.
fn read_channels(fields: Fields<'_>) -> Result<[u64; 2]> {
    let name = "subsampling_conv_channels";
    let Some(list) = fields.list(name)? else { return Ok([128, 32]) };
    let channels: Vec<u64> = list.iter().filter_map(serde_json::Value::as_u64).collect();
    match channels[..] {
        [first, second]
            if list.len() == 2 && [first, second].iter().all(|one| limits::CHANNELS.contains(one)) =>
        {
            Ok([first, second])
        }
        _ => Err(fields.invalid(name, format!("is not two numbers of 1 to {}", limits::CHANNELS.end()))),
    }
}
