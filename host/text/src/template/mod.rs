//! Chat templates, which convert a conversation to the text format that the model was trained on.

mod clock;
mod display;
mod engine;
mod filters;
mod message;
mod meter;
mod objects;
mod operators;
mod python;
mod strings;
mod substitute;
mod value;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use minijinja::Value;
use serde_json::{Map, Value as Json};
use shardwright_vocabulary::{Error, Result};

use crate::calls::CallFormat;
use crate::cancellable::cancellable;
use crate::control_tokens::Marks;
use crate::input::{Files, invalid_field, too_large, utf8_text};
use crate::token_files::TokenFiles;
use crate::tokenizer::Tokenizer;

pub use engine::TEMPLATE_FUEL;
pub use message::{Content, ContentPart, Message, messages_from_json};
pub use meter::RENDERED_BYTES_MAX;
pub use value::TemplateValue;

/// Largest template that is read. Published ones stay below 30 kB.
pub const TEMPLATE_BYTES_MAX: u64 = 1 << 20;

const TEMPLATE_FILE: &str = "chat_template.jinja";

/// Name of the template for conversations, and of a lone template.
const DEFAULT: &str = "default";

/// Name of the template for conversations with tools.
const TOOLS: &str = "tool_use";

/// Most named templates in one file.
const TEMPLATES_MAX: usize = 64;

/// The chat templates of a checkpoint, with the special tokens they may print.
///
/// Rendering equals Hugging Face's: Jinja with trimmed and left-stripped blocks and loop controls,
/// Python's string methods, `tojson` in the form of `json.dumps`, `raise_exception`, `strftime_now`
/// (in UTC). A template is untrusted code. It runs for at most [`TEMPLATE_FUEL`] steps and ten
/// seconds, and builds and writes a bounded amount.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    path: PathBuf,
    /// Name and source of each template. A lone template is named `default`.
    templates: Vec<(String, String)>,
    special_tokens: Vec<(String, String)>,
}

/// Options for rendering a conversation.
#[derive(Debug, Clone)]
pub struct RenderOptions {
    /// Whether to open the model's turn at the end. On by default.
    pub add_generation_prompt: bool,
    /// The list of tools offered, if any.
    pub tools: Option<TemplateValue>,
    /// Further variables of the template, such as `enable_thinking`.
    pub variables: Vec<(String, TemplateValue)>,
    /// The time of `strftime_now`, in seconds since 1970. The default is the system's clock.
    pub now_unix_seconds: Option<u64>,
    /// Whether control tokens spelled out in a message, such as `<|turn>`, are encoded as those
    /// tokens, as in Hugging Face. Off by default, since the author of a message could then open
    /// and close turns. Used by [`ChatTemplate::encode`].
    pub control_tokens_in_text: bool,
}

impl Default for RenderOptions {
    fn default() -> Self {
        RenderOptions {
            add_generation_prompt: true,
            tools: None,
            variables: Vec::new(),
            now_unix_seconds: None,
            control_tokens_in_text: false,
        }
    }
}

impl RenderOptions {
    /// Sets a variable of the template.
    pub fn with_variable(
        mut self,
        name: impl Into<String>,
        value: impl Into<TemplateValue>,
    ) -> RenderOptions {
        self.variables.push((name.into(), value.into()));
        self
    }
}

impl ChatTemplate {
    /// Reads the template of a checkpoint's folder. This is `chat_template.jinja` if it exists, or
    /// else `chat_template` of `tokenizer_config.json` (a string, or a list of named templates).
    /// The latter file also contains the special tokens, in older checkpoints together with
    /// `special_tokens_map.json`. `None` if the checkpoint has no template.
    pub fn from_directory(directory: impl AsRef<Path>) -> Result<Option<ChatTemplate>> {
        ChatTemplate::read(&Files::of(directory.as_ref())?)
    }

    /// Like [`ChatTemplate::from_directory`], but gets the contents of those files by name. Errors
    /// name them as files of `directory`.
    pub fn from_files(
        directory: impl AsRef<Path>,
        file: impl Fn(&str) -> Option<Vec<u8>>,
    ) -> Result<Option<ChatTemplate>> {
        ChatTemplate::read(&Files::from_source(directory.as_ref(), &file))
    }

    fn read(files: &Files<'_>) -> Result<Option<ChatTemplate>> {
        let tokens = TokenFiles::read(files)?;
        let (config_path, config) = tokens.config();
        let special_tokens = tokens.roles()?.into_iter().map(|role| (role.name, role.content)).collect();

        let own_path = files.path(TEMPLATE_FILE);
        let (path, templates) = match files.read(TEMPLATE_FILE, TEMPLATE_BYTES_MAX)? {
            Some(bytes) => {
                let source = utf8_text(&bytes, &own_path.display().to_string())?.to_owned();
                (own_path, vec![(DEFAULT.to_owned(), source)])
            }
            None => match templates(config, config_path)? {
                Some(templates) => (config_path.to_owned(), templates),
                None => return Ok(None),
            },
        };
        ChatTemplate::new(path, templates, special_tokens).map(Some)
    }

    /// Creates a template from text, with special tokens such as `("bos_token", "<bos>")`. Errors
    /// name `path`.
    pub fn from_source(
        source: &str,
        path: impl Into<PathBuf>,
        special_tokens: &[(&str, &str)],
    ) -> Result<ChatTemplate> {
        let tokens =
            special_tokens.iter().map(|(name, token)| ((*name).to_owned(), (*token).to_owned())).collect();
        ChatTemplate::new(path.into(), vec![(DEFAULT.to_owned(), source.to_owned())], tokens)
    }

    fn new(
        path: PathBuf,
        templates: Vec<(String, String)>,
        special_tokens: Vec<(String, String)>,
    ) -> Result<ChatTemplate> {
        let templates: Vec<(String, String)> =
            templates.into_iter().map(|(name, source)| (name, prepared(&source))).collect();
        for (_, source) in &templates {
            if source.len() as u64 > TEMPLATE_BYTES_MAX {
                return Err(too_large(&path, TEMPLATE_BYTES_MAX));
            }
            engine::check(source, &path)?;
        }
        Ok(ChatTemplate { path, templates, special_tokens })
    }

    /// Returns the path of the file that the template was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Iterates over the names of the templates. A lone template is named `default`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.templates.iter().map(|(name, _)| name.as_str())
    }

    /// Returns whether a template reads a variable of this name. Values of other variables have no
    /// effect.
    pub fn reads(&self, variable: &str) -> bool {
        self.templates.iter().any(|(_, source)| engine::reads(source, variable))
    }

    /// Returns how the template for conversations with tools writes calls. `None` if the format is
    /// not known.
    pub fn call_format(&self, tokenizer: &Tokenizer) -> Option<CallFormat> {
        CallFormat::of(self.source(TOOLS).or_else(|| self.source(DEFAULT))?, tokenizer)
    }

    /// Renders a conversation with the template named `default`, or `tool_use` if it exists and
    /// tools are passed. The text spells out its special tokens, which cannot be distinguished from
    /// tokens spelled out in a message. To run a conversation, use [`ChatTemplate::encode`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](shardwright_vocabulary::ErrorKind::Unsupported) if no template is
    /// named `default`, and errors of the template.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String> {
        let (conversation, tools) = template_inputs(messages, options);
        self.run(self.source_for(options)?, conversation, tools, options, None)
    }

    /// Returns the ids of a conversation, rendered as by [`ChatTemplate::render`].
    ///
    /// Only the template's control tokens become ids. A control token spelled out in a message or a
    /// tool remains text: its letters are encoded like any others, in any turn. Control tokens are
    /// the added tokens of `tokenizer` that its file marks as special, and added tokens that the
    /// template names. Conversations that spell out none get the same ids as in Hugging Face. With
    /// [`RenderOptions::control_tokens_in_text`] all conversations do. Texts in
    /// [`RenderOptions::variables`] count as the template's own.
    ///
    /// # Errors
    ///
    /// The errors of [`ChatTemplate::render`] and of the tokenizer, and
    /// [`ErrorKind::Invalid`](shardwright_vocabulary::ErrorKind::Invalid) if the template writes
    /// no text for messages with words.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<Vec<u32>> {
        let ids = self.encoded(tokenizer, messages, options)?;
        if ids.is_empty() && messages.iter().any(Message::has_words) {
            return Err(Error::invalid("the template writes no text for the messages")
                .at(format!("chat template {}", self.path.display()))
                .with_help("use a corrected template, or continue plain text instead"));
        }
        Ok(ids)
    }

    /// Returns the ids of a conversation, which may be none.
    fn encoded(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<Vec<u32>> {
        let source = self.source_for(options)?;
        let (conversation, tools) = template_inputs(messages, options);
        let control = tokenizer.control_tokens(source);
        if options.control_tokens_in_text || !(control.are_in(&conversation) || control.are_in(&tools)) {
            let rendered = self.run(source, conversation, tools, options, None)?;
            return tokenizer.encode(&rendered, false);
        }
        let variables = options.variables.iter().map(|(_, value)| &value.0);
        let marks =
            Marks::unused_in(&[&conversation, &tools], variables, source, &control).ok_or_else(|| {
                tokenizer.not_encoded("the messages use every character that could mark their control tokens")
            })?;
        let marks = Arc::new(marks);
        let (conversation, tools) = (marks.mark(&conversation, &control), marks.mark(&tools, &control));
        let rendered = self.run(source, conversation, tools, options, Some(&marks))?;
        tokenizer.encode_separated(&marks.separate(&rendered, &control))
    }

    /// Encodes a conversation like [`ChatTemplate::encode`], until `cancelled` returns true. The
    /// callback runs several times a second while long messages are encoded, and not for short
    /// ones.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Cancelled`](shardwright_vocabulary::ErrorKind::Cancelled), and the errors of
    /// [`ChatTemplate::encode`].
    pub fn encode_until(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        options: &RenderOptions,
        cancelled: impl Fn() -> bool,
    ) -> Result<Vec<u32>> {
        let bytes: usize = messages.iter().map(Message::text_bytes).sum();
        let (template, tokenizer) = (self.clone(), tokenizer.clone());
        let (messages, options) = (messages.to_vec(), options.clone());
        cancellable(bytes, cancelled, move || template.encode(&tokenizer, &messages, &options))
    }

    /// Returns the source of the template for a conversation.
    fn source_for(&self, options: &RenderOptions) -> Result<&str> {
        let for_tools = options.tools.as_ref().and_then(|_| self.source(TOOLS));
        for_tools.or_else(|| self.source(DEFAULT)).ok_or_else(|| {
            let names: Vec<&str> = self.names().collect();
            Error::unsupported(format!("no chat template is named `{DEFAULT}`, only {}", names.join(", ")))
                .at(self.path.display())
                .with_help(format!("name one of them `{DEFAULT}`, or continue plain text instead"))
        })
    }

    fn source(&self, name: &str) -> Option<&str> {
        let found = self.templates.iter().find(|(found, _)| found == name);
        found.map(|(_, source)| source.as_str())
    }

    /// Renders a conversation with the template of this name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Argument`](shardwright_vocabulary::ErrorKind::Argument) if no template has this
    /// name, and errors of the template.
    pub fn render_named(&self, name: &str, messages: &[Message], options: &RenderOptions) -> Result<String> {
        let source = self.source(name).ok_or_else(|| {
            let names: Vec<&str> = self.names().collect();
            Error::argument(format!("no chat template named `{name}`"))
                .at(self.path.display())
                .with_help(format!("use one of the available templates: {}", names.join(", ")))
        })?;
        let (conversation, tools) = template_inputs(messages, options);
        self.run(source, conversation, tools, options, None)
    }

    fn run(
        &self,
        source: &str,
        conversation: Value,
        tools: Value,
        options: &RenderOptions,
        marks: Option<&Arc<Marks>>,
    ) -> Result<String> {
        let tokens =
            self.special_tokens.iter().map(|(name, token)| (name.as_str(), Value::from(token.as_str())));
        let passed = options.variables.iter().map(|(name, value)| (name.as_str(), value.0.clone()));
        // Later names win: a caller's variable over a special token, the conversation over both.
        let variables = Value::from_pairs(tokens.chain(passed).chain([
            ("messages", conversation),
            ("tools", tools),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(options.add_generation_prompt)),
        ]));
        let now = options.now_unix_seconds.unwrap_or_else(clock::now);
        engine::render(source, &self.path, variables, now, marks)
    }
}

/// Converts the messages and tools to the template's values.
fn template_inputs(messages: &[Message], options: &RenderOptions) -> (Value, Value) {
    let tools = options.tools.as_ref().map_or(Value::from(()), |tools| tools.0.clone());
    (messages.iter().map(Message::to_value).collect(), tools)
}

/// Reads `chat_template`: one source, or a list of `{name, template}`.
fn templates(config: &Map<String, Json>, path: &Path) -> Result<Option<Vec<(String, String)>>> {
    const EXPECTED: &str = "a string, or a list of at most 64 objects with `name` and `template`";
    let value = match config.get("chat_template") {
        None | Some(Json::Null) => return Ok(None),
        Some(value) => value,
    };
    let invalid = || invalid_field(path, "chat_template", EXPECTED, value);
    match value {
        Json::String(source) => Ok(Some(vec![(DEFAULT.to_owned(), source.clone())])),
        Json::Array(items) if !items.is_empty() && items.len() <= TEMPLATES_MAX => {
            let mut named: Vec<(String, String)> = Vec::with_capacity(items.len());
            for item in items {
                let (Some(Json::String(name)), Some(Json::String(source))) =
                    (item.get("name"), item.get("template"))
                else {
                    return Err(invalid());
                };
                if named.iter().any(|(existing, _)| existing == name) {
                    let name: String = name.chars().take(80).collect();
                    return Err(Error::invalid(format!("`chat_template` has a second template `{name}`"))
                        .at(path.display())
                        .with_help("keep the template that is meant, and remove the other one"));
                }
                named.push((name.clone(), source.clone()));
            }
            Ok(Some(named))
        }
        _ => Err(invalid()),
    }
}

/// Returns the source in the form for the engine. Jinja reads every end of a line as `\n`.
fn prepared(source: &str) -> String {
    without_generation_tags(&source.replace("\r\n", "\n").replace('\r', "\n"))
}

/// Replaces Hugging Face's `{% generation %}…{% endgeneration %}`, which marks the model's text for
/// training and does not affect the rendered text. The tags become an `if` that is always true,
/// which trims white space in the same way.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let inside = start + 2;
        let marker = rest[inside..].find(|c| c != '-' && c != '+').unwrap_or(rest.len() - inside).min(1);
        let word = rest[inside + marker..].trim_start();
        let word_start = rest.len() - word.len();
        let word_length = word.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(word.len());
        out.push_str(&rest[..word_start]);
        out.push_str(match &word[..word_length] {
            "generation" => "if true",
            "endgeneration" => "endif",
            other => other,
        });
        rest = &word[word_length..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests;
