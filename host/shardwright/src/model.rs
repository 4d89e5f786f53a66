use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use serde::{Deserialize, Serialize};
use shardwright_build::CompiledGraphs;
use shardwright_runtime::Chain;
use shardwright_runtime::text::{
    ChatTemplate, GenerationConfig, Message, RenderOptions, Tokenizer, TokenizerLoading,
};

use crate::{Error, ErrorKind, OpenOptions, PlanReport, Result, Session};

/// A checkpoint that was planned, compiled and loaded. Cloning shares it.
#[derive(Clone)]
pub struct Model {
    inner: Arc<Inner>,
}

struct Inner {
    chain: Chain,
    plan: PlanReport,
    text: Arc<TextSide>,
    directory: PathBuf,
    broken_layer: Option<u32>,
    compiled: Vec<CompiledGraphs>,
}

/// How to make a sentence vector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EmbedOptions {
    /// A prompt of the checkpoint (`query`, `document`, …) to put in front of the text.
    pub prompt_name: Option<String>,
    /// Keep only so many values and renormalise; vectors of these models are made for that.
    pub dimensions: Option<usize>,
}

impl Model {
    pub(crate) fn open(checkpoint: &Path, options: &OpenOptions) -> Result<Self> {
        let text = TextSide::load(checkpoint)?;
        let built = crate::opening::build(checkpoint, options)?;
        Ok(Model {
            inner: Arc::new(Inner {
                chain: built.chain,
                plan: built.report,
                text: Arc::new(text),
                directory: checkpoint.to_owned(),
                broken_layer: built.broken_layer,
                compiled: built.compiled,
            }),
        })
    }

    /// A session at position 0.
    pub fn session(&self) -> Result<Session> {
        // Asked for here, so that a damaged tokenizer is an error of the first call that needs it.
        self.tokenizer()?;
        Ok(Session::new(self.inner.chain.session()?, Arc::clone(&self.inner.text)))
    }

    /// The sentence vector of `text`, of length 1; for embedding models.
    pub fn embed(&self, text: &str, options: &EmbedOptions) -> Result<Vec<f32>> {
        if self.inner.chain.is_generative() {
            return Err(Error::new(ErrorKind::Unsupported, "this model generates text and cannot embed")
                .with_help(
                    "`shardwright run` generates; embed with an embedding model such as EmbeddingGemma",
                ));
        }
        let mut prompt = match &options.prompt_name {
            Some(name) => sentence_prompt(&self.inner.directory, name)?,
            None => String::new(),
        };
        prompt.push_str(text);
        let ids = self.tokenizer()?.encode(&prompt, true)?;
        let mut vector = self.inner.chain.session()?.encode(&ids)?;
        if let Some(dimensions) = options.dimensions {
            if dimensions == 0 || dimensions > vector.len() {
                return Err(Error::new(
                    ErrorKind::Argument,
                    format!("{dimensions} of {} values cannot be kept", vector.len()),
                ));
            }
            vector.truncate(dimensions);
            let norm = vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt().max(1e-12);
            vector.iter_mut().for_each(|value| *value = (f64::from(*value) / norm) as f32);
        }
        Ok(vector)
    }

    /// The plan it was built by, with everything that was done in another way than asked.
    pub fn plan(&self) -> &PlanReport {
        &self.inner.plan
    }

    /// The loaded shards.
    pub fn chain(&self) -> &Chain {
        &self.inner.chain
    }

    /// The tokenizer. Waits until it is loaded.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.inner.text.tokenizer()
    }

    /// A conversation through the checkpoint's chat template.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String> {
        self.inner.text.render(messages, options)
    }

    /// What each shard was compiled from; empty unless it was opened with taps.
    pub(crate) fn compiled(&self) -> &[CompiledGraphs] {
        &self.inner.compiled
    }

    pub(crate) fn broken_layer(&self) -> Option<u32> {
        self.inner.broken_layer
    }
}

/// What a checkpoint brings for text. The tokenizer loads on its own thread, beside planning and compiling.
pub(crate) struct TextSide {
    directory: PathBuf,
    loading: Mutex<Option<TokenizerLoading>>,
    tokenizer: OnceLock<Tokenizer>,
    template: Option<ChatTemplate>,
    pub(crate) generation: GenerationConfig,
}

impl TextSide {
    fn load(directory: &Path) -> Result<Self> {
        if !directory.is_dir() {
            return Err(Error::new(
                ErrorKind::Missing,
                format!("{}: not a checkpoint directory", directory.display()),
            )
            .with_help("name a directory that holds config.json, *.safetensors and tokenizer.json"));
        }
        let loading = Tokenizer::load_in_background(directory.join("tokenizer.json"));
        Ok(TextSide {
            template: ChatTemplate::from_directory(directory)?,
            generation: GenerationConfig::from_directory(directory)?,
            directory: directory.to_owned(),
            loading: Mutex::new(Some(loading)),
            tokenizer: OnceLock::new(),
        })
    }

    pub(crate) fn tokenizer(&self) -> Result<&Tokenizer> {
        if let Some(tokenizer) = self.tokenizer.get() {
            return Ok(tokenizer);
        }
        let mut loading = self.loading.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let tokenizer = match loading.take() {
            Some(loading) => loading.join()?,
            // It failed before, or another thread has just set it.
            None => match self.tokenizer.get() {
                Some(tokenizer) => return Ok(tokenizer),
                None => Tokenizer::from_file(self.directory.join("tokenizer.json"))?,
            },
        };
        Ok(self.tokenizer.get_or_init(|| tokenizer))
    }

    pub(crate) fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String> {
        let template = self.template.as_ref().ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                format!("{}: the checkpoint has no chat template", self.directory.display()),
            )
            .with_help("continue plain text instead, or put a chat_template.jinja beside the checkpoint")
        })?;
        Ok(template.render(messages, options)?)
    }
}

/// `config_sentence_transformers.json`
#[derive(Deserialize, Serialize)]
struct SentencePrompts {
    #[serde(default)]
    prompts: std::collections::BTreeMap<String, String>,
}

/// Largest `config_sentence_transformers.json` read; published ones have a few hundred bytes.
const SENTENCE_CONFIG_BYTES_MAX: u64 = 1 << 20;

fn sentence_prompt(directory: &Path, name: &str) -> Result<String> {
    let path = directory.join("config_sentence_transformers.json");
    let fault = |kind, what: &dyn std::fmt::Display| Error::new(kind, format!("{}: {what}", path.display()));
    let length = std::fs::metadata(&path).map_err(|error| fault(ErrorKind::Missing, &error))?.len();
    if length > SENTENCE_CONFIG_BYTES_MAX {
        return Err(fault(ErrorKind::Invalid, &format!("{length} bytes are too many")));
    }
    let bytes = std::fs::read(&path).map_err(|error| fault(ErrorKind::Missing, &error))?;
    let config: SentencePrompts =
        serde_json::from_slice(&bytes).map_err(|error| fault(ErrorKind::Invalid, &error))?;
    config.prompts.get(name).cloned().ok_or_else(|| {
        let known: Vec<&str> = config.prompts.keys().map(String::as_str).collect();
        fault(ErrorKind::Argument, &format!("no prompt is named `{name}`"))
            .with_help(format!("prompts there are: {}", known.join(", ")))
    })
}
