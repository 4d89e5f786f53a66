//! A call written as a JSON object with a name and arguments, as Hermes and Llama 3 do.

use serde_json::Value;
use shardwright_vocabulary::UniqueKeys;

use super::parser::{Arguments, Flow};
use crate::input::JSON_NESTING_MAX;

/// The object of a call, as far as it is written.
#[derive(Clone, Debug, Default)]
pub(crate) struct JsonCall {
    text: String,
    /// The closing brackets that are expected, innermost last.
    closing: Vec<char>,
    string: Option<Inside>,
    stage: Stage,
    /// Where the current key or value starts.
    start: usize,
    key: String,
    seen: Vec<String>,
    name: Option<String>,
    /// Where the object of arguments starts, and where it ends.
    arguments: Option<(usize, Option<usize>)>,
    complete: bool,
}

/// A position in a string.
#[derive(Clone, Copy, Debug)]
enum Inside {
    Text,
    Escape,
}

/// The expected part of the outermost object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Object,
    FirstKey,
    Key,
    Colon,
    Value,
    InValue,
    Comma,
}

/// Names of the member with the arguments: Hermes, then Llama 3.
const ARGUMENTS: [&str; 2] = ["arguments", "parameters"];

impl JsonCall {
    /// Returns the name, once it is complete.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the arguments as far as they are written. `None` until they begin as an object.
    pub(crate) fn arguments(&self) -> Option<&str> {
        let (start, end) = self.arguments?;
        self.text.get(start..end.unwrap_or(self.text.len()))
    }

    /// Returns whether the text ends within a string.
    pub(crate) const fn is_in_string(&self) -> bool {
        self.string.is_some()
    }

    /// Processes the next character.
    pub(crate) fn push(&mut self, character: char) -> Flow {
        let at = self.text.len();
        if self.complete {
            return if character.is_ascii_whitespace() { Flow::More } else { Flow::Broken };
        }
        self.text.push(character);
        if let Some(inside) = self.string {
            return self.push_in_string(inside, character);
        }
        if self.closing.len() > 1 || self.stage == Stage::InValue {
            return self.push_in_value(at, character);
        }
        if matches!(character, ' ' | '\n' | '\r' | '\t') {
            return Flow::More;
        }
        self.push_between(at, character)
    }

    fn push_in_string(&mut self, inside: Inside, character: char) -> Flow {
        self.string = match (inside, character) {
            (_, '\0'..='\u{1f}') => return Flow::Broken,
            (Inside::Escape, _) => Some(Inside::Text),
            (Inside::Text, '\\') => Some(Inside::Escape),
            (Inside::Text, '"') => None,
            (Inside::Text, _) => Some(Inside::Text),
        };
        if self.string.is_some() || self.closing.len() > 1 {
            return Flow::More;
        }
        match self.stage {
            Stage::Colon => self.end_key(),
            _ => self.end_value(self.text.len()),
        }
    }

    /// Processes a character outside of the outermost object's own structure.
    fn push_in_value(&mut self, at: usize, character: char) -> Flow {
        match character {
            '"' => self.string = Some(Inside::Text),
            '{' | '[' => {
                if self.closing.len() >= JSON_NESTING_MAX {
                    return Flow::Broken;
                }
                self.closing.push(if character == '{' { '}' } else { ']' });
            }
            '}' | ']' if self.closing.len() > 1 => {
                if self.closing.pop() != Some(character) {
                    return Flow::Broken;
                }
                if self.closing.len() == 1 {
                    return self.end_value(self.text.len());
                }
            }
            // The end of a number or a word.
            ',' | '}' | ' ' | '\n' | '\r' | '\t' if self.closing.len() == 1 => {
                return match self.end_value(at) {
                    Flow::More if character.is_ascii_whitespace() => Flow::More,
                    Flow::More => self.push_between(at, character),
                    flow => flow,
                };
            }
            _ => {}
        }
        Flow::More
    }

    /// Processes a character of the outermost object's own structure.
    fn push_between(&mut self, at: usize, character: char) -> Flow {
        match (self.stage, character) {
            (Stage::Object, '{') => {
                self.closing.push('}');
                self.stage = Stage::FirstKey;
            }
            (Stage::FirstKey | Stage::Key, '"') => {
                self.start = at;
                self.string = Some(Inside::Text);
                self.stage = Stage::Colon;
            }
            (Stage::Colon, ':') => self.stage = Stage::Value,
            (Stage::Value, _) => return self.begin_value(at, character),
            (Stage::Comma, ',') => self.stage = Stage::Key,
            (Stage::Comma | Stage::FirstKey, '}') => {
                self.complete = true;
                return Flow::Complete;
            }
            _ => return Flow::Broken,
        }
        Flow::More
    }

    /// Checks the key of a member. Objects with other members are not calls.
    fn end_key(&mut self) -> Flow {
        let Ok(key) = serde_json::from_str::<String>(&self.text[self.start..]) else { return Flow::Broken };
        let is_arguments = ARGUMENTS.contains(&key.as_str());
        let is_known = is_arguments || matches!(key.as_str(), "name" | "type" | "id");
        let again = |seen: &String| *seen == key || (is_arguments && ARGUMENTS.contains(&seen.as_str()));
        if !is_known || self.seen.iter().any(again) {
            return Flow::Broken;
        }
        self.seen.push(key.clone());
        self.key = key;
        Flow::More
    }

    fn begin_value(&mut self, at: usize, character: char) -> Flow {
        let is_arguments = ARGUMENTS.contains(&self.key.as_str());
        let fits = match character {
            '"' => true,
            '{' | 'n' => is_arguments,
            _ => false,
        };
        if !fits {
            return Flow::Broken;
        }
        if character == '{' {
            self.arguments = Some((at, None));
        }
        self.start = at;
        self.stage = Stage::InValue;
        self.push_in_value(at, character)
    }

    fn end_value(&mut self, end: usize) -> Flow {
        self.stage = Stage::Comma;
        let text = &self.text[self.start..end];
        let value = |text: &str| serde_json::from_str::<String>(text).ok();
        match self.key.as_str() {
            "name" => match value(text) {
                Some(name) => self.name = Some(name),
                None => return Flow::Broken,
            },
            "type" if value(text).as_deref() != Some("function") => return Flow::Broken,
            "type" | "id" => {}
            _ => {
                if let Some((_, end_of)) = &mut self.arguments {
                    *end_of = Some(end);
                }
            }
        }
        Flow::More
    }

    /// Returns the arguments of a complete call. `None` if it is not a call. A call
    /// `with_arguments` must have some, even if they are empty.
    pub(crate) fn finish(&self, with_arguments: bool) -> Option<Arguments> {
        serde_json::from_str::<UniqueKeys>(&self.text).ok()?;
        let Value::Object(mut call) = serde_json::from_str(&self.text).ok()? else { return None };
        let written = ARGUMENTS.into_iter().find_map(|key| call.shift_remove(key));
        match written {
            None if with_arguments => None,
            None | Some(Value::Null) => Some(Arguments::of(Value::Object(serde_json::Map::new()))),
            // Some models write the object into a string.
            Some(Value::String(text)) => {
                serde_json::from_str::<UniqueKeys>(&text).ok()?;
                let value = serde_json::from_str(&text).ok().filter(Value::is_object)?;
                Some(Arguments { value, text })
            }
            Some(value @ Value::Object(_)) => {
                Some(Arguments { value, text: self.arguments().unwrap_or_default().to_owned() })
            }
            Some(_) => None,
        }
    }
}
