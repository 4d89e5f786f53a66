//! Model families, and the values of `model_type` that select them.

use serde::Serialize;

/// A model architecture that this crate can translate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Family {
    /// Gemma 3 text, and the text part of its multimodal checkpoints.
    Gemma3,
    /// Gemma 4 text, and the text part of its multimodal checkpoints.
    Gemma4,
    /// Llama 2 and 3, SmolLM2, TinyLlama.
    Llama,
    SmolLM3,
    /// Mistral and Ministral.
    Mistral,
    /// Qwen 2 and 2.5.
    Qwen2,
    /// Qwen 3.
    Qwen3,
    /// Granite 3, and Granite 4 without experts and recurrent layers.
    Granite,
    /// Phi 3, Phi 3.5 and Phi 4 mini.
    Phi3,
    /// EmbeddingGemma, which turns a text into one vector.
    EmbeddingGemma,
    /// EmbeddingGemma 2. Only its text part is supported.
    EmbeddingGemma2,
}

impl Family {
    /// The supported values of `model_type`. The first EmbeddingGemma has no value of its own: it
    /// is a `gemma3_text` that has bidirectional attention, or sentence-transformers modules in its
    /// folder.
    pub(crate) const MODEL_TYPES: [(&'static str, Family); 15] = [
        ("gemma3", Family::Gemma3),
        ("gemma3_text", Family::Gemma3),
        ("gemma4", Family::Gemma4),
        ("gemma4_text", Family::Gemma4),
        ("embedding_gemma2", Family::EmbeddingGemma2),
        ("embedding_gemma2_text", Family::EmbeddingGemma2),
        ("llama", Family::Llama),
        ("smollm3", Family::SmolLM3),
        ("mistral", Family::Mistral),
        ("ministral", Family::Mistral),
        ("qwen2", Family::Qwen2),
        ("qwen3", Family::Qwen3),
        ("granite", Family::Granite),
        ("granitemoehybrid", Family::Granite),
        ("phi3", Family::Phi3),
    ];

    /// Returns the name in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Family::Gemma3 => "gemma3",
            Family::Gemma4 => "gemma4",
            Family::Llama => "llama",
            Family::SmolLM3 => "smollm3",
            Family::Mistral => "mistral",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
            Family::Granite => "granite",
            Family::Phi3 => "phi3",
            Family::EmbeddingGemma => "embeddinggemma",
            Family::EmbeddingGemma2 => "embeddinggemma2",
        }
    }
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
