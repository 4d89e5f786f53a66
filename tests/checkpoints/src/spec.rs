use std::io;
use std::path::Path;

use crate::file::{StoredTensor, write_safetensors};
use crate::{TensorSpec, Towers, config, tensors};

/// Architecture of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Gemma 3 as a text model.
    Gemma3,
    /// Gemma 4 as a text model.
    Gemma4,
    Qwen3,
    /// EmbeddingGemma: Gemma 3 with attention in both directions, and sentence modules.
    EmbeddingGemma,
}

/// Spelling of `config.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// The spelling of the first published checkpoints: thetas at the top, a pattern number,
    /// `global_head_dim`, `torch_dtype`.
    Older,
    /// The spelling of the current library: `rope_parameters`, `layer_types`, `per_layer_config`,
    /// `dtype`.
    Newer,
}

/// Content of the weight files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Random numbers from the seed.
    Random,
    /// Holes: the files have their full length but need no disk space, and read as zeros.
    Sparse,
}

/// Specification of a checkpoint to write.
#[derive(Clone, Debug)]
pub struct Spec {
    pub family: Family,
    /// Spelling of the settings.
    pub spelling: Spelling,
    /// Rows of the embedding table.
    pub vocabulary: u64,
    /// Values per row of the residual stream.
    pub hidden: u64,
    /// Width of the feed-forward block.
    pub intermediate: u64,
    /// One letter per layer: `S` sliding, `F` full.
    pub layers: String,
    /// Number of query heads.
    pub heads: u64,
    /// Number of key/value heads.
    pub kv_heads: u64,
    /// Values per head. In Gemma 4, of sliding layers only.
    pub head_dim: u64,
    /// Values per head of full layers (Gemma 4).
    pub global_head_dim: u64,
    /// `sliding_window`.
    pub window: u64,
    /// `max_position_embeddings`.
    pub context: u64,
    /// Rotary base of full layers.
    pub theta_full: f64,
    /// Rotary base of sliding layers.
    pub theta_sliding: f64,
    /// Share of the pairs that rotate in full layers (Gemma 4).
    pub partial: f64,
    /// `query_pre_attn_scalar` (Gemma 3).
    pub query_scalar: f64,
    /// `final_logit_softcapping`.
    pub softcap: Option<f64>,
    /// Values per layer of the per-layer inputs (Gemma 4).
    pub per_layer: u64,
    /// Number of last layers that share the keys and values of earlier ones (Gemma 4).
    pub kv_shared: usize,
    /// Whether these layers have a feed-forward block twice as wide.
    pub double_wide: bool,
    /// Whether the file contains keys and values for the sharing layers anyway.
    pub stale_keys: bool,
    /// Whether the output matrix is the embedding table.
    pub tied: bool,
    /// Outputs of each dense layer (EmbeddingGemma).
    pub dense: Vec<u64>,
    /// Whether the text model is part of a multimodal checkpoint, with `text_config` and a few
    /// tower tensors.
    pub multimodal: bool,
    /// The towers of a multimodal checkpoint. `None` writes a few tower tensors without a whole
    /// tower.
    pub towers: Option<Towers>,
    /// Prefix of the tensor names. `None` uses the library's own.
    pub prefix: Option<String>,
    /// Element type: `F32`, `F16` or `BF16`.
    pub dtype: &'static str,
    /// Number of weight files. Several files have an index.
    pub files: usize,
    /// Content of the weights.
    pub fill: Fill,
    /// Seed of the content.
    pub seed: u64,
}

impl Spec {
    /// Returns Gemma 3 at toy size.
    pub fn gemma3() -> Self {
        Spec {
            family: Family::Gemma3,
            spelling: Spelling::Newer,
            vocabulary: 96,
            hidden: 24,
            intermediate: 40,
            layers: "SSFS".to_owned(),
            heads: 4,
            kv_heads: 2,
            head_dim: 8,
            global_head_dim: 16,
            window: 6,
            context: 256,
            theta_full: 1e6,
            theta_sliding: 1e4,
            partial: 0.25,
            query_scalar: 8.0,
            softcap: None,
            per_layer: 0,
            kv_shared: 0,
            double_wide: false,
            stale_keys: false,
            tied: true,
            dense: Vec::new(),
            multimodal: false,
            towers: None,
            prefix: None,
            dtype: "BF16",
            files: 1,
            fill: Fill::Random,
            seed: 1,
        }
    }

    /// Returns Gemma 4 at toy size, with per-layer inputs and shared keys.
    pub fn gemma4() -> Self {
        Spec {
            family: Family::Gemma4,
            layers: "SFSFSF".to_owned(),
            kv_heads: 1,
            softcap: Some(30.0),
            per_layer: 8,
            kv_shared: 2,
            double_wide: true,
            ..Spec::gemma3()
        }
    }

    /// Returns Qwen 3 at toy size.
    pub fn qwen3() -> Self {
        Spec { family: Family::Qwen3, layers: "FFFF".to_owned(), ..Spec::gemma3() }
    }

    /// Returns EmbeddingGemma at toy size.
    pub fn embeddinggemma() -> Self {
        Spec { family: Family::EmbeddingGemma, dense: vec![48, 24], ..Spec::gemma3() }
    }

    /// Returns Gemma 4 E2B at its real shape, without content: ten gigabytes that need no disk
    /// space.
    pub fn e2b() -> Self {
        Spec {
            spelling: Spelling::Older,
            vocabulary: 262_144,
            hidden: 1536,
            intermediate: 6144,
            layers: "SSSSF".repeat(7),
            heads: 8,
            kv_heads: 1,
            head_dim: 256,
            global_head_dim: 512,
            window: 512,
            context: 131_072,
            per_layer: 256,
            kv_shared: 20,
            stale_keys: true,
            multimodal: true,
            fill: Fill::Sparse,
            ..Spec::gemma4()
        }
    }

    /// Returns Gemma 4 E4B at its real shape, without content.
    pub fn e4b() -> Self {
        Spec {
            hidden: 2560,
            intermediate: 10_240,
            layers: "SSSSSF".repeat(7),
            kv_heads: 2,
            kv_shared: 18,
            double_wide: false,
            ..Spec::e2b()
        }
    }

    /// Returns Gemma 3 270M at its real shape, without content.
    pub fn gemma3_270m() -> Self {
        Spec {
            spelling: Spelling::Older,
            vocabulary: 262_144,
            hidden: 640,
            intermediate: 2048,
            layers: "SSSSSF".repeat(3),
            heads: 4,
            kv_heads: 1,
            head_dim: 256,
            window: 512,
            context: 32_768,
            query_scalar: 256.0,
            fill: Fill::Sparse,
            ..Spec::gemma3()
        }
    }

    /// Returns Gemma 3 1B at its real shape, without content.
    pub fn gemma3_1b() -> Self {
        Spec { hidden: 1152, intermediate: 6912, layers: "SSSSSF".repeat(4) + "SS", ..Spec::gemma3_270m() }
    }

    /// Returns Qwen 3 0.6B at its real shape, without content.
    pub fn qwen3_0_6b() -> Self {
        Spec {
            spelling: Spelling::Older,
            vocabulary: 151_936,
            hidden: 1024,
            intermediate: 3072,
            layers: "F".repeat(28),
            heads: 16,
            kv_heads: 8,
            head_dim: 128,
            context: 40_960,
            fill: Fill::Sparse,
            ..Spec::qwen3()
        }
    }

    /// Returns the contents of `config.json`.
    pub fn config(&self) -> serde_json::Value {
        config::config(self)
    }

    /// Returns the tensors of the weight files, in their order.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        tensors::tensors(self)
    }

    /// Checks whether layer `index` has full attention.
    pub fn is_full(&self, index: usize) -> bool {
        self.layers.as_bytes()[index] == b'F'
    }

    /// Returns the number of layers.
    pub fn depth(&self) -> usize {
        self.layers.len()
    }

    /// Writes the checkpoint into an existing directory.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        let json = |name: &str, value: &serde_json::Value| {
            std::fs::write(directory.join(name), serde_json::to_vec_pretty(value)?)
        };
        json("config.json", &self.config())?;
        let all = self.tensors();
        if self.files == 1 {
            self.write_file(&directory.join("model.safetensors"), &all)?;
        } else {
            let mut weight_map = serde_json::Map::new();
            for file in 0..self.files {
                let name = format!("model-{:05}-of-{:05}.safetensors", file + 1, self.files);
                let share: Vec<_> = all.iter().skip(file).step_by(self.files).cloned().collect();
                for tensor in &share {
                    weight_map.insert(tensor.name.clone(), name.clone().into());
                }
                self.write_file(&directory.join(&name), &share)?;
            }
            json(
                "model.safetensors.index.json",
                &serde_json::json!({"metadata": {}, "weight_map": weight_map}),
            )?;
        }
        if self.family == Family::EmbeddingGemma {
            config::write_modules(self, directory)?;
        }
        Ok(())
    }

    pub(crate) fn write_file(&self, path: &Path, tensors: &[TensorSpec]) -> io::Result<()> {
        let stored: Vec<_> = tensors
            .iter()
            .map(|tensor| StoredTensor {
                name: tensor.name.clone(),
                dtype: self.dtype.to_owned(),
                shape: tensor.shape.clone(),
            })
            .collect();
        write_safetensors(path, &stored, |index| match self.fill {
            Fill::Sparse => None,
            Fill::Random => Some(tensors::content(self, &tensors[index])),
        })
    }
}
