//! The error type of the crate.

use shardwright_gguf::GgufError;
use shardwright_vocabulary::{ErrorKind, Shortage};
use std::path::PathBuf;

pub type Result<T, E = TextError> = std::result::Result<T, E>;

/// An error in text, a template, a sampling parameter or one of their files.
///
/// *Invalid* input violates its own format. *Unsupported* input is well formed but requires a
/// feature that this crate does not implement. The two are separate variants. [`TextError::help`]
/// suggests a remedy, if one is known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// A file is larger than its cap.
    #[error("{} is larger than {max} bytes", path.display())]
    FileTooLarge { path: PathBuf, max: u64 },
    /// A file or a prompt is not UTF-8.
    #[error("{origin} is not UTF-8 text: the first bad byte is at offset {offset}")]
    NotUtf8 {
        /// The file, or the purpose of the text.
        origin: String,
        /// Number of bytes before the first invalid one.
        offset: usize,
    },
    /// A file is not JSON, or does not have the expected structure.
    #[error("{} is not valid JSON: {reason} at line {line}, column {column}", path.display())]
    InvalidJson {
        path: PathBuf,
        reason: String,
        /// Line, counted from 1.
        line: usize,
        /// Column, counted from 1.
        column: usize,
    },
    /// JSON is nested deeper than any file of this kind needs.
    #[error("{} nests deeper than {max} levels at offset {offset}", path.display())]
    JsonTooDeep {
        path: PathBuf,
        max: usize,
        /// The byte at which the nesting exceeds the cap.
        offset: usize,
    },
    /// A named field has a value of the wrong type or out of range.
    #[error("{}: `{field}` should be {expected}, but is {found}", path.display())]
    InvalidField {
        path: PathBuf,
        /// The field, with dots between levels.
        field: String,
        expected: &'static str,
        /// The value in the file, shortened.
        found: String,
    },
    /// `tokenizer.json` does not describe a working tokenizer.
    #[error("{} is not a valid tokenizer: {reason}", path.display())]
    InvalidTokenizer {
        path: PathBuf,
        /// The tokenizer library's message.
        reason: String,
    },
    /// `tokenizer.json` requires a feature that has no place in inference.
    #[error("{} asks for {what}, which is not supported", path.display())]
    UnsupportedTokenizer { path: PathBuf, what: &'static str },
    /// A text should begin or end with a token that the tokenizer does not have.
    #[error("{}: `{field}` is `{token}`, which {} does not have", path.display(), tokenizer.display())]
    MissingToken {
        path: PathBuf,
        /// The field that names the token, with dots between levels.
        field: String,
        token: String,
        /// The flag by which the token is added to a text.
        flag: &'static str,
        tokenizer: PathBuf,
    },
    /// A GGUF file's metadata has a value that is not supported.
    #[error("{}: metadata `{key}` is {found}, which is not supported", path.display())]
    UnsupportedGguf {
        path: PathBuf,
        key: String,
        /// The value, shortened.
        found: String,
        /// The supported values.
        supported: String,
    },
    /// A GGUF file is damaged, or its metadata have an unexpected form.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The thread that loads a tokenizer could not be started, or died.
    #[error("cannot load {} on a thread of its own: {reason}", path.display())]
    LoadingThread {
        path: PathBuf,
        reason: String,
        /// The limit of the system because of which the thread was not started.
        shortage: Option<Shortage>,
    },
    /// A text to encode is longer than the cap.
    #[error("the text has {bytes} bytes; at most {max} are encoded at once")]
    TextTooLong { bytes: usize, max: usize },
    /// The tokenizer failed on a text.
    #[error("the tokenizer {} cannot encode the text: {reason}", path.display())]
    Encode {
        path: PathBuf,
        /// The tokenizer library's message.
        reason: String,
    },
    /// The tokenizer failed on ids.
    #[error("the tokenizer {} cannot decode the ids: {reason}", path.display())]
    Decode {
        path: PathBuf,
        /// The tokenizer library's message.
        reason: String,
    },
    /// The list of templates has no template of that name.
    #[error("{} has no chat template named `{name}`; it has {}", path.display(), available.join(", "))]
    NoSuchTemplate {
        path: PathBuf,
        /// The requested name.
        name: String,
        available: Vec<String>,
    },
    /// A chat template does not parse.
    #[error("chat template {}, line {line}: {reason}", path.display())]
    InvalidTemplate {
        path: PathBuf,
        /// Line of the template, counted from 1, or 0 if unknown.
        line: usize,
        reason: String,
    },
    /// A chat template uses a filter, test, function, method or directive that is not supported.
    #[error("chat template {}, line {line}: unsupported: {what}", path.display())]
    UnsupportedTemplate {
        path: PathBuf,
        /// Line of the template, counted from 1, or 0 if unknown.
        line: usize,
        what: String,
    },
    /// A chat template failed while it ran, for example on an undefined value.
    #[error("chat template {}, line {line}: {reason}", path.display())]
    TemplateFailed {
        path: PathBuf,
        /// Line of the template, counted from 1, or 0 if unknown.
        line: usize,
        reason: String,
    },
    /// A chat template refused the conversation with `raise_exception`.
    #[error("chat template {} refuses the conversation: {message}", path.display())]
    TemplateRaised { path: PathBuf, message: String },
    /// A chat template ran for too many steps.
    #[error("chat template {} did not end within {fuel} steps", path.display())]
    TemplateOutOfFuel { path: PathBuf, fuel: u64 },
    /// A chat template ran for too long.
    #[error("chat template {} did not end within {seconds} s", path.display())]
    TemplateTooSlow { path: PathBuf, seconds: u64 },
    /// A chat template wrote or built more text than any prompt needs.
    #[error("chat template {} builds more than {max} {unit}", path.display())]
    TemplateTooLarge {
        path: PathBuf,
        max: u64,
        /// The unit of the limit.
        unit: &'static str,
    },
    /// A stop string is empty or too long, or there are too many.
    #[error("stop string {index} {reason}")]
    InvalidStopString {
        /// Index in the list, counted from 0.
        index: usize,
        reason: String,
    },
    /// A sampling parameter is out of range.
    #[error("`{name}` should be {expected}, but is {value}")]
    InvalidSampling { name: &'static str, expected: &'static str, value: f64 },
    /// A row of logits contains a value that is not a finite number.
    #[error("the logit of token {id} is {value}")]
    LogitNotFinite {
        id: usize,
        /// NaN or an infinity.
        value: f32,
    },
    /// A row of logits is empty, or longer than ids can count.
    #[error("a row of {length} logits has no token to choose")]
    NoLogits { length: usize },
    /// The rules of the checkpoint exclude every token.
    #[error("the rules of `generation_config.json` leave no token to follow {tokens} tokens")]
    NoTokenLeft {
        /// Number of tokens of prompt and reply so far.
        tokens: usize,
    },
}

impl TextError {
    /// Returns advice for a `help:` line, if there is any.
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
            TextError::MissingToken { field, flag, .. } => {
                format!("name a token of the vocabulary in `{field}`, or set `{flag}` to false")
            }
            TextError::UnsupportedGguf { supported, .. } => format!("supported: {supported}"),
            TextError::Gguf(error) => return error.help().map(str::to_owned),
            TextError::UnsupportedTokenizer { .. } => "remove the setting from the file".into(),
            TextError::LoadingThread { shortage, .. } => {
                shortage.map_or("load the tokenizer on the calling thread instead", Shortage::help).into()
            }
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

/// Classifies the error by the application's possible reaction.
impl From<TextError> for shardwright_vocabulary::Error {
    fn from(error: TextError) -> Self {
        let kind = match &error {
            TextError::Read { .. } => ErrorKind::Missing,
            TextError::UnsupportedTokenizer { .. } | TextError::UnsupportedTemplate { .. } => {
                ErrorKind::Unsupported
            }
            TextError::InvalidStopString { .. }
            | TextError::InvalidSampling { .. }
            | TextError::TextTooLong { .. }
            | TextError::NoSuchTemplate { .. } => ErrorKind::Argument,
            TextError::LoadingThread { shortage: Some(shortage), .. } => shortage.kind(),
            TextError::LoadingThread { .. } => ErrorKind::Internal,
            _ => ErrorKind::Invalid,
        };
        let help = error.help();
        shardwright_vocabulary::Error::caused_by(kind, error, help)
    }
}
