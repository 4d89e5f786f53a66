//! Prints values like Python's `str` and `repr`.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::meter::is_dict;
use super::python::{VALUE_NESTING_MAX, python_float};
use crate::control_tokens::Marks;

/// Returns the text of `value` in the output of a template, and of `str(value)`. `marks` are not
/// part of the text and stay unchanged.
///
/// # Errors
///
/// The name of a kind of value without a useful text: an iterator, a method, a namespace.
pub(crate) fn text_of(value: &Value, marks: Option<&Marks>) -> Result<String, String> {
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_owned()),
        _ => {
            let mut writer = Writer { out: String::new(), marks };
            writer.value(value, 0)?;
            Ok(writer.out)
        }
    }
}

struct Writer<'marks> {
    out: String,
    marks: Option<&'marks Marks>,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), String> {
        if depth > VALUE_NESTING_MAX {
            return Err(format!("a value that nests deeper than {VALUE_NESTING_MAX} levels"));
        }
        match value.kind() {
            ValueKind::Undefined => self.out.push_str("Undefined"),
            ValueKind::None => self.out.push_str("None"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "True" } else { "False" }),
            ValueKind::Number if value.is_integer() => self.out.push_str(&value.to_string()),
            ValueKind::Number => {
                let number = f64::try_from(value.clone()).map_err(|error| error.to_string())?;
                self.out.push_str(&match number {
                    number if number.is_nan() => "nan".to_owned(),
                    number if number.is_infinite() => if number > 0.0 { "inf" } else { "-inf" }.to_owned(),
                    number => python_float(number),
                });
            }
            ValueKind::String => self.quote(value.as_str().unwrap_or_default()),
            ValueKind::Seq => self.sequence(value, depth)?,
            ValueKind::Map if is_dict(value) => self.map(value, depth)?,
            ValueKind::Map => return Err("a namespace, macro or loop as text".to_owned()),
            ValueKind::Iterable => return Err("an iterator as text (`|list` makes a list of it)".to_owned()),
            other => return Err(format!("a {other} as text")),
        }
        Ok(())
    }

    fn sequence(&mut self, value: &Value, depth: usize) -> Result<(), String> {
        let (open, close) = if value.is_tuple() { ("(", ")") } else { ("[", "]") };
        self.out.push_str(open);
        for (index, item) in value.try_iter().map_err(|error| error.to_string())?.enumerate() {
            self.out.push_str(if index > 0 { ", " } else { "" });
            self.value(&item, depth + 1)?;
        }
        if value.is_tuple() && value.len() == Some(1) {
            self.out.push(',');
        }
        self.out.push_str(close);
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), String> {
        self.out.push('{');
        for (index, key) in value.try_iter().map_err(|error| error.to_string())?.enumerate() {
            self.out.push_str(if index > 0 { ", " } else { "" });
            self.value(&key, depth + 1)?;
            self.out.push_str(": ");
            self.value(&value.get_item(&key).map_err(|error| error.to_string())?, depth + 1)?;
        }
        self.out.push('}');
        Ok(())
    }

    fn quote(&mut self, text: &str) {
        let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
        self.out.push(quote);
        for character in text.chars() {
            match character {
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                character if character == quote => self.out.extend(['\\', character]),
                character if is_printable(character) => self.out.push(character),
                character if self.marks.is_some_and(|marks| marks.has(character)) => self.out.push(character),
                character => {
                    let code = u32::from(character);
                    self.out.push_str(&match code {
                        0..=0xff => format!("\\x{code:02x}"),
                        0x100..=0xffff => format!("\\u{code:04x}"),
                        _ => format!("\\U{code:08x}"),
                    });
                }
            }
        }
        self.out.push(quote);
    }
}

/// Returns the result of Python's `str.isprintable` for a character. The standard library uses the
/// same categories, but also escapes combining characters unless they follow another character.
pub(crate) fn is_printable(character: char) -> bool {
    let quoted: String = ['a', character].iter().collect();
    matches!(character, '\'' | '"' | '\\') || quoted.escape_debug().eq(quoted.chars())
}
