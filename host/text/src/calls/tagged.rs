//! A call written as `call:NAME{key:value}` with strings between marks, as Gemma 4 and
//! FunctionGemma do. The arguments are converted to JSON as they arrive.

use serde_json::Value;
use shardwright_vocabulary::UniqueKeys;

use super::format::Mark;
use super::parser::{Arguments, Flow, is_call_name, is_name_character};
use super::symbols::Symbol;
use crate::input::JSON_NESTING_MAX;

/// The text before the name.
const PREFIX: &str = "call:";

/// A call, as far as it is written.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaggedCall {
    stage: Stage,
    /// The text of the current name, key or literal.
    word: String,
    name: Option<String>,
    open: Vec<Bracket>,
    /// The arguments as JSON.
    json: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bracket {
    Map,
    List,
}

/// The expected part of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// [`PREFIX`] and the name.
    #[default]
    Name,
    /// A key, or the end of an empty object.
    FirstKey,
    Key,
    BareKey,
    QuotedKey,
    Colon,
    /// A value, or the end of an empty list.
    FirstItem,
    Value,
    Text,
    Literal,
    Comma,
    Complete,
}

impl TaggedCall {
    /// Returns the name, once it is complete.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the arguments as JSON, as far as they are written. `None` until they begin.
    pub(crate) fn arguments(&self) -> Option<&str> {
        self.name.as_ref().map(|_| self.json.as_str())
    }

    /// Processes the next symbol. `spelling` is the text of a mark, which is part of a string if
    /// the mark does not end it.
    pub(crate) fn push(&mut self, symbol: Symbol, spelling: &str) -> Flow {
        match (self.stage, symbol) {
            (Stage::Text, Symbol::Mark(Mark::Quote)) => {
                self.json.push('"');
                self.stage = Stage::Comma;
                Flow::More
            }
            (Stage::Text, Symbol::Mark(_)) => self.push_text(spelling),
            (Stage::Text, Symbol::Character(character)) => self.push_text(character.encode_utf8(&mut [0; 4])),
            (Stage::QuotedKey, Symbol::Mark(Mark::Quote)) => self.end_key(),
            (Stage::QuotedKey, Symbol::Mark(_)) => self.push_word(spelling),
            (Stage::FirstKey | Stage::Key, Symbol::Mark(Mark::Quote)) => {
                self.stage = Stage::QuotedKey;
                Flow::More
            }
            (Stage::FirstItem | Stage::Value, Symbol::Mark(Mark::Quote)) => {
                self.json.push('"');
                self.stage = Stage::Text;
                Flow::More
            }
            (_, Symbol::Mark(_)) => Flow::Broken,
            (_, Symbol::Character(character)) => self.push_character(character),
        }
    }

    fn push_character(&mut self, character: char) -> Flow {
        let is_space = character.is_ascii_whitespace();
        match (self.stage, character) {
            (Stage::Name, '{') => return self.end_name(),
            (Stage::Name, _) if is_space && self.word.is_empty() => {}
            (Stage::Name, _) => {
                self.word.push(character);
                let shorter = self.word.len().min(PREFIX.len());
                let is_prefix = self.word.get(..shorter) == PREFIX.get(..shorter);
                if !is_prefix || (self.word.len() > PREFIX.len() && !is_name_character(character)) {
                    return Flow::Broken;
                }
            }
            (Stage::BareKey, ':') => {
                self.word.truncate(self.word.trim_end().len());
                let flow = self.end_key();
                return if flow == Flow::More { self.push_character(':') } else { flow };
            }
            (Stage::BareKey, ',' | '{' | '}' | '[' | ']') => return Flow::Broken,
            (Stage::BareKey | Stage::QuotedKey, _) => self.word.push(character),
            (Stage::Literal, ',' | '}' | ']') => {
                let flow = self.end_literal();
                return if flow == Flow::More { self.push_character(character) } else { flow };
            }
            (Stage::Literal, _) if is_space => return self.end_literal(),
            (Stage::Literal, _) => self.word.push(character),
            (_, _) if is_space => {}
            (Stage::FirstKey, '}') | (Stage::FirstItem, ']') | (Stage::Comma, '}' | ']') => {
                return self.close(character);
            }
            (Stage::FirstKey | Stage::Key, ':' | ',' | '{' | '[' | ']' | '}') => return Flow::Broken,
            (Stage::FirstKey | Stage::Key, _) => {
                self.word.push(character);
                self.stage = Stage::BareKey;
            }
            (Stage::Colon, ':') => {
                self.json.push(':');
                self.stage = Stage::Value;
            }
            (Stage::FirstItem | Stage::Value, '{' | '[') => return self.open(character),
            (Stage::FirstItem | Stage::Value, ':' | ',' | '}' | ']') => return Flow::Broken,
            (Stage::FirstItem | Stage::Value, _) => {
                self.word.push(character);
                self.stage = Stage::Literal;
            }
            (Stage::Comma, ',') => {
                self.json.push(',');
                self.stage = match self.open.last() {
                    Some(Bracket::Map) => Stage::Key,
                    _ => Stage::Value,
                };
            }
            (Stage::Colon | Stage::Comma | Stage::Complete | Stage::Text, _) => return Flow::Broken,
        }
        Flow::More
    }

    fn end_name(&mut self) -> Flow {
        let word = std::mem::take(&mut self.word);
        match word.strip_prefix(PREFIX).filter(|name| is_call_name(name)) {
            Some(name) => {
                self.name = Some(name.to_owned());
                self.open('{')
            }
            None => Flow::Broken,
        }
    }

    fn open(&mut self, bracket: char) -> Flow {
        if self.open.len() >= JSON_NESTING_MAX {
            return Flow::Broken;
        }
        let (kind, stage) = match bracket {
            '{' => (Bracket::Map, Stage::FirstKey),
            _ => (Bracket::List, Stage::FirstItem),
        };
        self.json.push(bracket);
        self.open.push(kind);
        self.stage = stage;
        Flow::More
    }

    fn close(&mut self, bracket: char) -> Flow {
        let fits = match self.open.pop() {
            Some(Bracket::Map) => bracket == '}',
            Some(Bracket::List) => bracket == ']',
            None => false,
        };
        if !fits {
            return Flow::Broken;
        }
        self.json.push(bracket);
        if self.open.is_empty() {
            self.stage = Stage::Complete;
            return Flow::Complete;
        }
        self.stage = Stage::Comma;
        Flow::More
    }

    fn end_key(&mut self) -> Flow {
        let key = std::mem::take(&mut self.word);
        self.json += &Value::from(key).to_string();
        self.stage = Stage::Colon;
        Flow::More
    }

    /// Ends a number or a word. Templates write `None` for null.
    fn end_literal(&mut self) -> Flow {
        let word = std::mem::take(&mut self.word);
        let is_number = || serde_json::from_str::<serde_json::Number>(&word).is_ok();
        let literal = match word.as_str() {
            "true" | "True" => "true",
            "false" | "False" => "false",
            "null" | "None" => "null",
            number if is_number() => number,
            _ => return Flow::Broken,
        };
        self.json += literal;
        self.stage = Stage::Comma;
        Flow::More
    }

    fn push_word(&mut self, text: &str) -> Flow {
        self.word += text;
        Flow::More
    }

    fn push_text(&mut self, text: &str) -> Flow {
        let escaped = Value::from(text).to_string();
        self.json += escaped.get(1..escaped.len() - 1).unwrap_or_default();
        Flow::More
    }

    /// Returns the arguments of a complete call. `None` if an object has a key twice.
    pub(crate) fn finish(&self) -> Option<Arguments> {
        serde_json::from_str::<UniqueKeys>(&self.json).ok()?;
        let value = serde_json::from_str(&self.json).ok()?;
        Some(Arguments { value, text: self.json.clone() })
    }
}
