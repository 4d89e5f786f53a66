//! Text-related files of a checkpoint or a bundle: tokenizer, template and settings.

use std::path::Path;
#[cfg(feature = "build")]
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use serde::Deserialize;
use shardwright_bundle::{Bundle, MappedFile, TextFile};
#[cfg(feature = "build")]
use shardwright_files::room;
use shardwright_runtime::CancelHandle;
use shardwright_text::{
    ChatTemplate, Content, GenerationConfig, Message, PromptTokens, RenderOptions, StopRules, TextError,
    Tokenizer, TokenizerConfig, TokenizerLoading,
};
use shardwright_vocabulary::{Ignored, Notice};

use crate::encoding::cancellable;
use crate::{Error, ErrorKind, Result};

/// Location of the files.
enum Source {
    #[cfg(feature = "build")]
    Checkpoint {
        directory: PathBuf,
        /// Directory in which indexes of tokenizers are kept.
        indexes: Option<PathBuf>,
    },
    Bundle(Arc<Bundle>),
}

/// Time at which the tokenizer is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TokenizerStart {
    /// At once, on its own thread, in parallel with planning, compiling and loading.
    #[default]
    Beside,
    /// On first use.
    WhenAsked,
}

fn notices(ignored: &[Ignored]) -> impl Iterator<Item = Notice> + '_ {
    ignored.iter().map(|field| Notice::fallback(field.to_string()))
}

/// Tokenizer, template and settings.
pub(crate) struct TextSide {
    source: Source,
    loading: Mutex<Option<TokenizerLoading>>,
    tokenizer: OnceLock<Tokenizer>,
    template: Option<ChatTemplate>,
    pub(crate) generation: GenerationConfig,
    pub(crate) stop: StopRules,
    /// Fields without effect in all text files except the tokenizer's.
    ignored: Vec<Ignored>,
    prompt_tokens: PromptTokens,
    /// Whether a tokenizer with fields that have no effect is rejected.
    strict: bool,
}

impl TextSide {
    /// Loads the text side of a checkpoint directory.
    #[cfg(feature = "build")]
    pub(crate) fn load(directory: &Path, cache: Option<&Path>, start: TokenizerStart) -> Result<Self> {
        let indexes = cache.map(|cache| cache.join("tokenizers"));
        let loading = (start == TokenizerStart::Beside).then(|| {
            let (path, indexes) = (directory.to_owned(), indexes.clone());
            let (inside, cache) = (path.clone(), cache.map(Path::to_owned));
            Tokenizer::load_in_background(path, move || {
                let tokenizer = read_tokenizer(&inside, indexes.as_deref());
                if let Some(cache) = cache {
                    // Ignore the error: `doctor` reports a cache that exceeds its limit.
                    let _ = room::trim(&cache, room::CACHE_BYTES_MAX, |_| false);
                }
                tokenizer
            })
        });
        let generation = GenerationConfig::from_directory(directory)?;
        let ignored = [&*generation.ignored, &*TokenizerConfig::from_directory(directory)?.ignored].concat();
        Ok(TextSide {
            ignored,
            template: ChatTemplate::from_directory(directory)?,
            stop: StopRules::from_generation(&generation)?,
            generation,
            prompt_tokens: PromptTokens::from_directory(directory)?,
            source: Source::Checkpoint { directory: directory.to_owned(), indexes },
            loading: Mutex::new(loading),
            tokenizer: OnceLock::new(),
            strict: false,
        })
    }

    /// Loads the text side of a bundle, whose files are verified as they are read. `index` is the
    /// tokenizer's index if it is already mapped.
    pub(crate) fn of_bundle(
        bundle: &Arc<Bundle>,
        start: TokenizerStart,
        index: Option<MappedFile>,
    ) -> Result<Self> {
        let loading = (start == TokenizerStart::Beside).then(|| load_tokenizer(bundle, index));
        let mut texts = Vec::new();
        for &file in TextFile::ALL.iter().filter(|&&file| file != TextFile::Tokenizer) {
            if let Some(bytes) = bundle.text(file)? {
                texts.push((file.name(), bytes));
            }
        }
        let read =
            |name: &str| texts.iter().find(|(existing, _)| *existing == name).map(|(_, bytes)| bytes.clone());
        let directory = bundle.path();
        let generation = GenerationConfig::from_files(directory, read)?;
        let ignored =
            [&*generation.ignored, &*TokenizerConfig::from_files(directory, read)?.ignored].concat();
        Ok(TextSide {
            ignored,
            template: ChatTemplate::from_files(directory, read)?,
            stop: StopRules::from_generation(&generation)?,
            generation,
            prompt_tokens: PromptTokens::from_files(directory, read)?,
            loading: Mutex::new(loading),
            source: Source::Bundle(Arc::clone(bundle)),
            tokenizer: OnceLock::new(),
            strict: false,
        })
    }

    /// Sets whether a tokenizer with fields that have no effect is rejected when it is needed.
    pub(crate) fn strict(self, strict: bool) -> Self {
        TextSide { strict, ..self }
    }

    /// Returns the tokens that surround pictures and sounds, and their placeholders.
    pub(crate) fn prompt_tokens(&self) -> PromptTokens {
        self.prompt_tokens
    }

    fn directory(&self) -> &Path {
        match &self.source {
            #[cfg(feature = "build")]
            Source::Checkpoint { directory, .. } => directory,
            Source::Bundle(bundle) => bundle.path(),
        }
    }

    pub(crate) fn tokenizer(&self) -> Result<&Tokenizer> {
        if let Some(tokenizer) = self.tokenizer.get() {
            return Ok(tokenizer);
        }
        let mut loading = self.loading.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let tokenizer = match loading.take() {
            Some(loading) => loading.join()?,
            // Loading was deferred, has failed before, or another thread has just finished it.
            None => match self.tokenizer.get() {
                Some(tokenizer) => return Ok(tokenizer),
                None => match &self.source {
                    #[cfg(feature = "build")]
                    Source::Checkpoint { directory, indexes } => {
                        read_tokenizer(directory, indexes.as_deref())?
                    }
                    Source::Bundle(bundle) => load_tokenizer(bundle, None).join()?,
                },
            },
        };
        if let Some(field) = tokenizer.ignored().first().filter(|_| self.strict) {
            return Err(Error::new(ErrorKind::Strict, field.to_string()));
        }
        Ok(self.tokenizer.get_or_init(|| tokenizer))
    }

    /// Returns whether the chat template reads a variable of this name.
    pub(crate) fn template_reads(&self, variable: &str) -> bool {
        self.template.as_ref().is_some_and(|template| template.reads(variable))
    }

    /// Returns a notice for each field of the text settings that has no effect.
    pub(crate) fn notices(&self) -> impl Iterator<Item = Notice> + '_ {
        notices(&self.ignored)
    }

    /// Like [`notices`](Self::notices), but for the tokenizer's file, which it waits for.
    pub(crate) fn tokenizer_notices(&self) -> Result<impl Iterator<Item = Notice> + '_> {
        Ok(notices(self.tokenizer()?.ignored()))
    }

    pub(crate) fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// Returns the prompt of an embedding model that is prepended to a text.
    pub(crate) fn sentence_prompt(&self, name: &str) -> Result<String> {
        let path = self.directory().join(TextFile::SentenceTransformers.name());
        let fault =
            |kind, what: &dyn std::fmt::Display| Error::new(kind, format!("{}: {what}", path.display()));
        let bytes = match &self.source {
            Source::Bundle(bundle) => bundle
                .text(TextFile::SentenceTransformers)?
                .ok_or_else(|| fault(ErrorKind::Missing, &"the bundle has no prompts"))?,
            #[cfg(feature = "build")]
            Source::Checkpoint { .. } => shardwright_files::read_named(&path, SENTENCE_CONFIG_BYTES_MAX)?,
        };
        let config: SentencePrompts =
            serde_json::from_slice(&bytes).map_err(|error| fault(ErrorKind::Invalid, &error))?;
        config.prompts.get(name).cloned().ok_or_else(|| {
            let known: Vec<&str> = config.prompts.keys().map(String::as_str).collect();
            fault(ErrorKind::Argument, &format!("no prompt is named `{name}`"))
                .with_help(format!("prompts there are: {}", known.join(", ")))
        })
    }

    pub(crate) fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String> {
        Ok(self.template()?.render(messages, options)?)
    }

    /// Encodes a conversation. Only the template's control tokens are encoded as such, unless the
    /// options specify otherwise.
    pub(crate) fn encode(&self, messages: &[Message], options: &RenderOptions) -> Result<Vec<u32>> {
        Ok(self.template()?.encode(self.tokenizer()?, messages, options)?)
    }

    /// Encodes a conversation like [`encode`](Self::encode), until `cancel` is requested.
    pub(crate) fn encode_until(
        &self,
        messages: &[Message],
        options: &RenderOptions,
        cancel: &CancelHandle,
    ) -> Result<Vec<u32>> {
        let (template, tokenizer) = (self.template()?.clone(), self.tokenizer()?.clone());
        let (messages, options) = (messages.to_vec(), options.clone());
        let texts = messages.iter().filter_map(|message| message.content.as_ref());
        let bytes = texts.map(|content| match content {
            Content::Text(text) => text.len(),
            Content::Parts(parts) => {
                parts.iter().filter_map(|part| part.text.as_ref()).map(String::len).sum()
            }
        });
        cancellable(bytes.sum(), cancel, move || Ok(template.encode(&tokenizer, &messages, &options)?))
    }

    /// Encodes a text, preceded by the special tokens of the tokenizer, until `cancel` is
    /// requested.
    pub(crate) fn encode_text_until(&self, text: &str, cancel: &CancelHandle) -> Result<Vec<u32>> {
        let (tokenizer, text) = (self.tokenizer()?.clone(), text.to_owned());
        cancellable(text.len(), cancel, move || Ok(tokenizer.encode(&text, true)?))
    }

    fn template(&self) -> Result<&ChatTemplate> {
        self.template.as_ref().ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                format!("{}: the model has no chat template", self.directory().display()),
            )
            .with_help("continue plain text instead, or put a chat_template.jinja beside the checkpoint")
        })
    }
}

/// Reads a checkpoint's tokenizer, through its index if indexes are kept.
#[cfg(feature = "build")]
fn read_tokenizer(checkpoint: &Path, indexes: Option<&Path>) -> shardwright_text::Result<Tokenizer> {
    match indexes {
        Some(indexes) => Tokenizer::from_checkpoint_indexed(checkpoint, indexes),
        None => Tokenizer::from_checkpoint(checkpoint),
    }
}

fn load_tokenizer(bundle: &Arc<Bundle>, index: Option<MappedFile>) -> TokenizerLoading {
    let path = bundle.path().join(TextFile::Tokenizer.name());
    let (inside, bundle) = (path.clone(), Arc::clone(bundle));
    Tokenizer::load_in_background(path, move || {
        let fault = |source| TextError::Read { path: inside.clone(), source };
        let index = match index {
            Some(index) => Some(index),
            None => bundle.tokenizer_index().map_err(|error| fault(std::io::Error::other(error)))?,
        };
        let config =
            bundle.text(TextFile::TokenizerConfig).map_err(|error| fault(std::io::Error::other(error)))?;
        let config = TokenizerConfig::from_files(bundle.path(), |_| config.clone())?;
        let source = bundle.manifest().texts.get(&TextFile::Tokenizer);
        if let (Some(index), Some(source)) = (index, source) {
            match Tokenizer::from_index(Arc::new(index), *source.sha256.bytes(), &inside) {
                Ok(tokenizer) => return Ok(tokenizer.with_config(&config)),
                Err(error) => tracing::warn!("the bundle's tokenizer is read without its index: {error}"),
            }
        }
        match bundle.text(TextFile::Tokenizer) {
            Ok(Some(bytes)) => Ok(Tokenizer::from_bytes(&bytes, &inside)?.with_config(&config)),
            Ok(None) => {
                let missing = std::io::ErrorKind::NotFound;
                Err(fault(std::io::Error::new(missing, "the bundle has no tokenizer")))
            }
            Err(error) => Err(fault(std::io::Error::other(error))),
        }
    })
}

/// Fields of `config_sentence_transformers.json`.
#[derive(Deserialize)]
struct SentencePrompts {
    #[serde(default)]
    prompts: std::collections::BTreeMap<String, String>,
}

/// Maximum size of a `config_sentence_transformers.json`. Published ones have a few hundred bytes.
#[cfg(feature = "build")]
const SENTENCE_CONFIG_BYTES_MAX: u64 = 1 << 20;
