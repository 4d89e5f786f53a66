//! Text in, ids out, and back: the tokenizer, the chat template, sampling, the rules that end a
//! reply, and streaming that is safe across token and UTF-8 boundaries.
//!
//! This crate knows ids and rows of logits. It does **not** know tensors, models or sessions. The
//! only files it knows are indexes of tokenizers and the text files of a checkpoint:
//! `tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json`, `added_tokens.json`,
//! `chat_template.jinja`, `generation_config.json`, the prompts of
//! `config_sentence_transformers.json`, the stop ids of `config.json`, or the metadata of a GGUF
//! file that replace them. It depends on no other crate of the project except `vocabulary`, `files`
//! and `gguf`.
//!
//! All input is treated as hostile. Sizes and nesting are capped by named constants. Templates run
//! with limits on fuel, bytes and time. Each failure is a [`shardwright_vocabulary::Error`] that
//! names the file and suggests a remedy.
//!
//! ```
//! use shardwright_text::*;
//!
//! # fn main() -> shardwright_vocabulary::Result<()> {
//! # let checkpoint = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo-model");
//! let path = format!("{checkpoint}/tokenizer.json");
//! let loading = Tokenizer::load_in_background(path.clone(), || Tokenizer::from_file(path));
//! let config = GenerationConfig::from_directory(checkpoint)?;
//! let template = ChatTemplate::from_directory(checkpoint)?.expect("the demo model has a
//! template"); let tokenizer = loading.join()?;
//!
//! let question = [Message::user("What is politics?")];
//! let mut ids = template.encode(&tokenizer, &question, &RenderOptions::default())?;
//! let parameters = SamplingParameters { seed: 7, ..config.sampling };
//! let mut sampler = Sampler::new(parameters)?.with_rules(config.rules.clone(), ids.len());
//! let mut reply = Reply::new(&tokenizer, &StopRules::from_generation(&config)?, true);
//! loop {
//!     # let mut logits = vec![0.0; tokenizer.vocabulary_size()];
//!     # logits[16] = 1e3;
//!     let id = sampler.sample(&logits, &ids)?;
//!     ids.push(id);
//!     let step = reply.push(id)?;
//!     print!("{}", step.text);
//!     if step.stop.is_some() {
//!         break;
//!     }
//! }
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod calls;
mod cancellable;
mod contradictions;
mod control_tokens;
mod decoding;
mod distribution;
mod engine;
mod generation;
mod generation_fields;
mod gguf;
mod gguf_tokenizer;
mod growth;
mod index;
mod input;
mod panics;
mod part_tokens;
mod random;
mod reply;
mod sampler;
mod sentence_config;
mod stop;
mod stream;
mod template;
mod thoughts;
mod token_bytes;
mod token_files;
mod token_mask;
mod token_rules;
mod tokenizer;
mod tokenizer_config;
mod unknown_fields;
mod verify;
mod white_space;

pub use calls::{
    CALL_BYTES_MAX, CALLS_MAX, CallEvent, CallFamily, CallFormat, CallParser, CallRules, TOOL_NAME_BYTES_MAX,
    TOOLS_BYTES_MAX, TOOLS_MAX, ToolCall, ToolChoice, ToolDefinition,
};
pub use distribution::Distribution;
pub use generation::GenerationConfig;
pub use index::{IndexBytes, is_index_of};
pub use input::{CONFIG_BYTES_MAX, JSON_NESTING_MAX, TOKENIZER_BYTES_MAX, text_file, utf8_text};
pub use part_tokens::{PartTokens, PromptTokens};
pub use random::Random;
pub use reply::{Reply, ReplyStep, Stop};
pub use sampler::{Sampler, SamplingParameters};
pub use sentence_config::SentenceConfig;
pub use stop::{STOP_STRING_BYTES_MAX, STOP_STRINGS_MAX, StopMatch, StopMatcher, StopRules};
pub use stream::{PENDING_BYTE_TOKENS_MAX, TextStream};
pub use template::{
    ChatTemplate, Content, ContentPart, Message, RENDERED_BYTES_MAX, RenderOptions, TEMPLATE_BYTES_MAX,
    TEMPLATE_FUEL, TemplateValue, messages_from_json,
};
pub use thoughts::ThoughtTokens;
pub use token_mask::TokenMask;
pub use token_rules::TokenRules;
pub use tokenizer::{TEXT_BYTES_MAX, Tokenizer, TokenizerLoading, VocabularyDifference};
pub use tokenizer_config::TokenizerConfig;
pub use verify::TokenVerdict;
