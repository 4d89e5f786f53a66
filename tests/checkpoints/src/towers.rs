use serde_json::{Value, json};

use crate::{Part, TensorSpec};

/// Sizes of the towers of Gemma 4.
#[derive(Clone, Debug)]
pub struct Towers {
    /// Deviation of the matrices, times the root of the number of summands of a result. 1 preserves
    /// the deviation of the operand.
    pub deviation: f64,
    /// Values per row of the vision tower.
    pub vision: u64,
    /// Layers of the vision tower.
    pub vision_layers: usize,
    /// Heads of the vision tower.
    pub vision_heads: u64,
    /// Width of the vision tower's feed-forward block.
    pub vision_intermediate: u64,
    /// Pixels of a side of a patch.
    pub patch: u64,
    /// Rows of each table of positions.
    pub positions: u64,
    /// Values per row of the audio tower. Its feed-forward block is four times as wide.
    pub audio: u64,
    /// Layers of the audio tower.
    pub audio_layers: usize,
    /// Heads of the audio tower.
    pub audio_heads: u64,
    /// Values per output row of the audio tower.
    pub audio_out: u64,
    /// Channels of the audio tower's two convolutions.
    pub channels: [u64; 2],
}

/// Mel bands of a frame.
const BANDS: u64 = 128;

/// Number of rows that the audio tower's attention and convolution see: earlier rows, and the row
/// itself.
const CONTEXT_LEFT: u64 = 13;
const KERNEL: u64 = 5;

impl Towers {
    /// Returns the sizes of Gemma 4 E2B and E4B.
    pub fn e2b() -> Self {
        Towers {
            deviation: 1.5,
            vision: 768,
            vision_layers: 16,
            vision_heads: 12,
            vision_intermediate: 3072,
            patch: 16,
            positions: 10_240,
            audio: 1024,
            audio_layers: 12,
            audio_heads: 8,
            audio_out: 1536,
            channels: [128, 32],
        }
    }

    /// Returns `vision_config` and `audio_config`.
    pub(crate) fn configs(&self) -> [Value; 2] {
        let vision = json!({
            "model_type": "gemma4_vision",
            "attention_bias": false,
            "head_dim": self.vision / self.vision_heads,
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": self.vision,
            "intermediate_size": self.vision_intermediate,
            "num_attention_heads": self.vision_heads,
            "num_hidden_layers": self.vision_layers,
            "num_key_value_heads": self.vision_heads,
            "patch_size": self.patch,
            "pooling_kernel_size": 3,
            "position_embedding_size": self.positions,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_theta": 100.0, "rope_type": "axial"},
            "standardize": false,
            "use_clipped_linears": true,
        });
        let audio = json!({
            "model_type": "gemma4_audio",
            "attention_chunk_size": 12,
            "attention_context_left": CONTEXT_LEFT,
            "attention_context_right": 0,
            "attention_invalid_logits_value": -1e9,
            "attention_logit_cap": 50.0,
            "conv_kernel_size": KERNEL,
            "gradient_clipping": 1e10,
            "hidden_act": "silu",
            "hidden_size": self.audio,
            "num_attention_heads": self.audio_heads,
            "num_hidden_layers": self.audio_layers,
            "output_proj_dims": self.audio_out,
            "residual_weight": 0.5,
            "rms_norm_eps": 1e-6,
            "subsampling_conv_channels": self.channels,
            "use_clipped_linears": true,
        });
        [vision, audio]
    }

    /// Returns the tensors of the towers. `text` is the width of the text model.
    pub(crate) fn tensors(&self, text: u64) -> Vec<TensorSpec> {
        let mut all = Tensors(Vec::new());
        let (width, inner) = (self.vision, self.vision_intermediate);
        let pixels = 3 * self.patch * self.patch;
        all.add("vision_tower.patch_embedder.input_proj.weight", &[width, pixels], Part::Tower);
        let table = [2, self.positions, width];
        all.add("vision_tower.patch_embedder.position_embedding_table", &table, Part::Norm);
        for layer in 0..self.vision_layers {
            let of = |name: &str| format!("vision_tower.encoder.layers.{layer}.{name}");
            let norms = [
                "input_layernorm",
                "post_attention_layernorm",
                "pre_feedforward_layernorm",
                "post_feedforward_layernorm",
            ];
            for norm in norms {
                all.add(&of(&format!("{norm}.weight")), &[width], Part::Norm);
            }
            for projection in ["q_proj", "k_proj", "v_proj", "o_proj"] {
                all.clipped(&of(&format!("self_attn.{projection}")), width, width);
            }
            for norm in ["q_norm", "k_norm"] {
                all.add(&of(&format!("self_attn.{norm}.weight")), &[width / self.vision_heads], Part::Norm);
            }
            all.clipped(&of("mlp.gate_proj"), inner, width);
            all.clipped(&of("mlp.up_proj"), inner, width);
            all.clipped(&of("mlp.down_proj"), width, inner);
        }
        all.add("embed_vision.embedding_projection.weight", &[text, width], Part::Tower);

        let (width, [first, second]) = (self.audio, self.channels);
        let subsample = |name: &str| format!("audio_tower.subsample_conv_projection.{name}");
        for (layer, shape) in [("layer0", [first, 1, 3, 3]), ("layer1", [second, first, 3, 3])] {
            all.add(&subsample(&format!("{layer}.conv.weight")), &shape, Part::Tower);
            all.add(&subsample(&format!("{layer}.norm.weight")), &shape[..1], Part::Norm);
        }
        all.add(&subsample("input_proj_linear.weight"), &[width, second * BANDS / 4], Part::Tower);
        for layer in 0..self.audio_layers {
            let of = |name: &str| format!("audio_tower.layers.{layer}.{name}");
            for block in ["feed_forward1", "feed_forward2"] {
                all.clipped(&of(&format!("{block}.ffw_layer_1")), 4 * width, width);
                all.clipped(&of(&format!("{block}.ffw_layer_2")), width, 4 * width);
                all.add(&of(&format!("{block}.pre_layer_norm.weight")), &[width], Part::Norm);
                all.add(&of(&format!("{block}.post_layer_norm.weight")), &[width], Part::Norm);
            }
            for norm in
                ["norm_pre_attn", "norm_post_attn", "norm_out", "lconv1d.pre_layer_norm", "lconv1d.conv_norm"]
            {
                all.add(&of(&format!("{norm}.weight")), &[width], Part::Norm);
            }
            for projection in ["q_proj", "k_proj", "v_proj", "post"] {
                all.clipped(&of(&format!("self_attn.{projection}")), width, width);
            }
            all.add(&of("self_attn.relative_k_proj.weight"), &[width, width], Part::Tower);
            all.add(&of("self_attn.per_dim_scale"), &[width / self.audio_heads], Part::Norm);
            all.clipped(&of("lconv1d.linear_start"), 2 * width, width);
            all.clipped(&of("lconv1d.linear_end"), width, width);
            all.add(&of("lconv1d.depthwise_conv1d.weight"), &[width, 1, KERNEL], Part::Tower);
        }
        all.add("audio_tower.output_proj.weight", &[self.audio_out, width], Part::Tower);
        all.add("audio_tower.output_proj.bias", &[self.audio_out], Part::Norm);
        all.add("embed_audio.embedding_projection.weight", &[text, self.audio_out], Part::Tower);
        all.0
    }
}

struct Tensors(Vec<TensorSpec>);

impl Tensors {
    fn add(&mut self, name: &str, shape: &[u64], part: Part) {
        self.0.push(TensorSpec { name: format!("model.{name}"), shape: shape.to_vec(), part });
    }

    /// Adds a matrix whose operand and results are clipped.
    fn clipped(&mut self, name: &str, outputs: u64, inputs: u64) {
        self.add(&format!("{name}.linear.weight"), &[outputs, inputs], Part::Tower);
        for side in ["input", "output"] {
            self.add(&format!("{name}.{side}_min"), &[], Part::Least);
            self.add(&format!("{name}.{side}_max"), &[], Part::Most);
        }
    }
}
