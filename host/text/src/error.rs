//! The one error type of the crate.

use shardwright_gguf::GgufError;
use shardwright_vocabulary::ErrorKind;
use std::path::PathBuf;

/// Result of the functions of this crate.
pub type Result<T, E = TextError> = std::result::Result<T, E>;

/// An error in text, a template, a sampling parameter or one of their files.
///
/// *Invalid* input violates its own format, *unsupported* input is well formed but requests
/// something this crate does not implement; the two are kept apart. [`TextError::help`] suggests a
/// remedy, where one is known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file is larger than its cap.
    #[error("{} is larger than {max} bytes", path.display())]
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// The cap.
        max: u64,
    },
    /// A file or a prompt is not UTF-8.
    #[error("{origin} is not UTF-8 text: the first bad byte is at offset {offset}")]
    NotUtf8 {
        /// The file, or the purpose of the text.
        origin: String,
        /// Bytes before the first bad one.
        offset: usize,
    },
    /// A file is not JSON, or not of the expected shape.
    #[error("{} is not valid JSON: {reason} at line {line}, column {column}", path.display())]
    InvalidJson {
        /// The file.
        path: PathBuf,
        /// The parser's message.
        reason: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
    },
    /// JSON is nested deeper than any file of this kind needs.
    #[error("{} nests deeper than {max} levels at offset {offset}", path.display())]
    JsonTooDeep {
        /// The file.
        path: PathBuf,
        /// The cap.
        max: usize,
        /// Byte at which the cap was passed.
        offset: usize,
    },
    /// A named field has a value of the wrong type or out of range.
    #[error("{}: `{field}` should be {expected}, but is {found}", path.display())]
    InvalidField {
        /// The file.
        path: PathBuf,
        /// The field, with dots between levels.
        field: String,
        /// What was expected.
        expected: &'static str,
        /// The value found, shortened.
        found: String,
    },
    /// `tokenizer.json` does not describe a working tokenizer.
    #[error("{} is not a valid tokenizer: {reason}", path.display())]
    InvalidTokenizer {
        /// The file.
        path: PathBuf,
        /// The tokenizer library's message.
        reason: String,
    },
    /// `tokenizer.json` requests something that has no place in inference.
    #[error("{} asks for {what}, which is not supported", path.display())]
    UnsupportedTokenizer {
        /// The file.
        path: PathBuf,
        /// The feature.
        what: &'static str,
    },
    /// A GGUF file's metadata has a value that is not supported.
    #[error("{}: metadata `{key}` is {found}, which is not supported", path.display())]
    UnsupportedGguf {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// Its value, shortened.
        found: String,
        /// What is supported instead.
        supported: String,
    },
    /// A GGUF file is damaged, or its metadata have another form.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The thread that loads a tokenizer could not be started, or died.
    #[error("cannot load {} on a thread of its own: {reason}", path.display())]
    LoadingThread {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A text to encode is longer than the cap.
    #[error("the text has {bytes} bytes; at most {max} are encoded at once")]
    TextTooLong {
        /// Its length.
        bytes: usize,
        /// The cap.
        max: usize,
    },
    /// The tokenizer failed on a text.
    #[error("the tokenizer {} cannot encode the text: {reason}", path.display())]
    Encode {
        /// The tokenizer's file.
        path: PathBuf,
        /// The tokenizer library's message.
        reason: String,
    },
    /// The tokenizer failed on ids.
    #[error("the tokenizer {} cannot decode the ids: {reason}", path.display())]
    Decode {
        /// The tokenizer's file.
        path: PathBuf,
        /// The tokenizer library's message.
        reason: String,
    },
    /// The list of templates has no template of that name.
    #[error("{} has no chat template named `{name}`; it has {}", path.display(), available.join(", "))]
    NoSuchTemplate {
        /// The file.
        path: PathBuf,
        /// The name looked for.
        name: String,
        /// The existing names.
        available: Vec<String>,
    },
    /// A chat template does not parse.
    #[error("chat template {}, line {line}: {reason}", path.display())]
    InvalidTemplate {
        /// The file.
        path: PathBuf,
        /// Line of the template, from 1; 0 if unknown.
        line: usize,
        /// The engine's message.
        reason: String,
    },
    /// A chat template uses a filter, test, function, method or directive that this crate lacks.
    #[error("chat template {}, line {line}: {what} is not supported", path.display())]
    UnsupportedTemplate {
        /// The file.
        path: PathBuf,
        /// Line of the template, from 1; 0 if unknown.
        line: usize,
        /// The feature.
        what: String,
    },
    /// A chat template failed while it ran, for example on an undefined value.
    #[error("chat template {}, line {line}: {reason}", path.display())]
    TemplateFailed {
        /// The file.
        path: PathBuf,
        /// Line of the template, from 1; 0 if unknown.
        line: usize,
        /// The engine's message.
        reason: String,
    },
    /// A chat template refused the conversation with `raise_exception`.
    #[error("chat template {} refuses the conversation: {message}", path.display())]
    TemplateRaised {
        /// The file.
        path: PathBuf,
        /// The template's message.
        message: String,
    },
    /// A chat template ran for too many steps.
    #[error("chat template {} did not end within {fuel} steps", path.display())]
    TemplateOutOfFuel {
        /// The file.
        path: PathBuf,
        /// The limit.
        fuel: u64,
    },
    /// A chat template took too long.
    #[error("chat template {} did not end within {seconds} s", path.display())]
    TemplateTooSlow {
        /// The file.
        path: PathBuf,
        /// The limit.
        seconds: u64,
    },
    /// A chat template wrote or built more text than any prompt needs.
    #[error("chat template {} builds more than {max} {unit}", path.display())]
    TemplateTooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        max: u64,
        /// The unit of the limit.
        unit: &'static str,
    },
    /// A stop string is empty, too long, or one too many.
    #[error("stop string {index} {reason}")]
    InvalidStopString {
        /// Its index in the list, from 0.
        index: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A sampling parameter is out of range.
    #[error("`{name}` should be {expected}, but is {value}")]
    InvalidSampling {
        /// The parameter.
        name: &'static str,
        /// The allowed range.
        expected: &'static str,
        /// The value passed.
        value: f64,
    },
    /// A row of logits contains a value that is not a finite number.
    #[error("the logit of token {id} is {value}")]
    LogitNotFinite {
        /// The token.
        id: usize,
        /// NaN or an infinity.
        value: f32,
    },
    /// A row of logits is empty, or longer than an id can count.
    #[error("a row of {length} logits has no token to choose")]
    NoLogits {
        /// Its length.
        length: usize,
    },
    /// The rules of the checkpoint exclude every token.
    #[error("the rules of `generation_config.json` leave no token to follow {tokens} tokens")]
    NoTokenLeft {
        /// Tokens of prompt and reply so far.
        tokens: usize,
    },
}

impl TextError {
    /// What the user can do about it, for a `help:` line.
    pub fn help(&self) -> Option<String> {
        Some(match self {
            TextError::Read { path, .. } => {
                format!("check that {} exists and can be read", path.display())
            }
            TextError::FileTooLarge { .. } => {
                "no published checkpoint needs that much; is it the right file?".into()
            }
            TextError::NotUtf8 { .. } => "save the text as UTF-8".into(),
            TextError::InvalidJson { .. } | TextError::JsonTooDeep { .. } => {
                "download the file again; it may be truncated, or a pointer to a file in large-file storage"
                    .into()
            }
            TextError::InvalidField { field, .. } => {
                format!("correct `{field}`, or remove it to use the default")
            }
            TextError::InvalidTokenizer { .. } => {
                "save the tokenizer again with a `tokenizers` release of the 0.2x line".into()
            }
            TextError::UnsupportedGguf { supported, .. } => format!("supported: {supported}"),
            TextError::Gguf(error) => return error.help().map(str::to_owned),
            TextError::UnsupportedTokenizer { .. } => "remove the setting from the file".into(),
            TextError::LoadingThread { .. } => "load the tokenizer on the calling thread instead".into(),
            TextError::TextTooLong { .. } => "shorten the text, or encode it in parts".into(),
            TextError::NoSuchTemplate { available, .. } => match available.first() {
                Some(name) => format!("ask for one of the templates there are, for example `{name}`"),
                None => "give the prompt without a chat template".into(),
            },
            TextError::InvalidTemplate { .. } | TextError::UnsupportedTemplate { .. } => {
                "put a corrected chat_template.jinja beside the checkpoint; it takes precedence".into()
            }
            TextError::TemplateFailed { .. } | TextError::TemplateRaised { .. } => {
                "check the roles and contents of the messages against what the template expects".into()
            }
            TextError::TemplateOutOfFuel { .. }
            | TextError::TemplateTooSlow { .. }
            | TextError::TemplateTooLarge { .. } => {
                "shorten the conversation; if it is short already, the template is at fault".into()
            }
            TextError::InvalidStopString { .. } => format!(
                "give at most {} stop strings of 1 to {} bytes",
                crate::STOP_STRINGS_MAX,
                crate::STOP_STRING_BYTES_MAX
            ),
            TextError::InvalidSampling { name, expected, .. } => format!("set `{name}` to {expected}"),
            TextError::LogitNotFinite { .. } => {
                "the model's arithmetic overflowed: run `shardwright verify` to find the first bad layer"
                    .into()
            }
            TextError::NoTokenLeft { .. } => {
                "remove `suppress_tokens`, `bad_words_ids` or `no_repeat_ngram_size` from the file".into()
            }
            TextError::Encode { .. } | TextError::Decode { .. } | TextError::NoLogits { .. } => return None,
        })
    }
}

/// What an application can do about it.
impl From<TextError> for shardwright_vocabulary::Error {
    fn from(error: TextError) -> Self {
        let kind = match &error {
            TextError::Read { .. } => ErrorKind::Missing,
            TextError::UnsupportedTokenizer { .. } | TextError::UnsupportedTemplate { .. } => {
                ErrorKind::Unsupported
            }
            TextError::InvalidStopString { .. }
            | TextError::InvalidSampling { .. }
            | TextError::NotUtf8 { .. }
            | TextError::TextTooLong { .. }
            | TextError::NoSuchTemplate { .. } => ErrorKind::Argument,
            TextError::LoadingThread { .. } => ErrorKind::Internal,
            _ => ErrorKind::Invalid,
        };
        let help = error.help();
        shardwright_vocabulary::Error::caused_by(kind, error, help)
    }
}
