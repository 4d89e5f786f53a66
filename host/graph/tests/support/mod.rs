//! A toy model of any shape. It uses every operation and role of the real families, and is small
//! enough to run in a test.

#![allow(dead_code, reason = "each test binary uses its part")]

pub mod quantise;

use half::{bf16, f16};
use shardwright_graph::{
    Asset, AssetId, Attention, ComponentBuilder, ComponentKind, Dim, EntryPoint, Graph, KeySource, Op, Pass,
    Role, Rope, Segment, Segments, State, StateId, StateKind, ValueId, Weight, WeightData, WeightId,
};
use shardwright_vocabulary::{AttentionFormat, DType, EntryKind};

/// Description of a toy model.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Seed of the weights.
    pub seed: u64,
    pub hidden: u64,
    pub vocabulary: u64,
    /// 0 for none.
    pub per_layer_width: u64,
    /// Stored type of the weights.
    pub dtype: DType,
    /// Weight offset of every norm.
    pub weight_offset: f32,
    /// Soft-cap of the logits. 0 for none.
    pub softcap: f32,
    /// Whether it has no states, attends in both directions, and has a pooling part instead of a
    /// head.
    pub encoder: bool,
    pub layers: Vec<LayerRecipe>,
}

/// Description of one layer.
#[derive(Clone, Debug)]
pub struct LayerRecipe {
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub rotated_pairs: u32,
    pub theta: f32,
    pub factor: f32,
    /// 0 for none.
    pub window: u32,
    /// Soft-cap of the scores. 0 for none.
    pub softcap: f32,
    /// The layer whose keys and values it reads. It must have the same heads and window.
    pub donor: Option<u32>,
    pub inner: u64,
    pub gelu: bool,
    pub bias: bool,
}

impl LayerRecipe {
    pub fn plain() -> Self {
        LayerRecipe {
            heads: 2,
            kv_heads: 1,
            head_dim: 4,
            rotated_pairs: 2,
            theta: 1e4,
            factor: 1.0,
            window: 0,
            softcap: 0.0,
            donor: None,
            inner: 12,
            gelu: true,
            bias: false,
        }
    }

    pub fn sliding(window: u32) -> Self {
        LayerRecipe { window, theta: 100.0, ..Self::plain() }
    }

    pub fn sharing(self, donor: u32) -> Self {
        LayerRecipe { donor: Some(donor), inner: 2 * self.inner, ..self }
    }
}

impl Recipe {
    /// Returns a recipe with sliding, full, sliding sharing layer 0, and full sharing layer 1. It
    /// has per-layer inputs.
    pub fn sharing() -> Self {
        Recipe {
            seed: 1,
            hidden: 8,
            vocabulary: 20,
            per_layer_width: 4,
            dtype: DType::F32,
            weight_offset: 0.0,
            softcap: 30.0,
            encoder: false,
            layers: vec![
                LayerRecipe::sliding(5),
                LayerRecipe::plain(),
                LayerRecipe::sliding(5).sharing(0),
                LayerRecipe::plain().sharing(1),
            ],
        }
    }

    /// Returns a recipe with three layers that attend in both directions, the middle one without a
    /// window.
    pub fn encoder() -> Self {
        Recipe {
            encoder: true,
            per_layer_width: 0,
            weight_offset: 1.0,
            layers: vec![LayerRecipe::sliding(3), LayerRecipe::plain(), LayerRecipe::sliding(3)],
            ..Self::sharing()
        }
    }
}

/// Returns `prefill_N@context` or `decode_N@context`, with rings for N rows.
pub fn point(kind: EntryKind, rows: u64, context: u64) -> EntryPoint {
    EntryPoint { kind, rows, context, largest_rows: rows }
}

/// Pseudo-random numbers in −1..1 from a seed.
pub struct Noise(pub u64);

impl Noise {
    pub fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 40) as f32 / (1_u64 << 23) as f32) - 1.0
    }
}

struct Maker {
    graph: Graph,
    noise: Noise,
    dtype: DType,
}

impl Maker {
    /// Creates a weight with values in −bound..bound around `centre`, stored in the recipe's type.
    fn weight(&mut self, name: String, part: &'static str, shape: &[u64], centre: f32, bound: f32) -> Weight {
        let elements = shape.iter().product::<u64>();
        let mut bytes = Vec::new();
        for _ in 0..elements {
            let value = centre + bound * self.noise.next();
            match self.dtype {
                DType::F16 => bytes.extend(f16::from_f32(value).to_le_bytes()),
                DType::Bf16 => bytes.extend(bf16::from_f32(value).to_le_bytes()),
                _ => bytes.extend(value.to_le_bytes()),
            }
        }
        Weight {
            name,
            part,
            shape: shape.to_vec(),
            dtype: self.dtype,
            data: WeightData::from_vec(bytes),
            quantisation: None,
        }
    }

    fn push(&mut self, weight: Weight) -> WeightId {
        self.graph.weights.push(weight);
        WeightId(self.graph.weights.len() as u32 - 1)
    }

    fn linear(&mut self, name: String, part: &'static str, out: u64, inner: u64) -> WeightId {
        let weight = self.weight(name, part, &[out, inner], 0.0, 1.5 / (inner as f32).sqrt());
        self.push(weight)
    }

    fn norm(&mut self, name: String, width: u64, offset: f32) -> WeightId {
        let weight = self.weight(name, "norm", &[width], 1.0 - offset, 0.5);
        self.push(weight)
    }

    fn asset(&mut self, name: &str, entries: u64, width: u64) {
        let table = self.weight(format!("{name}.weight"), "embedding", &[entries, width], 0.0, 1.0);
        self.graph.assets.push(Asset { name: name.to_owned(), table, redirect: vec![(3, 0)] });
    }
}

struct LayerWeights {
    q: WeightId,
    q_norm: WeightId,
    o: WeightId,
    own: Option<(WeightId, WeightId, WeightId)>,
    states: Option<(StateId, StateId)>,
    norms: [WeightId; 2],
    up: WeightId,
    up_bias: Option<WeightId>,
    down: WeightId,
    per_layer_gate: Option<(WeightId, WeightId)>,
    scalar: WeightId,
}

/// Builds the model of a recipe.
pub fn toy(recipe: &Recipe) -> Graph {
    let (hidden, per_layer) = (recipe.hidden, recipe.per_layer_width);
    let mut maker = Maker {
        graph: Graph {
            pass: Pass::Step,
            name: "toy".to_owned(),
            hidden,
            vocabulary: if recipe.encoder { 0 } else { recipe.vocabulary },
            context: 64,
            per_layer_width: per_layer,
            weights: Vec::new(),
            assets: Vec::new(),
            states: Vec::new(),
            components: Vec::new(),
        },
        noise: Noise(recipe.seed),
        dtype: recipe.dtype,
    };
    maker.asset("embedding", recipe.vocabulary, hidden);
    let mut per_layer_projection = None;
    if per_layer > 0 {
        let whole = recipe.layers.len() as u64 * per_layer;
        maker.asset("per-layer-embedding", recipe.vocabulary, whole);
        per_layer_projection =
            Some(maker.linear("per-layer-projection.weight".to_owned(), "per-layer", whole, hidden));
    }
    let layers: Vec<LayerWeights> = recipe
        .layers
        .iter()
        .enumerate()
        .map(|(index, layer)| layer_weights(&mut maker, recipe, index, layer))
        .collect();
    let final_norm = maker.norm("norm.weight".to_owned(), hidden, recipe.weight_offset);
    let out = if recipe.encoder { 6 } else { recipe.vocabulary };
    let head = maker.linear("head.weight".to_owned(), "head", out, hidden);

    let mut graph = maker.graph;
    let norm =
        |builder: &mut ComponentBuilder, name: &str, x: ValueId, weight: Option<WeightId>, width: u64| {
            builder.rms_norm(name, x, weight, width as u32, 1e-6, recipe.weight_offset)
        };

    let mut builder = ComponentBuilder::new(&graph, ComponentKind::Embed);
    let rows =
        builder.input(Role::Gathered { asset: AssetId(0) }, vec![Dim::Rows, Dim::Fixed(hidden)], DType::F32);
    let scaled = builder.op("scale", Op::MulScalar { value: (hidden as f32).sqrt() }, &[rows]);
    builder.output(scaled, Role::Hidden);
    let embed = builder.finish().unwrap();
    graph.components.push(embed);

    if let Some(projection) = per_layer_projection {
        let count = recipe.layers.len() as u64;
        let mut builder = ComponentBuilder::new(&graph, ComponentKind::PerLayerInput);
        let stream = builder.input(Role::Hidden, vec![Dim::Rows, Dim::Fixed(hidden)], DType::F32);
        let gathered = builder.input(
            Role::Gathered { asset: AssetId(1) },
            vec![Dim::Rows, Dim::Fixed(count * per_layer)],
            DType::F32,
        );
        let projected = builder.linear("projection", stream, projection);
        let projected = norm(&mut builder, "norm", projected, None, per_layer);
        let sum = builder.op("sum", Op::Add, &[projected, gathered]);
        let split = builder.reshape("split", sum, vec![Dim::Rows, Dim::Fixed(count), Dim::Fixed(per_layer)]);
        let by_layer = builder.op_shaped(
            "by-layer",
            Op::Transpose { perm: vec![1, 0, 2] },
            &[split],
            vec![Dim::Fixed(count), Dim::Rows, Dim::Fixed(per_layer)],
        );
        builder.output(by_layer, Role::PerLayer { first: 0, layers: count as u32 });
        let component = builder.finish().unwrap();
        graph.components.push(component);
    }

    let mut builder = ComponentBuilder::new(&graph, ComponentKind::Decoder);
    let mut stream = builder.input(Role::Hidden, vec![Dim::Rows, Dim::Fixed(hidden)], DType::F32);
    let mut attended: Vec<(ValueId, ValueId)> = Vec::new();
    for (layer, weights) in recipe.layers.iter().zip(&layers) {
        builder.begin_layer(stream);
        stream = decoder_layer(&mut builder, recipe, layer, weights, stream, &mut attended);
    }
    builder.end_layers(stream);
    let decoder = builder.finish().unwrap();
    graph.components.push(decoder);

    let kind = if recipe.encoder { ComponentKind::Pooling } else { ComponentKind::Head };
    let mut builder = ComponentBuilder::new(&graph, kind);
    let stream = builder.input(Role::Hidden, vec![Dim::Rows, Dim::Fixed(hidden)], DType::F32);
    let normed = norm(&mut builder, "final-norm", stream, Some(final_norm), hidden);
    builder.tap("final-norm", normed);
    if recipe.encoder {
        let mean = builder.input(Role::Pooling, vec![Dim::Fixed(1), Dim::Rows], DType::F32);
        let pooled = builder.op_shaped(
            "pooled",
            Op::MatMul { transpose_b: false },
            &[mean, normed],
            vec![Dim::Fixed(1), Dim::Fixed(hidden)],
        );
        builder.tap("pooled", pooled);
        let dense = builder.linear("dense", pooled, head);
        let centred = builder.op("centred", Op::LayerNorm { eps: 1e-6 }, &[dense]);
        let unit = builder.op("unit", Op::L2Normalize, &[centred]);
        let vector = builder.reshape("embedding", unit, vec![Dim::Fixed(out)]);
        builder.output(vector, Role::Embedding);
    } else {
        let mut logits = builder.linear("logits", normed, head);
        if recipe.softcap != 0.0 {
            logits = builder.op("softcap", Op::Softcap { cap: recipe.softcap }, &[logits]);
        }
        builder.output(logits, Role::Logits);
    }
    let last = builder.finish().unwrap();
    graph.components.push(last);
    graph
}

fn layer_weights(maker: &mut Maker, recipe: &Recipe, index: usize, layer: &LayerRecipe) -> LayerWeights {
    let hidden = recipe.hidden;
    let name = |what: &str| format!("layers.{index}.{what}.weight");
    let queries = u64::from(layer.heads * layer.head_dim);
    let keys = u64::from(layer.kv_heads * layer.head_dim);
    let head = u64::from(layer.head_dim);
    let mut states = None;
    let mut own = None;
    if layer.donor.is_none() {
        own = Some((
            maker.linear(name("k"), "k", keys, hidden),
            maker.linear(name("v"), "v", keys, hidden),
            maker.norm(name("k_norm"), head, recipe.weight_offset),
        ));
        if !recipe.encoder {
            let kind = match layer.window {
                0 => StateKind::Linear,
                window => StateKind::Ring { window },
            };
            for word in ["k", "v"] {
                let name = format!("layer.{index}.{word}");
                maker.graph.states.push(State { name, layer: index as u32, width: keys, kind });
            }
            let last = maker.graph.states.len() as u32;
            states = Some((StateId(last - 2), StateId(last - 1)));
        }
    }
    let bias = layer.bias.then(|| {
        let bias = maker.weight(name("up_bias"), "bias", &[layer.inner], 0.0, 0.5);
        maker.push(bias)
    });
    let per_layer = recipe.per_layer_width;
    LayerWeights {
        q: maker.linear(name("q"), "q", queries, hidden),
        q_norm: maker.norm(name("q_norm"), head, recipe.weight_offset),
        o: maker.linear(name("o"), "o", hidden, queries),
        own,
        states,
        norms: [0, 1].map(|which| maker.norm(name(&format!("norm{which}")), hidden, recipe.weight_offset)),
        up: maker.linear(name("up"), "up", layer.inner, hidden),
        up_bias: bias,
        down: maker.linear(name("down"), "down", hidden, layer.inner),
        per_layer_gate: (per_layer > 0).then(|| {
            (
                maker.linear(name("per_layer_gate"), "per-layer", per_layer, hidden),
                maker.linear(name("per_layer_out"), "per-layer", hidden, per_layer),
            )
        }),
        scalar: maker.norm(name("scalar"), 1, 0.0),
    }
}

fn decoder_layer(
    builder: &mut ComponentBuilder,
    recipe: &Recipe,
    layer: &LayerRecipe,
    weights: &LayerWeights,
    stream: ValueId,
    attended: &mut Vec<(ValueId, ValueId)>,
) -> ValueId {
    let hidden = recipe.hidden;
    let norm =
        |builder: &mut ComponentBuilder, name: &str, x: ValueId, weight: Option<WeightId>, width: u64| {
            builder.rms_norm(name, x, weight, width as u32, 1e-6, recipe.weight_offset)
        };
    let head = u64::from(layer.head_dim);
    let rope = Rope {
        head_dim: layer.head_dim,
        theta: layer.theta,
        rotated_pairs: layer.rotated_pairs,
        factor: layer.factor,
        divisors: Vec::new(),
        magnitude: 1.0,
    };
    let positions = builder.positions();
    let x = norm(builder, "input-norm", stream, Some(weights.norms[0]), hidden);
    let q = builder.linear("q", x, weights.q);
    let q = norm(builder, "q-norm", q, Some(weights.q_norm), head);
    let q = builder.op("q-rope", Op::Rope(rope.clone()), &[q, positions]);
    let pair = match (&weights.own, layer.donor) {
        (Some((k, v, k_norm)), _) => {
            let k = builder.linear("k", x, *k);
            let k = norm(builder, "k-norm", k, Some(*k_norm), head);
            let k = builder.op("k-rope", Op::Rope(rope), &[k, positions]);
            let v = builder.linear("v", x, *v);
            let v = norm(builder, "v-norm", v, None, head);
            match weights.states {
                Some((k_state, v_state)) => {
                    (builder.state_update("k-write", k_state, k), builder.state_update("v-write", v_state, v))
                }
                None => (k, v),
            }
        }
        (None, donor) => attended[donor.unwrap_or(0) as usize],
    };
    attended.push(pair);
    let attention = Attention {
        heads: layer.heads,
        kv_heads: layer.kv_heads,
        head_dim: layer.head_dim,
        scale: 1.0 / (layer.head_dim as f32).sqrt(),
        softcap: layer.softcap,
        window: layer.window,
        causal: !recipe.encoder,
        keys: if recipe.encoder { KeySource::Rows } else { KeySource::State },
        products: AttentionFormat::F32,
    };
    let mixed = builder.op("attention", Op::Attention(attention), &[q, pair.0, pair.1, positions]);
    let mixed = builder.linear("o", mixed, weights.o);
    let stream = builder.op("attention-sum", Op::Add, &[stream, mixed]);
    let x = norm(builder, "mlp-norm", stream, Some(weights.norms[1]), hidden);
    let up = match weights.up_bias {
        Some(bias) => {
            let operands = [x, builder.constant(weights.up), builder.constant(bias)];
            builder.op_shaped("up", Op::Linear, &operands, vec![Dim::Rows, Dim::Fixed(layer.inner)])
        }
        None => builder.linear("up", x, weights.up),
    };
    let up = builder.op("activation", if layer.gelu { Op::Gelu } else { Op::Silu }, &[up]);
    let down = builder.linear("down", up, weights.down);
    let mut stream = builder.op("mlp-sum", Op::Add, &[stream, down]);
    if let Some((gate, out)) = weights.per_layer_gate {
        let per_layer = builder.per_layer_input();
        let gate = builder.linear("per-layer-gate", stream, gate);
        let gate = builder.op("per-layer-activation", Op::Silu, &[gate]);
        let gated = builder.op("per-layer-product", Op::Mul, &[gate, per_layer]);
        let out = builder.linear("per-layer-out", gated, out);
        stream = builder.op("per-layer-sum", Op::Add, &[stream, out]);
    }
    let scalar = builder.constant(weights.scalar);
    builder.op("layer-scalar", Op::Mul, &[stream, scalar])
}

/// Returns segments of several components: the whole model, its beginning with some layers, and the
/// remaining layers with its end.
pub fn joined(graph: &Graph) -> Vec<Segments> {
    let layers = graph.layers();
    let segments = |first: u32, end: u32| -> Vec<Segment> {
        let of = |component: &shardwright_graph::Component| match component.layers {
            0 => Segment::whole(component.kind),
            _ => Segment::decoder(first, end),
        };
        graph.components.iter().map(of).collect()
    };
    let decoder = graph.components.iter().position(|component| component.layers > 0).unwrap();
    let begin = segments(0, 1)[..=decoder].to_vec();
    let end = segments(1, layers)[decoder..].to_vec();
    [segments(0, layers), begin, end].map(Segments).into()
}
