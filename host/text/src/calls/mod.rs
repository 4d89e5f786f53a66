//! Calls of tools: what an application offers, how families of models write calls, and how a reply
//! is separated into text and calls while it is generated.
//!
//! **Job.** [`CallFormat`] recognises the format by the chat template. [`CallParser`] gets the text
//! and the special tokens of a reply, and returns text, names and arguments. The arguments are JSON
//! in every family. Text that only looks like a call stays text, to the letter.
//!
//! **Not its job.** Running tools, and placing calls and results in a prompt: that is the
//! template's.

mod definition;
mod format;
mod grammar;
mod json;
mod parser;
mod schema;
mod symbols;
mod tagged;

pub use definition::{TOOL_NAME_BYTES_MAX, TOOLS_BYTES_MAX, TOOLS_MAX, ToolCall, ToolChoice, ToolDefinition};
pub use format::{CallFamily, CallFormat};
pub use parser::{CALL_BYTES_MAX, CALLS_MAX, CallEvent, CallParser, CallRules};
