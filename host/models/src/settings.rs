//! Selects the family by `model_type` and reads its settings.

use shardwright_vocabulary::{Error, Pass, Result};

use crate::embeddinggemma::SentenceModel;
use crate::family::Family;
use crate::gemma3::Gemma3;
use crate::gemma4::Gemma4;
use crate::json::{Fields, MODULES_FILE, shortened, unsupported_field};
use crate::prenorm::PreNorm;
use crate::source::Source;
use crate::towers::Towers;

/// The `model_type` of checkpoints that may have towers.
pub(crate) const WITH_TOWERS: &str = "gemma4";

/// Checked settings of a checkpoint.
pub(crate) enum Settings {
    Gemma3 { stack: Gemma3, redirect: Vec<(u32, u32)> },
    Gemma4 { stack: Gemma4, placeholders: Vec<u32>, towers: Towers },
    PreNorm(PreNorm),
    EmbeddingGemma { stack: Gemma3, sentence: SentenceModel },
    EmbeddingGemma2 { stack: Gemma4, placeholders: Vec<u32>, sentence: SentenceModel },
}

impl Settings {
    /// Finds the family and checks everything it reads: the configuration and, for a sentence
    /// model, its modules.
    ///
    /// Only the towers of `passes` are read. A family without towers refuses every pass except a
    /// step.
    pub fn read(source: &Source, top: Fields<'_>, passes: &[Pass]) -> Result<Self> {
        let model_type = top.text("model_type")?.ok_or_else(|| top.invalid("model_type", "is missing"))?;
        let known = Family::MODEL_TYPES.into_iter().find(|(name, _)| *name == model_type);
        let Some((_, family)) = known else {
            let found: String = model_type.chars().take(80).collect();
            let known: Vec<&str> = Family::MODEL_TYPES.iter().map(|(name, _)| *name).collect();
            return Err(Error::unsupported(format!("model_type `{found}` is not supported"))
                .at(top.path().display())
                .with_help(format!("supported model types: {}", known.join(", "))));
        };
        let tower = passes.iter().find(|pass| **pass != Pass::Step);
        if let Some(&pass) = tower.filter(|_| model_type != WITH_TOWERS) {
            return Err(Error::unsupported(format!("this family has no tower for a {pass}"))
                .at(top.path().display())
                .with_help(
                    "use a `gemma4` checkpoint: only this family has towers for pictures and sounds",
                ));
        }
        check_architectures(top)?;
        let text = text_fields(top, model_type)?;
        // In a multimodal checkpoint, the field at the top level decides, and not the text part's.
        let tied = if model_type.ends_with("_text") { None } else { top.flag("tie_word_embeddings")? };
        match family {
            Family::Gemma3 | Family::EmbeddingGemma => {
                let mut stack = Gemma3::read(text)?;
                stack.tied = tied.unwrap_or(stack.tied);
                let sentence = match source {
                    Source::Folder(folder) => SentenceModel::read(folder, stack.dimensions.hidden)?,
                    // Modules next to a GGUF file belong to a different checkpoint.
                    Source::Gguf(_) if stack.bidirectional => {
                        Some(SentenceModel::of_gguf(text, stack.dimensions.hidden)?)
                    }
                    Source::Gguf(_) => None,
                };
                let redirect = gemma3_redirect(top, model_type, &stack)?;
                Ok(match sentence {
                    Some(sentence) => Settings::EmbeddingGemma { stack, sentence },
                    None if stack.bidirectional => {
                        Settings::EmbeddingGemma { stack, sentence: SentenceModel::mean_only() }
                    }
                    None => Settings::Gemma3 { stack, redirect },
                })
            }
            Family::Gemma4 => {
                refuse_modules(source)?;
                let mut stack = Gemma4::read(text)?;
                stack.tied = tied.unwrap_or(stack.tied);
                let placeholders = gemma4_placeholders(top, model_type)?;
                let towers = Towers::read(top, passes, stack.dimensions.hidden)?;
                Ok(Settings::Gemma4 { stack, placeholders, towers })
            }
            Family::EmbeddingGemma2 => {
                let stack = Gemma4::read_encoder(text)?;
                let width = stack.projection.unwrap_or(stack.dimensions.hidden);
                let sentence = match source {
                    Source::Folder(folder) => SentenceModel::read(folder, width)?,
                    Source::Gguf(_) => None,
                };
                let sentence = sentence.unwrap_or_else(SentenceModel::mean_only);
                let placeholders = gemma4_placeholders(top, model_type)?;
                Ok(Settings::EmbeddingGemma2 { stack, placeholders, sentence })
            }
            Family::Llama
            | Family::SmolLM3
            | Family::Mistral
            | Family::Qwen2
            | Family::Qwen3
            | Family::Granite
            | Family::Phi3 => {
                refuse_modules(source)?;
                Ok(Settings::PreNorm(PreNorm::read(text, family)?))
            }
        }
    }

    /// Returns the modules of a sentence model.
    pub fn sentence(&self) -> Option<&SentenceModel> {
        match self {
            Settings::EmbeddingGemma { sentence, .. } | Settings::EmbeddingGemma2 { sentence, .. } => {
                Some(sentence)
            }
            Settings::Gemma3 { .. } | Settings::Gemma4 { .. } | Settings::PreNorm(_) => None,
        }
    }

    pub fn family(&self) -> Family {
        match self {
            Settings::Gemma3 { .. } => Family::Gemma3,
            Settings::Gemma4 { .. } => Family::Gemma4,
            Settings::PreNorm(stack) => stack.family,
            Settings::EmbeddingGemma { .. } => Family::EmbeddingGemma,
            Settings::EmbeddingGemma2 { .. } => Family::EmbeddingGemma2,
        }
    }
}

/// Refuses heads other than logits or a bare stack, such as classifiers.
fn check_architectures(top: Fields<'_>) -> Result<()> {
    let name = "architectures";
    for architecture in top.list(name)?.unwrap_or_default() {
        let Some(word) = architecture.as_str() else {
            return Err(top.invalid(name, "has an entry that is not a string"));
        };
        if !["ForCausalLM", "ForConditionalGeneration", "Model"].iter().any(|end| word.ends_with(end)) {
            let supported = "…ForCausalLM, …ForConditionalGeneration, …Model";
            return Err(unsupported_field(top.path(), name, shortened(architecture), supported));
        }
    }
    Ok(())
}

/// Returns the object with the text model's settings: the file itself, or `text_config` in a
/// multimodal file.
pub(crate) fn text_fields<'a>(top: Fields<'a>, model_type: &str) -> Result<Fields<'a>> {
    if !matches!(model_type, "gemma3" | "gemma4" | "embedding_gemma2") {
        return Ok(top);
    }
    let text = top.object("text_config")?.ok_or_else(|| top.invalid("text_config", "is missing"))?;
    // Libraries specify it for the whole checkpoint.
    text.must_be_off(crate::quantised::FIELD)?;
    match text.text("model_type")? {
        Some(inner) if inner != format!("{model_type}_text") => {
            Err(text.invalid("model_type", format!("is `{inner}` inside of a `{model_type}`")))
        }
        _ => Ok(text),
    }
}

/// Refuses sentence modules, which are supported for one family only. Ignoring them would give
/// wrong vectors.
fn refuse_modules(source: &Source) -> Result<()> {
    let Source::Folder(folder) = source else { return Ok(()) };
    let path = folder.join(MODULES_FILE);
    if !path.exists() {
        return Ok(());
    }
    Err(Error::unsupported("sentence-transformers models of this family are not supported")
        .at(path.display())
        .with_help("supported: sentence-transformers models over `gemma3_text` or `embedding_gemma2`"))
}

/// Reads a token id, under either of its names. The library's default applies if the file has
/// neither.
fn token_id(top: Fields<'_>, names: [&str; 2], default: Option<u32>) -> Result<Option<u32>> {
    for name in names {
        if let Some(id) = top.whole(name, &(0..=u64::from(u32::MAX)))? {
            return Ok(Some(id as u32));
        }
    }
    Ok(default.filter(|_| !names.iter().any(|name| top.mentions(name))))
}

/// Returns the redirected placeholder. Gemma 3 embeds its picture placeholder as itself unless the
/// table has no row for it.
fn gemma3_redirect(top: Fields<'_>, model_type: &str, stack: &Gemma3) -> Result<Vec<(u32, u32)>> {
    let default = (model_type == "gemma3").then_some(262_144);
    let image = token_id(top, ["image_token_id", "image_token_index"], default)?;
    Ok(image
        .filter(|&id| u64::from(id) >= stack.dimensions.vocabulary)
        .map(|id| (id, 0))
        .into_iter()
        .collect())
}

/// Returns the placeholders. Gemma 4 never embeds a placeholder as itself.
fn gemma4_placeholders(top: Fields<'_>, model_type: &str) -> Result<Vec<u32>> {
    let names = [
        (["image_token_id", "image_token_index"], 258_880),
        (["audio_token_id", "audio_token_index"], 258_881),
        (["video_token_id", "video_token_index"], 258_884),
    ];
    let mut found = Vec::new();
    for (names, default) in names {
        // A text-only checkpoint has placeholders only if it specifies them.
        let default = (!model_type.ends_with("_text")).then_some(default);
        found.extend(token_id(top, names, default)?);
    }
    Ok(found)
}
