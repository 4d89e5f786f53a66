//! Tokenizers, templates and streaming: goldens and hostile files.

mod calls;
mod damaged_templates;
mod drafted;
mod gguf;
mod goldens;
mod hostile_tokenizers;
mod index;
mod jinja;
mod register;
mod streaming;
mod thoughts;
mod token_rules;
