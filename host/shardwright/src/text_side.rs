//! Text-related files of a checkpoint or a bundle: tokenizer, template and settings.

use std::io;
use std::path::Path;
#[cfg(feature = "build")]
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use shardwright_bundle::{Bundle, MappedFile, TextFile};
#[cfg(feature = "constraint")]
use shardwright_constraint::{Constraint, Grammar, Vocabulary};
#[cfg(feature = "build")]
use shardwright_files::eviction;
use shardwright_runtime::CancelHandle;
use shardwright_text::{
    CallFamily, CallFormat, ChatTemplate, GenerationConfig, Message, PromptTokens, RenderOptions,
    SentenceConfig, StopRules, Tokenizer, TokenizerConfig, TokenizerLoading,
};
use shardwright_vocabulary::{Ignored, Notice};

use crate::ignored_fields::{IgnoredFields, notice_of};
use crate::towers::consume;
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

/// Tokenizer, template and settings.
pub(crate) struct TextSide {
    source: Source,
    loading: Mutex<Option<TokenizerLoading>>,
    tokenizer: OnceLock<Tokenizer>,
    /// The tokens as grammars need them, once a reply had a grammar.
    #[cfg(feature = "constraint")]
    vocabulary: OnceLock<Vocabulary>,
    template: Option<ChatTemplate>,
    pub(crate) generation: GenerationConfig,
    pub(crate) stop: StopRules,
    /// Prompts of an embedding model.
    sentence: Option<SentenceConfig>,
    /// Fields without effect in all text files except the tokenizer's.
    ignored: Vec<Ignored>,
    prompt_tokens: PromptTokens,
}

impl TextSide {
    /// Loads the text side of a checkpoint directory. The tokenizer's index is kept in `cache`. The
    /// files there that can be made again have at most `limit` bytes.
    #[cfg(feature = "build")]
    pub(crate) fn load(
        directory: &Path,
        cache: Option<&Path>,
        limit: u64,
        start: TokenizerStart,
    ) -> Result<Self> {
        let indexes = cache.map(|cache| cache.join("tokenizers"));
        let loading = (start == TokenizerStart::Beside).then(|| {
            let (path, indexes) = (directory.to_owned(), indexes.clone());
            let (inside, cache) = (path.clone(), cache.map(Path::to_owned));
            Tokenizer::load_in_background(path, move || {
                let tokenizer = read_tokenizer(&inside, indexes.as_deref());
                if let Some(cache) = cache {
                    // Ignore the error: `doctor` reports a cache that exceeds its limit.
                    let _ = eviction::trim(&cache, limit, |_| false);
                }
                tokenizer
            })
        });
        let generation = GenerationConfig::from_directory(directory)?;
        let sentence = SentenceConfig::from_directory(directory)?;
        let of_sentences = sentence.as_ref().map_or(&[][..], |config| config.ignored.as_slice());
        let tokenizer = TokenizerConfig::from_directory(directory)?;
        Ok(TextSide {
            ignored: [&*generation.ignored, &*tokenizer.ignored, of_sentences].concat(),
            sentence,
            template: ChatTemplate::from_directory(directory)?,
            stop: StopRules::from_generation(&generation)?,
            generation,
            prompt_tokens: PromptTokens::from_directory(directory)?,
            source: Source::Checkpoint { directory: directory.to_owned(), indexes },
            loading: Mutex::new(loading),
            tokenizer: OnceLock::new(),
            #[cfg(feature = "constraint")]
            vocabulary: OnceLock::new(),
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
        let sentence = SentenceConfig::from_files(directory, read)?;
        let of_sentences = sentence.as_ref().map_or(&[][..], |config| config.ignored.as_slice());
        let tokenizer = TokenizerConfig::from_files(directory, read)?;
        Ok(TextSide {
            ignored: [&*generation.ignored, &*tokenizer.ignored, of_sentences].concat(),
            sentence,
            template: ChatTemplate::from_files(directory, read)?,
            stop: StopRules::from_generation(&generation)?,
            generation,
            prompt_tokens: PromptTokens::from_files(directory, read)?,
            loading: Mutex::new(loading),
            source: Source::Bundle(Arc::clone(bundle)),
            tokenizer: OnceLock::new(),
            #[cfg(feature = "constraint")]
            vocabulary: OnceLock::new(),
        })
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
        Ok(self.tokenizer.get_or_init(|| tokenizer))
    }

    /// Compiles a grammar for the tokens of the model, which are prepared at the first call.
    #[cfg(feature = "constraint")]
    pub(crate) fn constraint(&self, grammar: &Grammar) -> Result<Constraint> {
        let vocabulary = match self.vocabulary.get() {
            Some(vocabulary) => vocabulary,
            None => {
                let vocabulary = Vocabulary::new(self.tokenizer()?)?;
                self.vocabulary.get_or_init(|| vocabulary)
            }
        };
        Constraint::new(vocabulary, grammar)
    }

    /// Returns whether the chat template reads a variable of this name.
    pub(crate) fn template_reads(&self, variable: &str) -> bool {
        self.template.as_ref().is_some_and(|template| template.reads(variable))
    }

    /// Returns how the model writes calls of tools.
    pub(crate) fn call_format(&self) -> Result<CallFormat> {
        let template = self.template()?;
        if !template.reads("tools") {
            let what = format!("{}: the chat template does not describe tools", self.directory().display());
            return Err(Error::new(ErrorKind::Unsupported, what).with_help(
                "use a model that was trained to call tools, or describe them in the system turn",
            ));
        }
        template.call_format(self.tokenizer()?).ok_or_else(|| {
            let names: Vec<&str> = CallFamily::ALL.iter().map(|family| family.name()).collect();
            let what =
                format!("{}: unknown format of calls in the chat template", self.directory().display());
            Error::new(ErrorKind::Unsupported, what)
                .with_help(format!("use a model with one of these formats: {}", names.join(", ")))
        })
    }

    /// Returns a notice for each field of the text settings that has no effect.
    pub(crate) fn notices(&self) -> impl Iterator<Item = Notice> + '_ {
        self.ignored.iter().map(notice_of)
    }

    /// Returns the fields of all text files that have no effect. Waits until the tokenizer is
    /// loaded. A missing tokenizer has no fields.
    pub(crate) fn ignored_fields(&self) -> IgnoredFields {
        let mut fields = self.ignored.clone();
        let unread = match self.tokenizer() {
            Ok(tokenizer) => {
                fields.extend_from_slice(tokenizer.ignored());
                None
            }
            Err(error) => Some(error).filter(|error| !error.is_not_found()),
        };
        IgnoredFields { fields, unread }
    }

    pub(crate) fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// Returns the prompt of an embedding model that is prepended to a text: the named one, or the
    /// checkpoint's default. An empty name selects none.
    pub(crate) fn sentence_prompt(&self, name: Option<&str>) -> Result<&str> {
        let Some(name) = name else {
            return Ok(self.sentence.as_ref().map_or("", SentenceConfig::default_prompt));
        };
        if name.is_empty() {
            return Ok("");
        }
        let path = self.directory().join(TextFile::SentenceTransformers.name());
        let fault = |kind, what: &str| Error::new(kind, format!("{}: {what}", path.display()));
        let Some(config) = &self.sentence else {
            return Err(fault(ErrorKind::Missing, "no such file, so the model has no prompts")
                .with_help("download the file, or embed without a named prompt"));
        };
        config.prompts.get(name).map(String::as_str).ok_or_else(|| {
            let known: Vec<&str> = config.prompts.keys().map(String::as_str).collect();
            fault(ErrorKind::Argument, &format!("no prompt is named `{name}`"))
                .with_help(format!("available prompts: {}", known.join(", ")))
        })
    }

    pub(crate) fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String> {
        self.template()?.render(messages, options)
    }

    /// Encodes a conversation. Only the template's control tokens are encoded as such, unless the
    /// options specify otherwise.
    pub(crate) fn encode(&self, messages: &[Message], options: &RenderOptions) -> Result<Vec<u32>> {
        self.template()?.encode(self.tokenizer()?, messages, options)
    }

    /// Encodes a conversation like [`encode`](Self::encode), until `cancel` is requested.
    pub(crate) fn encode_until(
        &self,
        messages: &[Message],
        options: &RenderOptions,
        cancel: &CancelHandle,
    ) -> Result<Vec<u32>> {
        let (template, tokenizer) = (self.template()?, self.tokenizer()?);
        let ids = template.encode_until(tokenizer, messages, options, || cancel.is_requested());
        ids.inspect_err(|error| consume(error, cancel))
    }

    /// Encodes a text, preceded by the special tokens of the tokenizer, until `cancel` is
    /// requested.
    pub(crate) fn encode_text_until(&self, text: &str, cancel: &CancelHandle) -> Result<Vec<u32>> {
        self.encode_plain(text, true, || cancel.is_requested()).inspect_err(|error| consume(error, cancel))
    }

    /// Encodes a text until `cancelled` returns true. With `add_special`, adds the special tokens
    /// of the tokenizer.
    pub(crate) fn encode_plain(
        &self,
        text: &str,
        add_special: bool,
        cancelled: impl Fn() -> bool,
    ) -> Result<Vec<u32>> {
        self.tokenizer()?.encode_until(text, add_special, cancelled)
    }

    fn template(&self) -> Result<&ChatTemplate> {
        self.template.as_ref().ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                format!("{}: the model has no chat template", self.directory().display()),
            )
            .with_help("continue plain text instead, or put a chat_template.jinja next to the checkpoint")
        })
    }
}

/// Reads a checkpoint's tokenizer, through its index if indexes are kept.
#[cfg(feature = "build")]
fn read_tokenizer(checkpoint: &Path, indexes: Option<&Path>) -> Result<Tokenizer> {
    match indexes {
        Some(indexes) => Tokenizer::from_checkpoint_indexed(checkpoint, indexes),
        None => Tokenizer::from_checkpoint(checkpoint),
    }
}

fn load_tokenizer(bundle: &Arc<Bundle>, index: Option<MappedFile>) -> TokenizerLoading {
    let path = bundle.path().join(TextFile::Tokenizer.name());
    let (inside, bundle) = (path.clone(), Arc::clone(bundle));
    Tokenizer::load_in_background(path, move || {
        let index = match index {
            Some(index) => Some(index),
            None => bundle.tokenizer_index()?,
        };
        let mut texts = Vec::new();
        for file in [TextFile::TokenizerConfig, TextFile::SpecialTokensMap, TextFile::AddedTokens] {
            texts.extend(bundle.text(file)?.map(|bytes| (file.name(), bytes)));
        }
        let config = TokenizerConfig::from_files(bundle.path(), |name| {
            texts.iter().find(|(existing, _)| *existing == name).map(|(_, bytes)| bytes.clone())
        })?;
        let source = bundle.manifest().texts.get(&TextFile::Tokenizer);
        if let (Some(index), Some(source)) = (index, source) {
            match Tokenizer::from_index(Arc::new(index), *source.sha256.bytes(), &inside) {
                Ok(tokenizer) => return tokenizer.with_config(&config),
                Err(error) => tracing::warn!("the bundle's tokenizer is read without its index: {error}"),
            }
        }
        match bundle.text(TextFile::Tokenizer)? {
            Some(bytes) => Tokenizer::from_bytes(&bytes, &inside)?.with_config(&config),
            None => {
                let missing = io::Error::new(io::ErrorKind::NotFound, "the bundle has no tokenizer");
                Err(Error::from(missing).at(inside.display()))
            }
        }
    })
}
