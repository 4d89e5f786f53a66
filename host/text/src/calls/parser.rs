//! Separates a reply into text and calls while it arrives.

use std::collections::HashSet;

use serde_json::Value;

use super::definition::{ToolCall, ToolDefinition};
use super::format::{CallFamily, CallFormat, Mark};
use super::json::JsonCall;
use super::symbols::{Symbol, Symbols};
use super::tagged::TaggedCall;

/// Longest call, in bytes. A longer one is text.
pub const CALL_BYTES_MAX: usize = 1 << 20;

/// Most calls of a reply. Further ones are text.
pub const CALLS_MAX: usize = 128;

/// Most white space that waits for a call, in bytes. White space next to a call is not text.
const WHITE_BYTES_MAX: usize = 64;

/// The calls that a reply may contain.
#[derive(Clone, Debug)]
pub struct CallRules {
    format: CallFormat,
    /// Names of the offered tools.
    names: Vec<String>,
    /// Ids of calls so far.
    used: HashSet<String>,
}

/// An event of a reply with calls.
#[derive(Clone, Debug, PartialEq)]
pub enum CallEvent {
    /// Text of the answer, never empty.
    Text(String),
    /// A call began.
    Begin {
        /// Number of the call in the reply.
        index: usize,
        /// Id of the call.
        id: String,
        /// Name of the tool.
        name: String,
    },
    /// More of the arguments. The texts of a call together are the JSON of an object.
    Arguments {
        /// Number of the call in the reply.
        index: usize,
        /// The text, never empty.
        text: String,
    },
    /// A call is complete.
    End {
        /// Number of the call in the reply.
        index: usize,
        /// The call.
        call: ToolCall,
    },
    /// A call that had begun is not a call, or is cut. Its text follows as text of the answer.
    Dropped {
        /// Number of the call in the reply.
        index: usize,
    },
}

/// Separates text and marks of one reply into [`CallEvent`]s. The calls and the text do not depend
/// on how the text is cut into pieces.
///
/// * A call begins with the mark of its format, and for Llama 3 at the start of the reply with a
///   JSON object that names an offered tool.
/// * Text that turns out to be no call is delivered to the letter.
/// * The end of the reply ends a call whose arguments are complete. It drops a call that is cut.
#[derive(Clone, Debug)]
pub struct CallParser {
    rules: CallRules,
    symbols: Symbols,
    open: Option<Box<OpenCall>>,
    /// White space that is text unless a call follows.
    white: String,
    /// Whether only white space followed the last call.
    after_call: bool,
    /// Whether a call may begin without a mark.
    bare: bool,
    begun: usize,
    ended: usize,
    events: Vec<CallEvent>,
}

/// The effect of a symbol on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    More,
    /// The arguments are complete.
    Complete,
    /// This is not a call.
    Broken,
}

/// Complete arguments.
#[derive(Clone, Debug)]
pub(crate) struct Arguments {
    pub(crate) value: Value,
    pub(crate) text: String,
}

impl Arguments {
    pub(crate) fn of(value: Value) -> Arguments {
        Arguments { text: value.to_string(), value }
    }
}

/// A call in progress.
#[derive(Clone, Debug)]
struct OpenCall {
    /// The text that the call is if it is not a call: from the white space before it on.
    text: String,
    body: Body,
    /// Number and id, once the call is known to begin, and the bytes of arguments delivered.
    begun: Option<(usize, String, usize)>,
    complete: Option<Arguments>,
}

#[derive(Clone, Debug)]
enum Body {
    Json(JsonCall),
    Tagged(TaggedCall),
}

impl Body {
    fn name(&self) -> Option<&str> {
        match self {
            Body::Json(call) => call.name(),
            Body::Tagged(call) => call.name(),
        }
    }

    fn arguments(&self) -> Option<&str> {
        match self {
            Body::Json(call) => call.arguments(),
            Body::Tagged(call) => call.arguments(),
        }
    }

    fn push(&mut self, symbol: Symbol, spelling: &str) -> Flow {
        match (self, symbol) {
            (Body::Json(call), Symbol::Character(character)) => call.push(character),
            (Body::Json(call), Symbol::Mark(_)) if call.is_in_string() => {
                let mut flows = spelling.chars().map(|character| call.push(character));
                flows.find(|flow| *flow != Flow::More).unwrap_or(Flow::More)
            }
            (Body::Json(_), Symbol::Mark(_)) => Flow::Broken,
            (Body::Tagged(call), symbol) => call.push(symbol, spelling),
        }
    }
}

impl CallRules {
    /// Returns rules for calls of `tools`.
    pub fn new(format: CallFormat, tools: &[ToolDefinition]) -> CallRules {
        let names = tools.iter().map(|tool| tool.name().to_owned()).collect();
        CallRules { format, names, used: HashSet::new() }
    }

    /// Also does not use these ids for new calls.
    #[must_use]
    pub fn with_used_ids(mut self, ids: impl IntoIterator<Item = String>) -> CallRules {
        self.used.extend(ids);
        self
    }

    /// Returns the format of the calls.
    pub const fn format(&self) -> CallFormat {
        self.format
    }

    /// Returns a new id of nine letters and digits, which some templates require.
    fn new_id(&mut self) -> String {
        let mut number = self.used.len();
        loop {
            let id = format!("call{number:05}");
            if self.used.insert(id.clone()) {
                return id;
            }
            number += 1;
        }
    }
}

impl CallParser {
    /// Starts a reply.
    pub fn new(rules: CallRules) -> CallParser {
        CallParser {
            symbols: Symbols::new(rules.format),
            bare: rules.format.family() == CallFamily::Llama,
            rules,
            open: None,
            white: String::new(),
            after_call: false,
            begun: 0,
            ended: 0,
            events: Vec::new(),
        }
    }

    /// Processes the next piece of text.
    pub fn push(&mut self, text: &str) -> Vec<CallEvent> {
        let mut found = Vec::new();
        self.symbols.push(text, &mut |symbol| found.push(symbol));
        found.into_iter().for_each(|symbol| self.process(symbol, true));
        std::mem::take(&mut self.events)
    }

    /// Processes the next token if it is a mark. A mark without a meaning at its place is text if
    /// it is `visible`.
    pub fn push_token(&mut self, id: u32, visible: bool) -> Option<Vec<CallEvent>> {
        let mark = self.rules.format.mark(id)?;
        self.flush();
        self.process(Symbol::Mark(mark), visible);
        Some(std::mem::take(&mut self.events))
    }

    /// Returns whether this token ends the reply, because the application writes what follows: the
    /// results of the calls.
    pub fn ends_at(&self, id: u32) -> bool {
        let is_called = match &self.open {
            // The end mark is missing.
            Some(call) => call.complete.is_some(),
            None => self.ended > 0,
        };
        is_called && self.rules.format.mark(id) == Some(Mark::Respond)
    }

    /// Returns whether the token is a mark.
    pub fn is_mark(&self, id: u32) -> bool {
        self.rules.format.mark(id).is_some()
    }

    /// Ends the reply.
    pub fn finish(&mut self) -> Vec<CallEvent> {
        self.flush();
        if let Some(call) = self.open.take() {
            match call.complete.clone() {
                Some(arguments) => self.end_call(call, arguments),
                None => self.drop_call(call),
            }
        }
        let white = std::mem::take(&mut self.white);
        if !self.after_call || !white.trim().is_empty() {
            self.emit_text(&white);
        }
        std::mem::take(&mut self.events)
    }

    fn flush(&mut self) {
        let mut held = Vec::new();
        self.symbols.flush(&mut |symbol| held.push(symbol));
        held.into_iter().for_each(|symbol| self.process(symbol, true));
    }

    fn spelling(&self, mark: Mark) -> &'static str {
        self.rules.format.family().spelling(mark).unwrap_or_default()
    }

    fn process(&mut self, symbol: Symbol, visible: bool) {
        if let Some(call) = self.open.take() {
            return self.process_in_call(call, symbol, visible);
        }
        match symbol {
            Symbol::Mark(Mark::Open) if self.begun < CALLS_MAX => {
                self.open_call(self.spelling(Mark::Open));
            }
            Symbol::Mark(mark) if visible => self.spelling(mark).chars().for_each(|c| self.say(c)),
            Symbol::Mark(_) => {}
            Symbol::Character('{') if self.bare && self.begun < CALLS_MAX => {
                self.open_call("");
                self.process(symbol, visible);
            }
            Symbol::Character(character) => self.say(character),
        }
    }

    fn open_call(&mut self, mark: &str) {
        let body = match self.rules.format.family() {
            CallFamily::Hermes | CallFamily::Llama => Body::Json(JsonCall::default()),
            CallFamily::Gemma4 | CallFamily::FunctionGemma => Body::Tagged(TaggedCall::default()),
        };
        let text = std::mem::take(&mut self.white) + mark;
        self.open = Some(Box::new(OpenCall { text, body, begun: None, complete: None }));
    }

    fn process_in_call(&mut self, mut call: Box<OpenCall>, symbol: Symbol, visible: bool) {
        if let Some(arguments) = call.complete.clone() {
            match symbol {
                Symbol::Mark(Mark::Close) => return self.end_call(call, arguments),
                // The end mark is missing.
                Symbol::Mark(Mark::Open | Mark::Respond) => {
                    self.end_call(call, arguments);
                    return self.process(symbol, visible);
                }
                Symbol::Character(character)
                    if character.is_ascii_whitespace() && call.text.len() < CALL_BYTES_MAX =>
                {
                    call.text.push(character);
                    self.open = Some(call);
                    return;
                }
                _ => {}
            }
        }
        let spelling = match symbol {
            Symbol::Mark(mark) => self.spelling(mark),
            Symbol::Character(_) => "",
        };
        let flow = match call.complete {
            None => call.body.push(symbol, spelling),
            Some(_) => Flow::Broken,
        };
        if flow == Flow::Broken && symbol == Symbol::Mark(Mark::Open) {
            self.drop_call(call);
            return self.process(symbol, visible);
        }
        match symbol {
            Symbol::Mark(_) => call.text += spelling,
            Symbol::Character(character) => call.text.push(character),
        }
        let is_call = flow != Flow::Broken
            && call.text.len() <= CALL_BYTES_MAX
            && call.body.name().is_none_or(|name| self.is_callable(name));
        if !is_call {
            return self.drop_call(call);
        }
        self.deliver(&mut call);
        if flow == Flow::Complete {
            let is_bare = self.rules.format.family() == CallFamily::Llama;
            let arguments = match &call.body {
                Body::Json(body) => body.finish(is_bare).filter(|_| body.name().is_some()),
                Body::Tagged(body) => body.finish(),
            };
            match arguments {
                None => return self.drop_call(call),
                Some(arguments) if is_bare => return self.end_call(call, arguments),
                complete => call.complete = complete,
            }
        }
        self.open = Some(call);
    }

    /// Checks whether a call can name this tool. Without a mark, only an offered name makes a call.
    fn is_callable(&self, name: &str) -> bool {
        is_call_name(name)
            && (self.rules.format.family() != CallFamily::Llama || self.rules.names.iter().any(|n| n == name))
    }

    /// Delivers the name, and the arguments so far.
    fn deliver(&mut self, call: &mut OpenCall) {
        let (Some(name), Some(arguments)) = (call.body.name(), call.body.arguments()) else { return };
        let (index, _, sent) = match &mut call.begun {
            Some(begun) => begun,
            begun => {
                let (index, id) = (self.begun, self.rules.new_id());
                self.begun += 1;
                self.events.push(CallEvent::Begin { index, id: id.clone(), name: name.to_owned() });
                begun.insert((index, id, 0))
            }
        };
        let (index, text) = (*index, arguments.get(*sent..).unwrap_or_default());
        *sent = arguments.len();
        if text.is_empty() {
            return;
        }
        match self.events.last_mut() {
            Some(CallEvent::Arguments { index: last, text: said }) if *last == index => said.push_str(text),
            _ => self.events.push(CallEvent::Arguments { index, text: text.to_owned() }),
        }
    }

    fn end_call(&mut self, mut call: Box<OpenCall>, arguments: Arguments) {
        let name = call.body.name().unwrap_or_default().to_owned();
        let (index, id) = match call.begun.take() {
            Some((index, id, _)) => (index, id),
            None => {
                let (index, id) = (self.begun, self.rules.new_id());
                self.begun += 1;
                self.events.push(CallEvent::Begin { index, id: id.clone(), name: name.clone() });
                self.events.push(CallEvent::Arguments { index, text: arguments.text });
                (index, id)
            }
        };
        let call = ToolCall { id, name, arguments: arguments.value };
        self.events.push(CallEvent::End { index, call });
        self.ended += 1;
        self.after_call = true;
    }

    /// Delivers a broken call as text.
    fn drop_call(&mut self, call: Box<OpenCall>) {
        if let Some((index, ..)) = call.begun {
            self.events.push(CallEvent::Dropped { index });
        }
        self.bare = false;
        call.text.chars().for_each(|character| self.say(character));
    }

    /// Adds a character to the text.
    fn say(&mut self, character: char) {
        let separates = character == ';' && self.bare && self.after_call;
        if character.is_ascii_whitespace() || separates {
            self.white.push(character);
            if self.white.len() > WHITE_BYTES_MAX {
                self.say_white();
            }
            return;
        }
        self.say_white();
        self.bare = false;
        self.emit_text(character.encode_utf8(&mut [0; 4]));
    }

    fn say_white(&mut self) {
        self.after_call = false;
        let white = std::mem::take(&mut self.white);
        self.emit_text(&white);
    }

    fn emit_text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        match self.events.last_mut() {
            Some(CallEvent::Text(said)) => said.push_str(text),
            _ => self.events.push(CallEvent::Text(text.to_owned())),
        }
    }
}

/// Checks whether a model may call a tool of this name, offered or not.
pub(crate) fn is_call_name(name: &str) -> bool {
    const NAME_BYTES_MAX: usize = 256;
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(is_name_character)
}

pub(crate) const fn is_name_character(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | '-' | '.' | ':' | '/')
}
